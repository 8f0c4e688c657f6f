"""One request to a witness, judged: `add-checkpoint` of C2SP's tlog-witness."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import NoteError
from audit.heads.head import LogHead, parse_head
from audit.heads.vkey import COSIGNER, VerifierKey, cosign
from audit.proof.merkle import EMPTY_ROOT, HASH_BYTES, is_consistent
from audit.proof.note import SignedNote, of_base64, parse_note
from audit.witness.memory import WitnessMemory

HASHES_MAX = 63
_TEXT, _SIZE = "text/plain; charset=utf-8", "text/x.tlog.size"
_REQUEST = re.compile(
    r"old (?P<old>0|[1-9][0-9]{0,17})\n(?P<hashes>(?:[A-Za-z0-9+/]+=*\n)*)\n(?P<note>.*)", re.DOTALL
)

log = logging.getLogger(__name__)


class Response(NamedTuple):
    status: int
    text: str
    content_type: str = _TEXT


class Submission(NamedTuple):
    old: int
    proof: list[bytes]
    note: SignedNote
    head: LogHead


@dataclass(frozen=True, slots=True)
class Witness:
    name: str
    key: Ed25519PrivateKey
    logs: Mapping[str, Sequence[VerifierKey]]  # the keys that may sign for each origin
    memory: WitnessMemory
    clock: Callable[[], datetime]

    def add_checkpoint(self, body: bytes) -> Response:
        """Cosigns the head, if the log has only grown since the last one. It is on disk before the signature exists."""
        try:
            given = _parsed(body)
        except NoteError as wrong:
            return Response(400, f"{wrong}\n")
        if given.head.origin not in self.logs:
            return Response(404, "This witness does not know the log of this origin.\n")
        try:
            given.note.require_signer(self.logs[given.head.origin])
        except NoteError as wrong:
            return Response(403, f"{wrong}\n")
        if given.old > given.head.size:
            return Response(400, "The old size is larger than the checkpoint's.\n")
        with self.memory.alone():
            return self._refusal(given) or self._cosigned(given)

    @property
    def public(self) -> VerifierKey:
        return VerifierKey(self.name, COSIGNER, self.key.public_key().public_bytes_raw())

    def _refusal(self, given: Submission) -> Response | None:
        stored = self.memory.last(given.head.origin)
        known = parse_head(parse_note(stored).text) if stored else LogHead(given.head.origin, 0, EMPTY_ROOT)
        if stored and given.head.size == known.size and given.head.root != known.root:
            self.memory.keep_fork(given.head.origin, stored, str(given.note))
            log.error("%s has forked: two heads of size %d are kept", known.origin, known.size)
            return Response(409, f"{known.size}\n", _SIZE)
        if given.old != known.size:
            return Response(409, f"{known.size}\n", _SIZE)
        if not is_consistent(given.old, given.head.size, known.root, given.head.root, given.proof):
            return Response(422, "The proof does not lead from the last cosigned head to this one.\n")
        return None

    def _cosigned(self, given: Submission) -> Response:
        self.memory.keep(given.head.origin, str(given.note))
        return Response(200, str(cosign(given.note.text, self.key, self.name, self.clock())))


def _parsed(body: bytes) -> Submission:
    try:
        found = _REQUEST.fullmatch(body.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise NoteError(
            "Send “old <size>”, the hashes of the consistency proof, an empty line, the checkpoint"
        )
    proof = [of_base64(line) for line in found["hashes"].splitlines()]
    if len(proof) > HASHES_MAX or any(len(part) != HASH_BYTES for part in proof):
        raise NoteError(f"A consistency proof has at most {HASHES_MAX} hashes of {HASH_BYTES} bytes")
    note = parse_note(found["note"])
    return Submission(int(found["old"]), proof, note, parse_head(note.text))
