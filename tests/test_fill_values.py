"""Fill values: numbers so far from all others of their column that a scale taken of all rows would
lose what the others say.
"""

import warnings

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from kernelmill import Columns, KernelClassifier, KernelRegressor, load, sweep
from kernelmill.data.bounds import find_bounds, sampled
from kernelmill.kernels import Laplacian

N = 400
QUICK = {"kernel": Laplacian(), "n_centers": 200, "solver": "falkon", "ridge": 0.1}
QUICK |= {"random_state": 0, "device": "cpu"}


def problem(fill, rows=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2 * N, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    X[rng.choice(N, rows, replace=False), 0] = fill
    return X[:N], y[:N], X[N:], y[N:]


def as_frame(X):
    return pd.DataFrame(X, columns=["a", "b", "c"])


def rmse(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


def fitted(X, y, given=QUICK, **more):
    """The model, and its one warning."""
    with pytest.warns(UserWarning, match="times as far out") as caught:
        model = KernelRegressor(**given, **more).fit(X, y)
    assert len(caught) == 1
    return model, str(caught[0].message)


def found(x, every=1):
    """The bounds of one column, and what is said of it."""
    x = np.asarray(x, np.float64)[:, None]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bounds = find_bounds(
            x[::every], np.nanmax(np.abs(x)), lambda some: [x[:, some]], ["'a'"], "X", "drop them"
        )
    return bounds, [str(each.message) for each in caught]


@pytest.mark.parametrize("kind", ["array", "frame"])
@pytest.mark.parametrize(("fill", "rows"), [(1e10, 1), (-9.969e36, 40)])
def test_a_fill_value_does_not_erase_its_column(kind, fill, rows):
    X, y, X_new, y_new = problem(fill, rows)
    made = as_frame if kind == "frame" else np.asarray
    model, said = fitted(made(X), y)
    usual = KernelRegressor(**QUICK).fit(made(problem(0.0, rows)[0]), y)
    assert rmse(model.predict(made(X_new)), y_new) < 1.2 * rmse(usual.predict(made(X_new)), y_new)
    column = "'a'" if kind == "frame" else "column 0"
    assert f"in {column} in {rows} of {N} rows, such as {fill!r}" in said
    assert ("na_values" in said) == (kind == "frame")
    assert np.isfinite(model.predict(made(X))).all()
    assert rmse(model.predict(made(X[X[:, 0] == fill])), y[X[:, 0] == fill]) < 1.5


@pytest.mark.slow
def test_a_chosen_kernel_sees_the_column():
    X, y, X_new, y_new = problem(1e16, 20)
    for made in (np.asarray, as_frame):
        model, _ = fitted(made(X), y, {"random_state": 0, "device": "cpu"})
        assert rmse(model.predict(made(X_new)), y_new) < 0.3


def test_what_stands_for_a_missing_value_is_said_by_the_user():
    X, y, X_new, y_new = problem(1e20, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = KernelRegressor(**QUICK, columns=Columns(na_values=[1e20])).fit(as_frame(X), y)
    assert model.encoder_.bounds is None and "a is missing" in model.encoder_.names
    assert rmse(model.predict(as_frame(X_new)), y_new) < 0.4


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_arrays_keep_their_precision_and_columns(tmp_path, dtype):
    X, y, X_new, _ = problem(1e15, 5)
    X, X_new = X.astype(dtype), X_new.astype(dtype)
    X_new[3, 0], X_new[4, 0] = 1e15, -1e15
    model, _ = fitted(X, y)
    want = model.predict(X_new)
    assert model.n_features_in_ == 3 and not hasattr(model, "feature_names_in_")
    assert model.encoder_ is None and model.explain(X_new).shape == (N, 3)
    assert model.model_.Z.dtype == getattr(torch, dtype) and want[3] != want[4]
    np.testing.assert_array_equal(model.predict(torch.from_numpy(X_new)).numpy(), want)
    np.save(tmp_path / "new.npy", X_new)
    np.testing.assert_allclose(model.predict(tmp_path / "new.npy"), want)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X_new), want)
    again.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    np.testing.assert_allclose(session.run(None, {"X": X_new})[0], want, atol=1e-4)
    model.partial_fit(X, y)
    assert np.isfinite(model.predict(X_new)).all()
    clean, *_ = problem(0.0)
    model.fit(clean.astype(dtype), y)  # bounds are those of the last fit
    assert model._bounds is None and model.predict(X_new)[3] != want[3]


def test_a_file_gives_what_a_frame_gives_and_onnx_too(tmp_path):
    X, y, X_new, _ = problem(1e12, 7)
    X_new[3, 0], X_new[4, 0] = 1e12, np.nan
    rows = as_frame(X).assign(
        size=[f"{1e14:.0f} kg" if i == 9 else f"{i % 7} kg" for i in range(N)]
    )
    new = as_frame(X_new).assign(size=rows["size"])
    rows.assign(y=y).to_parquet(tmp_path / "rows.parquet")
    settings = {**QUICK, "columns": Columns(how={"size": "numbers"})}
    with pytest.warns(UserWarning, match="'size: ") as caught:
        model = KernelRegressor(**settings).fit(rows, y)
    assert len(caught) == 2
    with pytest.warns(UserWarning, match="times as far out"):
        other = KernelRegressor(**settings).fit(tmp_path / "rows.parquet", "y")
    want = model.predict(new)
    np.testing.assert_array_equal(other.predict(new), want)
    other.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(new), want)
    again.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    inputs = {name: new[name].to_numpy() for name in ("a", "b", "c")}
    inputs["size"] = new["size"].to_numpy(object)
    np.testing.assert_allclose(session.run(None, inputs)[0], want, atol=1e-4)


def test_matrices_in_files_warm_starts_own_centers_and_sweeps_have_bounds(tmp_path):
    X, y, X_new, y_new = problem(1e10, 3)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    model, said = fitted(tmp_path / "rows.npz", None)
    assert "'X[0]'" in said and model.predict(X[X[:, 0] == 1e10]).std() < 2
    own, _ = fitted(X, y, {**QUICK, "n_centers": None}, centers=X)
    assert own.model_.Z.abs().max() < 20 and rmse(own.predict(X_new), y_new) < 0.3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own.set_params(warm_start=True).fit(X, y)
    assert own.model_.Z.abs().max() < 20 and np.isfinite(own.predict(X)).all()
    with pytest.warns(UserWarning, match="times as far out"):
        assert np.isfinite(sweep(KernelRegressor(**QUICK), X, y, bandwidths=[1.0]).scores).all()
    with pytest.warns(UserWarning, match="times as far out"):
        classes = KernelClassifier(**QUICK).fit(X, y > 0)
    assert classes.score(X_new, y_new > 0) > 0.85


def test_ordinary_columns_have_no_bounds():
    rng = np.random.default_rng(0)
    noise = np.where(rng.random(4000) < 0.3, 1.0, 1e-17 * rng.normal(size=4000))
    columns = {
        "long tail": np.exp(5 * rng.normal(size=4000)),
        "longer tail": rng.standard_cauchy(4000) ** 3,
        "powers of ten": np.repeat(10.0 ** np.arange(-12, 7), 20),
        "rounding beside ones": noise,
        "rounding": np.sin(np.arange(4000) * np.pi / 2),
        "mostly 0": (rng.random(4000) < 0.01) * rng.normal(size=4000),
        "two values": np.where(rng.random(4000) < 0.5, 0, 1e12),
        "one value": np.full(50, 1e12),
        "seconds": 1.7e9 + 1e5 * rng.random(4000),
        "none": np.full(30, np.nan)[:0],
    }
    for name, x in columns.items():
        assert name == "none" or found(x) == (None, []), name
    X, y, *_ = problem(9.0)
    model = KernelRegressor(**QUICK).fit(as_frame(X), y)
    assert model.encoder_.bounds is None
    assert KernelRegressor(**QUICK).fit(X, y)._bounds is None


def test_fill_values_are_found_wherever_they_are():
    rng = np.random.default_rng(0)
    x = rng.normal(size=5000)
    usual = x.min() - 10, x.max() + 10
    for rows, fill in ((1, 1e7), (50, -999_999_999.0), (3000, 1e20)):
        bounds, said = found(np.where(np.arange(5000) < rows, fill, x), every=3)
        assert len(said) == 1 and usual[0] < bounds[0, 0] < bounds[1, 0] < usual[1]
    glitches = x.copy()
    glitches[:20] = 10.0 ** rng.uniform(9, 30, 20) * rng.choice([-1, 1], 20)
    assert found(glitches)[0] is not None
    codes = (rng.random(5000) < 0.1).astype(float)
    codes[:30] = 1e9
    bounds, _ = found(codes)
    assert bounds[0, 0] < 0 and 1 < bounds[1, 0] < 10  # apart from 0 and 1
    codes[40:60] = np.nan
    np.testing.assert_allclose(found(codes)[0], bounds)
    assert sampled(100, 3) == 1 and sampled(10_000, 3) == 5 and sampled(10_000, 10**6) == 50
