"""scikit-learn's own checks, on the default estimators and on the iterative solver.

None is expected to fail.
"""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from kernelmill import InputError, KernelClassifier, KernelRegressor
from kernelmill.kernels import Gaussian, Laplacian
from kernelmill.solvers import EigenPro4


@parametrize_with_checks(
    [
        KernelRegressor(),
        KernelClassifier(),
        KernelRegressor(kernel=Laplacian(2.0), solver=EigenPro4(), epochs=30),
        KernelClassifier(kernel=Laplacian(2.0), solver=EigenPro4(), epochs=30),
    ]
)
def test_scikit_learn_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def test_parameters_nest_in_grid_search():
    X, y = load_iris(return_X_y=True)
    model = KernelClassifier(
        kernel=Laplacian(1.0), solver=EigenPro4(s=50, q=10), random_state=0, epochs=2
    )
    grid = GridSearchCV(
        model, {"kernel__bandwidth": [0.01, 3.0], "solver__q": [2, 8], "n_centers": [5, 60]}, cv=3
    ).fit(X, y)
    assert grid.best_params_["kernel__bandwidth"] == 3.0
    scores = {
        (p["n_centers"], p["kernel__bandwidth"]): s
        for p, s in zip(
            grid.cv_results_["params"], grid.cv_results_["mean_test_score"], strict=True
        )
    }
    assert scores[60, 3.0] > scores[5, 0.01]  # neither is a silent no-op
    assert grid.best_estimator_.plan_.p == grid.best_params_["n_centers"]
    assert grid.best_estimator_.plan_.q <= grid.best_params_["solver__q"]
    assert model.kernel.bandwidth == 1.0  # the user's own objects are not touched


def test_nested_parameters_of_a_name():
    model = KernelRegressor(kernel="gaussian", solver="eigenpro4").set_params(
        kernel__bandwidth=2.0, solver__q=5
    )
    assert (
        isinstance(model.kernel, Gaussian) and model.kernel.bandwidth == 2.0 and model.solver.q == 5
    )
    with pytest.raises(InputError, match="kernel='auto' has no settings"):
        KernelRegressor().set_params(kernel__bandwidth=2.0)
    with pytest.raises(InputError, match="Did you mean 'bandwidth'"):
        KernelRegressor(kernel=Gaussian()).set_params(kernel__bandwith=2.0)


def test_clone_and_pipeline():
    X, y = load_iris(return_X_y=True)
    model = KernelClassifier(kernel=Gaussian(np.array([1.0, 2.0, 3.0, 4.0])), ridge=0.1)
    copy = clone(model)
    assert (
        copy.kernel is not model.kernel and (copy.kernel.bandwidth == model.kernel.bandwidth).all()
    )
    assert (
        cross_val_score(
            make_pipeline(StandardScaler(), KernelClassifier(random_state=0)), X, y, cv=3
        ).mean()
        > 0.93
    )


def threads(estimator, X, y):
    return -torch.get_num_threads() if estimator.fit(X, y).score(X, y) > 0 else 0.0


def test_parallel_search_shares_the_cores():
    X, y = load_digits(return_X_y=True)
    grid = GridSearchCV(
        KernelClassifier(kernel=Laplacian(40.0), ridge=0.01),
        {"ridge": [0.01, 0.1]},
        cv=2,
        n_jobs=2,
        scoring=threads,
        error_score="raise",
    ).fit(X[:400], y[:400])
    import os

    assert (grid.cv_results_["mean_test_score"] >= -max(1, (os.cpu_count() or 2) // 2)).all()
