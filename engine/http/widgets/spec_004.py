"""Specification 004: an answer with citations of at most 200 characters, in one piece or as its own `StreamChunk`s."""

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from engine.http import v1
from engine.http.stream import Format
from engine.http.v1 import fitting
from engine.http.widgets.contract import EACH, Contract, DataEvents, Json, Share
from engine.models import Answer

ASKED_CHARACTERS_MIN = 3
ASKED_TOP_K_MAX = 20  # more than /v1 allows, but fewer than the candidates that the index returns
EXCERPT_CHARACTERS_MAX = 200


class AskBody(BaseModel):
    """A question of at least three characters."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"question": "What does an IMU measure?", "top_k": 5}]}
    )

    question: fitting(ASKED_CHARACTERS_MIN)  # type: ignore[valid-type]  # the limit is an argument
    top_k: Annotated[int, Field(strict=True, ge=1, le=ASKED_TOP_K_MAX)] = 5
    selected_text: v1.Selection = None


class ReferenceBody(BaseModel):
    chapter: str
    chapter_title: str
    source_file: str
    excerpt: Annotated[str, Field(max_length=EXCERPT_CHARACTERS_MAX)]


class ToldBody(BaseModel):
    """Without a citation its confidence is 0."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "answer": "An IMU measures acceleration and angular velocity. [1]",
                    "citations": [
                        {
                            "chapter": "03-sensors-and-state-estimation",
                            "chapter_title": "Sensors and state estimation",
                            "source_file": "03-sensors-and-state-estimation.md",
                            "excerpt": "An IMU measures acceleration and angular velocity.",
                        }
                    ],
                    "confidence": 0.82,
                }
            ]
        }
    )

    answer: str
    citations: list[ReferenceBody]
    confidence: Share


class StreamChunk(BaseModel):
    """An event of the stream. Only the last one has citations and a confidence, and only a failed one has an error."""

    content: str
    done: bool = False
    citations: list[ReferenceBody] | None = None
    confidence: Share | None = None
    error: str | None = None

    def said(self) -> Json:
        return self.model_dump(exclude_none=True)


def cited_answer(answer: Answer) -> ToldBody:
    citations = [
        ReferenceBody(
            chapter=item.chapter_id, chapter_title=item.chapter, source_file=item.filename,
            excerpt=_beginning(item.excerpt),
        )
        for item in v1.excerpts(answer)
    ]  # fmt: skip
    confidence = v1.share(answer.trail.confidence_score)
    return ToldBody(answer=EACH.text(answer), citations=citations, confidence=confidence)


def events() -> DataEvents:
    def last(answer: Answer) -> Iterable[Json]:
        whole = cited_answer(answer)
        yield StreamChunk(
            content="", done=True, citations=whole.citations, confidence=whole.confidence
        ).said()

    return DataEvents(
        EACH,
        chunk=lambda text: StreamChunk(content=text).said(),
        last=last,
        failure=lambda detail: StreamChunk(content="", done=True, error=detail).said(),
    )


def _beginning(excerpt: str) -> str:
    """Truncates after the last whole word that fits, so that the rest is still a slice of the book."""
    if len(excerpt) <= EXCERPT_CHARACTERS_MAX:
        return excerpt
    whole = re.match(r".*\S(?=\s)", excerpt[: EXCERPT_CHARACTERS_MAX + 1], re.DOTALL)
    return whole[0] if whole else excerpt[:EXCERPT_CHARACTERS_MAX]


def _question_fields(body: AskBody) -> Json:
    return {"text": body.question, "top_k": body.top_k, "selected_text": body.selected_text}


CONTRACTS = (
    Contract(
        ("/api/ask", "/ask"), "Ask the default book of the settings (spec 004).",
        AskBody, _question_fields, ToldBody, Format(cited_answer, events),
    ),
    Contract(
        ("/api/ask/stream",), "Ask the default book of the settings, for a stream (spec 004).",
        AskBody, _question_fields, ToldBody, Format(cited_answer, events, is_always_stream=True),
    ),
)  # fmt: skip
