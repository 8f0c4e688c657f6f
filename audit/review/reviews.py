"""The queue of a sample: hands out records to reviewers, takes their verdicts, and reads them back.

A verdict is a sealed row of the log and nothing else: no table has to agree with it. Two verdicts on one record are given one
after the other, under a lock of the database; what `rubric.standing_of` counts would hold without it too.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.access.access import Access
from audit.errors import ReviewRefusedError, ReviewUnavailableError, SampleError
from audit.proof.canonical import canonical_json
from audit.proof.record import Trail
from audit.review.report import ReviewReport, report_of
from audit.review.rubric import Judgement, Marks, Standing, marks_of, standing_of
from audit.review.sample import OTHER_POPULATIONS, OtherPopulation, Sample, read_sample

DRAWING, GIVING, ADJUDICATING, READING = (
    "audit sample draw", "audit review give", "audit review adjudicate", "audit review next"
)  # fmt: skip
READ = (
    "user_query_text",
    "selected_text",
    "answer_text",
    "citations",
)  # the personal columns that a reviewer sees

_DRAWN = """
SELECT details -> 'sample' AS sample, reason, timestamp FROM public.audit_logs
WHERE endpoint = 'affidavit audit sample draw' AND outcome = 'recorded' AND details IS NOT NULL
  AND (%(sample)s::text IS NULL OR details -> 'sample' ->> 'sample' = %(sample)s)
ORDER BY timestamp DESC LIMIT %(most)s
"""
_VERDICTS = """
SELECT log_id, timestamp, client_id, endpoint, split_part(reason, ' ', 4)::uuid AS record, details FROM public.audit_logs
WHERE endpoint IN ('affidavit audit review give', 'affidavit audit review adjudicate') AND outcome = 'recorded'
  AND reason LIKE %s
"""
# A verdict may be in any month from the sample's own on.
_ARCHIVED = """
SELECT to_char(month, 'YYYY-MM') AS month FROM (
    SELECT DISTINCT ON (month) month, state FROM public.audit_archives ORDER BY month, step DESC
) newest
WHERE state IN ('detached', 'dropped') AND month >= date_trunc('month', %s::timestamptz AT TIME ZONE 'UTC') ORDER BY month
"""
_ERASED = "SELECT DISTINCT log_id FROM public.audit_erasures WHERE log_id = ANY (%s)"
# Without the confidence: whoever knows it judges it.
_RECORD = """
SELECT log_id, query_id, timestamp, book_id, outcome, reason, user_query_text, selected_text, answer_text, citations
FROM public.audit_logs WHERE log_id = %s AND erased_at IS NULL
"""
_LOCK = "SELECT audit_lock('review')"
SAMPLES_MAX = 100

Role = Literal["auditor", "reviewer", "lead"]
Task = Literal["review", "adjudicate"]

# An event of the log by its command, who acts and what it is about; durable when the block has ended.
ReviewEvent = Callable[..., AbstractAsyncContextManager[Trail]]


@dataclass(frozen=True, slots=True)
class Person:
    """Who acts: the client of an API key, and the role that its scopes give."""

    name: str
    role: Role
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """What another reviewer said, for whoever adjudicates."""

    reviewer: str
    marks: Marks


@dataclass(frozen=True, slots=True)
class RecordToJudge:
    """A record as a reviewer sees it. `given` is empty for a review: that is blind."""

    sample_id: UUID
    task: Task
    log_id: UUID
    query_id: UUID
    asked_at: datetime
    book_id: str | None
    outcome: str
    reason: str | None
    question: str | None
    selected_text: str | None
    answer: str | None
    citations: list[dict[str, Any]]
    given: tuple[Given, ...] = ()


@dataclass(frozen=True, slots=True)
class Queue:
    """A sample with how far it is."""

    sample: Sample
    standings: Mapping[UUID, Standing]
    erased: frozenset[UUID]
    log_ids: frozenset[UUID]  # of the sample

    @property
    def basis(self) -> str:
        """Why its records are read: a drawn record is shown to those who judge it, and no other is."""
        return f"review of sample {self.sample.sample_id}"

    def for_person(self, person: Person) -> list[tuple[UUID, Task]]:
        """What this person can do now, in the order of the sample."""
        return [
            (each.log_id, task) for each in self.sample.records if (task := self.task(each.log_id, person))
        ]

    def task(self, log_id: UUID, person: Person) -> Task | None:
        """None: nothing for this person, who then may not read it here either."""
        if log_id not in self.log_ids:
            return None
        standing = self.standings.get(log_id, Standing())
        if standing.has_judged(person.name) or log_id in self.erased or person.role == "auditor":
            return None
        if standing.state == "disputed":
            return "adjudicate" if person.role == "lead" else None
        return "review" if standing.state == "open" else None

    def columns(self, log_id: UUID, person: Person) -> tuple[str, ...]:
        """The personal columns that this person sees of it; who decides between two also sees their verdicts, which are `details`."""
        return (*READ, "details") if self.task(log_id, person) == "adjudicate" else READ

    def report(self) -> ReviewReport:
        return report_of(self.sample, self.standings, self.erased)


@dataclass(frozen=True, slots=True)
class Reviews:
    """Reads in the auditor's role, on autocommit connections; writes only events of the log.

    `writers` are connections in the engine's role: no reader of the log can take the lock, and so hold up a verdict.
    """

    pool: AsyncConnectionPool
    writers: AsyncConnectionPool
    event: ReviewEvent

    async def keep(self, sample: Sample) -> None:
        """Put a drawn sample on record, once: its records are the queue from now on."""
        async with self._alone() as connection:
            if await _fetch(connection, _DRAWN, {"sample": str(sample.sample_id), "most": 1}):
                return
            async with self.event(DRAWING, sample=sample.as_json()) as trail:
                trail.reason = _reason_of(sample)

    async def samples(self) -> list[Sample]:
        """The newest first."""
        async with self._connected() as connection:
            found = await _fetch(connection, _DRAWN, {"sample": None, "most": SAMPLES_MAX})
        return [_sample(row) for row in found]

    async def queue(self, sample_id: UUID | None = None) -> Queue:
        """Of this sample, or of the newest."""
        async with self._connected() as connection:
            return await _queue(connection, sample_id)

    async def others(self, sample_id: UUID) -> list[OtherPopulation]:
        """That were stated over the same days as this sample's."""
        async with self._connected() as connection:
            found = await (await connection.execute(OTHER_POPULATIONS.encode(), (sample_id,))).fetchall()
        return [OtherPopulation(*row) for row in found]

    async def next(self, person: Person, sample_id: UUID | None = None) -> RecordToJudge | None:
        """What this person judges next, and puts on record that it was read. None: there is nothing to do."""
        _require(person, "reviewer")
        queue = await self.queue(sample_id)
        waiting = queue.for_person(person)
        if not waiting:
            return None
        columns = queue.columns(waiting[0][0], person)
        read = Access(person.name, f"record {waiting[0][0]}", columns, person.role, queue.basis, records=1)
        who = {"client_id": person.name, "key_id": person.key_id}
        async with self.event(READING, **who, access=read.as_details()):
            return await self.read(queue, waiting[0][0], person)

    async def read(self, queue: Queue, log_id: UUID, person: Person) -> RecordToJudge:
        """The record as this person may see it. The caller puts on record that it was read."""
        task = queue.task(log_id, person)
        if task is None:
            raise ReviewRefusedError("There is nothing for you to judge in this record.")
        async with self._connected() as connection:
            found = await _fetch(connection, _RECORD, (log_id,))
        if not found:
            raise ReviewRefusedError(
                f"The record {log_id} is in no table of the database: bring its month back with `affidavit audit restore`."
            )
        row = found[0]
        reviews = queue.standings[log_id].reviews if task == "adjudicate" else ()
        return RecordToJudge(
            queue.sample.sample_id, task, log_id, row["query_id"], row["timestamp"], row["book_id"], row["outcome"], row["reason"],
            row["user_query_text"], row["selected_text"], row["answer_text"], row["citations"] or [],
            tuple(Given(each.reviewer, each.marks) for each in reviews if each.marks),
        )  # fmt: skip

    async def give(self, person: Person, log_id: UUID, marks: Marks, sample_id: UUID | None = None) -> None:
        """A blind verdict. `ReviewRefusedError` if this person gave one before, or two others did."""
        await self._judge(person, log_id, marks, sample_id, "review")

    async def adjudicate(
        self, person: Person, log_id: UUID, marks: Marks, sample_id: UUID | None = None
    ) -> None:
        """Decides between two that differ. `ReviewRefusedError` if they do not, or if this person is one of the two."""
        await self._judge(person, log_id, marks, sample_id, "adjudicate")

    async def _judge(
        self, person: Person, log_id: UUID, marks: Marks, sample_id: UUID | None, task: Task
    ) -> None:
        """A refused attempt leaves its record too, as one that failed."""
        marks.check()
        named = (await self.queue(sample_id)).sample.sample_id
        command = GIVING if task == "review" else ADJUDICATING
        about = {"sample": str(named), "record": str(log_id)} | asdict(marks)
        async with (
            self._alone() as connection,
            self.event(command, client_id=person.name, key_id=person.key_id, **about) as trail,
        ):
            _check(await _queue(connection, named), person, log_id, task)
            trail.reason = f"sample {named} record {log_id}"

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """One verdict or sample after the other: none is on record twice."""
        async with self._connected(self.writers) as locking, locking.transaction():
            await locking.execute(_LOCK)
            async with self._connected() as connection:
                yield connection

    @asynccontextmanager
    async def _connected(
        self, pool: AsyncConnectionPool | None = None
    ) -> AsyncIterator[psycopg.AsyncConnection]:
        """The driver's messages are not passed on: they may contain what a reader asked."""
        try:
            async with (pool or self.pool).connection() as connection:
                yield connection
        except (psycopg.Error, PoolTimeout) as failure:
            raise ReviewUnavailableError(
                f"The database is unavailable ({type(failure).__name__}). Try again; a verdict is on record once the command says so."
            ) from None


async def _queue(connection: psycopg.AsyncConnection, sample_id: UUID | None) -> Queue:
    named = str(sample_id) if sample_id else None
    drawn = await _fetch(connection, _DRAWN, {"sample": named, "most": 1})
    if not drawn:
        what = f"no drawn sample {sample_id}" if sample_id else "no sample yet"
        raise ReviewRefusedError(f"There is {what}: draw one with `affidavit audit sample`.")
    sample = _sample(drawn[0])
    await _require_months(connection, drawn[0]["timestamp"])
    verdicts = defaultdict(list)
    for row in await _fetch(connection, _VERDICTS, (f"sample {sample.sample_id} record %",)):
        verdicts[row["record"]].append(_verdict(row))
    log_ids = [record.log_id for record in sample.records]
    erased = frozenset(row["log_id"] for row in await _fetch(connection, _ERASED, (log_ids,)))
    standings = {log_id: standing_of(found) for log_id, found in verdicts.items()}
    return Queue(sample, standings, erased, frozenset(log_ids))


async def _require_months(connection: psycopg.AsyncConnection, since: datetime) -> None:
    """Without a month's verdicts a report would count too few, and people would judge again."""
    if archived := [row["month"] for row in await _fetch(connection, _ARCHIVED, (since,))]:
        raise ReviewRefusedError(
            f"Verdicts on this sample may be in an archived month: bring {', '.join(archived)} back with `affidavit audit restore`."
        )


async def _fetch(connection: psycopg.AsyncConnection, statement: str, values: Any) -> list[dict[str, Any]]:
    async with connection.cursor(row_factory=dict_row) as cursor:
        return [*await (await cursor.execute(statement.encode(), values)).fetchall()]


def _check(queue: Queue, person: Person, log_id: UUID, task: Task) -> None:
    _require(person, "lead" if task == "adjudicate" else "reviewer")
    if log_id not in queue.log_ids:
        raise ReviewRefusedError(f"The record {log_id} is not in the sample {queue.sample.sample_id}.")
    if log_id in queue.erased:
        raise ReviewRefusedError("The record was erased: there is nothing left to judge.")
    standing = queue.standings.get(log_id, Standing())
    if standing.has_judged(person.name):
        raise ReviewRefusedError(
            f"{person.name} has judged this record, and a verdict stays: only the adjudication of a lead replaces it."
        )
    if queue.task(log_id, person) != task:
        raise ReviewRefusedError(_NOT_NOW[task, standing.state])


_NOT_NOW = {
    ("review", "disputed"): "Two reviewers have judged this record, and differ: a lead adjudicates it.",
    ("review", "final"): "Two reviewers have judged this record.",
    ("adjudicate", "open"): "Two reviewers have not judged this record yet: there is nothing to adjudicate.",
    ("adjudicate", "final"): "The verdict on this record is final.",
}


def _require(person: Person, least: Role) -> None:
    allowed = {"reviewer": ("reviewer", "lead"), "lead": ("lead",)}[least]
    if person.role not in allowed:
        raise ReviewRefusedError(f"This needs the role {least}; {person.name} is {person.role}.")


def _reason_of(sample: Sample) -> str:
    return f"sample {sample.sample_id} drawn {sha256(sample.file()).hexdigest()}"


def _sample(row: Mapping[str, Any]) -> Sample:
    sample = read_sample(canonical_json(row["sample"]) + b"\n")
    if row["reason"] != _reason_of(sample):
        raise SampleError("The row of this sample was changed. Run `affidavit audit verify`.")
    return sample


def _verdict(row: Mapping[str, Any]) -> Judgement:
    marks = marks_of(row["details"]) if row["details"] is not None else None
    kind: Literal["review", "adjudication"] = (
        "review" if row["endpoint"].endswith(" give") else "adjudication"
    )
    return Judgement(row["log_id"], row["timestamp"], row["client_id"] or "", kind, marks)
