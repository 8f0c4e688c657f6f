"""Checks what others have signed of the log: witnesses its log of heads, an authority the time. Pure.

heads/head.note covers each month's anchored head of which heads/<month>.tlog-proof proves that it is an entry.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date

from cryptography.x509 import Certificate

from audit.errors import NoteError, TimeStampError
from audit.heads.head import LogHead, open_head
from audit.heads.policy import WitnessPolicy
from audit.heads.tlog_proof import open_tlog_proof, parse_tlog_proof
from audit.package.files import PackageFiles
from audit.package.heads import HeadOfMonth
from audit.package.ladder import FINE, Rung, RungVerdict
from audit.package.manifest import HEAD, STAMPS, proof_name
from audit.proof.keys import PublicKey
from audit.proof.note import SignedNote
from audit.proof.verdict import Finding, Report, Verdict
from audit.stamps.token import read_certificates, verify_stamp

_NO_HEAD = "the package has no head of a log of heads"
_BEYOND = "sealed after the head of heads of the package"
_NO_POLICY = "no policy of witnesses was given"
_NO_STAMP = "the package has no time stamp"
_NO_AUTHORITY = "no certificates of an authority were given"
_WITHOUT = RungVerdict(Verdict.CANNOT_TELL, _NO_HEAD)


@dataclass(frozen=True, slots=True)
class Trusted:
    """Whom the auditor believes besides the log's keys. Whoever gives it asks for it: without it the package is not proven."""

    policy: WitnessPolicy | None = None
    authorities: Sequence[Certificate] = ()


NOBODY = Trusted()


@dataclass(slots=True)
class Elsewhere:
    witness: RungVerdict = _WITHOUT
    stamp: RungVerdict = _WITHOUT
    covered: dict[date, int] = field(default_factory=dict)  # the leaves of each month under the head of heads

    def rungs(self, month: date, leaf_index: int) -> dict[Rung, RungVerdict]:
        """Of one record. What is wrong with the head is wrong for all."""
        is_covered = leaf_index < self.covered.get(month, 0)
        beyond = RungVerdict(Verdict.CANNOT_TELL, _BEYOND)
        return {
            rung: found if is_covered or found.verdict is not Verdict.VALID else beyond
            for rung, found in ((Rung.WITNESS, self.witness), (Rung.TIME_STAMP, self.stamp))
        }


def check_elsewhere(
    files: PackageFiles,
    heads: Iterable[HeadOfMonth],
    keys: Sequence[PublicKey],
    trusted: Trusted,
    report: Report,
) -> Elsewhere:
    return _Check(files, keys, trusted, report).checked(heads)


@dataclass(slots=True)
class _Check:
    files: PackageFiles
    keys: Sequence[PublicKey]
    trusted: Trusted
    report: Report
    found: Elsewhere = field(default_factory=Elsewhere)

    def checked(self, heads: Iterable[HeadOfMonth]) -> Elsewhere:
        note = self.files.read(HEAD)
        if not note:
            self._ask()
            return self.found
        try:
            head, signed = open_head(note.decode(), self.keys)
            if head.origin != self.files.manifest.origin:
                raise NoteError(f"It is of another log, {head.origin}")
        except ValueError as wrong:
            self.found.stamp = RungVerdict(Verdict.CANNOT_TELL, "the head of heads is not genuine")
            self.found.witness = self._red(Rung.WITNESS, f"The head of heads is not genuine: {wrong}", HEAD)
            return self.found
        self.found.witness = self._witnessed(head, signed)
        for month in heads:
            self._check_proof(month, note.decode())
        self.found.stamp = self._stamped(signed)
        return self.found

    def _ask(self) -> None:
        """What the auditor asked for is not there."""
        if self.trusted.policy:
            self._red(Rung.WITNESS, "A policy was given, and " + _NO_HEAD, HEAD, Verdict.CANNOT_TELL)
        if self.trusted.authorities:
            self._red(Rung.TIME_STAMP, "Certificates were given, and " + _NO_HEAD, HEAD, Verdict.CANNOT_TELL)

    def _witnessed(self, head: LogHead, signed: SignedNote) -> RungVerdict:
        policy = self.trusted.policy
        if policy is None:
            return RungVerdict(Verdict.CANNOT_TELL, _NO_POLICY)
        try:
            cosigners = policy.cosigners(signed)
        except NoteError as wrong:
            return self._red(Rung.WITNESS, str(wrong), HEAD)
        ours = {key.raw for key in self.keys}
        if policy.logs and not any(log.name == head.origin and log.raw in ours for log in policy.logs):
            return self._red(
                Rung.WITNESS, f"The policy is of other logs than {head.origin}", HEAD, Verdict.CANNOT_TELL
            )
        if not policy.is_met_by(cosigners):
            named = ", ".join(cosigners) or "none of them"
            message = (
                f"The witnesses that the policy demands have not all cosigned the head of heads: {named}"
            )
            return self._red(Rung.WITNESS, message, HEAD, Verdict.CANNOT_TELL)
        return FINE

    def _check_proof(self, head: HeadOfMonth, note: str) -> None:
        name = proof_name(head.month)
        content = self.files.read(name)
        if not content:
            return
        try:
            proof = parse_tlog_proof(content.decode())
            proven = open_tlog_proof(proof, self.keys)
            if proof.note != note:
                raise NoteError(f"It is not under {HEAD}")
            if (
                head.anchors.get(proven.month_head.size) != proof.extra
                or proven.month_head.month != head.month
            ):
                raise NoteError("It is not of an anchored head of this month in the package")
        except ValueError as wrong:
            self._red(Rung.WITNESS, f"The proof that the month's head is in the log of heads: {wrong}", name)
            head.red.setdefault(Rung.WITNESS, Verdict.TAMPERED)
            return
        self.found.covered[head.month] = proven.month_head.size

    def _stamped(self, signed: SignedNote) -> RungVerdict:
        names = [name for name in self.files.entries if name.startswith(STAMPS) and name.endswith(".tsr")]
        authorities = self.trusted.authorities
        if not names and authorities:
            words = "Certificates were given, and " + _NO_STAMP
            return self._red(Rung.TIME_STAMP, words, HEAD, Verdict.CANNOT_TELL)
        if not names or not authorities:
            return RungVerdict(Verdict.CANNOT_TELL, _NO_AUTHORITY if names else _NO_STAMP)
        others, wrongs = self._chains(), list[str]()
        for name in names:
            try:
                stamp = verify_stamp(self.files.read(name), signed.text.encode(), authorities, others)
            except TimeStampError as wrong:
                wrongs.append(f"{name}: {wrong}")
                continue
            self.report.count(f"time stamp of {stamp.time:%Y-%m-%d %H:%M:%S} UTC by {stamp.authority}")
            return FINE
        return self._red(Rung.TIME_STAMP, "; ".join(wrongs), names[0])

    def _chains(self) -> list[Certificate]:
        """They only link: what is believed, the auditor gave."""
        found: list[Certificate] = []
        for name in self.files.entries:
            if name.startswith(STAMPS) and name.endswith(".pem"):
                try:
                    found += read_certificates(self.files.read(name))
                except TimeStampError as wrong:
                    self._red(Rung.TIME_STAMP, str(wrong), name)
        return found

    def _red(self, rung: Rung, words: str, name: str, verdict: Verdict = Verdict.TAMPERED) -> RungVerdict:
        self.report.add(Finding(verdict, rung, words, file=name))
        return RungVerdict(verdict, words)
