"""Claude, with citations: each passage is a search result, each sentence a block that can be cited.

What comes back is a draft like any other generator's. Nothing of it leaves before verify.py has compared every citation
with the stored passage.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import anthropic
from anthropic.types import Message, TextBlock

from engine.errors import ModelBusyError, ModelFailedError
from engine.models import Citation, Claim, Draft, Evidence, Question

SENTINEL = "This question is not covered in the provided book excerpts."

# What each model must be told apart from the question. Thinking would eat the time and the tokens of the answer.
PARAMETERS: dict[str, dict[str, Any]] = {"claude-haiku-5-5": {"thinking": {"type": "disabled"}}}

_CONFIDENCE = re.compile(r"\n?^\s*Confidence:\s*(0(?:\.\d+)?|1(?:\.0+)?)\s*\Z", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_ENDED = re.compile(r"[.!?][\"')\]]*\s*\Z")
_BUSY = frozenset({429, 500, 503, 504, 529})


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

    async def generate(self, question: Question, evidence: Sequence[Evidence]) -> Draft:
        request = self._request(question, evidence)
        try:
            async with self._client.messages.stream(**request) as stream:
                message = await stream.get_final_message()
                request_id = stream.response.headers.get("request-id")
        except anthropic.APIStatusError as failure:
            raise (ModelBusyError if failure.status_code in _BUSY else ModelFailedError) from failure
        except anthropic.AnthropicError as failure:
            raise ModelFailedError from failure
        return _draft(message, json.dumps(request, ensure_ascii=False), request_id)

    async def close(self) -> None:
        await self._client.close()

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


def _draft(message: Message, prompt: str, request_id: str | None) -> Draft:
    blocks = [block for block in message.content if isinstance(block, TextBlock)]
    raw = "".join(block.text for block in blocks)
    estimate = _CONFIDENCE.search(raw)
    answered = raw[: estimate.start()] if estimate else raw
    abstained = SENTINEL in answered
    return Draft(
        claims=() if abstained else tuple(_claims(blocks, len(answered))),
        complete=message.stop_reason == "end_turn",
        model=message.model,
        confidence=float(estimate[1]) if estimate else None,
        raw=raw,
        prompt=prompt,
        stop_reason=message.stop_reason,
        request_id=request_id,
        tokens_input=message.usage.input_tokens,
        tokens_output=message.usage.output_tokens,
    )


def _claims(blocks: Iterable[TextBlock], length: int) -> Iterator[Claim]:
    """Sentences, each with the citations of the blocks that it is made of."""
    text, citations = "", list[Citation]()
    for block in blocks:
        mine = block.text[:length]
        length -= len(mine)
        for piece in _SENTENCE_END.split(mine):
            text += f" {piece}" if _ENDED.search(text) else piece
            if piece.strip():
                citations.extend(_citations(block))
            if _ENDED.search(text):
                yield Claim(text.strip(), tuple(citations))
                text, citations = "", []
    if text.strip():
        yield Claim(text.strip(), tuple(citations))


def _citations(block: TextBlock) -> Iterator[Citation]:
    for item in block.citations or ():
        if item.type == "search_result_location":
            yield Citation(
                item.search_result_index, item.start_block_index, item.end_block_index, item.cited_text
            )
