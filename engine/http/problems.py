"""Error responses: RFC 9457 problem documents with our fields, and the exception handlers that build them.

No other module turns a failure into bytes for a client.
"""

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
    NotFoundError,
    RequestError,
    UnexpectedError,
    WrongMethodError,
)
from engine.http import request_context

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """RFC 9457, with what a client needs to decide what to do next. `user_safe_message` and `retry_able` repeat `detail`
    and `retryable` under the names of specification 003."""

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
    """Rejections by the framework: unknown address, wrong method."""
    assert isinstance(failure, HTTPException)
    known: dict[int, type[RequestError]] = {404: NotFoundError, 405: WrongMethodError}
    recorded = await _on_record(known.get(failure.status_code, UnexpectedError)(), request)
    response = _problem(recorded, request)
    if recorded.status == 405:  # noqa: PLR2004
        response.headers["Allow"] = ", ".join(_methods(request))
    return response


def _methods(request: Request) -> list[str]:
    """All methods of the address; the framework would name only those of the first route."""
    path = getattr(
        request.scope.get("route"), "path", request.scope["path"]
    )  # the framework's own routes have no path here
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.path == path]
    return sorted({method for route in routes for method in route.methods or ()})


async def on_invalid_request(request: Request, failure: Exception) -> JSONResponse:
    """An invalid part of the address. Its text is not repeated: it is the client's."""
    assert isinstance(failure, RequestValidationError)
    name = str(failure.errors()[0]["loc"][-1])
    wrong = InvalidFieldError(f"{name}: is not valid in this address.", field=name)
    return _problem(await _on_record(wrong, request), request)


async def on_fault(request: Request) -> JSONResponse:
    """An unexpected exception outside the engine. The log has the traceback; the client gets a plain 500."""
    return _problem(await _on_record(UnexpectedError(), request), request)


async def _on_record(failure: RequestError, request: Request) -> RequestError:
    """Writes the row of a request that failed before it reached the engine."""
    if request_context.is_on_record(request):
        return failure
    engine = request_context.house(request).engine
    return await engine.reject(
        request_context.asked(request, request.headers.get("Authorization"), scopes=frozenset()), failure
    )


def problem(failure: RequestError, request: Request) -> Problem:
    """The problem document of a failure: a user-safe message, never the cause."""
    return _document(failure, request_context.request_id(request), failure.query_id)


def example(failure: RequestError) -> dict[str, Any]:
    """An example for the OpenAPI document."""
    return _document(failure, "3f6c1d0e-5b7a-4f43-9d7e-6a1f0c2b8e94", None).model_dump(mode="json")


def _document(failure: RequestError, request_id: str, query_id: UUID | None) -> Problem:
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
