"""A new generation is asked what is not in it, what it says of its headings, and its own sentences: so it calibrates itself.

Nobody has to label anything, and an embedder whose cosines nobody has published gets a gate that means the same.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from engine.errors import IndexUnavailableError
from engine.models import Calibration, Filters, Generation, Hit, Passage, Vector
from engine.ports import Embedder, Index
from engine.retrieval import calibrate, lexical
from engine.retrieval.calibrate import Gate, ProbeScores, Raw
from ingest.registry import Registry

HEADINGS_MAX = 100  # more would only say the same more exactly
ECHOES = 100
ECHO_WORDS = range(6, 41)  # shorter is a fragment, longer is cut by some embedders
TRIES = 3  # a search is timed for readers; while a book is built the machine is busy
AT_ONCE = 8  # searches in flight: the index serves readers meanwhile


@dataclass(frozen=True, slots=True)
class Sounding:
    """What is asked, and what the answers are used for."""

    probes: tuple[str, ...]
    refused: float
    gate: Gate
    candidates_each: int
    registry: Registry
    embedder: Embedder
    index: Index

    async def of(self, generation: Generation, passages: Sequence[Passage]) -> Calibration:
        soundings = ProbeScores(
            probes=await self._ask(self.probes, generation),
            headings=await self._ask(headings(passages), generation),
            echoes=await self._ask(echoes(passages), generation),
        )
        return calibrate.fit_unlabelled(
            soundings,
            embedder=generation.embedder,
            dimension=generation.dimension,
            gate=self.gate,
            refused=self.refused,
        )

    def fingerprint(self) -> str:
        """Equal soundings of equal passages give equal curves."""
        asked = "\n".join(
            [calibrate.METHOD, *self.probes, str(self.refused), str(self.gate), str(self.candidates_each)]
        )
        return sha256(asked.encode()).hexdigest()

    async def _ask(self, questions: Sequence[str], generation: Generation) -> list[Raw]:
        vectors = await self._embedded(questions)
        turn = asyncio.Semaphore(AT_ONCE)

        async def ask(question: str, vector: Vector) -> Raw:
            async with turn:
                return await self._found(question, vector, generation)

        return await asyncio.gather(*map(ask, questions, vectors))

    async def _found(self, question: str, vector: Vector, generation: Generation) -> Raw:
        words = lexical.words(question)
        hits = await self._searched(vector, lexical.query_weights(words, generation.lexicon), generation)
        best = lexical.possible(words, generation.lexicon)
        rows = [(hit.cosine, lexical.attainment(hit.bm25, best)) for hit in hits]
        return np.array(rows, dtype=np.float64).reshape(-1, 2)

    async def _searched(self, vector: Vector, terms: dict[int, float], generation: Generation) -> list[Hit]:
        """A late search costs a reader's request; here it would cost the whole ingest."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(IndexUnavailableError):
                return await self._search(vector, terms, generation)
        return await self._search(vector, terms, generation)

    async def _search(self, vector: Vector, terms: dict[int, float], generation: Generation) -> list[Hit]:
        return await self.index.search(
            generation.generation_id, vector, terms, self.candidates_each, Filters()
        )

    async def _embedded(self, questions: Sequence[str]) -> list[Vector]:
        """Kept like the passages' vectors: the next generation asks the same probes."""
        names = [sha256(f"question\n{question}".encode()).hexdigest() for question in questions]
        embedder, dimension = self.embedder.name, self.embedder.dimension
        known = await self.registry.embeddings(names, embedder, dimension)
        new = {name: question for name, question in zip(names, questions, strict=True) if name not in known}
        if new:
            vectors = await self.embedder.embed_questions(list(new.values()))
            made = {name: vector[None, :] for name, vector in zip(new, vectors, strict=True)}
            await self.registry.keep_embeddings(made, embedder, dimension)
            known |= made
        return [known[name][0] for name in names]


def headings(passages: Sequence[Passage]) -> list[str]:
    """The book's headings as questions, evenly over the book."""
    found = dict.fromkeys(
        sentence.heading for passage in passages for sentence in passage.sentences if sentence.heading
    )
    return [f"What is said about {heading}?" for heading in _spread(list(found), HEADINGS_MAX)]


def echoes(passages: Sequence[Passage]) -> list[str]:
    """Sentences of the book, evenly over the book; all that it has if it is very short."""
    sentences = dict.fromkeys(
        passage.sentence_text(number) for passage in passages for number in range(len(passage.sentences))
    )
    whole = [sentence for sentence in sentences if len(sentence.split()) in ECHO_WORDS]
    return _spread(whole or list(sentences), ECHOES)


def _spread(items: Sequence[str], count: int) -> list[str]:
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in places]


def read_probes(text: str) -> tuple[str, ...]:
    """One question a line; lines that start with # say something about those below."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
