"""Adapters: the contracts of the specifications over the same pipeline, so that chat widgets made for them work unchanged.

Each contract has its request body, its mapping to our question, and the mapping of our answer to its response body. Unknown
fields are accepted, because existing widgets send some. A refusal is a valid response of each contract. The fifth,
spec 001's, is `/v1/query` itself, and spec 002 asks for `/chat/book/{book_id}/query`, which is `/v1` by another name.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from engine.grounding.cite import low_mark
from engine.http import problems, v1
from engine.http.stream import MEDIA_TYPE, Format, data_line
from engine.http.v1 import fitting
from engine.models import Answer, Excerpt, Passage, Question, Quoted, Refusal, Sources

SOURCES_MAX = 5  # spec 000
ASKED_CHARACTERS_MIN = 3  # spec 004
ASKED_TOP_K_MAX = 20  # spec 004: more than /v1 allows, but fewer than the candidates that the index returns
EXCERPT_CHARACTERS_MAX = 200  # spec 004

Share = Annotated[float, Field(ge=0, le=1)]
Words = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Contract:
    """One address of a specification."""

    path: str
    summary: str
    asks: type[BaseModel]
    question_fields: Callable[[Any], dict[str, Any]]  # what the body says of our question
    says: type[BaseModel]
    form: Format

    def question(self, body: bytes, book_id: str, end_user: str | None, top_k: int) -> Question:
        v1.check_book_id(book_id)
        fields = {"top_k": top_k} | self.question_fields(v1.read(body, self.asks))
        return Question(book_id=book_id, end_user=end_user, **fields)

    def streamed(self) -> dict[int | str, dict[str, Any]]:
        if self.form.events is None:
            return {}
        said = "Answered or refused. With `Accept: text/event-stream` as `data:` lines of chunks, the last one `done`."
        return {200: {"description": said, "content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}


class SearchBody(BaseModel):
    """A question of spec 000."""

    query: fitting(1)  # type: ignore[valid-type]  # the limit is an argument
    selected_text: v1.Selection = None


class SectionBody(BaseModel):
    chapter: Words
    section: Words
    filename: Words
    score: Share


class FoundBody(BaseModel):
    """An answer of spec 000. It has at least one source; in a refusal, the nearest sections."""

    answer: Words
    sources: Annotated[list[SectionBody], Field(min_length=1, max_length=SOURCES_MAX)]


class MessageBody(BaseModel):
    """A question of spec 003."""

    question: fitting(1)  # type: ignore[valid-type]


class ReplyBody(BaseModel):
    """An answer of spec 003. Its sources are `chapter/section`; a refusal has none."""

    answer: Words
    sources: list[str]


class AskBody(BaseModel):
    """A question of spec 004."""

    question: fitting(ASKED_CHARACTERS_MIN)  # type: ignore[valid-type]
    top_k: Annotated[int, Field(strict=True, ge=1, le=ASKED_TOP_K_MAX)] = 5


class ReferenceBody(BaseModel):
    chapter: str
    chapter_title: str
    source_file: str
    excerpt: Annotated[str, Field(max_length=EXCERPT_CHARACTERS_MAX)]


class ToldBody(BaseModel):
    """An answer of spec 004. Without a citation its confidence is 0."""

    answer: str
    citations: list[ReferenceBody]
    confidence: Share


class StreamChunk(BaseModel):
    """An event of spec 004."""

    content: str
    done: bool = False
    citations: list[ReferenceBody] | None = None
    confidence: Share | None = None
    error: str | None = None


def found(answer: Answer) -> FoundBody:
    return FoundBody(answer=_text(answer), sources=_sections(answer))


def reply(answer: Answer) -> ReplyBody:
    places = [f"{item.chapter}/{item.section}" for item in v1.excerpts(answer)]
    return ReplyBody(answer=_text(answer), sources=list(dict.fromkeys(places)))


def cited_answer(answer: Answer) -> ToldBody:
    citations = [
        ReferenceBody(
            chapter=item.chapter_id, chapter_title=item.chapter, source_file=item.filename,
            excerpt=_beginning(item.excerpt),
        )
        for item in v1.excerpts(answer)
    ]  # fmt: skip
    confidence = v1.share(answer.trail.confidence_score)
    return ToldBody(answer=_text(answer), citations=citations, confidence=confidence)


class DataChunks:
    """The `data:` stream of spec 004. Text cannot be retracted once sent, so if it turns out invalid the last chunk says so."""

    def __init__(self) -> None:
        self._has_text = False

    def shown(self, event: Sources | Quoted) -> str:
        return self._text_chunk(event.text) if isinstance(event, Quoted) else ""

    def done(self, answer: Answer) -> str:
        whole = cited_answer(answer)
        last = StreamChunk(content="", done=True, citations=whole.citations, confidence=whole.confidence)
        if isinstance(answer.outcome, Refusal):
            if self._has_text:
                return _chunk(last.model_copy(update={"error": whole.answer}))
            return self._text_chunk(whole.answer) + _chunk(last)
        mark = (
            self._text_chunk(low_mark(answer.outcome.language))
            if answer.outcome.confidence_level == "low"
            else ""
        )
        return mark + _chunk(last)

    def failed(self, problem: problems.Problem) -> str:
        return _chunk(StreamChunk(content="", done=True, error=problem.detail))

    def _text_chunk(self, text: str) -> str:
        space = " " if self._has_text else ""
        self._has_text = True
        return _chunk(StreamChunk(content=space + text))


def _text(answer: Answer) -> str:
    assert answer.trail.answer_text
    return answer.trail.answer_text


def _sections(answer: Answer) -> list[SectionBody]:
    """The sections of the answer, or those nearest to the question; if there are none, one placeholder."""
    outcome = answer.outcome
    if isinstance(outcome, Refusal):
        near = [_section(item.passage, item.candidate.score) for item in outcome.nearest]
        book = answer.trail.book_id or "none"
        nowhere = SectionBody(chapter=book, section="No section of this book", filename="none", score=0.0)
        return _once(near) or [nowhere]
    return _once(_section(item, item.score) for item in outcome.excerpts)


def _section(place: Passage | Excerpt, score: float) -> SectionBody:
    """Text without a heading takes the name of its chapter, or else of its file."""
    chapter = place.chapter or place.filename
    section = place.section or chapter
    return SectionBody(chapter=chapter, section=section, filename=place.filename, score=v1.share(score))


def _once(sections: Iterable[SectionBody]) -> list[SectionBody]:
    """Each section once, with its best score."""
    best: dict[tuple[str, str, str], SectionBody] = {}
    for item in sections:
        place = (item.chapter, item.section, item.filename)
        best[place] = max(best.get(place, item), item, key=lambda section: section.score)
    return list(best.values())[:SOURCES_MAX]


def _beginning(excerpt: str) -> str:
    """Truncates after the last whole word that fits, so that the rest is still a slice of the book."""
    if len(excerpt) <= EXCERPT_CHARACTERS_MAX:
        return excerpt
    whole = re.match(r".*\S(?=\s)", excerpt[: EXCERPT_CHARACTERS_MAX + 1], re.DOTALL)
    return whole[0] if whole else excerpt[:EXCERPT_CHARACTERS_MAX]


def _chunk(chunk: StreamChunk) -> str:
    """Only the last chunk has citations and a confidence, and only a failed one has an error."""
    return data_line(chunk.model_dump(exclude_none=True)) + "\n"


CONTRACTS = (
    Contract(
        "/api/query", "Ask the default book of the settings (spec 000).",
        SearchBody, lambda body: {"text": body.query, "selected_text": body.selected_text},
        FoundBody, Format(found, None),
    ),
    Contract(
        "/api/ask", "Ask the default book of the settings (spec 004).",
        AskBody, lambda body: {"text": body.question, "top_k": body.top_k},
        ToldBody, Format(cited_answer, DataChunks),
    ),
    Contract(
        "/query", "Ask the default book of the settings (spec 003).",
        MessageBody, lambda body: {"text": body.question},
        ReplyBody, Format(reply, None),
    ),
)  # fmt: skip
