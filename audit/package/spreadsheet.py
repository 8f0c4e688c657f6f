"""The records of a package as CSV, derived from their bundles in one way only, so that a verifier derives it again. Pure."""

from collections.abc import Iterable, Mapping
from hashlib import sha256

from audit.errors import FormatError
from audit.proof.bundle import Bundle, decode
from audit.proof.canonical import canonical_text_of_parsed
from audit.proof.record import PERSONAL

COLUMNS = (
    "log_id", "query_id", "timestamp", "endpoint", "client_id", "end_user", "session_id", "book_id", "outcome", "reason",
    "http_status", "success", "user_query_text", "selected_text", "answer_text", "citations", "confidence_score",
    "confidence_level", "model_used", "tokens_input", "tokens_output", "total_latency_ms", "error_type", "error_message",
    "details", "index_generation", "code_version", "schema_version",
)  # fmt: skip
_NAMES = ("month", "leaf_index", *COLUMNS, "withheld")
_CALCULATED = frozenset("=+-@\t\r")  # a spreadsheet takes a text that begins so for a formula
_QUOTED = frozenset(',"\n\r')


def heading() -> bytes:
    """The byte order mark tells spreadsheets that it is UTF-8."""
    return f"\ufeff{','.join(_NAMES)}\r\n".encode()


def line_of(bundle: Bundle, texts: Mapping[str, str] | None = None) -> bytes:
    """`texts` are the canonical texts of the row's columns, as far as they are at hand."""
    row, known = bundle.row, texts or {}
    hidden = PERSONAL if bundle.commitments is not None else frozenset()
    cells = [row["timestamp"][:7], str(bundle.leaf_index)]
    for name in COLUMNS:
        value = None if name in hidden else row.get(name)
        cells.append("" if value is None else cell(value, known.get(name)))
    cells.append(" ".join(sorted(bundle.commitments or ())))
    return (",".join(cells) + "\r\n").encode()


def digest(lines: bytes) -> bytes:
    return sha256(lines).digest()


def first_difference(found: bytes, records: Iterable[bytes]) -> int:
    """Which of these records, that are lines of bundles, is the first with another line in the spreadsheet."""
    at = 0
    for place, line in enumerate(records):
        try:
            spelled = line_of(decode(line))
        except FormatError:
            continue
        if found[at : at + len(spelled)] != spelled:
            return place
        at += len(spelled)
    return 0


def cell(value: object, spelled: str | None = None) -> str:
    """A field of CSV. What a spreadsheet would calculate begins with an apostrophe."""
    if type(value) is str:
        text = f"'{value}" if value and value[0] in _CALCULATED else value
    else:
        text = spelled or canonical_text_of_parsed(value)
    return text if _QUOTED.isdisjoint(text) else '"' + text.replace('"', '""') + '"'
