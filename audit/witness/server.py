"""The witness over HTTP, with Python's standard library alone.

POST /add-checkpoint            C2SP tlog-witness
GET  /                          who this is: its key for policies, and for each log the last head and the forks
GET  /checkpoint/<sha256 hex>   the last cosigned note of the log whose origin has this hash
"""

from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Any

from audit.heads.head import parse_head
from audit.proof.note import parse_note
from audit.witness.judgement import Response, Witness

BODY_BYTES_MAX = 65_536  # 63 hashes and a note with 100 signatures
IDLE_S = 10
CONNECTIONS_MAX = 64


class WitnessServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # strangers who say nothing must not hold up its end

    def __init__(self, address: tuple[str, int], witness: Witness) -> None:
        self.witness = witness
        self._slots = BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A connection above the limit is closed: idle strangers must not take up all threads."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()


class _Handler(BaseHTTPRequestHandler):
    server: WitnessServer
    protocol_version = "HTTP/1.1"  # keeps connections alive
    server_version, sys_version = "affidavit-witness", ""
    timeout = IDLE_S

    def do_POST(self) -> None:
        if self.path != "/add-checkpoint":
            self._read_no_more()
            return self._send(Response(404, "There is only /add-checkpoint.\n"))
        length = self.headers.get("Content-Length", "")
        is_sized = length.isdecimal() and "Transfer-Encoding" not in self.headers
        if not is_sized or int(length) > BODY_BYTES_MAX:
            self._read_no_more()
            return self._send(Response(413, f"Send at most {BODY_BYTES_MAX} bytes, and Content-Length.\n"))
        return self._send(self.server.witness.add_checkpoint(self.rfile.read(int(length))))

    def do_GET(self) -> None:
        if {"content-length", "transfer-encoding"} & {name.lower() for name in self.headers}:
            self._read_no_more()
        witness = self.server.witness
        if self.path == "/":
            return self._send(Response(200, introduction(witness)))
        by_hash = {f"/checkpoint/{sha256(origin.encode()).hexdigest()}": origin for origin in witness.logs}
        note = witness.memory.last(by_hash[self.path]) if self.path in by_hash else None
        return self._send(Response(200, note) if note else Response(404, "No head was cosigned here.\n"))

    def _read_no_more(self) -> None:
        """A body that is left unread would be taken for the next request, which a proxy may send for somebody else."""
        self.close_connection = True

    def _send(self, response: Response) -> None:
        body = response.text.encode()
        with suppress(ConnectionError, TimeoutError):  # the client is gone
            self.send_response(response.status)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(body)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002
        """No line for each request: a stranger could fill the disk."""


def introduction(witness: Witness) -> str:
    lines = [f"Witness {witness.public}", f"Now {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"]
    for origin in witness.logs:
        note = witness.memory.last(origin)
        size = parse_head(parse_note(note).text).size if note else 0
        forks = witness.memory.forks(origin)
        lines.append(f"{origin}: {size} heads" + (f", FORKED, {len(forks)} proofs" if forks else ""))
    return "\n".join(lines) + "\n"
