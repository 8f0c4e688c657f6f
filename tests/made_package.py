"""Evidence packages for the tests of verifiers, written from `audit/__init__.py`, 17: of two months, or of many records."""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid5

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.heads.vkey import COSIGNER, LOG, VerifierKey, cosign
from audit.proof import passage_id
from audit.proof.bundle import Bundle, encode
from audit.proof.canonical import canonical_json, canonical_text
from audit.proof.checkpoint import Checkpoint, Link, erasure_text, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import consistency_proof, inclusion_proof, root
from audit.proof.note import SignatureLine, SignedNote, to_base64
from audit.proof.record import PERSONAL, Row, commitments, leaf_hash
from tests.proofs import KEY, signed_row

Files = dict[str, bytes]

ORIGIN = "affidavit/5f0c1d2e"
OCTOBER, NOVEMBER = date(2026, 10, 1), date(2026, 11, 1)
SINCE, UNTIL = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
MADE_AT = datetime(2026, 12, 2, 9, tzinfo=UTC)
SPACE = UUID("5e0f0f0e-0000-4000-8000-000000000001")
HOSTILE = "<img src=x onerror=\"document.title='stolen'\"><script>document.title='stolen'</script>"
WITNESS = Ed25519PrivateKey.from_private_bytes(sha256(b"witness").digest())
OTHER = Ed25519PrivateKey.from_private_bytes(sha256(b"another witness").digest()).public_key()
OTHER_WITNESS = (
    f"witness beta {VerifierKey('beta.example', COSIGNER, OTHER.public_bytes_raw())} https://beta.example/\n"
)
POLICY = f"""\
witness alpha {VerifierKey("alpha.example", COSIGNER, WITNESS.public_key().public_bytes_raw())} https://alpha.example/
quorum alpha
"""
_QUOTED = (22, 69)  # what is quoted of the passage, without the full stop
CSV_COLUMNS = (
    "log_id", "query_id", "timestamp", "endpoint", "client_id", "end_user", "session_id", "book_id", "outcome", "reason",
    "http_status", "success", "user_query_text", "selected_text", "answer_text", "citations", "confidence_score",
    "confidence_level", "model_used", "tokens_input", "tokens_output", "total_latency_ms", "error_type", "error_message",
    "details", "index_generation", "code_version", "schema_version",
)  # fmt: skip


@dataclass(slots=True)
class Made:
    """A package before it is a ZIP, so that a test can change a part and sign the rest anew."""

    files: Files = field(default_factory=dict)
    is_redacted: bool = False
    chosen: dict[str, Any] = field(default_factory=dict)

    def zipped(self, key: SigningKey = KEY, **changed: Any) -> bytes:
        return zipped(self.files | {"manifest.json": self.manifest(key, **changed)})

    def manifest(self, key: SigningKey, **changed: Any) -> bytes:
        bundles = [
            json.loads(line) for name in self._named("records/") for line in self.files[name].splitlines()
        ]
        erased = {json.loads(line)["log_id"] for line in self.files.get("erasures.jsonl", b"").splitlines()}
        counts = {
            "records": len(bundles), "withheld": sum("commitments" in each for each in bundles),
            "erased": sum("commitments" in each and each["row"]["log_id"] in erased for each in bundles),
            "passages": len(self.files.get("passages.jsonl", b"").splitlines()), "anchors": len(self._named("anchors/")),
        }  # fmt: skip
        body = {
            "format": "affidavit package 1", "origin": ORIGIN, "made_at": _time(MADE_AT), "from": _time(SINCE),
            "to": _time(UNTIL), "chosen": self.chosen, "redacted": self.is_redacted, "event": str(uuid5(SPACE, "event")),
            "counts": counts, "key_id": key.key_id,
            "files": {name: {"sha256": sha256(file).hexdigest(), "size": len(file)} for name, file in self.files.items()},
        } | changed  # fmt: skip
        signature = key.sign(b"affidavit package\n" + canonical_json(body) + b"\n")
        return canonical_json(body | {"signature": to_base64(signature)}) + b"\n"

    def _named(self, prefix: str) -> list[str]:
        return [name for name in self.files if name.startswith(prefix)]


def of_two_months(*, is_redacted: bool = False) -> Made:
    """Eighteen records: with quotations, one erased, one of a reader who tried to run a script."""
    passage = _passage()
    october = [_row(place, OCTOBER, passage) for place in range(5)]
    november = [_row(place, NOVEMBER, passage) for place in range(13)]
    return packed({OCTOBER: october, NOVEMBER: november}, passage, erased=3, is_redacted=is_redacted)


def of_many(records: int, prompt: str) -> Made:
    """One month, with a prompt of a usual length in each record."""
    passage = _passage()
    rows = [_row(place, NOVEMBER, passage, llm_prompt=prompt) for place in range(records)]
    return packed({NOVEMBER: rows}, passage, erased=None)


def packed(
    months: dict[date, list[Row]], passage: dict[str, Any], *, erased: int | None, is_redacted: bool = False
) -> Made:
    package = Made(is_redacted=is_redacted)
    notes: dict[date, list[str]] = {}
    previous = None
    bundles = list[Bundle]()
    for month, rows in months.items():
        leaves = [leaf_hash(row) for row in rows]
        notes[month] = [_note(month, leaves[:size], previous) for size in (_anchored(rows), len(rows))]
        bundles += _bundles(
            rows, leaves, notes[month][-1], erased if month == NOVEMBER else None, is_redacted=is_redacted
        )
        previous = Link(month, len(rows), root(leaves))
    erasures = (
        [_erasure(bundle) for bundle in bundles if bundle.commitments is not None] if not is_redacted else []
    )
    package.files = _in_order(months, notes, bundles, erasures, [] if is_redacted else [passage])
    return package


def zipped(files: Files) -> bytes:
    """Stored if it is small: a reader must know both ways."""
    whole, listed = b"", b""
    for name, content in files.items():
        method = 0 if len(content) < 100 else 8
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        data = packer.compress(content) + packer.flush() if method else content
        fixed = struct.pack("<4H3I", 0, method, 0, 0x21, zlib.crc32(content), len(data), len(content))
        lengths = struct.pack("<2H", len(name), 0)
        listed += (
            b"PK\x01\x02"
            + struct.pack("<2H", 20, 20)
            + fixed
            + lengths
            + struct.pack("<3H2I", 0, 0, 0, 0, len(whole))
            + name.encode()
        )
        whole += b"PK\x03\x04" + struct.pack("<H", 20) + fixed + lengths + name.encode() + data
    return (
        whole
        + listed
        + b"PK\x05\x06"
        + struct.pack("<4H2IH", 0, 0, len(files), len(files), len(listed), len(whole), 0)
    )


def spreadsheet_of(bundles: list[Bundle]) -> bytes:
    lines = [",".join(("month", "leaf_index", *CSV_COLUMNS, "withheld"))]
    for bundle in bundles:
        cells = [_cell(bundle.row[name]) if name in bundle.row else "" for name in CSV_COLUMNS]
        withheld = " ".join(sorted(bundle.commitments or ()))
        lines.append(",".join([f"{bundle.month:%Y-%m}", str(bundle.leaf_index), *cells, withheld]))
    return ("\ufeff" + "".join(f"{line}\r\n" for line in lines)).encode()


def _in_order(
    months: dict[date, list[Row]],
    notes: dict[date, list[str]],
    bundles: list[Bundle],
    erasures: list[Any],
    passages: list[Any],
) -> Files:
    files: Files = {
        "README.md": b"# Evidence\n",
        "auditor.pyz": b"PK",
        "keys.pub": f"{KEY.public}\n".encode(),
    }
    for month in months:
        files[f"records/{month:%Y-%m}.jsonl"] = b"".join(
            encode(each) for each in bundles if each.month == month
        )
    files["records.csv"] = spreadsheet_of(bundles)
    files |= {f"checkpoints/{month:%Y-%m}.note": found[-1].encode() for month, found in notes.items()}
    for month, rows in months.items():
        files[f"anchors/{month:%Y-%m}/{_anchored(rows):012}.note"] = notes[month][0].encode()
    files |= {f"consistency/{month:%Y-%m}.json": _consistency(month, rows) for month, rows in months.items()}
    files |= _heads([found[0] for found in notes.values()], list(months))
    files["passages.jsonl"] = b"".join(canonical_json(each) + b"\n" for each in passages)
    files["erasures.jsonl"] = b"".join(canonical_json(each) + b"\n" for each in erasures)
    said = [
        {"month": f"{month:%Y-%m}", "tier": "database", "size": len(rows), "records": len(rows), "unsealed": 0, "anchored": _anchored(rows), "breaks": []}
        for month, rows in months.items()
    ]  # fmt: skip
    verify = {
        "verdict": "VALID",
        "checked": len(bundles),
        "findings": [],
        "findings_left_off": 0,
        "counted": {},
    }
    files["coverage.json"] = _line({"months": said, "unsealed": 0, "is_whole": True, "verify": verify})
    queries = {
        "words": "All records of the period.",
        "sql": [{"statement": "SELECT * FROM audit_logs", "parameters": []}],
    }
    return files | {"queries.json": _line(queries)}


def _row(place: int, month: date, passage: dict[str, Any], **given: Any) -> Row:
    begin = datetime(month.year, month.month, 18, 14, tzinfo=UTC)
    text, (start, end) = passage["text"], _QUOTED
    excerpt = text[start:end]
    citation = {
        "n": 1, "chunk_id": passage["chunk_id"], "section": "Inertial sensors", "chapter": passage["chapter"], "page": "42",
        "filename": passage["filename"], "url": f"{passage['url']}#imu", "excerpt": excerpt, "start": start, "end": end, "score": 0.83,
    }  # fmt: skip
    question = HOSTILE if place == 4 else f"What does an IMU measure, asked by reader {place + 1}?"
    return signed_row(
        place + month.month * 100, timestamp=begin + timedelta(seconds=place), user_query_text=question, citations=[citation],
        answer_text=f'In short: {excerpt} [Source: Inertial sensors (Page 42) - "{excerpt}"]',
        client_id="docs-site", book_id="physical-ai", model_used="claude-haiku-5-5", total_latency_ms=1240 + place,
        confidence_level="high", **given,
    )  # fmt: skip


def _passage() -> dict[str, Any]:
    text = "🤖 An IMU is a sensor. It measures acceleration and angular velocity. Robots need it to keep their balance."
    covered = {
        "book_id": "physical-ai", "filename": "sensors<b>.md", "url": "/docs/sensors", "chapter": "Sensors", "section": "Inertial sensors",
        "chunk_index": 3, "text": text, "start_sentence": 7, "module": None, "difficulty": None, "tags": ["imu", 1.5],
        "sentences": [[0, 21, "Inertial sensors", "imu", "42"], [22, 70, "Inertial sensors", "imu", "42", "statement"], [71, 108, "Balance", None, "43"]],
    }  # fmt: skip
    return covered | passage_id.derived(covered)


def _bundles(
    rows: list[Row], leaves: list[bytes], note: str, erased: int | None, *, is_redacted: bool
) -> Iterator[Bundle]:
    paths = _paths(leaves)
    for place, row in enumerate(rows):
        withheld = commitments(row) if is_redacted or place == erased else None
        hidden = PERSONAL if withheld else frozenset[str]()
        kept = {name: value for name, value in row.items() if name not in hidden}
        yield Bundle(kept, place, next(paths), note, withheld)


def _paths(leaves: list[bytes]) -> Iterator[list[bytes]]:
    """All inclusion proofs, from the levels of the tree: each by itself would read every leaf."""
    levels = [leaves]
    while len(below := levels[-1]) > 1:
        pairs = [below[at : at + 2] for at in range(0, len(below), 2)]
        levels.append(
            [sha256(b"\x01" + pair[0] + pair[1]).digest() if len(pair) > 1 else pair[0] for pair in pairs]
        )
    for index in range(len(leaves)):
        beside = [(level, (index >> height) ^ 1) for height, level in enumerate(levels[:-1])]
        yield [level[place] for level, place in beside if place < len(level)]


def _erasure(bundle: Bundle) -> dict[str, Any]:
    ids = (uuid5(SPACE, "erasure"), UUID(bundle.row["log_id"]), uuid5(SPACE, "erasing"))
    erased_at = datetime(2026, 11, 20, tzinfo=UTC)
    signature = to_base64(KEY.sign(erasure_text(*ids, erased_at)))
    names = dict(zip(("erasure_id", "log_id", "event"), map(str, ids), strict=True))
    return names | {"erased_at": _time(erased_at), "key_id": KEY.key_id, "signature": signature}


def _heads(entries: list[str], months: list[date]) -> Files:
    """The log of heads, whose leaves are the anchored heads of the months."""
    leaves = [sha256(b"\x00" + entry.encode()).digest() for entry in entries]
    text = f"{ORIGIN}\n{len(leaves)}\n{to_base64(root(leaves))}\n"
    log = VerifierKey(ORIGIN, LOG, KEY.public.raw)
    lines = (
        SignatureLine(log.name, log.fingerprint, KEY.sign(text.encode())),
        cosign(text, WITNESS, "alpha.example", MADE_AT),
    )
    note = str(SignedNote(text, lines))
    files = {"heads/head.note": note.encode()}
    for place, (entry, month) in enumerate(zip(entries, months, strict=True)):
        path = "".join(f"{to_base64(part)}\n" for part in inclusion_proof(leaves, place))
        proof = f"c2sp.org/tlog-proof@v1\nextra {to_base64(entry.encode())}\nindex {place}\n{path}\n{note}"
        files[f"heads/{month:%Y-%m}.tlog-proof"] = proof.encode()
    return files


def _consistency(month: date, rows: list[Row]) -> bytes:
    leaves, sizes = [leaf_hash(row) for row in rows], {_anchored(rows)} - {len(rows)}
    proofs = {str(size): [part.hex() for part in consistency_proof(leaves, size)] for size in sizes}
    return _line({"month": f"{month:%Y-%m}", "size": len(rows), "proofs": proofs})


def _note(month: date, leaves: list[bytes], previous: Link | None) -> str:
    issued_at = datetime(month.year, month.month, 28, len(leaves) % 24, tzinfo=UTC)
    return sign_note(Checkpoint(ORIGIN, month, len(leaves), root(leaves), issued_at, previous, 0), KEY)


def _anchored(rows: list[Row]) -> int:
    return len(rows) - 2


def _cell(value: Any) -> str:
    text = (
        (f"'{value}" if value[:1] in set("=+-@\t\r") else value)
        if isinstance(value, str)
        else canonical_text(value)
    )
    return '"' + text.replace('"', '""') + '"' if set(text) & set(',"\n\r') else text


def _line(body: Any) -> bytes:
    return canonical_json(body) + b"\n"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
