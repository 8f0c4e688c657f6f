"""A record's page: what was said and quoted, what was near, how long it took, how it is proven, and what belongs to it."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from audit.errors import ReviewUnavailableError, UnprovenError
from audit.markup import Markup, joined, table, tag
from audit.proof.keys import PublicKey
from audit.proof.record import PERSONAL
from audit.proof.verdict import Verdict
from audit.review.blindness import Blindness
from audit.search.marks import marked, spans_cited, spans_of
from audit.search.reading import RecordReader, WholeRecord
from audit.search.standing import JudgedRung
from engine.errors import DatabaseUnavailableError, ForbiddenError, NotSealedError, UnknownRecordError
from engine.http.console import assets, layout
from engine.http.console.records import showing
from engine.http.console.visit import Download, Reply, Role, Sheet, Visit

SCRIPT = "recompute.js"
WIDTH = 640  # of the bar of stages
_SURE = {"confidence_score", "confidence_level", "best_score"}
_STILL_JUDGED = "You have this record still to judge, so it does not say here how sure it was."
_FIRST_VERDICT = "This is a verdict, and the second one on its record is not given yet. Nobody sees it before: reviewers judge blind."
_GOOD, _BAD = {Verdict.VALID, Verdict.ERASED}, {Verdict.TAMPERED, Verdict.MISSING, Verdict.WRONG_VAULT}
_SIGNS = {"good": "✓", "bad": "✕", "unsure": "?"}


async def show(visit: Visit) -> Reply:
    record, keys = await _read(visit)
    sight = await showing.sight_of(visit)
    showing.note_read(
        visit, sight, f"query_id {record.row['query_id']}", _columns(record), 1 + len(record.turns)
    )
    row = record.row
    is_blind = await _is_blind(visit, row)
    return Sheet(
        "Record",
        joined(
            _head(record), tag("p", _STILL_JUDGED, class_="calm") if is_blind else None, _conversation(sight, row), _quotes(sight, record),
            None if is_blind else _near(sight, record), _stages(row), None if is_blind else _ladder(record, keys),
            _facts(row, _SURE if is_blind else ()), _feedback(sight, record), None if is_blind else _turns(sight, record),
        ),
        scripts=(assets.address_of(SCRIPT),),
    )  # fmt: skip


def _columns(record: WholeRecord) -> set[str]:
    """What is shown of this record, of the other turns, and of what the reader thought, which are records of their own."""
    own = {name for name in PERSONAL if record.row.get(name) is not None}
    return own.union(showing.LISTED if record.turns else (), {"details"} if record.feedback else ())


async def proof(visit: Visit) -> Reply:
    """The proof as a file; it has what was said, so it is a reading."""
    sight = await showing.sight_of(visit)
    if sight.is_masked:
        raise ForbiddenError("A proof holds what was said, which is masked for your role.")
    query_id = showing.identity(visit.place["query_id"])
    try:
        row = await visit.house.prover.row(query_id) if query_id else {}
        if not row or not _may_read(visit, row.get("book_id")):
            raise UnknownRecordError
        if await _is_blind(visit, row):
            raise ForbiddenError(_STILL_JUDGED)
        content = await visit.house.prover.prove(row)
    except UnprovenError as failure:
        raise (NotSealedError if failure.verdict == Verdict.UNSEALED else UnknownRecordError) from None
    showing.note_read(visit, sight, f"proof of query_id {query_id}", PERSONAL & row.keys(), 1)
    return Download(f"proof-{query_id}.json", "application/json", content)


async def _read(visit: Visit) -> tuple[WholeRecord, list[str]]:
    keys = await visit.house.public_keys()
    reader = RecordReader(visit.house.console_pool, visit.house.prover)
    query_id = showing.identity(visit.place["query_id"])
    with showing.said():
        found = (
            await reader.record(query_id, [PublicKey.of(line) for line in keys], showing.books(visit))
            if query_id
            else None
        )
    if found is None:
        raise UnknownRecordError
    return found, keys


async def _is_blind(visit: Visit, row: Mapping[str, Any]) -> bool:
    """Whether this reader has it still to judge. `ForbiddenError` for another's verdict that is hidden."""
    blindness = Blindness(visit.house.console_pool)
    try:
        if await blindness.hides(visit.who, row):
            raise ForbiddenError(_FIRST_VERDICT)
        is_lead = visit.role is Role.LEAD
        return visit.role is not Role.AUDITOR and await blindness.still_judges(
            visit.who, is_lead=is_lead, log_id=row["log_id"]
        )
    except ReviewUnavailableError:
        raise DatabaseUnavailableError from None


def _may_read(visit: Visit, book_id: str | None) -> bool:
    allowed = showing.books(visit)
    return allowed is None or book_id in allowed


def _head(record: WholeRecord) -> Markup:
    row = record.row
    outcome = row["outcome"] + (f" ({row['reason']})" if row["reason"] else "")
    about = [joined(showing.moment(row["timestamp"]), " UTC"), outcome, row["book_id"], row["client_id"]]
    erased = record.erasure
    return joined(
        tag("p", [joined(" · " if number else "", each) for number, each in enumerate(filter(None, about))], class_="small"),
        tag("p", "Its personal columns were erased at ", showing.moment(row["erased_at"]), " UTC",
            f": {erased.basis}." if erased else ".", " The proof of the rest remains.", class_="calm") if row["erased_at"] else None,
        tag("p", "A hold covers this record: it is not erased until two people release the hold.", class_="calm") if record.is_held else None,
    )  # fmt: skip


def _conversation(sight: showing.Sight, row: Mapping[str, Any]) -> Markup:
    if sight.is_masked:
        return showing.masked()
    excerpts = [str(each.get("excerpt", "")) for each in _dicts(row["citations"])]
    answer, selected = row["answer_text"] or "", row["selected_text"]
    return tag(
        "div",
        joined(tag("h2", "Selected"), tag("blockquote", selected)) if selected else None,
        joined(tag("h2", "Question"), tag("p", row["user_query_text"], class_="said asked")) if row["user_query_text"] else None,
        joined(tag("h2", "Answer as the reader saw it" if row["outcome"] == "answered" else "What the reader was told"),
               tag("p", _marked(answer, spans_of(answer, excerpts)), class_="said")) if answer else None,
    )  # fmt: skip


def _marked(text: str, spans: Sequence[tuple[int, int]]) -> list[object]:
    return [tag("mark", piece.text) if piece.is_marked else piece.text for piece in marked(text, spans)]


def _quotes(sight: showing.Sight, record: WholeRecord) -> Markup | None:
    """Each passage that was quoted, as it is in that edition, with the quotations marked by their recorded places."""
    by_passage: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for cited in _dicts(record.row["citations"]):
        by_passage[str(cited.get("chunk_id"))].append(cited)
    if not by_passage or sight.is_masked:
        return None
    items = [
        tag("li", _passage(chunk_id, cited, record.passages.get(chunk_id)))
        for chunk_id, cited in by_passage.items()
    ]
    edition = (
        tag("p", "Index generation ", tag("code", record.row["index_generation"]), class_="small")
        if record.row["index_generation"]
        else None
    )
    return joined(tag("h2", "Quoted, in its passage"), edition, tag("ol", items, class_="records"))


def _passage(chunk_id: str, cited: Sequence[Mapping[str, Any]], passage: Mapping[str, Any] | None) -> Markup:
    first = cited[0]
    place = " · ".join(
        str(each)
        for each in (
            first.get("chapter"),
            first.get("section"),
            first.get("page") and f"page {first['page']}",
        )
        if each
    )
    text = (
        _marked(passage["text"], spans_cited(cited))
        if passage
        else [tag("mark", str(each.get("excerpt", ""))) for each in cited]
    )
    missing = (
        None
        if passage
        else tag("p", "The passage is not stored any more: only the quotation is here.", class_="calm")
    )
    name = tag("p", tag("code", chunk_id), f" of {passage['filename']}" if passage else None, class_="small")
    return joined(tag("p", place, class_="small"), tag("blockquote", text), missing, name)


def _near(sight: showing.Sight, record: WholeRecord) -> Markup | None:
    used = {cited.get("chunk_id") for cited in _dicts(record.row["citations"])}
    near = [each for each in _dicts(record.row["chunks_returned"]) if each.get("chunk_id") not in used]
    if not near or sight.is_masked:
        return None
    rows = [_scored(each, record.passages.get(str(each.get("chunk_id")))) for each in near]
    headings = ("Passage", "Score", "Similarity", "Words", "Begins")
    gate = record.row["threshold"]
    caption = "Passages that were near and not quoted" + (
        f"; the gate is {gate:.2f}" if isinstance(gate, float) else ""
    )
    return joined(tag("h2", "Near, and not used"), table(headings, rows, caption))


def _scored(candidate: Mapping[str, Any], passage: Mapping[str, Any] | None) -> tuple[object, ...]:
    scores = [
        f"{value:.3f}" if isinstance(value := candidate.get(name), int | float) else ""
        for name in ("score", "similarity", "lexical")
    ]
    where = (
        f"{passage['chapter']} · {passage['section']}"
        if passage
        else tag("code", str(candidate.get("chunk_id"))[:16])
    )
    return (
        where,
        *scores,
        tag("span", showing.cut(passage["text"], 120), class_="begins") if passage else "not stored any more",
    )


def _stages(row: Mapping[str, Any]) -> Markup | None:
    total = row["total_latency_ms"]
    if not total:
        return None
    found, made = row["retrieval_latency_ms"] or 0, row["generation_latency_ms"] or 0
    stages = [("Retrieval", found), ("Generation", made), ("The rest", max(total - found - made, 0))]
    words = ", ".join(f"{name.lower()} {ms} ms" for name, ms in stages)
    return joined(
        tag("h2", "How long it took"), tag("figure", tag("figcaption", f"{total} ms: {words}."), _bar(stages))
    )


def _bar(stages: Sequence[tuple[str, int]]) -> Markup:
    whole, at, parts = sum(ms for _, ms in stages) or 1, 0.0, []
    for number, (name, ms) in enumerate(stages, 1):
        width = WIDTH * ms / whole
        parts.append(
            tag(
                "rect",
                tag("title", f"{name}: {ms} ms"),
                x=f"{at:.1f}",
                y=0,
                width=f"{width:.1f}",
                height=18,
                class_=f"series-{number}",
            )
        )
        at += width
    return tag(
        "svg", parts, viewBox=f"0 0 {WIDTH} 18", role="img", aria_label="Times of the stages", class_="stages"
    )


def _ladder(record: WholeRecord, keys: Sequence[str]) -> Markup:
    address = f"{showing.record_address(record.row['query_id'])}/proof"
    recompute = tag(
        "div", tag("button", "Recompute in this browser", type="button", hidden=True), tag("a", "Download its proof", href=address, class_="button"),
        tag("div", role="status"), id="recompute", data_proof=address, data_keys="\n".join(keys), class_="actions",
    )  # fmt: skip
    told = tag(
        "p",
        "From what was said up to what others vouch for, as this server finds it now. Your browser can compute the lower rungs itself.",
    )
    return joined(
        tag("h2", "The ladder of proof"),
        told,
        tag("ol", [_rung(each) for each in record.rungs], class_="ladder"),
        recompute,
    )


def _rung(each: JudgedRung) -> Markup:
    kind = "good" if each.verdict in _GOOD else "bad" if each.verdict in _BAD else "unsure"
    return tag(
        "li", tag("span", _SIGNS[kind], class_="sign", aria_hidden="true"), tag("b", str(each.rung).capitalize()),
        tag("div", tag("span", str(each.verdict), class_=f"verdict {kind}"), " ", layout.said_by_us(each.words)), class_=kind,
    )  # fmt: skip


def _facts(row: Mapping[str, Any], hidden: Collection[str] = ()) -> Markup:
    named = (
        ("Query", "query_id"), ("Record", "log_id"), ("Answer", "answer_id"), ("Request", "request_id"), ("Session", "session_id"),
        ("Endpoint", "endpoint"), ("Status", "http_status"), ("Error", "error_message"), ("Key", "key_id"), ("Confidence", "confidence_score"),
        ("Level", "confidence_level"), ("Best score", "best_score"), ("Model", "model_used"), ("At the provider", "provider_request_id"),
        ("Embedder", "embedder"), ("Calibration", "calibration_id"), ("Prompt", "prompt_sha256"), ("Settings", "settings_sha256"),
        ("Code", "code_version"), ("Tokens in", "tokens_input"), ("Tokens out", "tokens_output"), ("Writer", "writer"),
    )  # fmt: skip
    pairs = [
        (words, str(row[name])) for words, name in named if row.get(name) is not None and name not in hidden
    ]
    hashed = ("Hash of its leaf", tag("code", bytes(row["leaf_hash"]).hex()))
    return joined(tag("h2", "The record"), layout.facts([*pairs, hashed]))


def _feedback(sight: showing.Sight, record: WholeRecord) -> Markup | None:
    if not record.feedback or sight.is_masked:
        return None
    items = [
        tag(
            "li",
            showing.moment(each.given_at),
            " UTC: ",
            "helpful" if each.helpful else "not helpful",
            f", {each.complaint}" if each.complaint else None,
        )
        for each in record.feedback
    ]
    return joined(tag("h2", "What the reader thought"), tag("ul", items))


def _turns(sight: showing.Sight, record: WholeRecord) -> Markup | None:
    return (
        joined(tag("h2", "Other turns of this conversation"), showing.listed(sight, record.turns))
        if record.turns
        else None
    )


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
