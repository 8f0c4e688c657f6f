"""A question to the passages that may answer it: embed, search, say what the scores mean, order, keep."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine import lexical
from engine.calibrate import interpolate
from engine.errors import DatabaseUnavailableError
from engine.models import Candidate, Evidence, Generation, Hit, Question
from engine.ports import Embedder, Index, Library


@dataclass(frozen=True, slots=True)
class Retriever:
    """The parts that searching needs, and the weights of the blend."""

    embedder: Embedder
    index: Index
    library: Library
    weight_semantic: float
    weight_lexical: float
    candidates: int

    async def retrieve(self, question: Question, generation: Generation) -> tuple[list[Evidence], int]:
        """The best `top_k` passages in order, and how many were considered."""
        words = lexical.words(question.text)
        dense = await self.embedder.embed_query(question.text)
        terms = lexical.query_weights(words, generation.lexicon)
        hits = await self.index.search(
            generation.generation_id, dense, terms, self.candidates, question.filters
        )
        ranked = self.rank(hits, words, generation)
        kept = ranked[: question.top_k]
        passages = await self.library.passages([item.chunk_id for item in kept])
        if len(passages) < len(kept):
            raise DatabaseUnavailableError("The index names passages that the database does not hold.")
        return [Evidence(passages[item.chunk_id], item) for item in kept], len(ranked)

    def rank(self, hits: Sequence[Hit], words: list[str], generation: Generation) -> list[Candidate]:
        """Both scores of each hit, mapped and blended; ties break by id, so that every backend gives one order."""
        calibration = generation.calibration
        candidates = []
        for hit in hits:
            similarity = interpolate(calibration.similarity, max(0.0, min(1.0, hit.cosine)))
            lexical_score = interpolate(
                calibration.lexical, lexical.attainment(hit.bm25, words, generation.lexicon)
            )
            score = blend(similarity, lexical_score, self.weight_semantic, self.weight_lexical)
            candidates.append(Candidate(hit.chunk_id, hit.cosine, similarity, hit.bm25, lexical_score, score))
        return sorted(candidates, key=lambda item: (-round(item.score, 5), item.chunk_id))


def blend(similarity: float, lexical_score: float, weight_semantic: float, weight_lexical: float) -> float:
    return weight_semantic * similarity + weight_lexical * lexical_score
