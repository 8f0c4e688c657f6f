"""Cohere's Embed, as far as vectors go: each text's vector is made of its letters, so that equal texts are equal."""

import base64
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.upstreams import http


async def _at_once(_: list[str]) -> None:
    """Nothing holds the answer up."""


@dataclass
class Upstream:
    """Fails as often as it is told to, then answers, when it is let."""

    url: str = ""
    failures: list[int] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    spoil: float | None = None
    as_bytes: Callable[[list[float]], str] | None = field(
        default_factory=lambda: little_endian
    )  # None: it knows numbers only
    wait: Callable[[list[str]], Awaitable[None]] = _at_once

    async def receive(self, request: Request) -> Response:
        asked = await request.json()
        self.requests.append(asked)
        if self.failures:
            return JSONResponse(
                {"message": "canary of the vendor"}, self.failures.pop(0), {"Retry-After": "59"}
            )
        await self.wait(asked["texts"])
        vectors = [vector(text, asked["output_dimension"]) for text in asked["texts"]]
        if self.spoil is not None:
            vectors[-1] = [self.spoil] * asked["output_dimension"]
        made: dict[str, Any] = {}
        if "float" in asked["embedding_types"]:
            made["float"] = vectors
        if "base64" in asked["embedding_types"] and self.as_bytes:
            made["base64"] = [self.as_bytes(each) for each in vectors]
        billed = {"billed_units": {"input_tokens": 10 * len(vectors)}}
        return JSONResponse({"id": "1", "response_type": "embeddings_by_type", "embeddings": made,
                             "texts": asked["texts"], "meta": billed})  # fmt: skip


def little_endian(numbers: list[float]) -> str:
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()


def vector(text: str, dimension: int) -> list[float]:
    rng = np.random.default_rng(zlib.crc32(text.encode()))
    return [float(number) for number in rng.normal(size=dimension)]


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    async with http(Route("/v2/embed", upstream.receive, methods=["POST"])) as upstream.url:
        yield upstream
