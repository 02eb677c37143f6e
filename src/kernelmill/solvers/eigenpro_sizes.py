"""Sizes, bytes and seconds of the EigenPro solvers.

Sizes are decided in two phases. `eigenpro_sizes` needs no data: it turns (n, d, c, p, memory) into
s, q, the way to project and predicted bytes. `with_step` adds what only the spectrum can tell: the
batch m, the period T and the step η.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..errors import InputError, one_of
from ..ops import on_chip
from ..planning.arguments import whole
from ..planning.plan import Plan, default_epochs
from ..preconditioner import FRESH_ROWS

PROJECTIONS = ["cholesky", "carried", "one_pass"]

RECIPES = ["measured", "paper"]

# Rows of Z in a batch of the projection pass: large for a fast block,
# small beside p for a cheap factor.
PASS_ROWS = 512

# On a GPU: rows from which the set-up of a larger subsample is paid back, and centers times
# features (an exponential and a root count for 200) up to which a step takes as long to launch.
MANY_ROWS, BRIEF = 20_000_000, 1e8
STEP_SECONDS = 2e-3  # in which a step is launched (docs/gpu.md)
LONGEST, CYCLES = 4, 20  # times p, what a cycle may see for that reason; and cycles there must be


def eigenpro_sizes(
    base: Plan, *, s: int | None, q: int | None, projection: str, control_variate: bool | None
) -> Plan:
    """Phase one: s, q, the projection and what is kept, from the problem's sizes and the memory
    budget.
    """
    base = replace(base, epochs=base.epochs or default_epochs(base.n))
    n, c, p, item = base.n, base.c, base.p, base.itemsize
    whole("s", s, 1)
    whole("q", q, 0)
    if s is not None and q is not None and q >= s:
        raise InputError(
            f"q={q} was given with s={s}: expected q < s; s rows have only s eigenvalues, and the"
            " one after q is needed."
        )
    if base.recipe not in RECIPES:
        raise one_of("recipe", base.recipe, RECIPES)
    if base.recipe == "paper" and base.ridge:
        raise InputError(
            f"ridge={base.ridge:g} was given, but the paper's recipe has none; use ridge=0 or"
            " recipe='measured'."
        )
    if projection not in ["auto", *PROJECTIONS]:
        raise one_of("projection", projection, ["auto", *PROJECTIONS])
    s, q = _subsample(base, s, q)
    cholesky = 2 * 8 * p * p
    if projection == "auto":
        # Cholesky is exact and evaluates nothing after set-up, but takes p² memory and p³/3
        # operations once.
        projection = "cholesky" if cholesky <= base.budget // 2 and p <= 12_000 else "carried"
    fresh = min(
        2 * FRESH_ROWS if base.on_gpu else FRESH_ROWS,
        n,
        max(200, int((base.budget / (8 * item)) ** 0.5)),
    )
    residuals = n * c * item
    if control_variate is None:
        control_variate = (
            base.epochs > 1 and base.recipe == "measured" and residuals <= base.budget // 4
        )
    plan = replace(
        base, s=s, q=q, projection=projection, control_variate=bool(control_variate), fresh=fresh
    )
    return replace(plan, bytes=peak_bytes(plan))


def _subsample(base: Plan, s: int | None, q: int | None) -> tuple[int, int]:
    """Rows of the subsample and eigenvectors that are taken off, where nobody said how many."""
    n, p = base.n, base.p
    # A GPU has the eigensystem of 8,000 rows in 0.1 s, and gets batches twice as large for it:
    # worth it where an epoch is long.
    long = base.on_gpu and (p >= 100_000 or (p >= 30_000 and n >= 1_000_000))
    # Where a step is computed sooner than the next is launched, batches twice as large again are
    # half of the time; 16,000 rows take 6 GB, of which there should be plenty.
    brief = long and n >= MANY_ROWS and row_cost(base) < BRIEF and base.budget >= 25 << 30
    if s is None:
        s = 16_000 if brief else 2_000 if p < 10_000 else 8_000 if base.on_gpu else 4_000
    s = min(n if base.recipe == "paper" else p, s)
    if q is None:
        # The per-row diagonal costs m·s·q. Smooth kernels are given more (`most_q`).
        q = s // 10 if brief else min(s // 10, int(0.15 * row_cost(base) / s))
    return s, max(0, min(q, s - 1))


def row_cost(plan: Plan) -> float:
    """Operations of a row against all centers (200: what exp and sqrt cost, in features)."""
    return plan.p * (plan.features + 200.0)


def most_q(plan: Plan) -> int:
    """Eigenvectors for which there is room, and rows enough in the subsample."""
    return min((plan.s or 0) // 2, plan.budget // (16 * plan.own * plan.itemsize))


def with_step(plan: Plan, *, m: int, T: int | None, eta: float) -> Plan:
    """Phase two: batch, period and step, and what is kept between two uses."""
    plan = replace(plan, m=m, eta=eta)
    m_Z = plan.m_Z or pass_rows(plan)
    plan = replace(plan, T=T or 1, m_Z=m_Z, keep_block=False)
    kept = replace(plan, keep_block=True)
    if keeping_pays(plan) and peak_bytes(replace(kept, T=T or period(kept))) <= plan.budget:
        plan = kept
    plan = replace(plan, T=int(T or period(plan)))
    return replace(plan, bytes=peak_bytes(plan))


def pass_rows(plan: Plan) -> int:
    """Rows of Z in a batch of the projection pass.

    On a GPU so many that their block takes the 1 ms in which the next is launched.
    """
    if not plan.on_gpu:
        return min(plan.p, PASS_ROWS)
    return min(plan.p, max(2 * PASS_ROWS, min(4096, 2 ** round(math.log2(3.2e8 / plan.p)))))


def period(plan: Plan) -> int:
    """T, so that steps and projections cost least together, in cycles of equal length.

    A cycle of L = T·m rows meets L/2 temporary centers a row. A pass over Z evaluates p²/2 kernel
    values once and uses them twice, at `uses` times the cost of an evaluation: L = p·√uses
    balances the two. A solve with a factor costs much less: shorter cycles pay.
    """
    uses = (
        0.25
        if plan.projection == "cholesky"
        else 1.0
        if not plan.on_gpu
        else 1.6
        if plan.keep_block
        else 2.0
    )
    length = plan.p * math.sqrt(uses)
    if plan.on_gpu:  # what a step has time for while the next is launched costs nothing
        # Values a second of a data-center GPU: what was measured would differ between ranks.
        rate = 2e14 / (plan.features + 200)
        free = 2 * (rate * STEP_SECONDS / (plan.m or 1) - 2 * plan.p)
        length = max(length, min(free, LONGEST * plan.p, plan.n / CYCLES))
    cycles = max(1, math.ceil(plan.n / length))
    # Shorter cycles learn more (docs/gpu.md); down to 3/4·p they cost next to nothing.
    if plan.on_gpu:
        cycles = max(cycles, min(5, int(plan.n / (0.75 * plan.p))))
    return max(1, math.ceil(plan.n / cycles / (plan.m or 1)))


def keeping_pays(plan: Plan) -> bool:
    """Whether K(X_m, Z), which is used twice, is better held than evaluated again.

    On a CPU always. On a GPU writing and reading 4 bytes a value costs about as much as evaluating
    it from 400 float16 features (2.2 ms against 4.6 ms at d = 1280, 1.3 at 96, for 8192 × 131,072
    values on an H200). float32 features are two parts and three products, and count three times.
    More outputs than fit the chip go through memory anyway. In float64 a value costs more to
    evaluate, and still more to be held on the way by plain torch.
    """
    features = plan.features * {"float32": 3, "tf32": 2}.get(plan.precision, 1)
    return not plan.on_gpu or features >= 400 or plan.c > on_chip(plan.precision, plan.features)


def peak_bytes(plan: Plan) -> int:
    """What an EigenPro run takes at its fullest, beyond the user's X and y.

    Sizes not decided yet count as the largest they may be.
    """
    n, d, c, p, item, s, q = (
        plan.n,
        plan.d,
        plan.c,
        plan.own,
        plan.itemsize,
        plan.s or 0,
        plan.q or 0,
    )
    m, m_Z = plan.m or min(plan.p, 1024), plan.m_Z or pass_rows(plan)
    cycle = -(-min(n, plan.T * m if plan.T else plan.p) // plan.ranks)
    row = plan.features * plan.feature_bytes + item
    centers = p * (row + d * plan.x_bytes)
    # Of (p, c): the state, its trail, h, what a step adds, and the best weights.
    copies = 4 * (2 + 2 * plan.control_variate) + 5 + plan.control_variate * 2
    held = (
        centers
        + copies * p * c * item
        + p * q * item
        + n // plan.ranks * c * item * plan.control_variate
    )
    factors = 0
    if plan.projection == "cholesky":  # the whole factor, on every rank
        held += 8 * plan.p * plan.p
        factors = 8 * plan.p * plan.p  # K(Z,Z) beside its factor
    elif keeps_factors(plan):
        held += 8 * p * m_Z
        factors = 3 * min(plan.stack_bytes, 8 * p * m_Z)
    eigensystem = max(3 * 8 * s * s, item * (plan.fresh**2 + 2 * plan.fresh * (s + q)) + 8 * s * s)
    wide = plan.features * 3 * item
    batch = m * (d * plan.x_bytes + wide + 2 * item * (s + q) // plan.ranks)
    batch += m * d * plan.x_bytes * (plan.ranks > 1)  # the next one, which is being gathered
    step = cycle * (row + c * item) + batch
    if plan.keep_block and plan.m:
        step += m * p * plan.block_bytes
    project = (
        m_Z * p * plan.block_bytes if plan.keep_block and plan.projection != "cholesky" else 0
    ) + 3 * p * c * item
    # Weights in two parts, sums of programs; or tiles.
    products = 3 * p * max(16, c) * item if plan.on_gpu else 2 * plan.tile_bytes
    return max(centers + eigensystem, held + max(factors, step + products, project + products))


def keeps_factors(plan: Plan) -> bool:
    """Whether the factors of the pass's batches are made once: p·m_Z float64 numbers."""
    return 8 * plan.own * (plan.m_Z or pass_rows(plan)) <= plan.budget // 8
