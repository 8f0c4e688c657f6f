"""The language of a text, from its script and its function words, and how many words it has. Pure.

A language is named by its ISO 639 code. English is the default: a text that shows no other language clearly is English.
"""

import re
from collections import Counter

from engine.words.stop_words import STOP_WORDS

ENGLISH = "en"
UNKNOWN = "und"  # as in BCP 47: a language that has no profile here

WORDS_MIN = 4  # of a question in the Latin or Cyrillic script: fewer may be names and technical terms
FOUND_MIN = 2  # function words of one language in a question
LETTERS_MIN = 3  # of a question in a script of its own
GREEK_LETTERS_MIN = 8  # fewer are symbols
SHARE_MIN = 0.04  # function words in a book: real prose has 0.2 to 0.5
DIFFERENT_MIN = 4  # of them: code and identifiers have single letters
LEAD_MIN = 1.3  # of a book, over the function words of English
QUESTION_LEAD_MIN = 1.5  # of a question, over the function words of the next language
SCRIPT_SHARE_MIN = 0.6  # of the letters of a question
OTHER_SCRIPT_SHARE_MIN = 0.25  # of the letters of a book that is not in Latin script
BOOK_WORDS_MIN = 20  # fewer may be a formula
ACCENTED_MAX = 0.05  # words in a book without function words, such as a list of names or code

# The first and the last letter of each script's blocks.
_SCRIPTS = {
    "Latin": "AZazÀÖØöøɏḀ\u1eff",
    "Greek": "Ͱ\u03ffἀ\u1fff",
    "Cyrillic": "Ѐԯ",
    "Hebrew": "א\u05ff",
    "Arabic": "ؠيٮۓۺۿݐݿ",
    "Devanagari": "\u0900ॿ",
    "Bengali": "\u0980\u09ff",
    "Gurmukhi": "\u0a00\u0a7f",
    "Gujarati": "\u0a80\u0aff",
    "Tamil": "\u0b80\u0bff",
    "Telugu": "\u0c00\u0c7f",
    "Kannada": "\u0c80\u0cff",
    "Malayalam": "\u0d00\u0d7f",
    "Thai": "\u0e01\u0e3a\u0e40\u0e4e",
    "Georgian": "Ⴀჿ",
    "Armenian": "Աև",
    "Kana": "\u3041\u3096\u30a1\u30fa",
    "Han": "\u3400\u4dbf\u4e00\u9fff\uf900\ufaff",
    "Hangul": "\u1100\u11ff\uac00\ud7a3",
}
# Scripts that one language, or one above all, is written in.
_ALONE = {
    "Greek": "el", "Hebrew": "he", "Devanagari": "hi", "Bengali": "bn", "Gurmukhi": "pa", "Gujarati": "gu", "Tamil": "ta",
    "Telugu": "te", "Kannada": "kn", "Malayalam": "ml", "Thai": "th", "Georgian": "ka", "Armenian": "hy", "Kana": "ja",
    "Han": "zh", "Hangul": "ko",
}  # fmt: skip
_SHARED = {
    "Cyrillic": frozenset({"ru", "uk"}),
    "Arabic": frozenset({"ar", "fa", "ur"}),
    "Latin": STOP_WORDS.keys() - {"ru", "uk", "ar", "fa", "ur", "hi"},
}
# A short question in the second may look like the first.
_MISTAKEN = {("zh", "ja"), ("da", "no"), ("no", "da")}
SCRIPT_OF = {language: script for script, language in _ALONE.items()} | {
    language: script for script, languages in _SHARED.items() for language in languages
}

_LETTERS = {
    script: re.compile("[" + "".join(f"{a}-{b}" for a, b in zip(ends[::2], ends[1::2], strict=True)) + "]")
    for script, ends in _SCRIPTS.items()
}
_WORD = re.compile(r"[^\W_]+")
WITHOUT_SPACES = "\u3041-\u3096\u30a1-\u30fc\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e01-\u0e4e\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"
_RUN = re.compile(f"[{WITHOUT_SPACES}]+")
LETTERS_OF_A_WORD = 2  # about, in Chinese and Japanese


def of_book(text: str) -> str:
    """The language of most of this text: of its prose, because code and terms are in Latin letters in any book."""
    script = _script(text, OTHER_SCRIPT_SHARE_MIN)
    if script is None:
        return ENGLISH
    if script in _ALONE:
        return _ALONE[script]
    words = _words(text)
    if script == "Latin" and len(words) < BOOK_WORDS_MIN:
        return ENGLISH
    shares = _shares(words, script)
    (best, share), *_ = shares
    if script == "Latin" and best != ENGLISH and share < LEAD_MIN * dict(shares)[ENGLISH]:
        return ENGLISH
    if share >= SHARE_MIN and len(STOP_WORDS[best].intersection(words)) >= DIFFERENT_MIN:
        return best
    accented = sum(not word.isascii() for word in words)
    return ENGLISH if script == "Latin" and accented <= ACCENTED_MAX * len(words) else UNKNOWN


def of_question(text: str) -> str | None:
    """The language of a question; None in doubt, as for a short one and for one of technical words."""
    script = _script(text)
    letters_min = GREEK_LETTERS_MIN if script == "Greek" else LETTERS_MIN
    if script is None or len(_LETTERS[script].findall(text)) < letters_min:
        return None
    if script in _ALONE:
        return _ALONE[script]
    words = _words(text)
    (best, share), (_, second), *_ = _shares(words, script)
    is_clear = (
        len(words) >= WORDS_MIN and share * len(words) >= FOUND_MIN and share > QUESTION_LEAD_MIN * second
    )
    if is_clear:
        return best
    return UNKNOWN if script != "Latin" else None


def of_reader(question: str, book: str) -> str:
    """The language to write to a reader in: the question's, and in doubt the book's."""
    return of_question(question) or book


def is_other(asked: str | None, text: str, book: str) -> bool:
    """Whether a question in this language is certainly in another language than the book's."""
    if asked in {None, book} or (asked, book) in _MISTAKEN:
        return False
    if UNKNOWN in {asked, book}:
        return _script(text) != SCRIPT_OF.get(book, _script(text))
    return True


def is_among(asked: str | None, text: str, known: frozenset[str]) -> bool:
    """Whether one of these languages may be the one of a question."""
    return any(not is_other(asked, text, each) for each in known)


def count_words(text: str) -> int:
    """The number of words, also where no spaces separate them."""
    unspaced = sum(len(run) for run in _RUN.findall(text))
    return len(_RUN.sub(" ", text).split()) + -(-unspaced // LETTERS_OF_A_WORD)


def _script(text: str, other_min: float = SCRIPT_SHARE_MIN) -> str | None:
    """The script of most letters. Japanese is written in two, and any kana tell it from Chinese."""
    counts = _counts(text)
    total = sum(counts.values())
    if counts["Kana"] * 20 > counts["Han"]:
        counts["Kana"] += counts.pop("Han")
    for script in sorted(counts, key=lambda name: (name == "Latin", -counts[name])):
        if (
            counts[script]
            and counts[script] >= (SCRIPT_SHARE_MIN if script == "Latin" else other_min) * total
        ):
            return script
    return None


def _counts(text: str) -> dict[str, int]:
    """The letters of each script. ASCII has those of one alone, and most text is."""
    if text.isascii():
        return dict.fromkeys(_LETTERS, 0) | {"Latin": len(_LETTERS["Latin"].findall(text))}
    return {script: len(letters.findall(text)) for script, letters in _LETTERS.items()}


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _shares(words: list[str], script: str) -> list[tuple[str, float]]:
    """The share of each language's function words, highest first."""
    counts = Counter(words)
    shares = {
        language: sum(counts[word] for word in STOP_WORDS[language].intersection(counts)) / max(1, len(words))
        for language in sorted(_SHARED[script])
    }
    return sorted(shares.items(), key=lambda item: -item[1])
