"""An evidence package made in memory, the same on every run, and the tools to alter and sign it again."""

import io
import zlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import cache
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid5

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.heads.head import LogHead, entry_leaf, sign_head
from audit.heads.tlog_proof import TlogProof
from audit.heads.vkey import COSIGNER, VerifierKey, cosign
from audit.package import manifest as names
from audit.package import spreadsheet
from audit.package.container import DEFLATE, ZipEntry, directory, local_header
from audit.package.manifest import ListedFile, PackageManifest, open_manifest, sign_manifest
from audit.package.program import program
from audit.packing.readme import readme
from audit.proof import passage_id
from audit.proof.bundle import Bundle, decode, encode
from audit.proof.canonical import canonical_json
from audit.proof.checkpoint import Checkpoint, Link, erasure_text, sign_note
from audit.proof.keys import SigningKey
from audit.proof.merkle import StoredTree, inclusion_proof, root
from audit.proof.note import to_base64
from audit.proof.record import Row, commitments, leaf_hash
from tests.proofs import KEY, signed_row

Files = dict[str, bytes]

ORIGIN = "affidavit/5e0f0f0e-0000-4000-8000-000000000001"
OCTOBER, NOVEMBER = date(2026, 10, 1), date(2026, 11, 1)
SINCE, UNTIL = datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
SIZES = {OCTOBER: 5, NOVEMBER: 13}
ANCHORED = {OCTOBER: (2, 5), NOVEMBER: (4, 11)}
ERASED_AT = datetime(2026, 11, 20, 9, tzinfo=UTC)
WITNESS = "witness.example"
ERASED = (NOVEMBER, 6)  # whose personal data is gone
_SPACE = UUID("5e0f0f0e-0000-4000-8000-00000000000a")


def passage(number: int) -> dict[str, Any]:
    text = f"Passive compliance lets a joint of kind {number} yield. It stores energy, 🤖 not much."
    end = text.index(". ") + 1
    covered = {
        "book_id": "robots", "filename": f"0{number}-joints.md", "url": f"/docs/joints-{number}", "chapter": "Bodies", "section": "Joints",
        "chunk_index": number, "text": text, "start_sentence": 3, "module": None, "difficulty": None, "tags": ["legs"],
        "sentences": [[0, end, "Joints", "joints", "12"], [end + 1, len(text), "Energy", "", "13"]],
    }  # fmt: skip
    return covered | passage_id.derived(covered)


def citation(number: int, n: int = 1) -> dict[str, Any]:
    cited = passage(number)
    begin, end = cited["sentences"][1][:2]
    return {
        "n": n, "chunk_id": cited["chunk_id"], "section": "Energy", "chapter": "Bodies", "filename": cited["filename"], "page": "13",
        "url": cited["url"], "excerpt": cited["text"][begin:end], "start": begin, "end": end, "score": 0.83,
    }  # fmt: skip


@cache
def rows() -> Mapping[tuple[date, int], Row]:
    found = {}
    for month, size in SIZES.items():
        for index in range(size):
            place = month.month * 100 + index
            at = datetime(month.year, month.month, 10, 12, tzinfo=UTC) + timedelta(minutes=index)
            found[month, index] = signed_row(
                place, timestamp=at, client_id="docs-site" if index % 2 else '=shop, "west"', end_user=f"user:ä{index}",
                user_query_text=("=1+1" if index == 1 else f"What is „compliance“, no. {index}?\nAnd why?"),
                citations=[citation(index % 3)] if index % 2 else [citation(0), citation(1, 2)],
            )  # fmt: skip
    return found


def leaves(month: date) -> list[bytes]:
    return [leaf_hash(row) for (of, _), row in rows().items() if of == month]


def checkpoint(month: date, size: int, key: SigningKey = KEY, **given: Any) -> str:
    previous = Link(OCTOBER, SIZES[OCTOBER], root(leaves(OCTOBER))) if month == NOVEMBER else None
    at = datetime(month.year, month.month, 10, 13, tzinfo=UTC) + timedelta(minutes=size)
    head = Checkpoint(ORIGIN, month, size, root(leaves(month)[:size]), at, previous, 0)
    return sign_note(replace(head, **given), key)


def bundle_of(month: date, index: int, *, is_withheld: bool = False) -> Bundle:
    row = rows()[month, index]
    proof = StoredTree(b"".join(leaves(month))).inclusion_proof(index)
    committed = commitments(row) if is_withheld or (month, index) == ERASED else None
    return Bundle(row, index, proof, checkpoint(month, SIZES[month]), committed)


def erasure(row: Row, key: SigningKey = KEY) -> dict[str, Any]:
    erasure_id, event = uuid5(_SPACE, "erasure"), uuid5(_SPACE, "event")
    signature = key.sign(erasure_text(erasure_id, UUID(row["log_id"]), event, ERASED_AT))
    return {
        "erasure_id": str(erasure_id), "log_id": row["log_id"], "event": str(event), "erased_at": names.time_text(ERASED_AT),
        "key_id": key.key_id, "signature": to_base64(signature),
    }  # fmt: skip


def line(value: object) -> bytes:
    return canonical_json(value) + b"\n"


@cache
def _made(*, is_redacted: bool) -> Mapping[str, bytes]:
    files: Files = {names.AUDITOR: program(), names.KEYS: f"{KEY.public}\n".encode()}
    for month, size in SIZES.items():
        bundles = [encode(bundle_of(month, index, is_withheld=is_redacted)) for index in range(size)]
        files[names.records_name(month)] = b"".join(bundles)
        files[names.checkpoint_name(month)] = checkpoint(month, size).encode()
        tree, proofs = StoredTree(b"".join(leaves(month))), {}
        for anchored in ANCHORED[month]:
            files[names.anchor_name(month, anchored)] = checkpoint(month, anchored).encode()
            if anchored < size:
                proofs[str(anchored)] = [part.hex() for part in tree.consistency_proof(anchored)]
        files[names.consistency_name(month)] = line(
            {"month": f"{month:%Y-%m}", "size": size, "proofs": proofs}
        )
    files[names.SPREADSHEET] = derived_spreadsheet(files)
    passages = sorted((passage(number) for number in range(3)), key=lambda each: str(each["chunk_id"]))
    files[names.PASSAGES] = b"" if is_redacted else b"".join(map(line, passages))
    files[names.ERASURES] = line(erasure(rows()[ERASED]))
    files[names.COVERAGE] = line(coverage())
    files[names.QUERIES] = line({"words": "all records", "sql": []})
    counts = {
        "records": sum(SIZES.values()), "withheld": sum(SIZES.values()) if is_redacted else 1, "erased": 1,
        "passages": 0 if is_redacted else 3, "anchors": 4,
    }  # fmt: skip
    event = uuid5(_SPACE, "making")
    manifest = PackageManifest(
        ORIGIN, UNTIL, SINCE, UNTIL, {"case": "../../etc/passwd <b>"}, is_redacted, event, counts, {}
    )
    files[names.README] = readme(manifest, "all records", "")
    files[names.MANIFEST] = sign_manifest(manifest, KEY)
    return signed(files)


def made(*, is_redacted: bool = False) -> Files:
    """A whole package, file by file."""
    return dict(_made(is_redacted=is_redacted))


def coverage(**given: Any) -> dict[str, Any]:
    months = [
        {
            "month": f"{month:%Y-%m}", "tier": "database", "size": size, "records": size, "unsealed": 0,
            "anchored": max(ANCHORED[month]), "breaks": [],
        }
        for month, size in SIZES.items()
    ]  # fmt: skip
    report = {"verdict": "VALID", "checked": 18, "findings": [], "findings_left_off": 0, "counted": {}}
    return {"months": months, "unsealed": 0, "is_whole": True, "verify": report} | given


def derived_spreadsheet(files: Mapping[str, bytes]) -> bytes:
    """As an insider would make it for altered records."""
    content = spreadsheet.heading()
    for name in sorted(name for name in files if name.startswith("records/")):
        content += b"".join(
            spreadsheet.line_of(decode(each)) for each in files[name].splitlines(keepends=True)
        )
    return content


def with_heads(files: Mapping[str, bytes], witness: str = WITNESS, size: int = 4) -> Files:
    """With a log of heads: its entries are the anchored heads; a witness has cosigned it."""
    entries = [
        (month, checkpoint(month, anchored).encode()) for month in SIZES for anchored in ANCHORED[month]
    ][:size]
    head_leaves = [entry_leaf(entry) for _, entry in entries]
    note = sign_head(LogHead(ORIGIN, len(entries), root(head_leaves)), KEY)
    text = f"{note.split(chr(10) * 2)[0]}\n"
    note += str(cosign(text, witness_key(witness), witness, ERASED_AT))
    found = {**files, names.HEAD: note.encode()}
    for index, (month, entry) in enumerate(entries):  # the last of a month stays
        proof = TlogProof(index, inclusion_proof(head_leaves, index), note, entry)
        found[names.proof_name(month)] = str(proof).encode()
    return found


def witness_key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(sha256(name.encode()).digest())


def policy(name: str = WITNESS) -> str:
    key = VerifierKey(name, COSIGNER, witness_key(name).public_key().public_bytes_raw())
    return f"witness w {key}\nquorum w\n"


def signed(files: Mapping[str, bytes], key: SigningKey = KEY, **given: Any) -> Files:
    """The same files under a manifest that lists them as they are now."""
    listed = {
        name: ListedFile(sha256(content).hexdigest(), len(content))
        for name, content in files.items()
        if name != names.MANIFEST
    }
    manifest = replace(open_manifest(files[names.MANIFEST]), files=listed, **given)
    return {**files, names.MANIFEST: sign_manifest(manifest, key)}


def zipped(files: Mapping[str, bytes], order: list[str] | None = None) -> bytes:
    written, entries = io.BytesIO(), list[ZipEntry]()
    for name in order or sorted(files, key=names.order_of):
        packing = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packing.compress(files[name]) + packing.flush()
        crc, size = zlib.crc32(files[name]), len(files[name])
        entries.append(ZipEntry(name, DEFLATE, crc, len(packed), size, written.tell()))
        written.write(local_header(entries[-1]) + packed)
    written.write(directory(entries, written.tell()))
    return written.getvalue()
