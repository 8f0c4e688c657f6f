"""`affidavit audit report`: what it says of a log, and that anybody can repeat it."""

import json
import subprocess
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from audit.checking.evidence import Period
from audit.ledger.partitions import month_start
from audit.proof.canonical import canonical_json
from audit.proof.keys import SigningKey
from audit.proof.record import Trail
from audit.query.tiers import QueryLimits, TieredLog
from audit.reports.as_of import AsOf
from audit.reports.document import ControlReport, MeasuredControl
from audit.reports.forms import FORMS
from audit.reports.measuring import Measuring
from audit.reports.pack import PACKS, Pack, pack_of
from audit.reports.repeating import differences, read_report
from engine import wiring
from engine.storage.database import AUDITOR, Database, as_role
from tests.command_line import affidavit
from tests.conftest import CAMPAIGN_ROUNDS
from tests.databases import migrated_database
from tests.logs.archiving import archiver_of
from tests.logs.recorded import make_months, write
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, quiet, whole_trail

SINCE, UNTIL = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 3, 1, tzinfo=UTC)
PERIOD = ("--from", "2025-01-01", "--to", "2025-03-01")
HOSTILE = '<script>alert(1)</script>"\u202e=cmd'
AMPLE = QueryLimits(seconds=300.0, bytes_max=2**30)

OPERATORS = {
    8: ("affidavit audit verify", "verdict VALID"),
    9: ("affidavit audit sample draw", "sample s records r"),
    10: ("affidavit audit review give", "sample s record r"),
}


def rows_of_a_process(month: date, *, lost: int = 0) -> list[Trail]:
    """Nine requests between two heartbeats; one of its numbers was never written, as the heartbeat says, and `lost` is gone."""
    writer, at = uuid4(), datetime(month.year, month.month, 12, 12, tzinfo=UTC)
    beats = {1: {"through": 0, "unrecorded": []}, 11: {"through": 10, "unrecorded": [[5, 5]]}}
    made = []
    for number in range(1, 12):
        if number in {5, lost}:
            continue
        beat = beats.get(number)
        about: dict[str, Any] = (
            {"outcome": "recorded", "endpoint": "heartbeat", "source_mode": None} if beat else {}
        )
        if number == 3:
            about = {"outcome": "refused", "reason": "not_covered"}
        if number == 4:
            about = {"outcome": "failed", "error_type": "timeout", "total_latency_ms": 5400}
        if number == 6:
            about = {
                "endpoint": "affidavit keys create",
                "outcome": "recorded",
                "client_id": HOSTILE,
                "source_mode": None,
            }
        if number in OPERATORS:
            endpoint, reason = OPERATORS[number]
            about = {"endpoint": endpoint, "reason": reason, "outcome": "recorded", "source_mode": None}
            about["client_id"] = f"somebody in {month:%B}"
        made.append(
            whole_trail(
                month, number, timestamp=at + timedelta(seconds=number), writer=writer, sequence=number, heartbeat=beat,
                **({"prompt_sha256": HOSTILE, "spooled": False} | about),
            )
        )  # fmt: skip
    return made


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    """January is whole; in February a record is gone. Both were sealed long after their requests, and anchored at once."""
    folder = tmp_path_factory.mktemp("reported")
    with migrated_database(database) as empty:
        made = SealedLog(empty, folder, SigningKey.create(folder / "signing.key"))
        with psycopg.connect(made.url) as connection:
            make_months(connection, (JANUARY, FEBRUARY, wiring.now().date().replace(day=1)))
            write(connection, *rows_of_a_process(JANUARY), key=made.key)
            write(connection, *rows_of_a_process(FEBRUARY, lost=7), key=made.key)
        assert await made.seal() == {}
        made.keep()
        yield made


def measured(log: SealedLog, pack: str | Pack, period: AsOf | None = None, event: str = "") -> ControlReport:
    period = period or AsOf.settled(SINCE, UNTIL, wiring.now())
    months = Period(*map(month_start, period.months))
    tiers = TieredLog(as_role(log.url, AUDITOR), log.vault, wiring.shipped_definitions(), AMPLE, months)
    asked = pack_of(pack) if isinstance(pack, str) else pack
    return Measuring(tiers, "test", quiet).measure(asked, period, event or str(uuid4()))


def control(report: ControlReport, name: str) -> MeasuredControl:
    return next(each for each in report.controls if each.control.id == name)


def control_alone(log: SealedLog, name: str) -> MeasuredControl:
    """Without the others of its pack, which are a dozen queries over all tiers."""
    pack = pack_of(name.partition("-")[0])
    only = replace(pack, controls=tuple(each for each in pack.controls if each.id == name))
    return control(measured(log, only), name)


def repeated(log: SealedLog, content: bytes) -> list[str]:
    stated = read_report(content)
    return differences(stated, measured(log, stated.pack.id, stated.period, str(stated.event)))


def reported(log: SealedLog, *arguments: object) -> subprocess.CompletedProcess[str]:
    return affidavit("audit", "report", *arguments, data_dir=log.folder, DATABASE_URL=log.url)


STATUSES = {
    "operation-numbered": "not met", "operation-signed": "met", "operation-unsealed": "met",
    "operation-sealed-in-time": "not met", "operation-anchored-in-time": "met", "operation-outages": "met",
    "operation-refusals": "met", "operation-five-seconds": "not met", "operation-verified": "met",
    "retention-rows": "met", "retention-months": "met", "retention-archives": "not applicable",
    "retention-erasures": "not applicable", "retention-holds": "not applicable", "retention-handed-over": "not applicable",
    "retention-period": "not measured", "retention-write-once": "not measured", "retention-backup": "not measured",
    "incident-failures": "met", "incident-history": "met", "incident-forged": "met", "incident-changed": "met", "incident-rows": "met",
    "incident-rollback": "met", "incident-revocations": "not applicable", "incident-response": "not measured",
    "change-named": "met", "change-models": "met", "change-prompts": "met", "change-editions": "met",
    "change-settings": "met", "change-signing-keys": "met", "change-api-keys": "met", "change-schema": "met",
    "change-documentation": "not measured",
    "review-confidence": "met", "review-samples": "met", "review-two": "met", "review-agreement": "not measured",
    "review-errors": "not measured",
}  # fmt: skip


@pytest.mark.parametrize("pack", PACKS)
def test_each_control_is_judged_by_what_the_log_holds(log: SealedLog, pack: str) -> None:
    found = {each.control.id: each.judged.status for each in measured(log, pack).controls}
    assert found == {name: status for name, status in STATUSES.items() if name.startswith(f"{pack}-")}


def test_a_number_that_is_gone_is_missing_and_one_that_was_never_written_is_not(log: SealedLog) -> None:
    numbered = control_alone(log, "operation-numbered")
    assert (numbered.judged.counted, numbered.judged.violations) == (20, 1)
    assert sorted(row[1:] for row in numbered.rows) == [(10, 8, 1, 1), (10, 9, 1, 0)]


def test_a_heartbeat_may_say_of_many_ranges_that_they_have_no_record(log: SealedLog) -> None:
    """Seen red with the first ten ranges read: a number that was said to have no record was missing."""
    ranges = [[number, number] for number in (*range(1, 23, 2), 105)]
    january = "heartbeat IS NOT NULL AND timestamp < '2025-02-01'"
    try:
        log.attack(
            "UPDATE audit_logs SET sequence = sequence + 100 WHERE timestamp < '2025-02-01'",
            f"UPDATE audit_logs SET heartbeat = jsonb_set(heartbeat, '{{through}}', to_jsonb(sequence - 1)) WHERE {january}",
            f"UPDATE audit_logs SET heartbeat = jsonb_set(heartbeat, '{{unrecorded}}', '{ranges}') WHERE {january} AND sequence = 111",
        )
        rows = control_alone(log, "operation-numbered").rows
        assert sorted(row[1:] for row in rows) == [(10, 8, 1, 1), (10, 9, 1, 0)]
    finally:
        log.restore()


@pytest.mark.parametrize(
    ("change", "counted", "violations"),
    [
        ("outcome = 'abandoned', total_latency_ms = NULL", 0, 1),
        ("outcome = 'not_acknowledged'", 0, 1),
        ("total_latency_ms = NULL", 0, 1),
        ("outcome = 'client_gone'", -1, 0),
    ],
)
def test_a_question_without_an_end_was_not_answered_within_five_seconds(
    log: SealedLog, change: str, counted: int, violations: int
) -> None:
    """Seen red with abandoned and unacknowledged questions, and those without a latency, left out."""
    before = control_alone(log, "operation-five-seconds").judged
    try:
        log.attack(f"UPDATE audit_logs SET {change} WHERE sequence = 2 AND timestamp < '2025-02-01'")
        after = control_alone(log, "operation-five-seconds").judged
    finally:
        log.restore()
    assert (after.counted - before.counted, after.violations - before.violations) == (counted, violations)


VIOLATIONS = {
    "change-prompts": "prompt_sha256 = NULL, model_used = 'claude-opus-4-8'",
    "change-named": "prompt_sha256 = NULL, model_used = 'claude-opus-4-8'",
    "operation-refusals": "outcome = 'refused', reason = 'a reason that no engine gives'",
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_rule_can_be_violated(log: SealedLog, name: str) -> None:
    """Seen red with prompts counted only where there is one, and with any reason."""
    try:
        log.attack(
            f"UPDATE audit_logs SET {VIOLATIONS[name]} WHERE sequence = 2 AND timestamp < '2025-02-01'"
        )
        judged = control_alone(log, name).judged
        assert (judged.status, judged.violations) == ("not met", 1)
    finally:
        log.restore()


def test_an_answer_without_a_language_model_needs_no_prompt(log: SealedLog) -> None:
    try:
        log.attack("UPDATE audit_logs SET prompt_sha256 = NULL, model_used = 'extractive'")
        report = measured(log, "change")
        assert control(report, "change-prompts").judged.status == "not applicable"
        assert control(report, "change-named").judged.status == "met"
    finally:
        log.restore()


def test_one_record_that_was_erased_twice_is_one(log: SealedLog) -> None:
    """Seen red with lines counted."""
    erasure = (
        "INSERT INTO audit_erasures (erasure_id, log_id, month, erased_at, basis, event, key_id, signature)"
        " SELECT gen_random_uuid(), log_id, '2025-01-01', '2025-01-20', 'asked', gen_random_uuid(), 'k', 's'"
        " FROM audit_logs WHERE sequence = 2 AND timestamp < '2025-02-01'"
    )
    try:
        log.attack(erasure, erasure)
        assert control_alone(log, "retention-erasures").judged.counted == 1
    finally:
        log.restore()
        with psycopg.connect(log.url) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute("DELETE FROM audit_erasures")


@pytest.mark.parametrize(
    ("pack", "day"), [*((pack, "2025-01-20") for pack in PACKS), ("incident", "2024-05-01")]
)
def test_a_period_without_a_record_is_not_measured_and_never_met(log: SealedLog, pack: str, day: str) -> None:
    since = datetime.fromisoformat(day).replace(tzinfo=UTC)
    report = measured(log, pack, AsOf.settled(since, since + timedelta(days=1), wiring.now()))
    assert {each.judged.status for each in report.controls} == {"not measured"}


def test_a_month_whose_rows_were_all_deleted_is_not_met(log: SealedLog) -> None:
    """Seen red with the sealed records asked for before the violations: "not measured"."""
    try:
        log.attack("DELETE FROM audit_logs WHERE timestamp < '2025-03-01'")
        rows = control_alone(log, "retention-rows")
        assert (rows.judged.status, rows.judged.violations) == ("not met", rows.judged.counted)
    finally:
        log.restore()


def test_rows_whose_content_was_rewritten_are_not_said_to_be_unchanged_without_a_verification(
    log: SealedLog,
) -> None:
    """Stored hashes stay as they were."""
    try:
        log.attack(
            "UPDATE audit_logs SET answer_text = 'another', endpoint = '/v1/books/{book_id}/questions'"
        )
        report = measured(log, "incident")
        assert control(report, "incident-changed").judged.status == "met"
        assert control(report, "incident-rows").judged.status == "not measured"
    finally:
        log.restore()


@pytest.mark.parametrize(
    ("reason", "whole", "any_run"),
    [
        ("verdict VALID of a part", "not measured", "met"),
        ("verdict TAMPERED of a part", "not measured", "not met"),
        ("verdict TAMPERED", "not met", "not met"),
    ],
)
def test_a_verification_of_a_part_is_not_one_of_the_log(
    log: SealedLog, reason: str, whole: str, any_run: str
) -> None:
    try:
        log.attack(f"UPDATE audit_logs SET reason = '{reason}' WHERE endpoint = 'affidavit audit verify'")
        assert control_alone(log, "incident-rows").judged.status == whole
        assert control_alone(log, "operation-verified").judged.status == any_run
    finally:
        log.restore()


def test_a_verdict_under_a_typed_name_is_counted_apart(log: SealedLog) -> None:
    assert control_alone(log, "review-two").rows[0][-1] == 0
    try:
        log.attack("UPDATE audit_logs SET key_id = NULL WHERE endpoint = 'affidavit audit review give'")
        assert control_alone(log, "review-two").rows[0][-1] == 1
    finally:
        log.restore()


def test_a_month_that_was_never_sealed_is_not_met(log: SealedLog) -> None:
    try:
        log.attack("DELETE FROM audit_leaves; DELETE FROM audit_checkpoints")
        unsealed = control_alone(log, "operation-unsealed")
        assert (unsealed.judged.status, unsealed.judged.violations) == ("not met", unsealed.judged.counted)
    finally:
        log.restore()


@pytest.mark.parametrize("pack", PACKS)
def test_a_repeated_report_is_the_same_to_the_last_byte_in_every_form(log: SealedLog, pack: str) -> None:
    report = measured(log, pack)
    anew = measured(log, pack, replace(report.as_of, heads=()), report.event)
    assert {
        form: differences(read_report(write_form(report)), anew) for form, write_form in FORMS.items()
    } == {form: [] for form in FORMS}


CHANGES = {
    "a verdict": (
        "UPDATE audit_logs SET reason = 'verdict TAMPERED' WHERE sequence = 8 AND timestamp < '2025-02-01'",
        "operation", 'operation-verified: row: only in the log: ["verdict TAMPERED",1,1,',
    ),
    "a reviewer": (
        "UPDATE audit_logs SET client_id = 'somebody in January' WHERE sequence = 10",
        "review", 'review-two: status: the file says "met", measured anew it is "not met"',
    ),
    "an outcome": (
        "UPDATE audit_logs SET outcome = 'answered', reason = NULL WHERE outcome = 'refused' AND timestamp < '2025-02-01'",
        "operation", "operation-refusals: counted: the file says 2, measured anew it is 1",
    ),
    "a hash": (
        "UPDATE audit_logs SET leaf_hash = decode(repeat('00', 32), 'hex') WHERE sequence = 4 AND timestamp < '2025-02-01'",
        "incident", 'incident-changed: status: the file says "met", measured anew it is "not met"',
    ),
    "a row that is gone": (
        "DELETE FROM audit_logs WHERE sequence = 4 AND timestamp < '2025-02-01'",
        "retention", 'retention-rows: row: only in the log: ["2025-01",10,9,1]',
    ),
    "a head": (
        "DELETE FROM audit_checkpoints WHERE month = '2025-02-01'",
        "change", "head: the file says ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_repeated_report_names_what_was_changed_since(log: SealedLog, name: str) -> None:
    statement, pack, words = CHANGES[name]
    content = measured(log, pack).to_bytes()
    try:
        log.attack(statement)
        assert any(each.startswith(words) for each in repeated(log, content)), repeated(log, content)
    finally:
        log.restore()


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a status": lambda said: said["controls"][0].update(status="met"),
    "a figure": lambda said: said["controls"][0].update(violations=0),
    "a row": lambda said: said["controls"][1]["rows"].pop(),
    "a query": lambda said: said["controls"][0].update(query="SELECT 1 AS counted, 0 AS violations"),
    "a control that is gone": lambda said: said["controls"].pop(0),
    "no controls": lambda said: said.update(controls={}),
    "a head": lambda said: said["heads"].pop(),
    "another log": lambda said: said.update(origin="affidavit/of-somebody-else"),
}


@pytest.fixture(scope="module")
def operation(log: SealedLog) -> ControlReport:
    return measured(log, "operation")


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_report_is_found_by_repeating_it(operation: ControlReport, name: str) -> None:
    said = operation.as_json()
    FORGERIES[name](said)
    assert differences(read_report(canonical_json(said) + b"\n"), operation) != []


@pytest.mark.parametrize("form", ["html", "oscal"])
def test_a_page_that_shows_other_words_than_its_data_is_found(operation: ControlReport, form: str) -> None:
    content = FORMS[form](operation)
    forged = content.replace(b"missing: 1.", b"missing: 0.")
    assert forged != content
    found = differences(read_report(forged), operation)
    assert [each[:47] for each in found] == ["What the file shows is not what its data says: "]


def test_what_is_hostile_is_text_in_every_form(log: SealedLog) -> None:
    report = measured(log, "change")
    page = FORMS["html"](report).decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page
    assert "\u202e" not in page
    json.loads(FORMS["oscal"](report))


def test_the_command_writes_a_report_that_the_log_has_on_record_and_repeats_it(
    log: SealedLog, tmp_path: Path
) -> None:
    file = tmp_path / "operation.json"
    said = reported(log, "--pack", "operation", *PERIOD, "--format", "json", "-o", file, "--json")
    content = file.read_bytes()
    event = json.loads(said.stdout)["event"]
    with psycopg.connect(log.url) as connection:
        ((endpoint, outcome, details),) = connection.execute(
            "SELECT endpoint, outcome, details FROM audit_logs WHERE log_id = %s", (event,)
        ).fetchall()
    assert (endpoint, outcome) == ("affidavit audit report", "recorded")
    assert (details["pack"], details["sha256"]) == ("operation", sha256(content).hexdigest())
    assert json.loads(content)["event"] == event
    assert reported(log, "--repeat", file).returncode == 0
    file.write_bytes(content.replace(b'"violations":1', b'"violations":0', 1))
    again = reported(log, "--repeat", file)
    assert (again.returncode, again.stdout.split()[0]) == (1, "DIFFERENT")
    assert [each.name for each in tmp_path.iterdir()] == ["operation.json"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--pack", "operation", "--from", "2025-01-01", "-o", "x.html"),
        ("--pack", "operation", "--from", "2025-03-01", "--to", "2025-01-01", "-o", "x.html"),
        ("--pack", "operation", "--from", "0001-01-01", "--to", "2025-01-01", "-o", "x.html"),
        ("--pack", "operation", "--from", "2999-01-01", "--to", "2999-02-01", "-o", "x.html"),
        ("--pack", "operation", *PERIOD, "-o", __file__),
        ("--repeat", __file__, "--pack", "operation"),
        ("--repeat", __file__),
    ],
    ids=str,
)
def test_what_cannot_be_made_or_repeated_is_said_in_words(log: SealedLog, arguments: tuple[str, ...]) -> None:
    said = reported(log, *arguments)
    assert said.returncode in {1, 2} and said.stdout == "" and "Traceback" not in said.stderr
    assert said.stderr.strip().endswith((".", "a report", "was changed, or another program wrote it", "JSON"))


@pytest.mark.rounds
async def test_after_a_month_was_archived_a_report_repeats_the_same_but_for_the_archive(
    log: SealedLog,
) -> None:
    """The last test of this file: January leaves the database."""
    packs = PACKS if CAMPAIGN_ROUNDS else ("retention",)
    before = {pack: measured(log, pack).to_bytes() for pack in packs}
    assert [outcome.is_well for outcome in await archiver_of(log).archive(FEBRUARY)] == [True]
    assert {pack: repeated(log, content) for pack, content in before.items()} == {pack: [] for pack in packs}
    archives = control_alone(log, "retention-archives")
    assert (archives.judged.status, archives.judged.counted) == ("met", 1)
