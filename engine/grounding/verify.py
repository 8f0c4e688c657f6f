"""The gate after the model: what is not proven by the passages does not leave. Pure.

    (1) cited      every sentence carries a citation, and more of it stands in cited words than not
    (2) real       the citation's sentences were sent, and what it quotes is exactly what they say
    (3) supported  no number and no address that is not in what is cited, and, in English, no other subject
    (4) discreet   no run of words from our own instructions
    (5) unforged   nothing that is spelled like our own source marks, whoever wrote it

A draft as a whole must be finished, and must not contain the sentence that says that it does not know.

What remains: a sentence that cites truly and keeps the book's words and numbers can still say something else with them.
Readers are shown the quotation beside it; no rule here understands what it reads.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from engine.models import Citation, Claim, Draft, Passage, Refusal, RetrievedPassage
from engine.retrieval import lexical

SENTINEL = "This question is not covered in the provided book excerpts."  # for who does not know

CITED_SHARE_MIN = 0.5  # a sentence that mostly stands outside its citations says something of its own
LEAK_WORDS = 8  # fewer words in a row are anybody's words,
LEAK_WORDS_ALONE = 4  # unless they are all that a sentence says

# Of the words of a sentence that carry meaning: how many must be the cited ones', and how many in a row need not. Of 1,890
# labelled questions of XQuAD and SQuAD 2.0, each put together with its answer, these lose 11.
WORDS_SHARED_MIN = 0.2
OWN_WORDS_MAX = 7
OWN_WORDS_BESIDE_MAX = 4  # where a part of the sentence is not cited at all
ENGLISH_SHARE_MIN = 0.05  # of the words, that are in the list below; usually it is three in twenty

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

_WORD = re.compile(r"[^\W_]+")
_SOURCE_MARK = re.compile(r"[\[【〔]\s*source\b", re.IGNORECASE)  # noqa: RUF001
_ITEM_MARK = re.compile(r"\A\s*(?:[-*•–]|\(?\d{1,2}[.)])(?:\s+|\Z)")  # noqa: RUF001

# Words that make a sentence English: frequent there, and next to unknown in other languages that are written alike.
_ENGLISH = (
    "about above after again against among and another answer any anything around away back be because become"
    " been before began behind being better between big both call came cannot could different does doing done down"
    " during each early easy enough ever every everything explain few follow forget found from gave get goes going"
    " good great happen hate having hear high his how however humans if include instead into it its keep kill know"
    " later least leave less likely little made make makes many may means might move much must needs never new"
    " next nothing now often old only other our out own people please provide quick rather read reader reason"
    " right said same save says seem several shall she should show shows since some something soon stand stay such"
    " take taken tell than thank thanks that the their them then there these they thing things think this those"
    " though through together too took toward turn until upon use used users uses using usually very visit way"
    " well went what when where whether which while who whole whose why with within without words work world would"
    " write wrong year years yes yet you young your"
)
_ENGLISH_WORDS = frozenset(_ENGLISH.split())

# Top-level domains of most addresses. One that is better known as the ending of a file (.md, .py) or as the name of a part
# (.name, .link), and one that is not here, is noticed with a scheme or a `www.` only.
_DOMAINS = (
    "ac ae ai app ar at au be biz blog br ca cat cc ch chat click cloud club cn co com cyou cz de dev dk edu es eu fi fr gg gl"
    " gov gr hk host hu icu id ie il in info int io ir is it jp kr live lol ly me mil mobi mx net news ng nl no nz online org"
    " ph pk pro pw ro ru se sg shop site sk so space store su tech th tk to top tr tv tw ua uk us vip vn website wiki win work"
    " world ws xyz za zone"
)
_ADDRESS = re.compile(
    rf"""
      [a-z][a-z0-9+.-]{{0,30}}://[^\s<>"')\]}}]+           # any scheme
    | \b(?:javascript:\w|data:\w+/|mailto:|tel:\+?\d)[^\s<>"')\]}}]*
    | [\w.+-]{{1,64}}@[\w.-]+                              # e-mail
    | \bwww\.[^\s<>"')\]}}]+
    | (?<![\w.-])(?:[\w-]{{1,63}}\.){{1,10}}(?:{"|".join(_DOMAINS.split())})\b(?![\w-]|\.\w)(?:[/:?][^\s<>"')\]}}]*)?
    """,
    re.VERBOSE,
)
_NO_ADDRESS = re.compile(r"\A(?:https?://)?(?:www\.)?|[\W_]+\Z")  # what may stand around one or not

_EXPONENT = re.compile(r"(?<=\d)[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=\.?\d)|±\s*(?=\.?\d)|\+/-\s*(?=\.?\d)", re.IGNORECASE)
_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w)\]}.,%°'"”’])[-−–])?               # not that of a range: 10-20
    (?P<digits>(?:(?<![\w.])\.)? \d+ (?:[.,'’٫٬\u00a0\u202f]\d+)*)  # .5 too
    """,  # noqa: RUF001
    re.VERBOSE,
)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:([,.'’٬\u00a0\u202f])\d{3}(?:\1\d{3})*)(?:(?!\1)[.,٫]\d+)?")  # noqa: RUF001
_SEPARATOR = re.compile(r"[.,'’٫٬\u00a0\u202f]")  # noqa: RUF001

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_CARDINAL = {
    **{word: number for number, word in enumerate(_UNITS.split())},
    **{word: 10 * number for number, word in enumerate(_TENS.split(), start=2)},
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9,
}  # fmt: skip
_ORDINAL = {word: number for number, word in enumerate(_ORDINALS.split(), start=1)}
_NO_COUNT = frozenset({"0", "1"})  # "one" counts nothing in "one of them"
_WRITTEN_OUT = re.compile(
    rf"\b(?:({'|'.join(_TENS.split())})[- ]({'|'.join(_UNITS.split()[1:10])})|([a-z]+))\b"
)


@dataclass(frozen=True, slots=True)
class Instructions:
    """What a generator was told, without what stands between letters, so that it is noticed when it tells it on."""

    letters: str
    runs: frozenset[str]

    @classmethod
    def of(cls, *texts: str, except_for: str = "") -> "Instructions":
        own = set(_runs(except_for))
        told = frozenset(run for text in texts for run in _runs(text) if run not in own)
        return cls(" ".join(map(_letters, texts)), told)


NO_INSTRUCTIONS = Instructions("", frozenset())


def refuse_unproven(
    draft: Draft, proven: Sequence[object], evidence: Sequence[RetrievedPassage]
) -> Refusal | None:
    """None if what is proven of this draft is an answer."""
    if draft.stop_reason == "refusal":
        return replace(_MODEL_REFUSED, nearest=tuple(evidence))
    if draft.has_abstained or not draft.claims:
        return replace(_ABSTAINED, nearest=tuple(evidence)) if draft.is_complete else _UNPROVEN
    return None if draft.is_complete and proven else _UNPROVEN


def is_proven(claim: Claim, evidence: Sequence[RetrievedPassage], instructions: Instructions) -> bool:
    if not claim.citations or claim.cited_share < CITED_SHARE_MIN:  # (1)
        return False
    if not all(_is_real(citation, evidence) for citation in claim.citations):  # (2)
        return False
    text, cited = _seen(claim.text), _seen("\n".join(_cited(claim, evidence)))
    own_words_max = OWN_WORDS_MAX if claim.cited_share == 1 else OWN_WORDS_BESIDE_MAX
    if not _is_supported(text, cited) or not _has_same_subject(text, cited, own_words_max):  # (3)
        return False
    if _tells_on(text, cited, instructions):  # (4)
        return False
    return not any(map(_SOURCE_MARK.search, (text, cited, *map(_seen, _places(claim, evidence)))))  # (5)


def _is_real(citation: Citation, evidence: Sequence[RetrievedPassage]) -> bool:
    if not 0 <= citation.passage < len(evidence):
        return False
    passage = evidence[citation.passage].passage
    if not 0 <= citation.start < citation.end <= len(passage.sentences):
        return False
    return citation.cited_text == sentences_text(passage, citation.start, citation.end)


def sentences_text(passage: Passage, start: int, end: int) -> str:
    """Sentences `start` up to, but without, `end`, joined without anything between: as generators see and cite them."""
    return "".join(passage.sentence_text(number) for number in range(start, end))


def _cited(claim: Claim, evidence: Sequence[RetrievedPassage]) -> Iterator[str]:
    """Each cited sentence by itself: joined to the next one, the 5 that ends it would read as a part of its number."""
    for citation in claim.citations:
        passage = evidence[citation.passage].passage
        yield from map(passage.sentence_text, range(citation.start, citation.end))


def _places(claim: Claim, evidence: Sequence[RetrievedPassage]) -> Iterator[str]:
    """What a source mark says besides the excerpt."""
    for citation in claim.citations:
        place = evidence[citation.passage].passage.sentences[citation.start]
        yield f"{place.heading} {place.page}"


def _seen(text: str) -> str:
    """As readers see it: without characters that are not seen, and wide and circled ones as what they stand for."""
    if text.isascii():
        return text
    text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    text = _EXPONENT.sub(lambda power: "^" + unicodedata.normalize("NFKC", power[0]).replace("−", "-"), text)  # noqa: RUF001
    return "".join(_wide(character) for character in text)


def _wide(character: str) -> str:
    """A fraction or a circled number stands apart: 2½ is not 21/2. A power of a unit is no number."""
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKC", character)
    if unicodedata.category(character) == "No":
        is_power = "<su" in unicodedata.decomposition(character)
        return "" if is_power else f" {plain} "
    return plain if "\uff01" <= character <= "\uffef" else character


def _is_supported(text: str, cited: str) -> bool:
    """Words may be the generator's own, and in another language; numbers and addresses are the book's or nobody's."""
    text = _ITEM_MARK.sub("", text, count=1)
    if not _WORD.search(text):
        return False
    known = set(_addresses(cited))
    if any(not _is_known(address, known) for address in _addresses(text)):
        return False
    counted = _numbers(cited) | _written_out(cited, _CARDINAL | _ORDINAL)
    if any(not readings & counted for readings in _readings(text)):
        return False
    return _written_out(text, _CARDINAL) - _NO_COUNT <= counted


def _addresses(text: str) -> Iterator[str]:
    return (_NO_ADDRESS.sub("", address) for address in _ADDRESS.findall(text.lower()))


def _is_known(address: str, known: Iterable[str]) -> bool:
    """An address of the book, or where one of its addresses begins: the site of a cited page."""
    return any(other == address or other.startswith(f"{address}/") for other in known)


def _numbers(text: str) -> set[str]:
    return {reading for readings in _readings(text) for reading in readings}


def _readings(text: str) -> Iterator[set[str]]:
    """What each number may mean: 1,000 is 1000 to one reader and 1.000 to another."""
    for found in _NUMBER.finditer(_MINUS.sub(" -", text)):
        sign = "-" if found["sign"] else ""
        digits = "".join(str(unicodedata.decimal(character, character)) for character in found["digits"])
        yield {sign + _pointed(digits), sign + _ungrouped(digits)}


def _pointed(digits: str) -> str:
    whole, *parts = _SEPARATOR.split(digits)
    return ".".join([whole.lstrip("0") or "0", *parts])


def _ungrouped(digits: str) -> str:
    """Without the marks between thousands. A single point is taken for a decimal one: 1.225 is not 1225."""
    grouped = _GROUPED.fullmatch(digits)
    if not grouped or re.fullmatch(r"\d+\.\d+", digits):
        return _pointed(digits)
    return _pointed(digits.replace(grouped[1], ""))


def _written_out(text: str, meaning: dict[str, int]) -> set[str]:
    """The numbers among the English words of a text. Those of other languages are words."""
    found = _WRITTEN_OUT.findall(text.lower())
    return {
        str(_CARDINAL[tens] + meaning[unit] if tens else meaning[word])
        for tens, unit, word in found
        if tens or word in meaning
    }


def _has_same_subject(text: str, cited: str, own_words_max: int) -> bool:
    """A sentence that shares next to no word with what it cites, or only begins or ends like it, is not drawn from it.

    If both are in English: in two languages they would share none.
    """
    if not _is_english(text) or not _is_english(cited):
        return True
    known = set(lexical.words(cited))
    said = [set(words) for word in _WORD.findall(text) if (words := lexical.words(word))]
    marks = "".join("=" if words & known else " " for words in said)
    return marks.count("=") >= WORDS_SHARED_MIN * len(said) and " " * (own_words_max + 1) not in marks


def _is_english(text: str) -> bool:
    """A foreign sentence may hold an English name."""
    words = _WORD.findall(text.lower())
    return sum(word in _ENGLISH_WORDS for word in words) > ENGLISH_SHARE_MIN * len(words)


def _tells_on(text: str, cited: str, instructions: Instructions) -> bool:
    """A run of our instructions, however it is spelled, that is not also in what is cited."""
    said, quoted = _letters(text), _letters(cited)
    if any(run in said and run not in quoted for run in instructions.runs):
        return True
    is_short = LEAK_WORDS_ALONE <= len(_WORD.findall(text)) < LEAK_WORDS
    return is_short and said in instructions.letters and said not in quoted


def _runs(text: str) -> Iterator[str]:
    words = list(filter(None, map(_letters, _WORD.findall(text))))
    return ("".join(words[start : start + LEAK_WORDS]) for start in range(len(words) - LEAK_WORDS + 1))


def _letters(text: str) -> str:
    """Without accents, case, spaces and punctuation."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", text.casefold())))
