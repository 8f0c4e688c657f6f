"""Hybrid retrieval: embed, search densely and by BM25, calibrate and blend the scores, rerank, keep the top k."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from engine.errors import DatabaseUnavailableError, RerankFailedError
from engine.models import (
    Candidate,
    Filters,
    Generation,
    Hit,
    Passage,
    Question,
    Retrieved,
    RetrievedPassage,
    Vector,
    Wording,
)
from engine.ports import Embedder, Library, Reranker, Searchable
from engine.retrieval import lexical, selection, wording
from engine.retrieval.calibrate import Weights, blended, extrapolate, interpolate
from engine.retrieval.raw_scores import needs_words, raw_scores
from engine.words import languages
from engine.words.languages import ENGLISH

RERANKED = 25  # a reranker bills each text, and the right passage is rarely further down
AFTER_RERANK_S = 0.2  # reserved after the reranker's timeout, for the rest of the retrieval

NO_FILTERS = Filters()
_FILTERS_UNUSED = "Only the selected text was searched, so the filters were ignored."
_NARROWEST_FIRST = ("section", "tags", "difficulty", "chapter", "module")


@dataclass(frozen=True, slots=True)
class Search:
    """A prepared query: its words, its dense vector and its sparse vector."""

    generation: Generation
    words: list[str]
    dense: Vector
    terms: dict[int, float]


@dataclass(frozen=True, slots=True)
class Retriever:
    embedder: Embedder
    index: Searchable
    library: Library
    reranker: Reranker | None
    weights: Weights
    candidates_each: int  # fetched by each of the two scores
    within_s: float
    others: Mapping[str, Embedder] = field(default_factory=dict)  # by name: they read other languages

    def embedder_of(self, generation: Generation) -> Embedder:
        return self.others.get(generation.embedder, self.embedder)

    async def retrieve(self, question: Question, generation: Generation) -> Retrieved:
        """The best `top_k` passages in order: of the book, of a part of it, or of the reader's selection."""
        rerank_until = asyncio.get_running_loop().time() + self.within_s - AFTER_RERANK_S
        if question.selected_text is not None:
            return await self._selected(question, question.selected_text, generation)
        if is_foreign(question.text, generation, self.embedder_of(generation).languages):
            return Retrieved((), 0.0, 0, question.text, is_language_read=False)
        words = self._wording(question.text, generation)
        alone = [await self.prepare(text, generation) for text in words.searched]
        query = "\n".join(filter(None, (words.text, question.context)))
        searches = [await self.prepare(query, generation), *alone[1:]] if question.context else alone
        vectors = {
            text: search.dense
            for text, search in zip((*words.searched, query), (*alone, searches[0]), strict=True)
        }
        ranked, searched = await self._widened(searches, question.filters)
        judged = await self._judged(words.text, alone, ranked, searched) if question.context else ranked
        best_score, considered = max((item.score for item in judged), default=0.0), len(ranked)
        ranked = ranked[: max(question.top_k, RERANKED if self.reranker else 0)]
        passages = await self._passages(ranked)
        ordered, note = await self._reranked(query, ranked, passages, rerank_until)
        evidence = tuple(
            RetrievedPassage(passages[item.chunk_id], item) for item in ordered[: question.top_k]
        )
        return Retrieved(
            evidence=evidence,
            is_keyword_match=generation.language == ENGLISH and stand_together(words.text, evidence),
            best_score=best_score,
            considered=considered,
            query=query,
            wording=replace(words, vectors=vectors),
            is_underspecified=not question.context and wording.names_nothing(words.text),
            searched=described(searched) or None,
            filter_message=_filter_message(question.filters, searched),
            rerank=note,
        )

    async def prepare(self, query: str, generation: Generation) -> Search:
        words = lexical.words(query, generation.language)
        dense = await self.embedder_of(generation).embed_query(query)
        return Search(generation, words, dense, lexical.query_weights(words, generation.lexicon))

    async def candidates(
        self, search: Search, filters: Filters = NO_FILTERS, among: Sequence[str] = ()
    ) -> list[Candidate]:
        """All hits of the index with calibrated scores, best first."""
        hits = await self.index.search(
            search.generation.generation_id, search.dense, search.terms, self.candidates_each, filters, among
        )
        return rank(hits, search, self.weights)

    async def _judged(
        self, text: str, alone: Sequence[Search], ranked: list[Candidate], searched: Filters
    ) -> list[Candidate]:
        """What the gate judges in a conversation: the question alone, because earlier ones would lift any over the threshold.
        A question that leans on the one before is judged with it, on the passages that hold a word of its own."""
        own = await self._candidates_of_all(alone, searched)
        if not wording.follows_up(text):
            return own
        if wording.names_nothing(text):
            return ranked
        named = {item.chunk_id for item in own if item.bm25 > 0}
        return [item for item in ranked if item.chunk_id in named]

    async def _candidates_of_all(self, searches: Sequence[Search], filters: Filters) -> list[Candidate]:
        """Of a passage that several searches find, the best score counts."""
        if len(searches) == 1:
            return await self.candidates(searches[0], filters)
        found: dict[str, Candidate] = {}
        for search in searches:
            for item in await self.candidates(search, filters):
                if item.chunk_id not in found or found[item.chunk_id].score < item.score:
                    found[item.chunk_id] = item
        return in_order(found.values())

    def _wording(self, text: str, generation: Generation) -> Wording:
        if generation.language != ENGLISH:
            return Wording(text)
        return wording.read(text, generation.lexicon, self._is_common)

    def _is_common(self, word: str) -> bool:
        """Whether it is one token: an embedder's vocabulary holds the common words of its language."""
        return self.embedder.count_tokens(word) == 1

    async def _widened(self, searches: Sequence[Search], filters: Filters) -> tuple[list[Candidate], Filters]:
        """Drops the narrowest filter, and the next one, until the filters match a passage."""
        while True:
            ranked = await self._candidates_of_all(searches, filters)
            if ranked or not described(filters):
                return ranked, filters
            narrowest = next(name for name in _NARROWEST_FIRST if getattr(filters, name))
            filters = replace(filters, **{narrowest: getattr(NO_FILTERS, narrowest)})

    async def _selected(self, question: Question, selected: str, generation: Generation) -> Retrieved:
        """The selected sentences only, where they occur in the book.

        The question is searched together with the selection, because "What does this mean?" means nothing without it.
        """
        query = f"{question.text}\n{selected}"
        places = await self._places(selected, generation)
        if not places:
            return Retrieved((), 0.0, 0, query, is_selection_found=False)
        search = await self.prepare(query, generation)
        ranked = await self.candidates(search, among=list(places))
        kept = ranked[: question.top_k]
        return Retrieved(
            evidence=tuple(RetrievedPassage(places[item.chunk_id], item) for item in kept),
            best_score=max((item.score for item in ranked), default=0.0),
            considered=len(ranked),
            query=query,
            searched="the selected text",
            filter_message=None if question.filters == NO_FILTERS else _FILTERS_UNUSED,
        )

    async def _places(self, selected: str, generation: Generation) -> dict[str, Passage]:
        """The passages that contain the selection, each with the selected sentences only."""
        needles = selection.needles(selected)
        places: list[selection.Located] = []
        last = "" if needles else None
        while last is not None and len(places) < selection.PLACES:
            documents = await self.library.documents_containing(generation.generation_id, needles, last)
            places += await asyncio.to_thread(_located, selected, documents)
            last = documents[-1][0].filename if documents else None
        return {passage.chunk_id: passage for place in reversed(places) for passage in place}

    async def _passages(self, candidates: Sequence[Candidate]) -> dict[str, Passage]:
        passages = await self.library.passages([item.chunk_id for item in candidates])
        if len(passages) < len(candidates):
            raise DatabaseUnavailableError(
                "The search index and the database do not match at the moment. Please try again shortly."
            )
        return passages

    async def _reranked(
        self, question: str, ranked: list[Candidate], passages: dict[str, Passage], until: float
    ) -> tuple[list[Candidate], str | None]:
        """The reranker's order and its name. If it fails or times out, the order is kept and the note gives the reason."""
        if self.reranker is None or not ranked:
            return ranked, None
        name = self.reranker.name
        try:
            async with asyncio.timeout_at(until):
                scores = await self.reranker.rerank(
                    question, [passages[item.chunk_id].text for item in ranked]
                )
        except TimeoutError:
            return ranked, f"{name}: too late"
        except RerankFailedError as failure:
            return ranked, f"{name}: {failure}"
        scored = [item._replace(rerank=score) for item, score in zip(ranked, scores, strict=True)]
        return sorted(scored, key=lambda item: -(item.rerank or 0.0)), name


def stand_together(text: str, evidence: Sequence[RetrievedPassage]) -> bool:
    """Whether one sentence, under its headings, holds all words of a search by keywords.

    Two words cannot score like a question. Of 1,190 two-word searches made of XQuAD's questions the gate alone keeps .63.
    """
    wanted = wording.keywords(text)
    return bool(wanted) and any(
        wanted
        <= set(
            lexical.words(
                f"{passage.chapter} {passage.section} {sentence.heading} {passage.sentence_text(place)}"
            )
        )
        for passage in (item.passage for item in evidence)
        for place, sentence in enumerate(passage.sentences)
    )


def is_foreign(question: str, generation: Generation, readable: frozenset[str]) -> bool:
    """Whether a question is certainly in a language that cannot be compared with the book's.

    `readable` are the embedder's languages; empty: any.
    """
    asked = languages.of_question(question)
    if not generation.is_language_known or not languages.is_other(asked, question, generation.language):
        return False
    is_read = not readable or languages.is_among(asked, question, readable)
    return needs_words(generation.embedder) or not is_read


def rank(hits: Sequence[Hit], search: Search, weights: Weights) -> list[Candidate]:
    """Calibrates and blends the scores of each hit, best first.

    The score, which the gate compares, counts the words up to the curve's end; the order counts them beyond it, because
    of two passages that both have enough of the question's words the one with more is the better.
    Equal passages keep the book's order: of overlapping ones the first is as often right as any, and a reader can see why.
    """
    calibration, lexicon = search.generation.calibration, search.generation.lexicon
    possible = lexical.possible(search.words, lexicon)
    candidates = []
    for hit in hits:
        raw, attainment = raw_scores(hit, possible, search.generation)
        similarity = interpolate(calibration.similarity, min(1.0, max(0.0, raw)))
        lexical_score = interpolate(calibration.lexical, attainment)
        score = blended(similarity, lexical_score, weights)
        rank_score = blended(similarity, extrapolate(calibration.lexical, attainment), weights)
        candidates.append(
            Candidate(
                hit.chunk_id, raw, similarity, hit.bm25, attainment, lexical_score, score, rank_score,
                hit.position,
            )
        )  # fmt: skip
    return in_order(candidates)


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The order is the same on every backend. A generation that was stored without positions keeps that of the ids."""
    return sorted(
        candidates, key=lambda item: (-round(item.rank_score, 5), item.position or 0, item.chunk_id)
    )


def _located(selected: str, documents: Sequence[Sequence[Passage]]) -> list[selection.Located]:
    """Runs in a thread: folding a document of 2 MB takes 0.2 s, which must not block other requests."""
    return [place for document in documents for place in selection.locate(selected, document)]


def _filter_message(asked: Filters, searched: Filters) -> str | None:
    if asked == searched:
        return None
    where = described(searched) or "the whole book"
    return f"No passage of the book matches {described(asked)}, so {where} was searched instead."


def described(filters: Filters) -> str:
    """ "module 3, chapter “Walking”": the filters that are set, in words."""
    parts = []
    for each in fields(filters):
        value = getattr(filters, each.name)
        if value:
            texts = (value,) if isinstance(value, str) else value
            shown = value if isinstance(value, int) else "”, “".join(texts).join("“”")
            parts.append(f"{each.name} {shown}")
    return ", ".join(parts)
