"""Scanner for JSX in a page: tags, `{expressions}` and comments, each from where it starts to where it ends. Pure.

It only finds them and never evaluates anything: a page must not be able to run code here.
"""

import re
from collections.abc import Iterator, MutableMapping
from html import unescape
from typing import Any, NamedTuple

_TAG = re.compile(r"<(/?)([A-Za-z_$][\w$.-]*+(?::[A-Za-z_$][\w$-]*+)?+)")
_FRAGMENT = re.compile(r"</?>")
_TAG_END = re.compile(r"\s*+/?>")
_ATTRIBUTE = re.compile(
    r"""\s*+([A-Za-z_$:][\w$:.-]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|(?={)|([^\s"'=<>`{]++)))?+"""
)
_SPREAD = re.compile(r"\s*+(?={)")
SCRIPT = re.compile(
    r"""\\.|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|`(?:[^`\\]|\\.)*+`"""
    r"""|(?<!:)//[^\n]*+|/\*(?:.*?\*/|.*+)|[{}()\[\]]|\n(?=[ \t]*+(?:\n|\Z))""",
    re.DOTALL,
)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")

Environment = MutableMapping[str, Any]


class Tag(NamedTuple):
    """`<Name attribute="text">`, with those attributes that are plain text."""

    name: str
    closing: bool
    alone: bool
    attributes: dict[str, str]


class Expression(NamedTuple):
    """`{source}`."""

    source: str


class Comment(NamedTuple):
    """`<!-- source -->`."""

    source: str


Item = Tag | Expression | Comment


def html_items(text: str) -> Iterator[Item | str]:
    """The tags of a block of HTML and the text between them."""
    environment: Environment = {}
    start = 0
    for found in re.finditer("<", text):
        if found.start() < start:
            continue
        if scanned := scan(text, found.start(), environment):
            yield unescape(text[start : found.start()])
            item, start = scanned
            yield item
    yield unescape(text[start:])


def scan(text: str, start: int, environment: Environment) -> tuple[Item, int] | None:
    if text.startswith("{", start):
        end = _expression_end(text, start, environment)
        return (Expression(text[start + 1 : end - 1]), end) if end else None
    if text.startswith("<!--", start):
        return _comment(text, start, environment)
    return _tag(text, start, environment)


def _comment(text: str, start: int, environment: Environment) -> tuple[Item, int] | None:
    end = -1 if "<!--" in unclosed(environment) else text.find("-->", start + 4)
    if end < 0:
        unclosed(environment).add("<!--")
        return None
    return Comment(text[start + 4 : end]), end + 3


def _tag(text: str, start: int, environment: Environment) -> tuple[Item, int] | None:
    if fragment := _FRAGMENT.match(text, start):
        return Tag("", "/" in fragment[0], alone=False, attributes={}), fragment.end()
    opening = _TAG.match(text, start)
    if not opening:
        return None
    attributes: dict[str, str] = {}
    position = _attributes(text, opening.end(), attributes, environment)
    ending = _TAG_END.match(text, position) if position else None
    if not ending:
        return None
    return Tag(opening[2], bool(opening[1]), "/" in ending[0], attributes), ending.end()


def _attributes(text: str, position: int, attributes: dict[str, str], environment: Environment) -> int:
    """Fills the attributes and gives the position after them, 0 if one of them does not end."""
    while found := _ATTRIBUTE.match(text, position) or _SPREAD.match(text, position):
        position = found.end()
        value = next((group for group in found.groups()[1:] if group is not None), None)
        if value is None and text.startswith("{", position):
            end = _expression_end(text, position, environment)
            if not end:
                return 0
            value, position = literal(text[position + 1 : end - 1]), end
        if found.re is _ATTRIBUTE and value is not None:
            attributes[found[1]] = unescape(value)
    return position


def _expression_end(text: str, start: int, environment: Environment) -> int:
    """The position after the closing brace, 0 if there is none."""
    if "{" in unclosed(environment) or text.startswith("{#", start):  # `{#id}` is a heading's id
        return 0
    depth = 0
    for found in SCRIPT.finditer(text, start):
        depth += (found[0] == "{") - (found[0] == "}")
        if not depth:
            return found.end()
    unclosed(environment).add("{")
    return 0


def unclosed(environment: Environment) -> set[str]:
    """Cache of signs that are never closed: each search for the end would read the whole rest of the text again."""
    unclosed: set[str] = environment.setdefault("unclosed", set())
    return unclosed


def literal(source: str) -> str | None:
    """The value of an expression that is a plain string or number, else None."""
    text = source.strip()
    if _NUMBER.fullmatch(text):
        return text
    quoted = len(text) > 1 and text[0] in "\"'`" and text[0] == text[-1]
    inner = text[1:-1]
    plain = quoted and text[0] not in inner and "\\" not in inner and "${" not in inner
    return inner if plain else None
