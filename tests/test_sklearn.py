"""scikit-learn's own checks, on the default estimators and on the iterative solver.

None is expected to fail.
"""

import re
import warnings

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
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


@pytest.mark.slow
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


class Recorded(KernelRegressor):
    """Notes the weights that reach fit and score."""

    seen: list = []

    def fit(self, X, y=None, sample_weight=None):
        self.seen.append(("fit", sample_weight))
        return super().fit(X, y, sample_weight)

    def score(self, X, y, sample_weight=None):
        self.seen.append(("score", sample_weight))
        return super().score(X, y, sample_weight)


@pytest.fixture
def routing():
    Recorded.seen.clear()
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def weighted_rows():
    g = np.random.default_rng(0)
    X = g.normal(size=(120, 3))
    return X, np.sin(X[:, 0]) + g.normal(size=120), g.uniform(0.1, 5, 120)


def test_weights_are_routed_through_a_pipeline(routing):
    X, y, w = weighted_rows()
    model = KernelRegressor(kernel=Laplacian(3.0), ridge=1.0)
    asked = clone(model).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    scale = StandardScaler().set_fit_request(sample_weight=False)
    pipe = make_pipeline(scale, asked).fit(X, y, sample_weight=w)
    scaled = StandardScaler().fit_transform(X)
    direct = model.fit(scaled, y, w)
    np.testing.assert_allclose(pipe.predict(X), direct.predict(scaled), rtol=1e-6)
    assert pipe.score(X, y, sample_weight=w) == pytest.approx(direct.score(scaled, y, w))
    assert pipe.score(X, y, sample_weight=w) != pytest.approx(direct.score(scaled, y))


def test_weights_are_routed_through_a_search(routing):
    X, y, w = weighted_rows()
    model = Recorded(kernel=Laplacian(3.0), ridge=1.0)
    model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    pipe = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), model)
    GridSearchCV(pipe, {"recorded__ridge": [0.1, 10.0]}, cv=3).fit(X, y, sample_weight=w)
    assert len(Recorded.seen) == 13  # two ridges in three folds, and once more on all rows
    assert all(weight is not None for _, weight in Recorded.seen)
    fitted = sum(len(weight) for what, weight in Recorded.seen if what == "fit")
    assert fitted == 2 * 2 * 120 + 120


def test_weights_that_nobody_asked_for_are_not_routed(routing):
    X, y, w = weighted_rows()
    with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError, match="sample_weight"):
        GridSearchCV(Recorded(), {"ridge": [1.0]}, cv=3).fit(X, y, sample_weight=w)
    model = Recorded(kernel=Laplacian(3.0))
    model.set_fit_request(sample_weight=True).set_score_request(sample_weight=False)
    GridSearchCV(model, {"ridge": [1.0]}, cv=3).fit(X, y, sample_weight=w)
    assert {(what, weight is None) for what, weight in Recorded.seen} == {
        ("fit", False),
        ("score", True),
    }


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_steps_before_may_give_frames(container):
    pytest.importorskip(container)
    X, y = load_iris(return_X_y=True, as_frame=True)
    X = X.assign(place=np.where(X.iloc[:, 0] > 5.8, "wood", "river"))
    steps = make_column_transformer(
        (StandardScaler(), list(X.columns[:4])), (OneHotEncoder(sparse_output=False), ["place"])
    )
    model = KernelClassifier(kernel=Laplacian(2.0), ridge=0.1)
    pipe = make_pipeline(clone(steps), clone(model)).set_output(transform=container).fit(X, y)
    assert list(pipe[-1].feature_names_in_)[-1] == "onehotencoder__place_wood"
    plain = make_pipeline(clone(steps), clone(model)).set_output(transform="default").fit(X, y)
    assert (pipe.predict(X) == plain.predict(X)).all()
    assert not hasattr(model, "set_output")  # nothing here transforms


def words(page: str) -> list[str]:
    """What a reader sees of a page."""
    shown = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", shown).split()


def test_a_notebook_shows_parameters_and_whether_it_is_fitted(monkeypatch):
    X, y = load_iris(return_X_y=True)
    model = KernelClassifier(kernel=Laplacian(2.5), ridge=0.125, random_state=0)
    before = words(model._repr_html_())
    assert "Not" in before and "0.125" in before

    def computed(self):
        raise AssertionError("what takes time is computed to be shown")

    monkeypatch.setattr(KernelClassifier, "feature_importances_", property(computed))
    model.fit(X, y)
    for shown in (model, make_pipeline(StandardScaler(), model)):
        after = words(shown._repr_html_())
        assert "Not" not in after
        assert {"KernelClassifier", "Fitted", "kernel__bandwidth", "2.5", "0.125"} <= set(after)
        if hasattr(sklearn.base.BaseEstimator, "_get_fitted_attr_html"):  # of scikit-learn 1.9
            assert {"plan_", "model_", "classes_"} <= set(after)
