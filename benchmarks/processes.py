"""Gaussian processes on tables: `uncertainty="posterior"` without another argument, the exact
process of the same kernel, noise and signal, GPyTorch and scikit-learn.

    KERNELMILL_DATA=folder python -m benchmarks processes [--only posterior svgp] [--rows 2000]

Negative log likelihoods are those of targets divided by their deviation, noise included; coverage
is the share of test rows in intervals of that probability. The exact process takes float64 and all
training rows, also the 2 % that were kept out of the posterior's fit. GPyTorch's own: SVGP with
1,024 points and 100 epochs, Matérn 3/2 with a bandwidth for each column (standardised, names
one-hot), Adam at 0.01; the exact one on `--some` rows, 100 steps of Adam at 0.1. scikit-learn's has
2,000 rows. `--rows` takes fewer training rows; no choice is made by test rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from kernelmill import KernelRegressor

from .tables.data import TABLES
from .tables.encode import OneHot

DATA = ("elevators", "turbine", "kin40k", "protein", "diamonds", "keggdirected")
METHODS = ("posterior", "exact", "svgp", "gpytorch exact", "scikit-learn")
COVERAGES = (0.5, 0.9, 0.95)
POINTS, EPOCHS, BATCH = 1024, 100, 1024
SOME, FEW = 10_000, 2000  # rows of GPyTorch's exact process, and of scikit-learn's


def cases(
    data: tuple[str, ...] = DATA,
    only: tuple[str, ...] = METHODS,
    rows: int = 0,
    epochs: int = EPOCHS,
    some: int = SOME,
) -> Iterator[dict]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in data:
        train = TABLES[name].train()
        if rows and rows < len(train):
            train = train.some(np.sort(np.random.default_rng(0).permutation(len(train))[:rows]))
        test = TABLES[name].test(None)
        facts = {"data": name, "rows": len(train), "device": device}
        unit = train.y.std()
        model = None
        for method in only:
            start, before = time.perf_counter(), _reset(device)
            if method in ("posterior", "exact"):
                if model is None:
                    model = KernelRegressor(uncertainty="posterior", random_state=0)
                    model.fit(train.X, train.y)
                mean, deviation, more = (posterior if method == "posterior" else exact)(
                    model, train, test.X, device
                )
            else:
                peer = {"svgp": svgp, "gpytorch exact": gpytorch_exact}.get(method, scikit_learn)
                made = OneHot.learn(train.X)
                A, B = (np.hstack(made.blocks(part.X)) for part in (train, test))
                y = (train.y - train.y.mean()) / unit
                mean, deviation, more = peer(A, y, B, device, epochs, some)
                mean, deviation = mean * unit + train.y.mean(), deviation * unit
            seconds = more.pop("fit_seconds", None) or time.perf_counter() - start
            yield {
                **facts,
                "method": method,
                **scored(test.y, mean, deviation, unit),
                "fit_seconds": seconds,
                "peak_gib": _peak(device, before),
                **more,
            }


def scored(y: np.ndarray, mean: np.ndarray, deviation: np.ndarray, unit: float) -> dict:
    error, size = (y - mean) / unit, deviation / unit
    losses = np.log(size) + 0.5 * np.log(2 * np.pi) + 0.5 * (error / size) ** 2
    inside = {
        f"inside_{100 * share:g}_percent": 100
        * float((np.abs(error) <= norm.ppf(0.5 + share / 2) * size).mean())
        for share in COVERAGES
    }
    return {"rmse": float(np.sqrt(np.mean(error**2))), "nll": float(losses.mean()), **inside}


def posterior(model: KernelRegressor, train, X, device: str) -> tuple:
    plan, process = model.plan_, model.model_.process
    mean, deviation = model.predict(X, return_std=True)
    return (
        mean,
        deviation,
        {
            "fit_seconds": model.origin_["seconds"],
            "solver": plan.solver,
            "centers": plan.p,
            "kernel": plan.chosen,
            "noise": process.noise.item(),
            "signal": process.signal.item(),
        },
    )


def exact(model: KernelRegressor, train, X, device: str) -> tuple:
    """The exact process with the model's kernel, noise and signal, in float64."""
    kernel, process = model.model_.kernel, model.model_.process
    signal, noise = process.signal.item(), process.noise.item()
    A, B = (model._through(part, lambda rows: rows).double().to(device) for part in (train.X, X))
    center = train.y.mean()
    y = torch.tensor(train.y - center, dtype=torch.float64, device=device)[:, None]
    start = time.perf_counter()
    K = kernel(A).mul_(signal)
    K.diagonal().add_(noise)
    L = torch.linalg.cholesky(K)
    del K
    alpha = torch.cholesky_solve(y, L)
    means, variances = [], []
    for part in B.split(2000):
        k = kernel(A, part).mul_(signal)
        means.append((k.T @ alpha)[:, 0])
        left = torch.linalg.solve_triangular(L, k, upper=False)
        variances.append(signal - (left * left).sum(0) + noise)
    mean, variance = torch.cat(means).cpu().numpy(), torch.cat(variances).cpu().numpy()
    more = {"fit_seconds": time.perf_counter() - start}
    return mean + center, np.sqrt(variance.clip(min=1e-300)), more


def svgp(
    X: np.ndarray, y: np.ndarray, X_new: np.ndarray, device: str, epochs: int, some: int
) -> tuple:
    import gpytorch

    A, B, t = (torch.tensor(part, dtype=torch.float32, device=device) for part in (X, X_new, y))
    generator = torch.Generator().manual_seed(0)
    points = A[torch.randperm(len(A), generator=generator)[:POINTS].to(device)].clone()

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self):
            found = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(
                gpytorch.variational.VariationalStrategy(
                    self, points, found, learn_inducing_locations=True
                )
            )
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            )

        def forward(self, x: Tensor):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model, likelihood = Model().to(device), gpytorch.likelihoods.GaussianLikelihood().to(device)
    model.kernel.base_kernel.lengthscale = X.shape[1] ** 0.5
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(A))
    steps = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    start = time.perf_counter()
    for _ in range(epochs):
        order = torch.randperm(len(A), generator=generator).to(device)
        for rows in order.split(BATCH):
            steps.zero_grad(set_to_none=True)
            loss = -bound(model(A[rows]), t[rows])
            loss.backward()
            steps.step()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return (*_predicted(model, likelihood, B), {"fit_seconds": seconds})


def gpytorch_exact(
    X: np.ndarray, y: np.ndarray, X_new: np.ndarray, device: str, epochs: int, some: int
) -> tuple:
    import gpytorch

    used = np.random.default_rng(0).permutation(len(X))[:some]
    A, B, t = (
        torch.tensor(part, dtype=torch.float32, device=device) for part in (X[used], X_new, y[used])
    )
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)

    class Model(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(A, t, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            )

        def forward(self, x: Tensor):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Model().to(device)
    model.kernel.base_kernel.lengthscale = X.shape[1] ** 0.5
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    steps = torch.optim.Adam(model.parameters(), lr=0.1)
    start = time.perf_counter()
    with gpytorch.settings.max_cholesky_size(some):
        for _ in range(epochs):
            steps.zero_grad(set_to_none=True)
            loss = -evidence(model(A), t)
            loss.backward()
            steps.step()
        seconds = time.perf_counter() - start
        found = _predicted(model, likelihood, B)
    return (*found, {"fit_seconds": seconds, "rows_used": len(A)})


def _predicted(model, likelihood, B: Tensor) -> tuple[np.ndarray, np.ndarray]:
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        parts = [likelihood(model(part)) for part in B.split(2000)]
        means = [part.mean.cpu() for part in parts]
        sizes = [part.variance.sqrt().cpu() for part in parts]
    return torch.cat(means).double().numpy(), torch.cat(sizes).double().numpy()


def scikit_learn(
    X: np.ndarray, y: np.ndarray, X_new: np.ndarray, device: str, epochs: int, some: int
) -> tuple:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    used = np.random.default_rng(0).permutation(len(X))[: min(some, FEW)]
    kernel = ConstantKernel() * Matern(length_scale=X.shape[1] ** 0.5, nu=1.5) + WhiteKernel(0.1)
    start = time.perf_counter()
    model = GaussianProcessRegressor(kernel, random_state=0).fit(X[used], y[used])
    seconds = time.perf_counter() - start
    mean, deviation = model.predict(X_new, return_std=True)
    return mean, deviation, {"fit_seconds": seconds, "rows_used": len(used)}


def _reset(device: str) -> int:
    if device != "cuda":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def _peak(device: str, before: int) -> float | None:
    return (torch.cuda.max_memory_allocated() - before) / 2**30 if device == "cuda" else None
