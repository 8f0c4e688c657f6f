"""Application factory: middleware, error handlers and routes around a `House` that opens when the server starts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from engine.errors import RequestError
from engine.house import House
from engine.http import openapi, problems, routes
from engine.http.cors import Cors
from engine.http.metrics import Figures, Metrics
from engine.http.middleware import MalformedRequests, RateLimitHeaders, RequestLog
from engine.http.widgets.lookups import Readiness


def create_app(
    open_house: Callable[[], AbstractAsyncContextManager[House]],
    metrics_folder: Path | None = None,
    add_routes: Callable[[FastAPI], None] = routes.add_routes,
) -> FastAPI:
    """`open_house` is called at start-up and closed at shutdown; server workers share metrics in `metrics_folder`."""
    figures = Figures()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        """Start-up and shutdown: the house, the metrics and the readiness, as the state of every request."""
        async with open_house() as house:
            measured = Metrics(figures, house.log_gauges, metrics_folder, house.tallies)
            sharing = asyncio.create_task(measured.share())
            try:
                yield {"house": house, "metrics": measured, "readiness": Readiness()}
            finally:
                sharing.cancel()
                await asyncio.wait([sharing])

    app = FastAPI(
        title="Affidavit",
        version="1",
        description="Answers only from the book, quoted word for word, each with a record that proves it.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be a response without a row
        lifespan=lifespan,
    )
    app.add_middleware(MalformedRequests)
    app.add_middleware(RateLimitHeaders)
    app.add_middleware(Cors)
    app.add_middleware(RequestLog, figures=figures)
    app.add_exception_handler(RequestError, problems.on_request_error)
    app.add_exception_handler(HTTPException, problems.on_http_exception)
    app.add_exception_handler(RequestValidationError, problems.on_invalid_request)
    add_routes(app)
    app.openapi = openapi.of(app)  # type: ignore[method-assign]  # the framework's hook for a document of one's own
    return app
