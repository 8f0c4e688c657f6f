"""Markup escapes what it is given, whoever wrote it."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.markup import Markup, joined, tag


class Found(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parsed(markup: Markup) -> Found:
    found = Found()
    found.feed(str(markup))
    found.close()
    return found


MARKING = st.text() | st.text(alphabet="<>/\"'&=! -abp;")


# Seen red with `escape` left out of `_child`, and with quotes left as they are in `_attribute`.
@given(MARKING, MARKING)
def test_no_text_becomes_an_element_or_an_attribute(text: str, value: str) -> None:
    found = parsed(tag("p", text, tag("b", text), title=value))
    assert [(name, [key for key, _ in attributes]) for name, attributes in found.tags] == [
        ("p", ["title"]), ("b", []),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)", " javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\nscript:alert(1)", "data:text/html,x", "//evil.example",
        "vbscript:x", "\\\\evil.example", "/\\evil.example", "x",
    ],
)  # fmt: skip
def test_an_address_that_runs_or_leads_astray_is_left_out(address: str) -> None:
    assert str(tag("a", "here", href=address)) == "<a>here</a>"


@pytest.mark.parametrize("address", ["/console?a=1&b=2", "#top", "?page=2", "https://book.example/a#b"])
def test_an_ordinary_address_stays(address: str) -> None:
    assert parsed(tag("a", href=address)).tags == [("a", [("href", address)])]


@pytest.mark.parametrize("name", ["onclick", "style", "on_load", 'x"y'])
def test_no_element_brings_its_own_script_or_style(name: str) -> None:
    with pytest.raises(AssertionError):
        tag("p", **{name: "x"})


def test_what_would_reorder_or_vanish_is_shown_as_a_mark() -> None:
    assert str(joined("a\u202eb\x00c\x1bd")) == "a\ufffdb\ufffdc\ufffdd"
    assert str(joined("\u200fa\u200e")) == "\u200fa\u200e"


def test_lists_and_absent_children_and_numbers() -> None:
    assert str(tag("ul", [tag("li", each) for each in (1, None, "<")], hidden=True, title=None)) == (
        "<ul hidden><li>1</li><li></li><li>&lt;</li></ul>"
    )
