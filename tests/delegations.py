"""Proofs and receipts under keys that are revoked or delegated: `python -m tests.delegations` writes them to
tests/data/delegations.json, each with the lines of the file of keys that its auditor has."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

from audit.proof import bundle
from audit.proof.canonical import canonical_json
from audit.proof.checkpoint import BreakLine, receipt_text
from audit.proof.keys import PublicKey, SigningKey, delegate, digest_text, time_text
from audit.proof.record import Row
from tests.proofs import _BEGIN, _ISSUED_AT, KEY, ROTATED, STRANGER, made, proven, receipt, signed_row

FILE = Path(__file__).parent / "data" / "delegations.json"

DAILY, FURTHER = made("delegated for a day"), made("delegated by a delegated key")
BEGIN, UNTIL = _BEGIN - timedelta(minutes=5), _BEGIN + timedelta(days=1)
ROW_AT = _BEGIN + timedelta(seconds=3)
US = timedelta(microseconds=1)

Example = tuple[str, str, list[str], bytes]


def given(
    key: SigningKey = DAILY, parent: SigningKey = KEY, begin: datetime = BEGIN, until: datetime = UNTIL
) -> PublicKey:
    return delegate(key.public, begin, until, parent)


def revoked(key: SigningKey, at: datetime) -> str:
    return PublicKey(key.public.raw, revoked_at=at).line


def rows_by(key: SigningKey) -> list[Row]:
    return [signed_row(place, key) for place in range(5)]


def file(key: SigningKey = DAILY, delegation: PublicKey | None = None, head: SigningKey = KEY) -> bytes:
    return bundle.encode(replace(proven(rows_by(key), 3, head, signed_from=0), delegation=delegation))


def receipt_of(key: SigningKey, at: datetime) -> bytes:
    found: dict[str, Any] = receipt(rows_by(key)[3], key) | {"issued_at": time_text(at)}
    text = receipt_text(UUID(found["log_id"]), found["leaf_hash"], at)
    return json.dumps(found | {"signature": base64.b64encode(key.sign(text)).decode()}).encode()


class ByDigest(SigningKey):
    """A key that signs each text by its digest, as one elsewhere does with long ones."""

    def sign(self, message: bytes) -> bytes:
        return super().sign(digest_text(message))


def _long(own: str) -> Iterator[Example]:
    breaks = tuple(BreakLine(n, n + 1, sha256(bytes([n])).hexdigest()) for n in range(60))
    by_digest = ByDigest(KEY._private)
    for name, key, some, verdict in (
        ("a long head", KEY, breaks, "VALID"),
        ("a long head, signed by its digest", by_digest, breaks, "VALID"),
        ("a short head, signed by its digest", by_digest, breaks[:2], "TAMPERED"),
    ):
        yield name, verdict, [own], bundle.encode(proven(rows_by(KEY), 3, key, signed_from=0, breaks=some))


def examples() -> Iterator[Example]:
    own = str(KEY.public)
    yield from _long(own)
    yield from _delegated(own)
    yield from _revoked(own)
    yield from _receipts(own)
    yield from _attacks(own)


def _delegated(own: str) -> Iterator[Example]:
    line = given().line
    yield "delegated, by a line of the file of keys", "VALID", [own, line], file()
    yield "delegated, by the bundle", "VALID", [own], file(delegation=given())
    yield "delegated, by both", "VALID", [own, line], file(delegation=given())
    yield "delegated, without the delegation", "TAMPERED", [own], file()
    yield "delegated from this moment on", "VALID", [own], file(delegation=given(begin=ROW_AT))
    yield "delegated until this moment", "TAMPERED", [own], file(delegation=given(until=ROW_AT))
    yield "delegated until just after it", "VALID", [own], file(delegation=given(until=ROW_AT + US))
    yield "delegated too late", "TAMPERED", [own], file(delegation=given(begin=ROW_AT + US))
    yield "delegated twice, once for this time", "VALID", [own, given(begin=ROW_AT + US).line, line], file()
    changed = canonical_json(json.loads(file(delegation=given())) | {"delegation": own}) + b"\n"
    yield "a bundle's delegation that is none", "TAMPERED", [own], changed
    yield "a bundle's delegation of another key", "TAMPERED", [own], file(KEY, given())
    yield "a bundle's delegation of the pinned key itself", "TAMPERED", [own], file(KEY, given(KEY, STRANGER))


def _revoked(own: str) -> Iterator[Example]:
    for name, at, verdict in (
        ("after all", _ISSUED_AT + US, "VALID"),
        ("when its head was signed", _ISSUED_AT, "TAMPERED"),
        ("between the record and its head", ROW_AT + US, "TAMPERED"),
        ("when the record began", ROW_AT, "TAMPERED"),
    ):
        yield f"revoked {name}", verdict, [revoked(KEY, at)], file(KEY)
    yield (
        "rotated, then the old key revoked",
        "VALID",
        [revoked(KEY, ROW_AT + US), str(ROTATED.public)],
        file(KEY, head=ROTATED),
    )
    yield (
        "a record of a revoked key",
        "TAMPERED",
        [revoked(KEY, ROW_AT), str(ROTATED.public)],
        file(KEY, head=ROTATED),
    )
    yield "listed twice, once as revoked", "TAMPERED", [own, revoked(KEY, ROW_AT)], file(KEY)
    later = [own, given().line, revoked(DAILY, ROW_AT + US)]
    yield "a delegated key that was revoked later", "VALID", later, file()
    yield "a delegated key that was revoked", "TAMPERED", [own, given().line, revoked(DAILY, ROW_AT)], file()
    yield (
        "a delegated key that was revoked, its delegation in the bundle",
        "TAMPERED",
        [own, revoked(DAILY, ROW_AT)],
        file(delegation=given()),
    )
    parent = [revoked(KEY, ROW_AT), str(ROTATED.public)]
    yield "delegated by a key that was revoked", "TAMPERED", parent, file(delegation=given(), head=ROTATED)
    parent = [revoked(KEY, ROW_AT + US), str(ROTATED.public)]
    yield "delegated by a key that was revoked later", "VALID", parent, file(delegation=given(), head=ROTATED)


def _receipts(own: str) -> Iterator[Example]:
    line, at = given().line, ROW_AT + timedelta(seconds=2)
    yield "a delegated key's receipt", "UNSEALED", [own, line], receipt_of(DAILY, at)
    yield "a delegated key's receipt, without the delegation", "TAMPERED", [own], receipt_of(DAILY, at)
    yield (
        "a delegated key's receipt of its last moment",
        "UNSEALED",
        [own, line],
        receipt_of(DAILY, UNTIL - US),
    )
    yield "a delegated key's receipt of after it", "TAMPERED", [own, line], receipt_of(DAILY, UNTIL)
    yield "a delegated key's receipt of before it", "TAMPERED", [own, line], receipt_of(DAILY, BEGIN - US)
    yield "a revoked key's receipt of its time", "UNSEALED", [revoked(KEY, at + US)], receipt_of(KEY, at)
    yield "a revoked key's receipt of after it", "TAMPERED", [revoked(KEY, at)], receipt_of(KEY, at)


def _attacks(own: str) -> Iterator[Example]:
    stranger = given(parent=STRANGER)
    yield "delegated by a stranger", "TAMPERED", [own], file(delegation=stranger)
    yield "delegated by a stranger, in the file of keys", "TAMPERED", [own, stranger.line], file()
    named = stranger.line.replace(STRANGER.key_id, KEY.key_id)
    yield "delegated by a stranger in the name of the pinned key", "TAMPERED", [own, named], file()
    further = given(FURTHER, DAILY)
    yield "delegated by a delegated key", "TAMPERED", [own, given().line, further.line], file(FURTHER)
    yield (
        "delegated by a delegated key, in the bundle",
        "TAMPERED",
        [own, given().line],
        file(FURTHER, further),
    )
    yield "delegated by itself", "TAMPERED", [own, given(DAILY, DAILY).line], file()
    yield "a head by a delegated key", "TAMPERED", [own, given().line], file(head=DAILY)
    yield (
        "a head by a delegated key that was revoked later",
        "TAMPERED",
        [own, given().line, revoked(DAILY, UNTIL)],
        file(head=DAILY),
    )
    line = given(until=ROW_AT).line
    longer = line.replace(time_text(ROW_AT), time_text(UNTIL))
    yield "a delegation made longer", "TAMPERED", [own, longer], file()
    earlier = given(begin=ROW_AT + US).line.replace(time_text(ROW_AT + US), time_text(BEGIN))
    yield "a delegation made to begin earlier", "TAMPERED", [own, earlier], file()
    other = given(FURTHER).line.split(" ", 1)[1]
    yield "another key's delegation", "TAMPERED", [own, f"{DAILY.public} {other}"], file()


def page() -> str:
    found = [
        {"name": name, "verdict": verdict, "public_keys": keys, "file": content.decode()}
        for name, verdict, keys, content in examples()
    ]
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), "utf-8")
