"""What a client is told about its limits: on every answer that was counted, also on a no and on a stream."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.models import Quota


class Quotas:
    """Adds the headers `RateLimit-Limit`, `-Remaining` and `-Reset`, which many clients know, and the IETF draft's two."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def told(message: Message) -> None:
            allowance = scope.get("state", {}).get("allowance")
            if message["type"] == "http.response.start" and allowance and allowance.quota:
                MutableHeaders(scope=message).update(_headers(allowance.quota))
            await send(message)

        await self._app(scope, receive, told)


def _headers(quota: Quota) -> dict[str, str]:
    return {
        "RateLimit-Limit": str(quota.limit),
        "RateLimit-Remaining": str(quota.remaining),
        "RateLimit-Reset": str(quota.reset_s),
        "RateLimit-Policy": f'"{quota.policy}";q={quota.limit};w={quota.window_s}',
        "RateLimit": f'"{quota.policy}";r={quota.remaining};t={quota.reset_s}',
    }
