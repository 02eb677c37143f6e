"""Gradients of a kernel model, and what follows from them: the average gradient outer product,
which says along which directions the model varies, and effects of columns.

For a kernel φ(r) of the distance between features x and z, measured in bandwidths,

    ∇f_l(x) = Σ_j w(r_j) α_jl (x − z_j) = s_l·x − Σ_j w(r_j) α_jl z_j,   w = φ'(r)/r,

is one product of a matrix like K with [α, α ⊗ Z]: it is done in tiles, and nothing of the size of
rows × centers is held. Features are measured from the mean of the centers, so that the difference
keeps its digits. A center that coincides with a row adds nothing: where a kernel has a kink, that
is the mean of its slopes on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from .data import checksum
from .distributed.team import Communicator, agree, own_rows, start_together
from .errors import InputError
from .kernels import Kernel, Radial, Sum
from .model import KernelModel
from .ops import KernelProduct, in_own_modes

OUTPUTS = 16  # more of them are replaced by as many random sums
PAIRS = 8  # other rows that each row exchanges a column with
SAMPLE = 2000  # centers, at most, on which effects of columns are measured
LEAST = 100
WORK = 3 * 10**10  # multiplications that this may take: about three seconds of one core
STEP = 1e-5  # of a central difference, in deviations of the column: about ε^(1/3)


@in_own_modes()
def gradients(model: KernelModel, X: Tensor, output: int | None = None) -> Tensor:
    """(r, c, d): the derivative of each output, or (r, 1, d) of one, by each column of rows X.

    At a step of encoded columns it is the mean of both sides; 0 for columns that never varied in
    training, which have no influence.

    Parameters
    ----------
    model : KernelModel
        `model_` of an estimator.
    X : Tensor
        (r, d) rows, as the model takes them.
    output : int, optional
        One output. None: all of them.
    """
    alpha = model.alpha
    if output is not None:
        alpha = alpha[:, [output]]
    pieces = embedded_gradients(model, X, alpha)
    found = torch.cat([model.kernel.per_column(G, rows) for rows, G in pieces])
    found[..., list(model.constants)] = 0
    return found


@in_own_modes()
def agop(model: KernelModel, X: Tensor, outputs: int = OUTPUTS) -> Tensor:
    """(D, D) average gradient outer product, 1/r Σ_x Σ_l ∇f_l(x) ∇f_l(x)ᵀ, in float64.

    It is in the space of the kernel's features in bandwidths, as `kernel.embedding` gives them,
    where the present metric is the identity.

    Parameters
    ----------
    model : KernelModel
        `model_` of an estimator.
    X : Tensor
        (r, d) rows to average over.
    outputs : int
        More outputs than these are replaced by as many random sums of them, which have the same
        mean.
    """
    total: Tensor | float = 0.0
    for _, G in embedded_gradients(model, X, mix_outputs(model.alpha, outputs)):
        G = G.flatten(0, 1)
        total = total + (G.T @ G).double()
    return torch.as_tensor(total) / len(X)


@in_own_modes()
def agop_diagonal(model: KernelModel, X: Tensor, outputs: int = OUTPUTS) -> Tensor:
    """(D,) the diagonal of `agop`, without the rest: for tens of thousands of features.

    Parameters
    ----------
    model : KernelModel
        `model_` of an estimator.
    X : Tensor
        (r, d) rows to average over.
    outputs : int
        More outputs than these are replaced by as many random sums of them, which have the same
        mean.
    """
    total: Tensor | float = 0.0
    for _, G in embedded_gradients(model, X, mix_outputs(model.alpha, outputs)):
        total = total + G.square().sum((0, 1), dtype=torch.float64)
    return torch.as_tensor(total) / len(X)


@in_own_modes()
def effects(model: KernelModel, X: Tensor, groups: Tensor, count: int, units: Tensor) -> Tensor:
    """(count,) by how much the model's values depend on each group of columns, in float64.

    It is the mean of (Σ_k ∂f/∂ψ_k · (ψ_k(x') − ψ_k(x)))² over pairs of rows, ψ_k the kernel's
    features of these columns: to first order the squared change of f, in these `units` of each
    output, where x takes the group's columns from another row x'. Features of one column move
    together, so the squares are of their sums: of one column that is its own feature this is
    diag(AGOP) times twice its variance. `groups` (d,) has the number of each column's group, below
    `count`. Rows should be in a random order: each is paired with the next ones.
    """
    features = features_of(model, X)
    groups = feature_groups(model, groups)
    alpha = mix_outputs(model.alpha / units.to(model.alpha))
    total = features.new_zeros(count)
    pairs = min(PAIRS, len(X) - 1)
    start = 0
    for rows, G in embedded_gradients(model, X, alpha):
        G = model.kernel.per_feature(G)
        place = torch.arange(start, start + len(rows), device=features.device)
        for k in range(1, pairs + 1):
            change = features[(place + k) % len(X)] - features[place]
            moved = sum_groups(G * change.to(G)[:, None], groups, count)
            total += moved.square().sum((0, 1), dtype=torch.float64)
        start += len(rows)
    return total / max(1, pairs * len(X))


@in_own_modes()
def contributions(model: KernelModel, X: Tensor, groups: Tensor, count: int) -> Tensor:
    """(r, c, count) gradient × difference from the mean: Σ_k ∂f_l/∂ψ_k · (ψ_k(x) − mean ψ_k(Z)),
    over the kernel's features ψ_k of the columns of each group.
    """
    groups = feature_groups(model, groups)
    middle = mean_features(model)
    parts = []
    for rows, G in embedded_gradients(model, X, model.alpha):
        change = (features_of(model, rows) - middle).to(G)
        parts.append(sum_groups(model.kernel.per_feature(G) * change[:, None], groups, count))
    return torch.cat(parts)


def embedded_gradients(
    model: KernelModel, X: Tensor, alpha: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Piece by piece, rows as the model takes them, and their gradients (r, c, D) by features in
    bandwidths, of the model with weights alpha (p, c). Summed over the ranks that share it.
    """
    if X.ndim != 2 or X.shape[1] != model.Z.shape[1]:
        raise InputError(
            f"rows of shape {tuple(X.shape)} were given, expected (r, {model.Z.shape[1]}): as many"
            " columns as the model's centers have."
        )
    agree(model.comm, lambda: _facts(X))
    K = _product(model)
    gradient = _by_slope if is_radial(model.kernel) else _differences
    alpha = alpha.to(K.dtype)
    d = features_of(model, model.Z[:1]).shape[1]
    step = tile(K, alpha.shape[1] * (d + 2))[0]
    for i in range(0, max(1, len(X)), step):  # of no rows one piece, which has their shape
        rows = model.as_learned(X[i : i + step].detach().to(K.device))
        yield rows, gradient(K, K.embed(rows), model.Z, alpha, model.comm)


def is_radial(kernel: Kernel) -> bool:
    """Whether its gradients follow from slopes."""
    return isinstance(kernel, (Radial, Sum))


def _by_slope(K: KernelProduct, x: Tensor, Z: Tensor, alpha: Tensor, comm: Communicator) -> Tensor:
    """(r, c, D) of a radial kernel, or a sum of them, at embedded rows x."""
    kernel = K.kernel
    if isinstance(kernel, Radial):
        return _radial(kernel, partial(_pieces, K, Z, slice(None)), x, alpha, K, comm)
    assert isinstance(kernel, Sum)
    found, start = [], 0
    for part, share, width in zip(
        kernel.parts, kernel.shares, kernel.widths(x.shape[1]), strict=True
    ):
        own = slice(start, start + width)
        pieces = partial(_pieces, K, Z, own)
        found.append(share * _radial(part, pieces, x[:, own], alpha, K, comm))
        start += width
    return torch.cat(found, -1)


def _pieces(K: KernelProduct, Z: Tensor, own: slice, wide: int) -> Iterator[tuple[int, Tensor]]:
    """Centers as the kernel sees them, so many at a time."""
    for j in range(0, len(Z), wide):
        yield j, K.embed(Z[j : j + wide])[:, own]


def _radial(
    kernel: Radial,
    pieces: Callable[[int], Iterator[tuple[int, Tensor]]],
    x: Tensor,
    alpha: Tensor,
    K: KernelProduct,
    comm: Communicator,
) -> Tensor:
    """(r, c, D) of a radial kernel at embedded rows x: s_l·x − Σ_j w(r_j) α_jl z_j.

    Costs two matrix products, of D + 2 and of c(D + 2) columns, and the slope of each value.
    """
    rows, d = x.shape
    c = alpha.shape[1]
    ones = x.new_ones(1, 1)
    a = torch.cat([-2 * x, kernel.squares(x)[:, None], ones.expand(rows, 1)], 1)
    wide = tile(K, c * (d + 2), rows)[1]
    buffer = x.new_empty(rows * min(wide, len(alpha)))
    sums = x.new_zeros(rows, c * (d + 2))
    for j, z in pieces(wide):
        t = len(z)
        # a·zᵀ is ‖x‖² + ‖z‖² − 2x·z; z and 1, times α, are also what is summed.
        z = torch.cat([z, ones.expand(t, 1), kernel.squares(z)[:, None]], 1)
        sq_dist = torch.mm(a, z.T, out=buffer[: rows * t].view(rows, t)).clamp_(min=0)
        sums.addmm_(kernel.slope(sq_dist), (alpha[j : j + t, :, None] * z[:, None]).flatten(1))
    sums = comm.all_sum(sums).view(rows, c, d + 2)
    # w is φ'(r)/r, and the slope is by r²: half of it.
    return 2 * (sums[..., d, None] * x[:, None] - sums[..., :d])


def _differences(
    K: KernelProduct, x: Tensor, Z: Tensor, alpha: Tensor, comm: Communicator
) -> Tensor:
    """(r, c, D) of any kernel by central differences: two evaluations for each feature, which
    need no derivative of the kernel and are finite where it has a kink.
    """
    z = K.points(Z)
    p = comm.all_sum(x.new_tensor(float(len(Z))))
    mean = comm.all_sum(z.x.sum(0)) / p
    spread = (comm.all_sum((z.x - mean).square().sum(0)) / p).sqrt()
    step = STEP * torch.where(spread > 0, spread, mean.abs().clamp(min=1.0))
    found = x.new_empty(len(x), alpha.shape[1], x.shape[1])
    for k in range(x.shape[1]):
        up, down = x.clone(), x.clone()
        up[:, k] += step[k]
        down[:, k] -= step[k]
        change = K.matmul(K.kernel.points(up), z, alpha)
        change -= K.matmul(K.kernel.points(down), z, alpha)
        found[:, :, k] = change / (up[:, k] - down[:, k])[:, None]
    return comm.all_sum(found)


def mix_outputs(alpha: Tensor, outputs: int = OUTPUTS) -> Tensor:
    """Weights of at most so many outputs with the same mean of Σ_l ∇f_l ∇f_lᵀ: all of them where
    they are few, else random sums with signs, the same each time.
    """
    c = alpha.shape[1]
    if c <= outputs:
        return alpha
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (c, outputs), generator=generator) * 2 - 1
    return alpha @ signs.to(alpha) / math.sqrt(outputs)


def feature_groups(model: KernelModel, groups: Tensor) -> Tensor:
    """(D,) the group of each of the kernel's features, from that of each column."""
    kernel = model.kernel
    groups = groups.to(model.alpha.device)
    parts: list[Radial | None] = [*kernel.parts] if isinstance(kernel, Sum) else [None]
    if isinstance(kernel, Radial):
        parts = [kernel]
    known = [None if part is None else part.features for part in parts]
    return torch.cat(
        [groups if each is None else groups[each.column.to(groups.device)] for each in known]
    )


def sum_groups(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """(…, count) sums of the last dimension over each group."""
    return values.new_zeros(*values.shape[:-1], count).index_add_(-1, groups, values)


def draw_centers(model: KernelModel) -> Tensor:
    """Up to SAMPLE centers in a random order, the same each time and on every rank: fewer where
    their gradients would take more than WORK.
    """
    d = features_of(model, model.Z[:1]).shape[1]
    products = 2 * d
    if is_radial(model.kernel):
        products = 1 + min(OUTPUTS, model.alpha.shape[1])
    rows = max(LEAST, WORK // (model.n_centers * d * products))
    order = torch.randperm(model.n_centers, generator=torch.Generator().manual_seed(0))
    order = order[: min(SAMPLE, rows)]
    mine, place = own_rows(model.comm, order)
    return start_together(model.comm, mine, len(order), model.Z[place[mine]])()[0]


def mean_features(model: KernelModel) -> Tensor:
    """(D,) the mean of the kernel's features over all centers, in float64."""
    step = tile(model.prepared()[0], model.Z.shape[1])[0]
    parts = [features_of(model, model.Z[i : i + step]).sum(0) for i in range(0, len(model.Z), step)]
    return model.comm.all_sum(torch.stack(parts).sum(0)) / model.n_centers


def tile(K: KernelProduct, width: int, rows: int | None = None) -> tuple[int, int]:
    """Rows and centers of a tile: the kernel values fit the tile budget, and their product with
    `width` columns, and those columns, take at most four of it.
    """
    numbers = 4 * K.tile_bytes // (torch.finfo(K.dtype).bits // 8)
    most = max(1, min(math.isqrt(numbers), numbers // width))
    rows = most if rows is None else max(1, rows)
    return most, max(1, min(numbers // (4 * rows), numbers // width))


def features_of(model: KernelModel, X: Tensor) -> Tensor:
    """(r, D) what a bandwidth measures, in float64 on the model's device."""
    return model.kernel.features_of(model.as_learned(X.to(model.alpha.device)).double())


def _product(model: KernelModel) -> KernelProduct:
    """The model's own, which has its origin; differences need float64."""
    K = model.prepared()[0]
    if is_radial(model.kernel):
        return K
    origin = torch.zeros(model.Z.shape[1], dtype=torch.float64, device=K.device)
    return KernelProduct(model.kernel, origin, "float64", K.device, K.tile_bytes, use_fused=False)


def _facts(X: Tensor) -> dict[str, str]:
    return {
        "call": "gradients",
        "rows": str(tuple(X.shape)),
        "rows of X": "#" + checksum(X),
    }
