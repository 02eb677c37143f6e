"""Identity 8: sums over tiles equal the dense product, for every kernel, dtype and shape, empty and one-row shapes included."""

import pytest
import torch

from kernelmill.kernels import Laplacian
from kernelmill.ops import KernelProduct, Recomputed
from test_kernels import EVERY


def make(kernel, dtype, tile_bytes):
    return KernelProduct(kernel, torch.zeros(6, dtype=torch.float64), str(dtype).removeprefix("torch."), torch.device("cpu"), tile_bytes)


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
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
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


def test_float64_of_rounded_features_is_what_eigensystems_see():
    K = make(Laplacian(2.0), torch.float32, 1 << 20)
    A = K.points(torch.randn(30, 6, dtype=torch.float64))
    torch.testing.assert_close(K.dense64(A, A), torch.exp(-torch.cdist(A.x.double(), A.x.double())), rtol=1e-7, atol=1e-7)
