"""Reader for HTML: the visible text of a page's main part as sections of sentences. Pure.

It walks the tree with an explicit stack, because a page may be nested more deeply than Python's call stack.
"""

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from selectolax.lexbor import LexborHTMLParser, LexborNode

from ingest.read.document import Document, UnreadableError
from ingest.read.text import Line, Place, SectionBuilder, site_path

TOP_LEVEL = 2  # `h2` begins a top-level section

_HEADINGS = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
_LIST_TAGS = "ul ol menu dl"
_BLOCK_TAGS = (
    "address article blockquote body caption center dd details div dt fieldset figcaption figure footer form header "
    "hgroup hr html legend li main p search section summary table tbody td tfoot th thead tr"
)
_OUT_TAGS = (
    "annotation aside audio button canvas dialog embed footer head iframe input map meter nav noscript object option "
    "progress script select style svg template textarea video"
)
_LISTS = frozenset(_LIST_TAGS.split())
_BLOCKS = frozenset(_BLOCK_TAGS.split()) | _LISTS
_OUT = frozenset(_OUT_TAGS.split())
_INVISIBLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_INVISIBLE_CHARACTERS = dict.fromkeys((0xAD, 0x200B, 0x2060, 0xFEFF))  # soft hyphens, zero-width spaces
_RAISED = str.maketrans("0123456789+-−=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿⁱ")  # noqa: RUF001
_LOWERED = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")  # noqa: RUF001

_CHARSET = re.compile(rb"<meta\s[^>]*?charset\s*=\s*[\"']?\s*([\w.:+-]+)", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"\A\s*<\?xml\s[^>]*?encoding\s*=\s*[\"']([\w.:+-]+)", re.IGNORECASE)
_CHARSET_WITHIN = 1024  # bytes: where browsers look for it
_MARKS = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
# The names that browsers accept. Python's own list also has codecs that are not for text, such as "zip".
_ENCODINGS = {
    **{name: name for name in ("utf-8", "koi8-r", "koi8-u", "gbk", "gb18030", "big5", "shift_jis", "euc-jp")},
    **{name: name for name in ("iso-2022-jp", "euc-kr", "macintosh", "tis-620")},
    **{f"iso-8859-{number}": f"iso-8859-{number}" for number in (*range(2, 9), 10, 13, 14, 15, 16)},
    **{f"windows-{number}": f"cp{number}" for number in (874, *range(1250, 1259))},
    "utf8": "utf-8", "utf-16": "utf-8", "utf-16le": "utf-8", "utf-16be": "utf-8",  # browsers read a declared UTF-16 as UTF-8
    "us-ascii": "cp1252", "ascii": "cp1252", "iso-8859-1": "cp1252", "latin1": "cp1252", "latin-1": "cp1252",
    "gb2312": "gbk", "x-sjis": "shift_jis", "iso-8859-9": "cp1254", "iso-8859-11": "cp874",
}  # fmt: skip


@dataclass(slots=True)
class _HtmlWalk:
    """State of the walk over the nodes of a page."""

    builder: SectionBuilder
    place: Place
    line: list[str] = field(default_factory=list)
    lists: int = 0
    follows_term: bool = False

    def walk(self, root: LexborNode) -> None:
        stack = [(root, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                self._leave(node.tag or "")
            elif self._enter(node, node.tag or ""):
                stack.append((node, True))
                stack.extend((child, False) for child in reversed(_children(node)))

    def _enter(self, node: LexborNode, tag: str) -> bool:
        """Begins a node; false if its children must not be visited."""
        if (word := _own_text(node, " ")) is not None:
            self.line.append(word)
        elif not _is_shown(node):
            return False
        elif tag in _HEADINGS or tag == "pre" or (tag == "table" and not _is_layout(node)):
            self._end_block()
            handle = {"pre": self.code, "table": self.table}.get(tag, self.heading)
            handle(node)
        else:
            if tag in _BLOCKS:
                self._end_block()
                self.lists += tag in _LISTS
            return True
        return False

    def _leave(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._end_block()
            self.lists -= tag in _LISTS
            self.follows_term = tag == "dt"

    def _end_block(self) -> None:
        text = _joined(self.line)
        self.line = []
        if text:
            self.builder.block -= self.follows_term  # a term and its definition are one block
            self.builder.add_prose([Line(text, self.place)], "list" if self.lists else "prose")
            self.follows_term = False

    def heading(self, node: LexborNode) -> None:
        if text := _joined(_texts(node, " ")):
            self.place = Place(_anchor(node), self.place.page)
            self.builder.enter(text, top=_HEADINGS[node.tag or ""] <= TOP_LEVEL)

    def code(self, node: LexborNode) -> None:
        self.builder.block += 1
        self.builder.add("".join(_texts(node, "\n")).rstrip(), "code", self.place)

    def table(self, node: LexborNode) -> None:
        for caption in node.css("caption"):
            self.builder.add_prose([Line(_joined(_texts(caption, " ")), self.place)], "prose")
        self.builder.block += 1
        for row in node.css("tr"):
            cells = [
                _joined(_texts(cell, " ")) for cell in row.css("th, td") if _is_shown(row) and _is_shown(cell)
            ]
            if any(cells):
                self.builder.add(" | ".join(cells), "table", self.place)


def read(content: bytes, path: PurePosixPath) -> Document:
    tree = LexborHTMLParser(_decoded(content))
    main = _main(tree)
    url = _canonical(tree) or _address(path)
    title = _title(tree, main) or path.stem
    page = _HtmlWalk(SectionBuilder(title), Place("", url.rstrip("/").rsplit("/", 1)[-1] or url))
    if main:
        page.walk(main)
    return page.builder.document(content, path.as_posix(), url)


def _decoded(content: bytes) -> str:
    encoding = _encoding(content)
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as wrong:
        is_not = f"is not {encoding.upper()} (invalid byte at {wrong.start})"
        raise UnreadableError(f"{is_not}: declare its encoding, or save it as UTF-8") from wrong


def _encoding(content: bytes) -> str:
    """The encoding as browsers detect it: the byte order mark, then the declared encoding, then UTF-8."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return encoding
    start = content[:_CHARSET_WITHIN]
    if b"\0" in start:
        raise UnreadableError(
            "contains NUL bytes: it is not HTML, or it is UTF-16 without a byte order mark; save it as UTF-8"
        )
    found = _XML_ENCODING.search(start) or _CHARSET.search(start)
    name = found[1].decode().lower() if found else "utf-8"
    if name not in _ENCODINGS:
        raise UnreadableError(f"declares the unknown encoding {name[:40]}: save it as UTF-8")
    return _ENCODINGS[name]


def _main(tree: LexborHTMLParser) -> LexborNode | None:
    """The main part. A single article in `main` is taken without what surrounds it, such as a table of contents."""
    main = tree.css_first("main, [role=main]")
    articles = (main or tree).css("article")
    return articles[0] if len(articles) == 1 else main or tree.body


def _title(tree: LexborHTMLParser, main: LexborNode | None) -> str:
    """The first heading if the `title` only adds the name of the site to it."""
    title = _text_of(tree.css_first("head > title"))
    heading = _text_of(main.css_first("h1")) if main else ""
    return heading if not title or (heading and title.startswith(heading)) else title


def _text_of(node: LexborNode | None) -> str:
    return _joined(_texts(node, " ")) if node else ""


def _canonical(tree: LexborHTMLParser) -> str:
    """The path of the canonical link, if it is one: `//elsewhere` and `/\\elsewhere` lead off the site."""
    link = tree.css_first("link[rel=canonical][href]")
    try:
        target = urlsplit((link.attributes.get("href") or "") if link else "")
    except ValueError:
        return ""
    is_path = re.fullmatch(r"/(?:[^/\\\s\x00-\x1f].*)?", target.path)
    return target.path if is_path and target.scheme in {"", "http", "https"} and not target.query else ""


def _address(path: PurePosixPath) -> str:
    return site_path(path.parent if path.stem == "index" else path.with_suffix("")).removesuffix("/.") or "/"


def _children(node: LexborNode) -> list[LexborNode]:
    return list(node.iter(include_text=True))


def _is_shown(node: LexborNode) -> bool:
    tag = node.tag or ""
    if tag in _OUT or tag.startswith("-"):
        return False
    if tag == "header" and not _is_article_header(node):
        return False
    attributes = node.attributes
    if attributes.get("role") == "tabpanel":
        return True  # hidden until a click, but part of the page
    is_hidden = "hidden" in attributes or attributes.get("aria-hidden") == "true"
    return not (is_hidden or _INVISIBLE.search(attributes.get("style") or "") or _is_hash_link(tag, node))


def _is_article_header(header: LexborNode) -> bool:
    """Whether a `header` belongs to an article and holds its heading; any other is the site's banner."""
    above = header.parent
    while above and above.tag not in {"article", "main"}:
        above = above.parent
    return above is not None and header.css_first("h1, h2, h3") is not None


def _is_hash_link(tag: str, node: LexborNode) -> bool:
    """Whether a link is the sign beside a heading that links to itself, or the arrow back from a footnote."""
    is_local = tag == "a" and (node.attributes.get("href") or "").startswith("#")
    return is_local and not any(character.isalnum() for character in node.text())


def _is_layout(table: LexborNode) -> bool:
    """Whether a table only arranges the page, or code beside its line numbers, instead of holding facts."""
    found = table.css("table, h1, h2, h3, h4, h5, h6, pre")
    return any(node.mem_id != table.mem_id for node in found)


def _own_text(node: LexborNode, line_break: str) -> str | None:
    """The text of a node that is handled as a whole; None if its children have to be visited."""
    match node.tag:
        case "-text":
            return node.text_content or ""
        case "br":
            return line_break
        case "sup":
            return _raised_or_lowered(node, _RAISED)
        case "sub":
            return _raised_or_lowered(node, _LOWERED)
    return None


def _raised_or_lowered(node: LexborNode, signs: dict[int, int]) -> str:
    """Converts to Unicode superscript or subscript, because 10 to the power of 6 must not become 106."""
    text = _joined([node.text()])
    return text.translate(signs) if all(ord(character) in signs for character in text) else text


def _texts(root: LexborNode, line_break: str) -> list[str]:
    words = []
    stack = [root]
    while stack:
        node = stack.pop()
        if (word := _own_text(node, line_break)) is not None:
            words.append(word)
        elif node is root or _is_shown(node):
            space = [" "] if node.tag in _BLOCKS and line_break == " " else []
            words.extend(space)
            stack.extend(reversed(_children(node)))
    return words


def _joined(words: list[str]) -> str:
    return " ".join("".join(words).translate(_INVISIBLE_CHARACTERS).split())


def _anchor(heading: LexborNode) -> str:
    """The id of the heading, of an anchor in it or just before it, or of the section that it begins."""
    inside = heading.css_first("a[id], a[name]")
    above = heading.parent
    before = _before(heading)
    candidates = [heading, inside, before if before and before.tag == "a" else None]
    if above and above.tag in {"section", "div", "header"} and not before:
        candidates.append(above)
    for node in filter(None, candidates):
        if found := node.attributes.get("id") or (node.tag == "a" and node.attributes.get("name")):
            return found
    return ""


def _before(node: LexborNode) -> LexborNode | None:
    """The element or the text just before, if there is any."""
    before = node.prev
    while before and ((before.tag or "").startswith("-") and not (before.text_content or "").strip()):
        before = before.prev
    return before
