"""A real time stamp authority: `openssl ts` behind a loopback HTTP server, which can also fail in every way."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.upstreams.authorities.certificates import Identity, certificate_authority, time_stamper

CONFIGURATION = """
[tsa]
default_tsa = authority
[authority]
serial = {folder}/serial
crypto_device = builtin
signer_cert = {folder}/signer.pem
certs = {folder}/chain.pem
signer_key = {folder}/signer.key
signer_digest = {digest}
default_policy = 1.2.3.4.1
digests = {digests}
accuracy = secs:1, millisecs:500
clock_precision_digits = {precision}
ordering = yes
tsa_name = yes
ess_cert_id_chain = no
ess_cert_id_alg = {ess}
"""


@dataclass
class OpensslAuthority:
    """Signs whatever request it is handed, as of now."""

    folder: Path
    root: Identity
    intermediate: Identity
    signer: Identity

    @classmethod
    def make(
        cls, folder: Path, kind: str = "ec", *, digest: str = "sha256", ess: str = "sha256",
        digests: str = "sha256, sha512", precision: int = 3,
    ) -> "OpensslAuthority":  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        root = certificate_authority("Test Root")
        intermediate = certificate_authority("Test Intermediate", root, 0)
        made = cls(folder, root, intermediate, time_stamper(intermediate, kind=kind))
        made.roots_file.write_bytes(root.pem)
        (folder / "signer.pem").write_bytes(made.signer.pem)
        (folder / "signer.key").write_bytes(made.signer.key_pem)
        (folder / "chain.pem").write_bytes(intermediate.pem)
        (folder / "serial").write_text("01\n")
        text = CONFIGURATION.format(
            folder=folder, digest=digest, digests=digests, ess=ess, precision=precision
        )
        (folder / "openssl.cnf").write_text(text)
        return made

    @property
    def roots_file(self) -> Path:
        return self.folder / "roots.pem"

    def stamp(self, request: bytes) -> bytes:
        asked, given = self.folder / "asked.tsq", self.folder / "given.tsr"
        asked.write_bytes(request)
        openssl("-reply", "-config", self.folder / "openssl.cnf", "-queryfile", asked, "-out", given)
        return given.read_bytes()

    def stamp_text(self, text: bytes, *options: str) -> bytes:
        """As somebody without our code would ask."""
        data, asked = self.folder / "data", self.folder / "data.tsq"
        data.write_bytes(text)
        openssl("-query", "-data", data, "-sha256", "-cert", *options, "-out", asked)
        return self.stamp(asked.read_bytes())

    def accepts(self, response: bytes, text: bytes, roots: Path | None = None) -> bool:
        """What `openssl ts -verify` says."""
        data, given = self.folder / "checked", self.folder / "checked.tsr"
        data.write_bytes(text)
        given.write_bytes(response)
        chain = ("-CAfile", roots or self.roots_file, "-untrusted", self.folder / "chain.pem")
        try:
            openssl("-verify", "-in", given, "-data", data, *chain)
        except subprocess.CalledProcessError:
            return False
        return True


def openssl(*arguments: object) -> None:
    """The serial file of `openssl ts` has no lock: one at a time."""
    with _ALONE:
        subprocess.run(["openssl", "ts", *map(str, arguments)], capture_output=True, check=True, timeout=30)


_ALONE = threading.Lock()

Answer = Callable[[bytes], bytes]


@dataclass
class Served:
    """What it was asked, and how it answers. While `gate` is clear, every answer waits."""

    authority: OpensslAuthority
    answer: Answer
    url: str = ""
    status: int = 200
    kind: str = "application/timestamp-reply"
    asked: list[bytes] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    was_asked: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def serving(authority: OpensslAuthority) -> Iterator[Served]:
    served = Served(authority, authority.stamp)
    served.gate.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = self.rfile.read(int(self.headers["Content-Length"]))
            served.asked.append(request)
            served.was_asked.set()
            served.gate.wait()
            body = served.answer(request)
            with contextlib.suppress(OSError):  # the client gave up
                self.send_response(served.status)
                self.send_header("Content-Type", served.kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}/tsa"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        served.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
