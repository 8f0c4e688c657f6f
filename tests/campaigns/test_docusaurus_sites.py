"""The Docusaurus plugin in real sites: what it exports is ingested, and readers ask in a real browser."""

import json
import os
import re
import sys
import unicodedata
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import psycopg
import pytest

from engine.storage.database import Database
from engine.wiring import SAMPLE_BOOK
from tests.conftest import ROOT, Running
from tests.labelled import BOOKS, PHYSICAL_AI
from tests.product.browser import CHROMIUM, FIREFOX
from tests.product.docusaurus import PLUGIN, run

BOOK = BOOKS[-1]  # a real one, where it is beside the checkout
EXPORT = "affidavit-content.json"


@dataclass(frozen=True, slots=True)
class Site:
    """One locale of a built site, where it stands, and the book that its export is ingested as."""

    folder: Path
    base_url: str
    book: str
    export: str = EXPORT

    @property
    def pages(self) -> list[dict[str, Any]]:
        return list(self.exported["pages"])

    @property
    def exported(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / self.export).read_text()))


@pytest.fixture(scope="module")
def course(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two locales, two versions, two docs, a base URL, the sample book, and a Root and a search of its own."""
    target = tmp_path_factory.mktemp("course") / "site"
    run("node", package / "e2e/make-site.mjs", "site", target, SAMPLE_BOOK)
    return target / "build"


def affidavit_ingest(site: Site, data_dir: Path) -> None:
    command = [sys.executable, "-m", "engine.cli", "ingest", site.folder / site.export, "--book", site.book]
    result = json.loads(run(*command, "--json", "--data-dir", data_dir, cwd=ROOT).splitlines()[-1])
    assert (result["exit_code"], result["errors"]) == (0, [])


@pytest.fixture(scope="module")
def english(course: Path, database: Database, data_dir: Path) -> Site:
    site = Site(course, "/book/", "robot-course")
    affidavit_ingest(site, data_dir)
    return site


@pytest.fixture(scope="module")
def german(course: Path, database: Database, data_dir: Path) -> Site:
    site = Site(course / "de", "/book/de/", "robot-course-de")
    affidavit_ingest(site, data_dir)
    return site


@pytest.fixture(scope="module")
def first_edition(course: Path, database: Database, data_dir: Path) -> Site:
    site = Site(course, "/book/", "robot-course-1-0", "affidavit-content-1.0.json")
    affidavit_ingest(site, data_dir)
    return site


@pytest.fixture(scope="module")
def oldest(
    package: Path, tmp_path_factory: pytest.TempPathFactory, database: Database, data_dir: Path
) -> Site:
    """Docusaurus 3.0 and React 18, as its own lock file installs them."""
    target = tmp_path_factory.mktemp("oldest") / "oldest"
    run("node", package / "e2e/make-site.mjs", "oldest", target, package / "e2e/docs")
    site = Site(target / "build", "/", "irrigation-by-robots")
    affidavit_ingest(site, data_dir)
    return site


@pytest.fixture(scope="module")
def hash_router(
    package: Path, tmp_path_factory: pytest.TempPathFactory, database: Database, data_dir: Path
) -> Site:
    target = tmp_path_factory.mktemp("hash") / "hash"
    run("node", package / "e2e/make-site.mjs", "hash", target, package / "e2e/docs")
    site = Site(target / "build", "/irrigation/", "irrigation-by-hash")
    affidavit_ingest(site, data_dir)
    return site


@pytest.fixture(scope="module")
def physical_ai(
    package: Path, tmp_path_factory: pytest.TempPathFactory, database: Database, data_dir: Path
) -> Site:
    target = tmp_path_factory.mktemp("physical-ai") / "site"
    run("node", package / "e2e/make-site.mjs", "plain", target, BOOK)
    site = Site(target / "build", "/", "real-book")  # "physical-ai" is the sample book's id
    affidavit_ingest(site, data_dir)
    return site


# --- The package


# --- The export: every passage leads to a place that is there


@pytest.mark.parametrize("name", ["english", "german", "first_edition", "physical_ai"])
def test_every_address_and_anchor_of_every_passage_is_in_the_built_site(
    name: str, request: pytest.FixtureRequest, database: Database
) -> None:
    """Seen red with anchors that the export made of the headings' text instead of reading the built ones."""
    site: Site = request.getfixturevalue(name)
    places = passages(database, site.book)
    assert {url for url, _ in places} <= {page["permalink"] for page in site.pages}
    ids = {url: ids_of(site, url) for url in {url for url, _ in places}}
    missing = {(url, anchor) for url, anchor in places if anchor and anchor not in ids[url]}
    assert missing == set(), f"{len(places) - len(missing)} of {len(places)} places"
    assert any(anchor for _, anchor in places)


def passages(database: Database, book: str) -> set[tuple[str, str]]:
    """Address and anchor of every sentence that can be cited."""
    query = """SELECT split_part(url, '#', 1), sentence ->> 3
               FROM books JOIN generation_chunks ON generation_id = live_generation JOIN chunks USING (chunk_id),
                    jsonb_array_elements(sentences) AS sentence
               WHERE books.book_id = %s"""
    with psycopg.connect(database.url) as connection:
        found = connection.execute(query, (book,)).fetchall()
    assert found
    return set(found)


def ids_of(site: Site, url: str) -> set[str]:
    found = Ids()
    found.feed(built(site, url))
    return found.ids


def built(site: Site, url: str) -> str:
    """What the site shows at this address."""
    inside = url.removeprefix(site.base_url.rstrip("/")).strip("/")
    candidates = [site.folder / f"{inside}.html", site.folder / inside / "index.html"]
    (file,) = [path for path in candidates if path.is_file()]
    return file.read_text()


class Ids(HTMLParser):
    """Reads nothing but ids, with another parser than the export."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids.update(value for name, value in attrs if name == "id" and value)


def test_all_docs_of_a_locale_and_version_are_in_its_own_book(
    english: Site, german: Site, first_edition: Site
) -> None:
    """All versions were in one export before, and so in one book."""
    assert {page["source"].split("/")[0] for page in english.pages} == {"docs", "course"}
    assert {page["source"].split("/")[0] for page in first_edition.pages} == {"versioned_docs"}
    assert {page["locale"] for page in german.pages} == {"de"}
    books = [site.exported["book"] for site in (english, german, first_edition)]
    assert [(book["id"], book["locale"], book["version"]) for book in books] == [
        ("robot-course", "en", "current"), ("robot-course-de", "de", "current"), ("robot-course-1-0", "en", "1.0"),
    ]  # fmt: skip
    addresses = {page["permalink"] for page in english.pages + german.pages + first_edition.pages}
    assert {"/book/docs/workshop/greenhouse", "/book/docs/1.0/first-edition", "/book/course",
            "/book/course/wéek one", "/book/de/docs/werkstatt/gewächshaus", "/book/de/course"} <= addresses  # fmt: skip


@pytest.mark.parametrize("name", ["oldest", "hash_router"])
def test_closed_tabs_are_exported_and_excluded_docs_are_not(
    name: str, request: pytest.FixtureRequest
) -> None:
    site: Site = request.getfixturevalue(name)
    text = (site.folder / EXPORT).read_text()
    assert "Bare dunes are never watered" in text
    assert "on-call rota" not in text
    assert "on-call rota" not in str([page["title"] for page in site.pages])
    copies = [path for path in site.folder.rglob("*.html") if "data-affidavit-tabs" in path.read_text()]
    assert copies == []


def test_addresses_of_the_hash_router_are_as_a_browser_has_them(
    hash_router: Site, database: Database
) -> None:
    query = """SELECT DISTINCT url FROM books JOIN generation_chunks ON generation_id = live_generation
               JOIN chunks USING (chunk_id) WHERE books.book_id = %s"""
    with psycopg.connect(database.url) as connection:
        addresses = {url for (url,) in connection.execute(query, (hash_router.book,))}
    assert addresses
    assert {url for url in addresses if not url.startswith("/irrigation/#/irrigation/")} == set()


def test_the_oldest_docusaurus_has_no_second_copy_of_its_packages(oldest: Site) -> None:
    modules = oldest.folder.parent / "node_modules"
    assert '"version": "3.0.0"' in (modules / "@docusaurus/core/package.json").read_text()
    assert not (modules / "docusaurus-plugin-affidavit/node_modules").exists()


def test_what_is_not_published_is_not_in_it(english: Site) -> None:
    """Seen red with unlisted pages among the others."""
    text = (english.folder / EXPORT).read_text()
    assert "greenhouse robot" in text
    assert not re.search("moon robot|submarine|unlisted|commented out", text)


def test_nothing_of_the_frame_around_the_text_is_in_it(english: Site, physical_ai: Site) -> None:
    frame = {
        "On this page",
        "Skip to main content",
        "Edit this page",
        "Previous",
        "Next",
        "Copy",
        "Tags:",
        "warning",
        "tip",
        "Tipp",
    }
    for page in english.pages + physical_ai.pages:
        texts = [block["text"] for section in page["sections"] for block in section["blocks"]]
        texts += [heading for section in page["sections"] for heading in section["path"]]
        assert not frame & set(texts), page["source"]
        assert not [text for text in texts if "\u200b" in text or "Direct link to" in text], page["source"]


def test_every_block_of_code_of_the_real_book_is_as_in_its_source(physical_ai: Site) -> None:
    """Diagrams too, which are nowhere in the built pages. Seen red without diagrams.ts."""
    written = re.compile(r"^([ \t]*)(`{3,})[^\n`]*\n((?:.*\n)*?)[ \t]*\2`*[ \t]*$", re.MULTILINE)
    for page in physical_ai.pages:
        source = (BOOK / page["source"].removeprefix("docs/")).read_text()
        fences = [
            re.sub(f"(?m)^[ \t]{{0,{len(margin)}}}", "", code).strip()
            for margin, _, code in written.findall(source)
        ]
        blocks = [
            block for section in page["sections"] for block in section["blocks"] if block["kind"] == "code"
        ]
        assert [block["text"].strip() for block in blocks] == fences, page["source"]


def test_the_words_of_the_real_book_are_there_in_their_order_and_no_others(physical_ai: Site) -> None:
    """Seen red with table cells left out, and with the titles of code blocks given twice."""
    for page in physical_ai.pages:
        body = Words()
        body.feed(
            re.sub(
                r"</svg></span>(?:note|tip|info|warning|danger)</div>",
                "",
                built(physical_ai, page["permalink"]),
            )
        )
        on_page = letters(" ".join(body.words))
        exported = []
        for section in page["sections"]:
            exported.append(letters(section["path"][-1]))
            texts = [(block["kind"], letters(block["text"])) for block in section["blocks"]]
            # Diagrams are drawn by the browser alone.
            exported += [text for kind, text in texts if kind != "code" or text in on_page]
        assert "".join(exported) == on_page, page["source"]


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


class Words(HTMLParser):
    """What stands in the part of a page that its author wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside = False
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.is_inside |= "theme-doc-markdown" in (given.get("class") or "")
        self.is_inside &= tag != "footer"
        if self.is_inside and tag == "img":
            self.words.append(given.get("alt") or "")

    def handle_endtag(self, tag: str) -> None:
        self.is_inside &= tag != "article"

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            self.words.append(data)


# --- The browser


@pytest.mark.skipif(CHROMIUM is None, reason="The panel is not tested in a browser: apt-get install chromium")
def test_readers_ask_in_a_real_browser(
    english: Site, german: Site, first_edition: Site, oldest: Site, hash_router: Site,
    request: pytest.FixtureRequest, server: Running, key: str, tmp_path: Path,
) -> None:  # fmt: skip
    """What they see is said by each test in docusaurus/e2e; the pictures are in E2E_SCREENSHOTS if it is set."""
    assert english.folder == german.folder.parent == first_edition.folder
    environment = {
        "E2E_ENGINE": server.url, "E2E_KEY": key, "E2E_SITE": str(english.folder.parent),
        "E2E_SMALL_SITES": f"{oldest.folder.parent}:{hash_router.folder.parent}",
        "E2E_SCREENSHOTS": os.environ.get("E2E_SCREENSHOTS", str(tmp_path)), "CHROMIUM": str(CHROMIUM),
    }  # fmt: skip
    if BOOK == PHYSICAL_AI:
        environment["E2E_REAL_SITE"] = str(request.getfixturevalue("physical_ai").folder.parent)
    files = sorted((PLUGIN / "e2e").glob("*.e2e.mjs"))
    print(run("node", "--test", "--test-concurrency=2", *files, environment=environment))


@pytest.mark.skipif(FIREFOX is None, reason="The panel is not tested in Firefox: apt-get install firefox-esr")
def test_readers_ask_in_firefox(
    english: Site, german: Site, server: Running, key: str, tmp_path: Path
) -> None:
    """By WebDriver BiDi, which no browser of the other test speaks."""
    assert english.folder == german.folder.parent
    environment = {
        "E2E_ENGINE": server.url, "E2E_KEY": key, "E2E_SITE": str(english.folder.parent), "E2E_BROWSER": "firefox",
        "E2E_SCREENSHOTS": os.environ.get("E2E_SCREENSHOTS", str(tmp_path)) + "/firefox", "FIREFOX": str(FIREFOX),
    }  # fmt: skip
    print(run("node", "--test", PLUGIN / "e2e/panel.e2e.mjs", environment=environment))


def test_its_own_tests_pass(package: Path) -> None:
    run("npm", "test", cwd=package)
