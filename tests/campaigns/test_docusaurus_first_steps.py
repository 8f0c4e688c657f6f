"""The plugin's README, followed command by command: from a site as it is to the first answer, and back."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree

import httpx
import pytest

from engine.storage.database import Database
from engine.wiring import SAMPLE_BOOK
from tests.conftest import ROOT, Running
from tests.product.docusaurus import PLUGIN, run

STEPS = (PLUGIN / "README.md").read_text().split("## To the first answer")[1].split("\n## ")[0]
COMMANDS = [
    [line.strip() for line in block.splitlines() if line.strip()]
    for block in re.findall(r"```sh\n(.*?)```", STEPS, re.DOTALL)
]
IN_SITE = [False, True, False, True]  # whose folder each step names
# What the test's own fixtures did already: the plugin's dependencies are installed, and an engine runs.
DONE = {"npm ci --prefix docusaurus", "make run"}
LAST = "npm run affidavit"


@dataclass(frozen=True, slots=True)
class Walk:
    """A site after the README: what each command said, what the site was before, and where it is served."""

    site: Path
    said: dict[str, str]
    before: dict[str, bytes]
    url: str


@pytest.fixture(scope="module")
def walk(
    package: Path, tmp_path_factory: pytest.TempPathFactory, database: Database, data_dir: Path, server: Running
) -> Iterator[Walk]:  # fmt: skip
    site = tmp_path_factory.mktemp("first-steps") / "site"
    for source in (package / "e2e/pages", package / "e2e/docs", SAMPLE_BOOK):
        copytree(source, site if source.name == "pages" else site / "docs", dirs_exist_ok=True)
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=site)
    said: dict[str, str] = {}
    before = {}
    for commands, in_site in zip(COMMANDS, IN_SITE, strict=True):
        for command in commands:
            if "affidavit create" in command:
                before = files(site)
            if command not in DONE | {LAST}:
                said[command] = followed(command, site, data_dir, in_site=in_site)
    key = re.search(r"aff_\w+", said[".venv/bin/affidavit keys create --client my-site"])
    assert key is not None
    (site / ".env").write_text(
        (site / ".env").read_text()
        .replace("AFFIDAVIT_KEY=", f"AFFIDAVIT_KEY={key[0]}")
        .replace("http://127.0.0.1:8000", server.url)
    )  # fmt: skip
    with_port = {**os.environ, "AFFIDAVIT_GATEWAY_PORT": "0"}
    served = subprocess.Popen(
        LAST.split(), cwd=site, env=with_port, text=True, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert served.stdout is not None
        ready = next(line for line in served.stdout if '"ready"' in line)
        yield Walk(site, said, before, json.loads(ready)["url"])
    finally:
        os.killpg(served.pid, signal.SIGTERM)
        served.communicate()


def followed(command: str, site: Path, data_dir: Path, *, in_site: bool) -> str:
    """Runs a line of the README, with the places that a reader replaces."""
    replaced = (
        command.replace("path/to/site", str(site))
        .replace("path/to/affidavit", str(ROOT))
        .replace(".venv/bin/affidavit", f"{sys.executable} -m engine.cli")
    )
    environment = {
        "AFFIDAVIT_DATA_DIR": str(data_dir),
        "npm_config_fund": "false",
        "npm_config_audit": "false",
    }
    return run(*shlex.split(replaced), cwd=site if in_site else ROOT, environment=environment)


def files(site: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in site.iterdir() if path.is_file()}


def test_the_steps_are_as_few_as_counted() -> None:
    """The README's own, on a site with a baseUrl and two locales: one more `ingest` for each further book."""
    assert [len(commands) for commands in COMMANDS] == [2, 3, 4, 2]


def test_readers_of_both_locales_get_their_first_answer_from_their_own_book(walk: Walk) -> None:
    assert walk.url.endswith("/irrigation/")
    assert httpx.get(walk.url).status_code == 200
    ask = httpx.URL(walk.url).copy_with(path="/ask")
    page = {"Origin": str(ask.copy_with(path="")).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    for book, place in (("my-book", "/irrigation/"), ("my-book-de", "/irrigation/de/")):
        question = {"query": "What does an IMU measure?"}
        answer = httpx.post(ask, params={"book": book}, json=question, headers=page, timeout=10).json()
        assert answer["outcome"] == "answered", answer
        assert all(citation["url"].startswith(place) for citation in answer["citations"])
        assert httpx.get(httpx.URL(walk.url).join(answer["citations"][0]["url"])).status_code == 200


def test_the_build_says_what_to_ingest(walk: Walk) -> None:
    said = walk.said["npm run build"]
    for command in COMMANDS[2][:2]:
        export, book = re.fullmatch(
            r"\.venv/bin/affidavit ingest path/to/site/(\S+) --book (\S+)", command
        ).groups()  # type: ignore[union-attr]
        assert f"affidavit ingest {export} --book {book}" in said


def test_no_second_copy_of_a_package_of_docusaurus_is_installed(walk: Walk) -> None:
    copies = [path.parent.name for path in walk.site.glob("node_modules/**/@docusaurus/utils*/package.json")]
    assert sorted(copies) == ["utils", "utils-common", "utils-validation"]


def test_undoing_it_restores_every_byte(walk: Walk) -> None:
    run("npx", "docusaurus-plugin-affidavit", "undo", cwd=walk.site)
    after = files(walk.site)
    assert after.pop(".env")
    assert after == walk.before
