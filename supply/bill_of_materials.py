"""Writes the CycloneDX bill of materials into the wheel, from the locked requirements. The same sources give the same bytes.

A build hook of hatchling (pyproject.toml). The file is `affidavit-….dist-info/sboms/affidavit.cdx.json` (PEP 770), so that
every environment and every image with the wheel has it, where scanners look for it.
"""

import json
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "affidavit.cdx.json"
SPEC_VERSION = "1.6"

_LOCKED = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;]+)(?: ; (?P<marker>[^\\\n]+?))?(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
    re.MULTILINE,
)
_WORD = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A package of a lock file, with the SHA-256 of each file that may be installed for it."""

    name: str
    version: str
    marker: str  # the environments that need it; empty for all
    sha256: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def bill_of_materials(project: Mapping[str, Any], lock: str, licences: Mapping[str, str]) -> bytes:
    """The CycloneDX document, as canonical as JSON gets: no time, no random number, sorted."""
    packages = list(read_lock(lock))
    root = f"pkg:pypi/{project['name']}@{project['version']}"
    direct = {_WORD.match(text)[0].lower() for text in project["dependencies"]}  # type: ignore[index]  # as pip reads them
    body = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC_VERSION}.schema.json", "bomFormat": "CycloneDX", "specVersion": SPEC_VERSION, "version": 1,
        "metadata": {"component": _component("application", root, project["name"], project["version"], project["license"])},
        "components": [_library(package, licences[package.name]) for package in packages],
        "dependencies": [{"ref": root, "dependsOn": [one.purl for one in packages if one.name in direct]}],
    }  # fmt: skip
    body["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, json.dumps(body, sort_keys=True))}"
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def read_lock(lock: str) -> Iterator[LockedPackage]:
    """Each package of a lock file; `ValueError` for a line that is none, because it would be missing in silence."""
    if surplus := _LOCKED.sub("", lock).strip():
        raise ValueError(f"Not a locked package with its hashes: {surplus.splitlines()[0]}")
    for found in _LOCKED.finditer(lock):
        hashes = tuple(sorted(re.findall(r"sha256:([0-9a-f]{64})", found["hashes"])))
        yield LockedPackage(found["name"], found["version"], found["marker"] or "", hashes)


def _library(package: LockedPackage, licence: str) -> dict[str, Any]:
    made = _component("library", package.purl, package.name, package.version, licence)
    made["hashes"] = [{"alg": "SHA-256", "content": digest} for digest in package.sha256]
    if package.marker:
        made |= {"scope": "optional", "properties": [{"name": "python:marker", "value": package.marker}]}
    return made


def _component(kind: str, purl: str, name: str, version: str, licence: str) -> dict[str, Any]:
    return {
        "type": kind, "bom-ref": purl, "purl": purl, "name": name, "version": version, "licenses": [{"expression": licence}],
    }  # fmt: skip


class BillOfMaterialsHook(BuildHookInterface):  # type: ignore[type-arg]  # its parameter is never used
    """Adds the file to a wheel that is built for others, and not to the editable one of a checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        licences = tomllib.loads((root / "supply" / "licences.toml").read_text())["python"]
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name, NAME)
        path.write_bytes(bill_of_materials(project, (root / "requirements.lock").read_text(), licences))
        build_data["sbom_files"].append(str(path))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002  the interface
        if version != "editable":
            self._folder.cleanup()
