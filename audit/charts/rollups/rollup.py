"""Counts facts by day: the one definition of what a rollup holds, whether it is made, checked or drawn. Pure.

A histogram is one count for each bucket. Chapters are counted without the client, so that no count says who asked about what.
Lags are of all records together. What answers were made with has the times of the first and the last record of the day.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import NamedTuple

from audit.charts.rollups.buckets import margin_bucket, time_bucket
from audit.charts.rollups.fact import SealedFact

VERSION = 1  # of the rules below
MADE_WITH = (
    "model_requested", "model_used", "prompt_sha256", "settings_sha256", "code_version", "calibration_id", "embedder",
    "index_generation",
)  # fmt: skip
OF_A_BOOK = frozenset({"calibration_id", "embedder", "index_generation"})
STAGES = ("total", "retrieval", "generation", "other")
NAMED = 20  # differences of one rollup


class CountKey(NamedTuple):
    day: date | None = None
    measure: str = ""
    book_id: str | None = None
    client_id: str | None = None
    outcome: str | None = None
    value: str | None = None
    bucket: int | None = None


@dataclass(slots=True)
class Count:
    count: int = 0
    total: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None

    def add(self, other: "Count") -> None:
        self.count += other.count
        self.total += other.total
        self.first_at = min(filter(None, (self.first_at, other.first_at)), default=None)
        self.last_at = max(filter(None, (self.last_at, other.last_at)), default=None)


Counts = dict[CountKey, Count]


@dataclass(frozen=True, slots=True)
class Rollup:
    """Which leaves were counted, and the anchored head that proves them."""

    month: date
    first_leaf: int
    tree_size: int
    root: bytes
    version: int
    erased: int
    digest: bytes = b""

    def __str__(self) -> str:
        return f"{self.month:%Y-%m}, leaves {self.first_leaf} to {self.tree_size - 1}"


def counts_of(facts: Iterable[SealedFact]) -> Counts:
    found: Counts = {}
    for fact in facts:
        for key, count, total in _counted(fact):
            held = found.get(key)
            if held is None:
                held = found[key] = Count()
            held.count += count
            held.total += total
        for key in _made_with(fact):
            _see(found, key, fact.timestamp)
    return found


def _see(found: Counts, key: CountKey, at: datetime) -> None:
    held = found.get(key)
    if held is None or held.first_at is None or held.last_at is None:
        found[key] = Count(1, 0, at, at)
        return
    held.count += 1
    held.first_at = min(held.first_at, at)
    held.last_at = max(held.last_at, at)


def _counted(fact: SealedFact) -> Iterator[tuple[CountKey, int, int]]:
    day = fact.timestamp.astimezone(UTC).date()
    who = (fact.book_id, fact.client_id, fact.outcome)
    yield CountKey(day, "requests", *who, fact.reason), fact.repeat_count, 1
    if fact.is_question:
        yield CountKey(day, "questions", *who), 1, 0
        yield from _latencies(fact, day)
    if fact.is_question and fact.outcome == "answered":
        yield CountKey(day, "chapters", fact.book_id, None, fact.outcome, fact.chapter), 1, 0
    if fact.best_score is not None and fact.threshold is not None:
        yield CountKey(day, "gate", *who, None, margin_bucket(fact.best_score, fact.threshold)), 1, 0
    for measure, tokens in (("tokens_input", fact.tokens_input), ("tokens_output", fact.tokens_output)):
        if tokens is not None:
            yield CountKey(day, measure, *who, fact.model_used), 1, tokens
    for measure, at in (("seal_lag", fact.sealed_at), ("anchor_lag", fact.anchored_at)):
        if at is not None:
            lag_ms = max(0.0, (at - fact.timestamp).total_seconds() * 1000)
            yield CountKey(day, measure, bucket=time_bucket(lag_ms)), 1, round(lag_ms)


def _latencies(fact: SealedFact, day: date) -> Iterator[tuple[CountKey, int, int]]:
    if fact.total_latency_ms is None:
        return
    searched, generated = fact.retrieval_latency_ms, fact.generation_latency_ms
    other = fact.total_latency_ms - (searched or 0) - (generated or 0)
    for stage, taken in zip(STAGES, (fact.total_latency_ms, searched, generated, max(0, other)), strict=True):
        if taken is not None:
            key = CountKey(
                day, "latency", fact.book_id, fact.client_id, fact.outcome, stage, time_bucket(taken)
            )
            yield key, 1, taken


def _made_with(fact: SealedFact) -> Iterator[CountKey]:
    day = fact.timestamp.astimezone(UTC).date()
    for what in MADE_WITH:
        value = getattr(fact, what)
        if value is not None:
            yield CountKey(day, what, fact.book_id if what in OF_A_BOOK else None, value=value)


def without_chapters(counts: Mapping[CountKey, Count]) -> Counts:
    """The chapters of a book as one number: what is left to compare where they are unknown."""
    found: Counts = {}
    for key, count in counts.items():
        known = key._replace(value=None) if key.measure == "chapters" else key
        found.setdefault(known, Count()).add(count)
    return found


def digest_of(rollup: Rollup, counts: Mapping[CountKey, Count]) -> bytes:
    heading = [
        f"{rollup.month:%Y-%m}",
        rollup.first_leaf,
        rollup.tree_size,
        rollup.root.hex(),
        rollup.version,
    ]
    lines = sorted(_line(key, count) for key, count in counts.items())
    return sha256("\n".join(["affidavit rollup", json.dumps(heading), *lines]).encode()).digest()


def differences(stored: Mapping[CountKey, Count], made: Mapping[CountKey, Count]) -> list[str]:
    """Each count that is not what the rows give."""
    differing = [key for key in stored.keys() | made.keys() if stored.get(key) != made.get(key)]
    lines = [
        f"{_name(key)}: {_said(stored.get(key))}, the rows give {_said(made.get(key))}"
        for key in sorted(differing, key=_name)
    ]
    return lines if len(lines) <= NAMED else [*lines[:NAMED], f"and {len(lines) - NAMED} more counts"]


def _line(key: CountKey, count: Count) -> str:
    times = [at and at.astimezone(UTC).isoformat() for at in (count.first_at, count.last_at)]
    return json.dumps([str(key.day), *key[1:], count.count, count.total, *times], ensure_ascii=False)


def _name(key: CountKey) -> str:
    parts = {"book": key.book_id, "client": key.client_id, "outcome": key.outcome, "value": key.value}
    named = [f"{name} {value}" for name, value in parts.items() if value is not None]
    if key.bucket is not None:
        named.append(f"bucket {key.bucket:+d}")
    return ", ".join([f"{key.day} {key.measure}", *named])


def _said(count: Count | None) -> str:
    if count is None:
        return "nothing"
    times = f", {count.first_at} to {count.last_at}" if count.first_at else ""
    return f"{count.count} (sum {count.total}{times})"
