"""What the pages of records have in common: lists of records, addresses, what is masked, and errors as the console says them."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from audit.errors import SearchRefusedError, UnansweredError
from audit.markup import Markup, joined, tag
from audit.search.criteria import Criteria, CriteriaError
from audit.search.finding import Finder, FoundRecord
from audit.search.saved import SavedViews
from engine.errors import DatabaseUnavailableError, ForbiddenError, InvalidFieldError
from engine.http.console.visit import Visit

SHOWN_CHARACTERS_MAX = 280  # of a question and an answer in a list
UNMASK = "/console/access/requests"
LISTED = ("answer_text", "user_query_text")  # the personal columns of a list
_MASKED = "What was said is masked for you, so its words cannot be searched either. Ask to see it under Access; ids and filters work."


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
    return Finder(visit.house.console_pool, visit.house.engine.clock().date())


def saved_views(visit: Visit) -> SavedViews:
    return SavedViews(visit.house.pool, finder(visit))


def books(visit: Visit) -> list[str] | None:
    """To which the reader's key is limited; None: to none."""
    return sorted(visit.client.books) or None


@dataclass(frozen=True, slots=True)
class Sight:
    """Whether this reader sees what was said, or only that something was; with the basis and the second person of it."""

    is_masked: bool
    basis: str | None = None
    second: str | None = None


async def sight_of(visit: Visit) -> Sight:
    """By the policy, and by what the reader asked for within its time. The one place where the pages of records ask."""
    policy = visit.house.access_policy
    is_masked_role = policy.masks(visit.role.word)
    if not (is_masked_role or policy.basis_required):
        return Sight(is_masked=False)
    for request in reversed(await visit.house.unmask_requests()):
        is_enough = request.approved_by or not (is_masked_role and policy.second_person)
        if request.who == visit.who and is_enough:
            return Sight(is_masked=False, basis=request.basis, second=request.approved_by)
    return Sight(is_masked=True)


def check_words(sight: Sight, criteria: Criteria) -> None:
    """Whoever may not see what was said may not find out by searching for it either."""
    if criteria.text and sight.is_masked:
        raise ForbiddenError(_MASKED)


def masked() -> Markup:
    return tag(
        "p", "What was said is masked for you. ", tag("a", "Ask to see it", href=UNMASK), class_="masked"
    )


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


def note_read(visit: Visit, sight: Sight, what: str, columns: Collection[str], records: int) -> None:
    """On record before it is shown."""
    if not sight.is_masked:
        visit.note_access(
            filter=what, columns=sorted(columns), records=records, basis=sight.basis, second=sight.second
        )


def listed(sight: Sight, rows: Sequence[FoundRecord]) -> Markup:
    return tag("ol", [_item(sight, row) for row in rows], class_="records")


def _item(sight: Sight, row: FoundRecord) -> Markup:
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
        _said(sight, row),
    )  # fmt: skip


def _said(sight: Sight, row: FoundRecord) -> Markup:
    if row.erased_at is not None:
        return tag("p", f"Erased on {row.erased_at.astimezone(UTC):%Y-%m-%d}.", class_="masked")
    if sight.is_masked:
        return masked()
    return joined(
        tag("p", cut(row.user_query_text), class_="said asked") if row.user_query_text else None,
        tag("p", cut(row.answer_text), class_="said answered") if row.answer_text else None,
    )


def cut(text: str, most: int = SHOWN_CHARACTERS_MAX) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()}…"
