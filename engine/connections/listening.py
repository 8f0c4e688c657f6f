"""The listening socket, and how a process leaves a port that others go on serving, without a refused connection.

With `--reuse-port` each server on the port has a socket, and the kernel gives each new connection to one of them. A socket
that closes resets whoever has begun to connect to it. So it stops taking handshakes first: a socket filter drops each SYN,
which the client sends again after a second, to the servers that are left; handshakes that have begun are finished and served.
Where the kernel moves them to another server by itself (net.ipv4.tcp_migrate_req), nobody waits for that second.

A socket of systemd (LISTEN_FDS) stays open when we close ours: who connects meanwhile waits for the next process.
"""

import asyncio
import contextlib
import ctypes
import enum
import errno
import os
import select
import socket
import struct
import sys
from collections.abc import MutableMapping
from pathlib import Path

from engine.connections.door import QUEUE
from engine.errors import ConfigurationError

PORT_MAX = 65535
UNPRIVILEGED_PORT_MIN = 1024
UNREAD_S = 30  # as long as engine/http/stream.py waits for a reader
HANDSHAKE_S = (
    0.5  # for handshakes that have begun; less than the second after which a client sends its SYN again
)
QUEUE_S, LOOK_S = 5.0, 0.02  # for those who wait in the queue
_OWN_HOST = "Use 127.0.0.1 (this machine only) or 0.0.0.0 (all its addresses): --host 0.0.0.0"
_MIGRATES = Path("/proc/sys/net/ipv4/tcp_migrate_req")

_FIRST_DESCRIPTOR = 3  # of those that systemd passes: sd_listen_fds(3)
_SO_ATTACH_FILTER = 26  # Linux; the socket module does not name it
# Classic BPF, each instruction its code, two jumps and a value: if the flags of the TCP header are SYN without ACK, keep
# nothing of the packet, else all.
_NO_SYN = (
    (0x30, 0, 0, 13),
    (0x54, 0, 0, 0x12),
    (0x15, 0, 1, 0x02),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFFFFFF),
)


class Port(enum.Enum):
    """Who serves the port when this process has ended."""

    OWN = "nobody"
    REUSED = "other servers, each with a socket of its own"
    INHERITED = "the next process, from the same socket"


def listen(host: str, port: int, kind: Port = Port.OWN) -> socket.socket:
    """Binds the port before anything else starts, so that a port in use is reported at once."""
    reuses = kind is Port.REUSED
    if reuses and sys.platform != "linux":
        raise ConfigurationError(
            "--reuse-port works on Linux only: elsewhere a connection could be lost at each end. Leave it out."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = (
            _bound(host, port, family)
            if reuses
            else socket.create_server((host, port), family=family, backlog=QUEUE)
        )
    except OSError as failure:
        raise OSError(_unusable(host, port, failure, reuses=reuses)) from None
    return _tuned(bound)


def _bound(host: str, port: int, family: socket.AddressFamily) -> socket.socket:
    """The door listens when it opens: until then the servers that run already take every connection."""
    bound = socket.socket(family)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def inherited(environment: MutableMapping[str, str] = os.environ) -> socket.socket | None:
    """The listening socket that systemd passes to this process, if it does. Its variables are taken out: they mean nobody else."""
    given = {name: environment.pop(name, "") for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")}
    if given["LISTEN_PID"] != str(os.getpid()):
        return None
    listening = socket.socket(fileno=_FIRST_DESCRIPTOR)
    is_tcp = listening.family in {socket.AF_INET, socket.AF_INET6} and listening.type == socket.SOCK_STREAM
    is_open = is_tcp and listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if given["LISTEN_FDS"] != "1" or not is_open:
        raise ConfigurationError(
            "systemd passes something else than one listening TCP socket. Write one ListenStream= with an address and a port,"
            " and Accept=no, into the .socket unit."
        )
    listening.set_inheritable(False)
    return _tuned(listening)


async def leave(listening: socket.socket, kind: Port) -> None:
    """Afterwards no connection is about to arrive at this socket that another one could take, so it can be emptied and closed."""
    is_open = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if kind is not Port.REUSED or not is_open or _is_migrated():
        return
    _refuse_handshakes(listening)
    await asyncio.sleep(HANDSHAKE_S)
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    with contextlib.suppress(TimeoutError):  # so long are all who are served busy
        async with asyncio.timeout(QUEUE_S):
            while poll.poll(0):  # noqa: ASYNC110  the door's reader takes them
                await asyncio.sleep(LOOK_S)


def _is_migrated() -> bool:
    try:
        return _MIGRATES.read_text().strip() == "1"
    except OSError:
        return False


def _refuse_handshakes(listening: socket.socket) -> None:
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in _NO_SYN))
    pointer = struct.pack("@HP", len(_NO_SYN), ctypes.addressof(program))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, pointer)


def _tuned(listening: socket.socket) -> socket.socket:
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for an ACK
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # else a client that stops reading keeps its connection for ever
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
    return listening


def _unusable(host: str, port: int, failure: OSError, *, reuses: bool) -> str:
    if failure.errno in {errno.EADDRNOTAVAIL, socket.EAI_NONAME}:
        return f"{host} is no address of this machine. {_OWN_HOST}"
    reason = os.strerror(failure.errno or 0)
    if reuses and failure.errno == errno.EADDRINUSE:
        return (
            f"Port {port} cannot be shared: the server that has it runs without --reuse-port, or as another user."
            " Restart that one with --reuse-port first."
        )
    other = port + 1 if UNPRIVILEGED_PORT_MIN <= port < PORT_MAX else 8000
    return f"Port {port} cannot be used ({reason}). Use another one: --port {other}"
