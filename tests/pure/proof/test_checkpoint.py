"""Signed notes: what is written is read, and nothing that is not written exactly so."""

import base64
import random
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import NoteError
from audit.proof.checkpoint import Checkpoint, Link, open_note, receipt_text, sign_note
from audit.proof.keys import PublicKey, SigningKey
from audit.proof.note import SIGNATURES_MAX, to_base64

SEED = bytes(range(32))
ORIGIN = "affidavit/5f0c1c3e-6f43-4d3b-9a0a-0f6f0a5f9d11"
ROUNDS = 3_000

CHECKPOINT = Checkpoint(
    ORIGIN, date(2026, 11, 1), 133, sha256(b"root").digest(), datetime(2026, 11, 18, 14, 0, 0, 5, tzinfo=UTC),
    Link(date(2026, 9, 1), 90210, sha256(b"earlier").digest()),
)  # fmt: skip
FIRST = replace(CHECKPOINT, previous=None)


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.from_private_bytes(SEED))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    return SigningKey.create(Path(tmp_path_factory.mktemp("keys"), "other.key"))


def test_the_note_is_this_text_signed_by_the_standards_rules(key: SigningKey) -> None:
    """Written here a second time from the specification of C2SP, with nothing of ours but the values."""
    text = (
        "affidavit/5f0c1c3e-6f43-4d3b-9a0a-0f6f0a5f9d11/2026-11\n133\n"
        + base64.b64encode(sha256(b"root").digest()).decode()
        + "\ntime 2026-11-18T14:00:00.000005Z\nprevious 2026-09 90210 "
        + base64.b64encode(sha256(b"earlier").digest()).decode()
        + "\n"
    )
    private = Ed25519PrivateKey.from_private_bytes(SEED)
    key_hash = sha256(b"affidavit\n\x01" + private.public_key().public_bytes_raw()).digest()[:4]
    line = base64.b64encode(key_hash + private.sign(text.encode())).decode()
    assert sign_note(CHECKPOINT, key) == f"{text}\n\u2014 affidavit {line}\n"


@pytest.mark.parametrize("checkpoint", [CHECKPOINT, FIRST])
def test_what_is_signed_is_read(checkpoint: Checkpoint, key: SigningKey, other: SigningKey) -> None:
    assert open_note(sign_note(checkpoint, key), [other.public, key.public]) == checkpoint


def test_a_moment_elsewhere_is_written_in_utc(key: SigningKey) -> None:
    elsewhere = CHECKPOINT.issued_at.astimezone(timezone(timedelta(hours=-11)))
    assert sign_note(replace(CHECKPOINT, issued_at=elsewhere), key) == sign_note(CHECKPOINT, key)


def test_a_stranger_s_signature_is_refused_and_his_key_is_named(key: SigningKey, other: SigningKey) -> None:
    with pytest.raises(NoteError, match=other.key_id.replace("+", r"\+")):
        open_note(sign_note(CHECKPOINT, other), [key.public])


def test_with_no_key_nothing_is_believed(key: SigningKey) -> None:
    with pytest.raises(NoteError):
        open_note(sign_note(CHECKPOINT, key), [])


def test_a_stranger_who_borrows_the_key_id_is_refused(key: SigningKey, other: SigningKey) -> None:
    text, _, _ = sign_note(CHECKPOINT, key).rpartition("\n\u2014")
    forged = base64.b64encode(key.public.fingerprint + other.sign(text.encode())).decode()
    with pytest.raises(NoteError, match="does not fit"):
        open_note(f"{text}\n\u2014 affidavit {forged}\n", [key.public, other.public])


REWRITTEN = {
    "a size with a zero before it": ("\n133\n", "\n0133\n"),
    "a size with a sign": ("\n133\n", "\n+133\n"),
    "a size in other digits": ("\n133\n", "\n\u0661\u0663\u0663\n"),
    "no leaves": ("\n133\n", "\n0\n"),
    "a month that is none": ("/2026-11\n", "/2026-13\n"),
    "a year of five digits": ("/2026-11\n", "/02026-11\n"),
    "a day that is none": ("time 2026-11-18", "time 2026-11-31"),
    "a time without its fraction": (".000005Z", "Z"),
    "a time with fewer digits": (".000005Z", ".00000Z"),
    "a time of elsewhere": (".000005Z", ".000005+00:00"),
    "two spaces": ("time ", "time  "),
    "a carriage return": ("\n133\n", "\r\n133\r\n"),
    "a line more": ("time ", "other 1\ntime "),
    "the time twice": ("\nprevious", "\ntime 2026-11-18T14:00:00.000005Z\nprevious"),
    "an empty line": ("\n133", "\n\n133"),
    "a previous month that is this one": ("previous 2026-09", "previous 2026-11"),
    "a previous month that is later": ("previous 2026-09", "previous 2026-12"),
    "a previous month of no leaves": (" 90210 ", " 0 "),
    "an origin with a space": ("affidavit/5f", "affidavit /5f"),
}  # fmt: skip


# Seen red with the comparison of the text with its rewriting taken out.
@pytest.mark.parametrize("change", REWRITTEN.values(), ids=REWRITTEN.keys())
def test_what_is_written_otherwise_is_refused_though_truly_signed(
    change: tuple[str, str], key: SigningKey
) -> None:
    text, _, _ = sign_note(CHECKPOINT, key).rpartition("\n\u2014")
    assert change[0] in text
    text = text.replace(*change, 1)
    line = base64.b64encode(key.public.fingerprint + key.sign(text.encode())).decode()
    with pytest.raises(NoteError):
        open_note(f"{text}\n\u2014 affidavit {line}\n", [key.public])


def test_base64_that_is_not_the_canonical_one_is_refused(key: SigningKey) -> None:
    note = sign_note(CHECKPOINT, key)
    head, last = note[:-3], note[-3]
    assert note.endswith("=\n")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twin = alphabet[alphabet.index(last) ^ 1]
    assert base64.b64decode((head + twin + "=").rpartition(" ")[2]) == base64.b64decode(
        note.rpartition(" ")[2]
    )
    with pytest.raises(NoteError, match="base64"):
        open_note(f"{head}{twin}=\n", [key.public])


@pytest.mark.parametrize("more", ["\n", " ", "x", "\u2014 affidavit AAAA\n", "\x00"])
def test_nothing_may_follow_or_precede(more: str, key: SigningKey) -> None:
    note = sign_note(CHECKPOINT, key)
    for changed in (note + more, more + note):
        with pytest.raises(NoteError):
            open_note(changed, [key.public])


# Red on the code before: whoever signed a note again made it unreadable.
@pytest.mark.parametrize("before", [True, False])
def test_a_note_that_sixteen_strangers_signed_too_is_read(
    before: bool, key: SigningKey, other: SigningKey
) -> None:
    text, _, ours = sign_note(CHECKPOINT, key).rpartition("\n\n")
    lines = [f"— witness{n}.example {to_base64(bytes([n]) * 76)}\n" for n in range(16)]
    lines.insert(0 if before else 16, ours)
    assert open_note(f"{text}\n\n{''.join(lines)}", [key.public, other.public]) == CHECKPOINT


def test_of_two_known_signers_both_must_have_signed(key: SigningKey, other: SigningKey) -> None:
    """After a rotation a note may bear both; one that does not fit is a forgery, and not a stranger."""
    note, second = sign_note(CHECKPOINT, key), sign_note(CHECKPOINT, other)
    another = sign_note(FIRST, other)
    keys = [key.public, other.public]
    assert open_note(note + second.rpartition("\n\n")[2], keys) == CHECKPOINT
    with pytest.raises(NoteError, match="does not fit"):
        open_note(note + another.rpartition("\n\n")[2], keys)


def test_more_signatures_than_a_log_can_have_are_refused(key: SigningKey) -> None:
    stranger = f"— witness.example {to_base64(bytes(76))}\n"
    with pytest.raises(NoteError, match="100"):
        open_note(sign_note(CHECKPOINT, key) + SIGNATURES_MAX * stranger, [key.public])


def test_no_changed_character_is_accepted(key: SigningKey) -> None:
    note, chance = sign_note(CHECKPOINT, key), random.Random(7)
    for _ in range(ROUNDS):
        at = chance.randrange(len(note))
        put = chr(chance.choice([chance.randrange(32, 127), chance.randrange(0x110000), ord("\n")]))
        changed = chance.choice(
            [note[:at] + put + note[at + 1 :], note[:at] + put + note[at:], note[:at], note[at:]]
        )
        if changed != note:
            with pytest.raises(NoteError):
                open_note(changed, [key.public])


def test_the_key_s_public_half_is_enough(key: SigningKey) -> None:
    public = PublicKey.of(str(key.public))
    assert open_note(sign_note(CHECKPOINT, key), [public]) == CHECKPOINT


def test_the_text_of_a_receipt() -> None:
    issued_at = datetime(2026, 11, 18, 15, 0, tzinfo=timezone(timedelta(hours=1)))
    log_id = UUID("0b9f2f6e-2a46-4b44-9e0e-8b9d4c7b0001")
    assert receipt_text(log_id, "ab" * 32, issued_at) == (
        b"affidavit receipt\n0b9f2f6e-2a46-4b44-9e0e-8b9d4c7b0001\n"
        + b"ab" * 32
        + b"\n2026-11-18T14:00:00.000000Z\n"
    )
