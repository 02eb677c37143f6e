"""Modes of the caller's thread that would change what torch computes: they end where this library
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

import torch
from threadpoolctl import LibController, ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def own_modes(gradients: bool = False) -> Iterator[None]:
    """The same arithmetic wherever it is called: `torch.autocast` rounds products to bfloat16,
    `torch.set_float32_matmul_precision("high")` those of float32 to TF32, and tensors made in
    `torch.inference_mode` cannot be tuned on later. `gradients`: tuning follows them, also inside
    `torch.no_grad`.
    """
    matmul = torch.get_float32_matmul_precision()
    if matmul != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        with (
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            torch.set_grad_enabled(gradients),
        ):
            yield
    finally:
        if matmul != "highest":
            torch.set_float32_matmul_precision(matmul)


class _CalmNumpy:
    """One thread for numpy and scipy, which do little in a fit: their others would spin for a while
    after each product, on the cores that torch's threads need (a fit of 1,000 rows of classes on
    two cores takes 5.1 s with them and 3.4 s without).

    It is so for the whole process, while any fit goes on: the first saves, the last restores.
    """

    def __init__(self) -> None:
        self._lock, self._fits = Lock(), 0
        self._before: list[tuple[LibController, int]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._fits += 1
            if self._fits > 1:
                return
            every = ThreadpoolController().lib_controllers
            own = [lib for lib in every if lib.user_api == "blas" and "py.libs" in lib.filepath]
            self._before = [(lib, lib.get_num_threads()) for lib in own]
            for lib in own:
                lib.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._fits -= 1
            if not self._fits:
                for lib, threads in self._before:
                    lib.set_num_threads(threads)


calm_numpy = _CalmNumpy()


def in_own_modes(gradients: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A method that runs so.

    Its frame is one of this package's: warnings still point at the user's own line.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            with own_modes(gradients), calm_numpy if gradients else nullcontext():
                return method(*args, **kwargs)

        return inside

    return decorate
