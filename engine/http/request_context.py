"""Request context: what every route needs of a request, as the engine's `Asked`, and the house that serves it."""

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
        client_address=request.client.host if request.client else None,
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
