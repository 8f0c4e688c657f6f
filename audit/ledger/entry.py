"""Log entry: one step of a request (opened, noted, closed), serialised once for the database and for the spool."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, Self
from uuid import UUID

from audit.proof.keys import RowSigner, Signer
from audit.proof.record import (
    SIGNED_FROM,
    HashedRow,
    Row,
    Trail,
    bytes_of,
    leaf_hash,
    row_of,
    storable,
    text_of,
)  # fmt: skip
from audit.proof.row_signature import sign_open, signed

Step = Literal["opened", "noted", "closed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of one request. Idempotent: writing it twice changes nothing."""

    kind: Step
    log_id: str
    text: str
    is_spooled: bool = False

    @classmethod
    def opened(cls, trail: Trail, owner: int, spool: UUID | None, key: Signer) -> Self:
        known = _known(trail, key)
        about = {"opened_at": known["trail"]["timestamp"], "owner": owner, "spool": spool and str(spool)}
        return cls("opened", known["log_id"], text_of(known | about))

    @classmethod
    def noted(cls, trail: Trail, key: Signer) -> Self:
        known = _known(trail, key)
        return cls("noted", known["log_id"], text_of(known))

    @classmethod
    def closed(cls, log_id: UUID, row: HashedRow) -> Self:
        """The row, which must be signed already."""
        return cls("closed", str(log_id), row.text)

    @classmethod
    def of_line(cls, line: str) -> Self:
        kind, log_id, text = line.split(" ", 2)
        if kind not in {"opened", "noted", "closed"}:
            raise ValueError(f"Not a step of a request: {kind}")
        return cls(kind, log_id, text, is_spooled=True)  # type: ignore[arg-type]  # checked above

    def line(self) -> str:
        return f"{self.kind} {self.log_id} {self.text}"

    def signed_if_old(self, keys: RowSigner) -> "Entry":
        """An entry that a version left in the spool which did not sign yet, signed now: the spool is ours alone."""
        try:
            body: Row = json.loads(self.text)
            row = body.get("trail", body)
            if "signature" in body or row["schema_version"] >= SIGNED_FROM:
                return self
            at = datetime.fromisoformat(row["timestamp"])
            keys.cover(at, at)
            key = keys.at(at)
            if self.kind == "closed":
                leaf = bytes_of(row["leaf_hash"])
                return replace(self, text=signed(HashedRow(self.text, leaf), self.log_id, key).text)
            text = json.dumps(body | {"signature": f"\\x{sign_open(row, key).hex()}"})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return self  # for the database to refuse
        return replace(self, text=text)

    def timestamp(self) -> str:
        """The time of its row, which decides its month."""
        return str(json.loads(self.text)["timestamp"])


def check(entry: Entry) -> None:
    """`ValueError` if the text is not what this engine writes: an object of this request and, of a row, with its hash."""
    try:
        body = json.loads(entry.text)
        if UUID(body["log_id"]) != UUID(entry.log_id):
            raise ValueError("The record of another request")
        if entry.kind == "closed":
            _check_row(body)
        else:
            _check_step(body, entry.kind)
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as wrong:
        raise ValueError(f"Not a step of a request: {type(wrong).__name__}") from None


def _check_row(row: Row) -> None:
    datetime.fromisoformat(row["timestamp"])
    if leaf_hash(row) != bytes_of(row["leaf_hash"]):
        raise ValueError("The row is not what was hashed")


def _check_step(body: Row, kind: Step) -> None:
    if not isinstance(body["trail"], dict):
        raise ValueError("No record")  # noqa: TRY004
    if kind == "opened":
        int(body["owner"]), datetime.fromisoformat(body["opened_at"])


def _known(trail: Trail, key: Signer) -> dict[str, Any]:
    row = storable(row_of(trail))
    return {"log_id": row["log_id"], "trail": row, "signature": f"\\x{sign_open(row, key).hex()}"}


def ids(entries: Sequence[Entry], kind: Step) -> list[str]:
    return [entry.log_id for entry in entries if entry.kind == kind]


def listed(entries: Sequence[Entry], kind: Step) -> str | None:
    """The texts of this kind as a JSON array, for `audit_write`; a row says whether it was spooled."""
    chosen = [entry for entry in entries if entry.kind == kind]
    texts = [entry.text for entry in chosen]
    if kind == "closed":
        texts = [f'{entry.text[:-1]},"spooled":{json.dumps(entry.is_spooled)}}}' for entry in chosen]
    return f"[{','.join(texts)}]" if texts else None


def compacted(entries: Iterable[Entry]) -> list[Entry]:
    """Log compaction: a closed request needs only its end; an open one its beginning and its last note."""
    steps: dict[Step, dict[str, Entry]] = {"opened": {}, "noted": {}, "closed": {}}
    for entry in entries:
        steps[entry.kind][entry.log_id] = entry
    ends = steps["closed"]
    begun = [*steps["opened"].values(), *steps["noted"].values()]
    return [*(entry for entry in begun if entry.log_id not in ends), *ends.values()]
