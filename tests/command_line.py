"""The console script in a process of its own."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def affidavit(
    *arguments: object, data_dir: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    where = ["--data-dir", str(data_dir)] if data_dir else []
    return subprocess.run(
        [sys.executable, "-m", "engine.cli", *map(str, arguments), *where],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, env={"PATH": "/usr/bin:/bin"} | environment,
    )  # fmt: skip
