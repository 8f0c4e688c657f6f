"""The engine reports to nobody."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

EMBED = "from engine.providers import minilm; from engine.settings import load; minilm.embedder(load({}))"


# Seen red without ORT_DISABLE_TELEMETRY: .cache/Microsoft/DeveloperTools/.onnxruntime had an id of the device and a queue.
def test_the_runtime_of_the_embedder_prepares_no_report_to_its_maker(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-B", "-c", EMBED], cwd=ROOT, env=environment, check=True)
    assert list(tmp_path.rglob("*")) == []
