"""An adapter for Claude with citations: each passage is a search result, each sentence a block that can be cited.

The result is a draft like any other generator's: verify.py compares every citation with the stored passage.
"""

import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any, NamedTuple, get_args

import anthropic
from anthropic.types import CitationsDelta, RawMessageStreamEvent, TextDelta
from anthropic.types.shared import ErrorType

from engine.errors import ConfigurationError, ModelBusyError, ModelFailedError
from engine.grounding.verify import NOT_STATED, SENTINEL
from engine.models import NEVER_AN_ANSWER, Citation, Claim, Draft, Question, RetrievedPassage
from engine.ports import Embedder, Generator
from engine.refusals import RefusalReason
from engine.settings import PROMPT, Settings

# Parameters by model. Thinking is off, because it would use up the time and the tokens of the answer.
PARAMETERS: dict[str, dict[str, Any]] = {"claude-haiku-5-5": {"thinking": {"type": "disabled"}}}

RAW_CHARACTERS_MAX = 32_000  # ten times the longest answer that we request
COUNT_MAX = 2**31 - 1  # the maximum of the record's columns
TIMEOUT_FACTOR = 2  # a backstop: the caller cancels earlier, when its budget is used up
BUSY = frozenset({429, 500, 503, 504, 529})
OK = 200  # an overload may be reported in the middle of a stream with status 200
BUSY_TYPES = frozenset({"overloaded_error", "rate_limit_error", "api_error", "timeout_error"})

# Possessive quantifiers prevent catastrophic backtracking on a hostile answer.
_CONFIDENCE = r"[*_\s]*+Confidence:[*_\s]*+([^\s*_]*+)[*_\s]*+"
_ESTIMATE = re.compile(_CONFIDENCE, re.IGNORECASE)
_LAST_ESTIMATE = re.compile(rf"(?:\A|\s){_CONFIDENCE}\Z", re.IGNORECASE)
ESTIMATE_CHARACTERS_MAX = 80

# A sentence ends at its mark and the closing characters after it, before white space and no lower-case letter ("e.g. the
# hip"); scripts without spaces need none. Marks of other scripts count too, because merged sentences share a citation.
_MARKS = "[.!?…।॥؟۔։።]"  # noqa: RUF001
_CLOSING = r"[\"'”’»)\]」』）】*_]*+"  # noqa: RUF001
_END = re.compile(
    rf"(?:(?<!{_MARKS}){_MARKS}++{_CLOSING}(?=\s|\Z)(?!\s*[a-z])|[。！？｡]++{_CLOSING}|[\n\r\u2028\u2029])\s*+"  # noqa: RUF001
)


def generator(settings: Settings, _: Embedder, __: Mapping[str, Embedder]) -> Generator:
    claude = settings.claude
    if not claude.api_key.get_secret_value():
        raise ConfigurationError("The Claude generator needs a key: set ANTHROPIC_API_KEY.")
    return Claude(
        model=claude.model,
        max_output_tokens=claude.max_output_tokens,
        api_key=claude.api_key.get_secret_value(),
        base_url=claude.base_url or None,
        timeout_s=settings.budget.generation_s,
        system=PROMPT.read_text(),
    )


class Run(NamedTuple):
    """Consecutive sentences of a passage, `end` exclusive: what is sent as one search result."""

    passage: int
    start: int
    end: int


NOT_SENT = Run(-1, 0, 0)


class Claude:
    """A client of the Messages API without retries: the time budget has no room for a second attempt."""

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
        self.name = self.description = model
        self._system = system
        self._max_output_tokens = max_output_tokens
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, max_retries=0, timeout=TIMEOUT_FACTOR * timeout_s
        )

    async def write(
        self, question: Question, evidence: Sequence[RetrievedPassage], draft: Draft
    ) -> AsyncGenerator[Claim, None]:
        runs = list(_citable_runs(evidence))
        if not runs:  # nothing could be cited, so the model is not asked
            draft.is_complete, draft.stop_reason = True, "end_turn"
            return
        request = self._request(question, [_search_result(run, evidence) for run in runs])
        draft.prompt = json.dumps(request, ensure_ascii=False)
        parser = StreamParser(draft, runs)
        async with aclosing(self._events(request, draft)) as events:
            async for event in events:
                for claim in parser.claims(event):
                    yield claim
        if not draft.stop_reason:
            raise ModelFailedError(upstream=_upstream(draft, "the stream ended early"))
        for claim in parser.end():
            yield claim

    async def close(self) -> None:
        await self._client.close()

    async def _events(
        self, request: dict[str, Any], draft: Draft
    ) -> AsyncGenerator[RawMessageStreamEvent, None]:
        """The vendor's events. Every exception becomes one of ours, without the vendor's message."""
        try:
            async with await self._client.messages.create(
                model=self.name,
                max_tokens=self._max_output_tokens,
                messages=[],
                extra_body=request,  # sent as it is: the SDK would look through every sentence of the passages
                stream=True,
            ) as stream:
                draft.request_id = stream.response.headers.get("request-id")
                async for event in stream:
                    yield event
        except anthropic.APIStatusError as failure:
            draft.request_id = failure.request_id or draft.request_id
            kind = failure.type if failure.type in get_args(ErrorType) else "no known type"
            is_busy = failure.status_code in BUSY or (failure.status_code == OK and kind in BUSY_TYPES)
            what = f"status {failure.status_code}, {kind}"
            raise (ModelBusyError if is_busy else ModelFailedError)(
                upstream=_upstream(draft, what)
            ) from failure
        except Exception as failure:  # the SDK raises its own, its HTTP client's, and the JSON reader's
            raise ModelFailedError(upstream=_upstream(draft, type(failure).__name__)) from failure

    def _request(self, question: Question, search_results: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Prompt caching: the constant prefix first, so that the vendor can cache it; the question last, word for word."""
        system = {"type": "text", "text": self._system, "cache_control": {"type": "ephemeral"}}
        content = [*search_results, {"type": "text", "text": question.text}]
        return {
            "model": self.name,
            "max_tokens": self._max_output_tokens,
            "system": [system],
            "messages": [{"role": "user", "content": content}],
            **PARAMETERS.get(self.name, {}),
        }


class StreamParser:
    """A parser from stream events to sentences. A sentence is emitted when its last block is complete."""

    def __init__(self, draft: Draft, runs: Sequence[Run]) -> None:
        self._draft = draft
        self._runs = runs
        self._block: list[str] | None = None  # the text block that is being received
        self._cited: list[Citation] = []
        self._pieces: list[tuple[str, tuple[Citation, ...]]] = []  # of the sentence that is being received

    def claims(self, event: RawMessageStreamEvent) -> list[Claim]:
        """The SDK does not validate events, so a malformed one raises anywhere in here."""
        try:
            return list(self._read(event))
        except (AttributeError, TypeError, ValueError) as failure:
            raise ModelFailedError(upstream=_upstream(self._draft, "a malformed event")) from failure

    def end(self) -> Iterator[Claim]:
        """The last sentence, and the properties of the whole draft."""
        yield from self._taken()
        draft = self._draft
        draft.is_complete = draft.stop_reason == "end_turn" and self._block is None
        draft.has_abstained = draft.has_abstained or _abstains(draft.raw)
        if _says(NOT_STATED, draft.raw) and not _says(SENTINEL, draft.raw):
            draft.abstained_for = RefusalReason.ATTRIBUTE_NOT_FOUND
        estimate = _LAST_ESTIMATE.search(draft.raw.rstrip()[-ESTIMATE_CHARACTERS_MAX:])
        draft.confidence = _share(estimate[1]) if estimate else None

    def _read(self, event: RawMessageStreamEvent) -> Iterator[Claim]:
        draft = self._draft
        if event.type == "message_start":
            draft.model = _plain(event.message.model)
            usage = event.message.usage  # without the tokens of the vendor's cache
            cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
            draft.tokens_input = _count(usage.input_tokens + cached)
        elif event.type == "content_block_start":
            self._block = [] if event.content_block.type == "text" else None
            self._cited = []
            if event.content_block.type == "text":
                self._write(event.content_block.text)
        elif event.type == "content_block_delta":
            if isinstance(event.delta, TextDelta):
                self._write(event.delta.text)
            elif isinstance(event.delta, CitationsDelta):
                self._cited.extend(_citation(event.delta, self._runs))
        elif event.type == "content_block_stop" and self._block is not None:
            yield from self._finished("".join(self._block))
            self._block = None
        elif event.type == "message_delta":
            draft.stop_reason = event.delta.stop_reason and _plain(event.delta.stop_reason)
            draft.tokens_output = _count(event.usage.output_tokens)

    def _write(self, text: str) -> None:
        if self._block is None:
            raise ValueError("text outside a block of text")
        self._block.append(_plain(text))
        self._draft.raw += self._block[-1]
        if len(self._draft.raw) > RAW_CHARACTERS_MAX:
            self._draft.raw = self._draft.raw[:RAW_CHARACTERS_MAX]
            raise ModelFailedError(upstream=_upstream(self._draft, "an answer without end"))

    def _finished(self, text: str) -> Iterator[Claim]:
        done, citations = 0, tuple(self._cited)
        for end in _END.finditer(text):
            self._pieces.append((text[done : end.end()], citations))
            yield from self._taken()
            done = end.end()
        self._pieces.append((text[done:], citations))

    def _taken(self) -> Iterator[Claim]:
        """The completed sentence, unless it is an abstention or a confidence estimate."""
        pieces, self._pieces = self._pieces, []
        text = "".join(piece for piece, _ in pieces).strip()
        if _abstains(text):
            self._draft.has_abstained = True
        elif text and not _ESTIMATE.fullmatch(text):
            cited = [(piece, citations) for piece, citations in pieces if citations and piece.strip()]
            share = sum(_letters(piece) for piece, _ in cited) / max(1, _letters(text))
            yield Claim(text, tuple(dict.fromkeys(item for _, held in cited for item in held)), share)


def _letters(text: str) -> int:
    return sum(map(str.isalnum, text))


def _abstains(text: str) -> bool:
    return _says(SENTINEL, text) or _says(NOT_STATED, text)


def _says(abstention: str, text: str) -> bool:
    """Recognises an abstention sentence regardless of white space and of the text around it."""
    return abstention.rstrip(".").casefold() in " ".join(text.split()).casefold()


def _plain(text: object) -> str:
    """Text that a database accepts: without NUL characters and unpaired surrogates."""
    if not isinstance(text, str):
        raise TypeError
    return text.replace("\0", "?").encode(errors="replace").decode()


def _count(number: object) -> int:
    if not isinstance(number, int) or not 0 <= number <= COUNT_MAX:
        raise ValueError(number)
    return number


def _share(words: str) -> float | None:
    """The estimate, or None if it is not a number from 0 to 1."""
    try:
        value = float(words.rstrip("."))
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


def _citable_runs(evidence: Sequence[RetrievedPassage]) -> Iterator[Run]:
    """Consecutive sentences that may be an answer. Exercises, links and the like are not sent, so they cannot be cited."""
    for number, item in enumerate(evidence):
        sentences = item.passage.sentences
        places = groupby(range(len(sentences)), key=lambda place: sentences[place].kind in NEVER_AN_ANSWER)
        for is_never, group in places:
            run = list(group)
            if not is_never:
                yield Run(number, run[0], run[-1] + 1)


def _search_result(run: Run, evidence: Sequence[RetrievedPassage]) -> dict[str, Any]:
    passage = evidence[run.passage].passage
    sentences = [passage.sentence_text(number) for number in range(run.start, run.end)]
    return {
        "type": "search_result",
        "source": passage.chunk_id,
        "title": f"{passage.section} (Page {passage.start_page})",
        "content": [{"type": "text", "text": sentence} for sentence in sentences],
        "citations": {"enabled": True},
    }


def _citation(delta: CitationsDelta, runs: Sequence[Run]) -> Iterator[Citation]:
    """A citation in terms of the passages. One of a search result that was not sent stays what it is: not real."""
    item = delta.citation
    if item.type == "search_result_location":
        number, start, end = places = item.search_result_index, item.start_block_index, item.end_block_index
        if not all(isinstance(place, int) for place in places):
            raise TypeError
        run = runs[number] if 0 <= number < len(runs) else NOT_SENT
        is_within = 0 <= start < end <= run.end - run.start
        place = (run.passage, run.start + start, run.start + end) if is_within else NOT_SENT
        yield Citation(*place, _plain(item.cited_text))


def _upstream(draft: Draft, what: str) -> str:
    """A description for the record: the failure, and how much of the answer had arrived."""
    return f"{what}; request {draft.request_id or 'unnamed'}, after {len(draft.raw)} characters"
