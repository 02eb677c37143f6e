"""What one process of a job does, for test_ranks.py: `python job.py WORK FOLDER`, with a rank in
its environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch

from kernelmill import InputError, KernelClassifier, KernelRegressor, load
from kernelmill.distributed.team import gather
from kernelmill.distributed.torch_team import join
from kernelmill.estimators import base
from kernelmill.kernels import Laplacian
from kernelmill.planning import device, memory
from kernelmill.solvers import PCG, EigenPro1, EigenPro2, EigenPro3, EigenPro4, eigenpro_sizes
from kernelmill.uncertainty import Posterior

SOLVERS = {
    "eigenpro4 cholesky": (EigenPro4(s=50, q=10, projection="cholesky"), 0.1),
    "eigenpro4 carried": (EigenPro4(s=50, q=10, projection="carried"), 0.1),
    "eigenpro4 one pass": (EigenPro4(s=50, q=10, projection="one_pass"), 0.0),
    "eigenpro4 paper": (EigenPro4(s=50, q=10, projection="one_pass", recipe="paper", m=20), 0.0),
    "eigenpro3": (EigenPro3(s=50, q=10, m=60, projection="carried"), 0.1),
    "eigenpro2": (EigenPro2(s=40, q=10), 0.1),
    "eigenpro1": (EigenPro1(q=10), 0.1),
    "pcg": (PCG(tolerance=1e-12, iterations=60, rank=30, block=20), 0.1),
}


def weights_of_solvers(comm) -> dict[str, torch.Tensor]:
    from conftest import make_problem

    eigenpro_sizes.PASS_ROWS = 32
    found = {}
    for name, (solver, ridge) in SOLVERS.items():
        problem = make_problem(n=101 if solver.every_row else 301, p=101)
        own = problem.solve(solver, epochs=3, ridge=ridge, comm=comm).alpha
        found[name] = gather(comm, own, 0, 101)
    return found


def data(n: int = 1501) -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(0)
    X = g.normal(size=(n, 4))
    return X, np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * g.normal(size=n)


SETTINGS = dict(
    kernel=Laplacian(3.0),
    n_centers=151,
    random_state=0,
    epochs=3,
    solver=EigenPro4(s=60, q=6, projection="carried"),
)


def whole(model) -> torch.Tensor:
    return gather(model.model_.comm, model.model_.alpha, 0, model.model_.n_centers)


def solvers(folder: Path) -> None:
    comm = join("cpu")
    found = weights_of_solvers(comm)
    if comm.rank == 0:
        torch.save(found, folder / f"weights-{comm.size}.pt")


def estimators(folder: Path) -> None:
    """A fit with rows held out and early stopping, a classification from a streamed file, one that
    is not shared out, a warm start.
    """
    X, y = data()
    model = KernelRegressor(
        **SETTINGS, validation_fraction=0.1, early_stopping=True, ridge=0.1
    ).fit(X, y)
    rank, size = model.model_.comm.rank, model.model_.comm.size
    assert size == 1 or len(model.model_.alpha) == len(range(rank, 151, size))
    found = {
        "regression": whole(model),
        "score": model.score(X, y),
        "scores": [row.get("validation_score") for row in model.history_],
    }
    model.save(folder / f"model-{size}")
    found["loaded"] = load(folder / f"model-{size}").predict(X[:50])
    alone = load(folder / f"model-{size}", ranks=1)
    assert alone.model_.n_centers == len(alone.model_.Z) == 151
    np.testing.assert_allclose(alone.predict(X[:50]), found["loaded"], atol=1e-12)
    found["warm"] = model.set_params(warm_start=True).fit(X, y).score(X, y)
    room = memory.parse_bytes
    # Ranks may have more memory than rank 0, which counts.
    base.parse_bytes = lambda budget, device: room(budget, device) + 300_000 * rank
    streamed = KernelClassifier(**SETTINGS, memory_budget="1MB").fit(folder / "d.npz", "label")
    base.parse_bytes = room
    found["streamed"] = whole(streamed)
    found["direct"] = (
        KernelRegressor(
            kernel=Laplacian(3.0), n_centers=100, solver="direct", ridge=0.1, random_state=0
        )
        .fit(X, y)
        .predict(X[:50])
    )
    again = KernelRegressor(**SETTINGS, ridge=0.1).fit(X, y)
    found["interval"] = np.stack(again.predict_interval(X[:50]))
    process = KernelRegressor(**SETTINGS, ridge=0.1, uncertainty=Posterior(samples=8)).fit(X, y)
    assert process.model_.process.draws.shape == (len(process.model_.alpha), 8)
    found["deviation"] = process.predict(X[:50], return_std=True)[1]
    process.save(folder / f"process-{size}")
    found["functions"] = load(folder / f"process-{size}").sample(X[:50], 3, noise=False)
    if size > 1:
        for what in (
            lambda: model.partial_fit(X, y),
            lambda: model.add_centers(X[:3]),
            lambda: model.set_params(ranks=1).fit(X, y),
        ):
            try:
                what()
            except InputError as error:
                assert "ranks" in str(error)
            else:
                raise AssertionError("a model that ranks share was taken for a whole one")
    found["drawn"] = KernelRegressor(**{**SETTINGS, "random_state": None}).fit(X, y).score(X, y)
    if rank == 0:
        torch.save(found, folder / f"estimators-{size}.pt")


def run(folder: Path) -> None:
    """A run with checkpoints.

    Where there is a file kill-R, rank R is killed in the middle of its work after that many
    cycles.
    """
    X, y = data()
    rank, seen = int(os.environ.get("RANK", 0)), [0]
    order = folder / f"kill-{rank}"

    def note(event) -> None:
        if event.kind == "projection":
            seen[0] += 1
            (folder / "cycles.new").write_text(str(seen[0]))
            os.replace(folder / "cycles.new", folder / "cycles")
            time.sleep(0.02)

    def end() -> None:
        cycles = int(order.read_text())
        while not (folder / "cycles").exists() or int((folder / "cycles").read_text()) < cycles:
            time.sleep(0.001)
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    if order.exists():
        threading.Thread(target=end, daemon=True).start()
    model = KernelRegressor(
        **SETTINGS,
        ridge=0.1,
        checkpoint=folder / "run",
        checkpoint_every=0,
        resume=True,
        callbacks=note,
    ).fit(X, y)
    alpha = whole(model)
    if model.model_.comm.rank == 0:
        torch.save(alpha, folder / "alpha.pt")
        (folder / "done.json").write_text(
            json.dumps({"ranks": model.model_.comm.size, "stopped": model._interrupted})
        )


def gpu(folder: Path) -> None:
    """In float64 and in float32, with the carried residual and an exact projection; ranks may
    share a GPU.
    """
    g = np.random.default_rng(0)
    X = g.normal(size=(20_001, 20))
    y = (np.sin(X[:, 0]) * X[:, 1] > 0).astype(int)
    found = {}
    for precision in ("float64", "float32"):
        for projection in ("carried", "cholesky"):
            solver = EigenPro4(s=1000, q=100, projection=projection)
            settings = dict(
                kernel=Laplacian(5.0),
                n_centers=4001,
                random_state=0,
                epochs=2,
                device="cuda",
                precision=precision,
                solver=solver,
            )
            model = KernelClassifier(**settings).fit(X, y)
            found[precision, projection] = (
                whole(model).cpu(),
                model.model_(torch.as_tensor(X[:1000])).cpu().numpy(),
            )
    comm = join(device.device_of("cuda"))
    if comm.rank == 0:
        torch.save((found, getattr(comm, "backend", "none"), comm.size), folder / "gpu.pt")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    {"solvers": solvers, "estimators": estimators, "run": run, "gpu": gpu}[sys.argv[1]](
        Path(sys.argv[2])
    )
