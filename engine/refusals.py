"""Registry of refusal reasons: an enum of their names, each with the sentence that is safe to show to readers.

The page, every language of the Docusaurus panel, the view `audit_refusals` and docs/reference/ list the same reasons; tests
compare all of them with this registry.
"""

# ruff: noqa: RUF001 - the sentences have the letters of their scripts

from enum import StrEnum
from typing import Self


class RefusalReason(StrEnum):
    """Why a question was refused."""

    sentence: str  # in English; `{part}` is the part of the book that was searched

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
    LANGUAGE_NOT_SUPPORTED = (
        "language_not_supported",
        "This book cannot be asked in this language. Please ask in the language of the book.",
    )

    def __new__(cls, name: str, sentence: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.sentence = sentence
        return member

    def message(self, searched: str | None = None, language: str = "en") -> str:
        """The sentence for a reader of this language, or in English; `searched` is the part of the book that was searched."""
        wording = _TRANSLATED.get(language, {}).get(self.value, self.sentence)
        whole, part = _PARTS.get(language, _PARTS["en"])
        return wording.format(part=part.format(searched) if searched else whole)


_PARTS = {
    "en": ("book", "part of the book that was searched ({})"),
    "de": ("Buch", "durchsuchten Teil des Buches ({})"),
}

# The panel's languages have all sentences. A question in a language that the book's embedder cannot read may be in any.
_TRANSLATED: dict[str, dict[str, str]] = {
    "de": {
        "not_covered": "Diese Frage wird im {part} nicht behandelt.",
        "insufficient_evidence": "Die nächstliegenden Stellen des Buches beantworten diese Frage nicht.",
        "attribute_not_found": "Das Buch schreibt darüber, sagt aber nicht, wonach gefragt ist.",
        "underspecified": "Die Frage sagt nicht, worum es geht. Nennen Sie die Sache, oder wählen Sie die Stelle aus, die Sie"
        " meinen.",
        "citation_failed": "Keine Antwort ließ sich mit Stellen des Buches belegen, darum wird keine gegeben.",
        "model_refused": "Das Sprachmodell hat es abgelehnt, diese Frage zu beantworten.",
        "selection_not_in_book": "Der ausgewählte Text wurde in diesem Buch nicht gefunden. Wählen Sie eine Stelle des Buches aus,"
        " oder fragen Sie ohne Auswahl.",
        "language_not_supported": "Dieses Buch kann nicht in dieser Sprache befragt werden. Bitte fragen Sie in der Sprache des"
        " Buches.",
    },
} | {
    language: {"language_not_supported": sentence}
    for language, sentence in {
        "ar": "لا يمكن طرح الأسئلة على هذا الكتاب بهذه اللغة. يرجى السؤال بلغة الكتاب.",
        "es": "No se puede consultar este libro en este idioma. Pregunte, por favor, en el idioma del libro.",
        "fr": "Ce livre ne peut pas être interrogé dans cette langue. Veuillez poser votre question dans la langue du livre.",
        "hi": "इस पुस्तक से इस भाषा में प्रश्न नहीं पूछे जा सकते। कृपया पुस्तक की भाषा में पूछें।",
        "it": "Questo libro non può essere consultato in questa lingua. Si prega di chiedere nella lingua del libro.",
        "ja": "この本にはこの言語で質問できません。本の言語で質問してください。",
        "ko": "이 책에는 이 언어로 질문할 수 없습니다. 책의 언어로 질문해 주세요.",
        "nl": "Dit boek kan niet in deze taal worden bevraagd. Stel uw vraag in de taal van het boek.",
        "pt": "Este livro não pode ser consultado neste idioma. Pergunte, por favor, no idioma do livro.",
        "ru": "Этой книге нельзя задать вопрос на этом языке. Пожалуйста, спросите на языке книги.",
        "tr": "Bu kitaba bu dilde soru sorulamaz. Lütfen kitabın dilinde sorun.",
        "ur": "اس کتاب سے اس زبان میں سوال نہیں کیا جا سکتا۔ براہ کرم کتاب کی زبان میں پوچھیں۔",
        "zh": "无法用这种语言向本书提问。请用本书的语言提问。",
    }.items()
}  # fmt: skip
