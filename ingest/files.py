"""Which files are a book, and each of them read: a bad one is named and left out, never the end of the run."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from ingest.read import READERS, UnreadableError, read
from ingest.read.document import Document

Progress = Callable[[str, int, int], None]


async def read_all(paths: Sequence[Path], progress: Progress) -> tuple[list[Document], list[dict[str, str]]]:
    """The documents in an order that does not change, and what could not be read."""
    documents: dict[str, Document] = {}
    errors = []
    found = list(_files(paths))
    for number, (root, path) in enumerate(found, start=1):
        progress("Reading files", number, len(found))
        name = PurePosixPath(path.relative_to(root).as_posix())
        try:
            for document in _read(root, path, name):
                _keep(documents, document)
        except (UnreadableError, OSError) as wrong:
            errors.append({"file": name.as_posix(), "error": str(wrong)})
    return list(documents.values()), errors


def _keep(documents: dict[str, Document], document: Document) -> None:
    if document.filename in documents:
        raise UnreadableError("another file of this name is in the book already")
    documents[document.filename] = document


def _read(root: Path, path: Path, name: PurePosixPath) -> list[Document]:
    if not path.resolve().is_relative_to(root.resolve()):
        raise UnreadableError("a link that leads out of the book's folder is not followed")
    document = read(path.read_bytes(), name)
    return [document]


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Each readable file with the folder that its name is relative to."""
    for given in paths:
        if not given.is_dir():
            yield given.parent, given
            continue
        for folder, folders, names in os.walk(given):
            folders[:] = sorted(name for name in folders if _is_part(name))
            yield from (
                (given, Path(folder, name)) for name in sorted(names) if _is_part(name) and _suffix(name)
            )


def _is_part(name: str) -> bool:
    """Docusaurus leaves out what begins with an underscore, and everybody what begins with a dot."""
    return not name.startswith((".", "_"))


def _suffix(name: str) -> bool:
    return Path(name).suffix.lower() in READERS
