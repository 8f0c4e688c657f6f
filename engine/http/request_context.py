"""What a request brings along, and the house that it comes to."""

import functools
from collections.abc import Awaitable, Callable

from fastapi import Request

from engine.admission.end_user import HEADER
from engine.answer import ASK, Asked, no_question
from engine.house import House
from engine.models import Question

NO_ENDPOINT = "unknown"


def asked(
    request: Request,
    authorization: str | None,
    *,
    read: Callable[[], Awaitable[Question]] = no_question,
    scopes: frozenset[str] = ASK,
) -> Asked:
    """For the engine, which from here on sees to it that the request leaves one row."""
    request.state.is_on_record = True
    route = request.scope.get("route")
    return Asked(
        endpoint=route.path if route else NO_ENDPOINT,
        request_id=request_id(request),
        read=read,
        client_address=request.client.host if request.client else None,
        secret=_secret(authorization),
        scopes=scopes,
        end_user=_once(request.headers.getlist(HEADER)),
        hear=functools.partial(setattr, request.state, "allowance"),
        follow=functools.partial(setattr, request.state, "trail"),
    )


def is_on_record(request: Request) -> bool:
    return hasattr(request.state, "is_on_record")


def house(request: Request) -> House:
    found = request.state.house
    assert isinstance(found, House)
    return found


def request_id(request: Request) -> str:
    return str(request.state.request_id)


def _once(values: list[str]) -> str | None:
    """Several together are no name of anybody, and so an error in the end."""
    return ",".join(values) if values else None


def _secret(authorization: str | None) -> str | None:
    scheme, _, secret = (authorization or "").partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None
