"""Drills of a restore with the real commands: what a backup is worth, in words; and nothing but the scratch is written or left."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from audit.proof.keys import SigningKey
from engine import settings as settings_file
from engine.errors import BackupError
from engine.providers.postgres import PROGRAMS
from engine.providers.scratch_postgres import major_version, scratch_server
from engine.storage.backup import base_backup_at
from engine.storage.database import Database
from engine.storage.migrate import migrate
from engine.wiring import now
from tests.campaigns.test_failover import primary_of
from tests.command_line import affidavit
from tests.conftest import PATIENCE, ROOT
from tests.databases import empty_database
from tests.logs.recorded import make_months
from tests.logs.sealed_log import JANUARY, SealedLog

THIS = now().date().replace(day=1)
FORMATS = {"custom": "c", "directory": "d", "tar": "t", "plain": "p"}
SMALL_DISK = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=24m,mode=755 tmpfs "$0" && exec "$@"')
START_S = 60


@dataclass
class House:
    """A log of five sealed records and eight of this month, two that wait for the sealer, its backups, and four records more."""

    log: SealedLog
    folder: Path

    def drill(self, *arguments: object, temporary: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {"TMPDIR": str(temporary)} if temporary else {}
        return affidavit(
            "drill",
            "restore",
            *arguments,
            data_dir=self.folder,
            DATABASE_URL=self.log.url,
            **environment,
        )

    def dump(self, kind: str, name: str = "", url: str = "") -> Path:
        path = self.folder / (name or f"dump.{kind}")
        program("pg_dump", f"--format={FORMATS[kind]}", f"--file={path}", url or self.log.url)
        return path

    def base_backup(self, name: str = "base") -> Path:
        path = self.folder / name
        program("pg_basebackup", f"--pgdata={path}", "--checkpoint=fast", f"--dbname={self.log.url}")
        return path

    def stored(self) -> tuple[dict[str, bytes], list[tuple[object, ...]]]:
        """All that the vault holds, and how often anything was written into the live database."""
        vault = {key: self.log.vault.get(key) for key in self.log.vault.keys("")}
        with psycopg.connect(self.log.url) as connection:
            rows = connection.execute(
                "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables ORDER BY relname"
            )
            return vault, rows.fetchall()


def program(name: str, *arguments: str) -> None:
    subprocess.run([PROGRAMS / name, *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with primary_of(folder) as server:
            database = Database(server.url, settings_file.load(PATIENCE, data_dir=folder))
            database.migrate()
            log = SealedLog(database, folder, SigningKey.create(folder / "signing.key"))
            with psycopg.connect(log.url) as connection:
                make_months(connection, (JANUARY, THIS))
            log.write(JANUARY, *range(5))
            log.write(THIS, *range(8), timestamp=now())
            assert asyncio.run(log.seal()) == {}
            log.write(THIS, 8, 9, timestamp=now())
            found = House(log, folder)
            for kind in FORMATS:
                found.dump(kind)
            found.base_backup()
            log.write(THIS, *range(10, 14), timestamp=now())
            assert asyncio.run(log.seal()) == {}
            yield found


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Not pytest's own, which another run locks; and with a path that is too long for a Unix socket."""
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as made:
        folder = Path(made, "long" * 20)
        folder.mkdir()
        yield folder


# Seen red with the whole vault as evidence (what is newer was MISSING), and with the two waiting records counted as lost.
@pytest.mark.parametrize("kind", [*FORMATS, "base backup"])
def test_a_backup_is_valid_and_what_it_lacks_is_counted(kind: str, house: House, temporary: Path) -> None:
    before = house.stored()
    given = (
        ("--base-backup", house.folder / "base")
        if kind == "base backup"
        else ("--dump", house.folder / f"dump.{kind}")
    )
    drilled = house.drill(*given, "--json", temporary=temporary)
    assert drilled.returncode == 0, drilled.stderr
    said = json.loads(drilled.stdout)
    assert (said["verdict"], said["checked"], said["rows"], said["newer_rows"]) == ("VALID", 13, 15, 4)
    assert said["counted"] == {"records wait for the sealer": 2}
    assert (said["head"]["size"], said["vault_head"]["size"]) == (8, 14)
    assert said["head"]["at"] < said["vault_head"]["at"]
    assert list(temporary.iterdir()) == []
    assert house.stored() == before


def test_the_words_say_how_much_came_back_and_how_much_is_missing(house: House) -> None:
    drilled = house.drill("--dump", house.folder / "dump.custom")
    assert drilled.returncode == 0, drilled.stderr
    assert re.search(r"VALID \(13 checked\)", drilled.stdout)
    assert re.search(r"15 rows came back, of 2025-01-10 .*, sealed up to .* UTC\.", drilled.stdout)
    assert re.search(r"4 rows newer than the backup, sealed up to .* UTC\.", drilled.stdout)
    assert "VALID up to its last seal" in drilled.stdout


def test_a_tampered_dump_is_tampered(house: House) -> None:
    whole = (house.folder / "dump.plain").read_text()
    assert "It measures …" in whole
    (house.folder / "tampered.sql").write_text(whole.replace("It measures …", "It measures nothing", 1))
    drilled = house.drill("--dump", house.folder / "tampered.sql")
    assert drilled.returncode == 1
    assert "TAMPERED: " in drilled.stdout
    assert "not proven: keep it as evidence" in drilled.stdout


def test_a_tampered_base_backup_is_tampered(house: House) -> None:
    victim = house.log.log_id(JANUARY, 2)
    with psycopg.connect(house.log.url, autocommit=True) as attacker:
        attacker.execute("SET session_replication_role = replica")
        attacker.execute("UPDATE audit_logs SET http_status = 201 WHERE log_id = %s", (victim,))
        try:
            tampered = house.base_backup("tampered")
        finally:
            attacker.execute("UPDATE audit_logs SET http_status = 200 WHERE log_id = %s", (victim,))
    drilled = house.drill("--base-backup", tampered)
    assert drilled.returncode == 1
    assert "TAMPERED: " in drilled.stdout
    assert victim in drilled.stdout


def test_a_dump_without_its_last_seals_lacks_rows_that_were_sealed(house: House) -> None:
    """Somebody took the newest leaf, its row and its head out of the dump."""
    with empty_database(house.log.database) as url:
        program("pg_restore", f"--dbname={url}", str(house.folder / "dump.custom"))
        with psycopg.connect(url) as attacker:
            attacker.execute("SET session_replication_role = replica")
            attacker.execute("DELETE FROM audit_leaves WHERE month = %s AND leaf_index = 3", (THIS,))
        cut = house.dump("custom", "cut.dump", url)
    drilled = house.drill("--dump", cut, "--json")
    assert drilled.returncode == 1
    assert json.loads(drilled.stdout)["verdict"] == "MISSING"


# Seen red with the larger tree of the lost history taken for a part of today's log: a newer row was not counted.
def test_a_backup_of_a_history_that_was_given_up_since_then_lacks_all_that_came_after_it(
    house: House, tmp_path: Path
) -> None:
    with empty_database(house.log.database) as url, empty_database(house.log.database) as restored:
        log = SealedLog(
            Database(url, house.log.database.settings), tmp_path, SigningKey.create(tmp_path / "signing.key")
        )
        log.database.migrate()
        with psycopg.connect(url) as connection:
            make_months(connection, [JANUARY, THIS])
        log.write(JANUARY, *range(8))
        assert asyncio.run(log.seal()) == {}
        older = house.dump("custom", "older.dump", url)
        log.write(JANUARY, *range(8, 12))
        assert asyncio.run(log.seal()) == {}
        given_up = house.dump("custom", "given_up.dump", url)
        program("pg_restore", f"--dbname={restored}", str(older))
        log.database = Database(restored, log.database.settings)
        log.write(JANUARY, 20)
        command = ("audit", "break", "--month", "2025-01", "--basis", "a drill")
        stated = affidavit(*command, data_dir=tmp_path, DATABASE_URL=restored)
        assert "the leaves 8 to 11 of 2025-01 are lost" in stated.stdout, stated.stderr
        since = house.dump("custom", "since.dump", restored)
    expected = {older: ("VALID", 2), given_up: ("VALID", 2), since: ("LOST_BY_FAILOVER", 0)}
    for dump, (verdict, newer) in expected.items():
        said = json.loads(affidavit("drill", "restore", "--dump", dump, "--json", data_dir=tmp_path).stdout)
        assert (said["verdict"], said["newer_rows"], said["is_good"]) == (
            verdict,
            newer,
            verdict == "VALID",
        ), dump


# Seen red without the look at the last line of a dump as SQL: psql took the half and said nothing.
@pytest.mark.parametrize("kind", ["custom", "plain", "tar"])
def test_a_truncated_dump_is_said_to_be_truncated(kind: str, house: House, tmp_path: Path) -> None:
    half = tmp_path / "half"
    content = (house.folder / f"dump.{kind}").read_bytes()
    half.write_bytes(content[: len(content) // 2])
    drilled = house.drill("--dump", half)
    assert (drilled.returncode, drilled.stdout) == (1, "")
    assert "truncated" in drilled.stderr
    assert "Take another backup" in drilled.stderr


def test_a_dump_folder_without_one_of_its_files_is_not_complete(house: House, tmp_path: Path) -> None:
    shutil.copytree(house.folder / "dump.directory", tmp_path / "dump")
    max((tmp_path / "dump").glob("*.dat.gz"), key=lambda file: file.stat().st_size).unlink()
    drilled = house.drill("--dump", tmp_path / "dump")
    assert drilled.returncode == 1
    assert "not complete: pg_restore says" in drilled.stderr


def test_a_damaged_base_backup_is_said_to_be_damaged(house: House, tmp_path: Path) -> None:
    shutil.copytree(house.folder / "base", tmp_path / "base")
    victim = max((tmp_path / "base" / "base").rglob("*"), key=lambda file: file.stat().st_size)
    with victim.open("r+b") as file:
        file.truncate(victim.stat().st_size // 2)
    drilled = house.drill("--base-backup", tmp_path / "base")
    assert drilled.returncode == 1
    assert "pg_verifybackup says" in drilled.stderr


def test_a_base_backup_without_its_write_ahead_log_does_not_start(house: House, tmp_path: Path) -> None:
    shutil.copytree(house.folder / "base", tmp_path / "base")
    (tmp_path / "base" / "backup_manifest").unlink()
    for segment in (tmp_path / "base" / "pg_wal").glob("0*"):
        segment.unlink()
    drilled = house.drill("--base-backup", tmp_path / "base")
    assert drilled.returncode == 1
    assert re.search(r"does not start: .*checkpoint record", drilled.stderr)


def test_a_dump_of_another_house_is_named_as_one(house: House, tmp_path: Path) -> None:
    with empty_database(house.log.database) as url:
        other = SealedLog(
            Database(url, house.log.database.settings), tmp_path, SigningKey.create(tmp_path / "signing.key")
        )
        other.database.migrate()
        with psycopg.connect(url) as connection:
            make_months(connection, [JANUARY])
        other.write(JANUARY, 0)
        assert asyncio.run(other.seal()) == {}
        dump = house.dump("custom", "other.dump", url)
    drilled = house.drill("--dump", dump)
    assert (drilled.returncode, drilled.stdout) == (1, "")
    assert "is a backup of another house" in drilled.stderr


def test_a_dump_of_another_program_is_no_backup_of_ours(house: House, tmp_path: Path) -> None:
    with empty_database(house.log.database) as url:
        dump = house.dump("plain", "empty.sql", url)
    assert "no backup of Affidavit's database" in house.drill("--dump", dump).stderr
    (tmp_path / "text").write_text("what?")
    assert "is no dump" in house.drill("--dump", tmp_path / "text").stderr
    assert "No such file" in house.drill("--dump", tmp_path / "nowhere").stderr
    assert "PG_VERSION" in house.drill("--base-backup", tmp_path).stderr
    assert "Give it as --base-backup" in house.drill("--dump", house.folder / "base").stderr
    assert "Give one backup" in house.drill().stderr


def test_a_backup_of_another_major_version_is_refused_in_words(house: House, tmp_path: Path) -> None:
    newer = f"{major_version() + 1}."
    dump = (house.folder / "dump.custom").read_bytes()
    ours = f"{major_version()}.".encode()
    (tmp_path / "newer").write_bytes(dump.replace(ours, newer.encode(), 2))
    assert f"is a dump of PostgreSQL {newer[:-1]}" in house.drill("--dump", tmp_path / "newer").stderr
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "PG_VERSION").write_text("16\n")
    assert "is a base backup of PostgreSQL 16" in house.drill("--base-backup", tmp_path / "base").stderr


def test_a_base_backup_with_tablespaces_is_not_started(house: House, tmp_path: Path) -> None:
    """Its links lead to the folders of the live server."""
    shutil.copytree(house.folder / "base", tmp_path / "base")
    (tmp_path / "base" / "pg_tblspc" / "16999").symlink_to(tmp_path)
    with pytest.raises(BackupError, match="has tablespaces"):
        base_backup_at(tmp_path / "base", major_version())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
@pytest.mark.parametrize("given", [("--dump", "dump.custom"), ("--base-backup", "base")])
def test_a_full_disk_is_named_with_the_way_out(given: tuple[str, str], house: House, temporary: Path) -> None:
    drilled = subprocess.run(
        [*SMALL_DISK, temporary, sys.executable, "-m", "engine.cli", "drill", "restore", given[0], house.folder / given[1],
         "--data-dir", house.folder],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=START_S,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(temporary), "DATABASE_URL": house.log.url},
    )  # fmt: skip
    assert drilled.returncode == 1
    assert re.search(
        rf"There is no room in {temporary} to restore the backup: .* TMPDIR\.", drilled.stderr
    ), drilled.stderr


# Seen red without the standby: the sealer sealed the two waiting records anew.
def test_no_sealer_can_seal_in_the_scratch_although_it_has_the_key(house: House) -> None:
    before = house.stored()
    with scratch_server(lambda: None) as server:
        server.take_base_backup(base_backup_at(house.folder / "base", major_version()))
        server.forbid_writes()
        copy = SealedLog(
            Database(server.address("affidavit"), house.log.database.settings), house.folder, house.log.key
        )
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            asyncio.run(copy.seal())
        with psycopg.connect(server.address("affidavit")) as superuser:
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                superuser.execute("DELETE FROM audit_leaves")
    assert house.stored() == before


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_ended_drill_leaves_nothing(sent: signal.Signals, house: House, temporary: Path) -> None:
    """What a killed one could not remove, the next one does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli", "drill", "restore", "--dump", house.folder / "dump.plain", "--data-dir", house.folder],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={"PATH": os.environ["PATH"], "TMPDIR": str(temporary)},
    )  # fmt: skip
    deadline = time.monotonic() + START_S
    while not list(temporary.glob("affidavit-drill-*/postgres/postmaster.pid")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stderr
        time.sleep(0.02)
    process.send_signal(sent)
    _, said = process.communicate(timeout=START_S)
    if sent == signal.SIGKILL:
        assert list(temporary.iterdir())
        assert house.drill("--dump", house.folder / "dump.custom", temporary=temporary).returncode == 0
    else:
        assert process.returncode == 1
        assert "there is no verdict" in said
    assert list(temporary.iterdir()) == []


def test_a_backup_of_an_older_version_is_migrated_first(house: House, tmp_path: Path) -> None:
    last = max((ROOT / "sql").glob("[0-9]*.sql")).name
    with empty_database(house.log.database) as url:
        with psycopg.connect(url) as connection:
            migrate(connection, ROOT / "sql")
            make_months(connection, [JANUARY])
        folder = tmp_path / "older"
        folder.mkdir()
        log = SealedLog(
            Database(url, house.log.database.settings), folder, SigningKey.create(folder / "signing.key")
        )
        log.write(JANUARY, *range(3))
        assert asyncio.run(log.seal()) == {}
        with psycopg.connect(url) as connection:  # as before the last migration, which can be applied twice
            connection.execute("DELETE FROM schema_migrations WHERE name = %s", (last,))
        dump = house.dump("custom", "older.dump", url)
    drilled = affidavit("drill", "restore", "--dump", dump, data_dir=folder)
    assert drilled.returncode == 0, drilled.stdout
    assert f"so these were applied: {last}." in drilled.stdout
