"""Claude behind the generator's seam: the vendor's own SDK against a server that speaks its interface."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.answer import Engine
from engine.errors import ModelBusyError, ModelFailedError, OutOfTimeError, RequestError
from engine.models import Refusal, Released
from engine.providers.claude import SENTINEL, Claude
from engine.wiring import PROMPT, House
from tests.conftest import Records
from tests.test_answer import IMU, asked
from tests.upstreams import messages
from tests.upstreams.messages import Block, Upstream, citing

KEY = "sk-test-canary"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with messages.serving() as started:
        yield started


@pytest.fixture
async def engine(house: House, upstream: Upstream) -> AsyncIterator[Engine]:
    claude = Claude(
        model="claude-haiku-5-5", max_output_tokens=700, api_key=KEY, base_url=upstream.url, timeout_s=2.5,
        system=PROMPT.read_text(),
    )  # fmt: skip
    yield replace(house.engine, generator=claude)
    await claude.close()


def two_sentences(request: dict[str, Any]) -> list[Block]:
    return [
        {"text": "An IMU holds three accelerometers", "citations": [citing(request, 0, 0, 1)]},
        {"text": " and three gyroscopes. "},
        {"text": "Everybody loves IMUs. Really. It is fixed ", "citations": []},
        {"text": "to the pelvis.", "citations": [citing(request, 0, 1, 3)]},
        {"text": "\nConfidence: 0.91"},
    ]


async def test_sentences_without_citation_are_removed_and_the_rest_is_cited(
    engine: Engine, upstream: Upstream, records: Records
) -> None:
    upstream.write = two_sentences
    answer = await engine.answer(asked())
    assert isinstance(answer.outcome, Released)
    assert answer.outcome.text.startswith("An IMU holds three accelerometers and three gyroscopes. [Source: ")
    assert "It is fixed to the pelvis. [Source: " in answer.outcome.text
    assert "loves" not in answer.outcome.text
    assert answer.outcome.generation_confidence == 0.91
    (row,) = records.of(answer.trail.query_id)
    assert row["provider_request_id"] == "req_1"
    assert (row["tokens_input"], row["tokens_output"]) == (900, 40)
    assert (row["model_requested"], row["stop_reason"]) == ("claude-haiku-5-5", "end_turn")
    assert row["prompt_sha256"]
    assert IMU in row["llm_prompt"]
    assert KEY not in str(row)


async def test_the_request_is_the_one_that_citations_need(engine: Engine, upstream: Upstream) -> None:
    upstream.write = two_sentences
    await engine.answer(asked())
    (request,) = upstream.requests
    *results, question = request["messages"][0]["content"]
    assert question == {"type": "text", "text": IMU}
    assert all(item["type"] == "search_result" and item["citations"] == {"enabled": True} for item in results)
    assert request["thinking"] == {"type": "disabled"}
    assert not {"temperature", "top_p", "top_k", "output_config"} & set(request)
    assert request["system"][0]["text"] == PROMPT.read_text()
    assert KEY in (
        upstream.headers[0].get("x-api-key"),
        upstream.headers[0].get("authorization", "").removeprefix("Bearer "),
    )


REFUSALS: dict[str, tuple[Callable[[dict[str, Any]], list[Block]], str, str]] = {
    "abstains": (lambda _: [{"text": SENTINEL + "\nConfidence: 0.9"}], "end_turn", "insufficient_evidence"),
    "abstains within an answer": (
        lambda request: [{"text": f"Well. {SENTINEL}", "citations": [citing(request, 0, 0, 1)]}],
        "end_turn",
        "insufficient_evidence",
    ),
    "truncated": (two_sentences, "max_tokens", "citation_failed"),
    "declines": (lambda _: [], "refusal", "model_refused"),
    "says nothing": (lambda _: [], "end_turn", "insufficient_evidence"),
    "cites nothing": (lambda _: [{"text": "An IMU measures motion."}], "end_turn", "citation_failed"),
    "cites a wrong text": (
        lambda request: [
            {"text": "Love.", "citations": [citing(request, 0, 0, 1) | {"cited_text": "Love."}]}
        ],
        "end_turn",
        "citation_failed",
    ),
    "cites what was not sent": (
        lambda request: [
            {"text": "Love.", "citations": [citing(request, 0, 0, 1) | {"search_result_index": 99}]}
        ],
        "end_turn",
        "citation_failed",
    ),
}


@pytest.mark.parametrize(("write", "stop_reason", "reason"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_what_is_not_proven_is_refused(
    engine: Engine,
    upstream: Upstream,
    write: Callable[[dict[str, Any]], list[Block]],
    stop_reason: str,
    reason: str,
) -> None:
    upstream.write, upstream.stop_reason = write, stop_reason
    answer = await engine.answer(asked())
    assert isinstance(answer.outcome, Refusal)
    assert answer.outcome.reason == reason


@pytest.mark.parametrize(
    ("status", "failure"),
    [(529, ModelBusyError), (429, ModelBusyError), (500, ModelBusyError), (400, ModelFailedError)],
)
async def test_a_failing_model_is_tried_once_and_recorded(
    engine: Engine, upstream: Upstream, records: Records, status: int, failure: type[RequestError]
) -> None:
    upstream.status = status
    with pytest.raises(failure) as caught:
        await engine.answer(asked())
    assert len(upstream.requests) == 1
    (row,) = records.of(caught.value.query_id)
    assert (row["http_status"], row["error_type"]) == (failure.status, "llm")
    assert "canary" not in str(row["error_message"])


async def test_a_model_that_is_not_there(engine: Engine, house: House, records: Records) -> None:
    gone = Claude(
        model="claude-haiku-5-5",
        max_output_tokens=9,
        api_key=KEY,
        base_url="http://127.0.0.1:9",
        timeout_s=1,
        system="",
    )
    with pytest.raises((ModelFailedError, OutOfTimeError)) as caught:
        await replace(engine, generator=gone).answer(asked())
    await gone.close()
    assert len(records.of(caught.value.query_id)) == 1
