"""The supply chain: the wheel has a bill of materials of all that is installed with it, and every licence is allowed."""

import json
import tomllib
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from supply.bill_of_materials import bill_of_materials, read_lock
from supply.licences import check_allowed, check_installed, check_table, is_allowed, shipped_by_npm
from tests.conftest import ROOT

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TABLE = tomllib.loads((ROOT / "supply" / "licences.toml").read_text())
NPM = json.loads((ROOT / "docusaurus" / "package-lock.json").read_text())["packages"]


def bill() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(bill_of_materials(PROJECT, LOCK, TABLE["python"]))
    return made


def test_the_bill_of_materials_satisfies_its_schema() -> None:
    text = bill_of_materials(PROJECT, LOCK, TABLE["python"]).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    broken = json.loads(text) | {"components": [{"name": "a"}]}
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(broken)) is not None


def test_it_names_every_locked_package_with_version_licence_and_hashes() -> None:
    components = {(one["name"], one["version"]): one for one in bill()["components"]}
    pinned = {
        tuple(line.split(" ")[0].split("==")) for line in LOCK.splitlines() if "==" in line and line[0] != " "
    }
    assert set(components) == pinned
    assert sum(len(one["hashes"]) for one in components.values()) == LOCK.count("--hash=sha256:")
    for (name, _), one in components.items():
        assert one["licenses"] == [{"expression": TABLE["python"][name]}]
    direct = bill()["dependencies"][0]["dependsOn"]
    assert len({purl.rpartition("@")[0] for purl in direct}) == len(PROJECT["dependencies"])


def test_the_same_sources_give_the_same_bytes_and_others_another_serial_number() -> None:
    assert bill() == bill()
    other = bill_of_materials(PROJECT | {"version": "9"}, LOCK, TABLE["python"])
    assert json.loads(other)["serialNumber"] != bill()["serialNumber"]


@pytest.mark.parametrize("line", ["left-pad>=1.0", "left-pad==1.0", "-e ."])
def test_a_line_of_the_lock_that_is_no_package_with_hashes_stops_the_build(line: str) -> None:
    with pytest.raises(ValueError, match="Not a locked package"):
        list(read_lock(f"{LOCK}{line}\n"))


def test_the_licences_of_all_that_ships_are_allowed_and_are_what_the_packages_say() -> None:
    assert list(check_table(TABLE["python"], {package.name for package in read_lock(LOCK)})) == []
    assert list(check_installed(TABLE["python"])) == []
    npm = shipped_by_npm(NPM)
    assert set(npm) == {"npm parse5", "npm entities"}, "what the site has itself is not shipped"
    assert list(check_allowed(TABLE["python"] | npm, TABLE["allowed"])) == []
    used = " ".join([*TABLE["python"].values(), *npm.values()]).replace("(", "").replace(")", "").split()
    assert set(TABLE["allowed"]) <= set(used), "a reason for a licence that nothing has"


def test_a_licence_that_is_not_allowed_is_found() -> None:
    assert list(check_table({"a": "MIT"}, {"b"})) == [
        "a is missing in requirements.lock", "b is missing in supply/licences.toml",
    ]  # fmt: skip
    (said,) = check_installed({"psycopg": "MIT"})
    assert said == "psycopg says LGPL-3.0-only, supply/licences.toml says MIT"
    packages = {
        "": {"license": "MIT"},
        "node_modules/a": {"license": "AGPL-3.0"},
        "node_modules/b": {"dev": True},
        "x/node_modules/c": {},
    }
    assert list(check_allowed(shipped_by_npm(packages), TABLE["allowed"])) == [
        "npm a: AGPL-3.0 is not allowed by supply/licences.toml", "npm c: no licence is not allowed by supply/licences.toml",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "is_fine"),
    [("MIT", True), ("GPL-3.0-only", False), ("MIT AND GPL-3.0-only", False), ("GPL-3.0-only OR MIT", True), ("", False), ("(MIT)", False)],
)  # fmt: skip
def test_an_expression_is_allowed_if_one_of_its_branches_is(expression: str, is_fine: bool) -> None:
    assert is_allowed(expression, {"MIT": "why"}) is is_fine
