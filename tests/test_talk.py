"""A run that talks: bars, lines where there is no terminal, plans of files, what Ctrl-C kept."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from kernelmill import KernelRegressor, load
from kernelmill.callbacks import progress
from kernelmill.callbacks.progress import ProgressBar
from kernelmill.cli import app
from kernelmill.kernels import Laplacian
from kernelmill.solvers import Event
from kernelmill.tuning.sample import Effort

g = np.random.default_rng(0)


@pytest.fixture
def shown(monkeypatch):
    """What a bar writes, and a clock that runs as fast as wanted."""
    out = io.StringIO()
    monkeypatch.setattr(progress, "aside", lambda: out)
    return out


def test_a_bar_ends_at_the_end_and_counts_its_own_rows(shown, monkeypatch):
    monkeypatch.setattr(
        progress, "Console", lambda file: Console(file=file, force_terminal=True, width=120)
    )
    bar = ProgressBar()
    for event in (
        Event("start", 3, 9_000, 20_000, 0.0),  # a run that was resumed
        Event("projection", 3, 10_000, 20_000, 2.0),
        Event("end", 4, 12_000, 20_000, 4.0),  # by early stopping
    ):
        bar(event)
    said = shown.getvalue()
    assert "100%" in said and "750 rows/s" in said and "3,000 rows/s" not in said


def test_a_bar_that_was_interrupted_does_not_claim_the_end(shown):
    bar = ProgressBar()
    for kind in ("start", "interrupted", "end"):
        bar(Event(kind, 0, 5_000, 20_000, 1.0))
    assert "100%" not in shown.getvalue()


def test_lines_come_where_there_is_no_terminal(shown, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = ProgressBar()
    bar(Event("start", 0, 0, 10_000, 0.0))
    for i in range(1, 31):
        now[0] = float(i)
        bar(Event("projection", 0, 100 * i, 10_000, float(i), loss=0.5))
    lines = [line for line in shown.getvalue().splitlines() if "of the rows" in line]
    assert lines == [f"epoch 1, {i}% of the rows, 100 a second, loss 0.5" for i in (10, 20, 30)]


def test_a_plan_of_a_file_counts_what_its_columns_become(tmp_path):
    rows = pd.DataFrame(
        {
            "a": g.normal(size=400),
            "city": g.choice(["u", "v", "w"], 400),
            "when": pd.date_range("2020", periods=400),
            "y": g.normal(size=400),
        }
    )
    rows.to_csv(tmp_path / "d.csv", index=False)
    result = CliRunner().invoke(app, ["plan", str(tmp_path / "d.csv"), "--json"])
    found = json.loads(result.stdout)
    model = KernelRegressor(kernel=Laplacian(3.0), ridge=0.1).fit(tmp_path / "d.csv", "y")
    assert found["features"] == model.encoder_.d == 12
    assert 0 < found["choosing_seconds"] < 60
    said = CliRunner().invoke(app, ["plan", str(tmp_path / "d.csv")]).stdout
    assert "a kernel is chosen, in about" in said


def test_choosing_takes_longer_with_more_rows_and_no_longer_with_many():
    import torch

    effort = Effort.on(torch.device("cpu"), 8 << 30)
    seconds = [effort.seconds(n, n, 5e10) for n in (200, 1_000, 5_000, 20_000, 10**6)]
    assert seconds == sorted(seconds) and seconds[-1] == seconds[-2]
    assert 1 < seconds[1] < 5 < seconds[2] < seconds[3] < 30


def test_a_plan_is_a_short_table():
    model = KernelRegressor(random_state=0, device="cpu").fit(
        g.normal(size=(60, 2)), g.normal(size=60)
    )
    lines = str(model.plan_).splitlines()
    assert lines[0].split() == ["solver", "direct"] and len(lines) < 15
    assert any(re.fullmatch(r"centers +60, every row", line) for line in lines)
    assert "None" not in str(model.plan_)


def test_what_ctrl_c_kept_is_a_model(tmp_path):
    """Of the real command: the model as it was is usable at once, and goes when the run is done."""
    X = g.normal(size=(20_000, 4))
    pd.DataFrame(X, columns=list("abcd")).assign(y=np.sin(X[:, 0])).to_csv(
        tmp_path / "d.csv", index=False
    )
    command = [
        sys.executable,
        "-m",
        "kernelmill",
        "train",
        "d.csv",
        "--out",
        "m",
        "--device",
        "cpu",
    ]
    command += ["--kernel", "laplacian", "--bandwidth", "3", "--n-centers", "2000"]
    command += ["--solver", "eigenpro4", "--epochs"]
    run = subprocess.Popen(
        [*command, "400"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    time.sleep(1)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "m.run").glob("*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(3)
    run.send_signal(signal.SIGINT)
    said = " ".join(run.communicate(timeout=120)[1].split())
    assert run.returncode == 130 and "m.stopped" in said, said[-500:]
    model = load(tmp_path / "m.stopped")
    assert np.isfinite(model.predict(tmp_path / "d.csv")).all()
    assert not (tmp_path / "m").exists()
