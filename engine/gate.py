"""The gate before the model: enough evidence, or a refusal that costs nothing. Pure."""

from collections.abc import Sequence

from engine.models import Evidence, Refusal

NEAREST_SHOWN = 3  # a reader looks at three links, not at ten


def refuse_weak_evidence(evidence: Sequence[Evidence], threshold: float) -> Refusal | None:
    """None if the best passage reaches the threshold."""
    best = max((item.candidate.score for item in evidence), default=0.0)
    if evidence and best >= threshold:
        return None
    return Refusal(
        reason="not_covered",
        message="This question is not covered in the book.",
        nearest=tuple(evidence[:NEAREST_SHOWN]),
    )
