"""The page at `/`, in a real browser: asked, streamed, cited, refused, failed, by keyboard, in light, dark and small."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Records, Running
from tests.product.browser import CHROMIUM, Page, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

IMU = "Why do humanoid robots need an IMU?"
OFF_TOPIC = "Who won the football world cup in 1998?"
CODE = "How do I write a publisher node? Show code"
PRICE = "What does a robot dog cost?"
DONE = "!document.querySelector('#ask').disabled && document.querySelector('#result').childElementCount > 0"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def page(chromium: Page, server: Running) -> Page:
    chromium.complaints.clear()
    chromium.look()
    chromium.open(f"{server.url}/")
    return chromium


def enter(page: Page, key: str) -> None:
    """The key, and waits for the books and the examples that it opens."""
    page.focus("#key")
    page.type(key)
    page.wait("!document.querySelector('#examples').hidden")


def ask(page: Page, question: str, key: str) -> None:
    page.focus("#key")
    page.type(key)
    page.focus("#question")
    page.type(question)
    page.press("Enter")


def ask_and_wait(page: Page, question: str, key: str) -> None:
    ask(page, question, key)
    page.wait(DONE)


def test_a_question_is_answered_with_its_quotations_and_nothing_is_complained_of(
    page: Page, key: str
) -> None:
    ask_and_wait(page, IMU, key)
    assert page.text("#status").startswith("Answered from the book with ")
    assert page.read("document.querySelectorAll('#citations blockquote').length") >= 1
    assert "confidence" in page.text("#confidence")
    assert len(page.read("document.querySelector('[data-field=query_id]').textContent")) == 36
    assert page.complaints == []


# Seen red: a book that was published later was offered only after the page had been loaded again.
def test_the_chooser_offers_what_is_published_when_it_is_used(page: Page, key: str) -> None:
    enter(page, key)
    page.read("void document.querySelector('#book').append(new Option('Gone', 'gone'))")
    page.focus("#book")
    page.wait("!document.querySelector('#book option[value=gone]')")
    assert page.read("document.querySelector('#book').value") == "physical-ai"


# What the engine sends at once would also be shown at once: here each event arrives by itself.
ONE_BY_ONE = """
window.fetch = (fetch => async (...asked) => {
  const told = await fetch(...asked);
  const decoder = new TextDecoder(), encoder = new TextEncoder();
  const apart = new TransformStream({async transform(chunk, out) {
    for (const part of decoder.decode(chunk, {stream: true}).split(/(?<=\\n\\n)/)) {
      out.enqueue(encoder.encode(part));
      await new Promise(done => setTimeout(done, 20));
    }
  }});
  return new Response(told.body.pipeThrough(apart), told);
})(window.fetch)
"""


def test_sentences_are_shown_as_they_come(page: Page, key: str) -> None:
    page.read(f"void ({ONE_BY_ONE})")
    page.read(
        "window.seen = []; new MutationObserver(() => window.seen.push([...document.querySelectorAll('#answer sup')].length))"
        ".observe(document.querySelector('#result'), {childList: true, subtree: true})"
    )
    ask_and_wait(page, "What is physical AI?", key)
    assert page.read("performance.getEntriesByType('resource').some((it) => it.name.endsWith('/query'))")
    assert page.read("window.seen.length") >= 1
    assert page.read("window.seen.indexOf(1)") >= 0  # one sentence stood there before the rest


# Seen red: the source was a link to a path of the book's own site, which is not found here.
def test_a_citation_leads_to_its_excerpt_and_from_there_to_its_place_in_the_book(
    page: Page, key: str
) -> None:
    ask_and_wait(page, IMU, key)
    page.focus("#ref-1")
    page.press("Enter")
    page.wait("location.hash === '#source-1'")
    assert page.read("document.querySelector(':target').id") == "source-1"
    quoted = page.text("#source-1 blockquote")
    page.focus("#source-1 button.place")
    page.press("Enter")
    page.wait("document.querySelector('#context').open")
    assert page.text("#context mark") == quoted
    assert len(page.text("#context .book")) > 2 * len(quoted)
    assert page.read("document.querySelectorAll('#context .beside').length") == 2
    assert page.text("#context h2").startswith("Inertial Measurement Units")
    assert page.read("document.querySelector('#context').contains(document.activeElement)")
    page.press("Escape")
    page.wait("!document.querySelector('#context').open")
    assert page.read("document.activeElement.matches('#source-1 button.place')"), "Escape leads back"
    assert page.read("document.querySelectorAll('a[href^=\"/\"]').length") == 0
    assert page.complaints == []


# Seen red: the fences stood in the text, and nothing was a block.
def test_code_is_shown_as_code_in_the_answer_its_source_and_its_passage(page: Page, key: str) -> None:
    ask_and_wait(page, CODE, key)
    for place in ("#answer", "#source-3 blockquote"):
        assert page.read(f"document.querySelector('{place} pre code').textContent").startswith(
            "import rclpy\nfrom rclpy.node import Node\n"
        )
    assert "```" not in page.text("#result")
    page.read("document.querySelector('#source-3 button.place').click()")
    page.wait("document.querySelector('#context').open")
    assert page.read("document.querySelector('#context pre mark').textContent").startswith("import rclpy\n")
    page.press("Escape")


# Seen red: as the first words of the answer, and again as a badge.
def test_low_confidence_is_said_once_as_a_badge(page: Page, key: str) -> None:
    ask_and_wait(page, CODE, key)
    assert page.text("#confidence").startswith("Low confidence")
    assert page.text("#result").lower().count("low confidence") == 1


# Seen red: the first sentence ended at 825 of 768 pixels, and at 1016 of 844.
@pytest.mark.parametrize(("width", "height"), [(1024, 768), (390, 844)])
def test_the_question_is_seen_with_the_beginning_of_its_answer(
    page: Page, key: str, width: int, height: int
) -> None:
    page.look(width=width, height=height)
    ask_and_wait(page, CODE, key)
    top, bottom = page.read(
        "(() => { const {top} = document.querySelector('#answered h2').getBoundingClientRect();"
        " return [top, document.querySelector('#answer sup').getBoundingClientRect().bottom]; })()"
    )
    assert 0 <= top < bottom <= height


def test_the_book_is_chosen_and_its_own_questions_are_offered(page: Page, key: str) -> None:
    assert page.read("document.querySelector('#examples').hidden")
    enter(page, key)
    assert page.read("document.querySelector('#book').value") == "physical-ai"
    offered = page.read("[...document.querySelectorAll('#example-buttons button')].map((it) => it.value)")
    assert offered[:-1] == ["What Is Physical AI?", "What is sensor fusion?", "What is the capture point?"]
    page.read("document.querySelectorAll('#example-buttons button')[1].click()")
    page.wait(DONE)
    assert page.text("#result h2") == "What is sensor fusion?"
    assert page.text("#answer").startswith("Sensor fusion is")


# Seen red: the nearest sections to a question about football were shown, with a match of 0.57.
def test_a_refusal_says_why_and_shows_the_nearest_sections_only_if_they_are_near(
    page: Page, key: str
) -> None:
    ask_and_wait(page, OFF_TOPIC, key)
    assert page.text("#answer") == "This question is not covered in the book."
    assert page.text("#reason")
    assert page.text("#nearest") == ""
    page.read("document.querySelector('#question').value = ''")
    ask_and_wait(page, PRICE, "")
    page.wait("document.querySelector('#result h2').textContent.includes('robot dog')")
    assert "Batteries and the Energy Budget" in page.text("#nearest")


def test_an_answer_is_judged_with_a_reason_by_keyboard(
    page: Page, key: str, records: Records, tmp_path: Path
) -> None:
    ask_and_wait(page, IMU, key)
    query_id = page.read("document.querySelector('[data-field=query_id]').textContent")
    pressed = (
        "[...document.querySelectorAll('#thumbs [aria-pressed=true]')].map((it) => it.textContent).join()"
    )
    for tabs, shown in [(0, "Helpful"), (1, "Not helpful"), (4, "Not helpful,Out of date")]:
        if not tabs:
            page.focus("#thumbs button")
        for _ in range(tabs):
            page.press("Tab")
        page.press("Enter")
        page.wait(f"{pressed} === '{shown}'")
    assert page.text("#thumbs [role=status]").startswith("Thank you")
    page.shoot(tmp_path / "judged.png")  # for eyes
    assert page.read(CONTRAST) == []
    rows = records.where(
        "endpoint = '/v1/feedback' AND details ->> 'query_id' = %s ORDER BY timestamp", query_id
    )
    assert [(row["details"]["helpful"], row["details"]["reason"]) for row in rows] == [
        (True, None), (False, None), (False, "outdated"),
    ]  # fmt: skip


def test_a_wrong_key_is_said_where_it_stands(page: Page) -> None:
    ask_and_wait(page, IMU, "aff_0000000000_" + "0" * 72)
    assert page.text("#key-complaint") == "This API key was not accepted."
    assert page.focused() == "key"
    assert "A valid API key is required" in page.text("#problem")
    assert page.text("#request-id")


def test_what_is_missing_is_said_before_anything_is_sent(page: Page, key: str) -> None:
    page.focus("#question")
    page.press("Enter")
    assert page.text("#question-complaint") == "Please write a question first."
    page.type(IMU)
    page.press("Enter")
    assert page.text("#key-complaint") == "Please enter your API key first."
    assert page.focused() == "key"


def test_a_server_that_is_away_is_said_with_what_to_do(page: Page, key: str) -> None:
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.emulateNetworkConditions", **offline)
    ask_and_wait(page, IMU, key)
    page.call("Network.emulateNetworkConditions", **(offline | {"offline": False}))
    assert "The server cannot be reached" in page.text("#problem")
    page.focus("#retry")
    page.press("Enter")
    page.wait("document.querySelector('#answered') !== null")


def test_everything_is_reached_by_keyboard_in_the_order_in_which_it_stands(page: Page, key: str) -> None:
    found = []
    enter(page, key)
    for _ in range(6):
        found.append(page.focused())
        page.press("Tab")
    assert found == ["key", "book", "question", "ask", "BUTTON", "BUTTON"]
    unnamed = (
        "[...document.querySelectorAll('input, select, textarea')].filter((it) => !it.labels.length).length"
    )
    assert page.read(unnamed) == 0
    page.focus("#question")
    page.press("Enter", shift=True)
    assert page.read("document.querySelector('#question').value") == "\n"


def test_escape_lets_a_question_go(page: Page, key: str) -> None:
    page.call(
        "Network.emulateNetworkConditions",
        offline=False,
        latency=3000,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )
    ask(page, IMU, key)
    page.wait("document.querySelector('#ask').disabled")
    page.press("Escape")
    page.wait("!document.querySelector('#ask').disabled")
    page.call(
        "Network.emulateNetworkConditions",
        offline=False,
        latency=0,
        downloadThroughput=-1,
        uploadThroughput=-1,
    )
    assert page.text("#status") == "Stopped."
    assert page.focused() == "question"
    assert page.text("#result") == ""


CONTRAST = """
(() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')]
    .filter((node) => [...node.childNodes].some((it) => it.nodeType === 3 && it.data.trim()) && node.offsetParent)
    .map((node) => [light(parse(getComputedStyle(node).color)), light(behind(node)), node.outerHTML.slice(0, 80)])
    .map(([ink, paper, where]) => [(Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05), where])
    .filter(([ratio]) => ratio < 4.5);
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 1024])
@pytest.mark.parametrize("question", [IMU, OFF_TOPIC], ids=["answered", "refused"])
def test_it_can_be_read_in_light_and_dark_and_on_small_screens(
    page: Page, key: str, tmp_path: Path, dark: bool, width: int, question: str
) -> None:
    page.look(width=width, dark=dark)
    ask_and_wait(page, question, key)
    assert page.read(CONTRAST) == []
    assert page.read("document.documentElement.scrollWidth") <= width, "nothing is cut off at the side"
    page.shoot(tmp_path / "page.png")  # for eyes: pytest --basetemp
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_no_text_of_a_question_is_read_as_html(page: Page, key: str) -> None:
    hostile = "<img src=x onerror=\"document.title='hurt'\"> What does an IMU measure?"
    ask_and_wait(page, hostile, key)
    assert page.read("document.title") == "Affidavit"
    assert hostile in page.text("#result h2")
    assert json.dumps(page.complaints).count("Refused") == 0
