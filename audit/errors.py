"""The exception tree of the audit log. Pure: the offline verifier imports this file too.

One base class, so that a caller can catch everything that this package raises on purpose.

AuditError
├── LedgerUnavailableError        a record could not be made durable, so no answer may leave
├── TransientWriteError           the database or the spool takes no entries now: retry later
│   └── MissingMonthError         no partition for the month of a row; one can be made
├── PermanentWriteError           the database will never take this entry: do not retry
│   └── ArchivedMonthError        the month of a row is archived and takes no more rows
├── KeyFileError                  a key file is missing, damaged or readable by others
│   └── KeyExistsError            a new key would overwrite one
├── FormatError                   bytes that are not written the one way that we write them; also a ValueError
│   ├── NoteError                 not a checkpoint of ours
│   │   └── UnknownKeyError       a checkpoint that is signed by a key that was not given
│   ├── BundleError               not a proof bundle of ours
│   ├── UnknownVersionError       a record of a schema version that this program does not know
│   └── ArchiveError              not an archive of ours, or not what was sealed
├── VaultError                    the vault failed or refused; its objects are unchanged
│   ├── VaultConflictError        the key holds other bytes already
│   └── VaultDamagedError         the bytes read are not the bytes written
├── TreeMismatchError             the stored tree is not what was signed: sealing of its month stops
│   └── UnfamiliarKeyError        a checkpoint signed by a key that is not in our public file; checked again
├── UnprovenError                 there is no proof of this record
│   ├── MissingRecordError        there is no such record
│   ├── UnsealedRecordError       the record is not sealed yet
│   └── ProofUnavailableError     the database cannot be read now
├── ErasureTooEarlyError          some of the records are not sealed yet, so nothing was erased
├── ErasureUnavailableError       the database does not answer now: retry is safe
├── NothingToEraseError           there is no record of this query, and there never was
├── QueryError                    an auditor's SQL is refused or wrong
├── UnansweredError               an auditor's SQL may be right, but what it needs cannot be read now
├── ExportError                   a month is not what was sealed, or not all of it
├── MonthNotReadyError            a month cannot take its next step towards the archive yet
└── WorkerEndedError              a worker process ended, or was killed at its deadline, before it replied
"""

from typing import ClassVar, Literal


class AuditError(Exception):
    """Base of all that this package raises on purpose."""


class LedgerUnavailableError(AuditError):
    """The record could not be made durable, so nothing may be answered."""


class TransientWriteError(AuditError):
    """The database or the spool takes no entries now, and may later."""


class MissingMonthError(TransientWriteError):
    """There is no partition for one of the rows; one can be made."""


class PermanentWriteError(AuditError):
    """The database will never take this entry."""


class ArchivedMonthError(PermanentWriteError):
    """One of the rows is of a month that is archived and takes no more rows."""


class KeyFileError(AuditError):
    """The message says what is wrong with the file and what to do about it."""


class KeyExistsError(KeyFileError):
    """A key is never overwritten."""


class FormatError(AuditError, ValueError):
    """Bytes that are not in our canonical format. The message says what is wrong."""


class NoteError(FormatError):
    """Not a checkpoint of ours: damaged, written in another way, or not signed by a given key."""


class UnknownKeyError(NoteError):
    """The signature may be good, but its key was not given: the key is new, or it is not ours."""


class BundleError(FormatError):
    """The file is not a bundle as we write them."""


class UnknownVersionError(FormatError):
    """The record was written by rules that this program does not know."""


class ArchiveError(FormatError):
    """The file is not a valid archive of ours, or it differs from what was sealed."""


class VaultError(AuditError):
    """The vault failed or refused the request. Its objects are unchanged, and a retry is safe."""


class VaultConflictError(VaultError):
    """The key holds other bytes already, and they stay."""


class VaultDamagedError(VaultError):
    """The bytes read are not the bytes written."""


class TreeMismatchError(AuditError):
    """The stored tree is not what was signed. The message names the month, the size and what does not match."""


class UnfamiliarKeyError(TreeMismatchError):
    """The signing key is not in our public file: it may have been rotated elsewhere a moment ago, so the check is retried."""


class UnprovenError(AuditError):
    """There is no proof, and the message says why."""

    verdict: ClassVar[Literal["CANNOT_TELL", "MISSING", "UNSEALED"]] = "CANNOT_TELL"


class MissingRecordError(UnprovenError):
    verdict = "MISSING"


class UnsealedRecordError(UnprovenError):
    verdict = "UNSEALED"


class ProofUnavailableError(UnprovenError):
    """The database cannot be read now."""


class ErasureTooEarlyError(AuditError):
    """Some of the records are not sealed yet, so nothing was erased."""


class ErasureUnavailableError(AuditError):
    """The database does not answer now. A retry is safe."""


class NothingToEraseError(AuditError):
    """There is no record of this query, and there never was."""


class QueryError(AuditError):
    """The statement is refused, or cannot be answered as it is written. The message says why."""


class UnansweredError(AuditError):
    """The statement may be right, but what it needs cannot be read now."""


class ExportError(AuditError):
    """The month differs from what was sealed, or is incomplete. The message says where."""


class MonthNotReadyError(AuditError):
    """The month cannot take its next step yet. The message says why, and what to do."""


class WorkerEndedError(AuditError):
    """A worker process ended before it replied, by itself or because it missed its deadline."""

    def __init__(self, exit_code: int, *, is_late: bool) -> None:
        super().__init__(f"A worker process ended in the middle of its work (exit code {exit_code})")
        self.exit_code = exit_code
        self.is_late = is_late
