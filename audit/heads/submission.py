"""C2SP's tlog-witness, the log's side: what is sent to a witness, and what its reply means. Pure."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, NamedTuple, Protocol

from audit.errors import NoteError
from audit.heads.policy import PolicyWitness
from audit.proof.note import SignatureLine, SignedNote, parse_signatures, to_base64

REPLY_BYTES_MAX = 65_536  # a note with a hundred signatures

_SIZE = re.compile(r"(0|[1-9][0-9]{0,17})\n")


class WitnessReply(NamedTuple):
    status: int
    text: str


class WitnessNetwork(Protocol):
    """Port: reaches witnesses. `OSError` if one does not answer in time; one call per address at a time."""

    async def add_checkpoint(self, url: str, body: bytes) -> WitnessReply: ...

    async def last_note(self, url: str, origin: str) -> WitnessReply:
        """Ours have it at /checkpoint/<hash of the origin>; the standard says nothing of it."""
        ...


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of a reply: a cosignature, the size of the last head that the witness cosigned, or neither."""

    kind: Literal["cosigned", "another size", "another history", "refused"]
    line: SignatureLine | None = None
    size: int = 0
    words: str = ""


def request_body(old: int, proof: Iterable[bytes], note: SignedNote) -> bytes:
    hashes = "".join(f"{to_base64(part)}\n" for part in proof)
    return f"old {old}\n{hashes}\n{note}".encode()


def meaning_of(reply: WitnessReply, witness: PolicyWitness, note: SignedNote) -> Meaning:
    """A cosignature is verified before anybody keeps it."""
    if reply.status == HTTPStatus.OK:
        return _cosignature(reply.text, witness, note)
    if reply.status == HTTPStatus.CONFLICT and (found := _SIZE.fullmatch(reply.text)):
        return Meaning("another size", size=int(found[1]))
    if reply.status == HTTPStatus.UNPROCESSABLE_ENTITY:
        return Meaning("another history")
    return Meaning("refused", words=_WORDS.get(reply.status, f"it answers with status {reply.status}"))


def _cosignature(text: str, witness: PolicyWitness, note: SignedNote) -> Meaning:
    try:
        lines = _of(witness, parse_signatures(text))
        signers = SignedNote(note.text, lines).signers([witness.key])
    except NoteError as wrong:
        return Meaning("refused", words=f"its reply cannot be used: {wrong}")
    if not signers:
        return Meaning("refused", words="it signs with another key than the policy has")
    return Meaning("cosigned", line=lines[0])


def _of(witness: PolicyWitness, lines: Sequence[SignatureLine]) -> tuple[SignatureLine, ...]:
    """Signatures of other keys are ignored."""
    wanted = (witness.key.name, witness.key.fingerprint)
    return tuple(line for line in lines if (line.name, line.key_id) == wanted)


_WORDS: dict[int, str] = {
    HTTPStatus.NOT_FOUND: "it does not know this log: give it the log's key, which `affidavit audit key --for-witness` prints",
    HTTPStatus.FORBIDDEN: "it does not know the key that signs: give it the new key too, which `affidavit audit key --for-witness` prints",
    HTTPStatus.BAD_REQUEST: "it does not understand the request",
}
