"""SIGHUP: the terminal was closed, or somebody asks a server to read its settings again.

A server that was started at a terminal ends with it, as people expect. Under nohup, or without a terminal, nothing has hung up.
"""

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


def obey(end: Callable[[], object], reload: Callable[[], object] | None = None) -> None:
    """Ends when the terminal is closed; without `reload` on every SIGHUP, but under nohup on none."""
    is_under_nohup = _is_under_nohup()
    if is_under_nohup and reload is None:
        return
    has_begun_at_one = not is_under_nohup and _has_terminal()

    def on_hangup() -> None:
        if has_begun_at_one and not _has_terminal():
            sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  for the rest of the process: nobody reads it
            end()
        elif reload is None:
            end()
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hangup)


@functools.cache
def _is_under_nohup() -> bool:
    """As the process began: a server obeys again once it can reload, and a handler of ours hides it then."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _has_terminal() -> bool:
    """A terminal that was closed is taken from its processes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
