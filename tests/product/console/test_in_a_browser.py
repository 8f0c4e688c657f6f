"""The console in a real browser: signed in by keyboard, by light and dark, small, without scripts; axe finds nothing."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from engine.http.console import PAGES
from engine.storage.database import Database
from tests.conftest import Running, campaign_only
from tests.product.browser import CHROMIUM, Page, browser
from tests.product.console.signed_in import key_of
from tests.product.docusaurus import PLUGIN, install

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

ADDRESSES = (
    *(page.path for page in PAGES if page.navigation),
    "/console/verification",
    "/console/reports?pack=change",
)
_RUN_AXE = "axe.run().then(found => found.violations.map(it => [it.id, it.nodes.map(node => node.html)]))"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
async def page(chromium: Page, server: Running, database: Database) -> Page:
    """Signed in, by keyboard alone."""
    key = await key_of(database, "audit", "lead", client="The office of records, third floor")
    await asyncio.to_thread(enter, chromium, server.url, key)
    return chromium


def enter(chromium: Page, url: str, key: str) -> None:
    chromium.look()
    chromium.call("Network.clearBrowserCookies")
    chromium.open(f"{url}/console")
    chromium.focus("#key")
    chromium.type(key)
    chromium.press("Enter")
    chromium.wait("!!document.querySelector('nav')")
    chromium.complaints.clear()


def opened(page: Page, path: str) -> None:
    page.open(f"{page.read('location.origin')}{path}")
    page.read("void document.querySelectorAll('details').forEach(one => one.open = true)")


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("width", [320, campaign_only(380), campaign_only(1200)])
def test_no_page_is_wider_than_its_window(page: Page, path: str, width: int) -> None:
    opened(page, path)
    page.look(width=width)
    assert page.read("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("path", ADDRESSES)
def test_the_policy_refuses_nothing_that_a_page_needs(page: Page, path: str) -> None:
    opened(page, path)
    assert page.complaints == []
    linked = "document.querySelectorAll('link[rel=stylesheet]').length"
    assert page.read("document.styleSheets.length") == page.read(linked) >= 1


def test_a_script_cannot_read_the_session(page: Page) -> None:
    assert page.read("document.cookie") == ""


def test_the_first_tab_leads_past_the_navigation(page: Page) -> None:
    opened(page, "/console")
    page.press("Tab")
    assert page.read("document.activeElement.textContent") == "Skip to the content"
    page.press("Enter")
    page.wait("document.activeElement.id === 'content'")


def test_without_scripts_the_log_is_verified_by_a_button(page: Page) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.read("document.querySelector('form[action=\"/console/verification\"]').submit()")
        page.wait("document.querySelector('h1')?.textContent === 'Verification'")
        page.wait("!!document.querySelector('.verdict')")
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert page.read("document.body.innerText.includes('asked for by')")


@pytest.mark.campaign
@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(page: Page, path: str, dark: bool) -> None:
    install()
    script = (PLUGIN / "node_modules/axe-core/axe.min.js").read_text()
    page.look(dark=dark)
    opened(page, path)
    page.read(f"void eval({json.dumps(script)})")
    assert page.read(_RUN_AXE) == []
