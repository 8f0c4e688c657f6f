"""The witness over HTTP, asked by a client written from C2SP's tlog-witness alone: it signs only what has grown."""

import base64
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from audit.heads.head import LogHead
from audit.heads.vkey import LOG, VerifierKey
from audit.proof.merkle import consistency_proof, root
from audit.proof.note import SignatureLine, SignedNote
from audit.witness.__main__ import opened
from audit.witness.server import BODY_BYTES_MAX, WitnessServer

ORIGIN = "affidavit/5f0c1c3e-6f43-4d3b-9a0a-0f6f0a5f9d11"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
LEAVES = [sha256(b"%d" % n).digest() for n in range(300)]
Reply = tuple[int, str]


def vkey(key: Ed25519PrivateKey = KEY, origin: str = ORIGIN) -> VerifierKey:
    return VerifierKey(origin, LOG, key.public_key().public_bytes_raw())


def note(leaves: list[bytes], key: Ed25519PrivateKey = KEY, origin: str = ORIGIN) -> str:
    text = str(LogHead(origin, len(leaves), root(leaves)))
    return str(
        SignedNote(text, (SignatureLine(origin, vkey(key, origin).fingerprint, key.sign(text.encode())),))
    )


def request(old: int, leaves: list[bytes], signed: str | None = None) -> bytes:
    proof = consistency_proof(leaves, old) if old <= len(leaves) else []
    hashes = "".join(base64.b64encode(part).decode() + "\n" for part in proof)
    return f"old {old}\n{hashes}\n{signed or note(leaves)}".encode()


@contextmanager
def running(folder: Path) -> Iterator[WitnessServer]:
    server = opened([str(vkey())], folder, "witness.example/w1", ("127.0.0.1", 0))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WitnessServer]:
    with running(tmp_path) as started:
        yield started


@pytest.fixture
def ask(server: WitnessServer) -> Iterator[Callable[[bytes], Reply]]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1])

    def asked(body: bytes) -> Reply:
        connection.request("POST", "/add-checkpoint", body)
        return read(connection.getresponse())

    yield asked
    connection.close()


def read(response: HTTPResponse) -> Reply:
    return response.status, response.read().decode()


def test_a_head_that_grew_is_cosigned_by_the_standards_rules(
    server: WitnessServer, ask: Callable[[bytes], Reply]
) -> None:
    """The cosignature is checked here with nothing of ours."""
    name, number, coded = str(server.witness.public).split("+", 2)
    raw = base64.b64decode(coded)
    assert raw[0] == 4 and sha256(name.encode() + b"\n" + raw).hexdigest()[:8] == number
    for old, size in ((0, 1), (1, 7), (7, 8), (8, 8), (8, 200), (200, 300)):
        status, line = ask(request(old, LEAVES[:size]))
        dash, signer, signature = line.split(" ")
        content = base64.b64decode(signature)
        assert (status, dash, signer, content[:4].hex()) == (200, "—", name, number)
        seconds = int.from_bytes(content[4:12])
        text = note(LEAVES[:size]).split("\n\n")[0]
        message = f"cosignature/v1\ntime {seconds}\n{text}\n".encode()
        Ed25519PublicKey.from_public_bytes(raw[1:]).verify(content[12:], message)


# Seen red with the comparison of the old size left out of `_refusal`: the witness went back to 7.
def test_a_log_that_was_set_back_is_told_what_was_seen(ask: Callable[[bytes], Reply]) -> None:
    assert ask(request(0, LEAVES[:8]))[0] == 200
    assert ask(request(0, LEAVES[:7])) == (409, "8\n")
    assert ask(request(7, LEAVES[:9])) == (409, "8\n")
    assert ask(request(8, LEAVES[:9]))[0] == 200


# Seen red with `_refusal` that compares no roots.
def test_of_two_heads_of_one_size_one_is_signed_and_both_are_kept(
    server: WitnessServer, ask: Callable[[bytes], Reply]
) -> None:
    other = [*LEAVES[:7], sha256(b"other").digest()]
    assert ask(request(0, LEAVES[:8]))[0] == 200
    assert ask(request(8, other)) == (409, "8\n")
    (proof,) = server.witness.memory.forks(ORIGIN)
    assert proof.read_text() == f"{note(LEAVES[:8])}\n{note(other)}"
    connection = HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request("GET", "/")
    assert "FORKED, 1 proofs" in read(connection.getresponse())[1]
    connection.request("GET", f"/checkpoint/{sha256(ORIGIN.encode()).hexdigest()}")
    assert read(connection.getresponse()) == (200, note(LEAVES[:8]))
    connection.close()


# Seen red without the check of the consistency proof.
def test_another_history_of_a_larger_size_is_not_signed(ask: Callable[[bytes], Reply]) -> None:
    assert ask(request(0, LEAVES[:8]))[0] == 200
    assert ask(request(8, [*LEAVES[1:8], *LEAVES[:5]]))[0] == 422
    assert ask(request(8, LEAVES[:12]))[0] == 200


def test_after_a_kill_the_last_head_is_still_known(tmp_path: Path) -> None:
    with running(tmp_path) as first:
        assert first.witness.add_checkpoint(request(0, LEAVES[:8])).status == 200
    with running(tmp_path) as second:
        assert str(second.witness.public) == str(first.witness.public)
        assert second.witness.add_checkpoint(request(0, LEAVES[:7])) == (409, "8\n", "text/x.tlog.size")


# Seen red with the failed write suppressed.
def test_what_cannot_be_kept_is_not_signed(server: WitnessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("audit.witness.memory._write", full)
    with pytest.raises(OSError, match="No space"):
        server.witness.add_checkpoint(request(0, LEAVES[:8]))


# Seen red with `alone` that takes no lock.
def test_of_racing_requests_each_size_is_signed_once(server: WitnessServer) -> None:
    """The race of the standard: a slower request must not set the witness back."""
    sizes = list(range(1, 120))
    random.Random(5).shuffle(sizes)
    signed: list[int] = []

    def submit(part: list[int]) -> None:
        for size in part:
            old = 0
            while (found := server.witness.add_checkpoint(request(old, LEAVES[:size]))).status == 409:
                old = int(found.text)
                if old >= size:
                    break
            else:
                signed.append(size)

    threads = [threading.Thread(target=submit, args=(sizes[n::4],)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = server.witness.memory.last(ORIGIN)
    assert last == note(LEAVES[: max(signed)]) and len(signed) == len(set(signed))


REFUSED = {
    "another log's origin": (request(0, LEAVES[:3], note(LEAVES[:3], origin="other.example/log")), 404),
    "a stranger's signature": (request(0, LEAVES[:3], note(LEAVES[:3], STRANGER)), 403),
    "a signature of another text": (request(0, LEAVES[:3], note(LEAVES[:3]).replace("\n3\n", "\n4\n")), 403),
    "an old size above the size": (request(4, LEAVES[:3]), 400),
    "no old size": (note(LEAVES[:3]).encode(), 400),
    "an old size with a zero": (request(0, LEAVES[:3]).replace(b"old 0", b"old 00"), 400),
    "a hash cut off": (request(0, LEAVES[:3]).replace(b"old 0\n", b"old 0\nqGzX\n"), 400),
    "too many hashes": (request(0, LEAVES[:3]).replace(b"old 0\n", b"old 0\n" + 64 * (base64.b64encode(bytes(32)) + b"\n")), 400),
    "a proof from nothing": (request(0, LEAVES[:3]).replace(b"old 0\n", b"old 0\n" + base64.b64encode(bytes(32)) + b"\n"), 422),
    "no UTF-8": (b"\xff\xfe", 400),
    "nothing": (b"", 400),
    "more than a note can have": (b"old 0\n" + bytes(BODY_BYTES_MAX), 413),
}  # fmt: skip


@pytest.mark.parametrize(("body", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused_has_the_status_of_the_standard(
    body: bytes, status: int, server: WitnessServer, ask: Callable[[bytes], Reply]
) -> None:
    assert ask(body)[0] == status
    assert server.witness.memory.last(ORIGIN) is None


# Seen red with the body left unread on a connection that stayed open: it was answered as a request of its own.
@pytest.mark.parametrize(
    "head",
    [
        "POST /elsewhere HTTP/1.1\r\nContent-Length: {length}",
        "GET / HTTP/1.1\r\nContent-Length: {length}",
        "POST /add-checkpoint HTTP/1.1\r\nContent-Length: 0\r\nTransfer-Encoding: chunked",
    ],
)
def test_what_one_client_sends_is_never_read_as_the_request_of_another(
    head: str, server: WitnessServer
) -> None:
    import socket

    hidden = "GET /checkpoint/hidden HTTP/1.1\r\nHost: w\r\n\r\n"
    with socket.create_connection(server.server_address[:2], timeout=5) as connection:  # type: ignore[arg-type]
        connection.sendall(f"{head.format(length=len(hidden))}\r\nHost: w\r\n\r\n{hidden}".encode())
        connection.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert said.count(b"HTTP/1.1 ") == 1


def test_strangers_who_say_nothing_do_not_shut_the_log_out(server: WitnessServer) -> None:
    import socket

    idle = [socket.create_connection(server.server_address[:2]) for _ in range(63)]  # type: ignore[arg-type]
    try:
        connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
        connection.request("POST", "/add-checkpoint", request(0, LEAVES[:3]))
        assert read(connection.getresponse())[0] == 200
        connection.close()
    finally:
        for each in idle:
            each.close()


# Seen red with a `verify` that is always true.
def test_no_mutation_of_a_request_is_cosigned(server: WitnessServer) -> None:
    """Of 10,000 requests with a changed byte none is signed that says something else."""
    chance = random.Random(11)
    assert server.witness.add_checkpoint(request(0, LEAVES[:100])).status == 200
    body = request(100, LEAVES[:150])
    for _ in range(10_000):
        changed = bytearray(body)
        changed[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        assert server.witness.add_checkpoint(bytes(changed)).status in {400, 403, 404, 409, 422}
    assert server.witness.memory.last(ORIGIN) == note(LEAVES[:100])
