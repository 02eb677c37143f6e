"""Laws of tables: whatever file they come in, in whatever order, pieces and units, the model is
the same. See test_laws.py.
"""

import gzip
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnxruntime
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from kernelmill import KernelClassifier, KernelRegressor, kernels, load
from kernelmill.data import dates
from test_laws import BUDGETS, OFFSETS, UNITS, examples, said, same

# Features of a table are float32: a unit in their last place moves predictions by less than this.
FLOAT32 = 1e-4
SETTINGS = dict(kernel=kernels.Laplacian(3.0), ridge=0.1, random_state=0)
SEEDS = st.integers(0, 2**32 - 1)
ESTIMATORS = pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
# With a kernel of the user's own, or with nothing said: a choice follows a descent, whose end the
# last digit may move.
MAKERS = {
    "own kernel": (partial(dict, **SETTINGS), FLOAT32),
    "nothing said": (partial(dict, random_state=0), 0.05),
}
CHOICES = pytest.mark.parametrize(
    ("options", "tolerance"), [pytest.param(m(), t, id=name) for name, (m, t) in MAKERS.items()]
)


def frame_of(seed: int, n: int = 150) -> pd.DataFrame:
    """Numbers with some missing, whole numbers, dates, booleans, a few names, and a target;
    weights and labels beside.
    """
    g = np.random.default_rng(seed)
    size, rooms = g.gamma(4, 25, n), g.integers(1, 6, n)
    built = np.datetime64("2019-01-01T00:00:00", "s") + g.integers(0, 1500 * 86_400, n).astype(
        "timedelta64[s]"
    )
    frame = pd.DataFrame(
        {"size": size, "rooms": rooms, "built": built, "garden": g.random(n) < 0.4}
    )
    frame["district"] = pd.Series(g.choice(["north", "south", "old town"], n), dtype=object)
    y = (
        size / 50
        + rooms * (frame["district"] == "old town")
        + frame["garden"]
        + 0.3 * g.normal(size=n)
    )
    frame.loc[g.random(n) < 0.1, "size"] = np.nan
    frame["price"] = y
    frame["label"] = np.array(["cheap", "fair", "dear"])[
        np.digitize(y, np.quantile(y, [0.3, 0.6]))
    ].astype(object)
    return frame


def target_of(classes: bool) -> tuple[str, str]:
    return ("label", "price") if classes else ("price", "label")


def fit_on(
    table: Any, classes: bool, options: dict[str, Any] | None = None, weight: Any = None
) -> Any:
    """A model of a frame, whose other target is dropped, or of a file that has none."""
    target, other = target_of(classes)
    if isinstance(table, pd.DataFrame):
        table = table.drop(columns=other, errors="ignore")
    estimator = KernelClassifier if classes else KernelRegressor
    return estimator(**(SETTINGS if options is None else options)).fit(table, target, weight)


def agree(budget, classes, options, tolerance, law) -> None:
    """A table, and what the law makes of it and of the rows to predict, are answered alike."""

    @examples(budget, "kernel" not in options)
    @given(SEEDS, st.data())
    def check(seed, data):
        frame, new = frame_of(seed), frame_of(seed + 1, 40)
        g = np.random.default_rng(seed)
        change = law(data.draw, g)
        want, found = (
            said(fit_on(frame, classes, options), new),
            said(fit_on(change(frame), classes, options), change(new)),
        )
        same(want, found, tolerance)

    check()


# ---- units, orders, names


@ESTIMATORS
@CHOICES
@BUDGETS
def test_units_and_offsets_of_a_tables_columns_do_not_matter(budget, options, tolerance, classes):
    def law(draw, g):
        units, offsets = (draw(UNITS), draw(UNITS)), (draw(OFFSETS), draw(OFFSETS))
        return lambda t: t.assign(
            size=(t["size"] + offsets[0]) * units[0], rooms=(t["rooms"] + offsets[1]) * units[1]
        )

    agree(budget, classes, options, tolerance, law)


@ESTIMATORS
@CHOICES
@BUDGETS
def test_the_order_of_a_tables_rows_and_columns_does_not_matter(
    budget, options, tolerance, classes
):
    def law(draw, g):
        columns = g.permutation(["size", "rooms", "built", "garden", "district", "price", "label"])
        return lambda t: t[columns].iloc[g.permutation(len(t))] if len(t) > 40 else t

    agree(budget, classes, options, tolerance, law)


@ESTIMATORS
@BUDGETS
def test_the_names_of_categories_and_columns_do_not_matter(budget, classes):
    def law(draw, g):
        names = dict(
            zip(
                ["north", "south", "old town"],
                draw(st.permutations(["x", "a b", "007"])),
                strict=True,
            )
        )
        return lambda t: t.assign(district=t["district"].map(names)).rename(
            columns={"size": "Größe", "rooms": "zimmer, anzahl"}
        )

    agree(budget, classes, SETTINGS, FLOAT32, law)


@ESTIMATORS
@CHOICES
@BUDGETS
def test_a_date_is_the_same_in_every_unit_and_400_years_later(budget, options, tolerance, classes):
    """In 400 years the calendar begins anew: months, weekdays and times of day are the same, and
    so is every distance.
    """
    cycle = np.timedelta64(146_097, "D")

    def law(draw, g):
        unit = draw(st.sampled_from(["text", "datetime64[ms]", "datetime64[ns]", "later", "zone"]))
        changes = {
            "text": lambda b: b.dt.strftime("%Y-%m-%dT%H:%M:%S").astype(object),
            "later": lambda b: b + cycle,
            "zone": lambda b: b.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        }
        change = changes.get(unit, lambda b: b.astype(unit))
        text = unit == "text"  # a column of texts that a model of dates is given
        return lambda t: t if text and len(t) > 40 else t.assign(built=change(t["built"]))

    agree(budget, classes, options, tolerance, law)


@BUDGETS
def test_a_target_of_dates_is_predicted_in_seconds_whatever_its_unit(budget):
    @budget
    @given(SEEDS, st.sampled_from(["datetime64[ms]", "datetime64[us]", "datetime64[ns]"]))
    def check(seed, unit):
        frame, new = (
            frame_of(seed).drop(columns="label"),
            frame_of(seed + 1, 40).drop(columns="label"),
        )
        want = KernelRegressor(**SETTINGS).fit(frame, "built").predict(new)
        np.testing.assert_array_equal(
            KernelRegressor(**SETTINGS).fit(frame.astype({"built": unit}), "built").predict(new),
            want,
        )
        assert abs(want - frame["built"].astype("int64").mean()).max() < 1500 * 86_400

    check()


# ---- weights, constants


@ESTIMATORS
@BUDGETS
def test_in_a_table_a_weight_of_k_is_k_copies_and_0_is_absence(budget, classes):
    @budget
    @given(SEEDS)
    def check(seed):
        frame, new, g = frame_of(seed), frame_of(seed + 1, 40), np.random.default_rng(seed)
        w = g.integers(0, 4, len(frame))
        frame.loc[w == 0, "district"] = "elsewhere"  # a name that is not there either
        copied = frame.iloc[g.permutation(np.repeat(np.arange(len(frame)), w))]
        want = said(fit_on(copied, classes), new)
        same(want, said(fit_on(frame, classes, weight=w.astype(float)), new), FLOAT32)
        same(want, said(fit_on(frame.assign(w=w), classes, weight="w"), new.assign(w=1)), FLOAT32)

    check()


@ESTIMATORS
@CHOICES
@BUDGETS
def test_a_tables_column_without_any_difference_says_nothing(budget, options, tolerance, classes):
    def law(draw, g):
        then, later = draw(
            st.sampled_from(
                [(3.0, 4.5), (1e6, -1.0), (np.nan, 2.0), ("a", "b"), (None, "b"), (True, False)]
            )
        )
        return lambda t: t.assign(
            k=pd.Series([then if len(t) > 40 else later] * len(t), index=t.index)
        )

    agree(budget, classes, options, tolerance, law)


# ---- files


def write(frame: pd.DataFrame, folder: Path, kind: str) -> Any:
    """The frame as a file of this kind, or as an object."""
    path, table = folder / f"t.{kind.split()[0]}", pa.Table.from_pandas(frame, preserve_index=False)
    ending, _, how = kind.partition(" ")
    if ending in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    elif ending == "csv.gz":
        with gzip.open(path, "wt", encoding="utf-8") as file:
            frame.to_csv(file, index=False)
    elif ending == "parquet":
        pq.write_table(table, path, row_group_size=37, compression=how)
    elif ending == "arrow":
        with pa.ipc.new_file(
            path, table.schema, options=pa.ipc.IpcWriteOptions(compression=how or None)
        ) as file:
            for batch in table.to_batches(41):
                file.write_batch(batch)
    elif ending == "feather":
        pa.feather.write_feather(table, path, compression=how)
    elif ending == "npz":
        (np.savez_compressed if how else np.savez)(
            path, **{name: frame[name].to_numpy() for name in frame}
        )
    elif ending == "h5":
        with h5py.File(path, "w") as file:
            for name in frame:
                file.create_dataset(name, data=frame[name].to_numpy(), compression=how or None)
    else:
        return {"table": table, "dict": {name: frame[name].to_numpy() for name in frame}}[kind]
    return path


KINDS = [
    "csv",
    "tsv",
    "csv.gz",
    "parquet none",
    "parquet snappy",
    "parquet zstd",
    "parquet gzip",
    "arrow",
    "arrow zstd",
    "feather lz4",
    "feather uncompressed",
    "table",
    "dict",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "classes", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["numbers", "classes"]
)
@BUDGETS
def test_every_format_and_compression_gives_the_same_bits(tmp_path, budget, classes, kind):
    @budget
    @given(SEEDS)
    def check(seed):
        frame, new = (
            frame_of(s, n).drop(columns=target_of(classes)[1])
            for s, n in ((seed, 150), (seed + 1, 40))
        )
        model = fit_on(frame, classes)
        want = said(model, new)
        other = fit_on(write(frame, tmp_path, kind), classes)
        np.testing.assert_array_equal(said(other, new), want)
        file = write(new, tmp_path, kind)
        np.testing.assert_array_equal(said(other, file), want)
        np.testing.assert_array_equal(said(model, file), want)

    check()


@pytest.mark.parametrize(
    "kind", ["npz", "npz compressed", "h5", "h5 gzip", "npy", "csv", "parquet zstd"]
)
@BUDGETS
def test_files_of_arrays_give_the_same_bits(tmp_path, budget, kind):
    """HDF5 has its columns in the order of their names, as here."""

    @budget
    @given(SEEDS)
    def check(seed):
        frame, new = (
            frame_of(s, n)[["rooms", "size", "price"]].fillna(0)
            for s, n in ((seed, 150), (seed + 1, 40))
        )
        if kind != "npy":
            want = KernelRegressor(**SETTINGS).fit(frame, "price").predict(new)
            model = KernelRegressor(**SETTINGS).fit(write(frame, tmp_path, kind), "price")
            np.testing.assert_array_equal(model.predict(write(new, tmp_path, kind)), want)
            return
        X, y, T = (
            frame[["rooms", "size"]].to_numpy(),
            frame["price"].to_numpy(),
            new[["rooms", "size"]].to_numpy(),
        )
        for name, part in (("X", X), ("y", y), ("T", T)):
            np.save(tmp_path / f"{name}.npy", part)
        want = KernelRegressor(**SETTINGS).fit(X, y).predict(T)
        model = KernelRegressor(**SETTINGS).fit(tmp_path / "X.npy", str(tmp_path / "y.npy"))
        np.testing.assert_array_equal(model.predict(tmp_path / "T.npy"), want)

    check()


@pytest.mark.parametrize("kind", ["csv", "parquet zstd", "arrow"])
@BUDGETS
def test_any_split_into_shards_gives_the_same_bits(tmp_path_factory, budget, kind):
    @budget
    @given(SEEDS, st.lists(st.integers(1, 149), min_size=1, max_size=5, unique=True))
    def check(seed, cuts):
        frame, new = (
            frame_of(s, n).drop(columns="label") for s, n in ((seed, 150), (seed + 1, 40))
        )
        folder = tmp_path_factory.mktemp("shards")
        (folder / "all").mkdir()
        for i, places in enumerate(np.split(np.arange(150), sorted(cuts))):
            part = write(frame.iloc[places], folder, kind)
            part.rename(folder / "all" / f"{i}{part.suffix}")
        np.testing.assert_array_equal(
            fit_on(folder / "all", False).predict(new), fit_on(frame, False).predict(new)
        )

    check()


# ---- a fitted model


@ESTIMATORS
@CHOICES
def test_a_model_of_a_table_comes_back_and_predicts_row_by_row(
    tmp_path, options, tolerance, classes
):
    frame, new = frame_of(0).drop(columns=target_of(classes)[1]), frame_of(1, 40)
    model = fit_on(frame, classes, options)
    want = said(model, new)
    model.save(tmp_path / "m")
    again = clone(model).fit(frame, target_of(classes)[0])
    for other in (load(tmp_path / "m"), pickle.loads(pickle.dumps(model)), again):
        np.testing.assert_array_equal(said(other, new), want)
    same(want, np.concatenate([said(model, new.iloc[i : i + 1]) for i in range(len(new))]), 1e-5)
    # Columns of another order, and one nobody knows.
    same(want, said(model, new[new.columns[::-1]].assign(more="?")), 1e-12)


@pytest.mark.parametrize(
    "classes", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["numbers", "classes"]
)
def test_an_onnx_file_of_a_tables_model_says_the_same(tmp_path, classes):
    frame, new = frame_of(0).drop(columns=target_of(classes)[1]), frame_of(1, 40)
    model = fit_on(frame, classes)
    model.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    inputs: dict[str, Any] = {
        name: new[name].to_numpy(np.float64) for name in ("size", "rooms", "garden")
    }
    inputs |= {
        "built": dates.seconds(new["built"].to_numpy()),
        "district": new["district"].to_numpy(object),
    }
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, inputs), strict=True))
    if classes:
        np.testing.assert_array_equal(found["label"], model.predict(new))
    same(
        *(
            (model.predict_proba(new), found["probabilities"])
            if classes
            else (model.predict(new), found["prediction"])
        ),
        FLOAT32,
    )
