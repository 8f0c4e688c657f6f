"""The Markdown reader: what a reader of the site sees, where the site shows it."""

from pathlib import PurePosixPath
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.read import UnreadableError, read
from ingest.read.document import Document, Piece
from tests.build import HOSTILE, steady


def page(text: str | bytes, path: str = "walking.md") -> Document:
    return read(text if isinstance(text, bytes) else text.encode(), PurePosixPath(path))


def with_front(front: str, path: str = "walking.md") -> Document:
    return page(f"---\n{front}\n---\n\nRobots fall.\n", path)


def pieces(text: str) -> list[Piece]:
    return [piece for section in page(text).sections for piece in section.pieces]


def texts(text: str) -> list[str]:
    return [piece.text for piece in pieces(text)]


def anchors(*headings: str) -> list[str]:
    return [piece.anchor for piece in pieces("\n\n".join(f"{heading}\n\nText." for heading in headings))]


# --- Front matter


def test_front_matter() -> None:
    front = "title: Walking\nmodule: 2\ndifficulty: beginner\ntags: [gait, balance]\nsidebar_position: 7"
    read_page = with_front(front)
    assert (read_page.title, read_page.module, read_page.difficulty) == ("Walking", 2, "beginner")
    assert read_page.tags == ("gait", "balance")
    assert [piece.text for section in read_page.sections for piece in section.pieces] == ["Robots fall."]


@pytest.mark.parametrize(
    "text",
    ["\ufeff---\ntitle: Walking\n---\nRobots fall.", "---\r\ntitle: Walking\r\n---\r\nRobots fall.\r\n",
     "---  \ntitle: Walking\n---\t\nRobots fall.", "---\ntitle: Walking\n# a comment\n---\nRobots fall."],
    ids=["byte order mark", "Windows lines", "spaces", "comment"],
)  # fmt: skip
def test_front_matter_of_any_editor(text: str) -> None:
    assert page(text).title == "Walking"
    assert texts(text) == ["Robots fall."]


def test_page_without_front_matter() -> None:
    read_page = page("Robots fall.")
    assert (read_page.title, read_page.module, read_page.difficulty, read_page.tags) == (
        "walking",
        None,
        None,
        (),
    )


@pytest.mark.parametrize("text", ["---\n---\nRobots fall.", "---\n# nothing\n---\nRobots fall."])
def test_empty_front_matter(text: str) -> None:
    assert page(text).title == "walking"
    assert texts(text) == ["Robots fall."]


def test_front_matter_without_a_body() -> None:
    assert page("---\ntitle: Walking\n---").sections == ()


@pytest.mark.parametrize(
    "front", ["title: [", "title: 'a", "a: b: c", "\t- x", "!!python/object:os.system {}", "day: 2026-13-45"]
)
def test_broken_front_matter_is_unreadable(front: str) -> None:
    with pytest.raises(UnreadableError, match=r".+"):
        with_front(front)


@pytest.mark.parametrize("front", ["- a\n- b", "Robots fall.", "42"])
def test_front_matter_that_is_no_mapping_is_unreadable(front: str) -> None:
    with pytest.raises(UnreadableError, match="front matter"):
        with_front(front)


@pytest.mark.parametrize("front", ["tags: 5", "tags: gait", "tags: true", "tags: {gait: 1}"])
def test_tags_that_are_no_list_are_no_tags(front: str) -> None:
    """Or unreadable; but never letters, and never the end of the whole ingest."""
    try:
        tags = with_front(front).tags
    except UnreadableError:
        return
    assert tags in {(), ("gait",)}


@pytest.mark.parametrize("front", ["module: true", "module: two", "module: [1]", "module: 1.5"])
def test_module_that_is_no_number_is_no_module(front: str) -> None:
    assert with_front(front).module is None


@pytest.mark.parametrize(
    ("front", "tags"),
    [("tags: [gait, balance]", ("gait", "balance")), ("tags: [{label: Gait, permalink: /gait}, 3]", ("Gait",)),
     ("tags: []", ()), ("tags:", ())],
)  # fmt: skip
def test_tags(front: str, tags: tuple[str, ...]) -> None:
    assert with_front(front).tags == tags


@pytest.mark.parametrize(
    "front",
    ["a: &a [1, 1]\nb: [*a, *a]", "title: &a x\nid: *a", "a: " + "[" * 60_000, "- " * 30_000, "a: " + "x" * 70_000,
     f"module: {2**40}", "!!python/object/apply:os.getcwd []"],
    ids=["aliases", "one alias", "brackets", "lists", "long", "large number", "object"],
)  # fmt: skip
def test_front_matter_that_could_do_harm_is_unreadable(front: str) -> None:
    with pytest.raises(UnreadableError, match="front matter"):
        with_front(front)


def test_text_that_cannot_be_stored_is_unreadable() -> None:
    with pytest.raises(UnreadableError, match=r"the text has the character U\+0000"):
        page("Robots\0fall.")


def test_label_of_the_page_can_be_given() -> None:
    (piece,) = with_front("page: 42").sections[0].pieces
    assert piece.page == "42"


def test_draft_is_no_page() -> None:
    assert with_front("draft: true").sections == ()
    assert with_front("unlisted: true").sections != ()


@pytest.mark.parametrize("title", [r'"a\0b"', r'"a\ud800b"'], ids=["NUL", "surrogate"])
def test_title_can_be_stored_or_is_unreadable(title: str) -> None:
    """YAML can spell what UTF-8 and PostgreSQL cannot hold; one such page must not end the whole ingest."""
    try:
        stored = with_front(f"title: {title}").title.encode()
    except UnreadableError:
        return
    assert b"\0" not in stored


@pytest.mark.parametrize(
    "content", [b"\xff", b"caf\xe9", "Robots".encode("utf-16"), b"---\ntitle: \xe9\n---\n"]
)
def test_what_is_not_utf8_is_unreadable(content: bytes) -> None:
    with pytest.raises(UnreadableError, match="not UTF-8"):
        page(content)


@pytest.mark.parametrize("suffix", [".md", ".mdx", ".MD"])
def test_suffixes(suffix: str) -> None:
    assert page("Robots fall.", f"walking{suffix}").filename == f"walking{suffix}"


# --- Addresses


@pytest.mark.parametrize(
    ("path", "front", "url"),
    [
        ("walking.md", "", "/docs/walking"),
        ("robots/walking.mdx", "", "/docs/robots/walking"),
        # Number prefixes
        ("07-walking.md", "", "/docs/walking"),
        ("001 - Walking.md", "", "/docs/Walking"),
        ("1___walking.md", "", "/docs/walking"),
        ("7.walking.md", "", "/docs/walking"),
        ("1-robots/02-legs/3_walking.md", "", "/docs/robots/legs/walking"),
        ("07.md", "", "/docs/07"),
        ("a1-walking.md", "", "/docs/a1-walking"),
        # … but neither dates nor versions
        ("2026-01-31-news.md", "", "/docs/2026-01-31-news"),
        ("2026-01-news.md", "", "/docs/2026-01-news"),
        ("8.0 - News.md", "", "/docs/8.0 - News"),
        ("18_2.md", "", "/docs/18_2"),
        # Slugs
        ("robots/walking.md", "slug: /", "/docs/"),
        ("robots/walking.md", "slug: /gait", "/docs/gait"),
        ("robots/walking.md", "slug: /gait/", "/docs/gait/"),
        ("robots/walking.md", "slug: gait", "/docs/robots/gait"),
        ("robots/walking.md", "slug: gait/biped", "/docs/robots/gait/biped"),
        ("robots/walking.md", "slug: ./gait", "/docs/robots/gait"),
        ("robots/legs/walking.md", "slug: ../gait", "/docs/robots/gait"),
        ("robots/walking.md", "id: gait\nslug: trot", "/docs/robots/trot"),
        ("robots/index.md", "slug: gait", "/docs/robots/gait"),
        # Ids
        ("robots/07-walking.md", "id: gait", "/docs/robots/gait"),
        ("robots/07-walking.md", "id: 07-gait", "/docs/robots/07-gait"),
        ("robots/walking.md", "id: index", "/docs/robots/index"),
        # A folder's own page
        ("index.md", "", "/docs/"),
        ("robots/index.md", "", "/docs/robots/"),
        ("robots/inDEx.md", "", "/docs/robots/"),
        ("robots/README.mdx", "", "/docs/robots/"),
        ("robots/robots.md", "", "/docs/robots/"),
        ("robots/RoBots.md", "", "/docs/robots/"),
        ("Robots/robots.md", "", "/docs/Robots/"),
        ("Robots/Robots.md", "", "/docs/Robots/"),
        ("01-robots/01-robots.md", "", "/docs/robots/"),
        ("robots/index.md", "id: start", "/docs/robots/"),
        ("robots/legs.md", "", "/docs/robots/legs"),
        ("robots/legs/robots.md", "", "/docs/robots/legs/robots"),
        ("robots/01-index.md", "", "/docs/robots/index"),
        ("01-robots/robots.md", "", "/docs/robots/robots"),
    ],
)  # fmt: skip
def test_address_is_the_one_docusaurus_gives(path: str, front: str, url: str) -> None:
    read_page = with_front(front, path)
    assert read_page.url == url
    last = url.rstrip("/").rpartition("/")[2]
    assert read_page.sections[0].pieces[0].page == (read_page.title if url == "/docs/" else last)


# --- Headings and anchors


def test_title_is_that_of_the_front_matter_then_the_first_heading_then_the_file() -> None:
    assert page("---\ntitle: Walking\n---\n# Gait\n\nText.").title == "Walking"
    assert page("# Gait *and* `balance`\n\nText.").title == "Gait and balance"
    assert page("Gait\n====\n\nText.").title == "Gait"
    assert page("Text.", "robots/07-walking.md").title == "walking"


def test_text_above_the_first_heading_stands_under_the_title() -> None:
    (piece,) = pieces("# Gait\n\nText.")
    assert (piece.heading, piece.anchor) == ("Gait", "")


def test_second_level_begins_a_section_and_deeper_levels_do_not() -> None:
    read_page = page("# T\n\nA.\n\n## One\n\nB.\n\n### Deep\n\nC.\n\n#### Deeper\n\nD.\n\n## Two\n\nE.")
    found = [(s.heading, [(p.text, p.heading, p.anchor) for p in s.pieces]) for s in read_page.sections]
    assert found == [
        ("T", [("A.", "T", "")]),
        ("One", [("B.", "One", "one"), ("C.", "Deep", "deep"), ("D.", "Deeper", "deeper")]),
        ("Two", [("E.", "Two", "two")]),
    ]


def test_section_without_text_is_left_out() -> None:
    assert [section.heading for section in page("# T\n\n## Empty\n\n## Full\n\nText.").sections] == ["Full"]


def test_heading_is_no_sentence() -> None:
    assert texts("# T\n\n## A heading. With a stop.\n\nText.") == ["Text."]


def test_custom_id() -> None:
    (piece,) = pieces("## Why *robots* fall {#why}\n\nText.")
    assert (piece.heading, piece.anchor) == ("Why robots fall", "why")
    assert page("# Gait {#gait}\n\nText.").title == "Gait"


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Definition and Scope", "definition-and-scope"),
        ("What Is It?", "what-is-it"),
        ("C++ & ROS 2: a_b", "c--ros-2-a_b"),
        ("Sense \u2013 Plan \u2013 Act", "sense--plan--act"),
        ("The `ros2_control` [loop](x.md)", "the-ros2_control-loop"),
        ("apostrophe\u2019s", "apostrophes"),
        ("I ♥ unicode", "i--unicode"),
        ("😄 - an emoji", "---an-emoji"),
        ("Привет non-latin 你好", "привет-non-latin-你好"),
        ("Größe", "größe"),
        ("रोबोट क्या है", "रोबोट-क्या-है"),
        ("cafe\u0301", "cafe\u0301"),
    ],
)
def test_anchor_is_the_one_github_slugger_gives(heading: str, anchor: str) -> None:
    assert anchors(f"## {heading}") == [anchor]


@pytest.mark.parametrize(
    ("headings", "expected"),
    [
        (["## Setup", "## Setup", "## Setup"], ["setup", "setup-1", "setup-2"]),
        (["## Setup", "### Setup", "## SETUP!"], ["setup", "setup-1", "setup-2"]),
        (["## Setup {#setup}", "## Setup"], ["setup", "setup"]),
        (["## echo", "## echo", "## echo 1", "## echo-1", "## echo"],
         ["echo", "echo-1", "echo-1-1", "echo-1-2", "echo-2"]),
        (["## foxtrot-1", "## foxtrot", "## foxtrot"], ["foxtrot-1", "foxtrot", "foxtrot-2"]),
        (["# Setup", "## Setup"], ["", "setup-1"]),
    ],
    ids=["three times", "levels and signs", "custom id", "number in heading", "number before", "title"],
)  # fmt: skip
def test_repeated_heading_has_an_anchor_of_its_own(headings: list[str], expected: list[str]) -> None:
    assert anchors(*headings) == expected


# --- Blocks


@pytest.mark.parametrize(
    ("opening", "title"),
    [
        (":::note", []), (":::note[Mind the gap]", ["Mind the gap"]),
        (":::tip Mind the gap", ["Mind the gap"]),
        ("::: warning", []), ("::::danger", []), (":::note[]", []),
        ("  :::info[*Mind* the gap]", ["Mind the gap"]),
    ],
)  # fmt: skip
def test_admonition_is_its_text_with_its_title(opening: str, title: list[str]) -> None:
    closing = ":" * opening.count(":")
    for blank in ("", "\n"):
        assert texts(f"Before.\n\n{opening}\n{blank}Inside.\n{blank}{closing}\n\nAfter.") == [
            "Before.", *title, "Inside.", "After.",
        ]  # fmt: skip


def test_nested_admonitions() -> None:
    assert texts("::::note[Outer]\n\nOne.\n\n:::tip[Inner]\n\nTwo.\n\n:::\n\n::::\n") == [
        "Outer",
        "One.",
        "Inner",
        "Two.",
    ]


def test_admonition_holds_code() -> None:
    text = ":::note\n\n```\n:::\n```\n\nText.\n\n:::\n"
    assert [(piece.kind, piece.text) for piece in pieces(text)] == [("code", ":::"), ("prose", "Text.")]


CODE = "# not a heading\n\n:::note\nimport x from 'y'\n---\n| a | b |\nOne. Two."


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("```python", "```"), ("~~~", "~~~"), ("````", "````"),
     ('```md title="a"', "``````"), ("   ```", "  ```")],
)  # fmt: skip
def test_code_stays_as_it_is(opening: str, closing: str) -> None:
    (code, after) = pieces(f"{opening}\n{CODE}\n{closing}\n\n:::note\n\nAfter.\n\n:::\n")
    assert (code.kind, code.text) == ("code", CODE)
    assert (after.kind, after.text) == ("prose", "After.")


def test_shorter_fence_does_not_close_code() -> None:
    assert texts("````\n```\n:::\n```\n````\n") == ["```\n:::\n```"]


def test_code_that_is_never_closed() -> None:
    assert texts("```\n:::note\n# x") == [":::note\n# x"]


@pytest.mark.parametrize(
    "text",
    ["- Run:\n\n  ```\n  :::note\n  # x\n  ```\n", "1.  Run:\n\n    ```\n    :::note\n    # x\n    ```\n"],
)
def test_code_in_a_list_stays_as_it_is(text: str) -> None:
    assert texts(text) == ["Run:", ":::note\n# x"]


@pytest.mark.parametrize(
    "code",
    ["- ```bash\n  ros2 run\n  ```\n", "1. Run:\n\n   ```bash\n   ros2 run\n   ```\n",
     "> ```\n> ros2 run\n> ```\n",
     "```ros2 run``` starts it.\n"],
    ids=["behind a bullet", "in a list", "in a quotation", "in a line"],
)  # fmt: skip
def test_admonition_after_code_anywhere(code: str) -> None:
    assert texts(f"{code}\n:::note\n\nAfter.\n\n:::\n")[-1] == "After."


def test_table_is_its_rows() -> None:
    table = "| Layer | Rate |\n|---|---:|\n| **Motor** | 10,000 Hz. Fast. |\n| `a | b` \\| c |  |\n\nAfter."
    rows = pieces(table)
    assert [piece.text for piece in rows[:2]] == ["Layer | Rate", "Motor | 10,000 Hz. Fast."]
    assert [piece.kind for piece in rows[:2]] == ["table", "table"]
    assert rows[0].block == rows[1].block != rows[-1].block
    assert rows[-1].text == "After."


def test_list_is_its_sentences() -> None:
    found = pieces("- One. Two.\n- Three\n  1. Four\n\n     Five.\n\nSix.")
    assert [piece.text for piece in found] == ["One.", "Two.", "Three", "Four", "Five.", "Six."]
    assert [piece.kind for piece in found] == ["list"] * 5 + ["prose"]
    assert found[0].block == found[1].block != found[2].block


def test_paragraph_is_a_block_of_its_sentences() -> None:
    found = pieces("One.\nTwo goes\non.\n\nThree.")
    assert [piece.text for piece in found] == ["One.", "Two goes on.", "Three."]
    assert found[0].block == found[1].block != found[2].block


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("**Bold**, *italic* and ***both***.", "Bold, italic and both."),
        ("A [link](./08-x.md#a 'title') and <https://a.org>.", "A link and https://a.org."),
        ("Code `a * b` and ``a ` b``.", "Code a * b and a ` b."),
        ("An image ![of a robot](x.png).", "An image of a robot."),
        ("Marked <b>up</b> here<br/>.", "Marked up here."),
        ("Signs &amp; &lt;b&gt; \\*stars\\* 30&deg;.", "Signs & <b> *stars* 30°."),
        ("Hard  \nbreaks\\\nare spaces.", "Hard breaks are spaces."),
        ("A [reference][r].\n\n[r]: https://a.org", "A reference."),
    ],
)
def test_line_is_what_a_reader_sees(text: str, seen: str) -> None:
    assert texts(text) == [seen]


@pytest.mark.parametrize(
    "line",
    ["import Tabs from '@theme/Tabs';", 'import {A, B} from "x"', "import './style.css'",
     "import * as x from 'y';",
     "export const answer = 42;", "export default Layout;", "export function f() { return 1; }",
     "import {\n  A,\n  B,\n} from 'x';"],
)  # fmt: skip
def test_module_line_is_left_out(line: str) -> None:
    assert texts(f"{line}\n\nText.\n") == ["Text."]


@pytest.mark.parametrize(
    "text", ["Import duties are high.", "We import steel from Sweden.", "Robots export data."]
)
def test_prose_about_imports_stays(text: str) -> None:
    assert texts(text) == [text]


def test_html_and_comments_are_left_out() -> None:
    assert texts("<!-- not yet -->\n\n<Tabs>\n\nText.\n\n</Tabs>\n\n<img src='x'/>\n") == ["Text."]


# --- MDX

MDX = [
    ("<Tabs>\n<TabItem value='a' label='Apple'>\n\nRed.\n\n</TabItem>\n</Tabs>", ["Apple", "Red."]),
    ('<TabItem label="Apple">Red.</TabItem>', ["Apple", "Red."]),
    ("<Card title={'A card'} other={{a: '>'}}>\n  Text.\n</Card>", ["A card", "Text."]),
    ("<details>\n<summary>More *here*</summary>\n\nText.\n\n</details>", ["More here", "Text."]),
    ("<details><summary>More</summary>Text.</details>", ["More", "Text."]),
    ("<div>\n    Far in.\n    - One\n    - Two\n</div>", ["Far in.", "One", "Two"]),
    ('A <a\n  href="x" title="tip">link</a> <kbd>Ctrl</kbd>+<kbd>C</kbd>.', ["A link Ctrl+C."]),
    ("<img src='x' alt='A robot' />", ["A robot"]),
    ("One<br/>two<br />, three.", ["One two, three."]),
    ("Sum {1 + 1} of {'two'} and {42}{/* or {3} */}.", ["Sum of two and 42."]),
    ("{/*\n## No heading\n\nHidden.\n*/}\n\nText.", ["Text."]),
    ("<!--\n## No heading\n\nHidden.\n-->\n\nText <!-- hidden -->.", ["Text ."]),
    ("{true && <p>Don't</p>}\n\nText.", ["Text."]),
    ("export const a = `\n\n# no heading\n\n`;\n\nText.", ["Text."]),
    ("export const F = () => {\n  return <p>\n\n  Hi</p>;\n};\n\nText.", ["Text."]),
    ("<style>{`\n.a { color: red }\n`}</style>\n\nText.", ["Text."]),
    ("<pre>\n  <code>{`\n  a\n    b\n`}</code>\n</pre>", ["  a\n    b"]),
    ("```mdx-code-block\n<Tabs>\n\nText.\n```\n\nAfter.", ["Text.", "After."]),
    ("A ratio of 3:1 at 10:30, key:value, std::vector.", ["A ratio of 3:1 at 10:30, key:value, std::vector."]),
    ("A :name[*label*]{key=value} and ::: colons.", ["A label and ::: colons."]),
    ("::video[A walk]{id=1}", ["A walk"]),
    ("- [x] Done\n- [ ] Open", ["Done", "Open"]),
    ("Struck ~~out~~ words.", ["Struck out words."]),
    ("Energy $E_a = m*c^2*k$ and $\\frac{a}{b}$ cost $5.", ["Energy $E_a = m*c^2*k$ and $\\frac{a}{b}$ cost $5."]),
    ("$$\n\\frac{a}{b}\n\n# c\n$$", ["$$\n\\frac{a}{b}\n\n# c\n$$"]),
    ("See[^b].\n\n[^a]: Unseen.\n[^b]: A note.\n\n    More.\n\nText.", ["See.", "Text.", "A note.", "More."]),
    ("No note[^a].", ["No note[^a]."]),
    ("a < b, c > d, x<5, {open and <open", ["a < b, c > d, x<5, {open and <open"]),
    ("[a [b](c) d](e) [![f](g)](h) `]` [i](j).", ["[a b d](e) f ] i."]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "seen"), MDX, ids=[text[:30] for text, _ in MDX])
def test_mdx_is_what_a_reader_sees(text: str, seen: list[str]) -> None:
    assert texts(text) == seen


def test_footnotes_stand_under_a_heading_of_their_own() -> None:
    note = pieces("See[^a].\n\n[^a]: A note.\n\n## Part\n\nText.")[-1]
    assert (note.text, note.heading, note.anchor) == ("A note.", "Footnotes", "footnote-label")


def test_heading_in_tags() -> None:
    found = pieces(
        '<h2 id="a">One *more*\n</h2>\n\nText.\n\n<Heading as="h3">Two</Heading>\n\nText.\n\n<h2>\n\nText.'
    )
    assert [(piece.text, piece.heading, piece.anchor) for piece in found] == [
        ("Text.", "One more", "a"),
        ("Text.", "Two", ""),
        ("Text.", "Two", ""),
    ]


def test_plain_markdown_by_front_matter() -> None:
    front = "---\nmdx:\n  format: md\n---\n"
    assert texts(f"{front}Braces {{x}} and <b>tags</b>.\n\n    code\n\n<div>\n# No *mark* &amp;\n</div>") == [
        "Braces {x} and tags.",
        "code",
        "# No *mark* &",
    ]


def test_first_of_two_titles_counts() -> None:
    read_page = page("# One\n\nA.\n\n# Two\n\nB.")
    assert read_page.title == "One"
    assert [(section.heading, section.pieces[0].heading) for section in read_page.sections] == [
        ("One", "One"),
        ("Two", "Two"),
    ]


# --- Large and hostile pages


@pytest.mark.campaign
@pytest.mark.parametrize(
    "text",
    ["> " * 200 + "a", "- " * 200 + "a", "\n".join("  " * depth + "- a" for depth in range(200)),
     "![" * 2000 + "a" + "](x)" * 2000],
    ids=["quotes", "items", "lists", "images"],
)  # fmt: skip
def test_what_lies_too_deep_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableError, match="nested"):
        page(text)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "text",
    ["[", "![", "[a](", "[[a](b)", "![a](b", "`` `", "*a **b ", "<", "<a b='", "<!-- ", "<!--\n\n", "{", "{'", "{\n\n",
     "$a_", "$$\n\n", ":a", ":::note\n", "[^a]: b\n", "import {\n\n", "export const a = (\n\n", "<h2>\n\na\n\n",
     "```mdx-code-block\n\n", "<details>\n", "Robots fall. ", "robots fall ", "|a|b|\n|-|-|\n", "# a\n", "- a\n"],
)  # fmt: skip
def test_time_grows_with_the_length(text: str) -> None:
    """A square would take minutes for this; CPU time, because other tests run at the same time."""
    started_s = process_time()
    page(text * (60_000 // len(text)))
    assert process_time() - started_s < 10


# --- Any text


@steady
@given(
    st.lists(
        st.sampled_from((*HOSTILE, "## ", "- ", "```\n", ":::note\n", "---\n", "| a |\n|-|\n", "{#x}")),
        max_size=30,
    ).map("".join)
)
def test_any_text_is_read_or_named(text: str) -> None:
    try:
        found = pieces(text)
    except UnreadableError:
        return
    assert all(piece.text.strip() and piece.text == piece.text.rstrip() for piece in found)
    assert all(piece.kind == "code" or piece.text == piece.text.lstrip() for piece in found)
    assert [piece.block for piece in found] == sorted(piece.block for piece in found)


@steady
@given(st.text())
def test_same_bytes_are_the_same_page(text: str) -> None:
    try:
        assert page(text) == page(text)
    except UnreadableError:
        assert "\0" in text or text.lstrip("\ufeff").startswith("---")
