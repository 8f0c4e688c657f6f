"""Servers that hold signing keys, in threads: what signs with them waits for its answer, so it must not be their event loop."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answer = Callable[[Asked], tuple[int, bytes]]


@contextlib.contextmanager
def serving(answer: Answer, is_ended: threading.Event | None = None) -> Iterator[str]:
    """At an address of this machine, until the end of the block. A handler that hangs waits for `is_ended`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            status, content = answer(asked)
            with contextlib.suppress(OSError):  # the client may have given up
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        do_GET = do_POST = _reply  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        if is_ended:
            is_ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
