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
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from audit.progress import Progress
from engine.errors import IndexDamagedError, PassageDamagedError
from engine.models import Generation, Lexicon, Passage, Point
from engine.ports import Embedder, Index, NewId
from engine.retrieval import calibrate, lexical, selection
from engine.retrieval.library import LiveContent, shortened
from engine.words import languages, word_forms
from ingest import continuing, files, split
from ingest.indexing import (
    IndexContent,
    IndexRepair,
    NotRebuildableError,
    build,
    extend,
    key_of,
    point_of,
    searchable,
    stored_points,
)
from ingest.places import Placed, placed
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
class IngestOrder:
    """What an ingest was asked for, and the edition that there is."""

    paths: Sequence[Path]
    book_id: str
    title: str
    language: str | None
    live: LiveContent
    dry_run: bool


@dataclass(frozen=True, slots=True)
class IngestedEdition:
    """An edition, published or only compared with the live one."""

    reading: "Reading"
    errors: list[dict[str, str]]
    files: int
    passages: int
    reused: int
    restored: list[str]
    published: Generation | None
    is_new: bool


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
            order = IngestOrder(paths, book_id, title, language, live, dry_run)
            made = await self._continued_if_whole(order) or await self._made(order)
            was_rebuilt, damage = (False, []) if made.is_new else await self._mend(book_id, dry_run=dry_run)
            if live.generation_id and made.passages and not made.is_new and not dry_run:
                await self.registry.note_reading(
                    live.generation_id, self._how_read(made.reading.embedder.name)
                )
            if not dry_run:
                await self._retire(book_id)  # (9)
            warnings = await self.registry.warnings(book_id)
        return IngestResult(
            book=book_id,
            language=made.reading.language,
            embedder=made.reading.embedder.name,
            generation=str(made.published.generation_id) if made.published else None,
            files_processed=made.files,
            chunks_created=made.passages - made.reused,
            chunks_reused=made.reused,
            chunks_removed=live.passages - made.reused if made.is_new else 0,
            chunks_restored=len(made.restored),
            errors=made.errors,
            index_rebuilt=was_rebuilt,
            warnings=[*_told(made.restored, dry_run=dry_run), *damage, *warnings],
            exit_code=1 if made.errors else 0,
            seconds=round(self.monotonic() - started, 3),
        )

    async def _made(self, order: "IngestOrder") -> "IngestedEdition":
        """An edition that depends on nothing but its book and the settings."""
        live = order.live
        with Spill[BookPage](1) as pages, Spill[Passage]() as passages:
            errors, reading = await self._read(order.paths, order.language, live, pages)  # (1)
            manuscript = await asyncio.to_thread(self._split, order.book_id, pages, passages, reading)  # (2)
            if not passages and not errors:
                errors = [_without_text(path) for path in order.paths]
            reused, restored = await self._compare(
                passages, manuscript.kept, live, dry_run=order.dry_run
            )  # (3)
            is_new = bool(passages) and not live.is_of(manuscript.content_hash, order.title)
            published = None
            if is_new and not order.dry_run:
                published = await self._publish(order, manuscript, reading)
        return IngestedEdition(
            reading, errors, len(pages), len(passages), reused, restored, published, is_new=is_new
        )

    async def _continued_if_whole(self, order: "IngestOrder") -> "IngestedEdition | None":
        with contextlib.suppress(PassageDamagedError):
            return await self._continued(order)
        return None

    async def _continued(self, order: "IngestOrder") -> "IngestedEdition | None":
        """An edition of a large book that takes over from the live one what did not change (continuing.py)."""
        live = order.live
        known = await self._known(live) if live.passages >= continuing.CONTINUED_MIN else None
        of = await self.registry.live(order.book_id) if known else None
        reading = await self._as_before(of, order) if of else None
        if known is None or of is None or reading is None:
            return None
        with Spill[Document | Kept](1) as pages, Spill[Passage]() as come, Spill[list[str]]() as words:
            errors = await files.read_all(order.paths, self.progress, partial(_noted, pages), known)  # (1)
            changes = await asyncio.to_thread(
                self._changes, order.book_id, pages, come, words, reading
            )  # (2)
            found = await continuing.continued(
                self.registry, of, live, changes, reading.fingerprint(self.size)
            )
            if found is None:
                return None
            reused, restored = await self._compare(come, frozenset(), live, dry_run=order.dry_run)  # (3)
            reused += found.kept
            is_new = not live.is_of(found.content_hash, order.title)
            published = None
            if is_new and not order.dry_run:
                published = await self._publish_continued(order, of, found, come, words, reading)
                if published is None:
                    return None
        return IngestedEdition(
            reading, errors, len(pages), found.passages, reused, restored, published, is_new=is_new
        )

    async def _as_before(self, of: Generation, order: "IngestOrder") -> "Reading | None":
        """How the live edition was read, if this is how it would be read today."""
        passages = await self.registry.spread(of.generation_id, max(1, order.live.passages // SAMPLED))
        sample = "\n".join(passage.sentence_text(0) for passage in passages)
        reading = self._reading_of(sample, order.language)
        is_as_before = (reading.language, reading.embedder.name) == (of.language, of.embedder)
        return reading if is_as_before else None

    def _changes(
        self, book_id: str, pages: Iterable[Document | Kept], come: Spill[Passage], words: Spill[list[str]],
        reading: "Reading",
    ) -> continuing.Changes:  # fmt: skip
        documents, kept = [], {}
        for page in pages:
            if isinstance(page, Kept):
                kept[page.filename] = page
                documents.append((page.document, len(page.positions)))
                continue
            found = split.passages(page, book_id, self.size, reading.embedder.count_tokens)
            documents.append((replace(page, sections=()), len(found)))
            for passage in found:
                come.add(passage)
        deque(_counted(come, words, reading.language), maxlen=0)
        return continuing.Changes(documents, kept, come, words)

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
        kept = await self.registry.contents(live.generation_id, found.positions.start, len(found.positions))
        wanted = [(found.filename, number) for number in range(len(found.positions))]
        if [(passage.filename, passage.chunk_index) for passage in kept] != wanted:
            raise PassageDamagedError(upstream=f"not in their places: {found.filename}")
        await asyncio.to_thread(pages.add, BookPage(found.document, kept, found.positions))

    def _split(
        self, book_id: str, pages: Iterable["BookPage"], passages: Spill[Passage], reading: "Reading"
    ) -> "Manuscript":
        """The fingerprint is equal if and only if a new generation would equal the old one."""
        documents, kept = [], dict[str, range]()
        keys, fingerprint = bytearray(), reading.fingerprint(self.size)
        for page in pages:
            found = page.kept
            if found is None:
                found = split.passages(page.document, book_id, self.size, reading.embedder.count_tokens)
            else:
                kept[page.document.filename] = page.positions
            documents.append((replace(page.document, sections=()), len(found)))
            for passage in found:
                passages.add(passage)
                keys += key_of(passage.chunk_id)
                fingerprint.update(f"\n{passage.chunk_id}".encode())
        return Manuscript(placed(documents, kept), passages, bytes(keys), fingerprint.hexdigest())

    async def _compare(
        self, passages: Spill[Passage], kept: frozenset[str], live: LiveContent, *, dry_run: bool
    ) -> tuple[int, list[str]]:
        """How many passages the live edition has already; and the ids of those that were changed in the database. They are
        written again, because an unchanged id would keep what is there."""
        reused, restored = 0, []
        for some in passages.batches(CHECKED):
            by_id = {passage.chunk_id: passage for passage in some if passage.filename not in kept}
            reused += len(some) - len(by_id)
            if live.generation_id and by_id:
                reused += await self.registry.count_among(live.generation_id, list(by_id))
            damaged = await self.registry.damaged_of(list(by_id))
            if damaged and not dry_run:
                await self.registry.restore([by_id[name] for name in damaged])
            restored += damaged
        return reused, restored

    async def _publish(
        self, order: "IngestOrder", manuscript: "Manuscript", reading: "Reading"
    ) -> Generation:
        with Spill[list[str]]() as words:
            counted = _counted(manuscript.passages, words, reading.language)
            lexicon = await asyncio.to_thread(lexical.lexicon, counted)
            generation = self._generation(order.book_id, reading, lexicon)
            kept = manuscript.kept
            await self.registry.begin(
                generation, order.title, manuscript.documents,
                (passage for passage in manuscript.passages if passage.filename not in kept),
                content_hash=manuscript.content_hash, reading=self._how_read(reading.embedder.name),
                of=order.live.generation_id,
            )  # (4)  # fmt: skip
            batches = self._points(
                generation, manuscript.documents, manuscript.passages, words, reading.embedder
            )  # (5)
            built = await build(self.index, generation.generation_id, generation.dimension, batches)  # (6)
        sample = _spread(manuscript.passages) if reading.calibration else []
        return await self._finish(generation, order.title, reading, built, manuscript.keys, sample)

    async def _publish_continued(
        self, order: "IngestOrder", of: Generation, found: continuing.Continued,
        come: Spill[Passage], words: Spill[list[str]], reading: "Reading",
    ) -> Generation | None:  # fmt: skip
        """None if the index of the live edition is not what it was, or the database lacks some of its vectors."""
        generation = self._generation(order.book_id, reading, found.lexicon)
        await self.registry.begin(
            generation, order.title, found.documents, come, content_hash=found.content_hash,
            reading=self._how_read(reading.embedder.name), of=of.generation_id,
        )  # (4)  # fmt: skip
        gone = stored_points(self.registry, of, found.gone)
        points = self._points(generation, found.documents, come, words, reading.embedder)  # (5)
        try:
            async with self.registry.lock_index(of.generation_id):
                built = await extend(
                    self.index, generation, of.generation_id, found.index_digest, gone, points
                )  # (6)
        except (IndexDamagedError, NotRebuildableError):
            await self.index.drop(generation.generation_id)
            await self.registry.delete_generation(generation.generation_id)
            return None
        step = -(-generation.lexicon.passages // CALIBRATED)
        sample = await self.registry.spread(generation.generation_id, step) if reading.calibration else []
        return await self._finish(generation, order.title, reading, built, found.keys, sample)

    def _generation(self, book_id: str, reading: "Reading", lexicon: Lexicon) -> Generation:
        embedder = reading.embedder
        return Generation(
            generation_id=self.new_id(),
            book_id=book_id,
            embedder=embedder.name,
            dimension=embedder.dimension,
            calibration=calibrate.shipped(embedder.name, embedder.dimension, embedder.curve),
            lexicon=lexicon,
            language=reading.language,
        )

    async def _finish(
        self, generation: Generation, title: str, reading: "Reading", built: IndexContent, keys: bytes,
        sample: Sequence[Passage],
    ) -> Generation:  # fmt: skip
        if not built.holds(keys):
            raise RuntimeError(
                f"The index holds {len(built)} of {generation.lexicon.passages} passages, so nothing was published: run the ingest again"
            )
        if reading.calibration:  # (7)
            measured = await reading.calibration.measure(generation, sample)
            generation = replace(generation, calibration=measured)
        await self.registry.publish(generation, title, built.digest)  # (8)
        await self.index.announce(generation.book_id, generation.generation_id)
        return generation

    async def _retire(self, book_id: str) -> None:
        """Deletes stale generations, even if nothing is new: the last run may have been killed."""
        for stale in await self.registry.stale_generations(book_id):
            await self.index.drop(stale)
            await self.registry.delete_generation(stale)

    async def _points(
        self,
        generation: Generation,
        documents: Iterable[Placed],
        passages: Spill[Passage],
        words: Spill[list[str]],
        embedder: Embedder,
    ) -> AsyncIterator[list[Point]]:
        places = {item.document.filename: item.place for item in documents}
        done = 0
        for batch, counted in zip(passages.batches(BATCH), words.batches(BATCH), strict=True):
            texts = ["\n".join(windows_of(passage)) for passage in batch]
            vectors = await self.registry.embeddings(texts, embedder, embedder.embed_passages)
            yield [
                point_of(
                    passage, places[passage.filename] + passage.chunk_index, windows,
                    lexical.passage_weights(found, generation.lexicon),
                )
                for passage, found, windows in zip(batch, counted, vectors, strict=True)
            ]  # fmt: skip
            done += len(batch)
            self.progress("Embedding passages", done, len(passages))

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
        return self._reading_of("\n".join(islice(_texts(pages), 0, None, step)), language)

    def _reading_of(self, sample: str, language: str | None) -> "Reading":
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


async def _noted(pages: Spill[Document | Kept], found: Document | Kept) -> None:
    await asyncio.to_thread(pages.add, found)


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
    positions: range = range(0)  # in the live edition


@dataclass(frozen=True, slots=True)
class Manuscript:
    """A book as it was read and split. Its passages are in a file, because they may be more than memory holds."""

    documents: list[Placed]
    passages: Spill[Passage]
    keys: bytes  # of the points that its index must hold
    content_hash: str

    @property
    def kept(self) -> frozenset[str]:
        """Names of the documents that the live edition has with all their passages."""
        return frozenset(item.document.filename for item in self.documents if item.kept is not None)


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
