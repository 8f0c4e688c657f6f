"""Self-calibration: fits the score curves of a new generation to its answers to probe questions, without labels.

The probes are questions that the book does not answer, its headings, its own sentences, and a few words of them. So any
embedder gets a gate with the same meaning, even if its typical cosines are unknown.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from string import punctuation

import numpy as np

from engine.errors import IndexUnavailableError
from engine.models import Calibration, Filters, Generation, Hit, Passage, Vector, Windows
from engine.ports import Embedder, Index
from engine.retrieval import calibrate, lexical, words_only
from engine.retrieval.calibrate import Gate, ProbeScores, Raw
from engine.retrieval.raw_scores import needs_words, raw_scores
from engine.words.languages import ENGLISH, count_words
from ingest.registry import Registry

HEADINGS_MAX = 100  # more would change the curves only slightly
ECHOES = 100
ECHO_WORDS = range(6, 41)  # shorter ones are fragments, and some embedders truncate longer ones
KEYWORDS = 5  # of a sentence
SENTENCES = 200  # that keywords are taken from
ATTEMPTS = 3  # the timeout of a search is meant for readers, and the machine is busy while it builds a book
CONCURRENT_SEARCHES = 8  # few, because the index also serves readers


@dataclass(frozen=True, slots=True)
class SelfCalibration:
    """The probe questions, and the gate that they calibrate."""

    probes: tuple[str, ...]
    refused: float
    gate: Gate
    candidates_each: int
    registry: Registry
    embedder: Embedder
    index: Index
    probes_by_language: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # besides English

    def of(self, language: str, embedder: Embedder) -> "SelfCalibration | None":
        """The calibration of a book in this language; None without questions that its embedder can compare with it."""
        if language == ENGLISH:
            return replace(self, embedder=embedder)
        english = self.probes if embedder.name != words_only.NAME else ()
        probes = self.probes_by_language.get(language, english)
        return replace(self, embedder=embedder, probes=probes) if probes else None

    async def measure(self, generation: Generation, passages: Sequence[Passage]) -> Calibration:
        # They are asked in English, and a heading alone is too short for a question.
        asked = headings(passages) if generation.language == ENGLISH else []
        # Where words count as much as meaning, the book's own words are no questions of a reader: they match by themselves.
        own = [] if needs_words(generation.embedder) else keywords(passages)
        scores = ProbeScores(
            probes=await self._scores(self.probes, generation),
            headings=await self._scores(asked, generation),
            echoes=await self._scores(echoes(passages), generation),
            keywords=await self._scores(own, generation),
        )
        return calibrate.fit_unlabelled(
            scores,
            embedder=generation.embedder,
            dimension=generation.dimension,
            gate=self.gate,
            refused=self.refused,
        )

    def fingerprint(self) -> str:
        """A fingerprint of the probes: with equal passages, equal ones give equal curves."""
        settings = "\n".join(
            [calibrate.METHOD, *self.probes, str(self.refused), str(self.gate), str(self.candidates_each)]
        )
        return sha256(settings.encode()).hexdigest()

    async def _scores(self, questions: Sequence[str], generation: Generation) -> list[Raw]:
        """The vectors are cached, because the next generation has the same probes."""
        windows = await self.registry.embeddings(questions, self.embedder, self._embed, kind="question\n")
        slots = asyncio.Semaphore(CONCURRENT_SEARCHES)

        async def ask(question: str, window: Windows) -> Raw:
            async with slots:
                return await self._score(question, window[0], generation)

        return await asyncio.gather(*map(ask, questions, windows))

    async def _score(self, question: str, vector: Vector, generation: Generation) -> Raw:
        words = lexical.words(question, generation.language)
        hits = await self._search(vector, lexical.query_weights(words, generation.lexicon), generation)
        best = lexical.possible(words, generation.lexicon)
        rows = [raw_scores(hit, best, generation) for hit in hits]
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    async def _search(self, vector: Vector, terms: dict[int, float], generation: Generation) -> list[Hit]:
        """Retries, because one late search would fail the whole ingest."""
        wanted = generation.generation_id, vector, terms, self.candidates_each, Filters()
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(IndexUnavailableError):
                return await self.index.search(*wanted)
        return await self.index.search(*wanted)

    async def _embed(self, questions: Sequence[str]) -> list[Windows]:
        return [vector[None, :] for vector in await self.embedder.embed_questions(questions)]


def headings(passages: Sequence[Passage]) -> list[str]:
    """A sample of the book's headings as questions, evenly spread over the book."""
    found = dict.fromkeys(
        sentence.heading for passage in passages for sentence in passage.sentences if sentence.heading
    )
    return [f"What is said about {heading}?" for heading in _spread(list(found), HEADINGS_MAX)]


def echoes(passages: Sequence[Passage], count: int = ECHOES) -> list[str]:
    """A sample of the book's sentences, evenly spread; of a very short book all of them."""
    sentences = dict.fromkeys(
        passage.sentence_text(number) for passage in passages for number in range(len(passage.sentences))
    )
    whole = [sentence for sentence in sentences if count_words(sentence) in ECHO_WORDS]
    return _spread(whole or list(sentences), count)


def keywords(passages: Sequence[Passage]) -> list[str]:
    """Questions that the book answers: five words each of a sample of its sentences, without stop words.

    Any five, chosen by a hash: a reader remembers no more of a sentence. With four the gate stands too low and with six too
    high; the rarest five, and five that are evenly spread, tell books apart a little less well.
    """
    return [picked for sentence in echoes(passages, SENTENCES) if (picked := _keywords(sentence))]


def _keywords(sentence: str) -> str:
    """None of a single word: where words are written without spaces, it may be the whole sentence."""
    words = dict.fromkeys(word.strip(punctuation) for word in sentence.split() if lexical.words(word))
    if len(words) == 1:
        return ""
    by_chance = sorted(words, key=lambda word: sha256(f"{sentence} {word}".encode()).digest())
    return " ".join(word for word in words if word in by_chance[:KEYWORDS])


def _spread(items: Sequence[str], count: int) -> list[str]:
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in places]


def read_probes(text: str) -> tuple[str, ...]:
    """One question a line; lines that start with # are comments."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
