"""Claude, with citations: each passage is a search result, each sentence a block that can be cited.

What comes back is a draft like any other generator's. Nothing of it leaves before verify.py has compared every citation
with the stored passage.
"""

import json
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import anthropic
from anthropic.types import CitationsDelta, RawMessageStreamEvent, TextDelta

from engine.errors import ModelBusyError, ModelFailedError
from engine.models import Citation, Claim, Draft, Evidence, Question

SENTINEL = "This question is not covered in the provided book excerpts."

# What each model must be told apart from the question. Thinking would eat the time and the tokens of the answer.
PARAMETERS: dict[str, dict[str, Any]] = {"claude-haiku-5-5": {"thinking": {"type": "disabled"}}}

RAW_CHARACTERS_MAX = 32_000  # ten times the longest answer that we ask for: more is no answer but a flood
BUSY = frozenset({429, 500, 503, 504, 529})
OK = 200  # an overload may be told in the middle of a stream that began well
BUSY_TYPES = frozenset({"overloaded_error", "rate_limit_error", "api_error", "timeout_error"})

_CONFIDENCE = re.compile(r"\s*Confidence:\s*(\S*)\s*", re.IGNORECASE)
_BORDER = re.compile(r"(?<=[.!?。！？])\s+|(?<=[.!?][\"'”’)\]])\s+|\n+|(?<=[。！？])")  # noqa: RUF001
_ENDED = re.compile(r"[.!?。！？][\"'”’)\]]*\s*\Z|\n\s*\Z")  # noqa: RUF001


class Claude:
    """The Messages API, once, without retries: the budget has no room for a second try."""

    def __init__(
        self,
        *,
        model: str,
        max_output_tokens: int,
        api_key: str,
        base_url: str | None,
        timeout_s: float,
        system: str,
    ) -> None:
        self.name = model
        self._system = system
        self._max_output_tokens = max_output_tokens
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, max_retries=0, timeout=timeout_s
        )

    async def write(
        self, question: Question, evidence: Sequence[Evidence], draft: Draft
    ) -> AsyncGenerator[Claim, None]:
        request = self._request(question, evidence)
        draft.prompt = json.dumps(request, ensure_ascii=False)
        reading = Reading(draft)
        async with aclosing(self._events(request, draft)) as events:
            async for event in events:
                for claim in reading.claims(event):
                    yield claim
        if not draft.stop_reason:
            raise ModelFailedError(upstream=_of(draft, "the stream ended early"))
        for claim in reading.end():
            yield claim

    async def close(self) -> None:
        await self._client.close()

    async def _events(
        self, request: dict[str, Any], draft: Draft
    ) -> AsyncGenerator[RawMessageStreamEvent, None]:
        """The vendor's events; whatever goes wrong becomes one of our failures, without the vendor's words."""
        try:
            async with await self._client.messages.create(**request, stream=True) as stream:
                draft.request_id = stream.response.headers.get("request-id")
                async for event in stream:
                    yield event
        except anthropic.APIStatusError as failure:
            draft.request_id = failure.request_id or draft.request_id
            is_busy = failure.status_code in BUSY or (
                failure.status_code == OK and failure.type in BUSY_TYPES
            )
            what = f"status {failure.status_code}, {failure.type or 'no type'}"
            raise (ModelBusyError if is_busy else ModelFailedError)(upstream=_of(draft, what)) from failure
        except Exception as failure:  # the SDK raises its own, httpx's, and whatever a malformed event breaks
            raise ModelFailedError(upstream=_of(draft, type(failure).__name__)) from failure

    def _request(self, question: Question, evidence: Sequence[Evidence]) -> dict[str, Any]:
        """Frozen bytes first, so that the vendor can cache them; the question last and word for word."""
        system = {"type": "text", "text": self._system, "cache_control": {"type": "ephemeral"}}
        content = [*map(_search_result, evidence), {"type": "text", "text": question.text}]
        return {
            "model": self.name,
            "max_tokens": self._max_output_tokens,
            "system": [system],
            "messages": [{"role": "user", "content": content}],
            **PARAMETERS.get(self.name, {}),
        }


class Reading:
    """The stream's events put together to sentences. A block is complete when it stops; a sentence when it ends."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._block: list[str] | None = None  # the text block that is being written
        self._cited: list[Citation] = []
        self._sentence = Sentence()

    def claims(self, event: RawMessageStreamEvent) -> Iterator[Claim]:
        draft = self._draft
        if event.type == "message_start":
            draft.model = event.message.model
            draft.tokens_input = event.message.usage.input_tokens
        elif event.type == "content_block_start":
            self._block = [event.content_block.text] if event.content_block.type == "text" else None
            self._cited = []
        elif event.type == "content_block_delta" and self._block is not None:
            if isinstance(event.delta, TextDelta):
                self._block.append(event.delta.text)
                draft.raw += event.delta.text
                if len(draft.raw) > RAW_CHARACTERS_MAX:
                    raise ModelFailedError(upstream=_of(draft, "an answer without end"))
            elif isinstance(event.delta, CitationsDelta):
                self._cited.extend(_citation(event.delta))
        elif event.type == "content_block_stop" and self._block is not None:
            yield from self._finished("".join(self._block), tuple(self._cited))
            self._block = None
        elif event.type == "message_delta":
            draft.stop_reason = event.delta.stop_reason
            draft.tokens_output = event.usage.output_tokens

    def end(self) -> Iterator[Claim]:
        """What is left when the message has stopped, and what the draft is worth as a whole."""
        yield from self._taken()
        self._draft.is_complete = self._draft.stop_reason == "end_turn"
        lines = [line for line in self._draft.raw.splitlines() if line.strip()]
        estimate = _CONFIDENCE.fullmatch(lines[-1]) if lines else None
        self._draft.confidence = _share(estimate[1]) if estimate else None

    def _finished(self, text: str, citations: tuple[Citation, ...]) -> Iterator[Claim]:
        pieces = _BORDER.split(text)
        for number, piece in enumerate(pieces):
            if number:
                yield from self._taken()
            self._sentence.add(piece, citations)
        if _ENDED.search(text):
            yield from self._taken()

    def _taken(self) -> Iterator[Claim]:
        """The sentence that has ended, unless it says nothing to readers."""
        sentence, self._sentence = self._sentence, Sentence()
        text = sentence.text.strip()
        if SENTINEL in text:
            self._draft.has_abstained = True
        elif text and not _CONFIDENCE.fullmatch(text):
            yield Claim(text, tuple(dict.fromkeys(sentence.citations)), sentence.cited_share)


class Sentence:
    """A sentence that is being put together from parts of blocks."""

    def __init__(self) -> None:
        self.text = ""
        self.citations: list[Citation] = []
        self._cited_letters = 0

    def add(self, piece: str, citations: Sequence[Citation]) -> None:
        self.text += piece
        if citations and piece.strip():
            self.citations.extend(citations)
            self._cited_letters += _letters(piece)

    @property
    def cited_share(self) -> float:
        return self._cited_letters / max(1, _letters(self.text))


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def _share(words: str) -> float | None:
    """An estimate out of range is none."""
    try:
        value = float(words)
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


def _search_result(item: Evidence) -> dict[str, Any]:
    passage = item.passage
    sentences = [passage.sentence_text(number) for number in range(len(passage.sentences))]
    return {
        "type": "search_result",
        "source": passage.chunk_id,
        "title": f"{passage.section} (Page {passage.start_page})",
        "content": [{"type": "text", "text": sentence} for sentence in sentences],
        "citations": {"enabled": True},
    }


def _citation(delta: CitationsDelta) -> Iterator[Citation]:
    item = delta.citation
    if item.type == "search_result_location":
        yield Citation(
            item.search_result_index, item.start_block_index, item.end_block_index, item.cited_text
        )


def _of(draft: Draft, what: str) -> str:
    """For the record: what happened, and how far the answer had come."""
    return f"{what}; request {draft.request_id or 'unnamed'}, after {len(draft.raw)} characters"
