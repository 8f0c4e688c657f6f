"""Judges the records of a package, line by line, on the rungs from the words to the checkpoint. Pure.

This is the part that takes the time. Its inputs and results can be pickled, so that other processes can run it.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from audit.errors import BundleError, UnknownVersionError
from audit.package import spreadsheet
from audit.package.ladder import COVERAGE, Rung
from audit.package.manifest import PackageManifest, records_name, time_text
from audit.proof.bundle import Bundle, decode_spelled, time_of
from audit.proof.checkpoint import Checkpoint
from audit.proof.keys import KeyRing, PublicKey, RowKeys
from audit.proof.merkle import is_included
from audit.proof.quotation import differences
from audit.proof.record import PERSONAL, bytes_of, leaf_of_parsed
from audit.proof.row_signature import is_row_signed, must_be_signed
from audit.proof.verdict import Finding, Verdict

PASSAGES_HELD = 10_000  # parsed; the others are parsed again
DELEGATIONS_HELD = 100  # a day has a few

Signers = Callable[[Sequence[PublicKey]], RowKeys]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the whole package says, for judging its records."""

    manifest: PackageManifest
    keys: Sequence[PublicKey]
    erased: frozenset[str]  # the records with a valid line of their erasure
    passages: Mapping[str, bytes]  # by chunk_id; those that are not as they were ingested are in `changed`
    changed: frozenset[str]
    signers: Signers = KeyRing.of
    since: str = ""
    until: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "since", time_text(self.manifest.since))
        object.__setattr__(self, "until", time_text(self.manifest.until))


class ComparedMonth(NamedTuple):
    """The head that the records of a month are compared with. No checkpoint: it cannot be read."""

    month: date
    note: str
    checkpoint: Checkpoint | None


class Lines(NamedTuple):
    """Some lines of a month's file."""

    month: ComparedMonth
    first: int  # the number of the first line, from 1
    lines: Sequence[bytes]


class JudgedLine(NamedTuple):
    leaf_index: int | None  # None: the line is no bundle
    is_withheld: bool
    is_erased: bool
    red: tuple[tuple[Rung, Verdict], ...]  # the rungs that are not VALID
    spelled: int  # bytes of its line in the spreadsheet; 0: it has none


class JudgedLines(NamedTuple):
    lines: list[JudgedLine]
    findings: list[Finding]
    digest: bytes  # of their lines in the spreadsheet


class Judge:
    """One for each process: it holds the passages that were parsed last."""

    def __init__(self, about: Surroundings) -> None:
        self._about = about
        self._keys, self._signers = KeyRing.of(about.keys), about.signers(about.keys)
        self._delegated = lru_cache(DELEGATIONS_HELD)(self._with_delegation)
        self._passage = lru_cache(PASSAGES_HELD)(self._parse_passage)

    def judge(self, given: Lines) -> JudgedLines:
        found, findings, digest = [], list[Finding](), sha256()
        for number, line in enumerate(given.lines, given.first):
            record = _Record(self._about, given.month, number)
            bundle = record.read(line)
            spelled = b""
            if bundle is not None:
                spelled = spreadsheet.line_of(bundle, record.texts)
                digest.update(spelled)
                self._check_signature(record, bundle)
                record.check_citations(self._passage)
                record.check_choice()
            findings += record.findings
            found.append(record.judged(len(spelled)))
        return JudgedLines(found, findings, digest.digest())

    def _check_signature(self, record: "_Record", bundle: Bundle) -> None:
        if bundle.delegation is None:
            record.check_signature(self._signers)
            return
        keys, signers = self._delegated(bundle.delegation)
        if keys.is_row_key(bundle.delegation, time_of(bundle.row)):
            record.check_signature(signers)
        else:
            record.refuse_delegation()

    def _with_delegation(self, delegation: PublicKey) -> tuple[KeyRing, RowKeys]:
        keys = KeyRing([*self._keys, delegation])
        return keys, self._about.signers(keys)

    def _parse_passage(self, chunk_id: str) -> dict[str, Any] | None:
        line = self._about.passages.get(chunk_id)
        parsed: dict[str, Any] | None = None if line is None else json.loads(line)
        return parsed


@dataclass(slots=True)
class _Record:
    """One line on its way up the rungs."""

    about: Surroundings
    month: ComparedMonth
    number: int
    findings: list[Finding] = field(default_factory=list)
    red: dict[Rung, Verdict] = field(default_factory=dict)
    bundle: Bundle | None = None
    leaf: bytes = b""
    texts: Mapping[str, str] = field(default_factory=dict)
    is_erased: bool = False

    def read(self, line: bytes) -> Bundle | None:
        """The bundle, after its form and its place in the tree have been checked."""
        try:
            self.bundle, self.texts = decode_spelled(line)
            self.leaf = leaf_of_parsed(self.bundle.row, self.texts, self.bundle.commitments)
        except (BundleError, UnknownVersionError, ValueError, TypeError, RecursionError) as wrong:
            is_unknown = isinstance(wrong, UnknownVersionError)
            self._add(Rung.ROW, Verdict.CANNOT_TELL if is_unknown else Verdict.TAMPERED, str(wrong))
            self.bundle = None
            self.red |= {rung: Verdict.CANNOT_TELL for rung in Rung if rung is not Rung.ROW}
            return None
        self._check_commitments(self.bundle)
        self._check_place(self.bundle)
        return self.bundle

    def _check_commitments(self, bundle: Bundle) -> None:
        is_withheld = bundle.commitments is not None
        self.is_erased = is_withheld and bundle.row["log_id"] in self.about.erased
        if self.is_erased:
            self.red[Rung.WORDS] = Verdict.ERASED
        elif is_withheld and not self.about.manifest.is_redacted:
            message = "The record was emptied, but none of the given keys signed its erasure"
            self._add(Rung.ROW, Verdict.TAMPERED, message)
        elif not is_withheld and self.about.manifest.is_redacted and bundle.row.keys() & PERSONAL:
            self._add(
                Rung.ROW,
                Verdict.TAMPERED,
                "The record has personal columns, although the package is redacted",
            )

    def _check_place(self, bundle: Bundle) -> None:
        head = self.month.checkpoint
        if head is None:
            self.red[Rung.LEAF] = Verdict.CANNOT_TELL
        elif not is_included(self.leaf, bundle.leaf_index, head.size, bundle.proof, head.root):
            message = "The record is not the one that was sealed at this place: it was altered, or the proof is of another one"
            self._add(Rung.LEAF, Verdict.TAMPERED, message)
        if bundle.month != self.month.month:
            self._add(Rung.MONTH, Verdict.TAMPERED, f"The record is of {bundle.month:%Y-%m}")
        elif bundle.note != self.month.note:
            message = "The record's checkpoint is not that of its month in the package"
            self._add(Rung.MONTH, Verdict.TAMPERED, message)

    def check_signature(self, signers: RowKeys) -> None:
        assert self.bundle
        row, head = self.bundle.row, self.month.checkpoint
        if row.get("signature") is None:
            signed_from = head.signed_from if head else 0
            is_fine = not must_be_signed(row["schema_version"], self.bundle.leaf_index, signed_from)
        else:
            signature, at = bytes_of(row["signature"]), time_of(row)
            is_fine = is_row_signed(signature, row["log_id"], self.leaf, at, signers)
        if not is_fine:
            message = "None of the given keys signed this row: it was altered, or the engine did not write it"
            self._add(Rung.ROW, Verdict.TAMPERED, message)

    def refuse_delegation(self) -> None:
        message = "None of the given keys delegated the key that signed the record, or not for its time"
        self._add(Rung.ROW, Verdict.TAMPERED, message)

    def check_citations(self, passage_of: Callable[[str], dict[str, Any] | None]) -> None:
        assert self.bundle
        citations = self.bundle.row.get("citations")
        if citations is None:
            return
        for place, cited in enumerate(citations if isinstance(citations, list) else [citations], 1):
            for verdict, message in self._differences(cited, passage_of):
                self._add(Rung.WORDS, verdict, f"Quotation {place}: {message}")

    def _differences(
        self, cited: Any, passage_of: Callable[[str], dict[str, Any] | None]
    ) -> list[tuple[Verdict, str]]:
        try:
            found = list(differences(cited, passage_of(cited["chunk_id"])))
        except (KeyError, TypeError, ValueError):
            return [(Verdict.TAMPERED, "it is not a well-formed citation")]
        if cited["chunk_id"] in self.about.changed:
            found.append((Verdict.TAMPERED, f"the passage {cited['chunk_id']} is not as it was ingested"))
        return found

    def check_choice(self) -> None:
        assert self.bundle
        row, manifest = self.bundle.row, self.about.manifest
        if not self.about.since <= row["timestamp"] < self.about.until:  # all are written alike
            self._add(COVERAGE, Verdict.TAMPERED, "The record is not of the package's period")
        for choice, column in (("client", "client_id"), ("query", "query_id")):
            if choice in manifest.chosen and row.get(column) != manifest.chosen[choice]:
                self._add(COVERAGE, Verdict.TAMPERED, f"The record is not of the chosen {choice}")

    def judged(self, spelled: int) -> JudgedLine:
        bundle = self.bundle
        index = bundle.leaf_index if bundle else None
        is_withheld = bundle is not None and bundle.commitments is not None
        return JudgedLine(index, is_withheld, self.is_erased, tuple(self.red.items()), spelled)

    def _add(self, rung: str, verdict: Verdict, words: str) -> None:
        if isinstance(rung, Rung):
            self.red.setdefault(rung, verdict)
        index = self.bundle.leaf_index if self.bundle else None
        log_id = str(self.bundle.row["log_id"]) if self.bundle else None
        place = (self.month.month, index, log_id, records_name(self.month.month), self.number)
        self.findings.append(Finding(verdict, str(rung), words, *place))


def split_lines(pieces: Iterator[bytes], bytes_max: int) -> Iterator[bytes]:
    """The lines, each with its end; the last one as it is. A line beyond the limit ends the file."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > bytes_max:
            break
    if rest:
        yield rest
