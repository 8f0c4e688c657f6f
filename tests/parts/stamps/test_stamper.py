"""Once a day the newest head is stamped, by an authority that may be down, slow or lying; nothing else waits for it."""

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from audit.checking.status import LogGauges
from audit.errors import AuthorityError, KeyFileError
from audit.heads.vaulted import list_heads, note_key
from audit.sealing.stamper import RETRY_S, Stamper
from audit.stamps.stored import head_text, last_stamp, list_stamps, read_chains, read_stamp
from audit.vault import FolderVault, VaultState
from engine.cli.doctor import _time_stamps
from engine.http.metrics import Figures, Metrics
from engine.providers.time_stamps import HttpAuthority
from engine.settings import load
from engine.storage.database import Database
from engine.wiring import now
from tests.command_line import affidavit
from tests.conftest import HUNG_S, ROOT, free_port
from tests.logs.sealed_log import FEBRUARY, SealedLog, sealed_log
from tests.upstreams.authorities.certificates import Identity, certificate_authority, time_stamper
from tests.upstreams.authorities.forgery import forged
from tests.upstreams.authorities.openssl_ts import OpensslAuthority, Served, serving

TIMEOUT_S = 0.3


@pytest.fixture(scope="module")
async def log(database: Database, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SealedLog]:
    async with sealed_log(database, tmp_path_factory.mktemp("log")) as made:
        yield made


@pytest.fixture(scope="module")
def openssl(tmp_path_factory: pytest.TempPathFactory) -> OpensslAuthority:
    return OpensslAuthority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def authority(openssl: OpensslAuthority) -> Iterator[Served]:
    with serving(openssl) as served:
        yield served


@pytest.fixture(autouse=True)
def _nothing_stamped(log: SealedLog) -> None:
    shutil.rmtree(log.folder / "vault" / "stamps", ignore_errors=True)


class Pocket:
    """An authority without a network, whose clock the test has."""

    def __init__(self) -> None:
        self.root = certificate_authority("Pocket")
        self.signer, self.asked, self.time = time_stamper(self.root), 0, now()

    async def stamp(self, text: bytes) -> tuple[bytes, int]:
        self.asked += 1
        return forged(text, self.signer, nonce=self.asked, time=self.time), self.asked


@contextlib.asynccontextmanager
async def stamping(log: SealedLog, authority: Any, root: Identity, **given: Any) -> AsyncIterator[Stamper]:
    async with log.database.pool("affidavit_sealer", 1) as pool:
        yield Stamper(
            pool, given.pop("vault", log.vault), authority, lambda: [root.certificate], lambda: log.keys,
            given.pop("clock", now), **given,
        )  # fmt: skip


def over_http(served: Served, timeout_s: float = HUNG_S) -> HttpAuthority:
    return HttpAuthority(served.url, timeout_s=timeout_s)


def stamps(log: SealedLog) -> list[str]:
    return [stored.key for stored in list_stamps(log.vault)]


def newest(log: SealedLog) -> int:
    return max(list_heads(log.vault).sizes)


async def test_the_newest_head_is_stamped_and_openssl_agrees(log: SealedLog, authority: Served) -> None:
    root = authority.authority.root
    async with stamping(log, over_http(authority), root) as stamper:
        assert await stamper.try_once()
        assert not await stamper.try_once()  # one a day
    (stored,) = list_stamps(log.vault)
    assert stored.size == newest(log) and len(authority.asked) == 1
    assert authority.authority.accepts(log.vault.get(stored.key), head_text(log.vault, stored.size))
    stamp = read_stamp(log.vault, stored, [root.certificate], ())
    assert stamp.time == stamper.stamped_at and 0 <= stamper.age_s < HUNG_S
    assert read_chains(log.vault) == (list(stamp.chain), [])


async def test_the_next_day_it_is_stamped_again_and_not_before(log: SealedLog) -> None:
    # Seen red: the age of the last stamp not looked at.
    pocket = Pocket()
    async with stamping(log, pocket, pocket.root, clock=lambda: pocket.time) as stamper:
        assert await stamper.try_once()
        pocket.time += timedelta(hours=23)
        assert not await stamper.try_once()
        pocket.time += timedelta(hours=2)
        assert await stamper.try_once()
    assert len(stamps(log)) == pocket.asked == 2


async def test_a_restart_does_not_stamp_again(log: SealedLog) -> None:
    # Seen red: the vault not read at the start.
    pocket = Pocket()
    for _ in range(3):
        async with stamping(log, pocket, pocket.root) as stamper:
            await stamper.try_once()
            assert stamper.stamped_at is not None
    assert pocket.asked == 1


async def test_a_forged_stamp_in_the_vault_does_not_silence_it(log: SealedLog, authority: Served) -> None:
    """Somebody who can write into the vault puts one of the future there, under a head that is larger than any."""
    # Seen red: any stamp that lies there believed.
    pocket = Pocket()
    pocket.time = now() + timedelta(days=3650)
    async with stamping(log, pocket, pocket.root, clock=lambda: pocket.time) as stamper:
        await stamper.try_once()
    log.vault.put("stamps/999999999999-0000000000000000.tsr", b"junk")
    async with stamping(log, over_http(authority), authority.authority.root) as stamper:
        assert await stamper.try_once()


async def test_several_sealers_ask_once(log: SealedLog) -> None:
    # Seen red: the lock not taken.
    pocket = Pocket()
    entered = asyncio.Event()

    class Slow:
        async def stamp(self, text: bytes) -> tuple[bytes, int]:
            entered.set()
            await asyncio.sleep(0.2)  # time enough for the others to ask too
            return await pocket.stamp(text)

    async def one() -> bool:
        async with stamping(log, Slow(), pocket.root) as stamper:
            return await stamper.try_once()

    assert sum(await asyncio.gather(*(one() for _ in range(4)))) == 1
    assert pocket.asked == len(stamps(log)) == 1


def _with_other_text(served: Served, _: Path) -> None:
    served.answer = lambda _request: served.authority.stamp_text(b"another text")


def _with_other_nonce(served: Served, folder: Path) -> None:
    """What it once said of the same head."""
    vault = FolderVault(folder / "vault")
    text = head_text(vault, max(list_heads(vault).sizes))
    served.answer = lambda _request: served.authority.stamp_text(text)


def _of_another_authority(served: Served, folder: Path) -> None:
    served.answer = OpensslAuthority.make(folder / "other").stamp


def _refusing(served: Served, folder: Path) -> None:
    served.answer = OpensslAuthority.make(folder / "refusing", digests="sha512").stamp


def _answering(body: bytes) -> Callable[[Served, Path], None]:
    def lie(served: Served, _: Path) -> None:
        served.answer = lambda _request: body

    return lie


def _failing(served: Served, _: Path) -> None:
    served.status = 500


LIES: dict[str, Callable[[Served, Path], None]] = {
    "another text": _with_other_text,
    "another request": _with_other_nonce,
    "another authority": _of_another_authority,
    "a refusal": _refusing,
    "nothing": _answering(b""),
    "a page": _answering(b"<html>"),
    "too much": _answering(b"\x30" * 1_000_000),
    "status 500": _failing,
}


@pytest.mark.parametrize("what", LIES)
async def test_what_is_not_right_is_not_kept_and_is_asked_again(
    log: SealedLog, authority: Served, what: str
) -> None:
    # Seen red: the token kept before it is verified; the nonce not compared.
    LIES[what](authority, log.folder)
    async with stamping(log, over_http(authority), authority.authority.root) as stamper:
        assert not await stamper.try_once()
        assert stamper.errors == 1 and stamps(log) == [] and stamper.stamped_at is None
        authority.answer, authority.status = authority.authority.stamp, 200
        assert await stamper.try_once()
    shutil.rmtree(log.folder / "other", ignore_errors=True)
    shutil.rmtree(log.folder / "refusing", ignore_errors=True)


@pytest.mark.parametrize("hours", [-1, 1])
async def test_an_authority_whose_clock_is_wrong_is_not_believed(log: SealedLog, hours: int) -> None:
    # Seen red: the time not compared with the clock.
    pocket = Pocket()
    pocket.time = now() + timedelta(hours=hours)
    async with stamping(log, pocket, pocket.root) as stamper:
        assert not await stamper.try_once()
    assert stamps(log) == []


async def test_it_logs_a_failure_once_and_its_end_once(
    log: SealedLog, authority: Served, caplog: pytest.LogCaptureFixture
) -> None:
    authority.status = 503
    async with stamping(log, over_http(authority), authority.authority.root) as stamper:
        with caplog.at_level(logging.WARNING, "audit.sealing.stamper"):
            for _ in range(3):
                await stamper.try_once()
            authority.status = 200
            await stamper.try_once()
            await stamper.try_once()
    assert stamper.errors == 3
    assert [record.getMessage() for record in caplog.records] == [
        f"No time stamp was made: {authority.url} answers with status 503. It is tried again.",
        "Time stamps can be made again.",
    ]


async def test_an_authority_that_is_down_or_slow_is_named(log: SealedLog, authority: Served) -> None:
    with pytest.raises(AuthorityError, match="cannot be reached"):
        await HttpAuthority(f"http://127.0.0.1:{free_port()}/tsa").stamp(b"text")
    authority.gate.clear()
    with pytest.raises(AuthorityError, match=r"does not answer within 0\.3 s"):
        await over_http(authority, TIMEOUT_S).stamp(b"text")


async def test_sealing_does_not_wait_for_an_authority_that_hangs(log: SealedLog, authority: Served) -> None:
    # Seen red: the stamp made under the lock of the anchors, with the assertion that both locks are free.
    authority.gate.clear()
    log.keep()
    async with stamping(log, over_http(authority), authority.authority.root) as stamper:
        async with stamper.running():
            await asyncio.to_thread(authority.was_asked.wait)
            with psycopg.connect(log.url) as connection:
                free = connection.execute("SELECT audit_lock('anchor', false), audit_lock('seal', false)")
                assert free.fetchone() == (True, True)
            before = newest(log)
            log.write(FEBRUARY, 12)
            assert await log.seal() == {}
            assert newest(log) > before and stamps(log) == []
    log.restore()


async def test_what_fails_is_tried_again_later(log: SealedLog) -> None:
    pocket = Pocket()
    failures = 3

    class Failing:
        async def stamp(self, text: bytes) -> tuple[bytes, int]:
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise AuthorityError("not now")
            return await pocket.stamp(text)

    async with stamping(log, Failing(), pocket.root, look_s=0.01, retry_s=0.01) as stamper:
        assert RETRY_S > 60
        async with stamper.running(), asyncio.timeout(HUNG_S):
            while not stamps(log):  # noqa: ASYNC110  a folder rings no bell
                await asyncio.sleep(0.01)
    assert stamper.errors == 3


async def test_without_a_head_nothing_is_stamped(log: SealedLog, tmp_path: Path) -> None:
    pocket = Pocket()
    async with stamping(log, pocket, pocket.root, vault=FolderVault(tmp_path)) as stamper:
        assert not await stamper.try_once()
        assert stamper.errors == pocket.asked == 0


async def test_a_head_that_the_log_did_not_sign_is_not_stamped(log: SealedLog, tmp_path: Path) -> None:
    # Seen red: the head's signature not verified.
    size = newest(log)
    other = FolderVault(tmp_path)
    other.put(note_key(size), log.vault.get(note_key(size)).replace(b"\n\n", b"\nmore\n\n"))
    pocket = Pocket()
    async with stamping(log, pocket, pocket.root, vault=other) as stamper:
        assert not await stamper.try_once()
        assert stamper.errors == 1 and pocket.asked == 0


@dataclasses.dataclass
class DyingVault:
    """Ends the sealer before or after one of its writes."""

    vault: FolderVault
    writes: int
    is_written: bool

    def put(self, key: str, content: bytes) -> str:
        self.writes -= 1
        if self.writes:
            return self.vault.put(key, content)
        if self.is_written:
            self.vault.put(key, content)
        raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vault, name)


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("writes", [1, 2])
async def test_a_crash_between_the_steps_leaves_no_stamp_without_its_chain(
    log: SealedLog, writes: int, is_written: bool
) -> None:
    # Seen red: the stamp written before its chain.
    pocket = Pocket()
    vault: Any = DyingVault(log.vault, writes, is_written)
    async with stamping(log, pocket, pocket.root, vault=vault) as stamper:
        with pytest.raises(KeyboardInterrupt):
            await stamper.stamp_if_due()
    assert len(stamps(log)) == (writes == 2 and is_written)
    assert not stamps(log) or read_chains(log.vault)[0]
    async with stamping(log, pocket, pocket.root) as stamper:
        await stamper.try_once()
    assert len(stamps(log)) == 1 and read_chains(log.vault)[0]


def settings_of(log: SealedLog, served: Served, mode: str = "best effort") -> dict[str, str]:
    (log.folder / "roots.pem").write_bytes(served.authority.root.pem)
    return environment(log, served, mode)


def environment(log: SealedLog, served: Served, mode: str) -> dict[str, str]:
    return {
        "DATABASE_URL": log.url,
        "AFFIDAVIT_TIME_STAMPS__MODE": mode,
        "AFFIDAVIT_TIME_STAMPS__URL": served.url,
        "AFFIDAVIT_TIME_STAMPS__CERTIFICATES": "roots.pem",
    }


async def test_a_sealer_that_is_killed_while_it_asks_leaves_nothing_and_the_next_one_stamps(
    log: SealedLog, authority: Served
) -> None:
    authority.gate.clear()
    given = {"PATH": "/usr/bin:/bin"} | settings_of(log, authority)
    sealer = subprocess.Popen(  # noqa: ASYNC220  it only starts here
        [sys.executable, "-m", "engine.cli", "audit", "seal", "--data-dir", log.folder], cwd=ROOT, env=given,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert await asyncio.to_thread(authority.was_asked.wait, HUNG_S)
    finally:
        os.kill(sealer.pid, signal.SIGKILL)
        sealer.wait()
    assert stamps(log) == []
    authority.gate.set()
    done = affidavit("audit", "seal", "--once", data_dir=log.folder, **settings_of(log, authority))
    assert done.returncode == 0 and "1 time stamp made" in done.stdout, done
    assert len(stamps(log)) == 1


async def test_doctor_says_since_when_nothing_was_stamped(log: SealedLog, authority: Served) -> None:
    async def said(mode: str) -> VaultState:
        settings = load(settings_of(log, authority, mode), data_dir=log.folder)
        return await _time_stamps(settings, log.database)

    assert await said("off") == ("ok", "off")
    assert await said("best effort") == ("ok", "best effort: nothing was stamped yet")
    assert await said("required") == ("failed", "required: nothing was stamped yet")
    await stamp_of(log, authority, now())
    found = last_stamp(log.vault, [authority.authority.root.certificate])
    assert found is not None
    words = f"required: the head of {found.size} entries was stamped on {_written(found.time)}"
    assert await said("required") == ("ok", words)
    shutil.rmtree(log.folder / "vault" / "stamps")
    await stamp_of(log, authority, now() - timedelta(days=3))
    state, words = await said("required")
    assert state == "failed" and words.endswith(f"and nothing since: check that {authority.url} answers")
    assert (await said("best effort"))[0] == "ok"
    (log.folder / "roots.pem").write_text("")
    with pytest.raises(KeyFileError, match=r"time_stamps\.certificates"):
        await _time_stamps(load(environment(log, authority, "required"), data_dir=log.folder), log.database)


async def stamp_of(log: SealedLog, served: Served, moment: datetime) -> None:
    """By the authority's own key, at any time."""

    class AtAnyTime:
        async def stamp(self, text: bytes) -> tuple[bytes, int]:
            held = served.authority
            return forged(text, held.signer, [held.intermediate], nonce=1, time=moment), 1

    async with stamping(log, AtAnyTime(), served.authority.root, clock=lambda: moment) as stamper:
        assert await stamper.try_once()


async def test_doctor_says_that_a_log_without_heads_is_not_stamped(log: SealedLog, authority: Served) -> None:
    settings = load(settings_of(log, authority, "required"), data_dir=log.folder)
    heads = log.folder / "vault" / "heads"
    heads.rename(log.folder / "set aside")
    try:
        words = "required: the log of heads is empty, so nothing was stamped yet"
        assert await _time_stamps(settings, log.database) == ("failed", words)
    finally:
        (log.folder / "set aside").rename(heads)


@pytest.mark.parametrize(("age_s", "line"), [(None, ""), (90_000.0, "90000"), (math.inf, "inf")])
async def test_its_age_is_a_metric_where_there_is_one(age_s: float | None, line: str) -> None:
    async def look() -> LogGauges:
        return LogGauges(0, 0, 0, 0, 0, 3, 0, 0, 0, time_stamp_age_s=age_s)

    page = await Metrics(Figures(), look, None, lambda: {"affidavit_time_stamp_errors_total": 2}).page()
    found = [text.split()[1] for text in page.splitlines() if text.startswith("affidavit_time_stamp_age")]
    assert found == ([line] if line else [])
    assert "affidavit_time_stamp_errors_total 2" in page


def _written(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
