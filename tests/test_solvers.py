"""One table of (solver, problem, tolerance): every solver reaches its fixed point, is
reproducible, resumes, and reports.
"""

import dataclasses
import itertools
import warnings

import numpy as np
import pytest
import torch

from conftest import make_problem
from kernelmill import InputError, kernels
from kernelmill.distributed.threads import run_threads
from kernelmill.errors import OutOfMemory
from kernelmill.preconditioner import (
    fresh_spectrum,
    measured_step,
    numerical_rank,
    precondition,
    printed_step,
    subspace_iteration,
    top_eigensystem,
)
from kernelmill.projection import JITTERS, NotPositiveDefinite, Pass, factor, factor_made
from kernelmill.solvers import (
    NAMED,
    NYTRO,
    PCG,
    SGPR,
    ASkotch,
    Direct,
    EigenPro1,
    EigenPro2,
    EigenPro3,
    EigenPro4,
    EigenPro4Exact,
    Ended,
    Falkon,
    Pegasos,
    drive,
)
from kernelmill.solvers import eigenpro4 as ep4

SMALL = {"n": 400, "p": 80}
EVERY_ROW = {"n": 150, "p": 150}

# solver, problem, epochs, ridge, relative distance to the truth at that ridge
TABLE = [
    (Direct(), SMALL, 1, 0.0, 1e-8),
    (Direct(), SMALL, 1, 0.5, 1e-8),
    (Direct(), {**SMALL, "weights": True}, 1, 0.5, 1e-8),
    (Direct(), {**SMALL, "kernel": kernels.Gaussian(3.0)}, 1, 1e-6, 1e-4),
    (Direct(), {**EVERY_ROW, "weights": True}, 1, 0.5, 1e-8),
    (EigenPro4(s=50, q=15), SMALL, 100, 0.0, 5e-3),
    (EigenPro4(s=50, q=15), {**SMALL, "weights": True}, 100, 0.5, 1e-5),
    (EigenPro4(s=50, q=15, projection="carried"), SMALL, 100, 0.5, 1e-3),
    (EigenPro4(s=50, q=15), {**SMALL, "kernel": kernels.Matern(3.0, nu=1.5)}, 100, 0.5, 1e-2),
    (EigenPro4(s=50, q=15), EVERY_ROW, 150, 0.5, 1e-3),
    (EigenPro3(s=50, q=15, m=20), SMALL, 30, 0.5, 3e-2),
    (EigenPro2(s=50, q=15), EVERY_ROW, 100, 0.0, 1e-6),
    (EigenPro2(s=50, q=15), {**EVERY_ROW, "weights": True}, 60, 0.5, 1e-6),
    (EigenPro1(q=40), EVERY_ROW, 300, 0.0, 1e-6),
    (EigenPro1(q=15), {**EVERY_ROW, "weights": True}, 60, 0.5, 1e-6),
    (Falkon(tolerance=1e-9), SMALL, 40, 0.0, 1e-7),
    (Falkon(tolerance=1e-9), {**SMALL, "weights": True}, 40, 0.5, 1e-7),
    (Falkon(tolerance=1e-9, keep=False), {**SMALL, "weights": True}, 40, 0.5, 1e-7),
    (Falkon(tolerance=1e-9), {**SMALL, "kernel": kernels.Matern(3.0, nu=1.5)}, 60, 0.5, 1e-6),
    (Falkon(tolerance=1e-9), {**SMALL, "kernel": kernels.Gaussian(3.0)}, 60, 0.1, 1e-4),
    (Falkon(tolerance=1e-9), {**EVERY_ROW, "weights": True}, 40, 0.5, 1e-6),
    (PCG(tolerance=1e-9, rank=20), EVERY_ROW, 90, 0.0, 1e-7),
    (PCG(tolerance=1e-9), EVERY_ROW, 60, 0.5, 1e-7),
    (PCG(tolerance=1e-9, rank=20), {**EVERY_ROW, "weights": True}, 60, 0.5, 1e-7),
    (PCG(tolerance=1e-9, rank=20), {**EVERY_ROW, "kernel": kernels.Gaussian(3.0)}, 90, 0.1, 1e-6),
    (NYTRO(), {**SMALL, "weights": True}, 3000, 0.5, 1e-6),
    (NYTRO(keep=False), SMALL, 3000, 0.5, 1e-6),
    (ASkotch(m=40, rank=20), EVERY_ROW, 60, 0.5, 1e-6),
    (ASkotch(m=40, rank=20), {**EVERY_ROW, "weights": True}, 60, 0.5, 1e-6),
    (ASkotch(m=20, rank=5), {**EVERY_ROW, "kernel": kernels.Gaussian(2.0)}, 200, 0.1, 1e-3),
    (SGPR(), {**SMALL, "weights": True}, 1, 0.5, 1e-8),
]
# Their limit is another one: the hinge loss, and a model with as many temporary centers as rows.
ELSEWHERE = {"pegasos", "eigenpro4_exact"}


def test_no_solver_is_forgotten():
    assert {solver.name for solver, *_ in TABLE} | ELSEWHERE == set(NAMED)


@pytest.mark.parametrize(
    ("solver", "sizes", "epochs", "ridge", "tolerance"), TABLE, ids=lambda v: repr(v)[:40]
)
def test_reaches_its_fixed_point(solver, sizes, epochs, ridge, tolerance):
    problem = make_problem(**sizes)
    done = problem.drive(solver, epochs=epochs, ridge=ridge, regression=True)
    assert done.ended is Ended.DONE
    assert problem.distance(done.state.alpha, problem.direct(ridge)) < tolerance


@pytest.mark.parametrize(
    "solver",
    [
        EigenPro4(s=50, q=15),
        EigenPro4(s=50, q=15, projection="carried"),
        EigenPro3(s=50, q=15, m=30),
        EigenPro1(q=10),
        EigenPro2(s=50, q=10),
        Falkon(),
        PCG(),
        NYTRO(),
        ASkotch(m=40, rank=20),
        Pegasos(m=20),
        SGPR(),
    ],
    ids=repr,
)
def test_equal_seed_and_plan_give_equal_weights(solver):
    problem = make_problem(**(EVERY_ROW if solver.every_row else SMALL))
    a, b = (problem.solve(solver, epochs=2, ridge=0.1, regression=True) for _ in range(2))
    assert torch.equal(a.alpha, b.alpha) and a.plan == b.plan


@pytest.mark.parametrize(
    "solver",
    [
        EigenPro4(s=50, q=15),
        EigenPro4(s=50, q=15, projection="carried", T=2),
        EigenPro3(s=50, q=15, m=30),
        EigenPro2(s=50, q=15),
        EigenPro1(q=15),
        Falkon(tolerance=0),
        Falkon("logistic", tolerance=0),
        PCG(tolerance=1e-12, rank=20),
        NYTRO(),
        ASkotch(m=40, rank=20),
        Pegasos(m=20),
    ],
    ids=repr,
)
@pytest.mark.parametrize("stop_at", ["projection", "epoch"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resumes_from_its_state_to_the_same_bits(solver, stop_at, dtype):
    every_row = solver.every_row
    problem = make_problem(**(EVERY_ROW if every_row else SMALL))
    if stop_at == "projection" and not isinstance(solver, (EigenPro3, EigenPro4)):
        pytest.skip("it has no projections")
    if solver.for_classes:
        problem.Y = torch.nn.functional.one_hot(problem.Y.argmax(1), 3).double()
    whole = problem.solve(solver, epochs=4, ridge=0.2, dtype=dtype)
    stopped = problem.drive(
        solver,
        epochs=4,
        ridge=0.2,
        dtype=dtype,
        on_event=lambda e: e.kind == stop_at and e.epoch >= 1,
    )
    half = stopped.state
    assert stopped.ended is Ended.STOPPED and 1 <= half.epoch < 4
    done = problem.solve(solver, state=half)
    assert torch.equal(done.alpha, whole.alpha) and done.plan == whole.plan


def test_events_tell_the_run():
    problem, events = make_problem(**SMALL), []
    problem.solve(
        EigenPro4(s=50, q=15), epochs=2, on_event=lambda event: bool(events.append(event))
    )
    assert events[0].kind == "start" and events[-1].kind == "end"
    assert all(a.seconds <= b.seconds and a.rows <= b.rows for a, b in itertools.pairwise(events))
    assert events[-1].rows == events[-1].rows_total == 800


def test_a_step_that_is_too_large_is_taken_back():
    problem, events = make_problem(**SMALL), []
    solver = EigenPro4(s=50, q=15, m=40, T=2)
    plan = dataclasses.replace(problem.plan(solver, epochs=3), m=40, T=2, eta=60.0)
    state = drive(solver, problem.shared(), plan, lambda e: bool(events.append(e))).state
    backs = [e for e in events if e.kind == "step_back"]
    assert backs and "half the step" in backs[0].note and state.step_scale < 1
    assert torch.isfinite(state.alpha).all()
    assert problem.distance(state.alpha, problem.direct()) < 1.0


def test_hopeless_runs_return_the_last_good_weights():
    problem = make_problem(**SMALL)
    problem.Y[:] = torch.nan
    done = problem.drive(EigenPro4(s=50, q=15), epochs=1)
    assert (
        done.ended is Ended.DIVERGED
        and "grew at every step size" in done.why
        and torch.isfinite(done.state.alpha).all()
    )


def test_solvers_of_one_process_say_so():
    problem = make_problem(**SMALL)
    for solver in (Direct(), EigenPro4Exact(), Falkon(), NYTRO(), SGPR()):
        with pytest.raises(InputError, match="runs on one rank, 2 were given"):
            run_threads(
                2,
                lambda comm, solver=solver: problem.solve(
                    solver, comm=comm, ridge=0.1 * (solver.name == "sgpr"), regression=True
                ),
            )


def test_least_squares_falls_back_to_qr_where_normal_equations_fail():
    """Gaussian kernel, condition far above 1e10, no ridge: still the least-squares fit, as good as
    an SVD's.
    """
    problem = make_problem(n=400, p=100, kernel=kernels.Gaussian(6.0), noise=0.05)
    K = problem.kernel(problem.X, problem.Z)
    assert torch.linalg.cond(K) > 1e9
    ours = problem.solve(Direct(), ridge=0.0).alpha
    loss = lambda alpha: (K @ alpha - problem.Y).pow(2).sum().item()  # noqa: E731
    assert loss(ours) < 1.02 * loss(problem.direct())


# ---- preconditioner and step


def test_eigensystem_and_F():
    K = make_problem(n=60, p=60).kernel(make_problem(n=60, p=60).X)
    values, E = top_eigensystem(K, 10)
    assert values.shape == (11,) and E.shape == (60, 10) and (values[:-1] >= values[1:]).all()
    torch.testing.assert_close(K @ E, E * values[:10], rtol=1e-9, atol=1e-9)
    pre = precondition(K, values, E, values[-1].item(), torch.float64)
    # On K's own range: top eigenvalues come down to λ_{q+1}.
    P = torch.eye(60, dtype=torch.float64) - pre.F @ pre.F.T @ K
    top = torch.linalg.eigvals(K @ P).real.max().item()
    assert top == pytest.approx(values[10].item(), rel=1e-6)
    torch.testing.assert_close(pre.KF, K @ pre.F, rtol=1e-9, atol=1e-9)


def test_few_eigenvectors_of_a_large_subsample_are_as_good_as_all():
    """Subspace iteration: the leading pairs are exact, and what it leaves of K is positive and no
    larger than the full system leaves.
    """
    problem = make_problem(n=800, p=800, bandwidth=3.0)
    K, q = problem.kernel(problem.X), 60
    values, E = subspace_iteration(K, q)
    exact, _ = top_eigensystem(K, q)
    torch.testing.assert_close(E.T @ E, torch.eye(q, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(values[:30], exact[:30], rtol=1e-6, atol=0)
    torch.testing.assert_close(values, exact, rtol=0.05, atol=0)
    pre = precondition(K, values, E, values[-1].item(), torch.float64)
    left = torch.linalg.eigvalsh(K - K @ pre.F @ pre.F.T @ K)
    assert left.min() > -1e-8 and left.max() < 1.2 * exact[-1]


def test_q_is_cut_at_the_numerical_rank():
    X = torch.randn(50, 2, dtype=torch.float64)
    K = kernels.Linear()(X)  # rank 2
    values, E = top_eigensystem(K, 20)
    assert numerical_rank(values, torch.float64) == 2
    pre = precondition(K, values, E, values[-1].item(), torch.float64)
    assert pre.q == 2 and torch.isfinite(pre.F).all()


def test_lambda_top_and_k_are_the_dense_ones():
    problem = make_problem(n=500, p=120)
    setup = EigenPro4(s=60, q=10).prepare(
        problem.shared(), problem.plan(EigenPro4(s=60, q=10)), None
    )[0]
    X = setup.K.points(problem.X)
    w = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    spectrum = fresh_spectrum(setup.K, setup.F, setup.X_s, X, w, torch.Generator().manual_seed(0))
    Q = setup.K.dense(X, setup.X_s) @ setup.F
    G = w.sqrt()[:, None] * (setup.K.dense(X, X) - Q @ Q.T) * w.sqrt()
    assert spectrum.lambda_top == pytest.approx(torch.linalg.eigvalsh(G)[-1].item() / 500, rel=0.03)
    torch.testing.assert_close(spectrum.k, G.diagonal(), rtol=1e-9, atol=1e-9)
    step = measured_step(spectrum, 2.0, 10**6)
    assert max(spectrum.k.mean().item(), 0.5) == step.B and step.m == int(
        step.B / spectrum.lambda_top
    )
    assert step.eta == pytest.approx(1.5 / step.B)
    assert measured_step(spectrum, 2.0, 10**6, m=10 * step.m).eta < step.eta / 9
    short = measured_step(spectrum, 2.0, 10**6, most=step.eta / 4)
    assert short.eta == pytest.approx(step.eta / 4) and short.m in (4 * step.m, 4 * step.m + 1)


def test_printed_step_is_the_papers():
    assert printed_step(1.0, 0.5, 100, 10**6).m == 200
    assert printed_step(1.0, 0.5, 100, 10**6, m=50).eta == 1.0
    assert printed_step(1.0, 0.5, 100, 10**6, m=401).eta == pytest.approx(2 / (1 + 400 * 0.005))


def test_the_recipe_of_the_paper_trusts_its_subsample_too_much():
    """Why the step is measured: on fresh rows the preconditioned top eigenvalue is well above the
    subsample's tail.
    """
    problem = make_problem(n=3000, d=8, p=1000, bandwidth=3.0)
    setup = EigenPro4(s=300, q=60).prepare(
        problem.shared(), problem.plan(EigenPro4(s=300, q=60)), None
    )[0]
    assert setup.plan.lambda_top > 1.5 * setup.pre.eigenvalues[-1].item() / 300


def test_cholesky_jitter_is_stated_and_small():
    X = torch.randn(30, 3, dtype=torch.float64)
    K = kernels.Laplacian(2.0)(torch.cat([X, X]))  # every center twice: singular
    F = factor(K.clone())
    assert F.jitter in [pytest.approx(j * 60**0.5 * 2.22e-16, rel=1e-2) for j in JITTERS]
    assert factor(K.clone(), torch.float32).jitter == pytest.approx(
        10 * 60**0.5 * 1.19e-7, rel=1e-2
    )
    b = K @ torch.randn(60, 2, dtype=torch.float64)
    torch.testing.assert_close(K @ F.solve(b), b, rtol=1e-6, atol=1e-6)
    with pytest.raises(NotPositiveDefinite, match="fewer or more distinct centers"):
        factor(-torch.eye(5, dtype=torch.float64))


def test_a_factor_takes_the_place_of_the_matrix_made_for_it():
    X = torch.randn(30, 3, dtype=torch.float64)
    made = []

    def singular():
        made.append(kernels.Laplacian(2.0)(torch.cat([X, X])) - 1e-12 * torch.eye(60))
        return made[-1]

    F = factor_made(singular)
    assert len(made) == 1 + JITTERS.index(pytest.approx(F.jitter / (60**0.5 * 2.22e-16), rel=1e-2))
    assert len(made) > 1  # the least jitter is not enough
    assert F.L.data_ptr() == made[-1].data_ptr()
    torch.testing.assert_close(F.L, factor(singular()).L)
    with pytest.raises(NotPositiveDefinite, match="fewer or more distinct centers"):
        factor_made(lambda: -torch.eye(5, dtype=torch.float64))


def test_centers_that_cannot_be_factored_fall_back_to_the_carried_residual(monkeypatch):
    def refuse(*args, **kwargs):
        raise NotPositiveDefinite("no")

    monkeypatch.setattr("kernelmill.solvers.eigenpro_setup.cholesky", refuse)
    problem = make_problem(**SMALL)
    state = problem.solve(EigenPro4(s=50, q=15, projection="cholesky"), epochs=30, ridge=0.5)
    assert (
        state.plan.projection == "carried"
        and problem.distance(state.alpha, problem.direct(0.5)) < 0.05
    )


@pytest.mark.parametrize("projection", ["cholesky", "carried"])
def test_duplicate_centers_are_no_problem(projection):
    problem = make_problem(n=400, p=80)
    problem.Z = torch.cat([problem.Z[:40], problem.Z[:40]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = problem.solve(EigenPro4(s=50, q=15, projection=projection), epochs=40, ridge=0.5)
    truth = dataclasses.replace(problem, Z=problem.Z[:40])
    f = problem.kernel(problem.X, problem.Z) @ state.alpha
    g = problem.kernel(problem.X, truth.Z) @ truth.direct(0.5)
    assert ((f - g).norm() / g.norm()).item() < 0.02


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bandwidth", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("sizes", [(20, 5), (70, 30), (80, 79)])
@pytest.mark.parametrize("kernel", [kernels.Laplacian, kernels.Gaussian])
def test_no_setting_diverges(kernel, bandwidth, sizes, dtype):
    problem = make_problem(n=400, p=80, kernel=kernel(bandwidth))
    events = []
    done = problem.drive(
        EigenPro4(s=sizes[0], q=sizes[1]),
        epochs=2,
        dtype=dtype,
        on_event=lambda e: bool(events.append(e)),
    )
    state = done.state
    assert done.ended is Ended.DONE and torch.isfinite(state.alpha).all()
    f = problem.kernel(problem.X, problem.Z) @ state.alpha.double()
    assert (f - problem.Y).pow(2).mean() < 1.05 * problem.Y.pow(2).mean()
    assert np.isfinite(state.loss)


def test_out_of_memory_in_a_cycle_goes_on_from_the_last_projection(problem, monkeypatch):
    """Whatever runs out of memory in a cycle, the cycle is done again with less, and the weights
    are those of an undisturbed run.
    """
    solver = EigenPro4(s=60, q=10, m=100, T=3, projection="carried")
    expected, failures, events = problem.solve(solver), [0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 0], []
    steps = ep4.steps

    def scarce(*given):
        fail = failures.pop(0)
        done = steps(*given)
        if fail:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return done

    monkeypatch.setattr(ep4, "steps", scarce)
    got = problem.solve(solver, on_event=lambda event: bool(events.append(event.kind)))
    assert (
        events.count("less_memory") == 3
        and not got.plan.keep_block
        and got.plan.tile_bytes < expected.plan.tile_bytes
    )
    torch.testing.assert_close(got.alpha, expected.alpha, rtol=1e-8, atol=1e-10)


def test_out_of_memory_for_good_is_said(problem, monkeypatch):
    def never(*args):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(ep4, "steps", never)
    with pytest.raises(OutOfMemory, match="use fewer centers"):
        problem.solve(EigenPro4(s=60, q=10))


def test_out_of_memory_in_an_epoch_of_eigenpro2_goes_on_with_nothing_kept(monkeypatch):
    problem, events = make_problem(**EVERY_ROW), []
    expected = problem.solve(EigenPro2(s=50, q=15), epochs=3)
    call = Pass.__call__

    def scarce(self, r):
        if self.keep:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return call(self, r)

    monkeypatch.setattr(Pass, "__call__", scarce)
    got = problem.solve(
        EigenPro2(s=50, q=15), epochs=3, on_event=lambda event: bool(events.append(event.kind))
    )
    assert events.count("less_memory") == 1
    torch.testing.assert_close(got.alpha, expected.alpha, rtol=1e-8, atol=1e-10)
