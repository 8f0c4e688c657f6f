"""What a witness does wrong never stops answers or seals, is never kept, and is shown; a required quorum is waited for."""

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.heads.vaulted import list_heads
from audit.heads.vkey import COSIGNER, VerifierKey, cosign
from audit.proof.note import parse_note
from audit.sealing.log_tables import TRY_LOCK
from engine.house import ANSWERING, NO_QUORUM
from engine.storage.database import Database
from engine.wiring import now
from engine.wiring.house import _seals
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.parts.witness.test_log_of_heads import assert_whole, newest, stored
from tests.parts.witness.witnesses import policy_text, running, seal, witnessing

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
NAME = "witness.example/w"
Answer = Callable[[str], tuple[int, str]]  # of the submitted note


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


@contextmanager
def lying(answer: Answer) -> Iterator[str]:
    """A policy with a witness that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            note = self.rfile.read(int(self.headers["Content-Length"])).decode().split("\n\n", 1)[1]
            status, text = answer(note)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    key = VerifierKey(NAME, COSIGNER, KEY.public_key().public_bytes_raw())
    try:
        yield f"witness w {key} http://127.0.0.1:{server.server_address[1]}\nquorum w\n"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def text_of(note: str) -> str:
    return parse_note(note).text


def garbled(note: str) -> str:
    line = str(cosign(text_of(note), KEY, NAME, now()))
    content = bytearray(base64.b64decode(line.split(" ")[2]))
    content[-1] ^= 1
    return f"— {NAME} {base64.b64encode(content).decode()}\n"


LIES: dict[str, Answer] = {
    "a signature of another text": lambda note: (200, str(cosign(text_of(note) + "x\n", KEY, NAME, now()))),
    "a stranger's signature": lambda note: (200, str(cosign(text_of(note), STRANGER, NAME, now()))),
    "under another name": lambda note: (200, str(cosign(text_of(note), KEY, "other.example/w", now()))),
    "a changed bit": lambda note: (200, garbled(note)),
    "nothing": lambda _: (200, ""),
    "no signature line": lambda _: (200, "well done\n"),
    "an endless reply": lambda _: (200, 100_000 * "—"),
    "no size": lambda _: (409, "many\n"),
    "an error": lambda _: (500, "trouble\n"),
    "that it knows no such log": lambda _: (404, "who?\n"),
    "that it knows no such key": lambda _: (403, "who?\n"),
    "for ever a smaller size": lambda _: (409, "1\n"),
}  # fmt: skip


# Seen red with `meaning_of` that does not verify the cosignature.
@pytest.mark.parametrize("answer", LIES.values(), ids=LIES.keys())
async def test_what_is_no_cosignature_is_not_kept_and_stops_nothing(log: SealedLog, answer: Answer) -> None:
    with lying(answer) as policy:
        log.write(FEBRUARY, 12)
        assert await seal(log, policy) == ""
    assert len(parse_note(newest(log)).lines) == 1
    assert stored(log, "SELECT has_quorum FROM audit_head_anchors ORDER BY tree_size DESC LIMIT 1") == [
        (False,)
    ]
    assert_whole(log)


async def test_a_witness_that_never_answers_costs_its_timeout_and_no_more(log: SealedLog) -> None:
    released = threading.Event()

    def silent(_: str) -> tuple[int, str]:
        released.wait(30)
        return 500, ""

    with lying(silent) as policy:
        log.write(FEBRUARY, 12)
        assert await seal(log, policy, timeout_s=0.2) == ""
        released.set()
    assert_whole(log)


# Seen red with `_round` that publishes itself, and not beside the sealing.
async def test_a_silent_witness_does_not_hold_up_the_sealing(log: SealedLog) -> None:
    released, asked_twice, calls = threading.Event(), threading.Event(), list[str]()

    def silent(note: str) -> tuple[int, str]:
        """At the start it fails at once; the next head is never judged."""
        calls.append(note)
        if len(calls) > 1:
            asked_twice.set()
            released.wait(60)
        return 500, ""

    with lying(silent) as policy:
        async with witnessing(policy, timeout_s=60) as asked, log.sealer(witnessing=asked) as sealer:
            sealer.seal_every_s = sealer.anchor_every_s = 0.05
            async with sealer.running():
                log.write(FEBRUARY, 12)
                assert await asyncio.to_thread(asked_twice.wait, 30)
                log.write(FEBRUARY, 13)
                await sealed(log, log.log_id(FEBRUARY, 13))
                assert not released.is_set()
            released.set()


async def sealed(log: SealedLog, log_id: str) -> None:
    """What the sealer does can only be looked for."""
    async with asyncio.timeout(30):
        while stored(log, f"SELECT FROM audit_leaves WHERE log_id = '{log_id}'") == []:  # noqa: ASYNC110  nobody rings a bell
            await asyncio.sleep(0.02)


# Seen red with `publish` that ignores `is_required`.
async def test_a_required_quorum_is_waited_for_while_sealing_goes_on(log: SealedLog, tmp_path: Path) -> None:
    with running(log, tmp_path, 1) as servers:
        policy = policy_text(servers)
    log.write(FEBRUARY, 12)
    assert await seal(log, policy, is_required=True) == ""
    assert stored(log, "SELECT max(tree_size) FROM audit_heads") == [(5,)]
    assert stored(log, "SELECT max(tree_size) FROM audit_head_anchors") == [(4,)]
    async with witnessing(policy, is_required=True, timeout_s=0.5) as asked:
        async with log.sealer(witnessing=asked) as sealer:
            await sealer.seal_once()
            assert _seals(sealer) == NO_QUORUM and NO_QUORUM in ANSWERING
    assert list_heads(log.vault).sizes[-1] == 4 and list_heads(log.vault).size == 5
    with running(log, tmp_path, 1) as servers:
        assert await seal(log, policy_text(servers), is_required=True) == ""
    assert stored(log, "SELECT max(tree_size) FROM audit_head_anchors WHERE has_quorum") == [(5,)]
    assert_whole(log)


async def test_a_quorum_of_two_in_three_is_met_without_the_third(log: SealedLog, tmp_path: Path) -> None:
    with running(log, tmp_path, 3) as servers:
        policy = policy_text(servers, "2").replace(f":{servers[2].server_address[1]}/", ":1/")
        log.write(FEBRUARY, 12)
        assert await seal(log, policy, is_required=True) == ""
    assert stored(log, "SELECT has_quorum FROM audit_head_anchors ORDER BY tree_size DESC LIMIT 1") == [
        (True,)
    ]
    assert len(parse_note(newest(log)).lines) == 3


# Seen red with `_ask` that does not ask again for the same size.
async def test_two_sealers_that_publish_one_head_are_no_fork(log: SealedLog, tmp_path: Path) -> None:
    """Both ask for the same head; the one that comes second believes that the witness has an older one."""
    with running(log, tmp_path, 1) as servers:
        policy = policy_text(servers)
        async with witnessing(policy) as asked, log.sealer(witnessing=asked) as slow:
            await slow.seal_once()
            log.write(FEBRUARY, 12)
            assert await seal(log, policy) == ""
            size, note = await slow.publication._newest()
            assert slow.publication._known["w0"] < size
            assert list(await slow.publication._cosignatures(size, parse_note(note))) == ["w0"]


# Seen red with `_judge` that does not read the newest head again.
async def test_another_sealer_that_was_faster_is_no_rollback(log: SealedLog, tmp_path: Path) -> None:
    """The witness has seen the head that the other one signed while this one was asking."""
    with running(log, tmp_path, 1) as servers:
        policy = policy_text(servers)
        async with witnessing(policy) as asked, log.sealer(witnessing=asked) as slow:
            await slow.seal_once()
            log.write(FEBRUARY, 12)
            async with log.sealer() as other:  # its head is newer, and its own witness's too
                await other.seal_once()
            before = await slow.publication._newest()
            log.write(FEBRUARY, 13)
            assert await seal(log, policy) == ""
            await slow.publication._cosignatures(before[0], parse_note(before[1]))
            await slow._anchor(TRY_LOCK)
            assert slow.stopped == ""
    assert_whole(log)
