"""What the pages name exists: files, commands and their options, settings, metrics, tables."""

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from engine.cli.main import COMMANDS, parser
from engine.http.metrics import FAMILIES, VERIFICATION_FAMILIES
from engine.settings import Settings
from tests.conftest import ROOT
from tests.manual.blocks import PLAYED, examples, languages
from tests.manual.documented import PAGES

EVERY_PAGE = pytest.mark.parametrize("page", PAGES)


@EVERY_PAGE
def test_links_lead_somewhere(page: str) -> None:
    here = (ROOT / page).parent
    for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", _text(page))):
        if "://" not in target:
            file = here / target if target else ROOT / page
            assert file.exists(), target
            assert not anchor or anchor in _anchors(file.read_text()), f"{target}#{anchor}"


@EVERY_PAGE
def test_commands_and_their_options_exist(page: str) -> None:
    for line in _commands(page):
        words = shlex.split(line, comments=True)
        names = [name for length in (3, 2, 1) if (name := " ".join(words[:length])) in COMMANDS]
        assert names, line
        name = names[0]
        options = {word.split("=")[0] for word in words if word.startswith("--")}
        assert options <= _options(name) | {"--help"}, line


@EVERY_PAGE
def test_settings_exist(page: str) -> None:
    for table, key in re.findall(r"AFFIDAVIT_([A-Z]+)__([A-Z_]+)", PAGES[page]):
        assert key.lower() in getattr(Settings.model_fields[table.lower()].annotation, "model_fields", {}), (
            f"{table}__{key}"
        )


@EVERY_PAGE
def test_metrics_exist(page: str) -> None:
    named = set(
        re.findall(
            r"\baffidavit_[a-z_]+(?:seconds|rows|total|bytes|entries|ahead|score|records)\b", PAGES[page]
        )
    )
    assert named <= set(FAMILIES | VERIFICATION_FAMILIES)


@pytest.mark.parametrize("page", PLAYED)
def test_each_block_says_what_it_is(page: str) -> None:
    assert "" not in languages(page)


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    """tests/campaigns/test_manual_blocks.py runs all others. Give a new one a reason, and count it here."""
    left_out = [(found.page, found.not_run) for page in PLAYED for found in examples(page) if found.not_run]
    assert len(left_out) == 32, left_out


def _text(page: str) -> str:
    """Without blocks of code and code in a line."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", PAGES[page], flags=re.DOTALL)


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _commands(page: str) -> Iterator[str]:
    for block in re.findall(r"^ *```(?:sh)?\n(.*?)```", PAGES[page], re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^ *(?:\.venv/bin/)?affidavit ((?:[^|>\n\\]|\\\n)+)", block, re.MULTILINE)


def _options(name: str) -> set[str]:
    found = parser()
    for word in name.split():
        (below,) = (action for action in found._actions if isinstance(action, argparse._SubParsersAction))
        found = below.choices[word]
    return {option for action in found._actions for option in action.option_strings}
