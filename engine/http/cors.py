"""CORS: which pages of other sites may read answers, and the public tokens that those pages ask with.

Without a listed origin (`server.allowed_origins`) no response has a CORS header, so a browser shows it to no page of another
site. Nothing here sends cookies along, and an API key does not belong in a page: its site's server makes it a public token.
"""

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.admission.public_tokens import TTL_S, TTL_S_MAX
from engine.errors import ForbiddenError, UnknownBookError
from engine.house import House
from engine.http import v1
from engine.models import Client, Trail
from engine.words.suggestions import did_you_mean, listed

PREFLIGHT_S = 600  # a browser asks again after that
METHODS = "GET, POST, DELETE"
HEADERS = "Authorization, Content-Type, Accept, Prefer, X-Request-ID, X-Session-Token"
EXPOSED = (
    "X-Request-ID, X-Query-ID, X-Receipt, Retry-After, RateLimit, RateLimit-Policy, RateLimit-Limit, RateLimit-Remaining,"
    " RateLimit-Reset"
)
_BOOK_ID = r"^[a-z0-9][a-z0-9-]{0,62}$"


class Cors:
    """Answers the preflights of listed origins, and lets their pages read every other response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = scope["state"]["house"].allowed_origins if scope["type"] == "http" else ()
        if not origins:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = ",".join(headers.getlist("Origin"))
        allowed = allowing(origin, origins)

        async def send_to_origin(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered.add_vary_header("Origin")  # a cache must not give one site the answer of another
                answered.update(allowed)
            await send(message)

        if allowed and _is_preflight(scope, headers):
            await _preflight(scope, receive, send_to_origin)
        else:
            await self._app(scope, receive, send_to_origin)


def allowing(origin: str, origins: Collection[str]) -> dict[str, str]:
    """The headers that let the pages of a listed origin read a response."""
    if origin not in origins:
        return {}
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED}


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "OPTIONS" and "Access-Control-Request-Method" in headers


async def _preflight(scope: Scope, receive: Receive, send: Send) -> None:
    """It says the same of every address, so it tells nobody which ones there are."""
    answer = Response(status_code=204, headers={
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": HEADERS,
        "Access-Control-Max-Age": str(PREFLIGHT_S),
    })  # fmt: skip
    await answer(scope, receive, send)


class PublicTokenRequest(BaseModel):
    """What a page may do with the token."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"origin": "https://book.example.org", "book_id": "physical-ai"}]},
    )

    origin: Annotated[
        str, Field(description="The site whose pages ask; it must be in `server.allowed_origins`")
    ]
    book_id: Annotated[str | None, Field(pattern=_BOOK_ID, description="The default book unless named")] = (
        None
    )
    ttl_s: Annotated[int, Field(strict=True, ge=10, le=TTL_S_MAX)] = TTL_S


class PublicTokenBody(BaseModel):
    """A token for all visitors of the site, sent as `Authorization: Bearer …`. It is no secret, but it has the key's limits."""

    token: str
    origin: str
    book_id: str
    expires_at: str


async def public_token(house: House, body: bytes, client: Client, trail: Trail) -> PublicTokenBody:
    wanted = v1.read(body, PublicTokenRequest)
    trail.book_id = wanted.book_id or house.default_book
    if wanted.origin not in house.allowed_origins:
        raise ForbiddenError(
            "origin: is not in server.allowed_origins, so its pages could not read an answer. Add it there, spelt as"
            " browsers do, such as https://book.example.org.",
            field="origin",
        )
    if client.key_id is None or not client.may_ask(trail.book_id):
        raise ForbiddenError("The API key is valid but not for this book.")
    await _check_published(house, trail.book_id, client)
    trail.details = {"public_token": wanted.origin, "ttl_s": wanted.ttl_s}
    text, token = house.public_tokens.make(
        client.key_id, wanted.origin, trail.book_id, house.engine.clock(), wanted.ttl_s
    )
    return PublicTokenBody(
        token=text, origin=token.origin, book_id=token.book_id, expires_at=token.expires_at.isoformat()
    )


async def _check_published(house: House, book_id: str, client: Client) -> None:
    """Says which books there are, of those that the key may ask."""
    try:
        await house.engine.library.live(book_id)
    except UnknownBookError:
        known = [
            book.book_id
            for book in await house.library.books()
            if book.generation and client.may_ask(book.book_id)
        ]
        published = f"{did_you_mean(book_id, known)}Published here: {listed(known)}." if known else ""
        raise UnknownBookError(
            f"book_id: there is no book {book_id}. {published}".strip(), field="book_id"
        ) from None
