"""Chat widgets that nobody here wrote, both ways: through the gateway, and with a public token at the engine itself."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from engine.house import House
from engine.storage.database import Database
from engine.wiring import now
from tests.conftest import Records, Running, running
from tests.product.docusaurus import package

__all__ = ["package"]

pytestmark = pytest.mark.campaign

SITE = "https://book.example.org"
CLIENTS = "tests/gateway/widgets.mjs"

Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def engine(database: Database) -> Iterator[Running]:
    settings = {
        "AFFIDAVIT_SERVER__ALLOWED_ORIGINS": SITE,
        "AFFIDAVIT_LIMITS__ANONYMOUS": "10000/hour",
        "AFFIDAVIT_SESSIONS__ENABLED": "true",
    }
    os.environ.update(settings)
    try:
        with running(database.settings.data_dir, command="serve") as started:
            yield started
    finally:
        for name in settings:
            del os.environ[name]


@contextmanager
def gateway(package: Path, engine: Running, key: str) -> Iterator[str]:
    words = [
        "node",
        "lib/gateway/main.js",
        "--no-site",
        "--port=0",
        f"--engine={engine.url}",
        "--per-address=1000/minute",
    ]
    keyed = os.environ | {"AFFIDAVIT_KEY": key}
    with subprocess.Popen(words, cwd=package, stdout=subprocess.PIPE, text=True, env=keyed) as process:
        assert process.stdout
        try:
            yield str(json.loads(process.stdout.readline())["url"]).rstrip("/")
        finally:
            process.terminate()


def seen_at(package: Path, engine: Running, base: str, origin: str, *token: str) -> Seen:
    described = httpx.get(f"{engine.url}/openapi.json").json()["paths"]
    paths = {path: "text/event-stream" in json.dumps(about) for path, about in described.items()}
    ended = subprocess.run(
        ["node", CLIENTS, base, origin, *token], cwd=package, text=True, capture_output=True, check=False,
        env=os.environ | {"WIDGET_PATHS": json.dumps(paths)},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    seen: Seen = json.loads(ended.stdout)
    return seen


@pytest.fixture(scope="module")
def ways(package: Path, engine: Running, key: str) -> dict[str, Seen]:
    with gateway(package, engine, key) as url:
        through = seen_at(package, engine, url, url)
    made = httpx.post(
        f"{engine.url}/v1/public-tokens", json={"origin": SITE}, headers={"Authorization": f"Bearer {key}"}
    )
    return {"gateway": through, "token": seen_at(package, engine, engine.url, SITE, made.json()["token"])}


@pytest.mark.parametrize("way", ["gateway", "token"])
def test_each_widget_gets_its_answer_and_its_refusal(ways: dict[str, Seen], way: str) -> None:
    assert {each["path"] for each in ways[way]} >= {"/query", "/api/query", "/v1/query", "/api/ask"}
    for each in ways[way]:
        name = (each["path"], each["manner"], each["outcome"])
        assert each["status"] == 200, name
        said = json.dumps(each)
        if each["outcome"] == "answered":
            assert "acceleration" in said or "angular" in said, name
        else:
            assert "not covered" in said, name


@pytest.mark.parametrize("way", ["gateway", "token"])
def test_each_stream_arrives_whole_and_says_that_it_is_over(ways: dict[str, Seen], way: str) -> None:
    for each in ways[way]:
        if each["manner"] == "json":
            continue
        name = (each["path"], each["manner"], each["outcome"])
        if each["manner"] == "lines":
            assert each["type"].startswith("text/event-stream"), name
            assert each["rest"] == "", name
            last = each["chunks"][-1]
        else:
            names = {event["name"] for event in each["heard"]}
            assert (names == {"message"}) == (each["path"] != "/v1/query"), name
            last = each["heard"][-1]["data"]
        is_last_of_v1 = each["path"] == "/v1/query" and "receipt" in last
        assert last.get("done") is True or last.get("type") == "done" or is_last_of_v1, name


def test_both_ways_see_the_same_and_leave_a_row_for_each_question(
    ways: dict[str, Seen], records: Records, key: str
) -> None:
    asked = [
        [(each["path"], each["manner"], each["outcome"], each["status"]) for each in seen]
        for seen in ways.values()
    ]
    assert asked[0] == asked[1]
    rows = records.where(
        "key_id = %s AND details->>'public_token' = %s AND endpoint <> '/v1/public-tokens'",
        key.split("_")[1],
        SITE,
    )
    assert len(rows) == len(ways["token"])
    assert {row["end_user"] for row in rows} == {"anon:127.0.0.1"}


# --- Sessions, and several engines


# Seen red: the gateway did not say that it prefers a new session.
def test_through_the_gateway_a_dead_session_begins_anew_and_a_living_one_goes_on(
    package: Path, engine: Running, key: str, records: Records
) -> None:
    question = {"query": "What does an IMU measure?"}
    with gateway(package, engine, key) as url, httpx.Client(base_url=url, headers={"Origin": url}) as page:
        for dead in (str(uuid4()), "no-uuid"):
            asked = {"X-Request-ID": (request_id := str(uuid4()))}
            first = page.post("/ask", json=question | {"session_id": dead}, headers=asked)
            assert first.status_code == 200
            session = first.json()["session_id"]
            assert session not in (None, dead)
            (row,) = records.where("request_id = %s", request_id)
            assert str(row["session_id"]) == session
        token = {"X-Session-Token": first.json()["session_token"]}
        again = page.post("/v1/query", json=question | {"session_id": session}, headers=token)
        assert (again.status_code, again.json()["session_id"]) == (200, session)
        anothers = page.post("/v1/query", json=question | {"session_id": session})
        assert anothers.status_code == 200
        assert anothers.json()["session_id"] != session


async def test_engines_behind_one_address_accept_each_others_tokens(
    house: House, engine: Running, key: str
) -> None:
    """The one in this process makes it, the one in a process of its own is asked."""
    token, _ = house.public_tokens.make(key.split("_")[1], SITE, "physical-ai", now(), 60)
    headers = {"Authorization": f"Bearer {token}", "Origin": SITE}
    async with httpx.AsyncClient(base_url=engine.url, headers=headers) as page:
        asked = await page.post("/v1/query", json={"query": "What does an IMU measure?"})
    assert asked.status_code == 200
