"""What stands around every request: its id, the security headers, a line in the log, and its place in the figures."""

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from audit.proof.record import Trail
from engine.http import problems, request_context
from engine.http.metrics import Figures

DOCUMENT = "/openapi.json"
GONE = 0  # the status of a request that nobody was there to be answered
ASKED_EVERY_FEW_SECONDS = frozenset({"/healthz", "/readyz", "/metrics"})  # counted, but no line for each

_REQUEST_ID = re.compile(
    r"[\w.:-]{1,128}", re.ASCII
)  # a client's own id is echoed if it is harmless in a log

# Of CORS there is nothing: a page of another site may not read what we answer, and its server can ask.
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = logging.getLogger(__name__)


class Frame:
    """The outermost of what is ours. A fault that comes as far as here is told like any other failure."""

    def __init__(self, app: ASGIApp, figures: Figures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), GONE
        given = Headers(scope=scope).get("X-Request-ID", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        scope["state"]["request_id"] = request_id

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _add_headers(message, request_id)
            await send(message)

        try:
            await self._app(scope, receive, framed)
        except Exception:
            log.exception("A fault outside of the engine", extra={"request_id": request_id})
            if status == GONE:
                response = await problems.on_fault(Request(scope, receive))
                await response(scope, receive, framed)
        finally:
            self._tell(scope, status, time.monotonic() - started)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        """A client that left in the middle of a stream was sent a status; its record says that it left."""
        endpoint = _endpoint(scope)
        trail = scope["state"].get("trail")
        if trail and trail.outcome == "client_gone":
            status = GONE
        self._figures.count(endpoint, status, seconds, trail)
        if endpoint not in ASKED_EVERY_FEW_SECONDS:
            _log(endpoint, status, seconds, scope["state"]["request_id"], trail)


def _endpoint(scope: Scope) -> str:
    """The framework does not say which route it was that gave its own document."""
    route = scope.get("route")
    if route:
        return str(route.path)
    return DOCUMENT if scope["path"] == DOCUMENT else request_context.NO_ENDPOINT


def _add_headers(message: Message, request_id: str) -> None:
    headers = MutableHeaders(scope=message)
    headers["X-Request-ID"] = request_id
    for name, value in _SECURITY.items():
        headers.setdefault(name, value)


def _log(endpoint: str, status: int, seconds: float, request_id: str, trail: Trail | None) -> None:
    told = {"endpoint": endpoint, "status": status, "ms": round(seconds * 1000), "request_id": request_id}
    if trail:
        told |= {"query_id": str(trail.query_id), "outcome": trail.outcome}
        if reason := trail.reason or trail.error_type:
            told["reason"] = reason
    log.info("Request", extra=told)
