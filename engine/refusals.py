"""Registry of refusal reasons: an enum of their names, each with the sentence that is safe to show to readers.

The page, both languages of the Docusaurus panel, the view `audit_refusals` and the README list the same reasons; a test
compares all of them with this registry.
"""

from enum import StrEnum
from typing import Self


class RefusalReason(StrEnum):
    """Why a question was refused."""

    sentence: str  # `{part}` is the part of the book that was searched

    NOT_COVERED = "not_covered", "This question is not covered in the {part}."
    INSUFFICIENT_EVIDENCE = (
        "insufficient_evidence",
        "The book's nearest passages do not answer this question.",
    )
    ATTRIBUTE_NOT_FOUND = (
        "attribute_not_found",
        "The book writes about this, but does not state what was asked.",
    )
    UNDERSPECIFIED = (
        "underspecified",
        "The question does not say what it is about. Name the thing, or select the passage that you mean.",
    )
    CITATION_FAILED = (
        "citation_failed",
        "No answer could be proven from the book's passages, so none is given.",
    )
    MODEL_REFUSED = "model_refused", "The language model declined to answer this question."
    SELECTION_NOT_IN_BOOK = (
        "selection_not_in_book",
        "The selected text was not found in this book. Select a passage of the book, or ask without a selection.",
    )

    def __new__(cls, name: str, sentence: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.sentence = sentence
        return member
