"""The gate after the model: every citation is really in the passages, or the sentence does not leave. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from engine.models import Citation, Claim, Draft, Evidence, Passage, Refusal

_ABSTAINED = Refusal(
    reason="insufficient_evidence",
    message="The book's nearest passages do not answer this question.",
)
_MODEL_REFUSED = Refusal(
    reason="model_refused",
    message="The language model declined to answer this question.",
)
_UNPROVEN = Refusal(
    reason="citation_failed",
    message="No answer could be proven from the book's passages, so none is given.",
)


def verified(draft: Draft, evidence: Sequence[Evidence]) -> tuple[Claim, ...] | Refusal:
    """The claims that are proven by what they cite, or a refusal if nothing is left."""
    if draft.stop_reason == "refusal":
        return replace(_MODEL_REFUSED, nearest=tuple(evidence))
    if not draft.claims:
        return replace(_ABSTAINED, nearest=tuple(evidence))
    if not draft.complete:
        return _UNPROVEN
    proven = tuple(claim for claim in draft.claims if _is_proven(claim, evidence))
    return proven or _UNPROVEN


def _is_proven(claim: Claim, evidence: Sequence[Evidence]) -> bool:
    return bool(claim.citations) and all(_is_true(citation, evidence) for citation in claim.citations)


def _is_true(citation: Citation, evidence: Sequence[Evidence]) -> bool:
    if not 0 <= citation.passage < len(evidence):
        return False
    passage = evidence[citation.passage].passage
    if not 0 <= citation.start < citation.end <= len(passage.sentences):
        return False
    return citation.cited_text == sentences_text(passage, citation.start, citation.end)


def sentences_text(passage: Passage, start: int, end: int) -> str:
    """Sentences `start` up to, but without, `end`, joined without anything between: as generators see and cite them."""
    return "".join(passage.sentence_text(number) for number in range(start, end))
