"""A store that says it has Object Lock, and is not fit for a vault: Ceph RGW 16, as Debian has it. `doctor` must say so.

It ignores If-None-Match and a wrong SHA-256, and forgets the lock that a multipart upload asked for.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from engine.providers import s3 as provider
from engine.providers.s3 import S3Vault
from engine.storage.database import Database
from tests.conftest import free_port
from tests.parts.archive.test_s3 import LARGE, PART, diagnosed, file_of, point_to, vault_in
from tests.upstreams import s3
from tests.upstreams.s3 import Upstream

VERSION = "16.2.15"
# With what they load; apt checks who signed them. Nothing is installed: a folder takes them.
PACKAGES = (
    "ceph-base", "ceph-common", "ceph-mon", "ceph-osd", "radosgw", "librados2", "libaio1", "libboost-context1.74.0",
    "libboost-filesystem1.74.0", "libboost-iostreams1.74.0", "libboost-program-options1.74.0", "libboost-thread1.74.0",
    "libdaxctl1", "libfmt9", "libfuse2", "libgoogle-perftools4", "libibverbs1", "libleveldb1d", "libndctl6", "libnl-3-200",
    "libnl-route-3-200", "liboath0", "libpmem1", "librabbitmq4", "librdmacm1", "libsnappy1v5", "libtcmalloc-minimal4",
)  # fmt: skip
PROGRAMS = ("ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "osdmaptool", "radosgw", "radosgw-admin")
INSTALL_S, STEP_S, READY_S = 300, 60, 90
SETTINGS = """
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{port}]
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms bind msgr1 = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd objectstore = memstore
osd class dir = {library}/rados-classes
plugin dir = {library}/ceph
erasure code dir = {library}/ceph/erasure-code
run dir = {folder}
admin socket = {folder}/$name.socket
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
pid file = {folder}/$name.pid
mon data = {folder}/mon
osd data = {folder}/osd
keyring = {folder}/keyring
"""


@pytest.fixture(scope="module")
def bad_bucket() -> Iterator[Upstream]:
    with _ceph() as url:
        upstream = Upstream(url, f"bucket-{uuid4().hex}", _server=url)
        upstream.direct().create_bucket(Bucket=upstream.bucket, ObjectLockEnabledForBucket=True)
        yield upstream


@pytest.fixture
def vault(bad_bucket: Upstream, monkeypatch: pytest.MonkeyPatch) -> S3Vault:
    point_to(bad_bucket, monkeypatch)
    monkeypatch.setattr(provider, "PART_BYTES", PART)
    return vault_in(bad_bucket, prefix=f"{uuid4().hex}/")


# Seen red with a doctor that only asks what the bucket says of itself: everything was "ok".
async def test_the_doctor_finds_a_bad_bucket_that_calls_itself_a_good_one(
    vault: S3Vault, bad_bucket: Upstream, database: Database
) -> None:
    assert await diagnosed(bad_bucket, database) == {
        "vault": (
            "failed",
            "the bucket lets a key be written twice: it does not support If-None-Match; use another bucket",
        ),
        "bucket versions": ("ok", "on"),
        "bucket lock": ("ok", "on, each object COMPLIANCE, 3650 days; default of the bucket: none"),
        "bucket deletion": ("ok", "a locked test object cannot be deleted"),
    }


def test_what_it_is_given_in_parts_is_locked_all_the_same(
    vault: S3Vault, bad_bucket: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upload's own lock is forgotten here, so that only the one that is set afterwards holds."""

    def held(key: str) -> str | None:
        found = bad_bucket.direct().head_object(Bucket=bad_bucket.bucket, Key=vault._name(key))
        mode: str | None = found.get("ObjectLockMode")
        return mode

    path = file_of(tmp_path / "large", os.urandom(LARGE))
    vault.put_file("locked", path)
    monkeypatch.setattr(S3Vault, "_lock", lambda *_: None)
    vault.put_file("forgotten", path)
    assert (held("locked"), held("forgotten")) == ("COMPLIANCE", None)


@contextlib.contextmanager
def _ceph() -> Iterator[str]:
    """One monitor, one store in memory and a gateway; skips the test where the programs cannot be had."""
    with tempfile.TemporaryDirectory(prefix="affidavit-ceph-", ignore_cleanup_errors=True) as name:
        ceph = _Ceph(Path(name), free_port(), free_port())
        if why_not := ceph.install():
            pytest.skip(f"no bad bucket: {why_not}")
        try:
            yield ceph.start()
        finally:
            for process in reversed(ceph.processes):
                process.kill()
                process.wait()


@dataclass
class _Ceph:
    folder: Path
    port: int
    gateway_port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def library(self) -> Path:
        return self.folder / "root/usr/lib/x86_64-linux-gnu"

    @property
    def environment(self) -> dict[str, str]:
        places = (self.library, self.folder / "root/lib/x86_64-linux-gnu", self.library / "ceph")
        return os.environ | {
            "LD_LIBRARY_PATH": ":".join(map(str, places)), "CEPH_CONF": str(self.folder / "ceph.conf"),
        }  # fmt: skip

    def install(self) -> str:
        """Into the folder. Why not, if it cannot be."""
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            return "Ceph comes from Debian's packages, and this is not Debian"
        packages = self.folder / "packages"
        packages.mkdir()
        got = subprocess.run(
            ["apt-get", "download", "--quiet", *PACKAGES], cwd=packages, capture_output=True, timeout=INSTALL_S, check=False
        )  # fmt: skip
        if got.returncode or not list(packages.glob(f"radosgw_{VERSION}*_amd64.deb")):
            return f"Debian's packages of Ceph {VERSION} for x86-64 cannot be had"
        for package in packages.iterdir():
            subprocess.run(["dpkg", "--extract", package, self.folder / "root"], check=True)
        for program in PROGRAMS:
            loads = subprocess.run(
                ["ldd", self._program(program)], env=self.environment, capture_output=True, text=True, check=False
            )  # fmt: skip
            if "not found" in loads.stdout:
                return f"{program} lacks a library: {loads.stdout}"
        return ""

    def start(self) -> str:
        fsid = str(uuid4())
        given = {"fsid": fsid, "port": self.port, "library": self.library, "folder": self.folder}
        (self.folder / "ceph.conf").write_text(SETTINGS.format_map(given))
        (self.folder / "osd").mkdir()
        self._do("ceph-authtool", "--create-keyring", self.folder / "keyring", "--gen-key", "-n", "mon.")
        monitors, stores = self.folder / "monitors", self.folder / "stores"
        self._do(
            "monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{self.port}]", monitors
        )
        self._do("osdmaptool", "--createsimple", "1", stores)
        self._do("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors, "--osdmap", stores)
        self._begin("ceph-mon", "-i", "a")
        self._do("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", str(uuid4()))
        self._begin("ceph-osd", "-i", "0")
        self._do(
            "radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests",
            f"--access-key={s3.ACCESS_KEY}", f"--secret-key={s3.SECRET_KEY}",
        )  # fmt: skip
        self._begin(
            "radosgw",
            "-n",
            "client.admin",
            "--rgw-frontends",
            f"beast endpoint=127.0.0.1:{self.gateway_port}",
        )
        url = f"http://127.0.0.1:{self.gateway_port}"
        self._wait_until_ready(url)
        return url

    def _program(self, name: str) -> Path:
        return self.folder / "root/usr/bin" / name

    def _do(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self._program(program), *arguments], env=self.environment, capture_output=True, timeout=STEP_S, check=True
        )  # fmt: skip

    def _begin(self, program: str, *arguments: str) -> None:
        with (self.folder / f"{program}.output").open("wb") as output:
            self.processes.append(
                subprocess.Popen(
                    [self._program(program), "-f", *arguments], env=self.environment,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )
            )  # fmt: skip

    def _wait_until_ready(self, url: str) -> None:
        """Another program's readiness is no event of ours; it can only be asked for."""
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(url)
                return
            assert time.monotonic() < deadline, "Ceph did not become ready"
            time.sleep(0.1)
