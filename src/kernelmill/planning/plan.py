"""The plan: every size a run uses, decided once, as plain data.

A stored plan is never redone: equal seed and plan give equal weights.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from ..errors import InputError
from ..ops import ROUNDINGS
from ..preconditioner import FRESH_ROWS
from ..types import Json
from .machine import Network, Rates
from .memory import TILE_BYTES

# Matrices of the projection pass that are factored together.
STACK_BYTES, GPU_STACK_BYTES = (16 << 20, 256 << 20)


@dataclass(frozen=True)
class Plan:
    """Sizes, step and predictions of one run.

    None means: not used by this solver, or not decided yet.
    """

    solver: str
    n: int
    d: int
    c: int
    p: int
    width: int = 0  # numbers that a row becomes under its kernel; see `features`
    # What features are rounded to; sums are float32, or float64 for "float64".
    precision: str = "float32"
    # The same for solvers that go all the way to their fixed point, where it
    # differs: float64 for regressions.
    fine: str | None = None
    regression: bool = False  # targets are numbers, not classes
    device: str = "cpu"
    x_bytes: int = 8  # bytes of one feature as the user gave it: centers are also kept so
    seed: int = 0
    epochs: int = 1  # passes over the data, or iterations; 0: not asked for, the solver decides
    ridge: float = 0.0  # λ over the mean weight: weights are scaled to mean 1
    weight: float = 1.0  # that mean
    # Σ w (y − ȳ)² of each output within rows of the same X that were
    # merged into one; None: of none.
    scatter: list[float] | None = None
    every_row: bool = False  # Z is X, row for row
    tile_bytes: int = TILE_BYTES
    budget: int = 4 << 30  # bytes this run may take beyond the user's own X and y; of each rank
    # Processes that share the centers. No other size follows from it, but for the budget: any
    # number gives the same weights.
    ranks: int = 1
    bytes: int = 0  # predicted peak, of each rank
    seconds: float | None = None  # predicted, where `rates` are known
    target: float = 120.0  # seconds that solving may take where the number of centers is open
    iterations: int | None = None  # of conjugate gradients, expected; None: the usual number
    rates: Rates | None = None  # of this machine, as they were measured
    settings: dict[str, Json] | None = None  # of the solver, as it was given
    # What competed to be the kernel: what it is, its score (less is better), seconds until then.
    tried: list[tuple[str, float, float]] | None = None
    chosen: str = ""  # which of them
    each_row: bool = False  # no row was kept out of training
    keep_all: bool = False  # K(X,Z) is held whole: later iterations cost memory traffic
    sweep_rows: int = 4096  # rows of K(X,Z) at a time
    # EigenPro, phase one
    s: int | None = None
    q: int | None = None
    projection: str | None = None
    recipe: str = "measured"  # or "paper": the printed step, subsample of X, no decay
    control_variate: bool = False
    keep_block: bool = True
    fresh: int = FRESH_ROWS  # rows on which the step is measured
    # EigenPro, phase two
    m: int | None = None
    T: int | None = None
    eta: float | None = None
    beta: float | None = None
    beta_mean: float | None = None
    lambda_top: float | None = None
    tau: float | None = None
    m_Z: int | None = None
    eta_Z: float | None = None

    def __str__(self) -> str:
        """A short table of what was decided, and what it takes."""
        facts = {
            "solver": self.solver,
            "rows": f"{self.n:,}",
            "features": f"{self.d:,}" + (f" ({self.features:,} in the kernel)" * self.widened),
            "outputs": f"{self.c:,}",
            "centers": f"{self.p:,}" + ", every row" * self.every_row,
            "kernel": self.chosen,
            "tried": f"{len(self.tried)} kernels" if self.tried else "",
            "ridge": f"{self.ridge:.3g}",
            "epochs": f"{self.epochs:,}" if self.epochs > 1 else "",
            "precision": self.precision
            + f", {self.fine} inside" * (self.fine not in (None, self.precision)),
            "device": self.device + f", {self.ranks} ranks" * (self.ranks > 1),
            "memory": f"{self.bytes / 2**20:,.0f} MiB of {self.budget / 2**20:,.0f}",
            "seconds": "" if self.seconds is None else f"about {self.seconds:.2g} to solve",
        }
        return "\n".join(f"{name:<10} {value}" for name, value in facts.items() if value)

    @property
    def widened(self) -> bool:
        return self.features != self.d

    def to_dict(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Json]) -> Plan:
        if isinstance(values.get("rates"), dict):
            rates = values["rates"]
            network = Network(**rates["network"]) if rates.get("network") else None
            values = {**values, "rates": Rates(**{**rates, "network": network})}
        if values.get("tried"):
            values = {**values, "tried": [tuple(one) for one in values["tried"]]}
        return cls(**values)

    @property
    def features(self) -> int:
        """Numbers that a row becomes under its kernel; its columns, where that is not known yet."""
        return self.width or self.d

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def own(self) -> int:
        """Centers of one rank."""
        return -(-self.p // self.ranks)

    @property
    def stack_bytes(self) -> int:
        return GPU_STACK_BYTES if self.on_gpu else STACK_BYTES

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of weights, kernel values and sums."""
        return torch.float64 if self.precision == "float64" else torch.float32

    @property
    def itemsize(self) -> int:
        return self.torch_dtype.itemsize

    @property
    def held_bytes(self) -> int:
        """Of a kernel value that is held for all iterations: on a GPU float32 whatever the sums."""
        return 4 if self.on_gpu else self.itemsize

    @property
    def rounds_values(self) -> bool:
        """Whether iterations multiply by kernel values that were rounded when they were held."""
        return self.keep_block and self.held_bytes < self.itemsize

    @property
    def feature_bytes(self) -> int:
        held = ROUNDINGS[self.precision].dtype.itemsize
        return held if self.on_gpu and self.precision != "float32" else self.itemsize

    @property
    def block_bytes(self) -> int:
        """Of a kernel value that a step holds between its two uses."""
        if self.on_gpu and ROUNDINGS[self.precision].parts == 1:
            return 2
        return self.itemsize


def default_epochs(n: int) -> int:
    """Passes over the data when nobody said: most of the way to the direct solution, on large data
    in fewer.
    """
    return 5 if n < 1_000_000 else 2


def require_every_row(base: Plan) -> None:
    """Raise unless Z = X."""
    if not base.every_row:
        raise InputError(
            f"solver={base.solver!r} makes every row a center, {base.p} centers for {base.n} rows"
            " were given; leave out n_centers, centers and warm_start, or use 'eigenpro4'."
        )
