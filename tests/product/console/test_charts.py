"""The charts of the console: for who may read, under its policy, with filters in the address, and as CSV."""

import re
from collections.abc import AsyncIterator
from urllib.parse import urlencode

import httpx
import pytest

from audit.errors import ArchiveError, DeliveryError
from audit.markup import Markup
from engine import wiring
from engine.house import House
from engine.http.console.charts import DRAWING, REFRESH_S
from engine.storage.database import Database
from engine.wiring import now
from tests.product.console.signed_in import browser_at, key_of, signed_in

HOSTILE = "=<script>alert(1)</script>\"'&"


@pytest.fixture
async def auditor(house: House, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    """What they asked under a hostile name is sealed."""
    key = await key_of(database, "ask", "audit", client=HOSTILE)
    async with signed_in(house, key) as client:
        asked = await client.post(
            "/v1/query", json={"query": "What is a robot?"}, headers={"Authorization": f"Bearer {key}"}
        )
        assert asked.status_code == 200
        async with wiring.open_sealer(database.settings, database) as sealer:
            await sealer.seal_once()
        yield client


async def drawn(auditor: httpx.AsyncClient, path: str) -> httpx.Response:
    """On a busy machine the first page takes longer than a page may, and is there when it is loaded again."""
    while DRAWING in (page := await auditor.get(path)).text:
        assert f'http-equiv="refresh" content="{REFRESH_S}"' in page.text
    return page


async def test_charts_that_are_not_ready_are_shown_when_the_page_is_loaded_again(
    house: House, database: Database
) -> None:
    class Unready:
        async def sections(self, *_: object) -> Markup | None:
            return None

    async with signed_in(house, await key_of(database), charts=Unready()) as client:
        page = await client.get("/console/charts")
    assert (page.status_code, DRAWING in page.text) == (200, True)
    assert f'http-equiv="refresh" content="{REFRESH_S}"' in page.text


async def test_a_page_has_every_chart_as_picture_table_and_csv(auditor: httpx.AsyncClient) -> None:
    page = await drawn(auditor, "/console/charts")
    assert page.status_code == 200
    names = re.findall(r'<section id="([a-z-]+)"', page.text)
    assert names == [
        "outcomes", "refusals", "gate", "latency", "latency-by-day", "tokens", "sealing", "books", "chapters", "clients", "changes",
    ]  # fmt: skip
    assert page.text.count("<svg") == len(names)
    assert page.text.count("<details>") >= 8
    assert all(f"/console/charts/{name}.csv?" in page.text for name in names)


async def test_the_policy_allows_nothing_inline_and_there_is_nothing(auditor: httpx.AsyncClient) -> None:
    page = await drawn(auditor, "/console/charts")
    assert "unsafe-inline" not in page.headers["Content-Security-Policy"]
    assert not re.search(r"<style|<script| style=| on[a-z]+=", page.text)
    (address,) = re.findall(r'href="(/console/assets/chart\.[0-9a-f]+\.css)"', page.text)
    style = await auditor.get(address)
    assert (style.status_code, style.headers["Content-Type"]) == (200, "text/css; charset=utf-8")


async def test_a_hostile_client_is_a_text_on_the_page_in_links_and_in_the_csv(
    auditor: httpx.AsyncClient,
) -> None:
    page = await drawn(auditor, f"/console/charts?{urlencode({'client': HOSTILE})}")
    assert "alert(1)" in page.text
    assert "<script" not in page.text
    shown = await auditor.get(f"/console/charts/clients.csv?{urlencode({'client': HOSTILE})}")
    assert shown.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert "attachment" in shown.headers["Content-Disposition"]
    assert "\r\n\"'=<script>" in shown.text
    assert "\r\n=" not in shown.text


async def test_a_filter_in_the_address_is_kept_in_every_link(auditor: httpx.AsyncClient) -> None:
    today = now().date()
    page = await drawn(auditor, f"/console/charts?from={today}&book=physical-ai")
    links = re.findall(r'href="(/console/charts\?[^"]+)"', page.text)
    assert links
    assert all("book=physical-ai" in link for link in links)
    assert any("outcome=" in link for link in links)


@pytest.mark.parametrize(
    "query",
    [
        "from=2026-02-30",
        "to=now",
        "from=2026-02-02&to=2026-02-02",
        "from=1900-01-01&to=2026-01-01",
        "client=%00",
        "to=0001-01-01",  # seen red: no day is before the first
        "from=0001-01-01&to=0001-02-01",
        "from=9999-12-01&to=9999-12-31",
    ],
)
async def test_a_wrong_period_is_said(auditor: httpx.AsyncClient, query: str) -> None:
    page = await auditor.get(f"/console/charts?{query}")
    assert page.status_code == 422


async def test_a_chart_that_there_is_not_is_said(auditor: httpx.AsyncClient) -> None:
    assert (await auditor.get("/console/charts/secrets.csv")).status_code == 422


# Seen red as a failure of our own.
@pytest.mark.parametrize("failure", [ArchiveError("month 2026-01: row 7"), DeliveryError("https://vault")])
async def test_an_archive_that_cannot_be_read_is_said(
    house: House, database: Database, failure: Exception
) -> None:
    class Unreadable:
        async def sections(self, *_: object) -> Markup:
            raise failure

        async def csv(self, *_: object) -> str:
            raise failure

    async with signed_in(house, await key_of(database), charts=Unreadable()) as client:
        page = await client.get("/console/charts")
        file = await client.get("/console/charts/outcomes.csv")
    assert (page.status_code, file.status_code) == (200, 503)
    assert "An archived month of this period cannot be read" in page.text
    assert str(failure) not in page.text + file.text


async def test_nobody_sees_a_chart_without_a_session(house: House) -> None:
    async with browser_at(house) as nobody:
        for path in ("/console/charts", "/console/charts/outcomes.csv"):
            page = await nobody.get(path)
            assert page.status_code == 401
            assert "<svg" not in page.text
