"""`aics-tlog`, which knows nothing of us, verifies our heads, cosignatures and proofs; and we verify what it signs."""

import fcntl
import json
import os
import random
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.heads.head import LogHead, entry_leaf, log_keys, open_head, sign_head
from audit.heads.policy import parse_policy
from audit.heads.vkey import COSIGNER, VerifierKey, cosign
from audit.proof.keys import SigningKey
from audit.proof.merkle import consistency_proof, inclusion_proof, root
from audit.proof.note import SignedNote, parse_note
from engine.wiring import now
from tests.conftest import ROOT

LOCK = ROOT / "tests" / "data" / "tlog" / "requirements.lock"
SCRIPT = Path(__file__).with_name("third_party.py")
ORIGIN = "affidavit/5f0c1c3e-6f43-4d3b-9a0a-0f6f0a5f9d11"
NAME = "example.org/witness"
ENTRIES = [f"the head {n} of a month\n" for n in range(37)]
LEAVES = [entry_leaf(entry.encode()) for entry in ENTRIES]
LOG_BYTES, WITNESS_BYTES = bytes(range(32)), bytes(range(1, 33))
KEY = SigningKey(Ed25519PrivateKey.from_private_bytes(LOG_BYTES))
WITNESS = Ed25519PrivateKey.from_private_bytes(WITNESS_BYTES)
WITNESS_KEY = VerifierKey(NAME, COSIGNER, WITNESS.public_key().public_bytes_raw())
MUTATIONS = 300


@pytest.fixture(scope="module")
def library() -> Path:
    """Installed once into a folder for temporary files, pinned by version and hash; else the tests are skipped.

    It says that it needs Python 3.12, and runs on 3.11: the part that is used here was tried.
    """
    version = sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"affidavit-tlog-{version}-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (folder / "aics_tlog").exists():
            options = [
                "--quiet",
                "--require-hashes",
                "--no-deps",
                "--ignore-requires-python",
                "--only-binary",
                ":all:",
            ]
            done = subprocess.run(
                [sys.executable, "-m", "pip", "install", *options, "--target", str(folder), "-r", str(LOCK)],
                capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip
            if done.returncode:
                pytest.skip(f"aics-tlog cannot be had: {done.stderr.strip().splitlines()[-1:]}")
    return folder


def head_note() -> str:
    signed = parse_note(sign_head(LogHead(ORIGIN, len(LEAVES), root(LEAVES)), KEY))
    return str(SignedNote(signed.text, (*signed.lines, cosign(signed.text, WITNESS, NAME, now()))))


def asked(library: Path, notes: list[str], **changed: Any) -> dict[str, Any]:
    given = {
        "notes": notes, "log": str(log_keys(ORIGIN, [KEY.public])[0]), "witnesses": [str(WITNESS_KEY)],
        "inclusion": [(n, entry, [part.hex() for part in inclusion_proof(LEAVES, n)]) for n, entry in enumerate(ENTRIES)],
        "consistency": [
            (old, root(LEAVES[:old]).hex(), [part.hex() for part in consistency_proof(LEAVES, old)])
            for old in range(1, len(LEAVES) + 1)
        ],
        "private": [LOG_BYTES.hex(), WITNESS_BYTES.hex()], "origin": ORIGIN, "witness": NAME, "entries": ENTRIES,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=json.dumps(given | changed), capture_output=True, text=True, check=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(library)},
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_another_library_verifies_our_heads_cosignatures_and_proofs(library: Path) -> None:
    assert asked(library, [head_note()])["judged"] == [""]


def test_we_verify_what_another_library_signs(library: Path) -> None:
    head, signed = open_head(asked(library, [])["signed"], [KEY.public])
    assert head == LogHead(ORIGIN, len(LEAVES), root(LEAVES))
    assert parse_policy(f"witness w {WITNESS_KEY}\nquorum w\n").cosigners(signed) == ["w"]


def test_the_same_changes_are_refused_there(library: Path) -> None:
    chance, note = random.Random(3), head_note()
    changed = []
    for _ in range(MUTATIONS):
        at = chance.randrange(len(note))
        changed.append(note[:at] + chr(ord(note[at]) ^ 1) + note[at + 1 :])
    assert all(asked(library, changed)["judged"])
    proofs = [(0, ENTRIES[0], [part.hex() for part in inclusion_proof(LEAVES, 1)])]
    assert asked(library, [note], inclusion=proofs)["judged"] == ["an entry is not included"]
