"""Another verifier, written from the text in audit/__init__.py alone: it shares no line with audit/.

It never writes JSON. It reads canonical JSON so strictly that the text of each value in the file is its canonical text,
and hashes those pieces as they stand.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PERSONAL = {
    "user_query_text", "retrieval_query", "chunks_returned", "llm_prompt", "llm_response", "answer_text", "released_text",
    "citations", "selected_text", "filters", "filter_message", "details", "end_user", "client_address",
}  # fmt: skip

STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(?:0[0-7be-f]|1[0-9a-f]))*"')
NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?")
WORD = re.compile("true|false|null")
MONTHS = {f"{number:02}" for number in range(1, 13)}
SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

NOTE = re.compile(
    "(?P<signed>[\\x21-\\x7e]+/(?P<month>[0-9]{4}-[0-9]{2})\n(?P<size>[1-9][0-9]*)\n(?P<root>[^\n]+)\ntime (?P<time>[^\n]+)\n"
    "(?:previous (?P<pmonth>[0-9]{4}-[0-9]{2}) [1-9][0-9]* (?P<proot>[^\n]+)\n)?(?:signed (?P<from>0|[1-9][0-9]*)\n)?"
    "(?P<breaks>(?:break [^\n]+\n)*))\n\u2014 affidavit (?P<signature>[^\n]+)\n"
)
BREAK = re.compile("break (?P<kept>0|[1-9][0-9]*) (?P<lost>[1-9][0-9]*) [0-9a-f]{64}")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class BadError(Exception):
    pass


class Value(NamedTuple):
    """A value and the very text that it was read from; an object's members are Values again."""

    is_: Any
    text: str


def verdict(content: bytes, keys: list[str]) -> str:
    known = dict(map(read_key, keys))
    if (found := receipt(content)) is not None:
        return "UNSEALED" if is_genuine(found, known) else "TAMPERED"
    try:
        return bundle(content, known)
    except (BadError, RecursionError):
        return "TAMPERED"


def bundle(content: bytes, keys: dict[str, bytes]) -> str:
    text = utf8(content)
    if text[-1:] != "\n":
        raise BadError
    body = canonical(text[:-1])
    if not isinstance(body.is_, dict):
        raise BadError
    members: dict[str, Value] = body.is_
    erased = "commitments" in members
    if set(members) != {"format", "row", "leaf_index", "proof", "checkpoint"} | (
        {"commitments"} if erased else set()
    ):
        raise BadError
    if members["format"].is_ != "affidavit proof 1" or not isinstance(members["row"].is_, dict):
        raise BadError
    row: dict[str, Value] = members["row"].is_
    if not {"log_id", "query_id", "timestamp", "schema_version"} <= set(row):
        raise BadError
    if row["schema_version"].text not in {"2", "3", "4"}:
        return "CANNOT_TELL"
    check_row(row, erased)
    leaf = leaf_of(row, members["commitments"] if erased else None)
    month, size, root, signed_from = checkpoint(members["checkpoint"].is_, keys)
    index = members["leaf_index"]
    if not re.fullmatch("0|[1-9][0-9]*", index.text) or int(index.text) >= size:
        raise BadError
    if month != row["timestamp"].is_[:7]:
        raise BadError
    if not isinstance(members["proof"].is_, list):
        raise BadError
    beside = [digest(item.is_) for item in members["proof"].is_]
    if climbed(leaf, int(index.text), size, beside) != root:
        raise BadError
    needs_signature = row["schema_version"].text == "4" or int(index.text) >= signed_from
    if "signature" in row:
        check_signature(row["signature"].is_, row["log_id"].is_, leaf, keys)
    elif needs_signature:
        raise BadError
    return "ERASED" if erased else "VALID"


def check_signature(written: Any, log_id: str, leaf: bytes, keys: dict[str, bytes]) -> None:
    if not isinstance(written, str) or not re.fullmatch(r"\\x[0-9a-f]{136}", written):
        raise BadError
    whole = bytes.fromhex(written[2:])
    public = keys.get(f"affidavit+{whole[:4].hex()}")
    message = f"affidavit row\n{log_id}\n{leaf.hex()}\n".encode()
    if public is None or not is_signed(public, whole[4:], message):
        raise BadError


def check_row(row: dict[str, Value], erased: bool) -> None:
    for name, value in row.items():
        if not re.fullmatch("[a-z][a-z0-9_]*", name) or value.is_ is None:
            raise BadError
        if name in {"spooled", "leaf_hash", "erased_at"} or (erased and name in {"salt", *PERSONAL}):
            raise BadError
    for name in ("log_id", "query_id"):
        if not isinstance(row[name].is_, str) or not ID.fullmatch(row[name].is_):
            raise BadError
    if not isinstance(row["timestamp"].is_, str) or not TIME.fullmatch(row["timestamp"].is_):
        raise BadError
    if not erased:
        salt = row["salt"].is_ if "salt" in row else None
        if not isinstance(salt, str) or not re.fullmatch(r"\\x[0-9a-f]{64}", salt):
            raise BadError


def leaf_of(row: dict[str, Value], commitments: Value | None) -> bytes:
    kept = {"salt", "signature"}
    texts = {name: value.text for name, value in row.items() if name not in PERSONAL | kept}
    if commitments is not None:
        if not isinstance(commitments.is_, dict) or not commitments.is_:
            raise BadError
        for name, value in commitments.is_.items():
            if name not in PERSONAL:
                raise BadError
            texts[name] = f'"{digest(value.is_).hex()}"'
    else:
        salt = bytes.fromhex(row["salt"].is_[2:])
        for name in set(row) & set(PERSONAL):
            inside = salt + name.encode() + b"\0" + row[name].text.encode()
            texts[name] = f'"{hashlib.sha256(inside).hexdigest()}"'
    whole = ",".join(f'"{name}":{texts[name]}' for name in sorted(texts))
    return hashlib.sha256(b"\0{" + whole.encode() + b"}").digest()


def climbed(leaf: bytes, index: int, size: int, beside: list[bytes]) -> bytes:
    """The root, by the definition: into the half that holds the leaf, and one hash of the proof for the other half."""
    if size == 1:
        if beside:
            raise BadError
        return leaf
    if not beside:
        raise BadError
    half = 1
    while half * 2 < size:
        half *= 2
    if index < half:
        left, right = climbed(leaf, index, half, beside[:-1]), beside[-1]
    else:
        left, right = beside[-1], climbed(leaf, index - half, size - half, beside[:-1])
    return hashlib.sha256(b"\x01" + left + right).digest()


def checkpoint(note: Any, keys: dict[str, bytes]) -> tuple[str, int, bytes, float]:
    found = NOTE.fullmatch(note) if isinstance(note, str) else None
    if found is None or not is_time(found["time"]) or not is_month(found["month"]):
        raise BadError
    if found["pmonth"] and (
        not is_month(found["pmonth"]) or found["pmonth"] >= found["month"] or not bytes64(found["proot"], 32)
    ):
        raise BadError
    for line in found["breaks"].splitlines():
        broken = BREAK.fullmatch(line)
        if broken is None or int(broken["kept"]) >= int(broken["lost"]):
            raise BadError
    signature = bytes64(found["signature"], 68)
    public = keys.get(f"affidavit+{signature[:4].hex()}")
    if public is None or not is_signed(public, signature[4:], found["signed"].encode()):
        raise BadError
    size = int(found["size"])
    signed_from = float("inf") if found["from"] is None else int(found["from"])
    if found["from"] is not None and signed_from > size:
        raise BadError
    return found["month"], size, bytes64(found["root"], 32), signed_from


def receipt(content: bytes) -> dict[str, Any] | None:
    import json

    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if isinstance(body, dict):
        body = body.get("receipt", body)
    names = {"log_id", "leaf_hash", "issued_at", "key_id", "signature"}
    return body if isinstance(body, dict) and set(body) == names else None


def is_genuine(receipt: dict[str, Any], keys: dict[str, bytes]) -> bool:
    try:
        moment = datetime.fromisoformat(receipt["issued_at"]).astimezone(timezone.utc)  # noqa: UP017
        signature = base64.b64decode(receipt["signature"], validate=True)
        written = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        signed = f"affidavit receipt\n{receipt['log_id']}\n{receipt['leaf_hash']}\n{written}\n"
        return is_signed(keys[receipt["key_id"]], signature, signed.encode())
    except (KeyError, TypeError, ValueError):
        return False


def read_key(line: str) -> tuple[str, bytes]:
    name, number, coded = line.split("+", 2)
    raw = base64.b64decode(coded)
    assert name == "affidavit" and raw[:1] == b"\x01" and len(raw) == 33
    assert hashlib.sha256(b"affidavit\n" + raw).hexdigest()[:8] == number
    return f"{name}+{number}", raw[1:]


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def is_time(text: str) -> bool:
    try:
        return bool(TIME.fullmatch(text)) and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def is_month(text: str) -> bool:
    return text[:4] != "0000" and text[5:] in MONTHS


def bytes64(text: str, length: int) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise BadError from None
    if len(found) != length or base64.b64encode(found).decode() != text:
        raise BadError
    return found


def digest(value: Any) -> bytes:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise BadError
    return bytes.fromhex(value)


def utf8(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise BadError from None


def canonical(text: str) -> Value:
    value, end = read(text, 0)
    if end != len(text):
        raise BadError
    return value


def read(text: str, at: int) -> tuple[Value, int]:
    first = text[at : at + 1]
    readers: dict[str, Callable[[str, int], tuple[Value, int]]] = {
        "{": read_object,
        "[": read_list,
        '"': read_string,
    }
    return readers.get(first, read_plain)(text, at)


def read_object(text: str, at: int) -> tuple[Value, int]:
    members: dict[str, Value] = {}
    begin, last, at = at, None, at + 1
    while text[at : at + 1] != "}":
        if members:
            at = expect(text, at, ",")
        key, at = read_string(text, at)
        order = key.is_.encode("utf-16-be")
        if last is not None and order <= last:
            raise BadError
        last = order
        members[key.is_], at = read(text, expect(text, at, ":"))
    return Value(members, text[begin : at + 1]), at + 1


def read_list(text: str, at: int) -> tuple[Value, int]:
    items: list[Value] = []
    begin, at = at, at + 1
    while text[at : at + 1] != "]":
        item, at = read(text, expect(text, at, ",") if items else at)
        items.append(item)
    return Value(items, text[begin : at + 1]), at + 1


def read_string(text: str, at: int) -> tuple[Value, int]:
    found = STRING.match(text, at)
    if not found:
        raise BadError
    inside = re.sub(
        r"\\(u00(..)|.)",
        lambda one: chr(int(one[2], 16)) if one[2] else SHORT.get(one[1], one[1]),
        found[0][1:-1],
        flags=re.DOTALL,
    )
    return Value(inside, found[0]), found.end()


def read_plain(text: str, at: int) -> tuple[Value, int]:
    if found := WORD.match(text, at):
        return Value({"true": True, "false": False, "null": None}[found[0]], found[0]), found.end()
    found = NUMBER.match(text, at)
    if not found or javascript(float(found[0])) != found[0]:
        raise BadError
    return Value(float(found[0]), found[0]), found.end()


def javascript(number: float) -> str:
    """Number.prototype.toString of ECMAScript, by trying one digit more until the number is met."""
    if number == 0:
        return "0"
    if number in {float("inf"), float("-inf")}:
        raise BadError
    for precision in range(17):
        mantissa, exponent = f"{abs(number):.{precision}e}".split("e")
        if float(f"{mantissa}e{exponent}") == abs(number):
            break
    digits = mantissa.replace(".", "").rstrip("0")
    point = int(exponent) + 1  # so many digits stand before the point
    if point > 21 or point < -5:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        body = f"{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    elif point <= 0:
        body = f"0.{'0' * -point}{digits}"
    elif point >= len(digits):
        body = digits + "0" * (point - len(digits))
    else:
        body = f"{digits[:point]}.{digits[point:]}"
    return f"-{body}" if number < 0 else body


def expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise BadError
    return at + 1
