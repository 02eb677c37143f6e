"""Memory that runs out anywhere: the same answer, or one sentence and nothing lost."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from kernelmill import KernelClassifier, KernelRegressor, kernels, load, solvers
from kernelmill.errors import OutOfMemory

TRIED = 20  # allocations of each step that fail once, from the first to the last


class Failing(TorchDispatchMode):
    """Counts allocations of this thread's torch operations; the one with number `at` fails, as on
    a CPU.
    """

    def __init__(self, at: int = -1) -> None:
        super().__init__()
        self.at, self.seen = at, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if all(each.alias_info is None for each in func._schema.returns):
            self.seen += 1
            if self.seen == self.at:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes.")
        return func(*args, **(kwargs or {}))


def failures(work):
    """Runs `work` once to count its allocations, then with one of them failing, for many; yields
    what came of each: its result, or the error.
    """
    with Failing() as counting:
        work()
    step = max(1, counting.seen // TRIED)
    for at in range(1, counting.seen + 1, step):
        try:
            with Failing(at):
                found = work()
        except OutOfMemory as error:
            found = error
            assert str(error).endswith(".") and "\n" not in str(error)
        yield found


g = np.random.default_rng(0)
X, y = g.standard_normal((150, 3)), g.standard_normal(150)
FIXED = dict(kernel=kernels.Gaussian(2.0), ridge=0.1, random_state=0, precision="float64")
SOLVERS = {
    "direct": dict(solver="direct"),
    "pcg": dict(solver=solvers.PCG(tolerance=1e-10, rank=20, block=20)),
    "eigenpro4": dict(solver=solvers.EigenPro4(s=30, q=5), n_centers=60, epochs=2),
    "falkon": dict(solver="falkon", n_centers=60),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_a_fit_gives_the_same_model_or_one_sentence(name):
    settings = {**FIXED, **SOLVERS[name]}
    want = KernelRegressor(**settings).fit(X, y).predict(X)
    outcomes = []
    before = KernelRegressor(**settings).fit(X, y)

    def work():
        return KernelRegressor(**settings).fit(X, y)

    for found in failures(work):
        outcomes.append(isinstance(found, OutOfMemory))
        if not outcomes[-1]:
            np.testing.assert_allclose(found.predict(X), want, rtol=0, atol=1e-9)
    assert any(outcomes)
    np.testing.assert_array_equal(before.predict(X), want)


def test_a_second_fit_that_fails_leaves_the_first_model():
    model = KernelRegressor(**FIXED, solver="direct").fit(X, y)
    want = model.predict(X)
    before = -1  # the fit that counted
    for found in failures(lambda: model.fit(X, -y)):
        sign = before if isinstance(found, OutOfMemory) else -1
        np.testing.assert_allclose(model.predict(X), sign * want, rtol=0, atol=1e-9)
        model.fit(X, y)
        before = 1


def test_predict_and_save_give_the_same_or_one_sentence(tmp_path):
    model = KernelRegressor(**FIXED, solver="direct").fit(X, y)
    want = model.predict(X)
    for found in failures(lambda: model.predict(X)):
        if not isinstance(found, OutOfMemory):
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)
    model.save(tmp_path / "m")
    for _ in failures(lambda: model.save(tmp_path / "m")):
        np.testing.assert_array_equal(load(tmp_path / "m").predict(X), want)


def test_a_run_goes_on_after_memory_ran_out(tmp_path):
    settings = {**FIXED, **SOLVERS["pcg"]}
    want = KernelRegressor(**settings).fit(X, y).predict(X)
    folders = iter(range(10_000))

    def work():
        folder = tmp_path / str(next(folders))
        run = KernelRegressor(**settings, checkpoint=folder, checkpoint_every=1, resume=True)
        return run.fit(X, y)

    for i, found in enumerate(failures(work)):
        if isinstance(found, OutOfMemory):
            again = dict(checkpoint=tmp_path / str(i + 1), resume=True)
            found = KernelRegressor(**settings, **again).fit(X, y)
        np.testing.assert_allclose(found.predict(X), want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("model", [KernelRegressor, KernelClassifier])
def test_a_partial_fit_that_fails_leaves_the_model(model):
    X_before, targets = X.copy(), y if model is KernelRegressor else (y > 0).astype(int)
    X_before[:, 2] = 1.0  # a feature that says nothing until the next chunk
    settings = dict(kernel=kernels.Gaussian(2.0), ridge=0.1, n_centers=40, random_state=0)
    classes = {} if model is KernelRegressor else {"classes": [0, 1]}
    first = model(**settings, solver="direct").partial_fit(X_before, targets, **classes)
    want, state, used = first.predict(X), pickle.dumps(first), []
    copies = [pickle.loads(state) for _ in range(2 * TRIED + 2)]

    def work():
        used.append(copies.pop())
        return used[-1].partial_fit(X, targets)

    for found in failures(work):
        if isinstance(found, OutOfMemory):
            assert used[-1].rows_seen_ == first.rows_seen_
            np.testing.assert_array_equal(used[-1].predict(X), want)
