"""Years later every quotation can be cut again from the stored passages; a passage or a record that changed is found."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from audit.checking.evidence import StoredEvidence
from audit.checking.quotations import check_quotations
from audit.proof.verdict import Report, Verdict
from engine import wiring
from engine.storage.database import AUDITOR, Database, reading
from tests.command_line import affidavit
from tests.conftest import Running
from tests.logs.sealed_log import EVER, quiet


@pytest.fixture(scope="module")
def answer(server: Running, key: str) -> dict[str, Any]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=10) as client:
        body: dict[str, Any] = client.post("/v1/query", json={"query": "What does an IMU measure?"}).json()
    assert body["citations"]
    return body


def reverified(database: Database, query_id: str | None) -> Report:
    with reading(database.url, AUDITOR) as connection:
        evidence = StoredEvidence(connection, wiring.vault_of(database.settings), EVER, wiring.now())
        evidence.begin()
        return check_quotations(evidence, UUID(query_id) if query_id else None, quiet)


@contextmanager
def changed(
    database: Database, table: str, column: str, value: object, where: str, key: str
) -> Iterator[None]:
    """As a superuser whom no trigger stops, and put back."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        before = connection.execute(
            f"SELECT {column} FROM {table} WHERE {where} = %s".encode(), (key,)
        ).fetchone()
        assert before is not None
        update = f"UPDATE {table} SET {column} = %s WHERE {where} = %s".encode()
        connection.execute(update, (value, key))
        try:
            yield
        finally:
            back = before[0] if isinstance(before[0], str) else Jsonb(before[0])
            connection.execute(update, (back, key))


def test_quotations_of_a_record_are_those_of_the_book(database: Database, answer: dict[str, Any]) -> None:
    report = reverified(database, answer["query_id"])
    assert (report.verdict, report.checked) == (Verdict.VALID, len(answer["citations"]))


# Seen red with only the quotations compared: who changed the book before the answer had it quoted under oath, VALID.
@pytest.mark.parametrize("column", ["text", "section", "url"])
def test_a_passage_that_was_changed_before_the_answer_is_found(
    database: Database, answer: dict[str, Any], column: str
) -> None:
    chunk_id = answer["citations"][0]["chunk_id"]
    with psycopg.connect(database.url) as connection:
        asked = f"SELECT {column} FROM chunks WHERE chunk_id = %s".encode()
        (before,) = connection.execute(asked, (chunk_id,)).fetchone() or ("",)
    with changed(database, "chunks", column, f"{before} It never fails.", "chunk_id", chunk_id):
        report = reverified(database, answer["query_id"])
    assert report.verdict is Verdict.TAMPERED
    assert any("is not as it was ingested" in finding.words for finding in report.findings)


# Seen red with only the length of the excerpt compared.
def test_a_passage_that_was_changed_is_found(database: Database, answer: dict[str, Any]) -> None:
    cited = answer["citations"][0]
    with psycopg.connect(database.url) as connection:
        (text,) = connection.execute(
            "SELECT text FROM chunks WHERE chunk_id = %s", (cited["chunk_id"],)
        ).fetchone() or ("",)
    start = cited["start"]
    spoiled = text[:start] + ("x" if text[start] != "x" else "y") + text[start + 1 :]
    with changed(database, "chunks", "text", spoiled, "chunk_id", cited["chunk_id"]):
        report = reverified(database, answer["query_id"])
    assert report.verdict is Verdict.TAMPERED
    assert {finding.log_id for finding in report.findings} == {answer["receipt"]["log_id"]}
    assert f"characters {start} to {cited['end']}" in report.findings[0].words


@pytest.mark.parametrize("column", ["chapter", "filename", "url"])
def test_a_passage_that_was_moved_is_found(database: Database, answer: dict[str, Any], column: str) -> None:
    with changed(database, "chunks", column, "/elsewhere", "chunk_id", answer["citations"][0]["chunk_id"]):
        report = reverified(database, answer["query_id"])
    assert report.verdict is Verdict.TAMPERED
    assert f"its {column} differs from the passage" in report.findings[0].words


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("excerpt", "It measures nothing."), ("start", 1), ("end", 10**6), ("section", "?"), ("page", "?"), ("url", "?"),
        ("chunk_id", "0" * 64), ("chunk_id", None), ("start", "x"), ("excerpt", ""),
    ],
)  # fmt: skip
def test_a_citation_that_was_changed_is_found(
    database: Database, answer: dict[str, Any], field: str, value: object
) -> None:
    with psycopg.connect(database.url) as connection:
        (citations,) = connection.execute(
            "SELECT citations FROM audit_logs WHERE query_id = %s", (answer["query_id"],)
        ).fetchone() or ([],)
    citations[0][field] = value
    with changed(database, "audit_logs", "citations", Jsonb(citations), "query_id", answer["query_id"]):
        report = reverified(database, answer["query_id"])
    expected = Verdict.MISSING if field == "chunk_id" else Verdict.TAMPERED
    assert (report.verdict, report.findings[0].log_id) == (expected, answer["receipt"]["log_id"])


def test_a_citation_that_is_none_is_found(database: Database, answer: dict[str, Any]) -> None:
    with changed(database, "audit_logs", "citations", Jsonb(["?"]), "query_id", answer["query_id"]):
        assert reverified(database, answer["query_id"]).verdict is Verdict.TAMPERED


def test_all_records_are_compared_when_none_is_named(database: Database, answer: dict[str, Any]) -> None:
    assert reverified(database, None).checked >= len(answer["citations"])


def test_a_record_that_is_not_there_is_missing(database: Database) -> None:
    assert reverified(database, str(uuid4())).verdict is Verdict.MISSING


def test_at_the_command_line(database: Database, answer: dict[str, Any]) -> None:
    data_dir = database.settings.data_dir
    said = affidavit("audit", "reverify", answer["query_id"], "--json", data_dir=data_dir)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["verdict"] == "VALID"
    said = affidavit("audit", "reverify", "--from", "2001-01-01", "--to", "2001-01-02", data_dir=data_dir)
    assert said.returncode == 1
    assert said.stdout.startswith("CANNOT_TELL (0 checked)")
