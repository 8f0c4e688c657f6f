"""Signing benchmark: what a request's two signatures cost with a key in a file, and with a delegated one of a key that is slow.

Run as `python -m bench.signing`. Both are measured in turns, on the same texts. The slow key answers after 50 ms, as one across a
network does; no request must feel it.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from uuid import UUID

from audit.ledger.delegated_keys import DelegatedKeys
from audit.proof.checkpoint import receipt_text
from audit.proof.keys import KeyRing, PublicKey, RowSigner, SigningKey
from audit.proof.record import HashedRow
from audit.proof.row_signature import is_row_signed, signed
from bench.results import Figure, record, show
from engine.wiring import now

REQUESTS = 2_000
ROUNDS = 9
AWAY_S = 0.05
KEYS = 2_000  # delegations that a verifier knows: years of a busy site


def main(rounds: int, requests: int) -> None:
    with tempfile.TemporaryDirectory(prefix="affidavit-bench-") as folder:
        file = SigningKey.create(Path(folder) / "signing.key")
    published: list[PublicKey] = []
    delegated = DelegatedKeys(_Slow(file), published.append, now)
    delegated.cover(now(), now() + timedelta(hours=1))
    costs = [(_signing_us(file, requests), _signing_us(delegated, requests)) for _ in range(rounds)]
    checks = [_checking_us(file, delegated, published[0], requests) for _ in range(rounds)]
    for figure in (
        figures := [
            *_figures("signing a row and its receipt", costs),
            *_figures("checking a row's signature", checks),
        ]
    ):
        show(figure)
    record("signing", [asdict(figure) for figure in figures])


class _Slow(SigningKey):
    """A key elsewhere."""

    def __init__(self, key: SigningKey) -> None:
        super().__init__(key._private)

    def sign(self, message: bytes) -> bytes:
        time.sleep(AWAY_S)
        return super().sign(message)


def _signing_us(keys: RowSigner, requests: int) -> float:
    row, at = HashedRow('{"a":0}', sha256(b"a row").digest()), now()
    began_s = time.perf_counter()
    for number in range(requests):
        key, log_id = keys.at(at), UUID(int=number)
        signed(row, log_id, key)
        key.sign(receipt_text(log_id, row.leaf_hash.hex(), at))
    return (time.perf_counter() - began_s) / requests * 1e6


def _checking_us(
    file: SigningKey, delegated: DelegatedKeys, line: PublicKey, requests: int
) -> tuple[float, float]:
    """With the one key of a file, and with a ring of many delegations."""
    others = [
        PublicKey(sha256(bytes([n % 256, n // 256])).digest(), delegation=line.delegation)
        for n in range(KEYS)
    ]
    leaf, at = sha256(b"a row").digest(), now()
    found = []
    for keys, ring in ((file, KeyRing([file.public])), (delegated, KeyRing([file.public, *others, line]))):
        text = signed(HashedRow('{"a":0}', leaf), UUID(int=1), keys.at(at)).text
        signature = bytes.fromhex(text.split('"signature":"\\\\x')[1].removesuffix('"}'))
        assert is_row_signed(signature, str(UUID(int=1)), leaf, at, ring)
        began_s = time.perf_counter()
        for _ in range(requests):
            is_row_signed(signature, str(UUID(int=1)), leaf, at, ring)
        found.append((time.perf_counter() - began_s) / requests * 1e6)
    return found[0], found[1]


def _figures(what: str, rounds: list[tuple[float, float]]) -> list[Figure]:
    ratio = statistics.median(delegated / file for file, delegated in rounds)
    cost_us = statistics.median(delegated for _, delegated in rounds)
    return [
        Figure(f"{what}: delegated key / key of a file", round(ratio, 2), "about 1"),
        Figure(f"{what}: delegated key, microseconds", round(cost_us, 1), ""),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    given = parser.parse_args()
    main(given.rounds, given.requests)
