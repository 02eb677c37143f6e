"""Intervals and sets that hold the share of rows they promise."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from typer.testing import CliRunner

from kernelmill import KernelClassifier, KernelRegressor, kernels, load, losses, solvers
from kernelmill.cli import app
from kernelmill.conformal import Sets, quantile
from kernelmill.errors import InputError, ModelFileError
from kernelmill.estimators.evaluation import evaluate

rng = np.random.default_rng(0)
FIXED = dict(kernel=kernels.Gaussian(1.0), ridge=1.0, random_state=0)


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise that grows with the second column."""
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + (0.1 + 0.3 * np.abs(X[:, 1])) * rng.standard_t(5, size=n)


def inside(model, X, y, coverage=0.9) -> float:
    lower, upper = model.predict_interval(X, coverage)
    return float(np.mean((lower <= y) & (y <= upper)))


def test_the_quantile_counts_the_new_row():
    scores = np.array([3.0, 1.0, 2.0, 4.0])
    one = np.ones(4)
    assert quantile(scores, one, 0.8) == 4.0  # 4 of 5
    assert quantile(scores, one, 0.6) == 3.0
    assert quantile(scores, one, 0.81) == np.inf
    assert quantile(scores, np.array([1.0, 1.0, 1.0, 5.0]), 0.5) == 4.0
    assert quantile(scores, np.array([1.0, 1.0, 1.0, 0.0]), 0.75) == 3.0


def test_new_rows_lie_inside_on_average():
    """Over many fits of few rows: exactly what is promised, and not much more."""
    shares = []
    for _ in range(40):
        (X, y), (X_new, y_new) = rows(150), rows(400)
        model = KernelRegressor(**FIXED).fit(X, y)
        shares.append(inside(model, X_new, y_new))
    assert 0.885 < np.mean(shares) < 0.93


SOLVERS = {
    "direct": {"solver": "direct"},
    "direct, centers": {"solver": "direct", "n_centers": 60},
    "falkon": {"solver": "falkon", "n_centers": 60},
    "eigenpro4": {"solver": "eigenpro4", "n_centers": 100, "ridge": None},
    "eigenpro3": {"solver": "eigenpro3", "n_centers": 60, "ridge": None},
    "eigenpro2": {"solver": "eigenpro2"},
    "eigenpro1": {"solver": "eigenpro1"},
    "eigenpro4_exact": {
        "solver": "eigenpro4_exact",
        "n_centers": 60,
        "ridge": None,
        "validation_fraction": 0.3,
    },
    "askotch": {"solver": "askotch"},
    "pcg": {"solver": "pcg"},
    "nytro": {"solver": "nytro", "n_centers": 60, "ridge": None},
    "sgpr": {"solver": "sgpr", "n_centers": 40, "ridge": None},
    "huber": {"solver": solvers.Falkon(loss="huber")},
    "quantile": {"solver": solvers.Falkon(loss=losses.Quantile(0.7))},
}


def test_every_solver_of_numbers_is_here():
    of_numbers = {name for name, each in solvers.NAMED.items() if not each().for_classes}
    assert of_numbers <= {*SOLVERS}


@pytest.mark.parametrize("more", SOLVERS.values(), ids=SOLVERS)
def test_every_solver_has_error_bars(more):
    (X, y), (X_new, y_new) = rows(500), rows(2000)
    model = KernelRegressor(**{**FIXED, **more}).fit(X, y)
    assert 0.84 < inside(model, X_new, y_new) < 0.96
    mean, deviation = model.predict(X_new, return_std=True)
    assert mean.shape == deviation.shape == (2000,)
    assert 0.7 < np.sqrt(np.mean(((y_new - mean) / deviation) ** 2)) < 1.4
    drawn = model.sample(X_new, 3, random_state=0)
    assert drawn.shape == (2000, 3)
    spread = np.subtract(*np.quantile(drawn - mean[:, None], [0.75, 0.25]))
    assert 0.75 < spread / np.subtract(*np.quantile(y_new - mean, [0.75, 0.25])) < 1.5


def test_intervals_follow_the_noise():
    (X, y), (X_new, y_new) = rows(1500), rows(4000)
    model = KernelRegressor(**FIXED).fit(X, y)
    lower, upper = model.predict_interval(X_new)
    loud = np.abs(X_new[:, 1]) > 1.6
    quiet = np.abs(X_new[:, 1]) < 0.4
    assert (upper - lower)[loud].mean() > 1.5 * (upper - lower)[quiet].mean()
    for part in (loud, quiet):
        assert 0.83 < np.mean(((lower <= y_new) & (y_new <= upper))[part]) < 0.97


@pytest.mark.parametrize("times", [1, 3])
def test_scores_are_those_of_models_without_the_row(times):
    """Of rows that are there several times, one of them is left out; what that takes off
    predictions on average is added.
    """
    X, y = rows(60)
    X = np.repeat(X, times, axis=0)
    y = np.repeat(y, times) + 0.3 * rng.normal(size=len(X))
    kernel, ridge, n = kernels.Gaussian(1.0), 0.5, len(X)
    model = KernelRegressor(kernel=kernel, ridge=ridge, solver="direct").fit(X, y)
    K, center = kernel(torch.tensor(X)).numpy(), y.mean()
    found = model.intervals_
    assert not found.slopes.any() and len(found.w) == n
    kept = found.scores[:, 0] * np.exp(found.base[0])
    for i in range(0, n, 7):
        others = np.delete(np.arange(n), i)
        alpha = np.linalg.solve(
            K[np.ix_(others, others)] + ridge * np.eye(n - 1), y[others] - center
        )
        without = K[:, others] @ alpha
        more = np.mean(model.predict(X) - center - without)
        residual = y[i] - center - without[i] - more
        assert np.abs(kept - residual).min() < 1e-8


@pytest.mark.parametrize("share", [0.8, 0.95])
@pytest.mark.parametrize(
    "n, more",
    [(100, {}), (600, {"n_centers": 150}), (2600, {}), (6000, {"n_centers": 100})],
    ids=["each", "centers", "nearest", "some"],
)
def test_targets_of_which_most_are_one_value_are_inside_as_often_as_asked_for(n, more, share):
    """Where columns say nothing, rows of that value have nearly the same residual: a bias, however
    small, takes all of them to one side of a limit.
    """
    draw, found = np.random.default_rng(0), []
    for _ in range(20 if n < 1000 else 1):
        X = draw.normal(size=(n + 2000, 4))
        many = draw.random(n + 2000) < share
        y = np.where(many, 7.5, np.exp(draw.normal(size=n + 2000) + 3))
        model = KernelRegressor(
            kernel=kernels.Matern(300.0, nu=1.5), ridge=1000.0, solver="direct", **more
        )
        model.fit(X[:n], y[:n])
        found.append([inside(model, X[n:], y[n:], coverage) for coverage in (0.5, 0.9)])
    np.testing.assert_allclose(np.mean(found, 0), [0.5, 0.9], atol=0.03)


@pytest.mark.parametrize("value", [0.0, 0.1, -1000.3])
def test_targets_that_are_all_the_same_lie_inside(value):
    X, _ = rows(300)
    model = KernelRegressor(**FIXED).fit(X[:200], np.full(200, value))
    assert inside(model, X, np.full(300, value), 0.5) == 1.0


@pytest.mark.parametrize("uncertainty", ["conformal", "posterior"])
@pytest.mark.parametrize("atom", [0.0, 0.9])
def test_an_interval_lies_in_those_of_higher_coverage(uncertainty, atom):
    X, y = rows(400)
    y[rng.random(400) < atom] = 0.0
    model = KernelRegressor(**FIXED, uncertainty=uncertainty).fit(X, y)
    found = [model.predict_interval(X, share) for share in (0.01, 0.3, 0.5, 0.8, 0.9, 0.97)]
    for (lower, upper), (lower_wide, upper_wide) in pairwise(found):
        assert (lower_wide <= lower).all() and (upper <= upper_wide).all()


@pytest.mark.parametrize("n", [400, 4000])
def test_left_out_of_many_rows_is_near_the_truth(n):
    """By nearest rows, and with fewer centers, of rows that come sorted: squared errors like those
    of new rows.
    """
    X, y = rows(n)
    order = np.argsort(X[:, 1])
    X, y = X[order], y[order]
    X_new, y_new = rows(3000)
    for more in ({}, {"n_centers": 100}, {"n_centers": n // 2}):
        model = KernelRegressor(
            kernel=kernels.Laplacian(2.0), ridge=1.0, solver="direct", random_state=0, **more
        ).fit(X, y)
        found = model.intervals_
        true = np.mean((model.predict(X_new) - y_new) ** 2)
        size = found.spread(model.model_, torch.tensor(X_new), model.model_(torch.tensor(X_new)))
        assert 0.7 < (size.numpy() ** 2).mean() * np.mean(found.scores**2) / true < 1.45
        assert 0.87 < inside(model, X_new, y_new) < 0.94


@pytest.mark.parametrize(
    "more",
    [
        {"solver": "eigenpro2", "epochs": 1},
        {"solver": "falkon", "n_centers": 300, "epochs": 2},
        {"solver": "eigenpro4", "n_centers": 300, "epochs": 1},
    ],
    ids=["eigenpro2", "falkon", "eigenpro4"],
)
@pytest.mark.filterwarnings("ignore:fit ended")
def test_a_solver_that_is_far_from_its_end_has_intervals_of_its_own(more):
    """What few steps leave is in the residuals of the model itself."""
    draw = np.random.default_rng(1)
    X = draw.uniform(-1, 1, size=(3500, 4))
    y = np.sin(6 * X[:, 0]) * np.cos(5 * X[:, 1]) + X[:, 2] * np.sin(4 * X[:, 3])
    y += 0.02 * draw.normal(size=3500)
    model = KernelRegressor(kernel=kernels.Gaussian(0.6), random_state=0, **more)
    model.fit(X[:1500], y[:1500])
    assert 0.85 < inside(model, X[1500:], y[1500:]) < 0.99


def test_names_of_many_rows_are_not_predicted_as_if_never_seen():
    level = rng.integers(0, 50, size=3000)
    effect = rng.normal(size=50) * 3
    y = effect[level] + 0.3 * rng.normal(size=3000)
    model = KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=0.1, random_state=0)
    model.fit(np.eye(50)[level], y)
    lower, upper = model.predict_interval(np.eye(50))
    assert 0.9 < np.mean(upper - lower) < 1.2  # of noise alone 0.99


def test_held_out_rows_are_used_where_there_are_some():
    X, y = rows(900)
    model = KernelRegressor(**FIXED, validation_fraction=0.3).fit(X, y)
    assert model.intervals_.how == "kept out" and len(model.intervals_.w) == 270
    few = KernelRegressor(**FIXED, validation_fraction=0.05).fit(X, y)
    assert few.intervals_.how == "each kept out in turn"


def test_repeated_rows_have_the_noise_of_one_target():
    """Rows of the same x are merged for training; intervals are of single targets."""
    X = np.repeat(rng.uniform(-2, 2, size=(80, 1)), 12, axis=0)
    y = np.sin(X[:, 0]) + rng.normal(size=len(X))
    X_new = rng.uniform(-2, 2, size=(3000, 1))
    y_new = np.sin(X_new[:, 0]) + rng.normal(size=3000)
    model = KernelRegressor(**FIXED).fit(X, y)
    assert 0.87 < inside(model, X_new, y_new) < 0.94


def test_weights_count():
    """Where noisy rows hardly count, intervals are those of the others."""
    X, _ = rows(1000)
    loud = rng.random(1000) < 0.5
    y = np.sin(X[:, 0]) + np.where(loud, 3.0, 0.1) * rng.normal(size=1000)
    model = KernelRegressor(**FIXED).fit(X, y, sample_weight=np.where(loud, 1e-6, 1.0))
    lower, upper = model.predict_interval(X[~loud])
    assert np.median(upper - lower) < 1.0
    assert 0.85 < np.mean((lower <= y[~loud]) & (y[~loud] <= upper)) < 0.97


def test_several_outputs_and_tensors():
    X, y = rows(600)
    Y = np.stack([y, 1000 + 100 * y], 1)
    model = KernelRegressor(**FIXED).fit(X, Y)
    lower, upper = model.predict_interval(torch.tensor(X))
    assert isinstance(lower, torch.Tensor) and lower.shape == (600, 2)
    np.testing.assert_allclose((upper - lower)[:, 1], 100 * (upper - lower)[:, 0], rtol=1e-6)
    assert model.sample(X, 4).shape == (600, 2, 4)
    assert model.predict(X, return_std=True)[1].shape == (600, 2)


def test_chunks_calibrate_the_model_that_learns_them():
    X, y = rows(3000)
    model = KernelRegressor(**FIXED, n_centers=100)
    for part in np.split(np.arange(3000), 6):
        model.partial_fit(X[part], y[part])
    X_new, y_new = rows(2000)
    assert 0.85 < inside(model, X_new, y_new) < 0.96


def test_few_rows_of_a_chunk_do_not_replace_many():
    """Of a `fit`, which keeps no rows, its residuals stay until there are enough others."""
    X, y = rows(1000)
    model = KernelRegressor(**FIXED, n_centers=100).partial_fit(X, y)
    model.partial_fit(X[:25], y[:25])
    assert len(model.intervals_.w) == 1025
    model.fit(X, y).partial_fit(X[:25], y[:25])
    assert len(model.intervals_.w) == 1000
    model.partial_fit(X[25:125], y[25:125])
    assert len(model.intervals_.w) == 125


@pytest.mark.parametrize("solver", ["direct", "eigenpro4"])
@pytest.mark.parametrize("order", ["column", "target"])
def test_chunks_in_an_order_have_the_intervals_of_all_rows(solver, order):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(6000, 3))
    y = 2 * X[:, 0] + np.sin(2 * X[:, 1]) + 0.1 * draw.normal(size=6000)
    ordered = np.argsort(X[:3000, 0] if order == "column" else y[:3000])
    model = KernelRegressor(kernel=kernels.Gaussian(2.0), n_centers=300, random_state=0)
    model.set_params(solver=solver, ridge=1e-3 if solver == "direct" else "auto")
    for part in np.split(ordered, 6):
        model.partial_fit(X[part], y[part])
    for coverage in (0.5, 0.9):
        assert abs(inside(model, X[3000:], y[3000:], coverage) - coverage) < 0.04


def test_rows_that_are_kept_are_a_sample_of_all(monkeypatch, tmp_path):
    """Of a model that was loaded they are the same; rows of weight 0 are none of them, and rows
    that were merged are told apart.
    """
    monkeypatch.setattr("kernelmill.learning.streaming.KEPT", 200)
    (X, y), w = rows(1000), rng.integers(0, 3, 1000).astype(float)
    X[1], w[:2] = X[0], 1.0
    model = KernelRegressor(**FIXED, n_centers=50)
    for part in np.split(np.arange(1000), 5):
        again = model
        if part[0]:
            model.save(tmp_path / "m")
            again = load(tmp_path / "m").partial_fit(X[part], y[part], w[part])
        model.partial_fit(X[part], y[part], w[part])
        for mine, theirs in zip(model._kept, again._kept, strict=True):
            assert torch.equal(mine, theirs)
    kept = model._kept
    row = np.array([np.flatnonzero(y == target)[0] for target in kept.y[:, 0].numpy()])
    assert len(set(row)) == len(model.intervals_.w) == 200
    np.testing.assert_array_equal(kept.X.numpy(), X[row])
    np.testing.assert_array_equal(kept.w.numpy(), w[row])
    assert (np.bincount(row // 200, minlength=5) > 20).all()
    again._kept = kept._replace(y=kept.y[:, [0, 0]])
    again.save(tmp_path / "m")
    with pytest.raises(ModelFileError, match="damaged"):
        load(tmp_path / "m")


def test_the_unit_of_weights_does_not_matter():
    X, y = rows(600)
    settings = {**FIXED, "ridge": 1e-6}
    small = KernelRegressor(**settings).fit(X, y, sample_weight=np.full(600, 1e-6))
    for mine, theirs in zip(
        small.predict_interval(X),
        KernelRegressor(**FIXED).fit(X, y).predict_interval(X),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)


def test_sentences_where_there_is_nothing_to_say():
    X, y = rows(200)
    model = KernelRegressor(**FIXED).fit(X, y)
    for wrong in (0, 1, 1.5, "most", True, None):
        with pytest.raises(InputError, match="expected a share of rows between 0 and 1"):
            model.predict_interval(X, wrong)
    with pytest.raises(InputError, match="takes about 2,000 rows"):
        model.predict_interval(X, 0.999)
    with pytest.raises(InputError, match="no functions to draw"):
        model.sample(X, noise=False)
    with pytest.raises(NotFittedError):
        KernelRegressor().sample(X)
    few = KernelRegressor(**FIXED).fit(X[:10], y[:10])
    for ask in (few.predict_interval, lambda X: few.predict(X, return_std=True), few.sample):
        with pytest.raises(InputError, match="this model has no error bars"):
            ask(X)


def test_a_stored_model_has_its_error_bars(tmp_path):
    X, y = rows(400)
    model = KernelRegressor(**FIXED).fit(X, y)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    for mine, theirs in zip(again.predict_interval(X), model.predict_interval(X), strict=True):
        np.testing.assert_allclose(mine, theirs)
    content = json.loads((tmp_path / "m" / "model.json").read_text())
    assert content["version"] == 1
    content["extra"]["fitted"]["intervals_"]["how"] = 7
    del content["extra"]["fitted"]["intervals_"]["base"]
    (tmp_path / "m" / "model.json").write_text(json.dumps(content))
    with pytest.raises(ModelFileError, match="damaged"):
        load(tmp_path / "m")


def test_no_training_row_is_kept_for_intervals():
    X, y = rows(600)
    private = KernelRegressor(**FIXED, centers="kmeans", n_centers=40).fit(X, y)
    kept = {row.tobytes() for row in np.asarray(private.intervals_.centers)}
    assert not kept & {row.tobytes() for row in X}


# ---- classes


def three(n: int) -> tuple[np.ndarray, np.ndarray]:
    X = rng.normal(size=(n, 2))
    return X, np.array(["a", "b", "c"])[
        np.clip(np.round(X[:, 0] + 0.5 * rng.normal(size=n)) + 1, 0, 2).astype(int)
    ]


@pytest.mark.parametrize("coverage", [0.8, 0.95])
@pytest.mark.parametrize("more", [{}, {"validation_fraction": 0.3}])
def test_sets_hold_the_true_class(more, coverage):
    (X, y), (X_new, y_new) = three(800), three(4000)
    model = KernelClassifier(**FIXED, **more).fit(X, y)
    holds = model.predict_set(X_new, coverage)
    assert holds.dtype == bool and holds.shape == (4000, 3)
    assert holds[np.arange(4000), model.predict_proba(X_new).argmax(1)].all()
    share = holds[np.arange(4000), np.searchsorted(model.classes_, y_new)].mean()
    assert coverage - 0.04 < share < max(coverage + 0.04, model.score(X_new, y_new) + 0.02)


def test_weights_of_classes_are_no_frequencies():
    (X, y), (X_new, y_new) = three(1500), three(4000)
    model = KernelClassifier(**FIXED, class_weight={"a": 1, "b": 1, "c": 50}).fit(X, y)
    holds = model.predict_set(X_new, 0.9)
    share = holds[np.arange(4000), np.searchsorted(model.classes_, y_new)].mean()
    assert 0.87 < share < 0.95


def test_sets_are_stored_and_refused_where_there_are_none(tmp_path):
    X, y = three(300)
    model = KernelClassifier(**FIXED).fit(X, y)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict_set(X), model.predict_set(X))
    with pytest.raises(InputError, match="takes about 1,000 rows"):
        model.predict_set(X, 0.999)
    model.sets_ = None
    with pytest.raises(InputError, match="no prediction sets"):
        model.predict_set(X)
    one = KernelClassifier(**FIXED).fit(X, np.zeros(300))
    assert one.predict_set(X[:2]).all()
    assert Sets.of(torch.ones(3, 1), torch.ones(3, 1), torch.ones(3), "", torch.ones(1)) is None


# ---- from the command line


def test_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = rows(700)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y})
    frame[:500].to_csv("train.csv", index=False)
    frame[500:].to_csv("new.csv", index=False)
    run = lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])  # noqa: E731
    fixed = ["--target", "y", "--kernel", "gaussian", "--bandwidth", "1", "--ridge", "1"]
    assert run("train", "train.csv", "--out", "m", *fixed).exit_code == 0
    assert run("predict", "m", "new.csv", "--out", "p.csv", "--intervals").exit_code == 0
    found = pd.read_csv("p.csv")
    assert list(found) == ["prediction", "lower", "upper"]
    assert 0.8 < np.mean((found.lower <= y[500:]) & (y[500:] <= found.upper)) < 0.99
    args = ("--intervals", "--coverage", "0.5")
    assert run("predict", "m", "new.csv", "--out", "q.csv", *args).exit_code == 0
    half = pd.read_csv("q.csv")
    assert ((half.upper - half.lower) < (found.upper - found.lower)).all()
    wrong = run("predict", "m", "new.csv", "--out", "q.csv", "--coverage", "0.5")
    assert wrong.exit_code and "without --intervals" in wrong.output
    told = run("evaluate", "m", "new.csv", "--json")
    metrics = json.loads(told.output)["metrics"]
    assert 0.8 < metrics["coverage_90"] < 0.99 and metrics["width_90"] > 0 and "nll" in metrics
    assert "inside 90 % intervals" in run("evaluate", "m", "new.csv", "--html", "e.html").output
    assert "Can you trust the error bars?" in (tmp_path / "e.html").read_text()
    made = run("train", "train.csv", "--out", "g", *fixed, "--uncertainty", "posterior")
    assert made.exit_code == 0
    assert run("predict", "g", "new.csv", "--out", "p.csv", "--intervals").exit_code == 0
    assert load("g").model_.process is not None


def test_sets_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y = three(400)
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv("d.csv", index=False)
    run = lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])  # noqa: E731
    fixed = ["--target", "y", "--kernel", "gaussian", "--bandwidth", "1", "--ridge", "1"]
    assert run("train", "d.csv", "--out", "m", *fixed).exit_code == 0
    assert run("predict", "m", "d.csv", "--out", "p.csv", "--intervals").exit_code == 0
    found = pd.read_csv("p.csv")
    assert {"prediction", "set", "probability of a"} <= {*found}
    assert all(p in s.split(" | ") for p, s in zip(found.prediction, found.set, strict=True))


def test_scores_of_error_bars():
    (X, y), (X_new, y_new) = rows(600), rows(2000)
    model = KernelRegressor(**FIXED).fit(X, y)
    found = evaluate(model, X_new, y_new)
    mean, deviation = model.predict(X_new, return_std=True)
    want = 0.5 * np.log(2 * np.pi * deviation**2) + 0.5 * ((y_new - mean) / deviation) ** 2
    assert found.metrics["nll"] == pytest.approx(want.mean())
    assert found.metrics["coverage_90"] == pytest.approx(inside(model, X_new, y_new))
    low, high = found.intervals["coverage_90"]
    assert low < found.metrics["coverage_90"] < high
    shares = [found.covered[each] for each in sorted(found.covered)]
    assert len(shares) == 10 and shares == sorted(shares)
