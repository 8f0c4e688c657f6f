"""Signing key policy: where the keys are, when one is made, and when the engine refuses to sign.

A signature that no published key explains could not be checked, so a key that its public file lacks is refused at start.
A log that others have signed gets no new identity by itself: whoever lost its key must say so.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from audit.errors import KeyFileError
from audit.proof.keys import SigningKey, public_file, read_public_keys
from engine.errors import ConfigurationError
from engine.settings import Settings


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
        raise ConfigurationError(f"{wrong} To make one, run `affidavit audit key --new`.") from None
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
    return path.exists() and public_file(path).exists()


def public_keys_file(settings: Settings) -> Path:
    """The file beside the private key. It is outside the database, so that access to the database alone cannot add a key."""
    return public_file(_private_file(settings))


def public_keys_of(settings: Settings) -> list[str]:
    return [str(key) for key in read_public_keys(public_keys_file(settings))]


def _private_file(settings: Settings) -> Path:
    return settings.data_dir / settings.audit.signing_key_file
