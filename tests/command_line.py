"""The console script in a process of its own. Loading the program takes most of a core's second, so that is done once."""

import multiprocessing
import subprocess
import tempfile
from pathlib import Path

from tests import forked_command
from tests.conftest import HUNG_S, ROOT

# A server that has loaded the program, and forks for each command.
_LOADED = multiprocessing.get_context("forkserver")
_LOADED.set_forkserver_preload(["engine.cli.main"])


def affidavit(
    *arguments: object, data_dir: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return affidavit_within(HUNG_S, *arguments, data_dir=data_dir, **environment)


def affidavit_within(
    seconds: float, *arguments: object, data_dir: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    words = [*map(str, arguments), *(["--data-dir", str(data_dir)] if data_dir else [])]
    given = {"PATH": "/usr/bin:/bin"} | environment
    with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
        process = _LOADED.Process(
            target=forked_command.run, args=(words, str(ROOT), given, output.name, errors.name)
        )
        process.start()
        process.join(seconds)
        is_hung = process.is_alive()
        process.kill()
        process.join()
        assert process.exitcode is not None
        said = subprocess.CompletedProcess(words, process.exitcode, output.read(), errors.read())
        process.close()
    if is_hung:
        raise subprocess.TimeoutExpired(words, seconds, said.stdout, said.stderr)
    return said
