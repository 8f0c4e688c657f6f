"""The relevance gate: a threshold on the best score, before a model is called and paid for. Pure."""

from engine.models import Question, Refusal, Retrieved
from engine.refusals import RefusalReason
from engine.retrieval import languages
from engine.retrieval.raw_scores import needs_words

NEAREST_SHOWN = 3  # a reader follows three links, not ten


def refuse_weak_evidence(retrieved: Retrieved, threshold: float) -> Refusal | None:
    """A refusal, or None if the best score reaches the threshold."""
    if not retrieved.is_selection_found:
        return Refusal(RefusalReason.SELECTION_NOT_IN_BOOK)
    if retrieved.is_underspecified:
        return Refusal(RefusalReason.UNDERSPECIFIED)
    if retrieved.evidence and retrieved.best_score >= threshold:
        return None
    return Refusal(RefusalReason.NOT_COVERED, retrieved.evidence[:NEAREST_SHOWN], retrieved.searched)


def refuse_foreign_language(question: Question, readable: frozenset[str]) -> Refusal | None:
    """A refusal if the question is certainly in a language that the book's embedder (`readable`, empty: any) cannot compare.

    A selection is searched together with the question, and is in the book's language.
    """
    asked = languages.of_question(question.text)
    is_other = languages.is_other(asked, question.text, question.language)
    is_comparable = not needs_words(question.embedder) and (
        not readable or languages.is_among(asked, question.text, readable)
    )
    if question.selected_text is not None or not is_other or is_comparable:
        return None
    return Refusal(RefusalReason.LANGUAGE_NOT_SUPPORTED)
