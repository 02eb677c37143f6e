"""What is stored is whole, whatever happens meanwhile: kills, full disks, several savers; and what
others wrote is never trusted.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import typer
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import kernelmill
from kernelmill import InputError, KernelClassifier, KernelRegressor, ModelFileError, kernels, load
from kernelmill.cli import app, console
from kernelmill.errors import KernelmillError
from kernelmill.storage import atomic, codec, model_folder

g = np.random.default_rng(0)
X = g.normal(size=(40, 3))
OLD = KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=0.1).fit(X, X[:, 0])
NEW = KernelRegressor(kernel=kernels.Gaussian(2.0), ridge=0.1).fit(X, X[:, 1])
FILES = ["model.json", "weights.safetensors"]


def which(folder):
    """Which of the two models a folder holds."""
    found = load(folder).predict(X)
    return next(
        name
        for name, model in (("old", OLD), ("new", NEW))
        if np.array_equal(found, model.predict(X))
    )


def names(folder):
    return sorted(os.listdir(folder))


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


# ---- saving


def save_and_die(folder, line, only):
    """Save in a process that ends, as by kill -9, when so many lines of these functions were run;
    whether it came to its end before.
    """
    pid = os.fork()
    if pid == 0:
        seen = 0

        def trace(frame, event, _):
            nonlocal seen
            if os.path.dirname(frame.f_code.co_filename) != os.path.dirname(
                model_folder.__file__
            ) or (only and frame.f_code.co_name not in only):
                return None
            seen += event == "line"
            if seen == line:
                os._exit(9)
            return trace

        sys.settrace(trace)
        NEW.save(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("only", [("commit", "_rename"), pytest.param((), marks=pytest.mark.slow)])
@pytest.mark.parametrize("before", ["old", None])
def test_a_save_that_is_killed_anywhere_leaves_the_old_or_the_new_model_and_the_next_one_cleans_up(
    tmp_path, monkeypatch, before, only
):
    # A kill, unlike a cut of power, loses nothing that was written.
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    seen, ended, line, folder = [], False, 1, tmp_path / "m"
    OLD.save(tmp_path / "begin")
    while not ended:
        if before:
            shutil.copytree(tmp_path / "begin", folder)
        ended, line = save_and_die(folder, line, only), line + 1
        seen.append(which(folder) if (folder / "model.json").exists() else None)
        OLD.save(folder)
        assert names(folder) == FILES and which(folder) == "old"
        assert names(tmp_path) == ["begin", "m"]
        shutil.rmtree(folder)
    turn = seen.index("new")
    assert turn > 2 and seen == [before] * turn + ["new"] * (len(seen) - turn)


def test_two_savers_and_a_reader_meet_whole_models_and_leave_nothing_behind(tmp_path):
    OLD.save(tmp_path / "m")
    failed, loads, end = [], [], time.monotonic() + 1.2

    def again(work):
        while time.monotonic() < end:
            try:
                work()
            except Exception as error:
                failed.append(error)

    work = [
        lambda: OLD.save(tmp_path / "m"),
        lambda: NEW.save(tmp_path / "m"),
        lambda: loads.append(which(tmp_path / "m")),
    ]
    threads = [threading.Thread(target=again, args=(w,)) for w in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and set(loads) == {"old", "new"}
    assert names(tmp_path) == ["m"] and names(tmp_path / "m") == FILES


def test_a_live_saver_is_waited_for_and_loses_nothing(tmp_path):
    saver = model_folder.Saver(tmp_path / "m")
    place = saver.begin()
    other = threading.Thread(target=NEW.save, args=(tmp_path / "m",))
    other.start()
    other.join(0.2)
    assert other.is_alive() and place.exists()
    saver.close()  # nothing committed
    other.join(10)
    assert which(tmp_path / "m") == "new" and names(tmp_path / "m") == FILES


def test_a_folder_that_is_gone_for_a_moment_is_waited_for(tmp_path):
    OLD.save(tmp_path / "m")
    os.rename(tmp_path / "m", tmp_path / "away")
    back = threading.Timer(0.03, os.rename, (tmp_path / "away", tmp_path / "m"))
    back.start()
    assert which(tmp_path / "m") == "old"
    back.join()
    with pytest.raises(ModelFileError, match=r"no model\.json"):
        load(tmp_path / "nowhere")


def test_a_model_that_changes_between_the_reads_is_read_again(tmp_path, monkeypatch):
    OLD.save(tmp_path / "m")
    read = model_folder._weights

    def late(*args):
        monkeypatch.setattr(model_folder, "_weights", read)
        NEW.save(tmp_path / "m")  # after model.json was read, and before its weights are
        return read(*args)

    monkeypatch.setattr(model_folder, "_weights", late)
    assert which(tmp_path / "m") == "new"


def test_modes_are_kept_and_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        OLD.save(tmp_path / "m")
        assert (
            mode(tmp_path / "m"),
            mode(tmp_path / "m" / FILES[0]),
            mode(tmp_path / "m" / FILES[1]),
        ) == (0o750, 0o640, 0o640)
        os.chmod(tmp_path / "m", 0o700)
        os.chmod(tmp_path / "m" / FILES[1], 0o400)
        NEW.save(tmp_path / "m")
        assert (
            mode(tmp_path / "m"),
            mode(tmp_path / "m" / FILES[0]),
            mode(tmp_path / "m" / FILES[1]),
        ) == (0o700, 0o640, 0o400)
    finally:
        os.umask(before)


def test_a_mount_point_can_be_saved_to(tmp_path):
    (tmp_path / "volume").mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", tmp_path / "volume"], capture_output=True
    ).returncode:
        pytest.skip("no right to mount")
    try:
        (tmp_path / "volume" / "lost+found").mkdir()
        OLD.save(tmp_path / "volume")
        NEW.save(tmp_path / "volume")
        assert which(tmp_path / "volume") == "new" and names(tmp_path / "volume") == [
            "lost+found",
            *FILES,
        ]
    finally:
        subprocess.run(["umount", tmp_path / "volume"], check=True)


def test_long_names_are_saved_to_or_refused_in_one_sentence_and_what_a_user_put_there_stays(
    tmp_path,
):
    folder = tmp_path / ("n" * 250)
    OLD.save(folder)
    (folder / "notes.txt").write_text("mine")
    NEW.save(folder)
    assert which(folder) == "new" and names(folder) == [FILES[0], "notes.txt", FILES[1]]
    with pytest.raises(
        KernelmillError,
        match=r"^'.*' cannot be written \(File name too long\); choose another place\.$",
    ):
        OLD.save(tmp_path / ("n" * 300))
    with atomic.aside(tmp_path / ("p" * 246 + ".csv")) as beside:
        beside.write_text("x")
    assert names(tmp_path) == sorted([folder.name, "p" * 246 + ".csv"])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("call", range(4))
def test_a_full_disk_is_one_sentence_and_leaves_what_was_there(tmp_path, monkeypatch, call, first):
    if not first:
        OLD.save(tmp_path / "m")
    calls, sync = [], os.fsync

    def full(handle):
        calls.append(handle)
        if len(calls) == call + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"^'.*m' cannot be written \(No space left on device\); free some space"
    ) as caught:
        NEW.save(tmp_path / "m")
    assert caught.value.errno == errno.ENOSPC and isinstance(caught.value, KernelmillError)
    if call < 3:  # not committed yet
        assert names(tmp_path) == ([] if first else ["m"])
        assert first or (which(tmp_path / "m") == "old" and names(tmp_path / "m") == FILES)
    else:
        assert which(tmp_path / "m") == "new"


def test_a_folder_that_is_not_there_is_still_the_error_that_programs_know(tmp_path):
    with (
        pytest.raises(
            FileNotFoundError, match=r"^'.*p.csv' cannot be written \(No such file or directory\)"
        ),
        atomic.aside(tmp_path / "nowhere" / "p.csv"),
    ):
        pass


# ---- labels

NUMBERS = [
    np.array([1, 2, 3], kind)
    for kind in (
        "i1",
        "i2",
        "i4",
        "i8",
        "u1",
        "u2",
        "u4",
        "u8",
        "f2",
        "f4",
        "f8",
        ">i4",
        ">u2",
        ">f8",
    )
]
DATES = [
    np.array(["2020-01-01", "2021-05-01", "2022-01-31"], f"{end}M8[{unit}]")
    for end in "<>"
    for unit in ("D", "s", "ns", "M")
]
SPANS = [np.array([1, 2, 30], f"{end}m8[{unit}]") for end in "<>" for unit in ("s", "7D", "ns")]
TEXTS = [np.array(["a", "b", "é\x1b"], kind) for kind in ("U2", "U10", ">U3", "U2000", object)]
OTHERS = [
    np.array([False, True]),
    np.array([1, 2, 2**62 + 1], np.longdouble),
    np.array([0, 2**63 + 1, 2**64 - 1], np.uint64),
]


@pytest.mark.parametrize(
    "labels", [*NUMBERS, *DATES, *SPANS, *TEXTS, *OTHERS], ids=lambda labels: labels.dtype.str
)
def test_labels_of_every_kind_come_back_as_they_were(labels, tmp_path):
    model = KernelClassifier(kernel=kernels.Gaussian(1.0), ridge=0.1).fit(
        X, labels[np.arange(40) % len(labels)]
    )
    model.save(tmp_path / "m")
    copy = load(tmp_path / "m")
    assert (
        copy.classes_.dtype == model.classes_.dtype == labels.dtype
        or labels.dtype.itemsize > codec.WIDEST
    )
    np.testing.assert_array_equal(copy.classes_, labels)
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))


def test_labels_that_no_file_can_hold_are_refused_when_saving(tmp_path):
    odd = np.array([(1,), (2,)], dtype=[("code", "i4")])
    model = KernelClassifier(kernel=kernels.Gaussian(1.0), ridge=0.1).fit(X, odd[np.arange(40) % 2])
    with pytest.raises(InputError, match="classes_ holds a ndarray, which no model file can hold"):
        model.save(tmp_path / "m")
    assert not names(tmp_path)


def test_settings_come_back_whatever_their_keys_are_called():
    tensors = {}
    day = np.datetime64("2020-01-02")
    value = {
        "$tensor": 1.0,
        "a": {"b": np.arange(2)},
        "a.b": np.arange(3),
        "day": {day: 2.0},
        "flag": np.True_,
    }
    stored = json.loads(json.dumps(codec.encode(value, "x", tensors)))
    found = codec.decode(stored, tensors)
    assert found["$tensor"] == 1.0 and found["day"] == {day: 2.0} and found["flag"] is True
    assert found["a"]["b"].tolist() == [0, 1] and found["a.b"].tolist() == [0, 1, 2]


# ---- folders of others


@pytest.fixture(scope="module")
def classifier():
    labels = np.array(["no\x1b[31m", "yes"])[(X[:, 0] > 0).astype(int)]
    table = pd.DataFrame({"\x1b]0;owned\x07a": X[:, 0], "b\n\u202ec": X[:, 1], "target": labels})
    return KernelClassifier(
        kernel=kernels.Gaussian(np.ones(2)), ridge=0.1, validation_fraction=0.2, random_state=0
    ).fit(table, "target")


def put(content, path, value):
    for name in path[:-1]:
        content = content[name]
    content[path[-1]] = value


TAMPERED = {
    ("extra", "plan", "q"): "<script>",
    ("extra", "plan", "bytes"): float("nan"),
    ("extra", "plan", "solver"): 3,
    ("extra", "fitted", "rows_seen_"): "many",
    ("extra", "fitted", "slope_"): float("nan"),
    ("extra", "fitted", "log_slope_"): -1.0,
    ("extra", "fitted", "decision_bias_"): [float("nan"), 0.0],
    ("extra", "fitted", "floor_"): 0.0,
    ("extra", "fitted", "bias_"): [float("nan"), 0.0],
    ("constants",): [[0, float("nan")]],
    ("extra", "fitted", "confusion_"): [["x", 1], [1, 1]],
    ("extra", "fitted", "timings_"): {"solving": "long"},
    ("extra", "fitted", "classes_"): {"$array": ["a", "b", "c"], "dtype": "str"},
    ("extra", "fitted", "ridge_"): True,
    ("extra", "fitted", "feature_names_in_"): {"$array": ["a"], "dtype": "<U1000000000"},
    ("extra", "history"): [
        {"rows": 10, "loss": 1.0, "epoch": "x"},
        {"rows": 1, "loss": 1.0, "epoch": 1},
    ],
    ("extra", "fitted"): 3,
    ("kernel", "settings", "bandwidth"): "<script>",
    ("weights_sha256",): "../../x",
    ("extra",): [],
}


@pytest.mark.parametrize("path", TAMPERED, ids=".".join)
def test_values_that_save_never_writes_are_refused_in_one_sentence(classifier, tmp_path, path):
    classifier.save(tmp_path / "m")
    content = json.loads((tmp_path / "m" / "model.json").read_text())
    put(content, path, TAMPERED[path])
    (tmp_path / "m" / "model.json").write_text(json.dumps(content))
    with pytest.raises(ModelFileError):
        load(tmp_path / "m")


@pytest.mark.parametrize("depth", [60, 900, 3000, 300_000])
@pytest.mark.parametrize(
    "where", [("deep",), ("extra", "history"), ("kernel", "settings", "bandwidth")]
)
def test_lists_within_lists_are_refused(tmp_path, depth, where):
    OLD.save(tmp_path / "m")
    path = tmp_path / "m" / "model.json"
    content = json.loads(path.read_text())
    put(content, where, "here")
    path.write_text(json.dumps(content).replace('"here"', "[" * depth + "]" * depth))
    with pytest.raises(ModelFileError):
        load(tmp_path / "m")


@pytest.mark.parametrize("name", ["alpha", "Z", "intercept"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_refused(tmp_path, name, value):
    OLD.save(tmp_path / "m")
    path, weights = tmp_path / "m" / "model.json", tmp_path / "m" / "weights.safetensors"
    tensors = load_file(weights)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, weights)
    path.write_text(
        json.dumps(
            json.loads(path.read_text())
            | {"weights_sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}
        )
    )
    with pytest.raises(ModelFileError, match=f"NaN or infinity in {name}"):
        load(tmp_path / "m")


def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path):
    OLD.save(tmp_path / "m")
    broken = load(tmp_path / "m")
    broken.model_.alpha[0] = float("nan")
    with pytest.raises(InputError, match="alpha holds NaN"):
        broken.save(tmp_path / "m")
    assert which(tmp_path / "m") == "old"


# ---- the terminal


def obeyed(text):
    """Whether a terminal would do something at these characters."""
    return any(mark in text for mark in ("\x1b", "\x07", "\u202e", "\x9b", "\r"))


LINES = ["info m", "info m --json", "evaluate m d.parquet", "predict m short.parquet --out p.csv"]


@pytest.mark.parametrize(
    "line", [*LINES, pytest.param("export m --out m.onnx", marks=pytest.mark.slow)]
)
def test_names_of_others_are_shown_and_not_obeyed(classifier, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    classifier.save("m")
    table = pd.DataFrame(
        {
            "\x1b]0;owned\x07a": X[:, 0],
            "b\n\u202ec": X[:, 1],
            "target": classifier.classes_[(X[:, 0] > 0).astype(int)],
        }
    )
    table.to_parquet("d.parquet")
    table.iloc[:, :1].to_parquet("short.parquet")
    result = CliRunner().invoke(app, line.split())
    assert not obeyed(result.output)
    assert "predict" in line or ("x1b" in result.output or "u001b" in result.output)


@pytest.mark.parametrize("debug", [False, True])
def test_errors_warnings_and_logs_of_others_are_shown_and_not_obeyed(debug, monkeypatch):
    # Half characters cannot travel between test processes.
    monkeypatch.setattr(logging.getLogger("kernelmill"), "propagate", False)
    bad = "\x1b]0;owned\x07 \udc80 [bold]"

    @console.command
    def talk(debug: bool = debug) -> None:
        warnings.warn(bad, stacklevel=1)
        logging.getLogger("kernelmill").warning("%s is left out", bad)
        raise InputError(bad)

    application = typer.Typer()
    application.command()(talk)
    found = CliRunner().invoke(application, ["--debug"] if debug else [])
    assert (
        not obeyed(found.output)
        and found.output.count("\\x1b]0;owned") >= 3
        and found.exit_code == 2
    )


# ---- no space


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_temporary_folder_is_said_and_no_file_is_called_damaged(tmp_path, monkeypatch):
    import torch

    pd.DataFrame(X, columns=["a", "b", "y"]).to_csv(tmp_path / "d.csv", index=False)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "w+b"))  # noqa: SIM115
    dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(X[:, 0]))
    for data in (tmp_path / "d.csv", dataset):
        with pytest.raises(OSError, match=r"the temporary folder '.*' is full.*TMPDIR") as caught:
            kernelmill.data.opened(data, 10)
        assert (
            caught.value.errno == errno.ENOSPC
            and console.explain(caught.value)[0] == console.WRITING
        )

    def nowhere():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere)
    with pytest.raises(OSError, match=r"no temporary file can be made .*TMPDIR"):
        kernelmill.data.opened(tmp_path / "d.csv", 10)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs limits of a process")
def test_predictions_that_do_not_fit_leave_the_old_file(tmp_path, ending):
    import resource

    from kernelmill.cli.predict import write_predictions

    path = tmp_path / f"p.{ending}"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A file that may not grow, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"^'.*' cannot be written \(File too large\)"):
            write_predictions(path, {"prediction": g.normal(size=20_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old" and names(tmp_path) == [path.name]


@pytest.mark.slow
def test_an_onnx_file_in_two_parts_replaces_an_old_one_and_leaves_it_whole_where_it_fails(
    tmp_path, monkeypatch
):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from kernelmill import export

    monkeypatch.setattr(export, "LARGEST", 0)
    path = tmp_path / "m.onnx"
    small, large = (
        KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=0.1).fit(
            g.normal(size=(n, 3)), g.normal(size=n)
        )
        for n in (200, 300)
    )
    for kept in ("m.onnx.data", "m.onnx.2.data", "m.onnx.data"):
        small.to_onnx(path)
        assert names(tmp_path) == sorted(["m.onnx", kept]) and export._data_of(onnx, path) == {kept}
        onnx.checker.check_model(str(path))
    whole = path.read_bytes()

    def full(*args, **settings):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(onnx, "save_model", full)
    with pytest.raises(OSError, match="No space left on device"):
        large.to_onnx(path)
    assert path.read_bytes() == whole and names(tmp_path) == ["m.onnx", "m.onnx.data"]
