"""Runs that lose nothing: killed, terminated, interrupted or short of disk, a run goes on to the
same bits.
"""

import errno
import io
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import time
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from kernelmill import CheckpointError, InputError, KernelClassifier, KernelRegressor, kernels
from kernelmill.solvers import (
    NYTRO,
    PCG,
    ASkotch,
    EigenPro1,
    EigenPro2,
    EigenPro3,
    EigenPro4,
    Falkon,
    Pegasos,
    shards,
)
from kernelmill.storage import run_folder
from kernelmill.storage.run_folder import Run, seconds_of

g = np.random.default_rng(0)
X = g.normal(size=(12_000, 4)).astype(np.float32)
y = (np.sin(2 * X[:, 0]) + 0.1 * g.normal(size=12_000)).astype(np.float32)
SETTINGS = dict(
    kernel=kernels.Laplacian(3.0),
    n_centers=300,
    solver=EigenPro4(s=200, q=40, m=200, T=4),
    epochs=3,
    random_state=0,
)


def model(folder=None, resume=True, **more):
    checkpoint = (
        {} if folder is None else {"checkpoint": folder, "checkpoint_every": 0, "resume": resume}
    )
    return KernelRegressor(**{**SETTINGS, **checkpoint, **more})


@pytest.fixture(scope="module")
def whole():
    return model().fit(X, y).model_.alpha


def stopping_after(count):
    seen = []
    return lambda event: seen.append(event) or len(seen) == count


@pytest.mark.parametrize("count", [2, 3, 9, 17, 18, 30])
def test_a_run_that_stopped_goes_on_to_the_same_bits(tmp_path, whole, count):
    first = model(tmp_path, callbacks=stopping_after(count)).fit(X, y)
    assert first.n_iter_ < 3 or count > 20
    done = model(tmp_path).fit(X, y)
    assert torch.equal(done.model_.alpha, whole) and done.n_iter_ == 3
    assert [row["rows"] for row in done.history_] == [
        row["rows"] for row in model().fit(X, y).history_
    ]
    again = model(tmp_path).fit(X, y)  # finished: nothing is done twice
    assert torch.equal(again.model_.alpha, whole)
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == [
        "checkpoint",
        "checkpoint",
        "choices",
        "choices",
    ]


@pytest.mark.parametrize("step", [3, 30, 77, 130])
def test_interrupted_between_two_steps_it_goes_on_to_the_same_bits(
    tmp_path, whole, monkeypatch, step
):
    calls, plain = [], shards.by_tiles

    def interrupted(*args):
        calls.append(1)
        if len(calls) == step:
            raise KeyboardInterrupt
        return plain(*args)

    monkeypatch.setattr(shards, "by_tiles", interrupted)
    assert model(tmp_path, checkpoint_every="1h").fit(X, y)._interrupted
    assert torch.equal(model(tmp_path).fit(X, y).model_.alpha, whole)


@dataclass(eq=False)
class Mine(EigenPro4):
    name = "mine"


def test_a_run_of_a_solver_that_is_not_in_the_registry_goes_on(tmp_path):
    own = dict(solver=Mine(**SETTINGS["solver"].get_params()))
    model(tmp_path, callbacks=stopping_after(9), **own).fit(X, y)
    done, undisturbed = model(tmp_path, **own).fit(X, y), model(**own).fit(X, y)
    assert torch.equal(done.model_.alpha, undisturbed.model_.alpha) and done.n_iter_ == 3


SOLVERS = [
    Falkon(tolerance=0, iterations=6),
    NYTRO(iterations=5),
    PCG(tolerance=1e-12, rank=20, iterations=6),
    EigenPro3(s=100, q=20, m=300),
    EigenPro2(s=100, q=20),
    EigenPro1(q=20),
    ASkotch(m=100, rank=20),
    "direct",
]


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_every_solver_goes_on(tmp_path, solver):
    more = dict(
        solver=solver,
        ridge=0.1,
        epochs=None if isinstance(solver, (Falkon, NYTRO, PCG, str)) else 3,
    )
    if getattr(solver, "every_row", False):
        more["n_centers"] = None
    rows, target = X[:700], y[:700]
    want = model(**more).fit(rows, target).model_.alpha
    model(tmp_path, callbacks=stopping_after(3), **more).fit(rows, target)
    assert torch.equal(model(tmp_path, **more).fit(rows, target).model_.alpha, want)


@pytest.mark.slow
def test_classes_go_on_with_tuning_and_early_stopping(tmp_path):
    label = (y[:4000] > 0).astype(int)
    settings = dict(
        solver=EigenPro4(s=200, q=40, m=300),
        n_centers=300,
        epochs=6,
        random_state=3,
        early_stopping=True,
    )
    want = KernelClassifier(**settings).fit(X[:4000], label)
    run = dict(checkpoint=tmp_path, checkpoint_every=0)
    KernelClassifier(**settings, **run, callbacks=stopping_after(14)).fit(X[:4000], label)
    done = KernelClassifier(**settings, **run, resume=True).fit(X[:4000], label)
    assert torch.equal(done.model_.alpha, want.model_.alpha) and done.slope_ == want.slope_
    pegasos = dict(
        kernel=kernels.Laplacian(2.0), solver=Pegasos(m=50), ridge=1.0, epochs=3, random_state=0
    )
    want = KernelClassifier(**pegasos).fit(X[:400], label[:400])
    KernelClassifier(
        **pegasos, checkpoint=tmp_path / "p", checkpoint_every=0, callbacks=stopping_after(2)
    ).fit(X[:400], label[:400])
    done = KernelClassifier(**pegasos, checkpoint=tmp_path / "p", resume=True).fit(
        X[:400], label[:400]
    )
    assert torch.equal(done.model_.alpha, want.model_.alpha)


def test_a_run_without_a_seed_keeps_the_one_it_drew(tmp_path):
    settings = dict(random_state=None, validation_fraction=0.1)
    first = model(tmp_path, callbacks=stopping_after(5), **settings).fit(X, y)
    done = model(tmp_path, **settings).fit(X, y)
    assert done.plan_.seed == first.plan_.seed and done.n_iter_ == 3


def test_streamed_rows_go_on_too(tmp_path):
    np.save(tmp_path / "x.npy", X)
    more = dict(memory_budget=str(300_000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of so little memory
        want = model(**more).fit(tmp_path / "x.npy", y).model_.alpha
        model(tmp_path / "run", callbacks=stopping_after(7), **more).fit(tmp_path / "x.npy", y)
        assert torch.equal(
            model(tmp_path / "run", **more).fit(tmp_path / "x.npy", y).model_.alpha, want
        )


# ---- killed

SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["kernelmill", "test_runs"])


def train(folder, out, **more):
    torch.set_num_threads(1)
    found = model(folder, **more).fit(X, y)
    torch.save(found.model_.alpha, out + ".aside")
    os.replace(out + ".aside", out)


def started(folder, out, **more):
    process = SPAWN.Process(target=train, args=(folder, str(out)), kwargs=more)
    process.start()
    return process


def killed_and_resumed(folder, moment, want):
    run, out = folder / "run", folder / "out.pt"
    process = started(run, out)
    time.sleep(moment)
    process.kill()
    process.join()
    process = started(run, out)
    process.join(100)
    assert process.exitcode == 0
    assert torch.equal(torch.load(out), want)
    assert not [
        path for path in run.iterdir() if not path.name.startswith(("checkpoint-", "choices-"))
    ]
    assert len(list(run.glob("checkpoint-*"))) == 2


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    started(folder / "warm", folder / "warm.pt").join()  # the server's own start is not counted
    begun = time.monotonic()
    process = started(folder / "run", folder / "out.pt")
    process.join()
    assert process.exitcode == 0
    return torch.load(folder / "out.pt"), time.monotonic() - begun


@pytest.mark.parametrize(
    "kill", [*range(3), *(pytest.param(i, marks=pytest.mark.slow) for i in range(3, 26))]
)
def test_killed_at_any_moment_it_goes_on_to_the_same_bits(tmp_path, uninterrupted, kill):
    want, seconds = uninterrupted
    killed_and_resumed(tmp_path, random.Random(kill).uniform(0.05, 1.0) * seconds, want)


def wait_for(path, kind):
    for _ in range(3000):
        if list(path.glob(kind)) if path.exists() else []:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {kind} in {path}")


def test_terminated_it_writes_and_ends(tmp_path, uninterrupted):
    want, _ = uninterrupted
    process = started(
        tmp_path / "run",
        tmp_path / "out.pt",
        checkpoint_every="1h",
        epochs=3,
        callbacks=Slow(tmp_path / "begun"),
    )
    wait_for(tmp_path, "begun")  # before, there is nothing to write but the choices
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == -signal.SIGTERM and not (tmp_path / "out.pt").exists()
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 1
    process = started(tmp_path / "run", tmp_path / "out.pt")
    process.join(100)
    assert torch.equal(torch.load(tmp_path / "out.pt"), want)


class Slow:
    """A callback that takes its time, and says when training has begun."""

    def __init__(self, begun):
        self.begun = begun

    def __call__(self, event):
        if event.kind == "projection":
            self.begun.touch()
        time.sleep(0.05)


def test_asked_by_a_signal_it_writes_and_goes_on(tmp_path, uninterrupted):
    want, _ = uninterrupted
    process = started(
        tmp_path / "run",
        tmp_path / "out.pt",
        checkpoint_every="1h",
        callbacks=Slow(tmp_path / "begun"),
    )
    wait_for(tmp_path, "begun")
    os.kill(process.pid, signal.SIGUSR1)
    wait_for(tmp_path / "run", "checkpoint-*")
    assert process.is_alive()
    process.join(100)
    assert process.exitcode == 0 and torch.equal(torch.load(tmp_path / "out.pt"), want)


def test_ctrl_c_keeps_the_model_and_the_run(tmp_path, whole):
    def press(event):
        if event.rows > 15_000 and event.kind == "projection":
            raise KeyboardInterrupt

    with pytest.warns(Warning, match="interrupted"):
        first = model(tmp_path, checkpoint_every="1h", callbacks=press).fit(X, y)
    assert first.score(X, y) > 0.5 and len(list(tmp_path.glob("checkpoint-*"))) == 1
    assert torch.equal(model(tmp_path).fit(X, y).model_.alpha, whole)


# ---- damaged, full, foreign


@pytest.fixture
def stopped(tmp_path):
    model(tmp_path, callbacks=stopping_after(9)).fit(X, y)
    return tmp_path


def damage(path, how):
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "edited":
        path.write_bytes(
            data.replace(b"epoch", b"epoxh", 1)
            if path.suffix == ".json"
            else data[:-40] + bytes(255 - byte for byte in data[-40:])
        )
    elif how == "gone":
        path.unlink()


@pytest.mark.parametrize("file", ["run.json", "run.safetensors"])
@pytest.mark.parametrize("how", ["cut", "edited", "gone"])
def test_a_damaged_checkpoint_is_said_and_the_older_one_used(stopped, whole, how, file):
    newest = sorted(stopped.glob("checkpoint-*"))[-1]
    damage(newest / file, how)
    with pytest.warns(UserWarning, match="is damaged"):
        done = model(stopped).fit(X, y)
    assert torch.equal(done.model_.alpha, whole)


def test_runs_of_another_version_are_refused(stopped, monkeypatch):
    monkeypatch.setattr(run_folder, "VERSION", run_folder.VERSION + 1)
    with (
        pytest.warns(UserWarning, match="written by another version"),
        pytest.raises(CheckpointError, match="nothing in"),
    ):
        model(stopped).fit(X, y)


def test_damaged_choices_have_a_copy(stopped, whole):
    damage(stopped / "choices-1" / "run.safetensors", "edited")
    with pytest.warns(UserWarning, match="is damaged"):
        assert torch.equal(model(stopped).fit(X, y).model_.alpha, whole)


def test_where_nothing_can_be_read_nothing_is_overwritten(stopped):
    for path in stopped.glob("checkpoint-*"):
        damage(path / "run.json", "cut")
    before = sorted(stopped.rglob("*"))
    with pytest.raises(CheckpointError, match="nothing in"), pytest.warns(UserWarning):
        model(stopped).fit(X, y)
    assert sorted(stopped.rglob("*")) == before


def test_a_full_disk_ends_no_run(tmp_path, whole):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept = []

    def fill(event):
        if event.rows > 15_000:
            kept[:] = kept or sorted(path.name for path in tmp_path.glob("checkpoint-*"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))

    try:
        with pytest.warns(UserWarning, match="no checkpoint could be written") as said:
            done = model(tmp_path, callbacks=fill).fit(X, y)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert torch.equal(done.model_.alpha, whole) and len(said) == 1
    assert len(kept) == 2 and sorted(path.name for path in tmp_path.glob("checkpoint-*")) == kept
    assert torch.equal(model(tmp_path).fit(X, y).model_.alpha, whole)


def test_words_that_cannot_be_written_end_no_run(monkeypatch, whole):
    tried = []

    class Full(io.StringIO):
        def write(self, text):
            tried.append(text)
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    assert torch.equal(model(verbose=True).fit(X, y).model_.alpha, whole) and tried


def test_a_folder_that_cannot_be_used_is_said_at_once(tmp_path, stopped):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written to"):
        model(tmp_path / "file" / "run").fit(X, y)
    with pytest.raises(InputError, match="holds a run already; set resume=True"):
        model(stopped, resume=False).fit(X, y)
    run = Run(stopped, 0, True)
    with pytest.raises(InputError, match="in use by another run"):
        model(stopped).fit(X, y)
    run.close()
    shutil.rmtree(stopped)
    # Resume=True where there is nothing yet: a run from the start.
    assert model(stopped).fit(X, y).n_iter_ == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(epochs=5), "epochs = '3', this one has '5'"),
        (dict(kernel=kernels.Gaussian(3.0)), "kernel = 'Laplacian"),
        (dict(n_centers=200), "n_centers = '300'"),
    ],
)
def test_other_settings_or_data_are_refused(stopped, change, said):
    with pytest.raises(CheckpointError, match=said):
        model(stopped, **change).fit(X, y)
    with pytest.raises(CheckpointError, match="the rows of X changed since"):
        model(stopped).fit(X + 1, y)
    with pytest.raises(CheckpointError, match="the targets changed since"):
        model(stopped).fit(X, -y)
    with pytest.raises(CheckpointError, match="rows = '12000', this one has '11000'"):
        model(stopped).fit(X[:11_000], y[:11_000])


@pytest.mark.parametrize(
    ("every", "seconds"), [("5m", 300), ("30s", 30), ("1.5h", 5400), (7, 7), ("12", 12)]
)
def test_times_are_said_in_words(every, seconds):
    assert seconds_of(every) == seconds


@pytest.mark.parametrize("every", ["soon", "-3s", "", None, True, "nan", "inf"])
def test_times_that_are_none_are_refused(every):
    with pytest.raises(InputError, match="checkpoint_every="):
        seconds_of(every)


def test_interrupted_at_the_end_of_an_epoch_it_goes_on(tmp_path, whole):
    def press(event):
        if event.kind == "projection" and event.rows == 12_000:
            raise KeyboardInterrupt

    with pytest.warns(Warning, match="interrupted"):
        model(tmp_path, callbacks=press).fit(X, y)
    assert torch.equal(model(tmp_path).fit(X, y).model_.alpha, whole)


def test_folders_of_others_are_left_alone(tmp_path, whole):
    for name in ("checkpoint-500", "checkpoint-1000", "checkpoint-best"):
        (tmp_path / name).mkdir()
    model(tmp_path, callbacks=stopping_after(9)).fit(X, y)
    assert torch.equal(model(tmp_path).fit(X, y).model_.alpha, whole)
    assert all(
        (tmp_path / name).exists()
        for name in ("checkpoint-500", "checkpoint-1000", "checkpoint-best")
    )


def test_choices_that_found_no_room_are_written_later(tmp_path, whole):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))

    def free(event):
        if event.rows > 5000:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return event.rows > 15_000

    try:
        with pytest.warns(UserWarning, match="no checkpoint could be written"):
            model(tmp_path, callbacks=free).fit(X, y)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "choices-1").exists()
    done = model(tmp_path).fit(X, y)
    assert torch.equal(done.model_.alpha, whole)


def test_a_stream_keeps_its_windows_whatever_memory_is_free(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        monkeypatch.setattr(KernelRegressor, "_host_bytes", lambda self, comm: 300_000)
        want = model().fit(tmp_path / "x.npy", y).model_.alpha
        model(tmp_path / "run", callbacks=stopping_after(7)).fit(tmp_path / "x.npy", y)
        monkeypatch.setattr(KernelRegressor, "_host_bytes", lambda self, comm: 1 << 33)
        assert torch.equal(model(tmp_path / "run").fit(tmp_path / "x.npy", y).model_.alpha, want)


def test_other_weights_are_refused_and_functions_are_known_by_name(tmp_path, stopped):
    with pytest.raises(CheckpointError, match="the sample weights changed since"):
        model(stopped).fit(X, y, sample_weight=np.arange(12_000) % 3 + 1)
    model(tmp_path / "f", kernel=dots, callbacks=stopping_after(3)).fit(X[:500], y[:500])
    assert model(tmp_path / "f", kernel=dots).fit(X[:500], y[:500]).n_iter_ == 3


def dots(A, B):
    return (A @ B.T + 1) ** 2


def test_a_loaded_model_can_be_gone_on_with(tmp_path):
    from kernelmill import load

    model(warm_start=True).fit(X, y).save(tmp_path / "m")
    again = load(tmp_path / "m")
    again.fit(X, y)
    again.partial_fit(X[:1000], y[:1000])
    assert again.score(X, y) > 0.8
    with pytest.raises(InputError, match="expected the path of a folder"):
        model(True).fit(X, y)
