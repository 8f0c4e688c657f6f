"""The exception tree of `engine` and `ingest`. `audit/errors.py` has the one of `audit`.

A failed request carries its HTTP status and a message that is safe to show; a refusal is a value and not a failure.

AffidavitError
├── BackupError               a backup cannot be restored; the message says why and what to do
├── ConfigurationError        the settings or the data folder are wrong; raised at start-up only
├── EmbedderFailedError       the embedding vendor failed, and retries did not help
├── NotRebuildableError       the index of a book cannot be made of what the database holds
├── NotSeparableError         no threshold separates the labelled questions
├── LabelsError               a file of labelled questions is invalid
├── UnreadableError           one file of a book cannot be read; the others are ingested
├── RerankFailedError         the reranker returned no usable order; the blended order is kept
├── StatementError            an auditor's SQL cannot be run
└── RequestError              one request failed
    ├── NotHttpError          400  the request is not valid HTTP
    │   └── UnknownCodingError    501  its body has a transfer coding that the engine does not know
    ├── TooSlowError          408  it did not arrive completely in time
    ├── BadRequestError       400  the body cannot be parsed; each reason has its own class
    │   ├── NotUtf8Error
    │   ├── NotJsonError
    │   ├── TooDeepError
    │   ├── TooManyItemsError
    │   ├── KeyTwiceError
    │   ├── NulError
    │   └── HalfCharacterError
    ├── UnauthenticatedError  401  no API key, or an invalid one
    │   └── ExpiredTokenError     a public token whose minutes are over
    ├── ForbiddenError        403  a valid key without the required scope
    │   └── MaskedReadError       personal columns are masked for its role, and no basis or no approval was given
    ├── UnknownBookError      404
    ├── UnknownPassageError   404
    ├── UnknownRecordError    404
    ├── UnknownSessionError   404
    ├── NotFoundError     404
    ├── WrongMethodError      405  the route does not have this method
    ├── NotSealedError        409  the record exists, its proof does not yet
    ├── UnderHoldError        409  a legal hold keeps what was to be deleted
    ├── TooLargeError         413
    ├── InvalidFieldError     422  valid JSON, but a field breaks the contract
    ├── RateLimitedError      429
    ├── UnavailableError      503  a part that the request needs does not respond; each part has its own class
    │   ├── NotReadyError              no process is ready to serve
    │   ├── OverloadedError            more is asked than can be answered, and the queue is full
    │   ├── LimiterUnavailableError    a reader's requests cannot be counted, so they are rejected
    │   ├── IndexUnavailableError
    │   │   ├── IndexWorkerEndedError   of Qdrant Edge
    │   │   └── IndexDamagedError      it does not hold the book, or not all of it: it is rebuilt from the database
    │   ├── EmbedderUnavailableError
    │   ├── DatabaseUnavailableError
    │   ├── PassageDamagedError        a passage was changed in the database: the book must be ingested again
    │   ├── AuditUnavailableError      the record cannot be made durable, so no answer is given
    │   │   └── UnrecordedError        an operator's change cannot be recorded; also a LedgerUnavailableError of audit
    │   └── ModelBusyError             the language model is overloaded
    ├── IdentityProviderError 502  the provider that signs people in to the console failed
    ├── ModelFailedError      502  the language model returned no usable response
    ├── OutOfTimeError        504  the time budget (five seconds) is used up
    └── UnexpectedError       500  a bug or an unforeseen fault in the engine
"""

from typing import ClassVar, Literal
from uuid import UUID

ErrorType = Literal[
    "validation", "auth", "rate_limit", "network", "database", "llm", "timeout", "audit", "unknown"
]


class AffidavitError(Exception):
    """Base class of every exception that the engine raises on purpose."""


class ConfigurationError(AffidavitError):
    """The settings or the data folder are wrong. The message says what is wrong and how to fix it."""


class BackupError(AffidavitError):
    """A backup cannot be restored. The message says why, and what to do."""


class StatementError(AffidavitError):
    """An auditor's SQL cannot be run. The message is PostgreSQL's reason."""


class EmbedderFailedError(AffidavitError):
    """The embedding vendor returned unusable vectors, or failed at ingest after all retries."""


class NotSeparableError(AffidavitError):
    """The labelled questions cannot be used for a calibration. The message says why."""


class RerankFailedError(AffidavitError):
    """The reranker returned no usable order. The message goes into the record, so it never quotes the vendor."""


class RequestError(AffidavitError):
    """One request failed. `detail` is shown to the client, so it never contains a secret, a host name or a driver's message."""

    status: ClassVar[int] = 500
    error_type: ClassVar[ErrorType] = "unknown"
    title: ClassVar[str] = "Something went wrong"
    detail: str = "An unexpected error occurred in the service. It was recorded. Please try again."
    retryable: ClassVar[bool] = False
    retry_after_s: int | None = None

    def __init__(
        self,
        detail: str | None = None,
        *,
        field: str | None = None,
        retry_after_s: int | None = None,
        upstream: str | None = None,
    ) -> None:
        self.detail = detail or type(self).detail
        self.field = field
        self.upstream = upstream  # how a vendor failed: for the record only, and never quoted from the vendor
        self.retry_after_s = retry_after_s or type(self).retry_after_s
        self.query_id: UUID | None = None  # set once there is one, so that the client can name its record
        super().__init__(self.detail)


class NotHttpError(RequestError):
    status = 400
    error_type = "validation"
    title = "The request is not valid HTTP"
    detail = (
        "The request breaks the rules of HTTP/1.1, so its connection is closed. Correct it and send it again."
    )


class UnknownCodingError(NotHttpError):
    status = 501
    title = "The transfer coding is not supported"
    detail = "The request's body has a transfer coding that this service does not know. Send it with Content-Length, or chunked."


class TooSlowError(RequestError):
    status = 408
    error_type = "timeout"
    retryable = True
    title = "The request did not arrive"
    detail = (
        "The request did not arrive completely in time, so its connection is closed. Please send it again."
    )


class BadRequestError(RequestError):
    status = 400
    error_type = "validation"
    title = "The request cannot be read"
    detail = "The body must be one JSON object, encoded in UTF-8. Correct the body and send it again."


class NotUtf8Error(BadRequestError):
    title = "The request is not valid UTF-8"
    detail = "The body contains bytes that are not valid UTF-8. Encode it in UTF-8 and send it again."


class NotJsonError(BadRequestError):
    title = "The request is not valid JSON"
    detail = "The body is not a valid JSON object. Check its syntax and send it again."


class TooDeepError(BadRequestError):
    title = "The request is nested too deeply"
    detail = "The body nests lists or objects too deeply. Send a flatter body, as in /openapi.json."


class TooManyItemsError(BadRequestError):
    title = "The request contains too many items"
    detail = "A list or an object in the body has too many items. Send fewer, as in /openapi.json."


class KeyTwiceError(BadRequestError):
    title = "The request contains a duplicate key"
    detail = "An object in the body has the same key twice, so its value is ambiguous. Send each key once."


class NulError(BadRequestError):
    title = "The request contains a NUL character"
    detail = "The body contains a NUL character (U+0000), which cannot be stored. Remove it and send the body again."


class HalfCharacterError(BadRequestError):
    title = "The request contains an unpaired surrogate"
    detail = "The body contains half of a surrogate pair, which is not a character. Remove or complete it."


class UnauthenticatedError(RequestError):
    status = 401
    error_type = "auth"
    title = "A valid API key is required"
    detail = "Send a valid API key in the header `Authorization: Bearer …`."


class ExpiredTokenError(UnauthenticatedError):
    retryable = True
    title = "The public token has expired"
    detail = "This page has been open for longer than its permission to ask. Reload the page, or get a new token from the site's server, and ask again."


class ForbiddenError(RequestError):
    status = 403
    error_type = "auth"
    title = "This API key lacks a permission"
    detail = "The API key is valid but lacks the scope for this request. Use a key that has it."


class MaskedReadError(ForbiddenError):
    title = "Personal columns are masked for you"


class UnknownBookError(RequestError):
    status = 404
    error_type = "validation"
    title = "Book not found"
    detail = "No book with this id is published here. Check the book id."


class UnknownPassageError(RequestError):
    status = 404
    error_type = "validation"
    title = "Passage not found"
    detail = "No passage with this id exists here. Check the chunk_id."


class UnknownRecordError(RequestError):
    """Raised for a record of another client or another book too, so that the response does not reveal whether it exists."""

    status = 404
    error_type = "validation"
    title = "Record not found"
    detail = "No provable record of this query is visible to your key. Check the query_id, or use a key with the scope audit."


class UnknownSessionError(RequestError):
    """Raised for a session of another reader or another book too, so that the response does not reveal whether it exists."""

    status = 404
    error_type = "validation"
    title = "Session not found"
    detail = "You have no session with this id. Leave out session_id to start a new one."


class NotFoundError(RequestError):
    status = 404
    error_type = "validation"
    title = "Address not found"
    detail = "This address does not exist. See /openapi.json for the addresses that do."


class WrongMethodError(RequestError):
    status = 405
    error_type = "validation"
    title = "Method not allowed"
    detail = "This address does not support that method. See /openapi.json for the methods that it does."


class NotSealedError(RequestError):
    status = 409
    error_type = "audit"
    title = "The record is not sealed yet"
    detail = "The record exists, but its proof is not ready yet. Please try again in a few seconds."
    retryable = True
    retry_after_s = 10


class UnderHoldError(RequestError):
    status = 409
    error_type = "audit"
    title = "Under a legal hold"
    detail = "A legal hold covers this conversation, so it was not deleted. It is deleted when it is inactive and the hold has ended."


class TooLargeError(RequestError):
    status = 413
    error_type = "validation"
    title = "The request is too large"
    detail = "The body exceeds the size limit (64 KiB unless configured otherwise). Send a shorter one."


class InvalidFieldError(RequestError):
    status = 422
    error_type = "validation"
    title = "The request has an invalid field"
    detail = "A field of the request has an invalid value. Correct it and send the request again."


class RateLimitedError(RequestError):
    status = 429
    error_type = "rate_limit"
    title = "Too many requests"
    detail = (
        "This API key has reached its rate limit. Wait for the time given in Retry-After, then try again."
    )
    retryable = True
    retry_after_s = 60


class UnavailableError(RequestError):
    status = 503
    retryable = True
    retry_after_s = 5


class NotReadyError(UnavailableError):
    error_type = "network"
    title = "The service is starting"
    detail = "The service is starting or recovering, and takes a few seconds. Please try again shortly."
    retry_after_s = 3


class OverloadedError(UnavailableError):
    error_type = "network"
    title = "The service is overloaded"
    detail = (
        "More questions arrive than the service can answer at the moment. Wait for the time given in Retry-After, then"
        " try again."
    )
    retry_after_s = 1


class LimiterUnavailableError(UnavailableError):
    error_type = "rate_limit"
    title = "The rate limit cannot be checked"
    detail = "The service cannot count this reader's requests at the moment. Please try again shortly."


class IndexUnavailableError(UnavailableError):
    """`reason` is what the vector store said: for the operator and the log, never for a reader or the record."""

    error_type = "network"
    title = "The book's index is unavailable"
    detail = "The search index is unavailable, so the book cannot be searched. Please try again shortly."
    retry_after_s = 3

    def __init__(self, reason: str = "", *, upstream: str | None = None) -> None:
        super().__init__(upstream=upstream)
        self.reason = reason or "it gave no reason"


class IndexDamagedError(IndexUnavailableError):
    detail = (
        "The book's search index is being rebuilt, so the book cannot be searched. Please try again shortly."
    )


class EmbedderUnavailableError(UnavailableError):
    error_type = "network"
    title = "The question cannot be embedded"
    detail = "The embedding service is unavailable, so the book cannot be searched. Please try again shortly."
    retry_after_s = 3


class DatabaseUnavailableError(UnavailableError):
    error_type = "database"
    title = "The database is unavailable"
    detail = "The service cannot reach its database at the moment. Please try again shortly."


class PassageDamagedError(UnavailableError):
    error_type = "database"
    title = "The book's text is damaged"
    detail = (
        "A passage that this needs was changed after it was ingested, so nothing is said from it. The operator has"
        " to ingest the book again."
    )
    retry_after_s = 60


class AuditUnavailableError(UnavailableError):
    error_type = "audit"
    title = "The request cannot be recorded"
    detail = "The service cannot write the audit record at the moment, and gives no answer without one. Please try again shortly."


class ModelBusyError(UnavailableError):
    error_type = "llm"
    title = "The language model is overloaded"
    detail = "The language model is overloaded at the moment. Please try again shortly."


class ModelFailedError(RequestError):
    status = 502
    error_type = "llm"
    title = "The language model failed"
    detail = "The language model returned no usable answer. Please try again."
    retryable = True


class IdentityProviderError(RequestError):
    status = 502
    error_type = "network"
    title = "The identity provider failed"
    detail = (
        "The identity provider did not answer as it should, so nobody was signed in. Please try again. If it stays so,"
        " whoever runs this console finds the cause with `affidavit doctor`; an API key signs in without the provider."
    )
    retryable = True


class OutOfTimeError(RequestError):
    status = 504
    error_type = "timeout"
    title = "The question took too long"
    detail = "Query processing timed out. Try a simpler question."
    retryable = True


class UnexpectedError(RequestError):
    retryable = True
