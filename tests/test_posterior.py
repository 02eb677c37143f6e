"""Gaussian processes as drawn functions, against exact ones in float64."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch

from kernelmill import KernelRegressor, kernels, load, solvers
from kernelmill.data import ArraySource
from kernelmill.errors import InputError
from kernelmill.kernels.waves import draw_waves, has_waves
from kernelmill.learning.draws import normal
from kernelmill.tuning.likelihood import Merged, left_out_moments, likeliest
from kernelmill.uncertainty import Posterior

rng = np.random.default_rng(0)

RADIAL = {
    "gaussian": kernels.Gaussian(1.3),
    "laplacian": kernels.Laplacian(np.array([2.0, 1.0, 4.0])),
    "matern": kernels.Matern(1.0, nu=1.5),
    "matern 5/2": kernels.Matern(2.0, nu=2.5),
    "rational_quadratic": kernels.RationalQuadratic(1.0, shape=0.7),
    "generalised_exponential": kernels.GeneralisedExponential(1.0, gamma=0.7),
    "generalised gaussian": kernels.GeneralisedExponential(1.0, gamma=2.0),
    "sum": kernels.Sum([kernels.Gaussian(1.0), kernels.Laplacian(3.0)], [0.3, 0.7]),
}


def rows(n: int, d: int = 2) -> tuple[np.ndarray, np.ndarray]:
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=n)


def exact(kernel, X, y, X_new, signal, noise, w=None):
    """Mean and deviation of a target, of the exact process, less the mean of y."""
    X, X_new = torch.tensor(X), torch.tensor(X_new)
    K, k = signal * kernel(X), signal * kernel(X_new, X)
    w = torch.ones(len(X)).double() if w is None else torch.tensor(w)
    L = torch.linalg.cholesky(K + torch.diag(noise / w))
    mean = k @ torch.cholesky_solve(torch.tensor(y)[:, None], L)
    left = torch.linalg.solve_triangular(L, k.T, upper=False)
    variance = signal * torch.diagonal(kernel(X_new)) - (left * left).sum(0) + noise
    return mean[:, 0].numpy(), variance.sqrt().numpy()


def likelihood(y, mean, deviation) -> float:
    return float(np.mean(np.log(deviation) + 0.5 * ((y - mean) / deviation) ** 2))


def test_every_radial_kernel_has_waves():
    named = {each.name for each in RADIAL.values()}
    radial = {name for name, each in kernels.NAMED.items() if issubclass(each, kernels.Radial)}
    assert radial <= named
    assert not has_waves(kernels.Linear()) and not has_waves(kernels.ArcCosine())


@pytest.mark.parametrize("kernel", RADIAL.values(), ids=RADIAL)
def test_waves_have_the_covariance_of_their_kernel(kernel):
    X = torch.tensor(rng.normal(size=(30, 3)))
    waves = draw_waves(kernel, X.mean(0), 2000, 3000, torch.Generator().manual_seed(0))
    values = waves(X)
    found = values @ values.T / values.shape[1]
    assert (found - kernel(X)).abs().max() < 0.12  # 4 standard errors of both numbers


def test_waves_are_of_the_features_of_a_kernel():
    X = torch.tensor(rng.normal(size=(200, 2))).exp()
    features = kernels.encode_columns(X, "robust+quantile")
    kernel = kernels.Laplacian(2.0, features=features)
    waves = draw_waves(kernel, X.mean(0), 2000, 3000, torch.Generator().manual_seed(0))
    values = waves(X[:20])
    found = values @ values.T / values.shape[1]
    assert (found - kernel(X[:20])).abs().max() < 0.12


def test_noise_is_normal_and_of_the_row_alone():
    numbers = torch.arange(50_000)
    found = normal(numbers, 4, seed=3)
    assert abs(found.mean()) < 0.01 and abs(found.std() - 1) < 0.01
    assert abs((found[:, 0] * found[:, 1]).mean()) < 0.02
    assert abs((found[:-1, 0] * found[1:, 0]).mean()) < 0.02
    torch.testing.assert_close(normal(torch.tensor([7, 3]), 4, 3), found[[7, 3]])
    assert (normal(numbers[:100], 4, 4) != found[:100]).all()


@pytest.mark.parametrize(
    ("solver", "more"),
    [
        (solvers.Direct(), {}),
        (solvers.Direct(), {"n_centers": 150}),
        (solvers.Falkon(), {"n_centers": 150}),
        (solvers.EigenPro2(), {"epochs": 20}),
        (solvers.EigenPro4(), {"epochs": 10, "n_centers": 200}),
        (solvers.ASkotch(), {"epochs": 30}),
    ],
    ids=["direct", "direct, centers", "falkon", "eigenpro2", "eigenpro4", "askotch"],
)
def test_every_solver_gives_the_posterior(solver, more):
    (X, y), (X_new, y_new) = rows(400), rows(1000)
    kernel = kernels.Matern(1.5, nu=1.5)
    settings = Posterior(samples=256)
    model = KernelRegressor(
        kernel=kernel, solver=solver, uncertainty=settings, ridge=0.1, random_state=0, **more
    ).fit(X, y)
    process = model.model_.process
    signal, noise = process.signal.item(), process.noise.item()
    assert noise == pytest.approx(0.1 * signal)
    mean, deviation = model.predict(X_new, return_std=True)
    want, size = exact(kernel, X, y - y.mean(), X_new, signal, noise)
    want = want + y.mean()
    gap = likelihood(y_new, mean, deviation) - likelihood(y_new, want, size)
    assert abs(gap) < 0.02
    ratio = (deviation**2 - noise) / (size**2 - noise)
    assert 0.85 < np.median(ratio) < 1.25
    lower, upper = model.predict_interval(X_new, 0.95)
    assert 0.92 < np.mean((lower <= y_new) & (y_new <= upper)) < 0.98


@pytest.mark.parametrize("kernel", [kernels.Gaussian(1.0), kernels.Laplacian(30.0)], ids=str)
def test_without_noise_what_is_left_is_told(kernel):
    """Of a millionth of the prior's variance, in the fastest of its waves."""
    X, X_new = rng.uniform(-2, 2, size=(500, 2)), rng.uniform(-1.8, 1.8, size=(200, 2))
    y = np.sin(2 * X[:, 0])
    settings = Posterior(samples=256)
    model = KernelRegressor(
        kernel=kernel, ridge=1e-6, uncertainty=settings, random_state=0, solver="direct"
    ).fit(X, y)
    signal, noise = model.model_.process.signal.item(), model.model_.process.noise.item()
    _, size = exact(kernel, X, y, X_new, signal, noise)
    deviation = model.predict(X_new, return_std=True)[1]
    assert np.median(size**2 / signal) < 0.01
    assert 0.8 < np.median(deviation / size) < 1.25
    assert np.std(np.log(deviation / size)) < 0.2


def test_far_from_all_rows_the_prior_is_left():
    X, y = rows(100)
    model = KernelRegressor(
        kernel=kernels.Gaussian(1.0), ridge=0.1, uncertainty="posterior", random_state=0
    ).fit(X, y)
    mean, deviation = model.predict(np.full((1, 2), 99.0), return_std=True)
    process = model.model_.process
    assert mean[0] == pytest.approx(y.mean())
    assert deviation[0] ** 2 == pytest.approx((process.signal + process.noise).item(), rel=1e-6)


def test_functions_go_together_and_have_the_posterior_covariance():
    X, y = rows(60)
    kernel = kernels.Gaussian(1.0)
    settings = Posterior(samples=3000)
    model = KernelRegressor(
        kernel=kernel, ridge=0.3, uncertainty=settings, random_state=0, solver="direct"
    ).fit(X, y)
    X_new = np.array([[0.0, 0.0], [0.3, 0.1], [1.9, -1.9], [3.0, 3.0]])
    drawn = model.sample(X_new, 3000, noise=False)
    np.testing.assert_allclose(model.sample(X_new[::-1], 3000, noise=False)[::-1], drawn)
    signal, noise = model.model_.process.signal.item(), model.model_.process.noise.item()
    A, B = torch.tensor(X_new), torch.tensor(X)
    inner = torch.linalg.inv(signal * kernel(B) + noise * torch.eye(len(B)).double())
    cross = signal * kernel(A, B)
    want = (signal * kernel(A) - cross @ inner @ cross.T).numpy()
    np.testing.assert_allclose(np.cov(drawn), want, atol=0.1 * signal)
    np.testing.assert_allclose(drawn.mean(1), model.predict(X_new), atol=0.1 * signal**0.5)
    noisy = model.sample(X_new, 3000, random_state=0)
    assert np.var(noisy - drawn) == pytest.approx(noise, rel=0.1)


def test_noise_and_signal_are_found():
    X = rng.uniform(-2, 2, size=(600, 1))
    kernel = kernels.Matern(0.7, nu=2.5)
    root = torch.linalg.cholesky(kernel(torch.tensor(X)) + 1e-9 * torch.eye(600).double()).numpy()
    y = 3 * root @ rng.normal(size=600) + 0.5 * rng.normal(size=600)
    model = KernelRegressor(kernel=kernel, uncertainty="posterior", random_state=0).fit(X, y)
    assert model.model_.process.noise.item() == pytest.approx(0.25, rel=0.2)
    assert 3 < model.model_.process.signal.item() < 25  # of one function, some bandwidths long
    known = KernelRegressor(kernel=kernel, uncertainty=Posterior(noise=0.25), random_state=0).fit(
        X, y
    )
    assert known.model_.process.noise.item() == pytest.approx(0.25)


def test_the_likeliest_ridge_is_that_of_a_grid():
    X, y = rows(60)
    source = ArraySource(torch.tensor(X), torch.tensor(y)[:, None], mean=torch.zeros(1).double())
    kernel = kernels.Gaussian(1.0)
    moments, count = left_out_moments(kernel, source, 1 << 30)
    found = likeliest(moments, 0.01, False, None, None, 1.0, 1.0)
    K = kernel(torch.tensor(X)).numpy()

    def cost(ridge):
        """Each row left out by hand."""
        total = []
        for i in range(count):
            others = np.delete(np.arange(count), i)
            A = K[np.ix_(others, others)] + ridge * np.eye(count - 1)
            k = K[i, others]
            residual = y[i] - k @ np.linalg.solve(A, y[others])
            total.append((residual**2, 1 - k @ np.linalg.solve(A, k) + ridge))
        total.append((np.mean([square for square, _ in total]), ridge))  # see _with_one_more
        squares, variances = np.array(total).T
        signal = np.mean(squares / variances)
        return np.mean(np.log(signal * variances)), signal

    costs = {k: cost(0.01 * 2.0**k) for k in range(-2, 8)}
    best = min(costs, key=lambda k: costs[k][0])
    assert found.ridge == pytest.approx(0.01 * 2.0**best)
    assert found.signal.item() == pytest.approx(costs[best][1], rel=1e-6)


@pytest.mark.parametrize("times", [3, 10])
def test_repeated_rows_are_as_many_targets(times):
    """Merged rows, and the same as weights, give the error bars of the process of all rows."""
    X, _ = rows(60)
    X = np.repeat(X, times, axis=0)
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=len(X))
    kernel, X_new = kernels.Gaussian(1.0), rows(200)[0]
    settings = Posterior(samples=512)
    model = KernelRegressor(kernel=kernel, uncertainty=settings, random_state=0).fit(X, y)
    process = model.model_.process
    signal, noise = process.signal.item(), process.noise.item()
    assert noise == pytest.approx(0.09, rel=0.35)
    mean, deviation = model.predict(X_new, return_std=True)
    want, size = exact(kernel, X, y - y.mean(), X_new, signal, noise)
    np.testing.assert_allclose(mean, want + y.mean(), atol=1e-6)
    np.testing.assert_allclose(deviation, size, rtol=0.1)


def test_a_weight_is_as_many_targets():
    (X, y), X_new = rows(80), rows(100)[0]
    w = rng.integers(1, 6, size=80).astype(float)
    kernel = kernels.Gaussian(1.0)
    settings = Posterior(samples=512, noise=0.04)
    model = KernelRegressor(kernel=kernel, ridge=0.1, uncertainty=settings, random_state=0)
    model.fit(X, y, sample_weight=w)
    process = model.model_.process
    signal, noise = process.signal.item(), process.noise.item()
    assert noise == pytest.approx(0.04) and signal == pytest.approx(0.4)
    center = np.average(y, weights=w)
    mean, deviation = model.predict(X_new, return_std=True)
    want, size = exact(kernel, X, y - center, X_new, signal, noise, w)
    np.testing.assert_allclose(mean, want + center, atol=1e-6)
    np.testing.assert_allclose(deviation, size, rtol=0.1)


def test_merged_rows_tell_their_noise():
    """Of the same x, targets that scatter by 1 have noise of 1, whatever else is unknown."""
    moments = lambda ridge: None  # noqa: E731
    assert likeliest(moments, 0.1, False, None, None, 1.0, 1.0) is None
    X, _ = rows(50)
    flat = ArraySource(torch.tensor(X), torch.zeros(50, 1).double(), mean=torch.zeros(1).double())
    by_rows, _ = left_out_moments(kernels.Gaussian(1.0), flat, 1 << 30)
    merged = Merged(torch.tensor([950.0]), 950.0)
    found = likeliest(by_rows, 0.1, False, None, merged, 1.0, 20.0)
    assert found.ridge * 20 * found.signal.item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("unit", [0.1, 1e-3, 1.0, 10.0])
def test_weights_that_are_alike_change_nothing(unit):
    (X, y), X_new = rows(300), rows(100)[0]
    model = KernelRegressor(
        kernel=kernels.Gaussian(1.0), uncertainty=Posterior(samples=16), random_state=0
    ).fit(X, y, sample_weight=np.full(300, unit))
    noise = model.model_.process.noise.item()
    if unit <= 1:
        assert noise == pytest.approx(0.04, rel=0.3)
    else:  # each row is as many targets: their mean has the noise that is seen
        assert noise == pytest.approx(0.04 * unit, rel=0.3)
    assert model.predict(X_new, return_std=True)[1].min() > 0.15


def test_outputs_have_their_own_units_and_do_not_go_together():
    X, y = rows(150)
    Y = np.stack([y, 100 + 50 * (np.cos(X[:, 1]) + 0.2 * rng.normal(size=150))], 1)
    settings = Posterior(samples=400)
    model = KernelRegressor(kernel=kernels.Gaussian(1.0), uncertainty=settings, random_state=0).fit(
        X, Y
    )
    mean, deviation = model.predict(X[:5], return_std=True)
    assert mean.shape == deviation.shape == (5, 2)
    assert (deviation[:, 1] > 5 * deviation[:, 0]).all()
    drawn = model.sample([[3.0, 3.0]], 400, noise=False)
    assert drawn.shape == (1, 2, 400)
    assert abs(np.corrcoef(drawn[0])[0, 1]) < 0.3


@pytest.mark.slow
def test_a_posterior_is_stored_exported_and_shared(tmp_path):
    X, y = rows(150)
    model = KernelRegressor(
        kernel=kernels.Matern(1.5, nu=1.5), uncertainty="posterior", random_state=0
    ).fit(X, y)
    mean, deviation = model.predict(X[:20], return_std=True)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_allclose(again.predict(X[:20], return_std=True)[1], deviation, rtol=1e-9)
    np.testing.assert_allclose(
        again.sample(X[:3], 5, noise=False), model.sample(X[:3], 5, noise=False), rtol=1e-9
    )
    assert again.uncertainty == "posterior"
    model.to_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [out.name for out in session.get_outputs()] == ["prediction", "deviation"]
    found = session.run(None, {"X": X[:20]})
    np.testing.assert_allclose(found[0], mean, atol=1e-5)
    np.testing.assert_allclose(found[1], deviation, atol=1e-5)


def test_a_run_with_a_posterior_resumes_to_the_same(tmp_path):
    X, y = rows(300)
    settings = dict(
        kernel=kernels.Matern(1.5, nu=1.5),
        solver="eigenpro4",
        epochs=3,
        n_centers=60,
        ridge=0.1,
        uncertainty=Posterior(samples=8),
        random_state=0,
    )
    whole = KernelRegressor(**settings).fit(X, y)
    stop = lambda event: event.kind == "epoch" and event.epoch == 1  # noqa: E731
    folder = dict(checkpoint=tmp_path / "run", checkpoint_every=1e-9)
    KernelRegressor(**settings, **folder, callbacks=stop).fit(X, y)
    again = KernelRegressor(**settings, **folder, resume=True).fit(X, y)
    for mine, theirs in zip(
        again.predict(X, return_std=True), whole.predict(X, return_std=True), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)


@pytest.mark.slow
def test_streamed_rows_have_a_posterior(tmp_path):
    X, y = rows(12_000, 100)
    X = X.astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    settings = dict(
        kernel=kernels.Gaussian(10.0),
        solver="eigenpro4",
        n_centers=60,
        ridge=1.0,
        epochs=1,
        uncertainty=Posterior(samples=16, features=256),
        random_state=0,
    )
    held = KernelRegressor(**settings).fit(X, y)
    streamed = KernelRegressor(**settings, memory_budget="8MB")
    streamed.fit(tmp_path / "X.npy", str(tmp_path / "y.npy"))
    sizes = [each.predict(X[:50], return_std=True)[1] for each in (held, streamed)]
    np.testing.assert_allclose(*sizes, rtol=0.1)


def test_what_a_posterior_refuses():
    X, y = rows(60)
    fixed = dict(random_state=0, uncertainty="posterior")
    with pytest.raises(InputError, match="radial kernels"):
        KernelRegressor(kernel="linear", ridge=1.0, **fixed).fit(X, y)
    with pytest.raises(InputError, match="no Gaussian process itself"):
        KernelRegressor(solver="sgpr", **fixed).fit(X, y)
    with pytest.raises(InputError, match="square loss"):
        KernelRegressor(solver=solvers.Falkon(loss="huber"), **fixed).fit(X, y)
    with pytest.raises(InputError, match="uncertainty='gaussian' is not known"):
        KernelRegressor(uncertainty="gaussian").fit(X, y)
    with pytest.raises(InputError, match="noise=-1"):
        KernelRegressor(uncertainty=Posterior(noise=-1)).fit(X, y)
    with pytest.raises(InputError, match="units of their own"):
        KernelRegressor(uncertainty=Posterior(noise=0.1), random_state=0).fit(X, np.c_[y, y])
    with pytest.raises(InputError, match="needs a ridge above 0"):
        KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=0.0, **fixed).fit(X, y)
    with pytest.raises(InputError, match="with 5 rows"):
        KernelRegressor(**fixed).fit(X[:5], y[:5])
    small = KernelRegressor(kernel=kernels.Gaussian(0.2), ridge=1e-9, **fixed).fit(X, y)
    assert small.ridge_ == pytest.approx(1e-9)
    with pytest.raises(InputError, match="samples=1 "):
        KernelRegressor(uncertainty=Posterior(samples=1)).fit(X, y)
    model = KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=0.1, **fixed).fit(X, y)
    with pytest.raises(InputError, match="has 128 functions"):
        model.sample(X, 129)
    with pytest.raises(InputError, match="partial_fit cannot continue"):
        model.partial_fit(X, y)
    with pytest.raises(InputError, match="warm_start"):
        model.set_params(warm_start=True).fit(X, y)


@pytest.mark.parametrize("level", [0.05, 1.3, 9.0])
def test_weights_are_one_over_the_variance_of_each_rows_noise(level):
    """The process with a noise per row, in closed form, as scikit-learn has it."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    g = np.random.default_rng(0)
    X, T = g.uniform(-3, 3, (200, 1)), np.linspace(-6, 6, 40)[:, None]
    variances = level * g.uniform(0.5, 2.0, 200)
    y = 5 * np.sin(2 * X[:, 0]) + variances**0.5 * g.normal(size=200)
    model = KernelRegressor(
        kernel=kernels.Gaussian(1.0),
        uncertainty=Posterior(noise=1.0, samples=1000),
        random_state=0,
    ).fit(X, y, sample_weight=1 / variances)
    process, offset = model.model_.process, model.model_.intercept.item()
    assert process.noise.item() == pytest.approx(1.0, rel=1e-6)
    exact = GaussianProcessRegressor(
        ConstantKernel(process.signal.item()) * RBF(1.0), alpha=variances, optimizer=None
    ).fit(X, y - offset)
    mean, deviation = exact.predict(T, return_std=True)
    found, with_noise = model.predict(T, return_std=True)
    np.testing.assert_allclose(found, mean + offset, atol=1e-5 * np.abs(y).max())
    latent = np.sqrt(with_noise**2 - 1.0)
    far = deviation > 1.0  # below, a difference of two sums with noise
    assert far.sum() > 3 and np.abs(latent / deviation - 1)[far].mean() < 0.05
