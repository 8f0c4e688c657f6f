"""The version of all code that turns a file into passages: after an update, every file is read again."""

import re
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from platform import python_version

HOUSE = Path(__file__).resolve().parent.parent
CODE = (
    "ingest",
    "engine/words",
    "engine/models.py",
    "engine/retrieval/selection.py",
    "audit/proof/passage_id.py",
)

_NAME = re.compile(r"^[\w.-]+")


@cache
def reading_version() -> str:
    """Of our own code and of the parsers: nobody has to remember to raise a number."""
    found = sha256(python_version().encode())  # it knows the letters of a version of Unicode
    for place in CODE:
        files = sorted((HOUSE / place).rglob("*.py")) or [HOUSE / place]
        for file in files:
            found.update(f"\n{file.relative_to(HOUSE).as_posix()} ".encode())
            found.update(sha256(file.read_bytes()).digest())
    for name in sorted({_NAME.findall(line)[0] for line in requires("affidavit") or []}):
        found.update(f"\n{name} {_version(name)}".encode())
    return found.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # of an extra that is not installed
        return ""
