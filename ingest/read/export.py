"""Reader for `affidavit-content.json`: a whole site as Docusaurus itself resolved it. Pure.

A Docusaurus plugin writes the file in `postBuild`, because only a build knows imported parts, evaluated expressions and
the addresses of a configured site. Version 1, as JSON in UTF-8:

    {
      "version": 1,
      "site": {"title": "…", "url": "https://example.org", "baseUrl": "/", "trailingSlash": true | false | null},
      "book": {"id": "my-book", "locale": "en", "version": "current"},    the book that pages ask; not read here
      "pages": [{
        "permalink": "/docs/walking",        the route, not percent-encoded, with baseUrl, without url; /book/#/book/docs/walking
                                             on a site with the hash router
        "source": "docs/07-walking.md",      the file, relative to the site's folder
        "title": "Walking",
        "version": "current",                Docusaurus' name of the docs' version
        "locale": "en",
        "position": 3,                       of the page in its sidebar, or null
        "frontMatter": {"module": 2, "difficulty": "beginner", "tags": ["gait"], "page": "…", …},
        "sections": [{                       one for each heading, and one above the first if there is text
          "level": 2,                        of the heading, 1 to 6
          "anchor": "balance",               its id, or null without one
          "path": ["Walking", "Balance"],    the headings that lead to it; its own is the last
          "blocks": [{"kind": "prose" | "list" | "table" | "code", "text": "…"}]
        }]
      }]
    }

A block is a paragraph, an item of a list, a table (a row a line, its cells joined by " | "), or a piece of code as it
is. Unknown names are ignored, so that a later plugin may add some.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from ingest import sentences
from ingest.read import address, front_matter
from ingest.read.document import Document, Kind
from ingest.read.markdown import TOP_LEVEL
from ingest.read.text import Place, SectionBuilder

Text = Annotated[str, AfterValidator(lambda text: front_matter.storable(text, "the text"))]


class Block(BaseModel):
    """A paragraph, an item, a table, or code."""

    kind: Kind
    text: Text


class Part(BaseModel):
    """The content under one heading, up to the next."""

    level: int = Field(ge=1, le=6)
    anchor: Text | None
    path: list[Text]
    blocks: list[Block]


class Page(BaseModel):
    permalink: Annotated[Text, Field(pattern="^/")]
    source: Text
    title: Text
    version: str
    locale: str
    position: float | None
    frontMatter: dict[str, Any]  # noqa: N815
    sections: list[Part]


class Site(BaseModel):
    title: str
    url: str
    baseUrl: str  # noqa: N815
    trailingSlash: bool | None  # noqa: N815


class Export(BaseModel):
    version: Literal[1]
    site: Site
    pages: list[Page]


def read(content: bytes, path: PurePosixPath) -> list[Document]:
    """One document for each page, in the order of the file; `path` is only for the error message."""
    try:
        export = Export.model_validate_json(content.decode("utf-8-sig"))
    except ValidationError as wrong:
        raise ValueError(
            f"{path.name} is not what the plugin writes ({_first_error(wrong)}): build the site again"
        ) from wrong
    _check_sources(export.pages)
    return [_document_or_error(page) for page in export.pages]


def _first_error(wrong: ValidationError) -> str:
    first = wrong.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def _check_sources(pages: list[Page]) -> None:
    """File names identify pages. Two of the same name are two versions or locales, which must be two books."""
    seen: set[str] = set()
    for page in pages:
        if page.source in seen:
            raise ValueError(f"{page.source} occurs twice: export one version and one locale at a time")
        seen.add(page.source)


def _document_or_error(page: Page) -> Document:
    """Converts a page. A bad one fails the whole site, so the error names it."""
    try:
        return _document(page)
    except ValueError as wrong:
        raise ValueError(f"{page.source}: {wrong}") from wrong


def _document(page: Page) -> Document:
    last = page.permalink.rstrip("/").rsplit("/", 1)[-1]
    if f"/{last}" == address.ROUTE:  # the site's entry page, whose address says nothing about it
        last = ""
    title = page.title.strip() or last or page.source
    label = front_matter.text(page.frontMatter, "page") or last or address.slug(title) or title
    builder = SectionBuilder(title)
    for part in page.sections:
        heading = part.path[-1].strip() if part.path else ""
        builder.enter(heading or title, top=part.level <= TOP_LEVEL)
        for block in part.blocks:
            builder.block += 1
            for text in _texts(block):
                builder.add(text, block.kind, Place(part.anchor or "", label))
    content = page.model_dump_json().encode()
    return builder.document(content, page.source, page.permalink, **front_matter.stored(page.frontMatter))


def _texts(block: Block) -> Iterator[str]:
    match block.kind:
        case "code":
            if text := block.text.strip("\n").rstrip():
                yield text
        case "table":
            yield from filter(None, map(str.strip, block.text.split("\n")))
        case _:
            yield from (block.text[start:end] for start, end in sentences.spans(block.text) if end > start)
