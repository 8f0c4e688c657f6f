"""Continues the live edition of a large book: what did not change is not read, split, counted or written again.

The next edition then takes over what its points depend on beside their passages: the ids of words, the average length and the
places of documents. All three are stored with it, so it can be checked and rebuilt like any other. It is made anew if

    - the book is small: then that takes seconds, and the edition depends on nothing but the book
    - anything else that shapes an edition is another: readers, sizes, probes, the embedder, the language
    - more than CHANGED_MAX of its passages have come or gone since it was last made anew
    - the average length would be off by more than DRIFT_MAX, and so might a weight (`lexical.drift`)
    - documents are in another order, or there is no room between them
    - the database does not vouch for a passage that did not change
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.models import Generation, Lexicon, Passage
from engine.retrieval import lexical
from engine.retrieval.library import LiveContent
from ingest.indexing import key_of, searchable
from ingest.places import Placed, placed, places
from ingest.read.document import Document, Kept
from ingest.registry import Registry

CONTINUED_MIN = 5_000  # passages
CHANGED_MAX = 0.1
DRIFT_MAX = 0.01
READ = 1_000  # passages at once


@dataclass(frozen=True, slots=True)
class Changes:
    """The documents of a book in order, with the numbers of their passages; and which of them are as they were."""

    documents: Sequence[tuple[Document, int]]
    kept: Mapping[str, Kept]
    come: Iterable[Passage]  # of all others
    words: Iterable[Sequence[str]]  # of these


@dataclass(frozen=True, slots=True)
class Continued:
    """An edition as the continuation of the live one."""

    index_digest: str  # of what the index holds of the live one
    documents: list[Placed]
    gone: list[range]  # positions in the live one
    lexicon: Lexicon
    content_hash: str
    keys: bytes  # of the points that its index must hold

    @property
    def passages(self) -> int:
        return sum(len(item.positions) for item in self.documents)

    @property
    def kept(self) -> int:
        return sum(len(item.positions) for item in self.documents if item.kept is not None)


async def continued(
    registry: Registry, of: Generation, live: LiveContent, changes: Changes, fingerprint: Any
) -> Continued | None:
    """None: make it anew. `fingerprint` is the hash of all that shapes an edition but its passages."""
    stored = await registry.kept_documents(of.generation_id)
    index = await registry.live_index(of.book_id)
    gone = [item.positions for item in stored if item.filename not in changes.kept]
    found = places(
        [count for _, count in changes.documents],
        [
            changes.kept[item.filename].place if item.filename in changes.kept else None
            for item, _ in changes.documents
        ],
    )
    if found is None or index is None or index.digest is None:
        return None
    if not await registry.are_vouched(of.generation_id, list(changes.kept.values())):
        return None
    lexicon = await _lexicon(registry, of, gone, changes.words)
    if lexicon is None:
        return None
    ids = np.array(await registry.passage_ids(of.generation_id), "S64")
    if content_hash(fingerprint.copy(), ids.tolist()) != live.content_hash:
        return None
    kept = {name: item.positions for name, item in changes.kept.items()}
    documents = placed(changes.documents, kept, found)
    wanted = list(_ids(documents, ids, changes.come))
    return Continued(
        index.digest, documents, gone, lexicon, content_hash(fingerprint, wanted),
        b"".join(key_of(name.decode()) for name in wanted),
    )  # fmt: skip


def content_hash(fingerprint: Any, chunk_ids: Iterable[bytes]) -> str:
    """Equal if and only if a new generation would equal the old one."""
    for chunk_id in chunk_ids:
        fingerprint.update(b"\n" + chunk_id)
    return str(fingerprint.hexdigest())


async def _lexicon(
    registry: Registry, of: Generation, gone: Sequence[range], come: Iterable[Sequence[str]]
) -> Lexicon | None:
    """None if it is too far from what the other passages were weighed with."""
    share = CHANGED_MAX * of.lexicon.passages
    if of.lexicon.changed + sum(map(len, gone)) > share:
        return None
    leaving = [
        lexical.words(searchable(passage), of.language)
        for positions in gone
        for start in range(positions.start, positions.stop, READ)
        for passage in await registry.contents(of.generation_id, start, min(READ, positions.stop - start))
    ]
    try:
        lexicon = lexical.continued(of.lexicon, leaving, come)
    except ValueError:  # of an edition from before its numbers were stored
        return None
    return lexicon if lexicon.changed <= share and lexical.drift(lexicon) <= DRIFT_MAX else None


def _ids(documents: Sequence[Placed], ids: Any, come: Iterable[Passage]) -> Iterator[bytes]:
    new = iter(come)
    for item in documents:
        if item.kept is not None:
            yield from ids[item.kept.start : item.kept.stop].tolist()
        else:
            for _ in item.positions:
                yield next(new).chunk_id.encode()
