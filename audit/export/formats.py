"""Sealed rows as text for other systems. Pure.

Each carries its place, month and leaf, so that a gap or a double can be seen from outside.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from audit.proof.canonical import canonical_json
from audit.proof.record import COLUMNS, PERSONAL, Row

FORMATS = ("jsonl", "csv", "ocsf")
OCSF_VERSION = "1.8.0"
_READ, _OTHER = 2, 99
_INFORMATIONAL, _LOW = 1, 2
_SUCCESS, _FAILURE = 1, 2
_NEVER = {
    "salt",
    "signature",
    "leaf_hash",
}  # the salt protects erased values; the others are evidence, not content
_STEERS_A_SPREADSHEET = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class SealedRow:
    month: date
    leaf_index: int
    leaf_hash: bytes
    row: Row

    def content(self, *, has_personal: bool) -> Row:
        """What may leave: without the salt, and without personal columns unless they were asked for."""
        left_out = _NEVER if has_personal else _NEVER | PERSONAL
        kept = {name: value for name, value in self.row.items() if name not in left_out and value is not None}
        return {
            "month": f"{self.month:%Y-%m}",
            "leaf_index": self.leaf_index,
            "leaf_hash": self.leaf_hash.hex(),
        } | kept


@dataclass(frozen=True, slots=True)
class Form:
    """How rows are written, and whether with personal data."""

    name: str
    has_personal: bool

    def encode(self, rows: Sequence[SealedRow]) -> bytes:
        contents = (row.content(has_personal=self.has_personal) for row in rows)
        if self.name == "csv":
            return _csv([_cell(row.get(name)) for name in self._csv_names()] for row in contents)
        lines = map(_ocsf, contents) if self.name == "ocsf" else contents
        return b"".join(canonical_json(line) + b"\n" for line in lines)

    def header(self) -> bytes:
        """What a file begins with."""
        return _csv([self._csv_names()]) if self.name == "csv" else b""

    @property
    def media_type(self) -> str:
        return "text/csv; charset=utf-8" if self.name == "csv" else "application/x-ndjson"

    def _csv_names(self) -> list[str]:
        left_out = _NEVER if self.has_personal else _NEVER | PERSONAL
        return ["month", "leaf_index", "leaf_hash", *(name for name in COLUMNS if name not in left_out)]


def _csv(lines: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue().encode()


def _cell(value: object) -> str:
    """A text that a spreadsheet would take for a formula begins with an apostrophe."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_STEERS_A_SPREADSHEET) else value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def _ocsf(row: Row) -> dict[str, Any]:
    """API Activity of OCSF with its profile for AI; what OCSF has no name for is in `unmapped`."""
    is_asking = "source_mode" in row
    has_failed = row.get("success") is False and row.get("outcome") != "refused"
    activity = _READ if is_asking else _OTHER
    used = {
        "class_uid", "month", "leaf_index", "timestamp", "total_latency_ms", "endpoint", "request_id", "http_status",
        "client_id", "session_id", "model_used", "tokens_input", "tokens_output", "log_id", "error_message", "code_version",
    }  # fmt: skip
    event = {
        "category_uid": 6, "class_uid": 6003, "activity_id": activity, "type_uid": 600300 + activity,
        "severity_id": _LOW if has_failed else _INFORMATIONAL, "status_id": _FAILURE if has_failed else _SUCCESS,
        "time": _milliseconds(row["timestamp"]), "duration": row.get("total_latency_ms"), "message": row.get("error_message"),
        "api": {"operation": row.get("endpoint"), "request": {"uid": row.get("request_id")}, "response": {"code": row.get("http_status")}},
        "actor": {"app_uid": row.get("client_id"), "session": {"uid": row.get("session_id")}},
        "metadata": {
            "version": OCSF_VERSION, "profiles": ["ai_operation"], "uid": row["log_id"], "log_name": f"audit_logs {row['month']}",
            "sequence": row["leaf_index"], "product": {"name": "Affidavit", "vendor_name": "Affidavit", "version": row.get("code_version")},
        },
        "ai_model": {"name": row.get("model_used")},
        "message_context": {"prompt_tokens": row.get("tokens_input"), "completion_tokens": row.get("tokens_output")},
        "unmapped": {name: value for name, value in row.items() if name not in used},
    }  # fmt: skip
    shown: dict[str, Any] = _without_nothing(event)
    return shown


def _without_nothing(value: Any) -> Any:
    """Leaves out what is not known: OCSF has no null."""
    if not isinstance(value, dict):
        return value
    kept = {name: _without_nothing(item) for name, item in value.items()}
    return {name: item for name, item in kept.items() if item is not None and item != {}}


def _milliseconds(moment: str) -> int:
    read = datetime.fromisoformat(moment)
    return int(read.replace(tzinfo=read.tzinfo or UTC).timestamp() * 1000)
