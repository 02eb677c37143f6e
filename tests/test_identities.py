"""The identities of the algorithm, in float64 at small size. Number 8 is in test_ops.py."""

import dataclasses
from itertools import islice

import pytest
import torch

from conftest import make_problem
from kernelmill import kernels
from kernelmill.distributed.team import Alone
from kernelmill.distributed.threads import run_threads
from kernelmill.ops import KernelProduct
from kernelmill.planning.plan import Plan
from kernelmill.projection import Pass
from kernelmill.solvers import EigenPro2, EigenPro3, EigenPro4, EigenPro4Exact, shards
from kernelmill.solvers import eigenpro_setup as setup


def prepared(problem, solver, comm=None, **kwargs):
    return solver.prepare(problem.shared(comm), problem.plan(solver, **kwargs), None)[0]


@pytest.mark.parametrize(
    "solver",
    [
        EigenPro4(s=100, q=20, T=2),
        EigenPro4(s=100, q=20, T=2, recipe="paper", projection="cholesky"),
    ],
    ids=["ours", "paper"],
)
def test_1_h_is_the_temporary_model_on_the_centers(problem, solver, monkeypatch):
    """h = K(Z,Z_tmp) α_tmp + K(Z,X_s) α_s: it fixes sign and scale.

    Seen through the projection's argument, cycle by cycle.
    """
    kept = {}

    class Spy(shards.Temporary):
        def append(self, X, weights):
            super().append(X, weights)
            kept["tmp"] = (self.points, self.alpha.clone())

    def spy(r):
        kept["h"] = r.clone()
        # No projection: nothing of the cycle stays.
        return torch.zeros_like(r), torch.zeros_like(r)

    monkeypatch.setattr(shards, "Temporary", Spy)
    setup, state = solver.prepare(problem.shared(), problem.plan(solver), None)
    # Without projections residuals grow: nobody steps back here.
    before, state.energy = (state.alpha, 1e9)
    for report in islice(
        solver.rounds(problem.shared(), dataclasses.replace(setup, project=spy), state), 3
    ):
        alpha, (Z_tmp, alpha_tmp) = report.state.alpha, kept["tmp"]
        # Α_s = η Σ F Fᵀ K(X_s,X_m) g.
        alpha_s = -setup.F @ (setup.F.T @ (setup.K.dense(setup.X_s, Z_tmp) @ alpha_tmp))
        expected = setup.K.dense(setup.Z, Z_tmp) @ alpha_tmp
        expected = expected + setup.K.dense(setup.Z, setup.X_s) @ alpha_s
        assert (alpha == before).all()
        torch.testing.assert_close(kept["h"], expected, rtol=1e-9, atol=1e-11)
        assert expected.norm() > 0.1
        before = alpha


@pytest.mark.parametrize("recipe", ["measured", "paper"])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_2_eigenpro4_with_T_1_is_eigenpro3(problem, recipe, ridge):
    if recipe == "paper" and ridge:
        pytest.skip("the paper has no ridge")
    four = EigenPro4(
        s=100, q=20, m=40, T=1, projection="cholesky", control_variate=False, recipe=recipe
    )
    three = EigenPro3(s=100, q=20, m=40, projection="cholesky", recipe=recipe)
    a, b = (problem.solve(solver, epochs=2, ridge=ridge) for solver in (four, three))
    assert a.alpha.norm() > 1
    torch.testing.assert_close(a.alpha, b.alpha, rtol=1e-7, atol=1e-9)


def classical_epoch(K, Y, alpha, F, s, m, eta, shift=0.0):
    """EigenPro 2 as it is written: batch by batch, predictions from scratch, full rows of K."""
    alpha = alpha.clone()
    K = K + shift * torch.eye(len(K), dtype=K.dtype)
    M = (K - shift * torch.eye(len(K), dtype=K.dtype))[:, :s] @ F
    for start in range(0, len(K), m):
        rows = slice(start, start + m)
        g = K[rows] @ alpha - Y[rows]
        alpha[rows] -= eta[rows, None] * g
        alpha[:s] += F @ (M[rows].T @ (eta[rows, None] * g))
    return alpha


@pytest.mark.parametrize("shift", [0.0, 0.2])
def test_3_the_pass_on_X_Y_is_the_eigenpro2_solver(shift):
    problem = make_problem(n=300, p=300)
    solver = EigenPro2(s=100, q=20, m=32)
    state = problem.solve(solver, epochs=3, ridge=shift)
    K = problem.kernel(problem.X)
    setup = prepared(problem, EigenPro4(s=100, q=20, projection="carried"))
    k = 1 - (setup.M**2).sum(1)
    eta = 1 / (1 / (1 / k).clamp(max=state.plan.eta) + shift)
    alpha = torch.zeros_like(problem.Y)
    for _ in range(3):
        alpha = classical_epoch(K, problem.Y, alpha, setup.F, 100, 32, eta, shift)
    torch.testing.assert_close(state.alpha, alpha, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(state.r, problem.Y - K @ alpha - shift * alpha, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("m", [1, 37, 64, 200])
@pytest.mark.parametrize("classical", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_4_the_half_triangle_pass_is_the_full_pass(problem, m, classical, keep):
    setup = prepared(problem, EigenPro4(s=50, q=10, projection="carried"))
    K, F, s, p = problem.kernel(problem.Z), setup.F, 50, len(problem.Z)
    steps = torch.full((p,), 0.7, dtype=torch.float64) if classical else None
    r = torch.randn(p, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    delta, left = Pass(setup.K, setup.Z, setup.M, F, s, p, m, keep, Alone(), steps)(r)

    # The same method with all of r kept up to date.
    full, residual = torch.zeros_like(r), r.clone()

    def add(rows, value):
        full[rows] += value
        residual.sub_(K[:, rows] @ value)

    if not classical:
        add(slice(0, s), F @ (F.T @ residual[:s]))
    for start in range(0, p, m):
        rows = slice(start, min(start + m, p))
        if classical:
            step = 0.7 * residual[rows]
            add(rows, step)
            add(slice(0, s), -F @ (setup.M[rows].T @ step))
        else:
            size = rows.stop - rows.start
            G = K[rows, rows] + 10 * size**0.5 * 2.2e-16 * torch.eye(size, dtype=torch.float64)
            add(rows, torch.linalg.solve(G, residual[rows]))
            if rows.stop >= s:
                add(slice(0, s), F @ (F.T @ residual[:s]))
    torch.testing.assert_close(delta, full, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(left, residual, rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(left, r - K @ delta, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("projection", ["cholesky", "carried"])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
@pytest.mark.parametrize("weights", [False, True])
def test_5_eigenpro4_tends_to_the_direct_solution(projection, ridge, weights):
    problem = make_problem(n=600, p=100, weights=weights)
    truth = problem.direct(ridge)
    solver = EigenPro4(s=60, q=20, projection=projection)
    near, far = (
        problem.distance(problem.solve(solver, epochs=epochs, ridge=ridge).alpha, truth)
        for epochs in (60, 5)
    )
    assert near < 5e-3
    assert near < far / 10


def test_5_without_the_control_variate_only_the_decay_brings_it_there():
    problem = make_problem(n=600, p=100)
    truth = problem.direct()
    plain = EigenPro4(s=60, q=20, projection="cholesky", control_variate=False)
    distances = [
        problem.distance(problem.solve(plain, epochs=epochs).alpha, truth) for epochs in (5, 20, 80)
    ]
    assert distances[0] > distances[1] > distances[2]
    anchored = problem.distance(
        problem.solve(EigenPro4(s=60, q=20, projection="cholesky"), epochs=80).alpha, truth
    )
    assert anchored < distances[2] / 10


def test_5_both_projections_tend_to_the_same_point():
    problem = make_problem(n=600, p=100)
    a, b = (
        problem.solve(EigenPro4(s=60, q=20, projection=way), epochs=100).alpha
        for way in ("cholesky", "carried")
    )
    assert problem.distance(a, b) < 1e-3


def test_6_the_exact_variant_converges_to_its_fixed_point():
    problem = make_problem(n=200, p=30)
    K_XX, K_XZ = problem.kernel(problem.X), problem.kernel(problem.X, problem.Z)
    inner = torch.linalg.solve(K_XX, K_XZ)
    fixed_point = torch.linalg.solve(K_XZ.T @ inner, inner.T @ problem.Y)
    state = problem.solve(EigenPro4Exact(), epochs=5)
    torch.testing.assert_close(state.alpha, fixed_point, rtol=1e-6, atol=1e-6)
    # For Z ⊂ X it interpolates the centers, and is not the direct solution.
    torch.testing.assert_close(
        state.alpha,
        torch.linalg.solve(problem.kernel(problem.Z), problem.Y[:30]),
        rtol=1e-6,
        atol=1e-6,
    )
    assert problem.distance(state.alpha, problem.direct()) > 0.01


SHARDED = [
    EigenPro4(s=50, q=10, projection="cholesky"),
    EigenPro4(s=50, q=10, projection="carried"),
    EigenPro4(s=50, q=10, projection="one_pass", recipe="paper", m=20),
    EigenPro3(s=50, q=10, m=60, projection="cholesky"),
    EigenPro3(s=50, q=10, m=60, projection="carried"),
]


@pytest.mark.parametrize("solver", SHARDED, ids=repr)
@pytest.mark.parametrize("ranks", [2, 3])
def test_7_any_split_of_the_centers_gives_the_same_weights(solver, ranks, monkeypatch):
    monkeypatch.setattr("kernelmill.solvers.eigenpro_sizes.PASS_ROWS", 32)
    problem = make_problem(n=301, p=101)
    ridge = 0.0 if getattr(solver, "recipe", "") == "paper" else 0.1
    whole = problem.solve(solver, epochs=2, ridge=ridge).alpha
    parts = run_threads(
        ranks, lambda comm: problem.solve(solver, epochs=2, ridge=ridge, comm=comm).alpha
    )
    assert sum(len(part) for part in parts) == 101
    together = torch.empty_like(whole)
    for rank, part in enumerate(parts):
        together[rank::ranks] = part
    torch.testing.assert_close(together, whole, rtol=1e-8, atol=1e-10)
    assert whole.norm() > 1


def test_7_eigenpro2_too():
    problem = make_problem(n=101, p=101)
    solver = EigenPro2(s=40, q=10)
    whole = problem.solve(solver, epochs=3, ridge=0.1).alpha
    parts = run_threads(3, lambda comm: problem.solve(solver, epochs=3, ridge=0.1, comm=comm).alpha)
    for rank, part in enumerate(parts):
        torch.testing.assert_close(part, whole[rank::3], rtol=1e-8, atol=1e-10)


def test_a_schwarz_pass_beats_eigenpro2_passes_by_far():
    """Why the carried residual uses it: the energy left after one pass, on the values of a
    temporary model.
    """
    problem = make_problem(n=1200, p=500, bandwidth=5.0)
    setup = prepared(problem, EigenPro4(s=200, q=40, projection="carried"))
    project = setup.project
    assert isinstance(project, Pass)
    project = dataclasses.replace(project, m=64, factors=None)
    K = problem.kernel(problem.Z)
    a = torch.randn(500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    h = problem.kernel(problem.Z, problem.X[600:1100]) @ a
    exact = torch.linalg.solve(K, h)

    def energy(theta):
        return ((theta - exact) * (K @ (theta - exact))).sum().item() / (
            exact * (K @ exact)
        ).sum().item()

    k = 1 - (setup.M**2).sum(1)
    classical = dataclasses.replace(project, steps=1 / k.clamp(min=k.max().item() / 2), m=32)
    assert energy(project(h)[0]) < 0.1
    assert energy(project(h)[0]) < energy(classical(h)[0]) / 20


def test_plan_and_product_are_plain(problem):
    assert isinstance(problem.plan(EigenPro4()), Plan)
    assert isinstance(
        setup.product(kernels.Laplacian(1.0), problem.Z, problem.plan(EigenPro4()), Alone()),
        KernelProduct,
    )
