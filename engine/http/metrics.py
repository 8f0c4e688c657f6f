"""Prometheus metrics (`/metrics`, text format): counters and histograms of requests, and gauges of the audit log.

Counters only grow and can be added, and so can the buckets of a histogram. So several workers need one file each: the
worker that is scraped adds the others' files, at most a second old, to its own counters. A dead worker's counts stay.
Label values come from our own names and routes, never from a client.
"""

import asyncio
import contextlib
import json
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from uuid import uuid4

from audit.checking.status import LogGauges
from audit.proof.record import Trail
from audit.proof.verdict import Report, Verdict
from engine.errors import RequestError
from engine.models import Stage
from engine.storage.database import CLEANUP_S

VERSION = version("affidavit")
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARE_S = 1.0  # interval at which each worker writes its file
DEAD_S = 10.0  # a worker that has not written for so long: its counters stay, its gauges do not
GAUGES_S = 15.0  # the gauges of the log are cached for so long, however often we are scraped
GAUGES_TIMEOUT_S = 2.0  # a monitoring system does not wait for an unavailable database

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0)  # the budget's limits among them
# Finer around the gate's threshold.
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.58, 0.6, 0.62, 0.65, 0.7, 0.8, 0.9)

FAMILIES = {
    "affidavit_requests_total": ("counter", "Requests by endpoint, outcome, reason and HTTP status; status 0: the client disconnected."),
    "affidavit_request_seconds": ("histogram", "Seconds from the request's head to the end of its response."),
    "affidavit_stage_seconds": ("histogram", "Seconds of each stage of a request; queue is the wait for its turn, and those of its record are record_open, record_note and record_close."),
    "affidavit_gate_score": ("histogram", "Best score of a question, which the gate compares with its threshold."),
    "affidavit_limiter_decisions_total": ("counter", "Decisions of the rate limiter."),
    "affidavit_tokens_total": ("counter", "Tokens of the language model."),
    "affidavit_questions_refused_total": ("counter", "Questions that got 503 because more were asked than can be answered, each counted in a row."),
    "affidavit_questions_waiting": ("gauge", "Questions that wait for their turn."),
    "affidavit_questions_served": ("gauge", "Questions that are worked on."),
    "affidavit_questions_at_once_max": ("gauge", "How many are worked on at once at most, as all processes find out by themselves."),
    "affidavit_record_writes_total": ("counter", "Steps of records, made durable or given up."),
    "affidavit_record_write_seconds_total": ("counter", "Seconds that these steps took."),
    "affidavit_pool_requests_total": ("counter", "Database connections that were asked of the pool."),
    "affidavit_pool_waits_total": ("counter", "Those that had to wait, because all were in use."),
    "affidavit_pool_wait_seconds_total": ("counter", "Seconds of waiting for a database connection."),
    "affidavit_pool_timeouts_total": ("counter", "Those that were not given in time."),
    "affidavit_pool_busy_seconds_total": ("counter", "Seconds that database connections were in use."),
    "affidavit_vault_errors_total": ("counter", "Failures of the vault, counted where `serve` seals."),
    "affidavit_witness_requests_total": ("counter", "Heads that witnesses were asked to cosign."),
    "affidavit_witness_failures_total": ("counter", "Those that were not cosigned: no answer, a refusal, or another size."),
    "affidavit_sealing_stopped": ("gauge", "1 if all sealing has stopped: the log of heads is not what was signed, or a witness has seen more of it (rollback)."),
    "affidavit_time_stamp_errors_total": ("counter", "Failures to get a time stamp, counted where `serve` seals."),
    "affidavit_spans_exported_total": ("counter", "Spans that the collector of traces took."),
    "affidavit_spans_dropped_total": ("counter", "Spans that it did not take, or that found no room in the queue."),
    "affidavit_settings_reloads_total": ("counter", "Reloads of the settings by outcome: applied, needs_restart (in part), refused (wrong settings: those of before stay)."),
    "affidavit_build_info": ("gauge", "Always 1; its label is the version that serves."),
    "affidavit_open_records": ("gauge", "Requests in progress, or interrupted, that have no row yet."),
    "affidavit_unsealed_rows": ("gauge", "Rows that are not sealed yet."),
    "affidavit_unsealed_age_seconds": ("gauge", "Age of the oldest unsealed row."),
    "affidavit_unanchored_age_seconds": ("gauge", "Age of the oldest signed tree head that is not in the vault yet."),
    "affidavit_refused_rows": ("gauge", "Rows that the sealer of this process refuses, because the engine did not sign them. Absent if it has none (audit.seal_in_serve = false)."),
    "affidavit_unpublished_head_age_seconds": ("gauge", "Age of the oldest head of the log of heads that is not in the vault yet, because a required quorum of witnesses is not there."),
    "affidavit_time_stamp_age_seconds": ("gauge", "Age of the last time stamp, where `serve` seals and stamps are on; infinite if there is none."),
    "affidavit_signing_seconds": ("gauge", "Seconds for which this process can sign records if the key elsewhere does not answer; absent if the key is a file here."),
    "affidavit_months_ahead": ("gauge", "Monthly partitions created ahead."),
    "affidavit_spool_entries": ("gauge", "Records in the spool of this machine, waiting for the database."),
    "affidavit_spool_bytes": ("gauge", "Size of the spool."),
}  # fmt: skip
# Not of a server: `affidavit audit verify --metrics` writes them into a file.
VERIFICATION_FAMILIES = {
    "affidavit_verification_time_seconds": ("gauge", "When the last verification of the log ended, in seconds since 1970."),
    "affidavit_verification_verdict": ("gauge", "1 for the verdict of the last verification, 0 for each other verdict."),
    "affidavit_verification_checked": ("gauge", "Records that it checked."),
    "affidavit_verification_seconds": ("gauge", "Seconds that it took."),
}  # fmt: skip

Series = dict[str, float]  # by name and labels, as a line of the text format begins


class Figures:
    """Counters and histograms of this process."""

    def __init__(self) -> None:
        self.families: dict[str, Series] = defaultdict(lambda: defaultdict(float))

    def count(
        self, endpoint: str, status: int, seconds: float, trail: Trail | None, stages: Sequence[Stage] = ()
    ) -> None:
        """Count a finished request. One that failed before its record has no trail."""
        self._add(
            "affidavit_requests_total", endpoint=endpoint, outcome=(trail and trail.outcome) or "unrecorded",
            reason=(trail and (trail.reason or trail.error_type)) or "", status=status,
        )  # fmt: skip
        self._observe("affidavit_request_seconds", SECONDS, seconds, endpoint=endpoint)
        for stage in stages:
            self._observe(
                "affidavit_stage_seconds", SECONDS, stage.ended_s - stage.started_s, stage=stage.name
            )
        if trail:
            self._count_answer(trail)
            decision = "refused" if trail.error_type == "rate_limit" else trail.limit_decision
            if decision:
                self._add("affidavit_limiter_decisions_total", decision=decision.split(" ")[0])

    def count_refused(self, endpoint: str, refused: type[RequestError]) -> None:
        """A question that was refused where its connection was read. How long that took says nothing of answers."""
        self._add(
            "affidavit_requests_total", endpoint=endpoint, outcome="failed", reason=refused.error_type, status=refused.status,
        )  # fmt: skip

    def _count_answer(self, trail: Trail) -> None:
        if trail.best_score is not None:
            self._observe("affidavit_gate_score", SCORES, trail.best_score)
        for direction, tokens in (("input", trail.tokens_input), ("output", trail.tokens_output)):
            if tokens:
                self._add("affidavit_tokens_total", tokens, direction=direction)

    def tally(self, counted: Mapping[str, float]) -> None:
        """Take over what other parts of this process count, by family."""
        for family, value in counted.items():
            self.families[family][family] = value

    def count_reload(self, outcome: str) -> None:
        self._add("affidavit_settings_reloads_total", outcome=outcome)

    def write(self, path: Path) -> None:
        """For other processes, which read a whole file or none."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(self.families))
        draft.rename(path)

    def _add(self, family: str, value: float = 1, **labels: object) -> None:
        self.families[family][_series(family, labels)] += value

    def _observe(self, family: str, limits: tuple[float, ...], value: float, **labels: object) -> None:
        series = self.families[family]
        total, count, buckets = _histogram(family, limits, tuple(labels.items()))
        if count not in series:
            series |= dict.fromkeys((*buckets, total, count), 0.0)
        for name in (*buckets[bisect_left(limits, value) :], count):
            series[name] += 1
        series[total] += value


class Metrics:
    """The counters of all workers, and the gauges of the log."""

    def __init__(
        self,
        figures: Figures,
        look: Callable[[], Awaitable[LogGauges]],
        folder: Path | None = None,
        tallies: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.figures = figures
        self._look = look
        self._tallies = tallies
        self._own = folder / f"{uuid4()}.json" if folder else None
        self._log_gauges: LogGauges | None = None
        self._looked_at = -GAUGES_S
        self._looking = asyncio.Lock()

    async def page(self) -> str:
        """Leaves the gauges out while they cannot be read, so that an alert on absent metrics fires."""
        self.figures.tally(self._tallies())
        families = added(self.figures.families, *self._others())
        families["affidavit_build_info"] = {_series("affidavit_build_info", {"version": VERSION}): 1.0}
        gauges = await self._latest()
        if gauges:
            families |= _gauges(gauges)
        return "".join(_lines(families, FAMILIES))

    async def share(self) -> None:
        """Write this worker's counters for the other workers, periodically and once more when cancelled."""
        if self._own is None:
            return
        try:
            while True:
                self._write(self._own)
                await asyncio.sleep(SHARE_S)
        finally:
            self._write(self._own)

    def _write(self, path: Path) -> None:
        self.figures.tally(self._tallies())
        self.figures.write(path)

    def _others(self) -> Iterator[dict[str, Series]]:
        if self._own is None:
            return
        for path in sorted(self._own.parent.glob("*.json")):
            if path != self._own:
                families = json.loads(path.read_text())
                is_dead = time.time() - path.stat().st_mtime > DEAD_S
                yield _counters_of(families) if is_dead else families

    async def _latest(self) -> LogGauges | None:
        async with self._looking:
            if time.monotonic() - self._looked_at >= GAUGES_S:
                self._looked_at = time.monotonic()
                self._log_gauges = None
                with contextlib.suppress(Exception):  # /readyz names the cause
                    async with (
                        asyncio.timeout(GAUGES_TIMEOUT_S),
                        asyncio.timeout(GAUGES_TIMEOUT_S - CLEANUP_S),
                    ):
                        self._log_gauges = await self._look()
        return self._log_gauges


def write_verification(path: Path, report: Report, ended_at: datetime, seconds: float) -> None:
    """A file for node_exporter's textfile collector, which runs as another user. It tells what the verifier found, so nobody
    who changes the log can change what is told."""
    values = {
        "affidavit_verification_time_seconds": ended_at.timestamp(),
        "affidavit_verification_checked": float(report.checked),
        "affidavit_verification_seconds": seconds,
    }
    families = {family: {family: value} for family, value in values.items()}
    name = "affidavit_verification_verdict"
    families[name] = {
        _series(name, {"verdict": verdict}): float(verdict is report.verdict) for verdict in Verdict
    }
    draft = path.with_suffix(".draft")
    draft.write_text("".join(_lines(families, VERIFICATION_FAMILIES)))
    draft.chmod(0o644)
    draft.rename(path)


def added(*all_families: Mapping[str, Series]) -> dict[str, Series]:
    total: dict[str, Series] = defaultdict(lambda: defaultdict(float))
    for families in all_families:
        for family, series in families.items():
            for name, value in series.items():
                total[family][name] += value
    return total


def _counters_of(families: dict[str, Series]) -> dict[str, Series]:
    return {name: series for name, series in families.items() if FAMILIES[name][0] != "gauge"}


def _gauges(gauges: LogGauges) -> dict[str, Series]:
    values: dict[str, float | None] = {
        "affidavit_open_records": gauges.open_records,
        "affidavit_unsealed_rows": gauges.unsealed_rows,
        "affidavit_unsealed_age_seconds": gauges.unsealed_age_s,
        "affidavit_unanchored_age_seconds": gauges.unanchored_age_s,
        "affidavit_unpublished_head_age_seconds": gauges.unpublished_age_s,
        "affidavit_months_ahead": gauges.months_ahead,
        "affidavit_spool_entries": gauges.spool_entries,
        "affidavit_spool_bytes": gauges.spool_bytes,
        "affidavit_refused_rows": gauges.refused_rows,
        "affidavit_time_stamp_age_seconds": gauges.time_stamp_age_s,
        "affidavit_signing_seconds": gauges.signing_s if isfinite(gauges.signing_s) else None,
    }
    return {family: {family: float(value)} for family, value in values.items() if value is not None}


def _lines(families: Mapping[str, Series], announced: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for family, (kind, words) in announced.items():
        if families.get(family):
            yield f"# HELP {family} {words}\n# TYPE {family} {kind}\n"
            yield from (
                f"{name} {round(value, 6)}\n" if value % 1 else f"{name} {int(value)}\n"
                for name, value in families[family].items()
            )


@cache
def _histogram(
    family: str, limits: tuple[float, ...], labels: tuple[tuple[str, object], ...]
) -> tuple[str, str, list[str]]:
    """The names of its sum, its count and its buckets: written once, because a request adds to seven histograms."""
    given = dict(labels)
    buckets = [_series(f"{family}_bucket", given | {"le": limit}) for limit in (*limits, "+Inf")]
    return _series(f"{family}_sum", given), _series(f"{family}_count", given), buckets


def _series(name: str, labels: Mapping[str, object]) -> str:
    joined = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{joined}}}" if labels else name
