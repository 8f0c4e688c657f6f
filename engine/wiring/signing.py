"""Which keys sign: those of a local file, or one elsewhere that signs heads and delegates a key of this process for the rows."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from audit.errors import NoSigningKeyError
from audit.ledger.delegated_keys import DELEGATIONS, DelegatedKeys
from audit.proof.keys import HeadSigner, KeyRing, PublicKey, RowSigner, SigningKey, read_public_keys
from audit.sealing.signers import KnownSigner, find_signers
from engine import signing
from engine.errors import StatementError
from engine.settings import Settings
from engine.storage import database as databases
from engine.storage.database import AUDITOR, Database, reading
from engine.wiring.providers import now, remote_signer_of, vault_of

SHOWN = timedelta(days=31)  # older receipts are checked with the record's proof, which has its delegation
SHOWN_WITHIN_S = 1.0
ENGINE = "affidavit_engine"
FILE = "file"

_ADD = "INSERT INTO public.audit_delegations (line) VALUES (%s) ON CONFLICT DO NOTHING"
_SIGNED_SINCE = (
    "SELECT count(*) FROM audit_logs WHERE substring(signature FROM 1 FOR 4) = %s AND timestamp >= %s"
)
_SHOWN = "SELECT line FROM public.audit_delegations WHERE created_at > %s ORDER BY number"
_KNOWS = "SELECT to_regclass('public.audit_delegations') IS NOT NULL"


class _Place(NamedTuple):
    """What makes two keys elsewhere the same for a process."""

    provider: str
    key: str
    file: Path
    url: str


# One of each for a process: so it asks for the public key once, and has one delegated key at a time.
_heads: dict[_Place, signing.RemoteKey] = {}
_rows: dict[_Place, DelegatedKeys] = {}
_making = Lock()


def head_key(database: Database) -> HeadSigner:
    """Signs heads, breaks and manifests."""
    if database.settings.signing.provider == FILE:
        return _file_key(database)
    with _making:
        return _remote_key(database)


def row_key(database: Database) -> RowSigner:
    """Signs rows, open records, receipts and erasures, without a network."""
    if database.settings.signing.provider == FILE:
        return _file_key(database)
    with _making:
        place = _place(database)
        if place not in _rows:
            keys = DelegatedKeys(_remote_key(database), partial(_publish, database), now)
            keys.start()
            _rows[place] = keys
        return _rows[place]


def signing_s(database: Database) -> float:
    """For how long this process can sign records without the key elsewhere; endless if there is none."""
    keys = _rows.get(_place(database))
    return (keys.holds_until - now()).total_seconds() if keys else float("inf")


def pin_key(settings: Settings) -> bool:
    """Make or pin a new key. False if the key elsewhere is the one that is pinned already."""
    if settings.signing.provider == FILE:
        signing.make_signing_key(settings)
        return True
    return signing.pin_remote_key(settings, remote_signer_of(settings))


def public_keys_of(settings: Settings) -> Callable[[], KeyRing]:
    """Those of the file, which is read again when it has changed: another process may have added a key."""
    return partial(_read_keys, signing.public_keys_file(settings))


def known_keys(database: Database, role: str = AUDITOR) -> KeyRing:
    """Those of the file, and what these have delegated in any process."""
    return public_keys_of(database.settings)().with_delegations(delegations_of(database, role))


def delegations_of(database: Database, role: str = AUDITOR) -> list[str]:
    with reading(database.url, role) as connection:
        if connection.execute(_KNOWS).fetchone() != (True,):
            return []
        return [line for (line,) in connection.execute(DELEGATIONS)]


async def key_texts(settings: Settings, pool: AsyncConnectionPool) -> list[str]:
    """The lines that explain receipts: all pinned keys, and the delegations of the last weeks, if the database answers."""
    ring, since = public_keys_of(settings)(), now() - SHOWN
    if settings.signing.provider != FILE:
        with suppress(psycopg.Error, PoolTimeout):
            async with pool.connection(timeout=SHOWN_WITHIN_S) as connection:
                lines = await (await connection.execute(_SHOWN, (since,))).fetchall()
            ring = ring.with_delegations(line for (line,) in lines)
    shown = {
        key.fingerprint for key in ring
        if (given := key.delegation) and given.until > since and ring.is_row_key(key, given.begin)
    }  # fmt: skip
    return [key.line for key in ring.narrowed(shown)]


def count_signed_since(database: Database, key: PublicKey, at: datetime) -> int:
    with reading(database.url, AUDITOR) as connection:
        ((count,),) = connection.execute(_SIGNED_SINCE, (key.fingerprint, at)).fetchall()
    return int(count)


def signers_of(database: Database) -> list[KnownSigner]:
    """The keys that have signed the log, the newest first."""
    try:
        with psycopg.connect(database.url) as connection:
            return find_signers(connection, vault_of(database.settings))
    except psycopg.Error as failure:
        raise StatementError(
            f"The database does not say who signed this log: {type(failure).__name__}"
        ) from None


def _file_key(database: Database) -> SigningKey:
    return signing.signing_key_of(
        database.settings, lambda: [signer.key_id for signer in signers_of(database)]
    )


def _remote_key(database: Database) -> signing.RemoteKey:
    place, settings = _place(database), database.settings
    if place not in _heads:
        _heads[place] = signing.remote_key_of(settings, remote_signer_of(settings), now())
    return _heads[place]


def _place(database: Database) -> _Place:
    settings = database.settings
    file = signing.public_keys_file(settings)
    return _Place(settings.signing.provider, settings.signing.key, file, database.url)


def _publish(database: Database, key: PublicKey) -> None:
    """Into the file and the database before it signs anything; the sealer brings it into the vault."""
    signing.publish_delegation(database.settings, key)
    try:
        with psycopg.connect(databases.as_role(database.url, ENGINE), connect_timeout=5) as connection:
            connection.execute(_ADD, (key.line,))
    except psycopg.Error as failure:
        raise NoSigningKeyError(
            f"The database did not take the new key's delegation: {type(failure).__name__}"
        ) from None


def _read_keys(file: Path) -> KeyRing:
    try:
        state = file.stat()
    except OSError:
        return read_public_keys(file)  # which says what is wrong
    return _read_once(file, state.st_mtime_ns, state.st_ino)


@lru_cache(maxsize=8)
def _read_once(file: Path, changed_ns: int, inode: int) -> KeyRing:  # noqa: ARG001  they say whether it is the same
    return read_public_keys(file)
