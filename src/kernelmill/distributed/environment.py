"""What torchrun tells each process it starts."""

from __future__ import annotations

import os

import torch


def is_launched() -> bool:
    """Whether this process is one of a torchrun job, or of a process group that was made
    already.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return True
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def local_size() -> int:
    """How many ranks of the job share this machine."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", 1))) if is_launched() else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", 0)) if is_launched() else 0


def is_restarted() -> bool:
    """Whether torchrun has started this job again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
