"""Gradients of models, and what is made of them, against finite differences and dense formulas."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel
from sklearn.inspection import permutation_importance

from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, load
from kernelmill.distributed.threads import run_threads
from kernelmill.gradients import (
    agop,
    agop_diagonal,
    contributions,
    draw_centers,
    effects,
    gradients,
    mix_outputs,
    tile,
)
from kernelmill.kernels import ENCODINGS, encode_columns
from kernelmill.model import KernelModel

D = 4
SETTINGS = {
    "matern": [{"nu": nu} for nu in (0.5, 1.5, 2.5)],
    "generalised_exponential": [{"gamma": gamma} for gamma in (0.7, 1.4)],
    "rational_quadratic": [{"shape": 0.8}],
    "polynomial": [{"degree": 3}],
    "relu_ntk": [{"depth": 2}],
    "arc_cosine": [{"order": order} for order in (0, 1, 2)],
}
EVERY = [
    kind(**settings)
    for name, kind in kernels.NAMED.items()
    if name != "sum"
    for settings in SETTINGS.get(name, [{}])
]
RADIAL = [kernel for kernel in EVERY if isinstance(kernel, kernels.Radial)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def spread(d):
    """A symmetric positive definite matrix."""
    A = random(d, d, seed=5) / 3
    return A @ A.T + torch.eye(d, dtype=torch.float64)


BANDWIDTHS = {
    "number": lambda d: 1.7,
    "per feature": lambda d: torch.linspace(1.0, 3.0, d, dtype=torch.float64),
    "matrix": spread,
}


def model_of(kernel, Z=None, alpha=None, **more):
    Z = random(30, D, seed=1) + 3 if Z is None else Z
    alpha = random(len(Z), 3, seed=2) if alpha is None else alpha
    return KernelModel(kernel, Z, alpha, alpha.new_zeros(alpha.shape[1]), **more)


def differences(model, X, step=1e-5):
    """(r, c, d) of the model's own values."""
    columns = []
    for k in range(X.shape[1]):
        move = torch.zeros_like(X)
        move[:, k] = step
        columns.append((model(X + move) - model(X - move)) / (2 * step))
    return torch.stack(columns, 2)


def with_bandwidth(kernel, bandwidth, **more):
    return type(kernel)(**{**vars(kernel), "bandwidth": bandwidth, **more})


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
@pytest.mark.parametrize("kernel", EVERY, ids=repr)
def test_gradients_are_finite_differences(kernel, bandwidth):
    model = model_of(with_bandwidth(kernel, BANDWIDTHS[bandwidth](D)))
    X = random(7, D, seed=3) + 3
    want = differences(model, X)
    found = gradients(model, X)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6 * want.abs().max().item())
    torch.testing.assert_close(gradients(model, X, output=1), found[:, [1]])


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
@pytest.mark.parametrize("kernel", RADIAL, ids=repr)
def test_gradients_by_columns_that_are_encoded(kernel, bandwidth, encoding):
    Z = random(40, D, seed=1)
    Z[:, 1] = Z[:, 1].exp() ** 2
    features = encode_columns(Z, encoding)
    model = model_of(
        with_bandwidth(kernel, BANDWIDTHS[bandwidth](len(features)), features=features), Z
    )
    X = random(7, D, seed=3)
    X[:, 1] = X[:, 1].exp()
    place = (X[:, features.column] - features.shift) / features.width
    assert (place.abs().min() > 1e-5) and ((place - 1).abs().min() > 1e-5)  # of no kink
    want = differences(model, X, 1e-6)
    torch.testing.assert_close(
        gradients(model, X), want, rtol=1e-6, atol=1e-6 * want.abs().max().item()
    )


def a_sum(Z):
    """Of kernels that see rows as they are, encoded, and in a metric."""
    encoded = encode_columns(Z, "robust")
    learned = encoded.with_map(random(len(encoded), 3, seed=7))
    parts = [kernels.Laplacian(1.3), kernels.Matern(2.0, features=encoded)]
    return kernels.Sum([*parts, kernels.Gaussian(1.5, features=learned)], [0.2, 0.3, 0.5])


def test_gradients_of_a_sum():
    Z = random(40, D, seed=1)
    model = model_of(a_sum(Z), Z)
    X = random(7, D, seed=3)
    want = differences(model, X)
    torch.testing.assert_close(gradients(model, X), want, rtol=1e-6, atol=1e-6)
    M = agop(model, X)
    assert M.shape == (D + D + 3, D + D + 3)
    # Groups of columns: a part's features, before its metric, are of the columns they were made of.
    found = contributions(model, X, torch.arange(D), D)
    assert found.shape == (7, 3, D)
    plain = contributions(model_of(kernels.Laplacian(1.3), Z), X, torch.arange(D), D)
    rest = kernels.Sum(model.kernel.parts[1:], model.kernel.weights[1:])
    others = contributions(model_of(rest, Z), X, torch.arange(D), D)
    torch.testing.assert_close(found, 0.2 * plain + others)


def test_a_function_of_the_users():
    """Through numpy, where no derivative can be followed, with columns of unlike units."""
    unit = np.array([1e6, 1.0, 1e-4, 1.0])

    def function(A, B):
        A, B = A.numpy() / unit, B.numpy() / unit
        return torch.from_numpy(np.exp(-((A[:, None] - B[None]) ** 2).sum(2)))

    X = random(5, D, seed=3)
    Z = random(30, D, seed=1)
    scale = torch.from_numpy(unit)
    found = gradients(model_of(kernels.resolve(function), Z * scale), X * scale) * scale
    want = gradients(model_of(kernels.Gaussian(0.5**0.5), Z), X)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", EVERY, ids=repr)
def test_rows_that_are_centers(kernel, dtype):
    """Their own center adds nothing, in float32 too, where distances are rounded."""
    Z = (random(30, D, seed=1) + 100).to(dtype)
    if not isinstance(kernel, kernels.Radial):
        Z -= 100
    alpha = random(30, 3, seed=2)
    model = model_of(kernel, Z, alpha.to(dtype))
    found = gradients(model, Z[:5])
    assert torch.isfinite(found).all()
    if isinstance(kernel, kernels.Radial):
        for i in range(5):
            others = alpha.clone()
            others[i] = 0
            want = gradients(model_of(kernel, Z.double(), others), Z[[i]].double())
            torch.testing.assert_close(found[[i]].double(), want, rtol=1e-3, atol=1e-3)


def test_a_step_has_half_its_slope_where_it_begins_and_ends():
    features = encode_columns(torch.arange(5.0, dtype=torch.float64)[:, None], "quantile")
    X = torch.tensor([[0.0], [2.0], [2.5], [9.0]], dtype=torch.float64)
    G = torch.ones(4, 1, len(features), dtype=torch.float64)
    height = features.height[0].item()
    torch.testing.assert_close(
        features.chain(G, X)[:, 0, 0], torch.tensor([0.5, 1, 1, 0]).double() * height
    )


def dense_agop(model, X):
    """In features in bandwidths, row by row from the formula's first line."""
    kernel = model.kernel
    embed = kernel.embedding(model.Z.double().mean(0), torch.float64)
    u, z, alpha = embed(X.double()), embed(model.Z.double()), model.alpha.double()
    total = 0
    for row in u:
        away = row - z
        w = 2 * kernel.slope((away * away).sum(1))
        G = torch.einsum("p,pc,pd->cd", w, alpha, away)
        total = total + G.T @ G
    return total / len(X)


@pytest.mark.parametrize("bandwidth", BANDWIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_agop_is_the_dense_formula(bandwidth, dtype):
    Z = random(60, D, seed=1) + 50
    kernel = kernels.Laplacian(BANDWIDTHS[bandwidth](D))
    model = model_of(kernel, Z.to(dtype), random(60, 3, seed=2).to(dtype))
    X = torch.cat([random(20, D, seed=3) + 50, Z[:9]]).to(dtype)
    want = dense_agop(model, X)
    found = agop(model, X)
    error = (found - want).norm() / want.norm()
    assert error < {torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(agop_diagonal(model, X), found.diagonal(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kernel", [kernels.Matern(1.3), kernels.Polynomial(2.0)], ids=repr)
def test_tiles_are_one_tile(kernel):
    Z, X = random(300, D, seed=1), random(90, D, seed=3)
    whole = model_of(kernel, Z)
    small = model_of(kernel, Z, tile_bytes=2000)
    rows, wide = tile(small.prepared()[0], 3 * (D + 2))
    assert rows < 45 and wide < 30
    torch.testing.assert_close(gradients(small, X), gradients(whole, X), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(agop(small, X), agop(whole, X), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kernel", [kernels.Laplacian(1.3), kernels.Linear()], ids=repr)
def test_ranks_share_the_centers(kernel):
    Z, X, alpha = random(31, D, seed=1), random(9, D, seed=3), random(31, 3, seed=2)
    want = gradients(model_of(kernel, Z, alpha), X)

    def work(comm):
        mine = slice(comm.rank, None, comm.size)
        model = model_of(kernel, Z[mine], alpha[mine], comm=comm, n_centers=31)
        return gradients(model, X)

    for found in run_threads(3, work):
        torch.testing.assert_close(found, want, rtol=1e-8, atol=1e-8)


def test_many_outputs_become_random_sums_with_the_same_mean():
    alpha = random(30, 400, seed=2)
    model = model_of(kernels.Gaussian(1.5), alpha=alpha)
    X = random(50, D, seed=3) + 3
    every, few = agop(model, X, outputs=400), agop(model, X)
    assert (every - few).norm() / every.norm() < 0.5
    assert mix_outputs(alpha).shape == (30, 16)
    torch.testing.assert_close(mix_outputs(alpha), mix_outputs(alpha))
    assert mix_outputs(alpha, 400) is alpha
    many = agop(model, X, outputs=399)
    assert (every - many).norm() / every.norm() < 0.15


def test_columns_that_never_varied_have_no_gradient():
    Z = random(30, D, seed=1)
    Z[:, 2] = 5.0
    model = model_of(kernels.Gaussian(spread(D)), Z, constants={2: 5.0})
    X = random(6, D, seed=3)
    found = gradients(model, X)
    assert (found[..., 2] == 0).all()
    want = differences(model, X)
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6 * want.abs().max().item())


def test_rows_of_another_width():
    with pytest.raises(InputError, match=r"rows of shape \(5, 3\) were given, expected \(r, 4\)"):
        gradients(model_of(kernels.Gaussian()), random(5, 3))
    assert gradients(model_of(kernels.Gaussian()), random(0, D)).shape == (0, 3, D)


# ---- of estimators


def problem(n=400, seed=0):
    """Five columns in unlike units: strong, weak, a product with the strong one, and two of noise.

    A sum of a linear, a smooth and a mixed effect.
    """
    h = np.random.default_rng(seed)
    X = h.normal(size=(n, 5))
    y = 2 * X[:, 1] + 0.7 * np.sin(2 * X[:, 3]) + 0.3 * X[:, 1] * X[:, 2]
    return X * [1, 100, 1, 0.01, 1] + [0, 1000, 0, 0, 5], y


def test_importances_are_in_the_order_of_permutations():
    X, y = problem()
    model = KernelRegressor(kernel="gaussian", random_state=0).fit(X, y)
    found = model.feature_importances_
    assert found.shape == (5,) and found.sum() == pytest.approx(1)
    by_permuting = permutation_importance(model, X, y, n_repeats=5, random_state=0)
    order = np.argsort(-by_permuting.importances_mean)
    assert order[:3].tolist() == [1, 3, 2]
    assert np.argsort(-found)[:3].tolist() == [1, 3, 2]
    assert found[[0, 4]].max() < 0.02
    np.testing.assert_array_equal(found, model.feature_importances_)
    chosen = SelectFromModel(model, prefit=True, max_features=2, threshold=-np.inf)
    assert chosen.get_support().tolist() == [False, True, False, True, False]


def test_importances_of_several_outputs_do_not_follow_their_units():
    X, y = problem()
    other = X[:, 0]
    make = KernelRegressor(kernel="gaussian", random_state=0)
    once = make.fit(X, np.c_[y, other]).feature_importances_
    again = make.fit(X, np.c_[y, 1000 * other]).feature_importances_
    np.testing.assert_allclose(once, again, rtol=1e-2, atol=1e-3)
    assert set(np.argsort(-once)[:2]) == {0, 1}


@pytest.mark.parametrize("classes", [2, 3])
def test_importances_of_classes(classes):
    X, y = problem(600)
    labels = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    model = KernelClassifier(kernel="matern", random_state=0).fit(X, labels)
    by_permuting = permutation_importance(
        model, X, labels, n_repeats=5, random_state=0, scoring="neg_log_loss"
    )
    order = np.argsort(-model.feature_importances_)
    assert order[:2].tolist() == np.argsort(-by_permuting.importances_mean)[:2].tolist() == [1, 3]


def table(n=500):
    h = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "noise": h.normal(size=n),
            "town": h.choice(list("abcd"), n),
            "pay": h.lognormal(2, 1, n),
            "same": "x",
            "day": pd.to_datetime("2024-01-01") + pd.to_timedelta(h.integers(0, 400, n), "D"),
            "code": h.integers(0, 6, n),
        }
    )
    effect = h.normal(size=6)
    frame["y"] = 2 * (frame.town == "b") + np.log(frame.pay) + effect[frame.code]
    frame.loc[::7, "noise"] = np.nan
    return frame


def test_columns_of_a_table_gather_their_features(tmp_path):
    frame = table()
    model = KernelRegressor(random_state=0).fit(frame, "y")
    assert len(model.encoder_.sources) == model.encoder_.d > model.n_features_in_
    found = dict(zip(model.feature_names_in_, model.feature_importances_, strict=True))
    assert set(sorted(found, key=found.get)[-3:]) == {"town", "pay", "code"}
    assert found["same"] == 0 and found["noise"] < 0.05 and found["day"] < 0.05
    explained = model.explain(frame)
    assert explained.shape == (500, 6) and (explained[:, 3] == 0).all()
    inside = (frame.town == "b").to_numpy()
    town = explained[:, list(model.feature_names_in_).index("town")]
    assert town[inside].mean() > town[~inside].mean() + 1
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.feature_importances_, model.feature_importances_)
    np.testing.assert_array_equal(loaded.explain(frame), explained)
    assert loaded.explain(frame[:0]).shape == (0, 6)


def test_a_linear_model_is_explained_exactly():
    X = random(300, 5).numpy() + 1
    y = X @ [1.0, 0.5, -2.0, 3.0, 0.0]
    model = KernelRegressor(kernel=kernels.Linear(), ridge=0.1, random_state=0).fit(X, y)
    parts = model.explain(X)
    middle = model.model_.Z.double().mean(0)[None].numpy()
    np.testing.assert_allclose(
        parts.sum(1), model.predict(X) - model.predict(middle), rtol=1e-5, atol=1e-5
    )
    assert isinstance(model.explain(torch.from_numpy(X)), torch.Tensor)


@pytest.mark.parametrize("classes", [2, 3])
def test_decisions_are_explained(classes):
    X, y = problem(300)
    labels = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    kernel = kernels.Gaussian([2.0, 200.0, 2.0, 0.02, 2.0])
    model = KernelClassifier(kernel=kernel, random_state=0).fit(X, labels)
    parts = model.explain(X[:20])
    assert parts.shape == {2: (20, 5), 3: (20, 5, 3)}[classes]
    away = X[:20] - model.model_.Z.double().mean(0).numpy()
    for k in range(5):
        move = np.zeros_like(away)
        move[:, k] = 1e-4 * away[:, k]
        up, down = (model.decision_function(X[:20] + sign * move) for sign in (1, -1))
        np.testing.assert_allclose(parts[:, k], (up - down) / 2e-4, rtol=1e-3, atol=1e-3)


def test_importances_need_a_fit():
    assert not hasattr(KernelRegressor(), "feature_importances_")
    with pytest.raises(NotFittedError):
        KernelClassifier().explain(np.zeros((3, 2)))


def test_ranks_draw_the_same_centers():
    Z, alpha = random(331, D, seed=1), random(331, 1, seed=2)
    groups, units = torch.arange(D), torch.ones(1)
    whole = model_of(kernels.Laplacian(1.3), Z, alpha)
    rows = draw_centers(whole)
    want = effects(whole, rows, groups, D, units)

    def work(comm):
        mine = slice(comm.rank, None, comm.size)
        model = model_of(whole.kernel, Z[mine], alpha[mine], comm=comm, n_centers=331)
        own = draw_centers(model)
        assert torch.equal(own, rows)
        return effects(model, own, groups, D, units)

    for found in run_threads(3, work):
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


def test_effects_are_the_variance_times_the_squared_gradient():
    """Of one linear output, whose effect is known."""
    Z = random(2000, 2, seed=1) * torch.tensor([1.0, 3.0])
    model = model_of(
        kernels.Linear(), Z, torch.linalg.pinv(Z).T @ torch.tensor([[1.0], [-2]]).double()
    )
    found = effects(model, draw_centers(model), torch.arange(2), 2, torch.ones(1))
    torch.testing.assert_close(found, 2 * torch.tensor([1.0, 36.0]).double(), rtol=0.1, atol=0)
