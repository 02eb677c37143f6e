"""What this machine does in a second, measured in a moment: what predictions of time are made
of.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..distributed.team import Communicator, is_alone
from ..kernels import Kernel, Laplacian, Radial
from ..ops import bind


@dataclass(frozen=True)
class Network:
    """What sums over ranks cost: seconds a message takes however small, and bytes a second that
    a rank sends while it receives as many.
    """

    latency: float
    bandwidth: float

    def seconds(self, size: float, ranks: int) -> float:
        """One sum of `size` bytes: a tree's depth of messages, and every byte once around in
        each direction.
        """
        if ranks == 1:
            return 0.0
        return (
            self.latency * math.ceil(math.log2(ranks))
            + 2 * (ranks - 1) / ranks * size / self.bandwidth
        )


@dataclass(frozen=True)
class Rates:
    """Measured once per device, kernel, precision and d, and kept with the plan, so that a
    stored plan decides the same again.
    """

    block: float  # kernel values a second, evaluated and multiplied, none of them held
    read: float  # bytes a second of a held matrix that is multiplied by few columns
    products: float  # float64 operations a second of a matrix product
    factor: float  # float64 operations a second of a large Cholesky factor
    column: float  # seconds that a column of a factor costs by itself, however small
    launch: float  # seconds between two small operations
    precision: str = "float32"  # in which `block` was measured
    network: Network | None = None  # between the ranks, where there are several


def connection(comm: Communicator, device: str) -> Network | None:
    """The network between these ranks, from a small and a large sum; all of them call it
    together.
    """
    if is_alone(comm):
        return None
    small, large = torch.zeros(8, device=device), torch.zeros(1 << 20, device=device)
    place, hops = torch.device(device), math.ceil(math.log2(comm.size))
    quick = _seconds(lambda: [comm.all_sum(small) for _ in range(5)], place) / 5
    slow = max(_seconds(lambda: comm.all_sum(large), place) - quick, 1e-9)
    return Network(quick / hops, 2 * (comm.size - 1) / comm.size * large.nbytes / slow)


_KNOWN: dict[tuple[str, int, str, str], Rates] = {}


def measure(kernel: Kernel | None, d: int, precision: str, device: str) -> Rates:
    """Takes about 0.2 s on two cores, and less on a GPU; once in a process for each kind of
    problem.
    """
    if kernel is None:
        kernel = Laplacian(bandwidth=1.0)
    elif isinstance(kernel, Radial):
        kernel = replace(kernel, bandwidth=1.0)
    key = repr(kernel), d, precision, device
    if key not in _KNOWN:
        _KNOWN[key] = _measure(kernel, d, precision, device)
    return _KNOWN[key]


def _measure(kernel: Kernel, d: int, precision: str, device: str) -> Rates:
    gpu = device.startswith("cuda")
    place = torch.device(device)
    cols = max(256, min(65_536, 2**28 // d) if gpu else min(4096, 2**22 // d))
    rows = min(cols, 8192 if gpu else 1024)
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(cols, d, generator=generator).to(place) / max(1, d) ** 0.5
    K = bind(kernel, X.double().mean(0), precision, place, (256 if gpu else 8) << 20)
    Z = K.points(X)
    v = torch.randn(cols, 10, generator=generator).to(place, K.dtype)
    block = rows * cols / _seconds(lambda: K.matmul(Z[:rows], Z, v), place)

    if gpu:  # as the fused kernels hold it
        held = K.block(Z[:rows], Z, K.room(rows, cols))
        g = held @ v
        read = 4 * rows * cols / _seconds(lambda: held.T @ g, place)
    else:
        matrix = torch.rand((1 << 24) // 4096, 4096)
        w = torch.rand(4096, 10)
        read = 2 * matrix.nbytes / _seconds(lambda: (matrix @ w).T @ matrix, place)

    side, size = (4096, 4096) if gpu else (1024, 1536)
    A = torch.rand(side, side, dtype=torch.float64, device=place)
    products = 2 * side**3 / _seconds(lambda: A @ A, place)
    # A large factor is mostly products; what a smaller one takes beyond
    # them is its columns' latency.
    factor = 0.6 * products
    S = torch.eye(size, dtype=torch.float64, device=place) + 1e-3
    column = (
        max(0.0, _seconds(partial(torch.linalg.cholesky_ex, S), place) - size**3 / 3 / factor)
        / size
    )
    tiny = torch.zeros(8, device=place)
    launch = _seconds(lambda: [tiny.add_(1) for _ in range(50)], place) / 50
    return Rates(block, read, products, factor, column, launch, precision)


def _seconds(work: Callable[[], object], place: torch.device) -> float:
    """A run after a first one; on a GPU, where that is a moment, the quickest of three."""
    best = float("inf")
    for run in range(4 if place.type == "cuda" else 2):
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        start = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        if run:
            best = min(best, time.perf_counter() - start)
    return max(best, 1e-9)
