"""Error responses: RFC 9457 problem documents with our fields, and the exception handlers that build them.

No other module turns a failure into bytes for a client.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Literal
from uuid import UUID

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Route

from engine import errors
from engine.errors import ErrorType, RequestError
from engine.http import request_context

MEDIA_TYPE = "application/problem+json"
ERROR_TYPES = "error_types"  # in the state of a request on a contract that has a list of its own

ErrorTypes = Mapping[str, Literal["network", "database", "llm", "validation", "agent", "unknown"]]


class Problem(BaseModel):
    """RFC 9457, with what a client needs to decide what to do next. `user_safe_message` and `retry_able` repeat `detail`
    and `retryable` under the names of specification 003, whose contract alone has the error type `agent`."""

    type: str
    title: str
    status: int
    detail: str
    error_type: ErrorType | Literal["agent"]
    retryable: bool
    retry_after: int | None
    user_safe_message: str
    retry_able: bool
    request_id: str
    query_id: UUID | None
    field: str | None = None


async def on_request_error(request: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, RequestError)
    return await _rejected(failure, request)


async def on_http_exception(request: Request, failure: Exception) -> JSONResponse:
    """Rejections by the framework: unknown address, wrong method."""
    assert isinstance(failure, HTTPException)
    known: dict[int, type[RequestError]] = {404: errors.NotFoundError, 405: errors.WrongMethodError}
    return await _rejected(known.get(failure.status_code, errors.UnexpectedError)(), request)


async def on_invalid_request(request: Request, failure: Exception) -> JSONResponse:
    """An invalid part of the address. Its text is not repeated: it is the client's."""
    assert isinstance(failure, RequestValidationError)
    name = str(failure.errors()[0]["loc"][-1])
    wrong = errors.InvalidFieldError(f"{name}: is not valid in this address.", field=name)
    return await _rejected(wrong, request)


async def on_fault(request: Request) -> JSONResponse:
    """An unexpected exception outside the engine. The log has the traceback; the client gets a plain 500."""
    return await _rejected(errors.UnexpectedError(), request)


async def _rejected(failure: RequestError, request: Request) -> JSONResponse:
    """The response to a failed request; one that failed before it reached the engine gets its row here."""
    if not hasattr(request.state, "is_on_record"):
        asked = request_context.asked(request, request.headers.get("Authorization"), scopes=frozenset())
        failure = await request_context.house(request).engine.reject(asked, failure)
    headers = {"Retry-After": str(failure.retry_after_s)} if failure.retry_after_s else {}
    if failure.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if failure.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    if isinstance(failure, errors.TooSlowError):
        headers["Connection"] = "close"  # what still arrives of it is not read as another request
    error_types = getattr(request.state, ERROR_TYPES, None)
    told = problem(failure, request_context.request_id(request), error_types)
    return JSONResponse(told.model_dump(mode="json"), failure.status, headers, MEDIA_TYPE)


def _methods(request: Request) -> list[str]:
    """All methods of the address; the framework would name only those of the first route."""
    matched = request.scope.get("route")
    path = getattr(matched, "path", request.scope["path"])  # the framework's own routes have no path here
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.path == path]
    return sorted({method for route in routes for method in route.methods or ()})


def problem(failure: RequestError, request_id: str, error_types: ErrorTypes | None = None) -> Problem:
    """The problem document of a failure: a user-safe message, never the cause."""
    detail = _detail(failure)
    return Problem(
        type=f"urn:affidavit:problem:{type(failure).__name__.strip('_').removesuffix('Error')}",
        title=failure.title,
        status=failure.status,
        detail=detail,
        error_type=(error_types or {}).get(failure.error_type, failure.error_type),
        retryable=failure.retryable,
        retry_after=failure.retry_after_s,
        user_safe_message=detail,
        retry_able=failure.retryable,
        request_id=request_id,
        query_id=failure.query_id,
        field=failure.field,
    )


def _detail(failure: RequestError) -> str:
    """With the name of the invalid field. A name that the client chose is told to it alone, and never recorded."""
    if failure.field is None or failure.detail.startswith(f"{failure.field}: "):
        return failure.detail
    return f"{failure.field}: {failure.detail}"
