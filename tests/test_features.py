"""Features of columns inside a kernel."""

import numpy as np
import pytest
import torch

from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, load
from kernelmill.kernels import ENCODINGS, Features, encode_columns
from kernelmill.kernels.features import BINS, TAIL, Feature

g = torch.Generator().manual_seed(0)
X = torch.cat(
    [
        torch.randn(400, 1, generator=g).exp() ** 2,  # a heavy tail
        torch.randn(400, 1, generator=g),
        torch.randint(0, 5, (400, 1), generator=g),  # a code
        torch.randint(0, 2, (400, 1), generator=g),  # a flag
        torch.ones(400, 1),
    ],
    1,
).double()


def test_features_are_what_they_say():
    made = Features.of([Feature(1, 0.5, 2.0, 2, 0.7), Feature(0, 1.0, 3.0, 1), Feature(1, 0, 1, 0)])
    A = torch.tensor([[4.0, 1.5], [1e9, -8.0]], dtype=torch.float64)
    u = (A[:, 0] - 1) / 3
    step = ((A[:, 1] - 0.5) / 2).clamp(0, 1) * 0.7
    expected = torch.stack([A[:, 1], u / torch.sqrt(1 + (u / TAIL) ** 2), step], 1)
    torch.testing.assert_close(made.apply(A), expected)
    assert made.apply(A).abs().max() < 10


def test_a_quantile_code_counts_the_quantiles_between_two_rows():
    made = encode_columns(X[:, :1], "quantile")
    assert len(made) == BINS
    ordered = X[:, :1].sort(0).values
    x = made.apply(ordered)
    steps = (x[1:] - x[:-1]).sum(1)
    assert (steps >= -1e-12).all() and steps.sum() == pytest.approx(2 * BINS**0.5)
    edges = made.apply(torch.quantile(X[:, :1], torch.tensor([0.25, 0.5, 0.75]).double(), 0))
    counted = edges.sum(1) / (2 / BINS**0.5)  # of quantiles that lie between rows, not at one
    torch.testing.assert_close(counted, torch.tensor([4.0, 8, 12]).double(), atol=0.05, rtol=0)
    monotone = encode_columns(X[:, :1] ** 3, "quantile").apply(ordered**3)
    assert (monotone.sum(1) - x.sum(1)).abs().max() < 0.5  # of 8: only inside a bin


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_columns_of_few_values(encoding):
    made = encode_columns(X, encoding)
    assert torch.isfinite(made.apply(X)).all()
    counts = torch.bincount(made.column, minlength=5).tolist()
    assert counts[3] == counts[4] == 1
    expected = {"standard": 1, "robust": 1, "quantile": 4, "robust+quantile": 5, "codes": 6}
    assert counts[2] == expected[encoding]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_kernel_of_features_is_the_kernel_of_rows_so_encoded(encoding, tmp_path):
    made = encode_columns(X, encoding)
    bandwidth = torch.linspace(1, 3, len(made), dtype=torch.float64)
    inside = kernels.Laplacian(bandwidth, features=made)
    torch.testing.assert_close(inside(X), kernels.Laplacian(bandwidth)(made.apply(X)))
    y = (X[:, 0].log() + X[:, 2]).numpy()
    settings = {"ridge": 0.1, "solver": "direct", "random_state": 0}
    model = KernelRegressor(kernel=inside, **settings).fit(X.numpy(), y)
    outside = KernelRegressor(kernel=kernels.Laplacian(bandwidth), **settings)
    rows = made.apply(X).numpy()
    want = outside.fit(rows, y).predict(rows)
    np.testing.assert_allclose(model.predict(X.numpy()), want, rtol=1e-8)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(X.numpy()), model.predict(X.numpy()))


def test_streams_ranks_and_steps_see_features_too():
    made = encode_columns(X, "robust+quantile")
    labels = (X[:, 0] > 1).long().numpy()
    kernel = kernels.Matern(4.0, features=made)
    model = KernelClassifier(kernel=kernel, n_centers=80, solver="eigenpro4", random_state=0)
    assert model.fit(X.numpy(), labels).score(X.numpy(), labels) > 0.9
    model.partial_fit(X.numpy(), labels)
    assert model.score(X.numpy(), labels) > 0.9


def test_features_of_columns_that_are_not_there():
    made = encode_columns(X, "standard")
    with pytest.raises(InputError, match="features of 5 columns were given, and rows have 3"):
        KernelRegressor(kernel=kernels.Laplacian(1.0, features=made)).fit(X[:, :3].numpy(), X[:, 4])


def test_values_that_differ_by_rounding_are_one():
    """Codes as narrow as that would not survive float32, nor another way to add up."""
    x = torch.tensor([0.3, 0.1 + 0.2, 0.1, 0.7, 0.0, 1.2e-16] * 20, dtype=torch.float64)[:, None]
    for encoding in ENCODINGS:
        made = encode_columns(x, encoding)
        assert made.width.min() > 1e-3
        torch.testing.assert_close(made.apply(x.float().double()), made.apply(x), rtol=0, atol=1e-5)
    tail = torch.exp(4 * torch.randn(500, 1, generator=torch.Generator().manual_seed(0)).double())
    assert len(encode_columns(tail, "quantile")) == BINS  # near each other, but not by rounding


def test_features_that_are_none():
    one = torch.ones(2, dtype=torch.float64)
    column, form = torch.tensor([0, 1]), torch.tensor([2, 0])
    with pytest.raises(InputError, match="order of their forms"):
        Features(column, one, one, form, one)
    with pytest.raises(InputError, match="width of 0 or less"):
        Features(column, one, 0 * one, form.sort().values, one)
    with pytest.raises(InputError, match="encoding"):
        encode_columns(np.eye(3), "quantiles")


def test_a_model_owns_its_features():
    made = encode_columns(X.numpy(), "robust")
    y = np.log1p(X[:, 0].numpy()) + np.sin(3 * X[:, 1].numpy())
    kernel = kernels.Gaussian("auto", features=made)
    model = KernelRegressor(kernel=kernel, random_state=0).fit(X.numpy(), y)
    first = model.predict(X.numpy())
    outside = KernelRegressor(kernel="gaussian", random_state=0)
    rows = made.apply(X).numpy()
    assert model.score(X.numpy(), y) > outside.fit(rows, y).score(rows, y) - 0.02
    made.shift += 100
    np.testing.assert_array_equal(model.predict(X.numpy()), first)
