"""The type of a command, and its output: results on stdout; progress, warnings and errors on stderr."""

import argparse
import csv
import itertools
import json
import math
import re
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from audit.checking.evidence import LAST_MOMENT, Period
from audit.progress import Progress
from engine.book_id import book_id_of
from engine.settings import Settings
from engine.terminal import style, table
from engine.words.suggestions import book_id_like

FOUND_SOMETHING = 1  # exit code of a command that failed, or that worked and found a problem
WRONG_USAGE = 2
BAR_WIDTH = 24
PORT_MAX = 65535
EXAMPLE_ID = "0190c2a4-7b1e-7c3d-9f00-5b8f2d1e6a47"
SCOPES = ("ask", "audit", "review", "lead", "erase", "admin")

# What makes a terminal do or reorder something: a reader's question must not, in front of an auditor.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

Arguments = argparse.Namespace


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the console script, with its arguments and an example."""

    run: Callable[[Settings, Arguments], Awaitable[int]] | Callable[[Arguments], Awaitable[int]]
    example: str
    arguments: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = ()
    has_settings: bool = True  # if false, it gets only its arguments and works with invalid settings too
    runs_until_stopped: bool = False  # a server: SIGTERM and Ctrl-C are a clean exit


def argument(*names: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, options


def moment(text: str) -> datetime:
    """A date or a timestamp, in UTC unless it has an offset."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a date or a time; write 2026-11-19 or 2026-11-19T14:30"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def month(text: str) -> date:
    try:
        return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a month; write it as 2026-11") from None


def query_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a query ID, which looks like {EXAMPLE_ID} and comes with each answer"
        ) from None


def port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, which is a number from 0 to {PORT_MAX}")
    return int(text)


def book_id(text: str) -> str:
    try:
        return book_id_of(text)
    except ValueError as wrong:
        like = book_id_like(text)
        meant = f". Did you mean {like}?" if like else ""
        raise argparse.ArgumentTypeError(f"{wrong}{meant}") from None


JSON = argument("--json", action="store_true", help="one JSON value on stdout")
FROM = argument(
    "--from", dest="since", type=moment, metavar="TIME", help="records from this date or time on (UTC)"
)
TO = argument(
    "--to", dest="until", type=moment, metavar="TIME", help="records before this date or time (UTC)"
)
CSV = argument("--csv", action="store_true", help="comma-separated values on stdout, with a header line")
BASIS = argument("--basis", metavar="TEXT", help="the reason; it is kept on record, so name no person")
APPROVAL = argument(
    "--approval",
    type=query_id,
    metavar="ID",
    help="a request that a second person has approved (access.second_person)",
)
DATA_DIR = argument(
    "--data-dir",
    type=Path,
    help="the folder of the embedded database, the index, the spool and the keys (default: AFFIDAVIT_DATA_DIR, or ./.affidavit)",
)


def period(arguments: Arguments) -> Period:
    """The period of --from and --to."""
    return Period(arguments.since or datetime.min.replace(tzinfo=UTC), arguments.until or LAST_MOMENT)


def print_rows(
    rows: Sequence[dict[str, Any]],
    *,
    as_json: bool = False,
    empty: str = "",
    on_terminal: Collection[str] = (),
) -> None:
    """Whole on a pipe. On a terminal a table fits its width, if need be with the columns `on_terminal` only."""
    if as_json:
        print(json.dumps(rows, default=str))
    elif not rows:
        print(empty)
    elif len(rows) == 1:
        _print_block(rows[0])
    else:
        _print_table(rows, on_terminal)


def _print_block(row: dict[str, Any]) -> None:
    width = max(map(len, row))
    below = "\n" + " " * (width + 2)  # a line of a text is not taken for the next column
    for name, value in row.items():
        shown = visible(str(value)).replace("\n", below)
        print(f"{style.bold(name.ljust(width), sys.stdout)}  {shown}")


def print_found(names: Sequence[str], rows: Sequence[Sequence[Any]], arguments: Arguments) -> None:
    """Prints the result of an SQL statement, in the same format whichever database ran it."""
    found = [[plain(value) for value in row] for row in rows]
    if arguments.json:
        print_rows(_named(names, found), as_json=True)
    elif arguments.csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([names, *([_text(value, null="") for value in row] for row in found)])
    else:
        shown = [[_text(value, null="NULL") for value in row] for row in found]
        print_rows(_named(names, shown), empty="No rows.")


def _named(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(_numbered(names), row, strict=True)) for row in rows]


def _numbered(names: Sequence[str]) -> list[str]:
    """SQL allows equal column names, a JSON object does not: the second `name` becomes `name_2`."""
    found: list[str] = []
    for name in names:
        others = (f"{name}_{number}" for number in itertools.count(2))
        found.append(name if name not in found else next(n for n in others if n not in {*found, *names}))
    return found


def plain(value: Any) -> Any:
    """A value as JSON: times in UTC, bytes in hex, numbers by their value and not by their type."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float | Decimal):
        return _number(value)
    if isinstance(value, datetime) and value.tzinfo:
        value = value.astimezone(UTC)
    if isinstance(value, bytes | memoryview):
        value = f"\\x{value.hex()}"
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _number(value: float | Decimal) -> int | float | str:
    if not math.isfinite(value):
        return str(value)
    return int(value) if value == int(value) else float(value)


def _text(value: Any, null: str) -> str:
    """A value in a line of text: JSON unless it is a string."""
    if value is None:
        return null
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def visible(text: str) -> str:
    """The text for a terminal: what would steer it is written out."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _print_table(rows: Sequence[dict[str, Any]], on_terminal: Collection[str]) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = _table(rows, width)
    if lines is None and on_terminal:
        lines = _table([{name: row[name] for name in on_terminal} for row in rows], width)
    if lines is None:
        for number, row in enumerate(rows):
            print(end="\n" if number else "")
            _print_block(row)
    else:
        print(style.bold(lines[0], sys.stdout), *lines[1:], sep="\n")


def _table(rows: Sequence[dict[str, Any]], width: int | None) -> list[str] | None:
    cells = [[_cell(value, is_short=width is not None) for value in row.values()] for row in rows]
    return table.table(list(rows[0]), cells, width)


def _cell(value: object, *, is_short: bool) -> str:
    if is_short and isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    return visible(str(value)).replace("\n", " ").replace("\t", " ")


def say(message: str) -> None:
    is_warning = message.startswith("WARNING")
    print(style.yellow(message, sys.stderr) if is_warning else message, file=sys.stderr, flush=True)


def fail(message: str) -> int:
    """What failed and what to do now, and the exit code for it."""
    print(f"{style.red('affidavit:', sys.stderr)} {message}", file=sys.stderr)
    return FOUND_SOMETHING


def progress() -> Progress:
    """A progress bar with rate and remaining time on a terminal; on a pipe one line for each finished part."""
    on_terminal = sys.stderr.isatty()
    started_at: dict[str, float] = {}

    def show(what: str, done: int, of: int) -> None:
        started = started_at.setdefault(what, time.monotonic())
        if on_terminal:
            line = _bar(what, done, of, time.monotonic() - started)
            print(f"\r\033[K{line}", end="\n" if done == of else "", file=sys.stderr, flush=True)
        elif done == of:
            say(f"  {what} {done}/{of}")

    return show


def _bar(what: str, done: int, of: int, seconds: float) -> str:
    filled = BAR_WIDTH * done // of
    rate = done / seconds if seconds else 0.0
    left = f", {(of - done) / rate:.0f} s left" if rate and done < of else ""
    return f"  {what} {'█' * filled}{'░' * (BAR_WIDTH - filled)} {done}/{of}, {rate:.0f}/s{left}"
