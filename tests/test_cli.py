"""The command line, as people type it: what it writes, what it says, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import kernelmill
from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.cli import app
from kernelmill.cli.console import MEMORY, explain
from kernelmill.cli.glance import glance
from kernelmill.cli.inputs import task_of
from kernelmill.cli.train import _merged
from kernelmill.errors import OutOfMemory

g = np.random.default_rng(0)
N = 1200
LONG = [
    "train",
    "d.npz",
    "--n-centers",
    "1500",
    "--solver",
    "eigenpro4",
    "--kernel",
    "laplacian",
    "--bandwidth",
    "3",
]


def shops(n=N):
    """Numbers, texts, codes and holes; a price and whether it was sold."""
    frame = pd.DataFrame({"size": g.normal(50, 10, n), "weight": g.normal(size=n)})
    frame["colour"] = g.choice(["red", "green", "blue"], n)
    frame["shop"] = [f"shop {i}" for i in g.integers(0, 60, n)]
    frame["note"] = g.choice(["fine, new", 'a "used" one', "broken"], n)
    frame["price"] = np.sin(frame["size"] / 5) + (frame["colour"] == "red") + 0.1 * g.normal(size=n)
    frame["sold"] = np.where(frame["price"] + 0.2 * g.normal(size=n) > 0.5, "yes", "no")
    frame.loc[::9, "size"] = np.nan
    frame.loc[::11, "colour"] = None
    return frame


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shops().to_csv("train.csv", index=False)
    shops(300).to_csv("test.csv", index=False)
    return tmp_path


def typed(*words, code=0):
    """What comes out of a command: its JSON where --json is given, else its text."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return json.loads(result.stdout) if "--json" in words and code == 0 else result.output


def test_predicting_a_file_says_how_far_it_is(files, monkeypatch):
    """A line every few seconds where there is no terminal; the rows are read piece by piece."""
    typed("train", "train.csv", "--target", "price", "--out", "m", "--n-centers", "50")
    monkeypatch.setattr("kernelmill.estimators.inputs.PREDICT_ROWS", 100)
    monkeypatch.setattr("kernelmill.callbacks.progress.EVERY", 0.0)
    pq.write_table(pa.Table.from_pandas(shops(300)), "test.parquet", row_group_size=100)
    said = typed("predict", "m", "test.parquet", "--out", "p.csv")
    assert "100 rows, " in said and "33%" in said and "100%" in said
    assert len(pd.read_csv("p.csv")) == 300
    monkeypatch.setattr("kernelmill.callbacks.progress.EVERY", 10.0)
    assert "%" not in typed("predict", "m", "test.parquet", "--out", "p.csv")


def test_the_whole_way(files):
    made = typed(
        "train",
        "train.csv",
        "--target",
        "price",
        "--out",
        "m",
        "--features",
        "size,weight,colour,shop,note",
        "--json",
    )
    assert (
        made["task"] == "regression" and made["rows"] == N and os.listdir(".").count("m.run") == 0
    )
    found = typed("evaluate", "m", "test.csv", "--json")
    assert found["metrics"]["r2"] > 0.8 and found["rows"] == 300
    model = kernelmill.load("m")
    for out in ("p.csv", "p.parquet", "p.npy"):
        typed("predict", "m", "test.csv", "--out", out)
    want = model.predict("test.csv")
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], want, rtol=1e-6)
    np.testing.assert_allclose(pq.read_table("p.parquet")["prediction"], want)
    np.testing.assert_allclose(np.load("p.npy"), want)
    typed("report", "m", "--data", "test.csv", "--out", "m.html")
    page = (files / "m.html").read_text()
    pd.read_csv("test.csv").assign(times=np.arange(300) % 3).to_csv("counted.csv", index=False)
    typed("report", "m", "counted.csv", "--out", "n.html", "--weight", "times")
    assert "Predicting price" in page and "Predicting price" in (files / "n.html").read_text()
    weighted = typed("evaluate", "m", "counted.csv", "--weight", "times", "--json")
    errors = model.predict("test.csv") - pd.read_csv("test.csv")["price"]
    mae = np.average(np.abs(errors), weights=np.arange(300) % 3)
    assert weighted["metrics"]["mae"] == pytest.approx(mae, rel=1e-4)
    assert weighted["intervals"]["mae"][0] < mae < weighted["intervals"]["mae"][1]
    assert "smallest value" in typed("report", "m", "test.csv", "--weight", "weight", code=2)
    assert "give one" in typed("report", "m", "test.csv", "--data", "test.csv", code=2)
    assert (
        "Residuals" in page
        and "Spectrum" in page
        and "Timings" in page
        and "http" not in page
        and "<script" not in page
    )
    shown = typed("info", "m")
    assert "price" in shown and "shop" in shown
    assert typed("info", "m", "--json")["centers"] == model.model_.n_centers
    said = typed("export", "m", "--out", "m.onnx")
    assert "numbers, float64: size" in said and "texts, strings: " in said
    assert (files / "m.onnx").stat().st_size > 1000


def test_no_cell_of_a_safe_csv_file_is_a_formula(files):
    rows = shops(60)[["size"]].assign(code=np.arange(60) - 30.0)
    rows["kind"] = np.where(rows["code"] > 0, "=HYPERLINK(1)", "@SUM(1)")
    rows["=cmd|x"] = ["+1", "-2.5e3", "-2+3", "\tx", "plain", None] * 10
    rows.to_csv("rows.csv", index=False)
    typed("train", "rows.csv", "--target", "kind", "--out", "m", "--n-centers", "50")
    line = ["predict", "m", "rows.csv", "--keep", "=cmd|x,code"]
    typed(*line, "--out", "raw.csv")
    typed(*line, "--out", "safe.csv", "--safe-csv")
    raw, safe = (pd.read_csv(name, dtype=str) for name in ("raw.csv", "safe.csv"))
    assert set(raw["prediction"]) == {"=HYPERLINK(1)", "@SUM(1)"} and "=cmd|x" in raw
    assert set(safe["prediction"]) == {"'=HYPERLINK(1)", "'@SUM(1)"}
    assert safe["'=cmd|x"][:5].tolist() == ["+1", "-2.5e3", "'-2+3", "'\tx", "plain"]
    assert (safe["code"].astype(float) == rows["code"]).all()
    assert "no .csv" in typed(*line, "--out", "p.parquet", "--safe-csv", code=2)


def test_classes_are_told_from_their_labels(files):
    text = typed("train", "train.csv", "--target", "sold", "--out", "m", "--n-centers", "300")
    assert "classification" in text and "'sold' has 2 labels" in text
    found = typed("evaluate", "m", "test.csv", "--json")
    assert (
        found["classes"] == ["no", "yes"]
        and np.sum(found["confusion"]) == 300
        and found["metrics"]["roc_auc"] > 0.8
    )
    assert "Confusion matrix" in typed("evaluate", "m", "test.csv", "--html", "e.html")
    assert "Confusion matrix" in (files / "e.html").read_text()
    typed("predict", "m", "test.csv", "--out", "p.csv", "--keep", "shop,size")
    out = pd.read_csv("p.csv")
    assert list(out) == ["shop", "size", "prediction", "probability of no", "probability of yes"]
    np.testing.assert_allclose(out["probability of no"] + out["probability of yes"], 1, atol=1e-6)
    assert (out["prediction"] == kernelmill.load("m").predict("test.csv")).all()


@pytest.mark.slow
def test_intervals_of_a_gaussian_process(files):
    typed(
        "train",
        "train.csv",
        "--target",
        "price",
        "--out",
        "m",
        "--solver",
        "sgpr",
        "--n-centers",
        "200",
        "--features",
        "size,weight,colour",
    )
    typed("predict", "m", "test.csv", "--out", "p.parquet", "--intervals")
    out, true = pq.read_table("p.parquet").to_pandas(), pd.read_csv("test.csv")["price"]
    assert ((out["lower"] < true) & (true < out["upper"])).mean() > 0.85
    typed("train", "train.csv", "--target", "price", "--out", "other", "--n-centers", "50")
    typed("predict", "other", "test.csv", "--out", "q.csv", "--intervals")  # conformal ones


def test_flags_are_the_estimator_s_arguments(files):
    X, y = g.normal(size=(500, 3)).astype(np.float32), g.normal(size=500)
    np.savez("d.npz", X=X, y=y)
    flags = dict(
        n_centers=100,
        solver="falkon",
        ridge=0.1,
        random_state=7,
        epochs=5,
        precision="float64",
        centers="kmeans++",
    )
    words = [
        word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)
    ]
    typed("train", "d.npz", "--out", "m", "--kernel", "gaussian", "--bandwidth", "2.5", *words)
    python = KernelRegressor(kernel=kernelmill.kernels.Gaussian(2.5), **flags).fit(X, y)
    np.testing.assert_array_equal(kernelmill.load("m").predict(X), python.predict(X))


def test_the_score_is_named_by_a_flag_or_in_toml(files):
    X = g.normal(size=(500, 3)).astype(np.float32)
    np.savez("d.npz", X=X, y=X[:, 0])
    given = ["train", "d.npz", "--kernel", "laplacian", "--bandwidth", "2", "--ridge", "1"]
    given += ["--validation-fraction", "0.2"]
    said = typed(*given, "--out", "m", "--scoring", "mae")
    assert kernelmill.load("m").scoring == "mae" and ", mean absolute error 0." in said
    (files / "c.toml").write_text('scoring = "rmse"\n')
    assert ", RMSE 0." in typed(*given, "--out", "n", "--config", "c.toml")
    assert "expected one of 'absolute_error'" in typed(*given, "--scoring", "auc", code=2)


def test_a_config_file_says_the_same_and_flags_go_before_it(files):
    (files / "c.toml").write_text(
        'target = "price"\nout = "m"\nn_centers = 77\nridge = 0.5\n[kernel]\nname ='
        ' "matern"\nbandwidth = 4.0\nnu = 2.5\n[solver]\nname = "falkon"\n[columns]\nfeatures ='
        ' ["size", "shop", "colour", "note"]\none_hot = 5\n[columns.how]\nnote = "target"\ncolour ='
        ' ["red", "green", "blue"]\n'
    )
    typed("train", "train.csv", "--config", "c.toml", "--ridge", "0.25")
    model = kernelmill.load("m")
    assert (
        model.model_.n_centers == 77
        and model.ridge_ == pytest.approx(0.25)
        and model.plan_.solver == "falkon"
    )
    assert (
        model.model_.kernel.name == "matern"
        and model.encoder_.inputs == ["size", "shop", "colour", "note"]
        and [each.how for each in model.encoder_.categories] == ["target", "ordered", "target"]
    )
    (files / "c.toml").write_text('target = "price"\n[columns.how]\nnote = 3\n')
    assert "how = {'note': 3} was given" in typed(
        "train", "train.csv", "--config", "c.toml", code=2
    )
    (files / "c.toml").write_text("n_centres = 77\n")
    assert "Did you mean 'n_centers'?" in typed("train", "train.csv", "--config", "c.toml", code=2)
    (files / "c.toml").write_text("n_centers = \n")
    assert "is not TOML" in typed("train", "train.csv", "--config", "c.toml", code=2)


WRONG = {
    "a flag that is not there": (["train", "train.csv", "--centres", "5"], 2, "No such option"),
    "a value of the wrong kind": (
        ["train", "train.csv", "--n-centers", "many"],
        2,
        "as an integer",
    ),
    "a target that is not there": (
        ["train", "train.csv", "--target", "prize"],
        2,
        "Did you mean 'price'?",
    ),
    "no target at all": (["train", "train.csv"], 2, "--target NAME"),
    "a file that is not there": (["train", "nothing.csv", "--target", "y"], 3, "nothing.csv"),
    "a file of another kind": (["train", "a.txt", "--target", "y"], 2, "ending '.txt'"),
    "a damaged file": (["train", "bad.parquet", "--target", "y"], 3, "bad.parquet"),
    "a solver that is not there": (
        ["train", "train.csv", "--target", "price", "--solver", "eigenpro5"],
        2,
        "Did you mean",
    ),
    "a column that is not there": (
        ["train", "train.csv", "--target", "price", "--features", "sise"],
        2,
        "Did you mean 'size'?",
    ),
    "a bandwidth that is none": (
        ["train", "train.csv", "--target", "price", "--bandwidth", "wide"],
        2,
        "expected a number or auto",
    ),
    "a task that is none": (
        ["train", "train.csv", "--target", "price", "--task", "guess"],
        2,
        "'guess'",
    ),
    "a regression of texts": (
        ["train", "train.csv", "--target", "sold", "--task", "regression"],
        2,
        "texts",
    ),
    "a model that is not there": (
        ["predict", "nowhere", "test.csv", "--out", "p.csv"],
        4,
        "nowhere",
    ),
    "an ending that is not written": (
        ["predict", "nowhere", "test.csv", "--out", "p.xls"],
        2,
        ".parquet",
    ),
    "an output that is something else": (
        ["train", "train.csv", "--target", "price", "--out", "other"],
        2,
        "not a kernelmill model",
    ),
    "a part that is none": (
        ["train", "train.csv", "--target", "price", "--part", "third"],
        2,
        "'third'",
    ),
    "a plan of nothing": (["plan"], 2, "--rows"),
    "an interval that is none": (
        ["train", "train.csv", "--target", "price", "--checkpoint-every", "often"],
        2,
        "'5m'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_one_sentence_and_an_exit_code(files, what):
    words, code, said = WRONG[what]
    (files / "a.txt").write_text("hello")
    (files / "bad.parquet").write_bytes(b"PAR1 and then nothing")
    (files / "other").mkdir()
    (files / "other" / "mine.txt").write_text("mine")
    text = typed(*words, code=code)
    assert said in " ".join(text.replace("│", " ").split())
    assert (files / "other" / "mine.txt").read_text() == "mine"


MORE_WRONG = {
    "a checkpoint folder of the user's own": (
        ["--out", "m", "--checkpoint", "other"],
        "'mine.txt', which is not part of a run",
    ),
    "the same and resume": (
        ["--out", "m", "--checkpoint", "other", "--resume"],
        "'mine.txt', which is not part of a run",
    ),
    "a checkpoint folder around the model": (
        ["--out", "w/m", "--checkpoint", "w"],
        "would hold the model too",
    ),
    "a checkpoint folder that is a file": (
        ["--out", "m", "--checkpoint", "train.csv"],
        "is not a folder",
    ),
    "an output without a name": (["--out", "."], "expected the name of a folder"),
    "an output that is a device": (["--out", "/dev/null"], "not a kernelmill model"),
    "a weight of texts": (["--out", "m", "--weight", "colour"], "weight"),
    "a random state that is none": (
        ["--out", "m", "--random-state", "99999999999"],
        "random-state",
    ),
}


@pytest.mark.parametrize("what", MORE_WRONG)
def test_nothing_of_the_user_is_lost(files, what):
    words, said = MORE_WRONG[what]
    (files / "other").mkdir()
    (files / "other" / "mine.txt").write_text("mine")
    text = typed(
        "train",
        "train.csv",
        "--target",
        "price",
        "--n-centers",
        "50",
        *words,
        code=3 if "weight" in what else 2,
    )
    assert said in " ".join(text.replace("│", " ").split())
    assert (files / "other" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "line",
    [
        'n_centers = "many"',
        "n_centers = [1]",
        'columns = "a"',
        "out = 5",
        "target = 5",
        "features = 5",
        "weight = 5",
        'resume = "yes"',
        "bandwidth = true",
        "random_state = -1",
        "epochs = 1.5",
        '[kernel]\nname = "gaussian"\nwidth = 3',
        "[kernel]\nbandwidth = 3",
        "[columns]\nfeatures = 5",
        "[columns]\ncolour = 5",
        "[columns]\nstandardise = 3",
        "features = [1]",
        "ridge = 2024-01-01",
        '[kernel]\nname = "matern"\nnu = "a"',
        '[solver]\nname = "falkon"\nkeep = "yes"',
        "[solver]\nq = 3",
    ],
)
def test_settings_of_the_wrong_kind(files, line):
    (files / "c.toml").write_text(line + "\n")
    target = [] if line.startswith("target") else ["--target", "price"]
    assert "error of kernelmill" not in typed(
        "train", "train.csv", *target, "--config", "c.toml", code=2
    )


@pytest.mark.slow
def test_what_lies_beside_a_model_stays(files):
    words = [
        "train",
        "train.csv",
        "--target",
        "price",
        "--out",
        "m",
        "--n-centers",
        "50",
        "--features",
        "size,weight",
    ]
    typed(*words)
    typed("predict", "m", "test.csv", "--out", "m/p.csv")
    typed(*words)
    assert (files / "m" / "p.csv").exists()
    before = (files / "test.csv").read_bytes()
    assert "is the data itself" in typed("predict", "m", "test.csv", "--out", "test.csv", code=2)
    assert (files / "test.csv").read_bytes() == before
    assert "is there already" in typed("demo", "--out", "m", code=2)
    pd.read_csv("test.csv").assign(prediction=1).to_csv("again.csv", index=False)
    assert "name of a prediction" in typed(
        "predict", "m", "again.csv", "--out", "q.csv", "--keep", "prediction", code=2
    )
    (files / "secret.csv").touch(0o600)
    os.symlink("secret.csv", "link.csv")
    typed("predict", "m", "test.csv", "--out", "link.csv")
    assert (files / "link.csv").is_symlink() and (
        files / "secret.csv"
    ).stat().st_mode & 0o777 == 0o600
    typed("report", "m")
    assert (files / "m.html").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and seconds of compiling")
def test_there_is_nothing_to_warm_up_without_a_gpu():
    assert "no GPU here" in typed("warmup", code=2)


@pytest.mark.slow
def test_texts_stay_texts_where_they_look_like_numbers(files):
    zips = g.choice(["01234", "04567", "00999", "A1234"], N)
    label = np.where(zips == "01234", "00", np.where(zips == "04567", "01", "x"))
    pd.DataFrame({"zip": zips, "a": g.normal(size=N), "kind": label}).to_csv("z.csv", index=False)
    numeric = zips != "A1234"
    pd.DataFrame({"zip": zips, "a": g.normal(size=N), "kind": label})[
        numeric & (label != "x")
    ].to_csv("n.csv", index=False)
    typed("train", "z.csv", "--target", "kind", "--out", "m", "--n-centers", "200")
    assert typed("evaluate", "m", "n.csv", "--json")["metrics"]["accuracy"] > 0.98
    assert kernelmill.load("m").score("n.csv", "kind") > 0.98
    typed("predict", "m", "n.csv", "--out", "p.npy")
    assert set(np.load("p.npy")) == {"00", "01"}
    typed("predict", "m", "n.csv", "--out", "p.npy", "--probabilities")
    assert np.load("p.npy").shape == (int((numeric & (label != "x")).sum()), 3)


def test_labels_that_nobody_knows_and_models_of_one_class(files):
    X = g.normal(size=(600, 2))
    y = g.integers(0, 12, 600)
    X[:, 0] += 5 * y
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv("d.csv", index=False)
    typed("train", "d.csv", "--out", "m")
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": ["other", *map(str, y[1:])]}).to_csv(
        "e.csv", index=False
    )
    found = typed("evaluate", "m", "e.csv", "--json")["metrics"]
    assert found["accuracy"] > 0.9 and found["rows_of_unknown_classes"] == 1
    pd.DataFrame({"a": X[:, 0], "y": "same"}).to_csv("one.csv", index=False)
    typed("train", "one.csv", "--out", "one")
    assert typed("evaluate", "one", "one.csv", "--json")["metrics"]["accuracy"] == 1
    typed("predict", "one", "one.csv", "--out", "p.csv", "--intervals")


@pytest.mark.slow
def test_outputs_that_cannot_be_written(files):
    typed(
        "train",
        "train.csv",
        "--target",
        "price",
        "--out",
        "m",
        "--n-centers",
        "50",
        "--features",
        "size,weight",
    )
    lines = (
        "export m --out /proc/x.onnx",
        "report m --out /proc/x.html",
        "predict m test.csv --out /proc/x.csv",
    )
    for line in (*lines, "train train.csv --target price --out /proc/m"):
        typed(*line.split(), code=6)
    script = "from kernelmill.cli import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, "info", "m", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 6 and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_that_was_stopped_after_its_last_epoch_is_saved(files, monkeypatch):
    X = g.normal(size=(3000, 3)).astype(np.float32)
    np.savez("d.npz", X=X, y=np.sin(X[:, 0]))
    script = (
        "import sys; from kernelmill.callbacks.listeners import Listeners; call ="
        " Listeners.__call__\ndef late(self, event):\n    out = call(self, event)\n    if"
        " event.kind == 'epoch' and event.epoch == 3: raise KeyboardInterrupt\n    return"
        " out\nListeners.__call__ = late\nfrom kernelmill.cli import main; main()"
    )
    words = [*LONG, "--epochs", "3", "--out", "m", "--n-centers", "200", "--checkpoint-every", "0s"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    typed(*words, "--resume")
    assert kernelmill.load("m").model_.n_centers == 200


def test_errors_as_json_and_with_a_traceback(files):
    result = CliRunner().invoke(app, ["train", "train.csv", "--target", "prize", "--json"])
    found = json.loads(result.stdout)
    assert found["exit_code"] == 2 and "'price'" in found["error"]
    assert (
        "Traceback"
        in CliRunner().invoke(app, ["train", "train.csv", "--target", "prize", "--debug"]).output
    )


def test_a_model_that_is_damaged(files):
    typed(
        "train",
        "train.csv",
        "--target",
        "price",
        "--out",
        "m",
        "--n-centers",
        "50",
        "--features",
        "size,weight",
    )
    shops(10).drop(columns="size").to_csv("short.csv", index=False)
    assert "'size'" in typed("predict", "m", "short.csv", "--out", "p.csv", code=2)
    assert "the target" in typed("evaluate", "m", "short.csv", "--target", "prise", code=2)
    path = next((files / "m").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-40])
    typed("info", "m", code=4)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk(files):
    typed(
        "train",
        "train.csv",
        "--target",
        "price",
        "--out",
        "m",
        "--n-centers",
        "50",
        "--features",
        "size,weight",
    )
    os.symlink("/dev/full", "full.csv")
    assert "No space left" in typed("predict", "m", "test.csv", "--out", "full.csv", code=6)
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); from"
        " kernelmill.cli import main; main()"
    )
    words = ["train", "train.csv", "--target", "price", "--out", "n", "--n-centers", "900"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True)
    assert (
        done.returncode == 6
        and "n' cannot be written" in done.stderr
        and "Traceback" not in done.stderr
    )
    assert ("--resume" in done.stderr) == bool(list(files.glob("n.run/checkpoint-*"))) and not (
        files / "n"
    ).exists()


@pytest.mark.slow
def test_killed_and_resumed(files):
    """SIGKILL in the middle, then the same command with --resume: the model is the one of an
    undisturbed run.
    """
    X = g.normal(size=(6000, 10)).astype(np.float32)
    np.savez("d.npz", X=X, y=np.sin(X[:, 0]))
    words = [*LONG, "--epochs", "12"]
    words += ["--checkpoint-every", "0s", "--memory-budget", "2GB"]
    # With more, MKL's last digits differ from run to run.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [sys.executable, "-m", "kernelmill", *words, "--out", "m"], stderr=subprocess.PIPE, env=env
    )
    while not list(files.glob("m.run/checkpoint-*")):
        assert run.poll() is None
        time.sleep(0.02)
    run.kill()
    run.communicate()
    assert not (files / "m").exists()
    assert "--resume" in typed(*words, "--out", "m", code=2)
    for more in (["--out", "m", "--resume"], ["--out", "whole"]):
        subprocess.run(
            [sys.executable, "-m", "kernelmill", *words, *more],
            check=True,
            capture_output=True,
            env=env,
        )
    np.testing.assert_array_equal(
        kernelmill.load("m").predict(X[:500]), kernelmill.load("whole").predict(X[:500])
    )
    assert not list(files.glob("*.run"))


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signals_end_a_run_that_can_go_on(files, number, code):
    X = g.normal(size=(20_000, 10)).astype(np.float32)
    np.savez("d.npz", X=X, y=np.sin(X[:, 0]))
    words = [*LONG, "--epochs", "300"]
    run = subprocess.Popen(
        [sys.executable, "-m", "kernelmill", *words, "--out", "m", "--checkpoint-every", "0s"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list(files.glob("m.run/checkpoint-*")):
        assert run.poll() is None
        time.sleep(0.02)
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert run.returncode == code and "Traceback" not in said
    if code == 130:
        assert "--resume" in said and "of 300 epochs" in said
    assert list(files.glob("m.run/checkpoint-*")) and not (files / "m").exists()


def test_plans_and_comparisons(files):
    assert "falkon" in typed("plan", "--rows", "100000", "--features", "20", "--n-centers", "2000")
    found = typed("plan", "train.csv", "--target", "sold", "--json")
    assert found["rows"] == N and found["features"] == 61 and found["chosen"]
    found = typed(
        "compare", "train.csv", "--target", "price", "--rows", "600", "--n-centers", "100", "--json"
    )
    assert {"falkon", "direct", "eigenpro4"} <= {
        row["solver"] for row in found["solvers"] if "r2" in row
    }
    assert "pegasos" not in {row["solver"] for row in found["solvers"]}


@pytest.mark.slow
def test_files_with_a_training_and_a_test_part(files):
    X, y = g.normal(size=(900, 3)).astype(np.float32), g.integers(0, 3, 900)
    X[:, 0] += 3 * y
    np.savez("d.npz", X_train=X[:600], y_train=y[:600], X_test=X[600:], y_test=y[600:])
    typed("train", "d.npz")
    assert kernelmill.load("d-model").rows_seen_ <= 600
    found = typed("evaluate", "d-model", "d.npz", "--json")
    python = KernelClassifier(random_state=0).fit(X[:600], y[:600]).score(X[600:], y[600:])
    assert found["rows"] == 300 and found["metrics"]["accuracy"] == pytest.approx(python)
    assert typed("evaluate", "d-model", "d.npz", "--part", "train", "--json")["rows"] == 600


def test_the_first_words_come_before_torch(files):
    code = (
        "import sys, pathlib, kernelmill.cli.glance as it; it.glance(pathlib.Path('train.csv')); "
    )
    subprocess.run(
        [
            sys.executable,
            "-c",
            code + "assert not {'torch', 'sklearn', 'pydantic', 'jinja2'} & {*sys.modules}",
        ],
        check=True,
    )


def test_a_command_is_found_by_the_name_of_its_file():
    homes = {
        command.callback.__name__: command.callback.__module__
        for command in app.registered_commands
    }
    assert homes == {name: f"kernelmill.cli.{name}" for name in homes} and len(homes) == 11


def test_a_glance_at_each_kind_of_file(files):
    X = np.zeros((50, 4))
    np.save("x.npy", X)
    np.savez("x.npz", X=X, y=X[:, 0])
    pd.DataFrame(X).rename(columns=str).to_parquet("x.parquet")
    for name, rows, columns in (
        ("x.npy", 50, 4),
        ("x.npz", 50, 5),
        ("x.parquet", 50, 4),
        ("train.csv", N, 7),
    ):
        found = glance(files / name)
        assert (found.rows, found.columns) == (rows, columns), name
    assert "nothing" in str(glance(files / "nothing.csv"))


def test_tasks_are_told_from_targets():
    assert task_of(np.array(["a", "b"]), "y", None)[0] == "classification"
    assert task_of(np.arange(1000) % 7, "y", None)[0] == "classification"
    assert task_of(np.arange(1000) % 80, "y", None)[0] == "classification"
    assert task_of(np.arange(1000), "y", None)[0] == "regression"
    assert task_of(np.linspace(0, 1, 9), "y", None)[0] == "regression"
    assert task_of(np.array([0.0, 1.0] * 50), "y", None)[0] == "classification"
    assert task_of(np.array([0.0, 1.0] * 50), "y", "regression")[0] == "regression"
    assert task_of(np.zeros((5, 2)), "y", None)[0] == "regression"
    with pytest.raises(kernelmill.DataFileError, match="too many for classes"):
        task_of(np.array([f"name {i}" for i in range(500)], dtype=object), "y", None)


def test_predictions_of_a_file_are_decided_as_python_decides_them(files):
    """Also where a score chose thresholds."""
    X = g.normal(size=(900, 2))
    rare = (X[:, 0] + 0.7 * g.normal(size=900)) > 1.6
    rows = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.where(rare, "yes", "no")})
    rows.to_csv("rare.csv", index=False)
    words = ("--scoring", "balanced_accuracy", "--out", "r", "--kernel", "laplacian", "--bandwidth")
    typed("train", "rare.csv", *words, "2")
    typed("predict", "r", "rare.csv", "--out", "p.csv")
    model, found = kernelmill.load("r"), pd.read_csv("p.csv")
    assert np.abs(model.decision_bias_).max() > 0
    assert found["prediction"].tolist() == model.predict(rows).tolist()
    likeliest = found["probability of yes"] > 0.5
    assert (found["prediction"] == "yes").sum() > likeliest.sum()


def test_memory_that_runs_out_has_its_exit_code():
    said = "memory ran out; use fewer centers."
    assert explain(OutOfMemory(said)) == (MEMORY, said)
    assert explain(MemoryError())[0] == MEMORY


def test_rows_that_a_time_limit_leaves_out_were_not_merged():
    model = SimpleNamespace(held_out_=None, rows_seen_=2000)
    assert _merged(model, 100_000) == 0 and _merged(model, 2500) == 500
