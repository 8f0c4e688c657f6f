"""The ingest pipeline: from a book's files to a published generation. Idempotent, and safe to kill at any step.

    (1) read      read/          each file that has changed to sections of sentences; a bad file is reported and skipped
    (2) split     split.py       sections to passages with stable ids
    (3) compare   registry.py    if nothing has changed, only damaged passages and a damaged index are repaired
    (4) register  registry.py    passages, documents, vocabulary: written, but not visible
    (5) embed     ports          vectors, through a cache by text
    (6) index     indexing.py    vectors and BM25 weights, durable, with a digest of all of them
    (7) calibrate self_calibration.py    what its scores mean, measured with probe questions
    (8) publish   registry.py    one atomic switch, the only change that readers see
    (9) retire    registry.py    generations that are no longer read

If a run is killed, the next one reaches the same result: readers see a change only at (8), the cache keeps all
vectors, and (9) deletes unfinished generations.

Documents and passages are in spill files and go through each step in batches: in memory, only the vocabulary and 64 bytes of
each passage grow with the book.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from audit.progress import Progress
from engine.errors import PassageDamagedError
from engine.models import Generation, Passage, Point
from engine.ports import Embedder, Index, NewId
from engine.retrieval import calibrate, lexical, selection
from engine.retrieval.library import LiveContent, shortened
from engine.words import languages, word_forms
from ingest import files, split
from ingest.indexing import IndexRepair, build, key_of, point_of, searchable
from ingest.read.document import Document, Kept, is_export
from ingest.reading_version import reading_version
from ingest.registry import CHECKED, EMBEDDED, Registry
from ingest.self_calibration import SelfCalibration
from ingest.spill import Spill
from ingest.windows import windows as windows_of

UNREAD_MAX = 0.05  # of a book's tokens: names and signs are unknown in any book
SAMPLED = 500  # sentences that are read to find the language and that share
CALIBRATED = 5000  # passages that probe questions are made of
BATCH = 4 * EMBEDDED  # passages that are made points at once: enough to keep all cores, or a vendor, busy


@dataclass(frozen=True, slots=True)
class IngestResult:
    """What an ingest did, or would do; printed by `affidavit ingest --json`."""

    book: str
    language: str
    embedder: str
    generation: str | None
    files_processed: int
    chunks_created: int
    chunks_reused: int
    chunks_removed: int
    chunks_restored: int  # unchanged in the book, but changed in the database since
    index_rebuilt: bool  # nothing had changed, but the index was damaged
    errors: list[dict[str, str]]
    warnings: list[str]
    exit_code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ingest:
    registry: Registry
    index: Index
    embedder: Embedder
    size: split.Size
    self_calibration: SelfCalibration | None  # without it the embedder's shipped curve is used
    new_id: NewId
    monotonic: Callable[[], float]
    progress: Progress
    others: Sequence[Embedder] = ()  # for books that `embedder` cannot read, the best one first

    async def run(
        self,
        paths: Sequence[Path],
        book_id: str,
        title: str,
        *,
        language: str | None = None,
        dry_run: bool = False,
    ) -> IngestResult:
        started = self.monotonic()
        async with self.registry.lock_book(book_id):
            live = await self.registry.live_content(book_id)
            with Spill[BookPage](1) as pages, Spill[Passage]() as passages:
                errors, reading = await self._read(paths, language, live, pages)  # (1)
                manuscript = await asyncio.to_thread(self._split, book_id, pages, passages, reading)  # (2)
                if not passages and not errors:
                    errors = [_without_text(path) for path in paths]
                reused, restored = await self._compare(manuscript, live, dry_run=dry_run)  # (3)
                is_new = bool(passages) and not live.is_of(manuscript.content_hash, title)
                published = None
                if is_new and not dry_run:
                    published = await self._publish(book_id, title, manuscript, reading, live)
            was_rebuilt, damage = (False, []) if is_new else await self._mend(book_id, dry_run=dry_run)
            if live.generation_id and passages and not is_new and not dry_run:
                await self.registry.note_reading(live.generation_id, self._how_read(reading.embedder.name))
            if not dry_run:
                await self._retire(book_id)  # (9)
            warnings = await self.registry.warnings(book_id)
        return IngestResult(
            book=book_id,
            language=reading.language,
            embedder=reading.embedder.name,
            generation=str(published.generation_id) if published else None,
            files_processed=len(pages),
            chunks_created=len(passages) - reused,
            chunks_reused=reused,
            chunks_removed=live.passages - reused if is_new else 0,
            chunks_restored=len(restored),
            errors=errors,
            index_rebuilt=was_rebuilt,
            warnings=[*_told(restored, dry_run=dry_run), *damage, *warnings],
            exit_code=1 if errors else 0,
            seconds=round(self.monotonic() - started, 3),
        )

    async def _read(
        self, paths: Sequence[Path], language: str | None, live: LiveContent, pages: Spill["BookPage"]
    ) -> tuple[list[dict[str, str]], "Reading"]:
        """A file that is as it was is not read: its passages are taken from the live edition. They are read as well if one of
        them is damaged, or if the book has become one for another embedder, whose passages are others."""
        known = await self._known(live)
        if known:
            with contextlib.suppress(PassageDamagedError):
                errors = await files.read_all(paths, self.progress, partial(self._take, live, pages), known)
                reading = await asyncio.to_thread(self._reading, pages, language)
                if reading.embedder.name == live.embedder:
                    return errors, reading
            pages.clear()
        errors = await files.read_all(paths, self.progress, partial(self._take, live, pages))
        return errors, await asyncio.to_thread(self._reading, pages, language)

    async def _known(self, live: LiveContent) -> files.Known | None:
        """The documents of the live edition by their files, if they would be read in the same way today."""
        is_whole = live.passages == live.passages_written
        if not live.generation_id or not is_whole or live.reading != self._how_read(live.embedder):
            return None
        by_digest: dict[str, list[Kept]] = {}
        for kept in await self.registry.kept_documents(live.generation_id):
            by_digest.setdefault(kept.document.sha256, []).append(kept)

        def known(name: str, digest: str) -> Sequence[Kept]:
            found = by_digest.get(digest, [])
            if is_export(PurePosixPath(name)):  # it has all pages of a site, under their own names
                return found
            return [kept for kept in found if kept.filename == name]

        return known

    def _how_read(self, embedder: str) -> str:
        """Of files of the same bytes, the passages are equal while this is."""
        return sha256(f"{reading_version()} {embedder} {asdict(self.size)}".encode()).hexdigest()

    async def _take(self, live: LiveContent, pages: Spill["BookPage"], found: Document | Kept) -> None:
        if isinstance(found, Document):
            await asyncio.to_thread(pages.add, BookPage(found))
            return
        assert live.generation_id
        kept = await self.registry.contents(live.generation_id, found.places.start, len(found.places))
        wanted = [(found.filename, number) for number in range(len(found.places))]
        if [(passage.filename, passage.chunk_index) for passage in kept] != wanted:
            raise PassageDamagedError(upstream=f"not in their places: {found.filename}")
        await asyncio.to_thread(pages.add, BookPage(found.document, kept))

    def _split(
        self, book_id: str, pages: Iterable["BookPage"], passages: Spill[Passage], reading: "Reading"
    ) -> "Manuscript":
        """The fingerprint is equal if and only if a new generation would equal the old one."""
        documents, kept = [], set()
        keys, fingerprint = bytearray(), reading.fingerprint(self.size)
        for page in pages:
            documents.append(replace(page.document, sections=()))
            if page.kept is not None:
                kept.add(page.document.filename)
            found = page.kept
            if found is None:
                found = split.passages(page.document, book_id, self.size, reading.embedder.count_tokens)
            for passage in found:
                passages.add(passage)
                keys += key_of(passage.chunk_id)
                fingerprint.update(f"\n{passage.chunk_id}".encode())
        return Manuscript(documents, frozenset(kept), passages, bytes(keys), fingerprint.hexdigest())

    async def _compare(
        self, manuscript: "Manuscript", live: LiveContent, *, dry_run: bool
    ) -> tuple[int, list[str]]:
        """How many passages the live edition has already; and the ids of those that were changed in the database. They are
        written again, because an unchanged id would keep what is there."""
        reused, restored = 0, []
        for some in manuscript.passages.batches(CHECKED):
            by_id = {passage.chunk_id: passage for passage in some if passage.filename not in manuscript.kept}
            reused += len(some) - len(by_id)
            if live.generation_id and by_id:
                reused += await self.registry.count_among(live.generation_id, list(by_id))
            damaged = await self.registry.damaged_of(list(by_id))
            if damaged and not dry_run:
                await self.registry.restore([by_id[name] for name in damaged])
            restored += damaged
        return reused, restored

    async def _publish(
        self, book_id: str, title: str, manuscript: "Manuscript", reading: "Reading", live: LiveContent
    ) -> Generation:
        embedder = reading.embedder
        with Spill[list[str]]() as words:
            counted = _counted(manuscript.passages, words, reading.language)
            generation = Generation(
                generation_id=self.new_id(),
                book_id=book_id,
                embedder=embedder.name,
                dimension=embedder.dimension,
                calibration=calibrate.shipped(embedder.name, embedder.dimension, embedder.curve),
                lexicon=await asyncio.to_thread(lexical.lexicon, counted),
                language=reading.language,
            )
            await self.registry.begin(
                generation, title, manuscript.documents, manuscript.passages, content_hash=manuscript.content_hash,
                reading=self._how_read(embedder.name), kept=manuscript.kept, of=live.generation_id,
            )  # (4)  # fmt: skip
            batches = self._points(generation, manuscript.passages, words, embedder)  # (5)
            built = await build(self.index, generation.generation_id, generation.dimension, batches)  # (6)
        if not built.holds(manuscript.keys):
            raise RuntimeError(
                f"The index holds {len(built)} of {len(manuscript.passages)} passages, so nothing was published: run the ingest again"
            )
        if reading.calibration:  # (7)
            measured = await reading.calibration.measure(generation, _spread(manuscript.passages))
            generation = replace(generation, calibration=measured)
        await self.registry.publish(generation, title, built.digest)  # (8)
        await self.index.announce(book_id, generation.generation_id)
        return generation

    async def _retire(self, book_id: str) -> None:
        """Deletes stale generations, even if nothing is new: the last run may have been killed."""
        for stale in await self.registry.stale_generations(book_id):
            await self.index.drop(stale)
            await self.registry.delete_generation(stale)

    async def _points(
        self,
        generation: Generation,
        passages: Spill[Passage],
        words: Spill[list[str]],
        embedder: Embedder,
    ) -> AsyncIterator[list[Point]]:
        start = 0
        for batch, counted in zip(passages.batches(BATCH), words.batches(BATCH), strict=True):
            texts = ["\n".join(windows_of(passage)) for passage in batch]
            vectors = await self.registry.embeddings(texts, embedder, embedder.embed_passages)
            yield [
                point_of(passage, position, windows, lexical.passage_weights(found, generation.lexicon))
                for position, (passage, found, windows) in enumerate(
                    zip(batch, counted, vectors, strict=True), start
                )
            ]
            start += len(batch)
            self.progress("Embedding passages", start, len(passages))

    async def _mend(self, book_id: str, *, dry_run: bool) -> tuple[bool, list[str]]:
        """Whether the index of a book that did not change was rebuilt, and what was wrong with it, for the operator."""
        repair = IndexRepair(self.registry, self.index)
        live = await self.registry.live_index(book_id)
        if live is None:
            return False, []
        damage = await (repair.examine(live) if dry_run else repair.mend(live))
        if not damage:
            return False, []
        done = "the ingest will rebuild it" if dry_run else "it was rebuilt from the database"
        return not dry_run, [f"The index of {book_id} was damaged: {damage}; {done}."]

    def _reading(self, pages: Iterable["BookPage"], language: str | None) -> "Reading":
        """The language of the book, and the first embedder that reads it."""
        step = max(1, sum(1 for _ in _texts(pages)) // SAMPLED)
        sample = "\n".join(islice(_texts(pages), 0, None, step))
        language = language or languages.of_book(sample)
        reads = (each for each in (self.embedder, *self.others) if _reads(each, language, sample))
        embedder = next(reads, self.embedder)
        calibration = self.self_calibration and self.self_calibration.of(language, embedder)
        return Reading(language, embedder, calibration)


def _texts(pages: Iterable["BookPage"]) -> Iterator[str]:
    """The sentences of the book."""
    for page in pages:
        if page.kept is not None:
            yield from split.sentences(page.kept)
        for section in page.document.sections:
            yield from (piece.text for piece in section.pieces)


def _counted(passages: Iterable[Passage], words: Spill[list[str]], language: str) -> Iterator[list[str]]:
    """The words of each passage, which are kept for its weights."""
    for passage in passages:
        found = lexical.words(searchable(passage), language)
        words.add(found)
        yield found


def _spread(passages: Spill[Passage]) -> list[Passage]:
    """All passages, or some thousand evenly spread over a large book: it is calibrated by some hundred sentences."""
    step = -(-len(passages) // CALIBRATED)
    return list(islice(passages, 0, None, step))


def _without_text(path: Path) -> dict[str, str]:
    return {"file": str(path), "error": "no text was found in it that could be ingested"}


@dataclass(frozen=True, slots=True)
class BookPage:
    """A document as it was read, or with its passages of the live edition."""

    document: Document
    kept: list[Passage] | None = None


@dataclass(frozen=True, slots=True)
class Manuscript:
    """A book as it was read and split. Its passages are in a file, because they may be more than memory holds."""

    documents: list[Document]  # without their sections
    kept: frozenset[str]  # names of those that the live edition has with all their passages
    passages: Spill[Passage]
    keys: bytes  # of the points that its index must hold
    content_hash: str


@dataclass(frozen=True, slots=True)
class Reading:
    """How a book is read."""

    language: str
    embedder: Embedder
    calibration: SelfCalibration | None

    def fingerprint(self, size: split.Size) -> Any:
        """The hash of all that shapes an edition but its passages."""
        curve = self.calibration.fingerprint() if self.calibration else str(self.embedder.curve)
        versions = [lexical.NORMALISATION, selection.FOLDING, curve, self.language, word_forms.FORMS]
        parts = [self.embedder.name, str(self.embedder.dimension), *versions, str(asdict(size))]
        return sha256("\n".join(parts).encode())


def _told(restored: Sequence[str], *, dry_run: bool) -> list[str]:
    if not restored:
        return []
    done = "the ingest will write them again" if dry_run else "they were written again"
    return [f"Passages in the database were not as they were ingested; {done}: {shortened(restored)}."]


def _reads(embedder: Embedder, language: str, sample: str) -> bool:
    knows = not embedder.languages or language in embedder.languages
    return knows and (language == languages.ENGLISH or embedder.unread(sample) <= UNREAD_MAX)
