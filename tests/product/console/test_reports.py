"""Reports in the console: chosen, seen, taken along; each is on record, and can be repeated by command."""

import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import httpx
import pytest

from audit.errors import UnansweredError
from audit.reports.document import ControlReport
from audit.reports.forms import data_in
from audit.reports.pack import PACKS
from engine.house import House
from engine.storage.database import Database
from engine.wiring import reports
from tests.conftest import Records
from tests.product.console.signed_in import browser_at, key_of, signed_in

PATH = "/console/reports"


@pytest.fixture
async def auditor(house: House, database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with signed_in(house, await key_of(database)) as client:
        yield client


@pytest.mark.parametrize("pack", PACKS)
async def test_a_report_shows_each_control_with_its_status_in_words(
    auditor: httpx.AsyncClient, pack: str
) -> None:
    page = await auditor.get(PATH, params={"pack": pack})
    assert page.status_code == 200
    statuses = re.findall(r'class="status ([a-z-]+)"', page.text)
    assert len(statuses) >= 4
    assert set(statuses) <= {"met", "not-met", "not-measured", "not-applicable"}
    assert "<style" not in page.text and " style=" not in page.text


@pytest.mark.parametrize("name", ["change.html", "change.json", "change.oscal.json"])
async def test_a_file_is_on_record_with_the_digest_of_its_data(
    auditor: httpx.AsyncClient, records: Records, name: str
) -> None:
    file = await auditor.get(f"{PATH}/{name}")
    assert file.status_code == 200
    assert file.headers["Content-Disposition"].startswith('attachment; filename="report-change-')
    _, data = data_in(file.content)
    row = records.where("endpoint = '/console/reports/{name}' ORDER BY timestamp DESC LIMIT 1")[0]
    assert row["details"]["sha256"] == sha256(data).hexdigest()
    assert str(row["log_id"]).encode() in data


@pytest.mark.parametrize(
    "address",
    ["?pack=all", "?pack=change&from=soon", "?pack=change&from=2026-02-01&to=2026-01-01", "/change.pdf", "/<b>.html",
     "?pack=change&from=0001-01-01", "?pack=change&to=0001-01-02"],
)  # fmt: skip
async def test_what_is_wrong_is_said_on_the_page(auditor: httpx.AsyncClient, address: str) -> None:
    page = await auditor.get(f"{PATH}{address}")
    assert page.status_code == 422
    assert "<b>." not in page.text


async def test_what_takes_too_long_for_a_page_is_said_with_the_command_that_may_take_longer(
    house: House, database: Database
) -> None:
    async def too_long(*_: object) -> ControlReport:
        raise UnansweredError("This period has more records than a page can measure.")

    async with signed_in(replace(house, reports=too_long), await key_of(database)) as client:
        page = await client.get(PATH, params={"pack": "change", "from": "2026-01-01", "to": "2026-02-01"})
        file = await client.get(f"{PATH}/change.html")
    assert (page.status_code, file.status_code) == (200, 503)
    assert (
        "affidavit audit report --pack change --from 2026-01-01 --to 2026-02-01 -o change.html" in page.text
    )


# Seen red: the log was opened, and the file written, on the thread that serves readers.
async def test_readers_do_not_wait_while_a_report_is_opened_and_written(
    house: House, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, opening, writing = list[threading.Thread](), reports.open_measuring, ControlReport.to_bytes

    def opened(*given: Any) -> Any:
        threads.append(threading.current_thread())
        return opening(*given)

    def written(report: ControlReport) -> bytes:
        threads.append(threading.current_thread())
        return writing(report)

    monkeypatch.setattr(reports, "open_measuring", opened)
    monkeypatch.setattr(ControlReport, "to_bytes", written)
    measure = reports.reports_of(database.settings, database)
    async with signed_in(house, await key_of(database), reports=measure) as client:
        file = await client.get(f"{PATH}/change.oscal.json")
    assert file.status_code == 200
    assert len(threads) >= 3
    assert threading.current_thread() not in threads


async def test_without_a_session_there_is_no_report(house: House) -> None:
    async with browser_at(house) as client:
        page = await client.get(PATH, params={"pack": "change"})
    assert page.status_code == 401
    assert "status" not in page.text
