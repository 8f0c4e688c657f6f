"""File descriptors of this process: as many as the system lets it have, and how many of them connections may take."""

import resource
from pathlib import Path

from engine.errors import ConfigurationError

WANTED = 4096  # more than the connections that one process can serve
RESERVED = (
    12  # for the spool, anchors, checks, vendors, connections that are accepted while others are closed
)
CONNECTIONS_MIN, CONNECTIONS_MAX = 8, 2048


def raise_limit() -> None:
    """Raises the soft limit to the hard one, or to as many as are wanted. Processes that are started inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if resource.RLIM_INFINITY != soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections_max(database_connections: int) -> int:
    """Once everything is open: what is left when the audit has its reserve. It must always reach the database and the spool."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    taken = sum(1 for _ in Path("/dev/fd").iterdir()) + database_connections + RESERVED
    left = CONNECTIONS_MAX if limit == resource.RLIM_INFINITY else limit - taken
    if left < CONNECTIONS_MIN:
        raise ConfigurationError(
            f"This process may open {limit} files, too few to serve. Let it open at least"
            f" {taken + CONNECTIONS_MIN}: ulimit -n {WANTED}"
        )
    return min(left, CONNECTIONS_MAX)
