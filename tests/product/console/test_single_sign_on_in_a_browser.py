"""Signing in at a provider in a real browser, which has rules of its own for cookies between two sites, policies and redirects."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.storage.database import Database
from tests.conftest import Running, free_port, running
from tests.product.browser import CHROMIUM, Page, browser
from tests.product.docusaurus import PLUGIN, install
from tests.upstreams.openid import Provider, provider

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

BUTTON = "form[action='/console/sign-in/begin'] button"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Provider]:
    with provider(asks=True) as made:
        yield made


@pytest.fixture(scope="module")
def console(data_dir: Path, database: Database, upstream: Provider) -> Iterator[Running]:
    """At 127.0.0.1, and the provider at localhost: for a browser these are two sites."""
    port = str(free_port())
    given = {
        "ISSUER": upstream.issuer, "CLIENT_ID": upstream.client_id, "CLIENT_SECRET": upstream.secret,
        "ADDRESS": f"http://127.0.0.1:{port}", "AUDITORS": "log-readers", "LEADS": "log-leads, log-owners",
    }  # fmt: skip
    environment = {f"AFFIDAVIT_OIDC__{name}": value for name, value in given.items()}
    with running(data_dir, command="serve", port=port, **environment) as started:
        yield started


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(chromium: Page, upstream: Provider) -> Page:
    chromium.look()
    chromium.call("Network.clearBrowserCookies")
    upstream.person = {"sub": "alice", "groups": ["log-readers"]}
    chromium.complaints.clear()
    return chromium


def go_to_provider(page: Page, address: str) -> None:
    page.open(address)
    page.read(f"document.querySelector({json.dumps(BUTTON)}).click()")
    page.wait("location.hostname === 'localhost' && !!document.querySelector('#yes')")


def sign_on(page: Page, address: str) -> None:
    go_to_provider(page, address)
    page.read("document.querySelector('#yes').click()")
    page.wait("!!document.querySelector('nav')")


def test_the_whole_way_there_and_back(page: Page, console: Running) -> None:
    sign_on(page, f"{console.url}/console/charts?chart=outcomes")
    assert page.read("location.pathname + location.search") == "/console/charts?chart=outcomes"
    assert page.text(".who b") == "alice"
    assert page.text(".who .role") == "auditor"
    assert [each for each in page.complaints if "Policy" in each] == []


def test_without_scripts_too(page: Page, console: Running) -> None:
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        sign_on(page, f"{console.url}/console")
    finally:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
    assert page.text("h1") == "Coverage"


def test_no_script_reads_a_cookie_on_the_way(page: Page, console: Running) -> None:
    page.open(f"{console.url}/console")
    go_to_provider(page, f"{console.url}/console")
    page.open(f"{console.url}/console")
    assert page.read("document.cookie") == ""
    cookies = page.call("Network.getAllCookies")["cookies"]
    begun = next(each for each in cookies if each["name"] == "affidavit_sign_in")
    assert (begun["sameSite"], begun["httpOnly"], begun["path"]) == ("Lax", True, "/console/sign-in")
    sign_on(page, f"{console.url}/console")
    cookies = {each["name"]: each for each in page.call("Network.getAllCookies")["cookies"]}
    assert "affidavit_sign_in" not in cookies
    assert cookies["affidavit_console"]["sameSite"] == "Strict"
    assert page.read("document.cookie") == ""


def test_the_code_is_not_told_to_the_next_page(page: Page, console: Running) -> None:
    sign_on(page, f"{console.url}/console")
    assert page.read("document.referrer") == ""


def test_an_attackers_answer_signs_nobody_in(page: Page, console: Running, upstream: Provider) -> None:
    """Login CSRF: the attacker has signed in up to the last step and has the victim take that."""
    go_to_provider(page, f"{console.url}/console")
    asked = page.read("Object.fromEntries(new FormData(document.querySelector('form')))")
    page.call("Network.clearBrowserCookies")  # another browser: the victim's
    page.open(upstream.come_back(asked))
    assert "not begun in this browser" in page.text("[role=alert]")
    page.open(f"{console.url}/console")
    assert page.text("h1") == "Sign in"


def test_markup_in_a_subject_is_shown_and_not_run(page: Page, console: Running, upstream: Provider) -> None:
    upstream.person["sub"] = hostile = '<img src=x onerror="document.title=1">' + "x" * 200
    sign_on(page, f"{console.url}/console")
    assert page.text(".who b") == hostile
    page.look(width=320)
    assert page.read("document.documentElement.scrollWidth <= innerWidth")


def test_signing_out_and_in_again_as_somebody_else(page: Page, console: Running, upstream: Provider) -> None:
    sign_on(page, f"{console.url}/console")
    page.read("document.querySelector('form[action=\"/console/sign-out\"] button').click()")
    page.wait("document.querySelector('h1')?.textContent === 'Signed out'")
    assert "still signed in at localhost" in page.text("main")
    upstream.person = {"sub": "bob", "groups": ["log-owners"]}
    sign_on(page, f"{console.url}/console")
    assert (page.text(".who b"), page.text(".who .role")) == ("bob", "lead")


@pytest.mark.campaign
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_where_people_sign_in(page: Page, console: Running, dark: bool) -> None:
    install()
    script = (PLUGIN / "node_modules/axe-core/axe.min.js").read_text()
    page.look(dark=dark)
    page.open(f"{console.url}/console")
    page.read(f"void eval({json.dumps(script)})")
    found = "axe.run().then(found => found.violations.map(it => [it.id, it.nodes.map(node => node.html)]))"
    assert page.read(found) == []
