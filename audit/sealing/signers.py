"""The keys that have signed a log, by the account of its database and of its vault. Nothing is verified here."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from audit.anchored import list_anchors
from audit.errors import NoteError
from audit.proof.checkpoint import open_note, signer_of
from audit.proof.keys import PublicKey
from audit.vault import Vault

_KNOWN = "SELECT to_regclass('public.audit_keys') IS NOT NULL"
_KEYS = "SELECT key_id, public_key FROM public.audit_keys ORDER BY created_at DESC"
_ORIGIN = "SELECT origin FROM public.audit_origin"
_NEWEST = "SELECT note FROM public.audit_checkpoints ORDER BY month DESC, tree_size DESC LIMIT 1"


@dataclass(frozen=True, slots=True)
class KnownSigner:
    key_id: str
    public_key: str  # as the database has it, which is no proof; empty if it does not have it
    is_newest: bool  # whether it signed the newest checkpoint, or the newest anchor in the vault


def find_signers(connection: psycopg.Connection, vault: Vault) -> list[KnownSigner]:
    """Whose signatures the log has, the newest key first. A key that signed nothing is not among them."""
    named: dict[str, str] = {}
    notes = _newest_anchors(vault)
    if connection.execute(_KNOWN).fetchone() == (True,):
        named = dict(connection.execute(_KEYS).fetchall())
        notes += [note for (note,) in connection.execute(_NEWEST)]
    newest = [key_id for note in notes if (key_id := _signer(note))]
    return [
        KnownSigner(key_id, named.get(key_id, ""), key_id in newest)
        for key_id in dict.fromkeys([*newest, *named])
    ]


def identity_doubts(connection: psycopg.Connection, vault: Vault, public: Sequence[PublicKey]) -> list[str]:
    """What the database says of the log's name and keys that its signed heads, or the file of public keys, do not say."""
    stored = {name for (name,) in connection.execute(_ORIGIN)}
    signed = {origin for note in _newest_anchors(vault) if (origin := _origin(note, public))}
    doubts = []
    if signed and stored != signed:
        said = ", ".join(sorted(stored)) or "nothing"
        doubts.append(f"audit_origin says {said}, but the vault's newest head is of {', '.join(signed)}")
    listed = {key.key_id: str(key) for key in public}
    for signer in find_signers(connection, vault):
        if signer.is_newest and not signer.public_key:
            doubts.append(f"audit_keys lacks {signer.key_id}, which signed the newest head")
        elif signer.public_key and signer.public_key != listed.get(signer.key_id):
            doubts.append(f"audit_keys has {signer.public_key}, which the file of public keys does not list")
    return doubts


def _origin(note: str, public: Sequence[PublicKey]) -> str:
    try:
        return open_note(note, public).origin
    except NoteError:
        return ""


def _newest_anchors(vault: Vault) -> list[str]:
    months = list_anchors(vault)
    chains = [months[month].chain() for month in sorted(months)]
    newest = [chain.key(chain.sizes[-1]) for chain in chains if chain.sizes][-1:]
    return [vault.get(key).decode(errors="replace") for key in newest]


def _signer(note: str) -> str:
    """Empty for a note that is none: `affidavit audit verify` reports it."""
    try:
        return signer_of(note)
    except NoteError:
        return ""
