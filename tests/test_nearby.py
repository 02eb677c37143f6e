"""Judging by the nearest rows: identities, and a choice that a sample of the rows gets wrong."""

import numpy as np
import pandas as pd
import pytest
import torch

from kernelmill import KernelRegressor
from kernelmill.data.source import source_of
from kernelmill.kernels import Gaussian, Laplacian, Sum
from kernelmill.learning import flow
from kernelmill.tuning import left_out, nearby
from kernelmill.tuning.nearby import Nearby, most_among
from kernelmill.tuning.sample import Effort, Sample

BUDGET = 1 << 30


def rows(n=400, seed=0, d=2):
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    Y = torch.sin(12 * X[:, :1]) + 0.1 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    return X, Y


def source_for(X, Y):
    zero, one = torch.zeros(1).double(), torch.ones(1).double()
    return source_of(
        X, Y, mean=zero, scale=one, w=torch.ones(len(X)), keep=None, seed=0, device="cpu", comm=None
    )


def judge_of(X, Y, p=None, budget=BUDGET, by_time=None):
    source = source_for(X, Y)
    sample = Sample(X, Y, torch.ones(len(X)).double(), 1.0)
    draw = torch.Generator().manual_seed(0)
    return Nearby(sample, source, p or len(X), budget, draw, by_time=by_time)


@pytest.mark.parametrize("kernel", [Laplacian(0.5), Sum([Laplacian(0.3), Gaussian(0.5)])])
def test_with_all_rows_around_it_is_kernel_ridge(kernel, monkeypatch):
    X, Y = rows()
    monkeypatch.setattr(nearby, "ON_CPU", (20, 1000))
    judge = judge_of(X, Y)
    values = judge.values(judge.grams(kernel), 0.1)
    there = judge._among
    system = kernel(X[there]) + 0.1 * torch.eye(len(there), dtype=torch.float64)
    expected = kernel(judge.X, X[there]) @ torch.linalg.solve(system, Y[there])
    assert len(values) == 20 and len(there) == 380
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "kernel",
    [
        Laplacian(torch.tensor([1.0, 3.0])),
        Sum([Laplacian(torch.tensor([0.05, 9.0])), Gaussian(torch.tensor([9.0, 0.1]))]),
    ],
)
def test_the_rows_around_are_those_that_the_kernel_is_largest_at(kernel, monkeypatch):
    X, Y = rows()
    monkeypatch.setattr(nearby, "ON_CPU", (20, 5))
    judge = judge_of(X, Y)
    (around,) = judge.grams(kernel)
    nearest = kernel(judge.X, X[judge._among]).sort(descending=True).values[:, :5]
    torch.testing.assert_close(around.k.sort(descending=True).values, nearest)


def test_no_more_rows_are_judged_than_fit():
    judge = judge_of(*rows(4000), budget=3 * 8 * 256**2 * 40)
    assert len(judge.X) == 40
    assert most_among([Laplacian(1.0)], judge._source, 8 * 2 * 1000) == 1000


def test_later_rows_are_judged_by_earlier_ones():
    judge = judge_of(*rows(4000), by_time=torch.arange(4000).flip(0))
    assert judge.rows.max() < 400 and len(judge.rows) == 400
    assert judge._among.min() >= 400 and len(judge._among) == 3600


@pytest.mark.parametrize("given", ["in order", "stations one after the other", "shuffled"])
def test_rows_in_the_order_of_a_date_are_known_to_be(given, monkeypatch):
    days = np.repeat(np.arange(300), 40)
    if given == "stations one after the other":
        days = np.tile(np.repeat(np.arange(300), 10), 4)
    elif given == "shuffled":
        days = np.random.default_rng(0).permutation(days)
    frame = pd.DataFrame({"day": np.datetime64("2020-01-01") + days})

    def look(request, data, *rest):
        kept, order = data.rows.keep, data.by_time
        assert (order is None) == (given == "shuffled")
        if order is not None:
            ordered = days[kept[order]]
            assert len(ordered) > 11_000 and (np.diff(ordered) >= 0).all()
        raise KeyboardInterrupt

    monkeypatch.setattr(flow, "decide", look)
    with pytest.raises(KeyboardInterrupt):
        KernelRegressor().fit(frame, days * 1.0)


@pytest.mark.slow
def test_a_kernel_is_preferred_by_more_than_chance():
    judge = judge_of(*rows(4000))
    good, alike, bad = (
        judge.verdict(judge.grams(kernel), None, 1e-2)
        for kernel in (Laplacian(0.5), Laplacian(0.52), Laplacian(0.002))
    )
    assert judge.prefers(good, bad)
    assert not judge.prefers(bad, good)
    assert not (judge.prefers(good, alike, 2.0) or judge.prefers(alike, good, 2.0))
    assert not judge.prefers(good, good)


@pytest.mark.slow
def test_a_ridge_changes_by_more_than_chance_and_to_the_largest_that_is_nearly_as_good():
    judge, kernel = judge_of(*rows(4000)), Laplacian(0.5)
    grams = judge.grams(kernel)
    ridges = [1e-4 * 3.0**k for k in range(12)]
    scores = {ridge: judge.verdict(grams, ridge, 0.0).score for ridge in ridges}
    best = min(scores, key=scores.__getitem__)
    assert judge.verdict(grams, None, best).ridge == best
    taken = judge.verdict(grams, None, best / 27)
    assert taken.ridge > best / 27 and taken.score <= 1.02 * scores[best]


def test_a_run_of_many_rows_is_chosen_at_its_own_density(monkeypatch):
    few = Effort(100, 150, 300, False, 1, 2, 0, 0, 0, 0, 500, 500, 300)
    monkeypatch.setattr(Effort, "on", classmethod(lambda cls, device, budget: few))
    X, Y = rows(1200)
    model = KernelRegressor(device="cpu", random_state=0).fit(X.numpy(), Y[:, 0].numpy())
    labels = [label for label, *_ in model.plan_.tried]
    asked = [label for label in labels if label.endswith(f"nearest of {model.plan_.p} rows")]
    assert len(asked) >= 2 and labels[-len(asked) :] == asked
    assert model.plan_.chosen in labels
    seconds = [at for *_, at in model.plan_.tried]
    assert seconds == sorted(seconds)


@pytest.mark.slow
def test_a_copy_of_a_row_says_nothing_of_it():
    """Every row twice: the ridge is that of the rows once, and does not interpolate."""
    X, Y = rows(2000)
    once, twice = (
        judge.verdict(judge.grams(Laplacian(0.5)), None, 1e-2)
        for judge in (judge_of(X, Y), judge_of(X.repeat(2, 1), Y.repeat(2, 1)))
    )
    assert twice.ridge >= once.ridge / 3 and twice.score > once.score / 2


def test_leverages_of_wanted_rows_are_theirs_however_they_are_found(monkeypatch):
    X, Y = rows(200)
    source, wanted = source_for(X, Y), torch.tensor([150, 3, 17])
    kernel, ridge = Laplacian(0.5), 0.3
    every = left_out.leverages(kernel, ridge, source, None, 200, BUDGET)
    exact = left_out.leverages(kernel, ridge, source, None, 200, BUDGET, wanted)
    of_centers = left_out.leverages(kernel, ridge, source, X, 200, BUDGET, wanted)
    monkeypatch.setattr(left_out, "EACH", 100)
    of_nearest = left_out.leverages(kernel, ridge, source, None, 200, BUDGET, wanted)
    for found in (exact, of_centers, of_nearest):
        assert torch.equal(found.rows, wanted)
        torch.testing.assert_close(found.values, every.values[wanted], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.lever, every.lever[wanted], rtol=1e-6, atol=1e-6)
