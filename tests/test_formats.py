"""Formats: every one of the registry opens, peeks, is documented, and is the same behind a URL."""

import gc
import sys
from pathlib import Path

import fsspec
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from scipy.sparse import csr_matrix

from kernelmill import DataFileError, InputError, KernelRegressor, kernels
from kernelmill.data import is_table, opened
from kernelmill.data.formats import FORMATS, Format, Peek, folder, peek
from kernelmill.data.formats.base import choose, nothing, open_path
from kernelmill.data.tables import ArrayTable

N = 50
g = np.random.default_rng(0)
X = g.normal(size=(N, 3))
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": X[:, 2]})
DOCS = (Path(__file__).parent.parent / "docs" / "data.md").read_text(encoding="utf-8")


def write_csv(path):
    FRAME.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")


def write_arrow(path):
    table = pa.Table.from_pandas(FRAME)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=20)


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        for name in FRAME:
            file[name] = FRAME[name].to_numpy()


def write_npz(path):
    with open(path, "wb") as file:
        np.savez(file, **{name: FRAME[name].to_numpy() for name in FRAME})


WRITERS = {
    ".csv": write_csv,
    ".tsv": write_csv,
    ".csv.gz": write_csv,
    ".tsv.gz": write_csv,
    ".parquet": FRAME.to_parquet,
    ".pq": FRAME.to_parquet,
    ".arrow": write_arrow,
    ".feather": FRAME.to_feather,
    ".npy": lambda path: np.save(path, X),
    ".npz": write_npz,
    ".h5": write_hdf5,
    ".hdf5": write_hdf5,
}
MATRICES = (".npy",)  # without names of columns


def write(folder, suffix):
    path = folder / f"example{suffix}"
    WRITERS[suffix](path)
    return path


def shards(folder):
    for year in (2020, 2021):
        (folder / f"year={year}").mkdir()
        FRAME[: N // 2].to_parquet(folder / f"year={year}" / "part.parquet")
    return folder


def open_hdf5(folder):
    return h5py.File(write(folder, ".h5"), "r")


def large_map(folder):
    return np.memmap(folder / "x.bin", np.float64, "w+", shape=(N, 50_000))


# Of every format: a path or an object, and the number of its columns, None where peek does not say.
EXAMPLES = {
    "folders": [(shards, 3)],
    "CSV": [(lambda folder: write(folder, ".csv"), 3)],
    "Parquet": [
        (lambda folder: write(folder, ".parquet"), 3),
        (lambda folder: pa.dataset.dataset(write(folder, ".parquet")), 3),
    ],
    "Arrow": [
        (lambda folder: write(folder, ".arrow"), 3),
        (lambda folder: pa.Table.from_pandas(FRAME), 3),
        (lambda folder: pa.RecordBatch.from_pandas(FRAME), 3),
    ],
    "numpy": [(lambda folder: write(folder, ".npy"), 3), (large_map, 50_000)],
    "HDF5": [(lambda folder: write(folder, ".h5"), 3), (open_hdf5, 3)],
    "torch": [(lambda folder: torch.utils.data.TensorDataset(torch.from_numpy(X)), None)],
    "sparse matrices": [(lambda folder: csr_matrix(X), 3)],
    "frames": [
        (lambda folder: FRAME, 3),
        (lambda folder: {name: FRAME[name].to_numpy() for name in FRAME}, 3),
        (lambda folder: X, 3),
    ],
}
CASES = [(name, i) for name, examples in EXAMPLES.items() for i in range(len(examples))]


# ---- the registry


def test_no_format_is_forgotten():
    assert list(EXAMPLES) == [format.name for format in FORMATS]
    assert list(WRITERS) == [suffix for format in FORMATS for suffix in format.suffixes]
    for format in FORMATS:
        assert format.suffixes or format.takes is not nothing
        assert format.name.lower() in DOCS.lower(), f"docs/data.md does not name {format.name}"
        for suffix in format.suffixes:
            assert suffix == suffix.lower() and f"`{suffix}`" in DOCS, f"{suffix}: docs/data.md"


@pytest.mark.parametrize(("name", "i"), CASES)
def test_every_format_opens_and_peeks(tmp_path, name, i):
    example, columns = EXAMPLES[name][i]
    given = example(tmp_path)
    format = choose(FORMATS, given)
    assert format.name == name
    assert opened(given, 1 << 20).n == N
    seen = peek(given)
    assert seen.rows in (N, None) and seen.columns == columns and not seen.estimated
    assert is_table(given) != format.arrays


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_ending_is_read_alike(tmp_path, suffix):
    path = write(tmp_path, suffix)
    table = opened(path, 1 << 20)
    if suffix in MATRICES:
        np.testing.assert_array_equal(table.column("X"), X)
    else:
        for name in FRAME:
            np.testing.assert_array_equal(table.column(name), FRAME[name].to_numpy())
    assert (peek(path).rows, peek(path).columns) == (N, 3)
    capitals = path.rename(path.with_name(path.name.upper()))
    assert choose(FORMATS, capitals) is choose(FORMATS, path)


def test_arrow_streams_are_read_too(tmp_path):
    table = pa.Table.from_pandas(FRAME)
    with pa.ipc.new_stream(tmp_path / "t.arrow", table.schema) as file:
        file.write_table(table)
    assert opened(tmp_path / "t.arrow", 0).n == N
    assert peek(tmp_path / "t.arrow") == Peek(None, 3)


def test_a_format_is_one_value(tmp_path):
    """What a new format takes: two functions and its ending; folders of it come by themselves."""

    def open_lines(path, in_memory, kinds):
        return ArrayTable({"x": np.array([float(line) for line in open(path)])}, repr(str(path)))

    lines = Format("lines", open_lines, lambda path: Peek(columns=1), (".lines",))
    formats = (folder.folders_of((lines,)), lines)
    for name in ("1.lines", "2.LINES"):
        (tmp_path / name).write_text("1\n2\n")
    assert open_path(formats, tmp_path / "1.lines", 0, {}).n == 2
    assert open_path(formats, tmp_path, 0, {}).column("x").tolist() == [1, 2, 1, 2]
    with pytest.raises(InputError, match=r"'.csv', expected one of .lines"):
        choose(formats, Path("t.csv"))


# ---- URLs


@pytest.fixture
def upload():
    system = fsspec.filesystem("memory")

    def put(path, name):
        system.put(str(path), f"/formats/{name}", recursive=True)
        return f"memory://formats/{name}"

    yield put
    system.rm("/formats", recursive=True)


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_url_is_read_as_the_file_it_names(tmp_path, upload, suffix):
    path = write(tmp_path, suffix)
    url = upload(path, path.name)
    local, remote = opened(path, 1 << 20), opened(url, 1 << 20)
    assert remote.where == repr(url) and remote.fields == local.fields
    for name in local.fields:
        np.testing.assert_array_equal(local.column(name), remote.column(name))


def test_a_folder_behind_a_url_has_its_columns(tmp_path, upload):
    table = opened(upload(shards(tmp_path), "shards"), 1 << 20)
    assert sorted(table.fields) == ["a", "b", "y", "year"] and table.n == N


def test_a_copy_goes_with_its_last_table(tmp_path, upload):
    url = upload(write(tmp_path, ".csv"), "t.csv")
    table = opened(url, 1 << 20)
    place = table.copied.path.parent
    other = table.of_kinds({"a": "text"})
    del table
    gc.collect()
    assert other.raw(["a"])["a"].to_pylist()[0] == str(X[0, 0]) and other.where == repr(url)
    assert place.exists()
    del other
    gc.collect()
    assert not place.exists()


def test_a_model_is_fitted_and_used_behind_urls(tmp_path, upload):
    path = write(tmp_path, ".parquet")
    url = upload(path, "train.parquet")
    settings = dict(kernel=kernels.Gaussian(2.0), ridge=0.1, random_state=0)
    local, remote = (KernelRegressor(**settings).fit(data, "y") for data in (path, url))
    assert torch.equal(local.model_.alpha, remote.model_.alpha)
    as_path = Path(url)  # with one slash of the two
    np.testing.assert_array_equal(local.predict(path), remote.predict(as_path))


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("memory://nothing/here.csv", DataFileError, "does not exist; check the address"),
        ("nonsense://here.csv", InputError, r"Protocol not known: nonsense"),
        ("gs://bucket/here.csv", InputError, r"needs another package \(.*gcsfs.*install it"),
    ],
)
def test_a_url_that_cannot_be_opened_is_one_sentence(url, error, said):
    with pytest.raises(error, match=said) as caught:
        opened(url, 0)
    assert str(caught.value).startswith(repr(url)) and "\n" not in str(caught.value)


def test_without_fsspec_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"fsspec: pip install 'kernelmill\[remote\]'"):
        opened("https://example.org/t.csv", 0)
