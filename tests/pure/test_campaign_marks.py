"""Which tests a campaign runs: those that are marked, and none that does more in a campaign is forgotten."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

COUNTED = "CAMPAIGN_ROUNDS"
MARKS = ("mark.campaign", "mark.rounds")
FILES = [
    file
    for tier in ("pure", "parts", "product", "manual")
    for file in sorted((ROOT / "tests" / tier).rglob("test_*.py"))
    if COUNTED in file.read_text() and file != Path(__file__)
]


# Seen red without the mark of `test_a_changed_manifest_is_named`.
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_who_counts_rounds_is_marked(file: Path) -> None:
    made = list(_definitions(ast.parse(file.read_text())))
    if any(name == "pytestmark" and _is_marked(node) for name, node in made):
        return
    counting = {COUNTED}
    while found := {name for name, node in made if name not in counting and counting & _names(node)}:
        counting |= found
    tests = [(name, node) for name, node in made if name in counting and name.startswith("test_")]
    assert [name for name, node in tests if not _is_marked(node)] == []


def _is_marked(node: ast.stmt) -> bool:
    return any(mark in ast.unparse(node) for mark in MARKS)


def _definitions(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The functions, fixtures and constants of a file."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))


def _names(node: ast.stmt) -> set[str]:
    """Those that it uses; a fixture is an argument."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
