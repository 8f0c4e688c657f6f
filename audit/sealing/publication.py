"""Publishes the heads of the log of heads: asks the witnesses for their cosignatures, and writes head and cosignatures into the vault.

No lock is held while a witness is asked. A witness that has seen more of this log than there is, or another history of it,
stops the sealer: whoever set database, vault and key back to an older copy could not take the witness along.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from psycopg_pool import AsyncConnectionPool

from audit.errors import NoteError, RollbackError, VaultConflictError
from audit.heads.policy import PolicyWitness, WitnessPolicy
from audit.heads.submission import Meaning, WitnessNetwork, meaning_of, request_body
from audit.heads.vaulted import note_key
from audit.proof.note import SignatureLine, SignedNote, parse_note
from audit.sealing.head_growth import HeadGrowth
from audit.sealing.log_tables import ANCHORING, fetch, put_once, take_lock, transaction
from audit.vault import Vault

ROLLBACK = "This log was set back, or continued from an older copy (rollback)"
_WHAT_TO_DO = "Nothing more is sealed. Bring back the newest database, vault and key; if nothing newer can be found, see docs/how-to/witness.md"
_PUBLISHED = "SELECT coalesce(max(tree_size), 0) FROM audit_head_anchors"
_INSERT = """
INSERT INTO audit_head_anchors (tree_size, note, vault_key, vault_version, has_quorum, anchored_at)
VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Witnessing:
    """Which witnesses are asked, how, and whether a head may be published without a quorum of them."""

    policy: WitnessPolicy
    network: WitnessNetwork
    is_required: bool


@dataclass(slots=True)
class HeadPublication:
    pool: AsyncConnectionPool
    heads: HeadGrowth
    vault: Vault
    clock: Callable[[], datetime]
    witnessing: Witnessing | None = None
    asked: int = 0
    waits_for_quorum: bool = False  # the newest head, because one is required
    failed: int = 0  # requests to witnesses that brought no cosignature
    _known: dict[str, int] = field(
        default_factory=dict
    )  # the size that each witness cosigned last, by address
    _troubles: dict[str, str] = field(default_factory=dict)

    async def check(self) -> None:
        """`RollbackError` if a witness has seen more than there is; before anything is sealed on a server."""
        size, note = await self._newest()
        if size:
            await self._cosignatures(size, parse_note(note))

    async def publish(self, lock: str) -> bool:
        """The newest head with its cosignatures; false if it is published, or if a quorum is required and not there."""
        async with self.pool.connection() as connection:
            size, note = await self.heads.newest(connection)
            ((published,),) = await fetch(connection, _PUBLISHED)
        if size <= published:
            self.waits_for_quorum = False
            return False
        signed = parse_note(note)
        lines = await self._cosignatures(size, signed)
        has_quorum = self._has_quorum(list(lines))
        self.waits_for_quorum = bool(self.witnessing and self.witnessing.is_required and not has_quorum)
        if self.waits_for_quorum:
            return False
        cosigned = SignedNote(signed.text, (*signed.lines, *lines.values()))
        return await self._put(size, cosigned, lock, has_quorum=has_quorum)

    def _has_quorum(self, names: Sequence[str]) -> bool:
        policy = self.witnessing.policy if self.witnessing else None
        return policy is not None and policy.asks_for_cosignatures and policy.is_met_by(names)

    async def _put(self, size: int, note: SignedNote, lock: str, *, has_quorum: bool) -> bool:
        key = note_key(size)
        async with transaction(self.pool) as connection:
            if not await take_lock(connection, lock, ANCHORING):
                return False
            try:
                version = await asyncio.to_thread(self.vault.put, key, str(note).encode())
            except VaultConflictError:
                note, has_quorum = await self._published(key, note)
                version = await put_once(self.vault, key, str(note).encode())
            given = (size, str(note), key, version, has_quorum, self.clock())
            await connection.execute(_INSERT, given)
        return True

    async def _published(self, key: str, note: SignedNote) -> tuple[SignedNote, bool]:
        """Of a sealer that has ended before its commit: the same head, with the cosignatures that it got."""
        content = await asyncio.to_thread(self.vault.get, key)
        try:
            known = parse_note(content.decode(errors="replace"))
            cosigners = self.witnessing.policy.cosigners(known) if self.witnessing else []
        except NoteError as wrong:
            raise RollbackError(f"{key} in the vault cannot be read: {wrong}") from None
        if known.text != note.text:
            raise RollbackError(f"The vault already holds another {key}: {ROLLBACK}. {_WHAT_TO_DO}")
        return known, self._has_quorum(cosigners)

    async def _cosignatures(self, size: int, note: SignedNote) -> dict[str, SignatureLine]:
        """Of all witnesses that answer, by their names in the policy."""
        if self.witnessing is None:
            return {}
        asked = [witness for witness in self.witnessing.policy.witnesses.values() if witness.url]
        meanings = await asyncio.gather(*(self._ask(witness, size, note) for witness in asked))
        lines = {}
        for witness, meaning in zip(asked, meanings, strict=True):
            await self._judge(witness, meaning, size)
            if meaning.line:
                lines[witness.name] = meaning.line
        return lines

    async def _ask(self, witness: PolicyWitness, size: int, note: SignedNote) -> Meaning:
        """A witness that was not asked before is asked as if it had this very head; it answers which one it has."""
        old = min(size, self._known.get(witness.name, size))
        meaning = await self._submit(witness, old, size, note)
        if meaning.kind == "another size" and meaning.size <= size and meaning.size != old:
            # It never cosigned this log, or another sealer was faster. Only asked for its own size it compares the roots.
            meaning = await self._submit(witness, meaning.size, size, note)
        return meaning

    async def _submit(self, witness: PolicyWitness, old: int, size: int, note: SignedNote) -> Meaning:
        assert self.witnessing
        async with self.pool.connection() as connection:
            proof = await self.heads.proof(connection, old, size)
        self.asked += 1
        try:
            reply = await self.witnessing.network.add_checkpoint(witness.url, request_body(old, proof, note))
        except OSError as failure:
            return Meaning("refused", words=f"it does not answer: {failure}")
        return meaning_of(reply, witness, note)

    async def _judge(self, witness: PolicyWitness, meaning: Meaning, size: int) -> None:
        if meaning.kind == "cosigned":
            self._known[witness.name] = size
            return self._note_trouble(witness, "")
        self.failed += 1
        if meaning.kind == "refused" or (meaning.kind == "another size" and meaning.size < size):
            return self._note_trouble(
                witness, meaning.words or f"it asks again and again for size {meaning.size}"
            )
        now = (await self._newest())[0] if meaning.size > size else size
        if now == 0 or now >= meaning.size > size:
            return None  # another sealer of this log was faster, or the server is another one meanwhile
        seen = f"a head of size {meaning.size}" if meaning.size else "another history of it"
        if meaning.size == size:
            seen = f"another head of the same size {size}"
        raise RollbackError(
            f"{ROLLBACK}: the witness {witness.name} has cosigned {seen}, and the last head here is of size {size}. {_WHAT_TO_DO}"
        )

    async def _newest(self) -> tuple[int, str]:
        async with self.pool.connection() as connection:
            return await self.heads.newest(connection)

    def _note_trouble(self, witness: PolicyWitness, words: str) -> None:
        """In the log once when it begins, and once when it is over."""
        before = self._troubles.pop(witness.name, "")
        if words:
            self._troubles[witness.name] = words
        if words and words != before:
            log.warning("The witness %s has not cosigned: %s.", witness.name, words)
        if before and not words:
            log.warning("The witness %s cosigns again.", witness.name)
