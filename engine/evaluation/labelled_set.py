"""A parser for labelled sets: a folder with `corpus.jsonl`, `queries.jsonl` and `qrels.tsv`, checked for consistency.

`corpus.jsonl` has {"_id", "title", "text"} a line, `queries.jsonl` {"_id", "text", "answerable", "answers", "spans"}, and
`qrels.tsv` the columns query-id, corpus-id and score; a score above 0 is relevant.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from engine.errors import AffidavitError

SHOWN_CHARACTERS = 160  # of a text, in a message or in a cell of a table

QuestionKind = Literal["answerable", "unanswerable", "out_of_scope"]
OTHERS: tuple[QuestionKind, ...] = ("unanswerable", "out_of_scope")

Row = TypeVar("Row", bound=BaseModel)
Named = TypeVar("Named", "CorpusDocument", "Query")


class LabelsError(AffidavitError):
    """A labelled set is invalid. The message names the file and the line."""


class CorpusDocument(BaseModel):
    """A line of corpus.jsonl."""

    name: str = Field(alias="_id", min_length=1)
    title: str = ""
    text: str


class AnswerSpan(BaseModel):
    """The labelled place of an answer: `document.text[start:end]`."""

    doc: str
    start: int = Field(ge=0)
    end: int
    text: str | None = None


class Query(BaseModel):
    """A line of queries.jsonl."""

    name: str = Field(alias="_id", min_length=1)
    text: str = Field(min_length=1)
    answerable: bool
    answers: list[str] = []
    spans: list[AnswerSpan] = []


@dataclass(frozen=True, slots=True)
class LabelledSet:
    """A labelled set that was read and found consistent."""

    name: str
    documents: Mapping[str, CorpusDocument]
    queries: Mapping[str, Query]
    relevant: Mapping[str, set[str]]  # documents of a query
    out_of_scope: Mapping[str, Query]

    def questions(self) -> Iterator[tuple[QuestionKind, Query]]:
        for query in self.queries.values():
            yield ("answerable" if query.answerable else "unanswerable"), query
        for query in self.out_of_scope.values():
            yield "out_of_scope", query


def read(folder: Path, out_of_scope: Path | None = None) -> LabelledSet:
    """Reads the set of a folder; `LabelsError` if a label refers to a place that does not exist."""
    if not (folder / "corpus.jsonl").is_file():
        raise LabelsError(
            f"{folder} has no corpus.jsonl, so there is no book to ask. A labelled set is a folder with corpus.jsonl,"
            " queries.jsonl and qrels.tsv. To ask questions without a corpus of another set, run:"
            f" affidavit eval SET --out-of-scope {folder / 'queries.jsonl'}"
        )
    documents = _by_name(folder / "corpus.jsonl", CorpusDocument)
    queries = _by_name(folder / "queries.jsonl", Query, lambda query: _check_spans(query, documents))
    relevant = _relevant(folder / "qrels.tsv", documents, queries)
    for query in queries.values():
        relevant[query.name] |= {span.doc for span in query.spans}
        if query.answerable and not relevant[query.name]:
            raise LabelsError(
                f"{folder / 'queries.jsonl'}: {query.name} is answerable, but neither qrels.tsv nor a span names its document. Add one of them, or set answerable to false."
            )
    others = _by_name(out_of_scope, Query) if out_of_scope else {}
    return LabelledSet(folder.resolve().name, documents, queries, relevant, others)


def book(labelled: LabelledSet) -> bytes:
    """The corpus as a site's export, the one format whose reader keeps every letter and the titles."""
    pages = [_page(document) for document in labelled.documents.values()]
    site = {"title": labelled.name, "url": "https://example.org", "baseUrl": "/", "trailingSlash": None}
    return json.dumps({"version": 1, "site": site, "pages": pages}).encode()


def _page(document: CorpusDocument) -> dict[str, Any]:
    blocks = [{"kind": "prose", "text": text} for text in document.text.split("\n\n") if text.strip()]
    title = document.title.strip() or document.name
    section = {"level": 1, "anchor": None, "path": [title], "blocks": blocks}
    return {
        "permalink": f"/{document.name}", "source": document.name, "title": title, "version": "current",
        "locale": "en", "position": None, "frontMatter": {}, "sections": [section],
    }  # fmt: skip


def rows(file: Path, kind: type[Row], check: Callable[[Row], None] = lambda _: None) -> Iterator[Row]:
    """Parses a file of JSON Lines. Every error names the file and the line."""
    for number, line in _lines(file):
        try:
            row = kind.model_validate_json(line)
            check(row)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise LabelsError(f"{file}:{number}: {f'{where}: ' if where else ''}{first['msg']}") from None
        except ValueError as wrong:
            raise LabelsError(f"{file}:{number}: {wrong}") from None
        yield row


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers, from 1 on, without empty ones."""
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if line.strip():
            yield number, line.rstrip(b"\r")


def _by_name(
    file: Path, kind: type[Named], check: Callable[[Named], None] = lambda _: None
) -> dict[str, Named]:
    named: dict[str, Named] = {}

    def check_all(row: Named) -> None:
        if row.name in named:
            raise ValueError(f"the _id {row.name} is used twice; give each line its own")
        check(row)

    for row in rows(file, kind, check_all):
        named[row.name] = row
    return named


def _check_spans(query: Query, documents: Mapping[str, CorpusDocument]) -> None:
    for span in query.spans:
        if span.doc not in documents:
            raise ValueError(f"a span names the document {span.doc}, which is not in corpus.jsonl")
        held = documents[span.doc].text[span.start : span.end]
        if not held.strip() or span.text not in {None, held}:
            place = f"{held[:SHOWN_CHARACTERS]!r} from {span.start} to {span.end}"
            raise ValueError(f"a span does not match its document: {span.doc} has {place}")


def _relevant(
    file: Path, documents: Mapping[str, CorpusDocument], queries: Mapping[str, Query]
) -> defaultdict[str, set[str]]:
    found = defaultdict[str, set[str]](set)
    for number, line in _lines(file) if file.is_file() else ():
        try:
            query, document, score = line.decode().split("\t")
            is_relevant = (query, document) != ("query-id", "corpus-id") and float(score) > 0
        except ValueError:
            columns = "three columns, separated by tabs: query-id, corpus-id, score"
            raise LabelsError(f"{file}:{number}: a line needs {columns}") from None
        if not is_relevant:
            continue
        if query not in queries or document not in documents:
            unknown = f"{query} or {document} is not in queries.jsonl or corpus.jsonl"
            raise LabelsError(f"{file}:{number}: {unknown}")
        found[query].add(document)
    return found
