"""`kernelmill train FILE` without options against the estimators' defaults, on each file of KERNELMILL_DATA: the same rows, test metrics of
both, and when the first words came. Writes results/cli.json.

python benchmarks/bench_cli.py [NAME ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import RESULTS, data_folder, show, table, write
from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.estimators.scores import evaluated

NAMES = ["elevators", "kin40k", "protein", "keggdirected", "covertype"]


def typed(*words: object) -> dict:
    done = subprocess.run([sys.executable, "-m", "kernelmill", *map(str, words), "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def first_words(path: Path, folder: str) -> float:
    """Seconds until the first line is there."""
    start = time.perf_counter()
    run = subprocess.Popen(
        [sys.executable, "-m", "kernelmill", "train", str(path), "--out", f"{folder}/x"], stderr=subprocess.PIPE, text=True
    )
    assert run.stderr is not None
    run.stderr.readline()
    seconds = time.perf_counter() - start
    run.kill()
    run.wait()
    return seconds


def main() -> None:
    names, stored = sys.argv[1:] or NAMES, RESULTS / "cli.json"
    before = json.loads(stored.read_text())["rows"] if stored.exists() else []
    rows = [row for row in before if row["data"] not in names]  # some can be measured again
    for name in names:
        path = data_folder() / f"{name}.npz"
        with tempfile.TemporaryDirectory() as folder:
            words = first_words(path, folder)
            made = typed("train", path, "--out", f"{folder}/m")
            found = typed("evaluate", f"{folder}/m", path)["metrics"]
        X, y, X_test, y_test = table(name)
        kind = KernelClassifier if made["task"] == "classification" else KernelRegressor
        start = time.perf_counter()
        model = kind(random_state=0).fit(X, y)
        seconds = time.perf_counter() - start
        python = evaluated(model, X_test, y_test).metrics
        metric = "accuracy" if made["task"] == "classification" else "rmse"
        row = {
            "data": name, "metric": metric, "command_line": found[metric], "python": python[metric], "seconds": made["seconds"],
            "python_seconds": seconds, "centers": made["centers"], "python_centers": model.model_.n_centers, "first_words": words,
        }  # fmt: skip
        rows.append(row)
        print(row, flush=True)
        write("cli", rows)
    show(rows)


if __name__ == "__main__":
    main()
