"""A log whose heads KMS signs, and whose rows keys in memory: verified, proven, erased, archived, and attacked."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from audit import auditor
from audit.anchored import DELEGATED, delegations_in
from audit.checking.evidence import EVER
from audit.checking.inspection import inspect
from audit.errors import LedgerUnavailableError, NoSigningKeyError
from audit.ledger.delegated_keys import BACK, LIVES, RENEWED_BEFORE, SPARE, DelegatedKeys
from audit.ledger.ledger import Ledger
from audit.proof import bundle
from audit.proof.keys import KeyRing, PublicKey, SigningKey, delegate, read_public_keys
from audit.proof.record import Trail
from audit.proof.verdict import Report, Verdict
from engine import settings as settings_file
from engine import signing, wiring
from engine.cli import main
from engine.cli.doctor import examine
from engine.providers import signing_kms
from engine.storage.database import Database
from engine.wiring import audit_log, now
from engine.wiring import signing as keys_of_process
from tests import second_verifier
from tests.databases import empty_database, scratch_log
from tests.logs.sealed_log import quiet
from tests.proofs import KEY, STRANGER
from tests.upstreams.signing.kms import KEY_ID, Kms, kms

HOUR = timedelta(hours=1)
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def at_kms() -> Iterator[Kms]:
    given = {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret", "REGION": "eu-central-1"}
    with kms(KEY) as (url, server), pytest.MonkeyPatch.context() as environment:
        for name, value in (given | {"DEFAULT_REGION": "eu-central-1", "ENDPOINT_URL_KMS": url}).items():
            environment.setenv(f"AWS_{name}", value)
        yield server


@pytest.fixture(autouse=True)
def kms_again(at_kms: Kms) -> None:
    at_kms.refusal, at_kms.spoil = "", b""


@pytest.fixture(scope="module")
async def template(database: Database) -> AsyncIterator[str]:
    """A log to copy: making one takes longer than most tests."""
    async with scratch_log(database) as made:
        yield str(conninfo_to_dict(made.url)["dbname"])


@pytest.fixture
def log(database: Database, template: str, at_kms: Kms, tmp_path: Path) -> Iterator[Database]:
    with empty_database(database, template) as url:
        settings = settings_file.load(
            {
                "DATABASE_URL": url, "AFFIDAVIT_SIGNING__PROVIDER": "kms", "AFFIDAVIT_SIGNING__KEY": KEY_ID,
                "AFFIDAVIT_SIGNING__TIMEOUT_S": "1",
            },
            data_dir=tmp_path,
        )  # fmt: skip
        signing.pin_remote_key(settings, signing_kms.signer(settings))
        yield Database(url, settings)
        ended()


def ended() -> None:
    """As if this process had ended, and another one had begun."""
    for keys in keys_of_process._rows.values():
        keys.close()
    keys_of_process._rows.clear()
    keys_of_process._heads.clear()


def asked(**given: Any) -> Trail:
    fields: dict[str, Any] = {
        "log_id": uuid4(), "query_id": uuid4(), "timestamp": now(), "endpoint": "/v1/query", "outcome": "answered",
        "user_query_text": "What is passive compliance?", "answer_text": "It says so. [1]", "http_status": 200,
        "success": True, "client_id": "c", "end_user": "user:1",
    }  # fmt: skip
    return Trail(**(fields | given))


async def answered(log: Database, *trails: Trail) -> list[dict[str, Any]]:
    receipts = []
    async with audit_log.open_ledger(log) as ledger:
        for trail in trails:
            await ledger.open(replace(trail, outcome="open"))
            ledger._opened.discard(trail.log_id)
            receipts.append(await ledger.close(trail, now()))
    return [
        {"log_id": str(r.log_id), "leaf_hash": r.leaf_hash, "issued_at": r.issued_at.isoformat(), "key_id": r.key_id, "signature": r.signature}
        for r in receipts
    ]  # fmt: skip


async def seal(log: Database) -> dict[Any, str]:
    async with audit_log.open_sealer(log.settings, log) as sealer:
        await sealer.seal_once()
        return sealer.failures


def verified(log: Database, *keys: PublicKey) -> Report:
    """By whoever has only these keys; without any, by the file of this machine."""
    pinned = keys or tuple(read_public_keys(signing.public_keys_file(log.settings)))
    with audit_log.open_evidence(log.settings, log, EVER) as evidence:
        return inspect(evidence, list(pinned), quiet)


async def proof(log: Database, trail: Trail) -> bytes:
    async with audit_log.open_prover(log) as prover:
        return await prover.prove(await prover.row(trail.query_id))


def attack(log: Database, *statements: str) -> None:
    """As a superuser whom no trigger stops."""
    with psycopg.connect(log.url) as connection:
        connection.execute("SET session_replication_role = replica")
        for statement in statements:
            assert connection.execute(statement.encode()).rowcount != 0, statement


def forget_on_disk(log: Database) -> None:
    """As on another machine, which shares no file but has pinned the same key."""
    signing.public_keys_file(log.settings).write_text(f"{KEY.public}\n")


async def test_heads_are_signed_elsewhere_and_rows_by_a_delegated_key(log: Database) -> None:
    trail = asked()
    (receipt,) = await answered(log, trail)
    assert await seal(log) == {}
    assert verified(log, KEY.public).verdict == Verdict.VALID
    file = await proof(log, trail)
    found = bundle.decode(file)
    assert found.delegation and found.delegation.key_id == receipt["key_id"] != KEY.key_id
    text = json.dumps(receipt).encode()
    assert auditor.check(file, [KEY.public], text).verdict == Verdict.VALID
    assert second_verifier.verdict(file, [str(KEY.public)]) == "VALID"
    async with log.pool("affidavit_engine") as pool:
        lines = await keys_of_process.key_texts(log.settings, pool)
    assert auditor.check(text, KeyRing(map(PublicKey.of, lines))).verdict == Verdict.UNSEALED
    assert second_verifier.verdict(text, lines) == "UNSEALED"


# Seen red with the renewal in `at`.
async def test_no_row_and_no_receipt_waits_for_kms(log: Database, at_kms: Kms) -> None:
    async with audit_log.open_ledger(log) as ledger:
        before = list(at_kms.calls)
        for trail in (asked() for _ in range(5)):
            await ledger.open(replace(trail, outcome="open"))
            await ledger.close(trail, now())
        assert at_kms.calls == before


async def test_delegations_are_in_the_file_the_database_and_the_vault(log: Database) -> None:
    await answered(log, asked())
    await seal(log)
    (pinned, delegated) = read_public_keys(signing.public_keys_file(log.settings))
    assert (pinned, wiring.delegations_of(log)) == (KEY.public, [delegated.line])
    vault = wiring.vault_of(log.settings)
    assert delegations_in(vault, []) == [delegated.line]
    assert delegations_in(vault, [delegated.line]) == []
    await answered(log, asked())
    await seal(log)
    assert len(vault.keys(DELEGATED)) == 1  # one for each process, not for each use


# Seen red with `inspect` that reads no delegations, and with one that takes none from the vault.
@pytest.mark.parametrize("lost", ["file", "database", "file and database"])
async def test_a_log_verifies_with_the_delegations_that_are_left(log: Database, lost: str) -> None:
    await answered(log, asked())
    await seal(log)
    if "file" in lost:
        forget_on_disk(log)
    if "database" in lost:
        attack(log, "DELETE FROM audit_delegations")
    assert verified(log).verdict == Verdict.VALID


async def test_without_any_delegation_the_rows_prove_nothing(log: Database) -> None:
    await answered(log, asked())
    await seal(log)
    forget_on_disk(log)
    attack(log, "DELETE FROM audit_delegations")
    for key in wiring.vault_of(log.settings).keys(DELEGATED):
        (log.settings.data_dir / "vault" / key).unlink()
    assert verified(log).verdict == Verdict.TAMPERED


# Seen red with a sealer that reads no delegations.
async def test_another_machine_seals_what_a_key_signed_that_only_the_database_names(log: Database) -> None:
    await answered(log, asked())
    forget_on_disk(log)
    ended()
    async with audit_log.open_sealer(log.settings, log) as sealer:
        await sealer.seal_once()
        assert (sealer.failures, sealer.admission.refused) == ({}, set())
    assert verified(log, KEY.public).verdict == Verdict.VALID


async def inserted(log: Database, key: SigningKey, line: str | None, at: datetime) -> Trail:
    """A superuser's row with a hash and a signature, and a delegation that is to explain it."""
    from tests.logs.recorded import write

    trail = asked(timestamp=at, writer=uuid4(), sequence=1)
    with psycopg.connect(log.url) as connection:
        write(connection, trail, key=key)
        if line:
            connection.execute("INSERT INTO audit_delegations (line) VALUES (%s)", (line,))
    return trail


ATTACKS = [
    "by a stranger",
    "by nobody",
    "too late",
    "not yet",
    "by a delegated key",
    "revoked",
    "the pinned line in the table",
]


# Seen red with `_is_given` that is always true.
@pytest.mark.parametrize("how", ATTACKS)
async def test_a_row_of_a_key_that_nobody_delegated_is_never_sealed(log: Database, how: str) -> None:
    await answered(log, asked())
    await seal(log)
    thief, at = SigningKey.in_memory(), now()
    parent, begin, until = KEY, at - HOUR, at + HOUR
    line: str | None = None
    match how:
        case "by a stranger":
            parent = STRANGER
        case "too late":
            until = at - timedelta(minutes=1)
        case "not yet":
            begin = at + timedelta(minutes=1)
        case "by a delegated key":
            parent = keys_of_process.row_key(log).at(at)  # type: ignore[assignment]
        case "the pinned line in the table":
            line = str(thief.public)
    if how != "by nobody" and line is None:
        line = delegate(thief.public, begin, until, parent).line
    if how == "revoked":
        revoked = PublicKey(thief.public.raw, revoked_at=at).line
        file = signing.public_keys_file(log.settings)
        file.write_text(f"{file.read_text()}{line}\n{revoked}\n")
    trail = await inserted(log, thief, line, at)
    async with audit_log.open_sealer(log.settings, log) as sealer:
        await sealer.seal_once()
        assert sealer.admission.refused == {(trail.timestamp, trail.log_id)}
    (finding,) = verified(log).findings
    assert (finding.verdict, finding.log_id) == (Verdict.TAMPERED, str(trail.log_id))


# Seen red with `head_keys` of all keys.
async def test_a_head_that_a_delegated_key_signed_is_refused(log: Database) -> None:
    from audit.proof.checkpoint import open_note, sign_note

    await answered(log, asked())
    await seal(log)
    daily = keys_of_process.row_key(log).at(now())
    with psycopg.connect(log.url) as connection:
        ((note,),) = connection.execute("SELECT note FROM audit_checkpoints").fetchall()
        again = sign_note(open_note(note, [KEY.public]), daily)  # type: ignore[arg-type]
        connection.execute("SET session_replication_role = replica")
        connection.execute("UPDATE audit_checkpoints SET note = %s", (again,))
    report = verified(log)
    assert report.verdict == Verdict.TAMPERED
    assert "was only delegated" in str(report)


async def test_a_wrong_signature_of_kms_becomes_no_head(log: Database, at_kms: Kms) -> None:
    await answered(log, asked())
    at_kms.spoil = bytes(64)
    with pytest.raises(NoSigningKeyError, match="not one of"):
        await seal(log)
    with psycopg.connect(log.url) as connection:
        assert connection.execute("SELECT count(*) FROM audit_leaves").fetchone() == (0,)
    at_kms.spoil = b""
    assert await seal(log) == {}
    assert verified(log, KEY.public).verdict == Verdict.VALID


async def test_an_engine_does_not_start_without_its_key(log: Database, at_kms: Kms) -> None:
    at_kms.refusal = "ThrottlingException"
    with pytest.raises(NoSigningKeyError, match="throttled"):
        await answered(log, asked())


class Times:
    """A clock that is set, a parent that is away when it is told so, and what was published."""

    def __init__(self, begin: datetime = datetime(2026, 11, 19, 8, tzinfo=UTC)) -> None:
        self.now = begin
        self.is_away = False
        self.published: list[PublicKey] = []
        self.keys = DelegatedKeys(self, self.published.append, lambda: self.now)
        self.public, self.key_id = KEY.public, KEY.key_id
        self.keys._renew()

    def sign(self, message: bytes) -> bytes:
        if self.is_away:
            raise NoSigningKeyError("KMS did not answer")
        return KEY.sign(message)

    def may_sign(self, at: datetime) -> bool:
        try:
            key = self.keys.at(at)
        except NoSigningKeyError:
            return False
        return bool(KeyRing([KEY.public, *self.published]).row_keys(key.public.fingerprint, at))


def test_a_key_counts_for_what_began_before_it_and_not_up_to_its_end() -> None:
    times = Times()
    begin, until = times.now - BACK, times.now + LIVES
    assert times.may_sign(begin)
    assert not times.may_sign(begin - timedelta(microseconds=1))
    assert times.may_sign(until - SPARE - timedelta(microseconds=1))
    assert not times.may_sign(until - SPARE)
    assert times.keys.holds_until == until - SPARE


# Seen red with `at` that takes the newest key for every time.
def test_across_a_renewal_each_request_is_signed_by_a_key_of_its_time() -> None:
    times = Times()
    began = times.now
    first = times.keys.at(began)
    times.now += LIVES - RENEWED_BEFORE - timedelta(seconds=1)
    times.keys._renew_if_due()
    assert times.keys.at(times.now) is first
    times.now += timedelta(seconds=1)
    times.keys._renew_if_due()
    for at in (began, times.now - 2 * BACK, times.now - BACK, times.now, times.now + timedelta(seconds=5)):
        assert times.may_sign(at)
    assert times.keys.at(began) is first
    assert times.keys.at(times.now) is not first


def test_a_parent_that_is_away_changes_nothing_for_hours(caplog: pytest.LogCaptureFixture) -> None:
    times = Times()
    times.is_away = True
    times.now += LIVES - RENEWED_BEFORE
    with caplog.at_level(logging.WARNING), pytest.raises(NoSigningKeyError):
        times.keys._renew_if_due()
    times.keys._report("KMS did not answer")
    times.keys._report("KMS did not answer")
    assert (
        caplog.text.count("Records are signed until 2026-11-20 07:50:00 UTC; then nothing is answered") == 1
    )
    assert times.may_sign(times.now)
    times.now += RENEWED_BEFORE
    assert not times.may_sign(times.now)
    times.is_away = False
    times.keys._renew()
    assert times.may_sign(times.now)


# Seen red with one list for the keys of all times.
def test_keys_for_other_times_never_push_out_the_current_one() -> None:
    times = Times()
    current = times.keys.at(times.now)
    for days in range(1, 40):
        at = times.now - timedelta(days=days)
        times.keys.cover(at, at)
        assert times.may_sign(at)
    assert times.keys.at(times.now) is current


def test_a_key_whose_delegation_was_not_published_signs_nothing() -> None:
    times = Times()

    def refused(_: PublicKey) -> None:
        raise NoSigningKeyError("The database did not take it")

    times.keys._publish = refused
    first = times.keys.at(times.now)
    with pytest.raises(NoSigningKeyError):
        times.keys._renew()
    assert times.keys.at(times.now) is first


async def test_with_no_key_left_nothing_is_recorded_and_so_nothing_answered(log: Database) -> None:
    times = Times(now())
    async with log.pool("affidavit_engine", has_autocommit=True) as pool:
        ledger = Ledger(pool, times.keys, now, public_keys=list, within_s=5.0)
        await ledger.start()
        try:
            with pytest.raises(LedgerUnavailableError, match="NoSigningKeyError"):
                await ledger.open(asked(timestamp=times.now + LIVES))
            assert await ledger.taker() == "database"
            times.keys._keys.clear()
            assert await ledger.taker() is None  # /readyz says so, and a load balancer asks elsewhere
        finally:
            await ledger.stop()


# Seen red with orphans that the newest key signs.
async def test_a_request_of_a_process_that_died_weeks_ago_is_closed_and_verifies(log: Database) -> None:
    long_ago = now() - timedelta(days=20)
    await wiring.make_months(log, long_ago, now().date())
    ring = keys_of_process.row_key(log)
    ring.cover(long_ago, long_ago)
    trail = asked(timestamp=long_ago, outcome="open", success=False)
    async with audit_log.open_ledger(log) as ledger:
        await ledger.open(trail)
    ended()
    async with audit_log.open_ledger(log):
        """It closes what the other one left."""
    with psycopg.connect(log.url) as connection:
        found = connection.execute("SELECT outcome FROM audit_logs WHERE log_id = %s", (trail.log_id,))
        assert found.fetchone() == ("abandoned",)
    assert await seal(log) == {}
    assert verified(log, KEY.public).verdict == Verdict.VALID


async def test_an_orphan_waits_until_its_time_can_be_signed(log: Database, at_kms: Kms) -> None:
    long_ago = now() - timedelta(days=20)
    await wiring.make_months(log, long_ago, now().date())
    keys_of_process.row_key(log).cover(long_ago, long_ago)
    trail = asked(timestamp=long_ago, outcome="open", success=False)
    async with audit_log.open_ledger(log) as ledger:
        await ledger.open(trail)
    ended()
    keys_of_process.row_key(log)
    at_kms.refusal = "KMSInternalException"
    with pytest.raises(NoSigningKeyError):
        async with audit_log.open_ledger(log):
            """It cannot close it."""
    at_kms.refusal = ""
    async with audit_log.open_ledger(log):
        """Now it can."""
    assert await seal(log) == {}
    assert verified(log, KEY.public).verdict == Verdict.VALID


async def test_an_erasure_is_signed_by_the_delegated_key_of_its_time(log: Database) -> None:
    from audit.erasure.target import ErasureTarget

    trail = asked()
    await answered(log, trail)
    await seal(log)
    async with audit_log.open_eraser(log.settings, log) as (eraser, events):

        def event() -> Any:
            return events.event("audit erase")

        done = await eraser.erase(ErasureTarget(query_id=trail.query_id), "a wish", event)
    assert done.records == 1
    report = verified(log, KEY.public)
    assert report.verdict in {Verdict.VALID, Verdict.ERASED}, str(report)
    file = await proof(log, trail)
    assert auditor.check(file, [KEY.public]).verdict == Verdict.ERASED
    assert second_verifier.verdict(file, [str(KEY.public)]) == "ERASED"


@pytest.fixture
def command(log: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: object) -> tuple[int, str, str]:
        given = main.parser().parse_args(["audit", *map(str, words)])
        code = asyncio.run(given.run(log.settings, given) if given.has_settings else given.run(given))
        return code, *capsys.readouterr()

    return run


# Seen red with a revocation that the command did not record.
async def test_a_delegated_key_is_revoked_with_a_date(log: Database, command: Command) -> None:
    early, late = asked(), asked()
    (receipt,) = await answered(log, early)
    between = now()
    ended()
    await answered(log, late)
    await seal(log)
    forget_on_disk(log)  # the machine that revokes it knows it by the database
    stolen = receipt["key_id"]
    code, out, words = await asyncio.to_thread(
        command, "key", "--revoke", stolen, "--at", between.isoformat()
    )
    assert (code, "is revoked" in words, "WARNING" in words) == (0, True, False)
    assert any(line.startswith(stolen) and " revoked " in line for line in out.splitlines())
    await seal(log)
    assert verified(log).verdict == Verdict.VALID
    keys = read_public_keys(signing.public_keys_file(log.settings))
    assert keys.head_keys(between - HOUR) == [KEY.public]
    with psycopg.connect(log.url) as connection:
        found = connection.execute(
            "SELECT details ->> 'key' FROM audit_logs WHERE endpoint = 'affidavit audit key --revoke'"
        )
        assert found.fetchall() == [(stolen,)]
    trail = early.timestamp - timedelta(seconds=1)
    code, _, words = await asyncio.to_thread(command, "key", "--revoke", stolen, "--at", trail.isoformat())
    assert (code, "1 records of that time or later" in words) == (0, True)
    assert verified(log).verdict == Verdict.TAMPERED


async def test_the_key_in_use_is_not_revoked(log: Database, command: Command) -> None:
    from engine.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="Replace it first"):
        await asyncio.to_thread(command, "key", "--revoke", KEY.key_id, "--at", "2026-11-19")
    assert (await asyncio.to_thread(command, "key", "--revoke", KEY.key_id))[0] == 2
    assert (await asyncio.to_thread(command, "key", "--new"))[0] == 1  # KMS has no other


async def test_doctor_says_whether_the_key_signs_and_how_long_the_others_last(
    log: Database, at_kms: Kms
) -> None:
    async def said() -> tuple[str, str]:
        checks = await examine(log.settings, log)
        return next((check.state, check.words) for check in checks if check.part == "signing key")

    await answered(log, asked())
    state, words = await said()
    assert (state, f"kms: {KEY.key_id} signed in" in words, "lasts until" in words) == ("ok", True, True)
    at_kms.refusal = "DisabledException"
    state, words = await said()
    assert (state, "disabled" in words, "then nothing is answered" in words) == ("failed", True, True)


# Seen red with an archive whose keys.pub has the keys without their delegations.
async def test_an_archived_month_is_proven_by_the_delegations_that_it_carries(
    log: Database, tmp_path: Path, command: Command
) -> None:
    long_ago = now() - timedelta(days=100)
    await wiring.make_months(log, long_ago, now().date())
    keys_of_process.row_key(log).cover(long_ago, long_ago + HOUR)
    await answered(log, *(asked(timestamp=long_ago + timedelta(minutes=n)) for n in range(3)))
    await answered(log, asked())
    assert await seal(log) == {}
    before = now().date().replace(day=1) - timedelta(days=40)
    archiver = wiring.archiver_of(log.settings, log, quiet, print)
    (outcome, *_) = await archiver.archive(before.replace(day=1))
    assert outcome.is_well, outcome
    vault = wiring.vault_of(log.settings)
    (manifest,) = [key for key in vault.keys("archive/") if key.endswith("manifest.json")]
    folder = tmp_path / "copy"
    folder.mkdir()
    for name in vault.keys(manifest.rsplit("/", 1)[0]):
        (folder / name.rsplit("/", 1)[1]).write_bytes(vault.get(name))
    (listed,) = folder.glob("*.keys.pub")
    assert [line.split(" ")[1:2] for line in listed.read_text().splitlines()] == [[], ["delegated"]]
    for verdict, pinned in (("VALID", KEY.public), ("TAMPERED", STRANGER.public)):
        (tmp_path / "auditors.pub").write_text(f"{pinned}\n")
        _, out, _ = await asyncio.to_thread(
            command, "verify", "--archive", folder, "--public-key", tmp_path / "auditors.pub", "--json"
        )
        assert json.loads(out)["verdict"] == verdict, out
