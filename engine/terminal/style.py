"""Colour on a terminal, unless NO_COLOR is set (https://no-color.org)."""

import os
from typing import TextIO


def bold(text: str, stream: TextIO) -> str:
    return _styled(text, "1", stream)


def red(text: str, stream: TextIO) -> str:
    return _styled(text, "31", stream)


def yellow(text: str, stream: TextIO) -> str:
    return _styled(text, "33", stream)


def _styled(text: str, code: str, stream: TextIO) -> str:
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if is_plain else f"\x1b[{code}m{text}\x1b[0m"
