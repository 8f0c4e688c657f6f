"""A parser for JSON Lines of labelled questions. Every error names the file and the line."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from engine.errors import AffidavitError

Row = TypeVar("Row", bound=BaseModel)


class LabelsError(AffidavitError):
    """A labelled set is invalid. The message names the file and the line."""


def rows(file: Path, kind: type[Row], check: Callable[[Row], None] = lambda _: None) -> Iterator[Row]:
    for number, line in lines(file):
        try:
            row = kind.model_validate_json(line)
            check(row)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise LabelsError(f"{file}:{number}: {f'{where}: ' if where else ''}{first['msg']}") from None
        except ValueError as wrong:
            raise LabelsError(f"{file}:{number}: {wrong}") from None
        yield row


def lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, from 1 on, without empty ones."""
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if line.strip():
            yield number, line.rstrip(b"\r")
