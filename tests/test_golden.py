"""Weights of many fits, as they were: moving walls must not change them.

`golden.json` has, for each fit, the checksum of its weights and some sums of them, and the machine
they come from. There the weights are the same to the bit; elsewhere, where other instructions add
in another order, their sums agree. `python tests/test_golden.py` writes it anew: do that in a
commit of its own that says why weights changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_problem
from kernelmill import KernelClassifier, KernelRegressor, kernels
from kernelmill.distributed.threads import run_threads
from kernelmill.solvers import (
    NYTRO,
    SGPR,
    ASkotch,
    EigenPro1,
    EigenPro2,
    EigenPro3,
    EigenPro4,
    EigenPro4Exact,
    Falkon,
    Pegasos,
)

FILE = Path(__file__).with_name("golden.json")
rng = np.random.default_rng(5)
X = rng.normal(size=(2000, 4)).astype(np.float32)
Y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=2000)
LABELS = np.digitize(Y, [-0.5, 0.7])
W = rng.integers(1, 4, size=2000).astype(float)
EP4, EP4_OFTEN = EigenPro4(s=100, q=20), EigenPro4(s=100, q=20, m=80, T=3)


def regressor(**settings):
    base = dict(kernel=kernels.Laplacian(bandwidth=2.0), n_centers=150, random_state=3, epochs=3)
    return KernelRegressor(**{**base, **settings})


def every_row(**settings):
    return regressor(n_centers=None, **settings).fit(X[:500], Y[:500])


def streamed(**settings):
    """From a file that memory has no room for: 24,000 rows, in windows."""
    many = np.concatenate([X * (1 + k / 10) for k in range(12)])
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", many.repeat(16, 1))
        return regressor(**settings, memory_budget=str(12_000_000)).fit(
            Path(folder) / "x.npy", np.tile(Y, 12)
        )


def resumed(**settings):
    with tempfile.TemporaryDirectory() as folder:
        run, seen = dict(checkpoint=folder, checkpoint_every=0, resume=True), []
        regressor(
            **settings, **run, callbacks=lambda event: seen.append(event) or len(seen) == 4
        ).fit(X, Y)
        return regressor(**settings, **run).fit(X, Y)


def warm(**settings):
    model = regressor(**settings, warm_start=True).fit(X[:1000], Y[:1000])
    return model.fit(X[1000:], Y[1000:])


def in_chunks(**settings):
    model = regressor(**settings)
    for start in range(0, 2000, 500):
        model.partial_fit(X[start : start + 500], Y[start : start + 500])
    return model.add_centers(X[:20]).partial_fit(X[:500], Y[:500])


def by_ranks(solver, **settings):
    problem = make_problem(n=600, p=600 if solver.every_row else 100)
    return torch.cat(
        run_threads(3, lambda comm: problem.solve(solver, comm=comm, **settings).alpha)
    )


CLASSES = dict(kernel=kernels.Laplacian(bandwidth=2.0), random_state=3)
FITS = {
    "direct": lambda: every_row(solver="direct", ridge=0.1),
    "direct, centers": lambda: regressor(solver="direct", ridge=0.1).fit(X, Y),
    "direct, weights": lambda: regressor(solver="direct", ridge=0.1).fit(X, Y, W),
    "eigenpro4": lambda: regressor(solver=EP4).fit(X, Y),
    "eigenpro4, float64": lambda: regressor(solver=EP4, precision="float64").fit(X, Y),
    "eigenpro4, ridge and weights": lambda: regressor(solver=EP4_OFTEN, ridge=0.5).fit(X, Y, W),
    "eigenpro4, cholesky": (
        lambda: regressor(
            solver=EigenPro4(s=100, q=20, m=80, T=3, projection="cholesky"), ridge=0.1
        ).fit(X, Y)
    ),
    "eigenpro4, one pass": (
        lambda: regressor(solver=EigenPro4(s=100, q=20, m=80, T=3, projection="one_pass")).fit(X, Y)
    ),
    "eigenpro4, no control variate": (
        lambda: regressor(solver=EigenPro4(s=100, q=20, control_variate=False)).fit(X, Y)
    ),
    "eigenpro4, paper": lambda: regressor(solver=EigenPro4.paper(s=100, q=20)).fit(X, Y),
    "eigenpro4, classes": (
        lambda: KernelClassifier(**CLASSES, n_centers=150, solver=EP4, epochs=2).fit(X, LABELS)
    ),
    "eigenpro4, stream": lambda: streamed(solver=EP4),
    "eigenpro4, resumed": lambda: resumed(solver=EP4_OFTEN),
    "eigenpro4, warm": lambda: warm(solver=EP4),
    "eigenpro4, chunks": lambda: in_chunks(solver=EP4),
    "eigenpro4, three ranks": lambda: by_ranks(EP4_OFTEN, epochs=3, ridge=0.1),
    "eigenpro4, paper, three ranks": lambda: by_ranks(EigenPro4.paper(s=100, q=20), epochs=2),
    "eigenpro4, early stopping": (
        lambda: regressor(solver=EP4, epochs=5, early_stopping=True).fit(X, Y)
    ),
    "eigenpro3": lambda: regressor(solver=EigenPro3(s=100, q=20, m=200), ridge=0.1).fit(X, Y),
    "eigenpro3, paper": (
        lambda: regressor(
            solver=EigenPro3(s=100, q=20, recipe="paper", projection="one_pass"), epochs=1
        ).fit(X, Y)
    ),
    "eigenpro3, three ranks": lambda: by_ranks(EigenPro3(s=100, q=20, m=100), epochs=1),
    "eigenpro2": lambda: every_row(solver=EigenPro2(s=100, q=20), ridge=0.1),
    "eigenpro2, three ranks": lambda: by_ranks(EigenPro2(s=100, q=20), epochs=2, ridge=0.1),
    "eigenpro1": lambda: every_row(solver=EigenPro1(q=20), ridge=0.1),
    "eigenpro4_exact": (
        lambda: regressor(solver=EigenPro4Exact(), ridge=0.0, epochs=2).fit(X[:600], Y[:600])
    ),
    "falkon": lambda: regressor(solver=Falkon(), ridge=0.1, epochs=None).fit(X, Y),
    "falkon, logistic": (
        lambda: KernelClassifier(
            **CLASSES, n_centers=100, solver=Falkon(loss="logistic"), ridge=0.1
        ).fit(X, LABELS)
    ),
    "falkon, stream": lambda: streamed(solver=Falkon(), ridge=0.1, n_centers=50, epochs=None),
    "falkon, resumed": lambda: resumed(
        solver=Falkon(tolerance=0, iterations=6), ridge=0.1, epochs=None
    ),
    "falkon, warm": lambda: warm(solver=Falkon(), ridge=0.1, epochs=None),
    "askotch": lambda: every_row(solver=ASkotch(m=100, rank=20), ridge=0.1),
    "nytro": lambda: regressor(solver=NYTRO(iterations=20)).fit(X, Y),
    "nytro, resumed": lambda: resumed(solver=NYTRO(iterations=6), epochs=None),
    "nytro, stream": lambda: streamed(solver=NYTRO(iterations=5), n_centers=50),
    "pegasos": (
        lambda: KernelClassifier(**CLASSES, solver=Pegasos(m=50), ridge=1.0, epochs=3).fit(
            X[:400], LABELS[:400]
        )
    ),
    "sgpr": lambda: regressor(solver=SGPR(), n_centers=50, ridge=0.1).fit(X, Y),
    "chunks": lambda: in_chunks(ridge=0.1, epochs=None),
    "chosen regression": lambda: KernelRegressor(random_state=0).fit(X[:300], Y[:300]),
    "chosen classes": lambda: KernelClassifier(random_state=0).fit(X[:300], LABELS[:300]),
}


def machine() -> str:
    cpu = (
        Path("/proc/cpuinfo").read_text()
        if Path("/proc/cpuinfo").exists()
        else platform.processor()
    )
    name = next(
        (line.split(":")[1].strip() for line in cpu.splitlines() if line.startswith("model name")),
        cpu[:60],
    )
    return f"{name}, torch {torch.__version__}, numpy {np.__version__}"


def weights_of(name: str) -> dict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = FITS[name]()
    alpha = found if isinstance(found, torch.Tensor) else found.model_.alpha
    mixed = torch.cos(torch.arange(alpha.numel(), dtype=torch.float64)).view(alpha.shape)
    flat = alpha.double()
    sums = [flat.abs().sum().item(), (flat * mixed).sum().item(), *flat[0].tolist()]
    if not isinstance(found, torch.Tensor):  # weights may differ where predictions do not
        sums += (
            found.model_(torch.as_tensor(np.resize(X, (5, found.n_features_in_))))
            .flatten()
            .tolist()
        )
    return {
        "sha256": hashlib.sha256(alpha.contiguous().numpy().tobytes()).hexdigest()[:16],
        "sums": sums,
    }


GOLDEN = json.loads(FILE.read_text()) if FILE.exists() else {"machine": "", "fits": {}}


@pytest.mark.parametrize("name", FITS)
def test_weights_are_as_they_were(name):
    want, found = GOLDEN["fits"][name], weights_of(name)
    if GOLDEN["machine"] == machine():
        assert found["sha256"] == want["sha256"]
    np.testing.assert_allclose(
        found["sums"], want["sums"], rtol=2e-2, atol=2e-2 * max(map(abs, want["sums"]))
    )


def test_there_is_nothing_golden_that_is_not_tried():
    assert set(GOLDEN["fits"]) == set(FITS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(FITS)
    fits = {**GOLDEN["fits"], **{name: weights_of(name) for name in names}}
    FILE.write_text(
        json.dumps({"machine": machine(), "fits": {name: fits[name] for name in FITS}}, indent=1)
        + "\n"
    )
    print(f"{len(names)} of {len(FITS)} fits written to {FILE.name}")
