"""The text of a search as words and phrases (pure).

All must occur, in the question or the answer. "Words in quotation marks" follow each other; a word with an asterisk at its end
begins so. As in sql/0037_search.sql, each Chinese and Japanese character is a word, and several of them are a phrase.
"""

import re
from dataclasses import dataclass

TERMS_MAX = 20
STEM_CHARACTERS_MIN = 3  # a shorter one begins too many words

_CHARACTER = re.compile("([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff])")
_TERM = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"\w+")

# Dictionaries of PostgreSQL by the language of a book.
STEMMERS = {
    "ar": "arabic_stem", "da": "danish_stem", "de": "german_stem", "el": "greek_stem", "en": "english_stem",
    "es": "spanish_stem", "fi": "finnish_stem", "fr": "french_stem", "hi": "hindi_stem", "hu": "hungarian_stem",
    "id": "indonesian_stem", "it": "italian_stem", "nl": "dutch_stem", "no": "norwegian_stem", "pt": "portuguese_stem",
    "ro": "romanian_stem", "ru": "russian_stem", "sv": "swedish_stem", "tr": "turkish_stem",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchTerm:
    """Words that follow each other, with what stands between them; of a prefix only the begin of the only one is known."""

    text: str
    words: tuple[str, ...]
    is_quoted: bool = False
    is_prefix: bool = False

    @property
    def may_be_inflected(self) -> bool:
        return len(self.words) == 1 and not (self.is_quoted or self.is_prefix)

    def begun_by(self, stems: list[str]) -> "SearchTerm":
        """The same word in its other forms, as far as they begin alike."""
        (word,) = self.words
        known = [stem for stem in stems if len(stem) >= STEM_CHARACTERS_MIN and word.lower().startswith(stem)]
        stem = min(known, key=len, default="")
        return SearchTerm(stem, (stem,), is_prefix=True) if stem else self


def terms_of(text: str) -> list[SearchTerm]:
    found = []
    for match in _TERM.finditer(text):
        quoted, bare = match.groups()
        text = _CHARACTER.sub(r" \1 ", quoted if bare is None else bare)
        words = tuple(_WORD.findall(text))
        if words:
            is_prefix = bare is not None and bare.endswith("*") and len(words) == 1
            found.append(SearchTerm(words[0] if is_prefix else text, words, bare is None, is_prefix))
    return found[:TERMS_MAX]


def condition(terms: list[SearchTerm]) -> tuple[str, dict[str, str]]:
    """SQL for a `tsquery`, and its values: of a prefix letters and digits, which mean nothing to the parser."""
    parts, values = [], {}
    for number, term in enumerate(terms):
        name = f"term_{number}"
        values[name] = f"{term.text}:*" if term.is_prefix else term.text
        parse = "to_tsquery" if term.is_prefix else "phraseto_tsquery"
        parts.append(f"{parse}('pg_catalog.simple', %({name})s)")
    return f"({' && '.join(parts)})", values


def likeness(terms: list[SearchTerm]) -> tuple[str, dict[str, str]]:
    """SQL that is true wherever the words are, and cheaper than to look for words: a scan asks this first."""
    words = [word for term in terms for word in term.words]
    values = {f"like_{number}": f"%{_escaped(word)}%" for number, word in enumerate(words)}
    whole = "concat_ws(' ', user_query_text, answer_text)"
    return " AND ".join(f"{whole} ILIKE %({name})s" for name in values) or "true", values


def _escaped(word: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", word)
