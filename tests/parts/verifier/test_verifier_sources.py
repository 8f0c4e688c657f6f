"""The programs of the verifier page, in Node: without a page, and without any package."""

import re
import shutil
from pathlib import Path

import pytest

from supply import verifier_page
from tests.conftest import ROOT
from tests.parts.verifier import cases
from tests.product.docusaurus import PLUGIN, install, run

HERE = Path(__file__).parent


def test_the_page_is_what_its_sources_give() -> None:
    assert verifier_page.PAGE.read_bytes() == verifier_page.assembled(), "Run `make verifier`."
    assert verifier_page.RECOMPUTE.read_text() == verifier_page.script_of("page/recompute.js"), (
        "Run `make verifier`."
    )
    assert verifier_page.PUBLISHED.read_bytes() == verifier_page.PAGE.read_bytes()


def test_the_manual_has_the_digest_of_the_page() -> None:
    for page in verifier_page.DIGESTS:
        text = page.read_text()
        assert verifier_page.with_digest(text, verifier_page.PAGE.read_bytes()) == text, page


def test_the_page_asks_nobody_for_anything() -> None:
    """Neither an address that a browser would fetch, nor a program that could."""
    page = verifier_page.PAGE.read_text()
    assert re.findall(r"(?:src|href|action)=\"(?!data:,\")", page.split("<script>")[0]) == []
    script = page.split("<script>")[1]
    assert (
        re.findall(
            r"\b(?:fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|eval|Function)\(",
            script,
        )
        == []
    )
    assert (
        re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|localStorage|indexedDB|document\.cookie",
            script,
        )
        == []
    )
    assert "default-src 'none'" in page and "form-action 'none'" in page


def test_the_programs_say_the_same_as_the_command_line(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("no node here")
    cases.write(tmp_path)
    files = sorted(HERE.glob("*.test.mjs"))
    run("node", "--test", *files, cwd=ROOT, environment={"VERIFIER_CASES": str(tmp_path)})


@pytest.mark.campaign
def test_the_programs_types_fit() -> None:
    install()
    run(PLUGIN / "node_modules/.bin/tsc", "-p", verifier_page.SOURCES)
