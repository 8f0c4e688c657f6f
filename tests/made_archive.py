"""Archives of a month for the tests of the verifier page, and some that were tampered with: the files that an auditor drops."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from typing import Any, NamedTuple

from audit.archive.box import compress
from audit.proof.archive_format import (
    CHECKPOINT,
    EVIDENCE,
    KEYS,
    LEAVES,
    MANIFEST,
    NAMES,
    StoredFile,
)
from audit.proof.canonical import canonical_json
from audit.proof.keys import SigningKey
from audit.proof.record import PERSONAL
from tests.made_package import ORIGIN, of_two_months
from tests.proofs import KEY, STRANGER

Files = dict[str, bytes]
MONTH = "2026-11"


class TamperedArchive(NamedTuple):
    name: str
    what: str
    verdict: str
    files: Files


def whole() -> Files:
    return signed(_contents())


def signed(contents: Mapping[str, bytes], key: SigningKey = KEY, **changed: Any) -> Files:
    """With a manifest, as whoever holds this key would write it."""
    stored = {
        name: StoredFile(f"archive/{MONTH}/{digest}.{name}", "", digest, len(contents.get(name, b"")))
        for name in NAMES
        for digest in [sha256(contents.get(name, b"")).hexdigest()]
    }
    lines = contents["evidence"].splitlines()
    body = {
        "format": "affidavit archive 3", "origin": ORIGIN, "month": MONTH, "rows": len(lines), "root": _root(), "schema_versions": [4],
        "columns": [["log_id", "uuid"], ["signature", "bytea"]], "code_version": "test", "key_id": key.key_id,
        "files": {name: asdict(file) for name, file in stored.items()},
    } | changed  # fmt: skip
    signature = base64.b64encode(key.sign(b"affidavit archive\n" + canonical_json(body) + b"\n")).decode()
    kept = {name: content for name, content in contents.items() if name != "evidence"}
    return kept | {MANIFEST: canonical_json(body | {"signature": signature}) + b"\n"}


def tampered() -> Iterator[TamperedArchive]:
    for name, what, change in (
        ("a column", "leaf", _in_line(lambda body: body | {"row": body["row"] | {"outcome": "refused"}})),
        ("a commitment", "leaf", _in_line(lambda body: body | {"commitments": {"user_query_text": "00" * 32}})),
        ("a personal column", "row", _in_line(lambda body: body | {"row": body["row"] | {"user_query_text": "x"}})),
        ("a signature", "row", _in_line(lambda body: body | {"signature": base64.b64encode(b"x" * 68).decode()})),
        ("no signature", "row", _in_line(lambda body: {member: body[member] for member in body if member != "signature"})),
        ("another place", "row", _in_line(lambda body: body | {"leaf_index": 9})),
        ("a space", "row", lambda lines: [b" " + lines[0], *lines[1:]]),
        ("two records in another order", "row", lambda lines: [lines[1], lines[0], *lines[2:]]),
    ):  # fmt: skip
        contents = _contents()
        contents["evidence"] = b"".join(change(contents["evidence"].splitlines(keepends=True)))
        contents[EVIDENCE] = compress(contents["evidence"])
        yield TamperedArchive(name, what, "TAMPERED", signed(contents))
    contents = _contents()
    short = b"".join(contents["evidence"].splitlines(keepends=True)[:-1])
    yield TamperedArchive(
        "a record less",
        "log",
        "MISSING",
        signed(contents | {"evidence": short, EVIDENCE: compress(short)}, rows=13),
    )
    yield TamperedArchive("a manifest of a stranger", "file", "TAMPERED", signed(contents, STRANGER))
    yield TamperedArchive(
        "evidence that is cut off", "file", "TAMPERED", whole() | {EVIDENCE: whole()[EVIDENCE][:-20]}
    )
    yield TamperedArchive("another root", "checkpoint", "TAMPERED", signed(contents, root="00" * 32))
    earlier = of_two_months().files["checkpoints/2026-10.note"]
    yield TamperedArchive(
        "another checkpoint", "checkpoint", "TAMPERED", signed(contents | {CHECKPOINT: earlier})
    )
    yield TamperedArchive(
        "another leaf", "leaf", "TAMPERED", signed(contents | {LEAVES: b"\x00" + contents[LEAVES][1:]})
    )


def _contents() -> Files:
    bodies = [json.loads(line) for line in of_two_months().files["records/2026-11.jsonl"].splitlines()]
    redacted = [
        json.loads(line)
        for line in of_two_months(is_redacted=True).files["records/2026-11.jsonl"].splitlines()
    ]
    evidence = b"".join(canonical_json(_line(body)) + b"\n" for body in redacted)
    checkpoint = bodies[0]["checkpoint"].encode()
    leaves = b"".join(map(_leaf, redacted))
    return {
        "evidence": evidence,
        EVIDENCE: compress(evidence),
        LEAVES: leaves,
        CHECKPOINT: checkpoint,
        KEYS: f"{KEY.public}\n".encode(),
    }


def _line(body: dict[str, Any]) -> dict[str, Any]:
    row = {name: value for name, value in body["row"].items() if name not in PERSONAL | {"signature", "salt"}}
    signature = base64.b64encode(bytes.fromhex(body["row"]["signature"][2:])).decode()
    box = base64.b64encode(sha256(row["log_id"].encode()).digest()).decode()
    return {
        "leaf_index": body["leaf_index"],
        "row": row,
        "commitments": body["commitments"],
        "personal": box,
        "signature": signature,
    }


def _leaf(body: dict[str, Any]) -> bytes:
    row = {name: value for name, value in body["row"].items() if name != "signature"}
    return sha256(b"\x00" + canonical_json(row | body["commitments"])).digest()


def _root() -> str:
    note = of_two_months().files["checkpoints/2026-11.note"].decode()
    return base64.b64decode(note.splitlines()[2]).hex()


def _in_line(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[:2], canonical_json(change(json.loads(lines[2]))) + b"\n", *lines[3:]]
