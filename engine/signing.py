"""Signing key policy: where the keys are, when one is made, and when the engine refuses to sign.

A signature that no published key explains could not be checked, so a key that its public file lacks is refused at start.
A log that others have signed gets no new identity by itself: whoever lost its key must say so.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from errno import EACCES, EPERM, EROFS
from pathlib import Path

from audit.errors import KeyFileError, NoSigningKeyError
from audit.proof.keys import (
    SIGNED_BYTES_MAX,
    KeyRing,
    PublicKey,
    SigningKey,
    add_public_key,
    digest_text,
    public_file,
    read_public_keys,
    revoke,
)
from engine.errors import ConfigurationError
from engine.ports import RemoteSigner
from engine.settings import Settings

HINT = "To make one, run `affidavit audit key --new`."


class RemoteKey:
    """A key elsewhere, as far as it is pinned in our public file. Each signature is checked before it is used."""

    def __init__(self, signer: RemoteSigner, public: PublicKey) -> None:
        self._signer = signer
        self.public = public

    @property
    def key_id(self) -> str:
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        short = message if len(message) <= SIGNED_BYTES_MAX else digest_text(message)
        try:
            signature = self._signer.sign(short, self.public.raw)
        except ConfigurationError as wrong:  # it was right at start: who set it up may put it right again
            raise NoSigningKeyError(str(wrong)) from None
        if not self.public.verify(signature, message):
            raise NoSigningKeyError(
                f"The signature that came back is not one of {self.key_id}: it is not used."
            )
        return signature


def remote_key_of(settings: Settings, signer: RemoteSigner, now: datetime) -> RemoteKey:
    """The newest pinned key that it signs with. What it says of itself pins nothing."""
    offered = signer.public_keys()
    try:
        pinned = read_public_keys(public_keys_file(settings)).head_keys(now)
    except KeyFileError as wrong:
        raise ConfigurationError(
            f"{wrong} To pin the key of signing.key there, run `affidavit audit key --new`."
        ) from None
    for key in reversed(pinned):
        if key.raw in offered:
            return RemoteKey(signer, PublicKey(key.raw))
    raise ConfigurationError(
        f"{public_keys_file(settings)} pins no key of {settings.signing.provider}, or only revoked ones, so its signatures"
        f" could not be checked. Its key is {PublicKey(offered[-1])}. If that is right, run `affidavit audit key --new`."
    )


def pin_remote_key(settings: Settings, signer: RemoteSigner) -> bool:
    """The newest key becomes the last line of the public file; false if it is there already."""
    key = PublicKey(signer.public_keys()[-1])
    file = public_keys_file(settings)
    if file.exists() and key.raw in {known.raw for known in read_public_keys(file)}:
        return False
    add_public_key(_private_file(settings), key)
    return True


def signing_key_of(settings: Settings, signers: Callable[[], Sequence[str]]) -> SigningKey:
    """The embedded default makes its key at first use; elsewhere an operator makes one key for all replicas.

    `signers` finds the ids of the keys that have signed this log. It is called only if there is no key.
    """
    path = _private_file(settings)
    if not path.exists() and (found := signers()) and not path.exists():  # another process may have made it
        raise ConfigurationError(
            f"The signing key {path} is missing, but this log was signed by {', '.join(found)}. Restore {path.name}"
            f" and {path.name}.pub from their backup. If the key is lost for good, run `affidavit audit key --new`,"
            " which says what is lost with it."
        )
    try:
        is_given = bool(settings.database.url.get_secret_value())
        key = SigningKey.load(path) if is_given else SigningKey.ensured(path)
        known = read_public_keys(public_file(path))
    except KeyFileError as wrong:
        raise ConfigurationError(f"{wrong} {HINT}") from None
    if revoked := [line for line in known if line.raw == key.public.raw and line.revoked_at]:
        raise ConfigurationError(
            f"{public_file(path)} says: {revoked[0].line}. Nothing is signed with a revoked key. {HINT}"
        )
    if key.public not in known:
        raise ConfigurationError(
            f"{public_file(path)} does not list the public key of {path}, so its signatures could not be checked."
            f" Restore the file, or add this line: {key.public}"
        )
    return key


def make_signing_key(settings: Settings) -> SigningKey:
    """Rotation: a new key replaces the old one, whose signatures stay verifiable."""
    try:
        return SigningKey.rotate(_private_file(settings))
    except KeyFileError as wrong:
        raise ConfigurationError(str(wrong)) from None


def has_signing_key(settings: Settings) -> bool:
    path = _private_file(settings)
    is_here = path.exists() or settings.signing.provider != "file"
    return is_here and public_file(path).exists()


def public_keys_file(settings: Settings) -> Path:
    """The file beside the private key. It is outside the database, so that access to the database alone cannot add a key."""
    return public_file(_private_file(settings))


def revoke_key(settings: Settings, key_id: str, at: datetime, delegations: Sequence[str]) -> PublicKey:
    """A delegated key's delegation comes into the file first: alone, the line that revokes it would pin it until then."""
    path = _private_file(settings)
    try:
        for line in KeyRing.of(read_public_keys(public_file(path))).with_delegations(delegations):
            if line.key_id == key_id and line.delegation:
                add_public_key(path, line)
        known = read_public_keys(public_file(path))
        in_use = (
            SigningKey.load(path).key_id if settings.signing.provider == "file" else known.pinned[-1].key_id
        )
        if key_id == in_use:
            raise ConfigurationError(
                f"{key_id} is the key in use. Replace it first: `affidavit audit key --new`."
            )
        return revoke(path, key_id, at)
    except KeyFileError as wrong:
        raise ConfigurationError(str(wrong)) from None


def publish_delegation(settings: Settings, key: PublicKey) -> None:
    """Append the line of a delegated key to the public file, before the key signs anything.

    A file that nobody here may write, such as a mounted secret, stays as it is: the database and the vault have the line too.
    """
    try:
        add_public_key(_private_file(settings), key)
    except OSError as failure:
        if failure.errno not in {EACCES, EPERM, EROFS}:
            raise NoSigningKeyError(
                f"{public_keys_file(settings)} cannot be written: {failure.strerror}"
            ) from None


def _private_file(settings: Settings) -> Path:
    return settings.data_dir / settings.audit.signing_key_file
