"""Each picture on a page is there, says in words what it shows, and comes from the product or is drawn by hand as SVG."""

import re

import pytest

from tests import pictures
from tests.conftest import ROOT
from tests.manual.documented import PAGES

SHOWN = [
    (page, words, str(((ROOT / page).parent / file).resolve().relative_to(ROOT.resolve())))
    for page, text in PAGES.items()
    for words, file in re.findall(r"!\[(.*?)\]\((\S+?)\)", text)
]


@pytest.mark.parametrize(("page", "words", "picture"), SHOWN)
def test_a_picture_exists_and_has_words_for_who_cannot_see_it(page: str, words: str, picture: str) -> None:
    assert (ROOT / picture).exists()
    assert len(words.split()) > 4


def test_photographs_are_those_that_make_pictures_takes() -> None:
    photographs = {picture for _, _, picture in SHOWN if not picture.endswith(".svg")}
    assert photographs == set(pictures.PICTURES)


# Seen red: 247 kB and 139 kB, as the browser writes them.
@pytest.mark.parametrize("picture", pictures.PICTURES)
def test_a_picture_loads_fast(picture: str) -> None:
    assert (ROOT / picture).stat().st_size <= pictures.BYTES_MAX
