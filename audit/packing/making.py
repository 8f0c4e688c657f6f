"""Makes an evidence package: a ZIP of chosen records with all that proves them, as `audit/__init__.py`, 17 says.

(1) what it is of       the heads are fixed, so that a run that was killed goes on with the same
(2) the records         month by month, in pieces that are finished one by one
(3) what is around      anchors, consistency, passages, coverage
(4) the ZIP             pieces joined, the manifest signed, moved to its name at once
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

from audit.anchored import AnchorSource, read
from audit.errors import NoteError, UnmadeError
from audit.package import manifest as names
from audit.package import spreadsheet
from audit.package.manifest import ANCHORS_MAX, PackageManifest, sign_manifest
from audit.package.program import program
from audit.packing import pieces
from audit.packing.chosen_rows import ChosenRow, ChosenRows, MonthHead
from audit.packing.elsewhere import LogOfHeads
from audit.packing.pieces import PackedPiece, PieceInWork
from audit.packing.readme import readme
from audit.packing.zip_writing import ZipWriting
from audit.progress import Progress
from audit.proof.bundle import Bundle, encode, time_of
from audit.proof.canonical import canonical_json
from audit.proof.checkpoint import read_note
from audit.proof.keys import ID_BYTES, HeadSigner, KeyRing, PublicKey
from audit.proof.merkle import StoredTree
from audit.proof.record import Row, bytes_of
from audit.proof.verdict import Report
from audit.vault import sync_folder

PAGE = Path(names.__file__).parents[1] / "verifier" / names.PAGE  # there once the page was built


@dataclass(frozen=True, slots=True)
class Made:
    """What went into a package."""

    records: int
    withheld: int
    erased: int
    passages: int
    months: int
    bytes: int


@dataclass(slots=True)
class Making:
    """One package. `verify` judges the log over the months of the period, for the statement of coverage."""

    rows: ChosenRows
    vault: AnchorSource
    key: HeadSigner
    public_keys: Sequence[PublicKey]
    verify: Callable[[], Report]
    event: UUID
    now: datetime
    progress: Progress
    policy: bytes = b""  # which witnesses are asked
    _newest: dict[date, int] = field(default_factory=dict)  # the sizes of the newest checkpoints
    _cited: set[str] = field(default_factory=set)
    _anchors: dict[date, dict[int, bytes]] = field(default_factory=dict)
    _proofs: dict[date, dict[int, list[bytes]]] = field(default_factory=dict)
    _pieces: dict[date, list[PackedPiece]] = field(default_factory=dict)

    def make(self, file: Path) -> Made:
        folder = file.with_name(f"{file.name}.parts")
        if file.exists():
            also = (
                f" If it is what you want, remove {folder}: a run was stopped at its very end."
                if folder.exists()
                else ""
            )
            raise UnmadeError(f"{file} exists already. Give another name, or move it away.{also}")
        with pieces.work_folder(folder):
            heads = self._begin(folder)  # (1)
            for head in heads:
                self._read_month(folder, head, _links(heads))  # (2)
            made = self._write(folder, heads, folder / "package.zip")  # (3), (4)
            (folder / "package.zip").replace(file)
            sync_folder(file.parent)
            pieces.remove(folder)
        return made

    def _begin(self, folder: Path) -> list[MonthHead]:
        """Go on with the heads of a run that was killed. After an erasure begin anew: a piece may hold what was erased."""
        about = {
            "origin": self.rows.origin(), "choice": self.rows.choice.words, "chosen": self.rows.choice.chosen,
            "redacted": self.rows.choice.is_redacted, "erasures": self.rows.count_erasures(),
            "users": sha256(str(self.rows.choice.users).encode()).hexdigest(),
        }  # fmt: skip
        heads = self.rows.heads()
        self._newest = {head.month: head.size for head in heads}
        state = pieces.state_of(folder)
        if state and any(state[name] != about[name] for name in about if name != "erasures"):
            raise UnmadeError(
                f"{folder} is of another package that was not finished. Remove it, or give another name."
            )
        if state and state["erasures"] == about["erasures"]:
            return [MonthHead(date.fromisoformat(month), size, note) for month, size, note in state["heads"]]
        pieces.clear(folder)
        listed = [(str(head.month), head.size, head.note) for head in heads]
        pieces.put(folder / "state.json", canonical_json(about | {"heads": listed}))
        return heads

    def _read_month(self, folder: Path, head: MonthHead, links: Mapping[date, Sequence[int]]) -> None:
        done = pieces.finished_pieces(folder, head.month)
        tree = self.rows.tree(head)
        self._anchors[head.month] = self._read_anchors(head)
        older = {*self._anchors[head.month], *links.get(head.month, ())}
        self._proofs[head.month] = {
            size: tree.consistency_proof(size) for size in sorted(older) if size < head.size
        }
        begin = done[-1].end if done else 0
        self._pieces[head.month] = [
            self._noted(piece) for piece in (*done, *self._new_pieces(folder, head, tree, begin))
        ]

    def _noted(self, piece: PackedPiece) -> PackedPiece:
        """Without its own list of passages: many pieces cite the same ones."""
        self._cited |= set(piece.cited)
        return replace(piece, cited=[])

    def _new_pieces(
        self, folder: Path, head: MonthHead, tree: StoredTree, begin: int
    ) -> Iterator[PackedPiece]:
        piece = PieceInWork(folder, head.month, begin)
        for chosen in self.rows.rows(head, begin):
            if piece.records == pieces.ROWS:
                yield piece.finish(chosen.leaf_index)
                self.progress(f"{head.month:%Y-%m}", chosen.leaf_index, head.size)
                piece = PieceInWork(folder, head.month, chosen.leaf_index)
            _add(piece, chosen, tree, head.note, self._delegation_of(chosen.row))
        if begin < head.size or piece.records:
            yield piece.finish(head.size)
            self.progress(f"{head.month:%Y-%m}", head.size, head.size)

    def _read_anchors(self, head: MonthHead) -> dict[int, bytes]:
        """Those of its tree, and those that the database lacks. After a stopped run its tree may be older than the database."""
        chain, newest = self.rows.evidence.anchors(head.month), self._newest.get(head.month, head.size)
        sizes = [size for size in chain.sizes if size <= head.size or size > newest]
        return {size: read(self.vault, chain.key(size)) for size in _spread(sizes)}

    def _write(self, folder: Path, heads: Sequence[MonthHead], draft: Path) -> Made:
        page = PAGE.read_bytes() if PAGE.exists() else b""
        every = [piece for head in heads for piece in self._pieces[head.month]]
        counts = {
            "records": sum(piece.records for piece in every), "withheld": sum(piece.withheld for piece in every),
            "erased": sum(piece.erased for piece in every), "passages": 0,
            "anchors": sum(map(len, self._anchors.values())),
        }  # fmt: skip
        choice = self.rows.choice
        manifest = PackageManifest(
            self.rows.origin(), self.now, choice.since, choice.until, choice.chosen, choice.is_redacted, self.event, counts, {}
        )  # fmt: skip
        with ZipWriting(draft) as zipped:
            zipped.add(names.README, readme(manifest, choice.words, sha256(page).hexdigest() if page else ""))
            if page:
                zipped.add(names.PAGE, page)
            zipped.add(names.AUDITOR, program())
            zipped.add(names.KEYS, "".join(f"{key.line}\n" for key in self.public_keys).encode())
            self._add_records(zipped, folder, heads)
            self._add_heads(zipped, heads)
            self._add_elsewhere(zipped)
            counts["passages"] = zipped.add_lines(names.PASSAGES, self.rows.passages(sorted(self._cited)))
            zipped.add_packed(names.ERASURES, [(folder, piece, pieces.ERASURES) for piece in every])
            zipped.add(names.COVERAGE, canonical_json(self._coverage(heads)) + b"\n")
            zipped.add(names.QUERIES, canonical_json(choice.queries(self.rows.statement())) + b"\n")
            signed = replace(manifest, counts=counts, files=zipped.listed)
            zipped.add(names.MANIFEST, sign_manifest(signed, self.key))
        return Made(
            counts["records"],
            counts["withheld"],
            counts["erased"],
            counts["passages"],
            len(heads),
            draft.stat().st_size,
        )

    def _add_records(self, zipped: ZipWriting, folder: Path, heads: Sequence[MonthHead]) -> None:
        for head in heads:
            of_month = [(folder, piece, pieces.RECORDS) for piece in self._pieces[head.month]]
            zipped.add_packed(names.records_name(head.month), of_month)
        of_all = [(folder, piece, pieces.SPREADSHEET) for head in heads for piece in self._pieces[head.month]]
        zipped.add_packed(names.SPREADSHEET, of_all, spreadsheet.heading())

    def _add_heads(self, zipped: ZipWriting, heads: Sequence[MonthHead]) -> None:
        for head in heads:
            zipped.add(names.checkpoint_name(head.month), head.note.encode())
        for head in heads:
            for size, note in sorted(self._anchors[head.month].items()):
                zipped.add(names.anchor_name(head.month, size), note)
        for head in heads:
            proofs = {
                str(size): [part.hex() for part in proof] for size, proof in self._proofs[head.month].items()
            }
            body = {"month": f"{head.month:%Y-%m}", "size": head.size, "proofs": proofs}
            zipped.add(names.consistency_name(head.month), canonical_json(body) + b"\n")

    def _add_elsewhere(self, zipped: ZipWriting) -> None:
        files = LogOfHeads(self.rows.evidence.connection, self.vault).files(self._anchors)
        if self.policy:
            files[names.POLICY] = self.policy
        for name in sorted(files, key=names.order_of):
            zipped.add(name, files[name])

    def _coverage(self, heads: Sequence[MonthHead]) -> dict[str, Any]:
        unsealed = self.rows.unsealed()
        months = [self._coverage_of(head, unsealed.get(head.month, 0)) for head in heads]
        is_whole = not self.rows.choice.chosen.keys() & {"client", "user", "query"}
        return {
            "months": months, "unsealed": sum(unsealed.values()), "is_whole": is_whole, "verify": json.loads(json.dumps(self.verify().as_json())),
        }  # fmt: skip

    def _delegation_of(self, row: Row) -> PublicKey | None:
        """So that each line is a proof by itself, also for an auditor who pins the parent alone."""
        if not row.get("signature"):
            return None
        fingerprint = bytes_of(row["signature"])[:ID_BYTES]
        signers = KeyRing.of(self.public_keys).row_keys(fingerprint, time_of(row))
        return next((key for key in signers if key.delegation), None)

    def _coverage_of(self, head: MonthHead, unsealed: int) -> dict[str, Any]:
        tier = {"attached": "database", "archived": "archive"}.get(self.rows.tier(head.month), "missing")
        breaks = [{"kept": each.kept, "lost": each.lost} for each in _breaks(head.note)]
        return {
            "month": f"{head.month:%Y-%m}", "tier": tier, "size": head.size,
            "records": sum(piece.records for piece in self._pieces[head.month]), "unsealed": unsealed,
            "anchored": max(self._anchors[head.month], default=0), "breaks": breaks,
        }  # fmt: skip


def _add(
    piece: PieceInWork, chosen: ChosenRow, tree: StoredTree, note: str, delegation: PublicKey | None
) -> None:
    proof = tree.inclusion_proof(chosen.leaf_index)
    bundle = Bundle(chosen.row, chosen.leaf_index, proof, note, chosen.commitments, delegation)
    try:
        line = encode(bundle)
    except (ValueError, TypeError) as wrong:
        raise UnmadeError(
            f"The record {chosen.row.get('log_id')} has no canonical form: {wrong}. Run `affidavit audit verify`."
        ) from None
    piece.write(pieces.RECORDS, line)
    piece.write(pieces.SPREADSHEET, spreadsheet.line_of(bundle))
    for erasure in chosen.erasures:
        piece.write(pieces.ERASURES, canonical_json(dict(erasure)) + b"\n")
    piece.records += 1
    piece.withheld += chosen.commitments is not None
    piece.erased += bool(chosen.commitments is not None and chosen.erasures)
    if chosen.commitments is None:
        piece.cited |= set(_cited(chosen.row.get("citations")))


def _cited(citations: Any) -> Iterator[str]:
    for cited in citations if isinstance(citations, list) else ():
        if isinstance(cited, dict) and isinstance(cited.get("chunk_id"), str):
            yield cited["chunk_id"]


def _links(heads: Sequence[MonthHead]) -> dict[date, list[int]]:
    """The sizes of earlier months on top of which later ones were signed."""
    found: dict[date, list[int]] = {}
    for head in heads:
        try:
            previous = read_note(head.note).previous
        except NoteError:  # the package says so
            continue
        if previous:
            found.setdefault(previous.month, []).append(previous.size)
    return found


def _breaks(note: str) -> Sequence[Any]:
    try:
        return read_note(note).breaks
    except NoteError:
        return ()


def _spread(sizes: Sequence[int]) -> list[int]:
    """All, or the first, the last and others evenly between them."""
    if len(sizes) <= ANCHORS_MAX:
        return list(sizes)
    last = len(sizes) - 1
    return [sizes[place * last // (ANCHORS_MAX - 1)] for place in range(ANCHORS_MAX)]
