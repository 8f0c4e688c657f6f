"""Lines of a table that fit a width, or the whole cells if there is none (pure)."""

import unicodedata
from collections.abc import Sequence

GAP = "  "
COLUMN_MIN = 8  # narrower ones say nothing: then each row is printed as a block
ZERO_WIDTH = {"Mn", "Me", "Cf"}


def table(names: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> list[str] | None:
    """The first line has the names. None if the columns do not fit."""
    lines = [names, *rows]
    columns = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        columns = _narrowed(columns, width - len(GAP) * (len(columns) - 1))
        if sum(columns) > width - len(GAP) * (len(columns) - 1):
            return None
    return [_line(line, columns) for line in lines]


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return sum(_cell_count(character) for character in text)


def _cell_count(character: str) -> int:
    if unicodedata.category(character) in ZERO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _narrowed(columns: Sequence[int], width: int) -> list[int]:
    """The widest columns give way first, and none below the minimum."""
    most = max(columns)
    while most > COLUMN_MIN and sum(min(column, most) for column in columns) > width:
        most -= 1
    return [min(column, most) for column in columns]


def _line(texts: Sequence[str], columns: Sequence[int]) -> str:
    padded = (_padded(text, column) for text, column in zip(texts, columns, strict=True))
    return GAP.join(padded).rstrip()


def _padded(text: str, column: int) -> str:
    while cells(text) > column:
        text = text[:-2] + "…"
    return text + " " * (column - cells(text))
