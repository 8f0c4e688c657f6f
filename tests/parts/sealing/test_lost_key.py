"""A log that was signed gets no new identity by itself; whoever lost its key must say so, and hears what is lost."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from audit.proof.keys import public_file, read_public_keys
from audit.proof.verdict import Verdict
from engine import settings as settings_file
from engine import wiring
from engine.cli.doctor import examine
from engine.errors import ConfigurationError
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.databases import migrated_database
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.logs.writers import KEY as STRANGER


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


def embedded(log: SealedLog) -> Database:
    """As the embedded default has it, which makes a key at its first use."""
    return Database(log.url, settings_file.load({}, data_dir=log.folder))


def lose_key(log: SealedLog) -> Path:
    path = log.folder / "signing.key"
    path.unlink()
    public_file(path).unlink()
    return path


# Seen red without the question to the log: a new key was made, and receipts were signed with it.
async def test_a_log_that_others_signed_gets_no_new_key_by_itself(log: SealedLog) -> None:
    path, own = lose_key(log), embedded(log)
    with pytest.raises(ConfigurationError, match=rf"{log.key.key_id.replace('+', '.')}.* Restore .*--new"):
        async with wiring.open_ledger(own):
            pass
    with pytest.raises(ConfigurationError, match="Restore"):
        async with wiring.open_sealer(own.settings, own):
            pass
    async with log.database.pool("affidavit_engine") as pool:
        with pytest.raises(ConfigurationError, match="Restore"):
            wiring.ledger_of(own.settings, pool)
    assert not path.exists()


# Seen red with the database asked alone: its tables come back empty, and the vault tells.
async def test_the_vault_tells_too_that_a_log_was_signed(log: SealedLog) -> None:
    path = lose_key(log)
    with migrated_database(log.database) as empty:
        own = Database(empty.url, embedded(log).settings)
        with pytest.raises(ConfigurationError, match="was signed by"):
            async with wiring.open_ledger(own):
                pass
    assert not path.exists()


# Seen red without the question to the log: a new key was added to the .pub.
async def test_a_lost_private_key_is_not_replaced_in_silence(log: SealedLog) -> None:
    (log.folder / "signing.key").unlink()
    with pytest.raises(ConfigurationError, match="Restore"):
        async with wiring.open_ledger(embedded(log)):
            pass
    assert not (log.folder / "signing.key").exists()


async def test_a_log_that_nobody_signed_gets_its_key_at_the_first_use(
    database: Database, tmp_path: Path
) -> None:
    with migrated_database(database) as empty:
        own = Database(empty.url, settings_file.load({}, data_dir=tmp_path))
        async with wiring.open_ledger(own):
            assert (tmp_path / "signing.key").exists()


async def test_doctor_says_what_to_do_about_a_lost_key(log: SealedLog) -> None:
    path = lose_key(log)
    found = {line.part: line for line in await examine(embedded(log).settings, embedded(log))}["signing key"]
    assert (found.state, log.key.key_id in found.words, "--new" in found.words) == ("failed", True, True)
    affidavit("audit", "key", "--new", data_dir=log.folder, DATABASE_URL=log.url)
    found = {line.part: line for line in await examine(embedded(log).settings, embedded(log))}["signing key"]
    assert (found.state, f"lacks {log.key.key_id}" in found.words) == ("failed", True)
    assert path.exists()


async def test_a_rotation_after_a_loss_says_what_is_lost_and_how_sealing_goes_on(log: SealedLog) -> None:
    path = lose_key(log)
    said = affidavit("audit", "key", "--new", data_dir=log.folder, DATABASE_URL=log.url)
    assert said.returncode == 0
    assert said.stderr.count("LOST") == 2
    assert str(log.key.public) in said.stderr
    log.key = log.key.load(path)
    log.write(FEBRUARY, 12)
    assert "is not among the given ones" in (await log.seal())[FEBRUARY]
    lines = public_file(path).read_text()
    with psycopg.connect(log.url) as connection:
        (old,) = connection.execute(
            "SELECT public_key FROM audit_keys ORDER BY created_at LIMIT 1"
        ).fetchall()
    public_file(path).write_text(f"{old[0]}\n{lines}")
    assert await log.seal() == {}
    assert log.inspect().verdict is Verdict.VALID
    assert len(read_public_keys(public_file(path))) == 2


async def test_a_rotation_with_the_old_key_at_hand_loses_nothing(log: SealedLog) -> None:
    said = affidavit("audit", "key", "--new", data_dir=log.folder, DATABASE_URL=log.url)
    assert (said.returncode, "LOST" in said.stderr) == (0, False)


async def test_a_key_can_be_made_before_its_database_is_there(tmp_path: Path) -> None:
    said = affidavit(
        "audit", "key", "--new", data_dir=tmp_path, DATABASE_URL="postgresql://127.0.0.1:1/nowhere"
    )
    assert (said.returncode, "WARNING" in said.stderr) == (0, True)
    assert (tmp_path / "signing.key").exists()


IDENTITY = {
    "another name of the log": ("UPDATE audit_origin SET origin = 'affidavit/else'", "audit_origin says affidavit/else"),
    "no name of the log": ("DELETE FROM audit_origin", "audit_origin says nothing"),
    "a key that signed nothing": (
        f"INSERT INTO audit_keys VALUES ('{STRANGER.key_id}', '{STRANGER.public}', now())", f"audit_keys has {STRANGER.public}",
    ),
    "another key under the name of one": (
        f"UPDATE audit_keys SET public_key = '{STRANGER.public}'", f"audit_keys has {STRANGER.public}",
    ),
    "no key": ("DELETE FROM audit_keys", "audit_keys lacks affidavit+"),
}  # fmt: skip


# Seen red with the origin not compared, and with the ids of keys compared alone.
@pytest.mark.parametrize("change", IDENTITY)
async def test_doctor_names_a_changed_name_and_changed_keys_of_the_log(log: SealedLog, change: str) -> None:
    statement, words = IDENTITY[change]
    assert wiring.identity_doubts_of(embedded(log)) == []
    log.attack(statement)
    (doubt,) = wiring.identity_doubts_of(embedded(log))
    assert words in doubt
    findings = [finding for finding in log.inspect().findings if "audit_origin" in finding.words]
    assert bool(findings) == ("audit_origin" in statement)


async def test_doctor_has_a_line_about_it(log: SealedLog) -> None:
    log.attack("DELETE FROM audit_origin")
    found = {line.part: line for line in await examine(embedded(log).settings, embedded(log))}["identity"]
    assert (found.state, "audit_origin says nothing" in found.words) == ("failed", True)
