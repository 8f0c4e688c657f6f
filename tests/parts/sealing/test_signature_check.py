"""libsodium decides nothing alone."""

from collections.abc import Iterator
from hashlib import sha256, sha512

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.checking.signature_check import FastKey
from audit.proof.keys import PublicKey
from tests import second_verifier

ORDER = 2**252 + 27742317777372353535851937790883648493
NOBODY = (1).to_bytes(32, "little")  # the neutral element, of order 1
NOBODY_TWICE = (2**255 - 18).to_bytes(32, "little")  # the same, written another way
ORDER_2, ORDER_4 = (2**255 - 20).to_bytes(32, "little"), bytes(32)
SEED = sha256(b"odd signatures").digest()
MESSAGE = b"affidavit row\nany\n"


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
