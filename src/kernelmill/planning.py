"""The plan: every size a run uses, decided once, as plain data.

It is made in two phases. `eigenpro_sizes` needs no data: it turns (n, d, c, p, memory) into s, q, the way to project and predicted
bytes. `with_step` adds what only the spectrum can tell: the batch m, the period T and the step η. A stored plan is never
redone: equal seed and plan give equal weights.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .distributed import local_rank, local_size
from .errors import InputError, one_of, warn
from .kernels import Kernel
from .ops import PRECISIONS, distortion, fuses, on_chip
from .preconditioner import FRESH_ROWS
from .rates import Network, Rates

log = logging.getLogger("kernelmill")

PROJECTIONS = ["cholesky", "carried", "one_pass"]
RECIPES = ["measured", "paper"]
TILE_BYTES = 8 << 20  # large enough for a full-speed matrix product, small enough to stay in the last-level cache
GPU_TILE_BYTES = 256 << 20  # there is no such cache to stay in; launches are what a small tile would cost
STACK_BYTES, GPU_STACK_BYTES = 16 << 20, 256 << 20  # matrices of the projection pass that are factored together
PASS_ROWS = 512  # rows of Z in a batch of the projection pass: large for a fast block, small beside p for a cheap factor


@dataclass(frozen=True)
class Plan:
    """Sizes, step and predictions of one run. None means: not used by this solver, or not decided yet."""

    solver: str
    n: int
    d: int
    c: int
    p: int
    precision: str = "float32"  # what features are rounded to; sums are float32, or float64 for "float64"
    fine: str | None = None  # the same for solvers that go all the way to their fixed point, where it differs: float64 for regressions
    regression: bool = False  # targets are numbers, not classes
    device: str = "cpu"
    x_bytes: int = 8  # bytes of one feature as the user gave it: centers are also kept so
    seed: int = 0
    epochs: int = 1  # passes over the data, or iterations; 0: not asked for, the solver decides
    ridge: float = 0.0  # λ over the mean weight: weights are scaled to mean 1
    weight: float = 1.0  # that mean
    scatter: list[float] | None = None  # Σ w (y − ȳ)² of each output within rows of the same X that were merged into one; None: of none
    every_row: bool = False  # Z is X, row for row
    tile_bytes: int = TILE_BYTES
    budget: int = 4 << 30  # bytes this run may take beyond the user's own X and y; of each rank
    ranks: int = 1  # processes that share the centers. No other size follows from it, but for the budget: any number gives the same weights
    bytes: int = 0  # predicted peak, of each rank
    seconds: float | None = None  # predicted, where `rates` are known
    rates: Rates | None = None  # of this machine, as they were measured
    settings: dict[str, Any] | None = None  # of the solver, as it was given
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Plan:
        known = {field.name for field in fields(cls)}
        if "dtype" in values:  # plans of before there were more precisions than two
            values = {"precision": values["dtype"], **values}
        if isinstance(values.get("rates"), dict):
            rates = values["rates"]
            network = Network(**rates["network"]) if rates.get("network") else None
            values = {**values, "rates": Rates(**{**rates, "network": network})}
        return cls(**{name: value for name, value in values.items() if name in known})

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
    def feature_bytes(self) -> int:
        return 2 if self.on_gpu and self.precision in ("float16", "bfloat16") else self.itemsize


def is_auto(value: Any) -> bool:
    """Whether an argument leaves the choice to the plan."""
    return value is None or (isinstance(value, str) and value == "auto")


def device_of(device: Any, X: Tensor | None = None) -> str:
    """The device that was asked for; for "auto" where the rows are, or a GPU if there is one."""
    if is_auto(device) and X is not None and X.is_cuda:
        return str(X.device)
    if is_auto(device):
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if (
        device == "cuda" and local_size() > 1 and torch.cuda.is_available()
    ):  # every rank of a machine has a GPU of its own, if there are enough
        return f"cuda:{local_rank() % torch.cuda.device_count()}"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"device={device!r} was given, expected 'auto', 'cpu', 'cuda' or 'cuda:0'.") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={device!r} was given, but torch sees no CUDA GPU here; use device='auto' or 'cpu'.")
    return str(found)


def precision_of(precision: Any, x_bytes: int, d: int, kernel: Kernel, device: str) -> str:
    """The precision that was asked for; for "auto" that of the data, which has `x_bytes` bytes a feature, or half precision on a GPU.

    There float32 features cost three products of float16 ones. Short rows do not feel it; long rows do, and have digits to spare: rounding
    moves a feature, measured from the mean of the centers, by 1/2048 of itself at most, in training as in prediction. Kernels that cannot
    be measured from a mean, or have no fused form, keep float32.
    """
    if not is_auto(precision):
        if precision not in PRECISIONS:
            raise one_of("precision", precision, ["auto", *PRECISIONS])
        return precision
    if device == "cpu":
        return "float64" if x_bytes == 8 else "float32"
    half = x_bytes == 2 or (d > 64 and kernel.translation_invariant)
    return "float16" if fuses(kernel) and half else "float32"


# How far rounding may move a row of K, relatively. Tuned kernels of kin40k, elevators, protein, covertype, optdigits, satimage, texture,
# turbine and sgemm reach 6 bandwidths from the mean at most: float32 moves K by 2e-5, float16 by 8e-4. Clusters of two features at ±30
# bandwidths: .014 for the Laplacian, .002 for the Gaussian in float32, .017 in float16, nothing lost; at ±100: .08, and R² falls from .999
# to .977; at ±1000: 1.8, near rows coincide, and accuracy falls from .99 to .97; at ±5000 nothing is learned.
MOVED = 0.05


def precision_for(asked: Any, plan: Plan, kernel: Kernel, Z: Tensor, X: Tensor) -> str:
    """The plan's precision, if it tells rows apart under this kernel; else, where "auto" leaves the choice, the next one that does."""
    found = plan.precision
    while found != "float64":
        moved, reach = distortion(kernel, Z, X, found, torch.device(plan.device), plan.tile_bytes)
        if moved <= MOVED:
            break
        if not is_auto(asked) and moved == math.inf:
            raise InputError(f"precision={asked!r} was given, whose range is too small for the kernel's values; use 'float64', or scale X.")
        if not is_auto(asked):
            warn(
                f"precision={asked!r} moves kernel values by {moved:.0%} of their size, as rows lie up to {reach:.3g} bandwidths from "
                "their mean; use precision='auto' or 'float64', or a larger bandwidth."
            )
            break
        log.info("%s moves kernel values by %.0f %%: rows lie up to %.3g bandwidths from their mean", found, 100 * moved, reach)
        found = "float64" if found == "float32" or not plan.on_gpu else "float32"
    return found


def fine_precision(precision: Any, regression: bool) -> str | None:
    """float64 for the exact solution of a regression, unless another was asked for: smooth targets are known to more digits than float32
    kernel values can carry through the inverse of K(Z,Z) (kin40k: .102 against .112, docs/solvers.md)."""
    return "float64" if is_auto(precision) and regression else None


def parse_bytes(memory_budget: Any, device: str = "cpu") -> int:
    """A budget in bytes from a number, a string such as "8GB" or "500MiB", or None: most of the memory that is free now."""
    if memory_budget is None or memory_budget == "auto":
        if not device.startswith("cuda"):
            return int(0.7 * free_bytes() / local_size())
        # Memory that torch keeps for later use is free for this run.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        sharing = -(-local_size() // torch.cuda.device_count())
        return int(0.85 * (torch.cuda.mem_get_info(device)[0] + cached) / sharing)
    if isinstance(memory_budget, str):
        units = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "b": 1}
        text = memory_budget.strip().lower()
        unit = next((u for u in sorted(units, key=len, reverse=True) if text.endswith(u)), "")
        try:
            number = float(text[: len(text) - len(unit)])
        except ValueError:
            raise InputError(f"memory_budget={memory_budget!r} was given, expected bytes or a string such as '8GB'.") from None
        memory_budget = number * units.get(unit, 1)
    if not isinstance(memory_budget, (int, float)) or not memory_budget > 0:
        raise InputError(f"memory_budget={memory_budget!r} was given, expected a positive number of bytes or a string such as '8GB'.")
    return int(memory_budget)


def free_bytes() -> int:
    """Memory that can be had without swapping, and without passing a limit of the process or of its control group."""
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
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in _lines("/proc/self/status") if line.startswith(("VmData:", "VmSize:"))
    }
    try:
        import resource

        for limit, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft = resource.getrlimit(limit)[0]
            if soft != resource.RLIM_INFINITY and name in used:
                left.append(soft - used[name])
    except (ImportError, OSError, ValueError):
        pass
    group = next((line.split("::")[1].strip() for line in _lines("/proc/self/cgroup") if line.startswith("0::")), "/")
    for folder in (f"/sys/fs/cgroup{group}", "/sys/fs/cgroup"):
        most, now = (next(iter(_lines(f"{folder}/{name}")), "").strip() for name in ("memory.max", "memory.current"))
        if most.isdigit() and now.isdigit():
            reclaimable = sum(int(line.split()[1]) for line in _lines(f"{folder}/memory.stat") if line.startswith("inactive_file "))
            left.append(int(most) - int(now) + reclaimable)
            break
    return left


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []


def default_epochs(n: int) -> int:
    """Passes over the data when nobody said: most of the way to the direct solution, on large data in fewer."""
    return 5 if n < 1_000_000 else 2


def tile_bytes(budget: int, device: str = "cpu") -> int:
    """Bytes of one tile of a kernel product: large enough for a full-speed matrix product, less where memory is short."""
    return max(1 << 20, min(GPU_TILE_BYTES if device.startswith("cuda") else TILE_BYTES, budget // 16))


def whole(name: str, value: Any, least: int) -> None:
    """Raise unless `value` is None or a whole number of at least `least`."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Integral) or value < least):
        raise InputError(f"{name}={value!r} was given, expected a whole number of {least} or more, or None to have it chosen.")


def every_row_needed(base: Plan) -> None:
    """Raise unless Z = X."""
    if not base.every_row:
        raise InputError(
            f"solver={base.solver!r} makes every row a center, {base.p} centers for {base.n} rows were given; leave out n_centers, "
            "centers and warm_start, or use 'eigenpro4'."
        )


def direct_bytes(n: int, p: int) -> int:
    # K(Z,Z) and its factor, the normal matrix and its factor, all float64; Z = X needs only the first two.
    return 8 * p * p * (2 if p == n else 4) + 4 * TILE_BYTES


def direct_is_instant(n: int, p: int, budget: int) -> bool:
    """Whether the exact solution takes less than a second anywhere: then nothing needs to be timed or compared."""
    work = p**3 / 3 if p == n else 3.0 * n * p * p
    return work <= 2e10 and direct_bytes(n, p) <= budget


def eigenpro_sizes(base: Plan, *, s: int | None, q: int | None, projection: str, control_variate: bool | None) -> Plan:
    """Phase one: s, q, the projection and what is kept, from the problem's sizes and the memory budget."""
    base = replace(base, epochs=base.epochs or default_epochs(base.n))
    n, d, c, p, item = base.n, base.d, base.c, base.p, base.itemsize
    whole("s", s, 1)
    whole("q", q, 0)
    if s is not None and q is not None and q >= s:
        raise InputError(f"q={q} was given with s={s}: expected q < s; s rows have only s eigenvalues, and the one after q is needed.")
    if base.recipe not in RECIPES:
        raise one_of("recipe", base.recipe, RECIPES)
    if base.recipe == "paper" and base.ridge:
        raise InputError(f"ridge={base.ridge:g} was given, but the paper's recipe has none; use ridge=0 or recipe='measured'.")
    if projection not in ["auto", *PROJECTIONS]:
        raise one_of("projection", projection, ["auto", *PROJECTIONS])
    room = n if base.recipe == "paper" else p
    # A GPU has the eigensystem of 8,000 rows in 0.1 s, and gets batches twice as large for it: worth it where an epoch is long.
    long = p >= 100_000 or (p >= 30_000 and n >= 1_000_000)
    s = min(room, s if s is not None else 2_000 if p < 20_000 else 8_000 if base.on_gpu and long else 4_000)
    if q is None:
        # The per-row diagonal costs m·s·q against m·p·(d + 200) for the block (200: what exp and sqrt cost, in features).
        q = min(s // 10, int(0.15 * p * (d + 200) / s))
    q = max(0, min(q, s - 1))

    cholesky = 2 * 8 * p * p
    if projection == "auto":
        # Cholesky is exact and evaluates nothing after set-up, but takes p² memory and p³/3 operations once.
        projection = "cholesky" if cholesky <= base.budget // 2 and p <= 12_000 else "carried"
    fresh = min(2 * FRESH_ROWS if base.on_gpu else FRESH_ROWS, n, max(200, int((base.budget / (8 * item)) ** 0.5)))
    residuals = n * c * item
    if control_variate is None:
        control_variate = base.epochs > 1 and base.recipe == "measured" and residuals <= base.budget // 4
    plan = replace(base, s=s, q=q, projection=projection, control_variate=bool(control_variate), fresh=fresh)
    return replace(plan, bytes=peak_bytes(plan))


def sweep_sizes(base: Plan, *, factors: int, keep: bool | None) -> Plan:
    """Sizes of a solver that goes over all of K(X,Z) at every iteration and holds `factors` p×p float64 factors. `keep`: hold K(X,Z)
    whole; None: where it fits."""
    n, p, c, item = base.n, base.p, base.c, base.itemsize
    # On a GPU a block costs a millisecond of launches: it should have some more to compute.
    rows = min(n, max(16_384, min(131_072, 2**30 // p, base.budget // (16 * p * item))) if base.on_gpu else 4096)
    held = 8 * p * p * (factors + 1) + p * (base.d * (base.feature_bytes + base.x_bytes) + 8 * 8 * c) + 4 * n * c * item
    held += factors * 8 * 1024 * p * base.on_gpu  # the inverses of their diagonal blocks
    batch = rows * (base.d * (base.x_bytes + 3 * item) + 3 * c * item)
    whole_block = n * ((p + 7) * item + (base.d * base.feature_bytes if base.on_gpu else 0))
    block = rows * p * item
    fits = held + batch + whole_block <= base.budget
    keep_all = bool(keep) if keep is not None else fits
    plan = replace(base, keep_all=keep_all, sweep_rows=rows)
    plan = replace(plan, keep_block=keep_all or (keeping_pays(plan) and held + batch + block <= base.budget))
    bytes = held + batch + (whole_block if keep_all else block if plan.keep_block else 2 * plan.tile_bytes)
    if held + batch > base.budget or (keep and not fits):
        raise InputError(
            f"solver={base.solver!r} needs {bytes / 2**30:.1f} GiB for {p} centers and {n} rows, {base.budget / 2**30:.1f} may be used; "
            "use fewer centers or solver='eigenpro4', which takes memory in proportion to the centers."
        )
    return replace(plan, bytes=bytes)


def with_step(plan: Plan, *, m: int, T: int | None, eta: float, **measured: Any) -> Plan:
    """Phase two: batch, period and step, and what is kept between two uses."""
    plan = replace(plan, m=m, eta=eta, **measured)
    m_Z = plan.m_Z or pass_rows(plan)
    plan = replace(plan, T=T or 1, m_Z=m_Z, keep_block=False)
    kept = replace(plan, keep_block=True)
    if keeping_pays(plan) and peak_bytes(replace(kept, T=T or period(kept))) <= plan.budget:
        plan = kept
    plan = replace(plan, T=int(T or period(plan)))
    return replace(plan, bytes=peak_bytes(plan))


def pass_rows(plan: Plan) -> int:
    """Rows of Z in a batch of the projection pass. On a GPU so many that their block takes the 1 ms in which the next is launched."""
    if not plan.on_gpu:
        return min(plan.p, PASS_ROWS)
    return min(plan.p, max(2 * PASS_ROWS, min(4096, 2 ** round(math.log2(3.2e8 / plan.p)))))


def period(plan: Plan) -> int:
    """T, so that steps and projections cost least together, in cycles of equal length.

    A cycle of L = T·m rows meets L/2 temporary centers a row. A pass over Z evaluates p²/2 kernel values once and uses them twice, at
    `uses` times the cost of an evaluation: L = p·√uses balances the two. A solve with a factor costs much less: shorter cycles pay.
    """
    uses = 0.25 if plan.projection == "cholesky" else 1.0 if not plan.on_gpu else 1.6 if plan.keep_block else 2.0
    cycles = max(1, math.ceil(plan.n / (plan.p * math.sqrt(uses))))
    if plan.on_gpu:  # shorter cycles learn more (docs/gpu.md); down to 3/4·p they cost next to nothing
        cycles = max(cycles, min(5, int(plan.n / (0.75 * plan.p))))
    return max(1, math.ceil(plan.n / cycles / (plan.m or 1)))


def keeping_pays(plan: Plan) -> bool:
    """Whether K(X_m, Z), which is used twice, is better held than evaluated again.

    On a CPU always. On a GPU writing and reading 4 bytes a value costs about as much as evaluating it from 400 float16 features (2.2 ms
    against 4.6 ms at d = 1280, 1.3 at 96, for 8192 × 131,072 values on an H200). float32 features are two parts and three products, and
    count three times. More outputs than fit the chip go through memory anyway.
    """
    features = plan.d * {"float32": 3, "tf32": 2}.get(plan.precision, 1)
    return not plan.on_gpu or plan.precision == "float64" or features >= 400 or plan.c > on_chip(plan.precision, plan.d)


def peak_bytes(plan: Plan) -> int:
    """What an EigenPro run takes at its fullest, beyond the user's X and y. Sizes not decided yet count as the largest they may be."""
    n, d, c, p, item, s, q = plan.n, plan.d, plan.c, plan.own, plan.itemsize, plan.s or 0, plan.q or 0
    m, m_Z = plan.m or min(plan.p, 1024), plan.m_Z or pass_rows(plan)
    cycle = -(-min(n, plan.T * m if plan.T else plan.p) // plan.ranks)
    row = d * plan.feature_bytes + item
    centers = p * (row + d * plan.x_bytes)
    copies = 4 * (2 + 2 * plan.control_variate) + 3 + plan.control_variate * 2  # of (p, c): the state, its trail, h and what a step adds
    held = centers + copies * p * c * item + p * q * item + n // plan.ranks * c * item * plan.control_variate
    factors = 0
    if plan.projection == "cholesky":  # the whole factor, on every rank
        held += 8 * plan.p * plan.p
        factors = 8 * plan.p * plan.p  # K(Z,Z) beside its factor
    elif keeps_factors(plan):
        held += 8 * p * m_Z
        factors = 3 * min(plan.stack_bytes, 8 * p * m_Z)
    eigensystem = max(3 * 8 * s * s, item * (plan.fresh**2 + 2 * plan.fresh * (s + q)) + 8 * s * s)
    batch = m * (d * (plan.x_bytes + 3 * item) + 2 * item * (s + q) // plan.ranks)
    batch += m * d * plan.x_bytes * (plan.ranks > 1)  # the next one, which is being gathered
    step = cycle * (row + c * item) + batch + (m * p * item if plan.keep_block and plan.m else 0)
    project = (m_Z * p * item if plan.keep_block and plan.projection != "cholesky" else 0) + 3 * p * c * item
    products = 3 * p * max(16, c) * item if plan.on_gpu else 2 * plan.tile_bytes  # weights in two parts, sums of programs; or tiles
    return max(centers + eigensystem, held + max(factors, step + products, project + products))


def keeps_factors(plan: Plan) -> bool:
    """Whether the factors of the pass's batches are made once: p·m_Z float64 numbers."""
    return 8 * plan.own * (plan.m_Z or pass_rows(plan)) <= plan.budget // 8
