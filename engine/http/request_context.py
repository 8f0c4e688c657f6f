"""Request context: what every route needs of a request, as the engine's `Asked`, and the house that serves it."""

import functools
import logging
from collections.abc import Awaitable, Callable

from fastapi import Request

from engine.admission.end_user import parse_end_user
from engine.answer import ASK, Asked
from engine.errors import InvalidFieldError
from engine.house import House
from engine.models import Allowance, EndUser, Question, Trail
from engine.ports import NullExchange, no_question

NO_ENDPOINT = "unknown"
END_USER_HEADER = "X-End-User"
FORWARDED_HEADER = "X-Forwarded-For"

log = logging.getLogger(__name__)


class HttpExchange(NullExchange):
    """Keeps the trail and the allowance in the request's state, where the middleware reads them."""

    def __init__(self, request: Request, read: Callable[[], Awaitable[Question]] = no_question) -> None:
        super().__init__(read)
        self._state = request.state

    def follow(self, trail: Trail) -> None:
        self._state.trail = trail

    def note_allowance(self, allowance: Allowance) -> None:
        self._state.allowance = allowance


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
    return Asked(
        endpoint=route.path if route else NO_ENDPOINT,
        request_id=request_id(request),
        exchange=exchange or HttpExchange(request),
        client_address=client_address(request),
        secret=_secret(authorization),
        scopes=scopes,
        end_user=end_user(request.headers.getlist(END_USER_HEADER)),
    )


def house(request: Request) -> House:
    found = request.state.house
    assert isinstance(found, House)
    return found


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


def _secret(authorization: str | None) -> str | None:
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None
