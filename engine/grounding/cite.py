"""Renders verified claims as the text that readers see. Pure. Excerpts are slices of the stored passage, never typed."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from engine.grounding.certainty import passage_probability
from engine.models import Citation, Claim, ConfidenceLevel, Excerpt, Quoted, Released, RetrievedPassage

EXCERPT_WORDS_MAX = 50  # specification 002: enough to find the place, and still a quotation

LEVELS: Sequence[ConfidenceLevel] = ("high", "medium", "low")

LOW_MARK = "[Low confidence: check the sources.]"
LOW_MARKS = {
    "en": LOW_MARK,
    "de": "[Geringe Sicherheit: Prüfen Sie die Quellen.]",
}  # in the panel's languages

FENCE = "```"

_WORD = re.compile(r"\S+")


def quoted(claim: Claim, evidence: Sequence[RetrievedPassage], first_n: int) -> Quoted:
    """A verified sentence as readers see it; its quotations are numbered from `first_n` on."""
    cited = tuple(excerpt(item, evidence, first_n + place) for place, item in enumerate(claim.citations))
    words = claim.text.strip()
    return Quoted(_marked(words, map(source_mark, cited)), cited, words)


def numbered(sentence: Quoted, number_of: Callable[[Excerpt], int | None]) -> Quoted:
    """The sentence with marks such as `[1]`, for readers who see its quotations in a list beside the text."""
    numbers = dict.fromkeys(map(number_of, sentence.excerpts))
    return replace(sentence, text=_marked(sentence.words, (f"[{n}]" for n in numbers if n is not None)))


def numbered_text(answer: Released, number_of: Callable[[Excerpt], int | None]) -> str:
    """The whole answer with such marks."""
    text = joined([numbered(sentence, number_of) for sentence in answer.sentences])
    return f"{low_mark(answer.language)} {text}" if answer.confidence_level == "low" else text


def released(
    sentences: Sequence[Quoted],
    generation_confidence: float,
    *,
    weights: tuple[float, float],
    levels: tuple[float, float],
    level_max: ConfidenceLevel = "high",
    language: str = "en",
) -> Released:
    """The answer with its quotations and its confidence. An answer of low confidence begins with a warning."""
    excerpts = tuple(item for sentence in sentences for item in sentence.excerpts)
    retrieval = passage_probability(max(item.score for item in excerpts))
    confidence = round(weights[0] * retrieval + weights[1] * generation_confidence, 6)
    text = joined(sentences)
    confidence_level = max(level(confidence, levels), level_max, key=LEVELS.index)
    if confidence_level == "low":
        text = f"{low_mark(language)} {text}"
    return Released(
        text, excerpts, retrieval, generation_confidence, confidence, confidence_level, tuple(sentences), language
    )  # fmt: skip


def low_mark(language: str) -> str:
    return LOW_MARKS.get(language, LOW_MARK)


def joined(sentences: Sequence[Quoted]) -> str:
    """A block of code begins on a line of its own, so that its fence is one."""
    return "".join(gap_before(sentence) + sentence.text for sentence in sentences)[1:]


def gap_before(sentence: Quoted) -> str:
    return "\n" if sentence.text.startswith(FENCE) else " "


def excerpt(citation: Citation, evidence: Sequence[RetrievedPassage], n: int) -> Excerpt:
    """A slice of the passage: at most fifty words, from the first cited sentence on."""
    item = evidence[citation.passage]
    passage = item.passage
    first, last = passage.sentences[citation.start], passage.sentences[citation.end - 1]
    words = list(_WORD.finditer(passage.text, first.start, last.end))
    start, end = first.start, words[min(len(words), EXCERPT_WORDS_MAX) - 1].end()
    if first.kind == "code" and len(words) > EXCERPT_WORDS_MAX:
        whole_lines = passage.text.rfind("\n", start, end)
        end = whole_lines if whole_lines > start else end
    return Excerpt(
        n=n,
        chunk_id=passage.chunk_id,
        section=first.heading,
        chapter=passage.chapter,
        filename=passage.filename,
        page=first.page,
        url=f"{passage.url}#{first.anchor}" if first.anchor else passage.url,
        excerpt=passage.text[start:end],
        start=start,
        end=end,
        score=item.candidate.score,
    )


def _marked(words: str, marks: Iterable[str]) -> str:
    gap = "\n" if words.endswith(FENCE) else " "
    return f"{words}{gap}{' '.join(marks)}".rstrip()


def source_mark(cited: Excerpt) -> str:
    return f'[Source: {cited.section} (Page {cited.page}) - "{cited.excerpt}"]'


def level(confidence: float, levels: tuple[float, float]) -> ConfidenceLevel:
    """High above the first threshold, medium from the second one on, else low."""
    high, medium = levels
    return "high" if confidence > high else "medium" if confidence >= medium else "low"
