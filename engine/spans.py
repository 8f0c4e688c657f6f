"""Projection of a finished request onto the spans of a trace (OpenTelemetry): ids, names, times and counts, never content.

The record is the evidence, the trace a view of it: only a request whose row is durable has one, each span names the row
by `affidavit.query_id`, and without a parent the trace's id is the query's id. The names are those of the semantic
conventions for HTTP servers and for generative AI. Pure: the time is passed in, and ids follow from the row's.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Protocol

from engine.models import RECORD_CLOSE, Stage, Trail

Attribute = str | int | float | bool | tuple[str, ...]
Kind = Literal["internal", "server", "client"]

OURS = "affidavit"  # the provider's name of what runs in this process
SERVER_FAULT = 500
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
OTHER_METHOD = "_OTHER"  # a client can send any word
NO_PARENT = ""
RANDOM_DIGITS = 14  # the last ones of a trace's id are random, in a UUID too

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_NAME = re.compile(r"[\w.:/@-]{1,100}", re.ASCII)  # of a model or of why it stopped: both come from a vendor


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of a trace. Times are nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: Kind
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, Attribute]
    has_failed: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """A request whose response has ended. Seconds are of the monotonic clock; `ended_ns` is the same end by the calendar."""

    trail: Trail
    stages: Sequence[Stage]
    method: str
    status: int
    started_s: float
    ended_s: float
    ended_ns: int
    traceparent: str | None = None

    @property
    def is_recorded(self) -> bool:
        return any(stage.name == RECORD_CLOSE and stage.is_done for stage in self.stages)

    def at_ns(self, moment_s: float) -> int:
        return self.ended_ns - round((self.ended_s - moment_s) * 1e9)


class Exporter(Protocol):
    """Sends spans in the background. `offer` neither waits nor raises; what does not fit is dropped and counted."""

    exported: int
    dropped: int

    def offer(self, spans: Sequence[Span]) -> None: ...

    async def failure(self) -> str:
        """Why spans do not arrive; empty if they do."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Tracer:
    """Samples by the trace's id, so that all services with the same share keep the same traces."""

    exporter: Exporter
    share: float
    vendor: str  # of the generator, by its name in the conventions

    def trace(self, request: Finished) -> None:
        trace_id, parent_id = parent_of(request.traceparent) or (request.trail.query_id.hex, NO_PARENT)
        if request.is_recorded and int(trace_id[-RANDOM_DIGITS:], 16) < self.share * 16**RANDOM_DIGITS:
            self.exporter.offer(list(spans_of(request, trace_id, parent_id, self.vendor)))


def parent_of(traceparent: str | None) -> tuple[str, str] | None:
    """The ids of a valid `traceparent` (W3C Trace Context), whatever its flags; a later version may have more parts."""
    found = _TRACEPARENT.fullmatch(traceparent or "")
    if not found or found[1] == "ff" or (found[1] == "00" and found[4]):
        return None
    return (found[2], found[3]) if int(found[2], 16) and int(found[3], 16) else None


def spans_of(request: Finished, trace_id: str, parent_id: str, vendor: str) -> Iterator[Span]:
    """The request as the root, and a child for each stage."""
    trail, root_id = request.trail, _span_id(request.trail, "")
    method = request.method if request.method in METHODS else OTHER_METHOD
    yield Span(
        trace_id, root_id, parent_id, f"{'HTTP' if method == OTHER_METHOD else method} {trail.endpoint}", "server",
        request.at_ns(request.started_s), request.ended_ns, _of_request(trail, method, request.status),
        has_failed=request.status >= SERVER_FAULT,
    )  # fmt: skip
    for place, stage in enumerate(request.stages):
        name, kind, attributes = _STAGES.get(stage.name, _of_stage)(trail, stage.name, vendor)
        failed: dict[str, Attribute] = (
            {} if stage.is_done else {"error.type": trail.error_type or trail.outcome}
        )
        yield Span(
            trace_id, _span_id(trail, f"{place}"), root_id, name, kind,
            request.at_ns(stage.started_s), request.at_ns(stage.ended_s), _given(_row(trail) | attributes | failed),
            has_failed=not stage.is_done,
        )  # fmt: skip


def _span_id(trail: Trail, place: str) -> str:
    return sha256(f"{trail.log_id} {place}".encode()).hexdigest()[:16]


def _row(trail: Trail) -> dict[str, Attribute | None]:
    """What leads an auditor from each span to the row."""
    return {"affidavit.query_id": str(trail.query_id)}


def _of_request(trail: Trail, method: str, status: int) -> dict[str, Attribute]:
    return _given(
        _row(trail)
        | {
            "affidavit.log_id": str(trail.log_id),
            "affidavit.outcome": trail.outcome,
            "affidavit.reason": trail.reason,
            "affidavit.best_score": trail.best_score,
            "affidavit.confidence_level": trail.confidence_level,
            "http.request.method": method,
            "http.route": trail.endpoint,
            "http.response.status_code": status or None,
            "error.type": trail.error_type,
        }
    )


_Described = tuple[str, Kind, dict[str, Attribute | None]]


def _of_stage(_: Trail, name: str, __: str) -> _Described:
    return name, "internal", {}


def _of_retrieval(trail: Trail, name: str, _: str) -> _Described:
    """A book that does not exist is only a word that a client sent."""
    book = trail.book_id if trail.index_generation else None
    return (
        f"{name} {book}" if book else name,
        "internal",
        {
            "gen_ai.operation.name": "retrieval",
            "gen_ai.provider.name": OURS,
            "gen_ai.data_source.id": book,
            "gen_ai.request.model": trail.embedder,
            "affidavit.passages": len(trail.chunks_returned or ()),
        },
    )


def _of_generation(trail: Trail, _: str, vendor: str) -> _Described:
    stopped = _named(trail.stop_reason)
    return (
        f"chat {trail.model_requested}",
        "internal" if vendor == OURS else "client",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": vendor,
            "gen_ai.request.model": trail.model_requested,
            "gen_ai.response.model": _named(trail.model_used),
            "gen_ai.response.finish_reasons": (stopped,) if stopped else None,
            "gen_ai.usage.input_tokens": trail.tokens_input,
            "gen_ai.usage.output_tokens": trail.tokens_output,
        },
    )


_STAGES = {"retrieval": _of_retrieval, "generation": _of_generation}


def _named(text: str | None) -> str | None:
    return text if text and _NAME.fullmatch(text) else None


def _given(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    return {name: value for name, value in attributes.items() if value is not None}
