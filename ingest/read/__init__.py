"""Registry of readers: bytes of a file to documents. A new format is a new file here and one line in `READERS`.

A reader imports no database and no network, so that it can run in the sandbox. It is imported where files are read, and not with
this package: what it builds on takes longer to load than to read a page, and a server reads none.
"""

from collections.abc import Callable
from pathlib import PurePosixPath

from ingest.read import address
from ingest.read.document import CountPages, Document, UnreadableError, is_export, uncounted

__all__ = ["READERS", "UnreadableError", "documents", "is_read", "load", "read"]


def _read_html(content: bytes, path: PurePosixPath) -> Document:
    from ingest.read import html

    return html.read(content, path)


def _read_markdown(content: bytes, path: PurePosixPath) -> Document:
    from ingest.read import markdown

    return markdown.read(content, path)


def _read_pdf(content: bytes, path: PurePosixPath, pages: CountPages = uncounted) -> Document:
    from ingest.read import pdf

    return pdf.read(content, path, pages)


def _read_text(content: bytes, path: PurePosixPath) -> Document:
    from ingest.read import text

    return text.read(content, path)


def _read_export(content: bytes, path: PurePosixPath) -> list[Document]:
    from ingest.read import export

    return export.read(content, path)


READERS: dict[str, Callable[[bytes, PurePosixPath], Document]] = {
    ".htm": _read_html,
    ".html": _read_html,
    ".md": _read_markdown,
    ".mdx": _read_markdown,
    ".pdf": _read_pdf,
    ".txt": _read_text,
}


def load() -> None:
    """Imports all readers."""
    from ingest.read import export, html, markdown, pdf, text  # noqa: F401


def documents(content: bytes, path: PurePosixPath, pages: CountPages = uncounted) -> list[Document]:
    """A file is one document, but an export holds all pages of a site. Pages without text (drafts) are left out."""
    found = _read_export(content, path) if is_export(path) else [read(content, path, pages)]
    return [document for document in found if document.sections]


def read(content: bytes, path: PurePosixPath, pages: CountPages = uncounted) -> Document:
    """`path` is relative to the book's folder. `pages` hears of the pages of a PDF: no other format takes so long."""
    try:
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            raise UnreadableError(f"has an unsupported format; supported are {', '.join(sorted(READERS))}")
        return _read_pdf(content, path, pages) if reader is _read_pdf else reader(content, path)
    except UnicodeDecodeError as wrong:
        raise UnreadableError(f"is not UTF-8 (invalid byte at {wrong.start}): save it as UTF-8") from wrong
    except ValueError as wrong:
        raise UnreadableError(str(wrong)) from wrong


def is_read(path: PurePosixPath) -> bool:
    """Whether a file of a folder belongs to the book, by its name alone."""
    if path.suffix.lower() in {".md", ".mdx"}:
        return address.is_page(path)
    is_hidden = any(part.startswith((".", "_")) for part in path.parts)
    return not is_hidden and (is_export(path) or path.suffix.lower() in READERS)
