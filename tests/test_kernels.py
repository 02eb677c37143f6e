"""Kernels against plain formulas, and their behaviour at zero distance, at extremes and on bad
settings.
"""

import math

import numpy as np
import pytest
import torch
from sklearn.gaussian_process.kernels import Matern as SkMatern
from sklearn.gaussian_process.kernels import RationalQuadratic as SkRationalQuadratic
from sklearn.metrics.pairwise import polynomial_kernel

from kernelmill import InputError, kernels
from kernelmill.kernels import (
    Custom,
    Gaussian,
    GeneralisedExponential,
    Laplacian,
    Matern,
    RationalQuadratic,
    ReluNTK,
)

torch.manual_seed(0)
A, B = torch.randn(40, 6, dtype=torch.float64), torch.randn(30, 6, dtype=torch.float64)
R = torch.cdist(A, B)
EVERY = [
    Laplacian(1.5),
    Gaussian(1.5),
    Matern(1.5, nu=0.5),
    Matern(1.5, nu=1.5),
    Matern(1.5, nu=2.5),
    GeneralisedExponential(1.5, gamma=0.7),
    RationalQuadratic(1.5, shape=0.8),
    kernels.Linear(),
    kernels.Polynomial(degree=2),
    ReluNTK(depth=1),
    ReluNTK(depth=4),
    kernels.ArcCosine(order=0),
    kernels.ArcCosine(order=1),
    kernels.ArcCosine(order=2),
    kernels.Sum([Laplacian(1.5), Gaussian(0.7)], [0.3, 0.7]),
]


def test_no_kernel_is_forgotten():
    assert {type(kernel) for kernel in EVERY} == set(kernels.NAMED.values())


def close(K, expected, **kw):
    torch.testing.assert_close(K, torch.as_tensor(np.asarray(expected)), **kw)


def test_radial_profiles_are_the_published_ones():
    close(Laplacian(1.5)(A, B), torch.exp(-R / 1.5))
    close(Gaussian(1.5)(A, B), torch.exp(-(R**2) / (2 * 1.5**2)))
    for nu in (0.5, 1.5, 2.5):
        close(Matern(1.5, nu=nu)(A, B), SkMatern(1.5, nu=nu)(A.numpy(), B.numpy()))
    close(GeneralisedExponential(1.5, gamma=0.7)(A, B), torch.exp(-((R / 1.5) ** 0.7)))
    close(
        RationalQuadratic(1.5, shape=0.8)(A, B), SkRationalQuadratic(1.5, 0.8)(A.numpy(), B.numpy())
    )


def test_dot_product_kernels():
    close(kernels.Linear()(A, B), A @ B.T)
    close(
        kernels.Polynomial(degree=3, constant=0.5)(A, B),
        polynomial_kernel(A, B, degree=3, gamma=1, coef0=0.5),
    )


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_the_expected_product_of_units(order):
    """2 E[(w·x)₊^k (w·z)₊^k], scaled to ‖x‖^(2k) on the diagonal, by sampling."""
    w = torch.randn(400_000, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    step = lambda X: (w @ X.T > 0).double() * (w @ X.T) ** order  # noqa: E731
    scale = {0: 2.0, 1: 2.0, 2: 2.0 / 3.0}[order]
    sampled = scale * step(A[:5]).T @ step(B[:5]) / len(w)
    close(kernels.ArcCosine(order=order)(A[:5], B[:5]), sampled, rtol=0.05, atol=0.05 * 6**order)


def test_ntk_of_depth_one_by_hand():
    x, z = A[:1], B[:1]
    cos = (x @ z.T / x.norm() / z.norm()).item()
    angle = math.acos(cos)
    kappa0, kappa1 = 1 - angle / math.pi, (math.sin(angle) + (math.pi - angle) * cos) / math.pi
    expected = (x.norm() * z.norm()).item() * (cos * kappa0 + kappa1) / 2
    assert ReluNTK(depth=1)(x, z).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kernel", EVERY, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_symmetric_positive_semidefinite_and_never_nan(kernel, dtype):
    X = torch.cat([A, A[:3], torch.zeros(2, 6, dtype=torch.float64), A[:1] + 1e-9]).to(dtype)
    K = kernel(X).double()
    assert torch.isfinite(K).all()
    torch.testing.assert_close(K, K.T, atol=1e-5 if dtype == torch.float32 else 1e-12, rtol=1e-5)
    smallest = torch.linalg.eigvalsh((K + K.T) / 2).min().item()
    assert smallest > -(2e-4 if dtype == torch.float32 else 1e-6) * K.diagonal().max().item()
    embed = kernel.embedding(X.double().mean(0), dtype)
    torch.testing.assert_close(
        kernel.diagonal(kernel.points(embed(X))).double(),
        K.diagonal(),
        atol=2e-3 if dtype == torch.float32 else 1e-6,
        rtol=1e-3,
    )


@pytest.mark.parametrize("d", [1, 7, 784, 5000])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_distance_of_coincident_rows_is_exactly_zero(d, offset):
    """In float32 the product formula alone gives K(x, x) = 1 − 8e-4 for the Laplacian."""
    X = torch.randn(200, d, generator=torch.Generator().manual_seed(d)) + offset
    K = Laplacian(bandwidth=d**0.5)(X, X.clone())
    assert (K.diagonal() == 1).all()


def test_large_offsets_keep_their_digits_in_float32():
    X = torch.randn(50, 3, dtype=torch.float64) * 100 + torch.tensor(
        [4e6, 5e5, 0.0], dtype=torch.float64
    )
    embed = Laplacian(100.0).embedding(X.mean(0), torch.float32)
    points = Laplacian(100.0).points(embed(X))
    K32 = Laplacian(100.0).evaluate(points, points)
    close(K32.double(), Laplacian(100.0)(X), atol=2e-4, rtol=0)


def test_bandwidth_per_feature_and_as_a_matrix():
    sigma = torch.tensor([0.5, 1.0, 2.0, 3.0, 1.0, 0.7], dtype=torch.float64)
    expected = Gaussian(1.0)(A / sigma, B / sigma)
    close(Gaussian(sigma)(A, B), expected)
    close(Gaussian(sigma.numpy())(A, B), expected)
    close(Gaussian(torch.diag(sigma**2))(A, B), expected)
    L = torch.randn(6, 6, dtype=torch.float64)
    S = L @ L.T + torch.eye(6, dtype=torch.float64)
    difference = A[:, None] - B[None]
    r2 = torch.einsum("abi,ij,abj->ab", difference, torch.linalg.inv(S), difference)
    close(Laplacian(S)(A, B), torch.exp(-r2.sqrt()))


def test_any_function_is_a_kernel():
    K = Custom(lambda a, b: (a @ b.T + 1) ** 2)
    close(K(A, B), (A @ B.T + 1) ** 2)
    embed = K.embedding(A.mean(0), torch.float64)
    close(K.diagonal(K.points(embed(A))), ((A * A).sum(1) + 1) ** 2)
    with pytest.raises(InputError, match=r"returned shape \(40, 6\), expected \(40, 30\)"):
        Custom(lambda a, b: a)(A, B)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Laplacian(-1.0), "greater than 0"),
        (Laplacian(0.0), "greater than 0"),
        (Laplacian(float("nan")), "finite"),
        (Laplacian("wide"), "bandwidth='wide'"),
        (Laplacian([1.0, 2.0]), "for 6 features"),
        (Laplacian(torch.ones(2, 3)), r"shape \(2, 3\)"),
        (Laplacian(-torch.eye(6)), "positive definite"),
        (Matern(1.0, nu=3), "nu=3"),
        (GeneralisedExponential(1.0, gamma=2.5), "gamma=2.5"),
        (kernels.Polynomial(degree=0), "degree=0"),
        (kernels.Polynomial(constant=-1), "constant=-1"),
        (ReluNTK(depth=0), "depth=0"),
        (kernels.ArcCosine(order=3), "order=3"),
        (RationalQuadratic(1.0, shape=0), "shape=0"),
    ],
)
def test_bad_settings_say_what_was_given(kernel, message):
    with pytest.raises(InputError, match=message):
        kernel.validate(6)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'laplacian'"):
        kernels.resolve("laplacien")
    with pytest.raises(InputError, match="expected a name"):
        kernels.resolve(3)
