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


def test_centers_can_be_added():
    rows = g.uniform(-3, 3, size=(8000, 1)).astype(np.float32)
    target = np.sin(5 * rows[:, 0])
    model = KernelRegressor(kernel=kernelmill.kernels.Gaussian(0.3), n_centers=8, random_state=0, warm_start=True, solver=EigenPro4())
    model.fit(rows, target)
    few, before = model.score(rows, target), model.predict(rows)
    model.add_centers(np.linspace(-3, 3, 60)[:, None])
    np.testing.assert_allclose(model.predict(rows), before, atol=1e-3)
    model.partial_fit(rows, target)
    assert model.model_.n_centers == 68 and model.score(rows, target) > max(0.9, few + 0.1)
    model.fit(rows, target)
    assert model.model_.n_centers == 68 and model.score(rows, target) > 0.9


def test_centers_stand_in_for_the_rows_seen():
    rows, more = g.normal(size=(600, 2)), g.normal(size=(400, 2))
    target, new = np.sin(rows[:, 0]), np.cos(more[:, 1])
    model = KernelRegressor(kernel=Laplacian(2.0), n_centers=50, random_state=0, solver="direct", ridge=1e-3)
    old = model.partial_fit(rows, target).model_
    model.partial_fit(more, new, sample_weight=np.full(400, 2.0))

    def K(A, B):
        return torch.exp(-torch.cdist(A, B) / 2)

    X, Z, y = torch.tensor(more), old.Z, torch.tensor(new)[:, None]
    A, seen = K(X, Z), 600 / 50 * K(Z, Z) @ K(Z, Z)
    right = 2 * A.T @ (y - old.intercept) + seen @ old.alpha
    torch.testing.assert_close(model.model_.alpha, torch.linalg.solve(2 * A.T @ A + seen + 1e-3 * K(Z, Z), right), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver, gap", [("auto", 0.75), (EigenPro4(), 0.4)], ids=["auto", "eigenpro4"])
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


def test_a_loaded_model_goes_on_as_the_saved_one(tmp_path):
    rows = g.normal(size=(3000, 3))
    target = np.sin(rows[:, 0])
    model = KernelRegressor(kernel=Laplacian(2.0), n_centers=100, random_state=0).partial_fit(rows[:1000], target[:1000])
    model.save(tmp_path / "m")
    again = kernelmill.load(tmp_path / "m")
    for each in (model, again):
        each.partial_fit(rows[1000:], target[1000:])
    assert torch.equal(model.model_.alpha, again.model_.alpha) and again.rows_seen_ == 3000


def test_with_many_centers_a_tenth_of_them_stands_in(monkeypatch):
    monkeypatch.setattr("kernelmill.estimators.partial.MANY", 50)
    monkeypatch.setattr("kernelmill.estimators.partial.EXACT", 100)
    rows = g.normal(size=(4000, 3)).astype(np.float32)
    target = np.sin(rows[:, 0])
    model = KernelRegressor(kernel=Laplacian(2.0), n_centers=500, random_state=0).partial_fit(rows[:2000], target[:2000])
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
    weighted = KernelClassifier(kernel=Laplacian(3.0), n_centers=300, ridge=0.1, random_state=0, class_weight={0: 1, 1: 50})
    weighted.partial_fit(X[:500], label[:500], classes=[0, 1])
    weighted.partial_fit(X[500:2500], label[500:2500])
    assert weighted.predict(X[2500:]).mean() > 0.9
