"""Reviews: samples and what they say, the queue of whoever is signed in, and one record with the form of the rubric."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from audit.errors import ReviewRefusedError, ReviewUnavailableError, SampleError
from audit.markup import EMPTY, Markup, joined, table, tag
from audit.review import drawing
from audit.review.reviews import Person, Queue, RecordToJudge, Reviews, Role
from audit.review.rubric import COMMENT_CHARACTERS_MAX, ITEMS, QUESTIONS, Marks, Standing
from engine.errors import DatabaseUnavailableError, InvalidFieldError, NotFoundError
from engine.http.console import layout
from engine.http.console.visit import ConsolePage, Reply, SeeOther, Sheet, Visit
from engine.http.console.visit import Role as ConsoleRole

REVIEWS = "/console/reviews"
HOW = "affidavit audit sample --size 60 --from 2026-11-01 --to 2026-12-01"
BLIND = "You judge blind: nobody sees your verdict before the second reviewer gave theirs. It is sealed in the log, and stays."
OTHERS = "Other populations were stated over days of this sample. One that was never drawn on record may be one whose draw somebody did not like:"
_ROLES: Mapping[ConsoleRole, Role] = {
    ConsoleRole.AUDITOR: "auditor", ConsoleRole.REVIEWER: "reviewer", ConsoleRole.LEAD: "lead"
}  # fmt: skip


async def show_samples(visit: Visit) -> Reply:
    """The samples, the newest first."""
    with _refusing():
        samples = await _reviews(visit).samples()
    rows = [
        (
            tag("a", str(each.sample_id), href=_address(each.sample_id), class_="mono"), drawing.moment_words(each.statement["from"]) or "the beginning",
            drawing.moment_words(each.statement["to"]) or "the head", len(each.records), ", ".join(each.statement["strata"]),
        )
        for each in samples
    ]  # fmt: skip
    headings = ("Sample", "From", "To", "Records", "Strata")
    listed = (
        table(headings, rows, "Samples, the newest first") if rows else tag("p", "There is no sample yet.")
    )
    how = tag(
        "p",
        tag("code", HOW),
        " draws one: nobody chooses its records, and anybody can draw it again.",
        class_="small",
    )
    return Sheet("Reviews", joined(listed, how))


async def show_sample(visit: Visit) -> Reply:
    """How far a sample is, what it says so far, and where the reader of this page goes on."""
    queue = await _queue(visit)
    person, sample_id = _person(visit), queue.sample.sample_id
    with _refusing():
        others = await _reviews(visit).others(sample_id)
    waiting = queue.for_person(person)
    link = (
        tag(
            "a",
            f"Judge the next of {len(waiting)}",
            href=_address(sample_id, waiting[0][0]),
            class_="button primary",
        )
        if waiting
        else None
    )
    nothing = (
        None
        if waiting or person.role == "auditor"
        else tag("p", "You have judged all that you can of this sample.", class_="well")
    )
    body = joined(
        tag("p", link) if link else nothing,
        tag("p", "Sample ", tag("code", str(sample_id)), class_="small"),
        joined(tag("p", OTHERS, class_="calm"), tag("ul", [tag("li", str(each)) for each in others])) if others else None,
        drawing.html(queue.report()),
        tag("h2", "Records"),
        _records(queue, person),
    )  # fmt: skip
    return Sheet("Review of a sample", body)


async def show_record(visit: Visit) -> Reply:
    """A record to judge, as its reader saw it, with the form."""
    queue, person = await _queue(visit), _person(visit)
    log_id = _id(visit.place["record"])
    visit.note_access(
        filter=f"record {log_id}", columns=queue.columns(log_id, person), records=1, basis=queue.basis
    )
    with _refusing():
        record = await _reviews(visit).read(queue, log_id, person)
    return Sheet(
        "Adjudication" if record.task == "adjudicate" else "Review",
        joined(_said(record), _others(record), _form(visit, record)),
    )


async def judge(visit: Visit) -> Reply:
    """Put a verdict on record, and go on to the next record."""
    person, reviews = _person(visit), _reviews(visit)
    sample_id, log_id = _id(visit.place["sample"]), _id(visit.place["record"])
    marks = _marks(visit.form)
    with _refusing():
        if visit.form.get("task") == "adjudicate":
            await reviews.adjudicate(person, log_id, marks, sample_id)
        else:
            await reviews.give(person, log_id, marks, sample_id)
        waiting = (await reviews.queue(sample_id)).for_person(person)
    return SeeOther(_address(sample_id, waiting[0][0]) if waiting else _address(sample_id))


def _records(queue: Queue, person: Person) -> Markup:
    """Without what anybody said, and of what is still judged without its stratum: that would tell the confidence."""
    rows = [
        (
            tag("a", str(log_id), href=_address(queue.sample.sample_id, log_id), class_="mono") if queue.task(log_id, person)
            else tag("span", str(log_id), class_="mono"),
            _state(queue, log_id), drawing.stratum_words(stratum) if _is_over(queue, log_id) else "",
        )
        for log_id, stratum in queue.sample.records
    ]  # fmt: skip
    return table(("Record", "State", "Stratum"), rows, "Records of the sample, in its order")


def _is_over(queue: Queue, log_id: UUID) -> bool:
    return log_id in queue.erased or queue.standings.get(log_id, Standing()).state == "final"


def _state(queue: Queue, log_id: UUID) -> str:
    if log_id in queue.erased:
        return "erased"
    standing = queue.standings.get(log_id, Standing())
    if standing.state == "open":
        return f"{len(standing.reviews)} of 2 verdicts"
    return {"disputed": "two differ: waits for a lead", "final": "final"}[standing.state]


def _said(record: RecordToJudge) -> Markup:
    selected = tag("blockquote", record.selected_text) if record.selected_text else None
    about = [
        ("Record", tag("code", str(record.log_id))), ("Asked", f"{record.asked_at:%Y-%m-%d %H:%M} UTC"), ("Book", record.book_id),
        ("Outcome", record.outcome if record.reason is None else f"{record.outcome}: {record.reason}"),
    ]  # fmt: skip
    return joined(
        tag("h2", "Question"), tag("p", record.question or "", class_="said"), selected,
        tag("h2", "Answer" if record.outcome == "answered" else "Refusal"), tag("p", record.answer or "", class_="said"),
        tag("h2", "Quoted") if record.citations else None,
        [_quote(each) for each in record.citations],
        layout.facts(about),
    )  # fmt: skip


def _quote(citation: Mapping[str, Any]) -> Markup:
    return tag(
        "div",
        tag("blockquote", citation.get("excerpt")),
        tag("p", _place(citation), class_="small"),
        class_="quote",
    )


def _place(citation: Mapping[str, Any]) -> str:
    return ", ".join(str(citation[name]) for name in ("chapter", "section", "page") if citation.get(name))


def _others(record: RecordToJudge) -> Markup:
    """For a lead who decides: what the two said."""
    if not record.given:
        return EMPTY
    rows = [
        (each.reviewer, *(each.marks.scores[item] for item in ITEMS), each.marks.comment)
        for each in record.given
    ]
    headings = ("Reviewer", *map(_words, ITEMS), "Comment")
    return joined(
        tag("h2", "What two reviewers said"),
        table(headings, rows, "They differ; your verdict replaces both"),
    )


def _form(visit: Visit, record: RecordToJudge) -> Markup:
    return layout.form(
        visit, visit.path,
        tag("h2", "Your verdict"),
        tag("input", type="hidden", name="task", value=record.task),
        [_choice(item, allowed) for item, allowed in ITEMS.items()],
        tag("label", "Comment", tag("textarea", name="comment", maxlength=COMMENT_CHARACTERS_MAX, rows=3)),
        tag("p", BLIND if record.task == "review" else "Your verdict is sealed in the log, and is final.", class_="small"),
        tag("button", "Put it on record", type="submit", class_="primary"),
        class_="panel rubric",
    )  # fmt: skip


def _choice(item: str, allowed: tuple[str, ...]) -> Markup:
    """One group of radio buttons: the arrow keys choose, Tab goes on."""
    options = [
        tag("label", tag("input", type="radio", name=item, value=value, required=True), value, class_="option") for value in allowed
    ]  # fmt: skip
    asked = tag("p", QUESTIONS[item], class_="small", id=f"about-{item}")
    legend = tag("legend", _words(item).capitalize())
    return tag(
        "fieldset", legend, asked, tag("div", options, class_="actions"), aria_describedby=f"about-{item}"
    )


def _words(item: str) -> str:
    return item.replace("_", " ")


def _reviews(visit: Visit) -> Reviews:
    return Reviews(visit.house.console_pool, visit.house.pool, visit.house.operator_events.event)


async def _queue(visit: Visit) -> Queue:
    with _refusing():
        return await _reviews(visit).queue(_id(visit.place["sample"]))


def _person(visit: Visit) -> Person:
    return Person(visit.who, _ROLES[visit.role], visit.client.key_id)


def _address(sample_id: UUID, log_id: UUID | None = None) -> str:
    return f"{REVIEWS}/{sample_id}/{log_id}" if log_id else f"{REVIEWS}/{sample_id}"


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFoundError from None


def _marks(form: Mapping[str, str]) -> Marks:
    """A browser sends a line end of the comment as two characters, and counts it as one."""
    comment = form.get("comment", "").replace("\r\n", "\n").strip()
    marks = Marks(**{item: form.get(item, "") for item in ITEMS}, comment=comment)
    try:
        marks.check()
    except ValueError as wrong:
        raise InvalidFieldError(str(wrong)) from None
    return marks


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ReviewUnavailableError:
        raise DatabaseUnavailableError from None
    except (ReviewRefusedError, SampleError) as refused:
        raise InvalidFieldError(str(refused)) from None


PAGES = (
    ConsolePage(REVIEWS, show_samples, navigation="Reviews"),
    ConsolePage(f"{REVIEWS}/{{sample}}", show_sample),
    ConsolePage(f"{REVIEWS}/{{sample}}/{{record}}", show_record, role=ConsoleRole.REVIEWER, act=judge, act_role=ConsoleRole.REVIEWER),
)  # fmt: skip
