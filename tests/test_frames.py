"""Frames and matrices as people have them: every kind of column, missing values, sparse rows."""

from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import OneHotEncoder

from kernelmill import DataFileError, InputError, KernelClassifier, KernelRegressor, load
from kernelmill.data import opened
from kernelmill.kernels import Laplacian

g = np.random.default_rng(0)
N = 120
X = g.normal(size=(N, 3))
LABELS = np.where(X[:, 0] > 0, "yes", "no")
QUICK = {"kernel": Laplacian(3.0), "ridge": 0.1, "random_state": 0, "device": "cpu"}
FRAME = pd.DataFrame(
    {
        "number": X[:, 0],
        "gaps": np.where(X[:, 2] > 1, np.nan, X[:, 1]),
        "category": pd.Categorical(np.where(X[:, 2] > 0, "u", "v")),
        "codes": pd.Categorical(np.arange(N) % 4),
        "nullable": pd.array([None if i % 7 == 0 else i % 5 for i in range(N)], dtype="Int64"),
        "flag": pd.array([None if i % 9 == 0 else bool(i % 2) for i in range(N)], dtype="boolean"),
        "string": pd.array([f"s{i % 3}" for i in range(N)], dtype="string"),
        "moment": pd.date_range("2020-01-31", periods=N, freq="36h"),
        "zoned": pd.date_range("2020-01-31", periods=N, tz="Europe/Rome"),
        "span": pd.to_timedelta(np.arange(N), unit="h"),
        "period": pd.period_range("2000-01-01", periods=N, freq="D"),
        "interval": pd.cut(X[:, 0], 3),
        "mixed": [i if i % 2 else "x" for i in range(N)],
    }
)
TARGET = 2 * X[:, 0] + X[:, 1]


@pytest.mark.parametrize("column", FRAME.columns)
def test_every_kind_of_column_is_a_feature(column, tmp_path):
    """Each by itself: nothing is dropped, and a stored model reads it again."""
    frame = FRAME[[column]]
    model = KernelRegressor(**QUICK).fit(frame, TARGET)
    assert list(model.feature_names_in_) == [column] and model.encoder_.d
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(frame), model.predict(frame))


def test_a_target_by_name_and_by_itself_give_the_same_model():
    beside = KernelRegressor(**QUICK).fit(FRAME, TARGET)
    inside = KernelRegressor(**QUICK).fit(FRAME.assign(t=TARGET), "t")
    np.testing.assert_array_equal(beside.predict(FRAME), inside.predict(FRAME))
    assert beside.encoder_.names == inside.encoder_.names


def test_numbers_with_gaps_are_filled_in_whoever_gives_them():
    frame = FRAME[["number", "gaps"]]
    model = KernelRegressor(**QUICK).fit(frame, TARGET)
    assert "gaps is missing" in model.encoder_.names
    for same in (pl.from_pandas(frame), pa.Table.from_pandas(frame), frame.to_dict("list")):
        np.testing.assert_array_equal(model.predict(same), model.predict(frame))
        again = KernelRegressor(**QUICK).fit(same, TARGET)
        np.testing.assert_array_equal(again.predict(frame), model.predict(frame))
    nameless = pd.DataFrame(frame.to_numpy())
    assert np.isfinite(KernelRegressor(**QUICK).fit(nameless, TARGET).predict(nameless)).all()


def test_columns_are_found_by_their_names():
    model = KernelRegressor(**QUICK).fit(FRAME, TARGET)
    mixed = FRAME[FRAME.columns[::-1]].assign(more=1.0)
    np.testing.assert_array_equal(model.predict(mixed), model.predict(FRAME))
    with pytest.raises(InputError, match="lacks the feature names 'zoned', 'span'"):
        model.predict(FRAME.drop(columns=["zoned", "span"]))


def test_numbers_that_pandas_calls_categories_are_names():
    model = KernelRegressor(**QUICK).fit(FRAME[["codes"]], TARGET)
    assert model.encoder_.names == [f"codes: {i}" for i in range(4)]
    plain = pd.DataFrame({"codes": [3, 1]})
    want = model.predict(FRAME[["codes"]])[[3, 1]]
    np.testing.assert_array_equal(model.predict(plain), want)


@pytest.mark.parametrize(
    "labels",
    [
        np.where(X[:, 1] > 1, np.nan, LABELS.astype(object)),
        np.where(X[:, 1] > 1, None, LABELS.astype(object)),
        np.where(X[:, 1] > 1, None, LABELS.astype(object)).tolist(),
        pd.Series(LABELS, dtype="string").mask(X[:, 1] > 1),
        pd.Series(LABELS, dtype="category").mask(X[:, 1] > 1),
        pd.Series(np.arange(N) % 2, dtype="Int64").mask(X[:, 1] > 1),
    ],
)
def test_a_row_without_a_label_is_said(labels):
    rows = int((X[:, 1] > 1).sum())
    with pytest.raises(InputError, match=f"y has no label in {rows} of {N} rows, first in row"):
        KernelClassifier(**QUICK).fit(X, labels)


def test_labels_of_any_kind_are_classes():
    for labels, want in (
        (pd.Series(LABELS, dtype="category"), ["no", "yes"]),
        (pd.Series(X[:, 0] > 0, dtype="boolean"), [False, True]),
        (pd.Series(np.arange(N) % 3, dtype="Int64"), [0, 1, 2]),
        (pl.Series(LABELS), ["no", "yes"]),
    ):
        model = KernelClassifier(**QUICK).fit(X, labels)
        assert model.classes_.tolist() == want
        assert set(model.predict(X).tolist()) <= set(want)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_array", "coo_array", "lil_matrix"])
def test_sparse_rows_are_those_they_stand_for(kind):
    dense = np.where(g.random((N, 40)) < 0.1, 1.0, 0.0) * g.normal(size=(N, 40))
    rows = getattr(sparse, kind)(dense)
    want = KernelRegressor(**QUICK).fit(dense, TARGET)
    model = KernelRegressor(**QUICK).fit(rows, TARGET)
    assert model.n_features_in_ == 40
    np.testing.assert_allclose(model.predict(rows), want.predict(dense), rtol=1e-9)
    np.testing.assert_allclose(model.predict(dense), want.predict(rows), rtol=1e-9)
    with pytest.raises(InputError, match="40 features"):
        model.predict(rows.tocsr()[:, :30])


def test_one_hot_rows_of_scikit_learn_are_taken(tmp_path):
    rows = OneHotEncoder().fit_transform(FRAME[["category", "codes"]])
    scores = cross_val_score(KernelClassifier(**QUICK), rows, FRAME["category"], cv=3)
    assert scores.min() == 1
    counts = sparse.csr_array(np.eye(6, dtype=np.int8)[np.arange(N) % 6])
    model = KernelRegressor(**QUICK).fit(counts, TARGET)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(counts), model.predict(counts))


def test_sparse_rows_that_would_not_fit_are_streamed(caplog):
    """30,000 × 1,000 numbers are 114 MiB of float32, of which half of the budget has no room."""
    n, d = 30_000, 1_000
    places = g.integers(0, d, n)
    ones = np.ones(n, np.float32)
    rows = sparse.csr_matrix((ones, (np.arange(n), places)), shape=(n, d))
    model = KernelRegressor(
        kernel=Laplacian(1.0), n_centers=50, epochs=1, solver="eigenpro4", random_state=0
    )
    with caplog.at_level("INFO", logger="kernelmill"):
        model.set_params(memory_budget="200MiB", device="cpu").fit(rows, places % 2)
    assert "of features are streamed" in caplog.text
    assert np.isfinite(model.predict(rows[:5])).all()


def test_dates_among_moments_are_both():
    """Arrow takes the first kind for all of them: hours would be lost, or dates be numbers."""
    day, moment = date(2020, 1, 1), datetime(2020, 1, 1, 5)
    for values in ([day, moment], [moment, day]):
        table = opened(pd.DataFrame({"x": [*values, None]}), 0)
        assert table.fields["x"].kind == "date"
        found = table.read(["x"], 0, 2)["x"][:, 0].tolist()
        assert sorted(found) == [1577836800, 1577854800]


def test_numbers_beyond_64_bits_are_numbers():
    table = opened(pd.DataFrame({"x": [2**70, 5]}), 0)
    assert table.read(["x"], 0, 2)["x"][:, 0].tolist() == [2.0**70, 5]


@pytest.mark.parametrize("names", [["a", "a"], ["1", 1]])
def test_two_columns_of_one_name_are_refused(names):
    frame = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=names)
    with pytest.raises(DataFileError, match="has two columns called"):
        opened(frame, 0)
