"""Slopes of profiles, and gradients of leave-one-out errors."""

import pytest
import torch

from kernelmill import kernels
from kernelmill.tuning.loo import LeaveOneOut, LeaveOneOutOfRows, loo_residuals

g = torch.Generator().manual_seed(0)
RADIAL = [
    kernels.Laplacian(1.5),
    kernels.Gaussian(1.5),
    *(kernels.Matern(1.5, nu=nu) for nu in (0.5, 1.5, 2.5)),
    kernels.GeneralisedExponential(1.5, gamma=0.7),
    kernels.RationalQuadratic(1.5, shape=0.8),
]


@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_slopes_are_the_derivatives_of_profiles(kernel):
    sq = torch.rand(200, generator=g, dtype=torch.float64) * 9 + 1e-3
    step = 1e-6 * sq
    by_hand = (kernel.profile(sq + step) - kernel.profile(sq - step)) / (2 * step)
    torch.testing.assert_close(kernel.slope(sq), by_hand, rtol=1e-7, atol=1e-9)
    assert torch.isfinite(kernel.slope(torch.zeros(1, dtype=torch.float64))).all()


def test_every_radial_kernel_is_compared():
    radial = {kind for kind in kernels.NAMED.values() if issubclass(kind, kernels.Radial)}
    assert {type(kernel) for kernel in RADIAL} == radial


@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_gradient_of_leaving_one_out(batch):
    A = torch.randn(*batch, 60, 4, generator=g, dtype=torch.float64)
    Y = torch.randn(*batch, 60, 2, generator=g, dtype=torch.float64)
    w = torch.rand(*batch, 60, generator=g, dtype=torch.float64) + 0.5
    found = []
    for way in ("closed", "factor"):
        K = torch.exp(-torch.cdist(A, A)).requires_grad_()
        ridge = torch.full((*batch, 60), 0.1, dtype=torch.float64).requires_grad_()
        if way == "closed":
            error = LeaveOneOut.apply(K, Y, ridge, w)
        else:
            error = (w[..., None] * loo_residuals(K, Y, ridge) ** 2).sum()
        error.backward()
        slope = (K.grad + K.grad.mT) / 2  # K is symmetric: so is what counts of its slope
        found.append((error.detach(), slope, ridge.grad))
    for closed, factored in zip(*found, strict=True):
        torch.testing.assert_close(closed, factored, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_the_gradient_by_rows_of_leaving_one_out(kernel):
    x = torch.randn(40, 3, generator=g, dtype=torch.float64)
    Y = torch.randn(40, 2, generator=g, dtype=torch.float64)
    w = torch.rand(40, generator=g, dtype=torch.float64) + 0.5

    def error(rows, ridge):
        return LeaveOneOutOfRows.apply(rows, Y, ridge, w, kernel)

    def plain(rows):
        sq_dist = ((rows[:, None] - rows) ** 2).sum(2)
        return (w[:, None] * loo_residuals(kernel.profile(sq_dist), Y, ridge.detach()) ** 2).sum()

    x.requires_grad_()
    ridge = torch.full((40,), 0.2, dtype=torch.float64).requires_grad_()
    value = error(x, ridge)
    value.backward()
    torch.testing.assert_close(value.detach(), plain(x.detach()), rtol=1e-8, atol=0)
    for i, j in ((0, 0), (7, 2), (31, 1)):
        step = torch.zeros_like(x)
        step[i, j] = 1e-5
        by_hand = (plain(x.detach() + step) - plain(x.detach() - step)) / 2e-5
        torch.testing.assert_close(x.grad[i, j], by_hand, rtol=1e-5, atol=1e-6)
    more = torch.zeros(40, dtype=torch.float64)
    more[5] = 1e-5
    by_hand = (error(x, ridge + more) - error(x, ridge - more)).detach() / 2e-5
    torch.testing.assert_close(ridge.grad[5], by_hand, rtol=1e-5, atol=1e-6)
