"""Ed25519 keys and their files. The writer signs with a `SigningKey`; a verifier needs only `PublicKey`s.

Beside the file of the private key there is `<name>.pub` with every public key ever used, one a line, the newest last. So
signatures from before a rotation stay verifiable, and access to the database alone does not suffice to add a key.
"""

import base64
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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

_PRIVATE_MODE, _PUBLIC_MODE = 0o600, 0o644
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_VERIFIER_KEY = re.compile(rf"{NAME}\+[0-9a-f]{{{2 * ID_BYTES}}}\+([A-Za-z0-9+/]{{44}})")  # 33 bytes


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Checks signatures. Its text is the verifier key of C2SP's signed notes."""

    raw: bytes

    @classmethod
    def of(cls, text: str) -> "PublicKey":
        """Parse a key; `ValueError` if it is not in canonical form."""
        found = _VERIFIER_KEY.fullmatch(text)
        key = cls(base64.b64decode(found[1])[1:] if found else b"")
        if len(key.raw) != KEY_BYTES or str(key) != text:
            raise ValueError(f"Not a public key: {text!r}. One looks like {NAME}+1a2b3c4d+AQ…")
        return key

    @property
    def key_id(self) -> str:
        return f"{NAME}+{self.fingerprint.hex()}"

    @property
    def fingerprint(self) -> bytes:
        """The four bytes that identify the signing key in a note."""
        return sha256(f"{NAME}\n".encode() + ED25519 + self.raw).digest()[:ID_BYTES]

    def verify(self, signature: bytes, message: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.key_id}+{base64.b64encode(ED25519 + self.raw).decode()}"


class Signer(Protocol):
    """A private key, or anything else that signs with one."""

    @property
    def key_id(self) -> str: ...

    def sign(self, message: bytes) -> bytes: ...


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

    @property
    def key_id(self) -> str:
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)

    @classmethod
    def _written(cls, path: Path) -> "SigningKey":
        """The public key first: no signature may exist that the public file cannot explain."""
        key = cls(Ed25519PrivateKey.generate())
        public = public_file(path)
        known = read_public_keys(public) if public.exists() else []
        _put(public, "".join(f"{each}\n" for each in (*known, key.public)).encode(), _PUBLIC_MODE)
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _put(path, key._private.private_bytes(*form), _PRIVATE_MODE)
        return key


def public_file(path: Path) -> Path:
    """The file of the public keys that belongs to the file of a private key."""
    return path.with_name(f"{path.name}.pub")


def read_public_keys(path: Path) -> list[PublicKey]:
    """The keys of a file, the newest last; `KeyFileError` if there is none, because nothing could be verified."""
    try:
        keys = [PublicKey.of(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as wrong:
        raise KeyFileError(f"{path} cannot be read as a file of public keys, one a line: {wrong}") from None
    if not keys:
        raise KeyFileError(f"{path} holds no public key.")
    return keys


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
