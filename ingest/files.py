"""Finds the files of a book and reads each in the sandbox. A bad file is reported and skipped, and never ends the run."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath

from audit.progress import Progress
from ingest.read import READERS, UnreadableError, is_read
from ingest.read.document import CONTENT_FILE, Document, Kept
from ingest.read.sandbox import FILE_BYTES_MAX, MIB, Sandbox

FORMATS = ", ".join(sorted(READERS))
KINDS_NAMED = 3
MADE_BESIDE = "package.json"  # by a site's tools: its pages once more, and those of its dependencies
MADE = {"build", "node_modules"}
PAGES_COUNTED_MIN = 50  # fewer are read in a second


Take = Callable[[Document | Kept], Awaitable[None]]
Known = Callable[[str, str], Sequence[Kept]]


def none_known(_: str, __: str) -> Sequence[Kept]:
    return ()


async def read_all(
    paths: Sequence[Path], progress: Progress, take: Take, known: Known = none_known
) -> list[dict[str, str]]:
    """`take` gets the documents in a stable order, one at a time; an error is returned for each file that could not be read.

    A file is not read if its documents are `known` by its name and the SHA-256 of its bytes.
    """
    names: set[str] = set()
    given = list(_files(paths))
    errors = [_nothing_in(path) for path in paths if path.is_dir() and not any(_files([path]))]
    with Sandbox() as sandbox:
        for number, (root, path) in enumerate(given, start=1):
            progress("Reading files", number, len(given))
            name = PurePosixPath(path.relative_to(root).as_posix())
            try:
                content = await asyncio.to_thread(load, root, path)
                pages = partial(_count_pages, progress, name.name)
                found: Sequence[Document | Kept] = known(name.as_posix(), sha256(content).hexdigest())
                for document in found or await asyncio.to_thread(sandbox.documents, content, name, pages):
                    _check_name(document.filename, names)
                    await take(document)
            except (UnreadableError, OSError) as wrong:
                errors.append({"file": name.as_posix(), "error": str(wrong)})
    return errors


def _count_pages(progress: Progress, name: str, done: int, of: int) -> None:
    if of >= PAGES_COUNTED_MIN:
        progress(f"Pages of {name}", done, of)


def _nothing_in(folder: Path) -> dict[str, str]:
    """A folder without a file of a book: what else it has is named, such as images."""
    endings = Counter(path.suffix.lower() or "no ending" for path in folder.rglob("*") if path.is_file())
    others = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(KINDS_NAMED))
    has = f"has no file of a book, but {others}" if others else "is empty"
    return {"file": str(folder), "error": f"{has}. A book is made of {FORMATS}"}


def _check_name(name: str, names: set[str]) -> None:
    if name in names:
        raise UnreadableError("has the same name as another file of the book: rename one of them")
    names.add(name)


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Each file with the folder that its name is relative to. A site's export replaces the files of its pages."""
    for given in paths:
        if not given.is_dir():
            yield given.parent, given
        elif (given / CONTENT_FILE).is_file():
            yield given, given / CONTENT_FILE
        else:
            yield from ((given, path) for path in _walk(given))


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - MADE if MADE_BESIDE in names else folders)
        for path in (Path(folder, name) for name in sorted(names)):
            if is_read(PurePosixPath(path.relative_to(root).as_posix())):
                yield path


def _why_not(path: Path) -> str:
    return "is not a regular file" if path.exists() else "does not exist: check the path"


def inside(root: Path, path: Path) -> bool:
    """Whether a file is in the folder, once all links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def load(root: Path, path: Path, file_bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The bytes of a file of the book, read only if it is a regular file in the book's folder and below the size limit."""
    if not inside(root, path):
        raise UnreadableError("is a link that leads out of the book's folder")
    if not path.is_file():
        raise UnreadableError(_why_not(path))
    with path.open("rb") as file:
        content = file.read(file_bytes_max + 1)
    if len(content) > file_bytes_max:
        raise UnreadableError(f"is larger than {file_bytes_max // MIB} MiB")
    return content
