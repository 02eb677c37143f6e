"""EigenPro 4 where K(Z,Z) is singular in the precision of a run: never worse than the constant."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernelmill import KernelRegressor, kernels
from kernelmill.solvers import EigenPro4
from kernelmill.solvers.eigenpro_state import EigenPro4State

N, P, D = 3000, 1000, 6
KERNELS = [kernels.Gaussian, lambda width: kernels.Matern(width, nu=2.5), kernels.Laplacian]


def noisy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Half of the deviation is noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, D))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.6 * rng.standard_normal(n)


@pytest.fixture(scope="module")
def table():
    return noisy(N, 0), noisy(2000, 1)


@pytest.mark.parametrize("factor", [1.0, 4.0, 16.0])
@pytest.mark.parametrize("kernel", KERNELS, ids=["gaussian", "matern", "laplacian"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_kernels_learn_as_well_as_by_conjugate_gradients(table, kernel, factor, dtype):
    (X, y), (X_test, y_test) = table
    chosen = kernel(factor * D**0.5)
    errors = {}
    for solver, ridge in ((EigenPro4(projection="carried"), None), ("falkon", 1e-2)):
        model = KernelRegressor(
            kernel=chosen, n_centers=P, solver=solver, ridge=ridge, random_state=0
        ).fit(X.astype(dtype), y)
        found = model.predict(X_test.astype(dtype))
        errors[model.plan_.solver] = np.sqrt(((found - y_test) ** 2).mean()) / y_test.std()
    assert errors["eigenpro4"] < min(1.0, 1.1 * errors["falkon"]), errors


def state(**values) -> EigenPro4State:
    model = KernelRegressor(
        kernel="laplacian", n_centers=50, solver=EigenPro4(), epochs=1, random_state=0
    ).fit(*noisy(400, 0))
    ones = torch.ones(50, 1)
    best = {"r": ones, "alpha_best": 0 * ones, "nothing": 1.0}
    return EigenPro4State(model.plan_, ones, **best, **values)


def test_the_best_weights_are_kept_where_the_last_are_clearly_worse():
    assert state(probe=0.9, lowest=0.2).settled().alpha.sum() == 0
    assert state(probe=1.1, lowest=1.0).settled().alpha.sum() == 0
    assert state(probe=0.21, lowest=0.2).settled().alpha.sum() == 50
    best = state(probe=0.9, lowest=0.2).settled()
    assert best.probe == 0.2 and best.alpha is not best.alpha_best


@pytest.mark.slow
def test_smooth_kernels_have_more_directions_taken_off():
    X, y = noisy(9000, 0)
    taken = [
        KernelRegressor(
            kernel=kernel, n_centers=4000, solver=EigenPro4(s=500), epochs=1, random_state=0
        )
        .fit(X, y)
        .plan_.q
        for kernel in (kernels.Gaussian(2 * D**0.5), kernels.Laplacian(0.3))
    ]
    given = EigenPro4(s=500, q=30)
    model = KernelRegressor(kernel=kernels.Gaussian(5.0), n_centers=1000, solver=given, epochs=1)
    assert taken[0] >= 2 * taken[1] and model.fit(X, y).plan_.q == 30


def test_a_ridge_is_chosen_with_a_kernel():
    X, y = noisy(1500, 0)
    settings = {"n_centers": 300, "solver": EigenPro4(), "epochs": 1, "random_state": 0}
    chosen = KernelRegressor(**settings).fit(X, y).plan_
    given = KernelRegressor(**settings, kernel=kernels.Laplacian(2.0)).fit(X, y).plan_
    none = KernelRegressor(**settings, ridge=0.0).fit(X, y).plan_
    assert chosen.ridge > 0 and given.ridge == none.ridge == 0
    assert replace(chosen, ridge=0.0).p == none.p
