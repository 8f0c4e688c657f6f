"""Offline verifier of one record, or of a package of many: it trusts a public key and nothing else. Pure: no network and no database.

    python -m audit.auditor FILE --public-key FILE
    python -m audit.auditor FILE.tsr --public-key FILE --head HEAD.note --tsa-certificates ROOTS.pem

runs with Python's standard library and `cryptography` alone. `audit/__init__.py` specifies bundles and receipts precisely
enough to write another verifier; tests/second_verifier.py is one.
"""

import argparse
import base64
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from audit.errors import (
    BundleError,
    KeyFileError,
    NoteError,
    PolicyError,
    TimeStampError,
    UnknownVersionError,
)
from audit.heads.policy import WitnessPolicy, parse_policy
from audit.heads.proof_check import HeadsProof, check_heads, is_tlog_proof
from audit.package.container import is_package
from audit.package.elsewhere import Trusted
from audit.package.processes import in_processes
from audit.package.records import Signers
from audit.package.verification import check_package
from audit.proof import bundle
from audit.proof.bundle import Bundle
from audit.proof.checkpoint import Checkpoint, open_note, receipt_text
from audit.proof.keys import KeyRing, PublicKey, read_public_keys
from audit.proof.merkle import is_included
from audit.proof.record import leaf_hash
from audit.proof.row_signature import is_vouched_for
from audit.proof.verdict import PROVEN, Finding, Report, Verdict
from audit.stamps.stamp_file import check_stamp_files, is_stamp
from audit.stamps.token import read_certificates

RECEIPT_FIELDS = {"log_id", "leaf_hash", "issued_at", "key_id", "signature"}
FORGED_RECEIPT = (
    "The signature is not valid under any given key: the receipt was altered, or another key signed it"
)


def _file(*names: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, {"type": Path, "metavar": "FILE"} | options


ARGUMENTS = (
    _file(
        "file",
        help="a proof, a .tlog-proof, a receipt, an answer that contains a receipt, a time stamp, or an evidence package",
    ),
    _file("--public-key", required=True, help="one key per line"),
    _file("--receipt", help="also check that the proof is of this receipt's record"),
    _file("--heads", help="a .tlog-proof: also check that the month's head is in the log of heads"),
    _file("--policy", help="the witnesses that must have cosigned, as C2SP's tlog-policy"),
    _file("--head", help="of a time stamp: the head that it is of, heads/….note of the vault"),
    _file(
        "--tsa-certificates", help="of a time stamp or a package: the authority's root certificates, in PEM"
    ),
)


@dataclass(frozen=True, slots=True)
class Beside:
    """What an auditor gives beside the file and the keys."""

    receipt: Path | None = None
    heads: Path | None = None
    policy: Path | None = None
    head: Path | None = None
    tsa_certificates: Path | None = None

    @classmethod
    def of(cls, given: argparse.Namespace) -> Self:
        return cls(**{name: getattr(given, name) for name in cls.__slots__})


def main() -> None:
    """Exit 0 if the record is proven, 1 if not, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m audit.auditor", description="Check a record's proof.")
    for names, options in ARGUMENTS:
        parser.add_argument(*names, **options)
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes for a large package"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    report = check_files(given.file, given.public_key, Beside.of(given), jobs=given.jobs)
    print(json.dumps(report.as_json()) if given.json else report)
    sys.exit(0 if report.verdict in PROVEN else 1)


def check_files(
    file: Path,
    public_key: Path,
    beside: Beside | None = None,
    *,
    jobs: int = 1,
    signers: Signers = KeyRing.of,
) -> Report:
    """A file that cannot be read is reported as CANNOT_TELL, which is no verdict about the record."""
    beside = beside or Beside()
    try:
        keys = read_public_keys(public_key)
        policy = parse_policy(beside.policy.read_text("utf-8")) if beside.policy else None
        with file.open("rb") as source:
            if is_package(source):
                trusted = _trusted(policy, beside)
                return check_package(source, keys, trusted, workers=in_processes(jobs), signers=signers)
        content = file.read_bytes()
        if beside.head or beside.tsa_certificates or is_stamp(content):
            return check_stamp_files(content, beside.head, beside.tsa_certificates, keys)
        if is_tlog_proof(content):
            return check_heads(HeadsProof(content, policy), keys)
        receipt = beside.receipt.read_bytes() if beside.receipt else None
        heads = HeadsProof(beside.heads.read_bytes(), policy) if beside.heads else None
    except (KeyFileError, PolicyError, TimeStampError, OSError, UnicodeDecodeError) as unreadable:
        return _reported(Verdict.CANNOT_TELL, "file", str(unreadable))
    if policy and heads is None:
        message = "A policy of witnesses is about a .tlog-proof: give one with --heads, or as the file"
        return _reported(Verdict.CANNOT_TELL, "file", message)
    return check(content, keys, receipt, heads)


def _trusted(policy: WitnessPolicy | None, beside: Beside) -> Trusted:
    certificates = beside.tsa_certificates
    return Trusted(policy, read_certificates(certificates.read_bytes()) if certificates else ())


def check(
    content: bytes, keys: Sequence[PublicKey], receipt: bytes | None = None, heads: HeadsProof | None = None
) -> Report:
    """The verdict on a bundle or a receipt; with a receipt beside it, on whether the bundle is of the same record; with a proof
    of the log of heads, on whether the bundle's checkpoint is in that."""
    if not keys:
        message = "There is no public key to verify with. Give one with --public-key."
        return _reported(Verdict.CANNOT_TELL, "key", message)
    alone = _receipt_of(content)
    if alone is not None:
        return _check_receipt(alone, keys)
    report = _check_bundle(content, keys)
    if receipt is not None and report.verdict in PROVEN:
        proven = bundle.decode(content)
        _compare(proven, receipt, _with_delegation(keys, proven), report)
    if heads is not None and report.verdict in PROVEN:
        _add(check_heads(heads, keys, bundle.decode(content).note.encode()), report)
    return report


def _add(other: Report, report: Report) -> None:
    for finding in other.findings:
        report.add(finding)
    for what, number in other.counted.items():
        report.count(what, number)


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
    keys = _with_delegation(keys, proven)
    if proven.delegation and not keys.is_row_key(proven.delegation, bundle.time_of(proven.row)):
        return "None of the given keys delegated the key that signed the record, or not for its time"
    if not is_included(leaf, proven.leaf_index, checkpoint.size, proven.proof, checkpoint.root):
        return "The record is not the one that was sealed at this place: it was altered, or the proof is of another one"
    if not is_vouched_for(proven.row, leaf, proven.leaf_index, checkpoint.signed_from, keys):
        return "None of the given keys signed the record: the engine did not write it"
    return ""


def _with_delegation(keys: Sequence[PublicKey], proven: Bundle) -> KeyRing:
    return KeyRing([*keys, proven.delegation]) if proven.delegation else KeyRing.of(keys)


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
        issued_at = datetime.fromisoformat(receipt["issued_at"]).astimezone(UTC)
        message = receipt_text(UUID(receipt["log_id"]), receipt["leaf_hash"], issued_at)
        signature = base64.b64decode(receipt["signature"], validate=True)
    except (ValueError, TypeError, AttributeError, OverflowError):
        return False
    signers = KeyRing.of(keys).named(receipt["key_id"], issued_at)
    return any(key.verify(signature, message) for key in signers)


def _reported(verdict: Verdict, what: str, message: str, **place: Any) -> Report:
    report = Report()
    report.add(Finding(verdict, what, message, **place))
    return report


if __name__ == "__main__":
    main()
