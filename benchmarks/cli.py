"""`kernelmill train FILE` without options beside the estimators' defaults: the same test metric.

    KERNELMILL_DATA=folder python -m benchmarks cli [--only elevators kin40k]

`first_words_seconds` is how long the command is silent.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.estimators.evaluation import evaluate

from .tasks import data_folder, table


def typed(*words: object) -> dict:
    command = [sys.executable, "-m", "kernelmill", *map(str, words), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def first_words(path: Path, folder: str) -> float:
    """Seconds until the first line is there."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "kernelmill", "train", str(path), "--out", f"{folder}/x"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    run.stderr.readline()
    seconds = time.perf_counter() - start
    run.kill()
    run.wait()
    return seconds


def cases(
    only: tuple[str, ...] = ("elevators", "kin40k", "protein", "keggdirected", "covertype"),
) -> Iterator[dict]:
    for name in only:
        path = data_folder() / f"{name}.npz"
        with tempfile.TemporaryDirectory() as folder:
            silent = first_words(path, folder)
            made = typed("train", path, "--out", f"{folder}/m")
            found = typed("evaluate", f"{folder}/m", path)["metrics"]
        classes = made["task"] == "classification"
        metric = "accuracy" if classes else "rmse"
        X, y, X_test, y_test = table(name)
        start = time.perf_counter()
        model = (KernelClassifier if classes else KernelRegressor)(random_state=0).fit(X, y)
        seconds = time.perf_counter() - start
        yield {
            "data": name,
            "metric": metric,
            "command_line_score": found[metric],
            "python_score": evaluate(model, X_test, y_test).metrics[metric],
            "command_line_seconds": made["seconds"],
            "python_seconds": seconds,
            "command_line_centers": made["centers"],
            "python_centers": model.model_.n_centers,
            "first_words_seconds": silent,
        }
