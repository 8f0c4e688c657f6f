"""An adapter for AWS KMS as the signing key: key spec ECC_NIST_EDWARDS25519, algorithm ED25519_SHA_512 over the raw message.

The private key never leaves KMS. Region, credentials and endpoint come from AWS_…, as for every AWS tool.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, NoCredentialsError
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from audit.errors import NoSigningKeyError
from engine.errors import ConfigurationError
from engine.settings import Settings

SPEC, ALGORITHM = "ECC_NIST_EDWARDS25519", "ED25519_SHA_512"

_THROTTLED = {"ThrottlingException", "LimitExceededException", "RequestLimitExceeded"}
_SET_UP = {
    "NotFoundException": "there is no such key",
    "AccessDeniedException": "the credentials may not use it; they need kms:GetPublicKey and kms:Sign",
    "DisabledException": "the key is disabled",
    "KMSInvalidStateException": "the key is disabled or about to be deleted",
    "InvalidKeyUsageException": f"it is no signing key; make one of the key spec {SPEC}",
    "UnsupportedOperationException": f"it is no signing key; make one of the key spec {SPEC}",
}


def signer(settings: Settings) -> "KmsKey":
    return KmsKey(settings.signing.key, settings.signing.timeout_s)


class KmsKey:
    """One key. A new one is a new key id."""

    def __init__(self, key: str, timeout_s: float) -> None:
        self._key = key
        self._client = _client(timeout_s)

    def public_keys(self) -> list[bytes]:
        with _in_words(self._key):
            found = self._client.get_public_key(KeyId=self._key)
        spec = found.get("KeySpec")
        try:
            public = load_der_public_key(found["PublicKey"]) if spec == SPEC else None
        except (KeyError, ValueError, TypeError):
            public = None
        if not isinstance(public, Ed25519PublicKey):
            raise ConfigurationError(
                f"The KMS key {self._key} is of the key spec {spec}. Name one of {SPEC} in signing.key."
            )
        return [public.public_bytes_raw()]

    def sign(self, message: bytes, public: bytes) -> bytes:  # noqa: ARG002  it has only one
        with _in_words(self._key):
            found = self._client.sign(
                KeyId=self._key, Message=message, MessageType="RAW", SigningAlgorithm=ALGORITHM
            )
        return bytes(found.get("Signature", b""))


def _client(timeout_s: float) -> Any:
    """No retries within one call: a sealer and the delegations try again by themselves."""
    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
    try:
        return Session().client("kms", config=config)
    except (BotoCoreError, ValueError):
        raise ConfigurationError(
            "KMS cannot be opened with the settings in AWS_…. Check AWS_REGION, AWS_PROFILE and AWS_ENDPOINT_URL_KMS."
        ) from None


@contextmanager
def _in_words(key: str) -> Iterator[None]:
    """Without the vendor's messages, which may name accounts and hosts."""
    try:
        yield
    except ClientError as refused:
        code = str(refused.response.get("Error", {}).get("Code", ""))[:64]
        if code in _SET_UP:
            raise ConfigurationError(f"KMS refuses the signing key {key}: {_SET_UP[code]}.") from None
        if code in _THROTTLED:
            raise NoSigningKeyError("KMS takes no more requests now (throttled)") from None
        raise NoSigningKeyError(f"KMS did not sign ({code or 'no reason given'})") from None
    except NoCredentialsError:
        raise ConfigurationError(
            "KMS needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        ) from None
    except HTTPClientError as failure:
        raise NoSigningKeyError(f"KMS did not answer ({type(failure).__name__})") from None
    except BotoCoreError as failure:
        raise NoSigningKeyError(f"KMS cannot be asked ({type(failure).__name__})") from None
