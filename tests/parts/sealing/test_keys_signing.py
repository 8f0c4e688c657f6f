"""The signing key's file: nobody else's eyes, never overwritten, one key whoever comes first, and no public key lost."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from audit.errors import KeyExistsError, KeyFileError
from audit.proof.keys import PublicKey, SigningKey, public_file, read_public_keys
from engine import settings as settings_file
from engine import signing
from engine.errors import ConfigurationError
from tests.command_line import affidavit
from tests.conftest import ROOT

RACERS = 6

RACING = """
import sys
from pathlib import Path
from audit.proof.keys import SigningKey
sys.stdin.read()
print(SigningKey.ensured(Path(sys.argv[1])).public)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "signing.key"


def test_only_its_owner_can_read_it(path: Path) -> None:
    os.umask(0o000)
    try:
        key = SigningKey.create(path)
    finally:
        os.umask(0o022)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_public_keys(public_file(path)) == [key.public]
    assert SigningKey.load(path).public == key.public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o602])
def test_a_key_that_others_can_reach_is_refused(path: Path, mode: int) -> None:
    SigningKey.create(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        SigningKey.load(path)


def test_a_key_is_never_overwritten(path: Path) -> None:
    key = SigningKey.create(path)
    with pytest.raises(KeyExistsError):
        SigningKey.create(path)
    assert SigningKey.load(path).public == key.public


def test_a_rotation_replaces_the_private_key_and_keeps_every_public_one(path: Path) -> None:
    keys = [SigningKey.create(path), SigningKey.rotate(path), SigningKey.rotate(path)]
    assert SigningKey.load(path).public == keys[-1].public
    assert read_public_keys(public_file(path)) == [key.public for key in keys]
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "signing.key",
        "signing.key.lock",
        "signing.key.pub",
    ]


# Seen red with `create` without its lock: each racer had a key of its own, and the public file lacked some.
def test_processes_that_make_it_at_once_get_one_key(path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACING, str(path)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(RACERS)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
        racer.stdin = None
    said = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert said == {str(key) for key in read_public_keys(public_file(path))}
    assert len(said) == 1


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PRIVATE KEY-----\n", b"\x00" * 32])
def test_a_damaged_file_is_said_so(path: Path, content: bytes) -> None:
    SigningKey.create(path)
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match="Ed25519"):
        SigningKey.load(path)


def test_a_key_of_another_kind_is_refused(path: Path) -> None:
    other = generate_private_key(SECP256R1())
    path.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="Ed25519"):
        SigningKey.load(path)


def test_a_missing_file_is_said_so(path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"signing\.key"):
        SigningKey.load(path)
    with pytest.raises(KeyFileError, match=r"signing\.key\.pub"):
        read_public_keys(public_file(path))


def test_an_empty_public_file_verifies_nothing_and_says_so(path: Path) -> None:
    path.write_text("")
    with pytest.raises(KeyFileError, match="no public key"):
        read_public_keys(path)


def test_a_signature_is_checked_by_the_public_key_alone(path: Path) -> None:
    key, other = SigningKey.create(path), SigningKey.rotate(path)
    signature = key.sign(b"one")
    public = PublicKey.of(str(key.public))
    assert public.verify(signature, b"one")
    assert not public.verify(signature, b"two")
    assert not public.verify(signature[:-1], b"one")
    assert not other.public.verify(signature, b"one")


# RFC 8032's key of the all-zero seed would do as well as any; its id: `printf 'affidavit\n\x01…' | openssl sha256`.
def test_the_text_of_a_public_key_is_a_verifier_key_of_signed_notes() -> None:
    raw = bytes.fromhex("3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29")
    text = "affidavit+3b7710c9+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
    assert str(PublicKey(raw)) == text
    assert PublicKey.of(text) == PublicKey(raw)
    assert PublicKey(raw).key_id == text[: text.rindex("+")]


def test_a_public_key_is_written_in_one_way_only(path: Path) -> None:
    text = str(SigningKey.create(path).public)
    name, key_id, key = text.split("+", 2)
    wrong = [
        "", text + "\n", " " + text, text + "=", text[:-1], f"{name}+{key_id.upper()}x+{key}", f"other+{key_id}+{key}",
        f"{name}+00000000+{key}", f"{name}+{key_id}+{key[:-4]}", f"{name}+{key_id}+Ag{key[2:]}", f"{name}+{key_id}",
    ]  # fmt: skip
    for other in wrong:
        with pytest.raises(ValueError, match="Not a public key"):
            PublicKey.of(other)


def test_the_embedded_default_makes_its_key_at_first_use(tmp_path: Path) -> None:
    settings = settings_file.load({}, data_dir=tmp_path)
    key = signing.signing_key_of(settings, list)
    assert signing.signing_key_of(settings, list).public == key.public
    assert read_public_keys(signing.public_keys_file(settings)) == [key.public]


def test_with_a_database_of_its_own_a_missing_key_is_not_made_behind_the_operators_back(
    tmp_path: Path,
) -> None:
    """Each replica would make one, and their receipts would need as many public files."""
    settings = settings_file.load({"DATABASE_URL": "postgresql:///elsewhere"}, data_dir=tmp_path)
    with pytest.raises(ConfigurationError, match="affidavit audit key --new"):
        signing.signing_key_of(settings, list)
    made = signing.make_signing_key(settings)
    assert signing.signing_key_of(settings, list).public == made.public


def test_a_key_that_no_public_file_lists_signs_nothing(tmp_path: Path) -> None:
    settings = settings_file.load({}, data_dir=tmp_path)
    key = signing.make_signing_key(settings)
    file = signing.public_keys_file(settings)
    file.write_text(f"{SigningKey.create(tmp_path / 'other.key').public}\n")
    with pytest.raises(ConfigurationError, match="add this line"):
        signing.signing_key_of(settings, list)
    file.write_text(f"{file.read_text()}{key.public}\n")
    assert signing.signing_key_of(settings, list).public == key.public


def test_the_command_prints_every_public_key_and_makes_the_next_one(tmp_path: Path) -> None:
    assert "audit key --new" in affidavit("audit", "key", data_dir=tmp_path).stderr
    (first,) = affidavit("audit", "key", "--new", data_dir=tmp_path).stdout.splitlines()
    said = affidavit("audit", "key", "--new", "--json", data_dir=tmp_path)
    keys = json.loads(said.stdout)
    assert keys[0] == first
    assert keys[1] == str(SigningKey.load(tmp_path / "signing.key").public)
    assert affidavit("audit", "key", data_dir=tmp_path).stdout.splitlines() == keys
