"""The manual's site: what is tested of it without building it. Built, served and read: tests/campaigns/test_manual_site.py."""

import shutil
import subprocess

import pytest

from tests.conftest import ROOT


@pytest.mark.skipif(shutil.which("node") is None, reason="The manual's site is not tested: no node here")
def test_the_sites_own_tests_pass() -> None:
    """Links to code become names, wide tables scroll, every page is in the sidebar."""
    # Seen red: a page left out of the sidebar, links to code left as links, tables without a box.
    ended = subprocess.run(
        ["node", "--test", ROOT / "docs/site/manual.test.mjs"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout
