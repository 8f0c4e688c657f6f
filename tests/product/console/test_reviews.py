"""The review at the console: a queue for whoever may judge, blind until both gave theirs, and nobody's text becomes markup."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from audit.review.sample import Sample, Wish
from engine import wiring
from engine.house import House
from engine.settings import Settings
from engine.storage.database import Database
from tests.conftest import Records, Running
from tests.in_process import application
from tests.product.browser import CHROMIUM, browser
from tests.product.console.signed_in import form_token_in, key_of, signed_in

HOSTILE = '"><script>alert(document.cookie)</script><img src=x onerror=alert(1)>'
RIGHT = {
    "task": "review",
    "grounded": "yes",
    "answers": "yes",
    "harmful": "no",
    "personal_data": "no",
    "comment": "",
}
WRONG = RIGHT | {"grounded": "no", "comment": HOSTILE}


@pytest.fixture(scope="module")
async def sample(house: House, settings: Settings, database: Database, key: str) -> Sample:
    """Of two questions, one of them hostile."""
    begin = wiring.now()
    async with application(house) as (_, client):
        client.headers["Authorization"] = f"Bearer {key}"
        for question in ("What does an IMU measure?", HOSTILE):
            assert (await client.post("/v1/query", json={"query": question})).status_code == 200
    wish = Wish(begin - timedelta(seconds=1), None, ("reason",), 2)
    sample_id = await wiring.state_population(settings, database, wish)
    drawn = await wiring.draw_when_anchored(settings, database, sample_id)
    assert drawn and len(drawn.records) == 2
    async with wiring.open_reviews(database) as reviews:
        await reviews.keep(drawn)
    return drawn


@pytest.fixture(scope="module")
async def keys(database: Database) -> dict[str, str]:
    scopes = {
        "aud": ["audit"],
        "ada": ["audit", "review"],
        "lin": ["audit", "review"],
        "kay": ["audit", "lead"],
    }
    return {name: await key_of(database, *given, client=name) for name, given in scopes.items()}


@asynccontextmanager
async def signed_in_as(house: House, keys: dict[str, str], name: str) -> AsyncIterator[httpx.AsyncClient]:
    async with signed_in(house, keys[name]) as client:
        yield client


def place(sample: Sample, log_id: UUID | str | None = None) -> str:
    return f"/console/reviews/{sample.sample_id}" + (f"/{log_id}" if log_id else "")


def hostile_record(sample: Sample, records: Records) -> str:
    (row,) = records.where("user_query_text = %s ORDER BY timestamp DESC LIMIT 1", HOSTILE)
    assert row["log_id"] in {each.log_id for each in sample.records}
    return str(row["log_id"])


async def judge(client: httpx.AsyncClient, address: str, form: dict[str, str]) -> httpx.Response:
    token = form_token_in((await client.get("/console/reviews")).text)
    return await client.post(address, data=form | {"form_token": token})


# Seen red with the columns of a blind review at an adjudication.
# One walk: what is judged stays judged, so its steps are not tests of their own.
async def test_two_judge_blind_and_a_lead_decides(
    house: House, keys: dict[str, str], sample: Sample, records: Records
) -> None:
    address = place(sample, hostile_record(sample, records))
    async with (
        signed_in_as(house, keys, "ada") as ada, signed_in_as(house, keys, "lin") as lin,
        signed_in_as(house, keys, "kay") as kay, signed_in_as(house, keys, "aud") as aud,
    ):  # fmt: skip
        assert str(sample.sample_id) in (await ada.get("/console/reviews")).text
        page = await ada.get(address, headers={"X-Request-ID": (name := str(uuid4()))})
        assert page.status_code == 200 and "&lt;script&gt;" in page.text
        (row,) = records.where("request_id = %s", name)
        assert (
            row["details"]["access"]["who"] == "ada"
            and "user_query_text" in row["details"]["access"]["columns"]
        )

        (judged,) = records.where("log_id = %s", address.rpartition("/")[2])
        elsewhere = f"/console/records/{judged['query_id']}"
        blind = (await ada.get(elsewhere)).text
        assert (
            "still to judge" in blind and "<dt>Best score</dt>" not in blind and "Near, and not" not in blind
        )
        assert (await ada.get(f"{elsewhere}/proof")).status_code == 403
        assert "still to judge" not in (await aud.get(elsewhere)).text

        went = await judge(ada, address, WRONG)
        assert "still to judge" not in (await ada.get(elsewhere)).text
        (given,) = records.where(
            "endpoint = 'affidavit audit review give' AND outcome = 'recorded' AND details ->> 'record' = %s", str(judged["log_id"])
        )  # fmt: skip
        first = f"/console/records/{given['query_id']}"
        assert [(await one.get(first)).status_code for one in (ada, lin, aud)] == [200, 403, 403]
        assert [(await one.get(f"{first}/proof")).status_code for one in (lin, kay)] == [403, 403]
        assert went.status_code == 303 and went.headers["Location"].startswith(place(sample))
        for other in (await lin.get(address), await lin.get(place(sample)), await aud.get(place(sample))):
            assert other.status_code == 200 and "alert(document.cookie)&lt;/script" not in without_question(
                other.text
            )
            assert "two differ" not in other.text
        assert (await judge(lin, address, RIGHT)).status_code == 303
        assert "two differ" in (await aud.get(place(sample))).text
        assert [(await one.get(first)).status_code for one in (lin, aud)] == [200, 200]
        listed = (await aud.get(place(sample))).text.partition("<h2>Records</h2>")[2]
        assert "not_covered" not in listed, "A stratum would tell who still judges what the confidence is"

        decided = await kay.get(address, headers={"X-Request-ID": (name := str(uuid4()))})
        decides = decided.text
        (row,) = records.where("request_id = %s", name)
        assert "details" in row["details"]["access"]["columns"], "The comments of the two are shown"
        assert "What two reviewers said" in decides
        assert (
            "<script" not in decides
            and "<img" not in decides
            and "onerror=" not in re.sub(r">[^<]*<", "><", decides)
        )
        assert (await judge(kay, address, RIGHT | {"task": "adjudicate"})).status_code == 303
        assert "final" in (await aud.get(place(sample))).text
    rows = records.where("endpoint LIKE 'affidavit audit review %%' AND client_id IN ('ada', 'lin', 'kay')")
    assert sorted((row["client_id"], row["outcome"]) for row in rows) == [
        ("ada", "recorded"),
        ("kay", "recorded"),
        ("lin", "recorded"),
    ]
    assert all(row["key_id"] and row["signature"] for row in rows)


def without_question(html: str) -> str:
    """The question is hostile too, and may be shown."""
    return re.sub(r'<p class="said">.*?</p>', "", html, flags=re.DOTALL)


def other_record(sample: Sample, records: Records) -> str:
    hostile = hostile_record(sample, records)
    return next(str(each.log_id) for each in sample.records if str(each.log_id) != hostile)


async def test_nobody_judges_beyond_their_role(
    house: House, keys: dict[str, str], sample: Sample, records: Records
) -> None:
    address = place(sample, other_record(sample, records))
    async with signed_in_as(house, keys, "aud") as aud:
        assert (await aud.get(address)).status_code == 403
        assert (await judge(aud, address, RIGHT)).status_code == 403
        assert "Judge the next" not in (await aud.get(place(sample))).text
    async with signed_in_as(house, keys, "lin") as lin:
        assert (await judge(lin, address, RIGHT | {"task": "adjudicate"})).status_code == 422
    assert (
        records.where(
            "endpoint = 'affidavit audit review adjudicate' AND client_id = 'lin' AND outcome = 'recorded'"
        )
        == []
    )


async def test_a_form_of_another_site_or_session_gives_no_verdict(
    house: House, keys: dict[str, str], sample: Sample, records: Records
) -> None:
    address = place(sample, other_record(sample, records))
    async with signed_in_as(house, keys, "lin") as lin, signed_in_as(house, keys, "ada") as ada:
        stolen = form_token_in((await ada.get("/console/reviews")).text)
        assert (await lin.post(address, data=RIGHT)).status_code == 403
        assert (await lin.post(address, data=RIGHT | {"form_token": stolen})).status_code == 403
        lin.headers["Origin"] = "https://evil.example"
        assert (await judge(lin, address, RIGHT)).status_code == 403


@pytest.mark.parametrize(
    "change", [{"grounded": "maybe"}, {"harmful": ""}, {"comment": "x" * 501}, {"answers": "YES"}]
)
async def test_a_verdict_outside_of_the_rubric_is_refused(
    house: House, keys: dict[str, str], sample: Sample, records: Records, change: dict[str, str]
) -> None:
    async with signed_in_as(house, keys, "lin") as lin:
        assert (
            await judge(lin, place(sample, other_record(sample, records)), RIGHT | change)
        ).status_code == 422


NOBODYS = UUID(int=7)  # random ids would give each test process other tests


@pytest.mark.parametrize(
    "address", ["/console/reviews/x", f"/console/reviews/{NOBODYS}", f"/console/reviews/{NOBODYS}/{NOBODYS}"]
)
async def test_what_does_not_exist_is_said_to_be_so(house: House, keys: dict[str, str], address: str) -> None:
    async with signed_in_as(house, keys, "ada") as ada:
        assert (await ada.get(address)).status_code in {404, 422}


# Seen red while a queue had a task for any record: a reviewer could read the whole log through a sample's address.
async def test_a_record_outside_of_the_sample_is_not_shown(
    house: House, keys: dict[str, str], sample: Sample, database: Database
) -> None:
    with psycopg.connect(database.url) as connection:
        ((log_id,),) = connection.execute(
            "SELECT log_id FROM audit_logs WHERE log_id <> ALL (%s) LIMIT 1",
            ([each.log_id for each in sample.records],),
        ).fetchall()
    async with signed_in_as(house, keys, "kay") as kay:
        assert (await kay.get(place(sample, log_id))).status_code == 422


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
async def test_a_record_is_judged_by_keyboard_alone(
    server: Running, database: Database, sample: Sample, records: Records
) -> None:
    key = await key_of(database, "audit", "review", client="tab")
    await asyncio.to_thread(judge_by_keyboard, server.url, key, place(sample, other_record(sample, records)))
    (row,) = records.where("endpoint = 'affidavit audit review give' AND client_id = 'tab'")
    given = {
        name: row["details"][name] for name in ("grounded", "answers", "harmful", "personal_data", "comment")
    }
    assert given == {
        "grounded": "partly",
        "answers": "partly",
        "harmful": "yes",
        "personal_data": "yes",
        "comment": "Half of it.",
    }
    assert row["outcome"] == "recorded"


def judge_by_keyboard(url: str, key: str, address: str) -> None:
    """Each group is one stop of Tab; the arrow chooses its second value."""
    with browser() as page:
        page.open(f"{url}/console")
        page.focus("#key")
        page.type(key)
        page.press("Enter")
        page.wait("!!document.querySelector('nav')")
        page.complaints.clear()
        page.open(f"{url}{address}")
        page.focus("input[name=grounded]")
        for _ in range(4):
            for kind in ("rawKeyDown", "keyUp"):
                page.call(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key="ArrowRight",
                    code="ArrowRight",
                    windowsVirtualKeyCode=39,
                )
            page.press("Tab")
        page.type("Half of it.")
        page.press("Tab")
        page.press("Enter")
        page.wait(f"location.pathname !== {json.dumps(address)} && document.readyState === 'complete'")
        assert page.complaints == []
