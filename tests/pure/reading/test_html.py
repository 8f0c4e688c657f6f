"""The HTML reader: what a reader of the page sees in its main part, where the page shows it."""

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.read import UnreadableError, html
from ingest.read.document import Document, Piece
from tests.build import HOSTILE, steady


def page(content: str | bytes, path: str = "guide/walking.html") -> Document:
    return html.read(content if isinstance(content, bytes) else content.encode(), PurePosixPath(path))


def pieces(content: str) -> list[Piece]:
    return [piece for section in page(content).sections for piece in section.pieces]


def texts(content: str) -> list[str]:
    return [piece.text for piece in pieces(content)]


# A page as Docusaurus builds it, without its styles.
DOCUSAURUS = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<title data-rh="true">Walking | Robots</title><link data-rh="true" rel="canonical" href="https://robots.example/docs/walking">
<script>window.x = "no"</script></head><body><nav class="navbar">No</nav><div id="__docusaurus"><main><div class="row">
<div class="col"><article><nav class="theme-doc-breadcrumbs">Home</nav><span class="badge"></span>
<div class="theme-doc-markdown markdown"><header><h1>Walking</h1></header><p>Robots walk on <em>two</em> legs.</p>
<h2 class="anchor" id="balance">Balance<a href="#balance" class="hash-link" aria-label="Direct link to Balance">\u200b</a></h2>
<p>They fall. <code>ros2 run</code> helps&nbsp;them.</p><h3 class="anchor" id="gait">Gait<a href="#gait" class="hash-link">#\u200b</a></h3>
<div class="language-py codeBlockContainer"><div class="codeBlockContent"><pre class="prism-code"><code><span
class="token-line"><span>def walk():</span><br></span><span class="token-line">    <span>pass</span><br></span></code></pre>
<div class="buttonGroup"><button>Copy</button></div></div></div></div>
<footer class="theme-doc-footer">Edit this page</footer></article><nav>Next</nav></div>
<div class="col col--3"><div class="tableOfContents"><ul><li><a href="#balance">Balance</a></ul></div></div></div></main></div>
<footer>Copyright</footer></body></html>"""


def test_a_page_of_docusaurus() -> None:
    read = page(DOCUSAURUS)
    assert (read.title, read.url) == ("Walking", "/docs/walking")
    assert [(section.heading, [piece.text for piece in section.pieces]) for section in read.sections] == [
        ("Walking", ["Robots walk on two legs."]),
        ("Balance", ["They fall.", "ros2 run helps them.", "def walk():\n    pass"]),
    ]
    code = read.sections[1].pieces[2]
    assert code == Piece("def walk():\n    pass", 3, "code", "Gait", "gait", "walking")


# --- What is read


def test_the_main_part_of_the_page() -> None:
    around = "<header>No</header><nav>No</nav><aside>No</aside>{}<footer>No</footer>"
    for main in ("<main>Yes</main>", "<div role=main>Yes</div>", "<article>Yes</article>", "<p>Yes</p>"):
        assert texts(around.format(main)) == ["Yes"]


def test_several_articles_are_one_page() -> None:
    assert texts("<main><article>One</article><article>Two</article></main>") == ["One", "Two"]


@pytest.mark.parametrize(
    "hidden",
    [
        "<script>no</script>", "<style>no</style>", "<template><p>no</p></template>", "<p hidden>no</p>",
        "<p aria-hidden=true>no</p>", "<p style='color: red; display:none'>no</p>", "<!-- no -->",
        "<div style='visibility : hidden'><p>no</div>", "<noscript>no</noscript>", "<svg><text>no</text></svg>",
        "<button>no</button>", "<select><option>no</select>", "<iframe>no</iframe>", "<dialog>no</dialog>",
        "<header>no</header>", "<textarea>no</textarea>", "<math><annotation>no</annotation></math>",
    ],
)  # fmt: skip
def test_what_is_not_shown(hidden: str) -> None:
    assert texts(f"<main><p>It walks.</p>{hidden}<p>It falls.</p></main>") == ["It walks.", "It falls."]
    assert texts(f"<main><table><tr><td>It walks.{hidden}</td></tr></table></main>") == ["It walks."]


def test_a_tab_that_is_not_in_front() -> None:
    assert texts('<main><div role="tabpanel" hidden>It walks.</div></main>') == ["It walks."]


# --- Blocks


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("<p>It walks. It falls.</p>", ["It walks.", "It falls."]),
        ("It <div>walks</div> and <p>falls", ["It", "walks", "and", "falls"]),
        ("<p>It\n  <b>wa</b>lks<br>up &amp; down&#46; 1 &lt; 2</p>", ["It walks up & down.", "1 < 2"]),
        ("<p>ro&shy;bot, w<wbr>alk</p>", ["robot, walk"]),
        ("<ul><li>One<li>Two<ol><li>Three</ol></ul>", ["One", "Two", "Three"]),
        ("<blockquote>It walks.</blockquote>", ["It walks."]),
        ("<figure><img alt=no><figcaption>It walks.</figcaption></figure>", ["It walks."]),
        ("<details><summary>Why?</summary>It walks.</details>", ["Why?", "It walks."]),
        (
            "<table><caption>Robots</caption><tr><th>a<th>b<tr><td>1<td>2</table>",
            ["Robots", "a | b", "1 | 2"],
        ),
        ("<table><tr><td>a<br>b<td><p>c</p><p>d</p><tr><td><td> </table>", ["a b | c d"]),
        ("<table><tr><td><h2>It</h2><p>walks.</p><td><p>It falls.</table>", ["walks.", "It falls."]),
        ("<table><tr><td><table><tr><td>a<td>b</table><td>c</table>", ["a | b", "c"]),
        ("<pre>\n  a  b\n\n\tc\n</pre>", ["  a  b\n\n\tc"]),
        ("10<sup>6</sup> m s<sup>-1</sup>, H<sub>2</sub>O, x<sub>max</sub>", ["10⁶ m s⁻¹, H₂O, xmax"]),
        ("It walks.<a href=#fnref>↩</a>", ["It walks."]),
        ('<a href="#x">It walks.</a>', ["It walks."]),
    ],
)
def test_blocks(content: str, expected: list[str]) -> None:
    assert texts(f"<main>{content}</main>") == expected


def test_kinds_and_blocks() -> None:
    read = pieces(
        "<p>One. Two.</p><ul><li>Three</li></ul><dl><dt>Gait</dt><dd>A way. It goes.</dd><dt>Leg</dt><dd>Long.</dd></dl>"
        "<table><tr><td>a<td>b<tr><td>c<td>d</table><pre>e</pre>"
    )
    assert [(piece.kind, piece.block) for piece in read] == [
        ("prose", 1), ("prose", 1), ("list", 2), ("list", 3), ("list", 3), ("list", 3), ("list", 4), ("list", 4),
        ("table", 5), ("table", 5), ("code", 6),
    ]  # fmt: skip


# --- Headings


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ('<h2 id="gait">Gait</h2>', "gait"), ('<h1 id="top">Gait</h1>', "top"), ("<h2>Gait</h2>", ""),
        ('<h2><a name="gait"></a>Gait</h2>', "gait"), ('<h2><a id="gait" href="#gait">Gait</a></h2>', "gait"),
        ('<a name="gait"></a>\n<h2>Gait</h2>', "gait"), ('<a id="gait"></a><!-- x --><h2>Gait</h2>', "gait"),
        ('<section id="gait"><h2>Gait</h2></section>', "gait"), ('<div id="x"><p></p><h2>Gait</h2></div>', ""),
        ('<a name="far"></a>Text<h2>Gait</h2>', ""),
    ],
)  # fmt: skip
def test_anchors(heading: str, expected: str) -> None:
    found = pieces(f"<body>{heading}<p>It walks.</p>")[-1]
    assert (found.heading, found.anchor) == ("Gait", expected)


@pytest.mark.parametrize("sign", ["#", "\u200b", "#\u200b", "¶", "§", " ", "🔗", ""])
def test_the_sign_beside_a_heading_is_not_its_text(sign: str) -> None:
    assert pieces(f'<h2 id="x">Gait<a href="#x">{sign}</a></h2><p>It walks.')[0].heading == "Gait"


def test_a_heading_that_is_a_link() -> None:
    assert pieces('<h2 id="x"><a class="header" href="#x">Gait</a></h2><p>It walks.')[0].heading == "Gait"


def test_sections_begin_at_the_second_level() -> None:
    read = page("<p>a</p><h1>A</h1><p>b</p><h3>B</h3><p>c</p><h2>C</h2><p>d</p><h2>Empty</h2><h2></h2>")
    assert [(section.heading, [piece.heading for piece in section.pieces]) for section in read.sections] == [
        ("A", ["A"]), ("A", ["A", "B"]), ("C", ["C"]),
    ]  # fmt: skip


# --- About the page


@pytest.mark.parametrize(
    ("content", "title"),
    [
        ("<title>Walking &amp; more</title>", "Walking & more"), ("<h1>Walking</h1>", "Walking"),
        ("<title>Robots</title><h1>Walking</h1>", "Robots"), ("<title>Walking | Robots</title><h1>Walking</h1>", "Walking"),
        ("<title> </title><p>x", "walking"), ("<svg><title>No</title></svg>", "walking"),
    ],
)  # fmt: skip
def test_titles(content: str, title: str) -> None:
    assert page(content).title == title


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("https://a.example/docs/walking", "/docs/walking"), ("/docs/walking/", "/docs/walking/"), ("/", "/"),
        ("https://a.example", "/guide/walking"), ("walking", "/guide/walking"), ("", "/guide/walking"),
        ("//evil.example", "/guide/walking"), ("https://a.example//evil.example", "/guide/walking"),
        ("/\\evil.example", "/guide/walking"), ("javascript:/x", "/guide/walking"), ("/x?y=1", "/guide/walking"),
        ("http://[", "/guide/walking"), ("/docs/a#b", "/docs/a"), ("/ x", "/guide/walking"),
    ],
)  # fmt: skip
def test_canonical_links(href: str, url: str) -> None:
    read = page(f'<link rel="canonical" href="{href}"><p>It walks.')
    assert read.url == url
    assert read.sections[0].pieces[0].page == (url.rstrip("/").rsplit("/", 1)[-1] or url)


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("index.html", "/"),
        ("guide/index.html", "/guide"),
        ("a b.htm", "/a%20b"),
        ("a/index.b.html", "/a/index.b"),
    ],
)
def test_addresses(path: str, url: str) -> None:
    assert page("<p>It walks.", path).url == url


# --- Encodings


@pytest.mark.parametrize(
    "content",
    [
        "<p>Er fällt “oft”".encode(), "\ufeff<p>Er fällt “oft”".encode(), "<p>Er fällt “oft”".encode("utf-16"),
        '<meta charset="windows-1252"><p>Er fällt “oft”'.encode("cp1252"), "<META CHARSET=latin1><p>Er fällt “oft”".encode("cp1252"),
        '<meta http-equiv="Content-Type" content="text/html; charset=UTF-8"><p>Er fällt “oft”'.encode(),
        "<?xml version='1.0' encoding='utf-8'?><p>Er fällt “oft”".encode(), "<meta charset=gb18030><p>Er f\u00e4llt “oft”".encode("gb18030"),
    ],
)  # fmt: skip
def test_encodings(content: bytes) -> None:
    assert [piece.text for piece in page(content).sections[0].pieces] == ["Er fällt “oft”"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("<p>fällt".encode("latin-1"), "is not UTF-8"), ("<meta charset=utf-8><p>fällt".encode("latin-1"), "is not UTF-8"),
        ("<meta charset=shift_jis><p>fällt".encode(), None), (b"<meta charset=windows-1252><p>\x81", "is not CP1252"),
        (b"<meta charset=zip><p>x", "declares the unknown encoding zip"), (b"<meta charset=idna>x", "idna"),
        (b"<meta charset=unicode_escape>x", "unicode_escape"), ("<p>fällt".encode("utf-16-le"), "NUL bytes"),
    ],
)  # fmt: skip
def test_wrong_encodings(content: bytes, said: str | None) -> None:
    if said is None:
        assert (
            "ä" not in page(content).sections[0].pieces[0].text
        )  # that declaration is believed, as browsers do
        return
    with pytest.raises(UnreadableError, match=said):
        page(content)


# --- Anything


@pytest.mark.parametrize("content", ["", "<", "<p>", "\0", "<main></main>", "<frameset><frame></frameset>"])
def test_nothing(content: str) -> None:
    if content == "\0":
        with pytest.raises(UnreadableError):
            page(content)
    else:
        assert texts(content) in ([], ["<"])


_TAG_NAMES = (
    "p div ul li table tr td pre h1 h2 a main article header section sup br dl dt dd math svg template"
)
_TAGS = _TAG_NAMES.split()
_PARTS = (*HOSTILE, *(f"<{tag} id=x href=#>" for tag in _TAGS), *(f"</{tag}>" for tag in _TAGS))


@steady
@given(st.lists(st.sampled_from(_PARTS), max_size=40).map("".join))
def test_any_page_is_read(content: str) -> None:
    for piece in pieces(content):
        assert piece.text.strip()
        assert piece.kind == "code" or piece.text == " ".join(piece.text.split())


@pytest.mark.campaign
def test_a_page_nested_deeply() -> None:
    for tag in ("div", "span", "b", "ul><li", "section", "table><tr><td", "font", "a href=#", "header"):
        said = texts(f"<main>{f'<{tag}>' * 2000}It walks.")
        assert said == ([] if tag == "header" else ["It walks."])
