"""Twenty kinds of tampering by a superuser whom no trigger stops, while the writer, its heartbeats and the sealer are at work.

Each is found, and where it was; docs/explanation/threat-model.md names what nobody can find, and why.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from audit.checking.status import read_status
from audit.ledger.heartbeat import Heartbeat
from audit.ledger.ledger import Ledger
from audit.proof.record import PERSONAL, Row, Trail, row_of
from audit.sealing.sealer import Sealer
from engine.storage.database import Database
from engine.wiring import now
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, sealed_log, whole_trail
from tests.logs.writers import KEY as STRANGER
from tests.logs.writers import trail

LEAF = 5
WAIT_S = 20
_LEAF = "SELECT 1 FROM audit_leaves WHERE log_id = %s"


@dataclass(slots=True)
class Attacked:
    """A log at work, the row of February that most attacks are aimed at, and a row that is not sealed yet."""

    log: SealedLog
    attacker: psycopg.Connection
    ledger: Ledger
    unsealed: Trail

    @property
    def victim(self) -> str:
        return self.log.log_id(FEBRUARY, LEAF)

    def run(self, statement: str, **values: object) -> None:
        assert self.attacker.execute(statement.encode(), values or None).rowcount != 0, statement

    def insert(self, forged: Trail, *, signed_by_stranger: bool = False) -> str:
        made: Row = write(self.attacker, forged, key=STRANGER if signed_by_stranger else None)
        return str(made["log_id"])


@pytest.fixture(scope="module")
async def whole(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("tampered")) as log:
        with psycopg.connect(log.url) as connection:
            make_months(connection, [now().date()])
        yield log


@pytest.fixture
def log(whole: SealedLog) -> Iterator[SealedLog]:
    with psycopg.connect(whole.url) as connection:
        functions = connection.execute(
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname IN ('audit_write', 'audit_holds')"
        ).fetchall()
    yield whole
    with psycopg.connect(whole.url) as connection:
        for (definition,) in functions:
            connection.execute(definition)
    whole.restore()


@asynccontextmanager
async def at_work(log: SealedLog) -> AsyncIterator[Attacked]:
    """While the block runs, nothing is sealed: the attacker holds the sealers' lock. Afterwards the sealer meets what was done."""
    async with (
        log.database.pool("affidavit_engine", 4, has_autocommit=True) as writing,
        log.database.pool("affidavit_sealer") as sealing,
    ):
        ledger = Ledger(writing, log.key, now, public_keys=lambda: log.keys, within_s=5.0)
        sealer = Sealer(
            sealing, log.key, lambda: log.keys, log.vault, seal_every_s=0.02, anchor_every_s=0.1, clock=now,
            monotonic=time.monotonic,
        )  # fmt: skip
        await ledger.start()
        async with sealer.running():
            async with Heartbeat(ledger, now, uuid4).beating():
                await record(ledger)
                with (
                    psycopg.connect(log.url) as holder,
                    psycopg.connect(log.url, autocommit=True) as attacker,
                ):
                    holder.execute("SELECT audit_lock('seal')")
                    attacker.execute("SET session_replication_role = replica")
                    unsealed = await record(ledger)
                    yield Attacked(log, attacker, ledger, unsealed)
                last = await record(ledger)
                await sealed(log, last.log_id)
            await ledger.stop()


async def record(ledger: Ledger, text: str = "What is it?") -> Trail:
    asked = trail(user_query_text=text)
    await ledger.open(asked)
    await ledger.close(asked, now())
    return asked


async def sealed(log: SealedLog, log_id: UUID) -> None:
    """What the sealer does can only be looked for."""
    with psycopg.connect(log.url, autocommit=True) as connection:
        async with asyncio.timeout(WAIT_S):
            while not connection.execute(_LEAF, (log_id,)).fetchone():  # noqa: ASYNC110  nobody rings a bell
                await asyncio.sleep(0.02)


Attack = Callable[[Attacked], object]


def inserted(**given: object) -> Attack:
    return lambda it: it.insert(whole_trail(given.pop("month", FEBRUARY), 99, **given))  # type: ignore[arg-type]


def copied_signature(it: Attacked) -> None:
    forged = it.insert(whole_trail(FEBRUARY, 99))
    it.run(
        "UPDATE audit_logs SET signature = (SELECT signature FROM audit_logs WHERE log_id = %(victim)s)"
        " WHERE log_id = %(forged)s",
        victim=it.victim, forged=forged,
    )  # fmt: skip


def foreign_key(it: Attacked) -> None:
    it.run(
        "INSERT INTO audit_keys VALUES (%(id)s, %(key)s, now())", id=STRANGER.key_id, key=str(STRANGER.public)
    )
    it.insert(whole_trail(FEBRUARY, 99), signed_by_stranger=True)


def with_a_leaf(it: Attacked) -> None:
    forged = it.insert(whole_trail(FEBRUARY, 99))
    it.run(
        "INSERT INTO audit_leaves SELECT '2025-02-01', 12, log_id, leaf_hash, now() FROM audit_logs WHERE log_id = %(forged)s",
        forged=forged,
    )


def on_victim(*statements: str) -> Attack:
    def attack(it: Attacked) -> None:
        for statement in statements:
            it.run(statement, victim=it.victim)

    return attack


def on_unsealed(statement: str) -> Attack:
    return lambda it: it.run(statement, unsealed=it.unsealed.log_id)


def made_to_fit(it: Attacked) -> None:
    """A row of the attacker's own under the old id, and its leaf."""
    it.run("DELETE FROM audit_logs WHERE log_id = %(victim)s", victim=it.victim)
    made = write(
        it.attacker, whole_trail(FEBRUARY, LEAF, log_id=UUID(it.victim), answer_text="Something else.")
    )
    it.run(
        "UPDATE audit_leaves SET leaf_hash = %(leaf)s::bytea WHERE log_id = %(victim)s",
        leaf=made["leaf_hash"], victim=it.victim,
    )  # fmt: skip


def unsealed_replaced(it: Attacked) -> None:
    """Before it is sealed, the row of a request becomes another one, with a hash that fits and the signature that it had."""
    other = replace(it.unsealed, answer_text="Something else.")
    (signature,) = it.attacker.execute(
        "DELETE FROM audit_logs WHERE log_id = %s RETURNING signature", (it.unsealed.log_id,)
    ).fetchone() or (None,)
    write(it.attacker, other)
    it.run("UPDATE audit_logs SET signature = %(s)s WHERE log_id = %(i)s", s=signature, i=it.unsealed.log_id)


async def skipping_audit_write(it: Attacked) -> None:
    holds = "CREATE OR REPLACE FUNCTION audit_holds(rows json) RETURNS boolean LANGUAGE sql AS 'SELECT true'"
    it.attacker.execute(holds)
    (definition,) = it.attacker.execute("SELECT pg_get_functiondef('audit_write'::regproc)").fetchone() or (
        "",
    )
    into = "json_populate_recordset(NULL::audit_logs, closed)"
    assert into in definition
    it.attacker.execute(definition.replace(into, f"{into} WHERE user_query_text NOT LIKE 'secret%'"))
    await record(it.ledger, "secret")


def forged_open(it: Attacked) -> None:
    made = whole_trail(FEBRUARY, 99, outcome="open", timestamp=now())
    it.run(
        "INSERT INTO audit_open (log_id, opened_at, owner, trail) VALUES (%(i)s, now(), 5, %(t)s)",
        i=made.log_id, t=Jsonb(row_of(made)),
    )  # fmt: skip


PERSONAL_GONE = f"""
UPDATE audit_logs SET {", ".join(f"{name} = NULL" for name in sorted(PERSONAL))}, salt = NULL, erased_at = now()
WHERE log_id = %(victim)s
"""
SWAPPED = """
UPDATE audit_leaves a SET leaf_hash = b.leaf_hash FROM audit_leaves b
WHERE a.month = '2025-02-01' AND b.month = a.month AND a.leaf_index + b.leaf_index = 11 AND a.leaf_index IN (5, 6)
"""
ROW = ("TAMPERED", "row", "2025-02", LEAF)
UNSIGNED = ("TAMPERED", "row", "2025-02", None)
GONE = ("MISSING", "row")  # its number is missing between two heartbeats

KINDS: dict[str, tuple[Attack, tuple[object, ...]]] = {
    "1 a row inserted with its own hash": (inserted(), UNSIGNED),
    "2 a row with another row's signature": (copied_signature, UNSIGNED),
    "3 a row signed by a key in audit_keys": (foreign_key, UNSIGNED),
    "4 a row that claims an older version": (inserted(schema_version=3), UNSIGNED),
    "5 a row in an old month": (inserted(month=JANUARY), ("TAMPERED", "row", "2025-01", None)),
    "6 an operator's event": (inserted(endpoint="affidavit keys revoke", outcome="recorded"), UNSIGNED),
    "7 a row with a leaf": (with_a_leaf, ("TAMPERED", "leaf", "2025-02", 12)),
    "8 an answer changed": (on_victim("UPDATE audit_logs SET answer_text = 'x' WHERE log_id = %(victim)s"), ROW),
    "9 a row and its leaf made to fit": (made_to_fit, ("TAMPERED", "leaf", "2025-02", LEAF)),
    "10 a signature taken away": (on_victim("UPDATE audit_logs SET signature = NULL WHERE log_id = %(victim)s"), ROW),
    "11 a row emptied as if erased": (on_victim(PERSONAL_GONE), ("CANNOT_TELL", "row", "2025-02", LEAF)),
    "12 a row moved to another time": (
        on_victim("UPDATE audit_logs SET timestamp = timestamp + interval '1 day' WHERE log_id = %(victim)s"), ROW,
    ),
    "13 a row deleted": (
        on_victim("DELETE FROM audit_logs WHERE log_id = %(victim)s"), ("MISSING", "row", "2025-02", LEAF),
    ),
    "14 a row deleted with its leaf": (
        on_victim("DELETE FROM audit_logs WHERE log_id = %(victim)s", "DELETE FROM audit_leaves WHERE log_id = %(victim)s"),
        ("MISSING", "leaf", "2025-02", LEAF),
    ),
    "15 two leaves swapped": (on_victim(SWAPPED), ("TAMPERED", "leaf", "2025-02", LEAF)),
    "16 the last checkpoint deleted": (
        on_victim("DELETE FROM audit_checkpoints WHERE month = '2025-02-01' AND tree_size = 12"),
        ("MISSING", "checkpoint", "2025-02", 11),
    ),
    "17 a row changed before it is sealed": (
        on_unsealed("UPDATE audit_logs SET user_query_text = 'Another?' WHERE log_id = %(unsealed)s"),
        ("TAMPERED", "row", f"{now():%Y-%m}"),
    ),
    "18 a row replaced before it is sealed": (unsealed_replaced, ("TAMPERED", "row", f"{now():%Y-%m}")),
    "19 a row deleted before it is sealed": (on_unsealed("DELETE FROM audit_logs WHERE log_id = %(unsealed)s"), GONE),
    "20 an audit_write that skips rows": (skipping_audit_write, GONE),
    "21 a partition dropped": (on_victim("DROP TABLE audit_logs_2025_02"), ("MISSING", "month", "2025-02", 0)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_superuser_changes_while_the_sealer_runs_is_found(log: SealedLog, kind: str) -> None:
    attack, expected = KINDS[kind]
    async with at_work(log) as attacked:
        # Beside the event loop: a lock that a writer's open transaction holds is given back by this loop.
        done = await asyncio.to_thread(attack, attacked)
        if asyncio.iscoroutine(done):
            await done
    found = [
        (str(each.verdict), each.what, each.month and f"{each.month:%Y-%m}", each.leaf_index)
        for each in log.inspect().findings
    ]
    assert expected in [place[: len(expected)] for place in found], found


async def test_an_open_request_that_the_engine_did_not_open_is_counted(
    log: SealedLog, tmp_path: Path
) -> None:
    async with at_work(log) as attacked:
        forged_open(attacked)
    found = await read_status(log.database.read, log.vault, tmp_path, now().date(), public_keys=log.keys)
    assert len(found.open_not_ours) == 1
    assert log.inspect().findings == []


async def test_a_log_that_nobody_attacks_is_valid(log: SealedLog) -> None:
    async with at_work(log):
        pass
    assert log.inspect().findings == []
