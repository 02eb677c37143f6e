"""Tables of 100,000 to 2.7 million rows without an argument, beside LightGBM; and the error against
the number of centers.

    KERNELMILL_DATA=folder python -m benchmarks large [--data air] [--methods kernelmill,lightgbm]
    KERNELMILL_DATA=folder python -m benchmarks large --data air --centers 1000,10000,100000,0
    KERNELMILL_DATA=folder python -m benchmarks large --test

Scores are of rows that are held out of training, every tenth, or of air its last tenth in time;
`--test` reads the test rows instead. Centers 0 are all rows, or what the plan takes. LightGBM is
stopped early on another tenth, the best of three settings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from kernelmill import KernelClassifier, KernelRegressor

from .tables.boosting import LightGBM
from .tables.data import TABLES, Frame, Rows, Table, hold_out
from .tables.methods import Means
from .tables.scores import loss, scores
from .tasks import data_folder


@dataclass(frozen=True)
class Large(Table):
    time: str = ""  # rows are held out by it

    def _read(self, part: str) -> tuple[Frame, np.ndarray]:
        whole = pq.read_table(data_folder() / "large" / f"{self.name}.{part}.parquet")
        whole = whole.filter(pc.is_valid(whole[self.target]))
        return whole.drop_columns([self.target]), whole[self.target].to_numpy()

    def split(self, rows: Rows) -> tuple[Rows, Rows]:
        if not self.time:
            return hold_out(rows)
        assert isinstance(rows.X, pa.Table)
        order = np.argsort(rows.X[self.time].to_numpy(), kind="stable")
        cut = len(order) * 9 // 10
        return rows.some(order[:cut]), rows.some(order[cut:])


LARGE: dict[str, Table] = {
    "air": Large("air", False, "PM2.5", time="datetime"),
    "flights": Large("flights", False, "delay"),
    **{name: TABLES[name] for name in ("covertype", "sgemm", "credit", "hotel")},
}
SETTINGS = (
    {"learning_rate": 0.1},
    {"learning_rate": 0.1, "num_leaves": 255},
    {"learning_rate": 0.1, "num_leaves": 1023, "min_data_in_leaf": 50},
)


def cases(
    data: str = ",".join(LARGE),
    methods: str = "kernelmill,lightgbm",
    centers: str = "0",
    test: bool = False,
    device: str = "auto",
    threads: int = 16,
) -> Iterator[dict]:
    for name in data.split(","):
        table = LARGE[name]
        train = table.train()
        if test:
            held = table.test(train.labels)
        else:
            train, held = table.split(train) if isinstance(table, Large) else hold_out(train)
        for method in methods.split(","):
            for count in map(int, centers.split(",") if method == "kernelmill" else ["0"]):
                start = time.perf_counter()
                if method == "kernelmill":
                    predict, notes = _kernelmill(train, count, device)
                else:
                    predict, notes = _lightgbm(train, threads)
                seconds = time.perf_counter() - start
                found = predict(held.X)
                yield {
                    "data": name,
                    "rows": len(train),
                    "part": "test" if test else "validation",
                    "method": method,
                    "centers": count,
                    "fit_seconds": seconds,
                    **scores(held, found),
                    **notes,
                }


def _kernelmill(rows: Rows, centers: int, device: str):
    kind = KernelClassifier if rows.classes else KernelRegressor
    model = kind(n_centers=centers or None, device=device, random_state=0).fit(rows.X, rows.y)
    plan = model.plan_
    notes = {
        "solver": plan.solver,
        "recipe": plan.chosen,
        "taken": plan.p,
        "ridge": plan.ridge,
        "iterations": len(model.history_),
        "device": plan.device,
        "phases": {
            name.replace(" ", "_"): round(value, 2) for name, value in model.timings_.items()
        },
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if plan.on_gpu else None,
    }
    return model.predict_proba if rows.classes else model.predict, notes


def _lightgbm(rows: Rows, threads: int):
    train, held = hold_out(rows)
    effort = Means("cpu", threads, 600.0, 3000).start()
    fits = [LightGBM().fit(train, held, settings, effort) for settings in SETTINGS]
    best = min(fits, key=lambda model: loss(held, model.predict(held.X)))
    return best.predict, best.notes
