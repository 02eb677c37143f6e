"""Probabilities and scores: calibration against the class frequencies, scores against
scikit-learn's, and decisions that follow them.
"""

import time

import numpy as np
import pytest
import torch
from sklearn import metrics
from sklearn.datasets import make_classification
from sklearn.isotonic import IsotonicRegression

from kernelmill import KernelClassifier, KernelRegressor, kernels, load
from kernelmill.calibration import calibrate, quick_calibration, quick_log_loss
from kernelmill.errors import CheckpointError, InputError
from kernelmill.estimators.evaluation import evaluate
from kernelmill.scoring import ALIASES, CLASSES, NUMBERS, decision_bias, score
from kernelmill.solvers import EigenPro4, Falkon


def one_hot(codes, c):
    return torch.nn.functional.one_hot(torch.as_tensor(codes), c).double()


def log_loss(found, values, targets, w):
    logs = torch.log_softmax(found.logits(values), 1)
    return -(w[:, None] * targets * logs).sum().item() / w.sum().item()


def entropy(targets, w):
    share = (w[:, None] * targets).sum(0) / w.sum()
    return -share.xlogy(share).sum().item()


def noise(n, shares, seed, scale):
    """Values that say nothing, labels of these shares, uneven weights; the last class has three
    rows where its share is 0.
    """
    g = np.random.default_rng(seed)
    c = len(shares)
    codes = g.choice(c, size=n, p=shares)
    if shares[-1] == 0:
        codes[:3] = c - 1
    values = torch.from_numpy(scale * g.normal(size=(n, c)) + np.asarray(shares))
    return values, one_hot(codes, c), torch.from_numpy(g.exponential(size=n))


def estimates(n, c, seed=0, error=0.1):
    """Values that are probabilities with an error, and labels drawn from them."""
    g = np.random.default_rng(seed)
    P = g.dirichlet(np.full(c, 0.3), size=n)
    codes = (P.cumsum(1) > g.random((n, 1))).argmax(1)
    return torch.from_numpy(P + error * g.normal(size=P.shape)), codes


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.97, 0.03), (0.4, 0.3, 0.2, 0.1, 0.0)])
@pytest.mark.parametrize("scale", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("n", [12, 300])
def test_calibrated_noise_is_never_worse_than_the_class_frequencies(shares, scale, n):
    for seed in range(3):
        values, targets, w = noise(n, shares, seed, scale)
        found = calibrate(values, targets, w, (w[:, None] * targets).sum(0))
        assert log_loss(found, values, targets, w) <= entropy(targets, w) + 1e-6
        if n == 300:  # and nearly the frequencies for rows that were not seen
            other, truth, v = noise(4000, shares, seed + 100, scale)
            assert log_loss(found, other, truth, v) < entropy(truth, v) + 0.08


@pytest.mark.parametrize("c", [2, 3, 7])
def test_equal_shares_are_equal_however_their_sums_are_rounded(c):
    values, codes = estimates(300, c)
    targets = one_hot(codes, c)
    w = (1 / targets.sum(0))[codes]
    equal = torch.full((c,), 1 / c, dtype=torch.float64)
    found = calibrate(values, targets, w, equal)
    chances = torch.softmax(found.logits(values), 1)
    assert torch.allclose((w[:, None] * chances).sum(0), (w[:, None] * targets).sum(0), atol=0.05)
    for k in range(c):
        shares = equal.clone()
        shares[k] *= 1 + 4e-16
        other = torch.softmax(calibrate(values, targets, w, shares).logits(values), 1)
        assert torch.allclose(other, chances, rtol=0, atol=1e-6)


def test_values_that_point_the_wrong_way_leave_the_class_frequencies():
    values, codes = estimates(1000, 3)
    targets, w = one_hot(codes, 3), torch.ones(1000, dtype=torch.float64)
    found = calibrate(-values, targets, w, targets.sum(0))
    assert found.slope == found.log_slope == 0
    P = torch.softmax(found.logits(values), 1)
    torch.testing.assert_close(P, targets.mean(0).expand_as(P), rtol=0, atol=1e-3)


def test_classes_without_an_error_are_not_certain():
    for n in (100, 2000):
        codes = torch.arange(n) % 4
        targets, w = one_hot(codes, 4), torch.ones(n, dtype=torch.float64)
        found = calibrate(targets * 1.0, targets, w, targets.sum(0))
        sure = torch.softmax(found.logits(targets), 1).max(1).values
        assert (1 - sure.mean()).item() == pytest.approx(0.5 * 0.75 / n, rel=0.1)


def test_calibration_of_a_thousand_rows_is_as_good_as_isotonic_regression_of_many():
    rng = np.random.default_rng(0)
    truth = rng.beta(0.4, 3.0, size=200_000)
    y = (rng.random(len(truth)) < truth).astype(int)
    p = truth + 0.05 * rng.normal(size=len(truth))
    values, some = torch.from_numpy(np.stack([1 - p, p], 1)), slice(0, 1000)
    targets, w = one_hot(y, 2), torch.ones(len(y), dtype=torch.float64)
    found = calibrate(values[some], targets[some], w[some], targets.sum(0))
    best = IsotonicRegression(out_of_bounds="clip", y_min=1e-4, y_max=1 - 1e-4).fit(p, y)
    limit = metrics.log_loss(y, best.predict(p))
    assert log_loss(found, values, targets, w) < 1.01 * limit


def test_calibration_is_fast():
    values, codes = estimates(2000, 10)
    targets, w = one_hot(codes, 10), torch.ones(2000, dtype=torch.float64)
    seconds = {calibrate: [], quick_log_loss: []}
    for _ in range(5):
        began = time.perf_counter()
        calibrate(values, targets, w, targets.sum(0))
        middle = time.perf_counter()
        quick_log_loss(values, targets, w)
        seconds[calibrate].append(middle - began)
        seconds[quick_log_loss].append(time.perf_counter() - middle)
    # 0.03 and 0.003 where nothing else runs.
    assert min(seconds[calibrate]) < 0.3 and min(seconds[quick_log_loss]) < 0.03


@pytest.mark.parametrize("c", [2, 5])
def test_the_quick_log_loss_ranks_as_calibration_does(c):
    quick, whole = [], []
    for error in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8):
        values, codes = estimates(1500, c, seed=1, error=error)
        for made in (values, 5 * values - 2):  # probabilities, and what is not
            targets, w = one_hot(codes, c), torch.ones(1500, dtype=torch.float64)
            found = calibrate(made, targets, w, targets.sum(0))
            quick.append(quick_log_loss(made, targets, w))
            whole.append(log_loss(found, made, targets, w))
    quick, whole = np.array(quick), np.array(whole)
    np.testing.assert_allclose(quick, whole, rtol=0.08, atol=0.01)
    apart = whole[:, None] > 1.05 * whole
    assert ((quick[:, None] > quick) | ~apart).all()
    values, targets, w = noise(500, (0.9, 0.1), 0, 1.0)
    assert quick_log_loss(values, targets, w) <= entropy(targets, w) + 1e-9


# ---- scores by name


def rows(c, n=400, seed=0):
    values, codes = estimates(n, c, seed)
    w = np.random.default_rng(seed).exponential(size=n)
    return values, codes, w


@pytest.mark.parametrize("c", [2, 4])
def test_scores_are_those_of_scikit_learn(c):
    values, codes, w = rows(c)
    values[::3] = values[::3].round(decimals=1)  # ties
    W = torch.from_numpy(w)

    def found(name, values=values):
        a, b = (
            score(name, values, given, W) for given in (torch.from_numpy(codes), one_hot(codes, c))
        )
        assert a == b
        return a

    plain = values.argmax(1).numpy()
    assert found("accuracy") == pytest.approx(metrics.accuracy_score(codes, plain, sample_weight=w))
    P = torch.softmax(values, 1)
    given = {"sample_weight": w}
    if c == 2:
        wanted = metrics.roc_auc_score(codes, P[:, 1] - P[:, 0], **given)
    else:
        wanted = metrics.roc_auc_score(codes, P, multi_class="ovr", **given)
    assert found("roc_auc", P) == pytest.approx(wanted)
    # The best threshold is at least as good as none.
    assert (
        found("balanced_accuracy") >= metrics.balanced_accuracy_score(codes, plain, **given) - 1e-3
    )
    average = "binary" if c == 2 else "macro"
    assert found("f1") >= metrics.f1_score(codes, plain, average=average, **given) - 1e-3
    fitted = calibrate(values, one_hot(codes, c), W, (W[:, None] * one_hot(codes, c)).sum(0))
    assert found("log_loss") == pytest.approx(
        -log_loss(fitted, values, one_hot(codes, c), W), rel=0.05
    )


def test_scores_of_numbers_are_those_of_scikit_learn():
    g = np.random.default_rng(0)
    y, f, w = g.normal(size=(300, 2)), g.normal(size=(300, 2)), g.exponential(size=300)
    wanted = {
        "r2": metrics.r2_score,
        "rmse": lambda *a, **b: -metrics.root_mean_squared_error(*a, **b),
        "squared_error": lambda *a, **b: -metrics.mean_squared_error(*a, **b),
        "absolute_error": lambda *a, **b: -metrics.mean_absolute_error(*a, **b),
    }
    assert set(wanted) == set(NUMBERS)
    for name, function in wanted.items():
        found = score(name, torch.from_numpy(f), torch.from_numpy(y), torch.from_numpy(w))
        assert found == pytest.approx(function(y, f, sample_weight=w))


def test_every_score_is_better_for_better_values():
    for c in (2, 5):
        good, codes = estimates(1000, c, error=0.03)
        bad = good + 0.5 * torch.randn(good.shape, generator=torch.Generator().manual_seed(0))
        w, codes = torch.ones(1000), torch.from_numpy(codes)
        for name in CLASSES:
            assert score(name, good, codes, w) > score(name, bad, codes, w), name
    y = torch.randn(200, 1, generator=torch.Generator().manual_seed(1))
    for name in NUMBERS:
        assert score(name, y + 0.01, y, w[:200]) > score(name, y + 0.5, y, w[:200])


def test_a_class_that_is_not_there_does_not_spoil_a_score():
    values, codes = estimates(200, 3)
    codes = torch.from_numpy(np.where(codes == 2, 1, codes))
    for name in CLASSES:
        assert np.isfinite(score(name, values, codes, torch.ones(200)))
        assert np.isfinite(score(name, values, torch.zeros(200, dtype=torch.long), torch.ones(200)))


def test_thresholds_are_those_of_theory():
    """The class whose probability is largest against its share has the best balanced accuracy;
    F1 is best where the odds are above F1/2.
    """
    values, codes = estimates(20_000, 3, error=0.0)
    values = values * torch.tensor([1.0, 0.3, 0.1])
    values = values / values.sum(1, keepdim=True)
    codes = values.cumsum(1) > torch.rand(20_000, 1, generator=torch.Generator().manual_seed(0))
    targets, w = one_hot(codes.int().argmax(1), 3), torch.ones(20_000, dtype=torch.float64)
    logs = values.clamp(min=1e-9).log()
    bias = decision_bias("balanced_accuracy", logs, targets, w)
    wanted = -targets.mean(0).log()
    torch.testing.assert_close(bias - bias[0], wanted - wanted[0], rtol=0.1, atol=0.1)
    two = torch.stack([1 - values[:, 2], values[:, 2]], 1)
    labels = torch.stack([1 - targets[:, 2], targets[:, 2]], 1)
    bias = decision_bias("f1", two.clamp(min=1e-9).log(), labels, w)
    threshold = torch.sigmoid(bias[0] - bias[1]).item()
    best = metrics.f1_score(labels[:, 1], two[:, 1] > threshold)
    assert threshold == pytest.approx(best / 2, abs=0.04)
    for name in (None, "accuracy", "log_loss", "roc_auc"):
        assert not decision_bias(name, logs, targets, w).any()


# ---- in the estimators


def uneven(n=1600, classes=2):
    share = [0.9, 0.1] if classes == 2 else [0.8, 0.15, 0.05]
    return make_classification(
        n,
        n_features=6,
        n_informative=4,
        n_redundant=0,
        n_classes=classes,
        weights=share,
        flip_y=0.05,
        class_sep=0.7,
        random_state=0,
    )


QUICK = {"kernel": kernels.Laplacian(4.0), "ridge": 1.0, "random_state": 0}


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("held", [0.0, 0.3])
@pytest.mark.parametrize("name", ["balanced_accuracy", "f1"])
def test_predict_decides_for_the_score(classes, held, name, tmp_path):
    X, y = uneven(classes=classes)
    settings = {**QUICK, "validation_fraction": held}
    train, test = slice(0, 1000), slice(1000, None)
    plain = KernelClassifier(**settings).fit(X[train], y[train])
    model = KernelClassifier(scoring=name, **settings).fit(X[train], y[train])
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(X), rtol=1e-12)
    if name == "f1":
        average = "binary" if classes == 2 else "macro"

        def measure(model):
            return metrics.f1_score(y[test], model.predict(X[test]), average=average)
    else:

        def measure(model):
            return metrics.balanced_accuracy_score(y[test], model.predict(X[test]))

    # The mean F1 of three classes has little to gain.
    assert measure(model) > measure(plain) + (0.02 if (classes, name) != (3, "f1") else 0.0)
    values = model.decision_function(X)
    codes = (values > 0).astype(int) if classes == 2 else values.argmax(1)
    np.testing.assert_array_equal(model.classes_[codes], model.predict(X))
    found = evaluate(model, X, y)
    assert found.metrics["accuracy"] == pytest.approx(model.score(X, y))
    np.testing.assert_array_equal(found.confusion, metrics.confusion_matrix(y, model.predict(X)))
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.scoring == name


@pytest.mark.parametrize("held", [0.0, 0.3])
def test_a_logistic_model_decides_for_the_score(held):
    X, y = uneven()
    settings = {**QUICK, "solver": Falkon(loss="logistic"), "validation_fraction": held}
    model = KernelClassifier(scoring="balanced_accuracy", **settings).fit(X[:1000], y[:1000])
    decided = metrics.balanced_accuracy_score(y[1000:], model.predict(X[1000:]))
    likeliest = model.predict_proba(X[1000:]).argmax(1)
    assert decided > metrics.balanced_accuracy_score(y[1000:], likeliest) + 0.02


def test_onnx_decides_alike(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    X, y = uneven()
    model = KernelClassifier(scoring="f1", **QUICK).fit(X[:600], y[:600])
    assert model.decision_bias_.any()
    model.to_onnx(tmp_path / "m.onnx")
    label, P = runtime.InferenceSession(tmp_path / "m.onnx").run(None, {"X": X})
    np.testing.assert_array_equal(label, model.predict(X))
    np.testing.assert_allclose(P, model.predict_proba(X), atol=1e-6)


def test_chunks_keep_decisions():
    X, y = uneven(3000)
    model = KernelClassifier(scoring="balanced_accuracy", **QUICK)
    for start in range(0, 2400, 600):
        rows = slice(start, start + 600)
        model.partial_fit(X[rows], y[rows], classes=[0, 1])
    found = metrics.balanced_accuracy_score(y[2400:], model.predict(X[2400:]))
    likeliest = metrics.balanced_accuracy_score(y[2400:], model.predict_proba(X[2400:]).argmax(1))
    assert found > likeliest + 0.05


@pytest.mark.parametrize("name", [None, *CLASSES])
def test_history_and_early_stopping_follow_the_score_of_classes(name):
    X, y = uneven()
    model = KernelClassifier(
        kernel=kernels.Laplacian(1.0),
        solver=EigenPro4(),
        n_centers=400,
        epochs=6,
        validation_fraction=0.3,
        early_stopping=True,
        scoring=name,
        random_state=0,
    ).fit(X, y)
    scores = [row["validation_score"] for row in model.history_ if "validation_score" in row]
    out = model._hold_out(len(X), 0.0, None, y)
    said, P = model.predict(X[out]), model.predict_proba(X[out])
    found = {
        "balanced_accuracy": lambda: metrics.balanced_accuracy_score(y[out], said),
        "f1": lambda: metrics.f1_score(y[out], said),
        "log_loss": lambda: -metrics.log_loss(y[out], P),
        "roc_auc": lambda: metrics.roc_auc_score(y[out], P[:, 1]),
    }.get(name, lambda: model.score(X[out], y[out]))
    assert found() == pytest.approx(max(scores), abs=1e-5)


@pytest.mark.parametrize("name", [None, *NUMBERS])
def test_history_follows_the_score_of_numbers(name):
    X, _ = uneven(600)
    y = np.stack([X[:, 0], 3 * X[:, 1] ** 2], 1)
    model = KernelRegressor(**QUICK, validation_fraction=0.3, scoring=name).fit(X, y)
    out = model._hold_out(len(X), 0.0, None)
    found = model.history_[-1]["validation_score"]
    values = torch.from_numpy(model.predict(X[out]))
    wanted = score(name or "r2", values, torch.from_numpy(y[out]), torch.ones(len(out)))
    assert found == pytest.approx(wanted, rel=1e-5)


def test_spellings_of_scikit_learn_are_the_same():
    X, y = uneven(200)
    for alias, name in ALIASES.items():
        estimator = KernelClassifier if name in CLASSES else KernelRegressor
        assert estimator(scoring=alias, **QUICK).fit(X, y)._scoring() == name


def test_an_unknown_score_is_refused_with_the_choices():
    X, y = uneven(50)
    with pytest.raises(
        InputError, match=r"scoring='auc' is not known: expected one of .*'roc_auc'"
    ):
        KernelClassifier(scoring="auc").fit(X, y)
    with pytest.raises(InputError, match=r"scoring='f1' is not known: expected one of .*'rmse'"):
        KernelRegressor(scoring="f1").fit(X, y)
    with pytest.raises(InputError, match="scoring=3 is not known"):
        KernelRegressor(scoring=3).fit(X, y)


def test_a_run_is_resumed_with_its_own_score(tmp_path):
    X, y = uneven(600)
    settings = {
        "kernel": kernels.Laplacian(4.0),
        "solver": EigenPro4(),
        "n_centers": 100,
        "checkpoint": tmp_path / "run",
        "random_state": 0,
    }
    first = KernelClassifier(scoring="f1", epochs=2, **settings).fit(X, y)
    with pytest.raises(CheckpointError, match="scoring = \"'f1'\", this one has \"'roc_auc'\""):
        KernelClassifier(scoring="roc_auc", epochs=2, resume=True, **settings).fit(X, y)
    with pytest.raises(CheckpointError, match="scoring = \"'f1'\", this one has 'None'"):
        KernelClassifier(epochs=2, resume=True, **settings).fit(X, y)
    again = KernelClassifier(scoring="f1", epochs=2, resume=True, **settings).fit(X, y)
    np.testing.assert_array_equal(again.predict(X), first.predict(X))


def test_calibrations_of_many_classes_look_at_some_rows():
    """A thousand classes: the slopes of 1,000 rows are near those of all of them."""
    g = torch.Generator().manual_seed(0)
    n, c = 3000, 400
    codes = torch.randint(c, (n,), generator=g)
    values = 0.3 * torch.randn(n, c, generator=g, dtype=torch.float64)
    values[torch.arange(n), codes] += 1.0
    targets, w = torch.nn.functional.one_hot(codes, c).double(), torch.ones(n).double()
    found, loss = quick_calibration(values, targets, w)
    logs = torch.log_softmax(found.logits(values), 1)
    true = -logs[torch.arange(n), codes].mean().item()
    assert abs(loss - true) < 0.05 * true and found.slope > 0
    whole = calibrate(values, targets, w, torch.full((c,), 1 / c))
    again = -torch.log_softmax(whole.logits(values), 1)[torch.arange(n), codes].mean().item()
    assert again < 1.05 * true
