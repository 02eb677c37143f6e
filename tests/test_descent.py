"""How far bandwidths are descended."""

import torch

from kernelmill.tuning.descent import minimise
from kernelmill.tuning.sample import Sample
from kernelmill.tuning.search import descend


def test_bandwidths_of_noisy_classes_stay_together():
    """The same rows and targets, taken for numbers and for classes."""
    g = torch.Generator().manual_seed(5)
    X = torch.randn(300, 8, generator=g, dtype=torch.float64)
    Y = (X[:, :1] + 2 * torch.randn(300, 1, generator=g).double() > 0).double()
    Y = torch.cat([Y, 1 - Y], 1)
    mean, w = Y.mean(0), torch.ones(300).double()
    apart = []
    for frequencies in (None, mean):
        sample = Sample(X, Y - mean, w, 1.0, frequencies=frequencies)
        (found,) = descend("laplacian", None, sample, 300)
        apart.append(torch.as_tensor(found.kernel.bandwidth).log().std().item())
    assert apart[1] < 0.9 * apart[0]


def test_a_descent_ends_where_a_step_gains_too_little():
    def walk(enough):
        x, seen = torch.tensor([3.0, 1.0], dtype=torch.float64, requires_grad=True), []

        def error():
            seen.append(None)
            return torch.log(1 + x[0] ** 2 + 1e-2 * (x[1] - x[0]) ** 2)

        minimise(error, [x], None, 30, enough=enough)
        return len(seen), error().item()

    (few, rough), (many, fine) = walk(1e-2), walk(1e-12)
    assert few < many and fine <= rough < fine + 2e-2
