"""The argument parser, whose errors suggest the known word that was probably meant."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from engine.words.suggestions import did_you_mean, listed


class CommandParser(argparse.ArgumentParser):
    """Checks a command's own arguments, so that a complaint comes with the usage of that command."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            is_text = not any(word.startswith("-") for word in unknown)
            quotes = ". A text with spaces needs quotes" if is_text else ""
            self.error(f"not understood: {' '.join(unknown)}{quotes}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Names the option that an unknown one resembles, whatever the complaint is about."""
        options = self._option_string_actions
        unknown = (word.partition("=")[0] for word in self._words if word.startswith("--"))
        meant = "".join(did_you_mean(word, options) for word in unknown if word not in options)
        if message.startswith("the following arguments are required"):
            meant += f"See: {self.prog} --help"
        end = "" if message.endswith(("?", ".")) else "."
        super().error(f"{message}{end} {meant}".rstrip())

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        is_range = isinstance(action.choices, range)
        known = [str(choice) for choice in action.choices]
        names = f"from {known[0]} to {known[-1]}" if is_range else f"one of: {listed(known)}"
        meant = "" if is_range else did_you_mean(str(value), [*known, *self._option_string_actions])
        what = f"{value!r} is not known. {meant}It is {names}" if meant or not is_range else f"it is {names}"
        raise argparse.ArgumentError(action, what)
