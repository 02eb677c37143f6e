"""solver="auto": the plan predicts each candidate, takes the fastest that fits, and is kept with the model."""

import dataclasses

import numpy as np
import pytest
import torch

import kernelmill
from kernelmill import InputError, KernelClassifier, KernelRegressor, Plan, kernels, load, solvers
from kernelmill.costs import falkon
from kernelmill.rates import Rates, measure

CPU = Rates(block=2e8, read=1.5e10, products=2e11, factor=1.2e11, column=5e-6, launch=3e-6)  # two cores of a Xeon, d = 784


def base(n: int, p: int, **more) -> Plan:
    values = {"precision": "float32", "budget": 16 << 30, "rates": CPU, "epochs": 0, "every_row": n == p, **more}
    return Plan("auto", n, 784, 10, p, **values)


def test_the_candidates_are_the_five_and_the_fastest_is_taken():
    table = solvers.forecast(base(60_000, 5_000))
    assert [candidate.label for candidate in table.candidates] == [
        "direct", "falkon, K(X,Z) kept", "falkon, K(X,Z) recomputed", "eigenpro4, cholesky", "eigenpro4, carried residual",
    ]  # fmt: skip
    seconds = [candidate.plan.seconds for candidate in table.candidates]
    assert table.chosen is table.candidates[int(np.argmin(seconds))] and table.chosen.label == "falkon, K(X,Z) kept"
    text = str(table)
    assert "← chosen" in text and "60,000 rows × 784 features, 5,000 centers" in text and len(text.splitlines()) == 8


def test_memory_decides_what_fits():
    little = solvers.forecast(base(60_000, 5_000, budget=1 << 30))
    assert little.candidates[1].plan is None and "may be used" in little.candidates[1].reason and little.chosen.plan.bytes <= 1 << 30
    assert solvers.forecast(base(2_000_000, 300_000)).chosen.label == "eigenpro4, carried residual"
    with pytest.raises(InputError, match="no solver fits 5000 centers"):
        _ = solvers.forecast(base(60_000, 5_000, budget=1 << 20)).chosen


def test_small_data_is_solved_exactly_and_large_data_in_linear_memory():
    assert solvers.forecast(base(2_000, 2_000)).chosen.solver.name == "direct"
    assert solvers.forecast(base(5_000_000, 100_000)).chosen.solver.name == "eigenpro4"


def test_a_regression_pays_more_for_an_exact_solution():
    slow = dataclasses.replace(CPU, products=6e10, factor=3.6e10)  # factors cost more here than stochastic steps
    classes, numbers = (solvers.forecast(base(20_000, 20_000, regression=r, rates=slow)) for r in (False, True))
    assert classes.chosen.solver.name == "eigenpro4" and numbers.chosen.solver.name in ("direct", "falkon")
    exact = solvers.predicted(solvers.Falkon(), base(20_000, 5_000, regression=True, fine="float64"))
    assert exact.precision == "float64"


def test_centers_follow_from_the_time_they_take():
    p = [solvers.affordable(base(n, n)).p for n in (3_000, 60_000, 500_000, 20_000_000)]
    assert p[0] == 3_000 and p[1] >= 20_000 and p[2] >= p[3] >= 1000
    faster = dataclasses.replace(CPU, block=2e11, read=4e12, products=5e13, factor=3e13)
    assert solvers.affordable(base(500_000, 500_000, rates=faster, budget=100 << 30)).p > p[2]


def test_costs_grow_as_the_work_does():
    plan = solvers.Falkon(keep=True).plan(base(100_000, 2_000, budget=64 << 30))
    twice = solvers.Falkon(keep=True).plan(base(200_000, 2_000, budget=64 << 30))
    assert 1.9 < falkon(twice, CPU) / falkon(plan, CPU) < 2.6
    slower = dataclasses.replace(CPU, block=CPU.block / 10)
    recomputing = solvers.Falkon(keep=False).plan(base(100_000, 2_000))
    assert falkon(recomputing, slower) > 5 * falkon(recomputing, CPU)


def test_rates_are_measured_and_positive():
    rates = measure(kernels.Laplacian(3.0), 16, "float32", "cpu")
    assert all(value > 0 for name, value in dataclasses.asdict(rates).items() if name != "column") and rates.column >= 0
    assert measure(kernels.Laplacian(5.0), 16, "float32", "cpu") is rates  # once per process, whatever the bandwidth
    assert 1e6 < rates.block < 1e14 and rates.read > 1e8


def test_plan_needs_no_data():
    table = kernelmill.plan(n=100_000, d=20, n_centers=2_000, n_outputs=3, device="cpu")
    assert table.plan.n == 100_000 and table.plan.p == 2_000 and table.plan.seconds > 0 and table.plan.bytes > 0
    assert kernelmill.plan(n=500, d=3).plan.p == 500
    with pytest.raises(InputError, match="n=0 was given"):
        kernelmill.plan(n=0, d=3)
    with pytest.raises(InputError, match="device="):
        kernelmill.plan(n=10, d=3, device="tpu")


def rows(n=3000, d=5, seed=0):
    g = np.random.default_rng(seed)
    X = g.standard_normal((n, d)).astype(np.float32)
    return X, np.sin(X @ g.standard_normal(d)) + 0.3 * g.standard_normal(n)


def test_the_prediction_is_stored_and_a_stored_plan_does_the_same(tmp_path):
    X, y = rows(12_000)
    labels = (y > 0).astype(int)
    model = KernelClassifier(kernel=kernels.Laplacian(2.0), n_centers=2_500, random_state=3).fit(X, labels)
    assert model.plan_.rates is not None and model.plan_.seconds > 0 and model.plan_.solver in ("direct", "falkon", "eigenpro4")
    model.save(tmp_path / "m")
    plan = load(tmp_path / "m").plan_
    assert plan == model.plan_
    again = KernelClassifier(kernel=kernels.Laplacian(2.0), n_centers=2_500, ridge=model.ridge_, solver=plan, random_state=3).fit(X, labels)
    assert torch.equal(again.model_.alpha, model.model_.alpha) and torch.equal(again.model_.Z, model.model_.Z)
    again.save(tmp_path / "again")
    assert load(tmp_path / "again").solver == plan
    with pytest.raises(InputError, match="the plan given as solver has n = "):
        again.fit(X[:5000], labels[:5000])


@pytest.mark.parametrize("name", ["eigenpro4", "falkon"])
def test_a_stored_plan_of_any_solver_gives_the_same_bits(name):
    X, y = rows()
    model = KernelRegressor(kernel=kernels.Laplacian(2.0), n_centers=300, ridge=0.1, solver=name, random_state=3).fit(X, y)
    again = KernelRegressor(kernel=kernels.Laplacian(2.0), n_centers=300, ridge=0.1, solver=model.plan_).fit(X, y)
    assert torch.equal(again.model_.alpha, model.model_.alpha)


def test_auto_reaches_the_direct_solution():
    X, y = rows(8000)
    fits = [
        KernelRegressor(kernel=kernels.Laplacian(2.0), n_centers=2_000, ridge=0.5, solver=solver, random_state=0).fit(X, y).predict(X)
        for solver in ("auto", "direct", solvers.Falkon(keep=False))
    ]
    for other in fits[1:]:
        assert np.linalg.norm(fits[0] - other) < 0.02 * np.linalg.norm(other)


def test_verbose_says_the_plan_before_the_fit(capsys):
    X, y = rows(500)
    KernelRegressor(kernel=kernels.Laplacian(2.0), n_centers=100, solver="falkon", verbose=1).fit(X, y)
    said = capsys.readouterr().out
    assert "falkon: 500 rows × 5 features, 100 centers" in said.replace("\n", " ")
