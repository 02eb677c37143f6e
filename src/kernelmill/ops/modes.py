"""Modes of the caller's thread that would change what torch computes: they end where this library
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from threadpoolctl import threadpool_limits

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def own_modes(gradients: bool = False) -> Iterator[None]:
    """The same arithmetic wherever it is called: `torch.autocast` rounds products to bfloat16, and
    tensors made in `torch.inference_mode` cannot be tuned on later. `gradients`: tuning follows
    them, also inside `torch.no_grad`.
    """
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        torch.set_grad_enabled(gradients),
    ):
        yield


def calm_numpy() -> threadpool_limits:
    """One thread for numpy, which does little in a fit: its others would spin for a while after
    each product, on the cores that torch's threads need (a fit of 1,000 rows of classes on two
    cores takes 5.1 s with them and 3.4 s without).
    """
    return threadpool_limits(limits=1, user_api="blas")


def in_own_modes(gradients: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A method that runs so.

    Its frame is one of this package's: warnings still point at the user's own line.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with own_modes(gradients), calm_numpy() if gradients else nullcontext():
                return method(*args, **kwargs)

        return inside

    return decorate
