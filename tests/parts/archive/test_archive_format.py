"""An archive proves itself, and whatever was done to it is found and located."""

import asyncio
import base64
import io
import json
import math
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from uuid import UUID

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from audit.archive import box, parquet, rows, verify, worker_process
from audit.archive.box import commitments_in, encrypt_box, open_box
from audit.archive.export import export
from audit.archive.reader import read_rows
from audit.archive.verify import verify_archive, verify_stored
from audit.archive.worker_process import in_order
from audit.erasure.target import ErasureTarget
from audit.errors import ArchiveError, ExportError, WorkerEndedError
from audit.proof.archive_format import (
    CHECKPOINT,
    EVIDENCE,
    KEYS,
    LEAVES,
    MANIFEST,
    NAMES,
    PARQUET,
    Exported,
    StoredFile,
    object_key,
    open_manifest,
    sign_manifest,
)
from audit.proof.canonical import canonical_json
from audit.proof.keys import SigningKey
from audit.proof.record import PERSONAL, HashedRow, Row
from audit.proof.row_signature import signed
from audit.proof.verdict import Report, Verdict
from engine import settings as settings_file
from engine.cli import main
from engine.storage.database import Database
from tests.conftest import CAMPAIGN_ROUNDS
from tests.logs.sealed_log import FEBRUARY, JANUARY, SealedLog, quiet, sealed_log
from tests.proofs import STRANGER

ROUNDS = CAMPAIGN_ROUNDS or 1
ROWS, ERASED, LATE = 14, 3, 12  # February's; leaf 3 was erased; leaf 12 is older than all the others
KEYS_MADE = """
INSERT INTO audit_row_keys (log_id, query_id, month, key)
SELECT log_id, query_id, date_trunc('month', timestamp AT TIME ZONE 'UTC'),
       sha256('affidavit row key 1'::bytea || '\\x00'::bytea || salt || uuid_send(log_id))
FROM audit_logs WHERE salt IS NOT NULL AND timestamp < '2025-03-01' ON CONFLICT DO NOTHING
"""

KEYLESS = "records have no key, so their personal columns were not opened"


class Held(dict[str, bytes]):
    """A vault that its owner can change at will."""

    def open(self, key: str, version: str | None = None) -> BinaryIO:
        if key not in self:
            raise FileNotFoundError(key)
        return io.BytesIO(self[key])

    def keys(self, prefix: str = "") -> list[str]:  # type: ignore[override]
        return sorted(key for key in self if key.startswith(prefix))


@dataclass(slots=True)
class Archive:
    """The files of one month, to be attacked."""

    exported: Exported
    key: SigningKey
    row_keys: Mapping[str, bytes]
    content: dict[str, bytes]
    anchors: Mapping[str, bytes] = field(default_factory=dict)

    def put(self, signer: SigningKey | None = None, **said: Any) -> tuple[Held, str]:
        """With all digests made to fit, and the manifest signed for them."""
        held, files = Held(self.anchors), {}
        month = said.get("month", self.exported.month)
        for name, content in self.content.items():
            digest = sha256(content).hexdigest()
            files[name] = StoredFile(object_key(month, name, digest), "1", digest, len(content))
            held[files[name].key] = content
        written = sign_manifest(replace(self.exported, **said), files, signer or self.key)
        place = object_key(month, MANIFEST, sha256(written).hexdigest())
        held[place] = written
        return held, place

    def verify(self, signer: SigningKey | None = None, *, is_opened: bool = True, **said: Any) -> Report:
        held, place = self.put(signer, **said)
        return verify_archive(held, place, None, [self.key.public], self.keys if is_opened else None, quiet)

    def keys(self, log_ids: Sequence[str]) -> Mapping[str, bytes]:
        return {log_id: self.row_keys[log_id] for log_id in log_ids if log_id in self.row_keys}

    @property
    def lines(self) -> list[dict[str, Any]]:
        with pa.input_stream(pa.py_buffer(self.content[EVIDENCE]), compression="zstd") as stream:
            return [json.loads(line) for line in stream.read().splitlines()]

    @property
    def rows(self) -> pa.Table:
        return pq.read_table(pa.BufferReader(self.content[PARQUET]))

    def with_lines(self, lines: list[Any]) -> "Archive":
        text = b"".join(canonical_json(line) + b"\n" for line in lines)
        return self.having(EVIDENCE, pa.compress(text, codec="zstd", asbytes=True))

    def with_rows(self, rows: pa.Table, **options: Any) -> "Archive":
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="zstd", **options)
        return self.having(PARQUET, sink.getvalue())

    def leaf(self, index: int) -> bytes:
        return self.content[LEAVES][32 * index : 32 * (index + 1)]

    def having(self, name: str, content: bytes) -> "Archive":
        return replace(self, content=self.content | {name: content})


def exported(log: SealedLog, month: Any, folder: Path) -> Archive:
    with psycopg.connect(log.url) as connection:
        connection.execute(KEYS_MADE)
        keys: dict[str, bytes] = dict(
            connection.execute("SELECT log_id::text, key FROM audit_row_keys").fetchall()
        )
    folder.mkdir()
    with psycopg.connect(log.url) as connection:
        found = export(connection, month, folder, log.keys, "1.2.3", quiet, with_copy=True)
    content = {name: path.read_bytes() for name, path in found.files.items()}
    anchors = {key: log.vault.get(key) for key in log.vault.keys(f"anchors/{month:%Y-%m}")}
    return Archive(found, log.key, keys, content, anchors)


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("archived")) as made:
        made.write(FEBRUARY, -5)
        await made.seal()
        made.write(FEBRUARY, 90, schema_version=2, details=None, is_signed=True)
        await made.seal()
        await made.erase(ErasureTarget(query_id=UUID(made.rows[FEBRUARY, ERASED]["query_id"])))
        made.keep()
        yield made


@pytest.fixture(scope="module")
def february(log: SealedLog, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return exported(log, FEBRUARY, tmp_path_factory.mktemp("out") / "february")


@pytest.fixture(scope="module")
def january(log: SealedLog, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return exported(log, JANUARY, tmp_path_factory.mktemp("out") / "january")


def found(report: Report) -> set[tuple[str, str, int | None]]:
    return {(str(each.verdict), each.what, each.leaf_index) for each in report.findings}


def test_an_archive_proves_itself_without_any_key_of_a_row(february: Archive) -> None:
    report = february.verify(is_opened=False)
    assert (report.verdict, report.checked, report.findings) == (Verdict.VALID, ROWS, [])
    assert february.exported.schema_versions == [2, 4]
    assert report.counted == {KEYLESS: 1}


def test_with_the_keys_every_box_is_opened_and_compared(february: Archive) -> None:
    report = february.verify()
    assert (report.verdict, report.checked) == (Verdict.VALID, ROWS)
    assert report.counted["records' personal columns were opened and compared"] == ROWS - 1


def test_a_record_whose_key_is_destroyed_is_proven_and_says_nothing(february: Archive) -> None:
    gone = february.lines[5]["row"]["log_id"]
    kept = {log_id: key for log_id, key in february.row_keys.items() if log_id != gone}
    report = replace(february, row_keys=kept).verify()
    assert (report.verdict, report.checked) == (Verdict.VALID, ROWS)
    assert report.counted[KEYLESS] == 2


def test_nothing_personal_stands_open_in_any_file(february: Archive, log: SealedLog) -> None:
    row = log.rows[FEBRUARY, 0]
    told = [row["end_user"], row["user_query_text"], row["salt"], row["llm_prompt"] * 8, row["salt"][2:]]
    raw = b"".join(json.dumps(line, ensure_ascii=False).encode() for line in february.lines)
    everything = [
        *february.content.values(),
        raw,
        *(str(column).encode() for column in february.rows.columns),
    ]
    assert [text for text in told if any(text.encode() in content for content in everything)] == []


def test_the_same_month_gives_the_same_bytes(february: Archive, log: SealedLog, tmp_path: Path) -> None:
    assert exported(log, FEBRUARY, tmp_path / "again").content == february.content


def test_the_convenience_copy_has_the_rows_of_the_log(february: Archive, log: SealedLog) -> None:
    plain = [
        name for name in february.rows.column_names if name not in {"leaf_index", "commitments", "personal"}
    ]
    wanted = ", ".join(f"{name}::text" if name in TEXTS else name for name in plain)
    with psycopg.connect(log.url) as connection:
        connection.execute("SET timezone = 'UTC'")
        rows = connection.execute(
            f"SELECT {wanted} FROM audit_logs_2025_02 ORDER BY timestamp".encode()
        ).fetchall()
    assert [tuple(row.values()) for row in february.rows.select(plain).to_pylist()] == rows
    assert february.rows["leaf_index"].to_pylist()[0] == LATE


TEXTS = {
    "log_id", "query_id", "answer_id", "session_id", "index_generation", "instruction_like", "writer", "heartbeat",
}  # fmt: skip


def test_a_box_holds_what_was_personal_and_the_salt(february: Archive, log: SealedLog) -> None:
    for leaf, row in enumerate(february.rows.sort_by("leaf_index").to_pylist()):
        if leaf == ERASED:
            assert row["personal"] is None and row["erased_at"] is not None
        else:
            key = february.row_keys[row["log_id"]]
            stood = written(log, row["log_id"])
            assert open_box(row["personal"], key, row["log_id"]) == {
                name: value for name, value in stood.items() if name in PERSONAL | {"salt"}
            }


def written(log: SealedLog, log_id: str) -> Row:
    return next(row for row in log.rows.values() if row["log_id"] == log_id)


def test_a_month_comes_back_as_it_stood(february: Archive, log: SealedLog) -> None:
    held, place = february.put()
    again = [
        row for rows in read_rows(held, open_manifest(held[place]), february.keys, quiet) for row, _ in rows
    ]
    with psycopg.connect(log.url) as connection:
        connection.execute(
            "CREATE TEMP TABLE again AS SELECT * FROM json_populate_recordset(NULL::audit_logs, %s::json)",
            (json.dumps(again),),
        )
        differing = "(TABLE {0} EXCEPT ALL TABLE {1})"
        for one, other in (("again", "audit_logs_2025_02"), ("audit_logs_2025_02", "again")):
            assert connection.execute(differing.format(one, other).encode()).fetchall() == []


def test_rows_of_another_file_than_the_manifest_names_are_not_brought_back(february: Archive) -> None:
    held, place = february.put()
    named = open_manifest(held[place])
    held[named.files[EVIDENCE].key] = february.content[EVIDENCE] + b"\0"
    with pytest.raises(ArchiveError, match="evidence"):
        list(read_rows(held, named, february.keys, quiet))


def mutations(content: bytes, chance: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Single bytes changed, and lengths."""
    size = len(content)
    places = range(size) if size <= count else sorted(chance.sample(range(size), count))
    for at in places:
        yield (
            f"byte {at}",
            content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :],
        )
    for at in {0, 1, size // 2, size - 1}:
        yield f"cut at {at}", content[:at]
    yield "a zero more", content + b"\0"
    yield "a line more", content + b"\n"
    yield "itself once more", content + content


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.campaign
def test_any_changed_byte_of_any_file_is_found_and_its_file_named(february: Archive, name: str) -> None:
    """Seen red without the comparison of digests."""
    held, place = february.put()
    file = open_manifest(held[place]).files[name]
    chance = random.Random(8)
    for what, content in mutations(held[file.key], chance, 300 * ROUNDS):
        report = verify_archive(
            Held(held | {file.key: content}), place, None, [february.key.public], None, quiet
        )
        told = [each.words for each in report.findings if each.what == "file"]
        assert report.verdict is Verdict.TAMPERED, what
        assert any(words.startswith(f"{name} ") for words in told), (what, told)


def test_any_changed_byte_of_the_manifest_is_found(february: Archive) -> None:
    """Seen red with a manifest in any spelling, and with its signature in any spelling of base64."""
    held, place = february.put()
    for what, content in mutations(held[place], random.Random(8), len(held[place])):
        try:
            opened = open_manifest(content)
        except ArchiveError:
            continue
        assert not opened.is_signed_by([february.key.public]), what


@pytest.mark.rounds
def test_a_changed_manifest_is_named(february: Archive) -> None:
    """Also where it was copied to another name, so that no digest in the name gives it away."""
    held, place = february.put()
    for what, content in mutations(held[place], random.Random(8), 10 * ROUNDS):
        for key in (place, "manifest.json"):
            report = verify_archive(
                Held(held | {key: content}), key, None, [february.key.public], None, quiet
            )
            assert report.verdict not in {Verdict.VALID, Verdict.ERASED}, what
            assert "manifest" in report.findings[0].words, what


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_missing(february: Archive, name: str) -> None:
    held, place = february.put()
    key = open_manifest(held[place]).files[name].key
    del held[key]
    report = verify_archive(held, place, None, [february.key.public], None, quiet)
    assert report.verdict in {Verdict.MISSING, Verdict.TAMPERED}
    assert f"{key} is missing" in {each.words for each in report.findings}


def changed(line: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return line | {"row": line["row"] | columns}


def swapped(items: list[Any], one: int, other: int) -> list[Any]:
    order = list(range(len(items)))
    order[one], order[other] = other, one
    return [items[place] for place in order]


def moved(line: dict[str, Any], index: int) -> dict[str, Any]:
    return line | {"leaf_index": index}


LINES: dict[str, tuple[Callable[[list[dict[str, Any]]], list[Any]], set[tuple[str, str, int | None]]]] = {
    "a missing row": (lambda lines: lines[:5] + lines[6:], {("MISSING", "row", 5)}),
    "the last row missing": (lambda lines: lines[:-1], {("MISSING", "row", ROWS - 1)}),
    "many missing": (lambda lines: lines[:2] + lines[7:], {("MISSING", "row", 2)}),
    "a missing row and the others moved up": (
        lambda lines: lines[:5] + [moved(line, at + 5) for at, line in enumerate(lines[6:])],
        {("TAMPERED", "row", at) for at in range(5, ROWS - 1)} | {("MISSING", "row", ROWS - 1)},
    ),
    "two rows swapped": (lambda lines: swapped(lines, 5, 6), {("TAMPERED", "row", 5)}),
    "two rows swapped with their places": (
        lambda lines: [*lines[:5], moved(lines[6], 5), moved(lines[5], 6), *lines[7:]],
        {("TAMPERED", "row", 5), ("TAMPERED", "row", 6)},
    ),
    "a row twice": (
        lambda lines: [*lines[:5], lines[4], *lines[5:]], {("TAMPERED", "row", 4), ("TAMPERED", "file", ROWS)},
    ),
    "a row in place of another": (
        lambda lines: [*lines[:5], lines[4], *lines[6:]], {("TAMPERED", "row", 4), ("MISSING", "row", 5)},
    ),
    "a column changed": (
        lambda lines: [*lines[:5], changed(lines[5], outcome="refused"), *lines[6:]], {("TAMPERED", "row", 5)}
    ),
    "a number changed": (
        lambda lines: [*lines[:5], changed(lines[5], threshold=0.61), *lines[6:]], {("TAMPERED", "row", 5)}
    ),
    "a column more": (
        lambda lines: [*lines[:5], changed(lines[5], other="x"), *lines[6:]], {("TAMPERED", "row", 5)}
    ),
    "a personal column in the open": (
        lambda lines: [*lines[:5], changed(lines[5], end_user="x"), *lines[6:]], {("TAMPERED", "row", 5)}
    ),
    "another month": (
        lambda lines: [*lines[:5], changed(lines[5], timestamp="2025-03-10T12:00:00.000000Z"), *lines[6:]],
        {("TAMPERED", "row", 5)},
    ),
    "a commitment changed": (
        lambda lines: [
            *lines[:5], lines[5] | {"commitments": lines[5]["commitments"] | {"end_user": "0" * 64}}, *lines[6:],
        ],
        {("TAMPERED", "row", 5)},
    ),
    "the boxes of two rows swapped": (
        lambda lines: [
            *lines[:5], lines[5] | {"personal": lines[6]["personal"]}, lines[6] | {"personal": lines[5]["personal"]},
            *lines[7:],
        ],
        {("TAMPERED", "row", 5), ("TAMPERED", "row", 6)},
    ),
    "a box taken away": (
        lambda lines: [
            *lines[:5], {name: value for name, value in lines[5].items() if name != "personal"}, *lines[6:],
        ],
        {("TAMPERED", "row", 5)},
    ),
    "a line that is none": (lambda lines: [*lines[:5], ["x"], *lines[6:]], {("TAMPERED", "row", 5)}),
    "a place that is none": (
        lambda lines: [*lines[:5], moved(lines[5], -1), *lines[6:]], {("TAMPERED", "row", 5)}
    ),
    "a place beyond all": (
        lambda lines: [*lines[:5], moved(lines[5], 10**9), *lines[6:]],
        {("TAMPERED", "row", 10**9), ("MISSING", "row", 5)},
    ),
    "no rows": (lambda _: [], {("MISSING", "row", 0)}),
}  # fmt: skip
FORGED = {("TAMPERED", "file", None)}  # what is always said of a stranger's manifest


@pytest.mark.parametrize("attack", LINES)
@pytest.mark.campaign
def test_evidence_that_was_changed_with_all_digests_made_to_fit_is_located(
    february: Archive, attack: str
) -> None:
    """Seen red with missing places not counted, and with the leaf not compared."""
    change, places = LINES[attack]
    attacked = february.with_lines(change(february.lines))
    for signer in (STRANGER, february.key):  # also if the signing key itself is in the attacker's hands
        report = attacked.verify(signer)
        assert report.verdict in {Verdict.TAMPERED, Verdict.MISSING}
        in_evidence = [each for each in report.findings if not each.words.startswith(PARQUET)]
        assert found(replace(report, findings=in_evidence)) - FORGED == places
        assert (found(report) >= FORGED) == (signer is STRANGER)


CELLS: dict[str, Any] = {
    "outcome": "refused", "http_status": 201, "threshold": 0.6000000001, "success": False, "instruction_like": '["x"]',
    "timestamp": datetime(2025, 2, 10, 12, 5, 0, 1, tzinfo=UTC), "log_id": "x", "leaf_hash": b"x" * 32, "leaf_index": 99,
    "spooled": True, "erased_at": datetime(2025, 3, 1, tzinfo=UTC), "personal": b"\1", "commitments": "{}",
    "reason": None, "endpoint": '/v1/query","error_message":"none',
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.campaign
def test_one_cell_of_the_convenience_copy_that_differs_is_located(february: Archive, name: str) -> None:
    """Seen red without the comparison of rows, and with the comparison of all but leaf_hash."""
    rows = february.rows
    at = rows["leaf_index"].to_pylist().index(5)
    column = rows[name].to_pylist()
    column[at] = CELLS[name]
    place = rows.column_names.index(name)
    attacked = february.with_rows(
        rows.set_column(place, rows.field(name), pa.array(column, rows.field(name).type))
    )
    for signer in (STRANGER, february.key):
        report = attacked.verify(signer, is_opened=False)
        assert report.verdict is Verdict.TAMPERED
        row = {("TAMPERED", "row", 5)}
        lost = {("TAMPERED", "row", 99), ("MISSING", "row", 5)}
        assert found(report) - FORGED == (lost if name == "leaf_index" else row)


def copies(archive: Archive) -> dict[str, Archive]:
    rows = archive.rows
    order = [*range(5), 6, 5, *range(7, len(rows))]
    return {
        "a row less": archive.with_rows(rows.slice(1)),
        "a row twice": archive.with_rows(pa.concat_tables([rows, rows.slice(3, 1)])),
        "a row in place of another": archive.with_rows(pa.concat_tables([rows.slice(1), rows.slice(3, 1)])),
        "two rows swapped": archive.with_rows(rows.take(order)),
        "a column less": archive.with_rows(rows.drop_columns(["outcome"])),
        "a column more": archive.with_rows(rows.append_column("more", pa.nulls(len(rows)))),
        "another type": archive.with_rows(
            rows.set_column(rows.column_names.index("top_k"), "top_k", rows["top_k"].cast(pa.int64()))
        ),
        "nothing": archive.having(PARQUET, b""),
        "no Parquet": archive.having(PARQUET, b"PAR1" * 100),
        "cut": archive.having(PARQUET, archive.content[PARQUET][:-100]),
        "a null for a place": archive.with_rows(
            rows.set_column(
                0, "leaf_index", pa.array([None, *rows["leaf_index"].to_pylist()[1:]], pa.int64())
            )
        ),
    }


@pytest.mark.campaign
def test_a_convenience_copy_with_other_rows_is_found(february: Archive) -> None:
    for what, attacked in copies(february).items():
        for signer in (STRANGER, february.key):
            report = attacked.verify(signer, is_opened=False)
            told = [each for each in report.findings if PARQUET in each.words]
            assert report.verdict is Verdict.TAMPERED and told, what


def test_a_changed_leaf_is_located_and_the_evidence_stands(february: Archive) -> None:
    leaves = bytearray(february.content[LEAVES])
    leaves[5 * 32] ^= 1
    report = february.having(LEAVES, bytes(leaves)).verify(STRANGER)
    assert found(report) - FORGED == {("TAMPERED", "leaf", 5)} and report.checked == ROWS


def test_evidence_and_leaves_changed_together_do_not_have_the_signed_root(february: Archive) -> None:
    lines = february.lines
    lines[5] = changed(lines[5], outcome="refused")
    _, leaf = rows.parse_line(canonical_json(lines[5]))
    leaves = bytearray(february.content[LEAVES])
    leaves[5 * 32 : 6 * 32] = leaf
    attacked = february.with_lines(lines).having(LEAVES, bytes(leaves))
    assert ("TAMPERED", "leaf", None) in found(attacked.verify(february.key))
    forged = attacked.verify(february.key, root=verify._root(leaves))
    assert ("TAMPERED", "checkpoint", None) in found(forged)


def test_swapped_months_are_found(february: Archive, january: Archive) -> None:
    for name in NAMES[:-2]:  # keys and specification are the same in both
        other = february.having(name, january.content[name])
        assert other.verify(february.key).verdict in {Verdict.TAMPERED, Verdict.MISSING}, name
    whole = replace(february, content=january.content)
    assert whole.verify(february.key).verdict is Verdict.TAMPERED
    assert january.verify(january.key, month=FEBRUARY).verdict is Verdict.TAMPERED
    held, place = january.put()
    held[place.replace("2025-01", "2025-02")] = held[place]
    report = verify_archive(
        held, place.replace("2025-01", "2025-02"), None, [january.key.public], None, quiet
    )
    assert report.verdict is Verdict.TAMPERED and "another month" in report.findings[0].words


def test_an_older_archive_is_not_the_months(february: Archive, log: SealedLog) -> None:
    """Of a month that went on: each of its files is sound, and the vault knows a later head."""
    older = {key: note for key, note in february.anchors.items() if key < f"anchors/2025-02/{ROWS:012}"}
    newer = {f"anchors/2025-02/{ROWS + 1:012}.note": b"another"}
    assert replace(february, anchors={}).verify().verdict is Verdict.VALID
    assert len(older) < len(february.anchors)
    report = replace(february, anchors={**february.anchors, **newer}).verify()
    assert found(report) == {("TAMPERED", "checkpoint", None)}


def test_an_older_manifest_does_not_fit_the_name_of_the_newer(february: Archive) -> None:
    held, place = february.put()
    older, elsewhere = february.put(code_version="1.2.2")
    report = verify_archive(
        Held(held | {place: older[elsewhere]}), place, None, [february.key.public], None, quiet
    )
    assert report.verdict is Verdict.TAMPERED and "another month or version" in report.findings[0].words


def test_an_archive_of_nothing_is_never_valid(february: Archive) -> None:
    empty = february.with_lines([]).with_rows(february.rows.slice(0, 0)).having(LEAVES, b"")
    for count in (0, 1, ROWS):
        assert empty.verify(february.key, rows=count).verdict is not Verdict.VALID
    report = verify_archive(Held(), "manifest.json", None, [february.key.public], None, quiet)
    assert report.verdict is Verdict.WRONG_VAULT


def test_without_a_public_key_nothing_can_be_told(february: Archive) -> None:
    held, place = february.put()
    assert verify_archive(held, place, None, [], None, quiet).verdict is Verdict.CANNOT_TELL


def test_a_stranger_cannot_sign_an_archive_nor_its_checkpoint(february: Archive) -> None:
    held, place = february.put()
    report = verify_archive(held, place, None, [STRANGER.public], None, quiet)
    assert {each.what for each in report.findings} == {"file", "checkpoint", "row"}


def test_a_record_of_another_schema_version_cannot_be_told(february: Archive) -> None:
    lines = february.lines
    lines[5] = changed(lines[5], schema_version=5)
    assert ("CANNOT_TELL", "row", 5) in found(february.with_lines(lines).verify(february.key))


@pytest.mark.campaign
@pytest.mark.parametrize("name", [EVIDENCE, PARQUET, LEAVES, CHECKPOINT, KEYS])
def test_no_file_however_broken_is_more_than_a_finding(february: Archive, name: str) -> None:
    """With digests that fit, so that it is really read. Seen red with a UnicodeDecodeError of Parquet's reader left out."""
    chance = random.Random(8)
    content = february.content[name]
    broken = [b"", b"\n", b"\0" * 1000, chance.randbytes(1000), content[:-1], content + b"x", content * 2]
    broken += [
        content[:at] + chance.randbytes(4) + content[at + 4 :]
        for at in chance.sample(range(len(content)), 30)
    ]
    for attacked in broken:
        report = february.having(name, attacked).verify(february.key)
        assert report.verdict is not Verdict.VALID or name in {
            PARQUET,
            KEYS,
        }  # the same rows, and the same keys


BOMBS: dict[str, tuple[str, Callable[[pa.Table], bytes]]] = {
    "lines without end": (EVIDENCE, lambda _: pa.compress(b"\n" * 2**28, codec="zstd", asbytes=True)),
    "one line without end": (EVIDENCE, lambda _: pa.compress(b"x" * 2**28, codec="zstd", asbytes=True)),
    "a column without end": (PARQUET, lambda rows: _bomb(rows)),  # noqa: PLW0108  it stands below
}


def _bomb(rows: pa.Table) -> bytes:
    """A few kilobytes that become hundreds of megabytes."""
    sink = io.BytesIO()
    boxes = pa.array([bytes(2**24)] * len(rows), pa.binary())
    pq.write_table(
        rows.set_column(rows.column_names.index("personal"), "personal", boxes), sink, compression="zstd",
        use_dictionary=False, write_statistics=False,
    )  # fmt: skip
    return sink.getvalue()


@pytest.mark.parametrize("attack", BOMBS)
@pytest.mark.campaign
def test_a_file_that_expands_without_end_is_left_in_time(february: Archive, attack: str) -> None:
    name, content = BOMBS[attack]
    attacked = february.having(name, content(february.rows))
    report = attacked.verify(STRANGER)
    assert report.verdict is Verdict.TAMPERED
    assert any(each.words.startswith(name) for each in report.findings)


def test_the_process_that_reads_what_nobody_vouches_for_has_only_so_much_memory() -> None:
    with pytest.raises(MemoryError):
        list(in_order(bytes, [worker_process.MEMORY_BYTES_MAX + 1], alone=True))


def test_what_the_second_process_raises_and_its_end_are_told() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        list(in_order(int, ["1", "x"], alone=True))
    with pytest.raises(WorkerEndedError):
        list(in_order(os._exit, [1], alone=True))


def test_the_results_of_both_processes_come_in_the_order_of_the_items() -> None:
    items = [range(1, 500 * (9 - place)) for place in range(9)]
    assert list(in_order(math.prod, items)) == [math.prod(item) for item in items]


@pytest.mark.parametrize("name", ["encrypt_box", "compress"])
def test_what_cannot_be_read_back_is_not_exported(
    log: SealedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made = getattr(box, name)

    def wrong(content: bytes, *others: Any) -> bytes:
        is_meant = name == "encrypt_box" or b'"leaf_index"' in content
        return bytes(made(content.replace(b"a", b"b") if is_meant else content, *others))

    monkeypatch.setattr(box, name, wrong)
    with pytest.raises(ExportError):
        exported(log, JANUARY, tmp_path / "out")


def test_an_archive_without_the_copy_is_whole_and_one_of_the_older_format_needs_it(
    january: Archive, log: SealedLog
) -> None:
    bare = replace(january, content={name: each for name, each in january.content.items() if name != PARQUET})
    report = bare.verify()
    assert (report.verdict, report.checked) == (Verdict.VALID, january.exported.rows)
    held, place = january.put()
    assert b'"affidavit archive 3"' in held[place]
    for archive, verdict in ((january, Verdict.VALID), (bare, Verdict.TAMPERED)):
        held, place = archive.put()
        body = json.loads(held[place]) | {"format": "affidavit archive 2"}
        unsigned = {name: each for name, each in body.items() if name != "signature"}
        text = b"affidavit archive\n" + canonical_json(unsigned) + b"\n"
        held["old"] = (
            canonical_json(body | {"signature": base64.b64encode(archive.key.sign(text)).decode()}) + b"\n"
        )
        said = verify_archive(held, "old", None, [archive.key.public], archive.keys, quiet)
        assert said.verdict is verdict, said


def test_the_second_read_wants_the_very_bytes_that_were_judged(february: Archive) -> None:
    def read_again(held: Held, place: str) -> Report:
        return verify_stored(held, place, None, [february.key.public], quiet)

    held, place = february.put()
    report = read_again(held, place)
    assert (report.verdict, report.checked) == (Verdict.VALID, ROWS)
    for name, file in open_manifest(held[place]).files.items():
        for content in (
            held[file.key][:-1],
            held[file.key] + b"x",
            bytes([held[file.key][0] ^ 1]) + held[file.key][1:],
        ):
            assert read_again(Held(held | {file.key: content}), place).verdict is Verdict.TAMPERED, name
        gone = Held({key: each for key, each in held.items() if key != file.key})
        assert read_again(gone, place).verdict in {Verdict.MISSING, Verdict.TAMPERED}
    other = february.having(LEAVES, bytes(32) + february.content[LEAVES][32:])
    assert read_again(*other.put()).verdict is Verdict.TAMPERED
    assert read_again(*february.put(STRANGER)).verdict is Verdict.TAMPERED


def test_a_box_opens_with_its_own_key_for_its_own_record_alone() -> None:
    key, other = bytes(32), bytes(31) + b"\1"
    box = encrypt_box(b'{"salt":"\\\\x' + b"00" * 32 + b'"}', key, "one")
    assert open_box(box, key, "one") == {"salt": "\\x" + "00" * 32}
    wrong = [
        (box, other, "one"),
        (box, key, "two"),
        (b"", key, "one"),
        (box[:20], key, "one"),
        (box, b"", "one"),
    ]
    wrong += [(box[:at] + bytes([box[at] ^ 1]) + box[at + 1 :], key, "one") for at in range(len(box))]
    for attacked, with_key, log_id in wrong:
        with pytest.raises(ArchiveError):
            open_box(attacked, with_key, log_id)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"x" * 100, b'{"outcome":"x"}', b"\0" * (64 * 2**20 + 1)]
)
def test_a_box_with_something_else_in_it_is_refused(content: bytes) -> None:
    box = encrypt_box(content, bytes(32), "one")
    with pytest.raises(ArchiveError):
        open_box(box, bytes(32), "one")
    with pytest.raises(ArchiveError):
        commitments_in(box, bytes(32), "one")


def test_rows_that_came_in_any_order_are_written_in_that_of_their_times(
    february: Archive, tmp_path: Path
) -> None:
    rows, columns = february.rows, dict(february.exported.columns)
    order = random.Random(8).sample(range(len(rows)), len(rows))
    with parquet.SortedWriter(tmp_path / "rows", columns) as writer:
        for begin in range(0, len(rows), 3):
            writer.add(rows.take(order[begin : begin + 3]).combine_chunks().to_batches()[0])
    assert pq.read_table(tmp_path / "rows").equals(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


EXPORTS: dict[str, tuple[str, str]] = {
    "a record changed": ("UPDATE audit_logs SET outcome = 'x' WHERE log_id = %(log_id)s", "differs from what was sealed"),
    "a personal column changed": (
        "UPDATE audit_logs SET end_user = 'x' WHERE log_id = %(log_id)s", "differs from what was sealed",
    ),
    "its hash changed": (
        "UPDATE audit_logs SET leaf_hash = sha256('x') WHERE log_id = %(log_id)s", "differs from what was sealed",
    ),
    "a record gone": ("DELETE FROM audit_logs WHERE log_id = %(log_id)s", "these must be equal"),
    "a record exchanged": (
        "UPDATE audit_logs SET log_id = gen_random_uuid() WHERE log_id = %(log_id)s", "not in the month's table",
    ),
    "a leaf gone": ("DELETE FROM audit_leaves WHERE log_id = %(log_id)s", "these must be equal"),
    "a leaf changed": (
        "UPDATE audit_leaves SET leaf_hash = sha256('x') WHERE log_id = %(log_id)s", "differs from what was sealed",
    ),
    "a key gone": ("DELETE FROM audit_row_keys WHERE log_id = %(log_id)s", "no key"),
    "half erased": ("UPDATE audit_logs SET salt = NULL WHERE log_id = %(log_id)s", "neither complete nor erased"),
    "another schema version": ("UPDATE audit_logs SET schema_version = 5 WHERE log_id = %(log_id)s", "cannot hash"),
    "no checkpoint": ("DELETE FROM audit_checkpoints WHERE month = '2025-02-01'", "nothing of it is sealed"),
    "an older checkpoint": (
        "DELETE FROM audit_checkpoints WHERE month = '2025-02-01' AND tree_size = 14", "these must be equal",
    ),
    "another log": ("UPDATE audit_origin SET origin = 'other'", "another tree"),
}  # fmt: skip


@pytest.mark.parametrize("attack", EXPORTS)
def test_what_does_not_fit_its_checkpoint_is_not_exported(
    log: SealedLog, tmp_path: Path, attack: str
) -> None:
    statement, words = EXPORTS[attack]
    try:
        with psycopg.connect(log.url) as connection:
            connection.execute(KEYS_MADE)
        log.attack(statement.replace("%(log_id)s", f"'{log.log_id(FEBRUARY, 5)}'"))
        with psycopg.connect(log.url) as connection, pytest.raises(ExportError, match=words):
            export(connection, FEBRUARY, tmp_path, log.keys, "1.2.3", quiet)
    finally:
        log.restore()


def test_a_checkpoint_that_a_stranger_signed_is_not_exported(log: SealedLog, tmp_path: Path) -> None:
    with psycopg.connect(log.url) as connection, pytest.raises(ExportError, match="not among the given ones"):
        export(connection, FEBRUARY, tmp_path, [STRANGER.public], "1.2.3", quiet)


def test_verify_takes_a_folder_a_file_or_a_key(
    february: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And needs no database: none is there."""

    def verified(named: object) -> tuple[int, dict[str, Any]]:
        words = ["audit", "verify", "--public-key", str(keys), "--json", "--archive", str(named)]
        given = main.parser().parse_args(words)
        code = asyncio.run(given.run(settings_file.load({}, data_dir=data), given))
        return code, json.loads(capsys.readouterr().out)

    held, place = february.put()
    data, copy, keys = tmp_path / "data", tmp_path / "copy", tmp_path / "keys.pub"
    copy.mkdir()
    keys.write_text(f"{february.key.public}\n")
    for key, content in held.items():
        path = data / "vault" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if key.startswith("archive/"):
            (copy / path.name).write_bytes(content)
    for named in (place, copy, copy / Path(place).name):
        code, said = verified(named)
        assert (code, said["verdict"], said["checked"]) == (0, "VALID", ROWS), named
    (copy / Path(place).name).write_bytes(b"{}")
    assert verified(copy) == (1, verified(copy)[1] | {"verdict": "TAMPERED", "checked": 0})
    assert [verified(named)[1]["verdict"] for named in ("archive/2025-02/nothing", "../x")] == [
        "MISSING",
        "MISSING",
    ]
    assert not (data / "postgres").exists()


def without_signatures(archive: Archive) -> Archive:
    """As a version wrote it that did not sign rows."""
    columns = {name: kind for name, kind in archive.exported.columns.items() if name != "signature"}
    lines = [{name: value for name, value in line.items() if name != "signature"} for line in archive.lines]
    old = replace(archive, exported=replace(archive.exported, columns=columns)).with_lines(lines)
    return old.with_rows(old.rows.drop_columns(["signature"]), row_group_size=parquet.GROUP_ROWS)


# Seen red with a `must_be_signed` that is always true.
async def test_an_archive_of_before_rows_were_signed_stays_valid(database: Database, tmp_path: Path) -> None:
    async with sealed_log(database, tmp_path) as log:
        log.attack("TRUNCATE audit_logs, audit_leaves, audit_checkpoints, audit_anchors")
        shutil.rmtree(tmp_path / "vault")
        log.write(JANUARY, *range(4), schema_version=3)
        assert await log.seal() == {}
        old = without_signatures(exported(log, JANUARY, tmp_path / "out"))
    held, place = old.put()
    assert b'"affidavit archive 1"' in held[place]
    report = old.verify()
    assert (report.verdict, report.checked, report.findings) == (Verdict.VALID, 4, [])


# Seen red with `_is_vouched_for` that is always true.
@pytest.mark.parametrize("how", ["none", "another record's", "a stranger's"])
def test_a_record_of_an_archive_without_a_valid_signature_is_found(february: Archive, how: str) -> None:
    lines = february.lines
    if how == "none":
        del lines[5]["signature"]
    elif how == "another record's":
        lines[5]["signature"] = lines[6]["signature"]
    else:
        made = signed(HashedRow('{"a":0}', february.leaf(5)), lines[5]["row"]["log_id"], STRANGER)
        lines[5]["signature"] = base64.b64encode(
            bytes.fromhex(json.loads(made.text)["signature"][2:])
        ).decode()
    report = february.with_lines(lines).verify()
    assert ("TAMPERED", "row", 5) in found(report)
    assert "The engine did not sign this record" in {finding.words for finding in report.findings}


def test_an_archive_that_claims_to_be_of_before_does_not_get_rid_of_its_signatures(february: Archive) -> None:
    report = without_signatures(february).verify()
    assert report.verdict is Verdict.TAMPERED
    assert ("TAMPERED", "row", 0) in found(report)
