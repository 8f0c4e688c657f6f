"""Whose vault it is. Two logs never share one, and a wrong name must not look like tampering.

Nothing is proven here: this finds a typo in the settings, and a replica with a folder of its own. `verify` finds forgers.
"""

import asyncio
from collections.abc import Iterator, Sequence

from psycopg import AsyncConnection

from audit.anchored import AnchorSource, list_anchors, note_key, read
from audit.errors import NoteError, WrongVaultError
from audit.proof.checkpoint import open_note
from audit.proof.keys import PublicKey
from audit.vault import Vault

_ORIGIN = "SELECT origin FROM public.audit_origin"
_RECENT = "SELECT vault_key FROM public.audit_anchors ORDER BY month DESC, tree_size DESC LIMIT 10"
WHAT_TO_DO = (
    "Name the vault that the log was anchored in (providers.vault, archive.bucket, archive.prefix or the data folder), or copy that one"
    " into this one with `affidavit vault copy`"
)


async def check_vault(connection: AsyncConnection, vault: Vault, *, may_begin: bool = False) -> bool:
    """Whether it holds an anchor of this log. `WrongVaultError` if it does not, and must: nobody's will do for a log that has none."""
    ((origin,),) = await (await connection.execute(_ORIGIN)).fetchall()
    recent = [key for (key,) in await (await connection.execute(_RECENT)).fetchall()]
    found = await asyncio.to_thread(_origins, vault, origin, recent)
    if origin in found:
        return True
    if found:
        raise WrongVaultError(
            f"This vault holds the anchors of another log: nothing is written into it. {WHAT_TO_DO}"
        )
    if recent and not may_begin:
        raise WrongVaultError(
            "The log was anchored before, and this vault holds none of its anchors: it is another one, or it was emptied, so nothing is"
            f" written into it. {WHAT_TO_DO}. If that one is lost for good: `affidavit audit seal --new-vault REASON`"
        )
    return False


def is_signed_by(vault: AnchorSource, keys: Sequence[PublicKey]) -> bool:
    """Whether the newest anchor of any month is signed by one of these keys."""
    for note in _newest_notes(vault):
        try:
            open_note(note.decode(errors="replace"), keys)
        except NoteError:
            continue
        return True
    return False


def _origins(vault: AnchorSource, wanted: str, recent: Sequence[str]) -> set[str]:
    """The logs that the vault's anchors name. Those that should be there are looked for first, because a listing may be long."""
    for key in recent:
        try:
            if _origin(read(vault, key)) == wanted:
                return {wanted}
        except FileNotFoundError:
            continue
    return {_origin(note) for note in _newest_notes(vault)}


def _newest_notes(vault: AnchorSource) -> Iterator[bytes]:
    for anchors in list_anchors(vault).values():
        for branch, sizes in anchors.sizes.items():
            yield read(vault, note_key(anchors.month, max(sizes), branch))


def _origin(note: bytes) -> str:
    """As the note says: its first line is the log's name and the month."""
    return note.split(b"\n", 1)[0].decode(errors="replace").rpartition("/")[0]
