"""The verifier page in Chromium and in Firefox, opened from a file: what it says of proofs and packages, sound and tampered with."""

import os
from pathlib import Path

import pytest

from supply import verifier_page
from tests.conftest import ROOT
from tests.parts.verifier import cases
from tests.product.browser import CHROMIUM, FIREFOX
from tests.product.docusaurus import PLUGIN, install, run


@pytest.mark.campaign
@pytest.mark.parametrize("browser", ["chromium", "firefox"])
def test_readers_are_told_what_the_command_line_says(browser: str, tmp_path: Path) -> None:
    program = {"chromium": CHROMIUM, "firefox": FIREFOX}[browser]
    if program is None:
        pytest.skip(f"no {browser} here: apt-get install {browser}")
    install()
    cases.write(tmp_path)
    run(
        "node", "--test", Path(__file__).parent / "page.e2e.mjs", cwd=ROOT,
        environment={
            "VERIFIER_PAGE": str(verifier_page.PAGE), "VERIFIER_CASES": str(tmp_path), "VERIFIER_PLUGIN": str(PLUGIN),
            "VERIFIER_PROOFS": str(ROOT / "tests/data/proofs.json"), "E2E_BROWSER": browser, browser.upper(): program,
            "E2E_SCREENSHOTS": os.environ.get("E2E_SCREENSHOTS", ""),
        },
    )  # fmt: skip
