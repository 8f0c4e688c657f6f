"""The exception tree of `engine` and `ingest`. `audit/errors.py` has the one of `audit`.

A failed request carries its HTTP status and a message that is safe to show; a refusal is a value and not a failure.

AffidavitError
├── ConfigurationError        the settings or the data folder are wrong; only at start-up
├── EmbedderFailedError       the embedding vendor failed for good
├── NotSeparableError         labelled questions that no threshold could tell apart
├── LabelsError               a file of labelled questions that cannot be used
├── UnreadableError           a file of a book that cannot be read; the others are
├── ReaderEndedError          the sandboxed reader of a file died or took too long
├── StageTimeoutError         a stage of a request used up its time; the cause of an OutOfTimeError
├── RerankFailedError         the reranker gave no usable order; the order of the blend stands
├── StatementError            an auditor's SQL cannot be run
└── RequestError              one request failed
    ├── BadRequestError       400  the body cannot be read; each reason is a class of its own
    │   ├── NotUtf8Error
    │   ├── NotJsonError
    │   ├── TooDeepError
    │   ├── TooManyItemsError
    │   ├── KeyTwiceError
    │   ├── NulError
    │   └── HalfCharacterError
    ├── UnauthenticatedError  401  no key, or not one of ours
    ├── ForbiddenError        403  a good key without the right
    ├── UnknownBookError      404
    ├── UnknownPassageError   404
    ├── UnknownRecordError    404
    ├── UnknownSessionError   404
    ├── UnknownRouteError     404
    ├── WrongMethodError      405  the route does not have this method
    ├── NotSealedError        409  the record is there, its proof not yet
    ├── TooLargeError         413
    ├── InvalidFieldError     422  JSON, but not what the contract says
    ├── RateLimitedError      429
    ├── LimiterUnavailableError 503  a reader's requests cannot be counted, so none is let through
    ├── IndexUnavailableError 503  the vector store does not answer
    ├── EmbedderUnavailableError 503  the embedding vendor does not answer
    ├── DatabaseUnavailableError 503
    ├── AuditUnavailableError 503  the record cannot be made durable, so there is no answer
    │   └── UnrecordedError        an operator's change cannot be recorded; also a LedgerUnavailableError of audit
    ├── ModelFailedError      502  the language model answered nonsense or not at all
    ├── ModelBusyError        503  the language model is overloaded
    ├── OutOfTimeError        504  the five seconds are over
    └── UnexpectedError       500  a fault of ours
"""

from typing import ClassVar, Literal
from uuid import UUID

ErrorType = Literal[
    "validation", "auth", "rate_limit", "network", "database", "llm", "timeout", "audit", "unknown"
]


class AffidavitError(Exception):
    """Base of all that we raise on purpose."""


class ConfigurationError(AffidavitError):
    """The message says what is wrong and what to do about it."""


class StatementError(AffidavitError):
    """An auditor's SQL that cannot be run, with PostgreSQL's reason."""


class EmbedderFailedError(AffidavitError):
    """The embedding vendor failed for good, at ingest or with an answer that cannot be used."""


class NotSeparableError(AffidavitError):
    """Labelled questions that cannot be calibrated with, and why."""


class RerankFailedError(AffidavitError):
    """The reranker gave no usable order. The message is for the record: never a vendor's words."""


class RequestError(AffidavitError):
    """One request failed. `detail` goes to the client as it is: never a secret, a host name or a driver's words."""

    status: ClassVar[int] = 500
    error_type: ClassVar[ErrorType] = "unknown"
    title: ClassVar[str] = "Something went wrong"
    detail: str = "An unexpected error occurred. It was recorded. Please try again."
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
        self.upstream = upstream  # what a vendor did, for the record alone; never its words
        self.retry_after_s = retry_after_s or type(self).retry_after_s
        self.query_id: UUID | None = (
            None  # set once the request has one, so that the client can name its record
        )
        super().__init__(self.detail)


class BadRequestError(RequestError):
    status = 400
    error_type = "validation"
    title = "The request cannot be read"
    detail = "The body must be one JSON object in UTF-8."


class NotUtf8Error(BadRequestError):
    title = "The request is not UTF-8"
    detail = "The body is not valid UTF-8."


class NotJsonError(BadRequestError):
    title = "The request is not JSON"
    detail = "The body is not a valid JSON object."


class TooDeepError(BadRequestError):
    title = "The request is nested too deeply"
    detail = "The body has lists or objects in each other, deeper than any request needs."


class TooManyItemsError(BadRequestError):
    title = "The request has too many items"
    detail = "A list or an object of the body has more items than any request needs."


class KeyTwiceError(BadRequestError):
    title = "The request has a key twice"
    detail = "The body has the same key twice, so it is not clear which value is meant."


class NulError(BadRequestError):
    title = "The request contains a NUL character"
    detail = "The body contains a NUL character, which no text may hold."


class HalfCharacterError(BadRequestError):
    title = "The request contains half of a character"
    detail = "The body contains one half of a surrogate pair, which is no character."


class UnauthenticatedError(RequestError):
    status = 401
    error_type = "auth"
    title = "A valid API key is needed"
    detail = "Send a valid API key in the header `Authorization: Bearer …`."


class ForbiddenError(RequestError):
    status = 403
    error_type = "auth"
    title = "This key may not do that"
    detail = "The API key is valid but lacks the scope for this request."


class UnknownBookError(RequestError):
    status = 404
    error_type = "validation"
    title = "No such book"
    detail = "There is no published book of this name here."


class UnknownPassageError(RequestError):
    status = 404
    error_type = "validation"
    title = "No such passage"
    detail = "There is no passage of this id here."


class UnknownRecordError(RequestError):
    """Also for a record of somebody else: whether there is one is not for everybody to know."""

    status = 404
    error_type = "validation"
    title = "No such record"
    detail = "There is no record of this query that your key may see and that can be proven."


class UnknownSessionError(RequestError):
    """Also for a session of somebody else: whether there is one is not for everybody to know."""

    status = 404
    error_type = "validation"
    title = "No such session"
    detail = "There is no session of this id that is yours. Leave session_id out to begin a new one."


class UnknownRouteError(RequestError):
    status = 404
    error_type = "validation"
    title = "There is nothing here"
    detail = "This address does not exist. See /openapi.json for those that do."


class WrongMethodError(RequestError):
    status = 405
    error_type = "validation"
    title = "This method does not fit"
    detail = "This address does not take that method. See /openapi.json."


class NotSealedError(RequestError):
    status = 409
    error_type = "audit"
    title = "The record is not sealed yet"
    detail = "The record is there; its proof is a matter of seconds. Please ask again shortly."
    retryable = True
    retry_after_s = 10


class TooLargeError(RequestError):
    status = 413
    error_type = "validation"
    title = "The request is too large"
    detail = "The body may have at most 64 KiB."


class InvalidFieldError(RequestError):
    status = 422
    error_type = "validation"
    title = "The request has an invalid field"
    detail = "A field of the request is not valid."


class RateLimitedError(RequestError):
    status = 429
    error_type = "rate_limit"
    title = "Too many requests"
    detail = "The limit of this API key is reached. Try again a little later."
    retryable = True
    retry_after_s = 60


class LimiterUnavailableError(RequestError):
    status = 503
    error_type = "rate_limit"
    title = "The limits cannot be looked up"
    detail = "How often this reader has asked cannot be counted at the moment. Please try again shortly."
    retryable = True
    retry_after_s = 5


class IndexUnavailableError(RequestError):
    status = 503
    error_type = "network"
    title = "The book's index is unavailable"
    detail = "The book cannot be searched at the moment. Please try again shortly."
    retryable = True
    retry_after_s = 3


class EmbedderUnavailableError(RequestError):
    status = 503
    error_type = "network"
    title = "The question cannot be embedded"
    detail = "The book cannot be searched at the moment. Please try again shortly."
    retryable = True
    retry_after_s = 3


class DatabaseUnavailableError(RequestError):
    status = 503
    error_type = "database"
    title = "The database is unavailable"
    detail = "The service cannot reach its database at the moment. Please try again shortly."
    retryable = True
    retry_after_s = 5


class AuditUnavailableError(RequestError):
    status = 503
    error_type = "audit"
    title = "The answer cannot be recorded"
    detail = (
        "No answer is given without a record, and the record cannot be written now. Please try again shortly."
    )
    retryable = True
    retry_after_s = 5


class ModelBusyError(RequestError):
    status = 503
    error_type = "llm"
    title = "The language model is overloaded"
    detail = "The assistant is very busy at the moment. Please try again shortly."
    retryable = True
    retry_after_s = 5


class ModelFailedError(RequestError):
    status = 502
    error_type = "llm"
    title = "The language model failed"
    detail = "The assistant could not produce an answer. Please try again."
    retryable = True


class OutOfTimeError(RequestError):
    status = 504
    error_type = "timeout"
    title = "The question took too long"
    detail = "Query processing timed out. Try a simpler question."
    retryable = True


class UnexpectedError(RequestError):
    retryable = True
