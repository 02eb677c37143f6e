"""Recipes: what competes to be the kernel, how it is judged, and that the best one is taken."""

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, load
from kernelmill.kernels import Gaussian, Laplacian, Matern, Sum, encode_columns
from kernelmill.ridge import RESIDUAL, by_factor, conjugate, solve_ridge
from kernelmill.tuning.judge import FOLDS, EachRow, Judge, Verdict
from kernelmill.tuning.metric import Gradients, stretch
from kernelmill.tuning.recipes import Contest, Ways, choose_recipe
from kernelmill.tuning.sample import Effort, Sample

torch.manual_seed(0)
X = torch.randn(240, 5, dtype=torch.float64)
X[:, 2] = torch.randint(0, 6, (240,)).double()
W = torch.rand(240, dtype=torch.float64) + 0.5
Y = torch.stack([torch.sin(2 * X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]], 1)
SAMPLE = Sample(X, Y - Y.mean(0), W, 1.0)
EFFORT = Effort.on(X.device, 1 << 30)


# ---- judging


@pytest.mark.parametrize("ridge", [1.0, 1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize("kernel", [Laplacian(3.0), Gaussian(3.0)])
def test_a_factor_of_few_digits_solves_as_one_of_many(kernel, ridge):
    """Where it has too few, the other one does."""
    K, diagonal = kernel(X), ridge / W
    want = torch.linalg.solve(K + torch.diag(diagonal), Y)
    got = solve_ridge(K, diagonal, Y)
    scale = want.abs().max()
    torch.testing.assert_close(got / scale, want / scale, rtol=0, atol=1e-5)
    assert (K @ got + diagonal[:, None] * got - Y).norm() < 1e-7 * Y.norm()
    A = K + torch.diag(diagonal)
    L, failed = torch.linalg.cholesky_ex(A.float())
    left = 1.0 if failed.item() else conjugate(lambda v: A @ v, by_factor(L), Y)[1]
    assert (left <= RESIDUAL) == (ridge > 1e-9 or isinstance(kernel, Laplacian))


def test_rows_without_weight_are_solved_beside_others():
    w = W.clone()
    w[:20] = 0
    got = solve_ridge(Laplacian(3.0)(X), 0.1 / w, Y)
    want = solve_ridge(Laplacian(3.0)(X[20:]), 0.1 / w[20:], Y[20:])
    torch.testing.assert_close(got[20:], want, rtol=1e-6, atol=1e-6)
    assert (got[:20] == 0).all()


def test_kernel_values_in_float32_give_an_answer_of_their_digits():
    K, diagonal = Laplacian(3.0)(X), 0.05 / W
    got = solve_ridge(K.float(), diagonal.float(), Y.float())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), solve_ridge(K, diagonal, Y), rtol=1e-4, atol=1e-4)


def test_no_solution_of_a_matrix_that_is_not_positive():
    assert solve_ridge(-torch.eye(3).double(), torch.zeros(3).double(), torch.ones(3, 1)) is None


def ridges_tried(scores, start=1.0, **more):
    """The steps of the ridge that are tried where these are the scores of steps."""
    judge, tried = Judge(SAMPLE, 240), []

    def one(grams, ridge):
        step = round(np.log(ridge / start) / np.log(3))
        tried.append(step)
        return Verdict(scores.get(step, 9.0), 0.0, ridge, Y)

    judge._try = one
    best = judge.verdict([], None, start, **more)
    return tried, round(np.log(best.ridge / start) / np.log(3))


def test_ridges_are_tried_downhill_and_no_further_on_a_plain():
    assert ridges_tried({0: 1.0, 1: 1.1, -1: 1.2}) == ([0, 1, -1], 0)
    assert ridges_tried({0: 1.0, 1: 0.9, 2: 0.8, 3: 0.9}) == ([0, 1, 2, 3], 2)
    assert ridges_tried({0: 1.0, 1: 1.1, -1: 0.9, -2: 0.8, -3: 0.85}) == ([0, 1, -1, -2, -3], -2)
    assert ridges_tried({0: 1.0, 1: 0.9995, 2: 0.1}) == ([0, 1], 1)
    assert ridges_tried({0: 1.0, 1: 0.5}, hopeless=0.9) == ([0], 0)


# ---- sums of kernels


def a_sum():
    features = encode_columns(X, "codes")
    coded = Gaussian(2.0, features=features)
    parts = [Laplacian(torch.linspace(1, 2, 5).double()), coded, Matern(1.5)]
    return Sum(parts, [0.2, 0.3, 0.5])


def test_a_sum_is_the_sum_of_its_parts():
    kernel = a_sum()
    want = sum(w * part(X, X[:50]) for w, part in zip(kernel.weights, kernel.parts, strict=True))
    torch.testing.assert_close(kernel(X, X[:50]), want)
    alike = Sum(kernel.parts)(X)
    torch.testing.assert_close(alike, sum(part(X) for part in kernel.parts) / 3)
    torch.testing.assert_close(alike.diagonal(), torch.ones(240).double())
    assert kernel.width(5) == sum(part.width(5) for part in kernel.parts)


@pytest.mark.parametrize("solver", ["direct", "falkon", "eigenpro2", "eigenpro4"])
def test_every_solver_trains_a_sum(solver, tmp_path):
    rows, y = X.numpy(), Y[:, 0].numpy()
    count = 120 if solver == "eigenpro4" else None
    model = KernelRegressor(
        kernel=a_sum(), ridge=1e-2, solver=solver, n_centers=count, random_state=0
    )
    assert model.fit(rows, y).score(rows, y) > 0.9
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(rows), model.predict(rows))


def test_a_sum_goes_to_onnx(tmp_path):
    rows = X.float().numpy()
    model = KernelRegressor(kernel=a_sum(), ridge=1e-2).fit(rows, Y[:, 0].numpy())
    model.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    values = session.run(["prediction"], {"X": rows})[0]
    np.testing.assert_allclose(values, model.predict(rows), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Sum(), "expected radial kernels"),
        (Sum([kernels.Linear()]), "expected radial kernels"),
        (Sum([Laplacian(1.0)], [1.0, 2.0]), "2 weights were given for 1 kernels"),
        (Sum([Laplacian(1.0)], [-1.0]), "greater than 0"),
    ],
)
def test_sums_that_are_none(kernel, words):
    with pytest.raises(InputError, match=words):
        KernelRegressor(kernel=kernel).fit(X.numpy(), Y[:, 0].numpy())


# ---- the judge


def test_values_are_those_of_models_without_the_fold():
    judge, kernel = Judge(SAMPLE, 200), Laplacian(2.0)
    found = judge.verdict(judge.grams(kernel), 0.3, 1.0)
    assert found.ridge == 0.3
    assert len(judge.folds) == FOLDS
    seen = torch.cat([fold.held for fold in judge.folds]).sort().values
    assert torch.equal(seen, torch.arange(200))
    for fold in judge.folds:
        held = torch.zeros(200, dtype=torch.bool)
        held[fold.held] = True
        fitted = X[:200][~held]
        system = kernel(fitted) + torch.diag(0.3 / W[:200][~held] + 1e-10 * len(fitted))
        alpha = torch.linalg.solve(system, SAMPLE.Y[:200][~held])
        want = kernel(X[:200][held], fitted) @ alpha
        torch.testing.assert_close(found.values[held], want)
    error = (W[:200, None] * (found.values - SAMPLE.Y[:200]) ** 2).sum() / W[:200].sum() / 2
    assert found.error == pytest.approx(error.item())


def test_folds_are_alike_whatever_the_order_of_rows_and_columns():
    order = torch.randperm(240, generator=torch.Generator().manual_seed(1))
    moved = Sample(X[order][:, [3, 0, 4, 1, 2]], SAMPLE.Y[order], W[order], 1.0)
    for few in (0, 240):
        first, second = Judge(SAMPLE, 240, few), Judge(moved, 240, few)
        assert len(first.folds) == (5 if few else 3)
        for one, other in zip(first.folds, second.folds, strict=True):
            assert set(one.held.tolist()) == set(order[other.held].tolist())


def test_the_best_ridge_is_found_near_the_start():
    judge = Judge(SAMPLE, 240)
    grams = judge.grams(Laplacian(2.0))
    tried = {
        ridge: judge.verdict(grams, ridge, 1.0).score for ridge in (0.003, 0.01, 0.03, 0.09, 0.27)
    }
    found = judge.verdict(grams, None, 0.1)
    assert found.score <= min(tried.values()) * 1.01


# ---- metrics learned from gradients


def test_a_stretch_has_the_power_of_the_metric():
    A = torch.randn(6, 6, dtype=torch.float64)
    M = A @ A.T
    top = torch.linalg.eigvalsh(M)[-1]
    for power in (0.5, 1.0):
        values, vectors = torch.linalg.eigh(M / top)
        want = (vectors * values**power) @ vectors.T
        map = stretch(M, power)
        torch.testing.assert_close(map @ map.T, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("encoding", [None, "robust+quantile"])
def test_a_learned_metric_finds_the_direction_that_counts(encoding):
    """y depends on x₀ + x₁ alone: rows that differ along it are farther than along others."""
    y = torch.sin(X[:, :1] + X[:, 1:2])
    features = None if encoding is None else encode_columns(X, encoding)
    kernel = Matern(3.0, features=features)
    ridge = torch.full((240,), 1e-2, dtype=torch.float64)
    learned = Gradients.of(kernel, X, y, ridge).metric(1.0)
    again = Gradients.of(learned, X, y, ridge).metric(0.5)
    for found in (learned, again):
        embed = found.embedding(X.mean(0), torch.float64)
        along, across, other = torch.zeros(3, 5, dtype=torch.float64) + X.median(0).values
        along[:2] += 0.5
        across[0], across[1] = across[0] + 0.5, across[1] - 0.5
        other[3:] += 0.5
        middle = X.median(0).values
        lengths = [
            (embed(row[None]) - embed(middle[None])).norm() for row in (along, across, other)
        ]
        assert lengths[0] > 2 * lengths[1] and lengths[0] > 2 * lengths[2]
    typical = [
        torch.pdist(k.embedding(X.mean(0), torch.float64)(X)).median() for k in (kernel, learned)
    ]
    torch.testing.assert_close(*typical, rtol=0.1, atol=0)


# ---- the contest


def codes_and_a_tail(n=600):
    """An effect of each code, and one of the order in a heavy tail."""
    h = np.random.default_rng(0)
    codes, tail = h.integers(0, 12, (n, 3)), np.exp(3 * h.normal(size=(n, 1)))
    effects = h.normal(size=(3, 12))
    y = sum(effects[j][codes[:, j]] for j in range(3)) + np.log(tail[:, 0])
    return np.c_[codes, tail], y


@pytest.mark.slow
def test_codes_and_tails_are_encoded():
    rows, y = codes_and_a_tail(900)
    chosen = KernelRegressor(random_state=0).fit(rows[:600], y[:600])
    plain = KernelRegressor(feature_learning=False, random_state=0).fit(rows[:600], y[:600])
    left = [1 - model.score(rows[600:], y[600:]) for model in (chosen, plain)]
    assert left[0] < 0.7 * left[1]
    learned = ("quantile", "codes", "gradient")
    assert not any(word in label for label, *_ in plain.plan_.tried for word in learned)


def test_the_plan_says_what_was_tried(tmp_path):
    rows, y = codes_and_a_tail(300)
    model = KernelRegressor(random_state=0).fit(rows, y)
    labels = [label for label, *_ in model.plan_.tried]
    assert model.plan_.chosen in labels
    assert {"laplacian, columns as they are", "laplacian, quantile"} <= set(labels)
    best = min(score for _, score, _ in model.plan_.tried)
    (own,) = {score for label, score, _ in model.plan_.tried if label == model.plan_.chosen}
    assert own <= 1.05 * best
    model.save(tmp_path / "m")
    again = load(tmp_path / "m").plan_
    assert again.chosen == model.plan_.chosen and len(again.tried) == len(labels)


def test_no_more_kernels_than_asked_for():
    sample = Sample(X, Y - Y.mean(0), W, 1.0)
    for members in (1, 2):
        contest = Contest(sample, None, EFFORT, Ways(members=members))
        tried = []
        found, *_ = choose_recipe(contest, lambda label, score, tried=tried: tried.append(label))
        assert len(getattr(found.kernel, "parts", [0])) <= members
        assert members > 1 or not any(" + " in label for label in tried)


def test_each_row_is_judged_by_a_model_of_the_others():
    judge, kernel = EachRow(SAMPLE), Laplacian(2.0)
    values = judge.values(judge.grams(kernel), 0.1)
    K = kernel(judge.X)
    for i in (0, 7, 239):
        rows = torch.arange(len(K)) != i
        system = K[rows][:, rows] + torch.diag(0.1 / judge.w[rows])
        expected = K[i, rows] @ torch.linalg.solve(system, judge.Y[rows])
        torch.testing.assert_close(values[i], expected, rtol=1e-5, atol=1e-7)


def a_product(seed=0):
    h = np.random.default_rng(seed)
    rows = h.normal(size=(2600, 3))
    return rows, (rows[:, 0] * rows[:, 1] + 0.5 * h.normal(size=2600) > 0).astype(int)


WIDE = {"kernel": Laplacian(2.0), "device": "cpu", "random_state": 0}


@pytest.mark.slow
def test_no_row_is_kept_out_where_each_can_be_left_out_once():
    rows, labels = a_product()
    new, truth = a_product(1)
    chance = norm.cdf(2 * new[:, 0] * new[:, 1])
    best = -np.log(np.where(truth == 1, chance, 1 - chance).clip(1e-9)).mean()
    for ridge in (None, 1.0):
        model = KernelClassifier(**WIDE, ridge=ridge).fit(rows, labels)
        P = model.predict_proba(new)[np.arange(2600), truth]
        assert model.plan_.n == 2600 and -np.log(P).mean() < best + 0.03
    again = KernelClassifier(**{**WIDE, "solver": model.plan_}).fit(rows, labels)
    assert again.plan_.n == 2600


@pytest.mark.parametrize("some", [{"n_centers": 100}, {"solver": "falkon"}, {"centers": X[:9, :3]}])
def test_rows_are_kept_out_of_models_of_some_centers(some):
    rows, labels = a_product()
    model = KernelClassifier(**WIDE, **some).fit(rows, labels)
    assert model.plan_.n == 2340
    again = KernelClassifier(**{**WIDE, "solver": model.plan_, "centers": model.model_.Z})
    assert again.fit(rows, labels).plan_.n == 2340


def test_a_warm_start_trains_on_the_same_rows():
    rows, labels = a_product()
    model = KernelClassifier(**WIDE, ridge=1.0, warm_start=True).fit(rows, labels)
    assert model.fit(rows, labels).plan_.n == 2600


def test_rows_of_no_weight_do_not_calibrate(monkeypatch):
    monkeypatch.setattr("kernelmill.estimators.classifier.MERGE_ROWS", 500)
    rows, labels = a_product()
    w = np.ones(2600)
    w[:5] = 0
    model = KernelClassifier(**WIDE, ridge=1.0).fit(rows, labels, sample_weight=w)
    assert model.log_slope_ > 0.5 or model.slope_ != 1.0


@pytest.mark.parametrize("known", [True, False])
def test_a_run_goes_on_with_the_rows_that_it_began_with(known, tmp_path, monkeypatch):
    """Whether rows are kept out, or each is left out once, is decided once."""
    rows, labels = a_product()
    settings = {**WIDE, "checkpoint": tmp_path / "run"}
    if not known:
        monkeypatch.setattr(KernelClassifier, "_most_left_out", lambda self, opened: 2500)
    first = KernelClassifier(**settings).fit(rows, labels)
    monkeypatch.undo()
    again = KernelClassifier(resume=True, **settings).fit(rows, labels)
    assert again.plan_.n == first.plan_.n == (2600 if known else 2340)
    np.testing.assert_array_equal(again.predict_proba(rows[:9]), first.predict_proba(rows[:9]))


def test_time_that_is_up_leaves_the_best_so_far():
    contest = Contest(SAMPLE, None, EFFORT)
    tried = []
    (found,) = choose_recipe(contest, lambda label, score: tried.append(label), lambda: False)
    assert tried == [found.label]
    limited = KernelRegressor(time_limit=1e-3, random_state=0).fit(X.numpy(), Y[:, 0].numpy())
    assert len(limited.plan_.tried) == 1


@pytest.mark.parametrize("ensemble", [1, False, np.False_])
def test_a_single_kernel_is_one(ensemble):
    y = (X[:, 0] + torch.sin(3 * X[:, 1])).numpy()
    model = KernelRegressor(ensemble=ensemble, random_state=0).fit(X.numpy(), y)
    assert not any(" + " in label for label, *_ in model.plan_.tried)


def test_probabilities_of_few_centers_are_of_their_own_model():
    h = np.random.default_rng(0)
    rows = h.normal(size=(900, 4))
    labels = (rows[:, 0] + h.normal(size=900) > 1).astype(int)
    model = KernelClassifier(n_centers=5, random_state=0).fit(rows[:600], labels[:600])
    P = model.predict_proba(rows[600:])[np.arange(300), labels[600:]]
    share = labels.mean()
    assert -np.log(P).mean() < 1.02 * -(share * np.log(share) + (1 - share) * np.log(1 - share))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"time_limit": 0}, "time_limit=0 was given, expected seconds above 0"),
        ({"time_limit": "1m"}, "time_limit='1m' was given"),
        ({"ensemble": 0}, "ensemble"),
        ({"feature_learning": "agop"}, "feature_learning='agop' was given"),
    ],
)
def test_settings_that_mean_nothing(settings, words):
    with pytest.raises(InputError, match=words):
        KernelRegressor(**settings).fit(X.numpy(), Y[:, 0].numpy())


def test_few_rows_give_honest_probabilities():
    """A metric that was learned from rows says too much of them: calibration must not use it."""
    h = np.random.default_rng(0)
    rows = h.normal(size=(1200, 30))
    labels = (rows[:, 0] + rows[:, 1] + h.normal(size=1200) > 0).astype(int)
    model = KernelClassifier(random_state=0).fit(rows[:200], labels[:200])
    P = model.predict_proba(rows[200:])[np.arange(1000), labels[200:]]
    assert -np.log(P).mean() < 0.72 and P.min() > 1e-4


def test_columns_of_a_table_are_features_of_one_model(tmp_path):
    h = np.random.default_rng(1)
    n = 800
    frame = pd.DataFrame(
        {
            "age": h.integers(18, 90, n),
            "town": h.choice(list("abcd"), n),
            "pay": h.lognormal(9, 2, n),
        }
    )
    frame["y"] = np.log(frame.pay) + (frame.town == "b") * 2 + np.floor(frame.age / 20)
    model = KernelRegressor(random_state=0).fit(frame, "y")
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(frame), model.predict(frame))
    model.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    inputs = {name: frame[name].to_numpy(np.float64) for name in ("age", "pay")}
    inputs["town"] = frame["town"].to_numpy(object)
    values = session.run(["prediction"], inputs)[0]
    np.testing.assert_allclose(values, model.predict(frame), rtol=1e-3, atol=1e-3)
