"""Numbers at the edge: far, huge and tiny rows, kernels without a GPU form, modes of torch,
solvers left to their defaults, noise.
"""

import logging
import warnings

import numpy as np
import pytest
import torch

from conftest import make_problem
from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, solvers
from kernelmill.kernels import (
    ArcCosine,
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    RationalQuadratic,
    ReluNTK,
)
from kernelmill.ops import KernelProduct, distortion, frame
from kernelmill.planning.precision import MOVED
from kernelmill.solvers import SGPR

CPU = torch.device("cpu")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


# ---- far rows


def two_clusters(rng, far, n=600):
    side = rng.integers(0, 2, n) * 2 - 1
    U = rng.uniform(-3, 3, size=(n, 2))
    return U + far * side[:, None], np.sin(2 * U[:, 0]) * side + U[:, 1]


@pytest.mark.parametrize("solver", ["eigenpro4", "falkon"])
@pytest.mark.parametrize("far", [5000, 20000])
def test_float32_rows_thousands_of_bandwidths_away_are_told_apart(rng, far, solver, caplog):
    X, y = two_clusters(rng, far)
    Xt, yt = two_clusters(rng, far)
    fit = dict(kernel=Laplacian(1.0), solver=solver, ridge=0.01, n_centers=300, random_state=0)
    with caplog.at_level(logging.INFO, "kernelmill"), warnings.catch_warnings():
        warnings.simplefilter("error")
        model = KernelClassifier(**fit).fit(X.astype("f4"), y > 0)
    assert model.plan_.precision == "float64" and "bandwidths from their mean" in caplog.text
    assert (
        model.score(Xt.astype("f4"), yt > 0)
        > KernelClassifier(**fit).fit(X, y > 0).score(Xt, yt > 0) - 0.02
    )


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_precision_that_was_asked_for_and_cannot_tell_rows_apart_is_warned_of(rng, precision):
    X, y = two_clusters(rng, 5000)
    fit = dict(kernel=Laplacian(1.0), solver="eigenpro4", n_centers=100, random_state=0, epochs=1)
    with pytest.warns(
        UserWarning, match=f"precision='{precision}' moves kernel values .* use precision='auto'"
    ) as caught:
        model = KernelRegressor(precision=precision, **fit).fit(X, y)
    assert model.plan_.precision == precision
    assert all(warning.filename == __file__ for warning in caught)


@pytest.mark.parametrize(
    "kernel", [Laplacian(1.0), Gaussian(1.0), Matern(1.0), RationalQuadratic(1.0)], ids=repr
)
@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_how_far_rounding_moves_a_kernel_grows_with_the_reach_of_the_rows(rng, kernel, precision):
    moved = []
    for far in (0, 30, 1000, 5000):
        X = torch.as_tensor(two_clusters(rng, far)[0])
        value, reach = distortion(kernel, X, X[:50], precision, CPU, 1 << 22)
        assert far < reach < 2 * far + 6
        moved.append(value)
    assert moved == sorted(moved) and moved[1] < MOVED < moved[2]


def test_ordinary_rows_and_lone_far_ones_keep_float32(rng):
    X = rng.normal(size=(600, 5)).astype("f4")
    X[7], X[8] = 1e5, -1e5  # near to no other row
    model = KernelRegressor(
        kernel=Laplacian(2.0), solver="eigenpro4", n_centers=200, random_state=0, epochs=1
    ).fit(X, X[:, 0].clip(-3, 3))
    assert model.plan_.precision == "float32"


def test_a_dense_kernel_of_float32_rows_has_the_digits_of_float64():
    X = np.array([[5000.0, 0], [5000.0, 1.0], [-5000.0, 0], [-5000.0, 1.0]], "f4")
    K = Laplacian(1.0)(X)
    assert K.dtype == torch.float32 and K[0, 1].item() == pytest.approx(np.exp(-1), rel=1e-6)


# ---- homogeneous kernels

HOMOGENEOUS = [
    ReluNTK(depth=2),
    ArcCosine(order=0),
    ArcCosine(order=1),
    ArcCosine(order=2),
    Linear(),
    Polynomial(degree=2, constant=0),
]


@pytest.mark.parametrize("kernel", HOMOGENEOUS, ids=repr)
@pytest.mark.parametrize("scale", [2.0**-40, 2.0**40])
def test_values_of_a_homogeneous_kernel_follow_the_scale_of_the_rows(rng, kernel, scale):
    X = rng.normal(size=(20, 3)).astype("f4")
    X[3] = 0
    k = kernel.homogeneity
    torch.testing.assert_close(
        (kernel(scale * X).double() / scale ** (2 * k)), kernel(X).double(), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("solver", ["eigenpro4", "direct", "falkon"])
@pytest.mark.parametrize("kernel", HOMOGENEOUS, ids=repr)
def test_the_scale_of_the_features_does_not_change_a_homogeneous_fit(rng, kernel, solver):
    X, y = rng.normal(size=(200, 4)), rng.normal(size=200)
    y = y + np.abs(X[:, 1])
    found = []
    for scale in (1.0, 2.0**-40, 2.0**37):
        ridge = 0.1 * scale ** (2 * kernel.homogeneity)
        model = KernelRegressor(
            kernel=kernel,
            solver=solver,
            ridge=ridge,
            precision="float32",
            n_centers=50,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(model.fit((scale * X).astype("f4"), y).predict((scale * X).astype("f4")))
        assert model.ridge_ == pytest.approx(ridge) and repr(model.model_.kernel) == repr(kernel)
    np.testing.assert_allclose(found[1], found[0], atol=2e-3 * np.abs(found[0]).max())
    np.testing.assert_allclose(found[2], found[0], atol=2e-3 * np.abs(found[0]).max())


def test_tuning_probabilities_and_going_on_do_not_depend_on_the_scale(rng):
    X = rng.normal(size=(200, 4))
    y = X[:, 0] + 0.5 * rng.normal(size=200) > 0
    a, b = (
        KernelClassifier(kernel=ReluNTK(), random_state=0).fit(s * X, y)
        for s in (2.0**-40, 2.0**11)
    )
    np.testing.assert_allclose(
        a.predict_proba(2.0**-40 * X), b.predict_proba(2.0**11 * X), atol=1e-4
    )
    warm = [
        KernelRegressor(
            kernel=ReluNTK(), solver="eigenpro4", n_centers=50, random_state=0, warm_start=True
        )
        for _ in range(2)
    ]
    for s, model in zip((1.0, 2.0**-40), warm, strict=True):
        model.fit(s * X, X[:, 0]).fit(s * X, X[:, 0])
    np.testing.assert_allclose(warm[1].predict(2.0**-40 * X), warm[0].predict(X), atol=1e-6)


def test_a_gaussian_process_of_a_homogeneous_kernel_knows_its_variance_at_any_scale(rng):
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    stds = []
    for scale in (1.0, 2.0**-40):
        model = KernelRegressor(
            kernel=Linear(), solver="sgpr", ridge=0.5 * scale**2, random_state=0
        ).fit(scale * X, y)
        stds.append(model.predict(scale * X, return_std=True)[1])
    np.testing.assert_allclose(stds[1], stds[0], rtol=1e-6)


@pytest.mark.parametrize("solver", ["falkon", "nytro", "eigenpro4"])
def test_kernel_values_beyond_float32_are_trained_in_float64_or_refused(rng, solver):
    X = rng.random((100, 2)).astype("f4")
    fit = dict(
        kernel=Polynomial(bandwidth=1e-3, degree=8), solver=solver, n_centers=20, random_state=0
    )
    with pytest.raises(
        InputError, match=r"precision='float32' .* range is too small .* use 'float64'"
    ):
        KernelClassifier(precision="float32", ridge=1.0, **fit).fit(X, X[:, 0] > 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = KernelClassifier(ridge=1e20, **fit).fit(X, X[:, 0] > 0.5)
    assert model.plan_.precision == "float64" and torch.isfinite(model.model_.alpha).all()


@pytest.mark.parametrize(
    "solver", [solvers.Falkon(), solvers.Falkon("logistic"), solvers.NYTRO()], ids=repr
)
def test_weights_that_are_not_finite_are_never_returned(solver):
    problem = make_problem(n=100, p=20, kernel=Polynomial(bandwidth=1e-2, degree=8))
    problem.Y = torch.nn.functional.one_hot(problem.Y.argmax(1), 3).double() - 1 / 3
    with pytest.raises(ArithmeticError, match="no longer finite; use precision='float64'"):
        problem.solve(solver, ridge=1.0, dtype="float32", epochs=20)


# ---- profiles


@pytest.mark.parametrize("shape", [1e-3, 30.0, 1e4, 1e8])
def test_a_rational_quadratic_of_a_large_shape_is_a_gaussian(shape):
    X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    r2 = torch.cdist(X.double(), X.double()) ** 2
    expected = torch.exp(-shape * torch.log1p(r2 / (2 * shape)))
    kernel = RationalQuadratic(1.0, shape=shape)
    origin, spread = frame(kernel, X)
    for fused in (False, True):
        if fused:
            pytest.importorskip("kernelmill.ops.fused")
        K = KernelProduct(kernel, origin, "float32", CPU, 1 << 20, spread, use_fused=fused)
        torch.testing.assert_close(
            K.dense(K.points(X), K.points(X)).double(), expected, rtol=0, atol=3e-6
        )


@pytest.mark.filterwarnings(
    "ignore::RuntimeWarning"
)  # numpy's, of 0/0 and log2(0) in the interpreter
@pytest.mark.parametrize("name", list(kernels.NAMED))
def test_every_named_kernel_is_not_fused_or_agrees_with_plain_torch(name):
    fused = pytest.importorskip("kernelmill.ops.fused")
    kernel, X = (
        kernels.NAMED[name](),
        torch.randn(30, 3, generator=torch.Generator().manual_seed(0)),
    )
    if fused.form_of(kernel, "float32", 1.0) is None:
        return
    fast, plain = (
        KernelProduct(kernel, X.double().mean(0), "float32", CPU, 1 << 20, 1.0, use_fused=use)
        for use in (True, False)
    )
    K, truth = (each.dense(each.points(X), each.points(X)) for each in (fast, plain))
    # 1e-3: of the cosine of a row with itself, √ε.
    torch.testing.assert_close(K, truth, rtol=1e-4, atol=1e-3)


class Cauchy(kernels.Radial):
    """1 / (1 + r²): a kernel that the GPU's room does not know."""

    name = "cauchy"

    def profile(self, sq_dist):
        return 1 / (1 + sq_dist)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_kernel_without_a_branch_for_the_gpu_is_plain_torchs(monkeypatch):
    """It fell through to a Matérn of order 0, which is 1 everywhere."""
    fused = pytest.importorskip("kernelmill.ops.fused")
    monkeypatch.setitem(kernels.NAMED, "cauchy", Cauchy)
    X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    K = KernelProduct(Cauchy(), X.double().mean(0), "float32", CPU, 1 << 20, 1.0, use_fused=True)
    torch.testing.assert_close(K.dense(K.points(X), K.points(X)), Cauchy()(X), rtol=1e-4, atol=1e-5)
    monkeypatch.setitem(fused.PROFILES, Cauchy, lambda kernel: ("cauchy", 0.0, 0))
    K = KernelProduct(Cauchy(), X.double().mean(0), "float32", CPU, 1 << 20, 1.0, use_fused=True)
    with pytest.raises(Exception, match="has no branch here"):
        K.dense(K.points(X), K.points(X))


# ---- modes of torch

MODES = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "settings", [{"solver": "eigenpro4"}, {"solver": "falkon", "ridge": 0.1}, {}], ids=str
)
def test_a_fit_inside_a_mode_of_torch_is_the_same_fit(rng, mode, settings):
    X = torch.from_numpy(rng.normal(size=(150, 3)).astype("f4"))
    y = torch.sin(X[:, 0]) + X[:, 1]

    def make():
        return KernelRegressor(
            n_centers=50, random_state=0, kernel="auto" if not settings else Matern(2.0), **settings
        )

    outside = make().fit(X, y)
    with MODES[mode]():
        inside = make().fit(X.clone(), y.clone())
        torch.testing.assert_close(inside.predict(X), outside.predict(X), rtol=0, atol=0)
        torch.testing.assert_close(outside.model_(X), inside.model_(X), rtol=0, atol=0)
    assert not inside.model_.alpha.is_inference()
    inside.partial_fit(X, y)


# ---- defaults of the solvers


def images(n, seed=0, d=60, classes=5):
    """Classes of three prototypes each, seen through smooth noise, a tenth of them mislabelled."""
    rng = np.random.default_rng(seed)
    prototypes, smooth = (
        np.random.default_rng(1).normal(size=(3 * classes, d)),
        np.random.default_rng(2).normal(size=(20, d)),
    )
    kind = rng.integers(0, 3 * classes, n)
    X = (
        0.6 * prototypes[kind]
        + 0.25 * rng.normal(size=(n, 20)) @ smooth
        + 0.3 * rng.normal(size=(n, d))
    )
    return X, np.where(rng.random(n) < 0.1, rng.integers(0, classes, n), kind % classes)


def waves(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=n)


# By how much the loss on the training rows, as a share of the targets' variance, may be above that
# of the direct solution at the same ridge: what the docstrings of the solvers say.
ABOVE = {
    "direct": 1e-6,
    "sgpr": 1e-6,
    "falkon": 1e-3,
    "pcg": 1e-3,
    "eigenpro4": 0.1,
    "eigenpro3": 0.1,
    "eigenpro2": 0.1,
    "eigenpro1": 0.1,
    "askotch": 0.1,
    "nytro": 0.1,
}


def relative_loss(model, X, y):
    Y = torch.as_tensor(y)
    Y = Y[:, None] if Y.is_floating_point() else torch.nn.functional.one_hot(Y).double()
    return ((model.model_(torch.as_tensor(X)) - Y) ** 2).sum().item() / (
        (Y - Y.mean(0)) ** 2
    ).sum().item()


@pytest.mark.parametrize(
    ("data", "kernel"),
    [(images, Laplacian(8.0)), (waves, Gaussian(2.0)), (waves, Matern(2.0))],
    ids=list("123"),
)
@pytest.mark.parametrize(
    "name", [name for name in solvers.NAMED if name not in ("eigenpro4_exact", "pegasos")]
)
def test_a_solver_with_its_defaults_gets_as_near_as_it_says_or_warns(name, data, kernel):
    if name == "sgpr" and data is images:
        pytest.skip("it is for numbers")
    X, y = data(400)
    make = KernelClassifier if data is images else KernelRegressor
    sizes = {} if solvers.NAMED[name].every_row else {"n_centers": 120}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make(solver=name, kernel=kernel, random_state=0, **sizes).fit(X, y)
    truth = make(
        solver="direct", ridge=model.ridge_, centers=model.model_.Z.numpy(), kernel=kernel
    ).fit(X, y)
    warned = any("no more were allowed" in str(w.message) for w in caught)
    assert warned or relative_loss(model, X, y) < relative_loss(truth, X, y) + ABOVE[name]


def test_eigenpro4_exact_with_its_defaults_reaches_its_limit():
    X, y = waves(300)
    for Z in (X[:60], waves(60, seed=5)[0]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = KernelRegressor(kernel=Laplacian(2.0), solver="eigenpro4_exact", centers=Z).fit(
                X, y
            )
        K = model.model_.kernel
        inverse = torch.linalg.inv(K(X))
        K_XZ = K(X, Z)
        limit = torch.linalg.solve(
            K_XZ.T @ inverse @ K_XZ, K_XZ.T @ (inverse @ torch.as_tensor(y - y.mean()))
        )
        distance = (
            (K_XZ @ (model.model_.alpha[:, 0] - limit)).norm() / (K_XZ @ limit).norm()
        ).item()
        assert distance < 1e-3 or any("no more were allowed" in str(w.message) for w in caught)
        assert distance < 0.3


def test_pegasos_with_its_defaults_is_near_the_least_objective_or_warns():
    X, y = images(300)
    K = Laplacian(8.0)(X).double()
    for ridge, warned in ((1.0, False), (1e-3, True)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = KernelClassifier(
                kernel=Laplacian(8.0), solver="pegasos", ridge=ridge, random_state=0
            ).fit(X, y)
        assert any("objective may still fall" in str(w.message) for w in caught) == warned

        def objective(alpha, ridge=ridge):
            f, sign = K @ alpha, torch.as_tensor(np.where(y[:, None] == np.arange(5), 1.0, -1.0))
            return ((1 - sign * f).clamp(min=0).sum() + ridge * (alpha * f).sum()).item()

        rows = np.argsort(np.lexsort(X.T[::-1]))  # rows of the model are sorted
        alpha = model.model_.alpha.double()[rows]
        best = KernelClassifier(
            kernel=Laplacian(8.0), solver="pegasos", ridge=ridge, random_state=0, epochs=100
        ).fit(X, y)
        least = objective(best.model_.alpha.double()[rows])
        assert warned or objective(alpha) < 1.2 * least


def test_nytro_with_its_defaults_is_as_good_as_the_direct_solution():
    X, y = images(1000)
    Xt, yt = images(1000, seed=1)
    common = dict(kernel=Laplacian(8.0), n_centers=200, random_state=0)
    assert (
        KernelClassifier(solver="nytro", **common).fit(X, y).score(Xt, yt)
        > KernelClassifier(**common).fit(X, y).score(Xt, yt) - 0.02
    )


# ---- noise of a Gaussian process


def exact_process(X, y, Xt, signal, noise):
    """Mean and standard deviation of new targets, bandwidth 1: the textbook's formulas."""
    y_mean = y.mean()
    K = signal * Gaussian(1.0)(X).numpy() + noise * np.eye(len(X))
    K_t = signal * Gaussian(1.0)(Xt, X).numpy()
    variance = signal + noise - (K_t * np.linalg.solve(K, K_t.T).T).sum(1)
    return y_mean + K_t @ np.linalg.solve(K, y - y_mean), np.sqrt(variance)


@pytest.mark.parametrize("copies", [1, 4, 25])
def test_with_repeated_rows_and_given_noise_the_deviation_is_the_exact_process(rng, copies):
    X = np.repeat(np.linspace(0, 10, 30), copies)[:, None]
    y, Xt = np.sin(X[:, 0]) + 0.5 * rng.normal(size=len(X)), np.linspace(-1, 11, 7)[:, None]
    model = KernelRegressor(
        kernel=Gaussian(1.0), solver=SGPR(noise=0.3), ridge=0.25, random_state=0
    ).fit(X, y)
    mean, std = model.predict(Xt, return_std=True)
    expected = exact_process(X, y, Xt, 0.3 / 0.25, 0.3)
    np.testing.assert_allclose(mean, expected[0], atol=1e-6)
    np.testing.assert_allclose(std, expected[1], rtol=1e-6)


@pytest.mark.parametrize("copies", [4, 25])
def test_intervals_hold_as_many_new_targets_as_they_say_when_rows_repeat(rng, copies):
    X = np.repeat(np.linspace(0, 10, 40), copies)[:, None]
    y, Xt = np.sin(X[:, 0]) + 0.5 * rng.normal(size=len(X)), np.linspace(0.5, 9.5, 5)[:, None]
    mean, std = (
        KernelRegressor(kernel=Gaussian(1.0), solver="sgpr", random_state=0)
        .fit(X, y)
        .predict(Xt, return_std=True)
    )
    new = np.sin(Xt) + 0.5 * rng.normal(size=(5, 20_000))
    assert 0.93 < (np.abs(new - mean[:, None]) < 1.96 * std[:, None]).mean() < 0.97


@pytest.mark.parametrize("settings", [{}, {"ridge": 0.25}, {"solver": SGPR(noise=0.04)}], ids=str)
def test_a_weight_of_k_is_k_copies_of_the_row(rng, settings):
    X, counts = np.linspace(0, 10, 30)[:, None], rng.integers(1, 6, 30)
    y, Xt = np.sin(X[:, 0]) + 0.2 * rng.normal(size=30), np.linspace(-1, 11, 7)[:, None]
    fit = {"kernel": Gaussian(1.0), "solver": "sgpr", "random_state": 0, **settings}
    weighted = KernelRegressor(**fit).fit(X, y, counts).predict(Xt, return_std=True)
    copied = (
        KernelRegressor(**fit)
        .fit(np.repeat(X, counts, 0), np.repeat(y, counts))
        .predict(Xt, return_std=True)
    )
    for a, b in zip(weighted, copied, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("weight", [0.1, 1.0, 25.0])
def test_noise_over_signal_is_the_ridge_whatever_the_weights(rng, weight):
    X = np.linspace(0, 10, 40)[:, None]
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=40)
    model = KernelRegressor(kernel=Gaussian(1.0), solver="sgpr", ridge=0.25).fit(
        X, y, np.full(40, weight)
    )
    known = model.model_.process
    assert (known.noise / known.signal).item() == pytest.approx(0.25)


def test_the_bound_counts_merged_targets_one_by_one(rng):
    """Its value for merged rows is that for the rows as they were."""
    from kernelmill.tuning.elbo import elbo
    from kernelmill.tuning.sample import Sample

    X, Z = torch.as_tensor(rng.normal(size=(20, 2))), torch.as_tensor(rng.normal(size=(8, 2)))
    Y, lam, kernel = (
        torch.as_tensor(rng.normal(size=(20, 3, 1))),
        torch.tensor(0.3, dtype=torch.float64),
        Gaussian(1.0),
    )
    single, ones = X.repeat_interleave(3, 0), torch.ones(60, dtype=torch.float64)
    rows = Sample(single, Y.reshape(60, 1), ones, 1.0)
    plain = elbo(kernel(Z), kernel(single, Z), ones, rows, lam)
    mean = Y.mean(1)
    scatter = ((Y - mean[:, None]) ** 2).sum((0, 1)) / 3 / 20
    rows = Sample(X, mean, ones[:20], 1.0, 3.0, scatter)
    merged = elbo(kernel(Z), kernel(X, Z), ones[:20], rows, lam / 3)
    torch.testing.assert_close(merged, plain)
