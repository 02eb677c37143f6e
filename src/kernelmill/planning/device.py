"""The device a run uses."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distributed.environment import local_rank, local_size
from ..errors import InputError
from .arguments import unless_auto


def device_of(device: str, X: Tensor | None = None) -> str:
    """The device that was asked for; for "auto" where the rows are, or a GPU if there is one."""
    wanted = unless_auto(device)
    if wanted is None and X is not None and X.is_cuda:
        return str(X.device)
    if wanted is None:
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    # Every rank of a machine has a GPU of its own, if there are enough.
    if wanted == "cuda" and local_size() > 1 and torch.cuda.is_available():
        return f"cuda:{local_rank() % torch.cuda.device_count()}"
    try:
        found = torch.device(wanted)
    except (RuntimeError, TypeError):
        raise InputError(
            f"device={device!r} was given, expected 'auto', 'cpu', 'cuda' or 'cuda:0'."
        ) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device={device!r} was given, but torch sees no CUDA GPU here; use device='auto' or"
            " 'cpu'."
        )
    return str(found)
