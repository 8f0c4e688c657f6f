"""Structured logging: one JSON object a line, on stderr, without personal text.

Messages of our own packages and of the HTTP server contain none. Of any other library only the message template is
logged, without its arguments, and of an exception only its class and where it was raised: the rest may repeat a question.
"""

import json
import logging
import os
import select
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

OURS = ("engine", "audit", "ingest", "uvicorn")
FIELDS = (
    "request_id",
    "query_id",
    "endpoint",
    "status",
    "outcome",
    "reason",
    "ms",
    "worker",
    "lines_left_out",
)
HAS_CLIENT = "has_client"  # set in a line about a client whose key is valid: such lines are not throttled
LINE_BYTES_MAX = 4000  # a pipe that is ready takes 4,096 bytes in one write, without blocking
LINES_MAX = 100  # a minute of each kind: more of them say no more
MINUTE_S = 60.0


def configure(level: int | str) -> None:
    """Routes all loggers through one handler. Other libraries log from warnings on."""
    handler = NonBlockingHandler(sys.stderr.fileno())
    handler.setFormatter(JsonLineFormatter())
    handler.addFilter(Throttle(time.monotonic))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    set_level(level)


def set_level(level: int | str) -> None:
    """Of our own packages."""
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper() if isinstance(level, str) else level)


def configure_for_command() -> None:
    """For a command that ends: the pool's retries would be printed above the one error that says it all."""
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


class JsonLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[0]:
            line["fault"] = record.exc_info[0].__name__
            line["at"] = _place(record)
        return json.dumps(line, ensure_ascii=False)


@dataclass(slots=True)
class LineWindow:
    """The lines of one kind since the first one of this minute."""

    ends_at: float = 0.0
    lines: int = 0
    left_out: int = 0


class Throttle(logging.Filter):
    """Limits the lines of each kind, because a stranger can cause most of them. A kind is a place in the code.

    The first line of the next minute says how many were left out.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._windows: dict[tuple[str, int], LineWindow] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, HAS_CLIENT, False):
            return True
        window = self._windows.setdefault((record.pathname, record.lineno), LineWindow())
        now = self._monotonic()
        if window.ends_at <= now:
            if window.left_out:
                record.lines_left_out = window.left_out
            window.ends_at, window.lines, window.left_out = now + MINUTE_S, 0, 0
        window.lines += 1
        window.left_out += window.lines > LINES_MAX
        return window.lines <= LINES_MAX


class NonBlockingHandler(logging.Handler):
    """A handler that drops lines instead of blocking: a full pipe must not delay requests. Dropped lines are counted."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not self._poll.poll(0):
            self.lost += 1
            return
        line = self.format(record)
        if self.lost:
            line = line[:-1] + f', "lines_lost": {self.lost}}}'
        data = line.encode("utf-8", "replace")
        if len(data) > LINE_BYTES_MAX:
            message = "This line was too long and was left out"
            data = json.dumps({"level": "error", "logger": record.name, "message": message}).encode()
        try:
            os.write(self._descriptor, data + b"\n")
        except OSError:
            self.lost += 1
        else:
            self.lost = 0


def _message(record: logging.LogRecord) -> str:
    if record.name.split(".")[0] in OURS:
        return record.getMessage().strip()
    return next(iter(str(record.msg).splitlines()), "")


def _place(record: logging.LogRecord) -> str:
    assert record.exc_info
    frames = traceback.extract_tb(record.exc_info[2])
    if not frames:
        return ""
    last = frames[-1]
    return f"{'/'.join(last.filename.split('/')[-3:])}:{last.lineno} {last.name}"
