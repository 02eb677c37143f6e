"""Bandwidths, ridge and noise of a Gaussian process, by the bound on the evidence."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor

from ..kernels import Kernel, Radial
from .descent import RIDGES, Reach, minimise
from .loo import Profile
from .sample import Sample
from .search import MAX_CENTERS, Choice, tune

ELBO_ROWS = 4000  # rows on which the bound of a Gaussian process is descended


def tune_elbo(
    kernel: Kernel | None,
    ridge: float | None,
    noise: Tensor | None,
    sample: Sample,
    p: int,
    Z: Tensor | None,
) -> Choice:
    """The bandwidth and the ridge that maximise Titsias' bound for p inducing points: Z, or the
    first rows of the sample.

    Starts from the leave-one-out choice, which also picks the kernel where there is none. ELBO_ROWS
    rows stand for all.
    """
    start = tune(kernel, ridge, sample)
    free = isinstance(start.kernel, Radial) and (
        kernel is None or (isinstance(kernel, Radial) and isinstance(kernel.bandwidth, str))
    )
    if not free and ridge is not None:
        return start
    X = sample.X[:ELBO_ROWS]
    rows = replace(sample, X=X, Y=sample.Y[:ELBO_ROWS], w=sample.w[:ELBO_ROWS])
    Z = sample.X[: min(p, MAX_CENTERS // 2)] if Z is None else Z
    found = copy.deepcopy(start.kernel)
    log_ridge = X.new_tensor(math.log(max(start.ridge, 1e-6) if ridge is None else ridge))
    parameters = [log_ridge.requires_grad_()] if ridge is None else []
    base = torch.as_tensor(found.bandwidth, dtype=torch.float64, device=X.device) if free else None  # type: ignore[attr-defined]
    theta, middle = X.new_zeros(() if base is None else base.shape), X.mean(0)
    reach = None if base is None else Reach.of(X / base)
    if free:
        parameters.append(theta.requires_grad_())

    def bandwidths() -> Tensor:
        assert base is not None and reach is not None
        return base * torch.exp(reach.bounded(theta))

    def matrix(A: Tensor, B: Tensor) -> Tensor:
        if base is None or not isinstance(found, Radial):
            return found(A, B)
        a, b = ((side - middle) / bandwidths() for side in (A, B))
        squares = ((a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * a @ b.T).clamp(min=0)
        return Profile.apply(squares.fill_diagonal_(0) if A is B else squares, found)

    diagonal = found.diagonal(found.points(found.embedding(X.mean(0), torch.float64)(X)))

    def loss() -> Tensor:
        lam = log_ridge.clamp(math.log(RIDGES[0]), math.log(RIDGES[1])).exp()
        return -elbo(matrix(Z, Z), matrix(X, Z), diagonal, rows, lam, noise) / len(X)

    minimise(loss, parameters, None, steps=40)
    if free and base is not None:
        value = bandwidths().detach().cpu()
        found.bandwidth = value.item() if value.ndim == 0 else value  # type: ignore[attr-defined]
    best = min(RIDGES[1], max(RIDGES[0], log_ridge.detach().exp().item()))
    return Choice(found, best if ridge is None else ridge, start.error)


def elbo(
    K_ZZ: Tensor,
    K_XZ: Tensor,
    diagonal: Tensor,
    rows: Sample,
    lam: Tensor,
    noise: Tensor | float | None = None,
) -> Tensor:
    """Titsias' bound, summed over outputs, with the likeliest signal variance, or with noise/λ
    where the noise is given.

    A row of weight k is k targets with one and the same noise, whether or not they are equal: their
    mean is Y, and what it lost of Σ w y² is `scatter`. λ is `lam` · `weight`, w being divided by
    that weight.
    """
    p, Y, w, weight, scatter = K_XZ.shape[1], rows.Y, rows.w, rows.weight, rows.scatter
    L = torch.linalg.cholesky(K_ZZ + torch.diag(K_ZZ.new_full((p,), 1e-10 * p)))
    Phi = torch.linalg.solve_triangular(L, K_XZ.T, upper=False).T
    root = w.sqrt()[:, None]
    B = (root * Phi).T @ (root * Phi) / lam + torch.eye(p, dtype=Phi.dtype, device=Phi.device)
    R = torch.linalg.cholesky(B)
    right = torch.linalg.solve_triangular(R, (root * Phi).T @ (root * Y), upper=False) / lam
    squares = (w[:, None] * Y * Y).sum(0) + (0.0 if scatter is None else w.sum() * scatter)
    quadratic = squares / lam - (right * right).sum(0)  # yᵀ(Q + λ/w)⁻¹y of each output
    count, true = w.sum() * weight, lam * weight
    signal = quadratic / count if noise is None else torch.as_tensor(noise).to(quadratic) / true
    trace = (w * (diagonal - (Phi * Phi).sum(1))).sum() / lam
    return (
        -0.5
        * (
            count * (2 * math.pi * true * signal).log()
            + 2 * R.diagonal().log().sum()
            + quadratic / signal
            + trace
        ).sum()
    )
