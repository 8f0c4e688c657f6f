"""docs/reference/contracts.md says what a client of each contract sees: each line of its table is tried here."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from engine import wiring
from engine.admission.sessions import Sessions
from engine.errors import DatabaseUnavailableError
from engine.house import House
from engine.models import Citation, Claim, Draft, Generation, Question, RetrievedPassage
from engine.storage.database import Database
from tests.conftest import ROOT, Records
from tests.in_process import application
from tests.product.widgets.clients import WIDGETS, Seen, Widget

TABLE = (ROOT / "docs" / "reference" / "contracts.md").read_text()
ADDRESS = "127.0.0.47"  # requests without a key are counted by address
IMU = "What does an IMU measure?"
OFF_TOPIC = "Who wrote Pride and Prejudice?"
IN_TIME_S = 5.1

MANNERS = [
    pytest.param(widget, manner, id=f"{widget.path} {manner}")
    for widget in WIDGETS
    for manner in ("JSON", "stream")
    if manner == "stream" or not widget.streams_always
]
CONVERSING = [
    pytest.param(widget, manner, id=f"{widget.path} {manner}")
    for widget in WIDGETS
    for manner in ("JSON", "stream")
    if widget.has_sessions
]
LOOKUPS = [
    ("GET", "/chapters"),
    ("GET", "/health"),
    ("GET", "/api/health"),
    ("GET", "/api/v1/chat/sessions/{id}"),
    ("DELETE", "/api/v1/chat/sessions/{id}"),
]


class Hanging:
    """A generator that says one sentence of the book, and nothing any more."""

    name = "hanging"

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncIterator[Claim]:
        cited = evidence[0].passage.sentence_text(0)
        yield Claim(cited, (Citation(0, 0, 1, cited),))
        await asyncio.Event().wait()

    async def close(self) -> None: ...


class DatabaseDown:
    """A library whose database does not respond."""

    async def live(self, book_id: str) -> Generation:
        raise DatabaseUnavailableError


class SessionsDown(Sessions):
    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[Any]:
        raise DatabaseUnavailableError
        yield


@dataclass
class Tried:
    """One contract in one manner, against an engine in each state."""

    house: House
    widget: Widget
    manner: str
    key: str
    spent_key: str
    records: Records

    async def cells(self) -> list[str]:
        engine = self.house.engine
        slow = replace(engine, generator=Hanging(), rules=replace(engine.rules, generation_s=0.3))  # type: ignore[arg-type]  # never closed
        down = replace(engine, library=DatabaseDown())  # type: ignore[arg-type]  # nothing else is asked of it
        asks = [
            self.ask(IMU),
            self.ask(OFF_TOPIC),
            self.ask(IMU, key=None),
            self.ask(""),
            self.ask(IMU, key=self.spent_key),
            self.ask(IMU, engine=slow),
            self.ask(IMU, engine=down),
        ]
        return [f"`{self.widget.path}`", self.manner, *[_cell(await ask) for ask in asks]]

    async def ask(self, question: str, *, key: str | None = "", engine: Any = None) -> Seen:
        """The question, which leaves its one row."""
        house = replace(self.house, engine=engine or self.house.engine)
        secret = self.key if key == "" else key
        request_id = str(uuid4())
        fetch = self.widget.fetch_json if self.manner == "JSON" else self.widget.fetch_stream
        async with application(house, key=secret, address=ADDRESS) as (_, http):
            async with asyncio.timeout(IN_TIME_S):
                seen = await fetch(http, self.widget.body(question), **{"X-Request-ID": request_id})
        (row,) = self.records.where("request_id = %s", request_id)
        assert row["endpoint"] == (self.widget.endpoint or self.widget.path)
        assert row["http_status"] == seen.status or (seen.status == 200 and seen.error)
        return seen


def _cell(seen: Seen) -> str:
    """In words that do not depend on the book."""
    if seen.status != 200:
        assert seen.last
        wait = ", `retry_after`" if seen.last["retry_after"] else ""
        field = f" of `{seen.last['field']}`" if seen.last["field"] else ""
        return f"{seen.status} {seen.error_type}{field}{wait}"
    marks = "".join(
        sorted({re.sub(r"\d+", "1", mark) for mark in re.findall(r"\[(?:\d+|Source:)", seen.text)})
    )
    said = f"text{f' with `{marks}…`' if 'S' in marks else f' with `{marks}]`' if marks else ''}"
    listed = ", sources" if seen.sources else ""
    ended = ", then the error" if seen.error else "" if seen.is_finished else ", and no end"
    return said + listed + ended


@pytest.fixture(scope="module")
async def spent_key(anyio_backend: str, database: Database, house: House) -> str:
    """A key whose limit is reached."""
    async with wiring.open_keys(database) as keys:
        secret = await keys.create("an impatient site", ["ask"], "1/hour")
    async with application(house, key=secret) as (_, http):
        assert (await http.post("/query", json={"question": IMU})).status_code == 200
    return secret


# Seen red on the old code: seven of the addresses were not there; `/query` and `/api/query` answered a reader of
# `data:` lines with JSON, and `/chat/book/physical-ai/query` with events that have names, so each of them waited for ever.
@pytest.mark.campaign
@pytest.mark.parametrize(("widget", "manner"), MANNERS)
async def test_a_client_of_the_contract_sees_what_the_table_says(
    house: House, key: str, spent_key: str, records: Records, widget: Widget, manner: str
) -> None:
    tried = Tried(house, widget, manner, key, spent_key, records)
    line = f"| {' | '.join(await tried.cells())} |"
    assert line in TABLE.splitlines(), line


def test_the_table_has_no_other_lines() -> None:
    lines = [line for line in TABLE.splitlines() if re.match(r"\| `/.*\| (JSON|stream) \|", line)]
    assert len(lines) == len(MANNERS) + len(CONVERSING)


@pytest.mark.campaign
@pytest.mark.parametrize(("widget", "manner"), CONVERSING)
async def test_a_client_of_the_contract_converses_as_the_table_says(
    house: House, key: str, widget: Widget, manner: str
) -> None:
    named = {"X-End-User": f"user:{uuid4()}"}
    async with application(house, key=key, sessions=Sessions(house.pool, 30, uuid4)) as (_, http):
        fetch = widget.fetch_json if manner == "JSON" else widget.fetch_stream

        async def next_id(session_id: str | None, headers: dict[str, str]) -> tuple[str, str | None]:
            seen = await fetch(http, widget.body(IMU, session_id=session_id), **headers)
            assert seen.status == 200 and seen.last
            return seen.last["session_id"], seen.last["session_token"]

        begun, no_token = await next_id(None, named)
        unnamed, token = await next_id(None, {})
        follows = [
            (begun, await next_id(begun, named)),
            (unnamed, await next_id(unnamed, {"X-Session-Token": token or ""})),
            (unnamed, await next_id(unnamed, {})),
            (dead := str(uuid4()), await next_id(dead, named)),
        ]
    assert (no_token, bool(token)) == (None, True)
    cells = ["goes on" if follow == before else "begins anew" for before, (follow, _) in follows]
    line = f"| `{widget.path}` | {manner} | {' | '.join(cells)} |"
    assert line in TABLE.splitlines(), line


@pytest.mark.parametrize(("method", "path"), LOOKUPS)
async def test_what_is_looked_up_is_as_the_table_says(
    house: House, key: str, spent_key: str, method: str, path: str
) -> None:
    named = {"X-End-User": f"user:{uuid4()}"}
    down = replace(house.engine, library=DatabaseDown())  # type: ignore[arg-type]  # nothing else is asked of it
    sessions, no_sessions = Sessions(house.pool, 30, uuid4), SessionsDown(house.pool, 30, uuid4)
    async with application(house, key=key, sessions=sessions) as (_, http):
        begun = await http.post("/api/v1/query", json={"query": IMU}, headers=named)
    address = path.format(id=begun.json()["session_id"])

    async def look_up(secret: str | None, **parts: Any) -> str:
        async with application(house, key=secret, address=ADDRESS, **parts) as (_, http):
            return _status(await http.request(method, address, headers=named))

    cells = [
        await look_up(key, sessions=sessions),
        await look_up(None, sessions=sessions),
        await look_up(spent_key, sessions=sessions),
        await look_up(key, sessions=no_sessions, engine=down),
    ]
    line = f"| `{method} {path}` | {' | '.join(cells)} |"
    assert line in TABLE.splitlines(), line


def _status(response: httpx.Response) -> str:
    """The status, and in the words of the contract why it is not 200."""
    body = response.json()
    return " ".join(filter(None, [str(response.status_code), body.get("error_type") or body.get("status")]))
