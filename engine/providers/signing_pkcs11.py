"""An adapter for a PKCS#11 module, such as a hardware security module, as the signing key: an Edwards key, mechanism EDDSA.

The private key never leaves the module. Its package is an extra: `pip install 'affidavit[pkcs11]'`.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager
from typing import Any

from audit.errors import NoSigningKeyError
from engine.errors import ConfigurationError
from engine.settings import Settings

POINT_BYTES = 32


def signer(settings: Settings) -> "Pkcs11Key":
    given = settings.signing
    return Pkcs11Key(
        given.module, given.token_label, given.key, given.pin.get_secret_value(), given.timeout_s
    )


class Pkcs11Key:
    """One key, by its label. Each call has a session of its own, so that a module that restarted is found again."""

    def __init__(self, module: str, token_label: str, key: str, pin: str, timeout_s: float) -> None:
        try:
            import pkcs11  # noqa: PLC0415  an extra
        except ImportError:
            raise ConfigurationError("PKCS#11 needs its package: pip install 'affidavit[pkcs11]'.") from None
        self._pkcs11: Any = pkcs11
        self._module = module
        self._token_label = token_label
        self._key = key
        self._pin = pin
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="pkcs11")
        self._in_use = threading.Lock()

    def public_keys(self) -> list[bytes]:
        return [self._within(self._read_public)]

    def sign(self, message: bytes, public: bytes) -> bytes:  # noqa: ARG002  it has only one
        return self._within(lambda: self._signed(message))

    def _within(self, work: Any) -> bytes:
        """A module has no timeout of its own. One that hangs keeps its thread, and whoever comes next waits as long."""
        if not self._in_use.acquire(timeout=self._timeout_s):
            raise NoSigningKeyError("The PKCS#11 module has not answered the last request yet")
        doing: Future[bytes] = self._threads.submit(self._alone, work)
        try:
            return doing.result(self._timeout_s)
        except TooLate:
            raise NoSigningKeyError("The PKCS#11 module did not answer in time") from None

    def _alone(self, work: Any) -> bytes:
        try:
            done: bytes = work()
            return done
        finally:
            self._in_use.release()

    def _read_public(self) -> bytes:
        with self._session() as session:
            kinds = self._pkcs11
            public = session.get_key(object_class=kinds.ObjectClass.PUBLIC_KEY, label=self._key)
            if public.key_type != kinds.KeyType.EC_EDWARDS:
                raise ConfigurationError(
                    f"The PKCS#11 key {self._key} is of the type {public.key_type.name}. Make one of the type EC_EDWARDS (Ed25519)."
                )
            point = bytes(public[kinds.Attribute.EC_POINT])
        if len(point) < POINT_BYTES:
            raise ConfigurationError(f"The PKCS#11 key {self._key} has no public point.")
        return point[-POINT_BYTES:]  # some modules wrap it in an octet string

    def _signed(self, message: bytes) -> bytes:
        with self._session() as session:
            kinds = self._pkcs11
            private = session.get_key(object_class=kinds.ObjectClass.PRIVATE_KEY, label=self._key)
            return bytes(private.sign(message, mechanism=kinds.Mechanism.EDDSA))

    @contextmanager
    def _session(self) -> Iterator[Any]:
        errors = self._pkcs11.exceptions
        try:
            token = self._pkcs11.lib(self._module).get_token(token_label=self._token_label)
            with token.open(user_pin=self._pin) as session:
                yield session
        except (errors.NoSuchToken, errors.MultipleTokensReturned):
            raise ConfigurationError(
                f"The PKCS#11 module has no token, or several, with the label {self._token_label}."
            ) from None
        except (errors.NoSuchKey, errors.MultipleObjectsReturned):
            raise ConfigurationError(
                f"The PKCS#11 token has no key, or several, with the label {self._key}."
            ) from None
        except (errors.PinIncorrect, errors.PinInvalid, errors.PinLenRange):
            raise ConfigurationError(
                "The PKCS#11 token refuses the PIN: set AFFIDAVIT_SIGNING__PIN."
            ) from None
        except errors.PinLocked:
            raise ConfigurationError("The PIN of the PKCS#11 token is locked.") from None
        except (errors.PKCS11Error, RuntimeError, OSError) as failure:
            raise NoSigningKeyError(f"The PKCS#11 module did not sign ({type(failure).__name__})") from None
