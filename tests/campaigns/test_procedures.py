"""The written procedures with the real commands: restore, upgrade, rotate a key, lose a region. What is lost is named, and proven."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from audit.proof.keys import SigningKey
from engine import wiring
from engine.providers.postgres import PROGRAMS
from engine.storage.migrate import migrate
from engine.wiring import now
from tests.campaigns.test_failover import primary_of, wait_until
from tests.command_line import affidavit
from tests.conftest import ROOT, running

MONTH = f"{now():%Y-%m}"
QUESTION = {"query": "What does an IMU measure?"}
_COUNT = "SELECT query_id::text FROM audit_logs WHERE endpoint = '/v1/query'"


@dataclass
class Site:
    """A data folder, a database, and the API key of its reader."""

    data: Path
    url: str
    secret: str

    def run(self, *command: object, exit_code: int = 0) -> str:
        done = affidavit(*command, data_dir=self.data, DATABASE_URL=self.url)
        assert done.returncode == exit_code, (command, done.stdout, done.stderr)
        return done.stdout

    @property
    def public(self) -> Path:
        return self.data / "signing.key.pub"

    def verify(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            affidavit("audit", "verify", "--json", data_dir=self.data, DATABASE_URL=self.url).stdout
        )
        return found

    def drill(self, dump: Path) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("drill", "restore", "--dump", dump, "--json"))
        return found

    def dump(self, path: Path) -> Path:
        program("pg_dump", "--format=custom", f"--file={path}", self.url)
        return path

    def recorded(self) -> set[str]:
        with psycopg.connect(self.url) as connection:
            return {name for (name,) in connection.execute(_COUNT.encode())}

    def ask(self, times: int) -> list[dict[str, Any]]:
        """Answers of an engine that is started and stopped for it; all is sealed and anchored then."""
        with self.serving() as client:
            answers = [answered(client) for _ in range(times)]
        self.run("audit", "seal", "--once")
        return answers

    @contextmanager
    def serving(self) -> Iterator[httpx.Client]:
        with (
            running(self.data, command="serve", DATABASE_URL=self.url) as engine,
            httpx.Client(
                base_url=engine.url, headers={"Authorization": f"Bearer {self.secret}"}, timeout=10
            ) as client,
        ):
            yield client


def answered(client: httpx.Client) -> dict[str, Any]:
    response = client.post("/v1/query", json=QUESTION)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    assert found["outcome"] == "answered", found
    return found


def ids(answers: list[dict[str, Any]]) -> set[str]:
    return {answer["query_id"] for answer in answers}


def check(file: Path, public: Path, exit_code: int = 0) -> str:
    """As an auditor, who has the file and a public key."""
    done = affidavit("audit", "check", file, "--public-key", public)
    assert done.returncode == exit_code, (file, done.stdout, done.stderr)
    return done.stdout


def program(name: str, *arguments: str) -> str:
    return subprocess.run([PROGRAMS / name, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def first() -> Iterator[Site]:
    """With a book and a key, and never served: each test gets a copy."""
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as made:
        with primary_of(Path(made)) as server:
            data = Path(made, "data")
            data.mkdir()
            SigningKey.create(data / "signing.key")
            site = Site(data, server.url, "")
            site.run("migrate")
            site.run("ingest", wiring.SAMPLE_BOOK, "--book", "physical-ai")
            site.secret = site.run("keys", "create", "--client", "site").split()[-1]
            yield site


@pytest.fixture
def site(first: Site, tmp_path: Path) -> Iterator[Site]:
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as made:
        data = Path(made, "data")
        shutil.copytree(first.data, data)
        with made_database(first.url, tmp_path.name[-20:], template="affidavit") as url:
            yield Site(data, url, first.secret)


@contextmanager
def made_database(beside: str, name: str, template: str = "template0") -> Iterator[str]:
    maintenance = make_conninfo(beside, dbname="postgres")
    with psycopg.connect(maintenance, autocommit=True) as connection:
        named = (sql.Identifier(name), sql.Identifier(template))
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(*named))
        yield make_conninfo(beside, dbname=name)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def lose(url: str) -> None:
    """From now on nobody gets into this database."""
    name = str(conninfo_to_dict(url)["dbname"])
    with psycopg.connect(make_conninfo(url, dbname="postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )


def receipt_of(answer: dict[str, Any], folder: Path) -> Path:
    (folder / "receipt.json").write_text(json.dumps(answer["receipt"]))
    return folder / "receipt.json"


def test_a_restore_names_what_is_lost_and_takes_what_a_lost_engine_had_in_its_spool(
    site: Site, tmp_path: Path
) -> None:
    kept = site.ask(3)
    dump = site.dump(tmp_path / "affidavit.dump")
    lost = site.ask(2)
    spooled = lose_while_serving(site)
    drilled = site.drill(dump)
    assert drilled["is_good"]
    assert drilled["newer_rows"] >= len(lost)
    assert list((site.data / "spool").glob("*.spool"))
    with made_database(site.url, "restored") as url:
        program("pg_restore", "--exit-on-error", f"--dbname={url}", str(dump))
        site.url = url
        with site.serving():
            wait_until(url, "SELECT count(*) = 2 FROM audit_logs WHERE spooled AND endpoint = '/v1/query'")
        assert site.recorded() == ids(kept) | ids(spooled)
        assert site.verify()["verdict"] == "MISSING"
        stated = json.loads(
            site.run("audit", "break", "--month", MONTH, "--basis", "the disk of db-1, ticket 1", "--json")
        )
        assert stated["lost"] - stated["kept"] == drilled["newer_rows"]
        site.ask(1)
        verified = site.verify()
        assert verified["verdict"] == "LOST_BY_FAILOVER"
        assert {finding["verdict"] for finding in verified["findings"]} == {"LOST_BY_FAILOVER"}
        said = check(receipt_of(lost[0], tmp_path), site.public, exit_code=1)
        assert "The receipt is genuine, so the record must exist" in said


def lose_while_serving(site: Site) -> list[dict[str, Any]]:
    """The database is lost, two readers whom the engine knows are answered even so, and then the engine is lost too."""
    with running(site.data, command="serve", DATABASE_URL=site.url) as engine:
        headers = {"Authorization": f"Bearer {site.secret}"}
        with httpx.Client(base_url=engine.url, headers=headers, timeout=10) as client:
            answered(client)
            lose(site.url)
            spooled = [answered(client) for _ in range(2)]
        engine.process.kill()
    return spooled


def test_after_an_upgrade_everything_before_it_is_valid(first: Site, tmp_path: Path) -> None:
    files = sorted((ROOT / "sql").glob("[0-9]*.sql"))
    for file in files[:-2]:
        shutil.copy(file, tmp_path)
    with made_database(first.url, "older") as url:
        with psycopg.connect(url) as connection:
            migrate(connection, tmp_path)
        shutil.copytree(first.data, tmp_path / "data")
        older = Site(tmp_path / "data", url, "")
        dump = older.dump(tmp_path / "before.dump")
        older.run("audit", "partitions", exit_code=0)
        assert "lacks" in affidavit("audit", "archive", data_dir=older.data, DATABASE_URL=url).stderr
        older.run("migrate")
        older.run("keys", "create", "--client", "site")
        older.run("audit", "seal", "--once")
        assert older.verify()["verdict"] == "VALID"
        states = {
            line.split()[1]: line.split()[0]
            for line in affidavit("doctor", data_dir=older.data, DATABASE_URL=url).stdout.splitlines()
        }
        assert states["migrations"] == "ok"
        said = affidavit("drill", "restore", "--dump", dump, data_dir=older.data).stdout
        assert f"so these were applied: {', '.join(file.name for file in files[-2:])}." in said


def test_after_a_rotation_of_the_signing_key_both_sides_of_it_are_valid(site: Site, tmp_path: Path) -> None:
    (before,) = site.ask(1)
    site.run("audit", "prove", before["query_id"], "-o", tmp_path / "before.json")
    dump = site.dump(tmp_path / "before.dump")
    older = Path(shutil.copy(site.public, tmp_path / "older.pub"))
    site.run("audit", "key", "--new")
    (after,) = site.ask(1)
    site.run("audit", "prove", after["query_id"], "-o", tmp_path / "after.json")
    assert site.verify()["verdict"] == "VALID"
    for proof, public, exit_code in (("before", site.public, 0), ("before", older, 0),
                                     ("after", site.public, 0), ("after", older, 1)):  # fmt: skip
        check(tmp_path / f"{proof}.json", public, exit_code)
    assert site.drill(dump)["is_good"]
    lines = site.public.read_text().splitlines()
    site.public.write_text(f"{lines[-1]}\n")
    assert site.verify()["verdict"] != "VALID"
    said = affidavit("drill", "restore", "--dump", dump, data_dir=site.data)
    assert (said.returncode, said.stdout) == (1, "")
    assert "add the lines of the earlier keys to the .pub" in said.stderr
    site.public.write_text("\n".join([*lines, ""]))
    assert site.verify()["verdict"] == "VALID"


def test_after_the_loss_of_a_region_another_one_goes_on_and_says_what_is_lost(
    site: Site, tmp_path: Path
) -> None:
    kept = site.ask(3)
    dump = site.dump(tmp_path / "affidavit.dump")
    roles = program("pg_dumpall", "--globals-only", "--no-role-passwords", f"--dbname={site.url}")
    anchored = site.ask(2)
    site.run("audit", "prove", anchored[0]["query_id"], "-o", tmp_path / "proof.json")
    with TemporaryDirectory(prefix="affidavit-test-", ignore_cleanup_errors=True) as there:
        other = Path(there, "data")
        other.mkdir()
        site.run("vault", "copy", "--to", other / "vault")
        for name in ("signing.key", "signing.key.pub"):
            shutil.copy(site.data / name, other)
        unanchored = site.ask(1)
        lose(site.url)
        shutil.rmtree(site.data)
        with primary_of(Path(there)) as server:
            second = Site(other, server.url, site.secret)
            drilled = second.drill(dump)
            assert drilled["newer_rows"] >= len(anchored)
            restore_into(server.url, dump, roles, Path(there))
            assert second.verify()["verdict"] == "MISSING"
            with second.serving() as client:
                new = [answered(client)]
            stated = json.loads(
                second.run("audit", "break", "--month", MONTH, "--basis", "loss of region one", "--json")
            )
            assert stated["lost"] - stated["kept"] == drilled["newer_rows"]
            verified = second.verify()
            assert verified["verdict"] == "LOST_BY_FAILOVER"
            assert second.recorded() == ids(kept) | ids(new)
            check(tmp_path / "proof.json", second.public)
            said = check(receipt_of(unanchored[0], tmp_path), second.public, exit_code=1)
            assert "The receipt is genuine, so the record must exist" in said


def restore_into(url: str, dump: Path, roles: str, folder: Path) -> None:
    """As docs/how-to/loss-of-a-region.md has it. The superuser of the new server is there already."""
    (folder / "roles.sql").write_text(
        "\n".join(line for line in roles.splitlines() if "ROLE postgres" not in line)
    )
    program(
        "psql",
        "--no-psqlrc",
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        f"--file={folder / 'roles.sql'}",
        f"--dbname={url}",
    )
    program("pg_restore", "--exit-on-error", f"--dbname={url}", str(dump))
