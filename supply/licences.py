"""Checks the licences of all that ships (`make check`): each is allowed with a reason, and is what the package itself says.

Python packages of requirements.lock have a line in licences.toml. A package that is installed here must say the same; npm
packages are named with their licences by docusaurus/package-lock.json.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from supply.bill_of_materials import read_lock

ROOT = Path(__file__).resolve().parent.parent

# What packages without an SPDX expression write, in their licence field or their classifiers.
SPOKEN = {
    "3-clause bsd license": "BSD-3-Clause", "apache 2.0": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache software license": "Apache-2.0", "apache2.0": "Apache-2.0",
    "bsd": "BSD-3-Clause", "bsd license": "BSD-3-Clause", "mit license": "MIT", "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psfl": "PSF-2.0", "python software foundation license": "PSF-2.0",
}  # fmt: skip
_SEPARATORS = re.compile(r"\s+(?:AND|OR)\s+|,\s*|[()]")


def main() -> None:
    table = tomllib.loads((ROOT / "supply" / "licences.toml").read_text())
    locked = {package.name for package in read_lock((ROOT / "requirements.lock").read_text())}
    packages = json.loads((ROOT / "docusaurus" / "package-lock.json").read_text())["packages"]
    wrong = [
        *check_table(table["python"], locked), *check_installed(table["python"]),
        *check_allowed(table["python"] | shipped_by_npm(packages), table["allowed"]),
    ]  # fmt: skip
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    sys.exit(bool(wrong))


def check_table(table: Mapping[str, str], locked: Iterable[str]) -> Iterator[str]:
    for name in sorted(set(locked) ^ set(table)):
        lacking = "supply/licences.toml" if name in locked else "requirements.lock"
        yield f"{name} is missing in {lacking}"


def check_installed(table: Mapping[str, str]) -> Iterator[str]:
    """Packages of other platforms are not installed here: their lines were read from their files."""
    for name, expression in table.items():
        try:
            said = said_by(metadata(name).json)
        except PackageNotFoundError:
            continue
        if said != parts(expression):
            yield f"{name} says {' and '.join(sorted(said)) or 'nothing'}, supply/licences.toml says {expression}"


def check_allowed(licences: Mapping[str, str], allowed: Mapping[str, str]) -> Iterator[str]:
    for name, expression in licences.items():
        if not is_allowed(expression, allowed):
            yield f"{name}: {expression or 'no licence'} is not allowed by supply/licences.toml"


def is_allowed(expression: str, allowed: Mapping[str, str]) -> bool:
    """One branch of OR with nothing but allowed licences. Parentheses are refused: write the branches out."""
    return any(all(part in allowed for part in branch.split(" AND ")) for branch in expression.split(" OR "))


def shipped_by_npm(packages: Mapping[str, Any]) -> dict[str, str]:
    """What an installation of the plugin brings, by the lock: neither tools for development nor what the site has."""
    return {
        f"npm {path.rpartition('node_modules/')[2]}": str(package.get("license", ""))
        for path, package in packages.items()
        if path and not any(package.get(kind) for kind in ("dev", "devOptional", "peer"))
    }


def said_by(package: Mapping[str, Any]) -> set[str]:
    """The licences that a package names: by its SPDX expression, else by its classifiers, else by its licence field."""
    classified = [
        text.rpartition(" :: ")[2] for text in package.get("classifier", ()) if text.startswith("License ::")
    ]
    expression = package.get("license_expression")
    return parts(expression) if expression else parts(", ".join(classified) or package.get("license", ""))


def parts(expression: str) -> set[str]:
    whole = SPOKEN.get(expression.lower())
    return (
        {whole}
        if whole
        else {SPOKEN.get(part.lower(), part) for part in _SEPARATORS.split(expression) if part}
    )


if __name__ == "__main__":
    main()
