"""The second process that checks signatures says what the first one would say, and its death costs only time."""

from hashlib import sha256
from uuid import UUID

import pytest

from audit.checking import signature_check
from audit.checking.signature_check import Claim, SignatureProcess, check_here
from audit.proof.record import HashedRow
from audit.proof.row_signature import signed
from tests.proofs import KEY, STRANGER


def claims(count: int) -> list[Claim]:
    """Every third one is a stranger's, and every fifth has none."""
    made: list[Claim] = []
    for number in range(count):
        log_id, leaf = str(UUID(int=number)), sha256(str(number).encode()).digest()
        text = signed(HashedRow('{"a":0}', leaf), log_id, STRANGER if number % 3 == 0 else KEY).text
        made.append((log_id, leaf, None if number % 5 == 0 else bytes.fromhex(text.split("\\x")[1][:136])))
    return made


@pytest.mark.parametrize("count", [20, 600])
def test_the_process_says_what_this_one_says(count: int) -> None:
    asked = claims(count)
    with SignatureProcess() as process:
        said = process.check(asked, [KEY.public])
    assert said == check_here(asked, [KEY.public])
    assert len(said) == sum(1 for number in range(count) if number % 3 and number % 5)


def test_a_process_that_dies_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature_check, "SMALL", 0)
    asked = claims(20)
    with SignatureProcess() as process:
        process.check(asked, [KEY.public])
        assert process._worker
        process._worker._process.kill()
        assert process.check(asked, [KEY.public]) == check_here(asked, [KEY.public])
