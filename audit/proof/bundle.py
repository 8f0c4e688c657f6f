"""Proof bundle: the file that proves one record offline, to anyone who has the public key. Pure.

Its encoding is canonical: decoding and encoding must give the same bytes, so that no byte can be changed unnoticed, not
even one without a meaning.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from audit.errors import BundleError, UnknownVersionError
from audit.proof.canonical import canonical_text_of_parsed, read_line, texts_of_parsed
from audit.proof.keys import ID_BYTES, PublicKey, time_text
from audit.proof.merkle import HASH_BYTES
from audit.proof.record import COLUMNS, PERSONAL, SCHEMA_VERSIONS, UNHASHED, Row, joined

FORMAT = "affidavit proof 1"
BYTES_MAX = 64 * 2**20  # far above any record; a larger file is no proof of ours

_FIELDS = {"format", "row", "leaf_index", "proof", "checkpoint"}
_IN_ROW = {"log_id", "query_id", "timestamp", "schema_version"}
COLUMN = re.compile(r"[a-z][a-z0-9_]*")  # a name is hashed as it is: other characters could hide something
_KNOWN = frozenset(COLUMNS)  # and later ones
HASH = re.compile(r"[0-9a-f]{64}")
SALT = re.compile(r"\\x[0-9a-f]{64}")
SIGNATURE = re.compile(r"\\x[0-9a-f]{136}")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A record, its place in the month's tree, and the signed head of that tree."""

    row: Row
    leaf_index: int
    proof: list[bytes]
    note: str
    commitments: Mapping[str, str] | None = None  # of an erased record, in place of the erased values
    delegation: PublicKey | None = None  # of the key that signed the row, if another one delegated it

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
        body["commitments"] = dict(bundle.commitments)
    if bundle.delegation is not None:
        body["delegation"] = bundle.delegation.line
    return f"{canonical_text_of_parsed(body)}\n".encode()


def decode(content: bytes) -> Bundle:
    """The bundle, if it is encoded exactly as `encode` does it; otherwise a `BundleError`."""
    return decode_spelled(content)[0]


def decode_spelled(content: bytes) -> tuple[Bundle, dict[str, str]]:
    """The same, and the canonical texts of the row's columns, which are at hand after the comparison."""
    if len(content) > BYTES_MAX:
        raise BundleError("The file is larger than any proof")
    body, texts = _read(content)
    if set(body) - {"commitments", "delegation"} != _FIELDS or body["format"] != FORMAT:
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
    delegation = _delegation(body["delegation"], row) if "delegation" in body else None
    proof = _hashes(body["proof"])
    return Bundle(row, body["leaf_index"], proof, body["checkpoint"], commitments, delegation), texts


def _read(content: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """As `read_line`, but each column is spelled by itself, so that it need not be spelled again for its hash."""
    try:
        text = content.decode()
        body = json.loads(text)
        row = body.get("row") if isinstance(body, dict) else None
        if not isinstance(row, dict):
            return read_line(content, "The file", BundleError), {}
        texts = texts_of_parsed(row)
        others = texts_of_parsed({name: value for name, value in body.items() if name != "row"})
        is_same = f"{joined(others | {'row': joined(texts)})}\n" == text
    except (ValueError, TypeError, RecursionError):
        raise BundleError("The file is not one line of JSON") from None
    if not is_same:
        raise BundleError("The file is not canonical JSON: it was changed, or another program wrote it")
    return body, texts


def month_of(row: Mapping[str, Any]) -> date:
    """The month whose tree holds the record. `BundleError` if its time is not written as it is hashed."""
    return time_of(row).date().replace(day=1)


def time_of(row: Mapping[str, Any]) -> datetime:
    text = row["timestamp"]
    try:
        moment = datetime.fromisoformat(text if isinstance(text, str) else "")
        if time_text(moment) == text:
            return moment
    except (ValueError, OverflowError):
        """As any other text."""
    raise BundleError("The record's timestamp is not written as a time in UTC")


def _delegation(line: object, row: Row) -> PublicKey:
    """The key that signed the row, with the delegation. Whether that counts is for whoever has the other key to say."""
    try:
        key = PublicKey.of(line if isinstance(line, str) else "")
    except ValueError:
        raise BundleError("The delegation is not a line of a file of keys") from None
    if (
        key.delegation is None
        or row.get("signature", "")[: 2 + 2 * ID_BYTES] != f"\\x{key.fingerprint.hex()}"
    ):
        raise BundleError("The delegation is not of the key that signed the record")
    return key


def _left_out(*, is_erased: bool) -> frozenset[str]:
    left_out = UNHASHED - {"signature"}
    return left_out | PERSONAL if is_erased else left_out - {"salt"}


def _check_row(row: Row, *, is_erased: bool) -> None:
    if surplus := sorted(row.keys() & _left_out(is_erased=is_erased)):
        raise BundleError(f"A proof of this kind must not contain {surplus[0]}")
    if not (row.keys() <= _KNOWN or all(map(COLUMN.fullmatch, row))):
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
