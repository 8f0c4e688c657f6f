"""The relevance gate: a threshold on the best score, before a model is called and paid for. Pure."""

from engine.models import Refusal, Retrieved
from engine.refusals import RefusalReason

NEAREST_SHOWN = 3  # a reader follows three links, not ten


def refuse_weak_evidence(retrieved: Retrieved, threshold: float) -> Refusal | None:
    """A refusal, or None if the best score reaches the threshold."""
    if not retrieved.is_language_read:
        return Refusal(RefusalReason.LANGUAGE_NOT_SUPPORTED)
    if not retrieved.is_selection_found:
        return Refusal(RefusalReason.SELECTION_NOT_IN_BOOK)
    is_strong = retrieved.best_score >= threshold or retrieved.is_keyword_match
    if retrieved.evidence and is_strong:
        return None
    if retrieved.is_underspecified:
        return Refusal(RefusalReason.UNDERSPECIFIED)
    return Refusal(RefusalReason.NOT_COVERED, retrieved.evidence[:NEAREST_SHOWN], retrieved.searched)
