"""The prose of the manual, and the texts that users read, keep to one spelling and one style."""

import re

import pytest
from selectolax.lexbor import LexborHTMLParser

from tests.conftest import ROOT
from tests.manual.documented import PAGES
from tests.manual.prose import Prose, prose
from tests.manual.style import faults

HELP = "a right word that is not known yet is a new line in tests/manual/words.txt"


# Seen red: fourteen sentences of 41 to 71 words, three paragraphs of more than 120, names in small letters.
@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_to_the_style(page: str) -> None:
    assert [fault for block in prose(PAGES[page]) for fault in faults(block)] == [], HELP


def test_the_texts_of_the_panel_and_of_the_page_keep_to_the_style() -> None:
    strings = re.findall(r'"([^"\n]+)"', (ROOT / "docusaurus/src/texts/en.ts").read_text())
    panel = [text for text in strings if " " in text]
    page = LexborHTMLParser((ROOT / "engine/http/page/page.html").read_text())
    page.strip_tags(["script", "style"])
    shown = [node.text(deep=False) for node in page.css("body *")]
    texts = [*panel, *(" ".join(text.split()) for text in shown)]
    assert [fault for text in texts for fault in faults(Prose("cell", text))] == [], HELP


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("The reciept is signed.", "spelling: reciept"),
        ("It runs on Postgresql.", "spelt otherwise: Postgresql"),
        ("The key is recognized.", "American: recognized"),
        ("You can simply ask.", "weak: simply"),
        ("It is in the the log.", "doubled: the the"),
        ("Two  spaces.", "two spaces: Two  spaces."),
        ("# How to Ask", "capital in a heading: Ask"),
        ("word " * 41, "a sentence of 41 words"),
        ("Three short words. " * 41, "a paragraph of 123 words"),
    ],
)
def test_a_fault_is_found(text: str, fault: str) -> None:
    found = [each for block in prose(text) for each in faults(block)]
    assert any(each.startswith(fault) for each in found), found


def test_code_addresses_and_names_of_files_are_no_prose() -> None:
    text = "Run `affidavitt up`, see [the page](reciept.md), then engine/reciept.py.\n\n```\nreciept\n```\n"
    assert [fault for block in prose(text) for fault in faults(block)] == []
