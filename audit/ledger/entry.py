"""What the writer writes: a request opened, noted or closed, in the text that the database and the spool both take."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self
from uuid import UUID

from audit.proof.record import HashedRow, Trail, row_of, text_of

Kind = Literal["opened", "noted", "closed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of one request. May be written twice: the second time changes nothing."""

    kind: Kind
    log_id: str
    text: str
    is_spooled: bool = False

    @classmethod
    def opened(cls, trail: Trail, owner: int, spool: UUID | None) -> Self:
        row = row_of(trail)
        about = {"log_id": row["log_id"], "opened_at": row["timestamp"], "owner": owner}
        return cls(
            "opened", row["log_id"], text_of(about | {"spool": str(spool) if spool else None, "trail": row})
        )

    @classmethod
    def noted(cls, trail: Trail) -> Self:
        row = row_of(trail)
        return cls("noted", row["log_id"], text_of({"log_id": row["log_id"], "trail": row}))

    @classmethod
    def closed(cls, log_id: UUID, sealed: HashedRow) -> Self:
        return cls("closed", str(log_id), sealed.text)

    @classmethod
    def of_line(cls, line: str) -> Self:
        kind, log_id, text = line.split(" ", 2)
        if kind not in {"opened", "noted", "closed"}:
            raise ValueError(f"Not a step of a request: {kind}")
        return cls(kind, log_id, text, is_spooled=True)  # type: ignore[arg-type]  # looked at above

    def line(self) -> str:
        """As it waits in the spool."""
        return f"{self.kind} {self.log_id} {self.text}"

    def timestamp(self) -> str:
        """By which its row finds its month."""
        return str(json.loads(self.text)["timestamp"])


def ids(entries: Sequence[Entry], kind: Kind) -> list[str]:
    return [entry.log_id for entry in entries if entry.kind == kind]


def listed(entries: Sequence[Entry], kind: Kind) -> str | None:
    """The texts of this kind as a JSON array, for `audit_write`; a row says whether it was spooled."""
    texts = [entry.text for entry in entries if entry.kind == kind]
    if kind == "closed":
        spooled = (
            ',"spooled":true}' if entry.is_spooled else ',"spooled":false}'
            for entry in entries
            if entry.kind == kind
        )
        texts = [text[:-1] + said for text, said in zip(texts, spooled, strict=True)]
    return f"[{','.join(texts)}]" if texts else None


def compacted(entries: Iterable[Entry]) -> list[Entry]:
    """What is left to write of many steps: of a request that ended only its end, of others also the last note."""
    steps: dict[Kind, dict[str, Entry]] = {"opened": {}, "noted": {}, "closed": {}}
    for entry in entries:
        steps[entry.kind][entry.log_id] = entry
    ends = steps["closed"]
    under_way = (
        entry for kind in ("opened", "noted") for entry in steps[kind].values() if entry.log_id not in ends
    )
    return [*under_way, *ends.values()]
