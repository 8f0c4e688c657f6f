"""A book from its files to a published generation, from top to bottom.

(1) read      read/          each file to sections of sentences; a bad file is named and left out
(2) split     split.py       sections to passages with stable ids
(3) compare                  nothing changed: nothing to do
(4) register  registry.py    passages, documents, vocabulary: written, not visible
(5) embed     ports          vectors and BM25 weights to the index, durable before …
(6) publish   registry.py    … the one switch that readers see
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

from engine import lexical
from engine.models import Calibration, Generation, Lexicon, Passage, Point
from engine.ports import Embedder, Index, NewId
from ingest import split
from ingest.read import READERS, UnreadableError, read
from ingest.read.document import Document
from ingest.registry import Registry

BATCH = 64  # passages that go to the index at once: a few megabytes

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did; printed by `affidavit ingest --json`."""

    book: str
    generation: str | None
    files_processed: int
    chunks_created: int
    chunks_reused: int
    chunks_removed: int
    errors: list[dict[str, str]]
    exit_code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ingest:
    """The parts that a book passes through."""

    registry: Registry
    index: Index
    embedder: Embedder
    size: split.Size
    calibration: Calibration
    new_id: NewId
    monotonic: Callable[[], float]
    progress: Progress

    async def run(self, paths: Sequence[Path], book_id: str, title: str) -> IngestResult:
        started = self.monotonic()
        documents, errors = self._read(paths)  # (1)
        passages = [
            passage
            for document in documents
            for passage in split.passages(document, book_id, self.size, self.embedder.count_tokens)  # (2)
        ]
        if not passages:
            errors.append({"file": "", "error": "no text was found that could be ingested"})
        content_hash = self._content_hash(passages)
        live_hash, live_passages = await self.registry.live_content(book_id)  # (3)
        new = {passage.chunk_id for passage in passages}
        published = None
        if passages and content_hash != live_hash:
            published = await self._publish(book_id, title, documents, passages, content_hash)
        return IngestResult(
            book=book_id,
            generation=str(published.generation_id) if published else None,
            files_processed=len(documents),
            chunks_created=len(new - live_passages),
            chunks_reused=len(new & live_passages),
            chunks_removed=len(live_passages - new) if published else 0,
            errors=errors,
            exit_code=1 if errors else 0,
            seconds=round(self.monotonic() - started, 3),
        )

    async def _publish(
        self,
        book_id: str,
        title: str,
        documents: Sequence[Document],
        passages: Sequence[Passage],
        content_hash: str,
    ) -> Generation:
        words = [lexical.words(searchable(passage)) for passage in passages]
        generation = Generation(
            generation_id=self.new_id(),
            book_id=book_id,
            embedder=self.embedder.name,
            dimension=self.embedder.dimension,
            calibration=self.calibration,
            lexicon=lexical.lexicon(words),
        )
        await self.registry.begin(generation, title, documents, passages, content_hash=content_hash)  # (4)
        await self._embed(generation, passages, words)  # (5)
        await self.registry.publish(generation)  # (6)
        return generation

    async def _embed(
        self, generation: Generation, passages: Sequence[Passage], words: Sequence[Sequence[str]]
    ) -> None:
        await self.index.create(generation.generation_id, generation.dimension)
        batch: list[Point] = []
        for number, (passage, counted) in enumerate(zip(passages, words, strict=True), start=1):
            batch.append(await self._point(passage, counted, generation.lexicon))
            if len(batch) == BATCH or number == len(passages):
                await self.index.upsert(generation.generation_id, batch)
                batch = []
            self.progress("Embedding passages", number, len(passages))
        held = await self.index.seal(generation.generation_id)
        if held != len({passage.chunk_id for passage in passages}):
            raise RuntimeError(f"The index holds {held} of {len(passages)} passages; nothing was published")

    async def _point(self, passage: Passage, words: Sequence[str], lexicon: Lexicon) -> Point:
        payload = {name: getattr(passage, name) for name in ("chapter", "section", "module", "difficulty")}
        return Point(
            chunk_id=passage.chunk_id,
            windows=await self.embedder.embed_passage(searchable(passage)),
            terms=lexical.passage_weights(words, lexicon),
            payload=payload | {"tags": list(passage.tags)},
        )

    def _read(self, paths: Sequence[Path]) -> tuple[list[Document], list[dict[str, str]]]:
        documents, errors = [], []
        for number, (root, path) in enumerate(files := list(_files(paths)), start=1):
            self.progress("Reading files", number, len(files))
            name = PurePosixPath(path.relative_to(root).as_posix())
            try:
                documents.append(read(path.read_bytes(), name))
            except (UnreadableError, OSError) as wrong:
                errors.append({"file": name.as_posix(), "error": str(wrong)})
        return documents, errors

    def _content_hash(self, passages: Sequence[Passage]) -> str:
        """Equal if and only if a new generation would be the same as the old one."""
        parts = [self.embedder.name, str(self.calibration), str(asdict(self.size))]
        return sha256("\n".join([*parts, *(passage.chunk_id for passage in passages)]).encode()).hexdigest()


def searchable(passage: Passage) -> str:
    """What is searched of a passage: its headings belong to it, though they are not quoted."""
    headings = dict.fromkeys(
        [passage.chapter, passage.section, *(item.heading for item in passage.sentences)]
    )
    return f"{'. '.join(headings)}.\n{passage.text}"


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Each readable file with the folder that its name is relative to, in an order that does not change."""
    for given in paths:
        if given.is_file():
            yield given.parent, given
            continue
        for folder, folders, names in os.walk(given):
            folders.sort()
            for name in sorted(names):
                if Path(name).suffix.lower() in READERS and not name.startswith((".", "_")):
                    yield given, Path(folder, name)
