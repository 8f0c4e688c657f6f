"""The exception tree of the audit log. Pure: the offline verifier imports this file too.

One base class, so that a caller can catch everything that this package raises on purpose.

AuditError
├── LedgerUnavailableError        a record could not be made durable, so no answer may leave
├── TransientWriteError           the database or the spool takes no entries now: retry later
│   ├── MissingMonthError         no partition for the month of a row; one can be made
│   └── NoSigningKeyError         no key may sign for this time, or the remote signing key does not sign now
├── WithdrawnError                a batch was not committed, because a writer of it has given up
├── PermanentWriteError           the database will never take this entry: do not retry
│   └── ArchivedMonthError        the month of a row is archived and takes no more rows
├── ClockBehindError              the clock is behind the log: its records would get a wrong time
├── KeyFileError                  a key file is missing, damaged or readable by others
│   └── KeyExistsError            a new key would overwrite one
├── FormatError                   bytes that are not written the one way that we write them; also a ValueError
│   ├── NoteError                 not a checkpoint of ours
│   │   └── UnknownKeyError       a checkpoint that is signed by a key that was not given
│   ├── PolicyError               not a policy of witnesses
│   ├── BundleError               not a proof bundle of ours
│   ├── UnknownVersionError       a record of a schema version that this program does not know
│   ├── ArchiveError              not an archive of ours, or not what was sealed
│   ├── ReportFileError           not a report of ours
│   ├── PackageError              not an evidence package in the one form that it has
│   ├── SampleError               not a sample's file, or not a population that a sample can be drawn from
│   └── TimeStampError            not a time stamp of this text by a pinned authority
├── UnusualJsonError              the fast library writes this JSON otherwise than the reference
├── LeavesChangedError            an earlier run judged its rows under other leaves
├── AuthorityError                the time stamp authority does not answer, or refuses: retry later
├── VaultError                    the vault failed or refused; its objects are unchanged
│   ├── VaultConflictError        the key holds other bytes already
│   ├── VaultDamagedError         the bytes read are not the bytes written
│   └── WrongVaultError           the vault is not the one that the log is anchored in
├── TreeMismatchError             the stored tree is not what was signed: sealing of its month stops
│   ├── UnfamiliarKeyError        a checkpoint signed by a key that is not in our public file; checked again
│   └── HeadsMismatchError        the log of heads is not what was signed: nothing more is sealed
│       └── RollbackError         a witness has seen more of this log, or another history of it
├── HistoryWholeError             a break was to be stated, but nothing of the month is lost
├── UnprovenError                 there is no proof of this record
│   ├── MissingRecordError        there is no such record
│   ├── UnsealedRecordError       the record is not sealed yet
│   └── ProofUnavailableError     the database cannot be read now
├── ErasureTooEarlyError          some of the records are not sealed yet, so nothing was erased
├── ErasureUnavailableError       the database does not answer now: retry is safe
├── NothingToEraseError           there is no record of this query, and there never was
├── HeldError                     a hold covers what was to be erased, ended or dropped: nothing was
├── HoldRefusedError              a hold cannot be released like this
├── HoldUnavailableError          the database does not answer now, so no hold was changed
├── ReviewRefusedError            a verdict cannot be given like this, or not by this person
├── ReviewUnavailableError        the database does not answer now, so no verdict was given
├── MaskedError                   personal columns are masked for this reader: nothing was shown
├── CriteriaError                 what is searched for is not written as it can be; also a ValueError
├── QueryError                    an auditor's SQL is refused or wrong
├── UnansweredError               an auditor's SQL may be right, but what it needs cannot be read now
│   └── MisleadingSchemaError     the database could answer with other rows than `verify` checks
├── SearchRefusedError            a search cannot be kept as it was asked for
├── ExportError                   a month is not what was sealed, or not all of it
├── DeliveryError                 a stream of rows cannot go on without a gap or a double
├── UnmadeError                   an evidence package cannot be made, or not go on
├── RollupError                   sealed rows cannot be counted: one is missing, or too many are in no rollup yet
│   └── RollupsBusyError          another process makes rollups now
├── MonthNotReadyError            a month cannot take its next step towards the archive yet
└── WorkerEndedError              a worker process ended, or was killed at its deadline, before it replied
"""

from collections.abc import Sequence
from typing import ClassVar, Literal
from uuid import UUID


class AuditError(Exception):
    """Base of all that this package raises on purpose."""


class LedgerUnavailableError(AuditError): ...


class TransientWriteError(AuditError): ...


class MissingMonthError(TransientWriteError): ...


class NoSigningKeyError(TransientWriteError): ...


class WithdrawnError(AuditError): ...


class PermanentWriteError(AuditError): ...


class ArchivedMonthError(PermanentWriteError): ...


class ClockBehindError(AuditError): ...


class KeyFileError(AuditError): ...


class KeyExistsError(KeyFileError): ...


class FormatError(AuditError, ValueError): ...


class NoteError(FormatError): ...


class LeavesChangedError(AuditError):
    """The leaves are not those under which an earlier run judged their rows."""


class UnknownKeyError(NoteError): ...


class PolicyError(FormatError): ...


class BundleError(FormatError): ...


class UnknownVersionError(FormatError): ...


class ArchiveError(FormatError): ...


class PackageError(FormatError): ...


class SampleError(FormatError): ...


class TimeStampError(FormatError): ...


class AuthorityError(AuditError): ...


class VaultError(AuditError): ...


class VaultConflictError(VaultError): ...


class VaultDamagedError(VaultError): ...


class WrongVaultError(VaultError): ...


class TreeMismatchError(AuditError): ...


class UnfamiliarKeyError(TreeMismatchError): ...


class HeadsMismatchError(TreeMismatchError): ...


class RollbackError(HeadsMismatchError): ...


class HistoryWholeError(AuditError): ...


class UnprovenError(AuditError):
    verdict: ClassVar[Literal["CANNOT_TELL", "MISSING", "UNSEALED"]] = "CANNOT_TELL"


class MissingRecordError(UnprovenError):
    verdict = "MISSING"


class UnsealedRecordError(UnprovenError):
    verdict = "UNSEALED"


class ProofUnavailableError(UnprovenError): ...


class ErasureTooEarlyError(AuditError): ...


class ErasureUnavailableError(AuditError): ...


class NothingToEraseError(AuditError): ...


class HeldError(AuditError):
    """A hold covers it. If it was asked for, the request waits for the end of the holds."""

    def __init__(
        self, message: str, request_id: UUID | None = None, holds: Sequence[UUID] = (), records: int = 0
    ) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.holds = holds
        self.records = records


class HoldRefusedError(AuditError): ...


class HoldUnavailableError(AuditError): ...


class ReviewRefusedError(AuditError): ...


class ReviewUnavailableError(AuditError): ...


class MaskedError(AuditError): ...


class QueryError(AuditError): ...


class UnansweredError(AuditError): ...


class MisleadingSchemaError(UnansweredError): ...


class SearchRefusedError(AuditError): ...


class ExportError(AuditError): ...


class DeliveryError(AuditError): ...


class UnmadeError(AuditError): ...


class RollupError(AuditError): ...


class RollupsBusyError(RollupError): ...


class MonthNotReadyError(AuditError): ...


class WorkerEndedError(AuditError):
    """A worker process ended before it replied, by itself or because it missed its deadline."""

    def __init__(self, exit_code: int, *, is_late: bool) -> None:
        super().__init__(f"A worker process ended in the middle of its work (exit code {exit_code})")
        self.exit_code = exit_code
        self.is_late = is_late
