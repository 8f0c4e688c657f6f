"""A stamp in the vault is of the head that it names, and of one that the log still has; anybody can check it alone."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from audit.auditor import Beside, check_files
from audit.checking.stamp_check import StampRules, check_stamps
from audit.heads.head import LogHead, sign_head
from audit.heads.vaulted import note_key
from audit.proof.keys import SigningKey, public_file
from audit.proof.verdict import Report
from audit.stamps.chain import Chain
from audit.stamps.stamp_file import WANTED
from audit.stamps.stored import chain_key, encode_chain, head_text, read_chains, stamp_key
from audit.vault import FolderVault
from tests.conftest import HUNG_S, ROOT
from tests.upstreams.authorities.certificates import Identity, certificate_authority, time_stamper
from tests.upstreams.authorities.forgery import AT, forged
from tests.upstreams.authorities.openssl_ts import OpensslAuthority

ORIGIN = "example.org/log"
SMALL, LARGE = 3, 8


@dataclass
class Stamped:
    """Two heads in a vault, each with its stamp."""

    folder: Path
    key: SigningKey
    root: Identity
    between: Identity
    signer: Identity

    @property
    def vault(self) -> FolderVault:
        return FolderVault(self.folder / "vault")

    def path(self, key: str) -> Path:
        return self.folder / "vault" / key

    def replace(self, key: str, content: bytes) -> None:
        self.path(key).unlink()
        self.vault.put(key, content)

    def head(self, size: int, root: bytes = b"r") -> bytes:
        return sign_head(LogHead(ORIGIN, size, sha256(root).digest()), self.key).encode()

    def stamp(self, size: int, moment: datetime = AT, text: bytes | None = None) -> str:
        text = text or head_text(self.vault, size)
        response = forged(text, self.signer, [self.between], time=moment)
        self.vault.put(stamp_key(size, response), response)
        return stamp_key(size, response)

    def check(
        self, *, required: bool = False, newest: int | None = LARGE, later: timedelta = timedelta(0)
    ) -> Report:
        report = Report()
        rules = StampRules([self.root.certificate], is_required=required)
        check_stamps(self.vault, rules, newest, AT + later, report)
        return report


@pytest.fixture
def stamped(tmp_path: Path) -> Stamped:
    root = certificate_authority("Root")
    between = certificate_authority("Between", root)
    made = Stamped(
        tmp_path, SigningKey.create(tmp_path / "signing.key"), root, between, time_stamper(between)
    )
    for size in (SMALL, LARGE):
        made.vault.put(note_key(size), made.head(size))
        made.stamp(size)
    return made


def found(report: Report) -> list[tuple[str, str]]:
    return [(str(finding.verdict), finding.what) for finding in report.findings]


def test_stamps_that_fit_are_counted_with_the_time_of_the_last(stamped: Stamped) -> None:
    report = stamped.check(required=True)
    assert found(report) == []
    assert report.counted == {"time stamps are of heads in the vault, the last of 2026-06-01 12:00:00 UTC": 2}


def test_a_chain_of_the_vault_links_and_is_not_believed(stamped: Stamped) -> None:
    # Seen red: what stands in the vault's chains taken for pinned.
    key = stamped.stamp(LARGE, AT + timedelta(hours=1))
    bare = forged(head_text(stamped.vault, LARGE), stamped.signer, certificates=b"")
    stamped.path(key).unlink()
    stamped.vault.put(stamp_key(LARGE, bare), bare)
    assert found(stamped.check()) == [("TAMPERED", "time stamp")]
    chain: Chain = tuple(each.certificate for each in (stamped.signer, stamped.between, stamped.root))
    pem = encode_chain(chain)
    stamped.vault.put(chain_key(pem), pem)
    assert found(stamped.check()) == [] and read_chains(stamped.vault) == (list(chain), [])
    stranger = certificate_authority("Root")
    theirs = time_stamper(stranger)
    pem = encode_chain((theirs.certificate, stranger.certificate))
    stamped.vault.put(chain_key(pem), pem)
    response = forged(head_text(stamped.vault, LARGE), theirs, [stranger])
    stamped.vault.put(stamp_key(LARGE, response), response)
    assert found(stamped.check()) == [("TAMPERED", "time stamp")]


def _of_another_authority(stamped: Stamped) -> None:
    other = certificate_authority("Root")
    response = forged(head_text(stamped.vault, LARGE), time_stamper(other), [other])
    stamped.vault.put(stamp_key(LARGE, response), response)


def _of_another_head(stamped: Stamped) -> None:
    response = stamped.vault.get(stamped.stamp(SMALL, AT + timedelta(hours=1)))
    stamped.vault.put(stamp_key(LARGE, response), response)


def _changed(stamped: Stamped) -> None:
    key = stamped.stamp(LARGE, AT + timedelta(hours=1))
    stamped.replace(key, stamped.vault.get(key)[:-1] + b"\0")


def _under_another_name(stamped: Stamped) -> None:
    key = stamped.stamp(LARGE, AT + timedelta(hours=1))
    stamped.path(key).rename(stamped.path(f"{key[:-5]}0.tsr" if key[-5] != "0" else f"{key[:-5]}1.tsr"))


def _with_a_chain(stamped: Stamped, pem: bytes) -> str:
    stamped.vault.put(chain_key(pem), pem)
    return chain_key(pem)


def _another_chain(stamped: Stamped) -> None:
    stamped.replace(_with_a_chain(stamped, stamped.root.pem), stamped.between.pem)


ATTACKS: dict[str, tuple[Callable[[Stamped], object], list[str]]] = {
    "a stamp of another authority": (_of_another_authority, ["TAMPERED"]),
    "a stamp of another head": (_of_another_head, ["TAMPERED"]),
    "a stamp is changed": (_changed, ["TAMPERED"]),
    "a stamp is renamed": (_under_another_name, ["TAMPERED"]),
    "a chain is another one": (_another_chain, ["TAMPERED"]),
    "a chain is none": (lambda made: _with_a_chain(made, b"junk"), ["TAMPERED"]),
    "the head is another one": (
        lambda made: made.replace(note_key(LARGE), made.head(LARGE, b"other")),
        ["TAMPERED"],
    ),
    "the head is no head": (lambda made: made.replace(note_key(LARGE), b"nothing"), ["TAMPERED"]),
    "the head is gone": (lambda made: made.path(note_key(LARGE)).unlink(), ["MISSING"]),
    "nothing": (lambda _: None, []),
}


@pytest.mark.parametrize("what", ATTACKS)
def test_what_does_not_fit_is_found(stamped: Stamped, what: str) -> None:
    # Seen red: the text of the head not compared; the file's name not compared; a missing head passed over.
    attack, verdicts = ATTACKS[what]
    attack(stamped)
    assert found(stamped.check()) == [(verdict, "time stamp") for verdict in verdicts]


def test_a_log_of_heads_that_was_set_back_is_missing_what_was_stamped(stamped: Stamped) -> None:
    # Seen red: the size of the log of heads not compared.
    report = stamped.check(newest=LARGE - 1)
    assert found(report) == [("MISSING", "time stamp")]
    assert f"the log of heads has {LARGE - 1}: it was set back to an older copy" in str(report)
    assert found(stamped.check(newest=None)) == []  # a database of an older version


def test_a_late_stamp_is_a_line_and_where_it_is_required_a_finding(stamped: Stamped) -> None:
    # Seen red: the age not looked at.
    later = timedelta(days=2, seconds=1)
    assert stamped.check(later=later).counted["days without a time stamp, since 2026-06-01 12:00:00 UTC"] == 2
    assert found(stamped.check(later=later)) == []
    assert found(stamped.check(later=later, required=True)) == [("MISSING", "time stamp")]
    assert found(stamped.check(later=timedelta(days=2), required=True)) == []


def test_heads_without_a_stamp_are_a_finding_only_where_it_is_required(stamped: Stamped) -> None:
    for path in stamped.path("stamps").iterdir():
        path.unlink()
    assert found(stamped.check()) == [] and stamped.check().counted == {}
    assert found(stamped.check(required=True)) == [("MISSING", "time stamp")]
    for path in stamped.path("heads").iterdir():
        path.unlink()
    assert found(stamped.check(required=True)) == []  # there is nothing to stamp


def test_without_certificates_stamps_are_counted_and_not_judged(stamped: Stamped) -> None:
    _of_another_authority(stamped)
    report = Report()
    check_stamps(stamped.vault, StampRules([]), LARGE, AT, report)
    assert report.counted == {"time stamps were not judged: set time_stamps.certificates": 3}
    assert report.findings == []


def auditor(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "audit.auditor", *map(str, arguments), "--json"], cwd=ROOT, capture_output=True,
        text=True, timeout=HUNG_S, check=False,
    )  # fmt: skip


def test_an_auditor_checks_a_stamp_with_three_files(stamped: Stamped, tmp_path: Path) -> None:
    authority = OpensslAuthority.make(tmp_path / "authority")
    stamp, keys = tmp_path / "head.tsr", public_file(tmp_path / "signing.key")
    stamp.write_bytes(authority.stamp_text(head_text(stamped.vault, LARGE)))
    given = (stamp, "--public-key", keys, "--head", stamped.path(note_key(LARGE)))
    done = auditor(*given, "--tsa-certificates", authority.roots_file)
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], report["checked"]) == (0, "VALID", 1)
    (words,) = report["counted"]
    assert words.startswith(f"head of {LARGE} entries of {ORIGIN} existed on ")
    assert words.endswith(" UTC, says CN=Test Time Stamps")
    other = OpensslAuthority.make(tmp_path / "other")
    done = auditor(*given, "--tsa-certificates", other.roots_file)
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (1, "TAMPERED")


def test_an_auditor_is_told_what_is_wrong_or_missing(stamped: Stamped, tmp_path: Path) -> None:
    # Seen red: the head's signature not verified.
    roots, keys = tmp_path / "roots.pem", public_file(tmp_path / "signing.key")
    roots.write_bytes(stamped.root.pem)
    head, stamp = stamped.path(note_key(LARGE)), stamped.path(stamped.stamp(LARGE, AT + timedelta(1)))

    def said(head: Path | None, roots: Path | None, file: Path = stamp, keys: Path = keys) -> tuple[str, str]:
        report = check_files(file, keys, Beside(head=head, tsa_certificates=roots))
        return report.verdict, report.findings[0].words if report.findings else ""

    assert said(head, roots) == ("VALID", "")
    assert said(stamped.path(note_key(SMALL)), roots) == ("TAMPERED", "The time stamp is of another text")
    assert said(None, None) == said(head, None) == said(None, roots) == ("CANNOT_TELL", WANTED)
    assert said(head, keys)[0] == said(tmp_path / "none", roots)[0] == "CANNOT_TELL"
    assert said(head, roots, head)[0] == "TAMPERED"
    SigningKey.create(tmp_path / "other.key")
    verdict, words = said(head, roots, keys=public_file(tmp_path / "other.key"))
    assert verdict == "TAMPERED" and words.startswith("The head is not one that the log signed")


def test_an_auditor_needs_nothing_but_cryptography(stamped: Stamped) -> None:
    names = ["rfc3161_client", "httpx", "psycopg", "pydantic"]
    program = f"import sys, audit.auditor; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S, check=True
    )
    assert done.stdout == "[]\n"
