"""A key in a PKCS#11 token, with a real module (SoftHSM)."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.errors import NoSigningKeyError
from engine import settings as settings_file
from engine import signing
from engine.errors import ConfigurationError
from engine.providers import signing_pkcs11
from engine.settings import Settings
from engine.wiring.providers import now
from tests.upstreams.signing import softhsm

Key = signing_pkcs11.Pkcs11Key


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    softhsm.skip_without()
    folder = tmp_path_factory.mktemp("softhsm")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        softhsm.token(folder)
        yield


def key(**given: Any) -> Key:
    fields = {
        "module": str(softhsm.MODULE),
        "token_label": softhsm.TOKEN,
        "key": softhsm.LABEL,
        "pin": softhsm.PIN,
    }
    return Key(**(fields | {"timeout_s": 2.0} | given))


def settings_of(folder: Path) -> Settings:
    table = {
        "PROVIDER": "pkcs11", "KEY": softhsm.LABEL, "MODULE": str(softhsm.MODULE), "TOKEN_LABEL": softhsm.TOKEN,
        "PIN": softhsm.PIN,
    }  # fmt: skip
    return settings_file.load(
        {f"AFFIDAVIT_SIGNING__{name}": value for name, value in table.items()}, data_dir=folder
    )


def test_what_it_signs_verifies_under_the_pinned_key(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    assert signing.pin_remote_key(settings, signing_pkcs11.signer(settings))
    held = signing.remote_key_of(settings, signing_pkcs11.signer(settings), now())
    for message in (b"x", b"affidavit/1/2026-11\n7\n", bytes(10_000)):
        assert held.public.verify(held.sign(message), message)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"token_label": "another"}, "no token"),
        ({"key": "another"}, "no key"),
        ({"key": "rsa"}, "EC_EDWARDS"),
        ({"pin": "0000"}, "refuses the PIN"),
    ],
)
def test_what_is_set_up_wrongly_is_said(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as failed:
        key(**given).public_keys()
    assert softhsm.PIN not in str(failed.value)


def test_a_module_that_is_none_is_said(tmp_path: Path) -> None:
    for module in (tmp_path / "none.so", Path(__file__)):
        with pytest.raises(NoSigningKeyError, match="did not sign"):
            key(module=str(module)).public_keys()


# Seen red with a call that waits for the module.
def test_a_module_that_hangs_is_given_up_and_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    held, may_answer = key(timeout_s=0.1), threading.Event()
    (public,) = key().public_keys()
    monkeypatch.setattr(Key, "_signed", lambda *_: may_answer.wait(5) and b"")
    with pytest.raises(NoSigningKeyError, match="did not answer in time"):
        held.sign(b"x", public)
    with pytest.raises(NoSigningKeyError, match="has not answered the last request yet"):
        held.sign(b"x", public)
    may_answer.set()
    held._threads.shutdown(wait=True)
    assert not held._in_use.locked()
