"""The lock file of the Docusaurus plugin installs everywhere. Its own tests, and real sites: tests/campaigns."""

import json

from tests.product.docusaurus import PLUGIN


def test_no_address_of_a_registry_is_in_the_lock_file() -> None:
    lock = (PLUGIN / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert "://registry" not in lock


def test_the_lock_file_holds_the_packages_of_every_platform() -> None:
    """`npm ci` refuses a lock that was written where a registry lacked some. Seen red with such a lock."""
    packages = json.loads((PLUGIN / "package-lock.json").read_text())["packages"]
    locked = {path.rpartition("node_modules/")[2] for path in packages}
    wanted = {name for package in packages.values() for name in package.get("optionalDependencies", {})}
    assert wanted - locked == set()
