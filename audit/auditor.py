"""Offline verifier of one record: `check` trusts a public key and nothing else. Pure: no network and no database.

    python -m audit.auditor FILE --public-key FILE

runs with Python's standard library and `cryptography` alone. `audit/__init__.py` specifies bundles and receipts precisely
enough to write another verifier; tests/second_verifier.py is one.
"""

import argparse
import base64
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from audit.errors import BundleError, KeyFileError, NoteError, UnknownVersionError
from audit.proof import bundle
from audit.proof.bundle import Bundle
from audit.proof.checkpoint import Checkpoint, open_note, receipt_text
from audit.proof.keys import PublicKey, read_public_keys
from audit.proof.merkle import is_included
from audit.proof.record import leaf_hash
from audit.proof.row_signature import is_vouched_for
from audit.proof.verdict import PROVEN, Finding, Report, Verdict

RECEIPT_FIELDS = {"log_id", "leaf_hash", "issued_at", "key_id", "signature"}
FORGED_RECEIPT = (
    "The signature is not valid under any given key: the receipt was altered, or another key signed it"
)


def main() -> None:
    """Exit 0 if the record is proven, 1 if not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m audit.auditor", description="Check a record's proof.")
    parser.add_argument("file", type=Path, metavar="FILE", help="a proof bundle, a receipt, or an answer")
    parser.add_argument("--public-key", type=Path, required=True, metavar="FILE", help="one key per line")
    parser.add_argument(
        "--receipt", type=Path, metavar="FILE", help="also check that the proof is of this receipt's record"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = check_files(given.file, given.public_key, given.receipt)
    print(json.dumps(report.as_json()) if given.json else report)
    sys.exit(0 if report.verdict in PROVEN else 1)


def check_files(file: Path, public_key: Path, receipt: Path | None = None) -> Report:
    """A file that cannot be read is reported as CANNOT_TELL, which is no verdict about the record."""
    try:
        keys = read_public_keys(public_key)
        content = file.read_bytes()
        expected = receipt.read_bytes() if receipt else None
    except (KeyFileError, OSError) as unreadable:
        return _reported(Verdict.CANNOT_TELL, "file", str(unreadable))
    return check(content, keys, expected)


def check(content: bytes, keys: Sequence[PublicKey], receipt: bytes | None = None) -> Report:
    """The verdict on a bundle or a receipt; with a receipt beside it, on whether the bundle is of the same record."""
    if not keys:
        message = "There is no public key to verify with. Give one with --public-key."
        return _reported(Verdict.CANNOT_TELL, "key", message)
    alone = _receipt_of(content)
    if alone is not None:
        return _check_receipt(alone, keys)
    report = _check_bundle(content, keys)
    if receipt is not None and report.verdict in PROVEN:
        _compare(bundle.decode(content), receipt, keys, report)
    return report


def _check_bundle(content: bytes, keys: Sequence[PublicKey]) -> Report:
    try:
        proven = bundle.decode(content)
        checkpoint = open_note(proven.note, keys)
        leaf = leaf_hash(proven.row, proven.commitments)
    except UnknownVersionError as unknown:
        return _reported(Verdict.CANNOT_TELL, "file", str(unknown))
    except NoteError as wrong:
        return _reported(Verdict.TAMPERED, "checkpoint", str(wrong))
    except (BundleError, ValueError, TypeError) as wrong:
        return _reported(Verdict.TAMPERED, "file", str(wrong))
    place = {"month": proven.month, "leaf_index": proven.leaf_index, "log_id": proven.row["log_id"]}
    if proven.month != checkpoint.month:
        message = f"The record is not of the checkpoint's month, {checkpoint.month:%Y-%m}"
        return _reported(Verdict.TAMPERED, "checkpoint", message, **place)
    if message := _wrong_with(proven, leaf, checkpoint, keys):
        return _reported(Verdict.TAMPERED, "row", message, **place)
    report = Report(checked=1)
    for broken in checkpoint.breaks:
        lost = f"the leaves {broken.kept} to {broken.lost - 1}"
        report.count(
            f"break of the month's history is named by the checkpoint: {lost} were lost by a failover or a restore"
        )
    if proven.commitments is not None:
        message = "The record is proven; its personal data was erased"
        report.add(Finding(Verdict.ERASED, "row", message, **place))
    return report


def _wrong_with(proven: Bundle, leaf: bytes, checkpoint: Checkpoint, keys: Sequence[PublicKey]) -> str:
    if not is_included(leaf, proven.leaf_index, checkpoint.size, proven.proof, checkpoint.root):
        return "The record is not the one that was sealed at this place: it was altered, or the proof is of another one"
    if not is_vouched_for(proven.row, leaf, proven.leaf_index, checkpoint.signed_from, keys):
        return "None of the given keys signed the record: the engine did not write it"
    return ""


def _check_receipt(receipt: dict[str, Any], keys: Sequence[PublicKey]) -> Report:
    log_id = str(receipt["log_id"])
    if not _is_signed(receipt, keys):
        return _reported(Verdict.TAMPERED, "receipt", FORGED_RECEIPT, log_id=log_id)
    message = "The receipt is genuine, so the record must exist. Get its proof: GET /v1/receipts/{query_id}"
    report = _reported(Verdict.UNSEALED, "receipt", message, log_id=log_id)
    report.checked = 1
    return report


def _compare(proven: Bundle, content: bytes, keys: Sequence[PublicKey], report: Report) -> None:
    receipt = _receipt_of(content)
    leaf = leaf_hash(proven.row, proven.commitments).hex()
    if receipt is None or not _is_signed(receipt, keys):
        message = FORGED_RECEIPT
    elif (receipt["log_id"], receipt["leaf_hash"]) != (proven.row["log_id"], leaf):
        message = f"The proof is not of the receipt's record, {receipt['log_id']}"
    else:
        return
    place = (proven.month, proven.leaf_index, proven.row["log_id"])
    report.add(Finding(Verdict.TAMPERED, "receipt", message, *place))


def _receipt_of(content: bytes) -> dict[str, Any] | None:
    """The receipt in the file, alone or inside an answer of the API; None if there is none."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    found = body.get("receipt", body) if isinstance(body, dict) else None
    return found if isinstance(found, dict) and found.keys() == RECEIPT_FIELDS else None


def _is_signed(receipt: dict[str, Any], keys: Sequence[PublicKey]) -> bool:
    try:
        issued_at = datetime.fromisoformat(receipt["issued_at"])
        message = receipt_text(UUID(receipt["log_id"]), receipt["leaf_hash"], issued_at.astimezone(UTC))
        signature = base64.b64decode(receipt["signature"], validate=True)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return False
    return any(key.key_id == receipt["key_id"] and key.verify(signature, message) for key in keys)


def _reported(verdict: Verdict, what: str, message: str, **place: Any) -> Report:
    report = Report()
    report.add(Finding(verdict, what, message, **place))
    return report


if __name__ == "__main__":
    main()
