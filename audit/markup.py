"""Markup that escapes by default: HTML and SVG as nested calls (pure).

    tag("p", "Asked by ", tag("b", client_id), class_="small")

A text is escaped, whoever wrote it; only what is already `Markup` is not. An address that a browser would run as a script is left out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta"})  # elements without an end tag
_ADDRESSES = frozenset({"action", "formaction", "href", "src", "xlink:href"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
_HARMLESS = re.compile(r"(?:https?://|/(?!/)|[#?])[^\x00-\x20\\]*", re.ASCII | re.IGNORECASE)
# What HTML and XML cannot hold, and what changes the direction of the text around it. The marks of Arabic and Hebrew stay.
_UNSHOWN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


@dataclass(frozen=True, slots=True)
class Markup:
    """Text that is markup already. Only this module and what draws with it makes one."""

    text: str

    def __str__(self) -> str:
        return self.text


EMPTY = Markup("")


def tag(name: str, /, *children: object, **attributes: str | float | bool | None) -> Markup:
    """An element. In the name of an attribute a trailing `_` is dropped, and `_` is `-`; None and False leave it out."""
    assert _NAME.fullmatch(name), name
    opened = name + "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{opened}>" if name in VOID else f"<{opened}>{joined(*children)}</{name}>")


def joined(*children: object) -> Markup:
    """Texts and markup after each other. None is nothing; a list, or what a generator gives, is its members."""
    return Markup("".join(map(_child, children)))


def table(headings: Sequence[object], rows: Sequence[Sequence[object]], caption: object) -> Markup:
    """It scrolls within itself where a phone is too narrow; the first cell of each row is its heading."""
    head = tag("thead", tag("tr", [tag("th", heading, scope="col") for heading in headings]))
    body = tag(
        "tbody",
        [
            tag("tr", tag("th", first, scope="row"), [tag("td", cell) for cell in cells])
            for first, *cells in rows
        ],
    )
    inner = tag("table", tag("caption", caption), head, body)
    return tag(
        "div",
        inner,
        class_="table",
        tabindex="0",
        role="region",
        aria_label=f"Table: {caption if isinstance(caption, str) else 'numbers'}",
    )


def _child(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child.text
    if isinstance(child, Iterable) and not isinstance(child, str):
        return "".join(map(_child, child))
    return escape(shown(str(child)), quote=False)


def _attribute(key: str, value: str | float | bool | None) -> str:  # noqa: FBT001  HTML's own
    name = key.rstrip("_").replace("_", "-")
    assert _NAME.fullmatch(name), name
    assert not name.startswith("on"), f"The policy refuses {name}"
    assert name != "style", "The policy refuses style"
    if value is None or value is False or (name in _ADDRESSES and not _HARMLESS.fullmatch(str(value))):
        return ""
    return f" {name}" if value is True else f' {name}="{escape(shown(str(value)))}"'


def shown(text: str) -> str:
    """The text without what no page can show, or what would reorder it in front of its reader."""
    return _UNSHOWN.sub("\ufffd", text)
