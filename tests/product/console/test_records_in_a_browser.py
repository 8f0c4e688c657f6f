"""The pages of records in a real browser: nothing that anybody wrote runs, the ladder is computed again, axe finds nothing."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest

from audit.proof.record import Trail
from engine import wiring
from engine.storage.database import Database
from engine.wiring.signing import head_key
from tests.conftest import Running
from tests.logs.recorded import write
from tests.product.browser import CHROMIUM, Page, browser
from tests.product.console.signed_in import key_of
from tests.product.console.test_in_a_browser import _RUN_AXE, enter, opened
from tests.product.docusaurus import PLUGIN, install

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

IMU = "Why do humanoid robots need an IMU?"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&</textarea><svg onload=alert(3)>"
SHOTS = os.environ.get("CONSOLE_SCREENSHOTS", "")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
async def page(chromium: Page, server: Running, database: Database) -> Page:
    key = await key_of(database, "audit", "lead", client="The office of records")
    await asyncio.to_thread(enter, chromium, server.url, key)
    return chromium


@pytest.fixture(scope="module")
def answered(server: Running, key: str) -> str:
    told = httpx.post(
        f"{server.url}/v1/query", json={"query": IMU}, headers={"Authorization": f"Bearer {key}"}, timeout=10
    )
    return str(told.json()["query_id"])


@pytest.fixture(scope="module")
def hostile(database: Database) -> str:
    """A record of which every text is an attack, signed as the engine signs."""
    trail = Trail(
        log_id=uuid4(), query_id=uuid4(), timestamp=wiring.now(), endpoint="/v1/query", outcome="answered", book_id=HOSTILE,
        client_id=HOSTILE, user_query_text=HOSTILE, answer_text=HOSTILE, reason=HOSTILE, selected_text=HOSTILE, model_used=HOSTILE,
        chunks_returned=[{"chunk_id": HOSTILE, "score": 0.5}], total_latency_ms=9,
        citations=[{"n": 1, "chunk_id": HOSTILE, "excerpt": HOSTILE, "start": 0, "end": 5, "chapter": HOSTILE, "section": HOSTILE, "page": HOSTILE}],
    )  # fmt: skip
    with psycopg.connect(database.url) as inside:
        write(inside, trail, key=head_key(database))
    return str(trail.query_id)


def save(page: Page, name: str) -> None:
    opened(page, "/console/search?text=IMU")
    page.read(f"void (document.querySelector('input[name=name]').value = {json.dumps(name)})")
    page.read("document.querySelector('button[value=view]').click()")
    page.wait("location.pathname === '/console/saved'")


def test_nothing_that_anybody_wrote_runs(page: Page, hostile: str) -> None:
    save(page, HOSTILE)
    for path in ("/console/saved", f"/console/records/{hostile}", "/console/search?text=alert"):
        opened(page, path)
        assert page.complaints == []
        assert (
            page.read(
                "document.querySelectorAll('main img, main script, main [onload], main [onerror]').length"
            )
            == 0
        )
        assert "<script>alert(1)" in page.text("main")


def test_the_ladder_is_computed_again_in_the_browser(page: Page, answered: str) -> None:
    opened(page, f"/console/records/{answered}")
    page.wait("!document.querySelector('#recompute button').hidden")
    for _ in range(20):  # until it is sealed
        page.read("document.querySelector('#recompute button').click()")
        page.wait("!document.querySelector('#recompute button').disabled")
        if page.read("!!document.querySelector('#recompute [data-verdict]')"):
            break
        page.read("new Promise(done => setTimeout(done, 1000))")
    assert page.read("document.querySelector('#recompute [data-verdict]').dataset.verdict") == "VALID"
    rungs = page.read(
        "[...document.querySelectorAll('#recompute [data-rung]')].map(one => [one.dataset.rung, one.dataset.verdict])"
    )
    assert {"words", "row", "leaf", "month", "checkpoint"} <= {
        name for name, verdict in rungs if verdict == "VALID"
    }
    # The favicon apart, the only failure that the browser may note is a proof that was not sealed yet.
    assert [each for each in page.complaints if "409" not in each] == []


@pytest.mark.parametrize("width", [320, 1200])
def test_no_page_of_records_is_wider_than_its_window(
    page: Page, answered: str, hostile: str, width: int
) -> None:
    for path in (
        "/console/search?text=IMU",
        "/console/saved",
        f"/console/records/{answered}",
        f"/console/records/{hostile}",
    ):
        page.look(width=width)
        opened(page, path)
        assert page.read("document.documentElement.scrollWidth <= innerWidth"), path


def test_without_scripts_a_record_is_found_and_read(page: Page, answered: str) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened(page, "/console/search")
        page.read("void (document.querySelector('input[name=text]').value = 'humanoid IMU')")
        page.read("document.querySelector('form[role=search]').submit()")
        page.wait("location.search.includes('humanoid') && document.readyState === 'complete'")
        assert re.search(answered, page.read("document.querySelector('.records').innerHTML"))
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.campaign
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_on_a_page_of_records(page: Page, answered: str, hostile: str, dark: bool) -> None:
    install()
    script = (PLUGIN / "node_modules/axe-core/axe.min.js").read_text()
    save(page, "Questions about the IMU")
    for name, path in (
        ("search", "/console/search?text=IMU"), ("saved", "/console/saved"), ("record", f"/console/records/{answered}"),
        ("hostile", f"/console/records/{hostile}"), ("nothing", "/console/search?text=zebra&outcome=refused"),
    ):  # fmt: skip
        page.look(dark=dark)
        opened(page, path)
        page.read(f"void eval({json.dumps(script)})")
        assert page.read(_RUN_AXE) == [], name
        for width in (1200, 390) if SHOTS else ():
            page.look(width=width, dark=dark)
            page.shoot(Path(SHOTS, f"{name}-{'dark' if dark else 'light'}-{width}.png"))
