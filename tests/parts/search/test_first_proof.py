"""A record's page does not wait for the first proof of a large month, and the proof goes on without it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from uuid import UUID

import pytest

from audit.checking.prover import Prover
from audit.package.ladder import Rung
from audit.proof.record import Row
from audit.proof.verdict import Verdict
from audit.search import reading
from audit.search.reading import RecordReader
from engine.storage.database import AUDITOR, Database, open_lazily
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log


@pytest.fixture
async def log(anyio_backend: str, database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


class SlowProver(Prover):
    """It reads a million leaves."""

    may_end: asyncio.Event

    async def prove(self, row: Row) -> bytes:
        await self.may_end.wait()
        return await super().prove(row)


# Seen red without the shield: the page that had given up took the proof along, and the next one began again.
async def test_a_page_does_not_wait_for_the_first_proof_of_a_month(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PATIENCE_S", 0.0)
    query_id = UUID(log.rows[FEBRUARY, 3]["query_id"])
    async with open_lazily(log.url, AUDITOR, size_max=2, wait_s=5) as pool:
        prover = SlowProver(pool)
        prover.may_end = asyncio.Event()
        reader = RecordReader(pool, prover)
        record = await reader.record(query_id, log.keys)
        assert record
        rungs = {each.rung: each for each in record.rungs}
        assert rungs[Rung.WORDS].verdict is not Verdict.CANNOT_TELL
        assert rungs[Rung.ROW].verdict is Verdict.CANNOT_TELL
        assert "Load this page again" in rungs[Rung.ROW].words
        (proving,) = prover._proving
        prover.may_end.set()
        assert b"affidavit proof" in await proving
        monkeypatch.setattr(reading, "PATIENCE_S", 60.0)
        record = await reader.record(query_id, log.keys)
        assert record
        assert {each.rung: each.verdict for each in record.rungs}[Rung.LEAF] is Verdict.VALID
        await prover.close()


async def test_what_nobody_waits_for_any_more_ends_with_the_engine(log: SealedLog) -> None:
    async with open_lazily(log.url, AUDITOR, size_max=2, wait_s=5) as pool:
        prover = SlowProver(pool)
        prover.may_end = asyncio.Event()
        proving = prover.begin(log.rows[FEBRUARY, 3])
        await prover.close()
        assert proving.cancelled()


class CountingProver(Prover):
    """Notes which leaves it reads to make the root of a chunk."""

    chunks: list[int]

    async def _read_chunk(self, month: date, roots: list[bytes]) -> None:
        self.chunks.append(len(roots))
        await super()._read_chunk(month, roots)


# Seen red without the lock: each of eight auditors read the whole month.
async def test_pages_that_need_the_same_month_read_it_once(
    log: SealedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.checking.prover.CHUNK_LEAVES", 2)
    async with open_lazily(log.url, AUDITOR, size_max=4, wait_s=5) as pool:
        prover = CountingProver(pool)
        prover.chunks = []
        row = await prover.row(UUID(log.rows[FEBRUARY, 3]["query_id"]))
        proofs = await asyncio.gather(*(prover.prove(row) for _ in range(8)))
        assert len(set(proofs)) == 1
        assert prover.chunks == sorted(set(prover.chunks)) != []
