"""solver="auto": the plan predicts each candidate, takes the fastest that fits, and is kept with
the model.
"""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

import kernelmill
from kernelmill import InputError, KernelClassifier, KernelRegressor, Plan, kernels, load, solvers
from kernelmill.data import ArraySource
from kernelmill.learning import choose, flow
from kernelmill.planning.costs import direct_bytes
from kernelmill.planning.machine import Rates, measure
from kernelmill.planning.precision import eight_bits_pay
from kernelmill.projection import factor
from kernelmill.solvers import auto
from kernelmill.solvers.auto import Candidate, Forecast
from kernelmill.solvers.eigenpro_sizes import eigenpro_sizes, with_step
from kernelmill.tuning import local as neighbourhoods
from kernelmill.tuning import loo, search
from kernelmill.tuning.sample import Sample

# Two cores of a Xeon, d = 784.
CPU = Rates(block=2e8, read=1.5e10, products=2e11, factor=1.2e11, column=5e-6, launch=3e-6)


def base(n: int, p: int, **more) -> Plan:
    values = {
        "precision": "float32",
        "budget": 16 << 30,
        "rates": CPU,
        "epochs": 0,
        "every_row": n == p,
        **more,
    }
    return Plan("auto", n, 784, 10, p, **values)


def test_the_candidates_are_the_five_and_the_fastest_is_taken():
    table = solvers.forecast(base(60_000, 5_000))
    assert [candidate.label for candidate in table.candidates] == [
        "direct",
        "falkon, K(X,Z) kept",
        "falkon, K(X,Z) recomputed",
        "eigenpro4, cholesky",
        "eigenpro4, carried residual",
    ]
    seconds = [candidate.plan.seconds for candidate in table.candidates]
    assert (
        table.chosen is table.candidates[int(np.argmin(seconds))]
        and table.chosen.label == "falkon, K(X,Z) kept"
    )
    text = str(table)
    assert (
        "← chosen" in text
        and "60,000 rows × 784 features, 5,000 centers" in text
        and len(text.splitlines()) == 8
    )


def test_memory_decides_what_fits():
    little = solvers.forecast(base(60_000, 5_000, budget=1 << 30))
    assert (
        little.candidates[1].plan is None
        and "may be used" in little.candidates[1].reason
        and little.chosen.plan.bytes <= 1 << 30
    )
    assert solvers.forecast(base(2_000_000, 300_000)).chosen.label == "eigenpro4, carried residual"
    with pytest.raises(InputError, match="no solver fits 5000 centers"):
        _ = solvers.forecast(base(60_000, 5_000, budget=1 << 20)).chosen


def test_small_data_is_solved_exactly_and_large_data_in_linear_memory():
    assert solvers.forecast(base(2_000, 2_000)).chosen.solver.name in ("direct", "pcg")
    assert solvers.forecast(base(5_000_000, 100_000)).chosen.solver.name == "eigenpro4"


def test_a_regression_pays_more_for_an_exact_solution():
    # Products with what is held cost more here than stochastic steps.
    slow = dataclasses.replace(CPU, read=CPU.read / 10)
    labels = [c.label for c in solvers.forecast(base(20_000, 20_000)).candidates]
    assert {"pcg", "eigenpro2"} <= set(labels)  # where every row is a center
    classes, numbers = (
        solvers.forecast(base(100_000, 5_000, regression=r, rates=slow)) for r in (False, True)
    )
    assert classes.chosen.solver.name == "eigenpro4" and numbers.chosen.solver.name == "direct"
    assert "← chosen: exact" in str(numbers) and "← chosen: exact" not in str(classes)
    exact = solvers.predict_plan(
        solvers.Falkon(), base(20_000, 5_000, regression=True, fine="float64")
    )
    assert exact.precision == "float64"


def test_centers_follow_from_the_time_they_take():
    p = [solvers.affordable(base(n, n)).p for n in (3_000, 60_000, 500_000, 20_000_000)]
    assert p[0] == 3_000 and p[1] >= 20_000 and p[2] >= p[3] >= 1000
    faster = dataclasses.replace(CPU, block=2e11, read=4e12, products=5e13, factor=3e13)
    assert solvers.affordable(base(500_000, 500_000, rates=faster, budget=100 << 30)).p > p[2]


def test_eight_bits_are_for_classes_of_long_rows_and_many_centers(monkeypatch):
    monkeypatch.setattr("kernelmill.planning.precision.has_eight_bits", lambda device: True)
    long = base(10**6, 100_000, device="cuda", precision="float16")
    assert eight_bits_pay(long)
    for change in ({"d": 100}, {"p": 10_000}, {"regression": True}, {"precision": "float32"}):
        assert not eight_bits_pay(dataclasses.replace(long, **change))
    assert not eight_bits_pay(dataclasses.replace(long, device="cpu"))
    sizes = {"float8": 2, "float16": 4, "float32": 4, "float64": 8}
    for precision, size in sizes.items():
        assert dataclasses.replace(long, precision=precision).block_bytes == size


def test_costs_grow_as_the_work_does():
    plan = solvers.Falkon(keep=True).plan(base(100_000, 2_000, budget=64 << 30))
    twice = solvers.Falkon(keep=True).plan(base(200_000, 2_000, budget=64 << 30))
    assert 1.9 < solvers.Falkon().seconds(twice, CPU) / solvers.Falkon().seconds(plan, CPU) < 2.6
    slower = dataclasses.replace(CPU, block=CPU.block / 10)
    recomputing = solvers.Falkon(keep=False).plan(base(100_000, 2_000))
    assert solvers.Falkon().seconds(recomputing, slower) > 5 * solvers.Falkon().seconds(
        recomputing, CPU
    )


@pytest.mark.parametrize("p, on_cpu, on_gpu", [(5_000, 2000, 2000), (65_536, 4000, 8000)])
def test_a_gpu_gets_the_larger_subsample(p, on_cpu, on_gpu):
    sizes = solvers.EigenPro4().plan
    assert sizes(base(500_000, p)).s == on_cpu
    assert sizes(base(500_000, p, device="cuda")).s == on_gpu


def test_rates_are_measured_and_positive():
    rates = measure(kernels.Laplacian(3.0), 16, "float32", "cpu")
    assert (
        all(
            value > 0
            for name, value in dataclasses.asdict(rates).items()
            if name not in ("column", "precision", "network")
        )
        and rates.column >= 0
    )
    # Once per process, whatever the bandwidth.
    assert measure(kernels.Laplacian(5.0), 16, "float32", "cpu") is rates
    assert 1e6 < rates.block < 1e14 and rates.read > 1e8


def test_plan_needs_no_data():
    table = kernelmill.plan(n=100_000, d=20, n_centers=2_000, n_outputs=3, device="cpu")
    assert (
        table.plan.n == 100_000
        and table.plan.p == 2_000
        and table.plan.seconds > 0
        and table.plan.bytes > 0
    )
    assert kernelmill.plan(n=500, d=3).plan.p == 500
    with pytest.raises(InputError, match="n=0 was given"):
        kernelmill.plan(n=0, d=3)
    with pytest.raises(InputError, match="device="):
        kernelmill.plan(n=10, d=3, device="tpu")


def test_a_plan_says_where_every_row_may_be_worth_more_time():
    slow = dataclasses.replace(CPU, block=CPU.block / 8)
    sizes = base(60_000, 60_000, rates=slow, every_row=True)
    usual, longest = solvers.seconds_to_solve("cpu")
    more = solvers.with_every_row(sizes, longest)
    assert more is not None and more.p == 60_000 and usual < more.seconds <= longest
    assert solvers.with_every_row(sizes, more.seconds - 1) is None
    asked = solvers.with_every_row(dataclasses.replace(sizes, epochs=1), longest)
    assert asked is not None and asked.epochs == 1 and asked.seconds < more.seconds
    assert solvers.seconds_to_solve("cuda", 30) == (15, 15)
    table = dataclasses.replace(solvers.forecast(base(60_000, 1000)), more=more)
    assert "every row a center, by pcg" in str(table)


@pytest.mark.slow
def test_more_rows_are_taken_where_the_nearest_of_them_say_more(monkeypatch):
    monkeypatch.setattr(auto, "ON_CPU", (0.3, 100.0))
    g = np.random.default_rng(0)
    X = g.standard_normal((9000, 6))
    rough = np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1]) + 0.1 * g.standard_normal(9000)
    model = KernelRegressor(random_state=0).fit(X, rough)
    assert model.plan_.p == model.plan_.n
    assert any("nearest of 1000 rows" in label for label, *_ in model.plan_.tried)
    straight = X[:, 0] + 0.5 * g.standard_normal(9000)
    assert KernelRegressor(random_state=0).fit(X, straight).plan_.p == 1000


def rows(n=3000, d=5, seed=0):
    g = np.random.default_rng(seed)
    X = g.standard_normal((n, d)).astype(np.float32)
    return X, np.sin(X @ g.standard_normal(d)) + 0.3 * g.standard_normal(n)


@pytest.mark.slow
def test_the_prediction_is_stored_and_a_stored_plan_does_the_same(tmp_path):
    X, y = rows(12_000)
    labels = (y > 0).astype(int)
    model = KernelClassifier(kernel=kernels.Laplacian(2.0), n_centers=2_500, random_state=3).fit(
        X, labels
    )
    assert (
        model.plan_.rates is not None
        and model.plan_.seconds > 0
        and model.plan_.solver in ("direct", "falkon", "eigenpro4")
    )
    model.save(tmp_path / "m")
    plan = load(tmp_path / "m").plan_
    assert plan == model.plan_
    again = KernelClassifier(
        kernel=kernels.Laplacian(2.0), n_centers=2_500, solver=plan, random_state=3
    ).fit(X, labels)
    assert again.ridge_ == pytest.approx(model.ridge_)
    assert torch.equal(again.model_.alpha, model.model_.alpha) and torch.equal(
        again.model_.Z, model.model_.Z
    )
    again.save(tmp_path / "again")
    assert load(tmp_path / "again").solver == plan
    with pytest.raises(InputError, match="the plan given as solver has n = "):
        again.fit(X[:5000], labels[:5000])
    with pytest.raises(InputError, match="has its own ridge"):
        again.set_params(ridge=50.0).fit(X, labels)


SETTINGS = [
    solvers.EigenPro4(s=100, q=20),
    solvers.Falkon(),
    solvers.Falkon("logistic"),
    solvers.NYTRO(iterations=40),
    solvers.ASkotch(m=100),
    solvers.PCG(tolerance=1e-12),
    solvers.Pegasos(m=30),
    solvers.EigenPro1(q=30),
    solvers.EigenPro2(),
    solvers.EigenPro3(m=100),
    solvers.Direct(),
]


@pytest.mark.parametrize("solver", SETTINGS, ids=repr)
def test_a_stored_plan_of_any_solver_gives_the_same_bits(solver):
    X, y = rows(600)
    fixed = {
        "kernel": kernels.Laplacian(2.0),
        "n_centers": None if solver.every_row else 200,
        "random_state": 3,
    }
    model = KernelClassifier(
        ridge=0.1, solver=solver, epochs=None if solver.name == "nytro" else 3, **fixed
    ).fit(X, y > 0)
    again = KernelClassifier(solver=model.plan_, **fixed).fit(X, y > 0)
    assert torch.equal(again.model_.alpha, model.model_.alpha) and again.ridge_ == pytest.approx(
        0.1
    )


@pytest.mark.slow
def test_auto_reaches_the_direct_solution():
    X, y = rows(8000)
    fits = [
        KernelRegressor(
            kernel=kernels.Laplacian(2.0), n_centers=2_000, ridge=0.5, solver=solver, random_state=0
        )
        .fit(X, y)
        .predict(X)
        for solver in ("auto", "direct", solvers.Falkon(keep=False))
    ]
    for other in fits[1:]:
        assert np.linalg.norm(fits[0] - other) < 0.02 * np.linalg.norm(other)


@pytest.mark.slow
def test_epochs_do_not_cut_an_exact_solution_short(monkeypatch):
    """One epoch was forecast as Falkon's whole solution, and ran as one of its iterations."""

    def falkon(self, exact=False):
        return next(
            candidate
            for candidate in self.candidates
            if candidate.solver.name == "falkon" and candidate.plan
        )

    monkeypatch.setattr(solvers.Forecast, "fastest", falkon)
    X, y = rows(6000)
    settings = dict(kernel=kernels.Laplacian(bandwidth=2.0), n_centers=1500, random_state=0)
    one, whole = (KernelRegressor(epochs=epochs, **settings).fit(X, y) for epochs in (1, None))
    assert one.plan_.solver == "falkon"
    assert one.n_iter_ == whole.n_iter_ > 1
    assert (one.predict(X[:50]) == whole.predict(X[:50])).all()


def test_verbose_says_the_plan_before_the_fit(capsys):
    X, y = rows(500)
    said = []
    listen = lambda event: said.append(capsys.readouterr().err) if event.kind == "start" else None  # noqa: E731
    KernelRegressor(
        kernel=kernels.Laplacian(2.0), n_centers=100, solver="falkon", verbose=1, callbacks=listen
    ).fit(X, y)
    assert "falkon: 500 rows × 5 features, 100 centers" in said[0].replace("\n", " ")


def test_smooth_regressions_come_as_near_as_the_direct_solution():
    """A Gaussian kernel and a small ridge: conjugate gradients take more than a hundred iterations
    in float64, and take them.
    """
    g = np.random.default_rng(0)
    X = g.standard_normal((8000, 3)).astype(np.float32)
    y = np.sin(2 * X[:, 0]) + np.cos(X[:, 1] * X[:, 2]) + 0.05 * g.standard_normal(8000)
    error = {}
    for solver in ("auto", "direct", solvers.Falkon()):
        model = KernelRegressor(
            kernel=kernels.Gaussian(1.0), n_centers=400, ridge=1e-3, solver=solver, random_state=0
        ).fit(X[:6000], y[:6000])
        error[str(solver)] = np.sqrt(np.mean((model.predict(X[6000:]) - y[6000:]) ** 2))
    assert max(error.values()) < 1.15 * error["direct"]


def test_too_few_iterations_are_said():
    X, y = rows(2000)
    with pytest.warns(ConvergenceWarning, match="far from its tolerance"):
        KernelRegressor(
            kernel=kernels.Gaussian(3.0),
            n_centers=300,
            ridge=1e-4,
            solver=solvers.Falkon(iterations=3),
        ).fit(X, y)


@pytest.mark.parametrize(
    "solver", [solvers.Falkon(), solvers.NYTRO(iterations=30), "eigenpro4", "auto"], ids=str
)
def test_warm_start_goes_on_and_loses_nothing(solver):
    X, y = rows(2500)
    model = KernelRegressor(
        kernel=kernels.Laplacian(2.0),
        n_centers=400,
        ridge=0.1,
        solver=solver,
        warm_start=True,
        random_state=0,
    )
    first = model.fit(X, y).score(X, y)
    assert model.fit(X, y).score(X, y) > first - 1e-3


def test_wrong_settings_are_said_before_anything_is_tuned(monkeypatch):
    X, y = rows(300)

    def never(*args):
        raise AssertionError("tuned")

    monkeypatch.setattr("kernelmill.tuning.search.tune", never)
    for solver, match in (
        (solvers.SGPR(noise=-1.0), "variance above 0"),
        (solvers.Falkon("hinge"), "loss='hinge'"),
        (solvers.ASkotch(m=0), "m=0"),
        (solvers.PCG(tolerance=-1.0), "tolerance=-1.0"),
        (solvers.PCG(rank=0), "rank=0"),
    ):
        with pytest.raises(InputError, match=match):
            KernelRegressor(solver=solver).fit(X, y)
    with pytest.raises(InputError, match="needs a ridge above 0"):
        KernelRegressor(solver="sgpr", ridge=0.0).fit(X, y)


def test_one_row_is_enough_for_every_solver():
    for solver in (
        "direct",
        "falkon",
        "sgpr",
        "nytro",
        "askotch",
        "pcg",
        "eigenpro1",
        "eigenpro2",
        "eigenpro4",
    ):
        assert np.isfinite(
            KernelRegressor(solver=solver).fit([[1.0]], [2.0]).predict([[1.0]])
        ).all()


def test_factors_solved_by_blocks_are_solved(monkeypatch):
    monkeypatch.setattr("kernelmill.projection.BLOCK", 7)
    X = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = factor(kernels.Laplacian(1.0)(X))
    b = torch.randn(40, 2, dtype=torch.float64)
    torch.testing.assert_close(plain.in_blocks().solve(b), plain.solve(b), rtol=1e-9, atol=1e-9)


def test_values_at_any_bandwidth_are_those_of_the_scaled_kernel():
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    parts = [kernels.Laplacian(2.0), kernels.Matern(torch.tensor([1.0, 3.0, 0.5]))]
    scaled = kernels.Sum([search.scale_bandwidth(part, 0.7) for part in parts], [0.2, 0.8])
    at = search._at_any_bandwidth(kernels.Sum(parts, [0.2, 0.8]), X[:9], X)
    torch.testing.assert_close(at(0.7).double(), scaled(X[:9], X), rtol=1e-5, atol=1e-6)
    one = search._at_any_bandwidth(parts[1], X, X)(1.0)
    torch.testing.assert_close(one.double(), parts[1](X), rtol=1e-5, atol=1e-6)


def test_many_outputs_are_told_by_fewer():
    """Sums of squares are kept to some percent, whatever the rows."""
    g = torch.Generator().manual_seed(3)
    Y = torch.nn.functional.one_hot(torch.randint(500, (2000,), generator=g), 500).double()
    few = search.fewer_outputs(Y - Y.mean(0))
    assert few.shape == (2000, search.MOST_OUTPUTS)
    ratio = (few**2).sum() / ((Y - Y.mean(0)) ** 2).sum()
    assert abs(ratio - 1) < 0.05
    assert torch.equal(search.fewer_outputs(Y[:, :64]), Y[:, :64])


def test_bandwidths_are_rescaled_where_rows_are_enough():
    g = torch.Generator().manual_seed(0)
    X = torch.randn(6500, 2, generator=g, dtype=torch.float64)
    Y = torch.sin(6 * X[:, :1])
    sample = Sample(X, Y, torch.ones(6500, dtype=torch.float64), 1.0)
    wide = search.Choice(kernels.Gaussian(1.2), 1e-3, 0.0)
    few = Sample(X[:3000], Y[:3000], sample.w[:3000], 1.0)
    assert search.rescale(wide, few) is wide.kernel
    assert search.rescale(wide, sample).bandwidth < 0.9


def neighbours(y, X=None):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(6000, 4, generator=g) if X is None else X
    return ArraySource(X, y(X)[:, None].double(), mean=torch.zeros(1, dtype=torch.float64))


def refine(source, bandwidth=1.0):
    start = kernels.Laplacian(torch.full((source.d,), bandwidth, dtype=torch.float64))
    groups = torch.arange(source.d)
    return start, neighbourhoods.refine_locally(
        start, groups, source, source.n, 1 << 30, torch.Generator().manual_seed(1)
    )


def test_neighbourhoods_find_the_feature_that_matters():
    source = neighbours(lambda X: torch.sin(40 * X[:, 0]))
    start, found = refine(source)
    assert found.bandwidth[0] < 0.3 * found.bandwidth[1:].min()
    assert (start.bandwidth == 1).all()  # what was given is left as it was
    assert (found.bandwidth == refine(source)[1].bandwidth).all()


def test_neighbourhoods_leave_the_kernel_alone_where_nothing_is_gained():
    g = torch.Generator().manual_seed(2)
    start, found = refine(neighbours(lambda X: torch.randn(len(X), generator=g)), 0.5)
    assert found is start


@pytest.mark.slow
def test_copies_of_rows_do_not_validate_each_other():
    """Every row twice: leaving one out leaves its copy in, and the narrowest kernel of all would
    win.
    """
    g = torch.Generator().manual_seed(3)
    X = torch.rand(3000, 3, generator=g).repeat(2, 1)
    noise = torch.randn(3000, generator=g).repeat(2)
    start, found = refine(neighbours(lambda X: torch.sin(10 * X[:, 0]) + noise, X))
    assert found is start
    single = neighbours(lambda X: torch.sin(40 * X[:, 0]))
    some = torch.cat([torch.arange(6000), torch.arange(1500)])
    mixed = neighbours(lambda X: torch.sin(40 * X[:, 0]), single.take(some).X)
    assert refine(mixed)[1].bandwidth[0] < 0.3 * refine(mixed)[1].bandwidth[1:].min()


def test_half_precision_rows_find_the_same_neighbours():
    source = neighbours(lambda X: torch.sin(40 * X[:, 0]))
    rough = ArraySource(
        (source.take(torch.arange(6000)).X * 1000).half(),
        source.take(torch.arange(6000)).Y,
        mean=source.mean,
    )
    found = refine(rough, 1000.0)[1]
    assert found.bandwidth[0] < 0.3 * found.bandwidth[1:].min()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "centers", "asked"), [(3, 3000, False), (3, 4500, True), (70, 4500, False)]
)
def test_neighbourhoods_are_asked_where_centers_are_many_and_features_few(
    monkeypatch, features, centers, asked
):
    calls = []

    def recorded(kernel, groups, source, p, budget, generator):
        calls.append((source.n, p))
        return kernels.Laplacian(torch.full((features,), 7.0, dtype=torch.float64))

    monkeypatch.setattr(neighbourhoods, "refine_locally", recorded)
    X = torch.rand(10_500, features, generator=torch.Generator().manual_seed(0))
    settings = dict(
        kernel="laplacian", solver="eigenpro4", epochs=1, precision="float32", random_state=0
    )
    model = KernelRegressor(n_centers=centers, **settings).fit(X, X[:, 0])
    # 2 % of the rows are kept out to check the model.
    assert calls == ([(10_290, centers)] if asked else [])
    assert bool((torch.as_tensor(model.model_.kernel.bandwidth) == 7).all()) is asked


def test_leave_one_out_errors_of_a_batch_are_those_of_each():
    g = torch.Generator().manual_seed(0)
    X, Y = (
        torch.randn(3, 20, 2, generator=g, dtype=torch.float64),
        torch.randn(3, 20, 2, generator=g, dtype=torch.float64),
    )
    K = torch.stack([kernels.Laplacian(1.0)(x) for x in X])
    ridge = torch.full((3, 20), 0.1, dtype=torch.float64)
    each = torch.stack([loo.loo_residuals(K[i], Y[i], ridge[i]) for i in range(3)])
    torch.testing.assert_close(loo.loo_residuals(K, Y, ridge), each)


def test_on_a_gpu_classes_with_every_row_a_center_are_worth_half_of_the_target():
    """Of two candidates that are only compared: nothing runs on the GPU."""

    def best(device, every_row, regression, exact_seconds):
        plan = Plan("auto", 50_000, 5, 2, 50_000, device=device, every_row=every_row, target=40.0)
        plan = replace(plan, regression=regression)
        slow = Candidate("exact", solvers.Direct(), replace(plan, seconds=exact_seconds))
        quick = Candidate("quick", solvers.EigenPro2(), replace(plan, seconds=1.0))
        return Forecast(50_000, 5, 2, 50_000, device, 1 << 30, [slow, quick]).best.label

    assert best("cuda", True, False, 19.0) == "exact"
    assert best("cuda", True, False, 21.0) == "quick"
    assert best("cuda", False, False, 19.0) == "quick"
    assert best("cpu", True, False, 19.0) == "quick"
    assert best("cpu", True, True, 19.0) == "exact"


def test_a_matrix_that_is_factored_in_place_is_counted_once():
    assert direct_bytes(10_000, every_row=True) == pytest.approx(8e8, rel=0.3)
    assert direct_bytes(10_000, every_row=False) == pytest.approx(32e8, rel=0.1)


@pytest.mark.parametrize("share", [1.0, 1.07, 1.5, 1.6])
def test_a_direct_plan_fits_where_a_float64_factor_does(share):
    """Whatever is held beside it: no budget in between is refused."""
    budget = int(share * direct_bytes(20_000, every_row=True))
    base = Plan(solver="direct", n=20_000, d=5, c=1, p=20_000, every_row=True, budget=budget)
    plan = solvers.Direct().plan(base)
    assert plan.bytes <= budget


def test_cycles_of_short_rows_are_as_long_as_a_step_has_time_for():
    sizes = {"n": 10**8, "d": 16, "c": 1, "p": 100_000, "epochs": 1, "budget": 10**11}
    base = Plan(solver="eigenpro4", device="cuda", precision="float16", **sizes)
    short = eigenpro_sizes(base, s=None, q=None, projection="carried", control_variate=False)
    assert (short.s, short.q) == (16_000, 1600)
    little = replace(base, budget=10**10)
    little = eigenpro_sizes(little, s=None, q=None, projection="carried", control_variate=False)
    assert little.s == 8000 and little.q < 800
    lengths = {
        (d, n): with_step(replace(short, d=d, n=n), m=2688, T=None, eta=1.0).T * 2688 / 100_000
        for d, n in ((16, 10**8), (1280, 10**8), (16, 10**6))
    }
    assert 3.5 < lengths[16, 10**8] < 4.5 and lengths[1280, 10**8] < 1.6
    assert lengths[16, 10**6] < 2.5  # cycles enough for what is learned to be projected


def test_a_time_limit_too_short_for_all_rows_takes_a_part_of_them(tmp_path):
    g = np.random.default_rng(0)
    X = g.standard_normal((60_000, 6)).astype(np.float32)
    labels = (X[:, 0] > 0).astype(int)
    labels[:40] = 2
    settings = dict(kernel="laplacian", time_limit=0.4, random_state=0)
    with pytest.warns(UserWarning, match="time_limit is too short for"):
        model = KernelClassifier(**settings).fit(X, labels)
    plan = model.plan_
    assert plan.n == 2000 or (plan.n < 30_000 and (plan.seconds or 0) <= 0.2)
    assert list(model.classes_) == [0, 1, 2] and model.score(X[40:], labels[40:]) > 0.85
    again = KernelClassifier(**{**settings, "solver": plan}).fit(X, labels)
    assert torch.equal(again.model_.Z, model.model_.Z)


def test_numbers_that_overflow_are_solved_again_in_float64_with_the_kernel_that_was_chosen(
    monkeypatch,
):
    X, y = rows(2000)
    tuned, drive, limits = [], solvers.drive, []
    tune, read = choose._tune, flow.read

    def overflow(solver, problem, plan, *rest):
        if plan.precision != "float64":
            raise solvers.NotFinite("too large")
        return drive(solver, problem, plan, *rest)

    monkeypatch.setattr(solvers, "drive", overflow)
    monkeypatch.setattr(choose, "_tune", lambda *args: tuned.append(args) or tune(*args))

    def noted(rows, request, comm):
        limits.append(request.time_limit)
        return read(rows, request, comm)

    monkeypatch.setattr(flow, "read", noted)
    settings = dict(solver="eigenpro2", random_state=0, time_limit=600)
    model = KernelRegressor(**settings).fit(X, y)
    assert limits[1] < limits[0] - 0.01  # of the time there was, the first try took a part
    assert len(tuned) == 1 and model.plan_.precision == "float64" and model.score(X, y) > 0.5
