"""People sign in to the console at a provider of OpenID Connect: who gets in, as whom they are on record, and what attacks make of it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit
from uuid import uuid4

import httpx
import psycopg
import pytest

from engine import wiring
from engine.admission.console_sessions import IDLE, LIFETIME, digest
from engine.admission.flood import ROWS_MAX
from engine.admission.single_sign_on import Attempt, Roles
from engine.cli import doctor
from engine.errors import ConfigurationError
from engine.house import House
from engine.http.console.single_sign_on import LOOPBACK_COOKIE
from engine.storage.database import Database
from tests.conftest import Records
from tests.product.console.signed_in import ELSEWHERE, browser_at, form_token_in
from tests.product.console.signing_on import (
    answered,
    begin,
    console_with,
    leave,
    led_to,
    roles_of,
    sign_on,
    with_roles,
)
from tests.upstreams.openid import DISCOVERY, KEYS, TOKEN, Provider, coded, provider, table

RETURN = "/console/sign-in/return"
HTML = (200, "text/html", b"<!doctype html><h1>canary of a proxy</h1>")


@pytest.fixture
def upstream() -> Iterator[Provider]:
    with provider() as made:
        yield made


@pytest.fixture
async def client(house: House, upstream: Provider) -> AsyncIterator[httpx.AsyncClient]:
    async with console_with(house, upstream) as made:
        yield made


async def role_of(client: httpx.AsyncClient) -> str:
    page = await client.get("/console")
    return page.text.partition('<span class="role">')[2].partition("<")[0] if page.status_code == 200 else ""


async def refused(client: httpx.AsyncClient, page: httpx.Response, status: int = 401) -> None:
    """A plain page that says so, and nobody is signed in."""
    assert page.status_code == status, page.text
    assert page.headers["Content-Type"].startswith("text/html")
    assert 'role="alert"' in page.text
    assert "affidavit_console=" not in page.headers.get("Set-Cookie", "")
    assert (await client.get("/console")).status_code == 401


# --- Who gets in


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        (["log-readers"], "auditor"),
        (["log-reviewers", "others"], "reviewer"),
        (["log-readers", "log-leads"], "lead"),
        ("log-leads", "lead"),
    ],
)
async def test_the_groups_are_the_role(
    client: httpx.AsyncClient, upstream: Provider, groups: Any, role: str
) -> None:
    upstream.person["groups"] = groups
    page = await sign_on(client)
    assert (page.status_code, led_to(page)) == (200, "/console")
    assert await role_of(client) == role


async def test_over_https_both_cookies_are_of_this_host_alone(house: House, upstream: Provider) -> None:
    async with console_with(house, upstream, ELSEWHERE) as client:
        page = await client.post("/console/sign-in/begin", data={"next": "/console"})
        begun = page.headers["Set-Cookie"]
        back = await client.get(await answered(led_to(page)))
        assert (await client.get("/console")).status_code == 200
    assert begun.startswith("__Host-affidavit_sign_in=")
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax", "Max-Age=600"} <= set(begun.split("; "))
    session, gone, *_ = back.headers.get_list("Set-Cookie")
    assert session.startswith("__Host-affidavit_console=")
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=strict"} <= set(session.split("; "))
    assert gone.startswith('__Host-affidavit_sign_in="";')


async def test_the_cookie_of_a_sign_in_reaches_no_other_page(client: httpx.AsyncClient) -> None:
    page = await begin(client)
    flags = {part.strip().lower() for part in page.headers["Set-Cookie"].split(";")[1:]}
    assert flags == {"httponly", "samesite=lax", "path=/console/sign-in", "max-age=600"}


async def test_without_a_provider_there_is_neither_a_button_nor_an_address(house: House) -> None:
    async with browser_at(house) as client:
        assert "begin" not in (await client.get("/console")).text
        assert (await begin(client)).status_code == 404
        assert (await client.get(RETURN)).status_code == 404


# Seen red with the check of the role left out of `come_back`, and with a role for everybody.
@pytest.mark.parametrize("groups", [None, [], ["LOG-READERS"], "log-readers,log-leads", {"log-leads": True}, [["log-leads"]], "auditor"])  # fmt: skip
async def test_nobody_without_a_role_gets_in(
    client: httpx.AsyncClient, upstream: Provider, records: Records, groups: Any
) -> None:
    upstream.person = {"sub": (subject := f"mallory {uuid4()}"), "groups": groups}
    page = await sign_on(client)
    await refused(client, page, 403)
    assert "none of your groups" in page.text
    (row,) = records.where("end_user = %s", f"oidc:{upstream.issuer} {subject}")
    assert (row["outcome"], row["http_status"], row["client_id"]) == ("failed", 403, "oidc:no-role")


# --- On record


async def test_each_page_is_one_row_that_names_the_person_in_a_personal_column_alone(
    client: httpx.AsyncClient, upstream: Provider, records: Records
) -> None:
    upstream.person["sub"] = subject = f"alice {uuid4()}"
    client.headers["X-Request-ID"] = name = str(uuid4())
    await sign_on(client, "/console/charts")
    begun, back = records.where("request_id = %s ORDER BY timestamp", name)
    assert (begun["endpoint"], begun["http_status"], begun["client_id"]) == (
        "/console/sign-in/begin",
        401,
        None,
    )
    assert (back["endpoint"], back["outcome"], back["http_status"]) == (RETURN, "served", 200)
    assert back["details"] == {"console": "signed in", "role": "auditor", "issuer": upstream.issuer}
    client.headers["X-Request-ID"] = name = str(uuid4())
    await client.get("/console/charts")
    (page,) = records.where("request_id = %s", name)
    assert page["client_id"] == back["client_id"]
    assert page["client_id"].startswith("oidc:")
    assert (page["key_id"], page["end_user"]) == (None, f"oidc:{upstream.issuer} {subject}")
    del page["end_user"]
    assert subject not in str(page)


async def test_a_person_has_one_name_on_record_however_often_they_come(
    client: httpx.AsyncClient, upstream: Provider, records: Records
) -> None:
    upstream.person["sub"] = subject = f"alice {uuid4()}"
    for _ in range(2):
        await sign_on(client)
    person = f"oidc:{upstream.issuer} {subject}"
    found = {row["client_id"] for row in records.where("end_user = %s AND outcome = 'served'", person)}
    assert len(found) == 1
    upstream.person["sub"] = f"{subject}2"
    await sign_on(client)
    (other,) = records.where("end_user = %s AND outcome = 'served'", f"{person}2")
    assert other["client_id"] not in found


# Seen red with the subject as the client's name.
@pytest.mark.parametrize(
    "subject",
    [
        "an auditor",
        "demo",
        '"><script>alert(1)</script><img src=x onerror=alert(1)>',
        "oidc:0000000000000000",
    ],
)
async def test_a_subject_that_looks_like_a_keys_client_or_like_markup_is_neither(
    client: httpx.AsyncClient, upstream: Provider, records: Records, subject: str
) -> None:
    upstream.person["sub"] = subject
    await sign_on(client)
    page = (await client.get("/console")).text
    assert "<script>" not in page
    assert "<img" not in page
    rows = records.where("end_user = %s AND outcome = 'served'", f"oidc:{upstream.issuer} {subject}")
    assert rows
    assert all(row["client_id"] != subject and row["client_id"].startswith("oidc:") for row in rows)


async def test_no_key_can_have_the_name_of_a_person(database: Database) -> None:
    async with wiring.open_keys(database) as keys:
        with pytest.raises(ConfigurationError, match="oidc:"):
            await keys.create("oidc:0123456789abcdef", ["audit"], None)


async def test_erasing_a_person_ends_their_sessions_and_unties_their_name(
    client: httpx.AsyncClient, upstream: Provider, database: Database
) -> None:
    upstream.person["sub"] = subject = f"alice {uuid4()}"
    await sign_on(client)
    with psycopg.connect(database.url, autocommit=True) as connection:
        found = "SELECT person_id FROM console_people WHERE subject = %s"
        assert connection.execute(found, (subject,)).fetchone()
        connection.execute("SET ROLE affidavit_archiver")
        who = [f"oidc:{upstream.issuer} {subject}"]
        count = connection.execute("SELECT audit_forget_sessions(%s, '{}')", (who,)).fetchone()
        connection.execute("RESET ROLE")
        assert count == (1,)
        assert connection.execute(found, (subject,)).fetchone() is None
    assert (await client.get("/console")).status_code == 401


# --- Sessions


async def test_a_session_ends_when_single_sign_on_is_switched_off(house: House, upstream: Provider) -> None:
    async with console_with(house, upstream) as client:
        await sign_on(client)
        cookie = client.cookies["affidavit_console"]
    async with browser_at(house) as client:
        page = await client.get("/console", headers={"Cookie": f"affidavit_console={cookie}"})
    assert page.status_code == 401


# Seen red with a role for everybody, and with the issuer of a session not compared.
@pytest.mark.parametrize(
    ("changed", "role"),
    [
        ({"auditors": ("others",)}, ""),
        ({"auditors": (), "leads": ("log-readers",)}, "lead"),
        ({"issuer": "http://localhost/other"}, ""),
        ({}, "auditor"),
    ],
)
async def test_the_settings_of_now_give_the_role(
    house: House, upstream: Provider, changed: dict[str, Any], role: str
) -> None:
    async with console_with(house, upstream) as client:
        await sign_on(client)
        cookie = client.cookies["affidavit_console"]
    roles = roles_of(table(upstream, **changed))
    async with browser_at(house, **with_roles(house, roles)) as client:
        client.cookies.set("affidavit_console", cookie)
        assert await role_of(client) == role


@pytest.mark.parametrize(("column", "most"), [("last_seen_at", IDLE), ("created_at", LIFETIME)])
async def test_a_persons_session_ends_by_itself(
    client: httpx.AsyncClient, database: Database, column: str, most: timedelta
) -> None:
    await sign_on(client)
    with psycopg.connect(database.url) as connection:
        ended = f"UPDATE console_sessions SET {column} = now() - %s WHERE digest = %s"
        connection.execute(ended.encode(), (most, digest(client.cookies["affidavit_console"])))
    assert (await client.get("/console")).status_code == 401


async def test_signing_out_ends_the_session_and_says_where_it_goes_on(
    client: httpx.AsyncClient, upstream: Provider
) -> None:
    await sign_on(client)
    copied = client.cookies["affidavit_console"]
    token = form_token_in((await client.get("/console")).text)
    said = await client.post("/console/sign-out", data={"form_token": token})
    assert f"still signed in at {urlsplit(upstream.issuer).netloc}" in said.text
    stolen = await client.get("/console", headers={"Cookie": f"affidavit_console={copied}"})
    assert stolen.status_code == 401


# --- Attacks on the way back


async def other_browser(house: House, upstream: Provider) -> str:
    """The answer for a sign-in that another browser has begun, not used yet."""
    async with console_with(house, upstream) as other:
        return await answered(await leave(other))


# Seen red with the comparison of `state` left out.
async def test_the_answer_of_another_browser_signs_nobody_in(
    client: httpx.AsyncClient, house: House, upstream: Provider
) -> None:
    """Login CSRF: the attacker's own answer, for the victim to open; with and without a sign-in of the victim under way."""
    await refused(client, await client.get(await other_browser(house, upstream)))
    mine = await leave(client)
    await refused(client, await client.get(await other_browser(house, upstream)))
    assert upstream.count(TOKEN) == 0
    await client.get(await answered(mine))  # which has not ended the victim's own
    assert await role_of(client) == "auditor"


# Seen red with one verifier for all.
async def test_a_stolen_code_is_worth_nothing_without_the_verifier(
    client: httpx.AsyncClient, house: House, upstream: Provider
) -> None:
    """Code injection: the victim's code under the attacker's own state."""
    mine = dict(parse_qsl(urlsplit(await answered(await leave(client))).query))
    stolen = dict(parse_qsl(urlsplit(await other_browser(house, upstream)).query))["code"]
    await refused(client, await client.get(RETURN, params=mine | {"code": stolen}))
    assert upstream.tokens == []


# Seen red with the comparison of the nonce left out.
async def test_a_stolen_code_at_a_provider_without_pkce_fails_by_its_nonce(
    client: httpx.AsyncClient, house: House, upstream: Provider
) -> None:
    upstream.checks_verifier = False
    mine = dict(parse_qsl(urlsplit(await answered(await leave(client))).query))
    stolen = dict(parse_qsl(urlsplit(await other_browser(house, upstream)).query))["code"]
    await refused(client, await client.get(RETURN, params=mine | {"code": stolen}), 502)
    assert len(upstream.tokens) == 1


async def test_a_token_of_an_earlier_sign_in_does_not_count_again(
    client: httpx.AsyncClient, upstream: Provider
) -> None:
    await sign_on(client)
    token = form_token_in((await client.get("/console")).text)
    await client.post("/console/sign-out", data={"form_token": token})
    replayed = json.dumps({"id_token": upstream.tokens[0]}).encode()
    upstream.answers[TOKEN] = (200, "application/json", replayed)
    await refused(client, await sign_on(client), 502)


# Seen red with `console_sign_ins` left out.
@pytest.mark.parametrize("takes_used_codes", [False, True])
async def test_a_way_back_leads_in_once(
    client: httpx.AsyncClient, upstream: Provider, takes_used_codes: bool
) -> None:
    """Also for whoever has copied the browser's cookie, and also at a provider that takes a code twice."""
    upstream.takes_used_codes = takes_used_codes
    back = await answered(await leave(client))
    copied = client.cookies[LOOPBACK_COOKIE]
    assert (await client.get(back)).status_code == 200
    token = form_token_in((await client.get("/console")).text)
    await client.post("/console/sign-out", data={"form_token": token})
    assert LOOPBACK_COOKIE not in client.cookies
    await refused(client, await client.get(back))
    client.cookies.set(LOOPBACK_COOKIE, copied)
    await refused(client, await client.get(back))


# Seen red with the comparison of `iss` left out.
@pytest.mark.parametrize("issuer", ["https://evil.example", "", None])
async def test_the_answer_of_another_issuer_is_not_redeemed_here(
    client: httpx.AsyncClient, upstream: Provider, issuer: str | None
) -> None:
    """Mix-up: what another provider gave must not be sent to this one, nor the reverse."""
    answer = dict(parse_qsl(urlsplit(await answered(await leave(client))).query)) | {"iss": issuer}
    given = {name: value for name, value in answer.items() if value is not None}
    await refused(client, await client.get(f"{RETURN}?{urlencode(given)}"))
    assert upstream.count(TOKEN) == 0


@pytest.mark.parametrize("name", ["code", "state", "iss"])
async def test_a_value_that_is_there_twice_is_refused(client: httpx.AsyncClient, name: str) -> None:
    back = await answered(await leave(client))
    (value,) = parse_qs(urlsplit(back).query)[name]
    await refused(client, await client.get(f"{back}&{urlencode({name: value})}"))


@pytest.mark.parametrize("query", ["", "state=", "code=x", "state=x&code=x&iss=y", "state=%00&code=%ff"])
async def test_an_answer_for_nobody_is_refused_without_asking_the_provider(
    client: httpx.AsyncClient, upstream: Provider, query: str
) -> None:
    await refused(client, await client.get(f"{RETURN}?{query}"))
    client.cookies.set(LOOPBACK_COOKIE, "")
    await refused(client, await client.get(f"{RETURN}?{query}"))
    assert upstream.asked == []


# Seen red with an empty cookie taken for a sign-in: everybody can compute its `state`.
async def test_an_answer_for_a_cookie_that_is_empty_is_refused(
    client: httpx.AsyncClient, upstream: Provider
) -> None:
    answer = {"state": Attempt("").state, "code": "x", "iss": upstream.issuer}
    await refused(client, await client.get(RETURN, params=answer))
    assert upstream.asked == []


async def test_what_the_provider_refuses_is_said_without_words_that_anybody_can_write(
    client: httpx.AsyncClient, upstream: Provider
) -> None:
    for error in ("access_denied", "server_error", "<b>canary</b>"):
        state = parse_qs(urlsplit(await leave(client)).query)["state"][0]
        said = {
            "state": state,
            "iss": upstream.issuer,
            "error": error,
            "error_description": "canary: call 555",
        }
        page = await client.get(RETURN, params=said)
        await refused(client, page, 401 if error == "access_denied" else 502)
        assert "canary" not in page.text


async def test_another_site_can_begin_no_sign_in(client: httpx.AsyncClient, upstream: Provider) -> None:
    client.headers["Origin"] = "https://evil.example"
    page = await client.post("/console/sign-in/begin", data={"next": "/console"})
    assert page.status_code == 403
    assert "Set-Cookie" not in page.headers
    assert upstream.count(DISCOVERY) == 0


# Seen red with the path taken as the cookie or the form has it.
@pytest.mark.parametrize(
    "where", ["//evil.example", "https://evil.example", "/v1/query", "/console\\evil", "/consolex", "/console/" + "x" * 2000]
)  # fmt: skip
async def test_the_way_back_leads_to_the_console_and_nowhere_else(
    client: httpx.AsyncClient, where: str
) -> None:
    """Open redirect: by the form, and by a cookie that was made elsewhere."""
    assert led_to(await sign_on(client, where)) == "/console"
    back = await answered(await leave(client))
    secret = client.cookies[LOOPBACK_COOKIE].partition(".")[0]
    client.cookies.set(LOOPBACK_COOKIE, f"{secret}.{coded(where.encode())}", domain="127.0.0.1")
    page = await client.get(back, headers={"Cookie": f"{LOOPBACK_COOKIE}={secret}.{coded(where.encode())}=="})
    assert "evil" not in page.text
    assert "/v1/query" not in page.text


async def test_whoever_opened_another_address_of_the_console_is_told_the_right_one(
    house: House, upstream: Provider
) -> None:
    async with console_with(house, upstream, address=ELSEWHERE) as client:
        page = await begin(client)
    assert page.status_code == 403
    assert f"{ELSEWHERE}/console" in page.text


async def test_the_way_back_leads_to_the_page_that_was_wanted(client: httpx.AsyncClient) -> None:
    assert led_to(await sign_on(client, "/console/charts?from=2026-11-01&x=%3Cb%3E")) == (
        "/console/charts?from=2026-11-01&x=%3Cb%3E"
    )


async def test_no_field_and_no_parameter_makes_a_lead(client: httpx.AsyncClient) -> None:
    """Role escalation: the groups are those of the signed token, whatever else the browser sends."""
    forged = {"role": "lead", "groups": "log-leads", "scope": "audit,lead", "granted": "log-leads"}
    page = await client.post("/console/sign-in/begin", data={"next": "/console", **forged})
    back = await answered(led_to(page))
    await client.get(f"{back}&{urlencode(forged)}")
    assert await role_of(client) == "auditor"
    token = form_token_in((await client.get("/console")).text)
    said = await client.post(
        "/console/access/requests", data={"form_token": token, "do": "approve", **forged}
    )
    assert said.status_code in {403, 404, 422}
    assert await role_of(client) == "auditor"


async def test_a_cookie_that_a_neighbouring_site_could_set_begins_nothing(
    house: House, upstream: Provider
) -> None:
    """Over https the unprotected name of the cookie does not count."""
    async with console_with(house, upstream) as here:
        back, cookie = await answered(await leave(here)), here.cookies[LOOPBACK_COOKIE]
    async with console_with(house, upstream, ELSEWHERE) as client:
        page = await client.get(back, headers={"Cookie": f"{LOOPBACK_COOKIE}={cookie}"})
    assert page.status_code == 401


# --- A provider that fails


# What else a provider can do wrong: tests/parts/access/test_openid.py.
@pytest.mark.parametrize("path", [DISCOVERY, KEYS, TOKEN])
async def test_nonsense_of_the_provider_is_a_plain_page_that_says_what_to_do(
    client: httpx.AsyncClient, upstream: Provider, records: Records, path: str
) -> None:
    upstream.answers[path] = HTML
    client.headers["X-Request-ID"] = name = str(uuid4())
    page = await (begin(client) if path == DISCOVERY else sign_on(client))
    row = records.where("request_id = %s ORDER BY timestamp", name)[-1]
    await refused(client, page, 502)
    assert "affidavit doctor" in page.text
    assert "canary" not in page.text
    assert (row["outcome"], row["http_status"], row["error_type"]) == ("failed", 502, "network")
    assert "status 200, and no JSON object" in row["error_message"]


async def test_a_provider_that_hangs_keeps_nobody_waiting(house: House, upstream: Provider) -> None:
    """Less than a request may take: then the page would speak of a question."""
    upstream.hangs = {TOKEN}
    async with console_with(house, upstream, timeout_s=0.3) as client:
        page = await sign_on(client)
        await refused(client, page, 502)
    assert "identity provider" in page.text


# Seen red with 502 among the engine's own faults.
@pytest.mark.parametrize("is_down", [False, True])
async def test_a_flood_of_sign_ins_that_only_begin_shares_rows(
    house: House, upstream: Provider, records: Records, is_down: bool
) -> None:
    if is_down:
        upstream.answers[DISCOVERY] = HTML
    visitor = f"203.0.113.{80 + is_down}"
    async with console_with(house, upstream, visitor=visitor) as client:
        for _ in range(ROWS_MAX):
            await begin(client)
        await asyncio.gather(*(begin(client) for _ in range(5)))
    rows = records.where("endpoint = '/console/sign-in/begin' AND client_address = %s", visitor)
    assert len(rows) == ROWS_MAX
    assert upstream.count(DISCOVERY) == 1


# --- Secrets


# Seen red with the query of the address in the log, and with the token in an error's words.
async def test_no_secret_and_no_token_is_in_a_log_a_row_a_page_or_a_table(
    client: httpx.AsyncClient,
    upstream: Provider,
    database: Database,
    records: Records,
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream.person["sub"] = f"alice {uuid4()}"
    client.headers["X-Request-ID"] = name = str(uuid4())
    pages = []
    with caplog.at_level(logging.DEBUG):
        begun = await begin(client)
        secret = client.cookies[LOOPBACK_COOKIE].partition(".")[0]
        back = await answered(led_to(begun))
        pages += [begun, await client.get(back), await client.get("/console"), await client.get(back)]
        upstream.claims = {"aud": "another console"}
        pages.append(await sign_on(client))
    code = parse_qs(urlsplit(back).query)["code"][0]
    asked = [given for path, given in upstream.asked if path == TOKEN]
    canaries = [
        upstream.secret, secret, code, client.cookies["affidavit_console"], *upstream.tokens, asked[0]["code_verifier"],
        "canary-access-token", "canary-refresh-token", "canary-secret",
    ]  # fmt: skip
    with psycopg.connect(database.url) as connection:
        tables = [
            str(connection.execute(f"SELECT to_jsonb(t)::text FROM {table} t".encode()).fetchall())
            for table in ("console_people", "console_sessions", "console_sign_ins", "audit_open")
        ]
    rows = records.where("request_id = %s", name)
    assert len(rows) == 6
    ours = [
        each.getMessage() + str(vars(each))
        for each in caplog.records
        if each.name.startswith(("engine", "audit"))
    ]
    for canary in canaries:
        assert canary not in str(rows)
        assert canary not in str(tables)
        assert canary not in str(ours)
        assert canary not in "".join(page.text for page in pages)


async def test_the_page_with_the_code_in_its_address_tells_nobody_of_it(client: httpx.AsyncClient) -> None:
    page = await sign_on(client)
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert page.headers["Cache-Control"] == "no-store"
    assert "<script" not in page.text
    assert "unsafe" not in page.headers["Content-Security-Policy"]


# --- What the operator is told


@pytest.mark.parametrize(
    ("metadata", "keys", "state", "words"),
    [
        (
            {},
            None,
            "ok",
            "answers, with 1 keys; it must allow the redirect URI http://127.0.0.1/console/sign-in/return",
        ),
        ({"issuer": "https://evil.example"}, None, "failed", "another issuer than oidc.issuer"),
        ({}, [], "failed", "no key for RS256, ES256, EdDSA"),
    ],
)
async def test_doctor_says_whether_the_provider_answers(
    upstream: Provider, database: Database, metadata: dict[str, Any], keys: Any, state: str, words: str
) -> None:
    upstream.metadata, upstream.keys = metadata, keys
    settings = database.settings.model_copy(update={"oidc": table(upstream)})
    found = await doctor._single_sign_on(settings, database)
    assert found[0] == state
    assert words in found[1]


async def test_doctor_says_that_it_is_off(database: Database) -> None:
    assert (await doctor._single_sign_on(database.settings, database))[0] == "ok"


def test_roles_are_exact() -> None:
    roles = Roles("https://id.example", frozenset({"a"}), frozenset({"r"}), frozenset({"l", "a"}))
    assert roles.scopes(["a"]) == {"audit", "lead"}
    assert roles.scopes(["r"]) == {"audit", "review"}
    assert roles.scopes([]) == frozenset()
    assert roles.granting(["x", "r", "a"]) == ["a", "r"]
