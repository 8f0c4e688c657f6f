"""Traces: what a collector gets of a running engine, what it never gets, and that no answer depends on it."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from engine.cli import doctor
from engine.house import House
from engine.providers import otlp
from engine.providers.otlp import OtlpExporter
from engine.spans import OURS, Span, Tracer
from engine.storage.database import Database
from tests.asking import IMU
from tests.conftest import Records, running
from tests.in_process import application
from tests.product.test_leaks import ATTACKS
from tests.product.widgets.clients import WIDGETS
from tests.pure.test_spans import PARENT, TRACE, finished, spans
from tests.upstreams.collector import (
    Act,
    attributes_of,
    collecting,
    hanging,
    real_collector,
)
from tests.upstreams.faults import deaf, refusing

MARK = "4f27b0"  # in every canary
ASKED = {"query": IMU}


@asynccontextmanager
async def traced(
    house: House, key: str, url: str, *, address: str = "127.0.0.1", **given: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, OtlpExporter]]:
    """The application with traces to this address, which it does not wait for long."""
    exporter = OtlpExporter(url, {}, **({"every_s": 0.01} | given))
    try:
        async with application(house, key=key, address=address, tracer=Tracer(exporter, 1.0, OURS)) as (
            _,
            client,
        ):
            yield client, exporter
    finally:
        await exporter.close()


async def test_a_question_is_one_trace_that_leads_to_its_row(
    house: House, key: str, records: Records
) -> None:
    async with collecting() as collector:
        async with traced(house, key, collector.url) as (client, _):
            parent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            answer = (await client.post("/v1/query", json=ASKED, headers=parent)).json()
            await collector.until(lambda got: bool(got.bodies))
    root, *stages = collector.spans()
    assert (root["traceId"], root["parentSpanId"]) == (TRACE, PARENT)
    assert root["name"] == "POST /v1/query"
    (row,) = records.of(attributes_of(root)["affidavit.query_id"])
    assert str(row["query_id"]) == answer["query_id"]
    by_name = {stage["name"].split()[0]: attributes_of(stage) for stage in stages}
    assert list(by_name) == ["admission", "record_open", "queue", "retrieval", "chat", "record_close"]
    assert by_name["chat"]["gen_ai.request.model"] == row["model_requested"]
    assert by_name["retrieval"]["gen_ai.data_source.id"] == "physical-ai"
    assert {span["parentSpanId"] for span in stages} == {root["spanId"]}


async def test_without_a_parent_the_trace_has_the_id_of_the_query(house: House, key: str) -> None:
    async with collecting() as collector:
        async with traced(house, key, collector.url) as (client, _):
            answer = (await client.post("/v1/query", json=ASKED)).json()
            await client.post(
                "/v1/query", json=ASKED, headers=[("traceparent", f"00-{TRACE}-{PARENT}-01")] * 2
            )
            await collector.until(lambda got: len(got.roots()) == 2)
    first, second = collector.roots()
    assert first["traceId"] == UUID(answer["query_id"]).hex
    assert second["traceId"] == UUID(attributes_of(second)["affidavit.query_id"]).hex, "two parents are none"


# Seen red with the question among the attributes of the root.
async def test_nothing_that_anybody_sent_is_in_a_trace(house: House, key: str) -> None:
    """The attacks on the logs, and a marked question on every contract, whole and as events."""
    async with collecting() as collector:
        async with traced(house, key, collector.url, address="203.0.113.7") as (client, _):
            for attack in ATTACKS:
                headers = {"traceparent": f"00-{MARK}", "tracestate": f"a={MARK}", "baggage": f"a={MARK}"}
                await client.request(
                    attack.method, attack.path, content=attack.body, headers=headers | dict(attack.headers)
                )
            for widget in WIDGETS:
                body = widget.body(f"What does an IMU measure? canary-{MARK}")
                for accept in ("application/json", "text/event-stream"):
                    response = await client.post(widget.path, json=body, headers={"Accept": accept})
                    assert response.status_code == 200
            asked = len(ATTACKS) + 2 * len(WIDGETS)
            await collector.until(lambda got: len(got.roots()) == asked)
    text = b"".join(collector.bodies).decode()
    assert MARK not in text
    assert MARK not in json.dumps(collector.headers)
    book = await house.engine.library.live("physical-ai")
    passages = await house.library.contents(book.generation_id, 0, 100)
    assert passages
    assert not [passage.section for passage in passages if passage.sentence_text(0) in text]


# Seen red with a trace for each request that has a trail.
async def test_a_request_of_a_flood_without_a_row_of_its_own_has_no_trace(house: House, key: str) -> None:
    async with collecting() as collector:
        async with traced(house, key, collector.url, address="203.0.113.9") as (client, exporter):
            wrong = {"Authorization": "Bearer nobody"}
            await asyncio.gather(*(client.post("/v1/query", json=ASKED, headers=wrong) for _ in range(70)))
            await client.post("/v1/query", json=ASKED)
            await collector.until(lambda got: len(got.roots()) >= 2)
        assert len(collector.roots()) <= 61
        assert exporter.dropped == 0


async def breaking(_: Request) -> Response:
    return Response(status_code=503)


async def redirecting(_: Request) -> Response:
    return RedirectResponse("http://127.0.0.1:1/")


async def flooding(_: Request) -> Response:
    return Response(b"x" * 10_000_000)


@asynccontextmanager
async def away() -> AsyncIterator[str]:
    yield refusing()


@asynccontextmanager
async def acting(act: Act) -> AsyncIterator[str]:
    async with collecting(act) as collector:
        yield collector.url


# Seen red with a warning for each batch.
@pytest.mark.parametrize(
    "collector",
    [away, deaf, *((lambda act=act: acting(act)) for act in (hanging, breaking, redirecting, flooding))],
    ids=["away", "deaf", "hanging", "breaking", "redirecting", "flooding"],
)
async def test_whatever_the_collector_does_answers_are_the_same_and_what_is_lost_is_counted(
    house: House, key: str, collector: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with collector() as url, traced(house, key, url, timeout_s=0.3) as (client, exporter):
        answers = [(await client.post("/v1/query", json=ASKED)).json() for _ in range(3)]
    async with application(house, key=key) as (_, client):
        alone = (await client.post("/v1/query", json=ASKED)).json()
    assert {answer["answer"] for answer in answers} == {alone["answer"]}
    assert exporter.exported == 0
    assert exporter.dropped == 21  # seven spans of each
    warnings = [record for record in caplog.records if record.name == otlp.__name__]
    assert len(warnings) == 1, "once a minute"
    assert url not in caplog.text


async def test_a_tracer_that_fails_fails_no_answer(house: House, key: str) -> None:
    class Broken:
        exported = dropped = 0

        def offer(self, _: Any) -> None:
            raise ZeroDivisionError

        async def failure(self) -> str:
            return ""

        async def close(self) -> None: ...

    async with application(house, key=key, tracer=Tracer(Broken(), 1.0, OURS)) as (_, client):
        assert (await client.post("/v1/query", json=ASKED)).status_code == 200


async def told_by_doctor(database: Database, **traces: Any) -> tuple[str, str]:
    changed = database.settings.traces.model_copy(update=traces)
    settings = database.settings.model_copy(update={"traces": changed})
    (line,) = [line for line in await doctor.examine(settings, database) if line.part == "traces"]
    return line.state, line.words


async def test_doctor_tries_the_collector(database: Database) -> None:
    assert await told_by_doctor(database) == ("ok", "off")
    async with collecting() as collector:
        assert (await told_by_doctor(database, endpoint=collector.url))[0] == "ok"
        assert collector.spans() == []
    state, words = await told_by_doctor(database, endpoint=refusing())
    assert (state, "(ConnectError)" in words) == ("failed", True)
    async with collecting(breaking) as collector:
        assert "(status 503)" in (await told_by_doctor(database, endpoint=collector.url))[1]


def offered() -> list[Span]:
    return spans(finished())


# Seen red without the bound.
async def test_the_queue_is_bounded_and_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "FLUSH_S", 0.2)
    async with collecting(hanging) as collector:
        exporter = OtlpExporter(collector.url, {}, every_s=0.01, timeout_s=60)
        exporter.offer(offered())
        await collector.until(lambda got: bool(got.bodies))
        for _ in range(otlp.QUEUE_MAX + 7):
            exporter.offer(offered())
        assert exporter.dropped == 7 * len(offered())
        began = time.monotonic()
        await exporter.close()
        assert time.monotonic() - began < 30, "not the timeout of the batch"
    assert (exporter.exported, exporter.dropped) == (0, (otlp.QUEUE_MAX + 8) * len(offered()))
    exporter.offer(offered())
    assert exporter.dropped == (otlp.QUEUE_MAX + 9) * len(offered())


async def test_what_waits_at_the_end_is_sent() -> None:
    async with collecting() as collector:
        exporter = OtlpExporter(collector.url, {"api-key": "a b"}, every_s=3600)
        for _ in range(otlp.BATCH_MAX + 1):
            exporter.offer(offered())
        await exporter.close()
        assert [len(collector.spans()), len(collector.bodies)] == [5 * (otlp.BATCH_MAX + 1), 2]
    assert (exporter.exported, exporter.dropped) == (5 * (otlp.BATCH_MAX + 1), 0)
    assert collector.headers[0]["api-key"] == "a b"
    assert collector.headers[0]["content-type"] == "application/json"


async def test_spans_that_the_collector_rejects_are_counted_as_dropped() -> None:
    async def partly(_: Request) -> Response:
        return Response('{"partialSuccess": {"rejectedSpans": "3", "errorMessage": "no"}}')

    async with collecting(partly) as collector:
        exporter = OtlpExporter(collector.url, {})
        exporter.offer(offered())
        await exporter.close()
    assert (exporter.exported, exporter.dropped) == (2, 3)


@pytest.mark.parametrize("answer", [b"", b"{}", b"[]", b'{"partialSuccess": null}', b"\xff", b'{"partialSuccess": {"rejectedSpans": "x"}}'])  # fmt: skip
def test_an_answer_without_a_count_rejects_nothing(answer: bytes) -> None:
    assert otlp.rejected_spans(answer) == 0


def test_headers_are_read_as_opentelemetry_writes_them() -> None:
    assert otlp.headers_of("api-key=a%20b, tenant=c=d ,") == {"api-key": "a b", "tenant": "c=d"}


async def test_a_real_collector_understands_every_span(house: House, key: str) -> None:
    with real_collector() as collector:
        async with traced(house, key, collector.url) as (client, exporter):
            answer = (await client.post("/v1/query", json=ASKED)).json()
            assert await exporter.failure() == "", "it takes a request without spans"
        said = collector.wait_for("record_close")
    assert (exporter.exported, exporter.dropped) == (7, 0)
    assert f"-> affidavit.query_id: Str({answer['query_id']})" in said
    assert "-> gen_ai.operation.name: Str(chat)" in said
    assert f"Trace ID       : {UUID(answer['query_id']).hex}" in said
    assert "SPAN_KIND_SERVER" in said
    assert IMU not in said


@pytest.mark.campaign
async def test_a_server_that_stops_has_sent_its_traces_and_tells_how_many(
    database: Any, data_dir: Any, key: str
) -> None:
    async with collecting() as collector:
        with running(data_dir, command="serve", AFFIDAVIT_TRACES__ENDPOINT=collector.url) as server:
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=10) as client:
                await client.post("/v1/query", json=ASKED)
                await collector.until(lambda got: bool(got.bodies))
                await client.post("/v1/query", json=ASKED)
            await asyncio.to_thread(server.process.terminate)
            await asyncio.to_thread(server.process.wait)
    assert len(collector.roots()) == 2
