"""How far bandwidths are descended."""

import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from kernelmill import InputError, KernelClassifier
from kernelmill.kernels import Gaussian, Laplacian, Matern
from kernelmill.tuning.descent import minimise
from kernelmill.tuning.local import _copies
from kernelmill.tuning.loo import LeaveOneOutOfRows, Profile, loo_error, loo_residuals
from kernelmill.tuning.parallel import side_by_side, workers_for
from kernelmill.tuning.sample import Sample
from kernelmill.tuning.search import _Found, _mean, _parts, average, descend


def test_bandwidths_of_noisy_classes_stay_together():
    """The same rows and targets, taken for numbers and for classes."""
    g = torch.Generator().manual_seed(5)
    X = torch.randn(300, 8, generator=g, dtype=torch.float64)
    Y = (X[:, :1] + 2 * torch.randn(300, 1, generator=g).double() > 0).double()
    Y = torch.cat([Y, 1 - Y], 1)
    mean, w = Y.mean(0), torch.ones(300).double()
    apart = []
    for frequencies in (None, mean):
        sample = Sample(X, Y - mean, w, 1.0, frequencies=frequencies)
        (found,) = descend("laplacian", None, sample, 300)
        apart.append(torch.as_tensor(found.kernel.bandwidth).log().std().item())
    assert apart[1] < 0.9 * apart[0]


def test_bandwidths_are_averaged_over_parts():
    """Eight columns that matter alike: what differs between their bandwidths is noise."""
    g = torch.Generator().manual_seed(3)
    X = torch.randn(400, 8, generator=g, dtype=torch.float64)
    Y = (X.sum(1, keepdim=True) + 3 * torch.randn(400, 1, generator=g).double() > 0).double()
    Y = torch.cat([Y, 1 - Y], 1)
    w = torch.ones(400).double()
    sample = Sample(X, Y - Y.mean(0), w, 1.0, frequencies=Y.mean(0))
    (one,) = descend("laplacian", None, sample, 400)
    mean = average(one, None, 300, 4, 8)
    parts = [
        average(replace(one, sample=sample.some(rows)), None, 300, 1, 8).kernel.bandwidth.log()
        for rows in _parts(400, 300, 4)
    ]
    torch.testing.assert_close(mean.kernel.bandwidth.log(), torch.stack(parts).mean(0))
    assert mean.kernel.bandwidth.log().std() < 0.9 * one.kernel.bandwidth.log().std()


def test_parts_with_one_bandwidth_for_all_columns_are_averaged_too():
    g = np.random.default_rng(2)
    x = g.normal(size=250)
    g.normal(size=250)
    X, y = np.c_[x, x], g.integers(0, 2, 250)
    assert KernelClassifier(random_state=0).fit(X, y).predict(X).shape == (250,)
    kernels = [Laplacian(torch.tensor([2.0, 8.0])), Laplacian(4.0)]
    mean = _mean([_Found(each, 0.1, None) for each in kernels])
    assert mean.kernel.bandwidth.tolist() == pytest.approx([8**0.5, 32**0.5])
    assert mean.ridge == pytest.approx(0.1)


@pytest.mark.parametrize(("n", "rows"), [(100, 20), (100, 25), (100, 60), (10, 500), (7, 3)])
def test_parts_differ_as_much_as_they_can(n, rows):
    parts = _parts(n, rows, 4)
    assert len(parts) == 4 and all(len(part) == len(set(part.tolist())) for part in parts)
    every = torch.cat(parts).unique()
    assert all(0 < len(part) <= rows for part in parts)
    if 4 * rows <= n:
        assert len(every) == 4 * rows
    else:  # each lacks others
        assert not set.intersection(*({*range(n)} & {*part.tolist()} for part in parts))
        assert len(every) == n


def test_a_descent_ends_where_little_is_gained_and_not_before_it_has_begun():
    def walk(start, enough):
        x, seen = torch.tensor(start, dtype=torch.float64, requires_grad=True), []

        def error():
            seen.append(None)
            return torch.log(1 + x[0] ** 2 + 1e-2 * (x[1] - x[0]) ** 2)

        minimise(error, [x], None, 30, enough=enough)
        return len(seen), error().item()

    (few, rough), (many, fine) = walk([3.0, 1.0], 1e-2), walk([3.0, 1.0], 0.0)
    assert few < many and fine <= rough < fine + 2e-2
    # Hardly any slope where it starts, and a long way to go.
    shallow = lambda x: 0.2 / (1 + torch.exp(4 - x))  # noqa: E731
    x = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    before = -shallow(x).sum().item()
    minimise(lambda: -shallow(x).sum(), [x], None, 15, enough=5e-3)
    assert -shallow(x).sum().item() < before - 1.0


def test_copies_are_found_to_the_bit_among_round_numbers_too():
    g = torch.Generator().manual_seed(0)
    for high in (2, 8, 100):
        P = torch.randint(0, high, (6, 300, 12), generator=g).double()
        P[2, 57] = P[2, 200]
        P[3, 55] = -0.0
        P[3, 59] = 0.0
        found = _copies(P, 250)
        for part, copies in zip(P, found, strict=True):
            _, place, count = torch.unique(part, dim=0, return_inverse=True, return_counts=True)
            assert torch.equal(copies, (count[place] > 1)[-250:])
        assert found[2, 7] and found[3, 5] and found[3, 9]


@pytest.mark.parametrize("kernel", [Laplacian(1.0), Gaussian(1.0), Matern(1.0)])
def test_copies_are_no_matter_of_precision(kernel):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(100, 20, generator=g, dtype=torch.float64).repeat(2, 1)
    Y, w = x[:, :1].clone(), torch.ones(200).double()
    found = []
    for error in (LeaveOneOutOfRows.apply, loo_error):
        at = (x / 3).requires_grad_()
        total = error(at, Y, 1e-3 * w, w, kernel)
        total.backward()
        found.append((total.detach(), at.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kernel", [Laplacian(1.0), Gaussian(1.0), Matern(1.0)])
@pytest.mark.parametrize("ridge", [1e-5, 1.0])
@pytest.mark.parametrize("last", [40, 15, 1])
def test_leave_one_out_errors_of_batches_have_the_slopes_of_autograd(kernel, ridge, last):
    """A small ridge is taken in float64, a large one in float32; only the last rows count."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(3, 40, 4, generator=g, dtype=torch.float64)
    Y, w = torch.randn(3, 40, 2, generator=g).double(), torch.rand(3, 40, generator=g).double()
    counted = (w * (torch.arange(40) % 3 > 0))[:, -last:]
    found = []
    for fast in (True, False):
        at = x.clone().requires_grad_()
        lam = torch.tensor(ridge, dtype=torch.float64, requires_grad=True)
        if fast:
            total = loo_error(at, Y, lam / w, counted, kernel)
        else:
            sq_dist = (at[:, :, None] - at[:, None]).square().sum(-1)
            r = loo_residuals(Profile.apply(sq_dist, kernel), Y, lam / w)[:, -last:]
            total = (counted[..., None] * r * r).sum()
        total.backward()
        found.append((total.detach(), at.grad, lam.grad))
    for fast, slow in zip(*found, strict=True):
        assert fast.dtype == torch.float64
        torch.testing.assert_close(fast, slow, rtol=1e-3 if ridge > 1e-3 else 1e-7, atol=1e-6)


# ---- side by side


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_work_side_by_side_comes_in_its_order(two_threads):
    cpu, seen = torch.device("cpu"), []

    def work(i):
        time.sleep(0.03 * (3 - i % 3))
        seen.append((torch.get_num_threads(), torch.is_grad_enabled()))
        return i

    with torch.no_grad():
        assert list(side_by_side([partial(work, i) for i in range(7)], cpu)) == list(range(7))
    assert seen == [(1, True)] * 7 and torch.get_num_threads() == 2
    assert list(side_by_side([], cpu)) == []


def test_work_side_by_side_stops_where_nobody_asks(two_threads):
    begun = []

    def work(i):
        begun.append(i)
        time.sleep(0.02)
        return i

    found = side_by_side([partial(work, i) for i in range(50)], torch.device("cpu"))
    assert next(found) == 0
    found.close()
    assert len(begun) <= 4 and torch.get_num_threads() == 2


def test_an_error_of_one_is_raised_in_its_place(two_threads):
    def fails():
        raise InputError("this one")

    found = side_by_side([lambda: 1, fails, lambda: 3], torch.device("cpu"))
    assert next(found) == 1
    with pytest.raises(InputError, match="this one"):
        next(found)
    assert torch.get_num_threads() == 2


def test_one_piece_of_work_has_all_threads(two_threads):
    assert list(side_by_side([torch.get_num_threads], torch.device("cpu"))) == [2]
    assert workers_for(9, torch.device("cpu")) == 2 and workers_for(9, torch.device("cuda")) == 1


def test_one_thread_works_one_after_another():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        names = {threading.current_thread().name}
        work = [lambda: threading.current_thread().name] * 3
        assert set(side_by_side(work, torch.device("cpu"))) == names
    finally:
        torch.set_num_threads(before)
