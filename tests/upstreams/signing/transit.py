"""The Transit engine of HashiCorp Vault, as far as signing with an ed25519 key needs it. Vault itself is in no registry."""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from audit.proof.keys import SigningKey
from tests.upstreams.signing import Asked, serving

TOKEN, NAME = "hvs.a-token", "affidavit"


@dataclass
class Transit:
    versions: list[SigningKey]
    kind: str = "ed25519"
    token: str = TOKEN
    status: int = 200  # another one for every call
    spoil: bytes = b""
    content: bytes = b""  # in place of each answer
    hangs: bool = False
    is_ended: threading.Event = field(default_factory=threading.Event)

    def answer(self, asked: Asked) -> tuple[int, bytes]:
        if self.hangs:
            self.is_ended.wait()
        if asked.headers.get("x-vault-token") != self.token:
            return 403, _json(errors=["permission denied"])
        if self.status != 200:
            return self.status, _json(errors=["no"])
        if self.content:
            return 200, self.content
        if (asked.method, asked.path) == ("GET", f"/v1/transit/keys/{NAME}"):
            return 200, _json(data={"type": self.kind, "derived": False, "name": NAME, "keys": self._keys()})
        if (asked.method, asked.path) == ("POST", f"/v1/transit/sign/{NAME}"):
            return self._signed(json.loads(asked.body))
        return 404, _json(errors=[])

    def _keys(self) -> dict[str, Any]:
        return {
            str(number): {"public_key": base64.b64encode(key.public.raw).decode(), "name": "ed25519"}
            for number, key in enumerate(self.versions, 1)
        }

    def _signed(self, body: dict[str, Any]) -> tuple[int, bytes]:
        number = body.get("key_version") or len(self.versions)
        signature = self.spoil or self.versions[number - 1].sign(base64.b64decode(body["input"]))
        coded = base64.b64encode(signature).decode()
        return 200, _json(data={"signature": f"vault:v{number}:{coded}", "key_version": number})


@contextlib.contextmanager
def transit(*versions: SigningKey) -> Iterator[tuple[str, Transit]]:
    server = Transit(list(versions))
    with serving(server.answer, server.is_ended) as url:
        yield url, server


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()
