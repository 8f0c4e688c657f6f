"""The Docusaurus plugin: its dependencies, installed once, and its build."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT

PLUGIN = ROOT / "docusaurus"
NODE_NEEDED = 20
_LOCK = PLUGIN / "package-lock.json"


def _node_missing() -> str:
    """Why nothing of this can be tested here, or ""."""
    if not shutil.which("node") or not shutil.which("npm"):
        return "no node and npm here"
    said = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    major = int(said.lstrip("v").split(".")[0])
    return f"node is {said}, {NODE_NEEDED} or newer is needed" if major < NODE_NEEDED else ""


def run(*command: object, cwd: Path = PLUGIN, environment: Mapping[str, str] | None = None) -> str:
    """What it printed. A failure shows all of it."""
    ended = subprocess.run(
        list(map(str, command)), cwd=cwd, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "CI": "true", **(environment or {})},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def install() -> None:
    """What the plugin is built and tested with; the first time it takes a minute. Skips the test where that is impossible."""
    if missing := _node_missing():
        pytest.skip(f"The Docusaurus plugin is not tested: {missing}")
    with _alone():
        _install()


@pytest.fixture(scope="module")
def package() -> Path:
    """With its dependencies, built."""
    if missing := _node_missing():
        pytest.skip(f"The Docusaurus plugin is not tested: {missing}")
    with _alone():
        _install()
        run("npm", "run", "build")
    return PLUGIN


@contextmanager
def _alone() -> Iterator[None]:
    """Two processes of one run write into one folder."""
    with _LOCK.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _install() -> None:
    installed = PLUGIN / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < _LOCK.stat().st_mtime:
        run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
