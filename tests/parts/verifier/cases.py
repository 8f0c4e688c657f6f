"""What the tests of the verifier page read: packages, a proof, keys and a policy, as files in a folder."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import pyarrow as pa

from audit.proof.bundle import Bundle, encode
from audit.proof.merkle import inclusion_proof
from audit.proof.record import leaf_hash
from tests import made_archive
from tests.conftest import ROOT
from tests.made_package import OTHER_WITNESS, POLICY, Made, of_two_months
from tests.parts.verifier import tamperings
from tests.proofs import KEY, STRANGER


def write(folder: Path) -> None:
    whole = of_two_months()
    content = {
        "whole.zip": whole.zipped(), "redacted.zip": of_two_months(is_redacted=True).zipped(), "keys": f"{KEY.public}\n".encode(),
        "other-keys": f"{STRANGER.public}\n".encode(), "policy": POLICY.encode(),
        "proof.json": whole.files["records/2026-11.jsonl"].splitlines(keepends=True)[5],
        "other-witness": OTHER_WITNESS.encode(),
        "anchored.json": _under_the_anchored_head(whole),
        "head.tlog-proof": whole.files["heads/2026-11.tlog-proof"],
    }  # fmt: skip
    cases = []
    for number, tampered in enumerate(tamperings.every()):
        file = f"tampered-{number}.zip"
        content[file] = tampered.content
        cases.append(
            {"file": file, "name": tampered.name, "what": tampered.what, "verdict": tampered.verdict}
        )
    cases += _of_the_command_line(folder)
    content["cases.json"] = json.dumps(cases).encode()
    for name, written in content.items():
        (folder / name).write_bytes(written)
    _write_archives(folder)
    _write_compressed(folder / "zstd")


def _under_the_anchored_head(package: Made) -> bytes:
    """A proof of which the checkpoint is an entry of the log of heads."""
    bodies = [json.loads(line) for line in package.files["records/2026-11.jsonl"].splitlines()]
    leaves = [leaf_hash(body["row"], body.get("commitments")) for body in bodies[:11]]
    note = package.files["anchors/2026-11/000000000011.note"].decode()
    return encode(Bundle(bodies[5]["row"], 5, inclusion_proof(leaves, 5), note))


def _of_the_command_line(folder: Path) -> Iterator[dict[str, str]]:
    """The packages that the command's own tests tamper with, and what it says of each as a whole."""
    if not (ROOT / "tests/package_tamperings.py").exists():
        return
    subprocess.run(
        [sys.executable, "-m", "tests.package_tamperings", folder / "command"], cwd=ROOT, check=True
    )
    for file, expected in json.loads((folder / "command/expected.json").read_text()).items():
        if expected["rung"]:
            about = {"what": expected["rung"], "verdict": expected["verdict"], "overall": expected["overall"]}
            yield {"file": f"command/{file}", "name": expected["name"], **about}


def _write_archives(folder: Path) -> None:
    _write(folder / "archive", made_archive.whole())
    cases = []
    for number, tampered in enumerate(made_archive.tampered()):
        name = f"archive-{number}"
        _write(folder / name, tampered.files)
        cases.append(
            {"folder": name, "name": tampered.name, "what": tampered.what, "verdict": tampered.verdict}
        )
    (folder / "archives.json").write_text(json.dumps(cases))


def _write_compressed(folder: Path) -> None:
    """Each under the SHA-256 of what was compressed."""
    chosen = random.Random(20)
    words = [bytes(chosen.randrange(97, 123) for _ in range(chosen.randrange(2, 9))) for _ in range(900)]
    lines = (
        b'{"leaf_index":%d,"row":"%b"}\n' % (at, chosen.randbytes(12).hex().encode()) for at in range(4_000)
    )
    text = b" ".join(chosen.choice(words) for _ in range(60_000))
    samples = (b"", b"a", bytes(300_000), chosen.randbytes(150_000), text, b"".join(lines), b"abcabc" * 8)
    for level in (1, 3, 9, 19, 22):
        codec = pa.Codec("zstd", compression_level=level)
        _write(
            folder,
            {f"{sha256(each).hexdigest()}.{level}": codec.compress(each, asbytes=True) for each in samples},
        )


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
