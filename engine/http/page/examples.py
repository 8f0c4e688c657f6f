"""Questions that a book can answer, made of its headings without a model (pure)."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.models import Passage
from engine.words.languages import ENGLISH

EXAMPLES_MAX = 3
WORDS_MAX = 4  # a longer heading is no name of a thing
NAME_CHARACTERS_MAX = 40  # for languages that write no spaces
ARTICLE_CHARACTERS = len("the ") + 1  # and whether a word begins there
_ARTICLE = re.compile(r"^(?:the|an?) ", re.IGNORECASE)
_QUESTION_MARKS = ("?", "\uff1f", "\u061f")
_PLAIN_NAME = re.compile(r"[^\W\d_][\w /-]*")


@dataclass(frozen=True)
class _Book:
    """A text in which hundreds of names are looked for: a pattern for each would read all of it for seconds."""

    text: str
    lowered: str  # as long as the text

    @classmethod
    def of(cls, text: str) -> "_Book":
        return cls(text, _lowered(text))

    @cached_property
    def folded(self) -> str:
        return self.text.casefold()

    def around(self, words: str, before: int) -> str:
        """Each place with these words, from so many characters before them to one behind them."""
        wanted, found = _lowered(words), list[str]()
        at = self.lowered.find(wanted)
        while at >= 0:
            found.append(self.text[max(0, at - before) : at + len(wanted) + 1])
            at = self.lowered.find(wanted, at + 1)
        return "\n".join(found)


def _lowered(text: str) -> str:
    """The one letter whose small form has two characters would move all places behind it."""
    return text.replace("\u0130", "I").lower()


def examples(passages: Sequence[Passage], language: str = ENGLISH) -> list[str]:
    """Headings that are questions, and things that the book itself speaks of: from all over the book."""
    book = _Book.of("\n".join(passage.text for passage in passages))
    ask = _what_is if language == ENGLISH else _name
    asked = (
        heading if heading.endswith(_QUESTION_MARKS) else ask(heading, book)
        for heading in _headings(passages)
    )
    found = [question for question in asked if question]
    if len(found) <= EXAMPLES_MAX:
        return found
    return [found[number * (len(found) - 1) // (EXAMPLES_MAX - 1)] for number in range(EXAMPLES_MAX)]


def _headings(passages: Sequence[Passage]) -> Iterator[str]:
    """Each once, in the book's order."""
    yield from dict.fromkeys(sentence.heading for passage in passages for sentence in passage.sentences)


def _what_is(heading: str, book: "_Book") -> str | None:
    """ "What is …?", if the book says "… is": of a thing that it only mentions it may not say that."""
    name = _ARTICLE.sub("", heading)
    if not _PLAIN_NAME.fullmatch(name) or len(name.split()) > WORDS_MAX or " and " in name:
        return None
    near = "\n".join(book.around(f"{name} {verb}", ARTICLE_CHARACTERS) for verb in ("is", "are"))
    said = re.findall(rf"\b((?:the |an? )?)({re.escape(name)}) (is|are)\b", near, re.IGNORECASE)
    if not said:
        return None
    (article, spelling, verb), _ = Counter(said).most_common(1)[0]
    return f"What {verb} {article.lower()}{_within(spelling, name, book)}?"


def _name(heading: str, book: "_Book") -> str | None:
    """The heading itself, if the text has it: that asks in every language, and needs no grammar."""
    is_name = (
        heading[:1].isalpha() and len(heading) <= NAME_CHARACTERS_MAX and len(heading.split()) <= WORDS_MAX
    )
    return heading if is_name and heading.casefold() in book.folded else None


def _within(spelling: str, name: str, book: "_Book") -> str:
    """As the book spells it within a sentence: "the Kalman filter", but "inverse kinematics"."""
    within = re.findall(rf"[a-z,] ({re.escape(name)})\b", book.around(f" {name}", 1), re.IGNORECASE)
    return Counter(within).most_common(1)[0][0] if within else _uncapitalised(spelling)


def _uncapitalised(text: str) -> str:
    """A word of capitals, such as PID, is left as it is."""
    return text if text[:2].isupper() else text[0].lower() + text[1:]
