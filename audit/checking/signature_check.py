"""Checks the signatures of many rows with libsodium, which needs half of the time that OpenSSL needs."""

from collections.abc import Sequence
from datetime import datetime

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from audit.proof.keys import KeyRing, PublicKey


class FastKeys:
    """A key ring's keys for rows, each made once."""

    def __init__(self, keys: Sequence[PublicKey]) -> None:
        self._ring = KeyRing.of(keys)
        self._made: dict[bytes, FastKey] = {}

    def row_keys(self, fingerprint: bytes, at: datetime) -> list["FastKey"]:
        return [self._fast(key) for key in self._ring.row_keys(fingerprint, at)]

    def _fast(self, key: PublicKey) -> "FastKey":
        if key.raw not in self._made:
            self._made[key.raw] = FastKey(key)
        return self._made[key.raw]


class FastKey:
    """A `Verifier`. What libsodium refuses OpenSSL decides: it also takes keys of small order, as the other verifiers do."""

    def __init__(self, key: PublicKey) -> None:
        self.fingerprint = key.fingerprint
        self._key = key
        self._fast = VerifyKey(key.raw)

    def verify(self, signature: bytes, message: bytes) -> bool:
        try:
            self._fast.verify(message, signature)
        except BadSignatureError:
            return self._key.verify(signature, message)
        return True
