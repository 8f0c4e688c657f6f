"""Proof bundle: the file that proves one record offline, to anyone who has the public key. Pure.

Its encoding is canonical: decoding and encoding must give the same bytes, so that no byte can be changed unnoticed, not
even one without a meaning.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import UUID

from audit.errors import BundleError, UnknownVersionError
from audit.proof.canonical import canonical_json, read_line
from audit.proof.merkle import HASH_BYTES
from audit.proof.record import PERSONAL, SCHEMA_VERSIONS, UNHASHED, Row

FORMAT = "affidavit proof 1"
BYTES_MAX = 64 * 2**20  # far above any record; a larger file is no proof of ours

_FIELDS = {"format", "row", "leaf_index", "proof", "checkpoint"}
_IN_ROW = {"log_id", "query_id", "timestamp", "schema_version"}
COLUMN = re.compile(r"[a-z][a-z0-9_]*")  # a name is hashed as it is: other characters could hide something
HASH = re.compile(r"[0-9a-f]{64}")
SALT = re.compile(r"\\x[0-9a-f]{64}")
SIGNATURE = re.compile(r"\\x[0-9a-f]{136}")
_TIME = re.compile(r"([0-9]{4}-[0-9]{2})-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A record, its place in the month's tree, and the signed head of that tree."""

    row: Row
    leaf_index: int
    proof: list[bytes]
    note: str
    commitments: Mapping[str, str] | None = None  # of an erased record, in place of the erased values

    @property
    def month(self) -> date:
        return month_of(self.row)


def encode(bundle: Bundle) -> bytes:
    """One line. Columns that are not hashed are left out, because a change of them could not be detected."""
    left_out = _left_out(is_erased=bundle.commitments is not None)
    row = {name: value for name, value in bundle.row.items() if name not in left_out and value is not None}
    body = {
        "format": FORMAT, "row": row, "leaf_index": bundle.leaf_index,
        "proof": [part.hex() for part in bundle.proof], "checkpoint": bundle.note,
    }  # fmt: skip
    if bundle.commitments is not None:
        body["commitments"] = bundle.commitments
    return canonical_json(body) + b"\n"


def decode(content: bytes) -> Bundle:
    """The bundle, if it is encoded exactly as `encode` does it; otherwise a `BundleError`."""
    if len(content) > BYTES_MAX:
        raise BundleError("The file is larger than any proof")
    body = read_line(content, "The file", BundleError)
    if set(body) - {"commitments"} != _FIELDS or body["format"] != FORMAT:
        raise BundleError(f"The file does not have exactly the fields of “{FORMAT}”")
    row, commitments = body["row"], body.get("commitments")
    if not isinstance(row, dict) or not row.keys() >= _IN_ROW:
        raise BundleError("The file does not contain a complete record")
    if row["schema_version"] not in SCHEMA_VERSIONS:
        raise UnknownVersionError(
            f"This program does not know schema version {row['schema_version']} of records: use a newer one"
        )
    _check_row(row, is_erased="commitments" in body)
    if "commitments" in body and not (commitments and are_commitments(commitments)):
        raise BundleError("The commitments are not those of erased columns")
    if type(body["leaf_index"]) is not int or not isinstance(body["checkpoint"], str):
        raise BundleError("The leaf_index or the checkpoint is missing")
    return Bundle(row, body["leaf_index"], _hashes(body["proof"]), body["checkpoint"], commitments)


def month_of(row: Mapping[str, Any]) -> date:
    """The month whose tree holds the record. `BundleError` if its time is not written as it is hashed."""
    found = _TIME.fullmatch(row["timestamp"]) if isinstance(row["timestamp"], str) else None
    try:
        return date.fromisoformat(f"{found[1]}-01" if found else "")
    except ValueError:
        raise BundleError("The record's timestamp is not written as a time in UTC") from None


def _left_out(*, is_erased: bool) -> frozenset[str]:
    left_out = UNHASHED - {"signature"}
    return left_out | PERSONAL if is_erased else left_out - {"salt"}


def _check_row(row: Row, *, is_erased: bool) -> None:
    if surplus := sorted(row.keys() & _left_out(is_erased=is_erased)):
        raise BundleError(f"A proof of this kind must not contain {surplus[0]}")
    if not all(map(COLUMN.fullmatch, row)):
        raise BundleError("The record has an invalid column name")
    if None in row.values():
        raise BundleError("A proof must not contain columns without a value")
    if not is_erased and not _is_text(SALT, row.get("salt")):
        raise BundleError("The record's salt is missing")
    if "signature" in row and not _is_text(SIGNATURE, row["signature"]):
        raise BundleError("The record's signature is not 68 bytes")
    month_of(row)
    for name in ("log_id", "query_id"):
        if not _is_id(row[name]):
            raise BundleError(f"The record's {name} is not a UUID")


def _is_text(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_id(value: object) -> bool:
    try:
        return isinstance(value, str) and str(UUID(value)) == value
    except ValueError:
        return False


def are_commitments(commitments: object) -> bool:
    """Whether all are of personal columns: under another name, one could hide a column that was changed."""
    return (
        isinstance(commitments, dict)
        and commitments.keys() <= PERSONAL
        and all(isinstance(value, str) and HASH.fullmatch(value) for value in commitments.values())
    )


def _hashes(proof: object) -> list[bytes]:
    if not isinstance(proof, Sequence) or not all(
        isinstance(part, str) and HASH.fullmatch(part) for part in proof
    ):
        raise BundleError(f"The inclusion proof is not a list of hashes of {HASH_BYTES} bytes")
    return [bytes.fromhex(part) for part in proof]
