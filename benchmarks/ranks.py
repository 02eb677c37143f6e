"""Several processes on one machine: time, memory of each, and sums on simulated networks.

python -m benchmarks ranks_time        # one process with all cores, and one for each core python
-m benchmarks ranks_memory      # the peak of each of 1, 2 and 4 processes beyond X and y python -m
benchmarks ranks_network     # one process that plays rank 0 of many python -m benchmarks
ranks_model       # on a GPU: epochs on many such GPUs, predicted

network: the process computes its own share; sums return its own part after the time that a network
of set latency and bandwidth would take for them. `hidden_share` is the part of that time by which
the run did not become longer; `predicted_seconds` is the cost model's, from this machine's rates.

model: what a GPU does in a second, and one epoch predicted from that beside the same measured;
then, by the same model, epochs on many such GPUs. Their networks are assumed: NVLINK within eight,
INFINIBAND beyond.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.data import ArraySource
from kernelmill.distributed.team import shard
from kernelmill.kernels import Laplacian
from kernelmill.planning.machine import Network, measure
from kernelmill.planning.plan import Plan
from kernelmill.solvers import EigenPro4, Problem, drive
from kernelmill.solvers.eigenpro_costs import eigenpro4_epochs

from .measure import Peak
from .tasks import teacher

CORES = os.cpu_count() or 1


def task(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(0)
    X = g.normal(size=(n, d)).astype(np.float32)
    return X, np.tanh(X @ g.normal(size=(d, 10)).astype(np.float32) / d**0.5)


def job(kind: str, folder: Path) -> None:
    """One of the processes: fit, and store how long it took and what it held."""
    X, y = (np.load(folder / f"{name}.npy") for name in ("X", "y"))
    solver = EigenPro4(s=2000, q=200, projection="carried", T=20 if kind == "memory" else None)
    settings = dict(kernel=Laplacian(10.0), epochs=1, random_state=0, device="cpu")
    small = KernelRegressor(n_centers=500, solver="eigenpro4", **settings)
    small.fit(X[:1000], y[:1000])  # what is loaded once is not counted
    stop = None
    if kind == "memory":  # one cycle has held all that the others would

        def stop(event) -> bool:
            return event.kind == "projection"

    model = KernelRegressor(
        n_centers=len(X) if kind == "memory" else len(X) // 2,
        solver=solver,
        callbacks=stop,
        **settings,
    )
    with Peak() as peak:
        model.fit(X, y)
    rank = int(os.environ.get("RANK", 0))
    measured = {
        "seconds": model.timings_["solving"],
        "peak_mib": peak.mib,
        "predicted_mib": model.plan_.bytes / 2**20,
    }
    (folder / f"rank-{rank}.json").write_text(json.dumps(measured))


def run(kind: str, ranks: int, threads: int, n: int, d: int) -> list[dict]:
    """The same fit by that many processes of that many threads; what each of them measured."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        for name, values in zip(("X", "y"), task(n, d), strict=True):
            np.save(f"{folder}/{name}.npy", values)
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        common = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        if ranks > 1:
            common |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        command = [sys.executable, "-m", "benchmarks.ranks", kind, folder]
        environments = [
            common | ({"RANK": str(r), "LOCAL_RANK": str(r)} if ranks > 1 else {})
            for r in range(ranks)
        ]
        processes = [subprocess.Popen(command, env=env) for env in environments]
        if any([process.wait() for process in processes]):
            sys.exit("a process of the job failed.")
        return [json.loads(Path(folder, f"rank-{r}.json").read_text()) for r in range(ranks)]


def times(rows: int = 100_000, features: int = 100, rounds: int = 3) -> Iterator[dict]:
    one, many = [], []
    for _ in range(rounds):
        one.append(run("time", 1, CORES, rows, features)[0]["seconds"])
        many.append(max(each["seconds"] for each in run("time", CORES, 1, rows, features)))
        print(f"one process {one[-1]:.1f} s, {CORES} processes {many[-1]:.1f} s", flush=True)
    a, b = statistics.median(one), statistics.median(many)
    yield {
        "n": rows,
        "d": features,
        "p": rows // 2,
        "cores": CORES,
        "one_process_seconds": a,
        "process_per_core_seconds": b,
        "processes_over_one": b / a,
        "one_process_all_seconds": one,
        "process_per_core_all_seconds": many,
    }


def memory(
    rows: int = 120_000, features: int = 200, ranks: tuple[int, ...] = (1, 2, 4)
) -> Iterator[dict]:
    alone = None
    for count in ranks:
        measured = run("memory", count, max(1, CORES // count), rows, features)
        most = max(each["peak_mib"] for each in measured)
        alone = alone or most
        yield {
            "n": rows,
            "d": features,
            "p": rows,
            "ranks": count,
            "peak_mib": most,
            "predicted_mib": measured[0]["predicted_mib"],
            "seconds": measured[0]["seconds"],
            "share_of_one": most / alone,
        }


class Simulated:
    """Rank 0 of many on a network that is not there: a sum begins when the one before is done."""

    rank = 0

    def __init__(self, size: int, network: Network):
        self.size, self._network, self._free, self.busy, self.sums = size, network, 0.0, 0.0, 0

    def start_sum(self, value: torch.Tensor) -> Callable[[], torch.Tensor]:
        took = self._network.seconds(value.nbytes, self.size)
        self._free = done = max(self._free, time.perf_counter()) + took
        self.busy, self.sums = self.busy + took, self.sums + 1

        def wait() -> torch.Tensor:
            while (left := done - time.perf_counter()) > 0:
                time.sleep(left if left > 2e-4 else 0)
            return value

        return wait

    def all_sum(self, value: torch.Tensor) -> torch.Tensor:
        return self.start_sum(value)()

    def same(self, make):
        return make()

    def tell(self, error):
        raise error


def network(
    rows: int = 20_480, features: int = 100, ranks: tuple[int, ...] = (2, 4, 8, 16)
) -> Iterator[dict]:
    torch.set_num_threads(1)
    n, d, p = rows, features, rows
    X, y = (torch.from_numpy(part) for part in task(n, d))
    kernel, solver = Laplacian(10.0), EigenPro4(s=1000, q=100, projection="carried")
    rates = measure(kernel, d, "float32", "cpu")
    for size in ranks:
        base = Plan(
            "eigenpro4", n, d, 10, p, epochs=1, x_bytes=4, budget=4 << 30, ranks=size, rates=rates
        )
        # With the others' parts missing sums are wrong: the step is almost 0, only time counts.
        still = replace(
            solver.plan(base),
            m=2048,
            T=5,
            eta=1e-12,
            m_Z=512,
            tau=1.0,
            keep_block=True,
            beta_mean=1.0,
        )
        for net in (
            Network(0.0, np.inf),
            Network(1e-4, 1e9),
            Network(1e-3, 1e9),
            Network(1e-4, 1e8),
        ):
            comm, marks = Simulated(size, net), {}

            def note(event, comm=comm, marks=marks) -> bool:
                marks[event.kind] = event.seconds, comm.busy, comm.sums
                return False

            source = ArraySource(X, y, mean=torch.zeros(10), seed=0, comm=comm)
            Z = X[:p][shard(comm)]
            problem = Problem(kernel, source, Z, comm, torch.Generator().manual_seed(0))
            drive(solver, problem, still, note)
            seconds, busy, sums = (
                end - start for start, end in zip(marks["start"], marks["end"], strict=True)
            )
            if net.latency == 0:
                computing = seconds
            predicted = eigenpro4_epochs(still, replace(rates, network=net))
            yield {
                "ranks": size,
                "latency_milliseconds": 1e3 * net.latency,
                "gigabytes_per_second": None if np.isinf(net.bandwidth) else net.bandwidth / 1e9,
                "sums": sums,
                "seconds": seconds,
                "summing_seconds": busy,
                "hidden_share": 1 - (seconds - computing) / busy if busy else None,
                "predicted_seconds": predicted,
                "predicted_over_measured": predicted / seconds,
            }


# What vendors promise for sums, less a fifth.
NVLINK, INFINIBAND = (Network(20e-6, 150e9), Network(20e-6, 40e9))
JOBS = [(10**7, 10**6), (10**8, 10**7), (10**9, 10**8)]  # rows, centers


def model() -> Iterator[dict]:
    kernel, solver, d = Laplacian(10.0), EigenPro4(projection="carried"), 1280
    rates = measure(kernel, d, "float16", "cuda")
    X, y = teacher(500_000, 0, "cuda")
    for _ in range(2):  # the first compiles
        fitted = KernelClassifier(
            kernel=kernel, n_centers=131_072, solver=solver, epochs=1, random_state=0
        ).fit(X, y)
    plan = fitted.plan_
    yield {
        "n": 500_000,
        "p": 131_072,
        "gpus": 1,
        "predicted_seconds": eigenpro4_epochs(plan, rates),
        "measured_seconds": fitted.history_[-1]["seconds"],
        "gib_per_gpu": plan.bytes / 2**30,
        "summing_share": 0.0,
        "fits": True,
        "rates": asdict(rates),
    }
    for n, p in JOBS:
        for ranks in (1, 8, 64, 256, 1024):
            net = NVLINK if ranks <= 8 else INFINIBAND
            base = Plan(
                "eigenpro4",
                n,
                d,
                10,
                p,
                precision="float16",
                device="cuda",
                x_bytes=2,
                epochs=1,
                budget=120 << 30,
                ranks=ranks,
            )
            plan = solver.plan(base)
            alone, together = (
                eigenpro4_epochs(plan, replace(rates, network=of)) for of in (None, net)
            )
            yield {
                "n": n,
                "p": p,
                "gpus": ranks,
                "predicted_seconds": together,
                "measured_seconds": None,
                "gib_per_gpu": plan.bytes / 2**30,
                "summing_share": 1 - alone / together,
                "fits": plan.bytes <= plan.budget,
                "rates": asdict(rates),
            }


if __name__ == "__main__":
    job(sys.argv[1], Path(sys.argv[2]))
