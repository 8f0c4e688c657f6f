"""Adapters of other systems' hybrid search, on passages, vectors and questions that bench/retrieval.py has prepared.

Run as `python -m bench.peers SYSTEM FOLDER`, in an environment that has the peer and none of our packages. Each peer is
set up in memory as its own documentation shows it; each gets both top 50 and the blend's weights.
"""

# The peers are not installed where the types are checked, and each is imported only where it is measured.
# mypy: disable-error-code="import-not-found, import-untyped, misc"
# ruff: noqa: PLC0415

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

CANDIDATES = 50
WEIGHTS = (0.85, 0.15)  # meaning, words

QUERIES_S = 20.0  # the slow ones answer as many questions as fit in this time …
QUERIES_MIN = 20  # … and at least these
WARM_UP = 5

Array = np.ndarray[Any, np.dtype[np.float32]]
Search = Callable[[str], list[str]]  # the ids found, best first
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Prepared:
    """The input of every system."""

    ids: list[str]
    texts: list[str]
    vectors: Array
    questions: list[str]
    targets: list[str]  # the passage that each question was taken from
    asked: dict[str, Array]  # the vector of each question: embedding is not measured

    def vector(self, question: str) -> list[float]:
        vector: list[float] = self.asked[question].tolist()
        return vector


def main(system: str, folder: Path) -> None:
    prepared = read(folder)
    started = time.perf_counter()
    search = SYSTEMS[system](prepared)
    say(build_s=time.perf_counter() - started)
    for question in prepared.questions[:WARM_UP]:
        search(question)
    latencies_ms: list[float] = []
    found = [search(question) for question in clocked(prepared.questions, latencies_ms)]
    say(latencies_ms=latencies_ms, found_at_5=found_at_5(found, prepared))
    sys.stdin.read()  # until the bench has measured our memory


def read(folder: Path) -> Prepared:
    passages = [json.loads(line) for line in (folder / "passages.jsonl").read_text().splitlines()]
    asking = json.loads((folder / "questions.json").read_text())
    questions = [question["text"] for question in asking]
    asked = np.load(folder / "questions.npy")
    return Prepared(
        [passage["id"] for passage in passages],
        [passage["text"] for passage in passages],
        np.load(folder / "vectors.npy"),
        questions,
        [question["target"] for question in asking],
        dict(zip(questions, asked, strict=True)),
    )


def say(**figures: Any) -> None:
    """Sends a line to the bench, which skips lines of any other form."""
    print(json.dumps(figures), flush=True)


def clocked(questions: Sequence[Asked], latencies_ms: list[float]) -> Iterator[Asked]:
    """Yields each question, and times the body of the loop for it."""
    for question in questions:
        started = time.perf_counter()
        yield question
        latencies_ms.append((time.perf_counter() - started) * 1000)
        if sum(latencies_ms) > QUERIES_S * 1000 and len(latencies_ms) >= QUERIES_MIN:
            return


def found_at_5(found: Sequence[Sequence[str]], given: Prepared) -> float:
    """Recall@5 of the passage that each question was taken from, because a fast wrong answer does not count."""
    hits = [target in ids[:5] for ids, target in zip(found, given.targets, strict=False)]
    return sum(hits) / len(hits)


def bm25s(given: Prepared) -> Search:
    """The lower bound: one matrix product and one sparse sum."""
    from bm25s import BM25

    index = BM25(k1=1.5, b=0.75)
    index.index([_words(text) for text in given.texts], show_progress=False)
    return lambda question: _blended(
        given.vectors @ given.asked[question], index.get_scores(_words(question)), given.ids
    )


def rank_bm25(given: Prepared) -> Search:
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([_words(text) for text in given.texts])
    return lambda question: _blended(
        given.vectors @ given.asked[question], index.get_scores(_words(question)), given.ids
    )


def llama_index(given: Prepared) -> Search:
    from llama_index.core import VectorStoreIndex
    from llama_index.core.embeddings import MockEmbedding
    from llama_index.core.llms import MockLLM
    from llama_index.core.retrievers import QueryFusionRetriever
    from llama_index.core.retrievers.fusion_retriever import FUSION_MODES
    from llama_index.core.schema import TextNode
    from llama_index.retrievers.bm25 import BM25Retriever

    class Known(MockEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            return given.vector(query)

    nodes = [
        TextNode(id_=name, text=text, embedding=vector.tolist())
        for name, text, vector in zip(given.ids, given.texts, given.vectors, strict=True)
    ]
    embedder = Known(embed_dim=given.vectors.shape[1])
    dense = VectorStoreIndex(nodes, embed_model=embedder).as_retriever(similarity_top_k=CANDIDATES)
    fusion = QueryFusionRetriever(
        [dense, BM25Retriever.from_defaults(nodes=nodes, similarity_top_k=CANDIDATES)],
        llm=MockLLM(),  # never called; without it the framework looks for a real one
        mode=FUSION_MODES.RELATIVE_SCORE,
        retriever_weights=list(WEIGHTS),
        similarity_top_k=CANDIDATES,
        num_queries=1,
        use_async=False,
    )
    return lambda question: [hit.node_id for hit in fusion.retrieve(question)]


def langchain(given: Prepared) -> Search:
    from langchain_classic.retrievers import EnsembleRetriever
    from langchain_community.retrievers import BM25Retriever
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    class Known(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            assert len(texts) == len(given.vectors)
            vectors: list[list[float]] = given.vectors.tolist()
            return vectors

        def embed_query(self, text: str) -> list[float]:
            return given.vector(text)

    documents = [
        Document(id=name, page_content=text) for name, text in zip(given.ids, given.texts, strict=True)
    ]
    store = InMemoryVectorStore.from_documents(documents, Known())
    ensemble = EnsembleRetriever(
        retrievers=[
            store.as_retriever(search_kwargs={"k": CANDIDATES}),
            BM25Retriever.from_documents(documents, k=CANDIDATES),
        ],
        weights=list(WEIGHTS),
    )
    return lambda question: [document.id for document in ensemble.invoke(question)]


def haystack(given: Prepared) -> Search:
    from haystack import Document, Pipeline
    from haystack.components.joiners import DocumentJoiner
    from haystack.components.retrievers.in_memory import InMemoryBM25Retriever, InMemoryEmbeddingRetriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore(bm25_algorithm="BM25Okapi", embedding_similarity_function="cosine")
    store.write_documents(
        [
            Document(id=name, content=text, embedding=vector.tolist())
            for name, text, vector in zip(given.ids, given.texts, given.vectors, strict=True)
        ]
    )
    pipeline = Pipeline()
    pipeline.add_component("dense", InMemoryEmbeddingRetriever(store, top_k=CANDIDATES))
    pipeline.add_component("words", InMemoryBM25Retriever(store, top_k=CANDIDATES))
    pipeline.add_component("joiner", DocumentJoiner("reciprocal_rank_fusion", list(WEIGHTS)))
    pipeline.connect("dense", "joiner")
    pipeline.connect("words", "joiner")

    def search(question: str) -> list[str]:
        inputs = {"dense": {"query_embedding": given.vector(question)}, "words": {"query": question}}
        return [document.id for document in pipeline.run(inputs)["joiner"]["documents"]]

    return search


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _blended(cosines: Array, weights: Array, ids: list[str]) -> list[str]:
    """The union of both top lists, in the order of the blend."""
    union = np.union1d(_top(cosines), _top(weights))
    scores = WEIGHTS[0] * cosines[union] + WEIGHTS[1] * weights[union] / max(float(weights.max()), 1e-9)
    return [ids[union[place]] for place in np.argsort(-scores)]


def _top(scores: Array) -> np.ndarray[Any, np.dtype[np.intp]]:
    return np.argpartition(-scores, CANDIDATES)[:CANDIDATES]


SYSTEMS: dict[str, Callable[[Prepared], Search]] = {
    "bm25s": bm25s,
    "rank_bm25": rank_bm25,
    "llama_index": llama_index,
    "langchain": langchain,
    "haystack": haystack,
}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
