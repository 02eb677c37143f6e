"""Streams of chunks: partial_fit and add_centers."""

import numpy as np
import pytest
import torch

import kernelmill
from kernelmill import InputError, KernelClassifier, KernelRegressor
from kernelmill.kernels import Laplacian
from kernelmill.solvers import EigenPro4

g = np.random.default_rng(0)


def test_partial_fit_learns_from_every_chunk():
    rows = g.normal(size=(9000, 3)).astype(np.float32)
    target = np.sin(3 * rows[:, 0])
    model = KernelRegressor(kernel=Laplacian(2.0), n_centers=300, random_state=0)
    scores = []
    for i in range(0, 8000, 1000):
        model.partial_fit(rows[i : i + 1000], target[i : i + 1000])
        scores.append(model.score(rows[8000:], target[8000:]))
    assert model.rows_seen_ == 8000 and scores[-1] > scores[0] + 0.01
    before = model.model_.alpha.clone()
    model.partial_fit(rows[:5], target[:5])  # few rows move it a little
    assert 0 < (model.model_.alpha - before).norm() < 0.2 * before.norm()


def test_partial_fit_of_classes_knows_them_from_the_start():
    rows = g.normal(size=(6000, 2)).astype(np.float32)
    label = np.where(rows[:, 0] > 0, "right", "left")
    model = KernelClassifier(kernel=Laplacian(2.0), n_centers=200, random_state=0)
    with pytest.raises(ValueError, match="first call"):
        model.partial_fit(rows[:10], label[:10])
    left = np.flatnonzero(label == "left")[:500]
    model.partial_fit(rows[left], label[left], classes=["right", "left"])
    assert set(model.predict(rows)) == {"left"}
    for i in range(0, 5000, 1000):
        model.partial_fit(rows[i : i + 1000], label[i : i + 1000])
    assert model.score(rows[5000:], label[5000:]) > 0.93
    with pytest.raises(InputError, match="'up', which is not among"):
        model.partial_fit(rows[:2], ["left", "up"])


@pytest.mark.slow
def test_centers_can_be_added():
    rows = g.uniform(-3, 3, size=(8000, 1)).astype(np.float32)
    target = np.sin(5 * rows[:, 0])
    model = KernelRegressor(
        kernel=kernelmill.kernels.Gaussian(0.3),
        n_centers=8,
        random_state=0,
        warm_start=True,
        solver=EigenPro4(),
    )
    model.fit(rows, target)
    few, before = model.score(rows, target), model.predict(rows)
    model.add_centers(np.linspace(-3, 3, 60)[:, None])
    np.testing.assert_allclose(model.predict(rows), before, atol=1e-3)
    model.partial_fit(rows, target)
    assert model.model_.n_centers == 68 and model.score(rows, target) > max(0.9, few + 0.1)
    model.fit(rows, target)
    assert model.model_.n_centers == 68 and model.score(rows, target) > 0.9


def solution(Z, ridge, *parts):
    """The least squares of all (rows, targets, weights), dense in float64."""

    def K(A, B):
        return torch.exp(-torch.cdist(torch.as_tensor(A), torch.as_tensor(B)) / 2)

    normal, right = ridge * K(Z, Z), torch.zeros(len(Z), 1, dtype=torch.float64)
    for rows, targets, weights in parts:
        A, w = K(rows, Z), torch.as_tensor(weights)[:, None]
        normal, right = (
            normal + A.T @ (w * A),
            right + A.T @ (w * torch.as_tensor(targets).reshape(-1, 1)),
        )
    return torch.linalg.solve(normal, right)


def chunk(n):
    rows = g.normal(size=(n, 2))
    return rows, np.sin(rows[:, 0]) + g.normal(size=n), g.uniform(0.5, 3, n)


EXACTLY = dict(kernel=Laplacian(2.0), random_state=0, solver="direct", ridge=1e-3)


def test_chunks_end_at_the_solution_of_all_rows_in_any_order():
    first, second, third = chunk(600), chunk(400), chunk(50)
    for rest in ((second, third), (third, second)):
        model = KernelRegressor(n_centers=50, **EXACTLY).partial_fit(*first)
        for part in rest:
            model.partial_fit(*part)
        parts = [(X, y - model.model_.intercept.item(), w) for X, y, w in (first, second, third)]
        torch.testing.assert_close(
            model.model_.alpha, solution(model.model_.Z, 1e-3, *parts), rtol=1e-5, atol=1e-5
        )
        assert model.rows_seen_ == 1050


def stand_ins(old, weight, count=None):
    Z = old.Z[:count]
    return Z, (old(Z) - old.intercept)[:, 0], np.full(len(Z), weight / len(Z))


@pytest.mark.parametrize("how", ["fit", "loaded", "add_centers", "steps between"])
def test_centers_stand_in_for_rows_whose_equations_nobody_has(how, tmp_path):
    first, second, third = chunk(600), chunk(400), chunk(300)
    model = KernelRegressor(n_centers=50, **EXACTLY)
    weight, count = first[2].sum(), None
    if how == "fit":
        model.partial_fit(*chunk(100)).fit(*first)
    else:
        model.partial_fit(*first)
    if how == "loaded":
        model.save(tmp_path / "m")
        model = kernelmill.load(tmp_path / "m")
    if how == "add_centers":
        model.add_centers(chunk(7)[0])
        count = 50
    if how == "steps between":
        model.set_params(solver="eigenpro4").partial_fit(*third)
        model.set_params(solver="direct")
        weight += third[2].sum()
    old = model.model_
    for X, y, w in (second, third):
        model.partial_fit(X, y, w)
    new = [(X, y - old.intercept.item(), w) for X, y, w in (second, third)]
    want = solution(old.Z, 1e-3, stand_ins(old, weight, count), *new)
    torch.testing.assert_close(
        model.model_.alpha, want.to(model.model_.alpha), rtol=1e-4, atol=1e-4
    )


def test_class_weights_are_sample_weights():
    X, y = g.normal(size=(2000, 2)), g.integers(0, 2, 2000)
    settings = dict(kernel=Laplacian(2.0), n_centers=50, ridge=1e-3, random_state=0)
    by_class = KernelClassifier(**settings, class_weight={0: 1, 1: 5})
    by_row = KernelClassifier(**settings)
    for part in (slice(0, 1000), slice(1000, 2000)):
        by_class.partial_fit(X[part], y[part], classes=[0, 1])
        by_row.partial_fit(X[part], y[part], classes=[0, 1], sample_weight=1 + 4.0 * y[part])
    torch.testing.assert_close(by_class.model_.alpha, by_row.model_.alpha)


def test_smooth_kernels_without_a_ridge_keep_their_digits():
    X = g.normal(size=(6000, 3))
    y = np.sin(2 * X[:, 0]) * X[:, 1]
    model = KernelRegressor(
        kernel=kernelmill.kernels.Gaussian(5.0),
        ridge=0.0,
        solver="direct",
        n_centers=300,
        random_state=0,
    )
    scores = []
    for i in range(0, 4000, 1000):
        model.partial_fit(X[i : i + 1000], y[i : i + 1000])
        scores.append(model.score(X[4000:], y[4000:]))
    assert scores[-1] > scores[0] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["eigenpro3", "nytro", "eigenpro4"])
def test_solvers_that_regularise_by_few_steps_go_on_by_steps(solver):
    X = g.normal(size=(6000, 5)).astype(np.float32)
    signal = np.sin(X[:, 0]) * X[:, 1]
    y = signal + g.normal(size=6000)
    model = KernelRegressor(
        kernel=kernelmill.kernels.Gaussian(2.0), n_centers=800, solver=solver, random_state=0
    )
    before = model.partial_fit(X[:2000], y[:2000]).score(X[4000:], signal[4000:])
    again = KernelRegressor(
        kernel=kernelmill.kernels.Gaussian(2.0), n_centers=800, solver=model.plan_, random_state=0
    )
    again.fit(X[:2000], y[:2000])
    for each in (model, again):
        each.partial_fit(X[2000:3000], y[2000:3000])
        assert each.score(X[4000:], signal[4000:]) > before - 0.05


@pytest.mark.parametrize("solver, offset", [("auto", 1.7e9), ("eigenpro4", 1e4)])
def test_large_offsets_and_narrow_numbers_keep_their_digits(solver, offset):
    X = (g.normal(size=(3000, 2)) * 1e5).astype(np.float32)
    y = offset + 10 * np.sin(2e-5 * X[:, 0].astype(float))
    model = KernelRegressor(
        kernel=Laplacian(2e5), n_centers=100, random_state=0, ridge=1e-3, solver=solver
    ).partial_fit(X[:1000], y[:1000])
    model.partial_fit(X[1000:2500], y[1000:2500])
    small = np.abs(X).max(1) < 6e4
    small[:1000] = False
    model.partial_fit(X[small].astype(np.float16), y[small])
    assert model.score(X[2500:], y[2500:]) > 0.95


def test_the_model_keeps_its_precision_and_takes_a_new_ridge():
    X = g.normal(size=(2000, 3)).astype(np.float32)
    settings = dict(
        kernel=Laplacian(2.0), n_centers=100, ridge=1e-2, precision="float32", random_state=0
    )
    for solver in ("falkon", "eigenpro4"):
        model = KernelRegressor(solver=solver, **settings).partial_fit(X[:1000], X[:1000, 0])
        before = model.predict(X[:2]).dtype
        model.set_params(ridge=1e5).partial_fit(X[1000:], X[1000:, 0])
        assert model.predict(X[:2]).dtype == before and model.ridge_ == pytest.approx(1e5)
        assert np.abs(model.predict(X) - model.model_.intercept.item()).max() < 0.2


def test_centers_that_are_there_already_are_left_out():
    X = g.normal(size=(2000, 3)).astype(np.float32)
    model = KernelRegressor(kernel=Laplacian(2.0), n_centers=100, random_state=0).partial_fit(
        X[:1000], X[:1000, 0]
    )
    with pytest.warns(UserWarning, match="101 of the 104 rows"):
        model.add_centers(np.concatenate([model.model_.Z, X[1000:1003], X[1000:1001]]))
    assert model.model_.n_centers == 103
    model.partial_fit(X[1000:], X[1000:, 0])
    assert model.model_.alpha.abs().max() < 100 and model.score(X, X[:, 0]) > 0.95


def test_weights_that_cancel_each_other_are_kept_in_float64():
    X = g.normal(size=(3000, 3)).astype(np.float32)
    y = np.sin(2 * X[:, 0])
    kernel = kernelmill.kernels.Gaussian(8.0)
    model = KernelRegressor(
        kernel=kernel,
        n_centers=200,
        solver="falkon",
        precision="float32",
        ridge=1e-9,
        random_state=0,
    )
    model.partial_fit(X[:1000], y[:1000]).partial_fit(X[1000:2000], y[1000:2000])
    exact = KernelRegressor(kernel=kernel, centers=model.model_.Z, solver="direct", ridge=1e-9).fit(
        X[:2000], y[:2000]
    )
    assert (
        model.model_.alpha.dtype == torch.float64
        and model.score(X[2000:], y[2000:]) > exact.score(X[2000:], y[2000:]) - 0.01
    )


def test_rows_that_an_interrupt_kept_from_being_learned_are_not_counted():
    X = g.normal(size=(4000, 3)).astype(np.float32)
    model = KernelRegressor(
        kernel=Laplacian(2.0), n_centers=100, solver="eigenpro4", random_state=0
    ).fit(X[:2000], X[:2000, 0])

    def interrupt(event):
        if event.kind == "projection":
            raise KeyboardInterrupt

    model.callbacks = interrupt
    with pytest.warns(UserWarning, match="ended after 0 of"):
        model.partial_fit(X[2000:], X[2000:, 0])
    assert model.rows_seen_ < 4000


@pytest.mark.parametrize(
    "solver, gap", [("auto", 0.75), (EigenPro4(), 0.3)], ids=["auto", "eigenpro4"]
)
def test_chunks_end_near_all_rows_at_once(solver, gap):
    rows = g.normal(size=(10_000, 8)).astype(np.float32)
    target = np.sin(2 * rows[:, 0]) * rows[:, 1] + 0.3 * g.normal(size=10_000)
    scores, settings = [], dict(kernel=Laplacian(4.0), n_centers=400, random_state=0, solver=solver)
    model = KernelRegressor(**settings)
    for i in range(0, 8000, 1000):
        model.partial_fit(rows[i : i + 1000], target[i : i + 1000])
        scores.append(model.score(rows[8000:], target[8000:]))
    same = {**settings, "n_centers": None, "centers": model.model_.Z, "ridge": model.ridge_}
    once = KernelRegressor(**same).fit(rows[:8000], target[:8000]).score(rows[8000:], target[8000:])
    assert once - scores[0] > 0.05 and scores[-1] - scores[0] > gap * (once - scores[0])


def test_with_many_centers_some_of_them_stand_in(monkeypatch):
    monkeypatch.setattr("kernelmill.learning.streaming.MANY", 50)
    monkeypatch.setattr("kernelmill.learning.streaming.EXACT", 100)
    rows = g.normal(size=(4000, 3)).astype(np.float32)
    target = np.sin(rows[:, 0])
    model = KernelRegressor(kernel=Laplacian(2.0), n_centers=500, random_state=0).partial_fit(
        rows[:2000], target[:2000]
    )
    before = model.score(rows[3000:], target[3000:])
    model.partial_fit(rows[2000:2020], target[2000:2020])
    assert model.plan_.solver == "eigenpro4" and model.plan_.n == 70
    assert model.score(rows[3000:], target[3000:]) > before - 0.01


def test_partial_fit_goes_on_with_the_square_loss_only():
    X = g.normal(size=(3000, 4)).astype(np.float32)
    label = g.integers(0, 2, 3000)
    for solver in ("pegasos", kernelmill.solvers.Falkon("logistic")):
        model = KernelClassifier(kernel=Laplacian(2.0), solver=solver, ridge=1.0, random_state=0)
        model.partial_fit(X[:300], label[:300], classes=[0, 1])
        with pytest.raises(InputError, match="square loss"):
            model.partial_fit(X[:300], label[:300])
    weighted = KernelClassifier(
        kernel=Laplacian(3.0), n_centers=300, ridge=0.1, random_state=0, class_weight={0: 1, 1: 50}
    )
    weighted.partial_fit(X[:500], label[:500], classes=[0, 1])
    weighted.partial_fit(X[500:2500], label[500:2500])
    assert weighted.predict(X[2500:]).mean() > 0.9
