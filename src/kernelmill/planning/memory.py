"""Memory: how much of it a run may take, and in which pieces.

Read from the system's own files: psutil knows no limits of a control group, which are what counts
in a container.
"""

from __future__ import annotations

import os

import torch

from ..distributed.environment import local_size
from ..errors import InputError

# Large enough for a full-speed matrix product, small enough to stay in the last-level cache.
TILE_BYTES = 8 << 20
# There is no such cache to stay in; launches are what a small tile would cost.
GPU_TILE_BYTES = 256 << 20


def parse_bytes(memory_budget: object, device: str = "cpu") -> int:
    """A budget in bytes from a number, a string such as "8GB" or "500MiB", or None: most of the
    memory that is free now.
    """
    if memory_budget is None:
        if not device.startswith("cuda"):
            return int(0.7 * free_bytes() / local_size())
        # Memory that torch keeps for later use is free for this run.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        sharing = -(-local_size() // torch.cuda.device_count())
        return int(0.85 * (torch.cuda.mem_get_info(device)[0] + cached) / sharing)
    if isinstance(memory_budget, str):
        units = {
            "kb": 10**3,
            "mb": 10**6,
            "gb": 10**9,
            "tb": 10**12,
            "kib": 2**10,
            "mib": 2**20,
            "gib": 2**30,
            "tib": 2**40,
            "b": 1,
        }
        text = memory_budget.strip().lower()
        unit = next((u for u in sorted(units, key=len, reverse=True) if text.endswith(u)), "")
        try:
            number = float(text[: len(text) - len(unit)])
        except ValueError:
            raise InputError(
                f"memory_budget={memory_budget!r} was given, expected bytes or a string such as"
                " '8GB'."
            ) from None
        memory_budget = number * units.get(unit, 1)
    if not isinstance(memory_budget, (int, float)) or not memory_budget > 0:
        raise InputError(
            f"memory_budget={memory_budget!r} was given, expected a positive number of bytes or a"
            " string such as '8GB'."
        )
    return int(memory_budget)


def free_bytes() -> int:
    """Memory that can be had without swapping, and without passing a limit of the process or of its
    control group.
    """
    free = _meminfo()
    if free is None:
        try:
            free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        except (AttributeError, ValueError, OSError):
            free = 4 << 30
    return max(1 << 20, min([free, *_limits()]))


def _meminfo() -> int | None:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _limits() -> list[int]:
    """What is left under each limit that is set."""
    left = []
    used = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in _lines("/proc/self/status")
        if line.startswith(("VmData:", "VmSize:"))
    }
    try:
        import resource

        for limit, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft = resource.getrlimit(limit)[0]
            if soft != resource.RLIM_INFINITY and name in used:
                left.append(soft - used[name])
    except (ImportError, OSError, ValueError):
        pass
    group = next(
        (
            line.split("::")[1].strip()
            for line in _lines("/proc/self/cgroup")
            if line.startswith("0::")
        ),
        "/",
    )
    for folder in (f"/sys/fs/cgroup{group}", "/sys/fs/cgroup"):
        most, now = (
            next(iter(_lines(f"{folder}/{name}")), "").strip()
            for name in ("memory.max", "memory.current")
        )
        if most.isdigit() and now.isdigit():
            reclaimable = sum(
                int(line.split()[1])
                for line in _lines(f"{folder}/memory.stat")
                if line.startswith("inactive_file ")
            )
            left.append(int(most) - int(now) + reclaimable)
            break
    return left


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def tile_bytes(budget: int, device: str = "cpu") -> int:
    """Bytes of one tile of a kernel product: large enough for a full-speed matrix product, less
    where memory is short.
    """
    return max(
        1 << 20, min(GPU_TILE_BYTES if device.startswith("cuda") else TILE_BYTES, budget // 16)
    )
