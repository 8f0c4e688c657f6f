"""Messages tell people which command to run: each that is named in the code is there, with its options."""

import re

from engine.cli.main import COMMANDS
from tests.conftest import ROOT

_NAMED = re.compile(r"`affidavit ([a-z][a-z -]*)")
_SIGNED_WORDS = "erasure request"  # begins a signed line of the log, and is no command
FILES = [file for room in ("engine", "ingest", "audit") for file in sorted((ROOT / room).rglob("*.py"))]


def _is_there(named: str) -> bool:
    words = " ".join(word for word in named.split() if not word.startswith("-"))
    options = {word for word in named.split() if word.startswith("--")} - {"--help"}
    if any(known.startswith(f"{words} ") for known in COMMANDS):
        return not options  # a group of commands
    for name, command in COMMANDS.items():
        taken = {spelling: given for names, given in command.arguments for spelling in names}
        values = [
            given.get("choices", ()) for spelling, given in taken.items() if not spelling.startswith("-")
        ]
        if words in {name, *(f"{name} {value}" for choices in values for value in choices)}:
            return options.issubset(taken)
    return False


# Seen red: doctor said `affidavit audit hold finish`, and a sample's error `audit sample --list`; no version had either.
def test_no_message_names_a_command_that_is_not_there() -> None:
    named = {(file.name, each.strip()) for file in FILES for each in _NAMED.findall(file.read_text())}
    assert len(named) > 50
    assert [(file, each) for file, each in named if each != _SIGNED_WORDS and not _is_there(each)] == []
