"""An evidence package is accepted only if nobody has touched it; each tampering is found on its rung."""

import io
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit.package import container, processes, verification
from audit.package import manifest as names
from audit.package.container import ZipEntry, directory, local_header, read_directory, read_pieces
from audit.package.ladder import PackageReport, Rung
from audit.package.program import program
from audit.package.verification import check_package
from audit.proof.verdict import Verdict
from tests.logs import packages
from tests.logs.package_tampering import Tampering, tamperings
from tests.proofs import KEY, STRANGER

TAMPERINGS = tamperings()


def checked(content: bytes) -> PackageReport:
    return check_package(io.BytesIO(content), [KEY.public])


def test_there_are_at_least_fifty_kinds_of_tampering() -> None:
    assert len({each.name for each in TAMPERINGS}) == len(TAMPERINGS) >= 50
    assert {each.rung for each in TAMPERINGS} >= {*Rung} - {Rung.WITNESS, Rung.TIME_STAMP}


# Seen red, one by one: the spreadsheet, the gaps, the anchors or the ZIP's headers not compared; a record without personal data
# taken as erased; the package's own keys believed.
@pytest.mark.parametrize("tampered", TAMPERINGS, ids=[each.name for each in TAMPERINGS])
def test_each_tampering_is_found_on_its_rung(tampered: Tampering) -> None:
    report = checked(tampered.content)
    assert report.verdict not in {Verdict.VALID, Verdict.ERASED}
    assert (tampered.rung, tampered.verdict) in {(each.what, str(each.verdict)) for each in report.findings}


def test_a_whole_package_is_proven_on_every_rung() -> None:
    report = checked(packages.zipped(packages.made()))
    assert (report.verdict, report.checked) == (Verdict.ERASED, 18)
    assert [finding.verdict for finding in report.findings] == [Verdict.ERASED]
    for rung in (Rung.ROW, Rung.LEAF, Rung.MONTH, Rung.CHECKPOINT):
        assert report.ladder[rung] == Counter({Verdict.VALID: 18})
    assert report.ladder[Rung.VAULT] == Counter({Verdict.VALID: 16, Verdict.CANNOT_TELL: 2})


def test_a_redacted_package_is_proven_without_any_personal_value() -> None:
    content = packages.zipped(packages.made(is_redacted=True))
    assert checked(content).verdict is Verdict.ERASED
    read = b"".join(
        zipfile.ZipFile(io.BytesIO(content)).read(name) for name in packages.made(is_redacted=True)
    )
    assert b"compliance" not in read
    assert "user:ä1".encode() not in read


def test_a_package_without_a_record_is_never_valid() -> None:
    files = {name: content for name, content in packages.made().items() if "2026-1" not in name}
    files[names.SPREADSHEET] = packages.derived_spreadsheet(files)
    files[names.COVERAGE] = packages.line(packages.coverage(months=[]))
    files[names.PASSAGES] = files[names.ERASURES] = b""
    counts = dict.fromkeys(("records", "withheld", "erased", "passages", "anchors"), 0)
    report = checked(packages.zipped(packages.signed(files, counts=counts)))
    assert (report.verdict, report.findings) == (Verdict.CANNOT_TELL, [])


def test_what_the_maker_said_of_the_log_is_repeated() -> None:
    said = packages.coverage()["verify"]
    for verdict in (Verdict.TAMPERED, Verdict.MISSING, Verdict.LOST_BY_FAILOVER, Verdict.WRONG_VAULT):
        files = packages.made()
        files[names.COVERAGE] = packages.line(packages.coverage(verify=said | {"verdict": str(verdict)}))
        assert checked(packages.zipped(packages.signed(files))).verdict is verdict


def test_without_a_key_nothing_is_said() -> None:
    report = check_package(io.BytesIO(packages.zipped(packages.made())), [])
    assert (report.verdict, report.checked) == (Verdict.CANNOT_TELL, 0)


def test_the_keys_in_the_package_are_not_believed() -> None:
    report = check_package(io.BytesIO(packages.zipped(packages.made())), [STRANGER.public])
    assert report.verdict is Verdict.TAMPERED
    assert {"package", "row", "checkpoint", "vault"} <= {finding.what for finding in report.findings}


# Seen red with the size of a file taken from its data: one that says 10 bytes inflated to 100 MB.
def test_a_decompression_bomb_is_stopped_at_the_size_that_it_says() -> None:
    import zlib

    packed = zlib.compress(bytes(100 * 2**20), 9, wbits=-zlib.MAX_WBITS)
    entry = ZipEntry("records.csv", container.DEFLATE, 0, len(packed), 10, 0)
    content = local_header(entry) + packed
    content += directory([entry], len(content))
    (found,) = read_directory(io.BytesIO(content))
    sizes = list[int]()
    with pytest.raises(ValueError, match="its size or its checksum differs"):
        sizes.extend(len(piece) for piece in read_pieces(io.BytesIO(content), found))
    assert sum(sizes) <= 10


def test_files_beyond_four_gigabytes_have_the_headers_that_other_programs_read() -> None:
    entry = ZipEntry("records.csv", container.STORED, 0, 5 * 2**32, 5 * 2**32, 2**33)
    tail = directory([entry], 2**35)
    assert list(container._entries(tail)) == [entry]
    assert container._LARGE_END in tail


# Breaks if anything opens a socket.
ALONE = """
import runpy, sys
def watch(event, _):
    if event.startswith("socket."):
        raise RuntimeError(event)
sys.addaudithook(watch)
runpy.run_path("auditor.pyz", run_name="__main__")
"""


def test_the_program_is_one_file_that_needs_nothing_of_ours(tmp_path: Path) -> None:
    """Run outside of the repository, isolated; what it loads of ours comes from itself."""
    (tmp_path / "auditor.pyz").write_bytes(program())
    (tmp_path / "evidence.zip").write_bytes(packages.zipped(packages.made()))
    (tmp_path / "keys").write_text(f"{KEY.public}\n")
    words = (sys.executable, "-I", "-X", "importtime", "-c", ALONE, "evidence.zip", "--public-key", "keys")
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, "ERASED (18 checked)")
    loaded = {
        line.rsplit("|", 1)[-1].strip().split(".")[0] for line in ran.stderr.splitlines() if "|" in line
    }
    assert not loaded & {"engine", "psycopg", "nacl", "pyarrow", "duckdb"}
    assert program() == program()


def dying(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("is_killed", [False, True])
def test_several_processes_say_the_same_as_one_even_if_they_are_killed(
    monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    monkeypatch.setattr(processes, "SMALL", 0)
    monkeypatch.setattr(verification, "LINES", 2)
    if is_killed:
        monkeypatch.setattr(processes, "_perform", dying)
    files = packages.made()
    files[names.SPREADSHEET] = files[names.SPREADSHEET].replace(b"It says so", b"It says no", 1)
    content = io.BytesIO(packages.zipped(packages.signed(files)))
    several = check_package(content, [KEY.public], workers=processes.in_processes(2))
    assert several == check_package(content, [KEY.public])
    assert several.verdict is Verdict.TAMPERED


def test_the_manifest_is_read_back_as_it_was_written() -> None:
    manifest = names.open_manifest(packages.made()[names.MANIFEST])
    written = replace(manifest, made_at=datetime(1, 2, 3, 4, 5, 6, 7, tzinfo=UTC))
    assert names.open_manifest(names.sign_manifest(written, KEY)).made_at == written.made_at
