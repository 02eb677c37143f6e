"""What a fitted model promises: it owns what it needs, follows the units of its targets, ignores
what never varied, and is checked.
"""

import copy
import itertools
import logging
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, load
from kernelmill.calibration import calibrate
from kernelmill.estimators.evaluation import evaluate
from kernelmill.estimators.validation import draw_stratified
from kernelmill.learning import check, choose, flow
from kernelmill.learning.rows import units_of
from kernelmill.report import page
from kernelmill.solvers import EigenPro4, Falkon, auto
from kernelmill.tuning import descent, sample


def smooth(n=300, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


# ---- a model owns everything it needs


def test_parameters_changed_after_fit_do_not_change_the_model(tmp_path):
    X, y = smooth()
    model = KernelRegressor(kernel=kernels.Gaussian(bandwidth=1.0), ridge=0.01).fit(X, y)
    want = KernelRegressor(kernel=kernels.Gaussian(bandwidth=1.0), ridge=0.01).fit(X, y).predict(X)
    model.set_params(kernel__bandwidth=4.0)
    np.testing.assert_array_equal(model.predict(X), want)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(X), want)


@pytest.mark.parametrize("solver", ["direct", "eigenpro4", "falkon"])
def test_one_kernel_object_serves_many_fits(solver):
    X, y = smooth()
    kernel = kernels.Gaussian(bandwidth=np.ones(3))
    models = []
    for b in (0.5, 1.0, 2.0):
        kernel.bandwidth *= 0
        kernel.bandwidth += b
        models.append(
            KernelRegressor(
                kernel=kernel, solver=solver, ridge=0.01, n_centers=100, random_state=0
            ).fit(X, y)
        )
    for b, model in zip((0.5, 1.0, 2.0), models, strict=True):
        fresh = KernelRegressor(
            kernel=kernels.Gaussian(bandwidth=np.full(3, b)),
            solver=solver,
            ridge=0.01,
            n_centers=100,
            random_state=0,
        )
        np.testing.assert_array_equal(model.predict(X), fresh.fit(X, y).predict(X))


def test_centers_of_the_users_own_are_copied():
    X, y = smooth()
    Z = X[:50].copy()
    model = KernelRegressor(kernel=kernels.Gaussian(bandwidth=1.0), ridge=0.01, centers=Z).fit(X, y)
    want = copy.deepcopy(model).predict(X)
    Z *= 0
    np.testing.assert_array_equal(model.predict(X), want)


# ---- units of the targets


@pytest.mark.parametrize("solver", ["eigenpro4", "eigenpro2", "falkon", "nytro", "direct"])
@pytest.mark.parametrize("unit, offset", [(1.0, 1.7e9), (1e-30, 0.0), (1e-160, 0.0), (1e12, 1e14)])
def test_predictions_follow_unit_and_offset_of_the_targets_in_float32(solver, unit, offset):
    X, y = smooth(400)
    settings = dict(kernel=kernels.Matern(bandwidth=2.0), solver=solver, random_state=0, ridge=0.01)
    settings |= {} if solver == "eigenpro2" else {"n_centers": 150}
    plain = KernelRegressor(**settings).fit(X.astype("f4"), y).predict(X.astype("f4"))
    moved = (
        KernelRegressor(**settings).fit(X.astype("f4"), unit * y + offset).predict(X.astype("f4"))
    )
    assert moved.dtype == np.float64
    # Where its score stands still, which the last digits decide.
    stops = 5e-3 if solver == "nytro" else 1e-4
    np.testing.assert_allclose((moved - offset) / unit, plain, atol=stops + 1e-14 * offset / unit)


def test_a_large_unit_of_one_target_does_not_ruin_the_other():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(400, 2))
    Y = np.stack([X[:, 1], np.sin(3 * X[:, 0])], 1)
    here, there = (
        KernelRegressor(kernel="gaussian", random_state=0).fit(X, Y * [unit, 1.0])
        for unit in (1.0, 1e4)
    )
    # Slopes in float32 have three digits.
    np.testing.assert_allclose(
        np.asarray(here.model_.kernel.bandwidth),
        np.asarray(there.model_.kernel.bandwidth),
        rtol=1e-2,
    )
    np.testing.assert_allclose(here.predict(X), there.predict(X) / [1e4, 1.0], atol=1e-3)


def test_falkon_goes_on_until_every_output_is_there():
    X, y = smooth(400)
    Y = np.stack([1e4 * X[:, 1], y], 1)
    settings = dict(
        kernel=kernels.Gaussian(bandwidth=1.0),
        solver="falkon",
        ridge=1e-3,
        n_centers=200,
        random_state=0,
    )
    both, alone = KernelRegressor(**settings).fit(X, Y), KernelRegressor(**settings).fit(X, y)
    np.testing.assert_allclose(both.predict(X)[:, 1], alone.predict(X), atol=0.02)


def test_units_are_those_of_the_rows_that_count():
    Y, w = (
        torch.tensor([[1.0], [3.0], [100.0]], dtype=torch.float64),
        torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64),
    )
    units = units_of(Y, w, torch.tensor([0, 1]))
    assert units.mean.item() == pytest.approx(2.5) and units.scale.item() == pytest.approx(
        np.sqrt((1.5**2 + 3 * 0.5**2) / 4)
    )
    assert (
        units_of(
            torch.full((4, 1), 7.0), torch.ones(4, dtype=torch.float64), torch.arange(4)
        ).scale.item()
        == 1
    )


# ---- columns that never varied


GIVEN = [
    kernels.Laplacian(bandwidth=2.0),
    kernels.Matern(bandwidth=np.array([1.0, 2.0, 3.0])),
    kernels.Laplacian(bandwidth=np.diag([1.0, 4.0, 2.0]) + 0.1),
    kernels.Polynomial(),
    kernels.ArcCosine(),
    kernels.ReluNTK(),
]


@pytest.mark.parametrize("kernel", ["auto", "gaussian", *GIVEN])
def test_a_column_that_was_constant_has_no_influence(kernel):
    X, y = smooth(250, 2)
    X = np.c_[X, np.full(len(X), 5.0)]
    model = KernelRegressor(kernel=kernel, ridge=None if isinstance(kernel, str) else 0.1).fit(X, y)
    later = X + [0, 0, 100.0]
    np.testing.assert_array_equal(model.predict(later), model.predict(X))
    assert model.score(later, y) > 0.5


@pytest.mark.parametrize(
    "options",
    [dict(), dict(solver="eigenpro4", epochs=2, kernel=kernels.Gaussian(bandwidth=1.0))],
    ids=str,
)
@pytest.mark.parametrize("table", [False, True])
def test_a_column_that_begins_to_vary_in_a_later_chunk_is_learned_from_then_on(options, table):
    X, y = smooth(1200, 2)
    X[:400, 1], y[:400] = 0, np.sin(3 * X[:400, 0])
    y[400:] = np.sin(3 * X[400:, 0]) + 2 * X[400:, 1]
    rows = pd.DataFrame(X, columns=["a", "b"]).assign(y=y) if table else X
    learn = lambda model, a: model.partial_fit(rows[a : a + 400], "y" if table else y[a : a + 400])  # noqa: E731
    model = learn(KernelRegressor(**options, n_centers=300, random_state=0), 0)
    assert model.model_.constants == {1: 0.0}
    model.add_centers(rows[400:600])
    for start in (400, 800, 400, 800):
        learn(model, start)
    assert model.model_.constants == {} and model.score(rows[400:], "y" if table else y[400:]) > 0.9


def test_a_warm_start_frees_a_column_that_varies_now():
    X, y = smooth(200, 2)
    X = np.c_[X, np.ones(200)]
    model = KernelRegressor(kernel=kernels.Gaussian(bandwidth=1.0), ridge=0.1, warm_start=True).fit(
        X, y
    )
    assert model.fit(X, y).model_.constants == {2: 1.0}
    assert model.fit(X + [[0, 0, 1]] * np.arange(200)[:, None], y).model_.constants == {}


def test_a_column_that_varies_only_in_rows_of_no_weight_was_constant():
    X, y = smooth(200, 2)
    X = np.c_[X, np.r_[np.full(199, 5.0), 7.0]]
    w = np.r_[np.ones(199), 0.0]
    model = KernelRegressor(kernel=kernels.Laplacian(bandwidth=2.0), ridge=0.1).fit(X, y, w)
    np.testing.assert_array_equal(model.predict(X + [0, 0, 3.0]), model.predict(X))


def test_what_never_varied_is_stored_and_exported(tmp_path):
    X, y = smooth(100, 2)
    model = KernelRegressor(kernel=kernels.Gaussian(bandwidth=1.0), ridge=0.1).fit(
        np.c_[X, np.ones(100)], y
    )
    model.save(tmp_path / "m")
    rows = np.c_[X, np.arange(100.0)]
    np.testing.assert_array_equal(load(tmp_path / "m").predict(rows), model.predict(rows))
    np.testing.assert_allclose(
        model.model_.exported().module()(torch.tensor(rows))[:, 0], model.predict(rows), rtol=1e-6
    )


# ---- bounds of the search


@pytest.mark.parametrize("kernel", ["laplacian", "matern", "gaussian", "rational_quadratic"])
@pytest.mark.parametrize("target", ["linear", "noise", "constant but for one"])
def test_bandwidths_stay_within_their_bounds(kernel, target):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) * [1.0, 1e3, 1e-3]
    y = {
        "linear": X[:, 0] + 1e-3 * X[:, 1],
        "noise": rng.normal(size=300),
        "constant but for one": np.eye(300)[0],
    }[target]
    model = KernelRegressor(kernel=kernel, random_state=0).fit(X, y)
    b = np.asarray(model.model_.kernel.bandwidth)
    distance = np.median(torch.pdist(torch.tensor(X / b)))
    assert 0.5 / descent.WIDEST <= distance <= 2 / descent.NARROWEST


def test_beyond_the_bounds_the_error_is_flat():
    rows = torch.randn(100, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reach = descent.Reach.of(rows)
    inside = torch.full((3,), np.log(reach.median), dtype=torch.float64)
    torch.testing.assert_close(reach.bounded(inside), inside)
    wide = torch.tensor([20.0, 20.0, 22.0], dtype=torch.float64)
    torch.testing.assert_close(reach.bounded(wide), reach.bounded(wide + 3))
    # Features keep their proportions.
    torch.testing.assert_close(reach.bounded(wide).diff(), wide.diff())


def named_rows(n, seed):
    """Two classes by names and skewed numbers, with noise: where one common bandwidth is chosen
    for many columns.
    """
    rng = np.random.default_rng(seed)
    names, skewed = rng.integers(0, 30, size=(n, 3)), np.exp(rng.normal(size=(n, 4)))
    X = np.concatenate([skewed, *(np.eye(30)[names[:, j]] for j in range(3))], 1)
    effect = np.random.default_rng(7).normal(size=(3, 30))
    value = (
        sum(effect[j, names[:, j]] for j in range(3))
        + np.log(skewed[:, 0])
        + 0.8 * rng.normal(size=n)
    )
    return X, (value > 0).astype(int)


@pytest.mark.slow
def test_ten_seeds_agree_within_noise():
    X, y = named_rows(2500, 0)
    T, t = named_rows(4000, 1)
    scores = [
        KernelClassifier(kernel="laplacian", n_centers=600, random_state=s).fit(X, y).score(T, t)
        for s in range(10)
    ]
    # One standard error of 4,000 rows is 0.006, centers add theirs.
    assert max(scores) - min(scores) < 0.03, scores


@pytest.mark.slow
@pytest.mark.parametrize("name", ["named", "smooth", "rare"])
def test_more_centers_and_more_rows_are_never_worse(name):
    def data(n, seed):
        if name == "named":
            return named_rows(n, seed)
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, 4))
        p = 1 / (1 + np.exp((3.0 if name == "rare" else 0.0) - 2 * np.sin(2 * X[:, 0]) - X[:, 1]))
        return X, (rng.random(n) < p).astype(int)

    T, t = data(4000, 1)

    def loss(n, p):
        model = KernelClassifier(n_centers=p, random_state=0).fit(*data(n, 0))
        P = model.predict_proba(T)
        return -np.log(np.clip(P[np.arange(len(t)), t], 1e-12, 1)).mean()

    by_centers = [loss(2400, p) for p in (200, 600, 2400)]
    by_rows = [loss(n, None) for n in (300, 900, 2400)]
    for losses in (by_centers, by_rows):
        assert all(b < a + 0.015 for a, b in itertools.pairwise(losses)), losses


# ---- rare classes


def test_held_out_rows_have_the_share_of_every_class():
    labels = np.repeat([0, 1, 2], [9000, 950, 50])
    order = np.random.default_rng(0).permutation(10_000)
    out = draw_stratified(order, labels[order], 0.1)
    assert np.bincount(labels[order][out]).tolist() == [900, 95, 5]
    assert len(np.unique(out)) == 1000
    few = draw_stratified(np.arange(5), np.array([0, 0, 0, 1, 1]), 0.9)
    # The last row of a class is never kept out.
    assert np.bincount(np.array([0, 0, 0, 1, 1])[few]).tolist() == [2, 1]


def rare(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, (rng.random(n) < 1 / (1 + np.exp(5.2 - X[:, 0] - X[:, 1]))).astype(int)


@pytest.mark.parametrize("seed", range(4))
def test_probabilities_keep_the_frequency_of_a_rare_class(seed):
    X, y = rare(4000, seed)
    T, t = rare(20_000, 100)
    model = KernelClassifier(
        kernel=kernels.Gaussian(bandwidth=2.0),
        ridge=1.0,
        n_centers=300,
        solver="direct",
        random_state=seed,
    ).fit(X, y)
    P = model.predict_proba(T)[:, 1]
    assert 0.7 * y.mean() < P.mean() < 1.4 * y.mean()
    log_loss = -np.log(np.where(t, P, 1 - P)).mean()
    # Better than the frequency alone.
    assert log_loss < -(t.mean() * np.log(t.mean()) + (1 - t.mean()) * np.log(1 - t.mean()))


def test_calibration_gives_every_class_its_share_and_knows_one_that_is_not_there():
    rng = np.random.default_rng(0)
    P = rng.dirichlet([5.0, 2.0, 0.1], size=3000)
    codes = torch.tensor([rng.choice(3, p=p) for p in P])
    targets = torch.nn.functional.one_hot(codes, 3).double()
    values = torch.tensor(P + 0.02 * rng.normal(size=P.shape))
    w, shares = torch.ones(3000, dtype=torch.float64), targets.mean(0)
    found = calibrate(values, targets, w, shares)
    made = torch.softmax(found.logits(values), 1)
    torch.testing.assert_close(made.mean(0), shares, atol=2e-3, rtol=0)
    # Estimates of probabilities: their logarithms are what is calibrated.
    assert found.log_slope > 0.5
    there = codes < 2
    without = calibrate(values[there], targets[there], w[there], shares)
    assert (
        torch.isfinite(without.bias).all()
        and 0.2 * shares[2] < torch.softmax(without.logits(values), 1)[:, 2].mean() < 5 * shares[2]
    )


def test_clean_classes_are_calibrated_by_their_values():
    codes = torch.arange(400) % 2
    noise = torch.randn(400, 2, generator=torch.Generator().manual_seed(0)).double()
    values = torch.nn.functional.one_hot(codes, 2).double() + 0.05 * noise
    found = calibrate(
        values,
        torch.nn.functional.one_hot(codes, 2).double(),
        torch.ones(400).double(),
        torch.tensor([0.5, 0.5]),
    )
    assert (
        np.isfinite(found.slope)
        and torch.softmax(found.logits(values), 1).max(1).values.min() > 0.9
    )


def test_a_sample_to_tune_on_has_enough_of_a_rare_class_and_stands_for_all_rows():
    codes = torch.zeros(100_000, dtype=torch.long)
    codes[:1000] = 1
    rows, weight = sample.draw(len(codes), codes, torch.Generator().manual_seed(0))
    # Of the first 500, which decide most, about a tenth.
    assert 40 <= int(codes[rows[:500]].sum()) <= 65
    share = (weight * (codes[rows] == 1)).sum() / weight.sum()
    assert share.item() == pytest.approx(0.01, rel=0.01) and len(torch.unique(rows)) == len(rows)
    even, ones = sample.draw(5000, torch.arange(5000) % 2, torch.Generator().manual_seed(0))
    assert len(even) == 5000 and bool((ones == 1).all())


def test_balanced_classes_are_balanced_by_weight():
    X, y = rare(300, 3)
    y[:30] = 1
    w = np.random.default_rng(0).integers(0, 4, 300)
    rows = np.repeat(np.arange(300), w)
    settings = dict(kernel=kernels.Gaussian(bandwidth=2.0), ridge=0.3, class_weight="balanced")
    weighted, copied = (
        KernelClassifier(**settings).fit(X, y, w),
        KernelClassifier(**settings).fit(X[rows], y[rows]),
    )
    np.testing.assert_allclose(weighted.predict_proba(X), copied.predict_proba(X), atol=1e-10)


# ---- the check at the end


@pytest.mark.slow
def test_a_large_fit_keeps_rows_out_to_check_itself():
    X, y = smooth(10_500, 2)
    chosen = KernelRegressor(kernel="gaussian", n_centers=50, solver="direct", random_state=0).fit(
        X, y
    )
    given = KernelRegressor(
        kernel=kernels.Gaussian(bandwidth=1.0),
        ridge=0.1,
        n_centers=50,
        solver="direct",
        random_state=0,
    ).fit(X, y)
    assert chosen.rows_seen_ == 10_500 - 210 and given.rows_seen_ == 10_500


def spoil(monkeypatch, solver, factor=0.0):
    """This solver's weights are too small, as if it had stopped at once."""
    rounds = solver.rounds

    def spoiled(self, *args):
        for report in rounds(self, *args):
            yield replace(report, state=replace(report.state, alpha=report.state.alpha * factor))

    monkeypatch.setattr(solver, "rounds", spoiled)


def test_a_model_much_worse_than_promised_is_warned_about(monkeypatch):
    X, y = smooth(600)
    spoil(monkeypatch, EigenPro4)
    with pytest.warns(UserWarning, match="was expected from a sample"):
        KernelRegressor(kernel="gaussian", n_centers=200, solver="eigenpro4", random_state=0).fit(
            X, y
        )


@pytest.fixture
def eigenpro4_fails(monkeypatch):
    """ "auto" begins with EigenPro 4, whose weights are spoiled."""
    spoil(monkeypatch, EigenPro4)
    fastest = choose._fastest

    def first_eigenpro4(request, sizes, *rest):
        chosen = EigenPro4(), choose.replace(sizes, p=200, every_row=False)
        return chosen if request.solver is None else fastest(request, sizes, *rest)

    monkeypatch.setattr(choose, "_fastest", first_eigenpro4)


def test_a_model_much_worse_than_promised_is_trained_again_by_another_solver(
    eigenpro4_fails, caplog
):
    X, y = smooth(600)
    with caplog.at_level(logging.INFO, "kernelmill"):
        model = KernelRegressor(kernel="gaussian", random_state=0).fit(X, y)
    assert (
        model.plan_.solver == "falkon"
        and model.plan_.precision == "float64"
        and model.score(X, y) > 0.9
    )
    assert model.solver == "auto" and model.kernel == "gaussian" and "trying" in caplog.text
    model.set_params(warm_start=True).fit(X, y)  # nothing was changed by the user


@pytest.mark.parametrize(
    "error",
    [
        InputError("no room"),
        MemoryError(),
        torch.OutOfMemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes."),
    ],
)
def test_another_way_that_fails_leaves_the_first_model(eigenpro4_fails, monkeypatch, error):
    def fails(*args):
        raise error

    X, y = smooth(600)
    monkeypatch.setattr(Falkon, "prepare", fails)
    with pytest.warns(UserWarning, match="was expected from a sample"):
        assert (
            KernelRegressor(kernel="gaussian", random_state=0).fit(X, y).plan_.solver == "eigenpro4"
        )


def test_a_model_is_checked_on_held_out_rows_from_everywhere():
    X, y = smooth(12_000, 2)
    noise = np.linspace(1.5, 0.05, len(X)) * np.random.default_rng(1).normal(size=len(X))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "check", lambda *args: found.append(check.check(*args)) or found[-1])
        KernelRegressor(
            kernel="matern", n_centers=100, random_state=0, validation_fraction=0.4
        ).fit(X, y + noise)
    assert len(found) == 1 and abs(found[0].found / found[0].expected - 1) < 0.2


def test_a_plan_of_many_rows_does_the_same_with_the_models_own_kernel():
    X, y = smooth(11_000, 2)
    model = KernelRegressor(n_centers=50, kernel="gaussian", random_state=0).fit(X, y)
    again = KernelRegressor(
        n_centers=50, kernel=model.model_.kernel, solver=model.plan_, random_state=0
    ).fit(X, y)
    assert again.plan_.n == model.plan_.n == 10_780


def test_weights_that_are_not_numbers_never_pass_the_check():
    assert not check.Check(0.1, float("nan"), float("nan"), 100).within((1e9, 1e9))
    assert check.Check(0.1, 0.12, 0.03, 100).within((1.0, 0.0)) and not check.Check(
        0.1, 0.2, 0.03, 100
    ).within(check.WORSE)
    # Of targets without noise, nearly all is explained either way.
    assert check.Check(1e-8, 1e-5, 0.0, 100).within(check.DOUBT)


# ---- a ridge above the spectrum


@pytest.mark.parametrize("solver, settings", [("eigenpro2", {}), ("eigenpro4", {"n_centers": 300})])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_ridge_far_above_the_tail_of_the_spectrum_does_not_stall(solver, settings, precision):
    X, y = rare(1500, 0)
    given = dict(
        kernel=kernels.Gaussian(bandwidth=8.0), ridge=0.1, random_state=0, validation_fraction=0.0
    )
    exact = KernelClassifier(solver="direct", **settings, **given).fit(X, y).decision_function(X)
    found = (
        KernelClassifier(solver=solver, precision=precision, **settings, **given)
        .fit(X, y)
        .decision_function(X)
    )
    assert np.abs(found - exact).std() < 0.02 * exact.std()


def test_falkon_still_counts_its_iterations():
    X, y = smooth(200)
    model = KernelRegressor(
        kernel=kernels.Gaussian(bandwidth=1.0),
        solver=Falkon(iterations=2),
        ridge=1e-3,
        n_centers=100,
    ).fit(X, y)
    assert model.n_iter_ == 2


def test_a_stored_plan_takes_the_time_it_takes(monkeypatch):
    X, y = smooth(600)
    model = KernelRegressor(kernel="gaussian", n_centers=100, solver="eigenpro4", epochs=3)
    plan = model.fit(X, y).plan_
    monkeypatch.setattr(auto, "ON_CPU", (1e-6, 1e-6))
    again = KernelRegressor(kernel=model.model_.kernel, solver=plan).fit(X, y)
    assert again.n_iter_ == 3


def test_nothing_needs_a_network(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked for")

    for name in ("connect", "connect_ex", "bind", "sendto"):
        monkeypatch.setattr(f"socket.socket.{name}", refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(f"socket.{name}", refuse)
    frame = pd.DataFrame({"x": np.arange(200.0), "name": ["a", "b"] * 100})
    frame["label"] = np.where(frame.x % 7 > 3, "yes", "no")
    frame.to_csv(tmp_path / "d.csv", index=False)
    model = KernelClassifier(random_state=0).fit(tmp_path / "d.csv", "label")
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    loaded.to_onnx(tmp_path / "m.onnx")
    assert list(loaded.predict(frame)) == list(model.predict(frame))
    assert "<html" in page(loaded, "a report", evaluate(loaded, frame, frame.label))
