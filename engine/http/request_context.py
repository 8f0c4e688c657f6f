"""Request context: what every route needs of a request, as the engine's `Asked`, and the house that serves it."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from fastapi import Request

from engine.admission.end_user import parse_end_user, visitor
from engine.admission.public_tokens import is_public
from engine.answer import ASK, Asked
from engine.errors import InvalidFieldError, TooLargeError, TooSlowError
from engine.house import House
from engine.models import Allowance, EndUser, Question, Stage, Trail
from engine.ports import NullExchange, no_question

NO_ENDPOINT = "unknown"
END_USER_HEADER = "X-End-User"
TICKET = "ticket"  # in the state of a question that was let in where its connection was read
BOOK_HEADER = "X-Book-ID"
UNSEEN = "0.0.0.0"  # noqa: S104  the address of a visitor over a Unix socket: all of them are one reader
FORWARDED_HEADER = "X-Forwarded-For"

log = logging.getLogger(__name__)


class HttpExchange(NullExchange):
    """Keeps the trail, the stages and the allowance in the request's state, where the middleware reads them."""

    def __init__(self, request: Request, read: Callable[[], Awaitable[Question]] = no_question) -> None:
        super().__init__(read)
        self._state = request.state
        self._state.stages = []

    def follow(self, trail: Trail) -> None:
        self._state.trail = trail

    def note_allowance(self, allowance: Allowance) -> None:
        self._state.allowance = allowance

    def note_stage(self, stage: Stage) -> None:
        self._state.stages.append(stage)


def asked(
    request: Request,
    authorization: str | None,
    exchange: HttpExchange | None = None,
    *,
    scopes: frozenset[str] = ASK,
) -> Asked:
    """The request for the engine, which from here on writes its one row."""
    request.state.is_on_record = True
    route = request.scope.get("route")
    secret, address = secret_of(authorization), client_address(request)
    return Asked(
        endpoint=route.path if route else NO_ENDPOINT,
        request_id=request_id(request),
        exchange=exchange or HttpExchange(request),
        client_address=address,
        secret=secret,
        origin=",".join(request.headers.getlist("Origin")) or None,
        scopes=scopes,
        end_user=_reader(request, secret, address),
        ticket=getattr(request.state, TICKET, None),
    )


def asked_book(request: Request) -> str:
    """The book of an address that names none: the one that the site's server names, or that the public token is for."""
    named = request.headers.getlist(BOOK_HEADER)
    if named:
        return ",".join(named)
    token = house(request).public_tokens.read(secret_of(request.headers.get("Authorization")) or "")
    return token.book_id if token else house(request).default_book


def house(request: Request) -> House:
    found = request.state.house
    assert isinstance(found, House)
    return found


async def body(request: Request) -> bytes:
    """The body, rejected as soon as it exceeds the limit, whatever its Content-Length says, and if it does not arrive."""
    serving, content = house(request), bytearray()
    try:
        async with asyncio.timeout(serving.engine.rules.body_s):
            async for part in request.stream():
                content += part
                if len(content) > serving.body_bytes_max:
                    raise TooLargeError
    except TimeoutError:
        raise TooSlowError from None
    return bytes(content)


def request_id(request: Request) -> str:
    return str(request.state.request_id)


def client_address(request: Request) -> str | None:
    """The peer, unless it is a trusted proxy: then the client that it names."""
    peer = request.client.host if request.client else None
    forwarded_for = request.headers.getlist(FORWARDED_HEADER)
    proxies = house(request).proxies
    if forwarded_for and not proxies.trusts(peer):
        warn_of_ignored_address()
    return proxies.client_behind(peer, forwarded_for)


@functools.cache
def warn_of_ignored_address() -> None:
    """Once in a process, because any stranger can cause it."""
    log.warning(
        "%s is ignored, because it comes from no proxy that was named. If a proxy stands before the engine, name it in"
        " server.trusted_proxies",
        FORWARDED_HEADER,
    )


def end_user(values: list[str]) -> EndUser | InvalidFieldError | None:
    """Returns an invalid header's error instead of raising it: such a request counts against the rate limit first."""
    try:
        return parse_end_user(",".join(values)) if values else None
    except ValueError:
        wrong = f"{END_USER_HEADER}: must be `user:<uuid>` or `anon:<address>`, once."
        return InvalidFieldError(wrong, field=END_USER_HEADER)


def _reader(request: Request, secret: str | None, address: str | None) -> EndUser | InvalidFieldError | None:
    """A page could name any reader, so with a public token it is whoever is connected."""
    if is_public(secret or ""):
        return visitor(address or UNSEEN)
    return end_user(request.headers.getlist(END_USER_HEADER))


def secret_of(authorization: str | None) -> str | None:
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None
