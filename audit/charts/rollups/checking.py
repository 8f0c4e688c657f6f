"""Recomputes rollups from the sealed rows, and names each difference.

It believes the rows that stand behind the leaves: `audit verify` proves those. Erased records are told apart from differences
in chapters by their number, which the rollup names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from audit.charts.rollups import stored
from audit.charts.rollups.rollup import (
    VERSION,
    Counts,
    Rollup,
    counts_of,
    differences,
    digest_of,
    without_chapters,
)
from audit.charts.rollups.sealed_facts import ArchivedRows, SealedFacts
from audit.errors import AuditError, RollupError
from audit.progress import Progress
from audit.proof.checkpoint import open_note
from audit.proof.keys import PublicKey
from audit.proof.merkle import Frontier

_NOTE = "SELECT note FROM public.audit_checkpoints WHERE month = %s AND tree_size = %s"
_HASHES = """
SELECT leaf_hash FROM public.audit_leaves WHERE month = %s AND leaf_index >= %s AND leaf_index < %s ORDER BY leaf_index
"""
_STRAY = """
SELECT count(*) FROM public.audit_rollup_counts c
WHERE NOT EXISTS (SELECT FROM public.audit_rollups r WHERE r.month = c.month AND r.first_leaf = c.first_leaf)
"""
_SUMMED = """
SELECT month, first_leaf, day, measure, outcome, value, bucket, sum(count)::bigint, sum(total)::bigint, min(first_at), max(last_at)
FROM public.audit_rollup_counts GROUP BY 1, 2, 3, 4, 5, 6, 7
"""
_UNEQUAL = f"""
SELECT count(DISTINCT (month, first_leaf, day, measure, outcome, value, bucket)) FROM (
    ({_SUMMED} EXCEPT ALL SELECT * FROM public.audit_rollup_sums) UNION ALL (SELECT * FROM public.audit_rollup_sums EXCEPT ALL {_SUMMED})
) AS differing
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class RollupCheck:
    """With the rights of an auditor."""

    connection: psycopg.Connection
    archived: ArchivedRows
    keys: Sequence[PublicKey]

    def differences(self, show: Progress) -> list[str]:
        kept, found = stored.rollups(self.connection), [*self._strays()]
        trees: dict[object, Frontier] = {}
        for number, rollup in enumerate(kept, start=1):
            before = kept[number - 2] if number > 1 else None
            lines = [
                *self._order(rollup, before),
                *self._head(rollup, trees.setdefault(rollup.month, Frontier())),
            ]
            found += [f"{rollup}: {words}" for words in [*lines, *self._content(rollup)]]
            show("rollups checked", number, len(kept))
        return found

    def _strays(self) -> Iterator[str]:
        ((count,),) = self.connection.execute(_STRAY).fetchall()
        if count:
            yield f"{count} counts belong to no rollup"
        ((count,),) = self.connection.execute(_UNEQUAL).fetchall()
        if count:
            yield f"{count} sums over all books and clients are not those of the counts"

    @staticmethod
    def _order(rollup: Rollup, before: Rollup | None) -> Iterator[str]:
        begin = before.tree_size if before and before.month == rollup.month else 0
        if rollup.first_leaf != begin:
            yield f"it should begin at leaf {begin}: leaves are counted twice, or in no rollup"

    def _head(self, rollup: Rollup, tree: Frontier) -> Iterator[str]:
        """The root that it names is that of a signed head, and of the leaves."""
        note = self.connection.execute(_NOTE, (rollup.month, rollup.tree_size)).fetchone()
        try:
            is_signed = note is not None and open_note(note[0], self.keys).root == rollup.root
        except AuditError:
            is_signed = False
        if not is_signed:
            yield "no head of this size and root was signed by a known key"
        leaves = (rollup.month, tree.size, rollup.tree_size)
        for (leaf_hash,) in self.connection.execute(_HASHES, leaves, binary=True):
            tree.append(leaf_hash)
        if tree.root() != rollup.root:
            yield "the leaves have another root"

    def _content(self, rollup: Rollup) -> Iterator[str]:
        if rollup.version != VERSION:
            yield "it was made by other rules: run `affidavit audit rollup`"
            return
        kept = stored.counts_in(self.connection, rollup)
        if digest_of(rollup, kept) != rollup.digest:
            yield "its digest is not that of its counts"
        facts = SealedFacts(self.connection, self.archived)
        try:
            made = counts_of(facts.between(rollup.month, rollup.first_leaf, rollup.tree_size))
        except RollupError as failure:
            yield str(failure)
            return
        yield from self._compared(rollup, kept, made, has_chapters=facts.is_attached(rollup.month))

    def _compared(self, rollup: Rollup, kept: Counts, made: Counts, *, has_chapters: bool) -> Iterator[str]:
        """An archived month's citations are encrypted: of its chapters only the sum is compared."""
        erased = stored.erased_in(self.connection, rollup.month, rollup.first_leaf, rollup.tree_size)
        if erased != rollup.erased:
            yield f"{erased} records are erased, {rollup.erased} were when it was made: run `affidavit audit rollup`"
            has_chapters = False
        if not has_chapters:
            kept, made = without_chapters(kept), without_chapters(made)
        yield from differences(kept, made)
