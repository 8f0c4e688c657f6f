"""The Docusaurus plugin installs everywhere, and a site with it is built. Its own tests, and more sites: tests/campaigns."""

import json
from pathlib import Path

import pytest

from tests.product.docusaurus import PLUGIN, run

LOCKS = sorted([PLUGIN / "package-lock.json", *PLUGIN.glob("e2e/*/package-lock.json")])


@pytest.mark.parametrize("file", LOCKS, ids=lambda path: path.parent.name)
def test_no_address_of_a_registry_is_in_the_lock_files(file: Path) -> None:
    lock = file.read_text()
    assert '"resolved"' not in lock
    assert "://registry" not in lock
    assert "_authToken" not in lock


def test_only_packing_compiles_it_and_docusaurus_is_the_sites_own() -> None:
    """Seen red with `prepare`, which every `npm i` of a checkout runs, and a second @docusaurus/utils-validation."""
    described = json.loads((PLUGIN / "package.json").read_text())
    assert {"prepare", "install", "postinstall"} & set(described["scripts"]) == set()
    assert described["scripts"]["prepack"] == "tsc"
    assert [name for name in described["dependencies"] if name.startswith("@docusaurus/")] == []


@pytest.mark.campaign
def test_a_site_is_built_with_its_export(package: Path, tmp_path: Path) -> None:
    run("node", package / "e2e/make-site.mjs", "plain", tmp_path / "site", package / "e2e/docs")
    build = tmp_path / "site" / "build"
    head, *pages = (build / "affidavit-content.json").read_text().splitlines()
    assert json.loads(f"{head}]}}") == {
        "version": 1,
        "site": {"title": "A Book", "url": "https://example.org", "baseUrl": "/", "trailingSlash": None},
        "book": {"id": "a-book", "locale": "en", "version": "current"},
        "pages": [],
    }
    assert "Bare dunes are never watered by the robot." in str(pages)
    assert not [page for page in build.rglob("*.html") if "data-affidavit-tabs" in page.read_text()]


def test_the_lock_file_holds_the_packages_of_every_platform() -> None:
    """`npm ci` refuses a lock that was written where a registry lacked some. Seen red with such a lock."""
    packages = json.loads((PLUGIN / "package-lock.json").read_text())["packages"]
    locked = {path.rpartition("node_modules/")[2] for path in packages}
    wanted = {name for package in packages.values() for name in package.get("optionalDependencies", {})}
    assert wanted - locked == set()
