"""The gate after the model: what is not proven by the passages does not leave. Pure.

    (1) cited      every sentence carries a citation, and more of it stands in cited words than not
    (2) real       the citation's sentences were sent, and what it quotes is exactly what they say
    (3) supported  no number, address or link that is not in what is cited
    (4) discreet   no run of words from our own instructions

A draft as a whole must be finished, and must not contain the sentence that says that it does not know.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.models import Citation, Claim, Draft, Evidence, Passage, Refusal

CITED_SHARE_MIN = 0.5  # a sentence that mostly stands outside its citations says something of its own
LEAK_WORDS = 8  # fewer words in a row are anybody's words

_ABSTAINED = Refusal(
    reason="insufficient_evidence",
    message="The book's nearest passages do not answer this question.",
)
_MODEL_REFUSED = Refusal(
    reason="model_refused",
    message="The language model declined to answer this question.",
)
_UNPROVEN = Refusal(
    reason="citation_failed",
    message="No answer could be proven from the book's passages, so none is given.",
)

_ADDRESS = re.compile(
    r"(?:https?://|www\.)[^\s)\]>]+|[\w.+-]+@[\w-]+\.[\w.]+|\b[\w-]+\.(?:com|org|net|io|dev|ai|info|biz|xyz)\b"
)
_NUMBER = re.compile(r"\d[\d.,:]*\d|\d")
_WRITTEN_OUT = {
    word: str(number)
    for number, word in enumerate(
        (
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
        )
    )
}
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True)
class Instructions:
    """What a generator was told, as runs of words, so that it is noticed when it tells them on."""

    runs: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, *texts: str, except_for: str = "") -> "Instructions":
        own = set(_runs(except_for))
        return cls(frozenset(run for text in texts for run in _runs(text) if run not in own))


NOTHING_TOLD = Instructions(frozenset())


def verdict(draft: Draft, proven: Sequence[object], evidence: Sequence[Evidence]) -> Refusal | None:
    """None if what is proven of this draft is an answer."""
    if draft.stop_reason == "refusal":
        return replace(_MODEL_REFUSED, nearest=tuple(evidence))
    if draft.has_abstained or not draft.claims:
        return replace(_ABSTAINED, nearest=tuple(evidence)) if draft.is_complete else _UNPROVEN
    return None if draft.is_complete and proven else _UNPROVEN


def is_proven(claim: Claim, evidence: Sequence[Evidence], instructions: Instructions) -> bool:
    if not claim.citations or claim.cited_share < CITED_SHARE_MIN:  # (1)
        return False
    if not all(_is_real(citation, evidence) for citation in claim.citations):  # (2)
        return False
    cited = " ".join(citation.cited_text for citation in claim.citations)
    return _is_supported(claim.text, cited) and not _tells_on(claim.text, cited, instructions)  # (3) (4)


def _is_real(citation: Citation, evidence: Sequence[Evidence]) -> bool:
    if not 0 <= citation.passage < len(evidence):
        return False
    passage = evidence[citation.passage].passage
    if not 0 <= citation.start < citation.end <= len(passage.sentences):
        return False
    return citation.cited_text == sentences_text(passage, citation.start, citation.end)


def _is_supported(text: str, cited: str) -> bool:
    """Words may be the generator's own, and in another language; numbers and addresses are the book's or nobody's."""
    addresses = {address.lower().rstrip(".,") for address in _ADDRESS.findall(text)}
    if any(address not in cited.lower() for address in addresses):
        return False
    in_digits = {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}
    return in_digits <= _numbers(cited)


def _numbers(text: str) -> set[str]:
    """As digits alone, with the small ones that are written out: 1,000 is 1000, 0,5 is 0.5, and three is 3."""
    digits = {re.sub(r"\D", "", number) for number in _NUMBER.findall(text)}
    return digits | {_WRITTEN_OUT[word] for word in _WORD.findall(text.lower()) if word in _WRITTEN_OUT}


def _tells_on(text: str, cited: str, instructions: Instructions) -> bool:
    """A run of our instructions that is not also in what is cited."""
    return bool((set(_runs(text)) & instructions.runs) - set(_runs(cited)))


def _runs(text: str) -> Iterable[tuple[str, ...]]:
    words = _WORD.findall(text.lower())
    return (tuple(words[start : start + LEAK_WORDS]) for start in range(len(words) - LEAK_WORDS + 1))


def sentences_text(passage: Passage, start: int, end: int) -> str:
    """Sentences `start` up to, but without, `end`, joined without anything between: as generators see and cite them."""
    return "".join(passage.sentence_text(number) for number in range(start, end))
