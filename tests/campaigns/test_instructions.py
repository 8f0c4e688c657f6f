"""The pure parts of a request take no more instructions than they did: a count that no other load on the machine changes.

Seen red on a canonical form that encoded each value twice. After a change that is worth its cost, or that saves some:
`python -m bench.instructions`, and the new counts into tests/data/instructions.json.
"""

import json
import platform
import shutil
from functools import cache

import pytest

from bench import instructions
from tests.conftest import ROOT

HELD = json.loads((ROOT / "tests" / "data" / "instructions.json").read_text())
MORE = 1.10  # another build of the same interpreter differs by a few percent
ROUNDS = 100

pytestmark = [
    pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind counts them"),
    pytest.mark.skipif(
        platform.python_version_tuple()[:2] != tuple(HELD["python"].split(".")),
        reason=f"counted with Python {HELD['python']}",
    ),
]


@cache
def _start() -> int:
    return instructions.instructions(instructions.NO_ROUNDS, 0)


@pytest.mark.parametrize("part", HELD["thousand_instructions"])
def test_a_part_takes_no_more_instructions(part: str) -> None:
    counted = (instructions.instructions(part, ROUNDS) - _start()) / ROUNDS / 1000
    assert counted <= MORE * HELD["thousand_instructions"][part]


def test_every_part_is_held() -> None:
    assert {*HELD["thousand_instructions"], instructions.NO_ROUNDS} == set(instructions.parts())
