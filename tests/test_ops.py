"""Identity 8: sums over tiles equal the dense product, for every kernel, dtype and shape, empty
and one-row shapes included.
"""

from contextlib import ExitStack

import pytest
import torch
from threadpoolctl import ThreadpoolController

from kernelmill.kernels import Custom, Laplacian, Linear
from kernelmill.ops import PRECISIONS, KernelProduct, Recomputed, frame
from kernelmill.ops.modes import calm_numpy, own_modes, whole_products
from kernelmill.ops.product import round_to_tf32
from test_kernels import EVERY


def make(kernel, dtype, tile_bytes):
    return KernelProduct(
        kernel,
        torch.zeros(6, dtype=torch.float64),
        str(dtype).removeprefix("torch."),
        torch.device("cpu"),
        tile_bytes,
    )


@pytest.mark.parametrize("kernel", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "cols"), [(37, 23), (1, 23), (37, 1), (0, 5), (5, 0), (0, 0)])
def test_tiles_equal_the_dense_product(kernel, dtype, rows, cols):
    g = torch.Generator().manual_seed(rows * 100 + cols)
    X, Z = torch.randn(rows, 6, generator=g), torch.randn(cols, 6, generator=g)
    v, u = torch.randn(cols, 3, generator=g).to(dtype), torch.randn(rows, 3, generator=g).to(dtype)
    whole, tiled = make(kernel, dtype, 1 << 30), make(kernel, dtype, 5 * cols * dtype.itemsize + 1)
    A, B = tiled.points(X), tiled.points(Z)
    K = whole.dense(A, B).double()
    assert K.shape == (rows, cols)
    tolerance = (
        {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    )
    scale = max(1.0, K.abs().max().item() if K.numel() else 1.0)
    for got, expected in [
        (tiled.dense(A, B).double(), K),
        (tiled.matmul(A, B, v).double(), K @ v.double()),
        (tiled.rmatmul(A, B, u).double(), K.T @ u.double()),
    ]:
        torch.testing.assert_close(got / scale, expected / scale, **tolerance)


def test_more_than_one_tile_is_really_used():
    K = make(Laplacian(1.0), torch.float64, 5 * 23 * 8)
    cut = list(K.tiles(12, 23))
    assert len(cut) > 1 and sum((r.stop - r.start) * (c.stop - c.start) for r, c in cut) == 12 * 23
    assert all((r.stop - r.start) * (c.stop - c.start) <= 1.5 * 5 * 23 for r, c in cut)


def test_a_recomputed_block_reads_like_a_matrix():
    K = make(Laplacian(2.0), torch.float64, 1000)
    A, B = K.points(torch.randn(20, 6)), K.points(torch.randn(15, 6))
    held, lazy = K.block(A, B, K.room(20, 15)), K.block(A, B, None)
    assert isinstance(held, torch.Tensor) and isinstance(lazy, Recomputed)
    v, g = torch.randn(15, 2, dtype=torch.float64), torch.randn(20, 2, dtype=torch.float64)
    torch.testing.assert_close(lazy @ v, held @ v)
    torch.testing.assert_close(lazy.T @ g, held.T @ g)
    torch.testing.assert_close(lazy[:, :4], held[:, :4])


@pytest.mark.parametrize("tile_bytes", [1 << 20, 4 * 8 * 5 * 5])
def test_half_of_a_square_is_the_whole(tile_bytes):
    K = make(Laplacian(2.0), torch.float64, tile_bytes)
    A, v = K.points(torch.randn(33, 6)), torch.randn(33, 2, dtype=torch.float64)
    whole = K.dense(A, A)
    torch.testing.assert_close(K.gram(A, torch.empty_like(whole)), whole)
    torch.testing.assert_close(K.gram_times(A, v), whole @ v)


def test_float64_of_rounded_features_is_what_eigensystems_see():
    K = make(Laplacian(2.0), torch.float32, 1 << 20)
    A = K.points(torch.randn(30, 6, dtype=torch.float64))
    torch.testing.assert_close(
        K.dense64(A, A), torch.exp(-torch.cdist(A.x.double(), A.x.double())), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_rounds_features_and_nothing_else(precision):
    """K is exact for the rounded points: positive semi-definite, symmetric, and as near to K of
    the true points as the rounding.
    """
    X = torch.randn(200, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    origin, spread = frame(Laplacian(2.0), X)
    K = KernelProduct(Laplacian(2.0), origin, precision, torch.device("cpu"), 1 << 20, spread)
    A = K.points(X)
    moved = {
        "float8": 2**-4,
        "float16": 2**-11,
        "bfloat16": 2**-8,
        "tf32": 2**-11,
        "float32": 2**-23,
        "float64": 2**-52,
    }[precision]
    true = (X - origin) / 2.0
    least = 2**-10 / 2 if precision == "float8" else 1e-12  # below the smallest normal number
    assert ((A.x.double() - true).abs() <= moved * true.abs() + least).all()
    assert precision == "float64" or not torch.equal(A.x.double(), true)
    torch.testing.assert_close(
        K.dense(A, A).double(),
        K.dense64(A, A),
        rtol=0,
        atol=2e-3 if K.dtype == torch.float32 else 1e-6,
    )
    assert torch.linalg.eigvalsh(K.dense64(A, A)).min() > 0


@pytest.mark.parametrize("precision", ["float8", "float16"])
def test_what_is_beyond_the_range_of_an_inner_product_is_not_a_number(precision):
    X = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    kernel = Linear(1.0)
    origin, spread = frame(kernel, X)
    K = KernelProduct(kernel, origin, precision, torch.device("cpu"), 1 << 20, spread)
    assert torch.isnan(K.dense(K.points(1e7 * X), K.points(X))).any()
    assert torch.isfinite(K.dense(K.points(X), K.points(X))).all()


def test_tf32_rounds_to_ten_bits():
    x = torch.tensor([1 + 2**-12, 1 + 3 * 2**-12, -1 - 2**-12, 5.0, 0.0])
    assert round_to_tf32(x).tolist() == [1.0, 1 + 2**-10, -1.0, 5.0, 0.0]


@pytest.mark.parametrize("transposed", [False, True])
def test_out_of_memory_halves_the_tile_and_goes_on(transposed, monkeypatch, caplog):
    K = make(Laplacian(2.0), torch.float64, 1 << 20)
    A, B = K.points(torch.randn(300, 6)), K.points(torch.randn(400, 6))
    v = torch.randn(300 if transposed else 400, 2, dtype=torch.float64)
    expected = K.rmatmul(A, B, v) if transposed else K.matmul(A, B, v)
    evaluate = Laplacian.evaluate

    def scarce(self, a, b, out=None):
        if len(a) * len(b) * 8 > 200_000:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return evaluate(self, a, b, out)

    monkeypatch.setattr(Laplacian, "evaluate", scarce)
    torch.testing.assert_close(K.rmatmul(A, B, v) if transposed else K.matmul(A, B, v), expected)
    assert K.tile_bytes < 1 << 20 and "out of memory" in caplog.text
    monkeypatch.setattr(
        Laplacian,
        "evaluate",
        lambda *a, **k: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory.")),
    )
    with pytest.raises(torch.OutOfMemoryError):
        K.matmul(A, B, torch.randn(400, 2, dtype=torch.float64))


def test_frame_is_the_mean_and_the_spread_and_leaves_the_centers_alone():
    Z = torch.randn(101, 6, dtype=torch.float64) * 3 + 5
    origin, spread = frame(Laplacian(2.0), Z)
    torch.testing.assert_close(origin, Z.mean(0))
    own = Custom(lambda a, b: a @ b.T)
    single = Z.float()
    frame(own, single)
    assert torch.equal(single, Z.float())
    assert spread == pytest.approx(((Z - Z.mean(0)) / 2).square().mean().sqrt().item(), rel=1e-6)


def test_numpy_has_its_threads_again_after_the_last_of_several_fits():
    def threads():
        own = [lib for lib in ThreadpoolController().lib_controllers if "py.libs" in lib.filepath]
        return {lib.get_num_threads() for lib in own}

    before = threads()
    first, second = ExitStack(), ExitStack()
    first.enter_context(calm_numpy)
    second.enter_context(calm_numpy)
    first.close()
    assert threads() <= {1}
    second.close()
    assert threads() == before


def test_products_are_whole_whatever_the_caller_said_of_them():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        first, second = ExitStack(), ExitStack()
        first.enter_context(whole_products)
        second.enter_context(whole_products)
        first.close()  # the other one still computes
        assert torch.get_float32_matmul_precision() == "highest"
        second.close()
        assert torch.get_float32_matmul_precision() == "high"
        with own_modes():
            assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
