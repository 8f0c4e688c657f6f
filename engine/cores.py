"""The processor cores that this process may use."""

import os
from pathlib import Path

# Of a container (cgroup v2): microseconds in a period, and the period.
CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def usable(cpu_max: Path = CPU_MAX) -> int:
    """By its affinity, and by the quota of its container: more threads would only be throttled."""
    is_known = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if is_known else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text("ascii").split()
        return max(1, min(cores, -(-int(quota) // int(period))))
    except (OSError, ValueError):  # no container, or "max"
        return cores
