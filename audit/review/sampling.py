"""Reads the population of a sample from the log, states it, draws from it, and compares a drawn sample with the log.

The heads are those of the vault, so that no owner of the database can offer another one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple
from uuid import UUID

from audit.anchored import AnchorSource, list_anchors, month_anchors, read
from audit.errors import NoteError, SampleError
from audit.export.sealed_rows import SealedRows
from audit.ledger.partitions import month_start, next_month, partition_name
from audit.proof.checkpoint import Checkpoint, open_note
from audit.proof.keys import PublicKey
from audit.review.sample import (
    OTHER_POPULATIONS,
    STRATA,
    Drawable,
    OtherPopulation,
    Sample,
    StatedHead,
    Statement,
    Wish,
    draw,
    first_head,
    heads_of,
    reason_of,
    seed_of,
    state,
    time_text,
    wish_of,
)

STATING = "audit sample"  # the command, as in the endpoint of its row
READ_ROWS = 10_000
OUTCOMES = ("answered", "refused")

_IS_ATTACHED = """
SELECT FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid
WHERE inhparent = 'public.audit_logs'::regclass AND c.relname = %s AND NOT inhdetachpending
"""
_RECORDS = """
SELECT l.log_id::text, l.reason, l.confidence_level, l.book_id FROM public.audit_leaves s
JOIN public.audit_logs l ON l.log_id = s.log_id AND l.timestamp >= %(month_begin)s AND l.timestamp < %(month_end)s
WHERE s.month = %(month)s AND s.leaf_index < %(size)s AND l.outcome = ANY (%(outcomes)s) AND l.source_mode IS NOT NULL
  AND (%(since)s::timestamptz IS NULL OR l.timestamp >= %(since)s) AND (%(until)s::timestamptz IS NULL OR l.timestamp < %(until)s)
ORDER BY s.leaf_index
"""
_STATED = """
SELECT l.details -> 'statement', l.reason, s.month, s.leaf_index FROM public.audit_logs l
LEFT JOIN public.audit_leaves s ON s.log_id = l.log_id
WHERE l.log_id = %s AND l.endpoint = %s AND l.outcome = 'recorded'
"""
_ORIGIN = "SELECT origin FROM public.audit_origin"


class StatedRow(NamedTuple):
    """The row that stated a population. Its details are None if they were erased, its place if it is not sealed yet."""

    statement: Statement | None
    reason: str | None
    month: date | None
    leaf_index: int | None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Works with the rights of an auditor, over all tiers. `keys` are those of the log."""

    rows: SealedRows
    vault: AnchorSource
    keys: Sequence[PublicKey]

    def state(self, wish: Wish) -> Statement:
        """The population as of the newest anchored heads; it is not on record yet."""
        ((origin,),) = self.rows.connection.execute(_ORIGIN).fetchall()
        heads = self._newest_heads(wish)
        return state(wish, str(origin), heads, self._population(wish, heads))

    def draw(self, sample_id: UUID) -> Sample | None:
        """The sample of a population that is on record. None: no anchored head has its row yet."""
        stated = self._stated(sample_id)
        if stated.statement is None or stated.reason != reason_of(stated.statement):
            raise SampleError("What this sample's row says of its population was erased or changed.")
        if stated.month is None or stated.leaf_index is None:
            return None
        head = self._first_head(stated.month, stated.leaf_index)
        if head is None:
            return None
        records = self._population(wish_of(stated.statement), heads_of(stated.statement))
        return draw(sample_id, stated.statement, stated.leaf_index, head, records)

    def others(self, sample_id: UUID) -> list[OtherPopulation]:
        """That were stated over the same days."""
        found = self.rows.connection.execute(OTHER_POPULATIONS, (sample_id,)).fetchall()
        return [OtherPopulation(*row) for row in found]

    def doubts(self, sample: Sample) -> list[str]:
        """What is not as the log and the vault say; empty when the sample is the one that they give."""
        if found := [*self._doubts_of_row(sample)]:
            return found  # what is not the log's own statement is not worth reading millions of rows for
        return [*self._doubts_of_heads(sample), *self._doubts_of_draw(sample)]

    def _doubts_of_row(self, sample: Sample) -> Iterator[str]:
        try:
            stated = self._stated(sample.sample_id)
        except SampleError as failure:
            yield str(failure)
            return
        if stated.reason != reason_of(sample.statement):
            yield "The row that stated the population states another one than the file."
        if stated.leaf_index != sample.leaf_index:
            yield "The row that stated the population is at another place of the log than the file says."
        head = None
        if stated.month is not None and stated.leaf_index is not None:
            head = self._first_head(stated.month, stated.leaf_index)
        if head is None or seed_of(head) != seed_of(sample.head):
            yield (
                "The seed is not from the first head that was anchored after the population had been stated: somebody may have"
                " chosen it."
            )
        if seed_of(sample.head) != sample.seed:
            yield "The seed is not the digest of the head in the file."

    def _doubts_of_heads(self, sample: Sample) -> Iterator[str]:
        for head in heads_of(sample.statement):
            found = self._anchored(head.month, head.size)
            if found is None or found.root != head.root:
                yield f"The vault has no head of {head.month:%Y-%m} with {head.size} leaves and the root that was stated."

    def _doubts_of_draw(self, sample: Sample) -> Iterator[str]:
        records = self._population(wish_of(sample.statement), heads_of(sample.statement))
        try:
            again = draw(sample.sample_id, sample.statement, sample.leaf_index, sample.head, records)
        except SampleError as failure:
            yield str(failure)
            return
        if again.records != sample.records:
            yield "Drawn again, the sample has other records."

    def _stated(self, sample_id: UUID) -> StatedRow:
        found = self.rows.connection.execute(_STATED, (sample_id, f"affidavit {STATING}")).fetchone()
        if found is None:
            raise SampleError(
                f"The log has no sample {sample_id}. Check the ID: the console lists all under Reviews. If its month is archived,"
                " bring it back with `affidavit audit restore`."
            )
        return StatedRow(*found)

    def _newest_heads(self, wish: Wish) -> list[StatedHead]:
        found = []
        for month, anchors in sorted(list_anchors(self.vault).items()):
            begins_late = wish.until is not None and month_start(month) >= wish.until
            ends_early = wish.since is not None and month_start(next_month(month)) <= wish.since
            sizes = anchors.chain().sizes
            if sizes and not begins_late and not ends_early:
                head = self._anchored(month, sizes[-1])
                if head is None:
                    raise SampleError(
                        f"The newest anchored head of {month:%Y-%m} is damaged. Run `affidavit audit verify`."
                    )
                found.append(StatedHead(month, head.size, head.root))
        return found

    def _first_head(self, month: date, leaf_index: int) -> str | None:
        """The note of the first anchored head that has this leaf."""
        chain = month_anchors(self.vault, month).chain()
        size = first_head(leaf_index, chain.sizes)
        if size is None:
            return None
        if self._anchored(month, size) is None:
            raise SampleError(
                f"The head of {month:%Y-%m} that gives the seed is damaged. Run `affidavit audit verify`."
            )
        return read(self.vault, chain.key(size)).decode()

    def _anchored(self, month: date, size: int) -> Checkpoint | None:
        """None unless the vault has it, and one of the keys signed it."""
        chain = month_anchors(self.vault, month).chain()
        if size not in chain.heads:
            return None
        try:
            head = open_note(read(self.vault, chain.key(size)).decode(errors="replace"), self.keys)
        except NoteError:
            return None
        return head if (head.month, head.size) == (month, size) else None

    def _population(self, wish: Wish, heads: Sequence[StatedHead]) -> Iterator[Drawable]:
        for month, size, _ in heads:
            name = (partition_name(month),)
            is_attached = self.rows.connection.execute(_IS_ATTACHED, name).fetchone() is not None
            yield from self._attached(wish, month, size) if is_attached else self._archived(wish, month, size)

    def _attached(self, wish: Wish, month: date, size: int) -> Iterator[Drawable]:
        values = {
            "month": month, "size": size, "outcomes": list(OUTCOMES), "since": wish.since, "until": wish.until,
            "month_begin": month_start(month), "month_end": month_start(next_month(month)),
        }  # fmt: skip
        at = [[*STRATA].index(name) for name in wish.strata]
        connection = self.rows.connection
        with connection.transaction(), connection.cursor("population") as cursor:
            cursor.itersize = READ_ROWS
            for log_id, *columns in cursor.execute(_RECORDS, values):
                yield Drawable(log_id, tuple([columns[place] for place in at]))

    def _archived(self, wish: Wish, month: date, size: int) -> Iterator[Drawable]:
        since, until = (time_text(moment) for moment in (wish.since, wish.until))
        for batch in self.rows.between(month, 0, size):
            for sealed in batch:
                row = sealed.row
                is_question = row.get("outcome") in OUTCOMES and "source_mode" in row
                if (
                    is_question
                    and (not since or row["timestamp"] >= since)
                    and (not until or row["timestamp"] < until)
                ):
                    yield Drawable(row["log_id"], tuple(row.get(STRATA[name]) for name in wish.strata))
