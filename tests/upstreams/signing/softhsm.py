"""A PKCS#11 token of SoftHSM, in a folder of its own: Debian's `softhsm2`, which is no dependency of the product."""

import shutil
import subprocess
from pathlib import Path

import pytest

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")
TOKEN, LABEL, PIN = "affidavit", "log", "5678"
ED25519 = b"\x13\x0cedwards25519"


def token(folder: Path) -> None:
    """With an Ed25519 key and one of another type. Set SOFTHSM2_CONF to `folder / "softhsm2.conf"` before the module is loaded."""
    import pkcs11
    from pkcs11 import Attribute, KeyType, Mechanism

    (folder / "tokens").mkdir()
    conf = f"directories.tokendir = {folder / 'tokens'}\nobjectstore.backend = file\nlog.level = ERROR\n"
    (folder / "softhsm2.conf").write_text(conf)
    subprocess.run(
        ["softhsm2-util", "--init-token", "--free", "--label", TOKEN, "--so-pin", "1234", "--pin", PIN],
        check=True, capture_output=True, env={"SOFTHSM2_CONF": str(folder / "softhsm2.conf"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    with pkcs11.lib(str(MODULE)).get_token(token_label=TOKEN).open(rw=True, user_pin=PIN) as session:
        curve = session.create_domain_parameters(
            KeyType.EC_EDWARDS, {Attribute.EC_PARAMS: ED25519}, local=True
        )
        curve.generate_keypair(mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label=LABEL)
        session.generate_keypair(KeyType.RSA, 2048, store=True, label="rsa")


def skip_without() -> None:
    if not MODULE.exists() or not shutil.which("softhsm2-util"):
        pytest.skip("SoftHSM is not installed here: apt-get install softhsm2")
    pytest.importorskip("pkcs11", reason="the extra pkcs11 is not installed here")
