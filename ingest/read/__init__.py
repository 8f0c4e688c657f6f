"""Registry of readers: bytes of a file to documents. A new format is a new file here and one line in `READERS`.

A reader imports no database and no network, so that it can run in the sandbox.
"""

from collections.abc import Callable
from pathlib import PurePosixPath

from ingest.read import address, export, html, markdown, pdf, text
from ingest.read.document import Document, UnreadableError

__all__ = ["READERS", "UnreadableError", "documents", "is_read", "read"]

READERS: dict[str, Callable[[bytes, PurePosixPath], Document]] = {
    ".htm": html.read,
    ".html": html.read,
    ".md": markdown.read,
    ".mdx": markdown.read,
    ".pdf": pdf.read,
    ".txt": text.read,
}


def documents(content: bytes, path: PurePosixPath) -> list[Document]:
    """A file is one document, but an export holds all pages of a site. Pages without text (drafts) are left out."""
    found = export.read(content, path) if path.name == export.FILENAME else [read(content, path)]
    return [document for document in found if document.sections]


def read(content: bytes, path: PurePosixPath) -> Document:
    """`path` is relative to the book's folder."""
    try:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise UnreadableError(f"has an unsupported format; supported are {', '.join(sorted(READERS))}")
        return reader(content, path)
    except UnicodeDecodeError as wrong:
        raise UnreadableError(f"is not UTF-8 (invalid byte at {wrong.start}): save it as UTF-8") from wrong
    except ValueError as wrong:
        raise UnreadableError(str(wrong)) from wrong


def is_read(path: PurePosixPath) -> bool:
    """Whether a file of a folder belongs to the book, by its name alone."""
    if path.suffix.lower() in {".md", ".mdx"}:
        return address.is_page(path)
    is_hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not is_hidden and (path.name == export.FILENAME or path.suffix.lower() in READERS)
