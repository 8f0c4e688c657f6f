"""OpenAPI document (`/openapi.json`): the framework's document, completed with a schema and an example for every response."""

import functools
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from engine import errors
from engine.errors import RequestError
from engine.http import problems
from engine.http.widgets import CONTRACTS, lookups

Json = dict[str, Any]

SECURITY = {"type": "http", "scheme": "bearer", "description": "An API key: `affidavit keys create`."}
_REQUEST_ID: Json = {
    "description": "The id of this request in the records and in the server's log. An id that you send is kept if it is up to 128 letters, digits, `_`, `.`, `:` and `-`.",
    "schema": {"type": "string"},
}
_RETRY_AFTER: Json = {"description": "Seconds to wait before retrying", "schema": {"type": "integer"}}
_PROBLEM_SCHEMA: Json = {"schema": {"$ref": "#/components/schemas/Problem"}}
_PROBLEM: Json = {"description": "An internal error", "content": {problems.MEDIA_TYPE: _PROBLEM_SCHEMA}}
_INVALID: Json = _PROBLEM | {"description": "A part of the address is invalid"}
_QUERY_ID = "5f0c3a52-7f0e-4c2e-9d55-0b8a4c1f6a10"
_CHUNK_ID = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

# The example of each status: the failure that has it most often.
_TYPICAL: dict[int, type[RequestError]] = {
    400: errors.BadRequestError,
    401: errors.UnauthenticatedError,
    403: errors.ForbiddenError,
    404: errors.UnknownBookError,
    408: errors.TooSlowError,
    409: errors.NotSealedError,
    413: errors.TooLargeError,
    422: errors.InvalidFieldError,
    429: errors.RateLimitedError,
    500: errors.UnexpectedError,
    502: errors.ModelFailedError,
    503: errors.AuditUnavailableError,
    504: errors.OutOfTimeError,
}

_CITATION: Json = {
    "n": 1, "chunk_id": _CHUNK_ID, "section": "Inertial measurement units", "chapter": "Sensors and state estimation",
    "filename": "03-sensors-and-state-estimation.md", "page": "42", "url": "/docs/sensors#inertial-measurement-units",
    "excerpt": "An IMU measures acceleration and angular velocity.", "start": 120, "end": 170, "score": 0.83,
}  # fmt: skip
_ANSWERED: Json = {
    "query_id": _QUERY_ID, "answer_id": "0c6de6f7-9a2f-4a53-8f70-2f3f7a4c9b11", "book_id": "physical-ai",
    "outcome": "answered", "reason": None,
    "answer": "An IMU measures acceleration and angular velocity. [Source: Inertial measurement units (Page 42) -"
    ' "An IMU measures acceleration and angular velocity."]',
    "citations": [_CITATION],
    "sources": [
        {
            "chapter_id": "03-sensors-and-state-estimation", "chapter_title": _CITATION["chapter"], "relevance_score": 0.83,
            "excerpt": _CITATION["excerpt"], "position": 1,
        }
    ],
    "confidence": 0.82, "confidence_score": 0.82, "confidence_level": "medium", "retrieval_confidence": 0.83,
    "generation_confidence": 0.8, "source_mode": "full-book", "model_used": "extractive",
    "tokens_used": {"input": 0, "output": 0, "total": 0},
    "timings": {"retrieval_ms": 31, "generation_ms": 4, "audit_ms": 3, "total_ms": 44},
    "session_id": None, "session_token": None, "session_message": None, "filter_message": None, "nearest": [],
    "receipt": {
        "log_id": "b8a1d2a4-3d0f-4d0e-8a53-8a8d1d3b6a52", "leaf_hash": "00" * 32,
        "issued_at": "2026-01-15T10:30:00+00:00", "key_id": "7d1f2c3b", "signature": "…",
    },
}  # fmt: skip
_REFUSED: Json = _ANSWERED | {
    "answer_id": None, "outcome": "refused", "reason": "not_covered",
    "answer": "This question is not covered in the book.", "citations": [], "sources": [], "confidence": 0, "confidence_score": None,
    "confidence_level": None, "retrieval_confidence": None, "generation_confidence": None, "model_used": None,
    "nearest": [
        {"section": "Cameras", "chapter": "Sensors and state estimation", "url": "/docs/sensors#cameras", "score": 0.31}
    ],
}  # fmt: skip

_PASSAGE: Json = {
    "chunk_id": _CHUNK_ID, "book_id": "physical-ai", "chapter": _CITATION["chapter"], "section": _CITATION["section"],
    "filename": _CITATION["filename"], "page": "42", "url": "/docs/sensors",
    "text": "An IMU measures acceleration and angular velocity. It drifts.",
}  # fmt: skip
_CONTEXT: Json = {
    **{name: _PASSAGE[name] for name in ("book_id", "chunk_id", "chapter", "page", "url")},
    "before": {"section": "Joint sensors", "text": "An encoder counts.", "code": []},
    "passage": {"section": _CITATION["section"], "text": _PASSAGE["text"], "code": []},
    "after": None,
}
_SESSION: Json = {
    "id": "4a6f4b0e-0f2b-4d8c-9f0e-2f1d7f3c5b60", "user_id": None, "created_at": "2026-01-15T10:30:00+00:00",
    "last_activity_at": "2026-01-15T10:30:00+00:00",
    "messages": [
        {
            "id": "e0f1b7a2-6d3c-4b1a-8d55-3c2a1b0f9e88", "session_id": "4a6f4b0e-0f2b-4d8c-9f0e-2f1d7f3c5b60",
            "query_id": _QUERY_ID, "role": "user", "content": "What does an IMU measure?", "tokens_used": None,
            "confidence": None, "sources": [], "created_at": "2026-01-15T10:30:00+00:00",
        }
    ],
}  # fmt: skip

_ERASED: Json = {
    "erasure_id": "c6c1f5c8-2c1b-4a52-9b55-4b1d2e3f4a5b", "records": 12, "archived": 3, "already": 0, "conversations": 1,
    "open": 0, "set_aside": 0, "left": [],
}  # fmt: skip

_TOKEN: Json = {
    "token": "afp_eyJrZXlfaWQiOiAi….Jm3…", "origin": "https://book.example.org", "book_id": "physical-ai",
    "expires_at": "2026-01-15T10:35:00+00:00",
}  # fmt: skip

# Examples by the name of the response body; the contracts of widgets have theirs in their own files.
EXAMPLES: dict[str, list[Json]] = {
    "QueryResponse": [_ANSWERED, _REFUSED],
    "ReadableBooksBody": [{"books": [{"book_id": "physical-ai", "title": "Physical AI"}]}],
    "ExamplesBody": [{"questions": ["What is sensor fusion?"]}],
    "ContextBody": [_CONTEXT],
    "PassageBody": [_PASSAGE],
    "SessionBody": [_SESSION],
    "ErasureBody": [_ERASED],
    "PublicTokenBody": [_TOKEN],
    "FeedbackBody": [{"query_id": _QUERY_ID, "recorded": True}],
    "DeletedBody": [{"id": _SESSION["id"], "deleted": True}],
}  # fmt: skip

# The framework leaves null out of the examples in a model's own schema.
_MODELS: list[type[BaseModel]] = [lookups.HealthBody, lookups.ChaptersBody]
for _model in (*_MODELS, *(contract.says for contract in CONTRACTS)):
    EXAMPLES.setdefault(_model.__name__, _model.model_json_schema().get("examples", []))

# Links from an answer to its record and its passages.
_LINKS: Json = {
    "receipt": {
        "operationRef": "#/paths/~1v1~1receipts~1{query_id}/get",
        "parameters": {"query_id": "$response.body#/query_id"},
    },
    "passage": {
        "operationRef": "#/paths/~1v1~1chunks~1{chunk_id}/get",
        "parameters": {"chunk_id": "$response.body#/citations/0/chunk_id"},
    },
}


def of(app: FastAPI) -> Callable[[], Json]:
    """Builds the document on the first call and caches it."""
    return functools.cache(lambda: whole(FastAPI.openapi(app)))


def whole(document: Json) -> Json:
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):  # the framework's own; we answer with a problem
        schemas.pop(name, None)
    for schema in schemas.values():
        schema.pop("examples", None)
    document["components"]["securitySchemes"] = {"key": SECURITY}
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        _share_parts(operation, schemas)
        _move_key(operation)
        _drop_null(operation)
        responses = operation["responses"]
        responses.setdefault("500", deepcopy(_PROBLEM))
        if "HTTPValidationError" in str(responses.get("422")):
            responses["422"] = deepcopy(_INVALID)
        for status, response in responses.items():
            _complete(int(status), response)
    return document


def _move_key(operation: Json) -> None:
    """Moves `Authorization` to the security schemes: OpenAPI ignores it among the parameters."""
    parameters = operation.get("parameters", [])
    others = [parameter for parameter in parameters if parameter["name"].lower() != "authorization"]
    if len(others) < len(parameters):
        operation["security"] = [{"key": []}]
        operation["parameters"] = others


def _share_parts(operation: Json, schemas: Json) -> None:
    """Moves the definitions nested in a request body's schema to the document's components."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        text = json.dumps(content["schema"]).replace("#/$defs/", "#/components/schemas/")
        content["schema"] = json.loads(text)
        schemas |= content["schema"].pop("$defs", {})


def _drop_null(operation: Json) -> None:
    """Drops `null` from optional headers: a header is absent, never null."""
    for parameter in operation.get("parameters", []):
        kinds = parameter["schema"].pop("anyOf", [])
        for kind in kinds:
            if kind != {"type": "null"}:
                parameter["schema"] |= kind


def _complete(status: int, response: Json) -> None:
    response["headers"] = {"X-Request-ID": _REQUEST_ID} | response.get("headers", {})
    content = response.get("content", {})
    if problems.MEDIA_TYPE in content:
        content.pop("application/json", None)  # the framework's guess of the problem's media type
        example = problems.problem(_TYPICAL[status](), "3f6c1d0e-5b7a-4f43-9d7e-6a1f0c2b8e94")
        content[problems.MEDIA_TYPE] = _PROBLEM_SCHEMA | {"example": example.model_dump(mode="json")}
        if _TYPICAL[status].retry_after_s:
            response["headers"]["Retry-After"] = _RETRY_AFTER
        return
    body = content.get("application/json", {})
    name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
    if examples := EXAMPLES.get(name):
        body["examples"] = {str(number): {"value": value} for number, value in enumerate(examples, 1)}
    if name == "QueryResponse":
        response["links"] = _LINKS
