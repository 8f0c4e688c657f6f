"""The HTTP surface: routes, and what every response carries. The way of a question is in engine/answer.py.

Every request leaves exactly one row, also one that is turned away before a route runs (problems.py). Only what serves
nothing of a book and nobody's data, and is asked every few seconds, leaves none: `/healthz`, `/readyz`, `/metrics`,
`/`, `/openapi.json`, `/v1/signing-keys`, as long as they serve. All others go through `Engine.answer` or `Engine.recorded`.
"""

import base64
import functools
import re
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any
from uuid import UUID

from fastapi import FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import RequestError, TooLargeError, UnknownPassageError
from engine.http import arriving, contracts, problems, receipts, stream
from engine.http.stream import Answering
from engine.models import Client, Passage, Question, Trail
from engine.wiring import House

PAGE = Path(__file__).with_name("page.html")

_CHUNK_ID = re.compile(r"[0-9a-f]{64}")
_MAY_READ = frozenset({"ask", "audit"})
_REQUEST_ID = re.compile(
    r"[\w.:-]{1,128}", re.ASCII
)  # a client's own id is echoed if it is harmless in a log

_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {problems.MEDIA_TYPE: {}}, "model": problems.Problem}
    for status, description in {
        400: "Not JSON, not UTF-8, a NUL, or a key twice",
        401: "No key, or not one of ours",
        403: "A good key without the scope",
        404: "No such book or passage",
        413: "More than 64 KiB",
        422: "A field is not what the contract says",
        429: "Too many requests",
        500: "A fault of ours",
        502: "The language model failed",
        503: "A part is unavailable; without a record there is no answer",
        504: "The time is over",
    }.items()
}

_LOOKED_UP: dict[int | str, dict[str, Any]] = {
    status: _PROBLEMS[status] for status in (401, 403, 404, 429, 500, 503, 504)
}

_PROVEN: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The proof bundle, byte for byte what `affidavit audit check` takes",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    409: {
        "description": "The record is not sealed yet: ask again in Retry-After seconds",
        "content": {problems.MEDIA_TYPE: {}},
        "model": problems.Problem,
    },
}

_ANSWERED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Answered or refused. With `Accept: text/event-stream` as events: `sources`, each proven `sentence`,"
        " then `done` with this object; `error` with a problem if it fails on the way.",
        "content": {stream.MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}

_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

Authorization = Annotated[str | None, Header(description="`Bearer <API key>`")]
EndUser = Annotated[str | None, Header(alias="X-End-User", description="`user:<uuid>` or `anon:<address>`")]


def create_app(open_house: Callable[[], AbstractAsyncContextManager[House]]) -> FastAPI:
    """The application over a house that opens when the server starts and closes when it stops."""
    app = FastAPI(
        title="Affidavit",
        version="1",
        description="Answers only from the book, quoted word for word, each with a record that proves it.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be a response without a row
        lifespan=functools.partial(_lifespan, open_house),
    )
    app.add_middleware(Frame)
    app.add_exception_handler(RequestError, problems.on_request_error)
    app.add_exception_handler(HTTPException, problems.on_http_exception)
    app.add_exception_handler(RequestValidationError, problems.on_invalid_request)
    app.add_exception_handler(Exception, problems.on_fault)
    body = {
        "required": True,
        "content": {"application/json": {"schema": contracts.QueryRequest.model_json_schema()}},
    }
    for path, endpoint in (("/v1/query", query), ("/v1/books/{book_id}/query", query_book)):
        app.post(
            path, response_model=contracts.QueryResponse, responses=_ANSWERED | _PROBLEMS,
            openapi_extra={"requestBody": body},
        )(endpoint)  # fmt: skip
    app.get("/v1/chunks/{chunk_id}", responses=_LOOKED_UP)(passage)
    app.get("/v1/receipts/{query_id}", response_class=Response, responses=_PROVEN | _LOOKED_UP)(receipt)
    app.get("/v1/signing-keys")(signing_keys)
    app.get("/healthz")(alive)
    app.get("/readyz")(ready)
    app.get("/", include_in_schema=False)(page)
    return app


async def query(request: Request, authorization: Authorization = None, end_user: EndUser = None) -> Response:
    """Ask the book that the settings name."""
    return _ask(request, arriving.house(request).default_book, authorization, end_user)


async def query_book(
    request: Request, book_id: str, authorization: Authorization = None, end_user: EndUser = None
) -> Response:
    """Ask one book."""
    return _ask(request, book_id, authorization, end_user)


async def passage(
    request: Request, chunk_id: str, authorization: Authorization = None
) -> contracts.PassageBody:
    """A passage as it was cited; `start` and `end` of a citation count its characters."""
    engine = arriving.house(request).engine

    async def serve(_: Client, trail: Trail) -> Passage:
        if not _CHUNK_ID.fullmatch(chunk_id):
            raise UnknownPassageError
        trail.chunks_returned = [{"chunk_id": chunk_id}]
        found = await engine.library.passages([chunk_id])
        if chunk_id not in found:
            raise UnknownPassageError
        trail.book_id = found[chunk_id].book_id
        return found[chunk_id]

    cited = await engine.recorded(arriving.asked(request, authorization, scopes=_MAY_READ), serve)
    return contracts.PassageBody(
        chunk_id=cited.chunk_id, book_id=cited.book_id, chapter=cited.chapter, section=cited.section,
        filename=cited.filename, page=cited.start_page, url=cited.url, text=cited.text,
    )  # fmt: skip


async def receipt(request: Request, query_id: UUID, authorization: Authorization = None) -> Response:
    """The proof of a record: for the client that asked, and for auditors."""
    house = arriving.house(request)

    async def serve(client: Client, trail: Trail) -> bytes:
        trail.filters = {"query_id": str(query_id)}
        return await receipts.proof(house.prover, query_id, client)

    content = await house.engine.recorded(arriving.asked(request, authorization, scopes=_MAY_READ), serve)
    return Response(content, media_type="application/json")


async def signing_keys(request: Request) -> dict[str, list[str]]:
    """All public keys that ever signed, the newest last. Compare them with those you were given on another way."""
    return {"keys": arriving.house(request).public_keys()}


async def alive() -> dict[str, str]:
    """The process runs."""
    return {"status": "alive"}


async def ready(request: Request, response: Response) -> dict[str, str]:
    """The parts that a question needs, each with its state."""
    parts = await arriving.house(request).parts()
    response.status_code = 200 if all(state == "ready" for state in parts.values()) else 503
    return parts


async def page(request: Request) -> HTMLResponse:
    """A plain page to ask on."""
    if not arriving.house(request).page_enabled:
        raise HTTPException(404)
    html, policy = _page()
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


def _ask(request: Request, book_id: str, authorization: str | None, end_user: str | None) -> Answering:
    house = arriving.house(request)

    async def read() -> Question:
        body = await _body(request, house.body_bytes_max)
        return contracts.question(body, book_id, end_user, house.top_k)

    return Answering(house.engine, arriving.asked(request, authorization, read=read), request)


async def _body(request: Request, bytes_max: int) -> bytes:
    """The body, given up as soon as it is too long, whatever its header promised."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            raise TooLargeError
    return bytes(body)


class Frame:
    """Every request has an id; every response carries it and the security headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("X-Request-ID", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        scope["state"]["request_id"] = request_id

        async def framed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in _SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, framed)


def _lifespan(
    open_house: Callable[[], AbstractAsyncContextManager[House]], app: FastAPI
) -> AbstractAsyncContextManager[dict[str, House]]:
    del app
    return _Opened(open_house())


class _Opened:
    """The house as the state of every request."""

    def __init__(self, opening: AbstractAsyncContextManager[House]) -> None:
        self._opening = opening

    async def __aenter__(self) -> dict[str, House]:
        return {"house": await self._opening.__aenter__()}

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opening.__aexit__(kind, value, trace)


@functools.cache
def _page() -> tuple[str, str]:
    """The page and a policy that lets exactly its own script and style run."""
    html = PAGE.read_text()
    sources = {
        name: base64.b64encode(sha256(text.encode()).digest()).decode()
        for name, text in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL)
    }
    policy = (
        f"default-src 'none'; script-src 'sha256-{sources['script']}'; style-src 'sha256-{sources['style']}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy
