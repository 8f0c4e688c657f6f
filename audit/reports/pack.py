"""Packs of controls, declared as data: a file for each pack in `packs/`, and the provisions that they are evidence for. Pure."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

PACKS = ("operation", "retention", "review", "incident", "change")
# The provisions that reports map to. Whether one of them applies is for the reader to judge.
FRAMES = (
    "AI Act 12", "AI Act 19", "AI Act 26(6)", "SOC 2 CC7", "HIPAA 164.312(b)", "SEC 17a-4(f)", "21 CFR 11.10",
)  # fmt: skip

_FOLDER = Path(__file__).parent / "packs"

Status = Literal["met", "not met", "not measured", "not applicable"]


@dataclass(frozen=True, slots=True)
class Provision:
    """An article, and in our own words what it asks for."""

    id: str
    frame: str  # of FRAMES
    article: str
    asks: str


@dataclass(frozen=True, slots=True)
class Control:
    """What the log shows of one thing. Without a query the log cannot show it, and `because` says why.

    The query gives the columns `counted`, what was looked at, and `violations`, what of it is not as `met` says.
    """

    id: str
    title: str
    shows: str
    met: str
    provisions: tuple[str, ...]
    query: str = ""
    figure: str = ""  # with {counted}, {violations} and {rows}
    absent: str = ""  # why nothing to count makes it not applicable; else it is not measured
    because: str = ""
    unmeasured: Status = "not measured"


@dataclass(frozen=True, slots=True)
class Pack:
    id: str
    title: str
    shows: str
    controls: tuple[Control, ...]


@cache
def pack_of(name: str) -> Pack:
    """`KeyError` or `TypeError` if its file is wrong, which a test finds before anyone else."""
    declared = _read(name)
    controls = tuple(_control(each) for each in declared["controls"])
    return Pack(name, declared["title"], declared["shows"], controls)


@cache
def provisions() -> Mapping[str, Provision]:
    return {name: Provision(name, **given) for name, given in _read("provisions").items()}


def _control(given: Mapping[str, Any]) -> Control:
    return Control(**{**given, "provisions": tuple(given["provisions"])})


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text("utf-8"))
