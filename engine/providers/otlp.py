"""Trace exporter: spans as JSON over HTTP to a collector (OTLP/HTTP), in the background.

Nobody waits for it. The queue is bounded; what does not fit, what the collector does not take in time and what it rejects
is dropped and counted. There is no retry: a trace is a view of a record, and the record is safe.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote

import httpx

from engine.settings import Settings
from engine.spans import Attribute, Span

QUEUE_MAX = 1000  # traces; each has about 4 kB
BATCH_MAX = 200  # traces of one request to the collector
EVERY_S = 1.0  # a batch waits so long for more
TIMEOUT_S = 5.0  # for one batch, whatever the collector does
FLUSH_S = 2.0  # at the end, for all that waits
WARN_EVERY_S = 60.0
RESPONSE_BYTES_MAX = 65_536

_KINDS = {"internal": 1, "server": 2, "client": 3}
_FAILED = {"code": 2}
_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}

log = logging.getLogger(__name__)


def exporter(settings: Settings) -> "OtlpExporter":
    traces = settings.traces
    return OtlpExporter(traces.endpoint, headers_of(traces.headers.get_secret_value()))


def headers_of(text: str) -> dict[str, str]:
    """Parses `name=value,name=value`, with the values percent-encoded, as OpenTelemetry's own variables have them."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class EncodedTrace:
    """Encoded one by one, so that a whole batch never holds up the event loop."""

    text: str
    spans: int


class OtlpExporter:
    """A queue, and the task that empties it. To be made in a running event loop."""

    def __init__(
        self,
        endpoint: str,
        headers: dict[str, str],
        *,
        every_s: float = EVERY_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.exported = self.dropped = 0
        self._endpoint = endpoint
        self._every_s, self._timeout_s = every_s, timeout_s
        self._http = httpx.AsyncClient(headers=headers | _HEADERS, timeout=timeout_s)
        self._waiting: deque[EncodedTrace] = deque()
        self._has_news, self._is_ending = asyncio.Event(), asyncio.Event()
        self._warned_at = -WARN_EVERY_S
        self._task = asyncio.create_task(self._export())

    def offer(self, spans: Sequence[Span]) -> None:
        if self._is_ending.is_set() or len(self._waiting) >= QUEUE_MAX:
            self.dropped += len(spans)
            return
        self._waiting.append(EncodedTrace(",".join(map(encoded, spans)), len(spans)))
        self._has_news.set()

    async def failure(self) -> str:
        """Why the collector takes no traces, found out with none in the request; empty if it takes them."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._post(body_of([]))
        except httpx.HTTPStatusError as failure:
            return f"status {failure.response.status_code}"
        except Exception as failure:  # noqa: BLE001  becomes a line of a report
            return type(failure).__name__
        return ""

    async def close(self) -> None:
        """Sends what waits, for `FLUSH_S` at most."""
        self._is_ending.set()
        self._has_news.set()
        await asyncio.wait([self._task], timeout=FLUSH_S)
        self._task.cancel()
        await asyncio.wait([self._task])
        self.dropped += sum(trace.spans for trace in self._waiting)
        self._waiting.clear()
        await self._http.aclose()

    async def _export(self) -> None:
        while self._waiting or not self._is_ending.is_set():
            await self._has_news.wait()
            if len(self._waiting) < BATCH_MAX:
                await self._wait_for_more()
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            if not self._waiting:
                self._has_news.clear()
            if batch:
                await self._send(batch)

    async def _wait_for_more(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._every_s):
                await self._is_ending.wait()

    async def _send(self, batch: Sequence[EncodedTrace]) -> None:
        spans, taken = sum(trace.spans for trace in batch), 0
        try:
            async with asyncio.timeout(self._timeout_s):
                taken = spans - await self._post(body_of(batch))
        except httpx.HTTPStatusError as failure:
            self._warn(f"status {failure.response.status_code}", spans)
        except Exception as failure:  # noqa: BLE001  whatever it was, the next batch is sent
            self._warn(type(failure).__name__, spans)
        finally:
            self.exported += taken
            self.dropped += spans - taken

    async def _post(self, body: str) -> int:
        """Returns the number of spans that the collector rejects."""
        answer = bytearray()
        async with self._http.stream("POST", self._endpoint, content=body) as response:
            response.raise_for_status()
            async for part in response.aiter_raw():
                answer += part
                if len(answer) > RESPONSE_BYTES_MAX:
                    raise ValueError
        return rejected_spans(bytes(answer))

    def _warn(self, cause: str, spans: int) -> None:
        """Once a minute: a collector may be away for a day."""
        if time.monotonic() - self._warned_at >= WARN_EVERY_S:
            self._warned_at = time.monotonic()
            log.warning(
                "The collector took no traces (%s): %d spans are dropped", cause, self.dropped + spans
            )


def body_of(batch: Sequence[EncodedTrace]) -> str:
    resource = {"service.name": "affidavit", "service.version": version("affidavit")}
    about = json.dumps({"attributes": _attributes(resource)})
    scope = json.dumps({"name": "affidavit", "version": version("affidavit")})
    spans = ",".join(trace.text for trace in batch)
    return (
        f'{{"resourceSpans":[{{"resource":{about},"scopeSpans":[{{"scope":{scope},"spans":[{spans}]}}]}}]}}'
    )


def encoded(span: Span) -> str:
    """OTLP's JSON: ids in hex, and integers of 64 bits as text."""
    return json.dumps(
        {
            "traceId": span.trace_id,
            "spanId": span.span_id,
            "parentSpanId": span.parent_id,
            "name": span.name,
            "kind": _KINDS[span.kind],
            "startTimeUnixNano": str(span.started_ns),
            "endTimeUnixNano": str(span.ended_ns),
            "attributes": _attributes(span.attributes),
            "status": _FAILED if span.has_failed else {},
        }
    )


def rejected_spans(answer: bytes) -> int:
    """Of an answer that is no JSON the status alone counts."""
    try:
        rejected = json.loads(answer)["partialSuccess"]["rejectedSpans"]
        return max(0, int(rejected))
    except (ValueError, TypeError, KeyError):
        return 0


def _attributes(attributes: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Attribute) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_value(each) for each in value]}}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
