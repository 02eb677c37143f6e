"""What it costs to train from a file instead of an array in memory: the same rows, the same solver, one fit each.

    python benchmarks/bench_data.py [--rows 400000] [--features 64] [--centers 2000] [--epochs 3]

Every kind is fitted twice: with memory to hold the features (read once), and with so little that they are streamed in windows at every
epoch. "read" is one pass over the encoded rows by itself, as many threads as a fit has.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from common import show, write
from kernelmill import Columns, KernelRegressor, kernels
from kernelmill.data import Stream, learn, opened
from kernelmill.solvers import EigenPro4


def written(folder: Path, kind: str, X: np.ndarray, y: np.ndarray):
    """(X, y) as arguments of fit."""
    if kind == "array":
        return X, y
    if kind == "memmap":
        np.save(folder / "x.npy", X)
        return folder / "x.npy", y
    if kind == "hdf5":
        with h5py.File(folder / "d.h5", "w") as file:
            file.create_dataset("X", data=X, chunks=(4096, X.shape[1]))
            file["y"] = y
        return folder / "d.h5", "y"
    table = pa.table({**{f"x{i}": X[:, i] for i in range(X.shape[1])}, "y": y})
    if kind == "parquet":
        pq.write_table(table, folder / "d.parquet", row_group_size=16_384)
        return folder / "d.parquet", "y"
    if kind == "parquet, one list column":
        rows = pa.FixedSizeListArray.from_arrays(X.reshape(-1), X.shape[1])
        pq.write_table(pa.table({"x": rows, "y": y}), folder / "l.parquet", row_group_size=16_384)
        return folder / "l.parquet", "y"
    pa.csv.write_csv(table, folder / "d.csv")
    return folder / "d.csv", "y"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--centers", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    g = np.random.default_rng(0)
    X = g.normal(size=(options.rows, options.features)).astype(np.float32)
    y = np.tanh(X @ g.normal(size=options.features) / 4).astype(np.float32)
    T, t = X[-10_000:], y[-10_000:]
    X, y = X[:-10_000], y[:-10_000]
    little = f"{X.nbytes // 2**20 + 16}MiB"  # half of it is less than the features take
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("array", "memmap", "hdf5", "parquet", "parquet, one list column", "csv", "array"):
            source, target = written(folder, kind, X, y)
            read = None
            if kind != "array":
                table = opened(source, 1 << 34)
                encoder = learn(Columns(), table, ["y"], y[:, None], np.ones(len(y), bool))
                stream, begun = Stream(table, encoder, 8 << 20), time.perf_counter()
                for a, b in zip(stream.cuts, stream.cuts[1:], strict=False):
                    stream.read(a, b)
                read = time.perf_counter() - begun
            for memory in ("held", "streamed") if kind != "array" else ("held",):
                seconds, model = [], None
                for _ in range(options.repeats):
                    model = KernelRegressor(
                        kernel=kernels.Laplacian(8.0), n_centers=options.centers, epochs=options.epochs, random_state=0,
                        solver=EigenPro4(s=1000, q=100, projection="cholesky"), precision="float32",
                        memory_budget=little if memory == "streamed" else None,
                    )  # fmt: skip
                    begun = time.perf_counter()
                    model.fit(source, target)
                    seconds.append(time.perf_counter() - begun)
                width = X.shape[1] if model.encoder_ is None else None
                rows = T if width else np.asarray(T)
                row = {"kind": kind, "memory": memory, "seconds": min(seconds), "read s": read, "R2": model.score(rows, t)}
                results.append(row)
                print(row, flush=True)
    base = min(row["seconds"] for row in results if row["kind"] == "array")
    for row in results:
        row["ratio"] = row["seconds"] / base
    show(results)
    write("data", results)


if __name__ == "__main__":
    main()
