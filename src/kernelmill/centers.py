"""Choosing Z: row numbers of the data, in random order, so that any first s of them are a subsample
of the centers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .data import Source
from .errors import one_of
from .kernels import Points
from .ops import KernelProduct

WAYS = ["uniform", "balanced", "kmeans++", "farthest", "rpcholesky"]  # to choose rows
MEANS = "kmeans"  # of rows: see `means`
# The greedy ways look at this many candidate rows for each center: their cost is p·pool kernel
# values a round.
POOL = 4
# Rows for each center, and steps, by which means are found; and rows that each is of, at least.
LLOYD_ROWS, LLOYD_STEPS, LEAST = 20, 5, 5


def choose(
    how: str,
    K: KernelProduct | None,
    source: Source,
    labels: Tensor | None,
    p: int,
    generator: torch.Generator,
) -> Tensor:
    """p distinct row numbers of the source.

    `labels` are class codes for "balanced"; None (a regression) makes that uniform. The ways that
    look at distances need K.
    """
    n = source.n
    if how not in WAYS:
        raise one_of("centers", how, WAYS)
    shuffled = torch.randperm(n, generator=generator)
    if p >= n:
        return shuffled
    if how == "uniform" or (how == "balanced" and labels is None):
        return shuffled[:p]
    if how == "balanced":
        assert labels is not None
        return _balanced(labels, shuffled, p)
    assert K is not None
    pool = shuffled[: min(n, max(POOL * p, 1000))]
    points = K.points(source.take(pool).X)
    picks = {"kmeans++": _kmeans_pp, "farthest": _farthest, "rpcholesky": _rp_cholesky}[how](
        K, points, p, generator
    )
    return pool[picks][torch.randperm(p, generator=generator)]


def means(K: KernelProduct, source: Source, p: int, generator: torch.Generator) -> Tensor:
    """(p, d) means of rows, by Lloyd's steps in the distance of the kernel: none is a row itself.

    Each is the mean of LEAST rows at least: of those nearest to it, where fewer are its own.
    """
    some = torch.randperm(source.n, generator=generator)[: max(LEAST, LLOYD_ROWS * p)]
    X = source.take(some).X.to(K.device)
    points, Z = K.points(X), X[:p].clone()
    for step in range(LLOYD_STEPS + 1):
        at = _nearest(K, points, K.points(Z))
        sums = torch.zeros_like(Z, dtype=torch.float64).index_add_(0, at, X.double())
        counts = torch.bincount(at, minlength=p)
        enough = counts >= (1 if step < LLOYD_STEPS else LEAST)
        Z[enough] = (sums[enough] / counts[enough, None]).to(Z)
    for i in torch.nonzero(~enough)[:, 0].tolist():
        own = K.dense(K.points(Z[i : i + 1]), points)[0].topk(min(LEAST, len(X))).indices
        Z[i] = X[own].double().mean(0).to(Z)
    return Z


def _nearest(K: KernelProduct, points: Points, Z: Points) -> Tensor:
    """Of each point, the center of the largest kernel value."""
    places = []
    for start in range(0, len(points.x), rows := max(1, K.tile_bytes // (8 * len(Z.x)))):
        part = Points(points.x[start : start + rows], points.sq[start : start + rows])
        places.append(K.dense(part, Z).argmax(1))
    return torch.cat(places)


def _balanced(labels: Tensor, shuffled: Tensor, p: int) -> Tensor:
    """As even a share of every class as its rows allow; what small classes cannot fill goes to the
    others.
    """
    codes = labels[shuffled]
    counts = torch.bincount(codes)
    share, room = torch.zeros_like(counts), p
    while room > 0:
        open_ = counts > share
        give = max(1, room // int(open_.sum()))
        for c in torch.nonzero(open_)[:, 0].tolist():
            extra = min(give, int(counts[c] - share[c]), room)
            share[c] += extra
            room -= extra
    rank = torch.empty_like(codes)  # the how-many-th of its class each shuffled row is
    for c in range(len(counts)):
        mask = codes == c
        rank[mask] = torch.arange(int(mask.sum()))
    return shuffled[rank < share[codes]]


def _sq_distance(K: KernelProduct, points, diagonal: Tensor, picks: Tensor) -> Tensor:
    """Squared RKHS distance of every point to each pick: K(x,x) + K(z,z) − 2K(x,z)."""
    chosen = points[picks]
    return diagonal[:, None] + diagonal[picks][None, :] - 2 * K.dense(points, chosen)


def _kmeans_pp(K: KernelProduct, points, p: int, generator: torch.Generator) -> Tensor:
    """k-means++ seeding in the RKHS, in rounds: rows drawn with probability ∝ squared distance to
    the nearest row so far.
    """
    diagonal = K.diagonal(points)
    picks = torch.randint(len(points), (1,), generator=generator)
    nearest = _sq_distance(K, points, diagonal, picks)[:, 0].clamp_(min=0)
    while len(picks) < p:
        size = min(p - len(picks), max(1, len(picks) // 4))
        new = _draw(nearest, picks, size, generator)
        nearest = torch.minimum(
            nearest, _sq_distance(K, points, diagonal, new).min(1).values.clamp_(min=0)
        )
        picks = torch.cat([picks, new])
    return picks


def _farthest(K: KernelProduct, points, p: int, generator: torch.Generator) -> Tensor:
    """Greedy: the next row is the one farthest from all rows so far."""
    diagonal = K.diagonal(points)
    picks = torch.empty(p, dtype=torch.long)
    picks[0] = int(torch.randint(len(points), (1,), generator=generator))
    nearest = torch.full_like(diagonal, torch.inf)
    for i in range(p):
        nearest[picks[i]] = -torch.inf
        nearest = torch.minimum(nearest, _sq_distance(K, points, diagonal, picks[i : i + 1])[:, 0])
        if i + 1 < p:
            picks[i + 1] = int(nearest.argmax())
    return picks


def _rp_cholesky(K: KernelProduct, points, p: int, generator: torch.Generator) -> Tensor:
    """Randomly pivoted Cholesky in blocks: rows drawn with probability ∝ what the rows so far do
    not explain of K(x,x).
    """
    residual = K.diagonal(points).double().clone()
    picks = torch.empty(0, dtype=torch.long)
    # The partial Cholesky factor.
    G = torch.empty(len(points), p, dtype=torch.float64, device=residual.device)
    while len(picks) < p:
        size, done = min(p - len(picks), max(1, p // 20)), len(picks)
        new = _draw(residual, picks, size, generator)
        columns = K.dense64(points, points[new]) - G[:, :done] @ G[new, :done].T
        block = columns[new]
        block.diagonal().add_(1e-10 * residual.sum() / len(residual) + 1e-14)
        L, info = torch.linalg.cholesky_ex(block)
        if info.item():  # near-duplicates within the block: take them without credit
            L = torch.linalg.cholesky(
                block
                + 1e-6
                * block.diagonal().max()
                * torch.eye(len(block), dtype=block.dtype, device=block.device)
            )
        G[:, done : done + size] = torch.linalg.solve_triangular(L, columns.T, upper=False).T
        residual = (residual - (G[:, done : done + size] ** 2).sum(1)).clamp_(min=0)
        picks = torch.cat([picks, new])
    return picks


def _draw(weight: Tensor, taken: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """`size` new rows without replacement, ∝ weight; rows of no weight only when nothing else is
    left.
    """
    weight = weight.detach().cpu().double().clone()
    weight[taken] = 0
    weight = weight + 1e-12 * weight.max() + 1e-300
    weight[taken] = 0
    if len(weight) > 2**24:  # torch.multinomial's limit
        weight = weight[: 2**24]
    return torch.multinomial(weight, size, replacement=False, generator=generator)
