"""A run that talks: bars, lines where there is no terminal, plans of files, what Ctrl-C kept."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from kernelmill import KernelRegressor, load
from kernelmill.callbacks import progress
from kernelmill.callbacks.progress import ProgressBar
from kernelmill.cli import app
from kernelmill.cli.evaluate import _score
from kernelmill.cli.glance import glance
from kernelmill.errors import InputError, OutputError, warn
from kernelmill.kernels import Laplacian
from kernelmill.learning.choose import Trace
from kernelmill.solvers import Event
from kernelmill.tuning.sample import Effort
from kernelmill.words import Terminal

g = np.random.default_rng(0)


@pytest.fixture
def shown(monkeypatch):
    """What a bar writes, and a clock that runs as fast as wanted."""
    out = io.StringIO()
    monkeypatch.setattr(progress, "aside", lambda: out)
    return out


def test_a_bar_ends_at_the_end_and_counts_its_own_rows(shown, monkeypatch):
    monkeypatch.setattr(
        progress, "Terminal", lambda file: Terminal(file=file, force_terminal=True, width=120)
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


def test_what_is_tried_is_shown_and_not_obeyed(shown, monkeypatch):
    monkeypatch.setattr(
        progress, "Terminal", lambda file: Terminal(file=file, force_terminal=True, width=120)
    )
    line = progress.ChoosingLine()
    line("by \x1b]0;owned\x07 [bold]", 0.5, 0.4, 3.0)
    said = shown.getvalue()
    assert "by \\x1b]0;owned" in said and " [bold]: 0.5" in said and "\x1b]" not in said
    assert said.endswith("\r")  # the next is written over it


def test_errors_and_warnings_write_control_characters_out():
    with pytest.warns(UserWarning) as caught:
        warn("a label of \x1b[31m and \x9b")
    assert str(caught[0].message) == "a label of \\x1b[31m and \\x9b"
    for kind in (InputError, OutputError):
        assert (
            str(kind("two\nlines,\tand \x1b]0;owned\x07")) == "two\nlines,\tand \\x1b]0;owned\\x07"
        )
    assert str(OutputError(5, "a file \x07")) == "a file \\x07"


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
    command += ["--solver", "eigenpro4", "--checkpoint-every", "1s", "--epochs"]
    run = subprocess.Popen(
        [*command, "400"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    time.sleep(1)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "m.run").glob("checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.2)  # before the first one, under load, there is only set-up
    run.send_signal(signal.SIGINT)
    said = " ".join(run.communicate(timeout=120)[1].split())
    assert run.returncode == 130 and "m.stopped" in said, said[-500:]
    model = load(tmp_path / "m.stopped")
    assert np.isfinite(model.predict(tmp_path / "d.csv")).all()
    assert not (tmp_path / "m").exists()


def test_a_warning_points_past_what_stands_between_the_library_and_the_user():
    @contextmanager
    def ours():
        warn("odd")
        yield

    library = FunctionType(ours.__wrapped__.__code__, {"__name__": "contextlib", "warn": warn})
    with pytest.warns(UserWarning, match="odd") as caught, contextmanager(library)():
        pass
    assert caught[0].filename == __file__


def test_the_best_of_what_is_tried_is_that_of_the_present_round():
    said = []
    task = SimpleNamespace(
        request=SimpleNamespace(time_limit=None),
        choosing=lambda label, score, best, left: said.append((label, best)),
    )
    trace = Trace(task)
    for label, score in (("a", 0.2), ("b", 0.1), ("a", 0.3), ("c", 0.4)):
        trace.report(label, score)
    trace.begin_round()
    trace.report("c, of all rows", 0.5)
    assert said == [("a", 0.2), ("b", 0.1), ("a", 0.3), ("c", 0.3), ("c, of all rows", 0.5)]
    assert [one[1] for one in trace.tried] == [0.2, 0.1, 0.3, 0.4, 0.5]


def test_a_solver_without_a_loss_shows_none(shown):
    bar = ProgressBar()
    for kind in ("start", "end"):
        bar(Event(kind, 0, 100, 100, 1.0))
    assert "loss" not in shown.getvalue()


def test_a_file_that_is_not_there_has_no_size(tmp_path):
    assert str(glance(tmp_path / "no.csv")) == str(tmp_path / "no.csv")


@pytest.mark.parametrize("stored", [False, True])
def test_ctrl_c_before_there_is_a_model_says_what_to_do(tmp_path, monkeypatch, stored):
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"x": range(50), "y": np.arange(50) / 3}).to_csv("d.csv", index=False)

    def interrupt(*_):
        (tmp_path / "m.run").mkdir()
        if stored:
            (tmp_path / "m.run" / "choices-1").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(KernelRegressor, "fit", interrupt)
    result = CliRunner().invoke(app, ["train", "d.csv", "--out", "m"])
    assert result.exit_code == 130
    assert ("same command and --resume" in result.stderr) == stored == (tmp_path / "m.run").exists()


def test_rows_that_are_alike_are_told_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = g.integers(0, 20, 60)
    pd.DataFrame({"x": x, "y": x / 3}).to_csv("d.csv", index=False)
    flags = ["--out", "m", "--kernel", "laplacian", "--bandwidth", "3", "--ridge", "0.1"]
    result = CliRunner().invoke(app, ["train", "d.csv", *flags])
    merged = 60 - len(set(x))
    assert f"{merged} rows have the features of other rows, and were merged" in result.stderr


def test_a_target_that_is_no_column_is_told_with_the_nearest_one(tmp_path):
    pd.DataFrame({"x": range(50), "price": range(50)}).to_csv(tmp_path / "d.csv", index=False)
    result = CliRunner().invoke(app, ["train", str(tmp_path / "d.csv"), "--target", "Price"])
    assert "--target 'Price' is not a column of" in result.stderr
    assert "which has 'x', 'price'. Did you mean 'price'?" in result.stderr


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-1e-9, "0.0000"), (0.98164, "0.9816"), (543.142, "543.1"), (3999.7515, "3,999.8")],
)
def test_scores_have_as_many_digits_as_mean_something(value, shown):
    assert _score(value) == shown
