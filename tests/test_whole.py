"""Kernels judged at the size of the run: identities, and metrics of the run's own model."""

from functools import partial

import numpy as np
import pytest
import torch

from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.kernels import Gaussian, Laplacian, Sum
from kernelmill.tuning import whole
from kernelmill.tuning.sample import Effort, Sample
from kernelmill.tuning.search import Choice
from kernelmill.tuning.whole import TOLERANCE, Whole, improve

TILE = 1 << 20


def a_direction(n=900, d=6, seed=0):
    """Targets that depend on one direction of d features."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=g, dtype=torch.float64)
    Y = torch.sin(2 * (X[:, :1] + X[:, 1:2])) + 0.05 * torch.randn(n, 1, generator=g).double()
    return X, Y


def judge_of(n=900):
    X, Y = a_direction(n)
    return Whole(Sample(X, Y, torch.ones(n).double(), 1.0), TILE, 1 << 30)


def keep(tried, label, score):
    tried.append((label, score))


def test_an_attempt_is_kernel_ridge_of_all_rows_but_those_that_judge():
    judge, kernel = judge_of(), Sum([Laplacian(3.0), Gaussian(2.0)])
    found = judge.attempt(kernel, 0.1, "both")
    assert len(judge.held) == 180 and len(found.alpha) == 720
    system = kernel(judge.X[:720]) + 0.1 * torch.eye(720, dtype=torch.float64)
    expected = kernel(judge.X[720:], judge.X[:720]) @ torch.linalg.solve(system, judge.Y[:720])
    distance = (found.verdict.values[720:] - expected).norm() / expected.norm()
    assert distance < 2 * TOLERANCE
    error = ((expected - judge.Y[720:]) ** 2).mean().item()
    assert found.verdict.score == pytest.approx(error, rel=1e-2)


def test_rounds_go_on_as_long_as_rows_that_were_kept_out_prefer_them():
    for kernel in (Laplacian(4.0), Sum([Laplacian(4.0), Gaussian(3.0)])):
        judge, start, tried = judge_of(), Choice(kernel, 1e-2, 1.0, "start"), []
        note = partial(keep, tried)
        found = improve(start, judge, True, note, lambda seconds: True)
        assert found.error < 0.5 * tried[0][1]  # one direction of six matters
        assert found.error < 1.3 * min(score for _, score in tried)
        assert "gradient metric" in found.label and tried[0][0] == "start, on 900 rows"
        again = judge.attempt(found.kernel, found.ridge, "")
        assert abs(again.verdict.score - found.error) < 1e-9


def test_what_is_no_better_stays_and_a_ridge_that_was_given_too():
    X, _ = a_direction()
    noise = torch.randn(900, 1, generator=torch.Generator().manual_seed(3)).double()
    judge = Whole(Sample(X, noise, torch.ones(900).double(), 1.0), TILE, 1 << 30)
    start = Choice(Laplacian(4.0), 100.0, 1.0, "start")
    found = improve(start, judge, False, lambda *each: None, lambda seconds: True)
    assert found.kernel is start.kernel and found.ridge == 100.0
    tried = []
    assert (
        improve(start, judge, True, lambda *each: tried.append(each), lambda seconds: False)
        is start
    )
    assert not tried


def test_a_fit_learns_the_metric_of_its_own_model(monkeypatch):
    few = Effort(200, 300, 500, True, 1, 3, 0, 0, 0, 0, 10**9, 10**9, 500)
    monkeypatch.setattr(Effort, "on", classmethod(lambda cls, device, budget: few))
    monkeypatch.setattr(whole, "HELD", 300)
    X, Y = (part.numpy() for part in a_direction(2000))
    model = KernelRegressor(device="cpu", random_state=0, solver="direct").fit(X, Y[:, 0])
    labels = [label for label, *_ in model.plan_.tried]
    assert any(label.endswith(", on 2000 rows") for label in labels)
    assert any(", on 2000 rows, gradient metric" in label for label in labels)
    assert model.plan_.chosen in labels
    new, truth = (part.numpy() for part in a_direction(500, seed=1))
    assert np.mean((model.predict(new) - truth[:, 0]) ** 2) < 0.02
    plain = KernelRegressor(
        device="cpu", random_state=0, solver="direct", feature_learning=False
    ).fit(X, Y[:, 0])
    assert not any("on 2000 rows" in label for label, *_ in plain.plan_.tried)
    classes = KernelClassifier(device="cpu", random_state=0, solver="direct").fit(X, Y[:, 0] > 0)
    assert any(" rows, gradient metric" in label for label, *_ in classes.plan_.tried)
