"""The encrypted box of a record's personal values, and the compression of an archive. Pure.

`audit/proof/archive_format.md` specifies both.
"""

import hmac
import json
import threading
from typing import Any

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from audit.errors import ArchiveError
from audit.fast_json import read_members
from audit.proof.archive_format import BOX_KEY_BYTES, ROW_BYTES_MAX
from audit.proof.bundle import SALT
from audit.proof.record import PERSONAL, commitments_of, joined

# The next levels save one to three percent for half as much time again, or four times as much: docs/explanation/tiers.md.
LEVEL = 1

_VERSION = b"\x01"
_NONCE_BYTES, _TAG_BYTES = 12, 16


def compress(content: bytes) -> bytes:
    return _contexts.compressor.compress(content)


def decompress(content: bytes) -> bytes:
    """A frame of at most a record's size. `ArchiveError` if it is something else."""
    try:
        size = zstandard.frame_content_size(content)
        if size > ROW_BYTES_MAX:
            raise ArchiveError("The content is larger than a record")
        if size >= 0:
            return _contexts.decompressor.decompress(content, allow_extra_data=False)
        text = _contexts.decompressor.stream_reader(content).read(ROW_BYTES_MAX + 1)
    except zstandard.ZstdError:
        raise ArchiveError("The content is not one zstd frame") from None
    if len(text) > ROW_BYTES_MAX:
        raise ArchiveError("The content is larger than a record")
    return text


def decompress_own(frame: bytes) -> bytes:
    """The same of a frame that this process has just made, so it needs no limit."""
    return _contexts.decompressor.decompress(frame)


def encrypt_box(content: bytes, key: bytes, log_id: str) -> bytes:
    """Encrypt under the row's own key, so that destroying the key erases the row. Deterministic: the same content gives the same bytes."""
    compressed = compress(content)
    nonce = hmac.digest(key, compressed, "sha256")[:_NONCE_BYTES]
    return b"".join((_VERSION, nonce, AESGCM(key).encrypt(nonce, compressed, log_id.encode())))


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
    """The commitments of the box's values, which must be in canonical form."""
    content = decrypt_box(box, key, log_id)
    try:
        values, texts = read_members(content.decode())
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ArchiveError("The content of the box is not one JSON object") from None
    salt = values.get("salt")
    if not isinstance(salt, str) or not SALT.fullmatch(salt):
        raise ArchiveError("The box contains no salt")
    if not texts.keys() <= PERSONAL | {"salt"}:
        raise ArchiveError("The box contains more than the personal columns and the salt")
    if joined(texts).encode() != content:
        raise ArchiveError("The content of the box is not in canonical form")
    return commitments_of(texts, bytes.fromhex(salt[2:]))


def decrypt_box(box: bytes, key: bytes, log_id: str) -> bytes:
    """The content of the box, of at most a record's size, so that a decompression bomb does no harm."""
    if box[:1] != _VERSION or len(box) <= 1 + _NONCE_BYTES + _TAG_BYTES or len(key) != BOX_KEY_BYTES:
        raise ArchiveError("The box has the wrong version, size or key")
    nonce, sealed = box[1 : 1 + _NONCE_BYTES], box[1 + _NONCE_BYTES :]
    try:
        compressed = AESGCM(key).decrypt(nonce, sealed, log_id.encode())
    except InvalidTag:
        raise ArchiveError("The box does not open with the record's key") from None
    if nonce != hmac.digest(key, compressed, "sha256")[:_NONCE_BYTES]:
        raise ArchiveError("The box is not in canonical form")
    return decompress(compressed)


class _Contexts(threading.local):
    """A context costs more than a box, and serves one thread."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()
