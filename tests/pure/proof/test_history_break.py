"""The statement of a break, and the line by which later heads name it: what is written is read, and nothing else."""

import base64
import random
from dataclasses import replace
from datetime import UTC, date, datetime
from hashlib import sha256
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import NoteError
from audit.proof.checkpoint import (
    BreakLine,
    HistoryBreak,
    Link,
    is_basis,
    open_break,
    open_note,
    read_break,
    sign_break,
    sign_note,
)
from audit.proof.keys import SigningKey
from tests.pure.proof.test_checkpoint import CHECKPOINT, FIRST, ORIGIN, ROUNDS

MONTH = date(2026, 11, 1)
BREAK = HistoryBreak(
    ORIGIN, MONTH, 1, Link(MONTH, 120, sha256(b"kept").digest()), Link(MONTH, 185, sha256(b"lost").digest()),
    datetime(2026, 11, 19, 9, 0, 0, 7, tzinfo=UTC), UUID("0198c0de-0000-7000-8000-000000000001"), "failover at 8:40, ticket 4711",
)  # fmt: skip


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture(scope="module")
def other() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))


@pytest.mark.parametrize(
    "broken", [BREAK, replace(BREAK, kept=Link(MONTH, 0, sha256(b"").digest()), number=12), replace(BREAK, basis="é 机器人 🤖")]
)  # fmt: skip
def test_what_is_signed_is_read(broken: HistoryBreak, key: SigningKey, other: SigningKey) -> None:
    note = sign_break(broken, key)
    assert open_break(note, [other.public, key.public]) == read_break(note) == broken


def test_a_stranger_s_statement_is_refused(key: SigningKey, other: SigningKey) -> None:
    with pytest.raises(NoteError, match="not among the given ones"):
        open_break(sign_break(BREAK, other), [key.public])


# Seen red without the comparison with the canonical text: `kept 0120` was read.
def test_no_byte_of_it_can_be_changed(key: SigningKey) -> None:
    chance, note = random.Random(8), sign_break(BREAK, key)
    for _ in range(ROUNDS):
        at = chance.randrange(len(note))
        changed = note[:at] + chance.choice("0aZ+/=\n \u2014") + note[at + 1 :]
        if changed != note:
            with pytest.raises(NoteError):
                open_break(changed, [key.public])
    padded = sign_break(BREAK, key).replace("kept 120", "kept 0120")
    with pytest.raises(NoteError, match="canonical"):
        read_break(padded)


def test_a_break_that_loses_nothing_or_says_nothing_is_none(key: SigningKey) -> None:
    for wrong in (
        replace(BREAK, lost=BREAK.kept),
        replace(BREAK, basis=" a"),
        replace(BREAK, basis="a" * 201),
    ):
        with pytest.raises(NoteError):
            open_break(sign_break(wrong, key), [key.public])
    assert not is_basis("two\nlines") and not is_basis("") and is_basis("failover")


def test_later_heads_name_it(key: SigningKey) -> None:
    lines = (BREAK.line(sign_break(BREAK, key)), BreakLine(150, 151, "0" * 64))
    for head in (replace(CHECKPOINT, breaks=lines), replace(FIRST, breaks=lines[:1])):
        note = sign_note(head, key)
        assert open_note(note, [key.public]) == head
        assert f"\nbreak 120 185 {sha256(sign_break(BREAK, key).encode()).hexdigest()}\n" in note


@pytest.mark.parametrize("line", ["break 120 120 ", "break 0120 185 ", "break 185 120 ", "break -1 5 "])
def test_a_line_that_is_written_otherwise_is_refused(line: str, key: SigningKey) -> None:
    text = sign_note(FIRST, key).partition("\n\n")[0] + f"\n{line}{'0' * 64}\n"
    signature = base64.b64encode(key.public.fingerprint + key.sign(text.encode())).decode()
    with pytest.raises(NoteError, match=r"canonical|at least one|not a checkpoint"):
        open_note(f"{text}\n\u2014 affidavit {signature}\n", [key.public])
