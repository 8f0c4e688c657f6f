"""`python -m audit.witness --log KEY --folder DIR`: with Python's standard library and `cryptography` alone."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import KeyFileError, NoteError
from audit.heads.vkey import LOG, VerifierKey
from audit.witness.judgement import Witness
from audit.witness.memory import WitnessMemory
from audit.witness.server import WitnessServer

KEY_FILE = "witness.key"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m audit.witness", description="Witness a log's heads.")
    parser.add_argument(
        "--log", action="append", required=True, metavar="KEY", help="a log's key, NAME+id+AQ…; repeatable"
    )
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="where it keeps its key and the last heads"
    )
    parser.add_argument(
        "--name", default="affidavit-witness", help="its name in signatures; like example.org/witness"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8070)
    given = parser.parse_args()
    try:
        run(given.log, given.folder, given.name, (given.host, given.port))
    except (NoteError, KeyFileError, OSError) as wrong:
        sys.exit(f"{wrong}")


def run(logs: Sequence[str], folder: Path, name: str, address: tuple[str, int]) -> None:
    """Serves until it is interrupted."""
    with opened(logs, folder, name, address) as server:
        announce(server)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def announce(server: WitnessServer) -> None:
    """The line that a policy needs, with a name of one's choice in place of `witness-1`."""
    host, port = server.server_address[:2]
    address = f"http://{host!s}:{port}"
    print(f"The witness is ready at {address}", flush=True)
    print(f"Its key: {server.witness.public}", flush=True)
    print(f"Its line in a policy: witness witness-1 {server.witness.public} {address}", flush=True)


def opened(logs: Sequence[str], folder: Path, name: str, address: tuple[str, int]) -> WitnessServer:
    keys: dict[str, list[VerifierKey]] = {}
    for text in logs:
        key = VerifierKey.of(text)
        if key.kind != LOG:
            raise NoteError(f"{text} is a witness's key. Give the log's, which begins with AQ.")
        keys.setdefault(key.name, []).append(key)
    memory = WitnessMemory(folder / "heads")
    return WitnessServer(
        address, Witness(name, _key(folder / KEY_FILE), keys, memory, lambda: datetime.now(UTC))
    )


def _key(path: Path) -> Ed25519PrivateKey:
    """Made at the first start; only its owner can read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        with NamedTemporaryFile(dir=path.parent) as draft:  # readable by its owner alone
            draft.write(Ed25519PrivateKey.generate().private_bytes(*form))
            draft.flush()
            os.fsync(draft.fileno())
            with suppress(FileExistsError):  # another process was faster
                os.link(draft.name, path)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} does not hold an Ed25519 private key in PEM. Restore it from its backup.")
    return key


if __name__ == "__main__":
    main()
