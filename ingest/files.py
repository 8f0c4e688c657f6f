"""Finds the files of a book and reads each in the sandbox. A bad file is reported and skipped, and never ends the run."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from audit.progress import Progress
from ingest.read import UnreadableError, is_read
from ingest.read.document import Document
from ingest.read.export import FILENAME
from ingest.read.sandbox import FILE_BYTES_MAX, MIB, Sandbox


async def read_all(paths: Sequence[Path], progress: Progress) -> tuple[list[Document], list[dict[str, str]]]:
    """The documents in a stable order, and an error for each file that could not be read."""
    documents: dict[str, Document] = {}
    errors = []
    found = list(_files(paths))
    with Sandbox() as sandbox:
        for number, (root, path) in enumerate(found, start=1):
            progress("Reading files", number, len(found))
            name = PurePosixPath(path.relative_to(root).as_posix())
            try:
                content = await asyncio.to_thread(load, root, path)
                for document in await asyncio.to_thread(sandbox.documents, content, name):
                    _add(documents, document)
            except (UnreadableError, OSError) as wrong:
                errors.append({"file": name.as_posix(), "error": str(wrong)})
    return list(documents.values()), errors


def _add(documents: dict[str, Document], document: Document) -> None:
    if document.filename in documents:
        raise UnreadableError("has the same name as another file of the book: rename one of them")
    documents[document.filename] = document


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Each file with the folder that its name is relative to. A site's export replaces the files of its pages."""
    for given in paths:
        if not given.is_dir():
            yield given.parent, given
        elif (given / FILENAME).is_file():
            yield given, given / FILENAME
        else:
            yield from ((given, path) for path in _walk(given))


def _walk(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            if is_read(PurePosixPath(path.relative_to(root).as_posix())):
                yield path


def inside(root: Path, path: Path) -> bool:
    """Whether a file is in the folder, once all links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


def load(root: Path, path: Path, file_bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The bytes of a file of the book, read only if it is a regular file in the book's folder and below the size limit."""
    if not inside(root, path):
        raise UnreadableError("is a link that leads out of the book's folder")
    if not path.is_file():
        raise UnreadableError("is not a file")
    with path.open("rb") as file:
        content = file.read(file_bytes_max + 1)
    if len(content) > file_bytes_max:
        raise UnreadableError(f"is larger than {file_bytes_max // MIB} MiB")
    return content
