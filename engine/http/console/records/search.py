"""The search page: one field for words and for anything pasted, a filter whose address can be shared, pages that stay."""

from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlencode

from audit.markup import Markup, joined, tag
from audit.search.criteria import Criteria, text_of
from audit.search.finding import FoundPage, LogPlace
from audit.search.pasted import Pasted, pasted
from engine.errors import InvalidFieldError
from engine.http.console import layout
from engine.http.console.records import showing
from engine.http.console.visit import Reply, SeeOther, Sheet, Visit

ADDRESS = "/console/search"
SAVE = "/console/saved"
PASTED_CHARACTERS_MAX = 500  # in the field for words; what is longer goes into the one for files

_OUTCOMES = ("answered", "refused", "served", "failed", "client_gone", "abandoned", "recorded")
_REASONS = (
    "not_covered",
    "insufficient_evidence",
    "citation_failed",
    "model_refused",
    "selection_not_in_book",
)
_LEVELS = ("high", "medium", "low")


async def show(visit: Visit) -> Reply:
    sight = await showing.sight_of(visit)
    with showing.said():
        criteria = Criteria.read(visit.query, showing.books(visit))
        if found := pasted(criteria.text):
            rows = await showing.finder(visit).named(found, showing.books(visit), is_masked=sight.is_masked)
            if rows:
                return _named(visit, sight, criteria, found, FoundPage(rows))
        showing.check_words(sight, criteria)
        page = await showing.finder(visit).page(criteria, _after(visit))
        _, archived_until = await showing.finder(visit).archived(criteria, None)
    showing.note_read(visit, sight, criteria.words, showing.LISTED, len(page.rows))
    return Sheet(
        "Search", joined(_form(criteria), _result(visit, sight, criteria, page), _archived(archived_until))
    )


async def paste(visit: Visit) -> Reply:
    """A receipt or a proof as it is: too long for an address, so it is read here, and its id goes into the address."""
    found = pasted(visit.form.get("pasted", ""))
    if found is None:
        raise InvalidFieldError(
            "There is no id in what you pasted. Paste an id, a receipt, an answer or a proof, whole and unchanged."
        )
    return SeeOther(f"{ADDRESS}?{urlencode({'text': found.value})}")


def _named(visit: Visit, sight: showing.Sight, criteria: Criteria, found: Pasted, page: FoundPage) -> Reply:
    if len(page.rows) == 1:
        return SeeOther(showing.record_address(page.rows[0].query_id))
    showing.note_read(visit, sight, f"{found.kind} {found.value}", showing.LISTED, len(page.rows))
    told = tag("p", f"{len(page.rows)} records belong to this name, the newest first.")
    return Sheet("Search", joined(_form(criteria), told, showing.listed(sight, page.rows)))


def _after(visit: Visit) -> LogPlace | None:
    if not (text := visit.query.get("after", "")):
        return None
    try:
        return LogPlace.read(text)
    except (ValueError, OverflowError):
        raise InvalidFieldError("The address of this page is not whole. Begin the search again.") from None


def _result(visit: Visit, sight: showing.Sight, criteria: Criteria, page: FoundPage) -> Markup:
    return joined(
        None if page.rows else tag("p", "No record fits so far." if page.older else "No record fits.", class_="calm"),
        showing.listed(sight, page.rows) if page.rows else None,
        _progress(criteria, page), _unindexed(page), _keep(visit, criteria), _paste(visit),
    )  # fmt: skip


def _progress(criteria: Criteria, page: FoundPage) -> Markup | None:
    if page.older is None:
        return None
    older = f"{ADDRESS}?{criteria.address}{'&' if criteria.address else ''}{urlencode({'after': str(page.older)})}"
    if not page.is_cut:
        return tag("p", tag("a", "Older", href=older, rel="next", class_="button"))
    begun = page.older.at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    finished = f"{ADDRESS}?{replace(criteria, until=begun).address}"
    told = tag(
        "p", "Searched back to ", showing.moment(page.older.at), " UTC, and not further yet.", class_="calm"
    )
    on = tag("a", "Search on", href=older, rel="next", class_="button")
    skip = tag("a", f"Search the months before {begun:%Y-%m}", href=finished, class_="button")
    return joined(told, tag("p", on, " ", skip if criteria.text else None, class_="actions"))


def _unindexed(page: FoundPage) -> Markup | None:
    if not page.unindexed:
        return None
    months = ", ".join(f"{month:%Y-%m}" for month in page.unindexed)
    return tag(
        "p",
        layout.said_by_us(
            f"These months are over and have no search index yet: {months}. `affidavit audit partitions` builds it."
        ),
        class_="calm",
    )


def _archived(until: datetime | None) -> Markup | None:
    if until is None:
        return None
    told = f"Archived months before {until:%Y-%m} are not searched here. `affidavit audit search` finds ids and filters in them too."
    return tag("p", layout.said_by_us(told), class_="small")


def _form(criteria: Criteria) -> Markup:
    words = tag(
        "label", "Words, an id, a reader's name, or a receipt", tag("input", name="text", value=criteria.text, type="search", maxlength=PASTED_CHARACTERS_MAX)
    )  # fmt: skip
    fields = (
        _field("From", "from", text_of(criteria.since) if criteria.since else ""), _field("To", "to", text_of(criteria.until) if criteria.until else ""),
        _field("Book", "book", criteria.book), _field("Client", "client", criteria.client),
        _choice("Outcome", "outcome", criteria.outcome, _OUTCOMES), _choice("Reason", "reason", criteria.reason, _REASONS),
        _choice("Level", "level", criteria.level, _LEVELS), _field("Endpoint", "endpoint", criteria.endpoint),
    )  # fmt: skip
    filters = tag(
        "details", tag("summary", "Filter"), tag("div", fields, class_="fields"), open=_is_filtered(criteria)
    )
    note = tag(
        "p",
        "All words must occur. “Several words” in quotation marks follow each other; a word with * at its end begins so. Times are UTC.",
        class_="small",
    )
    buttons = tag(
        "div",
        tag("button", "Search", type="submit", class_="primary"),
        tag("a", "Clear", href=ADDRESS),
        class_="actions",
    )
    return tag(
        "form", words, filters, note, buttons, method="get", action=ADDRESS, role="search", class_="panel"
    )


def _is_filtered(criteria: Criteria) -> bool:
    return any(
        (
            criteria.since,
            criteria.until,
            criteria.book,
            criteria.client,
            criteria.outcome,
            criteria.reason,
            criteria.level,
            criteria.endpoint,
        )
    )


def _field(words: str, name: str, value: str) -> Markup:
    return tag(
        "label",
        words,
        tag("input", name=name, value=value, placeholder="2026-11-01" if name in ("from", "to") else None),
    )


def _choice(words: str, name: str, value: str, known: tuple[str, ...]) -> Markup:
    choices = ["", *known] + ([value] if value and value not in known else [])
    options = [tag("option", each or "any", value=each, selected=each == value) for each in choices]
    return tag("label", words, tag("select", options, name=name))


def _keep(visit: Visit, criteria: Criteria) -> Markup | None:
    if visit.house.is_read_only:
        return None
    fields = tag("label", "Name", tag("input", name="name", maxlength=200, required=True))
    shared = (
        tag("label", tag("input", type="checkbox", name="shared", value="yes"), "Shared with all auditors")
        if visit.role.word == "lead"
        else None
    )
    buttons = tag(
        "div", tag("button", "Save the filter", type="submit", name="kind", value="view"),
        tag("button", "Freeze the result", type="submit", name="kind", value="frozen"), class_="actions",
    )  # fmt: skip
    note = tag(
        "p",
        "A saved filter finds new records too. A frozen result shows the same records for ever.",
        class_="small",
    )
    inner = layout.form(
        visit,
        SAVE,
        tag("input", type="hidden", name="filter", value=criteria.address),
        fields,
        shared,
        note,
        buttons,
        class_="stack",
    )
    return tag("details", tag("summary", "Keep this search"), inner, class_="no-print")


def _paste(visit: Visit) -> Markup:
    field = tag(
        "label",
        "A receipt, an answer or a proof, whole",
        tag("textarea", name="pasted", required=True, spellcheck="false"),
    )
    inner = layout.form(
        visit,
        ADDRESS,
        field,
        tag("div", tag("button", "Find its record", type="submit"), class_="actions"),
        class_="stack",
    )
    return tag("details", tag("summary", "Paste a file"), inner, class_="no-print")
