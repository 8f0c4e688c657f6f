"""The record's hash: an auditor must get the same bytes in ten years."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.proof.canonical import canonical_json
from audit.proof.record import (
    COLUMNS,
    PERSONAL,
    UNHASHED,
    Row,
    Trail,
    bytes_of,
    commitments,
    hashed,
    leaf_hash,
    row_of,
    text_of,
)
from engine.settings import HOUSE
from tests.build import steady

SALT = bytes(range(32))
SECRET = "Élodie asked about her knee 🦿"
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def trail(**changes: Any) -> Trail:
    """A row in which every column has a value."""
    return replace(
        Trail(
            log_id=UUID(int=1), query_id=UUID(int=2), answer_id=UUID(int=3), user_query_text=SECRET,
            source_mode="full-book", retrieval_query=SECRET, chunks_retrieved_count=50,
            chunks_returned=[{"chunk_id": "c", "score": 0.9, "text": SECRET}], retrieval_latency_ms=12,
            llm_prompt=SECRET, llm_response=SECRET, answer_text=SECRET, confidence_score=0.86,
            citations=[{"n": 1, "excerpt": SECRET}], success=True, error_message="none", timestamp=WHEN,
            request_id="r", client_id="client", key_id="0123456789", end_user=SECRET, client_address=SECRET,
            session_id=UUID(int=4), book_id="book", endpoint="/v1/query", http_status=200, outcome="answered",
            reason="because", error_type="none", selected_text=SECRET,
            filters={"chapter": SECRET, "tags": ["a"]},
            top_k=5, confidence_level="high", retrieval_confidence=0.9, generation_confidence=0.8,
            index_generation=UUID(int=5), embedder="minilm", calibration_id="c1", threshold=0.6,
            model_requested="m", model_used="m-1", provider_request_id="p", stop_reason="end_turn",
            tokens_input=10, tokens_output=20, generation_latency_ms=30, total_latency_ms=40,
            limit_decision="allowed", repeat_count=1, prompt_sha256="aa", settings_sha256="bb",
            code_version="0.1.0", spooled=False, schema_version=4, salt=SALT, leaf_hash=b"\x01" * 32,
            erased_at=WHEN, calibration_kind="self", best_score=0.8, filter_message=SECRET, rerank="model",
            released_text=SECRET, instruction_like=["question"], details={"sql": SECRET},
            writer=UUID(int=6), sequence=7, heartbeat={"through": 6, "unrecorded": [[2, 3]]},
            signature=b"\x02" * 68,
        ),
        **changes,
    )  # fmt: skip


def other(value: Any) -> Any:
    """Something else of the same kind, as close as it gets."""
    steps: dict[type, Callable[[Any], Any]] = {
        bool: lambda it: not it,
        int: lambda it: it + 1,
        float: lambda it: it + 1e-12,
        str: lambda it: it + " ",
        bytes: lambda it: it[:-1] + b"\xff",
        UUID: lambda it: UUID(int=it.int + 1),
        datetime: lambda it: it + timedelta(microseconds=1),
        list: lambda it: [*it, 0],
        dict: lambda it: it | {"more": 0},
    }
    return steps[type(value)](value)


def row(**changes: Any) -> Row:
    return row_of(trail(**changes))


def commitment(salt: bytes, name: str, value: Any) -> str:
    return commitments({"salt": "\\x" + salt.hex(), name: value})[name]


@pytest.mark.parametrize(
    ("version", "without", "expected"),
    [
        (
            2,
            ("details", "writer", "sequence", "heartbeat"),
            "2214bf550d1cf7da00bf3571948b9929ec31fe6a4fc7a637b58d95840138f4b2",
        ),
        (
            3,
            ("writer", "sequence", "heartbeat"),
            "73e0e8ca06e7980ddf1ca933b37e62c6f34d6a2d877fd662ce6f41d8e870d8cc",
        ),
        (4, (), "e58b1999dbe63d675b7239fb055439367078ee224314e21150b4535a90fd886e"),
    ],
)
def test_hash_of_a_known_row_never_changes(version: int, without: tuple[str, ...], expected: str) -> None:
    """If this fails, no row that was ever written can be proven any more."""
    known = row(schema_version=version, **dict.fromkeys(without))
    assert leaf_hash(known).hex() == expected


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, "e63b1d07d522ae79259069f2a2db0e07a032bdabc0d948517cf8fe8e7fc136dc"),
        (3, "1a20967a700a8c245876f80854a5826ffbcbb40dc3e17f3e89615f5fc164fc80"),
        (4, "bb5a691f386ca25a5e51942a7a4f8087f71d5ee325205cefb3165f6e956c0d31"),
    ],
)
def test_hash_of_a_known_row_without_values_never_changes(version: int, expected: str) -> None:
    bare = Trail(log_id=UUID(int=1), query_id=UUID(int=2), timestamp=WHEN, endpoint="/v1/query", salt=SALT)
    assert leaf_hash(row_of(replace(bare, schema_version=version))).hex() == expected


def test_commitment_of_a_known_value_never_changes() -> None:
    text = SALT + b"end_user" + b"\x00" + '"é"'.encode()
    assert sha256(text).hexdigest() == "c6a67a95eb6ab038d8d758c62b638809cefee17a675303ffe60590677f044adb"
    assert (
        commitment(SALT, "end_user", "é")
        == "c6a67a95eb6ab038d8d758c62b638809cefee17a675303ffe60590677f044adb"
    )


def test_hash_is_that_of_an_independent_path() -> None:
    """Written from the words of the specification, with nothing of ours."""
    plain = {name: value for name, value in row().items() if name not in PERSONAL | UNHASHED}
    for name in PERSONAL:
        value = json.dumps(row()[name], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        plain[name] = sha256(SALT + f"{name}\0{value}".encode()).hexdigest()
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert leaf_hash(row()) == sha256(b"\0" + text.encode()).digest()


def test_every_column_has_a_value_here() -> None:
    assert [name for name, value in asdict(trail()).items() if value is None] == []
    assert list(row()) == [name for name in COLUMNS if name != "spooled"]


# Seen red with `filters` left out of the commitments.
@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in UNHASHED])
def test_changed_column_changes_the_hash(name: str) -> None:
    assert leaf_hash(row(**{name: other(getattr(trail(), name))})) != leaf_hash(row())


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in UNHASHED])
def test_column_taken_away_changes_the_hash(name: str) -> None:
    less = {column: value for column, value in row().items() if column != name}
    assert leaf_hash(less) != leaf_hash(row())


@pytest.mark.parametrize(
    "name", [field.name for field in fields(Trail) if field.default is None and field.name not in UNHASHED]
)
def test_missing_value_is_not_an_empty_value(name: str) -> None:
    empty: tuple[Any, ...] = (None, "", 0, [], {}, False)
    hashes = {leaf_hash(row(**{name: value})) for value in empty}
    assert len(hashes) == 6


# Seen red with nulls hashed: a row of the day before the column was added had another hash.
@pytest.mark.parametrize(
    "name", [field.name for field in fields(Trail) if field.default is None and field.name not in UNHASHED]
)
def test_null_takes_no_part(name: str) -> None:
    """Not in the record, and not if a reader of the table adds it."""
    less = row(**{name: None})
    assert name not in less
    assert leaf_hash(less | {name: None}) == leaf_hash(less)


def test_column_added_later_changes_no_older_hash() -> None:
    read_in_ten_years = row() | {"a_later_column": None, "another": None}
    assert leaf_hash(read_in_ten_years) == leaf_hash(row())
    assert leaf_hash(row() | {"a_later_column": "value"}) != leaf_hash(row())


@pytest.mark.parametrize("name", sorted(UNHASHED - {"salt"}))
def test_how_a_row_is_kept_does_not_change_the_hash(name: str) -> None:
    assert leaf_hash(row(**{name: other(getattr(trail(), name))})) == leaf_hash(row())


def test_other_salt_is_another_hash() -> None:
    assert leaf_hash(row(salt=other(SALT))) != leaf_hash(row())


def test_row_without_salt_is_not_hashed() -> None:
    with pytest.raises(ValueError, match="salt"):
        leaf_hash(row(salt=None))


def test_sealing_adds_the_salt_and_the_hash_as_the_database_writes_them() -> None:
    bare = row(salt=None, leaf_hash=None, erased_at=None, signature=None)
    done = hashed(bare, SALT)
    written = json.loads(done.text)
    assert written == bare | {"salt": "\\x" + SALT.hex(), "leaf_hash": "\\x" + done.leaf_hash.hex()}
    assert done.leaf_hash == leaf_hash(written)
    assert canonical_json(written).decode() == done.text


# Seen red with what was replaced being looked at again: whoever typed \u0000 in six characters had it replaced for ever.
def test_what_is_hashed_is_what_is_written() -> None:
    hostile = "a\0b \ud800 \\u0000"
    bare = row(user_query_text=hostile, filters={hostile: [hostile]}, salt=None, leaf_hash=None)
    done = hashed(bare, SALT)
    written = json.loads(done.text)
    assert written["user_query_text"] == "a\ufffdb \ufffd \\u0000"
    assert done.leaf_hash == leaf_hash(written)


def test_values_cannot_be_exchanged_between_columns() -> None:
    """Equal personal values have different commitments in different columns."""
    committed = [commitment(SALT, name, SECRET) for name in sorted(PERSONAL)]
    assert len(set(committed)) == len(PERSONAL)
    swapped = row(llm_prompt="a", llm_response="b"), row(llm_prompt="b", llm_response="a")
    assert leaf_hash(swapped[0]) != leaf_hash(swapped[1])


def test_hash_stands_when_the_personal_columns_and_the_salt_are_gone() -> None:
    kept = commitments(row())
    assert set(kept) == PERSONAL
    erased = {name: value for name, value in row().items() if name not in PERSONAL | {"salt"}}
    assert leaf_hash(erased, kept) == leaf_hash(row())
    assert leaf_hash(erased, kept | {"end_user": "0" * 64}) != leaf_hash(row())
    text = json.dumps(erased | kept, ensure_ascii=False)
    assert not any(word in text for word in SECRET.split())


def test_commitment_hides_its_value() -> None:
    """Whoever knows the value but not the salt cannot confirm a guess."""
    assert commitment(SALT, "end_user", SECRET) != commitment(other(SALT), "end_user", SECRET)
    assert commitment(SALT, "end_user", SECRET) != commitment(b"", "end_user", SECRET)
    lengths = {len(commitment(SALT, "end_user", value)) for value in ("", SECRET, SECRET * 1000, [SECRET])}
    assert lengths == {64}


# Seen red with `rerank` among what is not hashed.
def test_every_column_is_hashed_personal_or_says_why_not() -> None:
    assert {"spooled", "salt", "leaf_hash", "erased_at", "signature"} == UNHASHED
    assert set(COLUMNS) >= PERSONAL | UNHASHED
    assert not PERSONAL & UNHASHED


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (UUID(int=255), "00000000-0000-0000-0000-0000000000ff"),
        (WHEN, "2026-01-02T03:04:05.678901Z"),
        (WHEN.replace(microsecond=0), "2026-01-02T03:04:05.000000Z"),
        (WHEN.astimezone(timezone(timedelta(hours=5, minutes=30))), "2026-01-02T03:04:05.678901Z"),
        (b"\x00\xff", "\\x00ff"),
    ],
)  # fmt: skip
def test_what_json_has_no_form_for_is_text(value: Any, expected: str) -> None:
    assert row(error_message=value)["error_message"] == expected


@pytest.mark.parametrize("text", ["", "00", "\\x0", "\\xgg", "x00"])
def test_what_the_database_does_not_write_is_not_read_as_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="hex"):
        bytes_of(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\0b", "a\ufffdb"),
        ("\ud83d", "\ufffd"),
        ("\udfff\ud800", "\ufffd\ufffd"),
        ("🦿 e\u0301 \u2028 \ufffd", "🦿 e\u0301 \u2028 \ufffd"),
        ({"\0": ["\0", {"a": ("\ud800", 1)}]}, {"\ufffd": ["\ufffd", {"a": ["\ufffd", 1]}]}),
        (None, None),
        (1.5, 1.5),
        (True, True),
        ("\\u0000", "\\u0000"),
    ],
)
def test_what_the_database_cannot_hold_is_recorded_as_a_mark(value: Any, expected: Any) -> None:
    kept = text_of({"a": value})
    assert json.loads(kept) == {"a": expected}
    assert text_of(json.loads(kept)) == kept


@steady
@given(
    st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=6)
)
def test_whatever_arrives_is_storable(value: Any) -> None:
    kept = text_of({"a": value})
    assert "\\u0000" not in kept.replace("\\\\", "")
    assert kept.encode()


def test_fields_are_the_columns_of_the_table_in_order() -> None:
    ddl = (HOUSE / "sql/0004_audit.sql").read_text("utf-8")
    table = re.search(r"CREATE TABLE audit_logs \((.*?)\n\) PARTITION", ddl, re.DOTALL)
    assert table is not None
    lines = [line.strip() for line in table[1].splitlines() if line.strip()]
    columns = [line.split()[0] for line in lines if not line.startswith(("PRIMARY KEY", "--"))]
    for file in sorted((HOUSE / "sql").glob("*.sql")):
        for alter in re.findall(r"ALTER TABLE audit_logs\n(.*?);", file.read_text(), re.DOTALL):
            columns += re.findall(r"ADD COLUMN (\w+)", alter)
    assert columns == list(COLUMNS) == [field.name for field in fields(Trail)]
