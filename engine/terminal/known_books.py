"""Names the published books when a book is unknown: to an operator, never over HTTP."""

from engine.errors import UnknownBookError
from engine.retrieval.library import StoredLibrary
from engine.words.suggestions import did_you_mean, listed


async def check(library: StoredLibrary, *book_ids: str) -> None:
    """`UnknownBookError` for the first that is not published."""
    for book_id in book_ids:
        if missing := await missed(library, book_id):
            raise UnknownBookError(missing)


async def missed(library: StoredLibrary, book_id: str) -> str:
    """Empty if the book is published."""
    published = [book.book_id for book in await library.books() if book.generation]
    if book_id in published:
        return ""
    if not published:
        return (
            f"There is no book {book_id}, nor any other. Publish one: affidavit ingest PATH --book {book_id}"
        )
    return (
        f"There is no book {book_id}. {did_you_mean(book_id, published)}Published here: {listed(published)}."
    )
