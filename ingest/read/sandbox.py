"""Files are read in a process of their own, so that no file can harm the run.

A hostile file may make a parser loop, eat the memory or crash. All of that ends in an `UnreadableError` for that file,
and the next one is read by a new process. What comes back is JSON and checked field by field: data, never code.
The digest of a document is not even asked for.
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
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Annotated, Any, NamedTuple, Self

from pydantic import BaseModel, StringConstraints, TypeAdapter, ValidationError

from engine.errors import AffidavitError
from ingest.read import documents
from ingest.read.document import Document, Kind, Piece, Section, UnreadableError
from ingest.read.export import FILENAME

MIB = 1024 * 1024
FILE_BYTES_MAX = (
    64 * MIB
)  # the longest books are a few megabytes of text; scanned pictures hold no text to quote
MEMORY_BYTES = (
    1024 * MIB
)  # beyond the worker's own: sixteen times the largest file, and little beside an index
SECONDS = 60.0  # a dense PDF of a thousand pages takes a fifth of it
START_SECONDS = 60.0  # to import the readers, which takes half a second on a machine that is not busy
LAST_SECONDS = 2.0  # from the end of its answer to the end of a worker that is ending
REPLY_BYTES_MAX = 64 * MIB  # as much text as the largest file
MESSAGE_LENGTH = 500

_OUT_OF_MEMORY = 71  # how a worker ends that met its limit
_READY = b"ready"
_LENGTH = struct.Struct(">Q")
_PASSED_ON = (
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONPATH",
)  # what Python itself may need; no keys, no addresses

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]  # no database holds a zero character


class _Page(BaseModel):
    """A document on its way. Headings, anchors and pages are numbers of `names`: many pieces share them."""

    filename: Text
    title: Text
    url: Text
    module: int | None
    difficulty: Text | None
    tags: tuple[Text, ...]
    names: tuple[Text, ...]
    sections: tuple[tuple[int, tuple[tuple[Text, int, Kind, int, int, int], ...]], ...]


class _Reply(BaseModel):
    pages: tuple[_Page, ...]


class _Failure(BaseModel):
    error: str


class ReaderEndedError(AffidavitError):
    """The worker is gone. `by_itself` if it was not we who ended it."""

    def __init__(self, reason: str, *, by_itself: bool) -> None:
        super().__init__(reason)
        self.by_itself = by_itself


_replies: TypeAdapter[_Reply | _Failure] = TypeAdapter(_Reply | _Failure)


@dataclass(slots=True)
class Sandbox:
    """Reads one file after another. Close it, or use it in a `with`: it keeps a process."""

    seconds: float = SECONDS
    memory_bytes: int = MEMORY_BYTES
    file_bytes_max: int = FILE_BYTES_MAX
    _worker: "_Worker | None" = field(default=None, init=False)

    def documents(self, content: bytes, path: PurePosixPath) -> list[Document]:
        if len(content) > self.file_bytes_max:
            raise UnreadableError(f"is larger than {self.file_bytes_max // MIB} MiB")
        try:
            path.as_posix().encode()
        except UnicodeEncodeError as wrong:
            raise UnreadableError("has a name that is not UTF-8") from wrong
        return _documents(self._ask(content, path), content, path)

    def close(self) -> None:
        if self._worker:
            self._worker.end()
            self._worker = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, content: bytes, path: PurePosixPath) -> bytes:
        """A worker that fails was perhaps worn by the files before: a file is judged by what a new one makes of it."""
        while True:
            self._worker = worker = self._worker or _Worker(self.seconds, self.memory_bytes)
            was_new = worker.is_new
            try:
                return worker.ask(content, path)
            except ReaderEndedError as ended:
                self.close()
                if was_new or not ended.by_itself:
                    raise UnreadableError(str(ended)) from ended
            except BaseException:
                self.close()  # interrupted: its answer would be taken for that of the next file
                raise


class _Worker:
    """The process, as it is seen from here."""

    def __init__(self, seconds: float, memory_bytes: int) -> None:
        self.seconds = seconds
        self.memory_bytes = memory_bytes
        self.is_new = True
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-m", "ingest.read.sandbox", str(memory_bytes), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what a parser says of a file is for no terminal
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            start_new_session=True,  # Ctrl-C is for us to handle
        )
        self._start()

    def ask(self, content: bytes, path: PurePosixPath) -> bytes:
        self.is_new = False
        with self._limit(self.seconds) as is_over:
            try:
                _send(self._stdin, path.as_posix().encode())
                _send(self._stdin, content)
                return _receive(self._stdout, REPLY_BYTES_MAX)
            except (OSError, EOFError) as gone:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(LAST_SECONDS)  # how it ended by itself says why
                code = self.end()
                if is_over.is_set() or code == -signal.SIGXCPU:
                    raise ReaderEndedError(
                        f"takes longer than {self.seconds:g} s to read", by_itself=False
                    ) from gone
                raise ReaderEndedError(self._reason(code), by_itself=True) from gone

    def end(self) -> int:
        self._process.kill()
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._stdout.close()
        return self._process.wait()

    def _start(self) -> None:
        """A worker that does not start is our own trouble and not the file's."""
        try:
            with self._limit(START_SECONDS):
                if _receive(self._stdout, len(_READY)) == _READY:
                    return
        except (EOFError, OSError):
            pass
        except BaseException:
            self.end()
            raise
        raise RuntimeError(
            f"The process that reads files does not start (it ended with {self.end()}); "
            f"`{sys.executable} -P -m ingest.read.sandbox 0 0` says why"
        )

    @contextlib.contextmanager
    def _limit(self, seconds: float) -> Iterator[threading.Event]:
        """Kills the process when the time is over: reading from it and writing to it then end by themselves."""
        is_over = threading.Event()

        def end() -> None:
            is_over.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.start()
        try:
            yield is_over
        finally:
            timer.cancel()
            timer.join()

    def _reason(self, code: int) -> str:
        if code == _OUT_OF_MEMORY:
            return f"needs more than {self.memory_bytes // MIB} MiB of memory to read"
        how = f"signal {-code}" if code < 0 else f"code {code}"
        return f"makes its reader crash ({how})"

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout
        return self._process.stdout


def inside(root: Path, path: Path) -> bool:
    """Whether a file is in the folder, after all its links are followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def load(root: Path, path: Path, file_bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The bytes of a file of the book; no file outside of it, no pipe that never ends, and never more than fit."""
    if not inside(root, path):
        raise UnreadableError("is a link that leads out of the book's folder")
    if not path.is_file():
        raise UnreadableError("is not a file")
    with path.open("rb") as file:
        content = file.read(file_bytes_max + 1)
    if len(content) > file_bytes_max:
        raise UnreadableError(f"is larger than {file_bytes_max // MIB} MiB")
    return content


def _documents(data: bytes, content: bytes, path: PurePosixPath) -> list[Document]:
    try:
        reply = _replies.validate_json(data)
        if isinstance(reply, _Failure):
            raise UnreadableError(reply.error)
        digest = sha256(content).hexdigest()
        ours = (
            None if path.name == FILENAME else path.as_posix()
        )  # only an export's pages have names of their own
        return [_document(page, ours or page.filename, digest) for page in reply.pages]
    except (ValidationError, IndexError) as wrong:
        raise UnreadableError("its reader gave something that is no document") from wrong


def _document(page: _Page, filename: str, digest: str) -> Document:
    return Document(
        filename=filename,
        title=page.title,
        url=page.url,
        sha256=digest,
        sections=tuple(_sections(page)),
        module=page.module,
        difficulty=page.difficulty,
        tags=page.tags,
    )


def _sections(page: _Page) -> Iterator[Section]:
    names = page.names
    for title, pieces in page.sections:
        made = (
            Piece(text, block, kind, names[heading], names[anchor], names[page])
            for text, block, kind, heading, anchor, page in pieces
        )
        yield Section(names[title], tuple(made))


def _send(stream: IO[bytes], data: bytes) -> None:
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes], bytes_max: int) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    if length > bytes_max:
        raise EOFError
    return _exactly(stream, length)


def _exactly(stream: IO[bytes], length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


# The process itself


class _Named(NamedTuple):
    """Strings by number, each once."""

    numbers: dict[str, int]

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def _serve(memory_bytes: int, seconds: float) -> None:
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a parser prints is no answer
    logging.disable()
    warnings.simplefilter("ignore")
    _confine(memory_bytes)
    _send(sink, _READY)
    while True:
        try:
            path = PurePosixPath(_receive(source, FILE_BYTES_MAX).decode())
            content = _receive(source, sys.maxsize)
            _limit_time(seconds)
            answer = _answer(content, path)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        except EOFError:
            return
        _send(sink, answer)


def _confine(memory_bytes: int) -> None:
    """Little memory, no file to write, no process to start, no core to dump."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NPROC: 0}
    with contextlib.suppress(OSError):  # where there is no /proc, the limit does not work either
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split(maxsplit=1)[0])
        limits[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory_bytes
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, most))


def _limit_time(seconds: float) -> None:
    """Should the process that watches this one be killed, this one ends all the same."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = int(used.ru_utime + used.ru_stime + seconds) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def _answer(content: bytes, path: PurePosixPath) -> bytes:
    try:
        pages = [_encoded(document) for document in documents(content, path)]
        data = json.dumps({"pages": pages}, ensure_ascii=False).encode()
    except MemoryError:
        raise
    except UnreadableError as wrong:
        return _failure(str(wrong))
    except RecursionError:
        return _failure("is nested too deeply")
    except UnicodeEncodeError:
        return _failure("holds characters that are no text: halves of pairs")
    except Exception as wrong:  # noqa: BLE001  whatever a file does to its reader, the next one can be read
        return _failure(f"cannot be read: {type(wrong).__name__}: {wrong}")
    if len(data) > REPLY_BYTES_MAX:
        return _failure(f"holds more than {REPLY_BYTES_MAX // MIB} MiB of text")
    return data


def _failure(message: str) -> bytes:
    """The words may be the file's own: nothing in them that moves a terminal's cursor."""
    shown = "".join(character if character.isprintable() else " " for character in message[:MESSAGE_LENGTH])
    return json.dumps({"error": shown}).encode()


def _encoded(document: Document) -> dict[str, Any]:
    named = _Named({})
    sections: list[Any] = [
        (
            named.number(section.heading),
            [
                (
                    piece.text, piece.block, piece.kind,
                    named.number(piece.heading), named.number(piece.anchor), named.number(piece.page),
                )
                for piece in section.pieces
            ],
        )
        for section in document.sections
    ]  # fmt: skip
    about = ("filename", "title", "url", "module", "difficulty", "tags")
    said = {name: getattr(document, name) for name in about}
    return said | {"names": [*named.numbers], "sections": sections}


if __name__ == "__main__":
    _serve(int(sys.argv[1]), float(sys.argv[2]))
