"""Reads the files of a package: each is in the ZIP once, is listed in the signed manifest, and is what it lists. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import BinaryIO

from audit.errors import PackageError
from audit.package import manifest as manifests
from audit.package.container import ZipEntry, read_directory, read_pieces
from audit.package.ladder import PACKAGE
from audit.package.manifest import (
    FILE_BYTES_MAX,
    MANIFEST,
    PackageManifest,
    checkpoint_name,
    consistency_name,
    records_name,
)
from audit.package.records import split_lines
from audit.proof.bundle import BYTES_MAX
from audit.proof.keys import PublicKey
from audit.proof.verdict import Finding, Report, Verdict


@dataclass(slots=True)
class PackageFiles:
    """An open package. What is wrong with a file is reported when it is read."""

    source: BinaryIO
    report: Report
    entries: dict[str, ZipEntry]
    manifest: PackageManifest
    _read: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, source: BinaryIO, keys: Sequence[PublicKey], report: Report) -> "PackageFiles":
        """`PackageError` if nothing can be said about what is in it."""
        entries = {entry.name: entry for entry in read_directory(source)}
        if not entries or list(entries)[-1] != MANIFEST:
            raise PackageError(f"{MANIFEST} is not the last file of the ZIP")
        if entries[MANIFEST].size > FILE_BYTES_MAX:
            raise PackageError("The manifest is larger than any of ours")
        content = b"".join(read_pieces(source, entries[MANIFEST]))
        files = cls(source, report, entries, manifests.open_manifest(content))
        if not files.manifest.is_signed_by(keys):
            files.add(
                "None of the given keys signed the manifest: it was altered, or another log made the package",
                MANIFEST,
            )
        files._check_names()
        return files

    def read(self, name: str) -> bytes:
        """A whole file; empty if it is not there."""
        entry = self.entries.get(name)
        if entry is not None and entry.size > FILE_BYTES_MAX:
            self.add("The file is larger than any of ours", name)
            return b""
        return b"".join(self.pieces(name))

    def lines(self, name: str) -> Iterator[bytes]:
        return split_lines(self.pieces(name), BYTES_MAX)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Its content; at its end it is compared with the manifest."""
        entry, listed = self.entries.get(name), self.manifest.files.get(name)
        if entry is None:
            return
        digest, is_first = sha256(), name not in self._read
        self._read.add(name)
        try:
            for piece in read_pieces(self.source, entry):
                digest.update(piece)
                yield piece
        except PackageError as wrong:
            self.add(str(wrong), name)
            return
        if is_first and listed and (digest.hexdigest(), entry.size) != listed:
            self.add("The file is not the one that the manifest lists: its digest or its size differs", name)

    def finish(self) -> None:
        """Compare the digests of what nobody has read."""
        for name in self.entries:
            if name not in self._read and name != MANIFEST:
                for _ in self.pieces(name):
                    pass

    def add(self, words: str, name: str, verdict: Verdict = Verdict.TAMPERED) -> None:
        self.report.add(Finding(verdict, PACKAGE, words, file=name))

    def _check_names(self) -> None:
        listed, found = self.manifest.files.keys(), self.entries.keys() - {MANIFEST}
        for name in sorted(found - listed):
            self.add("The file is not listed in the manifest", name)
        for name in sorted(listed - found):
            self.add(
                "The file is listed in the manifest, but it is not in the package", name, Verdict.MISSING
            )
        for name in sorted(manifests.ALWAYS - self.entries.keys() - listed):
            self.add("Every package has this file", name, Verdict.MISSING)
        for month in self.manifest.months:
            for name in (records_name(month), checkpoint_name(month), consistency_name(month)):
                if name not in listed:
                    self.add("There are other files of this month, but not this one", name, Verdict.MISSING)
        for name in sorted(name for name in found if manifests.place_of(name) is None):
            self.add("No package has a file of this name", name)
        if list(self.entries) != sorted(self.entries, key=manifests.order_of):
            self.add("The files are not in the order of a package", MANIFEST)
