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
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

from audit.checking.status import LogGauges
from audit.proof.record import Trail
from engine.storage.database import CLEANUP_S

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHARE_S = 1.0  # interval at which each worker writes its file
GAUGES_S = 15.0  # the gauges of the log are cached for so long, however often we are scraped
GAUGES_TIMEOUT_S = 2.0  # a monitoring system does not wait for an unavailable database

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0)  # the budget's limits among them
# Finer around the gate's threshold.
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.58, 0.6, 0.62, 0.65, 0.7, 0.8, 0.9)

FAMILIES = {
    "affidavit_requests_total": ("counter", "Requests by endpoint, outcome, reason and HTTP status; status 0: the client disconnected."),
    "affidavit_request_seconds": ("histogram", "Seconds from the request's head to the end of its response."),
    "affidavit_stage_seconds": ("histogram", "Seconds of each stage of a question."),
    "affidavit_gate_score": ("histogram", "Best score of a question, which the gate compares with its threshold."),
    "affidavit_limiter_decisions_total": ("counter", "Decisions of the rate limiter."),
    "affidavit_tokens_total": ("counter", "Tokens of the language model."),
    "affidavit_open_records": ("gauge", "Requests in progress, or interrupted, that have no row yet."),
    "affidavit_unsealed_rows": ("gauge", "Rows that are not sealed yet."),
    "affidavit_unsealed_age_seconds": ("gauge", "Age of the oldest unsealed row."),
    "affidavit_refused_rows": ("gauge", "Rows that the sealer of this process refuses, because the engine did not sign them."),
    "affidavit_months_ahead": ("gauge", "Monthly partitions created ahead."),
    "affidavit_spool_entries": ("gauge", "Records in the spool of this machine, waiting for the database."),
    "affidavit_spool_bytes": ("gauge", "Size of the spool."),
}  # fmt: skip

Series = dict[str, float]  # by name and labels, as a line of the text format begins


class Figures:
    """Counters and histograms of this process."""

    def __init__(self) -> None:
        self.families: dict[str, Series] = defaultdict(lambda: defaultdict(float))

    def count(self, endpoint: str, status: int, seconds: float, trail: Trail | None) -> None:
        """Count a finished request. One that failed before its record has no trail."""
        self._add(
            "affidavit_requests_total", endpoint=endpoint, outcome=(trail and trail.outcome) or "unrecorded",
            reason=(trail and (trail.reason or trail.error_type)) or "", status=status,
        )  # fmt: skip
        self._observe("affidavit_request_seconds", SECONDS, seconds, endpoint=endpoint)
        if trail:
            self._count_stages(trail)
            decision = "refused" if trail.error_type == "rate_limit" else trail.limit_decision
            if decision:
                self._add("affidavit_limiter_decisions_total", decision=decision.split(" ")[0])

    def _count_stages(self, trail: Trail) -> None:
        stages = {"retrieval": trail.retrieval_latency_ms, "generation": trail.generation_latency_ms}
        for stage, latency_ms in stages.items():
            if latency_ms is not None:
                self._observe("affidavit_stage_seconds", SECONDS, latency_ms / 1000, stage=stage)
        if trail.best_score is not None:
            self._observe("affidavit_gate_score", SCORES, trail.best_score)
        for direction, tokens in (("input", trail.tokens_input), ("output", trail.tokens_output)):
            if tokens:
                self._add("affidavit_tokens_total", tokens, direction=direction)

    def _add(self, family: str, value: float = 1, **labels: object) -> None:
        self.families[family][_series(family, labels)] += value

    def _observe(self, family: str, limits: tuple[float, ...], value: float, **labels: object) -> None:
        series = self.families[family]
        reached = bisect_left(limits, value)
        for place, limit in enumerate((*limits, "+Inf")):
            series[_series(f"{family}_bucket", labels | {"le": limit})] += place >= reached
        series[_series(f"{family}_sum", labels)] += value
        series[_series(f"{family}_count", labels)] += 1


class Metrics:
    """The counters of all workers, and the gauges of the log."""

    def __init__(
        self, figures: Figures, look: Callable[[], Awaitable[LogGauges]], folder: Path | None = None
    ) -> None:
        self.figures = figures
        self._look = look
        self._own = folder / f"{uuid4()}.json" if folder else None
        self._log_gauges: LogGauges | None = None
        self._looked_at = -GAUGES_S
        self._looking = asyncio.Lock()

    async def page(self) -> str:
        """Leaves the gauges out while they cannot be read, so that an alert on absent metrics fires."""
        families = added(self.figures.families, *self._others())
        gauges = await self._latest()
        if gauges:
            families |= _gauges(gauges)
        return "".join(_lines(families))

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
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(self.figures.families))
        draft.rename(path)

    def _others(self) -> Iterator[dict[str, Series]]:
        if self._own is None:
            return
        for path in sorted(self._own.parent.glob("*.json")):
            if path != self._own:
                yield json.loads(path.read_text())

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


def added(*all_families: Mapping[str, Series]) -> dict[str, Series]:
    total: dict[str, Series] = defaultdict(lambda: defaultdict(float))
    for families in all_families:
        for family, series in families.items():
            for name, value in series.items():
                total[family][name] += value
    return total


def _gauges(gauges: LogGauges) -> dict[str, Series]:
    values = {
        "affidavit_open_records": gauges.open_records,
        "affidavit_unsealed_rows": gauges.unsealed_rows,
        "affidavit_unsealed_age_seconds": gauges.unsealed_age_s,
        "affidavit_months_ahead": gauges.months_ahead,
        "affidavit_spool_entries": gauges.spool_entries,
        "affidavit_spool_bytes": gauges.spool_bytes,
        "affidavit_refused_rows": gauges.refused_rows,
    }
    return {family: {family: float(value)} for family, value in values.items()}


def _lines(families: Mapping[str, Series]) -> Iterator[str]:
    for family, (kind, words) in FAMILIES.items():
        if families.get(family):
            yield f"# HELP {family} {words}\n# TYPE {family} {kind}\n"
            yield from (
                f"{name} {value:g}\n" if value % 1 else f"{name} {int(value)}\n"
                for name, value in families[family].items()
            )


def _series(name: str, labels: Mapping[str, object]) -> str:
    joined = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{joined}}}" if labels else name
