"""What the pages of records have in common: lists of records, addresses, what is masked, and errors as the console says them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID

from audit.errors import SearchRefusedError, UnansweredError
from audit.markup import Markup, joined, tag
from audit.search.criteria import CriteriaError
from audit.search.finding import Finder, FoundRecord
from audit.search.saved import SavedViews
from engine.errors import DatabaseUnavailableError, InvalidFieldError
from engine.http.console.visit import Visit

SHOWN_CHARACTERS_MAX = 280  # of a question and an answer in a list
LISTED = ("answer_text", "user_query_text")  # the personal columns of a list


@contextmanager
def said() -> Iterator[None]:
    """The errors of a search in the words of the console."""
    try:
        yield
    except UnansweredError as failure:
        raise DatabaseUnavailableError(f"{failure}.") from failure
    except (CriteriaError, SearchRefusedError) as wrong:
        raise InvalidFieldError(str(wrong)) from None


def finder(visit: Visit) -> Finder:
    return Finder(visit.house.console_pool)


def saved_views(visit: Visit) -> SavedViews:
    return SavedViews(visit.house.pool, finder(visit))


def books(visit: Visit) -> list[str] | None:
    """To which the reader's key is limited; None: to none."""
    return sorted(visit.client.books) or None


def is_masked(_: Visit) -> bool:
    """Whether this reader sees that something was said, and not what. The one place where the pages of records ask."""
    return False


def identity(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def record_address(query_id: UUID) -> str:
    return f"/console/records/{query_id}"


def moment(at: datetime) -> Markup:
    utc = at.astimezone(UTC)
    return tag("time", f"{utc:%Y-%m-%d %H:%M:%S}", datetime=utc.isoformat())


def note_list(visit: Visit, what: str, rows: Sequence[FoundRecord | None]) -> None:
    """On record before it is shown."""
    if not is_masked(visit):
        visit.note_access(filter=what, columns=LISTED, records=len(rows))


def listed(visit: Visit, rows: Sequence[FoundRecord]) -> Markup:
    return tag("ol", [_item(visit, row) for row in rows], class_="records")


def _item(visit: Visit, row: FoundRecord) -> Markup:
    outcome = row.outcome + (f", {row.reason}" if row.reason else "")
    level = (
        f"{row.confidence_level} {row.confidence_score:.2f}"
        if row.confidence_level and row.confidence_score is not None
        else None
    )
    about = [row.book_id, row.client_id, outcome, level, None if row.book_id else row.endpoint]
    return tag(
        "li",
        tag("p", tag("a", moment(row.timestamp), " UTC", href=record_address(row.query_id)),
            [joined(" · ", each) for each in about if each], class_="small"),
        _said(visit, row),
    )  # fmt: skip


def _said(visit: Visit, row: FoundRecord) -> Markup:
    if row.erased_at is not None:
        return tag("p", f"Erased on {row.erased_at.astimezone(UTC):%Y-%m-%d}.", class_="masked")
    if is_masked(visit):
        return tag("p", "Masked for your role.", class_="masked")
    return joined(
        tag("p", cut(row.user_query_text), class_="said asked") if row.user_query_text else None,
        tag("p", cut(row.answer_text), class_="said answered") if row.answer_text else None,
    )


def cut(text: str, most: int = SHOWN_CHARACTERS_MAX) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()}…"
