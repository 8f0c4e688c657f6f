"""What a question asks for: the form of its answer, and the fact that the answer has to state. English only. Pure."""
# ruff: noqa: RUF001 - the patterns look for quotes, dashes and full-width punctuation

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.models import SentenceKind
from engine.reading.facts import Fact, asked_fact, compiled
from engine.retrieval import lexical

Form = Literal["definition", "why", "how_to", "difference", "example", "code", "fact", "other"]


@dataclass(frozen=True, slots=True)
class Aim:
    """What an answer has to be."""

    form: Form
    fact: Fact | None = None
    subject: frozenset[str] = frozenset()  # the question's words

    def fits(self, text: str, kind: SentenceKind) -> bool:
        """Whether a text has the form of an answer to the question."""
        fits = _FITS.get(self.form)
        return fits is not None and fits(self, text, kind)


def read(question: str) -> Aim:
    """The form of the question, by the first pattern that matches."""
    text = " ".join(question.split())
    subject = frozenset(lexical.words(text))
    form: Form = next((form for form, pattern in _FORMS if pattern.search(text)), "other")
    fact = None if form == "code" else asked_fact(question)
    return Aim("fact" if fact else form, fact, subject)


_FORMS: Sequence[tuple[Form, re.Pattern[str]]] = (
    ("code", compiled(r"\b(?:code|commands?|script|snippet|skeleton|syntax|in python|in c\+\+|type in|terminal|example file)\b")),
    ("difference", compiled(r"\b(?:differ\w*|vs\.?|versus|compared? (?:to|with)|distinguish\w*|the same (?:thing|as))\b")),
    ("why", compiled(r"\b(?:why|reasons?|what (?:causes|makes)|how come|purpose|what is behind)\b")),
    ("example", compiled(r"\b(?:examples?|for instance|show me)\b")),
    ("how_to", compiled(r"\bhow (?:do|can|could|should|would|to)\b|\bsteps?\b|\bin what order\b|\bway to\b|\bfix\b")),
    ("definition", compiled(
        r"\bwhat(?:'s|’s| is| are| does)\b|\bmean(?:s|ing)?\b|\bdefin\w+|\bstands? for\b|\bfull form\b"
        r"|\A\W*(?:\w+[ -]?){1,3}\??\Z")),
)  # fmt: skip

# The beginning of a sentence that defines its first words: "A joint is a …", "ZMP (zero moment point): …".
_DEFINES = compiled(
    r"((?:(?:an?|the) )?(?:\S+ ){0,5}?\S+)(?: \([^)]+\))?"
    r"(?:\s*[:–—]| is (?:an?|the|called|when)\b| are\b| means\b| refers? to\b| describes?\b| stands? for\b)"
)
_REASON = compiled(
    r"\b(?:because|since|due to|owing to|therefore|hence|so that|as a result|causes?|reasons?|leads? to|otherwise|in order to)\b"
)
_EXAMPLE = compiled(r"\b(?:e\.g\.|for example|for instance|such as|example)")


def _defines(aim: Aim, text: str, _: SentenceKind) -> bool:
    defined = _DEFINES.match(text)
    return defined is not None and not aim.subject.isdisjoint(lexical.words(defined[1]))


# A difference and who or which have none: to prefer definitions or words of contrast changed no answer to readers' questions.
_FITS: Mapping[Form, Callable[[Aim, str, SentenceKind], bool]] = {
    "definition": _defines,
    "why": lambda _, text, __: _REASON.search(text) is not None,
    "code": lambda _, __, kind: kind == "code",
    "how_to": lambda _, __, kind: kind in {"item", "lead_in", "code"},
    "example": lambda _, text, __: _EXAMPLE.search(text) is not None,
}
