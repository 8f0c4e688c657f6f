"""Time stamp authority: RFC 3161 over HTTP. The certificates that its stamps must lead to are pinned in a file."""

import asyncio
from pathlib import Path

import httpx
from cryptography import x509
from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

from audit.errors import AuthorityError, KeyFileError, TimeStampError
from audit.stamps.token import RESPONSE_BYTES_MAX, read_certificates
from engine.settings import Settings

TIMEOUT_S = 8.0  # in all: less than a sealer's transaction may be idle

_HEADERS = {"Content-Type": "application/timestamp-query", "Accept-Encoding": "identity"}


def authority(settings: Settings) -> "HttpAuthority":
    return HttpAuthority(settings.time_stamps.url)


def certificates_of(path: Path) -> list[x509.Certificate]:
    """`KeyFileError` for a file that holds none."""
    try:
        return read_certificates(path.read_bytes())
    except (OSError, TimeStampError) as wrong:
        raise KeyFileError(
            f"The authority's certificates cannot be read from {path} (time_stamps.certificates): {wrong}"
        ) from None


class HttpAuthority:
    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._url, self._timeout_s = url, timeout_s

    async def stamp(self, text: bytes) -> tuple[bytes, int]:
        request = TimestampRequestBuilder(data=text, hash_algorithm=HashAlgorithm.SHA256).build()
        assert request.nonce is not None
        try:
            async with asyncio.timeout(self._timeout_s), httpx.AsyncClient(timeout=self._timeout_s) as http:
                return await self._post(http, request.as_bytes()), request.nonce
        except (TimeoutError, httpx.TimeoutException):
            raise AuthorityError(f"{self._url} does not answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as failure:
            raise AuthorityError(f"{self._url} cannot be reached: {type(failure).__name__}") from None

    async def _post(self, http: httpx.AsyncClient, request: bytes) -> bytes:
        answer = bytearray()
        async with http.stream("POST", self._url, content=request, headers=_HEADERS) as response:
            if response.status_code != httpx.codes.OK:
                raise AuthorityError(f"{self._url} answers with status {response.status_code}")
            async for part in response.aiter_raw():
                answer += part
                if len(answer) > RESPONSE_BYTES_MAX:
                    raise AuthorityError(f"{self._url} sends more than a time stamp has")
        return bytes(answer)
