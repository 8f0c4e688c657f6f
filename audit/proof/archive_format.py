"""File format of an archived month: its files and the signed manifest. Pure.

`archive_format.md` beside this file is the specification, and is part of every archive.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from audit.errors import ArchiveError
from audit.proof.bundle import HASH
from audit.proof.canonical import canonical_json, read_line
from audit.proof.keys import HeadSigner, KeyRing, PublicKey

FORMAT = "affidavit archive 3"
# Archives of older versions stay valid. They always have the copy, and were not judged as they were written.
COPIED_FORMAT = "affidavit archive 2"
UNSIGNED_FORMAT = "affidavit archive 1"  # did not sign rows
SPECIFICATION_FILE = Path(__file__).with_suffix(".md")

EVIDENCE, PARQUET, LEAVES = "evidence.jsonl.zst", "rows.parquet", "leaves"
CHECKPOINT, KEYS, SPECIFICATION, MANIFEST = "checkpoint.note", "keys.pub", "format.md", "manifest.json"
NAMES = (EVIDENCE, LEAVES, CHECKPOINT, KEYS, SPECIFICATION)  # the manifest does not list itself
WITH_COPY = frozenset({*NAMES, PARQUET})

ROW_BYTES_MAX = 64 * 2**20  # far above any record; a larger one is not ours
MANIFEST_BYTES_MAX = 2**20
BOX_KEY_BYTES = 32

_MONTH = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])")
_KEY = re.compile(r"(?:archive/(?P<month>[0-9]{4}-[0-9]{2})/)?(?P<sha256>[0-9a-f]{64})\.[a-z.]+")
_FIELDS = {
    "format", "origin", "month", "rows", "root", "schema_versions", "columns", "code_version", "files", "key_id", "signature",
}  # fmt: skip
_PAIR = ("name", "type")
_OF_A_FILE = {"key", "version", "sha256", "size"}


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
    digests: Mapping[str, str]  # SHA-256 of what was written, in hex


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as the manifest lists it."""

    key: str
    version: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    format: str
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

    @property
    def is_judged(self) -> bool:
        """Whether the bytes that its digests name were judged as they were written, record by record."""
        return self.format == FORMAT

    def is_signed_by(self, keys: Iterable[PublicKey]) -> bool:
        """By a key that counts for the month's heads: a manifest has no time of its own."""
        begin = datetime(self.month.year, self.month.month, 1, tzinfo=UTC)
        heads = KeyRing.of(keys).head_keys(begin)
        return any(key.key_id == self.key_id and key.verify(self.signature, self.signed) for key in heads)


def sign_manifest(exported: Exported, files: Mapping[str, StoredFile], key: HeadSigner) -> bytes:
    """The last file of an archive: the archive exists once it is written."""
    is_signed = "signature" in exported.columns
    body = {
        "format": FORMAT if is_signed else UNSIGNED_FORMAT, "origin": exported.origin, "month": f"{exported.month:%Y-%m}", "rows": exported.rows,
        "root": exported.root.hex(), "schema_versions": list(exported.schema_versions),
        "columns": [list(column) for column in exported.columns.items()], "code_version": exported.code_version, "key_id": key.key_id,
        "files": {name: asdict(file) for name, file in files.items()},
    }  # fmt: skip
    signature = base64.b64encode(key.sign(_signed_text(body))).decode()
    return canonical_json(body | {"signature": signature}) + b"\n"


def open_manifest(content: bytes) -> Manifest:
    """Parse a manifest that is encoded exactly as `sign_manifest` does it. Does not check the signature."""
    if len(content) > MANIFEST_BYTES_MAX:
        raise ArchiveError("The manifest is larger than any of ours")
    body = read_line(content, "The manifest", ArchiveError)
    if body.keys() != _FIELDS or body["format"] not in {FORMAT, COPIED_FORMAT, UNSIGNED_FORMAT}:
        raise ArchiveError(f"The manifest does not have exactly the fields of “{FORMAT}”")
    if not _has_types(body) or body["rows"] < 1:
        raise ArchiveError("A field of the manifest has a value of the wrong type")
    if (body["format"] == UNSIGNED_FORMAT) == ("signature" in dict(body["columns"])):
        raise ArchiveError("The manifest's columns are not those of its format")
    unsigned = {name: value for name, value in body.items() if name != "signature"}
    return Manifest(
        body["format"], body["origin"], date.fromisoformat(f"{body['month']}-01"), body["rows"], bytes.fromhex(body["root"]),
        body["schema_versions"], dict(body["columns"]), body["code_version"], _files(body),
        body["key_id"], bytes_of(body["signature"]), _signed_text(unsigned),
    )  # fmt: skip


def object_key(month: date, name: str, digest: str) -> str:
    """The content-addressed key of a file: other content under this key would be noticed."""
    return f"archive/{month:%Y-%m}/{digest}.{name}"


def place_of(key: str) -> tuple[str | None, str | None]:
    """The month and the digest in a key, or in the file name of a copy, as far as there are any."""
    found = _KEY.fullmatch(key)
    return (found["month"], found["sha256"]) if found else (None, None)


def bytes_of(text: str) -> bytes:
    """Decode canonical base64. The last letter has unused bits, in which a changed byte could hide."""
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        content = b""
    if not content or base64.b64encode(content).decode() != text:
        raise ArchiveError("The signature is not canonical base64")
    return content


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


def _files(body: Mapping[str, Any]) -> dict[str, StoredFile]:
    files, month = body["files"], body["month"]
    known = {WITH_COPY, frozenset(NAMES)} if body["format"] == FORMAT else {WITH_COPY}
    if not isinstance(files, dict) or frozenset(files) not in known:
        raise ArchiveError("The manifest does not list exactly the files of an archive")
    return {name: _file(name, files[name], month) for name in files}


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
