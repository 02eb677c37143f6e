"""Seconds of a fit without an argument on a CPU, by rows; and on cores that another process wants.

    KERNELMILL_DATA=folder python -m benchmarks first [--rows 1000 5000] [--tables credit]

Each fit is one of a fresh process that has fitted a few rows before, median of three for 1,000
rows. The score is that of rows held out of training: log loss of classes, RMSE over the deviation
of numbers. `busy`: beside a process that factors matrices on as many threads as there are cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

FIT = """
import json, sys, time
import numpy as np
from kernelmill import KernelClassifier, KernelRegressor
from benchmarks.tables.data import TABLES
from benchmarks.tables.scores import loss
name, n = sys.argv[1], int(sys.argv[2])
rows = TABLES[name].train()
order = np.random.default_rng(100).permutation(len(rows))
train, held = rows.some(order[:n]), rows.some(order[max(n, len(order) - 6000):])
kind = KernelClassifier if rows.classes else KernelRegressor
few = np.random.default_rng(0).normal(size=(100, 3))
KernelRegressor(device="cpu").fit(few, few[:, 0])
start = time.perf_counter()
model = kind(device="cpu", random_state=0).fit(train.X, train.y)
took = time.perf_counter() - start
said = model.predict_proba(held.X) if rows.classes else model.predict(held.X)
print(json.dumps({"seconds": took, "score": float(loss(held, said)), "solver": model.plan_.solver}))
"""
LOAD = """
import torch
A = torch.eye(1500, dtype=torch.float64) * 1500 + torch.rand(1500, 1500, dtype=torch.float64)
while True:
    torch.linalg.cholesky(A @ A.T)
"""


def cases(
    tables: tuple[str, ...] = ("diamonds", "credit"),
    rows: tuple[int, ...] = (1000, 5000, 20_000),
    busy_rows: tuple[int, ...] = (1000,),
) -> Iterator[dict]:
    for busy, sizes in ((False, rows), (True, busy_rows)):
        for name in tables:
            for n in sizes:
                with busy_cores() if busy else idle_cores():
                    fits = [fit(name, n) for _ in range(3 if n <= 1000 else 1)]
                took = median(each["seconds"] for each in fits)
                yield {"table": name, "rows": n, "busy": busy, **fits[-1], "seconds": took}


def fit(name: str, n: int) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", FIT, name, str(n)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def busy_cores() -> Iterator[None]:
    other = subprocess.Popen([sys.executable, "-c", LOAD])
    time.sleep(3)  # torch is imported
    try:
        yield
    finally:
        other.kill()
        other.wait()


@contextmanager
def idle_cores() -> Iterator[None]:
    yield
