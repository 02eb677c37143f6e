"""Data from files: every kind of table gives the same model, columns become features, streams
keep their order and their memory.
"""

import gzip
import itertools
import os
import subprocess
import sys
import textwrap
import threading

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
import torch

import kernelmill
from kernelmill import Columns, DataFileError, InputError, KernelClassifier, KernelRegressor
from kernelmill.data import ArraySource, Stream, StreamSource, learn, matrix, opened
from kernelmill.data.checks import is_clean
from kernelmill.data.order import windows
from kernelmill.data.prefetch import ahead
from kernelmill.data.source import Batch, cut_batches, source_of
from kernelmill.data.summary import Moments
from kernelmill.data.tables import ArrayTable
from kernelmill.solvers import EigenPro4

g = np.random.default_rng(0)
N = 3000
NUMBERS = g.normal(size=(N, 3))
COLOUR = g.choice(["red", "green", "blue"], N).astype(object)
SHOP = np.array([f"shop {i}" for i in g.integers(0, 60, N)], dtype=object)
EFFECT = {f"shop {i}": g.normal() for i in range(60)}
PRICE = (
    np.sin(2 * NUMBERS[:, 0])
    + (COLOUR == "red")
    + np.array([EFFECT[s] for s in SHOP])
    + 0.05 * g.normal(size=N)
)
NUMBERS[::17, 1] = np.nan
COLOUR[5::29] = None
FRAME = pd.DataFrame(
    {
        "a": NUMBERS[:, 0],
        "b": NUMBERS[:, 1],
        "c": NUMBERS[:, 2],
        "colour": COLOUR,
        "shop": SHOP,
        "price": PRICE,
    }
)
SETTINGS = dict(
    kernel=kernelmill.kernels.Laplacian(3.0),
    n_centers=300,
    solver="falkon",
    ridge=0.1,
    random_state=0,
)
X, Y = g.normal(size=(N, 4)).astype(np.float32), g.normal(size=N)


def written(folder, kind):
    """The same table as a file, a folder or an object."""
    path = folder / f"t.{kind}"
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    if kind == "csv":
        FRAME.to_csv(path, index=False)
    elif kind == "tsv":
        FRAME.to_csv(path, index=False, sep="\t")
    elif kind == "csv.gz":
        with gzip.open(path, "wt") as file:
            FRAME.to_csv(file, index=False)
    elif kind == "parquet":
        pq.write_table(table, path, row_group_size=500)
    elif kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            for batch in table.to_batches(400):
                file.write_batch(batch)
    elif kind in ("parquet shards", "csv shards"):
        path.mkdir()
        for i in range(3):
            part = FRAME[1000 * i : 1000 * i + 1000]
            (
                part.to_parquet(path / f"{i}.parquet")
                if "parquet" in kind
                else part.to_csv(path / f"{i}.csv", index=False)
            )
    elif kind == "frame":
        return FRAME
    elif kind == "table":
        return table
    elif kind == "dataset":
        pq.write_table(table, folder / "d.parquet")
        return pa.dataset.dataset(folder / "d.parquet")
    return path


KINDS = [
    "csv",
    "tsv",
    "csv.gz",
    "parquet",
    "arrow",
    "parquet shards",
    "csv shards",
    "frame",
    "table",
    "dataset",
]


@pytest.fixture(scope="module")
def from_frame():
    return KernelRegressor(**SETTINGS).fit(FRAME, "price")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_gives_the_same_model(tmp_path, kind, from_frame):
    model = KernelRegressor(**SETTINGS).fit(written(tmp_path, kind), "price")
    assert torch.equal(model.model_.alpha, from_frame.model_.alpha) and torch.equal(
        model.model_.Z, from_frame.model_.Z
    )
    assert list(model.feature_names_in_) == ["a", "b", "c", "colour", "shop"]
    np.testing.assert_array_equal(
        model.predict(written(tmp_path / "..", "frame")), from_frame.predict(FRAME)
    )


def test_columns_become_the_features_they_say(from_frame):
    encoder = from_frame.encoder_
    names = [
        "a",
        "b",
        "c",
        "b is missing",
        "colour: blue",
        "colour: green",
        "colour: red",
        "colour: missing",
        "shop: target 0",
        "shop: count",
    ]
    assert encoder.names[: len(names)] == names and len(encoder.names) == len(names) + 48
    out = encoder.encode(opened(FRAME, 0), 0, N)
    np.testing.assert_allclose(out[:, :3].mean(0), 0, atol=0.1)
    assert (out[:, 3] == np.isnan(NUMBERS[:, 1])).all() and (out[::17, 1] == 0).all()
    assert (out[:, 6] == (COLOUR == "red")).all() and (
        out[:, 7] == [c is None for c in COLOUR]
    ).all()
    shops = {shop: out[shop == SHOP, 8][0] for shop in set(SHOP)}
    assert np.corrcoef([shops[s] for s in EFFECT], list(EFFECT.values()))[0, 1] > 0.9
    assert from_frame.score(FRAME, "price") > 0.9


def test_a_saved_model_takes_the_raw_file(tmp_path, from_frame):
    FRAME.drop(columns="price").to_csv(tmp_path / "new.csv", index=False)
    from_frame.save(tmp_path / "model")
    again = kernelmill.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(tmp_path / "new.csv"), from_frame.predict(FRAME))
    # By name.
    np.testing.assert_array_equal(
        again.predict(FRAME[["shop", "c", "a", "colour", "b"]]), from_frame.predict(FRAME)
    )
    rows = FRAME[["a", "b", "c", "colour", "shop"]].to_numpy()
    np.testing.assert_array_equal(again.predict(rows), from_frame.predict(FRAME))  # by position
    strange = FRAME.assign(colour="mauve", shop="shop 999", b=np.nan)
    assert np.isfinite(again.predict(strange)).all()


def test_target_encoding_never_sees_the_row_itself():
    """A column of names that occur once each: with its own target in the encoding every
    training row would be known by heart.
    """
    names = np.array([f"n{i}" for i in range(N)], dtype=object)
    table = opened({"name": names}, 0)
    encoder = learn(Columns(), table, [], Y[:, None], np.ones(N, bool))
    assert encoder.categories[0].how == "target"
    training = encoder.encode(table, 0, N, training=True)[:, 0]
    assert np.ptp(training) < 1e-6
    # As new rows they would be.
    assert np.corrcoef(encoder.encode(table, 0, N)[:, 0], Y)[0, 1] > 0.9


def test_encoders_are_fitted_on_training_rows_only():
    table = opened(
        {
            "x": np.r_[np.zeros(50), np.full(50, 1e6)] + np.arange(100),
            "name": np.r_[["a"] * 50, ["b"] * 50],
        },
        0,
    )
    encoder = learn(Columns(), table, [], np.arange(100.0)[:, None], np.arange(100) < 50)
    assert encoder.shift[0] == np.arange(50).mean() and encoder.categories[0].values == ["a"]
    # One name in all training rows says nothing, and one that comes later must not either.
    assert encoder.names == ["x"]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        (Columns(features=["a", "c"]), ["a", "c"]),
        (
            Columns(features=["a", "shop"], beyond="hash", hash_size=4),
            ["a", *(f"shop: hash {i}" for i in range(4))],
        ),
        (Columns(features=["shop"], one_hot=100), [f"shop: {shop}" for shop in sorted(set(SHOP))]),
        (Columns(features=["b"], standardise=False), ["b", "b is missing"]),
    ],
)
def test_columns_can_be_said(columns, names):
    model = KernelRegressor(**SETTINGS, columns=columns).fit(FRAME, "price")
    assert model.encoder_.names == names
    assert len(model.predict(FRAME)) == N


def test_numbers_can_be_names():
    table = opened({"zip": np.arange(N) % 5, "x": Y}, 0)
    encoder = learn(Columns(categorical=["zip"]), table, [], Y[:, None], np.ones(N, bool))
    assert encoder.names == ["x", *(f"zip: {i}" for i in range(5))]


def test_a_large_count_of_values_is_hashed(monkeypatch):
    monkeypatch.setattr("kernelmill.data.summary.MOST_VALUES", 50)
    encoder = learn(Columns(), opened({"shop": SHOP}, 0), [], PRICE[:, None], np.ones(N, bool))
    assert encoder.categories[0].how == "hash" and encoder.d == 16


def test_statistics_by_streaming_are_those_of_the_whole():
    values = 1e6 + g.normal(size=(5000, 3)) * [1, 10, 1000]
    values[::7, 2] = np.nan
    table = ArrayTable({"m": values}, "m")
    table.cuts = [0, 10, 1000, 1001, 5000]
    encoder = learn(Columns(standardise=True), table, [], values[:, :1], np.ones(5000, bool))
    np.testing.assert_allclose(encoder.shift, np.nanmean(values, 0), rtol=1e-12)
    np.testing.assert_allclose(encoder.scale, np.nanstd(values, 0), rtol=1e-9)


ARRAYS = [
    "npy",
    "npz",
    "h5",
    "hdf5 group",
    "memmap",
    "torch dataset",
    "torch loader",
    "list column",
]


def as_source(folder, kind):
    """X and Y as (X, y) arguments of fit."""
    if kind == "npy":
        np.save(folder / "x.npy", X), np.save(folder / "y.npy", Y)
        return folder / "x.npy", str(folder / "y.npy")
    if kind == "npz":
        np.savez(folder / "d.npz", X=X, y=Y)
        return folder / "d.npz", None
    if kind in ("h5", "hdf5 group"):
        with h5py.File(folder / "d.h5", "w") as file:
            file.create_dataset("X", data=X, chunks=(100, 4), compression="gzip")
            file.create_dataset("y", data=Y)
        return (folder / "d.h5" if kind == "h5" else h5py.File(folder / "d.h5", "r")), None
    if kind == "memmap":
        np.save(folder / "x.npy", X)
        return np.load(folder / "x.npy", mmap_mode="r"), Y
    if kind == "list column":
        return pa.table({"X": pa.FixedSizeListArray.from_arrays(X.reshape(-1), 4), "y": Y}), "y"
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return (
        dataset if kind == "torch dataset" else torch.utils.data.DataLoader(dataset, batch_size=77)
    ), None


@pytest.mark.parametrize("kind", ARRAYS)
def test_every_kind_of_array_is_used_as_it_is(tmp_path, kind, monkeypatch):
    monkeypatch.setattr("kernelmill.data.formats.npy.LARGE_MAP", 0)
    rows, target = as_source(tmp_path, kind)
    model = KernelRegressor(**SETTINGS).fit(rows, target)
    plain = KernelRegressor(**SETTINGS).fit(X, Y)
    assert model.encoder_ is None and model.n_features_in_ == 4
    assert torch.equal(model.model_.alpha, plain.model_.alpha)
    np.testing.assert_array_equal(model.predict(rows), plain.predict(X))
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))


# ---- order, windows, threads


def stream(window_rows=400, workers=4, cuts=None, held_out=None):
    table = ArrayTable({"X": X}, "x")
    table.cuts = cuts or [*range(0, N, 50), N]
    return Stream(table, matrix("X", 4, "float32"), window_rows * 16, held_out, workers)


def visited(source, m=64, epoch=0, position=0):
    return torch.cat([batch.rows for batch in source.batches(m, epoch, position)])


@pytest.mark.parametrize("keep", [None, torch.arange(0, N, 3)], ids=["all", "some"])
def test_streamed_rows_are_the_rows(keep):
    mean = torch.zeros(1, dtype=torch.float64)
    target = torch.from_numpy(Y)[:, None]
    streamed = StreamSource(stream(), target, mean=mean, keep=keep, seed=3)
    held = ArraySource(torch.from_numpy(X), target, mean=mean, keep=keep, seed=3)
    assert streamed.n == held.n
    for batch in itertools.chain(streamed.batches(64, 1), streamed.sweep(100)):
        same = held.take(batch.rows)
        assert (
            torch.equal(batch.X, same.X)
            and torch.equal(batch.Y, same.Y)
            and torch.equal(batch.w, same.w)
        )
    assert torch.equal(
        torch.cat([batch.rows for batch in streamed.sweep(100)]), torch.arange(held.n)
    )
    some = torch.randperm(held.n)[:333]
    assert torch.equal(streamed.take(some).X, held.take(some).X)


def test_the_order_is_random_and_the_same_for_a_seed_whatever_the_workers():
    target, mean = torch.from_numpy(Y)[:, None], torch.zeros(1, dtype=torch.float64)
    orders = [
        visited(StreamSource(stream(workers=workers), target, mean=mean, seed=3), epoch=1)
        for workers in (1, 2, 7)
    ]
    assert torch.equal(orders[0], orders[1]) and torch.equal(orders[0], orders[2])
    assert torch.equal(orders[0].sort().values, torch.arange(N))
    source = StreamSource(stream(), target, mean=mean, seed=3)
    assert not torch.equal(visited(source, epoch=2), orders[0])
    assert not torch.equal(
        visited(StreamSource(stream(), target, mean=mean, seed=4), epoch=1), orders[0]
    )
    first = orders[0][:400].double()  # a window has rows of the whole file, mixed
    assert (
        first.max() - first.min() > 0.6 * N and abs(np.corrcoef(np.arange(400), first)[0, 1]) < 0.2
    )


@pytest.mark.parametrize("position", [0, 64, 640, 2944])
def test_a_stream_goes_on_at_the_same_batch(position):
    source = StreamSource(
        stream(), torch.from_numpy(Y)[:, None], mean=torch.zeros(1, dtype=torch.float64), seed=3
    )
    assert torch.equal(
        visited(source, epoch=1)[position:], visited(source, epoch=1, position=position)
    )


def test_windows_hold_what_they_may():
    sizes = [
        len(rows)
        for _, rows in windows([*range(0, N, 50), N], None, 400, torch.Generator().manual_seed(0))
    ]
    assert sum(sizes) == N and max(sizes) <= 450


def test_reading_ahead_passes_errors_on_and_ends_with_its_reader():
    def broken():
        yield 1
        raise OSError("gone")

    items = ahead(broken())
    assert next(items) == 1
    with pytest.raises(OSError, match="gone"):
        next(items)
    before = threading.active_count()
    endless = ahead(itertools.count())
    assert next(endless) == 0
    endless.close()
    assert threading.active_count() <= before


def test_a_streamed_fit_is_as_good_as_one_in_memory(tmp_path):
    rows = g.normal(size=(40_000, 16)).astype(np.float32)
    target = np.tanh(rows @ g.normal(size=16)) + 0.1 * g.normal(size=40_000)
    np.save(tmp_path / "x.npy", rows[:36_000])
    settings = dict(
        kernel=kernelmill.kernels.Laplacian(6.0),
        n_centers=500,
        solver=EigenPro4(s=400, q=80),
        epochs=2,
        random_state=0,
    )
    held = KernelRegressor(**settings).fit(rows[:36_000], target[:36_000])
    streamed = KernelRegressor(**settings, memory_budget=str(4_000_000)).fit(
        tmp_path / "x.npy", target[:36_000]
    )
    scores = [model.score(rows[36_000:], target[36_000:]) for model in (held, streamed)]
    assert scores[0] > 0.75 and abs(scores[0] - scores[1]) < 0.01
    with pytest.raises(InputError, match="keeps every row in memory"):
        KernelRegressor(kernel="laplacian", solver="eigenpro2", memory_budget="4MB").fit(
            tmp_path / "x.npy", target[:36_000]
        )


# ---- mistakes


def test_mistakes_are_one_sentence(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "two.csv").write_text("a,a,y\n1,2,3\n")
    (tmp_path / "gap.csv").write_text("a,y\n1,2\n3,\n")
    (tmp_path / "plain.csv").write_text("a,b\n1,2\n3,4\n")
    (tmp_path / "odd.parquet").write_bytes(b"PAR1 not really")
    np.save(tmp_path / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    for path, target, said in [
        ("none.csv", "y", "does not exist"),
        ("empty", "y", "empty folder"),
        ("notes.txt", "y", "ending '.txt'"),
        ("two.csv", "y", "two columns called 'a'"),
        ("gap.csv", "y", "1 rows without a target in 'y'"),
        ("gap.csv", "z", "column of .* is not known"),
        ("plain.csv", None, "no target was given"),
        ("odd.parquet", "y", "cannot be read"),
        ("objects.npy", np.zeros(2), "cannot be read"),
    ]:
        with pytest.raises((DataFileError, InputError), match=said):
            KernelRegressor().fit(tmp_path / path, target)


def test_missing_and_infinite_values_are_said():
    with pytest.raises(DataFileError, match="missing values, in 'b'"):
        KernelRegressor(columns=Columns(missing="refuse")).fit(FRAME[["a", "b", "price"]], "price")
    with pytest.raises(DataFileError, match="infinite values in 'a'"):
        KernelRegressor().fit(FRAME.assign(a=np.inf), "price")
    model = KernelRegressor(**SETTINGS).fit(FRAME, "price")
    with pytest.raises(InputError, match=r"lacks the feature names 'colour', which .* on; add"):
        model.predict(FRAME.drop(columns="colour"))  # the target is not there instead of it
    with pytest.raises(InputError, match=r"'colour', which .* on, and has 'Color' instead; add"):
        model.predict(FRAME.rename(columns={"colour": "Color"}))
    with pytest.raises(DataFileError, match="texts in 'a'"):
        model.predict(FRAME.assign(a="many"))


def test_a_csv_column_may_change_its_mind(tmp_path, monkeypatch):
    """Whole numbers first, broken ones and texts later, beyond the block that types are guessed
    from.
    """
    monkeypatch.setattr("kernelmill.data.formats.csv.BLOCK", 1000)
    lines = [f"{i},{i},{i % 7}" for i in range(500)] + ["1.5,x,3"] * 10
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(lines))
    for held in (0, 1 << 30):
        table = opened(tmp_path / "t.csv", held)
        assert (
            table.fields["a"].kind == "number"
            and table.fields["b"].kind == "text"
            and table.n == 510
        )
        assert table.column("a")[-1] == 1.5 and table.column("b")[-1] == "x"


def test_labels_are_as_they_were_written(tmp_path):
    FRAME.assign(kind=np.arange(N) % 3).to_csv(tmp_path / "t.csv", index=False)
    model = KernelClassifier(**SETTINGS).fit(tmp_path / "t.csv", "kind")
    assert model.classes_.dtype == np.int64 and list(model.classes_) == [0, 1, 2]
    assert list(KernelClassifier(**SETTINGS).fit(tmp_path / "t.csv", "shop").classes_) == sorted(
        set(SHOP)
    )


def test_weights_may_be_a_column(tmp_path):
    weight = np.arange(N) % 4
    a = KernelRegressor(**SETTINGS).fit(FRAME.assign(w=weight), "price", "w")
    b = KernelRegressor(**SETTINGS).fit(FRAME, "price", weight)
    assert torch.equal(a.model_.alpha, b.model_.alpha)


# ---- memory

LIMITED = """
    import resource, sys
    import numpy as np
    import torch
    import pyarrow, h5py
    from kernelmill import KernelRegressor, kernels
    from kernelmill.solvers import EigenPro4
    folder, rows, extra = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(2)
    torch.rand(500, 500) @ torch.rand(500, 500)
    data = lambda name: int([l for l in open("/proc/self/status") if l.startswith(name)][0].split()[1]) * 1024
    limit = data("VmData") + extra
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    model = KernelRegressor(kernel=kernels.Laplacian(6.0), n_centers=400, solver=EigenPro4(s=300, q=60), epochs=1, random_state=0)
    model.fit(folder + "/" + sys.argv[4], "y" if sys.argv[4] != "x.npy" else folder + "/y.npy")
    T = np.load(folder + "/test.npz")
    print(limit, model.score(T["X"], T["y"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x.npy", "x.h5", "x.parquet"])
def test_a_file_larger_than_memory_trains_within_the_limit(tmp_path, name):
    """RLIMIT_DATA: what the interpreter and its libraries took, and 400 MB.

    The file is at least twice all of that.
    """
    probe = (
        "import torch, sklearn, pyarrow, kernelmill; print([l for l in open('/proc/self/status')"
        " if l.startswith('VmData')][0].split()[1])"
    )
    base = (
        int(
            subprocess.run(
                [sys.executable, "-c", probe], capture_output=True, text=True, check=True
            ).stdout
        )
        * 1024
    )
    d, extra = 128, 400 << 20
    rows = int(2.2 * (base + extra) / (4 * d))
    weights = g.normal(size=d) / d**0.5
    file = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (rows, d))
    target = np.empty(rows, np.float32)
    for i in range(0, rows, 100_000):
        part = np.random.default_rng(i).normal(size=(min(100_000, rows - i), d)).astype(np.float32)
        file[i : i + len(part)], target[i : i + len(part)] = part, np.tanh(2 * part @ weights)
    file.flush()
    np.save(tmp_path / "y.npy", target)
    if name == "x.h5":
        with h5py.File(tmp_path / name, "w") as h5:
            h5.create_dataset("X", data=file, chunks=(4096, d))
            h5["y"] = target
    elif name == "x.parquet":  # with row groups as large as pyarrow makes them
        kind = pa.schema([("X", pa.list_(pa.float32(), d)), ("y", pa.float32())])
        with pq.ParquetWriter(
            tmp_path / name, kind, compression="none", use_dictionary=False
        ) as writer:
            for i in range(0, rows, 1 << 20):
                block = np.asarray(file[i : i + (1 << 20)]).reshape(-1)
                writer.write_table(
                    pa.table(
                        [pa.FixedSizeListArray.from_arrays(block, d), target[i : i + (1 << 20)]],
                        schema=kind,
                    )
                )
    part = np.random.default_rng(1).normal(size=(5000, d)).astype(np.float32)
    np.savez(tmp_path / "test.npz", X=part, y=np.tanh(2 * part @ weights))
    settings = [str(tmp_path), str(rows), str(extra), name]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), *settings],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    limit, score = done.stdout.split()
    assert os.path.getsize(tmp_path / name) >= 2 * int(limit)
    held = KernelRegressor(
        kernel=kernelmill.kernels.Laplacian(6.0),
        n_centers=400,
        solver=EigenPro4(s=300, q=60),
        epochs=1,
        random_state=0,
    ).fit(np.asarray(file), target)
    assert abs(float(score) - held.score(part, np.tanh(2 * part @ weights))) < 0.01


# ---- inputs that once went wrong


def test_rows_in_a_regular_order_are_encoded_as_others():
    """50 shops in turn: folds by the row number itself would put each shop into one fold."""
    shop = np.array([f"s{i}" for i in np.arange(N) % 50], dtype=object)
    effect = g.normal(size=50)[np.arange(N) % 50]
    model = KernelRegressor(**SETTINGS).fit({"shop": shop, "x": X[:, 0]}, effect + 0.1 * X[:, 0])
    assert model.score({"shop": shop, "x": X[:, 0]}, effect + 0.1 * X[:, 0]) > 0.95


def test_a_model_of_a_matrix_finds_its_own_again(tmp_path):
    np.savez(tmp_path / "d.npz", A=g.normal(size=(N, 4)), X=X, Y=g.normal(size=(N, 4)), t=X[:, 0])
    model = KernelRegressor(**SETTINGS, columns=Columns(features=["X"])).fit(
        tmp_path / "d.npz", "t"
    )
    model.save(tmp_path / "m")
    for found in (model, kernelmill.load(tmp_path / "m")):
        np.testing.assert_array_equal(found.predict(tmp_path / "d.npz"), model.predict(X))
    plain = KernelRegressor(**SETTINGS).fit(X, X[:, 0])
    with pytest.raises(InputError, match="3 matrices of 4 features"):
        plain.predict(tmp_path / "d.npz")


def test_arrays_have_the_columns_in_the_order_of_the_table():
    frame = pd.DataFrame({"zip": np.arange(N) % 7, "x": X[:, 0], "kind": SHOP})
    model = KernelRegressor(**SETTINGS, columns=Columns(categorical=["zip"])).fit(
        frame, frame["zip"] + frame["x"]
    )
    assert list(model.feature_names_in_) == ["zip", "x", "kind"]
    np.testing.assert_allclose(model.predict(frame.to_numpy()), model.predict(frame), rtol=1e-6)


def test_categories_are_texts_in_every_file(tmp_path):
    code = np.array(["01", "02", "03", "A1"], dtype=object)[np.arange(N) % 4]
    pd.DataFrame({"code": code, "y": np.arange(N) % 4}).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "new.csv").write_text("code\n01\n02\n03\n")
    model = KernelRegressor(**SETTINGS).fit(tmp_path / "t.csv", "y")
    np.testing.assert_allclose(model.predict(tmp_path / "new.csv"), [0, 1, 2], atol=0.2)


def test_a_warm_start_keeps_the_encoder():
    model = KernelRegressor(**{**SETTINGS, "solver": EigenPro4(s=100, q=20)}, warm_start=True).fit(
        FRAME, "price"
    )
    before = model.score(FRAME, "price")
    shift = model.encoder_.shift.copy()
    model.fit(FRAME.assign(a=FRAME["a"] * 100 + 1000), "price")
    assert (model.encoder_.shift == shift).all() and before > 0.5


def test_columns_count_for_frames_of_numbers_and_are_refused_for_arrays():
    frame = pd.DataFrame({"zip": np.arange(N) % 7, "x": X[:, 0]})
    model = KernelRegressor(**SETTINGS, columns=Columns(categorical=["zip"])).fit(frame, Y)
    assert model.encoder_.names[0] == "x" and len(model.encoder_.names) == 8
    with pytest.raises(InputError, match="X is an array"):
        KernelRegressor(columns=Columns()).fit(X, Y)
    with pytest.raises(InputError, match="expected kernelmill"):
        KernelRegressor(columns="all").fit(FRAME, "price")


def test_what_cannot_be_a_feature_is_said(tmp_path):
    table = pa.table({"a": X[:, 0], "b": [b"x", b"\xe9"] * (N // 2), "c": [{"d": 1}] * N, "y": Y})
    with pytest.warns(UserWarning, match="'c' cannot be features"):
        model = KernelRegressor(**SETTINGS).fit(table, "y")
    assert model.encoder_.names[:2] == ["a", "b: x"]


def test_shards_may_differ_as_pandas_writes_them(tmp_path):
    for folder, kind in ((tmp_path / "p", "parquet"), (tmp_path / "c", "csv")):
        folder.mkdir()
        parts = [
            pd.DataFrame({"a": [1, 2, 3] * 10, "t": [None] * 30, "y": np.arange(30.0)}),
            pd.DataFrame(
                {"a": [1.5, np.nan, 3] * 10, "t": ["u", "v", None] * 10, "y": np.arange(30.0)}
            ),
        ]
        for i, part in enumerate(parts):
            (
                part.to_parquet(folder / f"{i}.parquet")
                if kind == "parquet"
                else part.to_csv(folder / f"{i}.csv", index=False)
            )
        (folder / "README.md").write_text("notes")
        model = KernelRegressor(kernel=kernelmill.kernels.Laplacian(3.0), ridge=0.1).fit(
            folder, "y"
        )
        assert model.encoder_.names == ["a", "a is missing", "t: u", "t: v", "t: missing"]


def test_question_marks_are_missing_values(tmp_path):
    (tmp_path / "t.csv").write_text(
        "a,y\n" + "\n".join(f"{'?' if i % 9 == 0 else i},{i % 5}" for i in range(200))
    )
    assert opened(tmp_path / "t.csv", 1 << 20).fields["a"].kind == "number"


def test_large_whole_numbers_are_labels_of_their_own():
    for labels in (
        {"k": 2**60 + np.arange(N) % 4, "X": X},
        pa.table({"k": 2**60 + np.arange(N) % 4, "x": X[:, 0]}),
    ):
        assert len(KernelClassifier(**SETTINGS).fit(labels, "k").classes_) == 4


def test_a_loader_that_shuffles_cannot_be_predicted():
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    model = KernelRegressor(**SETTINGS).fit(
        torch.utils.data.DataLoader(dataset, batch_size=100, shuffle=True)
    )
    with pytest.raises(InputError, match="shuffles"):
        model.predict(torch.utils.data.DataLoader(dataset, batch_size=100, shuffle=True))
    assert len(model.predict(torch.utils.data.DataLoader(torch.from_numpy(X), batch_size=100))) == N


def test_a_failed_fit_leaves_the_model_as_it_was(from_frame):
    with pytest.raises(InputError):
        from_frame.fit(FRAME, "typo")
    assert len(from_frame.predict(FRAME)) == N
    with pytest.raises(InputError, match="2 columns"):
        from_frame.partial_fit(FRAME, np.stack([Y, Y], 1))
    assert from_frame.predict(FRAME).shape == (N,)


def test_matrices_with_missing_values_are_refused_unless_columns_are_said(tmp_path):
    holes = X.copy()
    holes[3, 1] = np.nan
    np.save(tmp_path / "x.npy", holes)
    with pytest.raises(DataFileError, match="1 missing values"):
        KernelRegressor(**SETTINGS).fit(tmp_path / "x.npy", Y)
    assert KernelRegressor(**SETTINGS, columns=Columns()).fit(tmp_path / "x.npy", Y).encoder_.d == 5


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
def test_large_blocks_of_a_file_are_cut(tmp_path, kind):
    """One row group, or one batch, of all rows: read in pieces all the same."""
    table = pa.table({f"x{i}": g.normal(size=60_000) for i in range(20)})
    path = tmp_path / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=100_000)
    elif kind == "arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    else:
        pa.csv.write_csv(table, path)
    found = opened(path, 1 << 20)
    assert found.n == 60_000 and max(np.diff(found.cuts)) <= 30_000
    np.testing.assert_allclose(
        found.read(["x7"], 29_990, 30_010)["x7"][:, 0], table["x7"].to_numpy()[29_990:30_010]
    )


def test_large_row_groups_of_partitions_and_shards_are_cut_too(tmp_path):
    for year in (2020, 2021):
        (tmp_path / f"year={year}").mkdir()
        more = {"z": np.ones(400_000)} if year == 2021 else {}
        table = pa.table({"x": g.normal(size=400_000), "y": np.full(400_000, float(year)), **more})
        pq.write_table(table, tmp_path / f"year={year}" / "a.parquet", row_group_size=1_000_000)
    small, large = opened(tmp_path, 1 << 30), opened(tmp_path, 1 << 10)
    assert (
        small.n == large.n == 800_000
        and len(large.cuts) > len(small.cuts)
        and small.fields == large.fields
    )
    for name in ("x", "y", "year", "z"):
        np.testing.assert_array_equal(small.column(name), large.column(name))


def test_half_precision_is_checked_as_others_are():
    rows = np.linspace(-65504, 65504, 60).astype(np.float16).reshape(10, 6)
    assert is_clean(rows) and is_clean(rows[:, ::2]) and is_clean(rows[:0])
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = rows.copy()
        spoiled[3, 4] = bad
        assert not is_clean(spoiled) and is_clean(spoiled[:, :4])


def test_moments_of_half_precision_are_those_of_its_numbers():
    rows = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float16)
    half, single = Moments(3), Moments(3)
    for moments, values in ((half, rows), (single, rows.astype(np.float32))):
        moments.add(values, None)
        moments.add_rest()
    np.testing.assert_array_equal(half.mean, single.mean)
    np.testing.assert_array_equal(half.deviation, single.deviation)


def test_batches_that_are_copied_together_are_cut_again():
    rows = torch.arange(10)
    whole = Batch(rows, rows[:, None].float(), rows[:, None].double(), torch.ones(10))
    cut = list(cut_batches(iter([whole, whole]), 4, 12))
    assert [len(batch) for batch in cut] == [4, 4, 2, 4, 4, 2]
    assert torch.equal(torch.cat([batch.rows for batch in cut]), rows.repeat(2))
    assert all(torch.equal(batch.X[:, 0].long(), batch.rows) for batch in cut)
    source = source_of(torch.zeros(50, 16).half(), torch.zeros(50, 1), mean=torch.zeros(1))
    assert source._copied_together(1000) == 64_000
    long = source_of(torch.zeros(50, 1280), torch.zeros(50, 1), mean=torch.zeros(1))
    assert long._copied_together(2000) == 2000
