"""What a run has judged is believed for the very leaves, keys and program; all else begins anew."""

from datetime import UTC, date, datetime

import pytest

from audit.checking.numbering import Numbering
from audit.checking.resumption import Resumption, about
from audit.errors import LeavesChangedError
from audit.proof.verdict import Finding, Report, Verdict
from tests.proofs import KEY, STRANGER

AT = datetime(2026, 11, 20, 8, tzinfo=UTC)
MONTH = date(2026, 11, 1)
SAID = about([KEY.public], ["log"], AT, AT, "1.0")


def numbering() -> Numbering:
    """With something in each of its parts."""
    made = Numbering(datetime.min.replace(tzinfo=UTC))
    for minute, beat in (
        (0, None),
        (2, {"through": 1, "unrecorded": []}),
        (4, {"through": 6, "unrecorded": [[4, 4]]}),
    ):
        row = {"writer": "a", "sequence": minute, "heartbeat": beat}
        made.add(row, AT.replace(minute=minute))
    made.add({"writer": "a", "sequence": 9, "heartbeat": None}, AT.replace(minute=50))
    made.explain(AT, AT.replace(minute=3))
    return made


def report(*findings: Finding) -> Report:
    made = Report(checked=1_000)
    made.count("records were erased, and are proven", 3)
    made.count("records wait for the sealer", 2)
    for finding in findings:
        made.add(finding)
    return made


def kept(*findings: Finding) -> list[bytes]:
    texts: list[bytes] = []
    resumption = Resumption.of(b"", SAID, AT, texts.append)
    resumption.add(MONTH, 1_000, "ab" * 32, numbering(), report(*findings))
    return texts


def again(content: bytes, said: str = SAID) -> Resumption:
    return Resumption.of(content, said, AT.replace(hour=9), lambda _: None)


def test_a_run_goes_on_with_all_that_was_found_and_says_so() -> None:
    (text,) = kept()
    found, counted, restored = again(text), Report(), Numbering(AT)
    assert (found.known(MONTH), found.known(date(2026, 12, 1))) == (1_000, 0)
    assert (found.is_past(date(2026, 10, 1)), found.is_past(MONTH), found.is_past(date(2026, 12, 1))) == (
        True,
        True,
        False,
    )
    found.restore(restored, counted)
    assert restored == numbering()
    assert counted.checked == 1_000
    assert counted.counted == {
        "records were erased, and are proven": 3,
        "of them were judged earlier, by the run that began at 2026-11-20 08:00:00 UTC, and not again": 1_000,
    }
    numbering().finish(was := Report())
    restored.finish(now := Report())
    assert was == now and was.findings


# Seen red without the digest: a file that was cut or edited was believed.
def test_what_was_altered_says_nothing() -> None:
    (text,) = kept()
    damaged = [text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :] for at in range(len(text) - 1)]
    for content in (b"", b"\n", b"{}", text[:-70], text.replace(b"1000", b"9000"), *damaged):
        assert (again(content).known(MONTH), again(content).numbered) == (0, None)


@pytest.mark.parametrize(
    "other",
    [
        about([KEY.public, STRANGER.public], ["log"], AT, AT, "1.0"), about([KEY.public], ["other"], AT, AT, "1.0"),
        about([KEY.public], ["log"], AT.replace(year=2025), AT, "1.0"), about([KEY.public], ["log"], AT, AT, "1.1"),
    ],
)  # fmt: skip
def test_another_verification_begins_anew(other: str) -> None:
    (text,) = kept()
    assert again(text, other).known(MONTH) == 0


def test_other_leaves_are_not_those_that_were_judged() -> None:
    (text,) = kept()
    again(text).check(MONTH, 1_000, "ab" * 32)
    for leaves, digest in ((999, "ab" * 32), (1_000, "ac" * 32)):
        with pytest.raises(LeavesChangedError):
            again(text).check(MONTH, leaves, digest)


# Seen red without the look at findings: a record that was found to be altered was not judged again, and so not reported again.
def test_nothing_is_kept_from_the_first_wrong_row_on() -> None:
    assert kept(Finding(Verdict.TAMPERED, "row", "x")) == []
    assert len(kept(Finding(Verdict.ARCHIVED, "month", "x"))) == 1  # it is found again without judging a row
