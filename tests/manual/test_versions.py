"""One version: of the package, the plugin and the changelog. Seen red: the project at another version than the rest."""

import json
import re
import tomllib
from importlib.metadata import version

import pytest

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("file", ["package.json", "package-lock.json"])
def test_the_plugin_has_the_version_of_the_engine(file: str) -> None:
    assert json.loads((ROOT / "docusaurus" / file).read_text())["version"] == PROJECT


def test_the_newest_heading_of_the_changelog_is_the_version() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == PROJECT


def test_the_installed_package_has_the_version_that_the_project_names() -> None:
    assert version("affidavit") == PROJECT
