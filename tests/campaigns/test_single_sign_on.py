"""Single sign-on judged by an outsider: the flow in a real browser with a certified provider from npm (`oidc-provider`), as it is.

Skipped without Node, Chromium or the registry.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.storage.database import Database
from tests.conftest import ROOT, Running, free_port, killed_after, running
from tests.product.browser import CHROMIUM, Page, browser

OUTSIDER = ROOT / "tests" / "data" / "openid"
INSTALL_S, HUNG_S = 300, 120
NODE, NPM = shutil.which("node"), shutil.which("npm")

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
    pytest.mark.skipif(NODE is None or NPM is None, reason="no Node here"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openid")
    for file in OUTSIDER.iterdir():
        shutil.copy(file, folder)
    command = ["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, timeout=INSTALL_S, check=True)
    except (OSError, subprocess.SubprocessError) as failure:
        pytest.skip(f"npm could not install oidc-provider ({type(failure).__name__})")
    return folder


@contextmanager
def outsider(folder: Path, port: str, redirect_uri: str, algorithm: str) -> Iterator[str]:
    process = subprocess.Popen(
        ["node", "provider.mjs", port, redirect_uri, algorithm], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        with killed_after(HUNG_S, process):
            assert any(line == "ready\n" for line in process.stdout)
        yield f"http://localhost:{port}"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_an_independent_provider_signs_people_in(
    data_dir: Path, database: Database, installed: Path, algorithm: str
) -> None:
    port, console_port = str(free_port()), str(free_port())
    address = f"http://127.0.0.1:{console_port}"
    with outsider(installed, port, f"{address}/console/sign-in/return", algorithm) as issuer:
        given = {
            "ISSUER": issuer, "CLIENT_ID": "console", "CLIENT_SECRET": "a secret of the console", "ADDRESS": address,
            "SCOPES": "groups", "LEADS": "alice-group",
        }  # fmt: skip
        environment = {f"AFFIDAVIT_OIDC__{name}": value for name, value in given.items()}
        with (
            running(data_dir, command="serve", port=console_port, **environment) as console,
            browser() as page,
        ):
            sign_on(page, console, "alice")
            page.wait("!!document.querySelector('nav')")
            assert (page.text(".who b"), page.text(".who .role")) == ("alice", "lead")
            page.call("Network.clearBrowserCookies")
            sign_on(page, console, "mallory")
            page.wait("!!document.querySelector('[role=alert]')")
            assert "none of your groups" in page.text("[role=alert]")


def sign_on(page: Page, console: Running, name: str) -> None:
    page.open(f"{console.url}/console")
    page.read("document.querySelector(\"form[action='/console/sign-in/begin'] button\").click()")
    page.wait("location.hostname === 'localhost' && !!document.querySelector('input[name=login]')")
    page.read(
        f"document.querySelector('input[name=login]').value = '{name}',"
        " document.querySelector('input[name=password]').value = 'any', document.querySelector('form').submit()"
    )
    page.wait("location.hostname === 'localhost' && !!document.querySelector('form input[value=consent]')")
    page.read("document.querySelector('form').submit()")
    page.wait("location.hostname === '127.0.0.1'")
