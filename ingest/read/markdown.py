"""Reader for Docusaurus Markdown: the visible text as sections of sentences, with Docusaurus' URL and anchors. Pure.

address.py computes the addresses, front_matter.py parses the fields, mdx.py and jsx.py the syntax. This module extracts the
text that a reader sees.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ingest import sentences
from ingest.read import address, front_matter, jsx, mdx
from ingest.read.document import Document
from ingest.read.text import Place, SectionBuilder

TOP_LEVEL = 2  # `##` begins a top-level section

_MARKS = re.compile(r"[\\`*_\[<&{$\n~]|:[A-Za-z]")
_SPACES = re.compile(r"[ \t\n\r\f]+")
_LINE_BREAK = "\v"  # a placeholder for `<br/>` until the next text is known
_LINE_BREAKS = re.compile(r"\s*\v\s*(?:(?=[.,;:!?)\]]|\Z)|())")
_TASK = re.compile(r"\[[ xX]\]\s+")
_HEADING_TAG = re.compile(r"h[1-6]")
_HIDDEN_TAGS = {"script", "style"}
_BLOCK_TAGS = {
    "address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt", "figcaption",
    "figure", "footer", "form", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section",
    "summary", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul", "Tabs", "TabItem",
}  # fmt: skip
_VISIBLE_ATTRIBUTES = ("label", "title", "summary")

_PARSERS = {"mdx": mdx.parser(mdx=True), "md": mdx.parser(mdx=False)}


@dataclass(frozen=True, slots=True)
class Heading:
    """`anchor` is "" if no link can lead to the heading."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class _Text:
    """The text of a token that a reader sees, and the text that Docusaurus makes the anchor from."""

    visible: str
    slug: str


def read(content: bytes, path: PurePosixPath) -> Document:
    """A draft is not published and has no sections."""
    try:
        page = _page(content, path)
    except RecursionError as wrong:
        raise ValueError("brackets, quotes or lists are nested too deeply") from wrong
    filename = front_matter.storable(path.as_posix(), "the file's name")
    return page.builder.document(content, filename, page.url, **front_matter.stored(page.front))


def _page(content: bytes, path: PurePosixPath) -> "_MarkdownWalk":
    text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    front_matter.storable(text, "the text")
    front, body = front_matter.split(text)
    markdown = _PARSERS[front_matter.format_of(front, path)]
    environment: dict[str, Any] = {}
    tokens = markdown.parse(body, environment)
    _check_depth(tokens)
    title = (
        front_matter.text(front, "title")
        or _first_heading(markdown, tokens, environment)
        or front_matter.storable(address.base_id(path, front), "the page's id")
    )
    url = front_matter.storable(address.permalink(path, front), "the page's address")
    is_entry = url.rstrip("/") == address.ROUTE
    last = address.slug(title) or title if is_entry else url.rstrip("/").rsplit("/", 1)[-1]
    label = front_matter.text(front, "page") or last
    page = _MarkdownWalk(markdown, environment, front, url, SectionBuilder(title), Place("", label))
    if front.get("draft") is not True:
        page.walk(tokens)
    return page


# --- The page


@dataclass(slots=True)
class _MarkdownWalk:
    """State of the walk over the tokens of a page."""

    markdown: MarkdownIt
    environment: dict[str, Any]
    front: dict[str, Any]
    url: str
    builder: SectionBuilder
    place: Place
    headings: list[Heading] = field(default_factory=list)
    anchors: address.Anchors = field(default_factory=address.Anchors)
    lists: int = 0
    is_in_item: bool = False
    row: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # of the open paragraph, or of the open heading tag
    heading_tag: jsx.Tag | None = None
    is_hidden: bool = False
    is_preformatted: bool = False
    notes: dict[str, list[Token]] = field(default_factory=dict)
    cited_notes: dict[str, None] = field(default_factory=dict)  # the names, in the order of the marks

    def walk(self, tokens: Sequence[Token]) -> None:
        self.walk_blocks(self.without_notes(tokens))
        self.close_heading_tag()
        if self.cited_notes.keys() & self.notes.keys():
            self.enter(Heading(TOP_LEVEL, "Footnotes", "footnote-label"))
        done: set[str] = set()
        while left := [name for name in self.cited_notes if name in self.notes and name not in done]:
            done.add(left[0])
            self.walk_blocks(self.notes[left[0]])
            self.close_heading_tag()

    def without_notes(self, tokens: Sequence[Token]) -> list[Token]:
        """Sets footnotes aside, because a page shows them at its end. Of two with one name, the first counts."""
        opened: list[list[Token]] = [[]]
        for token in tokens:
            if token.type == "note_open":
                opened.append([])
                self.notes.setdefault(token.info, opened[-1])
            elif token.type == "note_close":
                opened.pop()
            else:
                opened[-1].append(token)
        return opened[0]

    def walk_blocks(self, tokens: Sequence[Token]) -> None:
        before = ""
        for token in tokens:
            match token.type:
                case "inline":
                    self.inline(token, before)
                case "fence" | "code_block":
                    self.code(token.content)
                case "flow":
                    self.flow(_items(token.meta["items"]))
                case "html_block":
                    self.flow(_items(jsx.html_items(token.content)))
                case _:
                    self.open_or_close(token)
            before = token.type if token.type != "heading_open" else token.tag

    def open_or_close(self, token: Token) -> None:
        """Begins or ends a list, an item, a table or a row."""
        match token.type:
            case "bullet_list_open" | "ordered_list_open":
                self.lists += 1
            case "bullet_list_close" | "ordered_list_close":
                self.lists -= 1
                self.is_in_item = False
            case "list_item_open":
                self.builder.block += 1
                self.is_in_item = True
            case "list_item_close" | "blockquote_open" | "blockquote_close":
                self.is_in_item = False
            case "table_open":
                self.new_block()
            case "tr_close":
                self.builder.add(" | ".join(self.row).strip(), "table", self.place)
                self.row = []

    def inline(self, token: Token, before: str) -> None:
        atoms = self.atoms(token.content)
        if _HEADING_TAG.fullmatch(before):
            self.close_heading_tag()
            self.enter(self.heading(int(before[1]), token.content))
        elif before in {"th_open", "td_open"}:
            self.row.append(_visible(map(_inline_text, atoms)))
        else:
            self.flow(_without_task(token.content, atoms) if before == "paragraph_open" else atoms)

    def atoms(self, content: str) -> Iterator[_Text | jsx.Tag]:
        if not _MARKS.search(content):
            yield _Text(content, content)
            return
        for token in mdx.parse_inline(self.markdown, content, self.environment):
            if token.type == "note_mark":
                self.cited_notes.setdefault(token.info)
            yield from _atoms(token)

    # Headings

    def heading(self, level: int, content: str) -> Heading:
        atoms = list(self.atoms(content))
        text, _ = address.custom_id(_visible(map(_inline_text, atoms)))
        source = "".join(atom.slug for atom in atoms if isinstance(atom, _Text))
        given = _comment_id(self.markdown, content, self.environment) or address.custom_id(source)[1]
        anchor = given or self.anchors.add(source)
        return Heading(level, text, anchor if level >= TOP_LEVEL else "")

    def enter(self, heading: Heading) -> None:
        self.is_hidden = self.is_preformatted = False
        self.headings.append(heading)
        self.new_block()
        self.place = Place(heading.anchor, self.place.page)
        self.builder.enter(heading.text or self.builder.title, top=heading.level <= TOP_LEVEL)

    def close_heading_tag(self) -> None:
        """A heading tag that was never closed is no heading: its words are text."""
        if self.heading_tag:
            self.heading_tag = None
            self.flush()

    # Text

    def flow(self, atoms: Iterator[_Text | jsx.Tag]) -> None:
        """Adds a paragraph, or tags around paragraphs."""
        for atom in atoms:
            if isinstance(atom, jsx.Tag):
                self.tag(atom)
            elif not self.is_hidden:
                self.words.append(atom.visible)
        if self.heading_tag:
            self.words.append(" ")
        else:
            self.flush()

    def tag(self, tag: jsx.Tag) -> None:
        if tag.name in _HIDDEN_TAGS:
            self.is_hidden = not tag.closing and not tag.alone
        elif level := _heading_level(tag, self.heading_tag):
            self.open_or_close_heading(tag, level)
        elif tag.name in _BLOCK_TAGS or any(_visible_attributes(tag)):
            self.flush()
            self.is_preformatted = not tag.closing if tag.name == "pre" else self.is_preformatted
            for text in _visible_attributes(tag):
                self.words.append(text)
                self.flush()
        else:
            self.words.append(_inline_text(tag))

    def open_or_close_heading(self, tag: jsx.Tag, level: int) -> None:
        if self.heading_tag and tag.closing:
            text, opened = _visible(self.words), self.heading_tag
            self.words, self.heading_tag = [], None
            self.enter(Heading(level, text, opened.attributes.get("id", "")))
        elif not tag.closing and not tag.alone:
            self.close_heading_tag()
            self.flush()
            self.heading_tag = tag

    def flush(self) -> None:
        """Ends the paragraph and adds its words."""
        if self.heading_tag or not self.words:
            return
        words, self.words = self.words, []
        if self.is_preformatted:
            self.code("".join(words))
        elif text := _visible(words):
            self.prose(text)

    def prose(self, text: str) -> None:
        if not self.is_in_item:
            self.new_block()
            self.is_in_item = self.lists > 0
        for start, end in sentences.spans(text):
            self.builder.add(text[start:end], "list" if self.lists else "prose", self.place)

    def code(self, text: str) -> None:
        self.close_heading_tag()
        self.new_block()
        lines = text.rstrip().split("\n")
        first = next((number for number, line in enumerate(lines) if line.strip()), 0)
        self.builder.add("\n".join(lines[first:]), "code", self.place)

    def new_block(self) -> None:
        self.builder.block += 1
        self.is_in_item = False


# --- From tokens to words


def _first_heading(markdown: MarkdownIt, tokens: Sequence[Token], environment: dict[str, Any]) -> str:
    """The first heading is the page's title, if it has only imports before it."""
    start = next((number for number, token in enumerate(tokens) if token.info != "import"), 0)
    if not tokens or tokens[start].type != "heading_open" or tokens[start].tag != "h1":
        return ""
    inline = mdx.parse_inline(markdown, tokens[start + 1].content, environment)
    text = _visible(_inline_text(atom) for token in inline for atom in _atoms(token))
    return address.custom_id(text)[0]


def _check_depth(tokens: Sequence[Token]) -> None:
    """An error, because markdown-it silently drops blocks beyond its depth limit."""
    opens = {"blockquote_open", "list_item_open", "note_open"}
    if any(token.level >= mdx.NESTING_MAX - 1 and token.type in opens for token in tokens):
        raise ValueError(f"quotes or lists are nested more than {mdx.NESTING_MAX // 2} deep")


def _atoms(token: Token) -> Iterator[_Text | jsx.Tag]:
    match token.type:
        case "text" | "text_special" | "code_inline":
            yield _Text(token.content, token.content)
        case "softbreak" | "hardbreak":
            yield _Text(" ", "")
        case "item":
            yield from _items([token.meta["item"]])
        case "image" | "directive":
            for child in token.children or ():
                yield from _atoms(child)
            if token.type == "directive":
                yield _Text(token.content, "")


def _items(items: Iterable[jsx.Item | str]) -> Iterator[_Text | jsx.Tag]:
    for item in items:
        match item:
            case str():
                yield _Text(item, item)
            case jsx.Tag():
                yield item
            case jsx.Expression(source):
                yield _Text(jsx.literal(source) or "", source)


def _inline_text(atom: _Text | jsx.Tag) -> str:
    if isinstance(atom, _Text):
        return atom.visible
    if atom.name == "br":
        return _LINE_BREAK
    if atom.name == "img":
        return atom.attributes.get("alt", "")
    return " " if atom.name in _BLOCK_TAGS else ""


def _visible_attributes(tag: jsx.Tag) -> list[str]:
    """The label or title of a component, which is on the page; that of an HTML tag is only a tooltip."""
    if not tag.name[:1].isupper():
        return []
    return [tag.attributes[name] for name in _VISIBLE_ATTRIBUTES if tag.attributes.get(name, "").strip()]


def _visible(words: Iterator[str] | Sequence[str]) -> str:
    """Collapses white space as a browser does."""
    text = "".join(words)
    if _LINE_BREAK in text:
        text = _LINE_BREAKS.sub(lambda found: "" if found[1] is None else " ", text)
    return _SPACES.sub(" ", text).strip()


def _without_task(content: str, atoms: Iterator[_Text | jsx.Tag]) -> Iterator[_Text | jsx.Tag]:
    """Removes the check box of a task."""
    box = _TASK.match(content)
    for atom in atoms:
        if box and isinstance(atom, _Text):
            yield _Text(atom.visible[box.end() :], atom.slug)
            box = None
        else:
            yield atom


def _heading_level(tag: jsx.Tag, opened: jsx.Tag | None) -> int:
    """The level of a heading tag, else 0. `<Heading as="h3">` is the theme's component."""
    if tag.closing:
        return _heading_level(opened, None) if opened and opened.name == tag.name else 0
    name = tag.attributes.get("as", "h2") if tag.name == "Heading" else tag.name
    return int(name[1]) if _HEADING_TAG.fullmatch(name) else 0


def _comment_id(markdown: MarkdownIt, content: str, environment: dict[str, Any]) -> str | None:
    """The id in a comment after the heading: `## Why robots fall {/* #why */}`."""
    if not content.endswith("*/}"):
        return None
    last = mdx.parse_inline(markdown, content, environment)[-1:]
    item = last[0].meta.get("item") if last else None
    words = item.source.strip()[2:-2].split() if isinstance(item, jsx.Expression) else []
    return words[0][1:] or None if words and words[0].startswith("#") else None
