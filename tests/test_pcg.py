"""PCG: every row a center, against the float64 factor."""

import time
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from conftest import make_problem
from kernelmill import InputError, KernelRegressor, kernels
from kernelmill.distributed.team import Alone
from kernelmill.distributed.threads import run_threads
from kernelmill.kernel_system import KernelSystem, is_level, near_rows, solve
from kernelmill.ops import bind, gram
from kernelmill.ops.gram import Gram
from kernelmill.planning.plan import Plan
from kernelmill.projection import NotPositiveDefinite
from kernelmill.solvers import PCG, Ended, expected_iterations

N = 300


def system(problem, ridge, comm=None, **options):
    comm = comm or Alone()
    w = torch.ones(len(problem.X)).double() if problem.w is None else problem.w
    settings = {"device": "cpu", "precision": "float64", "tile_bytes": 1 << 20, "room": 0}
    mine = slice(comm.rank, None, comm.size)
    return KernelSystem(
        problem.kernel, problem.X[mine], w[mine], ridge, comm, **{**settings, **options}
    )


def matrix(problem, ridge):
    """A, the slow way."""
    K = problem.kernel(problem.X, problem.X)
    root = torch.ones(len(K)).double() if problem.w is None else problem.w.sqrt()
    return root[:, None] * K * root + ridge * torch.eye(len(K)).double()


@pytest.mark.parametrize("room", [0, 4 * 40 * 60, 1 << 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("some", [False, True])
def test_a_gram_matrix_in_panels_multiplies_like_the_whole(room, dtype, some, monkeypatch):
    monkeypatch.setattr(gram, "PANEL", 2000)
    X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0)).double()
    K = bind(kernels.Matern(2.0), X.mean(0), "float64", torch.device("cpu"), 1 << 16)
    points = K.points(X)
    rows = points[slice(0, None, 2)] if some else points
    product = Gram(K, rows, points, room)
    v = torch.randn(N, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    want = K.dense(rows, points) @ v.double()
    got = product @ v
    assert got.dtype == dtype and ((got - want).norm() / want.norm()).item() < 1e-6
    held = sum(panel.numel() * 4 for panel in product._held)
    assert held <= room and (room < 1 << 29 or held <= Gram.bytes(len(rows), N))


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("rank", [20, N])
def test_the_preconditioner_is_the_inverse_of_what_it_says(weights, rank):
    """B Bᵀ and blocks of what it leaves, on the diagonal; of full rank A itself."""
    problem, ridge = make_problem(n=N, p=N, weights=weights), 0.3
    pre = system(problem, ridge).preconditioner(rank, 32, 0)
    A = matrix(problem, ridge)
    low = pre.B[:, :] @ pre.B[:, :].T
    eye = torch.eye(N).double()
    rows = pre.D.rows
    assert sorted(rows[rows < N].tolist()) == list(range(N)) and rows.shape[1] <= 32
    block = torch.zeros(N + 1).long()
    block[rows.reshape(-1)] = torch.arange(len(rows)).repeat_interleave(rows.shape[1])
    near = block[:N, None] == block[None, :N]
    D = torch.where(near, A - low, 0.0)
    torch.testing.assert_close(pre.solve(low + D), eye, rtol=0, atol=1e-4)
    assert torch.linalg.eigvalsh(A - ridge * eye - low)[0] > -1e-4
    condition = torch.linalg.eigvals(pre.solve(A)).real
    plain = torch.linalg.eigvalsh(A)
    assert condition.max() / condition.min() < 0.5 * plain[-1] / plain[0]
    if rank == N:
        assert condition.max() / condition.min() < 1.01


def test_blocks_are_of_near_rows():
    centers = 100 * torch.randn(7, 5)
    which = torch.arange(700) % 7
    rows = near_rows(centers[which] + torch.randn(700, 5), 100)
    assert rows.shape == (7, 100) and all(len(which[each].unique()) == 1 for each in rows)
    assert near_rows(torch.ones(10, 2), 4).shape == (3, 4)  # rows that are all the same
    assert near_rows(torch.ones(0, 2), 4).shape == (1, 0)  # of a rank that has none


def test_products_and_residuals_are_those_of_the_matrix():
    problem, ridge = make_problem(n=N, p=N, weights=True), 0.3
    problem.w[:4] = 0
    equations, A = system(problem, ridge, room=1 << 20), matrix(problem, ridge)
    beta = torch.randn(N, 3).double()
    beta[:4] = 0
    b = equations.right(problem.Y)
    for exact, near in ((True, 1e-12), (False, 1e-6)):
        torch.testing.assert_close(equations.times(beta, exact), A @ beta, rtol=near, atol=near)
    r = equations.residual(equations.weights(beta), b)
    torch.testing.assert_close(r, b - A @ beta, rtol=1e-10, atol=1e-10)
    off = r + 0.01 * b
    assert equations.drift(equations.weights(beta), b, off) == pytest.approx(0.01, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kernel", "ridge"),
    [(kernels.Laplacian(2.0), 0.5), (kernels.Gaussian(8.0), 1e-5), (kernels.Matern(4.0), 0.0)],
)
def test_it_ends_at_the_residual_it_says(kernel, ridge, dtype):
    problem = make_problem(n=N, p=N, kernel=kernel, weights=True)
    done = problem.drive(
        PCG(tolerance=1e-4, rank=40), epochs=2000, ridge=ridge, dtype=dtype, regression=True
    )
    assert done.ended is Ended.DONE
    beta = done.state.alpha.double() / problem.w.sqrt()[:, None]
    b = problem.w.sqrt()[:, None] * problem.Y
    true = ((b - matrix(problem, ridge) @ beta).norm(dim=0) / b.norm(dim=0)).max().item()
    assert done.state.residual <= 1e-4 and true < 2.1e-4


def test_rounding_that_spoils_fast_products_is_found_and_left():
    """A ridge below what float32 tells apart: the end is by products in float64."""
    problem = make_problem(n=N, p=N, kernel=kernels.Gaussian(2.0))
    done = problem.drive(
        PCG(tolerance=1e-8, rank=200), epochs=2000, ridge=1e-7, regression=True, fine="float64"
    )
    state = done.state
    assert done.ended is Ended.DONE and state.plan.precision == "float64" and state.slow
    assert problem.distance(state.alpha, problem.direct(1e-7)) < 1e-6


def test_it_warns_of_a_residual_above_what_was_asked():
    problem = make_problem(n=N, p=N, kernel=kernels.Gaussian(2.0))
    done = problem.drive(PCG(tolerance=1e-8, rank=5), epochs=3, ridge=1e-3, regression=True)
    assert done.ended is Ended.SHORT and "1e-08 was asked for" in done.why
    assert done.state.epoch == 3 and f"{done.state.residual:.2g}" in done.why


def test_the_history_says_each_residual():
    problem = make_problem(n=N, p=N)
    notes, losses = [], []
    problem.drive(
        PCG(tolerance=1e-6, rank=10, block=20),
        epochs=100,
        ridge=0.1,
        on_event=lambda e: (
            bool(e.kind == "epoch" and (notes.append(e.note), losses.append(e.loss))) and False
        ),
    )
    sizes = [float(note.removeprefix("residual ")) for note in notes]
    assert len(sizes) > 3 and sizes[-1] <= 1e-6 < sizes[-2]
    A, K = matrix(problem, 0.1), problem.kernel(problem.X, problem.X)
    f = K @ torch.linalg.solve(A, problem.Y)
    assert losses[-1] == pytest.approx(((f - problem.Y) ** 2).sum().item() / N, rel=1e-5)


def test_it_goes_on_from_weights_in_fewer_iterations():
    problem = make_problem(n=N, p=N)
    solver = PCG(tolerance=1e-6, rank=10)
    cold = problem.solve(solver, epochs=100, ridge=0.1)
    near = problem.solve(solver, epochs=100, ridge=0.11)
    plan = problem.plan(solver, epochs=100, ridge=0.1)
    warm = problem.drive(solver, state=solver.start_from(plan, near.alpha)).state
    assert warm.epoch < cold.epoch
    assert problem.distance(warm.alpha, problem.direct(0.1)) < 1e-5


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_give_the_weights_of_one(ranks):
    problem = make_problem(n=N + 1, p=N + 1, weights=True)
    solver, options = (
        PCG(tolerance=1e-11, rank=30, block=20),
        {"epochs": 99, "ridge": 0.2, "regression": True},
    )
    want = problem.solve(solver, **options).alpha
    found = torch.empty_like(want)

    def work(comm):
        found[comm.rank :: comm.size] = problem.solve(solver, comm=comm, **options).alpha

    run_threads(ranks, work)
    assert ((found - want).norm() / want.norm()).item() < 1e-8


@dataclass(eq=False)
class Indefinite(kernels.Kernel):
    def evaluate(self, A, B, out=None):
        K = torch.cdist(A.x, B.x)
        return K if out is None else out.copy_(K)

    def diagonal(self, A):
        return A.x.new_ones(len(A))


def test_a_kernel_that_is_not_positive_definite_is_named():
    problem = make_problem(n=N, p=N, kernel=Indefinite())
    with pytest.raises(NotPositiveDefinite, match="is not positive definite"):
        problem.drive(PCG(), epochs=50, ridge=0.1)


def test_repeated_rows_without_a_ridge_end_with_a_sentence():
    """Equal rows with other targets: no weights give both."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(60, 3)), 2, 0)
    problem = make_problem(n=120, p=120, d=3)
    problem.X[:] = torch.as_tensor(X)
    done = problem.drive(PCG(), epochs=50, ridge=0.0)
    assert done.ended is Ended.SHORT and "use a larger ridge" in done.why
    assert torch.isfinite(done.state.alpha).all()


def test_too_little_memory_is_a_sentence():
    problem = make_problem(n=N, p=N)
    with pytest.raises(InputError, match="solver='pcg' needs"):
        problem.plan(PCG(), budget=1 << 16)
    plan = problem.plan(PCG(rank=10), budget=1 << 30)
    assert plan.keep_all and not problem.plan(PCG(rank=10), budget=34 << 20).keep_all
    with pytest.raises(InputError, match="makes every row a center"):
        make_problem(n=N, p=20).plan(PCG())
    assert replace(plan, keep_all=False).bytes > 0


def test_weights_that_are_no_numbers_are_refused():
    X = np.random.default_rng(0).normal(size=(50, 2))
    w = np.ones(50)
    w[3] = np.nan
    with pytest.raises(ValueError, match="sample_weight must be finite"):
        KernelRegressor(solver="pcg", ridge=0.1).fit(X, X[:, 0], sample_weight=w)


@pytest.mark.parametrize("kernel", [kernels.Laplacian(9.0), kernels.Gaussian(9.0)])
def test_half_precision_solves_the_system_of_rounded_rows(kernel):
    g = np.random.default_rng(0)
    X, X_new = (g.standard_normal((n, 80)).astype(np.float32) for n in (600, 100))
    y = np.sin(X[:, 0]) + 0.1 * g.standard_normal(600)
    fits = [
        KernelRegressor(
            kernel=kernel, solver=PCG(tolerance=1e-6), ridge=0.1, precision=precision
        ).fit(X, y)
        for precision in ("float64", "float16")
    ]
    exact, half = (fit.predict(X_new) for fit in fits)
    # Without residuals of the rounded rows it would never come below their rounding.
    assert fits[1].model_.precision == "float16" and len(fits[1].history_) < 40
    assert 1e-6 < np.linalg.norm(exact - half) / np.linalg.norm(exact) < 5e-3


def test_errors_are_level_only_where_the_residual_is_small():
    falling, level = [1.0, 0.8, 0.6, 0.5, 0.4, 0.35, 0.3], [1.0, 0.5, *[0.4] * 6]
    assert not is_level(falling, 1e-3) and not is_level(level[:6], 1e-3)
    assert is_level(level, 1e-3) and not is_level(level, 0.2)


def test_held_out_rows_end_it_before_the_residual_is_small():
    problem = make_problem(n=1500, noise=1.0)
    X, y = problem.X.numpy(), problem.Y[:, 0].numpy()
    fixed = dict(kernel=kernels.Laplacian(2.0), ridge=0.05, random_state=0)
    model = KernelRegressor(solver="pcg", validation_fraction=0.2, **fixed).fit(X, y)
    full = KernelRegressor(solver=PCG(tolerance=1e-6), validation_fraction=0.2, **fixed).fit(X, y)
    assert len(model.history_) < len(full.history_) - 3
    scores = [each.history_[-1]["validation_score"] for each in (model, full)]
    assert abs(scores[0] - scores[1]) < 0.01


@pytest.mark.parametrize("d", [3, 6])
def test_a_sample_tells_how_many_iterations_all_rows_need(d):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(6000, d, generator=g).double()
    y = X[:, :1].sin() + 0.3 * torch.randn(6000, 1, generator=g).double()
    kernel, w, ridge = kernels.Matern(2.0), torch.ones(6000).double(), 0.3
    sizes = Plan("pcg", 6000, d, 1, 6000, every_row=True)
    guess = expected_iterations(kernel, X[:1500], y[:1500], w[:1500], ridge, sizes)
    usual = dict(tolerance=1e-2, iterations=200, tile_bytes=1 << 24, budget=1 << 30)
    needed = solve(kernel, X, y, w, ridge, **usual).step
    assert needed / 2 <= guess <= 3 * needed


def test_a_time_limit_is_kept():
    g = np.random.default_rng(0)
    X = g.standard_normal((3000, 4))
    y = np.sin(3 * X[:, 0]) + 0.1 * g.standard_normal(3000)
    endless = PCG(tolerance=1e-300, iterations=10**6)
    start = time.perf_counter()
    with pytest.warns(UserWarning, match="its time_limit is over"):
        model = KernelRegressor(
            kernel=kernels.Laplacian(2.0), solver=endless, ridge=1e-3, time_limit=2
        ).fit(X, y)
    assert time.perf_counter() - start < 20 and model.score(X, y) > 0.5


def test_a_fit_that_is_at_its_end_is_not_late():
    g = np.random.default_rng(0)
    X, y = g.standard_normal((300, 2)), g.standard_normal(300)
    fixed = dict(kernel=kernels.Laplacian(1.0), ridge=0.1, solver="direct")
    slow = lambda event: time.sleep(0.7) if event.kind == "epoch" else None  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KernelRegressor(**fixed, time_limit=0.8, callbacks=[slow]).fit(X, y)


def test_a_resumed_run_goes_on_where_it_was(tmp_path):
    problem = make_problem(n=400)
    X, y = problem.X.numpy(), problem.Y[:, 0].numpy()
    fixed = dict(
        kernel=kernels.Laplacian(2.0),
        ridge=0.01,
        solver=PCG(tolerance=1e-8, rank=20),
        precision="float64",
        random_state=0,
    )
    folder = dict(checkpoint=tmp_path, checkpoint_every=0, resume=True)
    KernelRegressor(**fixed, **folder, callbacks=lambda event: event.epoch == 4).fit(X, y)
    resumed = KernelRegressor(**fixed, **folder).fit(X, y)
    whole = KernelRegressor(**fixed).fit(X, y)
    said = [row["epoch"] for row in resumed.history_ if row["kind"] == "epoch"]
    assert said == list(range(1, len(said) + 1)) == [row["epoch"] for row in whole.history_]
    assert torch.equal(resumed.model_.alpha, whole.model_.alpha)


def test_rounded_rows_of_a_sum_are_those_of_its_parts():
    X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)).double()
    total = kernels.Sum([kernels.Laplacian(2.0), kernels.Gaussian(3.0)], [0.3, 0.7])
    K = bind(total, X.mean(0), "float16", torch.device("cpu"), 1 << 20)
    exact = bind(total, X.mean(0), "float64", torch.device("cpu"), 1 << 20)
    wide = K.wide(K.points(X))
    want = K.dense64(K.points(X), K.points(X))
    torch.testing.assert_close(exact.dense64(wide, wide), want, rtol=1e-6, atol=1e-6)
