"""The engine's signatures over a row's leaf and over the record of an open request. Pure.

Whoever owns the database can write rows, but not sign them: the signing key is never in the database.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from audit.proof.canonical import canonical_json, canonical_text
from audit.proof.keys import ID_BYTES, NAME, KeyRing, PublicKey, RowKeys, Signer
from audit.proof.record import SIGNED_FROM, HashedRow, bytes_of

SIGNATURE_BYTES = ID_BYTES + 64


def signed(row: HashedRow, log_id: object, key: Signer) -> HashedRow:
    """The row with its signature, ready to be written."""
    signature = _sign(_row_text(str(log_id), row.leaf_hash), key)
    return HashedRow(f'{row.text[:-1]},"signature":{_quoted(signature)}}}', row.leaf_hash)


def is_row_signed(
    signature: bytes | None,
    log_id: str,
    leaf_hash: bytes,
    at: datetime,
    public_keys: Sequence[PublicKey] | RowKeys,
) -> bool:
    """`at` is the row's timestamp: by it a key counts, or not yet, or no more."""
    return _is_signed(signature, _row_text(log_id, leaf_hash), at, public_keys)


def is_of_unknown_key(signature: bytes | None, public_keys: Iterable[PublicKey]) -> bool:
    """Whether it names a key that is none of these: an engine may have had a new key before its public one came here."""
    if signature is None or len(signature) != SIGNATURE_BYTES:
        return False
    return signature[:ID_BYTES] not in {key.fingerprint for key in public_keys}


def is_vouched_for(
    row: Mapping[str, Any],
    leaf: bytes,
    leaf_index: int,
    signed_from: int | None,
    public_keys: Sequence[PublicKey],
) -> bool:
    """Whether the row has a valid signature, or none and needs none at this place of its tree."""
    if row.get("signature") is None:
        return not must_be_signed(row["schema_version"], leaf_index, signed_from)
    at = datetime.fromisoformat(row["timestamp"])
    return is_row_signed(bytes_of(row["signature"]), row["log_id"], leaf, at, public_keys)


def must_be_signed(schema_version: object, leaf_index: int, signed_from: int | None) -> bool:
    """Whether a row at this place needs a signature: see `audit/__init__.py`, 8."""
    is_new = not isinstance(schema_version, int) or schema_version >= SIGNED_FROM
    return is_new or (signed_from is not None and leaf_index >= signed_from)


def sign_open(trail: Mapping[str, Any], key: Signer) -> bytes:
    """What is known of an open request, signed, so that nobody else has it closed as a request of ours."""
    return _sign(_open_text(trail), key)


def is_open_signed(
    signature: bytes | None, trail: Mapping[str, Any], public_keys: Sequence[PublicKey]
) -> bool:
    try:
        at = datetime.fromisoformat(trail["timestamp"])
        return _is_signed(signature, _open_text(trail), at, public_keys)
    except (KeyError, ValueError, TypeError):
        return False


def _row_text(log_id: str, leaf_hash: bytes) -> bytes:
    return f"affidavit row\n{log_id}\n{leaf_hash.hex()}\n".encode()


def _open_text(trail: Mapping[str, Any]) -> bytes:
    return b"affidavit open\n" + canonical_json(dict(trail)) + b"\n"


def _sign(text: bytes, key: Signer) -> bytes:
    return bytes.fromhex(key.key_id.removeprefix(f"{NAME}+")) + key.sign(text)


def _is_signed(
    signature: bytes | None, text: bytes, at: datetime, public_keys: Sequence[PublicKey] | RowKeys
) -> bool:
    if signature is None or len(signature) != SIGNATURE_BYTES:
        return False
    keys = KeyRing.of(public_keys) if isinstance(public_keys, Sequence) else public_keys
    fingerprint, rest = signature[:ID_BYTES], signature[ID_BYTES:]
    return any(key.verify(rest, text) for key in keys.row_keys(fingerprint, at))


def _quoted(signature: bytes) -> str:
    return canonical_text(f"\\x{signature.hex()}")
