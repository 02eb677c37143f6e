"""A file that is larger than the memory it may use: streamed, with checkpoints, and predicted from
the raw file.

python examples/from_a_file.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kernelmill import Columns, KernelRegressor, kernels, load, solvers


def write(path: Path, rows: int, seed: int) -> None:
    g = np.random.default_rng(seed)
    columns = {f"sensor {i}": g.normal(size=rows).astype(np.float32) for i in range(20)}
    place = g.choice(["mill", "river", "wood"], rows)
    target = np.sin(2 * columns["sensor 0"]) + columns["sensor 1"] * (place == "mill")
    columns["sensor 2"][g.random(rows) < 0.05] = np.nan
    pq.write_table(
        pa.table({**columns, "place": place, "flow": target}), path, row_group_size=20_000
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "train.parquet", 200_000, 0)
        write(folder / "new.parquet", 5_000, 1)
        model = KernelRegressor(
            kernel=kernels.Laplacian(6.0),
            n_centers=1_000,
            solver=solvers.EigenPro4(),
            columns=Columns(features=["sensor 0", "sensor 1", "sensor 2", "place"]),
            memory_budget="60MB",  # so little that the rows are streamed
            checkpoint=folder / "run",
            checkpoint_every="1m",
            resume=True,
            random_state=0,
        ).fit(folder / "train.parquet", "flow")
        model.save(folder / "model")
        again = load(folder / "model")
        print(
            f"R² on new rows: {again.score(folder / 'new.parquet', 'flow'):.3f}; features:"
            f" {', '.join(again.encoder_.names)}"
        )


if __name__ == "__main__":
    main()
