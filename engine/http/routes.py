"""Route handlers: each address with its parameters, its response and its entry in the OpenAPI document.

Every request leaves exactly one row, also one that is rejected before a route runs (problems.py). The exceptions serve
nothing of a book and no personal data, and are requested every few seconds: `/healthz`, `/readyz`, `/health`, `/api/health`,
`/metrics`, `/`, `/openapi.json`, `/v1/signing-keys` and `/console/assets/…`, as long as they succeed, and a browser's preflight for a listed origin
(cors.py). All others go through `Engine.answer` or `Engine.serve`.
"""

import base64
import functools
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from audit.access.access import Access, role_of
from audit.errors import ProofUnavailableError, UnprovenError, UnsealedRecordError
from audit.proof.record import Row
from engine.admission.end_user import user_id_of
from engine.admission.reads import note_read
from engine.admission.sessions import Owner, Sessions, Turn
from engine.answer import ASK
from engine.errors import (
    DatabaseUnavailableError,
    NotSealedError,
    UnknownBookError,
    UnknownPassageError,
    UnknownRecordError,
    UnknownSessionError,
)
from engine.house import ANSWERING, House
from engine.http import cors, metrics, problems, request_context, stream, v1
from engine.http.console.serving import add_console
from engine.http.page import context
from engine.http.records import erasures, feedback
from engine.http.stream import Answering, Format, QuestionExchange
from engine.http.widgets import CONTRACTS, lookups
from engine.http.widgets.contract import Contract
from engine.models import Client, Passage, Question, Trail
from engine.retrieval.library import Chapter

PAGE = Path(__file__).with_name("page") / "page.html"

_CHUNK_ID = re.compile(r"[0-9a-f]{64}")
AUDIT = "audit"
NEW_SESSION = "new-session"  # of the header `Prefer`
_MAY_READ = frozenset({"ask", AUDIT})

Result = TypeVar("Result")

Responses = dict[int | str, dict[str, Any]]


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": {problems.MEDIA_TYPE: {}}, "model": problems.Problem}


_PROBLEMS: Responses = {
    400: _problem("The body is not valid JSON in UTF-8, has a NUL character, or has a key twice"),
    401: _problem("No API key, or an unknown, revoked or expired one"),
    403: _problem("The key is valid but lacks the scope"),
    404: _problem("No such book or passage"),
    408: _problem("The body did not arrive in time; the connection is closed"),
    413: _problem("The body is larger than the limit (64 KiB by default)"),
    422: _problem("A field is invalid"),
    429: _problem("Too many requests"),
    500: _problem("An internal error"),
    502: _problem("The language model failed"),
    503: _problem("A required part is unavailable, or the record cannot be written"),
    504: _problem("The request took too long"),
}
_LOOKED_UP: Responses = {status: _PROBLEMS[status] for status in (401, 403, 404, 429, 500, 503, 504)}
_CONVERSED: Responses = _LOOKED_UP | {422: _PROBLEMS[422]}
_DELETED: Responses = _CONVERSED | {
    409: _problem("A legal hold covers the conversation, so it was not deleted")
}
_ERASED: Responses = {
    409: _problem(
        "Nothing was erased. Some of the records are not sealed yet: retry after Retry-After seconds. Or a legal hold"
        " covers some of them: the request is kept, and carried out when the hold ends (retryable: false)"
    ),
    **{status: _PROBLEMS[status] for status in (400, 401, 403, 404, 408, 413, 422, 429, 500, 503, 504)},
}
_TOKEN_MADE: Responses = {
    status: _PROBLEMS[status] for status in (400, 401, 403, 404, 408, 413, 422, 429, 500, 503, 504)
}
_JUDGED: Responses = _TOKEN_MADE | {404: _problem("You have no answer or refusal of this query")}
_PROVEN: Responses = {
    200: {
        "description": "The proof bundle: save these exact bytes for `affidavit audit check`",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    409: _problem("The record is not sealed yet: retry after Retry-After seconds"),
}
_UNHEALTHY: Responses = {503: {"description": "Questions are not answered", "model": lookups.HealthBody}}
_UNREADY: Responses = {503: {"description": "A part is not ready", "model": dict[str, str]}}
_ANSWERED: Responses = {
    200: {
        "description": "Answered or refused. With `Accept: text/event-stream` as events: `sources`, each proven `sentence`,"
        " then `done` with this object, or `error` with a problem if the request fails after the stream has started.",
        "content": {stream.MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}

Authorization = Annotated[str | None, Header(description="`Bearer <API key>`")]
EndUser = Annotated[
    str | None,
    Header(
        alias="X-End-User",
        description="`user:<uuid>` or `anon:<address>`",
        json_schema_extra={"format": "end-user"},
        examples=["anon:203.0.113.7"],
    ),
]
SessionToken = Annotated[
    str | None,
    Header(
        alias="X-Session-Token", description="The token of a session that was started without a `user:<uuid>`"
    ),
]
Prefer = Annotated[
    str | None,
    Header(
        description="`new-session`: if the session cannot be continued, a new one begins instead of the error"
    ),
]


def add_routes(app: FastAPI) -> None:
    """Each address with its handler, its schemas and its problems."""
    for path, endpoint in (("/v1/query", query), ("/v1/books/{book_id}/query", query_book)):
        app.post(
            path, response_model=v1.QueryResponse, responses=_ANSWERED | _PROBLEMS,
            openapi_extra=_request_body(v1.QueryRequest),
        )(endpoint)  # fmt: skip
    for contract, path in ((each, path) for each in CONTRACTS for path in each.paths):
        app.post(
            path, summary=contract.summary, responses=contract.streamed() | _PROBLEMS,
            openapi_extra=_request_body(contract.asks), **_answered_as(contract),
        )(_ask_book(contract) if "{book_id}" in path else _ask_default(contract))  # fmt: skip
    for path in ("/v1/sessions/{session_id}", "/api/v1/chat/sessions/{session_id}"):
        app.get(path, responses=_CONVERSED)(session)
        app.delete(path, responses=_DELETED)(delete_session)
    app.get(lookups.CHAPTERS, responses=_LOOKED_UP)(chapters)
    app.get("/v1/chunks/{chunk_id}", responses=_LOOKED_UP)(passage)
    app.get("/v1/receipts/{query_id}", response_class=Response, responses=_PROVEN | _LOOKED_UP)(receipt)
    erasing = _request_body(erasures.ErasureRequest)
    app.post("/v1/erasures", responses=_ERASED, openapi_extra=erasing)(erase)
    app.post(
        "/v1/public-tokens", responses=_TOKEN_MADE, openapi_extra=_request_body(cors.PublicTokenRequest)
    )(public_token)  # fmt: skip
    app.post("/v1/feedback", responses=_JUDGED, openapi_extra=_request_body(feedback.FeedbackRequest))(judge)
    app.get("/v1/signing-keys")(signing_keys)
    app.get("/healthz")(alive)
    app.get("/readyz", responses=_UNREADY)(ready)
    for path in lookups.HEALTH:
        app.get(path, responses=_UNHEALTHY)(health)
    app.get("/metrics", response_class=PlainTextResponse, operation_id="figures_of_all_metrics_get")(
        metrics_text
    )
    app.get("/", response_class=HTMLResponse, responses={404: _PROBLEMS[404]})(page)
    context.add_page_routes(app)
    add_console(app)


async def query(
    request: Request,
    authorization: Authorization = None,
    end_user: EndUser = None,
    session_token: SessionToken = None,
    prefer: Prefer = None,
) -> Response:
    """Ask the default book of the settings."""
    unnamed = request_context.asked_book(request)
    return await query_book(request, unnamed, authorization, end_user, session_token, prefer)


async def query_book(
    request: Request,
    book_id: str,
    authorization: Authorization = None,
    end_user: EndUser = None,
    session_token: SessionToken = None,
    prefer: Prefer = None,
) -> Response:
    """Ask one book."""
    may_begin_anew = NEW_SESSION in map(str.strip, (prefer or "").split(","))
    turn = request_context.house(request).turn(session_token, may_begin_anew=may_begin_anew)
    question = v1.renewing_question if may_begin_anew else v1.question
    return _ask(request, book_id, authorization, end_user, question, turn=turn)


async def session(
    request: Request,
    session_id: UUID,
    authorization: Authorization = None,
    end_user: EndUser = None,
    session_token: SessionToken = None,
) -> v1.SessionBody:
    """The messages of a session, for its owner."""

    async def serve(client: Client, trail: Trail) -> dict[str, Any]:
        sessions = _sessions(request, session_id, trail)
        return await sessions.read(session_id, Owner(client, user_id_of(end_user), session_token))

    return v1.SessionBody.model_validate(await _serve(request, authorization, serve))


async def delete_session(
    request: Request,
    session_id: UUID,
    authorization: Authorization = None,
    end_user: EndUser = None,
    session_token: SessionToken = None,
) -> v1.DeletedBody:
    """Delete a session with all its messages. The audit log keeps its record of each question."""

    async def serve(client: Client, trail: Trail) -> None:
        sessions = _sessions(request, session_id, trail)
        await sessions.delete(session_id, Owner(client, user_id_of(end_user), session_token))

    await _serve(request, authorization, serve)
    return v1.DeletedBody(id=session_id)


async def passage(request: Request, chunk_id: str, authorization: Authorization = None) -> v1.PassageBody:
    """A passage as it was cited. `start` and `end` of a citation are character offsets into its text."""
    library = request_context.house(request).engine.library

    async def serve(client: Client, trail: Trail) -> Passage:
        if not _CHUNK_ID.fullmatch(chunk_id):
            raise UnknownPassageError
        trail.chunks_returned = [{"chunk_id": chunk_id}]
        found = await library.passages([chunk_id])
        if chunk_id not in found or not client.may_ask(found[chunk_id].book_id):
            raise UnknownPassageError
        trail.book_id = found[chunk_id].book_id
        return found[chunk_id]

    cited = await _serve(request, authorization, serve, scopes=_MAY_READ)
    return v1.PassageBody(
        chunk_id=cited.chunk_id, book_id=cited.book_id, chapter=cited.chapter, section=cited.section,
        filename=cited.filename, page=cited.start_page, url=cited.url, text=cited.text,
    )  # fmt: skip


async def chapters(request: Request, authorization: Authorization = None) -> lookups.ChaptersBody:
    """The chapters of the default book of the settings."""
    house = request_context.house(request)

    async def serve(client: Client, trail: Trail) -> list[Chapter]:
        book_id = request_context.asked_book(request)
        v1.check_book_id(book_id)
        if not client.may_ask(book_id):
            raise UnknownBookError
        trail.book_id = book_id
        generation = await house.engine.library.live(book_id)
        return await house.library.chapters(generation.generation_id)

    return lookups.contents(await _serve(request, authorization, serve, scopes=_MAY_READ))


async def receipt(request: Request, query_id: UUID, authorization: Authorization = None) -> Response:
    """The proof of a record, for the client whose question it is and for auditors, if the key is for its book."""

    async def serve(client: Client, trail: Trail) -> bytes:
        trail.details = {"query_id": str(query_id)}
        return await _proof(request_context.house(request), query_id, client, trail)

    content = await _serve(request, authorization, serve, scopes=_MAY_READ)
    return Response(content, media_type="application/json")


async def erase(request: Request, authorization: Authorization = None) -> erasures.ErasureBody:
    """Erase a reader, or one query, from all records. Needs the scope `erase`. All proofs stay valid."""
    house = request_context.house(request)
    asked = request_context.asked(request, authorization, scopes=erasures.ERASE)
    unnamed = replace(asked, end_user=None)  # the record of an erasure must not name the reader again

    async def serve(client: Client, _: Trail) -> erasures.ErasureBody:
        return await erasures.erased(house, await request_context.body(request), client)

    return await house.engine.serve(unnamed, serve)


async def public_token(request: Request, authorization: Authorization = None) -> cors.PublicTokenBody:
    """A short-lived token with which pages of one site ask about one book. For the site's server."""
    house = request_context.house(request)

    async def serve(client: Client, trail: Trail) -> cors.PublicTokenBody:
        return await cors.public_token(house, await request_context.body(request), client, trail)

    return await _serve(request, authorization, serve)


async def judge(request: Request, authorization: Authorization = None) -> feedback.FeedbackBody:
    """Feedback on an answer or a refusal, from the client whose question it was; with a public token, from that reader."""
    house = request_context.house(request)
    asked = replace(request_context.asked(request, authorization), is_for_pages=True)

    async def serve(client: Client, trail: Trail) -> feedback.FeedbackBody:
        return await feedback.given(house, await request_context.body(request), client, trail)

    return await house.engine.serve(asked, serve)


async def signing_keys(request: Request) -> dict[str, list[str]]:
    """All public keys that have signed, the newest last, with the delegations of the last month. Compare them with keys that
    you received in another way."""
    return {"keys": await request_context.house(request).public_keys()}


async def alive() -> dict[str, str]:
    """Liveness probe: the process runs."""
    return {"status": "alive"}


async def ready(request: Request, response: Response) -> dict[str, str]:
    """Readiness probe: the parts that a question needs, each with its state."""
    parts: dict[str, str] = await request.state.readiness.parts(request_context.house(request))
    response.status_code = 200 if ANSWERING.issuperset(parts.values()) else 503
    return parts


async def health(request: Request, response: Response) -> lookups.HealthBody:
    """Whether questions are answered, for widgets that ask before they show themselves."""
    found = await lookups.health(request_context.house(request), request.state.readiness)
    response.status_code = 503 if found.status == "unhealthy" else 200
    return found


async def metrics_text(request: Request) -> PlainTextResponse:
    """Metrics in Prometheus' text format: requests, outcomes, latencies, and gauges of the audit log."""
    return PlainTextResponse(await request.state.metrics.page(), media_type=metrics.MEDIA_TYPE)


async def page(request: Request) -> HTMLResponse:
    """A page to ask questions on."""
    if not request_context.house(request).page_enabled:
        raise HTTPException(404)
    html, policy = _page()
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


def _request_body(kind: type[BaseModel]) -> dict[str, Any]:
    """For the OpenAPI document: we parse the body, not the framework."""
    schema = kind.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _answered_as(contract: Contract) -> dict[str, Any]:
    """For the OpenAPI document: a contract that always streams has no body in one piece."""
    if contract.form.is_always_stream:
        return {"response_class": stream.EventStream, "response_model": None}
    return {"response_model": contract.says}


def _ask_default(contract: Contract) -> Callable[..., Any]:
    in_book = _ask_book(contract)

    async def ask(
        request: Request,
        authorization: Authorization = None,
        end_user: EndUser = None,
        session_token: SessionToken = None,
    ) -> Response:
        default_book = request_context.asked_book(request)
        answering: Answering = await in_book(request, default_book, authorization, end_user, session_token)
        return answering

    return ask


def _ask_book(contract: Contract) -> Callable[..., Any]:
    async def ask_book(
        request: Request,
        book_id: str,
        authorization: Authorization = None,
        end_user: EndUser = None,
        session_token: SessionToken = None,
    ) -> Response:
        request.state.error_types = contract.error_types
        house = request_context.house(request)
        turn = house.turn(session_token, may_begin_anew=True) if contract.has_sessions else None
        return _ask(request, book_id, authorization, end_user, contract.question, contract.form, turn)

    return ask_book


def _ask(
    request: Request,
    book_id: str,
    authorization: str | None,
    end_user: str | None,
    question: Callable[[bytes, str, str | None, int], Question],
    form: Format = stream.V1,
    turn: Turn | None = None,
) -> Answering:
    house = request_context.house(request)

    async def read() -> Question:
        body = await request_context.body(request)
        return question(body, book_id, end_user, house.top_k)

    exchange = QuestionExchange(request, read, form, turn)
    asked = request_context.asked(request, authorization, exchange)
    return Answering(house.engine, asked, exchange)


async def _serve(
    request: Request,
    authorization: str | None,
    work: Callable[[Client, Trail], Awaitable[Result]],
    scopes: frozenset[str] = ASK,
) -> Result:
    asked = request_context.asked(request, authorization, scopes=scopes)
    return await request_context.house(request).engine.serve(asked, work)


def _sessions(request: Request, session_id: UUID, trail: Trail) -> Sessions:
    trail.session_id = session_id
    sessions = request_context.house(request).sessions
    if sessions is None:
        raise UnknownSessionError
    return sessions


async def _proof(house: House, query_id: UUID, client: Client, trail: Trail) -> bytes:
    try:
        row = await house.prover.row(query_id)
        if not _may_read(client, row):
            raise UnknownRecordError
        trail.book_id = row.get("book_id")
        if row.get("client_id") != client.client_id:
            access = Access(client.client_id, f"query {query_id}", role=role_of(client.scopes), records=1)
            note_read(trail, house.access_policy, access)
        return await house.prover.prove(row)
    except UnsealedRecordError:
        raise NotSealedError from None
    except ProofUnavailableError:
        raise DatabaseUnavailableError from None
    except UnprovenError:
        raise UnknownRecordError from None


def _may_read(client: Client, row: Row) -> bool:
    """A record without a book, such as an operator's, is for its own client and for auditors of all books."""
    is_own, book_id = row.get("client_id") == client.client_id, row.get("book_id")
    if is_own and book_id is None:
        return True
    return (is_own or AUDIT in client.scopes) and client.may_ask(book_id or "")


@functools.cache
def _page() -> tuple[str, str]:
    """The page, and a Content-Security-Policy that allows exactly its own script and style by their hashes."""
    html = PAGE.read_text()
    sources = {
        name: base64.b64encode(sha256(text.encode()).digest()).decode()
        for name, text in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL)
    }
    policy = (
        f"default-src 'none'; script-src 'sha256-{sources['script']}'; style-src 'sha256-{sources['style']}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy
