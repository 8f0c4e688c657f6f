"""What a hold covers, and the signed lines of holds and of the erasures that wait for them. Pure."""

import base64
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal
from uuid import UUID

from audit.proof.canonical import canonical_text
from audit.proof.keys import KeyRing, PublicKey, RowSigner

ACTOR_CHARACTERS_MAX = 100
SALT_BYTES = 32
_SIGNATURE = ("key_id", "signature")

Kind = Literal["hold", "erasure request"]
Line = Mapping[str, Any]  # of audit_holds, or of audit_erasure_requests


@dataclass(frozen=True, slots=True)
class Scope:
    """The criteria of a hold. Each that is given narrows it: a record is held if it meets all of them."""

    names: tuple[str, ...] = ()  # every spelling of a reader, as it was asked for first
    query_id: UUID | None = None
    client_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None  # exclusive

    def check(self) -> None:
        if not (self.names or self.query_id or self.client_id or self.since or self.until):
            raise ValueError(
                "Say what is held: --user, --query, --client, --from or --to, or several of them."
            )
        if self.since and self.until and self.since >= self.until:
            raise ValueError("The period is empty: --from must be before --to.")

    def covers(self, trail: Mapping[str, Any]) -> bool:
        """Whether it covers this record, as JSON."""
        timestamp = trail.get("timestamp")
        at = datetime.fromisoformat(timestamp) if timestamp else None
        return (
            (not self.names or trail.get("end_user") in self.names)
            and (self.query_id is None or trail.get("query_id") == str(self.query_id))
            and (self.client_id is None or trail.get("client_id") == self.client_id)
            and (self.since is None or at is None or at >= self.since)
            and (self.until is None or at is None or at < self.until)
        )

    def criteria(self) -> dict[str, Any]:
        """All of them that are not a name."""
        return {
            "query_id": self.query_id, "client_id": self.client_id, "since": self.since, "until": self.until
        }  # fmt: skip


def check_people(actor: str, approved_by: str | None, named: Sequence[str] = ()) -> None:
    """Names of people or their offices: one line each, nobody who is held, and for a release two different people."""
    people = [actor] if approved_by is None else [actor, approved_by]
    for person in people:
        if not person.strip() or len(person) > ACTOR_CHARACTERS_MAX or not person.isprintable():
            raise ValueError(
                f"Name the person who orders it, in one line of at most {ACTOR_CHARACTERS_MAX} characters."
            )
        if person_key(person) in {person_key(name) for name in named}:
            raise ValueError("The name of the actor is kept forever, so it must not be the reader's.")
    if approved_by is not None and person_key(actor) == person_key(approved_by):
        raise ValueError("Nobody releases a hold alone: --approved-by must name another person than --actor.")


def person_key(name: str) -> str:
    """Equal for two spellings of one name: case, width and spaces do not matter, nor what is not visible."""
    text = unicodedata.normalize("NFKC", name).casefold()
    visible = "".join(each for each in text if unicodedata.category(each) not in {"Cf", "Cc"})
    return re.sub(r"\s+", " ", visible).strip()


def subject_of(names: Sequence[str], salt: bytes) -> str:
    """What stands for the names of a reader, and says nothing once the salt is deleted."""
    return sha256(salt + b"names\x00" + canonical_text(list(names)).encode()).hexdigest()


def signed_line(kind: Kind, key: RowSigner, *, at: datetime, **members: Any) -> dict[str, Any]:
    """The line as JSON, without what is null, and who signed it."""
    line, signer = _plain({"at": at} | members), key.at(at)
    signature = base64.b64encode(signer.sign(_text(kind, line))).decode()
    return line | {"key_id": signer.key_id, "signature": signature}


def is_line_signed(kind: Kind, line: Line, keys: Sequence[PublicKey]) -> bool:
    """Whether one of these keys that counted at its time signed the line. Whoever only owns the database has none of them."""
    try:
        signature = base64.b64decode(line["signature"], validate=True)
    except ValueError:
        return False
    members = _plain({name: value for name, value in line.items() if name not in _SIGNATURE})
    signers = KeyRing.of(keys).named(line["key_id"], line["at"])
    return any(key.verify(signature, _text(kind, members)) for key in signers)


def _text(kind: Kind, members: Mapping[str, Any]) -> bytes:
    return f"affidavit {kind}\n{canonical_text(dict(members))}\n".encode()


def _plain(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _as_json(value) for name, value in members.items() if value is not None}


def _as_json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return str(value) if isinstance(value, UUID) else value
