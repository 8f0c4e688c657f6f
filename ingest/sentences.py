"""Prose to sentences, the same for the same bytes for ever. Pure.

Punkt's algorithm with a fixed list of abbreviations: parameters trained on a corpus would move with it, and a sentence
that moves breaks every citation of it.
"""

import re
from collections.abc import Iterator

from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

_ABBREVIATIONS = (
    "e.g i.e etc cf vs viz al approx ca resp incl excl est max min avg no nos vol pp p ch sec sect fig figs eq eqs "
    "tab ref refs app def ex dr mr mrs ms prof jr sr st inc ltd co corp dept univ jan feb mar apr jun jul aug sep "
    "sept oct nov dec a.m p.m u.s u.k ph.d"
)

_ENDS_ON_NAME = re.compile(r"(?:^|\s)(?:[Ff]ig|[Ee]q|[Ss]ec|[Tt]ab|[Cc]h|[Nn]o|[Rr]ef|pp?|[Vv]ol)s?\.$")


def _tokenizer() -> PunktSentenceTokenizer:
    parameters = PunktParameters()
    parameters.abbrev_types = set(_ABBREVIATIONS.split())
    return PunktSentenceTokenizer(parameters)


_punkt = _tokenizer()


def spans(text: str) -> Iterator[tuple[int, int]]:
    """Where each sentence of a paragraph starts and ends, without the space around it."""
    start: int | None = None
    for begin, end in _punkt.span_tokenize(text):
        start = end - len(text[begin:end].lstrip()) if start is None else start
        following = text[end:].lstrip()[:1]
        if following and (_ENDS_ON_NAME.search(text[start:end]) or following.islower()):
            continue  # "Fig. 3" and "approx. half" go on
        yield start, end
        start = None
    if start is not None:
        yield start, len(text.rstrip())
