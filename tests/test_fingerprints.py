"""Data that is not what it was: noticed when a run goes on, while a file is streamed, and
between ranks.
"""

import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelmill import CheckpointError, InputError, KernelRegressor, kernels
from kernelmill.data import checksum, opened, prints
from kernelmill.data.mapped import FileRows, unmapped
from kernelmill.distributed.team import agree
from kernelmill.distributed.threads import run_threads
from kernelmill.errors import DataFileError
from kernelmill.solvers import EigenPro4
from test_ranks import environment, finished, free_port

g = np.random.default_rng(0)
X = g.normal(size=(10_400, 3)).astype(np.float32)
y = np.sin(X[:, 0]) + X[:, 1]
w = g.uniform(0.5, 1.5, len(X))
SETTINGS = dict(
    kernel=kernels.Laplacian(2.0),
    n_centers=60,
    solver=EigenPro4(s=50, q=5, m=500),
    epochs=2,
    random_state=0,
)
SMALL = dict(memory_budget=str(100_000))  # rows stay in their file


def model(folder=None, **more):
    checkpoint = {} if folder is None else dict(checkpoint=folder, checkpoint_every=0, resume=True)
    return KernelRegressor(**{**SETTINGS, **checkpoint, **more})


def stop_after_an_epoch(event):
    return event.kind == "epoch"


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="this fit is predicted to take")
        yield


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    model(folder, callbacks=stop_after_an_epoch).fit(X, y, w)
    return folder, model().fit(X, y, w).model_.alpha


def changed(values, row, value):
    other = values.copy()
    other[row] = value
    return other


def swapped(values, a, b):
    other = values.copy()
    other[[a, b]] = values[[b, a]]
    return other


# ---- a run that goes on


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        ((changed(X, 5003, 0.5), y, w), {}, "the rows of X changed since the run in checkpoint="),
        ((swapped(X, 77, 9003), y, w), {}, "the rows of X changed"),
        ((-X, y, w), {}, "the rows of X changed"),
        ((X, changed(y, 777, 0.0), w), {}, "the targets changed"),
        ((X, y, swapped(w, 3, 4001)), {}, "the sample weights changed"),
        ((X, y), {}, "the sample weights changed"),
        (
            (X, y, w),
            dict(random_state=1),
            "random_state=1 was given, and the run in checkpoint=.* began with 0",
        ),
    ],
)
def test_a_run_goes_on_only_with_the_rows_it_began_with(tmp_path, begun, given, more, said):
    shutil.copytree(begun[0], tmp_path / "run")
    with pytest.raises(CheckpointError, match=said):
        model(tmp_path / "run", **more).fit(*given)


def test_a_run_goes_on_with_the_same_rows_and_a_generator_keeps_what_it_drew(tmp_path, begun):
    folder, want = begun
    for name, more in (("same", {}), ("none", dict(random_state=None))):
        shutil.copytree(folder, tmp_path / name)
        assert torch.equal(
            model(tmp_path / name, **more).fit(X.copy(), y.copy(), w.copy()).model_.alpha, want
        )


def test_held_out_rows_count_too(tmp_path):
    rows, targets = X[:2000], y[:2000]
    out = model(validation_fraction=0.1)._hold_out(2000, 0.0, None)
    settings = dict(validation_fraction=0.1, early_stopping=True)
    model(tmp_path, callbacks=stop_after_an_epoch, **settings).fit(rows, targets)
    with pytest.raises(CheckpointError, match="the rows held out changed"):
        model(tmp_path, **settings).fit(rows, changed(targets, out[0], 9.0))


def test_a_streamed_run_goes_on_with_a_copy_and_not_with_another_file(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", X[:6000])
        np.save(tmp_path / name / "1.npy", X[6000:])
    os.utime(tmp_path / "two" / "1.npy", (1, 1))
    model(tmp_path / "run", callbacks=stop_after_an_epoch, **SMALL).fit(tmp_path / "one", y)
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="this fit is predicted to take")
        model(tmp_path / "run", **SMALL).fit(tmp_path / "two", y)
    np.save(tmp_path / "two" / "1.npy", changed(X[6000:], 77, 0.5))
    with pytest.raises(CheckpointError, match=r"the file '.*two/1.npy' changed since the run"):
        model(tmp_path / "again", **SMALL).fit(tmp_path / "two", y)


def test_large_files_are_known_by_blocks_their_ends_and_their_footers(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(prints, "WHOLE", 1000)
    monkeypatch.setattr(prints, "BLOCK", 64)
    monkeypatch.setattr(prints, "BLOCKS", 8)
    path = tmp_path / "d.parquet"
    columns = {f"c{i}": X[:, 0] for i in range(30)}
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    before = prints.Files([path]).account()
    # Seen in its statistics.
    pq.write_table(
        pa.table({**columns, "c7": changed(X[:, 0], 4444, 99.0)}), path, row_group_size=1000
    )
    assert prints.Files([path]).account()[0][0] != before[0][0]
    plain = tmp_path / "x.npy"
    np.save(plain, X)
    files = prints.Files([plain])
    files.mark()
    for at in (0, -1):
        data = bytearray(plain.read_bytes())
        data[at] ^= 1
        plain.write_bytes(data)
        with pytest.raises(DataFileError, match="changed while it was read"):
            files.check()
        data[at] ^= 1
        plain.write_bytes(data)
    # Only blocks were compared.
    with pytest.warns(UserWarning, match="taken for the same file"):
        files.check()
    files.check()


def test_a_checksum_sees_every_value_and_their_order():
    values = torch.randn(5000, 3, dtype=torch.float64)
    found = {
        checksum(values),
        checksum(-values),
        checksum(values.flip(0)),
        checksum(values.reshape(3, 5000)),
        checksum(values.float()),
    }
    one = values.clone()
    one[4321, 2] = torch.nextafter(one[4321, 2], torch.tensor(9.0, dtype=torch.float64))
    assert len(found | {checksum(one)}) == 6 and checksum(values.clone()) == checksum(values)


# ---- files that change while they are read

N = 24_000
ROWS = g.normal(size=(N, 6)).astype(np.float32)
TARGET = np.sin(ROWS[:, 0])


def write(path, rows):
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["X"] = rows
    else:
        pa = pytest.importorskip("pyarrow")
        table = pa.table({f"c{i}": rows[:, i] for i in range(6)})
        if path.suffix == ".parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=1000)
        else:
            with pa.ipc.new_file(str(path), table.schema) as file:
                file.write_table(table, max_chunksize=1000)


def truncate(path):
    os.truncate(path, 4096)


def overwrite(path):
    other = path.with_name("other" + path.suffix)
    write(other, -ROWS)
    with open(path, "r+b") as file:
        file.write(other.read_bytes())


def replace(path):
    other = path.with_name("other" + path.suffix)
    write(other, -ROWS)
    os.replace(other, path)


def replace_by_fewer(path):
    other = path.with_name("other" + path.suffix)
    write(other, -ROWS[:500])
    os.replace(other, path)


CHANGES = [
    ("d.npy", truncate),
    ("d.npy", overwrite),
    ("d.npy", replace),
    ("d.npy", os.remove),
    ("d.parquet", truncate),
    ("d.parquet", replace),
    ("d.parquet", replace_by_fewer),
    ("d.parquet", os.remove),
    ("d.arrow", truncate),
    ("d.arrow", replace),
    ("d.arrow", os.remove),
    ("d.h5", truncate),
    ("d.h5", replace),
]


def streamed(path, change):
    """A fit during which something is done to its file."""
    seen = []

    def callback(event):
        seen.append(event)
        if len(seen) == 3:
            change(path)

    return model(
        solver=EigenPro4(s=50, q=5, m=200), memory_budget=str(1_000_000), callbacks=callback
    ).fit(path, TARGET)


@pytest.mark.parametrize(
    ("name", "change"), CHANGES, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_file_that_changes_while_it_is_streamed_ends_the_fit_with_a_sentence(
    tmp_path, name, change
):
    write(tmp_path / name, ROWS)
    with pytest.raises(
        DataFileError,
        match=f"{name}' (changed|was removed) while it was read; the fit is not valid",
    ):
        streamed(tmp_path / name, change)


def test_a_file_that_is_touched_or_replaced_by_its_copy_ends_no_fit(tmp_path):
    write(tmp_path / "d.npy", ROWS)
    want = streamed(tmp_path / "d.npy", lambda path: None).model_.alpha

    def copied(path):
        shutil.copy(path, path.with_name("copy.npy"))
        os.replace(path.with_name("copy.npy"), path)

    for change in (os.utime, copied):
        assert torch.equal(streamed(tmp_path / "d.npy", change).model_.alpha, want)


def test_no_checkpoint_is_written_from_rows_of_a_changed_file(tmp_path):
    """A run that goes on when the file is back gives the same weights: it holds nothing of the
    other rows.
    """
    write(tmp_path / "d.npy", ROWS)
    more = dict(solver=EigenPro4(s=50, q=5, m=200), memory_budget=str(1_000_000))
    want = model(**more).fit(tmp_path / "d.npy", TARGET).model_.alpha
    seen = []
    with pytest.raises(DataFileError):
        model(
            tmp_path / "run",
            callbacks=lambda e: (
                seen.append(e) or (len(seen) == 3 and overwrite(tmp_path / "d.npy"))
            ),
            **more,
        ).fit(tmp_path / "d.npy", TARGET)
    assert list((tmp_path / "run").glob("checkpoint-*"))
    write(tmp_path / "d.npy", ROWS)
    assert torch.equal(
        model(tmp_path / "run", **more).fit(tmp_path / "d.npy", TARGET).model_.alpha, want
    )


@pytest.mark.parametrize("name", ["d.npy", "d.parquet", "d.arrow", "d.h5"])
@pytest.mark.parametrize("change", [truncate, replace])
def test_a_file_that_changes_while_it_is_predicted_is_said(tmp_path, name, change):
    write(tmp_path / name, ROWS)
    fitted = model().fit(tmp_path / name, TARGET)
    table = opened(tmp_path / name, 1 << 30)
    change(tmp_path / name)
    with pytest.raises(DataFileError, match="changed while it was read"):
        fitted.predict(table)


def test_a_table_that_was_read_at_once_does_not_mind_what_becomes_of_its_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    csv = pytest.importorskip("pyarrow.csv")
    csv.write_csv(pa.table({"a": X[:, 0], "b": X[:, 1], "y": y}), tmp_path / "d.csv")
    done = model(
        memory_budget="1MB", callbacks=lambda event: (tmp_path / "d.csv").unlink(missing_ok=True)
    ).fit(tmp_path / "d.csv", "y")
    assert done.n_iter_ == 2


@pytest.mark.parametrize("size", [100, N])
def test_arrow_files_of_any_batches_are_read_as_they_are(tmp_path, size):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({f"c{i}": ROWS[:, i] for i in range(6)})
    with pa.ipc.new_file(str(tmp_path / "d.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=size)
    for in_memory in (0, 1 << 30):
        found = opened(tmp_path / "d.arrow", in_memory)
        assert found.n == N and np.array_equal(
            found.read(["c3"], 999, 2345)["c3"][:, 0], ROWS[999:2345, 3]
        )


@pytest.mark.parametrize(
    "array",
    [
        ROWS,
        np.asfortranarray(ROWS),
        ROWS[:, 0],
        ROWS.astype("f8"),
        (ROWS > 0),
        np.array(["a", "bcd"] * 50),
    ],
)
def test_rows_of_a_file_are_those_that_numpy_maps(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    rows = unmapped(mapped)
    assert isinstance(rows, FileRows) and len(rows) == len(array)
    for part in (slice(0, 7), slice(13, 99), slice(None), slice(90, 10**9), slice(5, 5)):
        assert np.array_equal(rows[part], array[part]) and rows[part].dtype == array.dtype
    if array.ndim == 2 and array.flags.c_contiguous:
        # A part of a memmap.
        assert np.array_equal(unmapped(mapped[100:][3:])[2:9], array[105:112])
        assert unmapped(mapped[:, 1:]) is not rows and not isinstance(
            unmapped(mapped[:, 1:]), FileRows
        )


# ---- ranks that disagree


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            [
                {"call": "fit", "epochs": "1"},
                {"call": "fit", "epochs": "1"},
                {"call": "fit", "epochs": "2"},
            ],
            "rank 2 has epochs 2, and rank 0 1",
        ),
        (
            [{"call": "fit", "rows of X": "#ab"}, {"call": "fit", "rows of X": "#abc"}],
            "rank 1 has other rows of X than rank 0",
        ),
        ([{"call": "fit"}, {"call": "save"}], "rank 1 is in save and rank 0 in fit"),
    ],
)
def test_ranks_say_who_differs_in_what(facts, said):
    def work(comm):
        agree(comm, {"call": "fit", "epochs": "é"})
        with pytest.raises(InputError, match=re.escape(said)):
            agree(comm, facts[comm.rank])

    run_threads(len(facts), work)


JOB = """
import os, sys
import numpy as np
from kernelmill.storage import run_folder
from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels
rank, X = int(os.environ["RANK"]), np.random.default_rng(0).normal(size=(600, 3))
y = np.sin(X[:, 0])
settings = dict(kernel=kernels.Matern(bandwidth=2.0), solver="eigenpro4", n_centers=150, epochs=1, random_state=0)
def refused(said, work):
    try: work()
    except InputError as error: assert said in str(error), error
    else: raise AssertionError(said)
def regressor(**more): return KernelRegressor(**{**settings, **more})
refused("rank 1 has random_state 1, and rank 0 0", lambda: regressor(random_state=rank).fit(X, y))
refused("rank 1 has epochs 2, and rank 0 1", lambda: regressor(epochs=1 + rank).fit(X, y))
refused("rank 1 has other rows of X", lambda: regressor().fit(X + rank * (np.arange(600) == 333)[:, None], y))
refused("rank 1 has other targets", lambda: regressor().fit(X, y + rank * (np.arange(600) == 333)))
refused("rank 1 has other sample weights", lambda: regressor().fit(X, y, np.arange(600) + 1.0 + rank * (np.arange(600) == 333)))
refused("rank 1 has X of shape (593, 3), and rank 0 (600, 3)", lambda: regressor().fit(X[: 600 - 7 * rank], y[: 600 - 7 * rank]))
refused("rank 1 is in KernelClassifier.fit and rank 0 in KernelRegressor.fit",
        lambda: (KernelClassifier if rank else KernelRegressor)(**settings).fit(X, (y > 0).astype(int)))
model = regressor().fit(X, y)
refused("rank 1 has other rows of X to predict than rank 0", lambda: model.predict(X[rank * 100 : rank * 100 + 100]))
refused("rank 1 has rows to predict (150, 3), and rank 0 (100, 3)", lambda: model.predict(X[: 100 + 50 * rank]))
refused("rank 1 is in save and rank 0 in predict", lambda: model.save(sys.argv[2]) if rank else model.predict(X))
assert model.score(X, y) > 0.8
if sys.argv[1] == "raises":
    if rank == 1: y[3] = np.nan
    model.fit(X, y)
elif rank == 0:
    model.score(X, y)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raises", "rank 1 ended this job with ValueError: Input y contains NaN"),
        ("leaves", "rank 1 has ended, and rank 0 waits"),
    ],
)
def test_ranks_that_disagree_say_so_and_one_that_fails_ends_the_others(tmp_path, end, said):
    (tmp_path / "job.py").write_text(JOB)
    port = free_port()
    job = [
        subprocess.Popen(
            [sys.executable, "job.py", end, "model"],
            env=environment(
                RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                PYTHONPATH=os.pathsep.join(sys.path),
            ),
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (zero, text), (one, other) = finished(job)
    assert zero != 0 and said in text, text + other
    assert (one != 0) == (end == "raises") and not Path(tmp_path / "model").exists(), other
