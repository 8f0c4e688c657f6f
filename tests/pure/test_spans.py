"""engine/spans.py: which trace a request belongs to, what its spans say, and that nobody's words are in them."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from audit.proof.record import PERSONAL, Trail
from engine.models import RECORD_CLOSE, Stage
from engine.providers.otlp import encoded
from engine.spans import Finished, Span, Tracer, parent_of, spans_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MARK = "marker of a reader"
STAGES = [
    Stage("admission", 10.0, 10.1, True),
    Stage("retrieval", 10.2, 10.5, True),
    Stage("generation", 10.5, 11.5, True),
    Stage(RECORD_CLOSE, 11.5, 11.6, True),
]
QUERY_ID = UUID("0198c0de-0000-4000-8000-000000000001")


def trail_of(**given: Any) -> Trail:
    known: dict[str, Any] = {
        "log_id": UUID(int=7), "query_id": QUERY_ID, "timestamp": datetime(2026, 11, 19, tzinfo=UTC),
        "endpoint": "/v1/query", "outcome": "answered", "http_status": 200, "best_score": 0.81, "confidence_level": "high",
        "book_id": "physical-ai", "index_generation": uuid4(), "embedder": "all-MiniLM-L6-v2",
        "model_requested": "claude-haiku-5-5", "model_used": "claude-haiku-5-5-20261001", "stop_reason": "end_turn",
        "tokens_input": 812, "tokens_output": 57, "chunks_returned": [{}, {}],
    }  # fmt: skip
    return Trail(**(known | given))


def finished(trail: Trail | None = None, **given: Any) -> Finished:
    known: dict[str, Any] = {
        "stages": STAGES, "method": "POST", "status": 200, "started_s": 9.9, "ended_s": 11.7,
        "ended_ns": 1_800_000_000_000_000_000,
    }  # fmt: skip
    return Finished(trail or trail_of(), **(known | given))


def spans(request: Finished, vendor: str = "anthropic") -> list[Span]:
    return list(spans_of(request, TRACE, PARENT, vendor))


class Kept:
    """An exporter that keeps what it is offered."""

    exported = dropped = 0

    def __init__(self) -> None:
        self.traces: list[list[Span]] = []

    def offer(self, spans: Any) -> None:
        self.traces.append(list(spans))

    async def failure(self) -> str:
        return ""

    async def close(self) -> None: ...


def traced(request: Finished, share: float = 1.0) -> list[list[Span]]:
    kept = Kept()
    Tracer(kept, share, "anthropic").trace(request)
    return kept.traces


def test_the_root_is_the_request_and_each_stage_is_a_child_in_its_time() -> None:
    root, *children = spans(finished())
    assert (root.name, root.kind, root.parent_id) == ("POST /v1/query", "server", PARENT)
    assert (root.ended_ns - root.started_ns, root.ended_ns) == (1_800_000_000, 1_800_000_000_000_000_000)
    assert [child.name for child in children] == [
        "admission", "retrieval physical-ai", "chat claude-haiku-5-5", "record_close",
    ]  # fmt: skip
    assert {child.parent_id for child in children} == {root.span_id}
    assert {span.trace_id for span in (root, *children)} == {TRACE}
    assert len({span.span_id for span in (root, *children)}) == 5
    assert all(root.started_ns <= child.started_ns <= child.ended_ns <= root.ended_ns for child in children)
    assert [child.ended_ns - child.started_ns for child in children][2] == 1_000_000_000


def test_a_generation_has_the_names_of_the_conventions() -> None:
    chat = spans(finished())[3]
    assert chat.kind == "client"
    assert chat.attributes == {
        "affidavit.query_id": str(QUERY_ID),
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-haiku-5-5",
        "gen_ai.response.model": "claude-haiku-5-5-20261001",
        "gen_ai.response.finish_reasons": ("end_turn",),
        "gen_ai.usage.input_tokens": 812,
        "gen_ai.usage.output_tokens": 57,
    }


def test_every_span_leads_to_the_row() -> None:
    assert {span.attributes["affidavit.query_id"] for span in spans(finished())} == {str(QUERY_ID)}


def test_the_same_row_gives_the_same_ids() -> None:
    assert [span.span_id for span in spans(finished())] == [span.span_id for span in spans(finished())]


def test_what_failed_says_so() -> None:
    stages = [STAGES[0], Stage("retrieval", 10.2, 12.2, False), Stage(RECORD_CLOSE, 12.2, 12.3, True)]
    trail = trail_of(outcome="failed", error_type="timeout", http_status=504)
    root, admission, retrieval, _ = spans(finished(trail, stages=stages, status=504, ended_s=12.4))
    assert (root.has_failed, admission.has_failed, retrieval.has_failed) == (True, False, True)
    assert root.attributes["error.type"] == retrieval.attributes["error.type"] == "timeout"
    assert "error.type" not in admission.attributes


def test_a_refusal_is_no_failure() -> None:
    root = spans(finished(trail_of(outcome="refused", reason="not_covered")))[0]
    assert (root.has_failed, root.attributes["affidavit.reason"]) == (False, "not_covered")


def test_a_client_that_left_has_no_status() -> None:
    root = spans(finished(trail_of(outcome="client_gone"), status=0))[0]
    assert "http.response.status_code" not in root.attributes
    assert not root.has_failed


# Seen red with "affidavit.question": trail.user_query_text among the root's attributes.
@pytest.mark.parametrize("name", sorted(PERSONAL | {"error_message", "request_id", "client_id", "key_id"}))
def test_no_personal_column_is_in_a_trace(name: str) -> None:
    value: Any = [{MARK: MARK}] if "Json" in str(_types()[name]) else MARK
    exported = "".join(map(encoded, spans(finished(trail_of(**{name: value})))))
    assert MARK not in exported


def _types() -> dict[str, Any]:
    return {field.name: field.type for field in fields(Trail)}


# Seen red with the method, the model and the reason told as they came.
@pytest.mark.parametrize(
    "request_",
    [
        finished(method=MARK),
        finished(trail_of(model_used=MARK)),
        finished(trail_of(stop_reason=MARK)),
        finished(trail_of(book_id=MARK, index_generation=None)),
    ],
    ids=["method", "model", "stop reason", "a book that there is not"],
)
def test_words_from_outside_are_not_told(request_: Finished) -> None:
    assert MARK not in "".join(map(encoded, spans(request_)))


def test_without_a_parent_the_trace_is_found_by_the_query_id() -> None:
    (trace,) = traced(finished())
    assert {span.trace_id for span in trace} == {QUERY_ID.hex}
    assert trace[0].parent_id == ""


def test_a_parent_is_taken_over_with_its_ids_alone() -> None:
    (trace,) = traced(finished(traceparent=f"00-{TRACE}-{PARENT}-00"))
    assert {span.trace_id for span in trace} == {TRACE}
    assert trace[0].parent_id == PARENT


@pytest.mark.parametrize(
    ("given", "is_valid"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-00", True),
        (f"cc-{TRACE}-{PARENT}-01-what-will-be-the-future", True),
        (f"cc-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-01-more", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        (f"00-{TRACE}-{PARENT}-1", False),
        (f"00-{TRACE}-{PARENT}-01.", False),
        (f"00-{TRACE}-{PARENT}-01\n", False),
        (f"00-{TRACE}-{PARENT}-01,00-{TRACE}-{PARENT}-01", False),
        (f"{TRACE}-{PARENT}", False),
        (f"00-{TRACE}{PARENT}-01", False),
        ("", False),
        (None, False),
    ],
)  # fmt: skip
def test_a_traceparent_that_is_not_valid_is_ignored(given: str | None, is_valid: bool) -> None:
    assert parent_of(given) == ((TRACE, PARENT) if is_valid else None)


# Seen red with a trace of each request.
def test_a_request_without_a_durable_row_has_no_trace() -> None:
    closing = Stage(RECORD_CLOSE, 11.5, 11.6, False)
    assert traced(finished(stages=[*STAGES[:-1], closing])) == traced(finished(stages=STAGES[:-1])) == []


def test_a_share_is_kept_and_the_same_for_all_who_see_the_trace() -> None:
    kept = sum(bool(traced(finished(trail_of(query_id=uuid4())), 0.25)) for _ in range(2000))
    assert 400 < kept < 600
    assert len({len(traced(finished(traceparent=f"00-{TRACE}-{PARENT}-01"), 0.25)) for _ in range(5)}) == 1
    assert traced(finished(), 0.0) == []
