"""Damaged files: each ends in a result or in one clear error; never in a traceback, a hang, a
crash or code from the file being run.
"""

import multiprocessing
import pickle
import random
import shutil
import sys
import traceback
import warnings
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from kernelmill import DataFileError, KernelmillError, KernelRegressor, kernels, load
from kernelmill.solvers import EigenPro4

SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["kernelmill", "test_fuzz"])
KINDS = ["csv", "parquet", "arrow", "npy", "npz", "h5", "checkpoint", "model"]
SETTINGS = dict(
    kernel=kernels.Laplacian(2.0),
    n_centers=20,
    solver=EigenPro4(s=10, q=3, m=10),
    epochs=2,
    random_state=0,
)
g = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": g.normal(size=60),
        "b": g.integers(0, 9, 60),
        "c": g.choice(["x", "ö", "z"], 60),
        "y": g.normal(size=60),
    }
)
MATRIX, TARGET = g.normal(size=(60, 3)), g.normal(size=60)


def original(folder: Path, kind: str) -> list[Path]:
    """Writes a good file, or folder, and names the files to be damaged."""
    path = folder / f"good.{kind}"
    if kind == "csv":
        FRAME.to_csv(path, index=False)
    elif kind == "parquet":
        FRAME.to_parquet(path, row_group_size=25)
    elif kind == "arrow":
        FRAME.to_feather(path, compression="uncompressed")
    elif kind == "npy":
        np.save(path, MATRIX)
    elif kind == "npz":
        np.savez(path, X=MATRIX, y=TARGET)
    elif kind == "h5":
        with h5py.File(path, "w") as file:
            file["X"], file["y"] = MATRIX, TARGET
    elif kind == "model":
        KernelRegressor(**SETTINGS).fit(FRAME, "y").save(path)
        return sorted(path.rglob("*.*"))
    else:
        KernelRegressor(**SETTINGS, checkpoint=path, checkpoint_every=0).fit(MATRIX, TARGET)
        return sorted(file for file in path.rglob("*.*") if file.is_file())
    return [path]


def use(folder: Path, kind: str) -> None:
    path = folder / f"good.{kind}"
    if kind == "model":
        load(path).predict(FRAME)
    elif kind == "checkpoint":
        KernelRegressor(**SETTINGS, checkpoint=path, resume=True).fit(MATRIX, TARGET)
    else:
        fitted = KernelRegressor(**SETTINGS).fit(path, TARGET if kind == "npy" else "y")
        fitted.predict(path)


def mutate(data: bytes, dice: random.Random) -> bytes:
    out, way = bytearray(data), dice.randrange(7)
    if way == 0:
        return bytes(out[: dice.randrange(len(out) + 1)])
    if way == 1:
        at = dice.randrange(len(out) + 1)
        return bytes(out[:at]) + dice.randbytes(dice.randrange(1, 50)) + bytes(out[at:])
    if way == 2:
        at = dice.randrange(len(out))
        return bytes(out[:at] + out[at + dice.randrange(1, 100) :])
    if way == 3 and len(out) > 20:
        a, b = dice.randrange(len(out) - 10), dice.randrange(len(out) - 10)
        out[a : a + 10] = out[b : b + 10]
        return bytes(out)
    # Single bits, and bytes at the beginning where headers are.
    for _ in range(1 if way == 4 else dice.randrange(2, 30)):
        at = dice.randrange(len(out) if way < 6 else min(len(out), 300))
        out[at] = dice.choice(
            [
                out[at] ^ (1 << dice.randrange(8)),
                0,
                255,
                dice.randrange(256),
                ord('"'),
                ord("\n"),
                ord("9"),
            ]
        )
    return bytes(out)


def hunt(folder: str, kind: str, seeds: range, report: str) -> None:
    """Runs in a process of its own, so that a crash is seen as one."""
    warnings.simplefilter("ignore")
    wrong = []
    place = Path(folder)
    files = original(place, kind)
    good = {file: file.read_bytes() for file in files}
    spare = place / "spare"
    if kind in ("checkpoint", "model"):
        shutil.copytree(place / f"good.{kind}", spare)
    for seed in seeds:
        dice = random.Random(f"{kind} {seed}")
        for file in dice.sample(files, dice.choice([1, 1, 1, len(files)])):
            file.write_bytes(mutate(good[file], dice))
        try:
            use(place, kind)
        except KernelmillError as error:
            if "\n" in str(error):
                wrong.append(f"seed {seed}: more than a sentence: {error}")
        except Exception:
            wrong.append(f"seed {seed}: {traceback.format_exc()[-1500:]}")
        if spare.exists():
            shutil.rmtree(place / f"good.{kind}")
            shutil.copytree(spare, place / f"good.{kind}")
        for file, data in good.items():
            file.write_bytes(data)
    Path(report).write_text("\n".join(wrong))
    sys.exit(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "seeds",
    [range(80), pytest.param(range(80, 1200), marks=pytest.mark.slow)],
    ids=["some", "many"],
)
def test_damaged_files_end_in_a_result_or_one_error(tmp_path, kind, seeds):
    report = tmp_path / "report"
    process = SPAWN.Process(target=hunt, args=(str(tmp_path), kind, seeds, str(report)))
    process.start()
    process.join(280)
    assert process.exitcode == 0, f"{kind}: the process ended with {process.exitcode}"
    assert report.read_text() == ""


class Trap:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_no_code_from_a_file_is_run(tmp_path):
    array = np.empty(1, dtype=object)
    array[0] = Trap(tmp_path / "ran")
    np.save(tmp_path / "trap.npy", array, allow_pickle=True)
    np.savez(tmp_path / "trap.npz", X=array)
    (tmp_path / "plain.npy").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))
    for name in ("trap.npy", "trap.npz", "plain.npy"):
        with pytest.raises(DataFileError):
            KernelRegressor().fit(tmp_path / name, np.zeros(1))
    assert not (tmp_path / "ran").exists()
