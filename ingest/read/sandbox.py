"""Sandbox: reads files in a worker process with limits on memory, time and output, so that no file can harm the run.

A hostile file may make a parser loop, use up the memory or crash. All of that ends in an `UnreadableError` for that file,
and a new process reads the next one. The reply is JSON and is checked field by field: data, never code. The digest of a
document is computed here, because the worker could lie about it.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Self

from pydantic import BaseModel, StringConstraints, TypeAdapter, ValidationError

from audit import worker
from audit.errors import WorkerEndedError
from audit.worker import Message, Worker
from ingest.read import documents, load
from ingest.read.document import (
    CountPages,
    Document,
    Kind,
    Piece,
    Section,
    UnreadableError,
    is_export,
    uncounted,
)

MIB = 1024 * 1024
FILE_BYTES_MAX = 64 * MIB  # the longest books are a few megabytes of text; scans hold no text to quote
MEMORY_BYTES = 1024 * MIB  # beyond what the worker starts with: sixteen times the largest file
READ_S = 60.0  # a dense PDF of a thousand pages takes a fifth of it
START_S = 60.0  # to import the readers, which takes half a second on a machine that is not busy
REPLY_BYTES_MAX = 64 * MIB  # as much text as the largest file
ERROR_LENGTH_MAX = 500

_PAGES = struct.Struct("!II")  # of a PDF: how many are read, of how many
_OUT_OF_MEMORY = 71  # the exit code of a worker that reached its memory limit
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")  # what Python needs; no keys, no addresses

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]  # PostgreSQL cannot store a NUL character


class _EncodedDocument(BaseModel):
    """A document in the reply. Headings, anchors and pages are indexes into `names`: many pieces share them."""

    filename: Text
    title: Text
    url: Text
    module: int | None
    difficulty: Text | None
    tags: tuple[Text, ...]
    names: tuple[Text, ...]
    sections: tuple[tuple[int, tuple[tuple[Text, int, Kind, int, int, int], ...]], ...]


class _Reply(BaseModel):
    pages: tuple[_EncodedDocument, ...]


class _Failure(BaseModel):
    error: str


_replies: TypeAdapter[_Reply | _Failure] = TypeAdapter(_Reply | _Failure)


@dataclass(slots=True)
class Sandbox:
    """Reads one file after another. Close it, or use it in a `with`: it keeps a process."""

    seconds: float = READ_S
    memory_bytes: int = MEMORY_BYTES
    file_bytes_max: int = FILE_BYTES_MAX
    _worker: Worker | None = field(default=None, init=False)

    def documents(self, content: bytes, path: PurePosixPath, pages: CountPages = uncounted) -> list[Document]:
        if len(content) > self.file_bytes_max:
            raise UnreadableError(f"is larger than {self.file_bytes_max // MIB} MiB")
        try:
            name = path.as_posix().encode()
        except UnicodeEncodeError as wrong:
            raise UnreadableError("has a name that is not UTF-8") from wrong
        return _documents(self._read(name, content, pages), content, path)

    def close(self) -> None:
        if self._worker:
            self._worker.end()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, name: bytes, content: bytes, pages: CountPages) -> bytes:
        """A used worker that crashes is replaced, and the file retried: earlier files may have exhausted it."""
        while True:
            is_new = self._worker is None
            reader, self._worker = self._worker or _start(self.memory_bytes, self.seconds), None
            try:
                _, reply = reader.request(name, content, deadline_s=self.seconds, hear=partial(_hear, pages))
            except WorkerEndedError as ended:
                is_late = ended.is_late or ended.exit_code == -signal.SIGXCPU
                if is_late:
                    raise UnreadableError(f"takes longer than {self.seconds:g} s to read") from ended
                if is_new:
                    raise UnreadableError(self._reason(ended.exit_code)) from ended
            else:
                self._worker = reader
                return reply

    def _reason(self, exit_code: int) -> str:
        if exit_code == _OUT_OF_MEMORY:
            return f"needs more than {self.memory_bytes // MIB} MiB of memory to read"
        how = f"signal {-exit_code}" if exit_code < 0 else f"code {exit_code}"
        return f"makes its reader crash ({how})"


def _start(memory_bytes: int, seconds: float) -> Worker:
    """Starts a worker. If that fails, the installation is broken and not the file."""
    started = Worker(
        worker.command(__name__, str(memory_bytes), str(seconds)),
        reply_bytes_max=REPLY_BYTES_MAX,
        stderr=subprocess.DEVNULL,  # keeps a parser's warnings off the terminal
        env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        started.request(b"", deadline_s=START_S)
    except WorkerEndedError as ended:
        raise RuntimeError(
            f"The process that reads files does not start (exit code {ended.exit_code}); "
            f"run `{sys.executable} -P -m {__name__} 0 0` to see why"
        ) from ended
    return started


def _hear(pages: CountPages, notice: bytes) -> None:
    """Checked like a reply: a hostile file may have taken the worker over."""
    if len(notice) != _PAGES.size:
        raise UnreadableError("its reader returned an invalid notice")
    done, of = _PAGES.unpack(notice)
    if 0 < done <= of:
        pages(done, of)


def _documents(data: bytes, content: bytes, path: PurePosixPath) -> list[Document]:
    try:
        reply = _replies.validate_json(data)
        if isinstance(reply, _Failure):
            raise UnreadableError(reply.error)
        digest = sha256(content).hexdigest()
        name = None if is_export(path) else path.as_posix()  # only an export names its own pages
        return [
            Document(
                filename=name or page.filename, sha256=digest, sections=tuple(_sections(page)), **_about(page)
            )
            for page in reply.pages
        ]
    except (ValidationError, IndexError) as wrong:
        raise UnreadableError("its reader returned an invalid document") from wrong


def _about(page: _EncodedDocument | Document) -> dict[str, Any]:
    return {name: getattr(page, name) for name in ("title", "url", "module", "difficulty", "tags")}


def _sections(page: _EncodedDocument) -> Iterator[Section]:
    names = page.names
    for title, pieces in page.sections:
        made = (
            Piece(text, block, kind, names[heading], names[anchor], names[page])
            for text, block, kind, heading, anchor, page in pieces
        )
        yield Section(names[title], tuple(made))


# In the worker's process


def _run(memory_bytes: int, seconds: float) -> None:
    source, sink = worker.channel()
    logging.disable()
    warnings.simplefilter("ignore")
    load()  # before the limits: it is no file's memory, and if it fails no file's trouble
    _confine(memory_bytes)

    def count(done: int, of: int) -> None:
        worker.send(sink, worker.NOTICE, _PAGES.pack(done, of))

    def answer(name: bytes, content: bytes) -> Message:
        _limit_time(seconds)
        path = PurePosixPath(name.decode())
        return b"", _answer(content, path, count) if name else b""  # the first request has no name

    try:
        worker.serve(source, sink, answer)
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)


def _confine(memory_bytes: int) -> None:
    """Resource limits: little memory, no file to write, no process to start, no core to dump."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NPROC: 0}
    with contextlib.suppress(OSError):  # where there is no /proc, the limit does not work either
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split(maxsplit=1)[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory_bytes
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))


def _limit_time(seconds: float) -> None:
    """The kernel's limit: it holds even if C code blocks the thread that watches the parent."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def _answer(content: bytes, path: PurePosixPath, count: CountPages = uncounted) -> bytes:
    try:
        pages = [_encoded(document) for document in documents(content, path, count)]
        data = json.dumps({"pages": pages}, ensure_ascii=False).encode()
    except MemoryError:
        raise
    except UnreadableError as wrong:
        return _failure(str(wrong))
    except RecursionError:
        return _failure("is nested too deeply")
    except UnicodeEncodeError:
        return _failure("contains unpaired surrogates, which are not characters")
    except Exception as wrong:  # noqa: BLE001  no file may keep the next one from being read
        return _failure(f"cannot be read: {type(wrong).__name__}: {wrong}")
    if len(data) > REPLY_BYTES_MAX:
        return _failure(f"holds more than {REPLY_BYTES_MAX // MIB} MiB of text")
    return data


def _failure(message: str) -> bytes:
    """An error without control characters: it may quote the file, and must not move a terminal's cursor."""
    shown = "".join(character if character.isprintable() else " " for character in message[:ERROR_LENGTH_MAX])
    return json.dumps({"error": shown}).encode()


def _encoded(document: Document) -> dict[str, Any]:
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    sections: list[Any] = [
        (
            number(section.heading),
            [
                (
                    piece.text, piece.block, piece.kind,
                    number(piece.heading), number(piece.anchor), number(piece.page),
                )
                for piece in section.pieces
            ],
        )
        for section in document.sections
    ]  # fmt: skip
    return _about(document) | {
        "filename": document.filename, "names": [*names], "sections": sections,
    }  # fmt: skip


if __name__ == "__main__":
    _run(int(sys.argv[1]), float(sys.argv[2]))
