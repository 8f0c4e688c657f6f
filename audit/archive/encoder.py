"""Encoder of archived records: records to lines of evidence. Pure.

This is the CPU-bound part of packing, so its processes import no more than this.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from audit.archive import box
from audit.errors import ArchiveError
from audit.fast_json import ParsedRow, read_row
from audit.proof import archive_format, record
from audit.proof.bundle import are_commitments
from audit.proof.canonical import canonical_text
from audit.proof.record import SCHEMA_VERSIONS, Row

# Each with its leaf_index, sealed leaf, key, the lines of its erasures, and its row as PostgreSQL's JSON.
Records = Sequence[tuple[int, bytes, bytes | None, Sequence[str] | None, str | None]]


class EncodedRecords(NamedTuple):
    evidence: bytes
    leaves: list[bytes]
    versions: set[int]


def encode_records(records: Records) -> EncodedRecords:
    """The lines as one zstd frame, and the leaves. `ArchiveError` if a record differs from its leaf.

    Here each record is judged, and with it the very bytes that are written: the box is opened again, and the frame too. So who
    reads these bytes back, by their digest, needs to judge no record.
    """
    encoded = [_encode(*each) for each in records]
    lines = b"".join([line for line, _, _ in encoded])
    frame = box.compress(lines)
    if box.decompress_own(frame) != lines:
        raise ArchiveError("The compressed records do not give the records back")
    return EncodedRecords(frame, [leaf for _, leaf, _ in encoded], {version for _, _, version in encoded})


def _encode(
    index: int, sealed: bytes, key: bytes | None, erasures: Sequence[str] | None, text: str | None
) -> tuple[bytes, bytes, int]:
    """The record's line, leaf and schema version."""
    if text is None:
        raise ArchiveError(f"The record of leaf {index} is not in the month's table")
    try:
        parsed = read_row(text)
    except (ValueError, TypeError):
        raise ArchiveError(f"The record of leaf {index} has no canonical form") from None
    row, content = parsed.row, None
    _check_record(row)
    if row["salt"] is None:
        commitments = _stored_commitments(parsed, erasures, sealed)
    else:
        commitments, content = parsed.commitments(), _encrypt_personal(parsed, key)
    leaf = parsed.leaf(commitments)
    if leaf != sealed or row["leaf_hash"] != f"\\x{sealed.hex()}":
        raise ArchiveError(f"The record {row['log_id']} differs from what was sealed as leaf {index}")
    return _line_of(index, parsed, commitments, content), leaf, row["schema_version"]


def _line_of(index: int, parsed: ParsedRow, commitments: Mapping[str, str], content: bytes | None) -> bytes:
    erased_at, signature = parsed.row["erased_at"], parsed.row.get("signature")
    members = [
        '"commitments":' + record.joined({name: f'"{value}"' for name, value in commitments.items()}),
        f'"erased_at":{canonical_text(erased_at)}' if erased_at is not None else "",
        f'"leaf_index":{index}',
        f'"personal":"{_base64(content)}"' if content else "",
        f'"row":{parsed.plain_text}',
        f'"signature":"{_base64(record.bytes_of(signature))}"' if signature else "",
        '"spooled":true' if parsed.row["spooled"] else "",
    ]
    return ("{" + ",".join(filter(None, members)) + "}\n").encode()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _check_record(row: Row) -> None:
    log_id, version = row["log_id"], row["schema_version"]
    if version not in SCHEMA_VERSIONS:
        message = f"The record {log_id} has schema version {version}, which this program cannot hash"
        raise ArchiveError(message)
    if (row["salt"] is None) != (row["erased_at"] is not None):
        raise ArchiveError(f"The record {log_id} is neither complete nor erased")


def _stored_commitments(
    parsed: ParsedRow, erasures: Sequence[str] | None, sealed: bytes
) -> Mapping[str, str]:
    """Those of the erased record's lines that give its leaf. Forged lines are ignored."""
    stored = [each for each in map(json.loads, erasures or ()) if are_commitments(each)]
    fitting = [each for each in stored if parsed.leaf(each) == sealed]
    if not stored:
        raise ArchiveError(
            f"The record {parsed.row['log_id']} was erased, but its stored commitments are missing"
        )
    commitments: Mapping[str, str] = (fitting or stored)[0]
    return commitments


def _encrypt_personal(parsed: ParsedRow, key: bytes | None) -> bytes:
    """The box with the personal columns."""
    log_id, salt = parsed.row["log_id"], canonical_text(parsed.row["salt"])
    if key is None:
        raise ArchiveError(f"There is no key for the personal columns of the record {log_id}")
    content = record.joined({**parsed.personal, "salt": salt}).encode()
    if len(content) > archive_format.ROW_BYTES_MAX:
        raise ArchiveError(f"The record {log_id} is too large for an archive")
    encrypted = box.encrypt_box(content, key, log_id)
    if box.decrypt_box(encrypted, key, log_id) != content:
        raise ArchiveError(f"The box of the record {log_id} does not give its personal columns back")
    return encrypted
