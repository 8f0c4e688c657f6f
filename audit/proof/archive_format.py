"""File format of an archived month: its files, the signed manifest, the encrypted box of personal values. Pure.

`archive_format.md` beside this file is the specification, and is part of every archive.
"""

import base64
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.errors import ArchiveError
from audit.proof.bundle import COLUMN, HASH, SALT
from audit.proof.canonical import canonical_json, read_line
from audit.proof.keys import HeadSigner, KeyRing, PublicKey
from audit.proof.record import PERSONAL, commitments_of, joined

FORMAT = "affidavit archive 2"
UNSIGNED_FORMAT = "affidavit archive 1"  # of versions that did not sign rows: their archives stay valid
SPECIFICATION_FILE = Path(__file__).with_suffix(".md")

EVIDENCE, PARQUET, LEAVES = "evidence.jsonl.zst", "rows.parquet", "leaves"
CHECKPOINT, KEYS, SPECIFICATION, MANIFEST = "checkpoint.note", "keys.pub", "format.md", "manifest.json"
NAMES = (EVIDENCE, PARQUET, LEAVES, CHECKPOINT, KEYS, SPECIFICATION)  # the manifest does not list itself

ROW_BYTES_MAX = 64 * 2**20  # far above any record; a larger one is not ours
MANIFEST_BYTES_MAX = 2**20
BOX_KEY_BYTES = 32

_USUAL_BYTES = 2**16
_BOX_VERSION = b"\x01"
_NONCE_BYTES, _TAG_BYTES = 12, 16
_MONTH = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
_KEY = re.compile(r"(?:archive/(?P<month>[0-9]{4}-[0-9]{2})/)?(?P<sha256>[0-9a-f]{64})\.[a-z.]+")
_FIELDS = {
    "format", "origin", "month", "rows", "root", "schema_versions", "columns", "code_version", "files", "key_id", "signature",
}  # fmt: skip
_PAIR = ("name", "type")
_OF_A_FILE = {"key", "version", "sha256", "size"}
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Exported:
    """A month's files, ready for the vault; the manifest is written last."""

    origin: str
    month: date
    rows: int
    root: bytes
    schema_versions: Sequence[int]
    columns: Mapping[str, str]
    code_version: str
    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as the manifest lists it."""

    key: str
    version: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    origin: str
    month: date
    rows: int
    root: bytes
    schema_versions: Sequence[int]
    columns: Mapping[str, str]
    code_version: str
    files: Mapping[str, StoredFile]
    key_id: str
    signature: bytes
    signed: bytes

    def is_signed_by(self, keys: Iterable[PublicKey]) -> bool:
        """By a key that counts for the month's heads: a manifest has no time of its own."""
        begin = datetime(self.month.year, self.month.month, 1, tzinfo=UTC)
        heads = KeyRing.of(keys).head_keys(begin)
        return any(key.key_id == self.key_id and key.verify(self.signature, self.signed) for key in heads)


def sign_manifest(exported: Exported, files: Mapping[str, StoredFile], key: HeadSigner) -> bytes:
    """The last file of an archive: the archive exists once it is written."""
    body = {
        "format": _format_of(exported.columns), "origin": exported.origin, "month": f"{exported.month:%Y-%m}", "rows": exported.rows,
        "root": exported.root.hex(), "schema_versions": list(exported.schema_versions),
        "columns": [list(column) for column in exported.columns.items()], "code_version": exported.code_version, "key_id": key.key_id,
        "files": {name: asdict(files[name]) for name in NAMES},
    }  # fmt: skip
    signature = base64.b64encode(key.sign(_signed_text(body))).decode()
    return canonical_json(body | {"signature": signature}) + b"\n"


def open_manifest(content: bytes) -> Manifest:
    """Parse a manifest that is encoded exactly as `sign_manifest` does it. Does not check the signature."""
    if len(content) > MANIFEST_BYTES_MAX:
        raise ArchiveError("The manifest is larger than any of ours")
    body = read_line(content, "The manifest", ArchiveError)
    if body.keys() != _FIELDS or body["format"] not in {FORMAT, UNSIGNED_FORMAT}:
        raise ArchiveError(f"The manifest does not have exactly the fields of “{FORMAT}”")
    if not _has_types(body) or body["rows"] < 1:
        raise ArchiveError("A field of the manifest has a value of the wrong type")
    if body["format"] != _format_of(dict(body["columns"])):
        raise ArchiveError("The manifest's columns are not those of its format")
    unsigned = {name: value for name, value in body.items() if name != "signature"}
    return Manifest(
        body["origin"], date.fromisoformat(f"{body['month']}-01"), body["rows"], bytes.fromhex(body["root"]),
        body["schema_versions"], dict(body["columns"]), body["code_version"], _files(body["files"], body["month"]),
        body["key_id"], bytes_of(body["signature"]), _signed_text(unsigned),
    )  # fmt: skip


def _format_of(columns: Mapping[str, str]) -> str:
    return FORMAT if "signature" in columns else UNSIGNED_FORMAT


def object_key(month: date, name: str, digest: str) -> str:
    """The content-addressed key of a file: other content under this key would be noticed."""
    return f"archive/{month:%Y-%m}/{digest}.{name}"


def place_of(key: str) -> tuple[str | None, str | None]:
    """The month and the digest in a key, or in the file name of a copy, as far as there are any."""
    found = _KEY.fullmatch(key)
    return (found["month"], found["sha256"]) if found else (None, None)


def compress(content: bytes) -> bytes:
    import pyarrow as pa

    compressed: bytes = pa.Codec("zstd", compression_level=1).compress(content, asbytes=True)
    return compressed  # three times as fast as the next levels, which save two percent


def encrypt_box(content: bytes, key: bytes, log_id: str) -> bytes:
    """Encrypt under the row's own key, so that destroying the key erases the row. Deterministic: the same content gives the same bytes."""
    compressed = compress(content)
    nonce = hmac.digest(key, compressed, "sha256")[:_NONCE_BYTES]
    return b"".join((_BOX_VERSION, nonce, AESGCM(key).encrypt(nonce, compressed, log_id.encode())))


def open_box(box: bytes, key: bytes, log_id: str) -> dict[str, Any]:
    """The personal columns and the salt."""
    try:
        content = json.loads(decrypt_box(box, key, log_id))
    except (ValueError, RecursionError) as wrong:
        raise ArchiveError(f"The content of the box is not JSON: {wrong}") from None
    if not isinstance(content, dict) or not content.keys() <= PERSONAL | {"salt"}:
        raise ArchiveError("The box contains more than the personal columns and the salt")
    return content


def commitments_in(box: bytes, key: bytes, log_id: str) -> dict[str, str]:
    """The commitments of the box's values, over their texts as they are, so that only canonical texts can match."""
    texts = members(decrypt_box(box, key, log_id))
    salt = texts.pop("salt", "")
    if not texts.keys() <= PERSONAL:
        raise ArchiveError("The box contains more than the personal columns and the salt")
    try:
        spelled = json.loads(salt)
    except ValueError:
        spelled = None
    if not isinstance(spelled, str) or not SALT.fullmatch(spelled):
        raise ArchiveError("The box contains no salt")
    return commitments_of(texts, bytes.fromhex(spelled[2:]))


def decrypt_box(box: bytes, key: bytes, log_id: str) -> str:
    """The text in the box, read with the size limit of a record, so that a decompression bomb does no harm."""
    if box[:1] != _BOX_VERSION or len(box) <= 1 + _NONCE_BYTES + _TAG_BYTES or len(key) != BOX_KEY_BYTES:
        raise ArchiveError("The box has the wrong version, size or key")
    nonce, sealed = box[1 : 1 + _NONCE_BYTES], box[1 + _NONCE_BYTES :]
    import pyarrow as pa  # here, because each command and each server imports this file

    try:
        compressed = AESGCM(key).decrypt(nonce, sealed, log_id.encode())
        with pa.CompressedInputStream(pa.BufferReader(compressed), "zstd") as stream:
            content = stream.read(_USUAL_BYTES)  # a buffer of the maximum size would cost more than the rest
            if len(content) == _USUAL_BYTES:
                content += stream.read(ROW_BYTES_MAX + 1 - _USUAL_BYTES)
        text: str = content.decode()
    except (InvalidTag, OSError, ValueError) as wrong:
        raise ArchiveError(f"The box does not open with the record's key ({type(wrong).__name__})") from None
    if len(content) > ROW_BYTES_MAX or nonce != hmac.digest(key, compressed, "sha256")[:_NONCE_BYTES]:
        raise ArchiveError("The box is not in canonical form")
    return text


def bytes_of(text: str) -> bytes:
    """Decode canonical base64. The last letter has unused bits, in which a changed byte could hide."""
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = b""
    if not content or base64.b64encode(content).decode() != text:
        raise ArchiveError("The signature is not canonical base64")
    return content


def members(text: str) -> dict[str, str]:
    """Split one JSON object of plain names, without spaces, into its members; each value stays the text that it was."""
    found: dict[str, str] = {}
    at = 0
    try:
        while text[at] in "{,":
            middle = text.index('":', at)
            _, end = _decoder.raw_decode(text, middle + 2)
            found[text[at + 2 : middle]] = text[middle + 2 : end]
            at = end
        is_whole = text == joined(found)
    except (ValueError, IndexError, RecursionError):
        is_whole = False
    if not is_whole or not all(map(COLUMN.fullmatch, found)):
        raise ArchiveError("The text is not one JSON object with its names in order and without spaces")
    return found


def _has_types(body: Mapping[str, Any]) -> bool:
    texts = (body["origin"], body["code_version"], body["key_id"], body["signature"], *_flat(body["columns"]))
    return (
        all(isinstance(text, str) for text in texts)
        and type(body["rows"]) is int
        and isinstance(body["schema_versions"], list)
        and all(type(version) is int for version in body["schema_versions"])
        and _is_written(_MONTH, body["month"])
        and body["month"] >= "0001"
        and _is_written(HASH, body["root"])
    )


def _flat(columns: object) -> list[object]:
    """Names and types in one list, with a None for anything that is not such a pair."""
    pairs = columns if isinstance(columns, list) else [None]
    return [
        part
        for pair in pairs
        for part in (pair if isinstance(pair, list) and len(pair) == len(_PAIR) else [None])
    ]


def _files(files: object, month: str) -> dict[str, StoredFile]:
    if not isinstance(files, dict) or files.keys() != set(NAMES):
        raise ArchiveError("The manifest does not list exactly the files of an archive")
    return {name: _file(name, files[name], month) for name in NAMES}


def _file(name: str, file: object, month: str) -> StoredFile:
    if (
        not isinstance(file, dict)
        or file.keys() != _OF_A_FILE
        or not all(isinstance(file[field], str) for field in ("key", "version", "sha256"))
        or type(file["size"]) is not int
        or file["size"] < 0
    ):
        raise ArchiveError(f"The manifest does not give key, version, digest and size of {name}")
    if file["key"] != f"archive/{month}/{file['sha256']}.{name}" or not HASH.fullmatch(file["sha256"]):
        raise ArchiveError(f"The key of {name} does not match its month and its digest")
    return StoredFile(**file)


def _signed_text(body: Mapping[str, Any]) -> bytes:
    return b"affidavit archive\n" + canonical_json(dict(body)) + b"\n"


def _is_written(pattern: re.Pattern[str], text: object) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None
