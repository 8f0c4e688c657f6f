"""The manual as a site: `make docs` builds it, and readers ask it about the product, as with `make docs-run`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.conftest import PATIENCE, ROOT, killed_after
from tests.product.browser import CHROMIUM
from tests.product.docusaurus import PLUGIN, run

MADE = ignore_patterns("node_modules", "build", "lib", ".docusaurus", ".affidavit")
STARTED_S = 600.0  # a database is made and a book embedded, on a machine that may be busy
ENDED_S = 120.0


@pytest.fixture(scope="module")
def site(package: Path) -> Iterator[Path]:
    """Built in a copy, with what the plugin's own tests have installed."""
    # Not in pytest's own folder: each run that begins closes it to the user that runs PostgreSQL.
    with TemporaryDirectory(prefix="affidavit-manual-") as folder:
        copy = Path(folder)
        copy2(ROOT / "Makefile", copy)
        for name in ("docs", "docusaurus"):
            copytree(ROOT / name, copy / name, ignore=MADE)
        (copy / "docusaurus/node_modules").symlink_to(PLUGIN / "node_modules")
        run("make", "docs", cwd=copy, environment={"DOCUSAURUS_NO_PERSISTENT_CACHE": "1"})
        yield copy / "docs/site"


def test_every_page_is_built_and_in_the_book(site: Path) -> None:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]
    exported = (site / "build/affidavit-content.json").read_text()
    named = re.findall(r'"source":"[^"]*?((?:[a-z-]+/)?[\w-]+\.md)"', exported)
    assert sorted(named) == sorted(str(page.relative_to(ROOT / "docs")) for page in pages)


def test_a_link_to_code_is_the_name_of_the_file(site: Path) -> None:
    html = (site / "build/how-to/production.html").read_text()
    assert "<code>config/engine.toml</code>" in html


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"?(https?:[^\s\">]+)")
    pages = {page.name: page.read_text() for page in (site / "build").rglob("*.html")}
    found = {(name, url) for name, html in pages.items() for url in loaded.findall(html)}
    assert {(name, url) for name, url in found if not url.startswith("http://127.0.0.1:3300/")} == set()
    assert [
        css
        for css in (site / "build").rglob("*.css")
        if re.search(r"url\(['\"]?(https?:)?//", css.read_text())
    ] == []


@pytest.mark.skipif(CHROMIUM is None, reason="The manual is not read in a browser: apt-get install chromium")
def test_readers_ask_the_manual_about_the_product(site: Path) -> None:
    """What they see is said by each test in docs/site/manual.e2e.mjs. Then Ctrl-C ends all of it."""
    with shown(site) as address:
        environment = {"MANUAL": address, "CHROMIUM": str(CHROMIUM)}
        print(run("node", "--test", site / "manual.e2e.mjs", environment=environment))
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
    assert list((site / ".affidavit").rglob("postmaster.pid")) == []


@contextmanager
def shown(site: Path) -> Iterator[str]:
    """The address that `make docs-run` prints, until Ctrl-C."""
    engine = {"AFFIDAVIT": str(Path(sys.executable).with_name("affidavit")), "AFFIDAVIT_GATEWAY_PORT": "0"}
    process = subprocess.Popen(
        ["node", site / "run.mjs"], env=os.environ | PATIENCE | engine, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        with killed_after(STARTED_S, process):
            said: list[str] = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("The manual is at "):
                    break
            else:
                raise AssertionError("".join(["It ended before it was ready:\n", *said]))
        yield line.split()[-1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        with killed_after(ENDED_S, process):
            rest, _ = process.communicate()
    assert process.returncode == 0, rest
