"""The second process judges rows as the first one would, and its death costs only time; libsodium decides nothing alone."""

import json
from collections.abc import Iterator
from hashlib import sha256, sha512
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.checking import second_judge
from audit.checking.inspection import Batch, Leaf, LogRow
from audit.checking.judgement import StoredRow
from audit.checking.second_judge import SecondJudge, judge_all, judge_here
from audit.checking.signature_check import FastKey
from audit.proof.keys import PublicKey
from audit.proof.record import bytes_of, hashed
from audit.proof.row_signature import signed
from audit.proof.verdict import Verdict
from tests import second_verifier
from tests.proofs import KEY, STRANGER, row

ORDER = 2**252 + 27742317777372353535851937790883648493
NOBODY = (1).to_bytes(32, "little")  # the neutral element, of order 1
NOBODY_TWICE = (2**255 - 18).to_bytes(32, "little")  # the same, written another way
ORDER_2, ORDER_4 = (2**255 - 20).to_bytes(32, "little"), bytes(32)
SEED = sha256(b"odd signatures").digest()
MESSAGE = b"affidavit row\nany\n"


def batches(count: int, rows: int) -> list[Batch]:
    """Every third row is signed by a stranger, every fifth is not, and every seventh was changed."""
    made = []
    for begin in range(0, count * rows, rows):
        leaves, stored = [], {}
        for number in range(begin, begin + rows):
            log_id = str(UUID(int=number))
            record = hashed(row(number, log_id=log_id), sha256(str(number).encode()).digest())
            text = signed(record, log_id, STRANGER if number % 3 == 0 else KEY).text
            body = json.loads(text) | {"erased_at": None}
            if number % 7 == 0:
                body["answer_text"] = "It says something else. [1]"
            signature = None if number % 5 == 0 else bytes_of(body["signature"])
            leaves.append(Leaf(number, log_id, record.leaf_hash))
            stored[log_id] = [LogRow(json.dumps(body), signature)]
        made.append(Batch(begin, begin + rows, leaves, {}, {}, {}, stored))
    return made


def stored_rows(rows: int) -> list[StoredRow]:
    return [row for _, row in batches(1, rows)[0].stored_rows()]


def test_two_processes_judge_as_one_does_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_judge, "SMALL", 20)
    read = batches(12, 35)
    with SecondJudge() as second:
        judged = list(second.judge_all(read, [KEY.public]))
        assert second._worker
    assert judged == list(judge_all(read, [KEY.public]))
    assert [batch.begin for batch in judged] == [batch.begin for batch in read]
    found = [(number, one) for batch in judged for number, (one,) in batch.judged.items()]
    assert [number for number, _ in found] == list(range(420))
    for number, one in found:
        is_whole = number % 7 != 0
        assert (one.verdict is Verdict.VALID) == is_whole
        assert one.is_signed is (None if number % 5 == 0 else is_whole and number % 3 != 0)


def test_a_short_log_starts_no_process() -> None:
    with SecondJudge() as second:
        assert list(second.judge_all(batches(2, 20), [KEY.public])) == list(
            judge_all(batches(2, 20), [KEY.public])
        )
        assert second._worker is None


def test_a_process_that_dies_costs_only_time() -> None:
    asked = stored_rows(20)
    with SecondJudge() as second:
        second.judge(asked, [KEY.public])
        assert second._worker
        second._worker._process.kill()
        assert second.judge(asked, [KEY.public]) == judge_here(asked, [KEY.public])


def odd_signatures() -> Iterator[tuple[str, bytes, bytes, bool]]:
    """Public key and signature, and whether OpenSSL, the second verifier and so the engine take it."""
    key = Ed25519PrivateKey.from_private_bytes(SEED)
    public, good = key.public_key().public_bytes_raw(), key.sign(MESSAGE)
    yield "good", public, good, True
    yield "another message", public, key.sign(b"other"), False
    yield (
        "S + L",
        public,
        good[:32] + (int.from_bytes(good[32:], "little") + ORDER).to_bytes(32, "little"),
        False,
    )
    for name, point in (
        ("order 1", NOBODY),
        ("order 2", ORDER_2),
        ("order 4", ORDER_4),
        ("twice", NOBODY_TWICE),
    ):
        yield f"R of {name}", public, of_the_owner(point, public), point == NOBODY
    yield "R as S", public, good[32:] + good[32:], False
    yield "key of order 1", NOBODY, NOBODY + bytes(32), True
    yield "key written another way", NOBODY_TWICE, NOBODY + bytes(32), True
    yield "all zeros", bytes(32), bytes(64), False


def of_the_owner(point: bytes, public: bytes) -> bytes:
    """Only who has the private key can make it: the nonce is zero, and R a point of small order."""
    scalar = int.from_bytes(sha512(SEED).digest()[:32], "little") & (2**254 - 8) | 2**254
    challenge = int.from_bytes(sha512(point + public + MESSAGE).digest(), "little")
    return point + (challenge * scalar % ORDER).to_bytes(32, "little")


@pytest.mark.parametrize(
    ("public", "signature", "is_taken"), [pytest.param(*odd, id=name) for name, *odd in odd_signatures()]
)
def test_the_fast_check_takes_what_the_other_verifiers_take(
    public: bytes, signature: bytes, is_taken: bool
) -> None:
    fast = FastKey(PublicKey(public))
    said = (fast.verify(signature, MESSAGE), second_verifier.is_signed(public, signature, MESSAGE))
    assert said == (is_taken, is_taken)
