"""Witnesses over HTTP: C2SP's tlog-witness, and the last head that one of ours has cosigned.

One call per address at a time, as the standard's witnesses judge one head after the other. A witness that does not answer in
time is an `OSError`, and so is every other failure of the network.
"""

import asyncio
from collections import defaultdict
from hashlib import sha256

import httpx

from audit.heads.submission import REPLY_BYTES_MAX, WitnessReply
from engine.settings import Settings


def network(settings: Settings) -> "HttpWitnesses":
    return HttpWitnesses(settings.witness.timeout_s)


class HttpWitnesses:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(timeout=timeout_s, headers={"Accept-Encoding": "identity"})
        self._alone: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def add_checkpoint(self, url: str, body: bytes) -> WitnessReply:
        return await self._asked(url, "POST", "add-checkpoint", body)

    async def last_note(self, url: str, origin: str) -> WitnessReply:
        return await self._asked(url, "GET", f"checkpoint/{sha256(origin.encode()).hexdigest()}")

    async def close(self) -> None:
        await self._http.aclose()

    async def _asked(self, url: str, method: str, path: str, body: bytes | None = None) -> WitnessReply:
        async with self._alone[url]:
            try:
                async with asyncio.timeout(
                    self._timeout_s
                ):  # whatever it does: httpx counts each byte's silence alone
                    return await self._sent(self._http.build_request(method, f"{url}/{path}", content=body))
            except TimeoutError:
                raise TimeoutError(f"no reply within {self._timeout_s:g} s") from None
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeDecodeError) as failure:
                raise ConnectionError(type(failure).__name__) from failure

    async def _sent(self, request: httpx.Request) -> WitnessReply:
        reply, content = await self._http.send(request, stream=True), b""
        try:
            async for piece in reply.aiter_bytes():
                content += piece
                if len(content) > REPLY_BYTES_MAX:
                    raise httpx.DecodingError("The reply is longer than any reply of a witness")
        finally:
            await reply.aclose()
        return WitnessReply(reply.status_code, content.decode())
