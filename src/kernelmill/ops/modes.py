"""Modes of the caller's thread that would change what torch computes: they end where this library
begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from threading import Lock
from typing import ParamSpec, TypeVar

import torch
from threadpoolctl import ThreadpoolController

from ..errors import KernelmillError, OutOfMemory, is_out_of_memory

P = ParamSpec("P")
R = TypeVar("R")


class WhileAny:
    """Something of the whole process that is changed while anyone is inside: the first to enter
    changes it, the last to leave undoes that. `change` returns what does so.
    """

    def __init__(self, change: Callable[[], Callable[[], object]]) -> None:
        self._lock, self._inside, self._change = Lock(), 0, change

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._undo = self._change()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._undo()


def _whole_products() -> Callable[[], object]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    return partial(torch.set_float32_matmul_precision, before)


def _one_thread_for_numpy() -> Callable[[], object]:
    every = ThreadpoolController().lib_controllers
    own = [lib for lib in every if lib.user_api == "blas" and "py.libs" in lib.filepath]
    before = [(lib, lib.get_num_threads()) for lib in own]
    for lib in own:
        lib.set_num_threads(1)
    return lambda: [lib.set_num_threads(threads) for lib, threads in before]


# float32 products as they are: `torch.set_float32_matmul_precision("high")` rounds them to TF32.
whole_products = WhileAny(_whole_products)
# numpy and scipy do little in a fit: their other threads would spin for a while after each product,
# on the cores that torch's need (a fit of 1,000 rows of classes on two cores takes 5.1 s with them
# and 3.4 s without).
calm_numpy = WhileAny(_one_thread_for_numpy)


@contextmanager
def own_modes(gradients: bool = False) -> Iterator[None]:
    """The same arithmetic wherever it is called: `torch.autocast` rounds products to bfloat16, and
    tensors made in `torch.inference_mode` cannot be tuned on later. `gradients`: tuning follows
    them, also inside `torch.no_grad`.
    """
    with (
        whole_products,
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        torch.set_grad_enabled(gradients),
    ):
        yield


def in_own_modes(gradients: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A method that runs so.

    Its frame is one of this package's: warnings still point at the user's own line.
    """

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @wraps(method)
        def inside(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                with own_modes(gradients), calm_numpy if gradients else nullcontext():
                    return method(*args, **kwargs)
            except (MemoryError, RuntimeError) as error:
                if isinstance(error, KernelmillError) or not is_out_of_memory(error):
                    raise
                raise OutOfMemory(
                    "memory ran out; use fewer centers, fewer rows at a time or a smaller"
                    " memory_budget."
                ) from error

        return inside

    return decorate
