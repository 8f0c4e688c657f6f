"""Keys elsewhere: AWS KMS by its own SDK and Transit over HTTP, in all the ways in which they do not sign."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from audit.errors import NoSigningKeyError
from audit.proof.keys import SIGNED_BYTES_MAX, PublicKey, SigningKey, public_file, read_public_keys
from engine import settings as settings_file
from engine import signing
from engine.errors import ConfigurationError
from engine.providers import signing_kms, signing_transit
from engine.settings import Settings
from engine.wiring.providers import now
from tests.proofs import KEY, ROTATED
from tests.upstreams.signing.kms import KEY_ID, Kms, kms
from tests.upstreams.signing.transit import NAME, TOKEN, Transit, transit

TIMEOUT_S = 0.5
SECRETS = ("123456789012", "a-token", "127.0.0.1")


def settings_of(folder: Path, **signing_table: Any) -> Settings:
    names = {f"AFFIDAVIT_SIGNING__{name.upper()}": str(value) for name, value in signing_table.items()}
    return settings_file.load(names | {"AFFIDAVIT_SIGNING__TIMEOUT_S": str(TIMEOUT_S)}, data_dir=folder)


@dataclass
class House:
    settings: Settings
    server: Any

    @property
    def signer(self) -> Any:
        module = signing_kms if self.settings.signing.provider == "kms" else signing_transit
        return module.signer(self.settings)

    def key(self) -> signing.RemoteKey:
        return signing.remote_key_of(self.settings, self.signer, now())

    @property
    def file(self) -> Path:
        return signing.public_keys_file(self.settings)


@pytest.fixture
def at_kms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    for name, value in {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "secret", "REGION": "eu-central-1", "DEFAULT_REGION": "eu-central-1"}.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    with kms(KEY) as (url, server):
        monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", url)
        yield House(settings_of(tmp_path, provider="kms", key=KEY_ID), server)


@pytest.fixture
def at_transit(tmp_path: Path) -> Iterator[House]:
    with transit(KEY) as (url, server):
        yield House(settings_of(tmp_path, provider="transit", key=NAME, address=url, token=TOKEN), server)


@pytest.fixture(params=["kms", "transit"])
def house(request: pytest.FixtureRequest) -> House:
    made: House = request.getfixturevalue(f"at_{request.param}")
    return made


def test_what_it_signs_verifies_under_the_pinned_key(house: House) -> None:
    assert signing.pin_remote_key(house.settings, house.signer)
    key = house.key()
    assert key.public == KEY.public
    for message in (b"x", b"affidavit/1/2026-11\n7\n", bytes(SIGNED_BYTES_MAX), bytes(3 * SIGNED_BYTES_MAX)):
        assert key.public.verify(key.sign(message), message)


def test_nothing_is_signed_with_a_key_that_is_not_pinned(house: House) -> None:
    with pytest.raises(ConfigurationError, match="audit key --new"):
        house.key()
    SigningKey.create(house.settings.data_dir / "signing.key")
    with pytest.raises(ConfigurationError, match="pins no key of") as failed:
        house.key()
    assert str(KEY.public) in str(failed.value)


def test_nothing_is_signed_with_a_revoked_key(house: House) -> None:
    signing.pin_remote_key(house.settings, house.signer)
    house.file.write_text(PublicKey(KEY.public.raw, revoked_at=now()).line + "\n")
    with pytest.raises(ConfigurationError, match="revoked"):
        house.key()


def test_a_key_is_pinned_once_and_behind_those_of_before(house: House) -> None:
    before = SigningKey.create(house.settings.data_dir / "signing.key")
    assert signing.pin_remote_key(house.settings, house.signer)
    assert not signing.pin_remote_key(house.settings, house.signer)
    assert read_public_keys(public_file(house.settings.data_dir / "signing.key")) == [
        before.public,
        KEY.public,
    ]


# Seen red with a `RemoteKey.sign` that returns what came back.
def test_a_wrong_signature_is_not_used(house: House) -> None:
    signing.pin_remote_key(house.settings, house.signer)
    key = house.key()
    for spoiled in (ROTATED.sign(b"x"), KEY.sign(b"y"), b"short", bytes(64), KEY.sign(b"x") + b"\0"):
        house.server.spoil = spoiled
        with pytest.raises(NoSigningKeyError, match="not one of"):
            key.sign(b"x")
    house.server.spoil = b""
    assert key.public.verify(key.sign(b"x"), b"x")


def test_a_key_that_hangs_is_given_up_in_time(house: House) -> None:
    signing.pin_remote_key(house.settings, house.signer)
    key = house.key()
    house.server.hangs = True
    began_s = time.monotonic()
    with pytest.raises(NoSigningKeyError, match="did not answer") as failed:
        key.sign(b"x")
    assert time.monotonic() - began_s < TIMEOUT_S + 2
    assert not any(secret in str(failed.value) for secret in SECRETS)


KMS_REFUSALS = {
    "ThrottlingException": "throttled", "KMSInternalException": "did not sign", "AccessDeniedException": "kms:Sign",
    "DisabledException": "disabled", "KMSInvalidStateException": "disabled", "NotFoundException": "no such key",
    "DependencyTimeoutException": "did not sign", "InvalidKeyUsageException": "no signing key",
}  # fmt: skip


@pytest.mark.parametrize(("code", "words"), KMS_REFUSALS.items(), ids=list(KMS_REFUSALS))
def test_kms_refuses_in_our_words(at_kms: House, code: str, words: str) -> None:
    signing.pin_remote_key(at_kms.settings, at_kms.signer)
    key = at_kms.key()
    server: Kms = at_kms.server
    server.refusal = code
    with pytest.raises(NoSigningKeyError, match=words) as failed:
        key.sign(b"x")
    assert not any(secret in str(failed.value) for secret in SECRETS)
    assert server.calls.count("TrentService.Sign") == 1  # whoever needs it tries again, in the background


@pytest.mark.parametrize("spec", ["ECC_NIST_P256", "RSA_2048", "SYMMETRIC_DEFAULT"])
def test_kms_with_a_key_of_another_type_is_refused(at_kms: House, spec: str) -> None:
    at_kms.server.spec = spec
    with pytest.raises(ConfigurationError, match="ECC_NIST_EDWARDS25519"):
        at_kms.signer.public_keys()


TRANSIT_REFUSALS = {
    403: "token",
    429: "throttled",
    500: "status 500",
    503: "sealed",
    404: "no key",
    301: "status 301",
}


@pytest.mark.parametrize(("status", "words"), TRANSIT_REFUSALS.items(), ids=map(str, TRANSIT_REFUSALS))
def test_transit_refuses_in_our_words(at_transit: House, status: int, words: str) -> None:
    signing.pin_remote_key(at_transit.settings, at_transit.signer)
    key = at_transit.key()
    at_transit.server.status = status
    with pytest.raises(NoSigningKeyError, match=words) as failed:
        key.sign(b"x")
    assert not any(secret in str(failed.value) for secret in SECRETS)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"data": 1}', b'{"data": {}}', b'{"data": {"signature": "vault:v1:%%"}}', b"\xff" * 50])  # fmt: skip
def test_transit_that_answers_nonsense_signs_nothing(at_transit: House, content: bytes) -> None:
    signing.pin_remote_key(at_transit.settings, at_transit.signer)
    key = at_transit.key()
    at_transit.server.content = content or b" "
    with pytest.raises(NoSigningKeyError, match="did not answer"):
        key.sign(b"x")


def test_transit_with_a_key_of_another_type_is_refused(at_transit: House) -> None:
    at_transit.server.kind = "ecdsa-p256"
    with pytest.raises(ConfigurationError, match="type ed25519"):
        at_transit.signer.public_keys()


# Seen red with a `key_version` that is not sent: Transit then signs with its newest version.
def test_a_rotation_in_transit_changes_nothing_until_it_is_pinned(at_transit: House) -> None:
    signing.pin_remote_key(at_transit.settings, at_transit.signer)
    server: Transit = at_transit.server
    running = at_transit.key()
    server.versions.append(ROTATED)
    assert running.public.verify(running.sign(b"x"), b"x")
    assert at_transit.key().public == KEY.public
    assert signing.pin_remote_key(at_transit.settings, at_transit.signer)
    assert at_transit.key().public == ROTATED.public
    assert at_transit.key().public.verify(at_transit.key().sign(b"x"), b"x")


def test_an_agent_renews_the_token_in_its_file(at_transit: House, tmp_path: Path) -> None:
    sink = tmp_path / "token"
    sink.write_text(f"{TOKEN}\n")
    address = at_transit.settings.signing.address
    settings = settings_of(tmp_path, provider="transit", key=NAME, address=address, token_file=sink)
    signing.pin_remote_key(settings, signing_transit.signer(settings))
    key = signing.remote_key_of(settings, signing_transit.signer(settings), now())
    at_transit.server.token = "hvs.renewed"
    with pytest.raises(NoSigningKeyError, match="expired"):
        key.sign(b"x")
    sink.write_text("hvs.renewed")
    assert key.public.verify(key.sign(b"x"), b"x")
    sink.unlink()
    with pytest.raises(NoSigningKeyError, match="token_file cannot be read"):
        key.sign(b"x")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"provider": "kms"}, "needs signing.key"),
        ({"provider": "transit", "key": "a"}, "needs signing.address"),
        ({"provider": "transit", "key": "a", "address": "vault:8200"}, "must be a URL"),
        ({"provider": "smartcard"}, "provider"),
        ({"provider": "kms", "key": "a", "timeout_s": 60}, "timeout_s"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        settings_file.load(
            {f"AFFIDAVIT_SIGNING__{name.upper()}": str(value) for name, value in table.items()},
            data_dir=tmp_path,
        )
