"""Ed25519 keys and their files. The writer signs with a `SigningKey`; a verifier needs only `PublicKey`s.

Beside the file of the private key there is `<name>.pub` with every public key ever used, one a line, the newest last. So
signatures from before a rotation stay verifiable, and access to the database alone does not suffice to add a key. A line
may say that its key was revoked, or that another one delegated it for some hours: a `KeyRing` knows which count when.
"""

import base64
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.errors import KeyExistsError, KeyFileError

NAME = "affidavit"
ED25519 = b"\x01"  # the algorithm's number in C2SP's signed notes
KEY_BYTES = 32
ID_BYTES = 4
SIGNED_BYTES_MAX = 4_096  # AWS KMS signs no longer message

_PRIVATE_MODE, _PUBLIC_MODE = 0o600, 0o644
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_MOMENT = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z"
_ID = rf"{NAME}\+[0-9a-f]{{{2 * ID_BYTES}}}"
_LINE = re.compile(
    rf"(?P<key>{_ID}\+(?P<coded>[A-Za-z0-9+/]{{44}}))"  # 33 bytes
    rf"(?: revoked (?P<revoked>{_MOMENT})"
    rf"| delegated (?P<begin>{_MOMENT}) (?P<until>{_MOMENT}) (?P<parent>{_ID}) (?P<signature>[A-Za-z0-9+/]{{86}}==))?"
)


@dataclass(frozen=True, slots=True)
class Delegation:
    """That another key lets this one sign rows and receipts of a time. Nobody believes it but by the other's signature."""

    begin: datetime
    until: datetime
    parent: str  # the other's id
    signature: bytes


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Checks signatures. Its text is the verifier key of C2SP's signed notes; its line also says when it counts."""

    raw: bytes
    revoked_at: datetime | None = None
    delegation: Delegation | None = None

    @classmethod
    def of(cls, line: str) -> "PublicKey":
        """Parse a line of a file of keys; `ValueError` if it is not in canonical form."""
        found = _LINE.fullmatch(line)
        try:
            key = _parsed_line(found) if found else cls(b"")
        except ValueError:
            key = cls(b"")
        if len(key.raw) != KEY_BYTES or key.line != line:
            raise ValueError(f"Not a public key: {line!r}. One looks like {NAME}+1a2b3c4d+AQ…")
        return key

    @property
    def line(self) -> str:
        if self.revoked_at:
            return f"{self} revoked {time_text(self.revoked_at)}"
        if given := self.delegation:
            signature = base64.b64encode(given.signature).decode()
            return f"{self} delegated {time_text(given.begin)} {time_text(given.until)} {given.parent} {signature}"
        return str(self)

    @property
    def name(self) -> str:
        """As its signature lines have it."""
        return NAME

    @property
    def key_id(self) -> str:
        return f"{NAME}+{self.fingerprint.hex()}"

    @property
    def fingerprint(self) -> bytes:
        """The four bytes that identify the signing key in a note."""
        return sha256(f"{NAME}\n".encode() + ED25519 + self.raw).digest()[:ID_BYTES]

    def verify(self, signature: bytes, message: bytes) -> bool:
        """A long message may be signed by its digest: some keys elsewhere take no longer ones."""
        if self._is_signed(signature, message):
            return True
        return len(message) > SIGNED_BYTES_MAX and self._is_signed(signature, digest_text(message))

    def _is_signed(self, signature: bytes, message: bytes) -> bool:
        try:
            _loaded(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.key_id}+{base64.b64encode(ED25519 + self.raw).decode()}"


@lru_cache(64)  # loading takes a third of a verification
def _loaded(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)


class Verifier(Protocol):
    """A public key, or anything else that checks its signatures."""

    @property
    def fingerprint(self) -> bytes: ...

    def verify(self, signature: bytes, message: bytes) -> bool: ...


class RowKeys(Protocol):
    """Finds the keys that may have signed a row or a receipt."""

    def row_keys(self, fingerprint: bytes, at: datetime) -> Iterable[Verifier]: ...


class Signer(Protocol):
    """A private key, or anything else that signs with one."""

    @property
    def key_id(self) -> str: ...

    def sign(self, message: bytes) -> bytes: ...


class HeadSigner(Signer, Protocol):
    """Signs heads, breaks and manifests. It may be far away: never ask it while a request waits."""

    @property
    def public(self) -> PublicKey: ...


class RowSigner(Protocol):
    """Signs rows, open records, receipts and erasures: each with the key that counts at its time."""

    def at(self, moment: datetime) -> Signer:
        """`NoSigningKeyError` if no key counts then."""
        ...

    def cover(self, begin: datetime, until: datetime) -> None:
        """Gets a key for these times if there is none. May take seconds; `NoSigningKeyError` if none is to be had."""
        ...


class KeyRing(list[PublicKey]):
    """Public keys, and which of them count when. It is not changed once it is made, so it finds keys by an index.

    Pinned keys count for everything until they are revoked. A delegated key counts for rows, receipts and erasures of its
    time, if a pinned key signed its delegation: for no head, and not for delegating further.
    """

    @classmethod
    def of(cls, keys: Iterable[PublicKey]) -> "KeyRing":
        return keys if isinstance(keys, cls) else cls(keys)

    @property
    def pinned(self) -> list[PublicKey]:
        return list(self._pinned.values())

    def head_keys(self, at: datetime) -> list[PublicKey]:
        return [key for key in self._pinned.values() if not self._is_revoked(key, at)]

    def row_keys(self, fingerprint: bytes, at: datetime) -> list[PublicKey]:
        return [key for key in self._by_fingerprint.get(fingerprint, ()) if self.is_row_key(key, at)]

    def named(self, key_id: object, at: datetime) -> list[PublicKey]:
        """The keys with this id that count for a receipt or an erasure of that time."""
        return [key for key in self.row_keys(fingerprint_of(key_id), at) if key.key_id == key_id]

    def is_row_key(self, key: PublicKey, at: datetime) -> bool:
        if self._is_revoked(key, at):
            return False
        given = key.delegation
        return (
            key.raw in self._pinned
            if given is None
            else given.begin <= at < given.until and self._is_given(key, at)
        )

    def with_delegations(self, lines: Iterable[str]) -> "KeyRing":
        """And the delegations among these lines, from wherever they come. They pin, unpin and revoke nothing."""
        known, pinned = set(self), self._pinned
        read = (key for key in map(_delegated, lines) if key and key not in known)
        found = dict.fromkeys(key for key in read if key.raw not in pinned)
        return KeyRing([*self, *found]) if found else self

    def narrowed(self, fingerprints: Iterable[bytes]) -> "KeyRing":
        """Without the delegated keys but these: a log has thousands, and a process that helps needs few."""
        wanted = set(fingerprints)
        kept = [key for key in self._not_delegated if key.raw in self._pinned or key.fingerprint in wanted]
        found = (
            key for each in sorted(wanted) for key in self._by_fingerprint.get(each, ()) if key.delegation
        )
        return KeyRing([*kept, *found])

    def why_not(self, key_id: str, at: datetime) -> str:
        """Why a key with this id signed no head at that time, as far as it is known."""
        key = next((key for key in self if key.key_id == key_id), None)
        if key is None:
            return f"The signing key {key_id} is not among the given ones"
        if key.raw not in self._pinned:
            return f"The key {key_id} was only delegated: it must not sign this"
        return f"The key {key_id} was revoked at {time_text(self._revoked[key.raw])}, before the time {time_text(at)}"

    @cached_property
    def _revoked(self) -> dict[bytes, datetime]:
        found: dict[bytes, datetime] = {}
        for key in self:
            if key.revoked_at:
                found[key.raw] = min(key.revoked_at, found.get(key.raw, key.revoked_at))
        return found

    @cached_property
    def _pinned(self) -> dict[bytes, PublicKey]:
        """A line that revokes a delegated key does not pin it."""
        delegated = {key.raw for key in self if key.delegation}
        return {
            key.raw: key for key in self
            if key.delegation is None and not (key.revoked_at and key.raw in delegated)
        }  # fmt: skip

    @cached_property
    def _not_delegated(self) -> list[PublicKey]:
        return [key for key in self if key.delegation is None]

    @cached_property
    def _by_fingerprint(self) -> dict[bytes, list[PublicKey]]:
        found: dict[bytes, list[PublicKey]] = {}
        for key in self:
            found.setdefault(key.fingerprint, []).append(key)
        return found

    @cached_property
    def _parents(self) -> dict[PublicKey, list[PublicKey]]:
        """The pinned keys that signed a delegation, once it was checked."""
        return {}

    def _is_given(self, key: PublicKey, at: datetime) -> bool:
        if key not in self._parents:
            self._parents[key] = [parent for parent in self._pinned.values() if is_delegated_by(key, parent)]
        return any(not self._is_revoked(parent, at) for parent in self._parents[key])

    def _is_revoked(self, key: PublicKey, at: datetime) -> bool:
        revoked_at = self._revoked.get(key.raw)
        return revoked_at is not None and at >= revoked_at


def fingerprint_of(key_id: object) -> bytes:
    """Empty for what is no key id."""
    try:
        return bytes.fromhex(str(key_id).removeprefix(f"{NAME}+"))
    except ValueError:
        return b""


def is_delegated_by(key: PublicKey, parent: PublicKey) -> bool:
    given = key.delegation
    if given is None or given.parent != parent.key_id:
        return False
    return parent.verify(given.signature, delegation_text(key, given.begin, given.until))


def delegate(key: PublicKey, begin: datetime, until: datetime, parent: Signer) -> PublicKey:
    """The key with a delegation that its line carries."""
    signature = parent.sign(delegation_text(key, begin, until))
    return PublicKey(key.raw, delegation=Delegation(begin, until, parent.key_id, signature))


def delegation_text(key: PublicKey, begin: datetime, until: datetime) -> bytes:
    """The bytes that a delegation's signature covers."""
    return f"affidavit delegation\n{key}\n{time_text(begin)}\n{time_text(until)}\n".encode()


def digest_text(message: bytes) -> bytes:
    """What a key elsewhere signs in place of a long message."""
    return f"affidavit digest\n{sha256(message).hexdigest()}\n".encode()


def time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime(_TIME).rjust(27, "0")  # years below 1000 lack their zeros


def _delegated(line: str) -> PublicKey | None:
    try:
        key = PublicKey.of(line)
    except ValueError:
        return None
    return key if key.delegation else None


def _parsed_line(found: re.Match[str]) -> PublicKey:
    raw = base64.b64decode(found["coded"])[1:]
    if found["revoked"]:
        return PublicKey(raw, revoked_at=datetime.fromisoformat(found["revoked"]))
    if not found["begin"]:
        return PublicKey(raw)
    begin, until = datetime.fromisoformat(found["begin"]), datetime.fromisoformat(found["until"])
    if begin >= until:
        raise ValueError("A delegation that ends before it begins")
    return PublicKey(
        raw, delegation=Delegation(begin, until, found["parent"], base64.b64decode(found["signature"]))
    )


class SigningKey:
    """The private key. Its bytes leave neither this object nor its file."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = PublicKey(private.public_key().public_bytes_raw())

    @classmethod
    def create(cls, path: Path) -> "SigningKey":
        """A new key in a new file; `KeyExistsError` if there is one."""
        with _alone(path):
            if path.exists():
                message = f"{path} already holds a key. To replace it, run `affidavit audit key --new`."
                raise KeyExistsError(message)
            return cls._written(path)

    @classmethod
    def rotate(cls, path: Path) -> "SigningKey":
        """A new key in place of the old one. Existing signatures stay verifiable."""
        with _alone(path):
            return cls._written(path)

    @classmethod
    def load(cls, path: Path) -> "SigningKey":
        try:
            with path.open("rb") as file:
                mode, text = os.fstat(file.fileno()).st_mode, file.read()
        except OSError as wrong:
            raise KeyFileError(f"The signing key cannot be read: {wrong}") from None
        if mode & _OF_OTHERS:
            raise KeyFileError(
                f"{path} can be read by others than its owner, who could have copied the key. Run"
                " `affidavit audit key --new` to replace it, or `chmod 600` if you are sure that it was not copied."
            )
        return cls(_parsed(path, text))

    @classmethod
    def ensured(cls, path: Path) -> "SigningKey":
        """The key of this file, made at its first use. Two processes that make it at the same time get the same key."""
        if not path.exists():
            with suppress(KeyExistsError):
                cls.create(path)
        return cls.load(path)

    @classmethod
    def in_memory(cls) -> "SigningKey":
        """A new key that ends with its process."""
        return cls(Ed25519PrivateKey.generate())

    @property
    def key_id(self) -> str:
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)

    def at(self, _: datetime) -> "SigningKey":
        """A key of a file signs rows of all times."""
        return self

    def cover(self, begin: datetime, until: datetime) -> None:
        """It needs no delegation."""

    @classmethod
    def _written(cls, path: Path) -> "SigningKey":
        """The public key first: no signature may exist that the public file cannot explain."""
        key = cls(Ed25519PrivateKey.generate())
        _put_lines(public_file(path), [*_known(public_file(path)), key.public])
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _put(path, key._private.private_bytes(*form), _PRIVATE_MODE)
        return key


def public_file(path: Path) -> Path:
    """The file of the public keys that belongs to the file of a private key."""
    return path.with_name(f"{path.name}.pub")


def add_public_key(path: Path, key: PublicKey) -> None:
    """Append a line to the public file of this private key's file, durably, unless it is there."""
    with _alone(path):
        if key not in (known := _known(public_file(path))):
            _put_lines(public_file(path), [*known, key])


def revoke(path: Path, key_id: str, at: datetime) -> PublicKey:
    """Say in the public file that a key does not count from this time on. A delegated key keeps its delegation's line."""
    with _alone(path):
        known = read_public_keys(public_file(path))
        found = [key for key in known if key.key_id == key_id]
        if not found:
            raise KeyFileError(f"{public_file(path)} does not list {key_id}.")
        if any(key.revoked_at and key.revoked_at <= at for key in found):
            raise KeyFileError(f"{key_id} is revoked already, from that time or an earlier one.")
        revoked = PublicKey(found[0].raw, revoked_at=at)
        kept = [key for key in known if key.key_id != key_id or key.delegation]
        place = known.index(found[0]) + (found[0].delegation is not None)
        _put_lines(public_file(path), [*kept[:place], revoked, *kept[place:]])
    return revoked


def read_public_keys(path: Path) -> KeyRing:
    """The keys of a file, the newest last; `KeyFileError` if there is none, because nothing could be verified."""
    try:
        keys = KeyRing(PublicKey.of(line) for line in path.read_text("utf-8").splitlines())
    except (OSError, ValueError) as wrong:
        raise KeyFileError(f"{path} cannot be read as a file of public keys, one a line: {wrong}") from None
    if not keys:
        raise KeyFileError(f"{path} holds no public key.")
    return keys


def _known(path: Path) -> Sequence[PublicKey]:
    return read_public_keys(path) if path.exists() else ()


def _put_lines(path: Path, keys: Iterable[PublicKey]) -> None:
    _put(path, "".join(f"{key.line}\n" for key in keys).encode(), _PUBLIC_MODE)


def _parsed(path: Path, text: bytes) -> Ed25519PrivateKey:
    try:
        private = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError):
        private = None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyFileError(f"{path} does not hold an Ed25519 private key in PEM. Restore it from its backup.")
    return private


def _put(path: Path, content: bytes, mode: int) -> None:
    """Atomic write: all of it or nothing, also in a power cut."""
    draft = path.with_name(f".{path.name}.{uuid4().hex}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:  # noqa: PTH123  a descriptor has no path
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """A file lock: one process at a time makes keys here."""
    import fcntl  # noqa: PLC0415  not on Windows, where proofs can be checked all the same

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
