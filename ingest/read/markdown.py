"""Docusaurus Markdown to sections of sentences, with the URL and the anchors that Docusaurus gives them. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ingest import sentences
from ingest.read.document import Document, Kind, Piece, Section

ROUTE = "/docs"  # Docusaurus' default place for its docs
TOP_LEVEL = 2  # `##` begins a top-level section

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
_FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})")
_ADMONITION = re.compile(r"^\s*:{3,}\s*(?:(\w+)\s*(?:\[(.*)\]|(.*))?)?\s*$")
_MODULE_LINE = re.compile(
    r"^(?:import\s.+\sfrom\s.+|import\s+['\"].+|export\s+(?:default|const|function)\s.*)$"
)
_CUSTOM_ID = re.compile(r"\s*\{#([^}\s]+)\}\s*$")
_NUMBER_PREFIX = re.compile(r"^\d+\s*[-_.]+\s*")
_NOT_IN_SLUG = re.compile(r"[^\w\- ]")

_markdown = MarkdownIt("commonmark", {"html": True}).enable("table")


@dataclass(slots=True)
class _Page:
    """What is known while the tokens of a page go by."""

    title: str
    page: str
    heading: str = ""
    anchor: str = ""
    block: int = 0
    sections: list[tuple[str, list[Piece]]] = field(default_factory=list)
    slugs: dict[str, int] = field(default_factory=dict)

    def add(self, text: str, kind: Kind) -> None:
        if not self.sections:
            self.sections.append((self.title, []))
        if text := text.strip():
            self.sections[-1][1].append(
                Piece(text, self.block, kind, self.heading or self.title, self.anchor, self.page)
            )

    def add_prose(self, text: str, kind: Kind) -> None:
        self.block += 1
        for start, end in sentences.spans(text):
            self.add(text[start:end], kind)

    def enter(self, level: int, text: str) -> None:
        heading, custom = _split_id(text)
        self.block += 1
        if level < TOP_LEVEL:
            self.title, self.heading, self.anchor = heading, "", ""
        else:
            self.heading, self.anchor = heading, custom or self._unique(slug(heading))
        if level <= TOP_LEVEL:
            self.sections.append((heading, []))

    def _unique(self, wanted: str) -> str:
        """github-slugger's rule: the second `setup` of a page is `setup-1`."""
        seen = self.slugs.get(wanted)
        self.slugs[wanted] = 0 if seen is None else seen + 1
        return wanted if seen is None else f"{wanted}-{seen + 1}"


def read(content: bytes, path: PurePosixPath) -> Document:
    front, body = _front_matter(content.decode("utf-8-sig"))
    url = _url(front, path)
    page = _Page(title=str(front.get("title") or path.stem), page=url.rsplit("/", 1)[-1] or url)
    _walk(_markdown.parse(_without_directives(body)), page)
    return Document(
        filename=path.as_posix(),
        title=str(front.get("title") or page.title),
        url=url,
        sha256=sha256(content).hexdigest(),
        sections=tuple(Section(heading, tuple(pieces)) for heading, pieces in page.sections if pieces),
        module=front["module"] if isinstance(front.get("module"), int) else None,
        difficulty=str(front["difficulty"]) if front.get("difficulty") else None,
        tags=tuple(str(tag) for tag in front.get("tags") or () if isinstance(tag, str)),
    )


def slug(heading: str) -> str:
    return _NOT_IN_SLUG.sub("", heading.lower()).replace(" ", "-")


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    found = _FRONT_MATTER.match(text)
    if not found:
        return {}, text
    try:
        front = yaml.safe_load(found[1]) or {}
    except yaml.YAMLError as wrong:
        raise ValueError(f"the front matter is not YAML: {wrong}") from wrong
    if not isinstance(front, dict):
        raise TypeError("the front matter is not a list of names and values")
    return front, text[found.end() :]


def _without_directives(text: str) -> str:
    """Admonition fences and module lines out, admonition titles kept; code blocks stay as they are."""
    fence = ""
    kept = []
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if opened and (not fence or (opened[1].startswith(fence) and line.strip() == opened[1])):
            fence = "" if fence else opened[1]
        if fence or opened:
            kept.append(line)
        elif found := _ADMONITION.match(line):
            kept.extend(["", (found[2] or found[3] or "").strip(), ""])
        else:
            kept.append("" if _MODULE_LINE.match(line) else line)
    return "\n".join(kept)


def _walk(tokens: Sequence[Token], page: _Page) -> None:
    lists = 0
    row: list[str] = []
    for number, token in enumerate(tokens):
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                lists += 1
            case "bullet_list_close" | "ordered_list_close":
                lists -= 1
            case "heading_open":
                page.enter(int(token.tag[1]), _text(tokens[number + 1].children or ()))
            case "fence" | "code_block":
                page.block += 1
                page.add(token.content.rstrip(), "code")
            case "table_open":
                page.block += 1
            case "tr_close":
                page.add(" | ".join(row), "table")
                row = []
            case "inline" if tokens[number - 1].type in {"th_open", "td_open"}:
                row.append(_text(token.children or ()))
            case "inline" if tokens[number - 1].type == "paragraph_open":
                page.add_prose(_text(token.children or ()), "list" if lists else "prose")


def _text(children: Sequence[Token]) -> str:
    """What a reader sees of a line: emphasis, links and tags give their words, line breaks are spaces."""
    return "".join(_words(children)).strip()


def _words(children: Sequence[Token]) -> Iterator[str]:
    for child in children:
        if child.type in {"text", "code_inline"}:
            yield child.content
        elif child.type in {"softbreak", "hardbreak"}:
            yield " "
        elif child.type == "image":
            yield child.content


def _split_id(heading: str) -> tuple[str, str | None]:
    found = _CUSTOM_ID.search(heading)
    return (heading[: found.start()], found[1]) if found else (heading, None)


def _url(front: dict[str, Any], path: PurePosixPath) -> str:
    """The page's address by Docusaurus' rules: slug before id before file name, number prefixes off."""
    folders = [_NUMBER_PREFIX.sub("", part) for part in path.parent.parts]
    given = str(front.get("slug") or "")
    if given.startswith("/"):
        return ROUTE + given.rstrip("/")
    name = given or str(front.get("id") or _NUMBER_PREFIX.sub("", path.stem))
    is_index = not given and name.lower() in {"index", "readme", *(folders[-1:])}
    return "/".join([ROUTE, *folders, *([] if is_index else [name])])
