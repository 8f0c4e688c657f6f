"""The console script in a process of its own."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import HUNG_S, ROOT


def affidavit(
    *arguments: object, data_dir: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return affidavit_within(HUNG_S, *arguments, data_dir=data_dir, **environment)


def affidavit_within(
    seconds: float, *arguments: object, data_dir: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    where = ["--data-dir", str(data_dir)] if data_dir else []
    return subprocess.run(
        [sys.executable, "-m", "engine.cli", *map(str, arguments), *where],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False, env={"PATH": "/usr/bin:/bin"} | environment,
    )  # fmt: skip
