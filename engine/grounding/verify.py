"""Citation verification, the gate after the model: a sentence that the passages do not prove is dropped. Pure.

    (1) cited      every sentence carries a citation that covers at least half of its letters
    (2) real       the cited sentences were sent to the model, and the quoted text equals them exactly
    (3) supported  no number and no address that the cited text lacks, and, in English, no other subject
    (4) discreet   no run of words from our own instructions
    (5) unforged   no text that looks like one of our own source marks

A draft as a whole must be complete, and must not contain the abstention sentence.

The limit: a sentence that cites correctly and keeps the book's words and numbers can still say something else with them.
Readers see the quotation beside it; no rule here understands what it reads.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.models import Citation, Claim, Draft, Passage, Refusal, RetrievedPassage
from engine.refusals import RefusalReason
from engine.retrieval import lexical

# The abstention sentences of the prompt: for a question that is not answered, and for a thing without the asked attribute.
SENTINEL = "This question is not covered in the provided book excerpts."
NOT_STATED = "The provided book excerpts do not state this about it."

CITED_SHARE_MIN = 0.5  # a sentence that is mostly uncited makes a claim of its own
LEAK_WORDS = 8  # a shorter run of words can occur by chance,
LEAK_WORDS_ALONE = 4  # unless it is the whole sentence

# Of a sentence's content words: the share that must occur in the cited text, and the longest run that need not. Of 1,890
# labelled questions of XQuAD and SQuAD 2.0, each combined with its answer, these limits lose 11.
WORDS_SHARED_MIN = 0.2
OWN_WORDS_MAX = 7
OWN_WORDS_BESIDE_MAX = 4  # if a part of the sentence has no citation
ENGLISH_SHARE_MIN = 0.05  # the share of words from the list below; typical English has 15 %

_UNPROVEN = Refusal(RefusalReason.CITATION_FAILED)

_WORD = re.compile(r"[^\W_]+")
_SOURCE_MARK = re.compile(r"[\[【〔]\s*source\b", re.IGNORECASE)  # noqa: RUF001
_ITEM_MARK = re.compile(r"\A\s*(?:[-*•–]|\(?\d{1,2}[.)])(?:\s+|\Z)")  # noqa: RUF001

# Words that identify English: frequent there, and rare in other languages with the same alphabet.
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

# The top-level domains of most addresses. Those that double as a file extension (.md, .py) or an attribute (.name, .link)
# are left out: such an address, like any unlisted one, is recognised by its scheme or `www.` only.
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
_NO_ADDRESS = re.compile(r"\A(?:https?://)?(?:www\.)?|[\W_]+\Z")  # optional parts around an address

_EXPONENT = re.compile(r"(?<=\d)[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=\.?\d)|±\s*(?=\.?\d)|\+/-\s*(?=\.?\d)", re.IGNORECASE)
_NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w)\]}.,%°'"”’])[-−–])?               # but not the dash of a range: 10-20
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
    """The generator's instructions, reduced to letters, to detect a draft that leaks them."""

    letters: str
    runs: frozenset[str]

    @classmethod
    def of(cls, *texts: str, except_for: str = "") -> "Instructions":
        own = set(_runs(except_for))
        secret = frozenset(run for text in texts for run in _runs(text) if run not in own)
        return cls(" ".join(map(_letters, texts)), secret)


NO_INSTRUCTIONS = Instructions("", frozenset())


def refuse_unproven(
    draft: Draft, proven: Sequence[object], evidence: Sequence[RetrievedPassage]
) -> Refusal | None:
    """A refusal, or None if the proven sentences of this draft are an answer."""
    if draft.stop_reason == "refusal":
        return Refusal(RefusalReason.MODEL_REFUSED, tuple(evidence))
    if draft.has_abstained or not draft.claims:
        reason = draft.abstained_for or RefusalReason.INSUFFICIENT_EVIDENCE
        abstained = Refusal(reason, tuple(evidence))
        return abstained if draft.is_complete else _UNPROVEN
    return None if draft.is_complete and proven else _UNPROVEN


def is_proven(claim: Claim, evidence: Sequence[RetrievedPassage], instructions: Instructions) -> bool:
    if not claim.citations or claim.cited_share < CITED_SHARE_MIN:  # (1)
        return False
    if not all(_is_real(citation, evidence) for citation in claim.citations):  # (2)
        return False
    text, cited = _displayed(claim.text), _displayed("\n".join(_cited(claim, evidence)))
    own_words_max = OWN_WORDS_MAX if claim.cited_share == 1 else OWN_WORDS_BESIDE_MAX
    if not _is_supported(text, cited) or not _has_same_subject(text, cited, own_words_max):  # (3)
        return False
    if _leaks(text, cited, instructions):  # (4)
        return False
    return not any(map(_SOURCE_MARK.search, (text, cited, *map(_displayed, _places(claim, evidence)))))  # (5)


def _is_real(citation: Citation, evidence: Sequence[RetrievedPassage]) -> bool:
    if not 0 <= citation.passage < len(evidence):
        return False
    passage = evidence[citation.passage].passage
    if not 0 <= citation.start < citation.end <= len(passage.sentences):
        return False
    return citation.cited_text == sentences_text(passage, citation.start, citation.end)


def sentences_text(passage: Passage, start: int, end: int) -> str:
    """Sentences `start` to `end` (exclusive), concatenated: as generators see and cite them."""
    return "".join(passage.sentence_text(number) for number in range(start, end))


def _cited(claim: Claim, evidence: Sequence[RetrievedPassage]) -> Iterator[str]:
    """The cited sentences one by one: concatenated, a number at the end of one would merge with the next one's."""
    for citation in claim.citations:
        passage = evidence[citation.passage].passage
        yield from map(passage.sentence_text, range(citation.start, citation.end))


def _places(claim: Claim, evidence: Sequence[RetrievedPassage]) -> Iterator[str]:
    """The text of a source mark besides its excerpt."""
    for citation in claim.citations:
        place = evidence[citation.passage].passage.sentences[citation.start]
        yield f"{place.heading} {place.page}"


def _displayed(text: str) -> str:
    """The text as readers perceive it: without invisible characters, and with compatibility characters normalised."""
    if text.isascii():
        return text
    text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    text = _EXPONENT.sub(lambda power: "^" + unicodedata.normalize("NFKC", power[0]).replace("−", "-"), text)  # noqa: RUF001
    return "".join(_wide(character) for character in text)


def _wide(character: str) -> str:
    """A fraction or a circled number is set apart by spaces: 2½ is not 21/2. An exponent of a unit is no number."""
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKC", character)
    if unicodedata.category(character) == "No":
        is_power = "<su" in unicodedata.decomposition(character)
        return "" if is_power else f" {plain} "
    return plain if "\uff01" <= character <= "\uffef" else character


def _is_supported(text: str, cited: str) -> bool:
    """Check (3): words may be the generator's own, but every number and address must be in the cited text."""
    text = _ITEM_MARK.sub("", text, count=1)
    if not _WORD.search(text):
        return False
    known = set(_addresses(cited))
    if any(not _is_known(address, known) for address in _addresses(text)):
        return False
    counted = _written_out(cited, _CARDINAL | _ORDINAL).union(*_readings(cited))
    if any(not readings & counted for readings in _readings(text)):
        return False
    return _written_out(text, _CARDINAL) - _NO_COUNT <= counted


def _addresses(text: str) -> Iterator[str]:
    return (_NO_ADDRESS.sub("", address) for address in _ADDRESS.findall(text.lower()))


def _is_known(address: str, known: Iterable[str]) -> bool:
    """An address of the cited text, or a prefix of one: the site of a cited page."""
    return any(other == address or other.startswith(f"{address}/") for other in known)


def _readings(text: str) -> Iterator[set[str]]:
    """The possible values of each number: 1,000 is 1000 in one locale and 1.000 in another."""
    for found in _NUMBER.finditer(_MINUS.sub(" -", text)):
        sign = "-" if found["sign"] else ""
        digits = "".join(str(unicodedata.decimal(character, character)) for character in found["digits"])
        yield {sign + _pointed(digits), sign + _ungrouped(digits)}


def _pointed(digits: str) -> str:
    whole, *parts = _SEPARATOR.split(digits)
    return ".".join([whole.lstrip("0") or "0", *parts])


def _ungrouped(digits: str) -> str:
    """Removes thousands separators. A single point is a decimal point: 1.225 is not 1225."""
    grouped = _GROUPED.fullmatch(digits)
    if not grouped or re.fullmatch(r"\d+\.\d+", digits):
        return _pointed(digits)
    return _pointed(digits.replace(grouped[1], ""))


def _written_out(text: str, meaning: dict[str, int]) -> set[str]:
    """The numbers that are written as English words. Other languages' number words are ordinary words."""
    found = _WRITTEN_OUT.findall(text.lower())
    return {
        str(_CARDINAL[tens] + meaning[unit] if tens else meaning[word])
        for tens, unit, word in found
        if tens or word in meaning
    }


def _has_same_subject(text: str, cited: str, own_words_max: int) -> bool:
    """False if a sentence shares hardly a word with the cited text, or only its beginning or end.

    It applies if both are English, because texts in two languages share no words.
    """
    if not _is_english(text) or not _is_english(cited):
        return True
    known = set(lexical.words(cited))
    content = [set(words) for word in _WORD.findall(text) if (words := lexical.words(word))]
    marks = "".join("=" if words & known else " " for words in content)
    return marks.count("=") >= WORDS_SHARED_MIN * len(content) and " " * (own_words_max + 1) not in marks


def _is_english(text: str) -> bool:
    """Detects English by the share of common words, because a foreign sentence may contain an English name."""
    words = _WORD.findall(text.lower())
    return sum(word in _ENGLISH_WORDS for word in words) > ENGLISH_SHARE_MIN * len(words)


def _leaks(text: str, cited: str, instructions: Instructions) -> bool:
    """True for a run of words from our instructions, however spelled, that is not in the cited text too."""
    letters, quoted = _letters(text), _letters(cited)
    if letters in quoted:  # then so is each run of it
        return False
    if any(run in letters and run not in quoted for run in instructions.runs):
        return True
    is_short = LEAK_WORDS_ALONE <= len(_WORD.findall(text)) < LEAK_WORDS
    return is_short and letters in instructions.letters


def _runs(text: str) -> Iterator[str]:
    words = list(filter(None, map(_letters, _WORD.findall(text))))
    return ("".join(words[start : start + LEAK_WORDS]) for start in range(len(words) - LEAK_WORDS + 1))


def _letters(text: str) -> str:
    """Folds a text: without accents, case, spaces and punctuation."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", text.casefold())))
