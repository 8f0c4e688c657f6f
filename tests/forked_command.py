"""One command in a process that was forked from one that has loaded the program (tests/command_line.py)."""

import os
import sys

from engine.cli.main import main


def run(words: list[str], folder: str, environment: dict[str, str], output: str, errors: str) -> None:
    """What a shell does between fork and exec; then the program itself."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv = ["affidavit", *words]
    main()
