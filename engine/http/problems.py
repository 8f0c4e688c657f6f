"""The shape of an error: RFC 9457 with our fields. The only place that turns a failure into bytes for a client."""

from typing import Any
from uuid import UUID

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Route

from engine.errors import (
    ErrorType,
    InvalidFieldError,
    RequestError,
    UnexpectedError,
    UnknownRouteError,
    WrongMethodError,
)
from engine.http import request_context

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """RFC 9457, with what a client needs to decide what to do next. Two fields stand twice, the second time by the names
    that the chat widgets of specification 003 read."""

    type: str
    title: str
    status: int
    detail: str
    error_type: ErrorType
    retryable: bool
    user_safe_message: str
    retry_able: bool
    request_id: str
    query_id: UUID | None
    field: str | None = None


async def on_request_error(request: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, RequestError)
    return _problem(await _on_record(failure, request), request)


async def on_http_exception(request: Request, failure: Exception) -> JSONResponse:
    """What the framework refuses by itself: no such address, wrong method."""
    assert isinstance(failure, HTTPException)
    known: dict[int, type[RequestError]] = {404: UnknownRouteError, 405: WrongMethodError}
    told = await _on_record(known.get(failure.status_code, UnexpectedError)(), request)
    response = _problem(told, request)
    if told.status == 405:  # noqa: PLR2004
        response.headers["Allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """All that the address takes; the framework would name those of its first route."""
    path = getattr(
        request.scope.get("route"), "path", request.scope["path"]
    )  # the framework's own say nothing
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.path == path]
    return sorted({method for route in routes for method in route.methods or ()})


async def on_invalid_request(request: Request, failure: Exception) -> JSONResponse:
    """A part of the address that is not what the route says. Never with its words: they are the client's."""
    assert isinstance(failure, RequestValidationError)
    name = str(failure.errors()[0]["loc"][-1])
    wrong = InvalidFieldError(f"{name}: is not what this address takes.", field=name)
    return _problem(await _on_record(wrong, request), request)


async def on_fault(request: Request) -> JSONResponse:
    """A fault of ours outside a question. The log has it; the client learns only that."""
    return _problem(await _on_record(UnexpectedError(), request), request)


async def _on_record(failure: RequestError, request: Request) -> RequestError:
    """What failed before the engine heard of it leaves its row here."""
    if request_context.is_on_record(request):
        return failure
    engine = request_context.house(request).engine
    return await engine.reject(
        request_context.asked(request, request.headers.get("Authorization"), scopes=frozenset()), failure
    )


def problem(failure: RequestError, request: Request) -> Problem:
    """What the client learns of a failure: safe words, never a cause."""
    return _told(failure, request_context.request_id(request), failure.query_id)


def example(failure: RequestError) -> dict[str, Any]:
    """As the interface's description shows it."""
    return _told(failure, "3f6c1d0e-5b7a-4f43-9d7e-6a1f0c2b8e94", None).model_dump(mode="json")


def _told(failure: RequestError, request_id: str, query_id: UUID | None) -> Problem:
    return Problem(
        type=f"urn:affidavit:problem:{type(failure).__name__.strip('_').removesuffix('Error')}",
        title=failure.title,
        status=failure.status,
        detail=failure.detail,
        error_type=failure.error_type,
        retryable=failure.retryable,
        user_safe_message=failure.detail,
        retry_able=failure.retryable,
        request_id=request_id,
        query_id=query_id,
        field=failure.field,
    )


def _problem(failure: RequestError, request: Request) -> JSONResponse:
    body = problem(failure, request)
    headers = {"Retry-After": str(failure.retry_after_s)} if failure.retry_after_s else {}
    if failure.status == 401:  # noqa: PLR2004
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body.model_dump(mode="json"), failure.status, headers, MEDIA_TYPE)
