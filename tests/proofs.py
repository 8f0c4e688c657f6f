"""Proofs good and bad, the same on every run: `python -m tests.proofs` writes them to tests/data/proofs.json."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.proof import bundle
from audit.proof.bundle import Bundle
from audit.proof.canonical import canonical_json
from audit.proof.checkpoint import BreakLine, Checkpoint, Link, receipt_text, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import inclusion_proof, root
from audit.proof.record import HashedRow, Row, Trail, commitments, hashed, leaf_hash, row_of
from audit.proof.row_signature import signed

FILE = Path(__file__).parent / "data" / "proofs.json"

_SPACE = UUID("5e0f0f0e-0000-4000-8000-000000000000")
_MONTH = date(2026, 11, 1)
_BEGIN = datetime(2026, 11, 18, 14, tzinfo=UTC)
_ISSUED_AT = datetime(2026, 11, 18, 15, 0, 0, 250000, tzinfo=UTC)
NUMBERED_FROM = 4


def made(seed: str) -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(sha256(seed.encode()).digest()))


KEY, ROTATED, STRANGER = made("first"), made("second"), made("stranger")

ODD_NUMBERS = [
    0.1 + 0.2,
    1e-7,
    1e-6,
    1e21,
    123456789012345680000,
    1.2345678901234568e20,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    2**53,
    100.0,
]
ODD_TEXT = 'Was misst\n\t„eine“ "IMU"? \\ / \b\f\r\x01\x1f\x7f\u2028 é e\u0301 机器人 🤖 \ue000'


def row(place: int, **given: Any) -> Row:
    fields: dict[str, Any] = {
        "log_id": uuid5(_SPACE, f"log {place}"), "query_id": uuid5(_SPACE, f"query {place}"), "endpoint": "/v1/query",
        "timestamp": _BEGIN + timedelta(seconds=place), "user_query_text": f"Question {place}?", "outcome": "answered",
        "answer_text": "It says so. [1]", "http_status": 200, "success": True, "confidence_score": 0.87 + place / 1000,
        "citations": [{"n": 1, "excerpt": "so", "start": 12, "end": 14, "score": 0.83}],
        "filters": {"tags": [], "module": None},
    }  # fmt: skip
    trail = Trail(**({"schema_version": 3} | fields | given))
    made = hashed(row_of(trail), sha256(f"salt {place}".encode()).digest())
    found: Row = json.loads(made.text)
    return found | {"spooled": False, "erased_at": None}


def signed_row(place: int, key: SigningKey = KEY, *, version: int = 4, **given: Any) -> Row:
    numbered = {"writer": uuid5(_SPACE, "writer"), "sequence": place + 1} if version == NUMBERED_FROM else {}
    found = row(place, schema_version=version, **numbered, **given)
    return found | {"signature": signature_of(found, key)}


def signature_of(found: Row, key: SigningKey = KEY) -> str:
    made = signed(HashedRow('{"a":0}', leaf_hash(found)), found["log_id"], key)
    return str(json.loads(made.text)["signature"])


def proven(rows: list[Row], index: int, key: SigningKey = KEY, **given: Any) -> Bundle:
    leaves = [leaf_hash(item) for item in rows]
    head = Checkpoint(
        "affidavit/vectors", _MONTH, len(rows), root(leaves), _ISSUED_AT, given.get("previous"), given.get("signed_from"), given.get("breaks", ())
    )  # fmt: skip
    return Bundle(
        rows[index], index, inclusion_proof(leaves, index), sign_note(head, key), given.get("commitments")
    )


def good() -> Iterator[tuple[str, str, bytes]]:
    for size in (1, 2, 3, 7, 8, 13):
        rows = [row(place) for place in range(size)]
        for index in sorted({0, size // 2, size - 1}):
            yield f"leaf {index} of {size}", "VALID", bundle.encode(proven(rows, index))
    rows = [row(place) for place in range(5)]
    rows[3] = row(
        3, user_query_text=ODD_TEXT, reason=ODD_TEXT, threshold=1e-7, best_score=1.0,
        chunks_returned=[{"é": ODD_NUMBERS, "\ue000": 1, "🤖": {}, "": [[], "", False]}],
    )  # fmt: skip
    yield "odd text and numbers", "VALID", bundle.encode(proven(rows, 3))
    link = Link(date(2026, 9, 1), 77, sha256(b"September").digest())
    yield "on top of September", "VALID", bundle.encode(proven(rows, 1, previous=link))
    breaks = (
        BreakLine(0, 2, sha256(b"first").hexdigest()),
        BreakLine(3, 10**6, sha256(b"second").hexdigest()),
    )
    yield "after a break of the history", "VALID", bundle.encode(proven(rows, 1, breaks=breaks[:1]))
    yield (
        "after two, on top of September",
        "VALID",
        bundle.encode(proven(rows, 4, previous=link, breaks=breaks)),
    )
    cosigned = proven(rows, 1)
    strangers = "".join(
        f"— witness.example/{n} {base64.b64encode(bytes([n]) * 76).decode()}\n" for n in range(16)
    )
    yield (
        "signed by sixteen witnesses too",
        "VALID",
        bundle.encode(replace(cosigned, note=cosigned.note + strangers)),
    )
    yield "signed after a rotation", "VALID", bundle.encode(proven(rows, 1, ROTATED))
    yield "erased", "ERASED", bundle.encode(proven(rows, 3, commitments=commitments(rows[3])))
    rows[2] = row(2, filters=None, details={"query_id": str(uuid5(_SPACE, "query 1"))})
    yield "with details", "VALID", bundle.encode(proven(rows, 2))
    yield "with details, erased", "ERASED", bundle.encode(proven(rows, 2, commitments=commitments(rows[2])))
    old = [row(place, schema_version=2) for place in range(5)]
    yield "of schema version 2", "VALID", bundle.encode(proven(old, 3))
    yield (
        "of schema version 2, erased",
        "ERASED",
        bundle.encode(proven(old, 3, commitments=commitments(old[3]))),
    )
    yield "of schema version 2 among newer ones", "VALID", bundle.encode(proven([*old[:3], *rows[3:]], 2))
    yield "a receipt", "UNSEALED", json.dumps(receipt(rows[1])).encode()
    yield "an answer", "UNSEALED", json.dumps({"answer": "…", "receipt": receipt(rows[1])}, indent=1).encode()
    yield from _good_signed()
    elsewhere = receipt(rows[1]) | {"issued_at": "2026-11-18T16:00:00.25+01:00"}
    yield "a receipt's time written otherwise", "UNSEALED", json.dumps(elsewhere).encode()


def _good_signed() -> Iterator[tuple[str, str, bytes]]:
    rows = [signed_row(place) for place in range(5)]
    link = Link(date(2026, 9, 1), 77, sha256(b"September").digest())
    yield "signed", "VALID", bundle.encode(proven(rows, 3, signed_from=0))
    yield "signed, on top of September", "VALID", bundle.encode(proven(rows, 3, signed_from=0, previous=link))
    yield "signed, in a tree that does not say so", "VALID", bundle.encode(proven(rows, 3))
    yield "signed by an earlier key", "VALID", bundle.encode(proven(rows, 3, ROTATED, signed_from=0))
    beat = signed_row(4, endpoint="heartbeat", heartbeat={"through": 4, "unrecorded": [[2, 3]]})
    yield "a heartbeat", "VALID", bundle.encode(proven([*rows[:4], beat], 4, signed_from=0))
    erased = commitments(rows[3])
    yield "signed, erased", "ERASED", bundle.encode(proven(rows, 3, signed_from=0, commitments=erased))
    mixed = [row(0), row(1), *rows[2:]]
    yield "from before rows were signed", "VALID", bundle.encode(proven(mixed, 1, signed_from=2))
    yield "the first that is signed", "VALID", bundle.encode(proven(mixed, 2, signed_from=2))
    drained = [*mixed[:2], signed_row(2, version=3), *rows[3:]]
    yield (
        "of schema version 3, signed when it was drained",
        "VALID",
        bundle.encode(proven(drained, 2, signed_from=2)),
    )


def _bad_signed() -> Iterator[tuple[str, bytes]]:
    rows = [signed_row(place) for place in range(5)]

    def with_row(found: Row, **given: Any) -> bytes:
        return bundle.encode(proven([*rows[:3], found, rows[4]], 3, **({"signed_from": 0} | given)))

    unsigned = {name: value for name, value in rows[3].items() if name != "signature"}
    yield "a row without its signature", with_row(unsigned)
    yield "a row without its signature, in a tree that does not say so", with_row(unsigned, signed_from=None)
    yield "a row without its signature, below the line", with_row(unsigned, signed_from=4)
    yield "a stranger's signature", with_row(signed_row(3, STRANGER))
    yield "another row's signature", with_row(rows[3] | {"signature": rows[2]["signature"]})
    yield "schema version 3 without a signature, above the line", with_row(row(3))
    yield (
        "schema version 2 without a signature, above the line",
        with_row(row(3, schema_version=2), signed_from=3),
    )
    yield (
        "schema version 3 with another row's signature",
        with_row(row(3) | {"signature": rows[2]["signature"]}),
    )
    old = row(3) | {"signature": signature_of(rows[2])}
    yield "schema version 3 with another row's signature, below the line", with_row(old, signed_from=5)
    whole = rows[3]["signature"]
    for name, spoiled in {
        "in large digits": whole.upper().replace("\\X", "\\x"), "a byte shorter": whole[:-2], "a byte longer": whole + "00",
        "of zeros": "\\x" + "00" * 68, "with another key's id": f"\\x{ROTATED.public.fingerprint.hex()}{whole[10:]}",
        "without its key's id": f"\\x{whole[10:]}", "a number": 1, "with a bit changed": whole[:-1] + ("0" if whole[-1] != "0" else "1"),
    }.items():  # fmt: skip
        yield f"a row's signature {name}", with_row(rows[3] | {"signature": spoiled})
    erased = proven([*rows[:3], unsigned, rows[4]], 3, signed_from=0, commitments=commitments(rows[3]))
    yield "erased, without its signature", bundle.encode(erased)
    note = proven(rows, 3, signed_from=0).note
    for name, spoiled in {
        "another line under the signature": note.replace("signed 0", "signed 4"),
        "no line under the signature": note.replace("signed 0\n", ""),
        "the line in other digits": note.replace("signed 0", "signed 00"),
        "the line twice": note.replace("signed 0\n", "signed 0\nsigned 0\n"),
    }.items():  # fmt: skip
        yield (
            name,
            canonical_json(
                json.loads(bundle.encode(proven(rows, 3, signed_from=0))) | {"checkpoint": spoiled}
            )
            + b"\n",
        )
    yield "a line beyond the size", bundle.encode(proven(rows, 3, signed_from=6))


def receipt(of: Row, key: SigningKey = KEY) -> dict[str, str]:
    leaf = leaf_hash(of).hex()
    signature = key.sign(receipt_text(UUID(of["log_id"]), leaf, _ISSUED_AT))
    return {
        "log_id": of["log_id"], "leaf_hash": leaf, "issued_at": "2026-11-18T15:00:00.250000Z", "key_id": key.key_id,
        "signature": base64.b64encode(signature).decode(),
    }  # fmt: skip


def bad() -> Iterator[tuple[str, str, bytes]]:
    rows = [row(place) for place in range(7)]
    rows[2] = row(2, user_query_text=ODD_TEXT)
    file = bundle.encode(proven(rows, 2))
    for name, spoiled in (*_changed(json.loads(file), rows), *_respelled(file), *_unlike(rows)):
        assert spoiled != file, name
        yield name, "TAMPERED", spoiled
    for name, spoiled in _bad_signed():
        yield name, "TAMPERED", spoiled
    for version in (1, 5, None, "3", "4"):
        body = json.loads(file)
        body["row"]["schema_version"] = version
        yield f"schema version {version}", "CANNOT_TELL", canonical_json(body) + b"\n"


def _changed(body: dict[str, Any], rows: list[Row]) -> Iterator[tuple[str, bytes]]:
    """Other values, in the right spelling."""

    def spoiled(**members: Any) -> bytes:
        return canonical_json({k: v for k, v in (body | members).items() if v is not ...}) + b"\n"

    def in_row(**columns: Any) -> bytes:
        return spoiled(row={k: v for k, v in (body["row"] | columns).items() if v is not ...})

    for name, value in body["row"].items():
        yield f"{name} left out", in_row(**{name: ...})
        if name == "schema_version":
            continue  # another version is no forgery
        yield f"{name} another", in_row(**{name: not value if isinstance(value, bool) else "x"})
        yield f"{name} null", in_row(**{name: None})
    yield "a column more", in_row(reason="none")
    yield "an older schema version", in_row(schema_version=2)
    yield "a newer schema version", in_row(schema_version=4)
    yield "details of an older schema version", in_row(schema_version=2, details={})
    yield "a null column more", in_row(reason=None)
    yield "a column that says how it is kept", in_row(spooled=False)
    yield "its own hash", in_row(leaf_hash=rows[2]["leaf_hash"])
    yield "says that it was erased", in_row(erased_at="2026-11-18T15:00:00.000000Z")
    yield "one column that is spelled as two", _hidden(body)
    yield "the salt in large digits", in_row(salt=body["row"]["salt"].upper().replace("\\X", "\\x"))
    yield "the salt with spaces", in_row(salt=body["row"]["salt"][:10] + " " + body["row"]["salt"][10:])
    yield "the salt a byte longer", in_row(salt=body["row"]["salt"] + "00")
    yield "the time without decimals", in_row(timestamp="2026-11-18T14:00:02Z")
    for name in body:
        yield f"without {name}", spoiled(**{name: ...})
    yield "another format", spoiled(format="affidavit proof 2")
    yield "a member more", spoiled(note="")
    for index in (0, 1, 3, 6, 7, 2**40, -1, 2.5, "2", None, True):
        yield f"leaf_index {index}", spoiled(leaf_index=index)
    proof = body["proof"]
    yield "the proof shorter", spoiled(proof=proof[:-1])
    yield "the proof longer", spoiled(proof=[*proof, proof[-1]])
    yield "the proof backwards", spoiled(proof=proof[::-1])
    yield "no proof", spoiled(proof=[])
    yield "the proof a text", spoiled(proof="".join(proof))
    yield "the proof in large digits", spoiled(proof=[part.upper() for part in proof])
    yield "the proof with a short hash", spoiled(proof=[proof[0][:-2], *proof[1:]])
    yield "the proof of numbers", spoiled(proof=[1, 2, 3])
    for name, note in _notes(body["checkpoint"], rows):
        yield name, spoiled(checkpoint=note)
    committed = commitments(rows[2])
    bare = {k: v for k, v in body["row"].items() if k not in {*committed, "salt"}}
    yield "commitments beside the columns", spoiled(commitments=committed)
    yield (
        "commitments beside the salt",
        spoiled(row=bare | {"salt": body["row"]["salt"]}, commitments=committed),
    )
    yield "no commitments", spoiled(row=bare, commitments={})
    yield "null commitments", spoiled(row=bare, commitments=None)
    yield "a commitment left out", spoiled(row=bare, commitments=dict(list(committed.items())[1:]))
    yield (
        "commitments in large digits",
        spoiled(row=bare, commitments={k: v.upper() for k, v in committed.items()}),
    )
    yield (
        "a commitment before a plain column",
        spoiled(row=bare | {"outcome": "refused"}, commitments=committed | {"outcome": "answered"}),
    )


def _hidden(body: dict[str, Any]) -> bytes:
    """`"endpoint":"/v1/query","http_status":200` as the one value of a column with a long name."""
    columns = dict(body["row"])
    status = columns.pop("http_status")
    columns['endpoint":"/v1/query","http_status'] = status
    del columns["endpoint"]
    return canonical_json(body | {"row": columns}) + b"\n"


def _notes(note: str, rows: list[Row]) -> Iterator[tuple[str, str]]:
    other = [*rows[:2], row(2, outcome="refused"), *rows[3:]]
    signature = note.rsplit(" ", maxsplit=1)[-1]
    yield "a checkpoint of another tree", proven(other, 2).note
    yield "a checkpoint of a smaller tree", proven(rows[:5], 2).note
    yield "a checkpoint of a larger tree", proven([*rows, row(7)], 2).note
    yield "a checkpoint that a stranger signed", proven(rows, 2, STRANGER).note
    head = Checkpoint(
        "affidavit/vectors", date(2026, 10, 1), 7, root([leaf_hash(item) for item in rows]), _ISSUED_AT
    )
    yield "a checkpoint of another month", sign_note(head, KEY)
    yield "another size under the signature", note.replace("\n7\n", "\n8\n")
    yield "another origin under the signature", note.replace("vectors", "vector5")
    yield "another time under the signature", note.replace("15:00:00.25", "15:00:00.26")
    yield "two signatures, the second a forgery", note + proven(other, 2).note.splitlines()[-1] + "\n"
    yield "a line more", note + "\n"
    yield "a line end less", note.removesuffix("\n")
    yield "another dash", note.replace("—", "-")
    yield "another name", note.replace("— affidavit", "— affidavits")
    yield "carriage returns", note.replace("\n", "\r\n")
    yield "no signature", note.split("—", maxsplit=1)[0]
    yield (
        "a signature of another length",
        note.replace(signature, base64.b64encode(bytes(60)).decode() + "\n"),
    )
    yield "a signature of zeros", note.replace(signature, base64.b64encode(bytes(68)).decode() + "\n")
    yield "the size in other digits", note.replace("\n7\n", "\n07\n")
    yield "no checkpoint", ""


def _respelled(file: bytes) -> Iterator[tuple[str, bytes]]:
    """The same values in another spelling."""
    body = json.loads(file)
    yield "no line end", file[:-1]
    yield "two line ends", file + b"\n"
    yield "a carriage return", file[:-1] + b"\r\n"
    yield "a byte order mark", b"\xef\xbb\xbf" + file
    yield "a zero byte at the end", file + b"\0"
    yield "a space before", b" " + file
    yield "a space after a colon", file.replace(b'"row":', b'"row": ')
    yield "in several lines", json.dumps(body, indent=1).encode() + b"\n"
    yield "escaped letters", json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    yield "an escaped slash", file.replace(b"/v1/query", b"\\/v1\\/query")
    yield "a long escape", file.replace(b"\\t", b"\\u0009")
    yield "an escape in large digits", file.replace(b"\\u001f", b"\\u001F")
    yield "a whole number with a point", file.replace(b'"http_status":200', b'"http_status":200.0')
    yield "a whole number with an exponent", file.replace(b'"http_status":200', b'"http_status":2e2')
    yield "a fraction with one digit more", file.replace(b'"score":0.83', b'"score":0.830')
    yield "a number with a sign", file.replace(b'"http_status":200', b'"http_status":+200')
    yield "a key twice", file.replace(b'"http_status":200', b'"http_status":200,"http_status":200')
    yield "keys in another order", canonical_json(dict(body))[:-1] + b',"proof":[]}\n'
    yield "a proof after the proof", file + file
    yield "cut in the middle", file[: len(file) // 2]
    yield "in UTF-16", file.decode().encode("utf-16")
    yield "not UTF-8", file.replace("é".encode(), b"\xe9")


def _unlike(rows: list[Row]) -> Iterator[tuple[str, bytes]]:
    for content in (
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"0\n",
        b'"x"\n',
        b"[" * 5_000 + b"]" * 5_000 + b"\n",
    ):
        yield f"only {content[:9].decode().strip()!r} in {len(content)} bytes", content
    yield "a receipt of a stranger", json.dumps(receipt(rows[1], STRANGER)).encode()
    for name, value in {
        "log_id": rows[2]["log_id"], "leaf_hash": "00" * 32, "issued_at": "2026-11-18T15:00:00.250001Z",
        "key_id": ROTATED.key_id, "signature": base64.b64encode(bytes(64)).decode(),
    }.items():  # fmt: skip
        yield f"a receipt with another {name}", json.dumps(receipt(rows[1]) | {name: value}).encode()
    yield "a receipt without a key", json.dumps(receipt(rows[1]) | {"key_id": None}).encode()


def every() -> list[tuple[str, str, bytes]]:
    return [*good(), *bad()]


def page() -> str:
    body = {
        "public_keys": [str(KEY.public), str(ROTATED.public)],
        "proofs": [
            {"name": name, "verdict": verdict, "base64": base64.b64encode(file).decode()}
            for name, verdict, file in every()
        ],
    }
    return json.dumps(body, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(page())
