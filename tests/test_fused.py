"""The fused Triton kernels against float64 and against plain torch: on a GPU where there is one,
else in Triton's interpreter.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from conftest import make_problem
from kernelmill.distributed.threads import run_threads
from kernelmill.kernels import ArcCosine, Gaussian, Laplacian, Linear, Matern, Polynomial
from kernelmill.ops import PRECISIONS, KernelProduct, Recomputed, Rounded, bind, frame
from kernelmill.ops.warm import warm_up, warming_up
from kernelmill.solvers import EigenPro2, EigenPro3, EigenPro4
from test_kernels import EVERY

fused = pytest.importorskip("kernelmill.ops.fused", reason="Triton is not installed")
fused64 = pytest.importorskip("kernelmill.ops.fused64")

# Numpy's, of log2(0) and inf − inf in the interpreter.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BUILT_IN = [kernel for kernel in EVERY if kernel.name != "custom"]
# numpy, which the interpreter computes with, has no bfloat16.
ROUNDED = [
    precision
    for precision in PRECISIONS
    if precision != "float64" and (DEVICE.type == "cuda" or precision != "bfloat16")
]


def lost(precision):
    """What tensor cores lose that add products of 8-bit features in 14 bits: a sum of 32 products
    is cut off by 2^-13 of itself at most, a norm too, and four of these make a distance. (An H200:
    3.6e-4 of K at most, 2e-4 of norms.)
    """
    return 2.0**-11 if precision == "float8" and DEVICE.type == "cuda" else 0.0


def rows(n, d, seed, offset=0.0):
    return (torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + offset).to(DEVICE)


def products(kernel, Z, precision, tile_bytes=1 << 20):
    origin, spread = frame(kernel, Z)
    return tuple(
        bind(kernel, origin, precision, DEVICE, tile_bytes, spread, use) for use in (True, False)
    )


def error(K, truth):
    return (
        ((K.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-30)).item()
        if truth.numel()
        else 0.0
    )


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("kernel", BUILT_IN, ids=repr)
def test_values_are_as_exact_as_plain_torch_in_the_same_precision(kernel, precision):
    X, Z = rows(70, 6, 1), rows(150, 6, 2)
    fast, plain = products(kernel, Z, precision)
    A, B = fast.points(X), fast.points(Z)
    truth = fast.dense64(A, B)
    a, b = plain.points(X), plain.points(Z)
    # Both round features the same way, so that both see the same points.
    if precision != "float32":
        torch.testing.assert_close(plain.dense64(a, b), truth, rtol=1e-9, atol=1e-9)
    allowed = 2 * error(plain.dense(a, b), plain.dense64(a, b)) + 1e-6 + lost(precision)
    assert error(fast.dense(A, B), truth) <= allowed
    w, g = rows(150, 3, 3), rows(70, 3, 4)
    assert error(fast.matmul(A, B, w), truth @ w.double()) <= allowed
    assert error(fast.rmatmul(A, B, g), truth.T @ g.double()) <= allowed
    near = 1e-5 + lost(precision)
    torch.testing.assert_close(fast.diagonal(A), plain.diagonal(a), rtol=near, atol=near)


@pytest.mark.parametrize("d", [1, 5, 16, 33, 64, 90, 130, 200])
@pytest.mark.parametrize("precision", ROUNDED)
def test_any_number_of_features(d, precision):
    X, Z, w = rows(33, d, 1), rows(70, d, 2), rows(70, 2, 3)
    fast, _ = products(Gaussian(d**0.5), Z, precision)
    A, B = fast.points(X), fast.points(Z)
    truth, allowed = fast.dense64(A, B), 3e-6 + lost(precision)
    assert error(fast.dense(A, B), truth) < allowed
    assert error(fast.matmul(A, B, w), truth @ w.double()) < allowed


@pytest.mark.parametrize(
    ("r", "t"), [(1, 1), (1, 200), (200, 1), (129, 257), (64, 64), (0, 5), (5, 0)]
)
@pytest.mark.parametrize("c", [1, 10, 40, 130])
def test_any_shape_and_number_of_outputs(r, t, c):
    X, Z, w, g = rows(r, 8, 1), rows(max(t, 1), 8, 2)[:t], rows(t, c, 3), rows(r, c, 4)
    fast, _ = products(Laplacian(3.0), rows(9, 8, 2), "float16", tile_bytes=4 * 150 * (t + 7))
    A, B = fast.points(X), fast.points(Z)
    truth = fast.dense64(A, B)
    tolerance = {"rtol": 3e-6, "atol": 3e-6 * (1 + w.abs().sum().item() / c)}
    torch.testing.assert_close(fast.matmul(A, B, w).double(), truth @ w.double(), **tolerance)
    torch.testing.assert_close(
        fast.rmatmul(A, B, g).double(),
        truth.T @ g.double(),
        rtol=3e-6,
        atol=3e-6 * (1 + g.abs().sum().item() / c),
    )
    kept = fast.block(A, B, fast.room(r, t))
    torch.testing.assert_close((kept @ w).double(), truth @ w.double(), **tolerance)
    torch.testing.assert_close(
        (kept.T @ g).double(),
        truth.T @ g.double(),
        rtol=3e-6,
        atol=3e-6 * (1 + g.abs().sum().item() / c),
    )
    torch.testing.assert_close(kept[:, :3].double(), truth[:, :3], rtol=1e-6, atol=1e-6)


def test_a_passing_block_of_8_bit_features_holds_one_part_of_11_bits():
    """Its first product has all digits; what is read later is as exact as the part."""
    X, Z = rows(100, 200, 1), rows(140, 200, 2)
    fast, _ = products(Laplacian(14.0), Z, "float8")
    A, B = fast.points(X), fast.points(Z)
    w, g, truth = rows(140, 3, 3), rows(100, 3, 4), fast.dense64(A, B)
    passing, room = (fast.room(120, 200, passing=each) for each in (True, False))
    assert passing.dtype == torch.float16 and room.dtype == torch.float32
    for held, digits in ((passing, 2**-11), (room, 3e-6)):
        exact = lost("float8")
        kept = fast.block(A, B, held)
        assert error(kept @ w, truth @ w.double()) < 3e-6 + exact
        assert error(kept.T @ g, truth.T @ g.double()) < digits + exact
        assert error(kept[:, :50], truth[:, :50]) < digits + exact
    assert error(fast.block(A, B, passing)[:, :50], truth[:, :50]) > 2**-14  # one part it is
    nothing = fast.block(A, B[:0], passing)
    assert torch.equal(nothing @ w[:0], torch.zeros(100, 3, device=DEVICE))


@pytest.mark.parametrize(
    "kernel", [Laplacian(2.0), Polynomial(2.0, degree=4), ArcCosine(1.0), Linear(0.01)], ids=repr
)
def test_a_kept_block_reads_like_the_recomputed_one(kernel):
    X, Z = rows(100, 20, 1), rows(140, 20, 2)
    fast, _ = products(kernel, Z, "float16")
    A, B = fast.points(X), fast.points(Z)
    w, g = rows(140, 3, 3), rows(100, 3, 4)
    lazy, truth = fast.block(A, B, None), fast.dense64(A, B)
    assert isinstance(lazy, Recomputed)
    for order in ("product first", "transpose first", "slice first"):
        kept = fast.block(A, B, fast.room(120, 200))  # room to spare, as for a short last batch
        if order == "transpose first":
            assert error(kept.T @ g, truth.T @ g.double()) < 3e-6
        if order == "slice first":
            assert error(kept[:, :50], truth[:, :50]) < 3e-6
        assert error(kept @ w, truth @ w.double()) < 3e-6
        assert error(kept.T @ g, lazy.T @ g) < 3e-6
        assert error(kept[10:20, 5:50], lazy[10:20, 5:50]) < 3e-6


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("d", [3, 48, 90, 784])
def test_rows_that_coincide_are_at_distance_zero(precision, d):
    X = rows(70, d, 1, offset=2.0)
    fast, _ = products(Laplacian(d**0.5), X, precision)
    A = fast.points(X)
    diagonal = fast.dense(A, A).diagonal()
    # numpy sums tiles of different shapes in different orders; tensor cores do not.
    assert (diagonal == 1).all() if DEVICE.type == "cuda" else (diagonal > 1 - 1e-3).all()


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1.0, 1e6, 1e15])
def test_features_of_any_size_survive_float16(size):
    """A bandwidth in the data's own unit makes K the same whatever the unit; so must float16
    features be.
    """
    X, Z = rows(50, 10, 1), rows(60, 10, 2)
    fast, plain = products(Gaussian(3.0 * size), Z * size, "float16")
    expected, _ = products(Gaussian(3.0), Z, "float16")
    for K in (fast, plain):
        torch.testing.assert_close(
            K.dense(K.points(X * size), K.points(Z * size)),
            expected.dense(expected.points(X), expected.points(Z)),
            rtol=1e-3,
            atol=1e-3,
        )


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_centers_that_are_close_together_leave_room_for_far_rows(precision):
    """Two centers 1e-6 apart: features are scaled by their bandwidth, not only by the centers'
    spread.
    """
    Z = torch.tensor([[0.0, 0.0], [1e-6, 0.0]], device=DEVICE)
    X = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], device=DEVICE)
    for K in products(Laplacian(1.0), Z, precision):
        torch.testing.assert_close(
            K.dense(K.points(X), K.points(Z)), torch.exp(-torch.cdist(X, Z)), rtol=3e-3, atol=0
        )


def test_a_polynomial_near_the_end_of_float32_is_finite():
    Z = rows(20, 4, 1) * 1e3
    fast, plain = products(Polynomial(1.0, degree=5), Z, "float32")
    A, w = fast.points(Z), rows(20, 2, 2) * 1e-30
    K = plain.dense(plain.points(Z), plain.points(Z))
    assert K.max() > 1e34
    torch.testing.assert_close(
        fast.matmul(A, A, w), K @ w, rtol=1e-4, atol=1e-4 * (K @ w).abs().max().item()
    )


def test_dot_products_beyond_float16_are_not_cut_silently():
    Z = rows(60, 10, 2)
    for K in products(Linear(1.0), Z, "float16"):
        assert not torch.isfinite(K.dense(K.points(rows(1, 10, 1) * 1e9), K.points(Z))).any()


def test_a_row_beyond_float16_stays_finite():
    Z = rows(60, 10, 2)
    fast, plain = products(Laplacian(3.0), Z, "float16")
    far = torch.full((1, 10), 1e9, device=DEVICE)
    for K in (fast, plain):
        assert (K.dense(K.points(far), K.points(Z)) == 0).all()


@pytest.mark.parametrize("size", [1e-38, 1e-12, 1.0, 1e12, 1e30])
def test_weights_of_any_size_keep_their_digits(size):
    X, Z = rows(60, 10, 1), rows(200, 10, 2)
    fast, _ = products(Laplacian(3.0), Z, "float16")
    A, B = fast.points(X), fast.points(Z)
    w = rows(200, 4, 3) * torch.tensor([size, size * 1e-3, 1.0, 0.0], device=DEVICE)
    expected = fast.dense64(A, B) @ w.double()
    got = fast.matmul(A, B, w).double()
    for column in range(3):  # 20 bits: beside the largest weight of a column, not of all
        if (
            expected[:, column].abs() > 1e-36
        ).all() or column == 2:  # below, float32 itself has no digits left
            assert error(got[:, column], expected[:, column]) < 2e-6
    assert (got[:, 3] == 0).all()


def test_weights_that_are_not_finite_are_not_hidden():
    X, Z = rows(60, 10, 1), rows(200, 10, 2)
    fast, _ = products(Laplacian(3.0), Z, "float16")
    for bad in (float("nan"), float("inf")):
        w = rows(200, 2, 3)
        w[7, 0] = bad
        out = fast.matmul(fast.points(X), fast.points(Z), w)
        assert not torch.isfinite(out[:, 0]).any() and torch.isfinite(out[:, 1]).all()


def test_small_kernel_values_keep_their_digits():
    """Where every K is small, as far from all centers, two float16 parts must not lose it: abs
    2^-39 beside K(x,x) = 1.
    """
    Z = rows(200, 10, 2)
    fast, _ = products(Laplacian(0.3), Z, "float16")
    A, B = fast.points(rows(60, 10, 1)), fast.points(Z)
    truth = fast.dense64(A, B)
    assert truth.max() < 0.1 and truth.median() < 1e-5
    w = torch.ones(200, 1, device=DEVICE)
    torch.testing.assert_close(
        fast.matmul(A, B, w).double(), truth @ w.double(), rtol=2e-5, atol=1e-9
    )


def test_the_same_bits_each_time():
    X, Z, w = rows(200, 20, 1), rows(900, 20, 2), rows(900, 5, 3)
    fast, _ = products(Matern(3.0, nu=2.5), Z, "float16")
    A, B = fast.points(X), fast.points(Z)
    assert all((fast.matmul(A, B, w) == fast.matmul(A, B, w)).all() for _ in range(3))


def test_programs_fill_the_chip():
    for row_tiles, col_tiles in [(9, 1024), (64, 1024), (1024, 9), (1, 1), (1, 7813), (7813, 1)]:
        cut = fused.splits(row_tiles, col_tiles, 264)
        each = -(-col_tiles // cut)
        programs = row_tiles * -(-col_tiles // each)
        longest = -(-programs // 264) * each
        assert longest <= 1.1 * row_tiles * col_tiles / 264 + 2


RUNS = {
    "carried": (EigenPro4(s=40, q=8, m=50, projection="carried"), {}),
    "cholesky": (EigenPro4(s=40, q=8, m=50), {}),
    "two epochs and a ridge": (
        EigenPro4(s=40, q=8, m=50, projection="carried"),
        {"epochs": 2, "ridge": 0.3},
    ),
    "nothing kept": (EigenPro4(s=40, q=8, m=50, projection="carried"), {"budget": 200_000}),
    "the paper's recipe": (EigenPro4.paper(s=40, q=8), {}),
    "EigenPro 3": (EigenPro3(s=40, q=8, m=100), {}),
    "EigenPro 2": (EigenPro2(s=40, q=8), {}),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("c", [2, 20])
def test_a_whole_run_gives_the_weights_of_plain_torch(run, c, monkeypatch):
    solver, settings = RUNS[run]
    problem = make_problem(n=300, d=5, p=300 if solver.name == "eigenpro2" else 90, c=c)
    settings = {"dtype": "float32", "device": str(DEVICE), **settings}
    start = KernelProduct.__init__
    with_fused, without = (
        (lambda self, *a, use=use, **k: start(self, *a, **{**k, "use_fused": use}))
        for use in (True, False)
    )
    monkeypatch.setattr(KernelProduct, "__init__", without)
    plain = problem.solve(solver, **settings)
    launched, launch = [], fused._launch
    monkeypatch.setattr(KernelProduct, "__init__", with_fused)
    monkeypatch.setattr(
        fused, "_launch", lambda *args, **kwargs: launched.append(1) or launch(*args, **kwargs)
    )
    got = problem.solve(solver, **settings)
    assert len(launched) > 5 and (run != "nothing kept" or not got.plan.keep_block)
    assert problem.distance(got.alpha.cpu(), plain.alpha.cpu().double()) < 2e-3


@pytest.mark.skipif(DEVICE.type == "cpu", reason="Triton's interpreter runs in one thread only")
def test_any_split_of_the_centers_gives_the_same_weights_through_the_fused_kernels(monkeypatch):
    problem = make_problem(n=200, d=5, p=61, c=2)
    solver = EigenPro4(s=20, q=4, m=50, projection="carried")
    start = KernelProduct.__init__
    monkeypatch.setattr(
        KernelProduct, "__init__", lambda self, *a, **k: start(self, *a, **{**k, "use_fused": True})
    )
    settings = {"dtype": "float32", "device": str(DEVICE)}
    whole = problem.solve(solver, **settings).alpha.cpu()
    for ranks in (2, 3):
        parts = run_threads(
            ranks, lambda comm: problem.solve(solver, comm=comm, **settings).alpha.cpu()
        )
        together = torch.empty_like(whole)
        for rank, part in enumerate(parts):
            together[rank::ranks] = part
        assert problem.distance(together, whole.double()) < 2e-3


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the other tests have compiled them")
def test_the_kernels_compile_for_a_gpu():
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]


# ---- float64


WIDE = [kernel for kernel in BUILT_IN if fused64.form_of(kernel)]


@pytest.mark.parametrize("c", [1, 3, 16])
@pytest.mark.parametrize("kernel", WIDE, ids=repr)
def test_products_in_float64_have_all_its_digits(kernel, c):
    X, Z = rows(70, 21, 1).double(), rows(150, 21, 2).double()
    fast, plain = products(kernel, Z, "float64")
    A, B = fast.points(X), fast.points(Z)
    truth = plain.dense(plain.points(X), plain.points(Z))
    w, g = rows(150, c, 3).double(), rows(70, c, 4).double()
    assert error(fast.matmul(A, B, w), truth @ w) < 1e-13
    assert error(fast.rmatmul(A, B, g), truth.T @ g) < 1e-13
    # What only plain torch does sees the same points.
    assert error(fast.dense(A, B), truth) < 1e-13
    many = rows(150, 40, 5).double()
    assert error(fast.matmul(A, B, many), truth @ many) < 1e-13


@pytest.mark.parametrize(("r", "t"), [(1, 1), (129, 257), (64, 64), (70, 3), (0, 5), (5, 0)])
@pytest.mark.parametrize("c", [1, 3, 20])
def test_a_float32_matrix_is_multiplied_with_sums_in_float64(r, t, c):
    K = rows(r, t + 5, 1)[:, :t]
    w, g = rows(t, c, 2).double(), rows(r, c, 3).double()
    held = fused64.held_times
    torch.testing.assert_close(held(K, w), K.double() @ w, rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(held(K, g, True), K.double().T @ g, rtol=1e-13, atol=1e-12)
    both = Rounded(K)
    torch.testing.assert_close(both @ w, K.double() @ w, rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(both.T @ g, K.double().T @ g, rtol=1e-13, atol=1e-12)
    torch.testing.assert_close(both[:, :2], K.double()[:, :2])


# ---- compiling ahead


def noted(kernel, launched):
    """A kernel that says what it is launched with: each such shape is compiled by itself."""

    class Noted:
        def __getitem__(self, grid):
            def launch(*args, **settings):
                shape = sorted((k, v) for k, v in settings.items() if k.isupper())
                launched.add((kernel.fn.__name__, *map(str, shape)))
                return kernel[grid](*args, **settings)

            return launch

    return Noted()


def test_a_run_multiplies_by_what_was_compiled_ahead(monkeypatch):
    launched, start = set(), KernelProduct.__init__
    for name in ("block_product", "norms", "split_columns"):
        monkeypatch.setattr(fused, name, noted(getattr(fused, name), launched))
    assert warm_up(Laplacian(1.0), 6, 3, "float32", DEVICE, use_fused=True)
    ahead = set(launched)
    monkeypatch.setattr(
        KernelProduct, "__init__", lambda self, *a, **k: start(self, *a, **{**k, "use_fused": True})
    )
    problem = make_problem(n=300, d=6, p=90, c=3)
    solver = EigenPro4(s=50, q=10, m=60, projection="carried")
    problem.solve(solver, epochs=1, dtype="float32", device=str(DEVICE))
    assert len(ahead) > 4 and launched == ahead


def test_products_in_float64_are_compiled_ahead(monkeypatch):
    launched = set()
    for name in ("block_product64", "held_product"):
        monkeypatch.setattr(fused64, name, noted(getattr(fused64, name), launched))
    assert warm_up(Gaussian(1.0), 6, 1, "float64", DEVICE, use_fused=True)
    assert any("block_product64" in one for one in launched)
    if DEVICE.type == "cuda":
        assert any("held_product" in one for one in launched)


def test_nothing_is_compiled_for_plain_torch():
    assert not warm_up(Gaussian(1.0), 6, 1, "float32", DEVICE, use_fused=False)
    before = threading.active_count()
    with warming_up(6, 1, "float32", torch.device("cpu")):
        assert threading.active_count() == before
