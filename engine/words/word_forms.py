"""The tokenizer of BM25 for all languages but English: stems and n-grams of letters. Pure.

A stem joins the forms that its stemmer knows; n-grams join the others, the parts of compounds and misspelled words. Measured on
XQuAD (nDCG@10 of BM25 with stems, with 4-grams, with both): German .942, .954, .963; Spanish .963, .957, .967; Arabic .933, .945,
.954. Chinese, which has no spaces: .774 with 4-grams, .968 with single letters and pairs.
"""

import re
import unicodedata
from functools import lru_cache

import Stemmer

from engine.words.languages import WITHOUT_SPACES
from engine.words.stop_words import STOP_WORDS

FORMS = "stems-and-grams-1"  # a book with other forms is indexed again at its next ingest
GRAM = 4
SHORT_GRAMS = (1, 2)  # of scripts in which a letter is a syllable or a word

_STEMMERS = {
    "ar": "arabic", "ca": "catalan", "cs": "czech", "da": "danish", "de": "german", "el": "greek", "es": "spanish",
    "et": "estonian", "eu": "basque", "fa": "persian", "fi": "finnish", "fr": "french", "ga": "irish", "hi": "hindi",
    "hu": "hungarian", "hy": "armenian", "id": "indonesian", "it": "italian", "lt": "lithuanian", "ne": "nepali",
    "nl": "dutch", "no": "norwegian", "pl": "polish", "pt": "portuguese", "ro": "romanian", "ru": "russian",
    "sr": "serbian", "sv": "swedish", "ta": "tamil", "tr": "turkish", "yi": "yiddish",
}  # fmt: skip

_MARKS = "".join(
    re.escape(chr(code)) for code in range(0x300, 0x10000) if unicodedata.category(chr(code)) in {"Mn", "Mc"}
)
_WORD = re.compile(rf"[^\W_](?:[^\W_]|[{_MARKS}\u200c\u200d\u0640])*")
_UNSPACED = re.compile(f"[{WITHOUT_SPACES}]+|[^{WITHOUT_SPACES}]+")
_WIDE = re.compile(r"[\u3041-\u30fc\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7a3]")

# Marks that most writers leave out: Arabic vowels and the stretching stroke, joiners, Hebrew points.
_OMITTED = dict.fromkeys([*range(0x64B, 0x653), 0x640, 0x670, 0x200C, 0x200D, *range(0x591, 0x5C8)])
# Letters that are written in several ways: the alefs, and the Arabic forms of Persian and Urdu letters.
_ARABIC = str.maketrans("أإآٱى", "ااااي")
_PERSIAN = str.maketrans("أإٱيىكةہھ", "اااییکههه")
_TURKISH = str.maketrans({"I": "\u0131", "\u0130": "i"})


def words(text: str, language: str) -> list[str]:
    """The stems and n-grams of all words but stop words.

    A short word counts twice, as its stem and as its only n-gram: counted once, it would weigh too little beside longer ones.
    """
    stops, stemmer = _stops(language), _stemmer(language)
    found: list[str] = []
    for word in _WORD.findall(_folded(text, language)):
        if word in stops:
            continue
        for part in _UNSPACED.findall(word):
            found += [stemmer.stemWord(part)] if stemmer else []
            found += _grams(_bare(part))
    return found


def _folded(text: str, language: str) -> str:
    text = unicodedata.normalize("NFKC", text).translate(_OMITTED)
    if language == "tr":
        text = text.translate(_TURKISH)
    elif language == "ar":
        text = text.translate(_ARABIC)
    elif language in {"fa", "ur"}:
        text = text.translate(_PERSIAN)
    return text.lower()


def _bare(word: str) -> str:
    """Without accents: many readers do not type them. Marks of other scripts, such as Hindi vowels, are letters."""
    parts = unicodedata.normalize("NFD", word)
    return unicodedata.normalize("NFC", "".join(part for part in parts if not "\u0300" <= part <= "\u036f"))


def _grams(word: str) -> list[str]:
    if _WIDE.search(word):
        return [word[at : at + n] for n in SHORT_GRAMS for at in range(len(word) - n + 1)]
    if len(word) <= GRAM:
        return [word]
    return [word[at : at + GRAM] for at in range(len(word) - GRAM + 1)]


@lru_cache(maxsize=8)
def _stops(language: str) -> frozenset[str]:
    """As they stand in a folded text."""
    return frozenset(_folded(word, language) for word in STOP_WORDS.get(language, ()))


@lru_cache(maxsize=8)
def _stemmer(language: str) -> "Stemmer.Stemmer | None":
    return Stemmer.Stemmer(_STEMMERS[language]) if language in _STEMMERS else None
