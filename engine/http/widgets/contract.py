"""What the contracts have in common: an address, its request body, and the forms of its answer.

Text has marks such as `[1]` that count in the contract's own list of sources, so that a widget that prints it raw does not
say each sentence twice. A stream has no named events, because the widgets' readers look for lines that begin with `data:`.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AliasChoices, BaseModel, Field

from engine.errors import InvalidFieldError, TooManyItemsError
from engine.grounding import cite
from engine.http import problems, v1
from engine.http.problems import ErrorTypes
from engine.http.stream import MEDIA_TYPE, Format, data_line
from engine.models import Answer, Excerpt, Question, Quoted, Refusal, Sources

IGNORED_FIELDS_NOTED_MAX = 20

Share = Annotated[float, Field(ge=0, le=1)]
Words = Annotated[str, Field(min_length=1)]
Json = dict[str, Any]

Asks = TypeVar("Asks", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Contract:
    """Addresses of a specification with the same bodies."""

    paths: Sequence[str]
    summary: str
    asks: type[BaseModel]
    question_fields: Callable[[Any], Json]  # what the body says of our question
    says: type[BaseModel]
    form: Format
    error_types: ErrorTypes | None = None  # what its own list has for ours
    has_sessions: bool = False  # they begin anew if they cannot be continued: widgets know no way out

    def question(self, body: bytes, book_id: str, end_user: str | None, top_k: int) -> Question:
        """Unknown fields are ignored, because existing widgets send some; the record names them."""
        v1.check_book_id(book_id)
        asked, ignored = read(body, self.asks)
        fields = self.question_fields(asked) | {"ignored_fields": ignored}
        return v1.asked_with(fields, book_id, end_user, top_k)

    def streamed(self) -> dict[int | str, Json]:
        """For the OpenAPI document."""
        when = "Always" if self.form.is_always_stream else f"With `Accept: {MEDIA_TYPE}`"
        said = (
            f"Answered or refused. {when} as events without a name, each a line `data:` with a JSON object."
        )
        data = {"type": "string", "contentMediaType": "application/json"}
        event = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        return {200: {"description": said, "content": {MEDIA_TYPE: {"schema": event}}}}


@dataclass(frozen=True, slots=True)
class SourceList:
    """How a contract lists the quotations of an answer: which ones are one source, and how many sources fit."""

    place: Callable[[Excerpt], Hashable]
    most: int | None = None

    def numbers(self) -> Callable[[Excerpt], int | None]:
        """Numbers each source, in the order in which the answer comes to it."""
        known: dict[Hashable, int] = {}

        def number(excerpt: Excerpt) -> int | None:
            found = known.setdefault(self.place(excerpt), len(known) + 1)
            return found if self.most is None or found <= self.most else None

        return number

    def sources(self, answer: Answer) -> list[list[Excerpt]]:
        """The quotations of each source; their places in this list are what the marks in the text count."""
        found: dict[Hashable, list[Excerpt]] = {}
        for excerpt in v1.excerpts(answer):
            found.setdefault(self.place(excerpt), []).append(excerpt)
        return list(found.values())[: self.most]

    def text(self, answer: Answer) -> str:
        if isinstance(answer.outcome, Refusal):
            return text_of(answer)
        return cite.numbered_text(answer.outcome, self.numbers())


EACH = SourceList(lambda excerpt: excerpt.n)  # a contract that lists every quotation


@dataclass(slots=True)
class DataEvents:
    """A stream of `data:` lines. Text cannot be retracted once sent, so if it turns out invalid the last event says so."""

    sources: SourceList | None  # None: the text quotes its sources itself
    chunk: Callable[[str], Json]
    last: Callable[[Answer], Iterable[Json]]
    failure: Callable[[str], Json]
    _has_text: bool = False
    _number_of: Callable[[Excerpt], int | None] | None = None

    def __post_init__(self) -> None:
        self._number_of = self.sources.numbers() if self.sources else None

    def shown(self, event: Sources | Quoted) -> str:
        if isinstance(event, Sources):
            return ""
        sentence = cite.numbered(event, self._number_of) if self._number_of else event
        gap = cite.gap_before(sentence) if self._has_text else ""
        return self._said(gap + sentence.text)

    def done(self, answer: Answer) -> str:
        outcome = answer.outcome
        said = ""
        if isinstance(outcome, Refusal):
            if self._has_text:
                return self._lines([self.failure(text_of(answer))])
            said = self._said(text_of(answer))
        elif outcome.confidence_level == "low":
            said = self._said(f" {cite.low_mark(outcome.language)}")
        return said + self._lines(self.last(answer))

    def failed(self, problem: problems.Problem) -> str:
        return self._lines([self.failure(problem.detail)])

    def _said(self, text: str) -> str:
        self._has_text = True
        return self._lines([self.chunk(text)])

    def _lines(self, events: Iterable[Json]) -> str:
        return "".join(f"{data_line(event)}\n" for event in events)


def typed_events(body: Callable[[Answer], BaseModel], sources: SourceList | None) -> Callable[[], DataEvents]:
    """For a contract whose specification has no stream: `chunk`s of text, its `sources`, and `done` with the whole body."""

    def last(answer: Answer) -> Iterable[Json]:
        whole = body(answer).model_dump(mode="json")
        yield {"type": "sources", "sources": whole["sources"]}
        yield {"type": "done"} | whole

    return lambda: DataEvents(
        sources,
        chunk=lambda text: {"type": "chunk", "content": text},
        last=last,
        failure=lambda detail: {"type": "error", "error": detail, "detail": detail},
    )


def read(body: bytes, kind: type[Asks]) -> tuple[Asks, tuple[str, ...]]:
    """The body, and the names of its fields that the contract does not have. Nobody looks at what these hold: some
    widgets send a whole conversation with each question."""
    value = v1.json_object(body)
    names = _names(kind)
    known = {name: value[name] for name in value if name in names}
    ignored = [name for name in value if name not in names]
    v1.check_values(dict.fromkeys(ignored))
    v1.check_values(known)
    if len(value) > v1.JSON_ITEMS_MAX:
        raise TooManyItemsError
    noted = sorted(name[: v1.NAME_CHARACTERS_MAX] for name in ignored)[:IGNORED_FIELDS_NOTED_MAX]
    return v1.validated(_spelt_once(known, kind), kind), tuple(noted)


def also(*names: str, default: Any = None) -> Any:
    """A field that clients of the contract write in several ways. The first is the one in the OpenAPI document."""
    others = " or ".join(f"`{name}`" for name in names[1:])
    return Field(default=default, validation_alias=AliasChoices(*names), description=f"Also as {others}.")


def text_of(answer: Answer) -> str:
    """The text as it is recorded."""
    assert answer.trail.answer_text
    return answer.trail.answer_text


def _spelt_once(known: Json, kind: type[BaseModel]) -> Json:
    """A field that is sent in several spellings counts once, null in one of them as left out. With two values it is refused:
    nobody could say which one was meant, and the record would have only one."""
    left = dict(known)
    for names in _spellings(kind):
        sent = [name for name in names if known.get(name) is not None]
        for name in sent[1:]:
            if known[name] != known[sent[0]]:
                raise InvalidFieldError(f"{name}: differs from `{sent[0]}`. Send one of them.", field=name)
        for name in names if sent else ():
            if name != sent[0]:
                left.pop(name, None)
    return left


def _names(kind: type[BaseModel]) -> set[str]:
    return {name for names in _spellings(kind) for name in names}


def _spellings(kind: type[BaseModel]) -> Iterable[list[str]]:
    """Of each field, the names by which clients send it."""
    for name, field in kind.model_fields.items():
        alias = field.validation_alias
        yield [str(choice) for choice in alias.choices] if isinstance(alias, AliasChoices) else [name]
