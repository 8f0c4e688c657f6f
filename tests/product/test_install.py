"""The wheel, installed elsewhere, answers a question: nothing of the checkout is needed.

Seen red on the wheel as it was: without sql/ and config/ inside, every command ended with a traceback.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.archiving import ROOT

BUILD_S = 300
ANSWER_S = 120


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=BUILD_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def affidavit(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console script of an environment that has the wheel, and borrows our dependencies without our checkout: a path
    file adds a folder of packages and does not follow the path files in it, so the editable install stays out."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, timeout=BUILD_S)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "affidavit"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {"AFFIDAVIT_DATA_DIR": str(tmp_path / "data")}
