"""Retrieval metrics: which passages hit which labelled targets, and the nDCG of a ranking.

A question's *targets* are its relevant documents. If documents are long, a document says too little about the place, and
the labelled spans are the targets instead. A passage *hits* a document that it was cut from, and a span that it contains
as a whole. In the metrics, `hits` has the targets that are hit at each rank.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from engine.evaluation.labelled_set import LabelledSet, Query
from engine.models import Excerpt, Passage

RANKED = 10  # ranks that the metrics look at, and the most passages that a request may ask for
RECALLED = 5
LONG_DOCUMENT_PASSAGES = 2.0  # from this average on, a document is too long to be a place


class Extent(NamedTuple):
    """A range of a document, counted in letters, because reading a file changes white space only."""

    document: str
    start: int
    end: int

    def holds(self, other: "Extent") -> bool:
        return self.document == other.document and self.start <= other.start and other.end <= self.end

    def overlaps(self, other: "Extent") -> bool:
        return self.document == other.document and self.start < other.end and other.start < self.end


Target = str | Extent  # a document, or a span


class Marking:
    """Matches passages and excerpts with targets."""

    def __init__(self, labelled: LabelledSet, passages: Sequence[Passage]) -> None:
        self._letters_before = {name: _letters_before(item.text) for name, item in labelled.documents.items()}
        self._passages = {passage.chunk_id: passage for passage in passages}
        self._places = _places(passages)
        self._of_document = defaultdict[str, list[Extent]](list)
        for place in self._places.values():
            self._of_document[place.document].append(place)
        has_spans = any(query.spans for query in labelled.queries.values())
        self.by_span = has_spans and len(passages) >= LONG_DOCUMENT_PASSAGES * len(labelled.documents)
        self._relevant = labelled.relevant

    def targets(self, query: Query) -> list[Target]:
        if not query.answerable:
            return []
        spans: list[Target] = list(self._spans(query))
        return spans if self.by_span and spans else sorted(self._relevant[query.name])

    def unreachable(self, query: Query) -> int:
        """The number of targets that no passage contains as a whole: a border cuts them, or reading lost them."""
        targets = self.targets(query)
        return len(targets) - len(set[int]().union(*self._reachable(targets)))

    def ranks(self, query: Query, chunk_ids: Sequence[str]) -> dict[str, float]:
        targets = self.targets(query)
        if not targets:
            return {}
        hits = [_hit(self._places[name], targets) for name in chunk_ids[:RANKED]]
        return {
            "recall@5": recall(hits[:RECALLED], len(targets)),
            "mrr@10": reciprocal_rank(hits),
            "ndcg@10": ndcg(hits, self._reachable(targets)),
        }

    def cited(self, query: Query, excerpts: Sequence[Excerpt]) -> tuple[float, float] | None:
        spans = self._spans(query)
        if not spans or not excerpts:
            return None
        places = [self._excerpt(item) for item in excerpts]
        hit = any(place.overlaps(span) for place in places for span in spans)
        return float(hit), overlap(places, spans)

    def _reachable(self, targets: Sequence[Target]) -> list[set[int]]:
        documents = {target if isinstance(target, str) else target.document for target in targets}
        places = [place for document in sorted(documents) for place in self._of_document[document]]
        return [hit for place in places if (hit := _hit(place, targets))]

    def _spans(self, query: Query) -> list[Extent]:
        spans = []
        for span in query.spans:
            before = self._letters_before[span.doc]
            spans.append(Extent(span.doc, before[span.start], before[span.end]))
        return list(dict.fromkeys(spans))

    def _excerpt(self, excerpt: Excerpt) -> Extent:
        before = _letters_before(self._passages[excerpt.chunk_id].text)
        place = self._places[excerpt.chunk_id]
        return Extent(place.document, place.start + before[excerpt.start], place.start + before[excerpt.end])


def _places(passages: Sequence[Passage]) -> dict[str, Extent]:
    """Places each passage by counting letters, not by a search, because a text may repeat. Sentences are numbered in order."""
    sentences: dict[str, dict[int, int]] = defaultdict(dict)
    for passage in passages:
        before = _letters_before(passage.text)
        for number, sentence in enumerate(passage.sentences, start=passage.start_sentence):
            sentences[passage.filename][number] = before[sentence.end] - before[sentence.start]
    starts = {
        name: [0, *accumulate(counted[number] for number in sorted(counted))]
        for name, counted in sentences.items()
    }
    places = {}
    for passage in passages:
        of_file = starts[passage.filename]
        start, end = of_file[passage.start_sentence], of_file[passage.end_sentence + 1]
        places[passage.chunk_id] = Extent(passage.filename, start, end)
    return places


def _letters_before(text: str) -> list[int]:
    """Prefix sums: the number of letters before each offset in a text, and before its end."""
    return [0, *accumulate(not character.isspace() for character in text)]


def _hit(place: Extent, targets: Sequence[Target]) -> set[int]:
    return {
        number
        for number, target in enumerate(targets)
        if (place.document == target if isinstance(target, str) else place.holds(target))
    }


def recall(hits: Sequence[set[int]], targets: int) -> float:
    return len(set[int]().union(*hits)) / targets


def reciprocal_rank(hits: Sequence[set[int]]) -> float:
    return next((1 / rank for rank, here in enumerate(hits, start=1) if here), 0.0)


def ndcg(hits: Sequence[set[int]], passages: Iterable[set[int]]) -> float:
    """nDCG relative to the best order that the book's passages allow; 0 if none of them hits a target."""
    best = _gain(_best_order(list(passages)))
    return _gain(hits) / best if best else 0.0


def _gain(hits: Sequence[set[int]]) -> float:
    seen = set[int]()
    gain = 0.0
    for rank, here in enumerate(hits, start=1):
        gain += len(here - seen) / math.log2(1 + rank)
        seen |= here
    return gain


def _best_order(passages: Sequence[set[int]]) -> list[set[int]]:
    """Greedy: each rank gets the passage that adds the most targets."""
    seen = set[int]()
    order = []
    for _ in range(RANKED):
        best = max(passages, key=lambda here: len(here - seen), default=set[int]())
        if not best - seen:
            break
        order.append(best)
        seen |= best
    return order


def overlap(places: Sequence[Extent], spans: Sequence[Extent]) -> float:
    """The share of the spans' letters that the places cover; a letter counts once."""
    wanted = {(span.document, letter) for span in spans for letter in range(span.start, span.end)}
    covered = {(place.document, letter) for place in places for letter in range(place.start, place.end)}
    return len(wanted & covered) / len(wanted)
