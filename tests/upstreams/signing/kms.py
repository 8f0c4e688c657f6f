"""AWS KMS, as far as one Ed25519 key needs it: its JSON protocol, for the vendor's own SDK. moto does not know these keys."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from audit.proof.keys import SigningKey
from tests.upstreams.signing import Asked, serving

KEY_ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
BYTES_MAX = 4096


@dataclass
class Kms:
    key: SigningKey
    spec: str = "ECC_NIST_EDWARDS25519"
    refusal: str = ""  # an error's code, for every call
    spoil: bytes = b""  # returned in place of each signature
    hangs: bool = False
    calls: list[str] = field(default_factory=list)
    is_ended: threading.Event = field(default_factory=threading.Event)

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        target, body = asked.headers["x-amz-target"], json.loads(asked.body)
        self.calls.append(target)
        if self.hangs:
            self.is_ended.wait()
        if not asked.headers.get("authorization", "").startswith("AWS4-HMAC-SHA256 "):
            return self._refused("MissingAuthenticationTokenException")
        if self.refusal:
            return self._refused(self.refusal)
        if body["KeyId"] != KEY_ID:
            return self._refused("NotFoundException")
        if target == "TrentService.GetPublicKey":
            return self._public()
        assert target == "TrentService.Sign", target
        return self._signed(body)

    def _public(self) -> tuple[int, bytes]:
        der = self.key._private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return 200, _json(
            KeyId=KEY_ID, PublicKey=base64.b64encode(der).decode(), KeySpec=self.spec, KeyUsage="SIGN_VERIFY",
            SigningAlgorithms=["ED25519_SHA_512", "ED25519_PH_SHA_512"],
        )  # fmt: skip

    def _signed(self, body: dict[str, Any]) -> tuple[int, bytes]:
        message = base64.b64decode(body["Message"])
        if body["MessageType"] != "RAW" or body["SigningAlgorithm"] != "ED25519_SHA_512":
            return self._refused("InvalidKeyUsageException")
        if not 1 <= len(message) <= BYTES_MAX:
            return self._refused("ValidationException")
        signature = base64.b64encode(self.spoil or self.key.sign(message)).decode()
        return 200, _json(KeyId=KEY_ID, Signature=signature, SigningAlgorithm="ED25519_SHA_512")

    def _refused(self, code: str) -> tuple[int, bytes]:
        return 400, _json(__type=code, message="account 123456789012 said no")


@contextlib.contextmanager
def kms(key: SigningKey) -> Iterator[tuple[str, Kms]]:
    server = Kms(key)
    with serving(server.answer, server.is_ended) as url:
        yield url, server


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()
