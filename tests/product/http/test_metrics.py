"""What operators see: figures that add up, a JSON line for each request, and no word of a reader in either."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from audit.checking.status import LogGauges
from audit.proof.record import Trail
from engine import logs, wiring
from engine.http.metrics import FAMILIES, SCORES, VERSION, Figures, Metrics
from engine.storage.database import Database
from tests.conftest import PATIENCE, ROOT, Records, free_port
from tests.product.http.metrics_text import Value, added, read

IMU = {"query": "What does an IMU measure?"}
CANARY = "zyzzyva-canary"


def figures(client: httpx.Client) -> Value:
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(response.text)


def test_what_was_asked_is_counted_by_endpoint_outcome_reason_and_status(client: httpx.Client) -> None:
    before = figures(client)
    client.post("/v1/query", json=IMU)
    client.post("/v1/query", json={"query": "Who wrote Pride and Prejudice?"})
    client.post("/v1/query", json={})
    client.get("/nothing-" + CANARY)
    after = figures(client)

    def count(*labels: str) -> float:
        return added(before, after, "affidavit_requests_total", *labels)

    assert count('endpoint="/v1/query"', 'outcome="answered"', 'reason=""', 'status="200"') == 1
    assert count('endpoint="/v1/query"', 'outcome="refused"', 'reason="not_covered"', 'status="200"') == 1
    assert count('endpoint="/v1/query"', 'outcome="failed"', 'reason="validation"', 'status="422"') == 1
    assert count('endpoint="unknown"', 'status="404"') == 1
    assert added(before, after, "affidavit_stage_seconds_count", 'stage="retrieval"') == 2
    assert added(before, after, "affidavit_stage_seconds_count", 'stage="generation"') == 1
    assert added(before, after, "affidavit_gate_score_count") == 2
    assert added(before, after, "affidavit_gate_score_bucket", 'le="0.6"') == 1
    assert added(before, after, "affidavit_limiter_decisions_total", 'decision="admitted"') == 4


def test_how_the_log_stands_is_told(client: httpx.Client) -> None:
    values = figures(client)
    assert values["affidavit_months_ahead", ""] >= 3
    for name in (
        "open_records", "unsealed_rows", "unsealed_age_seconds", "unanchored_age_seconds", "spool_entries", "spool_bytes",
    ):  # fmt: skip
        assert values[f"affidavit_{name}", ""] >= 0


def test_the_stage_of_the_record_the_pool_and_the_build_are_told(client: httpx.Client) -> None:
    before = figures(client)
    client.post("/v1/query", json=IMU)
    after = figures(client)
    assert added(before, after, "affidavit_record_writes_total") >= 2, "the record's beginning and its end"
    assert added(before, after, "affidavit_record_write_seconds_total") > 0
    for stage in ("admission", "record_open", "record_close"):
        assert added(before, after, "affidavit_stage_seconds_count", f'stage="{stage}"') == 1
        assert added(before, after, "affidavit_stage_seconds_bucket", f'stage="{stage}"', 'le="5.0"') == 1
    assert after["affidavit_pool_requests_total", ""] > 0
    for name in ("waits", "wait_seconds", "timeouts", "busy_seconds"):
        assert after[f"affidavit_pool_{name}_total", ""] >= 0
    assert after["affidavit_vault_errors_total", ""] == 0
    assert after["affidavit_build_info", f'version="{VERSION}"'] == 1


async def test_what_parts_of_each_worker_count_is_added_up_and_the_build_is_not(tmp_path: Path) -> None:
    workers = [
        Metrics(Figures(), look, tmp_path, lambda: {"affidavit_vault_errors_total": 2}) for _ in range(3)
    ]
    for worker in workers:
        assert worker._own
        worker._write(worker._own)
        worker._write(worker._own)
    page = read(await workers[0].page())
    assert page["affidavit_vault_errors_total", ""] == 6
    assert page["affidavit_build_info", f'version="{VERSION}"'] == 1


# Seen red with `:g`, which rounds to six digits: a rate over a long-lived counter was 0, and then a jump.
async def test_a_sum_of_many_days_is_told_to_the_millisecond() -> None:
    measured = Metrics(Figures(), look)
    measured.figures.count("/v1/query", 200, 12_345_678.125, None)
    page = read(await measured.page())
    assert page["affidavit_request_seconds_sum", 'endpoint="/v1/query"'] == 12_345_678.125


def test_no_label_is_taken_from_what_somebody_sent(client: httpx.Client) -> None:
    client.get(f"/{CANARY}")
    client.get(f"/v1/chunks/{CANARY}")
    client.post(f"/v1/books/{CANARY}/query", json={"query": CANARY, "selected_text": CANARY})
    client.request(CANARY, "/v1/query", headers={"X-Request-ID": CANARY, "X-End-User": CANARY})
    assert CANARY not in client.get("/metrics").text


def test_a_histogram_is_cumulative_and_its_buckets_stand_in_order() -> None:
    counted = Figures()
    for score in (0.05, 0.6, 0.61, 1.0):
        counted._observe("affidavit_gate_score", SCORES, score)
    buckets = [value for name, value in counted.families["affidavit_gate_score"].items() if "_bucket" in name]
    assert buckets == sorted(buckets)
    assert buckets[SCORES.index(0.6)] == 2  # what is just at a limit is below it
    assert buckets[-1] == counted.families["affidavit_gate_score"]["affidavit_gate_score_count"] == 4


async def look() -> LogGauges:
    return LogGauges(1, 2, 3.5, 4.5, 0.5, 5, 6, 7, 8)


# Seen red with a page of this process's figures alone.
async def test_the_figures_of_all_workers_are_added_up_and_those_of_a_dead_one_stay(tmp_path: Path) -> None:
    workers = [Metrics(Figures(), look, tmp_path) for _ in range(3)]
    for number, worker in enumerate(workers, 1):
        for _ in range(number):
            worker.figures.count("/v1/query", 200, 0.1, None)
        assert worker._own
        worker._write(worker._own)
    pages = [read(await worker.page()) for worker in workers]
    assert pages[0] == pages[1] == pages[2]
    assert added({}, pages[0], "affidavit_requests_total") == 6
    assert pages[0]["affidavit_unsealed_age_seconds", ""] == 3.5


async def test_a_log_that_cannot_be_looked_at_leaves_its_lines_out_and_the_others_in() -> None:
    async def fail() -> LogGauges:
        raise OSError

    measured = Metrics(Figures(), fail)
    measured.figures.count("/v1/query", 200, 0.1, None)
    page = read(await measured.page())
    assert not any(name == "affidavit_months_ahead" for name, _ in page)
    assert added({}, page, "affidavit_requests_total") == 1


# Seen red with 0: where a process of its own seals, the alert on refused rows could never fire, and looked as if it could.
async def test_where_another_process_seals_no_number_of_refused_rows_is_told() -> None:
    async def elsewhere() -> LogGauges:
        return replace(await look(), refused_rows=None)

    told = [read(await Metrics(Figures(), way).page()) for way in (look, elsewhere)]
    assert [("affidavit_refused_rows", "") in page for page in told] == [True, False]


async def test_the_log_is_looked_at_once_in_a_while_however_often_we_are_asked() -> None:
    looks = []

    async def counting() -> LogGauges:
        looks.append(1)
        return await look()

    measured = Metrics(Figures(), counting)
    for _ in range(10):
        await measured.page()
    assert len(looks) == 1


def test_every_family_is_announced_by_its_kind() -> None:
    assert {kind for kind, _ in FAMILIES.values()} == {"counter", "gauge", "histogram"}
    assert all(name.endswith("_total") == (kind == "counter") for name, (kind, _) in FAMILIES.items())


@contextmanager
def logging_server(data_dir: Path) -> Iterator[tuple[str, list[str]]]:
    """A server whose stderr is read line by line."""
    port = free_port()
    with tempfile.TemporaryFile() as stderr:  # a pipe would stay open as long as the index's worker lives
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.cli", "serve", "--port", str(port), "--data-dir", str(data_dir)],
            stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT, env=os.environ | PATIENCE,
        )  # fmt: skip
        said: list[str] = []
        assert process.stdout
        try:
            assert process.stdout.readline().startswith("Affidavit is ready")
            yield f"http://127.0.0.1:{port}", said
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()
            said += os.pread(stderr.fileno(), 1 << 20, 0).decode().splitlines()


def test_each_request_is_one_json_line_without_a_word_of_the_reader(
    data_dir: Path, database: Database, key: str, records: Records
) -> None:
    secret = {"Authorization": f"Bearer {key}"}
    ids = [f"logged-{uuid4()}" for _ in range(4)]
    with logging_server(data_dir) as (url, said), httpx.Client(base_url=url, headers=secret) as client:
        client.post("/v1/query", json={"query": f"What is {CANARY}?"}, headers={"X-Request-ID": ids[0]})
        client.post("/v1/query", json=IMU, headers={"X-Request-ID": ids[1]})
        client.get(f"/{CANARY}?{CANARY}={CANARY}", headers={"X-Request-ID": ids[2]})
        client.post(
            "/v1/query", content=CANARY, headers={"X-Request-ID": ids[3], "X-End-User": f"anon:{CANARY}"}
        )
        client.get("/healthz")
    lines = [json.loads(line) for line in said if line.startswith("{")]
    of_requests = [line for line in lines if line["message"] == "Request"]
    assert [line["request_id"] for line in of_requests] == ids
    assert [line["status"] for line in of_requests] == [200, 200, 404, 422]
    for line in of_requests:
        (row,) = records.where("request_id = %s", line["request_id"])
        assert (line["query_id"], line["outcome"]) == (str(row["query_id"]), row["outcome"])
        assert {"time", "level", "logger", "endpoint", "ms"} <= set(line)
    assert CANARY not in "\n".join(said)
    assert key not in "\n".join(said)


@contextmanager
def speaking(descriptor: int) -> Iterator[logging.Logger]:
    handler = logs.NonBlockingHandler(descriptor)
    handler.setFormatter(logs.JsonLineFormatter())
    logger = logging.getLogger("engine.test")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def test_a_log_that_nobody_reads_holds_up_nobody_and_says_what_it_lost() -> None:
    reads, writes = os.pipe()
    with speaking(writes) as logger:
        for number in range(3000):
            logger.error("A line of some length, number %s", number)
        told = os.read(reads, 1 << 20).splitlines()
        logger.error("Somebody reads again")
        last = json.loads(os.read(reads, 4096))
    os.close(reads)
    os.close(writes)
    assert all(json.loads(line)["level"] == "error" for line in told)
    assert last["lines_lost"] == 3000 - len(told) > 0


def line_of(name: str, message: str, *values: Any, fault: BaseException | None = None) -> dict[str, Any]:
    info = (type(fault), fault, fault.__traceback__) if fault else None
    record = logging.LogRecord(name, logging.ERROR, __file__, 1, message, values, info)
    found: dict[str, Any] = json.loads(logs.JsonLineFormatter().format(record))
    return found


# Seen red with everybody's message told whole.
def test_what_others_put_into_their_words_is_not_told_nor_what_a_fault_says() -> None:
    try:
        int(CANARY)  # which its message repeats
    except ValueError as fault:
        told = line_of("psycopg.pool", "error at %s: %s", "host", CANARY, fault=fault)
        ours = line_of("engine.http.middleware", "A fault", fault=fault)
    assert told["message"] == "error at %s: %s"
    assert (ours["fault"], CANARY in str(ours) + str(told)) == ("ValueError", False)
    assert "test_metrics.py:" in ours["at"]
    assert line_of("asyncio", f"Task exception was never retrieved\nfuture: <{CANARY}>")["message"] == (
        "Task exception was never retrieved"
    )


# Seen red without the filter: a stranger could fill the disk.
def test_lines_of_one_kind_are_limited_and_the_next_minute_says_how_many_were_left_out() -> None:
    time_s = [0.0]
    throttle = logs.Throttle(lambda: time_s[0])

    def passes(line: int, **about: object) -> logging.LogRecord | None:
        record = logging.LogRecord("uvicorn.error", logging.WARNING, __file__, line, "Invalid", (), None)
        record.__dict__ |= about
        return record if throttle.filter(record) else None

    assert [bool(passes(1)) for _ in range(logs.LINES_MAX + 5)] == [True] * logs.LINES_MAX + [False] * 5
    assert passes(2), "another kind"
    assert passes(1, **{logs.HAS_CLIENT: True}), "a client with a key"
    time_s[0] = logs.MINUTE_S
    first, second = passes(1), passes(1)
    assert first and second
    assert json.loads(logs.JsonLineFormatter().format(first))["lines_left_out"] == 5
    assert "lines_left_out" not in json.loads(logs.JsonLineFormatter().format(second))


def test_a_request_without_a_record_is_counted_too() -> None:
    counted = Figures()
    counted.count("/healthz", 200, 0.001, None)
    (series,) = counted.families["affidavit_requests_total"]
    assert 'outcome="unrecorded"' in series


def test_tokens_and_refusals_of_the_limiter_are_counted() -> None:
    counted = Figures()
    now = wiring.now()
    of: dict[str, Any] = {"log_id": uuid4(), "query_id": uuid4(), "timestamp": now, "endpoint": "/v1/query"}
    counted.count(
        "/v1/query",
        200,
        0.1,
        Trail(**of, tokens_input=70, tokens_output=5, limit_decision="admitted 5/minute"),
    )
    counted.count("/v1/query", 429, 0.1, Trail(**of, error_type="rate_limit"))
    assert counted.families["affidavit_tokens_total"] == {
        'affidavit_tokens_total{direction="input"}': 70,
        'affidavit_tokens_total{direction="output"}': 5,
    }
    assert counted.families["affidavit_limiter_decisions_total"] == {
        'affidavit_limiter_decisions_total{decision="admitted"}': 1,
        'affidavit_limiter_decisions_total{decision="refused"}': 1,
    }
