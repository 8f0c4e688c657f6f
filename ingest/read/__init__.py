"""Bytes of a file to a `Document`. A new format is a new file here and one line in `READERS`."""

from collections.abc import Callable
from pathlib import PurePosixPath

from ingest.read import markdown
from ingest.read.document import Document, UnreadableError

__all__ = ["READERS", "UnreadableError", "read"]

READERS: dict[str, Callable[[bytes, PurePosixPath], Document]] = {
    ".md": markdown.read,
    ".mdx": markdown.read,
}


def read(content: bytes, path: PurePosixPath) -> Document:
    """`path` is relative to the book's folder."""
    try:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise UnreadableError(
                f"a format that cannot be read; those that can: {', '.join(sorted(READERS))}"
            )
        return reader(content, path)
    except UnicodeDecodeError as wrong:
        raise UnreadableError(f"not UTF-8: the byte at {wrong.start} cannot be read") from wrong
    except ValueError as wrong:
        raise UnreadableError(str(wrong)) from wrong
