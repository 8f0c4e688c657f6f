"""Time stamps from the settings to the verdict, as an operator, an auditor and `openssl` meet them."""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.heads.vaulted import list_heads, note_key
from audit.stamps.stored import list_stamps, stamp_key
from engine.errors import ConfigurationError
from engine.settings import load
from engine.storage.database import Database
from tests.command_line import affidavit
from tests.conftest import HUNG_S, ROOT
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.upstreams.authorities.certificates import certificate_authority, time_stamper
from tests.upstreams.authorities.forgery import forged
from tests.upstreams.authorities.openssl_ts import OpensslAuthority, Served, serving


@pytest.fixture
async def log(database: Database, tmp_path: Path) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path) as made:
        yield made


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Served]:
    with serving(OpensslAuthority.make(tmp_path / "authority")) as served:
        shutil.copy(served.authority.roots_file, tmp_path / "roots.pem")
        yield served


def run(log: SealedLog, served: Served, *arguments: object, mode: str = "best effort") -> tuple[int, Any]:
    given = {"MODE": mode, "URL": served.url, "CERTIFICATES": "roots.pem"}
    environment = {f"AFFIDAVIT_TIME_STAMPS__{name}": value for name, value in given.items()}
    done = affidavit(*arguments, "--json", data_dir=log.folder, DATABASE_URL=log.url, **environment)
    return done.returncode, json.loads(done.stdout)


def test_a_stamped_log_is_valid_for_us_and_for_openssl(log: SealedLog, authority: Served) -> None:
    """The commands are those of docs/how-to/time-stamps.md."""
    assert run(log, authority, "audit", "seal", "--once")[1]["stamps"] == 1
    assert run(log, authority, "audit", "seal", "--once")[1]["stamps"] == 0
    code, report = run(log, authority, "audit", "verify", mode="required")
    assert (code, report["verdict"]) == (0, "VALID")
    assert [
        number for words, number in report["counted"].items() if words.startswith("time stamps are of")
    ] == [1]
    (stored,) = list_stamps(log.vault)
    (chain,) = (log.folder / "vault" / "stamps").glob("chain-*.pem")
    stamp, note = log.folder / "vault" / stored.key, log.folder / "vault" / note_key(stored.size)
    text = log.folder / "head.txt"
    text.write_bytes(b"".join(note.read_bytes().splitlines(keepends=True)[:3]))
    roots = log.folder / "roots.pem"
    done = subprocess.run(
        ["openssl", "ts", "-verify", "-in", stamp, "-data", text, "-CAfile", roots, "-untrusted", chain],
        capture_output=True, text=True, timeout=HUNG_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "Verification: OK\n"), done
    done = subprocess.run(
        [
            sys.executable, "-m", "audit.auditor", stamp, "--head", note, "--public-key", log.folder / "signing.key.pub",
            "--tsa-certificates", roots,
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=HUNG_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()[0]) == (0, "VALID"), done
    given = ("--head", note, "--public-key", log.folder / "signing.key.pub", "--tsa-certificates", roots)
    assert affidavit("audit", "check", stamp, *given).returncode == 0


@pytest.mark.campaign
def test_a_log_that_was_set_back_lacks_what_was_stamped(log: SealedLog, authority: Served) -> None:
    """Database and anchors are yesterday's copy; somebody kept the stamp, and puts it back into the vault."""
    log.keep()
    log.write(FEBRUARY, 12)
    assert run(log, authority, "audit", "seal", "--once")[1]["stamps"] == 1
    (stored,) = list_stamps(log.vault)
    response, newest = log.vault.get(stored.key), log.vault.get(note_key(stored.size))
    log.restore()
    assert stored.size > max(list_heads(log.vault).sizes)
    assert run(log, authority, "audit", "verify")[1]["verdict"] == "VALID"
    log.vault.put(stored.key, response)
    code, report = run(log, authority, "audit", "verify")
    assert (code, report["verdict"]) == (1, "MISSING")
    assert "and the vault no longer has it" in str(_of_stamps(report))
    log.vault.put(note_key(stored.size), newest)
    code, report = run(log, authority, "audit", "verify")
    assert (code, report["verdict"]) == (1, "MISSING")
    assert "it was set back to an older copy" in str(_of_stamps(report))


def _of_stamps(report: Any) -> list[Any]:
    return [finding for finding in report["findings"] if finding["what"] == "time stamp"]


@pytest.mark.campaign
def test_a_stamp_of_another_authority_and_a_lack_of_one_are_found(log: SealedLog, authority: Served) -> None:
    size = max(list_heads(log.vault).sizes)
    code, report = run(log, authority, "audit", "verify", mode="required")
    assert (code, report["verdict"], len(_of_stamps(report))) == (1, "MISSING", 1)
    assert run(log, authority, "audit", "verify")[0] == 0
    other = certificate_authority("Test Root")
    text = b"".join(log.vault.get(note_key(size)).splitlines(keepends=True)[:3])
    response = forged(text, time_stamper(other), [other])
    log.vault.put(stamp_key(size, response), response)
    code, report = run(log, authority, "audit", "verify")
    assert (code, report["verdict"], len(_of_stamps(report))) == (1, "TAMPERED", 1)


def test_a_wrong_vault_is_called_so_and_its_stamps_are_not_judged(log: SealedLog, authority: Served) -> None:
    # Seen red: the stamps of the wrong vault compared with this log.
    vault = log.folder / "vault"
    vault.rename(log.folder / "elsewhere")
    (vault / "heads").mkdir(parents=True)
    shutil.copytree(log.folder / "elsewhere" / "heads", vault / "heads", dirs_exist_ok=True)
    code, report = run(log, authority, "audit", "verify", mode="required")
    assert (code, report["verdict"], _of_stamps(report)) == (1, "WRONG_VAULT", [])


def test_a_file_of_certificates_that_is_gone_is_named(log: SealedLog, authority: Served) -> None:
    (log.folder / "roots.pem").unlink()
    given = {"MODE": "best effort", "URL": authority.url, "CERTIFICATES": "roots.pem"}
    environment = {f"AFFIDAVIT_TIME_STAMPS__{name}": value for name, value in given.items()}
    done = affidavit("audit", "verify", data_dir=log.folder, DATABASE_URL=log.url, **environment)
    assert done.returncode == 1 and "(time_stamps.certificates)" in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"MODE": "required"}, "needs time_stamps.url and time_stamps.certificates too"),
        ({"MODE": "best effort", "URL": "http://tsa.example.org"}, "needs time_stamps.certificates too"),
        ({"URL": "http://user:secret@tsa.example.org"}, "must be a URL such as http://tsa.example.org/tsr"),
        ({"MODE": "sometimes"}, "time_stamps.mode"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as wrong:
        load({f"AFFIDAVIT_TIME_STAMPS__{name}": value for name, value in given.items()})
    assert said in str(wrong.value) and "secret" not in str(wrong.value)
