"""The two scores of a hit before their calibration: similarity and attainment. Pure.

A strong embedder's cosine is the similarity. A weak one's is mixed with the attainment of the words, before the curve is fitted to
the mixture. Measured on XQuAD (words alone, cosine of USE alone, mixture): nDCG@10 .963, .893, .971 in German, .968, .907, .974 in
Spanish, .954, .808, .962 in Arabic, .966, .889, .971 in Chinese; AUROC of the gate (words alone, mixture): .988, .992;
.989, .993; .975, .978; .988, .991. With the cosine alone in the place of the mixture it is .986, .979, .938 and .971.
"""

from engine.models import Generation, Hit
from engine.retrieval import lexical, words_only

MULTILINGUAL = "use-multilingual-v3-under-headings"
COSINE_SHARE = {words_only.NAME: 0.0, MULTILINGUAL: 1 / 3}  # of the similarity; any other embedder: all of it


def raw_scores(hit: Hit, possible: float, generation: Generation) -> tuple[float, float]:
    """The similarity and the attainment of a hit."""
    attainment = lexical.attainment(hit.bm25, possible)
    share = COSINE_SHARE.get(generation.embedder, 1.0)
    return share * hit.cosine + (1 - share) * attainment, attainment


def needs_words(embedder: str) -> bool:
    """Whether a question must share words with the book, and so its language."""
    return embedder in COSINE_SHARE
