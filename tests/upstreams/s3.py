"""S3's interface: moto's server or SeaweedFS behind a small proxy that fails as it is told to. Or a real S3, straight.

What moto gets wrong: it accepts a bad SHA-256, bad credentials and a lock made shorter, and forgets the lock that a
multipart upload asked for. Its writers race, where those of S3 come one after the other: the proxy lets in one at a time.
SeaweedFS does all this right, and takes longer.
"""

import contextlib
import logging
import os
import re
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any, Literal
from urllib.parse import urlsplit
from uuid import uuid4

from boto3.session import Session
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import FakeKey, s3_backends
from moto.server import ThreadedMotoServer

from tests.upstreams import seaweed

Kind = Literal["moto", "SeaweedFS"]
Fault = Literal[
    "500", "503", "403", "400",
    "hang",  # nothing arrives, nothing is answered
    "hang after",  # it is done, and nothing is answered
    "late",  # it arrives when whoever asked has given up
    "cut",  # nothing arrives, the connection is reset
    "cut after",  # it is done, and the connection is reset: the ambiguous write
    "cut body",  # half of the answer, and the connection is reset
    "wrong bytes",  # one bit of the answer's middle is another one
    "short",  # half of the answer, as if it were all
    "lie",  # nothing is done, and it is said to be
]  # fmt: skip

CANARY = "canary of the vendor"
ACCESS_KEY, SECRET_KEY = "test", "secret-of-s3"
REAL = "AFFIDAVIT_TEST_S3"  # such as https://s3.eu-central-1.amazonaws.com/bucket, with AWS_… as usual
POLL_S = 0.02
IDLE_S = 30

_PIECE_BYTES = 1024 * 1024
_CODES = {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied", "400": "InvalidArgument"}
_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}
_WITHOUT_BODY = {204, 304}


@dataclass
class Upstream:
    """A bucket with versions and locks. Requests are kept as (method, path with query)."""

    url: str
    bucket: str
    kind: Kind | None = None  # none: a server that is not started here
    requests: list[tuple[str, str]] = field(default_factory=list)
    judge: Callable[[str, str], Fault | None] = lambda _method, _path: None
    _faults: list[tuple[re.Pattern[str], Fault]] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _server: str = ""
    _direct: Any = None
    _working: int = 0
    _idle: threading.Condition = field(default_factory=threading.Condition)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to keep its vault here."""
        own = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": "us-east-1",
        }  # fmt: skip
        return (own if self._server else {}) | {
            "AWS_ENDPOINT_URL_S3": self.url, "AFFIDAVIT_PROVIDERS__VAULT": "s3", "AFFIDAVIT_ARCHIVE__BUCKET": self.bucket,
        }  # fmt: skip

    def fail(self, fault: Fault, on: str = "", times: int = 1) -> None:
        """The next so many requests whose "METHOD /path?query" holds this pattern."""
        self._faults += [(re.compile(on), fault)] * times

    def heal(self) -> None:
        self._faults.clear()

    def direct(self) -> Any:
        """A client that meets no fault."""
        if self._direct is None and self._server:
            session = Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1")
            self._direct = session.client("s3", endpoint_url=self._server)
        return self._direct or Session().client("s3")

    def receive(self, method: str, path: str) -> Fault | None:
        with self._guard:
            self.requests.append((method, path))
            for place, (pattern, fault) in enumerate(self._faults):
                if pattern.search(f"{method} {path}"):
                    del self._faults[place]
                    return fault
            return self.judge(method, path)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        with self._idle:
            self._working += 1
        try:
            yield
        finally:
            with self._idle:
                self._working -= 1
                self._idle.notify_all()

    def wait_until_idle(self) -> None:
        """What arrives late has arrived."""
        with self._idle:
            assert self._idle.wait_for(lambda: self._working == 0, timeout=IDLE_S)

    @contextlib.contextmanager
    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Iterator[HTTPResponse]:
        connection = HTTPConnection(urlsplit(self._server).netloc)
        with contextlib.closing(connection), contextlib.ExitStack() as stack:
            if method != "GET" and self.kind == "moto":
                stack.enter_context(self._writing)
            connection.request(method, path, body, headers)
            yield stack.enter_context(connection.getresponse())

    def wait_for_leave(self, connection: socket.socket) -> None:
        """Until whoever asked hangs up, or the server is stopped."""
        while not self._is_over.is_set():
            readable, _, _ = select.select([connection], [], [], POLL_S)
            if readable and not connection.recv(1, socket.MSG_PEEK):
                return


@contextlib.contextmanager
def serving(kind: Kind = "moto", *, has_lock: bool = True, has_versions: bool = True) -> Iterator[Upstream]:
    """A bucket of a server of its own, behind the proxy."""
    with _straight(kind, has_lock=has_lock, has_versions=has_versions) as upstream:
        with _proxy(upstream) as upstream.url:
            yield upstream
        if kind == "moto":
            _forget(upstream.bucket)


@contextlib.contextmanager
def real() -> Iterator[Upstream]:
    """The bucket that the environment names, or one of SeaweedFS; without the proxy."""
    named = urlsplit(os.environ.get(REAL, ""))
    if named.netloc:
        yield Upstream(f"{named.scheme}://{named.netloc}", named.path.strip("/"))
        return
    with _straight("SeaweedFS") as upstream:
        yield upstream


@contextlib.contextmanager
def _straight(kind: Kind, *, has_lock: bool = True, has_versions: bool = True) -> Iterator[Upstream]:
    with _moto() if kind == "moto" else seaweed.serving(ACCESS_KEY, SECRET_KEY) as server:
        upstream = Upstream(server, f"bucket-{uuid4().hex}", kind, _server=server)
        client = upstream.direct()
        client.create_bucket(Bucket=upstream.bucket, ObjectLockEnabledForBucket=has_lock)
        if has_versions:
            client.put_bucket_versioning(
                Bucket=upstream.bucket, VersioningConfiguration={"Status": "Enabled"}
            )
        yield upstream


def _forget(name: str) -> None:
    backend: Any = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    bucket = backend.buckets.pop(name)
    for _, versions in bucket.keys.iterlists():
        for version in versions:
            if isinstance(version, FakeKey):
                version.dispose()


@contextlib.contextmanager
def _moto() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        if server._server is not None:
            server._server.server_close()


@contextlib.contextmanager
def _proxy(upstream: Upstream) -> Iterator[str]:
    class Handler(_Handler):
        served = upstream

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        upstream._is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: Upstream

    def _serve(self) -> None:
        with self.served.at_work():
            self._serve_one()

    def _serve_one(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.served.receive(self.command, self.path)
        if fault in _CODES:
            self._refuse(int(fault), _CODES[fault])
        elif fault == "cut":
            self._reset()
        elif fault == "hang":
            self._hang_up_when_left()
        elif fault == "lie":
            self._say(200, b"")
        else:
            self._pass_on(body, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

    def _pass_on(self, body: bytes, fault: Fault | None) -> None:
        if fault == "late":
            self._hang_up_when_left()
        headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
        with self.served.ask(self.command, self.path, body, headers) as response:
            if fault in {"hang after", "cut after", "late"}:
                response.read()
            else:
                self._answer(response, fault)
        if fault == "hang after":
            self._hang_up_when_left()
        elif fault == "cut after":
            self._reset()

    def _answer(self, response: HTTPResponse, fault: Fault | None) -> None:
        """With its length, also where the server sends pieces without one."""
        source: Any = response if response.length is not None else BytesIO(response.read())
        length = response.headers.get("Content-Length") or (
            len(source.getvalue()) if source is not response else 0
        )
        size = int(length) // (2 if fault == "short" else 1)
        self._begin(response, size)
        sent = 0
        while self.command != "HEAD" and sent < size:
            piece = source.read(min(_PIECE_BYTES, size - sent))
            if fault == "cut body":
                self.wfile.write(piece[: len(piece) // 2])
                self.wfile.flush()
                self._reset()
                return
            if fault == "wrong bytes" and sent <= size // 2 < sent + len(piece):
                at = size // 2 - sent
                piece = piece[:at] + bytes([piece[at] ^ 1]) + piece[at + 1 :]
            self.wfile.write(piece)
            sent += len(piece)

    def _begin(self, response: HTTPResponse, size: int) -> None:
        self.send_response_only(response.status)
        for name, value in response.headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        if response.status not in _WITHOUT_BODY:
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def _refuse(self, status: int, code: str) -> None:
        self._say(status, f"<Error><Code>{code}</Code><Message>{CANARY}</Message></Error>".encode())

    def _say(self, status: int, said: bytes) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(said)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(said)

    def _hang_up_when_left(self) -> None:
        self.served.wait_for_leave(self.connection)
        self.close_connection = True

    def _reset(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

    def log_message(self, *_: Any) -> None:
        """Tests print what they find, not what they ask."""

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError, ValueError):  # who asked has left
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            super().finish()


def _same_content(key: Any, _: dict[int, Any]) -> Any:
    """moto would copy every object's bytes for each listing of the bucket."""
    made = object.__new__(FakeKey)
    made.__dict__.update(key.__dict__)
    return made


FakeKey.__deepcopy__ = _same_content  # type: ignore[attr-defined]
del FakeKey.__del__  # a copy must not close the file of both
