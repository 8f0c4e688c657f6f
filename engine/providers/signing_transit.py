"""An adapter for the Transit engine of HashiCorp Vault and of OpenBao as the signing key: type ed25519, any of its versions.

The private key never leaves Transit. Which version signs is what our public file pins: a rotation there changes nothing here
until `affidavit audit key --new` has pinned the new version.
"""

import base64
import time
from pathlib import Path
from typing import Any

import httpx

from audit.errors import NoSigningKeyError
from engine.errors import ConfigurationError
from engine.settings import Settings

TYPE, KEY_BYTES = "ed25519", 32
ANSWER_BYTES_MAX = 1_000_000  # a key of thousands of versions has less


def signer(settings: Settings) -> "TransitKey":
    given = settings.signing
    file = Path(given.token_file) if given.token_file else None
    return TransitKey(
        given.address, given.mount, given.key, given.token.get_secret_value(), file, given.timeout_s
    )


class TransitKey:
    def __init__(
        self, address: str, mount: str, key: str, token: str, token_file: Path | None, timeout_s: float
    ) -> None:
        self._address = f"{address.rstrip('/')}/v1/{mount}"
        self._key = key
        self._token = token
        self._token_file = token_file
        self._timeout_s = timeout_s
        self._versions: dict[bytes, int] = {}

    def public_keys(self) -> list[bytes]:
        found = self._asked("GET", f"keys/{self._key}")
        if found.get("type") != TYPE or found.get("derived"):
            raise ConfigurationError(
                f"The Transit key {self._key} is of the type {found.get('type')}. Make one of the type {TYPE}, not derived."
            )
        try:
            versions = {int(number): _raw(version) for number, version in found["keys"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            versions = {}
        if not versions:
            raise NoSigningKeyError("Transit did not answer with its public keys")
        self._versions = {versions[number]: number for number in sorted(versions)}
        return list(self._versions)

    def sign(self, message: bytes, public: bytes) -> bytes:
        version = self._versions.get(public)
        body = {"input": base64.b64encode(message).decode(), "key_version": version}
        found = self._asked("POST", f"sign/{self._key}", body)
        try:
            return base64.b64decode(str(found["signature"]).removeprefix(f"vault:v{version}:"), validate=True)
        except (KeyError, ValueError):
            raise NoSigningKeyError("Transit did not answer with a signature of the pinned version") from None

    def _asked(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            content = self._answer(method, path, body)
            found = httpx.Response(200, content=content).json()["data"]
        except httpx.HTTPError as failure:
            raise NoSigningKeyError(f"Transit did not answer ({type(failure).__name__})") from None
        except (ValueError, KeyError, TypeError):
            found = None
        if not isinstance(found, dict):
            raise NoSigningKeyError("Transit did not answer as Vault does")
        return found

    def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        """Within the time as a whole, however slowly the bytes come."""
        until_s, content = time.monotonic() + self._timeout_s, b""
        headers = {"X-Vault-Token": self._current_token(), "X-Vault-Request": "true"}
        with (
            httpx.Client(timeout=self._timeout_s, follow_redirects=False) as client,
            client.stream(method, f"{self._address}/{path}", json=body, headers=headers) as answer,
        ):
            self._check(answer.status_code)
            for piece in answer.iter_bytes():
                content += piece
                if time.monotonic() > until_s or len(content) > ANSWER_BYTES_MAX:
                    raise NoSigningKeyError("Transit did not answer in time")
        return content

    def _check(self, status: int) -> None:
        if status == httpx.codes.OK:
            return
        if status in {httpx.codes.FORBIDDEN, httpx.codes.UNAUTHORIZED}:
            raise NoSigningKeyError(
                "Transit refuses the token: it has expired, or its policy lacks read on the key and update on sign"
            )
        if status == httpx.codes.NOT_FOUND:
            raise ConfigurationError(
                f"Transit has no key {self._key} under this mount. Check signing.mount and signing.key."
            )
        if status == httpx.codes.TOO_MANY_REQUESTS:
            raise NoSigningKeyError("Transit takes no more requests now (throttled)")
        if status == httpx.codes.SERVICE_UNAVAILABLE:
            raise NoSigningKeyError("Vault is sealed or in maintenance")
        raise NoSigningKeyError(f"Transit did not sign (status {status})")

    def _current_token(self) -> str:
        """A file is read each time: an agent renews it."""
        try:
            token = self._token_file.read_text("utf-8").strip() if self._token_file else self._token
        except (OSError, UnicodeDecodeError) as failure:
            raise NoSigningKeyError(f"signing.token_file cannot be read ({type(failure).__name__})") from None
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigurationError("Transit needs a token: set VAULT_TOKEN or signing.token_file.")
        return token


def _raw(version: dict[str, Any]) -> bytes:
    raw = base64.b64decode(version["public_key"], validate=True)
    if len(raw) != KEY_BYTES:
        raise ValueError("Not a public key of Ed25519")
    return raw
