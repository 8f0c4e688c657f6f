"""ASGI middleware: request ids, security headers, rate-limit headers, the request log and the request metrics.

Pure ASGI, because a framework's middleware would buffer streams.
"""

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.errors import NotHttpError
from engine.http import problems, request_context
from engine.http.metrics import Figures
from engine.logs import HAS_CLIENT
from engine.models import Quota
from engine.spans import Finished

DOCUMENT = "/openapi.json"
# In the state of a request that is not valid HTTP. The protocol sets them: its failure, or that its body fails.
MALFORMED_HEAD = "malformed_head"
MALFORMED_BODY = "malformed_body"
CLIENT_GONE = 0  # the status in the metrics of a request whose client disconnected
PROBES = frozenset(
    {"/healthz", "/readyz", "/health", "/api/health", "/metrics"}
)  # polled every few seconds: counted, but not logged

REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)  # a client's own id is kept if it is harmless in a log

# Pages of other sites read nothing, unless their site is listed (cors.py).
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}

log = logging.getLogger(__name__)


class RequestLog:
    """The outermost middleware. An exception that reaches it becomes a problem document like any other failure."""

    def __init__(self, app: ASGIApp, figures: Figures) -> None:
        self._app = app
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), CLIENT_GONE
        given = ",".join(Headers(scope=scope).getlist("X-Request-ID"))  # one alone has no comma
        request_id = given if REQUEST_ID.fullmatch(given) else str(uuid.uuid4())
        scope["state"]["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except Exception:
            log.exception("A fault outside of the engine", extra={"request_id": request_id})
            if status == CLIENT_GONE:
                response = await problems.on_fault(Request(scope, receive))
                await response(scope, receive, send_with_headers)
        finally:
            self._report(scope, status, started)

    def _report(self, scope: Scope, status: int, started: float) -> None:
        """A client that disconnected during a stream was sent a status before; its record says that it disconnected."""
        ended = time.monotonic()
        seconds = ended - started
        endpoint = _endpoint(scope)
        trail = scope["state"].get("trail")
        if trail and trail.outcome == "client_gone":
            status = CLIENT_GONE
        stages = scope["state"].get("stages", ())
        self._figures.count(endpoint, status, seconds, trail, stages)
        if trail:
            traceparent = ",".join(Headers(scope=scope).getlist("traceparent"))  # two are none
            _trace(
                scope,
                Finished(trail, stages, scope["method"], status, started, ended, time.time_ns(), traceparent),
            )
        if endpoint in PROBES:
            return
        fields = {"endpoint": endpoint, "status": status, "ms": round(seconds * 1000)}
        fields["request_id"] = scope["state"]["request_id"]
        fields[HAS_CLIENT] = bool(trail and trail.client_id)
        if trail:
            fields |= {"query_id": str(trail.query_id), "outcome": trail.outcome}
            if reason := trail.reason or trail.error_type:
                fields["reason"] = reason
        log.info("Request", extra=fields)


def _trace(scope: Scope, request: Finished) -> None:
    """After the response, and whatever goes wrong, so that a trace can neither delay nor fail one."""
    tracer = scope["state"]["house"].tracer
    try:
        if tracer:
            tracer.trace(request)
    except Exception:
        log.exception("A trace could not be made")


def _endpoint(scope: Scope) -> str:
    """The framework names no route for its own OpenAPI document."""
    route = scope.get("route")
    if route:
        return str(route.path)
    return DOCUMENT if scope["path"] == DOCUMENT else request_context.NO_ENDPOINT


class MalformedRequests:
    """Fails a request that the server's protocol cannot parse, so that it gets a row and a problem document like any other.

    With a malformed body it fails where the body is read, so its key is checked and its endpoint recorded.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_well_formed() -> Message:
            message = await receive()
            if scope["state"].get(MALFORMED_BODY):
                raise NotHttpError
            return message

        malformed = scope["state"].get(MALFORMED_HEAD) if scope["type"] == "http" else None
        if malformed:
            response = await problems.on_request_error(Request(scope), malformed())
            await response(scope, receive, send)
        else:
            await self._app(scope, receive_well_formed, send)


class RateLimitHeaders:
    """Adds the headers to every response that was counted, also to a refused one and to a stream."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_quota(message: Message) -> None:
            allowance = scope.get("state", {}).get("allowance")
            if message["type"] == "http.response.start" and allowance and allowance.quota:
                MutableHeaders(scope=message).update(_quota_headers(allowance.quota))
            await send(message)

        await self._app(scope, receive, send_with_quota)


def _quota_headers(quota: Quota) -> dict[str, str]:
    """The three that many clients read, and the two of the IETF's draft."""
    return {
        "RateLimit-Limit": str(quota.limit),
        "RateLimit-Remaining": str(quota.remaining),
        "RateLimit-Reset": str(quota.reset_s),
        "RateLimit-Policy": f'"{quota.policy}";q={quota.limit};w={quota.window_s}',
        "RateLimit": f'"{quota.policy}";r={quota.remaining};t={quota.reset_s}',
    }
