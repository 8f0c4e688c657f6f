"""The image that the Dockerfile makes, built by buildah and asked a question: small, without root, and unable to change itself.

Its two bases are made of Debian's packages and stand in for the official images of Python, which come from a registry of images.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.conftest import CAMPAIGN_ROUNDS, HUNG_S, PATIENCE, ROOT, free_port, killed_after

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(CAMPAIGN_ROUNDS == 1, reason="minutes long: make campaign CAMPAIGN_ROUNDS=2"),
]
BUILD_S = 1200
ANSWER_S = 120
MEGABYTES_MAX = 660
USER = 10001
SUITE, PYTHON = "bookworm", "3.11"
BASE = ("python3", "python-is-python3", "ca-certificates")
BASES = {"run": BASE, "build": (*BASE, "python3-venv", "binutils")}
# As `docker run --read-only --tmpfs /tmp --volume …:/data`, by the kernel's own means.
CONTAINER = """
set -e
mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"
mount -t tmpfs -o nosuid,nodev,noexec tmp "$1/tmp"
mount --bind "$2" "$1/data"; mount --rbind /dev "$1/dev"; mount -t proc proc "$1/proc"
"""


@dataclass(frozen=True, slots=True)
class Image:
    root: Path  # its files, mounted
    environment: dict[str, str]

    def start(self, data: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
        script = f'{CONTAINER}root=$1; shift 2; exec chroot --userspec={USER}:{USER} "$root" "$@"'
        return subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, "sh", str(self.root), str(data), *self._env(environment), *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def within(self, other: subprocess.Popen[str], *command: str) -> str:
        """What a command says in a container that runs, as `docker exec`."""
        return _run(
            "nsenter", "--mount", f"--target={other.pid}", "chroot", f"--userspec={USER}:{USER}", self.root, *self._env({}), *command
        )  # fmt: skip

    def _env(self, more: dict[str, str]) -> list[str]:
        given = self.environment | {"HOME": "/home/affidavit"} | more
        return ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in given.items())]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    for program in ("buildah", "mmdebstrap", "unshare", "nsenter"):
        if shutil.which(program) is None:
            pytest.skip(f"no image: {program} is not installed")
    if os.geteuid():
        pytest.skip("no image: only root can mount one")
    with tempfile.TemporaryDirectory(
        prefix="affidavit-image-", dir="/var/tmp"
    ) as name:  # overlays need a disk
        folder = Path(name)
        with ThreadPoolExecutor() as pool:  # each waits for a registry
            wheels = pool.submit(_wheels, folder)
            bases = dict(zip(BASES, pool.map(partial(_base, folder), BASES), strict=True))
        storage = ["buildah", "--root", str(folder / "storage"), "--runroot", str(folder / "run")]
        try:
            for base, archive in bases.items():
                made = _run(*storage, "from", "scratch").strip()
                _run(*storage, "add", "--quiet", made, archive, "/")
                _run(*storage, "commit", "--quiet", "--rm", made, f"localhost/{base}")
            _build(folder, storage, wheels.result())
            container = _run(*storage, "from", "localhost/affidavit").strip()
            root = Path(_run(*storage, "mount", container).strip())
            written = _run(*storage, "inspect", "--type", "image", "--format", "{{range .OCIv1.Config.Env}}{{println .}}{{end}}", "localhost/affidavit")  # fmt: skip
            yield Image(root, dict(line.split("=", 1) for line in written.split("\n") if "=" in line))
        finally:
            subprocess.run([*storage, "rm", "--all"], capture_output=True, check=False)
            subprocess.run([*storage, "rmi", "--all", "--force"], capture_output=True, check=False)


def _wheels(folder: Path) -> Path:
    """Fetched here, where the way to the registry is known: the build itself then needs no network."""
    lock = folder / "requirements.lock"
    # Debian's Python may be older than ours by a patch.
    lock.write_text(
        re.sub(r" ; python_full_version < '3\.11\.\d+'", "", (ROOT / "requirements.lock").read_text())
    )
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:",
        "--python-version", PYTHON, "--dest", folder / "wheels", "-r", lock, "-r", ROOT / "requirements-build.lock",
    ]  # fmt: skip
    with _or_skipped("the registry of Python cannot be had"):
        _run(*command)
    return folder / "wheels"


def _base(folder: Path, name: str) -> Path:
    archive = folder / f"{name}.tar"
    command = [
        "mmdebstrap", "--quiet", "--variant=minbase", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        *(f"--dpkgopt=path-exclude=/usr/share/{left_out}/*" for left_out in ("doc", "man", "locale")),
        f"--include={','.join(BASES[name])}", SUITE, archive,
    ]  # fmt: skip
    with _or_skipped("the registry of Debian cannot be had"):
        _run(*command)
    return archive


def _build(folder: Path, storage: list[str], wheels: Path) -> None:
    offline = folder / "pip.conf"
    offline.write_text("[global]\nno-index = true\nfind-links = /offline\n")
    _run(
        *storage, "bud", "--isolation", "chroot", "--format", "docker", "--layers=false",
        "--build-arg", "BUILD=localhost/build", "--build-arg", "BASE=localhost/run",
        "--volume", f"{wheels}:/offline:ro", "--volume", f"{offline}:/etc/pip.conf:ro", "--tag", "affidavit", ROOT,
    )  # fmt: skip


def _run(*command: object) -> str:
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=BUILD_S, check=False, cwd=ROOT
    )
    if done.returncode:
        raise AssertionError(f"{command[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


@contextlib.contextmanager
def _or_skipped(why: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as failed:
        pytest.skip(f"no image: {why} ({str(failed)[-200:]})")


def _megabytes(root: Path) -> float:
    """Each file once, however many names it has."""
    sizes = {}
    for folder, _, names in os.walk(root):
        for found in (os.lstat(Path(folder) / name) for name in names):
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values()) / 1e6


def test_the_image_is_small_and_has_no_way_to_install_more(image: Image) -> None:
    megabytes = _megabytes(image.root)
    print(f"The image has {megabytes:.0f} MB.")
    assert megabytes <= MEGABYTES_MAX
    assert list(image.root.glob("opt/affidavit/lib/*/site-packages/pip")) == []
    assert list(image.root.glob("opt/affidavit/lib/*/site-packages/setuptools")) == []
    assert list(image.root.glob("opt/affidavit/lib/*/site-packages/affidavit-*.dist-info/sboms/*.json"))


def test_it_answers_without_root_and_without_writing_to_itself(image: Image, tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_port()
    data.mkdir()
    os.chown(data, USER, USER)
    began = time.monotonic()
    with _running(image, data, "up", "--no-open", "--port", str(port)) as engine:
        assert engine.stdout is not None
        _ask(port, engine.stdout.readline().split()[-1])
        with_new_book = time.monotonic() - began
        key = image.within(engine, "affidavit", "keys", "create", "--client", "tests")
        assert "ok       passages" in image.within(engine, "affidavit", "doctor")
        assert image.within(engine, "id", "-u").strip() == str(USER)
        with pytest.raises(AssertionError, match="Read-only file system"):
            image.within(engine, "touch", "/opt/affidavit/x")
    began = time.monotonic()
    with _running(image, data, "serve", "--port", str(port)):
        _ask(port, re.findall(r"aff_\w+", key)[0])
        with_both = time.monotonic() - began
    print(f"First answer after {with_new_book:.1f} s with a new database and book, {with_both:.1f} s later.")


@contextlib.contextmanager
def _running(image: Image, data: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    with image.start(data, "affidavit", *command, **PATIENCE, AFFIDAVIT_BOOKS__MANUAL="") as engine:
        try:
            assert engine.stdout is not None
            said: list[str] = []
            with killed_after(HUNG_S, engine):
                while not said or not said[-1].startswith("Affidavit is ready"):
                    said.append(engine.stdout.readline())
                    assert said[-1], "".join(said)
            yield engine
        finally:
            engine.terminate()
            engine.communicate(timeout=HUNG_S)


def _ask(port: int, key: str) -> None:
    answer = httpx.post(
        f"http://127.0.0.1:{port}/v1/query", json={"query": "What is gimbal lock?"},
        headers={"Authorization": f"Bearer {key}"}, timeout=ANSWER_S,
    ).json()  # fmt: skip
    assert answer["outcome"] == "answered", answer
    assert any("Gimbal lock occurs when" in citation["excerpt"] for citation in answer["citations"])
