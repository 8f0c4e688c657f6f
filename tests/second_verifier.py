"""Another verifier, written from the text in audit/__init__.py alone: it shares no line with audit/.

It never writes JSON. It reads canonical JSON so strictly that the text of each value in the file is its canonical text,
and hashes those pieces as they stand.
"""

import base64
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
    "(?P<breaks>(?:break [^\n]+\n)*))\n(?P<signatures>(?:\u2014 [^\\s+]+ [^\\s]+\n){1,100})"
)
PROOF = re.compile(
    r"c2sp\.org/tlog-proof@v1\n(?:extra (?P<extra>[^\s]+)\n)?index (?P<index>0|[1-9][0-9]*)\n(?P<hashes>(?:[^\s]+\n)*)\n"
    "(?P<signed>(?P<origin>[\x21-\x7e]+)\n(?P<size>[1-9][0-9]*)\n(?P<root>[^\n]+)\n)\n"
    "(?P<signatures>(?:\u2014 [^\\s+]+ [^\\s]+\n){1,100})"
)
BREAK = re.compile("break (?P<kept>0|[1-9][0-9]*) (?P<lost>[1-9][0-9]*) [0-9a-f]{64}")
KEY_LINE = re.compile(
    "(?P<key>affidavit\\+[0-9a-f]{8}\\+[A-Za-z0-9+/]{44})(?: (?:revoked (?P<revoked>[^ ]+)|"
    "delegated (?P<begin>[^ ]+) (?P<until>[^ ]+) (?P<parent>affidavit\\+[0-9a-f]{8}) (?P<by>[^ ]+)))?"
)
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class BadError(Exception):
    pass


class Value(NamedTuple):
    """A value and the very text that it was read from; an object's members are Values again."""

    is_: Any
    text: str


class Key(NamedTuple):
    """A line of a file of keys; times as text, which compares as they do."""

    name: str
    public: bytes
    text: str
    revoked: str | None = None
    begin: str | None = None
    until: str = ""
    parent: str = ""
    by: bytes = b""


Keys = list[Key]


def verdict(content: bytes, keys: list[str]) -> str:
    try:
        known = list(map(read_key, keys))
    except BadError:
        return "CANNOT_TELL"
    if (found := receipt(content)) is not None:
        return "UNSEALED" if is_genuine(found, known) else "TAMPERED"
    try:
        return bundle(content, known)
    except (BadError, RecursionError):
        return "TAMPERED"


def bundle(content: bytes, keys: Keys) -> str:
    text = utf8(content)
    if text[-1:] != "\n":
        raise BadError
    body = canonical(text[:-1])
    if not isinstance(body.is_, dict):
        raise BadError
    members: dict[str, Value] = body.is_
    erased = "commitments" in members
    check_members(members)
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
    at = row["timestamp"].is_
    if "delegation" in members:
        keys = [*keys, delegation(members["delegation"].is_, row, at, keys)]
    if "signature" in row:
        check_signature(row["signature"].is_, row["log_id"].is_, leaf, signers(keys, at))
    elif needs_signature:
        raise BadError
    return "ERASED" if erased else "VALID"


def heads(content: bytes, keys: list[str], witnesses: list[str], entry: bytes | None = None) -> str:
    """A proof that a month's head is in the log of heads, cosigned by each of these witnesses."""
    known = list(map(read_key, keys))
    try:
        return heads_of(utf8(content), known, witnesses, entry)
    except BadError:
        return "TAMPERED"


def heads_of(text: str, keys: Keys, witnesses: list[str], entry: bytes | None) -> str:
    found = PROOF.fullmatch(text)
    if found is None:
        raise BadError
    entry = entry if entry is not None else bytes64(found["extra"] or "", None)
    month, *_ = checkpoint(utf8(entry), keys)
    if utf8(entry).partition("\n")[0] != f"{found['origin']}/{month}":
        raise BadError
    index, size, root = int(found["index"]), int(found["size"]), bytes64(found["root"], 32)
    path = [bytes64(line, 32) for line in found["hashes"].splitlines()]
    if index >= size or climbed(hashlib.sha256(b"\x00" + entry).digest(), index, size, path) != root:
        raise BadError
    signed, origin = found["signed"].encode(), found["origin"]
    logs = {(origin, ident(origin, b"\x01" + key.public)): key.public for key in pinned(keys)}
    if not note_signers(found["signatures"], signed, logs):
        raise BadError
    wanted = dict(map(read_witness, witnesses))
    return "VALID" if len(note_signers(found["signatures"], signed, wanted)) == len(wanted) else "CANNOT_TELL"


def note_signers(lines: str, signed: bytes, keys: dict[tuple[str, bytes], bytes]) -> set[tuple[str, bytes]]:
    """Which of these keys signed; every line of one of them must be valid."""
    found = set()
    for line in lines.splitlines():
        _, name, coded = line.split(" ")
        content = bytes64(coded, None)
        who = (name, content[:4])
        if who not in keys:
            continue
        message, signature = signed, content[4:]
        if len(signature) == 72:
            message = b"cosignature/v1\ntime %d\n" % int.from_bytes(signature[:8]) + signed
            signature = signature[8:]
        if not is_signed(keys[who], signature, message):
            raise BadError
        found.add(who)
    return found


def read_witness(line: str) -> tuple[tuple[str, bytes], bytes]:
    name, number, coded = line.split("+", 2)
    content = bytes64(coded, 33)
    if content[:1] != b"\x04" or ident(name, content).hex() != number:
        raise BadError
    return (name, ident(name, content)), content[1:]


def ident(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\n" + content).digest()[:4]


def check_members(members: dict[str, Value]) -> None:
    optional = {"commitments", "delegation"} & set(members)
    if set(members) - optional != {"format", "row", "leaf_index", "proof", "checkpoint"}:
        raise BadError
    if members["format"].is_ != "affidavit proof 1" or not isinstance(members["row"].is_, dict):
        raise BadError


def delegation(line: Any, row: dict[str, Value], at: str, keys: Keys) -> Key:
    """Of the row's key, by a given one, for the row's time."""
    if not isinstance(line, str) or "signature" not in row:
        raise BadError
    key = read_key(line)
    if key.begin is None or not str(row["signature"].is_).startswith(f"\\x{key.name[-8:]}"):
        raise BadError
    if key not in signers([*keys, key], at):
        raise BadError
    return key


def pinned(keys: Keys) -> Keys:
    """A line that revokes a key which is also delegated does not pin it."""
    delegated = {key.public for key in keys if key.begin is not None}
    return [key for key in keys if key.begin is None and (key.revoked is None or key.public not in delegated)]


def in_time(keys: Keys, some: Keys, at: str) -> Keys:
    ends = [(key.public, key.revoked) for key in keys if key.revoked is not None]
    return [key for key in some if not any(public == key.public and at >= end for public, end in ends)]


def signers(keys: Keys, at: str) -> Keys:
    """Those whose rows and receipts of that time count."""
    roots = in_time(keys, pinned(keys), at)
    return roots + [
        key for key in in_time(keys, keys, at)
        if key.begin is not None and key.begin <= at < key.until and any(is_delegated(key, root) for root in roots)
    ]  # fmt: skip


def is_delegated(key: Key, root: Key) -> bool:
    message = f"affidavit delegation\n{key.text}\n{key.begin}\n{key.until}\n".encode()
    return root.name == key.parent and is_signed(root.public, key.by, message)


def check_signature(written: Any, log_id: str, leaf: bytes, keys: Keys) -> None:
    if not isinstance(written, str) or not re.fullmatch(r"\\x[0-9a-f]{136}", written):
        raise BadError
    whole = bytes.fromhex(written[2:])
    message = f"affidavit row\n{log_id}\n{leaf.hex()}\n".encode()
    if not any(
        key.name == f"affidavit+{whole[:4].hex()}" and is_signed(key.public, whole[4:], message)
        for key in keys
    ):
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
    if not isinstance(row["timestamp"].is_, str) or not is_time(row["timestamp"].is_):
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


def checkpoint(note: Any, keys: Keys) -> tuple[str, int, bytes, float]:
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
    check_signers(found["signatures"], found["signed"].encode(), in_time(keys, pinned(keys), found["time"]))
    size = int(found["size"])
    signed_from = float("inf") if found["from"] is None else int(found["from"])
    if found["from"] is not None and signed_from > size:
        raise BadError
    return found["month"], size, bytes64(found["root"], 32), signed_from


def check_signers(lines: str, signed: bytes, keys: Keys) -> None:
    """At least one given key signed it, and no given key's signature is wrong."""
    is_known = False
    for line in lines.splitlines():
        _, name, coded = line.split(" ")
        whole = bytes64(coded, None)
        publics = [key.public for key in keys if key.name == f"{name}+{whole[:4].hex()}"]
        if len(whole) <= 4 or not all(is_signed(public, whole[4:], signed) for public in publics):
            raise BadError
        is_known |= bool(publics)
    if not is_known:
        raise BadError


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


def is_genuine(receipt: dict[str, Any], keys: Keys) -> bool:
    try:
        moment = datetime.fromisoformat(receipt["issued_at"]).astimezone(timezone.utc)  # noqa: UP017
        signature = base64.b64decode(receipt["signature"], validate=True)
        written = moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        signed = f"affidavit receipt\n{receipt['log_id']}\n{receipt['leaf_hash']}\n{written}\n"
        known = [key for key in signers(keys, written) if key.name == receipt["key_id"]]
        return any(is_signed(key.public, signature, signed.encode()) for key in known)
    except (KeyError, TypeError, ValueError):
        return False


def read_key(line: str) -> Key:
    found = KEY_LINE.fullmatch(line)
    if found is None:
        raise BadError
    name, number, coded = found["key"].split("+", 2)
    raw = bytes64(coded, 33)
    if raw[:1] != b"\x01" or hashlib.sha256(b"affidavit\n" + raw).hexdigest()[:8] != number:
        raise BadError
    times = [found[part] for part in ("revoked", "begin", "until") if found[part] is not None]
    if not all(map(is_time, times)) or times != sorted(set(times)):
        raise BadError
    by = bytes64(found["by"], 64) if found["by"] else b""
    rest = (found["revoked"], found["begin"], found["until"] or "", found["parent"] or "", by)
    return Key(f"{name}+{number}", raw[1:], found["key"], *rest)


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        if len(message) <= 4096:
            return False
        short = f"affidavit digest\n{hashlib.sha256(message).hexdigest()}\n"
        return is_signed(public, signature, short.encode())
    return True


def is_time(text: str) -> bool:
    try:
        return bool(TIME.fullmatch(text)) and bool(datetime.fromisoformat(text))
    except ValueError:
        return False


def is_month(text: str) -> bool:
    return text[:4] != "0000" and text[5:] in MONTHS


def bytes64(text: str, length: int | None) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except ValueError:
        raise BadError from None
    if len(found) != (length or len(found)) or base64.b64encode(found).decode() != text:
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
