"""A sealed log whose records quote real passages, and what makes a package of it."""

import io
import json
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from audit.package.ladder import PackageReport
from audit.package.verification import check_package
from audit.packing.choice import Choice
from audit.packing.making import Made
from audit.proof.keys import SigningKey
from engine.storage.database import Database
from engine.wiring.packages import open_making
from tests.databases import migrated_database
from tests.logs import packages
from tests.logs.recorded import make_months
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, quiet

SINCE, UNTIL = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 3, 1, tzinfo=UTC)
EVENT = UUID("0198c0de-0000-4000-8000-000000000000")
ODD_USER = 'user:Ünal, "the =boss" 🤖'


@asynccontextmanager
async def quoting_log(database: Database, folder: Path) -> AsyncIterator[SealedLog]:
    """January with 5 records; February with 9, of which a client has 3, in trees of 4 and 9, each anchored."""
    with migrated_database(database) as made:
        log = SealedLog(made, folder, SigningKey.create(folder / "signing.key"))
        with psycopg.connect(made.url) as inside:
            make_months(inside, (JANUARY, FEBRUARY))
            _add_passages(inside)
        log.write(JANUARY, *range(5), citations=[packages.citation(0)])
        log.write(FEBRUARY, *range(4), citations=None)
        assert await log.seal() == {}
        log.write(FEBRUARY, 4, 5, citations=[packages.citation(1), packages.citation(2, 2)], client_id="shop")
        log.write(FEBRUARY, 6, citations=[], client_id="shop", end_user=ODD_USER)
        log.write(FEBRUARY, 7, 8, citations=[packages.citation(2)])
        assert await log.seal() == {}
        yield log


def _add_passages(connection: psycopg.Connection) -> None:
    connection.execute("SET session_replication_role = replica")
    for number in range(3):
        passage = packages.passage(number)
        names, marks = ", ".join(passage), ", ".join(f"%({name})s" for name in passage)
        values = passage | {"sentences": Jsonb(passage["sentences"])}
        connection.execute(f"INSERT INTO chunks ({names}) VALUES ({marks})".encode(), values)


def make(log: SealedLog, file: Path, progress: Any = quiet, event: UUID = EVENT, **given: Any) -> Made:
    choice = Choice(**{"since": SINCE, "until": UNTIL} | given)
    with open_making(log.database.settings, log.database, choice, event, progress) as making:
        return making.make(file)


def checked(log: SealedLog, file: Path) -> PackageReport:
    with file.open("rb") as source:
        return check_package(source, log.keys)


def content(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as zipped:
        assert zipped.testzip() is None
        return {name: zipped.read(name) for name in zipped.namelist()}


def records(file: Path) -> list[dict[str, Any]]:
    files = content(file)
    lines = (
        line for name, each in files.items() if name.startswith("records/") for line in each.splitlines()
    )
    return [json.loads(line) for line in lines]


def read_json(file: Path, name: str) -> Any:
    return json.load(io.BytesIO(content(file)[name]))
