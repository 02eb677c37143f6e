"""What a user does with the estimators, and what they are told when something is wrong."""

import dataclasses
import pickle
import signal
import threading
import time
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    make_classification,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from kernelmill import Event, InputError, KernelClassifier, KernelRegressor, load
from kernelmill.kernels import Gaussian, Laplacian, Polynomial
from kernelmill.ops import PRECISIONS
from kernelmill.solvers import Direct, EigenPro3, EigenPro4, Falkon
from kernelmill.tuning import search

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 5))
y = np.sin(X[:, 0]) + 0.5 * X[:, 1] ** 2 + 0.1 * rng.normal(size=400)
labels = np.where(y > 0.5, "high", "low")
FAST = {"kernel": Laplacian(2.0), "ridge": 0.01}
ITERATIVE = {"kernel": Laplacian(2.0), "solver": EigenPro4(), "n_centers": 100, "random_state": 0}


def test_defaults_give_a_good_model():
    for read, bound in ((load_digits, 0.975), (load_breast_cancer, 0.95), (load_iris, 0.92)):
        A, B, a, b = train_test_split(*read(return_X_y=True), random_state=0)
        assert KernelClassifier(random_state=0).fit(A, a).score(B, b) > bound
    A, B, a, b = train_test_split(*load_diabetes(return_X_y=True), random_state=0)
    assert KernelRegressor(random_state=0).fit(A, a).score(B, b) > 0.3


@pytest.mark.parametrize("weights", [False, True])
def test_ridge_and_weights_mean_what_they_mean_in_kernel_ridge(weights):
    w = rng.uniform(0.2, 3, size=400) if weights else np.ones(400)
    ours = KernelRegressor(kernel=Gaussian(2.0), ridge=0.3).fit(X, y, w if weights else None)
    mean = np.average(y, weights=w)
    theirs = KernelRidge(alpha=0.3, kernel="rbf", gamma=1 / 8).fit(X, y - mean, w)
    np.testing.assert_allclose(
        ours.predict(X[:50] + 0.1), theirs.predict(X[:50] + 0.1) + mean, rtol=1e-9
    )


def test_eigenpro4_has_the_same_ridge_and_weights():
    w = rng.uniform(0.2, 3, size=400)
    direct, iterative = (
        KernelRegressor(
            kernel=Laplacian(2.0), ridge=0.3, solver=solver, n_centers=60, epochs=60, random_state=0
        ).fit(X, y, 5 * w)
        for solver in (Direct(), EigenPro4(s=40, q=10))
    )
    np.testing.assert_allclose(iterative.predict(X), direct.predict(X), atol=2e-3)


def test_history_plan_and_model_are_there():
    model = KernelRegressor(**ITERATIVE, epochs=3, validation_fraction=0.2).fit(X, y)
    plan = model.plan_
    assert (
        plan.p == 100
        and plan.n == 320
        and plan.s == 100
        and plan.m >= 1
        and plan.T >= 1
        and plan.eta > 0
        and plan.bytes > 0
    )
    epochs = [row for row in model.history_ if row["kind"] == "epoch"]
    assert [row["epoch"] for row in epochs] == [1, 2, 3] and model.n_iter_ == 3
    assert epochs[-1]["loss"] < epochs[0]["loss"] and epochs[-1]["validation_score"] > 0.5
    assert any(row["kind"] == "projection" for row in model.history_)
    K = model.model_.kernel(torch.from_numpy(X[:7]), model.model_.Z)
    np.testing.assert_allclose(
        model.predict(X[:7]),
        (K @ model.model_.alpha + model.model_.intercept)[:, 0].numpy(),
        rtol=1e-12,
    )


def test_same_seed_same_weights():
    a, b = (KernelRegressor(**ITERATIVE, epochs=2, memory_budget="1GB").fit(X, y) for _ in range(2))
    assert torch.equal(a.model_.alpha, b.model_.alpha) and a.plan_ == b.plan_
    other = KernelRegressor(**{**ITERATIVE, "random_state": 1}, epochs=2).fit(X, y)
    assert not torch.equal(a.model_.alpha, other.model_.alpha)


def test_probabilities_are_calibrated():
    A, a = make_classification(
        6000, n_features=10, n_informative=6, n_classes=3, flip_y=0.2, random_state=0
    )
    for size in (1000, 4000):  # leave-one-out, held-out rows
        model = KernelClassifier(
            kernel=Laplacian(5.0), ridge=0.1, n_centers=1500, random_state=0
        ).fit(A[:size], a[:size])
        P, truth = model.predict_proba(A[4000:]), a[4000:]
        np.testing.assert_allclose(P.sum(1), 1)
        confident = P.max(1)
        for low, high in ((0.4, 0.7), (0.7, 1.0)):
            some = (confident >= low) & (confident < high)
            assert (
                abs((model.classes_[P.argmax(1)] == truth)[some].mean() - confident[some].mean())
                < 0.1
            )
        values = model.model_(torch.from_numpy(A[4000:])).numpy()
        clipped = np.clip(values, 1e-3, 1)
        assert log_loss(truth, P) < log_loss(truth, clipped / clipped.sum(1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", [FAST, ITERATIVE], ids=["direct", "eigenpro4"])
def test_predictions_do_not_depend_on_the_batch(dtype, options):
    model = KernelRegressor(**options, precision=np.dtype(dtype).name).fit(X.astype(dtype), y)
    whole = model.predict(X.astype(dtype))
    single = np.concatenate([model.predict(X[i : i + 1].astype(dtype)) for i in range(20)])
    tolerance = 1e-5 if dtype == np.float32 and options is ITERATIVE else 1e-10
    np.testing.assert_allclose(single, whole[:20], rtol=tolerance, atol=tolerance)


def test_precision_follows_the_input():
    assert KernelRegressor(**ITERATIVE).fit(X, y).plan_.precision == "float64"
    assert KernelRegressor(**ITERATIVE).fit(X.astype(np.float32), y).plan_.precision == "float32"
    assert KernelRegressor(**ITERATIVE).fit(X.astype(np.float16), y).plan_.precision == "float32"
    assert (
        KernelRegressor(**ITERATIVE, precision="float64")
        .fit(X.astype(np.float32), y)
        .plan_.precision
        == "float64"
    )


def test_tensors_in_tensors_out_numpy_in_numpy_out():
    T = torch.from_numpy(X)
    model = KernelRegressor(**FAST).fit(T, torch.from_numpy(y))
    assert isinstance(model.predict(T), torch.Tensor) and isinstance(model.predict(X), np.ndarray)
    np.testing.assert_array_equal(model.predict(T).numpy(), model.predict(X))
    classifier = KernelClassifier(**FAST).fit(T, torch.from_numpy((y > 0).astype(int)))
    assert (
        isinstance(classifier.predict_proba(T), torch.Tensor)
        and classifier.predict(T).dtype == torch.int64
    )
    KernelRegressor(**FAST).fit(T.bfloat16(), y)


def test_frames_keep_their_names():
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = KernelClassifier(**FAST).fit(frame, labels)
    assert list(model.feature_names_in_) == list("abcde") and set(model.predict(frame)) == {
        "high",
        "low",
    }
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "z"}))
    frame["city"] = "Rome"  # texts are encoded: tests/test_data.py
    assert list(KernelClassifier(**FAST).fit(frame, labels).feature_names_in_) == [*"abcde", "city"]


def test_multi_output_matches_one_by_one():
    Y = np.stack([y, -2 * y + X[:, 2]], 1)
    both = KernelRegressor(**FAST).fit(X, Y)
    assert both.predict(X).shape == (400, 2)
    np.testing.assert_allclose(
        both.predict(X)[:, 1], KernelRegressor(**FAST).fit(X, Y[:, 1]).predict(X), rtol=1e-8
    )


@pytest.mark.parametrize("kind", [str, int, bool, object])
def test_labels_of_any_kind(kind):
    target = {
        "str": labels,
        "int": np.where(y > 0, 7, -3),
        "bool": y > 0,
        "object": labels.astype(object),
    }[kind.__name__]
    model = KernelClassifier(**FAST).fit(X, target)
    assert model.score(X, target) > 0.9 and set(model.predict(X)) <= set(target)
    assert model.decision_function(X).shape == (400,)
    np.testing.assert_array_equal(
        model.decision_function(X) > 0, model.predict(X) == model.classes_[1]
    )


def test_one_class_and_rare_classes():
    only = KernelClassifier().fit(X[:20], ["a"] * 20)
    assert set(only.predict(X)) == {"a"} and (only.predict_proba(X) == 1).all()
    rare = np.zeros(400, int)
    rare[3], rare[5] = 1, 2
    model = KernelClassifier(**FAST, validation_fraction=0.5).fit(X, rare)
    assert list(model.classes_) == [0, 1, 2] and model.predict_proba(X).shape == (400, 3)


def loss_of_a_rare_class(n, seed, **more):
    """Log loss with some 12 rows of a rare class, over that of the class frequencies."""
    g = np.random.default_rng(seed)
    t = (g.random(n + 8000) < 12 / n).astype(int)
    rows = g.normal(size=(n + 8000, 6))
    rows[t == 1, :2] += 1.5
    model = KernelClassifier(
        kernel=Laplacian(4.0), ridge=0.3, solver="direct", random_state=seed, **more
    ).fit(rows[:n], t[:n])
    guess = np.tile([1 - t[:n].mean(), t[:n].mean()], (8000, 1))
    return log_loss(t[n:], model.predict_proba(rows[n:])) / log_loss(t[n:], guess), model


def test_probabilities_do_not_hang_on_one_held_out_row_of_a_rare_class():
    found = [loss_of_a_rare_class(4000, seed, n_centers=150) for seed in range(8)]
    assert max(loss for loss, _ in found) < 0.95
    for _, model in found:  # beside the rows kept out, those of the rare class in turn
        assert model.held_out_["rows"] > model.confusion_.sum()


def test_where_none_are_kept_out_every_row_of_a_rare_class_calibrates():
    for seed in (1, 2):
        loss, _ = loss_of_a_rare_class(8000, seed, n_centers=100, validation_fraction=0)
        assert loss < 0.99


def test_a_class_that_is_not_in_the_first_chunk_has_no_rows_to_leave_out():
    rows, codes = rng.normal(size=(3000, 3)), np.arange(3000) % 2
    model = KernelClassifier(**FAST, n_centers=30).partial_fit(rows, codes, classes=[0, 1, 2])
    assert np.isfinite(model.predict_proba(rows)).all() and model.held_out_["rows"] == 300


def test_a_class_of_fewer_than_five_rows_is_said():
    names = np.array(["common"] * 380 + ["five"] * 5 + ["four"] * 4 + ["two"] * 2)
    rows = X[: len(names)]
    with pytest.warns(
        UserWarning, match="class 'two' has 2 rows, one of 2 classes with fewer than 5,"
    ):
        KernelClassifier(**FAST).fit(rows, names)
    with pytest.warns(UserWarning, match="class 'four' has 4 rows, which is too few to tell"):
        KernelClassifier(**FAST).fit(rows[:-2], names[:-2])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        KernelClassifier(**FAST).fit(rows[:385], names[:385])
        KernelClassifier(**FAST).partial_fit(rows[383:], names[383:], classes=np.unique(names))


def test_class_weight_lifts_the_rare_class():
    target = (y > np.quantile(y, 0.95)).astype(int)
    noisy = np.where(rng.uniform(size=400) < 0.1, 1 - target, target)
    plain, balanced = (
        KernelClassifier(kernel=Laplacian(3.0), ridge=3.0, class_weight=cw).fit(X, noisy)
        for cw in (None, "balanced")
    )
    assert balanced.predict(X).sum() > plain.predict(X).sum()
    weighted = KernelClassifier(
        kernel=Laplacian(3.0), ridge=3.0, class_weight={0: 1.0, 1: 5.0}
    ).fit(X, noisy)
    by_hand = KernelClassifier(kernel=Laplacian(3.0), ridge=3.0).fit(
        X, noisy, np.where(noisy == 1, 5.0, 1.0)
    )
    np.testing.assert_allclose(weighted.decision_function(X), by_hand.decision_function(X))


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("solver", ["auto", "eigenpro4", "eigenpro3", "eigenpro2"])
def test_a_handful_of_rows_works(rows, solver):
    model = KernelRegressor(solver=solver, random_state=0).fit(X[:rows], y[:rows])
    assert np.isfinite(model.predict(X)).all()
    if rows > 1:
        classifier = KernelClassifier(solver=solver, random_state=0).fit(
            X[:rows], np.arange(rows) % 2
        )
        assert np.isfinite(classifier.predict_proba(X)).all()


def test_constant_columns_and_constant_targets_are_safe():
    A = np.column_stack([X, np.ones(400), np.zeros(400), np.full(400, 1e9)])
    assert KernelRegressor(random_state=0).fit(A, y).score(A, y) > 0.8
    model = KernelRegressor(random_state=0).fit(A, np.full(400, 3.0))
    np.testing.assert_allclose(model.predict(A), 3.0)
    assert np.isfinite(
        KernelRegressor(random_state=0).fit(np.ones((30, 2)), y[:30]).predict(np.ones((2, 2)))
    ).all()


def test_features_of_very_different_scale():
    A = X * np.array([1e-6, 1.0, 1e3, 1e7, 1e-2]) + np.array([0, 1e5, 0, 1e9, 3])
    plain, scaled = (
        KernelRegressor(random_state=0).fit(data[:300], y[:300]).score(data[300:], y[300:])
        for data in (X, A)
    )
    assert scaled > plain - 0.02 > 0.8


def test_auto_bandwidth_finds_the_relevant_features():
    A = np.random.default_rng(1).normal(size=(600, 6))
    target = np.sin(3 * A[:, 0])
    model = KernelRegressor(random_state=0).fit(A[:400], target[:400])
    bandwidth = np.asarray(model.model_.kernel.bandwidth)
    assert bandwidth[0] < bandwidth[1:].min() / 2
    assert model.score(A[400:], target[400:]) > 0.97


def test_more_centers_than_rows_warns():
    with pytest.warns(UserWarning, match="n_centers=1000 is more than the 400 rows to train on"):
        assert KernelRegressor(**FAST, n_centers=1000).fit(X, y).plan_.p == 400


@pytest.mark.parametrize("how", ["uniform", "balanced", "kmeans++", "farthest", "rpcholesky"])
def test_every_way_to_choose_centers(how):
    model = KernelClassifier(
        kernel=Laplacian(2.0), centers=how, n_centers=80, random_state=0, ridge=1e-3
    ).fit(X, labels)
    Z = model.model_.Z.numpy()
    assert Z.shape == (80, 5) and len(np.unique(Z, axis=0)) == 80 and model.score(X, labels) > 0.85


def test_own_centers_keep_their_order():
    Z = rng.normal(size=(50, 5))
    for solver in (Direct(), EigenPro4()):
        model = KernelRegressor(
            kernel=Laplacian(2.0), centers=Z, solver=solver, ridge=1e-3, random_state=0
        ).fit(X, y)
        np.testing.assert_array_equal(model.model_.Z.numpy(), Z)
        assert model.score(X, y) > 0.5


def test_early_stopping_keeps_the_best():
    noisy = rng.normal(size=400)
    model = KernelRegressor(**ITERATIVE, epochs=60, early_stopping=True).fit(X, noisy)
    scores = [row["validation_score"] for row in model.history_ if row["kind"] == "epoch"]
    assert model.n_iter_ < 60 and len(scores) - 1 - int(np.argmax(scores)) == 3


@dataclasses.dataclass(eq=False)
class Mine(Falkon):
    name = "mine"


def test_a_solver_that_is_not_in_the_registry_trains_predicts_and_is_cloned(tmp_path):
    for estimator, target in ((KernelRegressor, y), (KernelClassifier, labels)):
        model = estimator(kernel="laplacian", solver=Mine(), n_centers=100, random_state=0)
        said = model.fit(X, target).predict(X)
        assert model.plan_.solver == "mine" and model.score(X, target) > 0.8
        np.testing.assert_array_equal(clone(model).fit(X, target).predict(X), said)
        model.save(tmp_path / estimator.__name__)
        loaded = load(tmp_path / estimator.__name__)
        np.testing.assert_array_equal(loaded.predict(X), said)
        assert loaded.solver is None  # no code is stored
    with pytest.raises(InputError, match=r"plan of 'mine'.* give the solver object itself"):
        estimator(kernel="laplacian", solver=model.plan_).fit(X, labels)


def test_a_solver_without_a_name_of_its_own_is_refused_before_the_fit():
    class Nameless(Falkon):
        pass

    with pytest.raises(InputError, match="give the class Nameless a `name` of its own"):
        KernelRegressor(solver=Nameless(), callbacks=lambda event: 1 / 0).fit(X, y)


def test_weights_of_an_event_are_those_of_the_model():
    Z = X[rng.permutation(400)[:60]]
    for solver in (EigenPro4(), EigenPro3(), Falkon()):
        for kernel, ridge in ((Laplacian(3.0), 0.1), (Polynomial(degree=2), 10.0)):
            seen = []
            model = KernelRegressor(
                kernel=kernel, centers=Z, solver=solver, epochs=2, ridge=ridge, random_state=0
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model.set_params(callbacks=seen.append).fit(X, y)
            last = next(e.alpha for e in reversed(seen) if e.kind == "end")
            torch.testing.assert_close(last.to(model.model_.alpha), model.model_.alpha)


def test_callbacks_see_everything_and_can_stop():
    events: list[Event] = []
    KernelRegressor(**ITERATIVE, epochs=2, callbacks=events.append).fit(X, y)
    kinds = [event.kind for event in events]
    assert (
        kinds[0] == "start"
        and kinds[-1] == "end"
        and kinds.count("epoch") == 2
        and "projection" in kinds
    )
    assert events[-1].rows == events[-1].rows_total == 800
    model = KernelRegressor(**ITERATIVE, epochs=50, callbacks=[lambda event: event.epoch >= 2]).fit(
        X, y
    )
    assert model.n_iter_ == 2


def test_warm_start_goes_on():
    model = KernelRegressor(**ITERATIVE, epochs=1, warm_start=True).fit(X, y)
    first, Z = model.history_[-1]["loss"], model.model_.Z
    for _ in range(10):
        model.fit(X, y)
    assert torch.equal(model.model_.Z, Z) and model.history_[-1]["loss"] < first
    with pytest.raises(InputError, match="warm_start=True, but the fitted model has 5 features"):
        model.fit(X[:, :3], y)


def test_interrupting_keeps_the_last_good_model():
    def interrupt(event):
        if event.kind == "epoch" and event.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = KernelRegressor(**ITERATIVE, epochs=1000, callbacks=interrupt).fit(X, y)
    assert model.n_iter_ == 2 and model.score(X, y) > 0.5


def test_a_real_signal_in_the_middle_of_a_cycle():
    A, b = (
        np.random.default_rng(0).normal(size=(3000, 5)),
        np.random.default_rng(1).normal(size=3000),
    )
    timer = threading.Timer(1.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    start = time.perf_counter()
    with pytest.warns(ConvergenceWarning, match="interrupted"):
        model = KernelRegressor(**{**ITERATIVE, "n_centers": 300}, epochs=100_000).fit(A, b)
    assert time.perf_counter() - start < 30 and torch.isfinite(model.model_.alpha).all()


def test_divergence_is_caught_and_told():
    reckless = EigenPro4(m=100, T=3)
    model = KernelRegressor(
        kernel=Laplacian(2.0), solver=reckless, n_centers=300, epochs=3, random_state=0
    )
    plan = reckless.plan

    def too_large(base):
        from dataclasses import replace

        return replace(plan(base), eta=100.0, m=100, T=3)  # a stored step that is far too large

    reckless.plan = too_large
    model.fit(X, y)
    assert any(row["kind"] == "step_back" for row in model.history_)
    assert torch.isfinite(model.model_.alpha).all() and model.score(X, y) > 0


@pytest.mark.parametrize("store", ["pickle", "joblib", "folder"])
def test_models_survive_storage(store, tmp_path):
    from kernelmill import load

    model = KernelClassifier(**ITERATIVE, epochs=2).fit(
        pd.DataFrame(X, columns=list("abcde")), labels
    )
    if store == "pickle":
        copy = pickle.loads(pickle.dumps(model))
    elif store == "joblib":
        joblib.dump(model, tmp_path / "model")
        copy = joblib.load(tmp_path / "model")
    else:
        model.save(tmp_path / "model")
        copy = load(tmp_path / "model")
    frame = pd.DataFrame(X, columns=list("abcde"))
    np.testing.assert_array_equal(copy.predict_proba(frame), model.predict_proba(frame))
    np.testing.assert_array_equal(copy.predict(frame), model.predict(frame))


BAD = X.copy()
BAD[3, 1], BAD[7, 4] = np.nan, np.inf


@pytest.mark.parametrize(
    ("options", "data", "message"),
    [
        ({}, (BAD, y), r"NaN or infinity \(2 values, in columns 1, 4\)"),
        ({}, (pd.DataFrame(BAD, columns=list("abcde")), y), "infinite values in 'e'"),
        ({}, (X, y[:10]), "inconsistent numbers of samples"),
        ({}, (X[0], y), "2D array"),
        ({}, (X, np.where(y > 1, np.nan, y)), "y contains NaN"),
        ({"kernel": "laplas"}, (X, y), "kernel='laplas' is not known"),
        ({"solver": "falcon"}, (X, y), "solver='falcon' is not known"),
        ({"solver": 3}, (X, y), "solver=3 was given"),
        ({"centers": "middle"}, (X, y), "centers='middle' is not known"),
        ({"centers": np.ones((3, 4))}, (X, y), r"centers of shape \(3, 4\)"),
        (
            {"centers": X[:10], "n_centers": 5},
            (X, y),
            "n_centers=5 was given together with 10 rows",
        ),
        ({"n_centers": 0}, (X, y), "n_centers=0"),
        ({"n_centers": 2.5}, (X, y), "n_centers=2.5"),
        ({"epochs": 0}, (X, y), "epochs=0"),
        ({"ridge": -1}, (X, y), "ridge=-1"),
        ({"ridge": float("nan")}, (X, y), "ridge=nan"),
        ({"device": "gpu7"}, (X, y), "device='gpu7'"),
        ({"precision": "float4"}, (X, y), "precision='float4'"),
        ({"memory_budget": "lots"}, (X, y), "memory_budget='lots'"),
        ({"memory_budget": -5}, (X, y), "memory_budget=-5"),
        ({"validation_fraction": 1.5}, (X, y), "validation_fraction=1.5"),
        ({"early_stopping": "no"}, (X, y), "early_stopping='no'"),
        ({"early_stopping": True}, (X[:3], y[:3]), "too few"),
        ({"callbacks": 3}, (X, y), "callbacks=3"),
        ({}, (X * 1e200, y), "squares overflow"),
        ({"kernel": Laplacian(2.0), "solver": EigenPro4(T=0)}, (X, y), "T=0 was given"),
        ({"kernel": Laplacian(2.0), "solver": EigenPro4(m=2.5)}, (X, y), "m=2.5 was given"),
        ({"kernel": Laplacian(2.0), "solver": EigenPro4(s="a")}, (X, y), "s='a' was given"),
        ({"kernel": Laplacian(2.0), "solver": EigenPro4(recipe="foo")}, (X, y), "recipe='foo'"),
        ({"early_stopping": True, "validation_fraction": 0.0}, (X, y), "early_stopping=True needs"),
        ({"kernel": Laplacian(-2.0)}, (X, y), "greater than 0"),
        (
            {"kernel": Laplacian(2.0), "solver": EigenPro4(s=10, q=10)},
            (X, y),
            "q=10 was given with s=10",
        ),
        (
            {"kernel": Laplacian(2.0), "solver": EigenPro4(projection="qr")},
            (X, y),
            "projection='qr'",
        ),
        ({"solver": "eigenpro2", "n_centers": 50}, (X, y), "makes every row a center"),
        ({"solver": "eigenpro4_exact", "ridge": 1.0, "n_centers": 50}, (X, y), "has none"),
        ({"solver": EigenPro4.paper(), "ridge": 1.0, "kernel": Laplacian(1.0)}, (X, y), "paper"),
        (
            {"solver": "direct", "memory_budget": "1MB", "kernel": Laplacian(2.0), "ridge": 1.0},
            (X, y),
            "GiB",
        ),
    ],
)
def test_bad_input_is_answered_in_one_sentence(options, data, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((ValueError, TypeError), match=message) as caught:
            KernelRegressor(**options).fit(*data)
    assert len(str(caught.value)) < 400


def test_predict_with_other_columns():
    model = KernelRegressor(**FAST).fit(X, y)
    with pytest.raises(ValueError, match="3 features, but KernelRegressor is expecting 5"):
        model.predict(X[:, :3])


def test_sample_weight_errors():
    with pytest.raises(InputError, match=r"sample_weight of shape \(3,\)"):
        KernelRegressor(**FAST).fit(X, y, [1, 2, 3])
    for bad in (-np.ones(400), -1.0, 0.0, float("nan")):
        with pytest.raises(InputError, match="not negative"):
            KernelRegressor(**FAST).fit(X, y, bad)
    for bad in ({"high": 0, "low": 0}, {"high": -1, "low": 2}):
        with pytest.raises(InputError, match="class_weight"):
            KernelClassifier(**FAST, class_weight=bad).fit(X, labels)


def test_memory_budget_changes_the_plan():
    options = {
        "kernel": Laplacian(2.0),
        "solver": EigenPro4(),
        "n_centers": 400,
        "epochs": 1,
        "random_state": 0,
    }
    roomy = KernelRegressor(**options, memory_budget="2GB").fit(X, y)
    with pytest.warns(UserWarning, match="more than the 1 MiB it may"):
        tight = KernelRegressor(**options, memory_budget="1MB").fit(X, y)
    assert tight.plan_.tile_bytes < roomy.plan_.tile_bytes and tight.plan_.fresh < roomy.plan_.fresh
    assert roomy.plan_.projection == "cholesky" and roomy.plan_.keep_block
    assert tight.plan_.projection == "carried" and not tight.plan_.keep_block
    assert tight.score(X, y) > 0.8 * roomy.score(X, y) > 0.2


def test_own_centers_as_many_as_rows_are_not_the_rows():
    """Z of n rows is not X: neither in another order nor other rows.

    Direct must not take one for the other.
    """
    for Z in (X[::-1].copy(), rng.normal(size=X.shape)):
        assert (
            KernelRegressor(kernel=Laplacian(3.0), solver="direct", centers=Z, ridge=1e-3)
            .fit(X, y)
            .score(X, y)
            > 0.9
        )
    with pytest.raises(InputError, match="makes every row a center"):
        KernelRegressor(kernel=Laplacian(3.0), solver="eigenpro2", centers=X).fit(X, y)


@pytest.mark.parametrize("solver", ["direct", "eigenpro3", "eigenpro4"])
def test_warm_start_on_new_rows(solver):
    options = {"kernel": Laplacian(3.0), "ridge": 1e-3, "random_state": 0, "solver": solver}
    model = KernelRegressor(**options, warm_start=True, n_centers=150, epochs=3).fit(
        X[:200], y[:200]
    )
    model.fit(X[200:], y[200:])
    assert model.score(X[200:], y[200:]) > 0.8 and model.ridge_ == pytest.approx(1e-3)
    with pytest.raises(InputError, match="n_centers changed since the last fit"):
        model.set_params(n_centers=20).fit(X, y)


def test_none_and_auto_leave_every_choice_to_the_plan():
    names = [
        "kernel",
        "n_centers",
        "solver",
        "epochs",
        "ridge",
        "centers",
        "device",
        "precision",
        "memory_budget",
    ]
    expected = KernelRegressor(random_state=0).fit(X[:60], y[:60]).predict(X)
    for value in (None, "auto"):
        model = KernelRegressor(random_state=0, **dict.fromkeys(names, value)).fit(X[:60], y[:60])
        np.testing.assert_allclose(model.predict(X), expected, rtol=1e-9)


def test_the_scale_of_weights_does_not_matter_without_a_ridge_of_ones_own():
    a, b = (
        KernelRegressor(random_state=0).fit(X[:100], y[:100], np.full(100, weight))
        for weight in (1.0, 1e-15)
    )
    np.testing.assert_allclose(a.predict(X), b.predict(X), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kernel", ["linear", "polynomial", Gaussian(50.0)], ids=str)
@pytest.mark.parametrize("solver", ["eigenpro2", "eigenpro3", "eigenpro4"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_kernels_of_low_rank_learn_too(kernel, solver, precision):
    target = X @ np.array([1.0, -2.0, 0.5, 0.0, 1.0])
    model = KernelRegressor(
        kernel=kernel, solver=solver, epochs=20, random_state=0, ridge=1e-6, precision=precision
    ).fit(X, target)
    # EigenPro 3 takes hundreds of steps an epoch, each with its own rounding, on what a rank of
    # five leaves of k: it learns less.
    assert model.score(X, target) > (0.4 if solver == "eigenpro3" else 0.7)


def test_frames_with_repeated_names_and_half_precision_targets():
    KernelRegressor(**FAST).fit(pd.DataFrame(X[:, :2], columns=["a", "a"]).to_numpy(), y)
    with pytest.raises(ValueError, match="has two columns called"):
        KernelRegressor(**FAST).fit(pd.DataFrame([["x", "y"]] * 400, columns=["a", "a"]), y)
    KernelRegressor(**FAST).fit(torch.from_numpy(X), torch.from_numpy(y).bfloat16())


def small():
    X = np.random.default_rng(0).normal(size=(600, 4))
    return X, np.sin(X[:, 0]) + X[:, 1] ** 2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_trains_and_is_kept_with_the_model(precision, tmp_path):
    X, y = small()
    model = KernelRegressor(**ITERATIVE, precision=precision).fit(X, y)
    exact = KernelRegressor(**ITERATIVE, precision="float64").fit(X, y)
    assert model.plan_.precision == model.model_.precision == precision
    lost = 0.05 if precision == "float8" else 0.01  # four features do not average 3 % of each
    assert model.score(X, y) == pytest.approx(exact.score(X, y), abs=lost)
    model.save(tmp_path / "model")
    back = load(tmp_path / "model")
    assert back.model_.precision == precision
    np.testing.assert_array_equal(back.predict(X), model.predict(X))


def test_a_precision_that_does_not_exist_is_said_before_anything_slow(monkeypatch):
    monkeypatch.setattr(search, "tune", lambda *args: pytest.fail("tuned first"))
    with pytest.raises(ValueError, match=r"precision='half'.*float16"):
        KernelRegressor(precision="half").fit(*small())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_values_are_found_in_every_precision(dtype, bad):
    X, y = small()
    X = X.astype(dtype)
    X[17, 2] = bad
    with pytest.raises(ValueError, match="1 values, in columns 2"):
        KernelRegressor().fit(X, y)


def test_labels_of_a_narrow_type_are_told_apart():
    X = np.random.default_rng(0).normal(size=(300, 3))
    for y in (
        np.where(X[:, 0] > 0, 127, -128).astype(np.int8),
        np.where(X[:, 0] > 0, 255, 0).astype(np.uint8),
        X[:, 0] > 0,
    ):
        model = KernelClassifier(kernel=Laplacian(2.0), ridge=0.1).fit(X, y)
        assert model.classes_.dtype == y.dtype and (model.predict(X) == y).mean() > 0.95


def test_a_kernel_function_is_as_good_on_float32_as_on_float64():
    X, y = small()
    function = lambda a, b: torch.exp(-torch.cdist(a, b) / 2)  # noqa: E731
    settings = {
        "kernel": function,
        "solver": EigenPro4(),
        "n_centers": 100,
        "epochs": 3,
        "random_state": 0,
    }
    scores = [
        KernelRegressor(**settings).fit(X.astype(dtype), y).score(X, y)
        for dtype in (np.float32, np.float64)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.01)


def test_pickling_after_a_prediction():
    X, y = small()
    model = KernelRegressor(**ITERATIVE).fit(X, y)
    expected = model.predict(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), expected)


def test_rows_of_weight_zero_do_not_touch_the_calibration():
    X = np.random.default_rng(0).normal(size=(12_000, 3))
    y = (X[:, 0] + np.random.default_rng(1).normal(size=12_000) > 0).astype(int)
    w = np.ones(12_000)
    w[::10] = 0
    settings = {
        "kernel": Laplacian(2.0),
        "n_centers": 200,
        "solver": EigenPro4(),
        "validation_fraction": 0.0,
        "random_state": 0,
    }
    weighted, left_out = (
        KernelClassifier(**settings).fit(X, y, w),
        KernelClassifier(**settings).fit(X[w > 0], y[w > 0]),
    )
    assert weighted.slope_ == pytest.approx(left_out.slope_, rel=0.2)


def test_a_module_cast_too_far_says_so():
    model = KernelRegressor(**ITERATIVE).fit(*small()).model_.half()
    with pytest.raises(InputError, match=r"cast to torch\.float16"):
        model(torch.zeros(2, 4))


def test_tensors_are_scored_as_arrays_are():
    X = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    for model, y in (
        (KernelRegressor(random_state=0), X[:, 0]),
        (KernelClassifier(random_state=0), (X[:, 0] > 0.5).long()),
    ):
        model.fit(X, y)
        assert model.score(X, y) == model.score(X.numpy(), y.numpy()) > 0.9
        assert model.score(X.bfloat16(), y) > 0.9


def test_a_model_is_saved_through_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    model = KernelRegressor(n_centers=5, random_state=0).fit(
        np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0)
    )
    for _ in range(2):
        model.save(tmp_path / "link")
    assert load(tmp_path / "link").model_.n_centers == 5 and (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path, kind):
    """As GridSearchCV over np.arange gives them: models and runs are stored as JSON."""
    g = np.random.default_rng(0)
    X = g.normal(size=(200, 3))
    settings = {"n_centers": kind(50), "epochs": kind(2), "solver": "eigenpro4", "random_state": 0}
    model = KernelRegressor(**settings, checkpoint=tmp_path / "run", checkpoint_every=0)
    model.fit(X, X[:, 0]).save(tmp_path / "m")
    assert load(tmp_path / "m").plan_.p == 50 and type(model.plan_.epochs) is int


@pytest.mark.slow
def test_a_resumed_run_that_does_not_fit_this_machine_is_warned_about(tmp_path):
    g = np.random.default_rng(0)
    X = g.normal(size=(3000, 3))
    settings = {"n_centers": 1000, "epochs": 2, "solver": "eigenpro4", "random_state": 0}
    stop = lambda event: event.kind == "epoch"  # noqa: E731
    run = {"checkpoint": tmp_path / "run", "checkpoint_every": 0}
    KernelRegressor(**settings, **run, callbacks=stop).fit(X, X[:, 0])
    again = KernelRegressor(**settings, **run, resume=True, memory_budget="2MB")
    with pytest.warns(UserWarning, match="more than the 2 MiB it may"):
        again.fit(X, X[:, 0])


def test_a_plan_of_a_gpu_that_is_not_here_does_not_keep_chunks_from_being_learned():
    g = np.random.default_rng(0)
    X = g.normal(size=(300, 3))
    model = KernelRegressor(n_centers=50, random_state=0).fit(X, X[:, 0])
    model.set_params(solver=dataclasses.replace(model.plan_, device="cuda:7"))
    assert model.partial_fit(X, X[:, 0]).score(X, X[:, 0]) > 0.5
