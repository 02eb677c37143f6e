"""Training from a file instead of an array in memory: the same rows, the same solver.

    python -m benchmarks data [--rows 400000] [--features 64] [--centers 2000] [--epochs 3]

Every kind is fitted twice: with memory to hold the features (read once), and with so little that
they are streamed in windows at every epoch. `read_seconds` is one pass over the encoded rows by
itself, with as many threads as a fit has. The array is taken again at the end, to see the noise.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from kernelmill import Columns, KernelRegressor, kernels
from kernelmill.data import Stream, learn, opened
from kernelmill.solvers import EigenPro4

FILES = ("memmap", "hdf5", "parquet", "parquet, one list column", "csv")


def written(folder: Path, kind: str, X: np.ndarray, y: np.ndarray) -> tuple[object, object]:
    """(X, y) as arguments of fit."""
    if kind.startswith("array"):
        return X, y
    if kind == "memmap":
        np.save(folder / "x.npy", X)
        return folder / "x.npy", y
    if kind == "hdf5":
        with h5py.File(folder / "d.h5", "w") as file:
            file.create_dataset("X", data=X, chunks=(min(4096, len(X)), X.shape[1]))
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


def seconds_to_read(source: object, y: np.ndarray) -> float:
    table = opened(source, 1 << 34)
    encoder = learn(Columns(), table, ["y"], y[:, None], np.ones(len(y), bool))
    stream, begun = Stream(table, encoder, 8 << 20), time.perf_counter()
    for a, b in zip(stream.cuts, stream.cuts[1:], strict=False):
        stream.read(a, b)
    return time.perf_counter() - begun


def cases(
    rows: int = 400_000, features: int = 64, centers: int = 2000, epochs: int = 3, repeats: int = 2
) -> Iterator[dict]:
    g = np.random.default_rng(0)
    X = g.normal(size=(rows, features)).astype(np.float32)
    y = np.tanh(X @ g.normal(size=features) / 4).astype(np.float32)
    held = min(10_000, rows // 4)
    X_test, y_test, X, y = X[-held:], y[-held:], X[:-held], y[:-held]
    little = f"{X.nbytes // 2**20 + 16}MiB"  # half of it is less than the features take
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("array", *FILES, "array, again"):
            source, target = written(Path(folder), kind, X, y)
            read = seconds_to_read(source, y) if kind in FILES else None
            for memory in ("held", "streamed") if kind in FILES else ("held",):
                seconds = []
                for _ in range(repeats):
                    model = KernelRegressor(
                        kernel=kernels.Laplacian(8.0),
                        n_centers=centers,
                        epochs=epochs,
                        random_state=0,
                        solver=EigenPro4(s=1000, q=100, projection="cholesky"),
                        precision="float32",
                        memory_budget=little if memory == "streamed" else None,
                    )
                    begun = time.perf_counter()
                    model.fit(source, target)
                    seconds.append(time.perf_counter() - begun)
                yield {
                    "kind": kind,
                    "memory": memory,
                    "n": len(X),
                    "d": features,
                    "centers": centers,
                    "epochs": epochs,
                    "seconds": min(seconds),
                    "read_seconds": read,
                    "r2": model.score(X_test, y_test),
                }


def summary(rows: list[dict]) -> dict:
    """The unit of the others' times: the quicker of the two fits of the array."""
    return {"array_seconds": min(row["seconds"] for row in rows if row["kind"].startswith("array"))}
