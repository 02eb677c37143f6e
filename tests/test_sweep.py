"""sweep: its scores are those of the exact solution with the same centers, kernel and ridge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import Ridge

import kernelmill
from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, losses, solvers
from kernelmill.estimators.sweep import MOST_HELD, Sweep, _best, sweep
from kernelmill.tuning import grid as grid_module
from kernelmill.tuning.grid import Grid, sizes_for

CPU = torch.device("cpu")


def data(n: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, two outputs, and three classes."""
    g = np.random.default_rng(0)
    X = g.normal(size=(n, 5))
    Y = np.sin(X @ g.normal(size=(5, 2)) / 2) + 0.1 * g.normal(size=(n, 2))
    return X, Y, (Y[:, 0] > 0).astype(int) + (Y[:, 1] > 0.3)


def exact(found: Sweep, X, y, **weights) -> np.ndarray:
    """The same scores, each by a fit of its own: the rows kept out are those of the same seed."""
    scores = np.empty_like(found.scores)
    for i, bandwidth in enumerate(found.bandwidths):
        for j, ridge in enumerate(found.ridges):
            kernel = clone(found.estimator.kernel).set_params(bandwidth=bandwidth)
            model = clone(found.estimator).set_params(kernel=kernel, ridge=ridge, solver="direct")
            model.fit(X, y, **weights)
            scores[i, j] = model.history_[-1]["validation_score"]
    return scores


EXACT = dict(validation_fraction=0.2, random_state=0)


@pytest.mark.parametrize("kernel", ["laplacian", "gaussian", kernels.Matern(nu=2.5)])
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_those_of_the_exact_solution(kernel, few, weighted):
    X, Y, _ = data()
    centers = dict(centers=X[:80] + 0.01) if few else {}
    weights = dict(sample_weight=np.random.default_rng(1).uniform(0, 3, len(X))) if weighted else {}
    model = KernelRegressor(kernel=kernel, **centers, **EXACT)
    found = sweep(model, X, Y, bandwidths=[0.5, 2.0, 10.0], ridges=[1e-3, 0.1, 10.0], **weights)
    assert found.score == "r2" and found.rows == 80 and found.scores.shape == (3, 3)
    assert found.sizes["centers"] == (80 if few else 320)
    np.testing.assert_allclose(found.scores, exact(found, X, Y, **weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scoring", [None, "log_loss", "balanced_accuracy"])
@pytest.mark.parametrize("few", [False, True])
def test_scores_of_classes_follow_scoring_and_class_weight(scoring, few):
    X, _, y = data()
    centers = dict(centers=X[:80] + 0.01) if few else {}
    model = KernelClassifier(scoring=scoring, class_weight="balanced", **centers, **EXACT)
    found = sweep(model, X, y, bandwidths=[1.0, 5.0], ridges=[0.01, 1.0])
    assert found.score == (scoring or "accuracy")
    assert isinstance(found.estimator.kernel, kernels.Laplacian)  # "auto" is taken for it
    np.testing.assert_allclose(found.scores, exact(found, X, y), atol=1e-4)


def test_the_estimator_has_the_best_and_is_not_fitted():
    X, Y, _ = data()
    given = KernelRegressor(kernel="gaussian", n_centers=100, random_state=0)
    found = kernelmill.sweep(given, X, Y)
    i, j = np.unravel_index(found.scores.argmax(), found.scores.shape)
    assert found.best == {"bandwidth": found.bandwidths[i], "ridge": found.ridges[j]}
    assert found.estimator.kernel.bandwidth == found.best["bandwidth"]
    assert found.estimator.ridge == found.best["ridge"] and found.estimator.n_centers == 100
    assert not hasattr(found.estimator, "model_") and not hasattr(given, "model_")
    assert given.kernel == "gaussian" and given.ridge is None
    assert found.estimator.fit(X, Y).score(X, Y) > Ridge().fit(X, Y).score(X, Y)


def test_defaults_are_around_the_median_distance_and_scale_with_weights():
    X, Y, _ = data()
    found = sweep(KernelRegressor(random_state=0), X, Y)
    median = torch.pdist(torch.tensor(X)).median().item()
    np.testing.assert_allclose(found.bandwidths, median * np.geomspace(0.2, 5, 7), rtol=0.1)
    assert found.ridges == [1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0]
    heavy = sweep(KernelRegressor(random_state=0), X, Y, sample_weight=np.full(len(X), 1e3))
    assert heavy.ridges == [0.1, 1.0, 10.0, 100.0, 1e3, 1e4]
    np.testing.assert_allclose(heavy.scores, found.scores, atol=1e-9)


def test_a_weight_of_two_is_two_copies():
    X, Y, _ = data(300)
    w = np.where(np.arange(len(X)) % 3 == 0, 2.0, 1.0)
    rows, Z = torch.arange(240), torch.tensor(X[:60])
    twice = torch.cat([rows, rows[w[:240] == 2]])
    found = []
    for some, weights in ((rows, torch.tensor(w[:240])), (twice, torch.ones(len(twice)))):
        source = kernelmill.data.source_of(
            torch.tensor(X)[some], torch.tensor(Y)[some], mean=torch.zeros(2).double(), w=weights
        )
        judge = lambda f: -((f - torch.tensor(Y[240:])) ** 2).mean().item()  # noqa: E731
        found.append(
            grid_module.try_grid(
                kernels.Gaussian(),
                source,
                torch.arange(len(some)),
                Z,
                torch.tensor(X[240:]),
                Grid([1.0, 3.0], [0.1, 1.0]),
                judge,
            )
        )
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-8)


def test_chunks_do_not_change_the_scores(monkeypatch):
    X, _, y = data()
    model = KernelClassifier(n_centers=50, scoring="log_loss", random_state=0)
    whole = sweep(model, X, y)
    monkeypatch.setattr(grid_module, "CHUNK", 37)
    np.testing.assert_allclose(sweep(model, X, y).scores, whole.scores, atol=1e-4)


def test_centers_that_are_nearly_copies():
    X, Y, _ = data()
    Z = np.concatenate([X[:50], X[:50] + 1e-9, X[:10]])
    found = sweep(KernelRegressor(kernel="gaussian", centers=Z, **EXACT), X, Y, ridges=[0.01, 1.0])
    np.testing.assert_allclose(found.scores, exact(found, X, Y), rtol=1e-3, atol=1e-4)


def test_of_scores_that_chance_does_not_tell_apart_the_largest_ridge_is_best():
    scores = np.array([[0.5, 0.9, 0.9], [0.9, 0.9, 0.9], [0.1, 0.9, 0.2]])
    assert _best(scores, "r2", 100) == (0, 2)  # the narrowest of equal ones
    scores[2, 0] = 0.905
    assert _best(scores, "r2", 100) == (2, 0)
    assert _best(scores, "accuracy", 100) == (0, 2)
    assert _best(scores, "accuracy", 10**6) == (2, 0)
    scores[1, 2] = 0.901
    assert _best(scores, "accuracy", 100) == (1, 2)
    assert _best(np.array([[-np.inf, 0.1], [np.nan, -np.inf]]), "r2", 9) == (0, 1)
    with pytest.raises(
        InputError, match=r"^no model of the grid .* larger ridges, or other bandwidths\.$"
    ):
        _best(np.full((2, 2), -np.inf), "r2", 9)


@pytest.mark.parametrize("few", [False, True])
def test_classes_in_float32(few):
    X, _, y = data()
    X = X.astype(np.float32)
    centers = dict(centers=X[:80] + 0.01) if few else {}
    model = KernelClassifier(kernel="gaussian", scoring="log_loss", **centers, **EXACT)
    found = sweep(model, X, y, ridges=[1e-3, 0.1, 10.0])
    np.testing.assert_allclose(found.scores, exact(found, X, y), atol=1e-4)


def test_arrays_tensors_and_files_give_the_same(tmp_path):
    X, _, y = data()
    X = X.astype(np.float32)
    model = KernelClassifier(n_centers=60, random_state=0, scoring="log_loss")
    first = sweep(model, X, y)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    for rows, targets in (
        (torch.tensor(X), torch.tensor(y)),
        (str(tmp_path / "X.npy"), str(tmp_path / "y.npy")),
    ):
        found = sweep(model, rows, targets)
        np.testing.assert_allclose(found.scores, first.scores, atol=1e-6)
        assert found.best == first.best


def test_tables_are_read_as_fit_reads_them():
    pandas = pytest.importorskip("pandas")
    X, Y, _ = data()
    frame = pandas.DataFrame(X, columns=list("abcde"))
    frame["kind"] = np.where(Y[:, 0] > 0, "high", "low")
    frame["price"], frame["weight"] = Y[:, 0], 2.0
    found = sweep(KernelRegressor(random_state=0), frame, "price", sample_weight="weight")
    model = found.estimator.fit(frame, "price", sample_weight="weight")
    assert found.scores.max() > 0.7 and "weight" not in model.feature_names_in_


@pytest.mark.gpu
def test_tensors_on_a_gpu():
    X, _, y = data()
    there, labels = torch.tensor(X).cuda(), torch.tensor(y).cuda()
    for n_centers in (None, 60):
        model = KernelClassifier(n_centers=n_centers, random_state=0, scoring="log_loss")
        host = sweep(clone(model).set_params(device="cpu"), X, y)
        np.testing.assert_allclose(sweep(model, there, labels).scores, host.scores, atol=1e-4)


def test_print_is_a_table_with_the_best_marked():
    X, Y, _ = data()
    found = sweep(
        KernelRegressor(random_state=0, scoring="rmse"), X, Y, bandwidths=[5, 2], ridges=[1, 0.1]
    )
    assert found.bandwidths == [2.0, 5.0] and found.ridges == [0.1, 1.0]
    said, head, *lines = str(found).splitlines()
    assert said == "rmse of 80 rows kept out, by bandwidth and ridge; * is best"
    assert head.split() == ["bandwidth", "0.1", "1"] and len(lines) == 2
    assert sum(line.count("*") for line in lines) == 1
    assert "-" not in str(found) and (found.scores < 0).all()  # errors are shown without their sign


def test_sizes_keep_the_proportion_and_the_limits():
    grid, usual = Grid([1.0] * 7, [1.0] * 6), (CPU, 8 << 30)
    for n, p in ((8000, 8000), (36_000, 8000), (36_000, 36_000), (10**8, 10**5), (10**8, 100)):
        found = sizes_for(n, p, grid, MOST_HELD, 10, usual)
        assert found.every_row == (p >= n) and found.centers <= found.rows <= n
        assert found.bytes <= usual[1] and found.centers <= p
        if not found.every_row and found.centers > grid_module.LEAST_CENTERS:
            assert 0.4 < found.rows / found.centers / (n / p) < 2.5
    small = sizes_for(300, 50, grid, 60, 1, usual)
    assert (small.rows, small.centers) == (300, 50)
    short = sizes_for(36_000, 8000, grid, 5000, 10, (CPU, 64 << 20))
    assert short.bytes <= 64 << 20 and short.centers < 1000


@pytest.mark.parametrize(
    ("estimator", "settings", "says"),
    [
        (Ridge(), {}, "estimator=Ridge"),
        (KernelRegressor(kernel="linear"), {}, "expected one with a bandwidth"),
        (KernelRegressor(kernel=kernels.Gaussian(np.ones(5))), {}, "bandwidth for each feature"),
        (KernelRegressor(solver=solvers.Falkon(loss=losses.Huber())), {}, "has the huber loss"),
        (KernelRegressor(), {"bandwidths": []}, "bandwidths=[] was given"),
        (KernelRegressor(), {"bandwidths": [0.0, 1.0]}, "numbers above 0"),
        (KernelRegressor(), {"bandwidths": [1e300]}, "bandwidths=[1e+300] was given"),
        (KernelRegressor(), {"bandwidths": [1e-300]}, "above 0 whose squares are so too"),
        (KernelRegressor(), {"bandwidths": [10**400]}, "was given, expected finite numbers"),
        (KernelRegressor(), {"bandwidths": "12"}, "bandwidths='12' was given"),
        (KernelRegressor(), {"ridges": "12"}, "ridges='12' was given"),
        (KernelRegressor(), {"ridges": [-1.0]}, "numbers of 0 or more"),
        (KernelRegressor(), {"ridges": ["a"]}, "ridges=['a'] was given"),
        (KernelRegressor(ridge=-1.0), {}, None),  # which is not used
    ],
)
def test_errors_are_one_sentence(estimator, settings, says):
    X, Y, _ = data(60)
    if says is None:
        sweep(estimator, X, Y, **settings)
        return
    with pytest.raises(InputError) as error:
        sweep(estimator, X, Y, **settings)
    text = str(error.value)
    assert says in text and text.endswith(".") and "\n" not in text


def test_too_few_rows_and_plans_are_refused():
    X, Y, _ = data(60)
    with pytest.raises(InputError, match=r"^2 rows were given, of which none .* yourself\.$"):
        sweep(KernelRegressor(), X[:2], Y[:2])
    with pytest.raises(InputError, match=r"^1 row was given, of which none .* yourself\.$"):
        sweep(KernelRegressor(), X[:1], Y[:1])
    with pytest.raises(InputError, match=r"^1 row was kept out to choose by, whose targets do not"):
        sweep(KernelRegressor(), X[:4], Y[:4])
    found = sweep(KernelClassifier(), X[:6], np.arange(6) % 2)
    assert str(found).startswith("accuracy of 1 row kept out, ")
    plan = KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=1.0).fit(X, Y).plan_
    with pytest.raises(InputError, match="is a plan, which has its own ridge"):
        sweep(KernelRegressor(solver=plan), X, Y)
