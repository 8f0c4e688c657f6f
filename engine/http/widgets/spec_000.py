"""Specification 000: `/api/query` names the sections of an answer; `/api/chat` is the chat of the same family.

It has no stream of its own. An answer of `/api/query` has at least one source: of a refusal, the sections nearest to the
question.
"""

from collections.abc import Hashable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from engine.http import v1
from engine.http.stream import Format
from engine.http.v1 import fitting
from engine.http.widgets.contract import Contract, Share, SourceList, Words, also, typed_events
from engine.models import Answer, ConfidenceLevel, Excerpt, Passage, Refusal

SOURCES_MAX = 5
ASKED = "What does an IMU measure?"
_SAID = "An IMU measures acceleration and angular velocity. [1]"
_SECTION: dict[str, Any] = {
    "chapter": "Sensors and state estimation", "section": "Inertial measurement units",
    "filename": "03-sensors-and-state-estimation.md", "score": 0.83,
}  # fmt: skip


class SearchBody(BaseModel):
    """A question to `/api/query`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"query": ASKED, "selected_text": None}]})

    query: fitting(1)  # type: ignore[valid-type]  # the limit is an argument
    selected_text: v1.Selection = None


class SectionBody(BaseModel):
    chapter: Words
    section: Words
    filename: Words
    score: Share


class FoundBody(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"answer": _SAID, "sources": [_SECTION]}]})

    answer: Words
    sources: Annotated[list[SectionBody], Field(min_length=1, max_length=SOURCES_MAX)]


class ChatBody(BaseModel):
    """A question to `/api/chat`. Its clients call the question `message`, `query` or `question`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"message": ASKED, "selected_text": None}]})

    message: fitting(1) = also("message", "query", "question", default=...)  # type: ignore[valid-type]
    selected_text: v1.Selection = None
    top_k: v1.TopK | None = None


class ChatSourceBody(SectionBody):
    """A section once more under the names that chats show."""

    excerpt_num: Annotated[int, Field(ge=1)]
    title: Words
    file_path: Words
    url: str


class ChatAnswerBody(BaseModel):
    """`response` is the `answer` under the name that some of these chats read."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "answer": _SAID, "response": _SAID, "has_answer": True, "confidence": "medium", "num_sources": 1,
                    "sources": [
                        _SECTION
                        | {
                            "excerpt_num": 1, "title": _SECTION["chapter"], "file_path": _SECTION["filename"],
                            "url": "/docs/sensors#inertial-measurement-units",
                        }
                    ],
                }
            ]
        }
    )  # fmt: skip

    answer: Words
    response: Words
    sources: list[ChatSourceBody]
    has_answer: bool
    confidence: ConfidenceLevel | None
    num_sources: Annotated[int, Field(ge=0)]


def found(answer: Answer) -> FoundBody:
    return FoundBody(answer=SECTIONS.text(answer), sources=_nearest(answer) or _cited(answer))


def chat_answer(answer: Answer) -> ChatAnswerBody:
    text = SECTIONS.text(answer)
    sources = [
        ChatSourceBody(
            **section.model_dump(), excerpt_num=n, title=section.chapter, file_path=section.filename, url=cited[0].url
        )
        for n, (section, cited) in enumerate(zip(_cited(answer), SECTIONS.sources(answer), strict=True), 1)
    ]  # fmt: skip
    return ChatAnswerBody(
        answer=text, response=text, sources=sources, num_sources=len(sources), has_answer=bool(sources),
        confidence=None if isinstance(answer.outcome, Refusal) else answer.outcome.confidence_level,
    )  # fmt: skip


def _cited(answer: Answer) -> list[SectionBody]:
    """Each section with its best score."""
    return [_section(cited[0], max(excerpt.score for excerpt in cited)) for cited in SECTIONS.sources(answer)]


def _nearest(answer: Answer) -> list[SectionBody]:
    """Of a refusal: the sections nearest to the question; if there are none, one placeholder."""
    if not isinstance(answer.outcome, Refusal):
        return []
    near: dict[Hashable, SectionBody] = {}
    for item in answer.outcome.nearest:  # the best one first
        near.setdefault(_place(item.passage), _section(item.passage, item.candidate.score))
    book = answer.trail.book_id or "none"
    nowhere = SectionBody(chapter=book, section="No section of this book", filename="none", score=0.0)
    return list(near.values())[:SOURCES_MAX] or [nowhere]


def _section(place: Passage | Excerpt, score: float) -> SectionBody:
    chapter, section, filename = _place(place)
    return SectionBody(chapter=chapter, section=section, filename=filename, score=v1.share(score))


def _place(place: Passage | Excerpt) -> tuple[str, str, str]:
    """Text without a heading takes the name of its chapter, or else of its file."""
    chapter = place.chapter or place.filename
    return chapter, place.section or chapter, place.filename


SECTIONS = SourceList(_place, SOURCES_MAX)
CONTRACTS = (
    Contract(
        ("/api/query",), "Ask the default book of the settings (spec 000).",
        SearchBody, lambda body: {"text": body.query, "selected_text": body.selected_text},
        FoundBody, Format(found, typed_events(found, SECTIONS)),
    ),
    Contract(
        ("/api/chat", "/api/chat/"), "Ask the default book of the settings (a chat of spec 000).",
        ChatBody, lambda body: {"text": body.message, "selected_text": body.selected_text, "top_k": body.top_k},
        ChatAnswerBody, Format(chat_answer, typed_events(chat_answer, SECTIONS)),
    ),
)  # fmt: skip
