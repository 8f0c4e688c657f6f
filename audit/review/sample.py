"""Draws a stratified sample from a stated population and a later head. Pure; specified in `audit/review/__init__.py`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from heapq import heappush, heapreplace
from typing import Any, NamedTuple
from uuid import UUID

from audit.errors import SampleError
from audit.proof.canonical import canonical_text, read_line
from audit.proof.note import parse_note

STRATA = {"reason": "reason", "confidence": "confidence_level", "book": "book_id"}  # and the column of each
SIZE_MAX = 2_000  # people judge each of them twice

_POPULATION, _SAMPLE = "affidavit population 1", "affidavit sample 1"
_MEMBERS = {"format", "sample", "statement", "leaf_index", "head", "seed", "records"}

Stratum = tuple[str | None, ...]
Statement = dict[str, Any]


class Drawable(NamedTuple):
    """A record of the population: the id as text, and its stratum. There may be millions."""

    log_id: str
    stratum: Stratum


class Record(NamedTuple):
    """A record of the sample."""

    log_id: UUID
    stratum: Stratum


class OtherPopulation(NamedTuple):
    """Stated over the same days as a sample's. One that was never drawn from may be one whose draw somebody did not like."""

    sample_id: UUID
    stated_at: datetime
    is_drawn: bool

    def __str__(self) -> str:
        drawn = "drawn" if self.is_drawn else "never drawn on record"
        return f"{self.sample_id}, stated {self.stated_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC, {drawn}"


# Of an erased statement no days are known, so it counts for all of them.
OTHER_POPULATIONS = """
SELECT o.log_id, o.timestamp, EXISTS (
    SELECT FROM public.audit_logs d
    WHERE d.endpoint = 'affidavit audit sample draw' AND d.outcome = 'recorded' AND d.reason LIKE 'sample ' || o.log_id || ' drawn %%'
)
FROM public.audit_logs s JOIN public.audit_logs o
  ON coalesce(o.details #>> '{statement,from}', '') < coalesce(s.details #>> '{statement,to}', '~') COLLATE "C"
 AND coalesce(s.details #>> '{statement,from}', '') < coalesce(o.details #>> '{statement,to}', '~') COLLATE "C"
WHERE s.log_id = %s AND s.endpoint = 'affidavit audit sample' AND o.endpoint = 'affidavit audit sample' AND o.log_id <> s.log_id
ORDER BY o.timestamp LIMIT 100
"""


class StatedHead(NamedTuple):
    month: date
    size: int
    root: bytes


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be drawn."""

    since: datetime | None
    until: datetime | None
    strata: tuple[str, ...]
    size: int

    def check(self) -> None:
        if not self.strata or len(set(self.strata)) < len(self.strata) or set(self.strata) - STRATA.keys():
            raise ValueError(f"The strata are one or more of {', '.join(STRATA)}, each at most once.")
        if not 1 <= self.size <= SIZE_MAX:
            raise ValueError(f"A sample has from 1 to {SIZE_MAX:,} records.")
        if self.since and self.until and self.since >= self.until:
            raise ValueError("The period is empty: --from must be before --to.")


@dataclass(frozen=True, slots=True)
class Sample:
    """A drawn sample; `sample_id` is the log_id of the row that stated its population."""

    sample_id: UUID
    statement: Statement
    leaf_index: int
    head: str
    seed: bytes
    records: tuple[Record, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "format": _SAMPLE, "sample": str(self.sample_id), "statement": self.statement, "leaf_index": self.leaf_index,
            "head": self.head, "seed": self.seed.hex(),
            "records": [{"log_id": str(log_id), "stratum": list(stratum)} for log_id, stratum in self.records],
        }  # fmt: skip

    def file(self) -> bytes:
        return f"{canonical_text(self.as_json())}\n".encode()


def state(wish: Wish, origin: str, heads: Sequence[StatedHead], population: Iterable[Drawable]) -> Statement:
    """The population as it is put on record, before there is a seed."""
    tally = Tally()
    for _ in tally.counting(population):
        pass
    if not tally.counts:
        raise SampleError(
            "No sealed question was answered or refused in this period, so there is nothing to draw."
        )
    allocate(tally.counts, wish.size)
    return {
        "format": _POPULATION, "origin": origin, "from": time_text(wish.since), "to": time_text(wish.until),
        "strata": list(wish.strata), "size": wish.size,
        "heads": [{"month": f"{month:%Y-%m}", "size": size, "root": root.hex()} for month, size, root in heads],
    } | tally.as_json()  # fmt: skip


def draw(
    sample_id: UUID, statement: Statement, leaf_index: int, head: str, population: Iterable[Drawable]
) -> Sample:
    """The sample that this head gives. `SampleError` if this is not the population that was stated."""
    seed, tally = seed_of(head), Tally()
    smallest = {
        stratum: _Smallest(count)
        for stratum, count in allocate(counts_of(statement), statement["size"]).items()
    }
    for candidate in tally.counting(population):
        if candidate.stratum in smallest:
            place = sha256(seed + candidate.log_id.encode()).digest()
            smallest[candidate.stratum].add(int.from_bytes(place), candidate)
    if tally.as_json() != {name: statement[name] for name in ("counts", "digest")}:
        raise SampleError(
            "The log does not have the population that was stated: its questions or their strata differ."
        )
    chosen = sorted(each for of_stratum in smallest.values() for each in of_stratum.kept)
    records = tuple(Record(UUID(log_id), stratum) for _, (log_id, stratum) in reversed(chosen))
    return Sample(sample_id, statement, leaf_index, head, seed, records)


class Tally:
    """Counts a population while it passes, and digests which records it has, in which strata."""

    def __init__(self) -> None:
        self.counts: Counter[Stratum] = Counter()
        self._digest = sha256()
        self._texts: dict[Stratum, str] = {}

    def counting(self, population: Iterable[Drawable]) -> Iterator[Drawable]:
        for candidate in population:
            log_id, stratum = candidate
            if stratum not in self._texts:
                self._texts[stratum] = canonical_text(list(stratum))
            self.counts[stratum] += 1
            self._digest.update(f"{log_id} {self._texts[stratum]}\n".encode())
            yield candidate

    def as_json(self) -> dict[str, Any]:
        counts = [[list(stratum), self.counts[stratum]] for stratum in ordered(self.counts)]
        return {"counts": counts, "digest": self._digest.hexdigest()}


class _Smallest:
    """A heap of the candidates with the smallest places, the largest of them first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: list[tuple[int, Drawable]] = []

    def add(self, place: int, candidate: Drawable) -> None:
        if len(self.kept) < self.size:
            heappush(self.kept, (-place, candidate))
        elif -place > self.kept[0][0]:
            heapreplace(self.kept, (-place, candidate))


def seed_of(head: str) -> bytes:
    """Without the signature lines: anybody who can write to the vault can add some that no reader knows, and try many."""
    return sha256(parse_note(head).text.encode()).digest()


def first_head(leaf_index: int, sizes: Iterable[int]) -> int | None:
    """The size of the first head that has this leaf; None: there is none yet."""
    return min((size for size in sizes if size > leaf_index), default=None)


def reason_of(statement: Statement) -> str:
    """Stands in the row that states a population, and stays when its details are erased."""
    return f"population {sha256(canonical_text(statement).encode()).hexdigest()}"


def wish_of(statement: Statement) -> Wish:
    """What had been wished when the population was stated."""
    times = [
        None if statement[end] is None else datetime.fromisoformat(statement[end]) for end in ("from", "to")
    ]
    return Wish(times[0], times[1], tuple(statement["strata"]), statement["size"])


def heads_of(statement: Statement) -> list[StatedHead]:
    return [
        StatedHead(date.fromisoformat(f"{head['month']}-01"), head["size"], bytes.fromhex(head["root"]))
        for head in statement["heads"]
    ]


def counts_of(statement: Statement) -> dict[Stratum, int]:
    """How many records each stratum of the population has."""
    return {tuple(stratum): count for stratum, count in statement["counts"]}


def allocate(counts: Mapping[Stratum, int], size: int) -> dict[Stratum, int]:
    """Proportional allocation, with at least one of each stratum; what is left over goes where most is lacking."""
    total, strata = sum(counts.values()), ordered(counts)
    if size >= total:
        return dict(counts)
    if size < len(strata):
        raise SampleError(
            f"The population has {len(strata)} strata: draw at least {len(strata)} records, or name fewer with --strata."
        )
    given = {each: max(1, size * counts[each] // total) for each in strata}

    def lack(each: Stratum) -> int:
        return size * counts[each] - total * given[each]

    while sum(given.values()) > size:
        given[min((each for each in strata if given[each] > 1), key=lack)] -= 1
    while sum(given.values()) < size:
        given[max((each for each in strata if given[each] < counts[each]), key=lack)] += 1
    return given


def ordered(strata: Iterable[Stratum]) -> list[Stratum]:
    return sorted(strata, key=lambda stratum: canonical_text(list(stratum)).encode())


def read_sample(content: bytes) -> Sample:
    """A sample's file, if it is in its one form. Nothing of it is compared with a log."""
    body = read_line(content, "The sample's file", SampleError)
    try:
        if body.keys() != _MEMBERS or body["format"] != _SAMPLE or body["statement"]["format"] != _POPULATION:
            raise SampleError("This is not a sample's file.")
        records = tuple(Record(UUID(each["log_id"]), tuple(each["stratum"])) for each in body["records"])
        sample = Sample(
            UUID(body["sample"]), body["statement"], int(body["leaf_index"]), str(body["head"]), bytes.fromhex(body["seed"]), records
        )  # fmt: skip
        (
            wish_of(sample.statement),
            heads_of(sample.statement),
            counts_of(sample.statement),
            seed_of(sample.head),
        )
    except (KeyError, TypeError, ValueError):
        raise SampleError("This is not a sample's file.") from None
    return sample


def time_text(moment: datetime | None) -> str | None:
    """As in a row."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if moment else None
