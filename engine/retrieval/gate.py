"""The relevance gate: a threshold on the best score, before a model is called and paid for. Pure."""

from engine.models import Refusal, Retrieved

NEAREST_SHOWN = 3  # a reader follows three links, not ten

_NOT_IN_BOOK = Refusal(
    reason="selection_not_in_book",
    message="The selected text was not found in this book. Select a passage of the book, or ask without a selection.",
)


def refuse_weak_evidence(retrieved: Retrieved, threshold: float) -> Refusal | None:
    """A refusal, or None if the best score reaches the threshold."""
    if not retrieved.is_selection_found:
        return _NOT_IN_BOOK
    if retrieved.evidence and retrieved.best_score >= threshold:
        return None
    where = (
        "book" if retrieved.searched is None else f"part of the book that was searched ({retrieved.searched})"
    )
    return Refusal(
        reason="not_covered",
        message=f"This question is not covered in the {where}.",
        nearest=retrieved.evidence[:NEAREST_SHOWN],
    )
