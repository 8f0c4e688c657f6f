"""The shape of an error: RFC 9457 with our fields. The only place that turns a failure into bytes for a client."""

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from engine.errors import RequestError, UnexpectedError

MEDIA_TYPE = "application/problem+json"

_PLAIN_WORDS = {
    404: ("There is nothing here", "This address does not exist. See /openapi.json for those that do."),
    405: ("This method does not fit", "This address does not take that method. See /openapi.json."),
}


def problem(failure: RequestError, request_id: str) -> JSONResponse:
    """What the client sees of a failure: safe words, never a cause."""
    body = {
        "type": f"urn:affidavit:problem:{type(failure).__name__.removesuffix('Error')}",
        "title": failure.title,
        "status": failure.status,
        "detail": failure.detail,
        "error_type": failure.error_type,
        "retryable": failure.retryable,
        "request_id": request_id,
        "query_id": str(failure.query_id) if failure.query_id else None,
    }
    if failure.field:
        body["field"] = failure.field
    headers = {"Retry-After": str(failure.retry_after_s)} if failure.retry_after_s else {}
    if failure.status == 401:  # noqa: PLR2004
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, failure.status, headers, MEDIA_TYPE)


async def on_request_error(request: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, RequestError)
    return problem(failure, request_id_of(request))


async def on_http_exception(request: Request, failure: Exception) -> JSONResponse:
    """What the framework refuses by itself: no such address, wrong method."""
    assert isinstance(failure, HTTPException)
    title, detail = _PLAIN_WORDS.get(failure.status_code, ("The request was refused", str(failure.detail)))
    body = {
        "type": "about:blank",
        "title": title,
        "status": failure.status_code,
        "detail": detail,
        "error_type": "validation",
        "retryable": False,
        "request_id": request_id_of(request),
        "query_id": None,
    }
    return JSONResponse(body, failure.status_code, failure.headers, MEDIA_TYPE)


async def on_fault(request: Request, _: Exception) -> JSONResponse:
    """A fault of ours outside a question. The server logs it; the client learns only that."""
    return problem(UnexpectedError(), request_id_of(request))


def request_id_of(request: Request) -> str:
    return str(request.state.request_id)
