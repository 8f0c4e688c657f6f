"""A log in a database and a vault of its own, sealed and anchored by the real sealer, and put back after each attack."""

import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.checking.evidence import LAST_MOMENT, Period, StoredEvidence
from audit.checking.inspection import inspect
from audit.checking.prover import Prover
from audit.erasure.erase import Eraser, ErasureReport, Event
from audit.erasure.target import ErasureTarget
from audit.ledger.ledger import Ledger
from audit.proof.keys import PublicKey, SigningKey, public_file, read_public_keys
from audit.proof.record import SIGNED_FROM, Row, Trail
from audit.proof.verdict import Finding, Report
from audit.sealing.publication import Witnessing
from audit.sealing.sealer import Sealer
from audit.vault import FolderVault, Vault
from engine.admission.operator_events import OperatorEvents
from engine.ports import Clock
from engine.storage.database import AUDITOR, Database, open_lazily, reading
from engine.wiring import now
from tests.databases import copied_database, new_database
from tests.logs.recorded import make_months, write

JANUARY, FEBRUARY = date(2025, 1, 1), date(2025, 2, 1)
EVIDENCE = (
    "audit_logs", "audit_leaves", "audit_checkpoints", "audit_anchors", "audit_keys", "audit_origin", "audit_erasures",
    "audit_breaks", "audit_set_aside", "audit_head_entries", "audit_heads", "audit_head_anchors",
    "audit_holds", "audit_erasure_requests", "audit_hold_subjects",
)  # fmt: skip
LEFT_EMPTY = ("audit_open", "audit_row_keys", "chat_sessions", "chat_messages", "source_citations")
EVER = Period(datetime.min.replace(tzinfo=UTC), LAST_MOMENT)


def quiet(_: str, __: int, ___: int) -> None: ...


def whole_trail(month: date, place: int, **given: Any) -> Trail:
    """Every column filled, so that every column can be attacked."""
    fields: dict[str, Any] = {
        "log_id": uuid4(), "query_id": uuid4(), "answer_id": uuid4(),
        "timestamp": datetime(month.year, month.month, 10, 12, tzinfo=UTC) + timedelta(minutes=place),
        "user_query_text": f"Was misst „eine“ IMU? 🤖 {place}", "source_mode": "full-book", "retrieval_query": "IMU",
        "chunks_retrieved_count": 50, "retrieval_latency_ms": 12, "llm_prompt": "p", "llm_response": "r",
        "chunks_returned": [{"chunk_id": "ab", "cosine": 0.1 + 0.2, "bm25": 1e-7, "score": 1.0, "rerank": None}],
        "answer_text": "It measures …", "confidence_score": 1 / 3, "success": True, "error_message": "none",
        "citations": [{"n": 1, "excerpt": "é", "start": 0, "end": 10**12}], "request_id": "r", "client_id": "c",
        "key_id": "k", "end_user": "user:1", "client_address": "::1", "session_id": uuid4(), "book_id": "b",
        "endpoint": "/v1/query", "http_status": 200, "outcome": "answered", "reason": "r", "error_type": "e",
        "selected_text": "s", "filters": {"tags": ["ä"], "module": 3, "chapter": None}, "top_k": 5,
        "confidence_level": "low", "retrieval_confidence": 0.7, "generation_confidence": 0.3,
        "index_generation": uuid4(), "embedder": "m", "calibration_id": "i", "threshold": 0.6,
        "model_requested": "x", "model_used": "y", "provider_request_id": "z", "stop_reason": "end",
        "tokens_input": 1, "tokens_output": 2, "generation_latency_ms": 3, "total_latency_ms": 4,
        "limit_decision": "admitted", "prompt_sha256": "0", "settings_sha256": "1", "code_version": "2",
        "calibration_kind": "self", "best_score": 2 / 3, "filter_message": "ü", "rerank": "r",
        "released_text": "s", "instruction_like": ["question", "ab"], "details": {"sql": "SELECT 1"},
        "writer": uuid4(), "sequence": 1, "heartbeat": {"through": 0, "unrecorded": []},
    }  # fmt: skip
    if given.get("schema_version", SIGNED_FROM) < SIGNED_FROM:
        given = {"writer": None, "sequence": None, "heartbeat": None} | given
    return Trail(**(fields | given))


@dataclass(slots=True)
class SealedLog:
    database: Database
    folder: Path
    key: SigningKey
    rows: dict[tuple[date, int], Row] = field(default_factory=dict)  # by their leaf

    def __post_init__(self) -> None:
        """Whoever opens it finds its key, as in an installation."""
        settings = self.database.settings.model_copy(update={"data_dir": self.folder})
        self.database = Database(self.database.url, settings)

    @property
    def url(self) -> str:
        return self.database.url

    @property
    def vault(self) -> FolderVault:
        return FolderVault(self.folder / "vault")

    @property
    def keys(self) -> list[PublicKey]:
        return read_public_keys(public_file(self.folder / "signing.key"))

    def log_id(self, month: date, index: int) -> str:
        return str(self.rows[month, index]["log_id"])

    def write(self, month: date, *places: int, is_signed: bool | None = None, **given: Any) -> None:
        """As the engine of the time of their schema version; or signed all the same, as when a spool was drained."""
        is_new = given.get("schema_version", SIGNED_FROM) >= SIGNED_FROM
        key = self.key if is_signed or is_new else None
        with psycopg.connect(self.url) as connection:
            for place in places:
                self.rows[month, place] = write(connection, whole_trail(month, place, **given), key=key)

    async def seal(
        self, key: SigningKey | None = None, vault: Vault | None = None, *, may_begin_vault: bool = False
    ) -> dict[date, str]:
        """What could not be sealed, and why."""
        async with self.sealer(key, vault, may_begin_vault=may_begin_vault) as sealer:
            await sealer.seal_once()
            assert sealer.stopped == ""
            return sealer.failures

    @asynccontextmanager
    async def sealer(
        self,
        key: SigningKey | None = None,
        vault: Vault | None = None,
        witnessing: Witnessing | None = None,
        *,
        may_begin_vault: bool = False,
    ) -> AsyncIterator[Sealer]:
        async with self.database.pool("affidavit_sealer") as pool:
            yield Sealer(
                pool, key or self.key, lambda: [*self.keys, *([key.public] if key else [])], vault or self.vault,
                seal_every_s=5, anchor_every_s=30, clock=now, monotonic=time.monotonic, may_begin_vault=may_begin_vault,
                witnessing=witnessing,
            )  # fmt: skip

    def inspect(
        self, keys: list[PublicKey] | None = None, period: Period = EVER, vault: Vault | None = None
    ) -> Report:
        with reading(self.url, AUDITOR) as connection:
            evidence = StoredEvidence(connection, vault or self.vault, period, now())
            evidence.begin()
            return inspect(evidence, self.keys if keys is None else keys, quiet)

    async def prove(self, row: Row) -> bytes:
        async with open_lazily(self.url, AUDITOR, size_max=1, wait_s=5) as pool:
            prover = Prover(pool)
            return await prover.prove(await prover.row(UUID(row["query_id"])))

    async def erase(self, target: ErasureTarget, basis: str = "a wish", clock: Clock = now) -> ErasureReport:
        """As the commands do it, with a ledger that needs the database itself."""
        async with self.erasing(clock=clock) as (eraser, event):
            return await eraser.erase(target, basis, event)

    @asynccontextmanager
    async def erasing(
        self, within_s: float = 5.0, spool: Path | None = None, clock: Clock = now
    ) -> AsyncIterator[tuple[Eraser, Event]]:
        async with (
            self.open_ledger() as ledger,
            self.database.pool("affidavit_archiver", has_autocommit=True) as pool,
        ):
            operator_events = OperatorEvents(lambda: nullcontext(ledger), clock, uuid4)
            eraser = Eraser(
                pool, self.key, lambda: self.keys, spool, within_s=within_s, monotonic=time.monotonic, new_id=uuid4
            )  # fmt: skip
            yield eraser, partial(operator_events.event, "audit erase")

    @asynccontextmanager
    async def open_ledger(self) -> AsyncIterator[Ledger]:
        async with self.database.pool("affidavit_engine", has_autocommit=True) as pool:
            ledger = Ledger(pool, self.key, now, public_keys=lambda: self.keys, within_s=5.0)
            await ledger.start()
            try:
                yield ledger
            finally:
                await ledger.stop()

    def attack(self, *statements: str, **values: Any) -> None:
        """As a superuser whom no trigger stops."""
        with psycopg.connect(self.url) as connection:
            connection.execute("SET session_replication_role = replica")
            for statement in statements:
                assert connection.execute(statement.encode(), values or None).rowcount != 0, statement

    def keep(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute("DROP SCHEMA IF EXISTS before CASCADE")
            connection.execute("CREATE SCHEMA before")
            for table in EVIDENCE:
                connection.execute(f"CREATE TABLE before.{table} AS SELECT * FROM {table}".encode())
        shutil.rmtree(self.folder / "kept", ignore_errors=True)
        shutil.copytree(self.folder / "vault", self.folder / "kept")

    def restore(self) -> None:
        """By DELETE: TRUNCATE makes files for each partition and index anew, which is most of a small test's time."""
        with psycopg.connect(self.url) as connection:
            connection.execute("SET session_replication_role = replica")
            make_months(connection, (JANUARY, FEBRUARY))
            for table in LEFT_EMPTY:
                connection.execute(f"DELETE FROM {table}".encode())
            for table in EVIDENCE:
                connection.execute(f"DELETE FROM {table}".encode())
                connection.execute(f"INSERT INTO {table} SELECT * FROM before.{table}".encode())
        shutil.rmtree(self.folder / "vault")
        shutil.copytree(self.folder / "kept", self.folder / "vault")


@asynccontextmanager
async def sealed_log(database: Database, folder: Path) -> AsyncIterator[SealedLog]:
    """January with 5 records; February with 12, in trees of 4, 8 and 12, each anchored.

    It is a copy of one that is made once. Two that are open at the same time are different logs.
    """
    server = make_conninfo(database.url, dbname="postgres")
    number = next(number for number in count() if (server, number) not in _OPEN)
    _OPEN.add((server, number))
    try:
        if (server, number) not in _KEPT:
            _KEPT[server, number] = await _keep_sealed_log(database)
        with _KEPT[server, number].copied(database, folder) as log:
            yield log
    finally:
        _OPEN.remove((server, number))


@asynccontextmanager
async def longer_log(database: Database, folder: Path, rows: int) -> AsyncIterator[SealedLog]:
    """With so many more records of January, sealed after the others: enough for several ranges."""
    async with sealed_log(database, folder) as log:
        log.write(JANUARY, *range(100, 100 + rows))
        assert await log.seal() == {}
        yield log


@dataclass(frozen=True, slots=True)
class _KeptLog:
    """A database that nobody is connected to, and the files beside it."""

    database: str
    files: dict[Path, tuple[int, bytes]]
    rows: dict[tuple[date, int], Row]

    @contextmanager
    def copied(self, database: Database, folder: Path) -> Iterator[SealedLog]:
        for name, (mode, content) in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            (folder / name).chmod(mode)
        with copied_database(database, self.database) as url:
            key = SigningKey.load(folder / "signing.key")
            yield SealedLog(Database(url, database.settings), folder, key, deepcopy(self.rows))


_KEPT: dict[tuple[str, int], _KeptLog] = {}
_OPEN: set[tuple[str, int]] = set()


async def _keep_sealed_log(database: Database) -> _KeptLog:
    """Its database stays until the server goes."""
    url = new_database(database)
    made = Database(url, database.settings)
    made.migrate()
    with TemporaryDirectory() as name:
        folder = Path(name)
        log = SealedLog(made, folder, SigningKey.create(folder / "signing.key"))
        with psycopg.connect(url) as inside:
            make_months(inside, (JANUARY, FEBRUARY))
        log.write(JANUARY, *range(5))
        for begin in range(0, 12, 4):
            log.write(FEBRUARY, *range(begin, begin + 4))
            assert await log.seal() == {}
        log.keep()
        files = {
            file.relative_to(folder): (file.stat().st_mode, file.read_bytes())
            for file in folder.rglob("*")
            if file.is_file()
        }
    return _KeptLog(str(conninfo_to_dict(url)["dbname"]), files, log.rows)


def places(report: Report) -> set[tuple[str, str, str | None, int | None]]:
    return {place(finding) for finding in report.findings}


def place(finding: Finding) -> tuple[str, str, str | None, int | None]:
    month = f"{finding.month:%Y-%m}" if finding.month else None
    return str(finding.verdict), finding.what, month, finding.leaf_index
