"""What witnesses and authorities have signed counts in a package only if the auditor named them."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from audit.heads.policy import parse_policy
from audit.package import manifest as names
from audit.package.elsewhere import Trusted
from audit.package.ladder import PackageReport, Rung
from audit.package.verification import check_package
from audit.proof.note import parse_note
from audit.proof.verdict import Verdict
from audit.stamps.stored import stamp_key
from audit.stamps.token import read_certificates
from tests.logs import packages
from tests.logs.packages import NOVEMBER, OCTOBER, Files
from tests.proofs import KEY
from tests.upstreams.authorities.openssl_ts import OpensslAuthority

POLICY = Trusted(parse_policy(packages.policy()))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OpensslAuthority:
    return OpensslAuthority.make(tmp_path_factory.mktemp("authority"))


def checked(files: Files, trusted: Trusted) -> PackageReport:
    content = packages.zipped(packages.signed(files))
    return check_package(io.BytesIO(content), [KEY.public], trusted)


def on(report: PackageReport, rung: Rung) -> set[Verdict]:
    return {finding.verdict for finding in report.findings if finding.what == rung}


def test_a_cosigned_head_proves_the_records_under_it() -> None:
    report = checked(packages.with_heads(packages.made()), POLICY)
    assert report.verdict is Verdict.ERASED
    assert report.ladder[Rung.WITNESS] == {Verdict.VALID: 16, Verdict.CANNOT_TELL: 2}  # 11 of 13 in November


def test_without_a_policy_the_witness_is_not_judged_and_nothing_is_worse() -> None:
    report = checked(packages.with_heads(packages.made()), Trusted())
    assert (report.verdict, report.ladder[Rung.WITNESS]) == (Verdict.ERASED, {Verdict.CANNOT_TELL: 18})
    assert report.cannot_tell[Rung.WITNESS] == "no policy of witnesses was given"


# Seen red with the policy asked only where the package has a head: whoever left the head out passed.
@pytest.mark.parametrize(
    "files", [packages.made, lambda: packages.with_heads(packages.made(), "witness.other")]
)
def test_a_policy_that_is_not_met_is_no_proof(files: Callable[[], Files]) -> None:
    report = checked(files(), POLICY)
    assert (report.verdict, on(report, Rung.WITNESS)) == (Verdict.CANNOT_TELL, {Verdict.CANNOT_TELL})


def _of_a_stranger(files: Files) -> None:
    files[names.HEAD] = packages.with_heads(packages.made())[names.HEAD].replace(b"\n4\n", b"\n5\n")


def _another_head(files: Files) -> None:
    files[names.HEAD] = packages.with_heads(packages.made(), size=3)[names.HEAD]


def _cosignature(files: Files) -> None:
    note = files[names.HEAD].decode()
    *others, last = note.splitlines()
    *words, coded = last.split(" ")
    coded = coded[:20] + ("A" if coded[20] != "A" else "B") + coded[21:]
    files[names.HEAD] = "\n".join([*others, " ".join([*words, coded]), ""]).encode()


def _of_another_month(files: Files) -> None:
    files[names.proof_name(OCTOBER)] = files[names.proof_name(NOVEMBER)]


def _anchor_is_gone(files: Files) -> None:
    """The head that the proof is of is none of the package."""
    del files[names.anchor_name(NOVEMBER, 11)]


def _index(files: Files) -> None:
    name = names.proof_name(NOVEMBER)
    files[name] = files[name].replace(b"index 3", b"index 2")


# Seen red with proofs that were not compared with the anchored heads of the package.
@pytest.mark.parametrize(
    "change", [_of_a_stranger, _another_head, _cosignature, _of_another_month, _anchor_is_gone, _index]
)
def test_an_altered_head_or_proof_is_found_on_the_rung_of_the_witness(
    change: Callable[[Files], None],
) -> None:
    files = packages.with_heads(packages.made())
    change(files)
    report = checked(files, POLICY)
    assert (report.verdict, on(report, Rung.WITNESS)) == (Verdict.TAMPERED, {Verdict.TAMPERED})


def stamped(files: Files, authority: OpensslAuthority, over: str = names.HEAD) -> Files:
    text = parse_note(files[over].decode()).text.encode()
    response = authority.stamp_text(text)
    return {**files, stamp_key(4, response): response}


def trusting(authority: OpensslAuthority) -> Trusted:
    return Trusted(authorities=read_certificates(authority.roots_file.read_bytes()))


def test_a_stamped_head_proves_when_its_records_existed(authority: OpensslAuthority) -> None:
    report = checked(stamped(packages.with_heads(packages.made()), authority), trusting(authority))
    assert report.verdict is Verdict.ERASED
    assert report.ladder[Rung.TIME_STAMP] == {Verdict.VALID: 16, Verdict.CANNOT_TELL: 2}
    assert any("time stamp of" in words for words in report.counted)


def test_a_stamp_of_another_text_or_authority_is_found(authority: OpensslAuthority, tmp_path: Path) -> None:
    files = packages.with_heads(packages.made())
    other = OpensslAuthority.make(tmp_path / "other")
    for wrong in (stamped(files, authority, names.checkpoint_name(NOVEMBER)), stamped(files, other)):
        report = checked(wrong, trusting(authority))
        assert (report.verdict, on(report, Rung.TIME_STAMP)) == (Verdict.TAMPERED, {Verdict.TAMPERED})


def test_certificates_without_a_stamp_are_no_proof(authority: OpensslAuthority) -> None:
    for files in (packages.made(), packages.with_heads(packages.made())):
        report = checked(files, trusting(authority))
        assert (report.verdict, on(report, Rung.TIME_STAMP)) == (Verdict.CANNOT_TELL, {Verdict.CANNOT_TELL})


def test_a_stamp_is_not_judged_without_certificates(authority: OpensslAuthority) -> None:
    report = checked(stamped(packages.with_heads(packages.made()), authority), Trusted())
    assert report.verdict is Verdict.ERASED
    assert report.cannot_tell[Rung.TIME_STAMP] == "no certificates of an authority were given"
