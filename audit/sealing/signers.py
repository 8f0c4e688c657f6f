"""The keys that have signed a log, by the account of its database and of its vault. Nothing is verified here."""

from dataclasses import dataclass

import psycopg

from audit.anchored import list_anchors
from audit.errors import NoteError
from audit.proof.checkpoint import signer_of
from audit.vault import Vault

_KNOWN = "SELECT to_regclass('public.audit_keys') IS NOT NULL"
_KEYS = "SELECT key_id, public_key FROM public.audit_keys ORDER BY created_at DESC"
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
