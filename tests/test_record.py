"""The record's canonical form and its hash: an auditor must get the same bytes in ten years."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import record
from audit.record import COLUMNS, PERSONAL, UNHASHED, Trail, canonical_json, commitment, leaf_hash
from engine.settings import HOUSE
from tests.build import steady

SALT = bytes(range(32))
SECRET = "Élodie asked about her knee 🦿"
WHEN = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)

texts = st.text(st.characters(codec="utf-8"))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


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
            code_version="0.1.0", spooled=False, schema_version=1, salt=SALT, leaf_hash=b"\x01" * 32,
            erased_at=WHEN, calibration_kind="self", best_score=0.8, filter_message=SECRET, rerank="model",
            released_text=SECRET, instruction_like=["question"],
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


def hashed(of: Trail) -> bytes:
    return canonical_json(record._hashed_fields(of, SALT))


def test_hash_of_a_known_row_never_changes() -> None:
    """If this fails, no row that was ever written can be proven any more."""
    assert leaf_hash(trail()).hex() == "f8febf5cd817d5bf8071c533c3d650e6a3734026ac0032a1e99e5f2cccabf28f"


def test_hash_of_a_known_row_without_values_never_changes() -> None:
    """What is not there is null, of personal columns too: whether there was an end user is no secret."""
    bare = Trail(log_id=UUID(int=1), query_id=UUID(int=2), timestamp=WHEN, endpoint="/v1/query", salt=SALT)
    assert leaf_hash(bare).hex() == "27ebb6206343dfdeb112fc1ad5fe0c895217365b31f2ae9b4cb472087721f178"


def test_every_column_has_a_value_here() -> None:
    assert [name for name, value in asdict(trail()).items() if value is None] == []


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in UNHASHED])
def test_changed_column_changes_the_hash(name: str) -> None:
    changed = trail(**{name: other(getattr(trail(), name))})
    assert leaf_hash(changed) != leaf_hash(trail())


@pytest.mark.parametrize(
    "name", [field.name for field in fields(Trail) if field.default is None and field.name not in UNHASHED]
)
def test_missing_value_is_not_an_empty_value(name: str) -> None:
    empty: tuple[Any, ...] = (None, "", 0, [], {}, False)
    hashes = {leaf_hash(trail(**{name: value})) for value in empty}
    assert len(hashes) == 6


@pytest.mark.parametrize("name", sorted(UNHASHED - {"salt"}))
def test_how_a_row_is_kept_does_not_change_the_hash(name: str) -> None:
    changed = trail(**{name: other(getattr(trail(), name))})
    assert leaf_hash(changed) == leaf_hash(trail())


def test_other_salt_is_another_hash() -> None:
    assert leaf_hash(trail(salt=other(SALT))) != leaf_hash(trail())


def test_row_without_salt_is_not_hashed() -> None:
    with pytest.raises(ValueError, match="salt"):
        leaf_hash(trail(salt=None))


def test_values_cannot_be_exchanged_between_columns() -> None:
    """Equal personal values have different commitments in different columns."""
    committed = [commitment(SALT, name, SECRET) for name in sorted(PERSONAL)]
    assert len(set(committed)) == len(PERSONAL)
    swapped = trail(llm_prompt="a", llm_response="b"), trail(llm_prompt="b", llm_response="a")
    assert leaf_hash(swapped[0]) != leaf_hash(swapped[1])


def test_no_personal_text_is_in_what_is_hashed() -> None:
    """So erasing the personal columns and the salt leaves nothing to guess from, and the proof stands."""
    plain = hashed(trail()).decode()
    for word in SECRET.split():
        assert word not in plain
    kept = json.loads(plain)
    assert {name for name, value in kept.items() if re.fullmatch(r"[0-9a-f]{64}", str(value))} == PERSONAL


def test_commitment_hides_its_value() -> None:
    """Whoever knows the value but not the salt cannot confirm a guess."""
    assert commitment(SALT, "end_user", SECRET) != commitment(other(SALT), "end_user", SECRET)
    assert commitment(SALT, "end_user", SECRET) != commitment(b"", "end_user", SECRET)
    lengths = {len(commitment(SALT, "end_user", value)) for value in ("", SECRET, SECRET * 1000, [SECRET])}
    assert lengths == {64}


def test_commitment_is_that_of_an_independent_verifier() -> None:
    assert (
        commitment(SALT, "end_user", "é")
        == "c6a67a95eb6ab038d8d758c62b638809cefee17a675303ffe60590677f044adb"
    )


def test_every_column_is_hashed_personal_or_says_why_not() -> None:
    assert set(COLUMNS) >= PERSONAL | UNHASHED
    assert set(json.loads(hashed(trail()))) == set(COLUMNS) - UNHASHED


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [1, 2.5, None, True]}, b'{"a":[1,2.5,null,true],"b":1}'),
        ('é\n"\\/\x01🦿', b'"\xc3\xa9\\n\\"\\\\/\\u0001\xf0\x9f\xa6\xbf"'),
        (UUID(int=255), b'"00000000-0000-0000-0000-0000000000ff"'),
        (WHEN, b'"2026-01-02T03:04:05.678901Z"'),
        (WHEN.replace(microsecond=0), b'"2026-01-02T03:04:05.000000Z"'),
        (WHEN.astimezone(timezone(timedelta(hours=5, minutes=30))), b'"2026-01-02T03:04:05.678901Z"'),
        ([], b"[]"),
        (0.1 + 0.2, b"0.30000000000000004"),
    ],
)  # fmt: skip
def test_canonical_form(value: Any, expected: bytes) -> None:
    assert canonical_json(value) == expected


@steady
@given(values)
def test_canonical_form_survives_reading_and_writing(value: Any) -> None:
    """PostgreSQL gives JSON back in an order of its own."""
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@steady
@given(st.dictionaries(texts, st.integers(), max_size=6))
def test_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": -float("inf")}])
def test_what_is_no_json_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(value)


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), [WHEN.date()]])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="canonical form"):
        canonical_json(value)


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
