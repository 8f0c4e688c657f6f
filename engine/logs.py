"""Structured logging: one JSON object a line, on stderr, without personal text.

Messages of our own packages and of the HTTP server contain none. Of any other library only the message template is
logged, without its arguments, and of an exception only its class and where it was raised: the rest may repeat a question.
"""

import json
import logging
import os
import select
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

OURS = ("engine", "audit", "ingest", "uvicorn")
FIELDS = ("request_id", "query_id", "endpoint", "status", "outcome", "reason", "ms", "worker")
LINE_BYTES_MAX = 4000  # a pipe that is ready takes 4,096 bytes in one write, without blocking


def configure(level: int) -> None:
    """Routes all loggers through one handler. Other libraries log from warnings on."""
    handler = NonBlockingHandler(sys.stderr.fileno())
    handler.setFormatter(JsonLineFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in OURS:
        logging.getLogger(name).setLevel(level)


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
