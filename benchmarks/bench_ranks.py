"""Several processes on one machine: time, memory of each, and what sums over ranks cost on networks that are only simulated.

    python benchmarks/bench_ranks.py [--only time,memory,network,model]

time:    one process with all cores against one process for each core, by turns, the same fit.
memory:  the most that each of 1, 2 and 4 processes holds during a fit, beyond what it held before, which is X and y.
network: one process that is rank 0 of many. It computes its own share; sums return its own part after the time that a network of set
         latency and bandwidth would take for them. "hidden" is the part of that time which the run did not become longer by; "predicted"
         is the cost model's, from this machine's rates.
model:   on a GPU, what it does in a second, and one epoch predicted from that beside the same measured; then, by the same model, epochs on
         many such GPUs. Their networks are assumed: NVLINK within eight, INFINIBAND beyond.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from common import Peak, show, teacher, write
from kernelmill import KernelClassifier, KernelRegressor
from kernelmill.costs import eigenpro4_epochs
from kernelmill.data import ArraySource
from kernelmill.distributed import shard
from kernelmill.kernels import Laplacian
from kernelmill.planning import Plan
from kernelmill.rates import Network, measure
from kernelmill.solvers import EigenPro4, Problem, drive

CORES = os.cpu_count() or 1
TASKS = {"time": dict(n=100_000, d=100, p=50_000), "memory": dict(n=120_000, d=200, p=120_000)}


def task(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng(0)
    X = g.normal(size=(n, d)).astype(np.float32)
    return X, np.tanh(X @ g.normal(size=(d, 10)).astype(np.float32) / d**0.5)


def job(kind: str, folder: Path) -> None:
    """One of the processes: fit, and say how long it took and what it held."""
    X, y = (np.load(folder / f"{name}.npy") for name in ("X", "y"))
    solver = EigenPro4(s=2000, q=200, projection="carried", T=20 if kind == "memory" else None)
    settings = dict(kernel=Laplacian(10.0), n_centers=TASKS[kind]["p"], solver=solver, epochs=1, random_state=0, device="cpu")
    KernelRegressor(**{**settings, "n_centers": 500, "solver": "eigenpro4"}).fit(X[:1000], y[:1000])  # what is loaded once is not counted
    first = (lambda event: event.kind == "projection") if kind == "memory" else None  # one cycle has held all that the others would
    with Peak() as peak:
        model = KernelRegressor(**settings, callbacks=first).fit(X, y)
    rank = int(os.environ.get("RANK", 0))
    facts = {"seconds": model.timings_["solving"], "mib": peak.mib, "predicted mib": model.plan_.bytes / 2**20}
    (folder / f"rank-{rank}.json").write_text(json.dumps(facts))


def run(kind: str, ranks: int, threads: int) -> list[dict]:
    """The same fit by so many processes of so many threads; what each of them said."""
    sizes = TASKS[kind]
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        for name, values in zip(("X", "y"), task(sizes["n"], sizes["d"]), strict=True):
            np.save(f"{folder}/{name}.npy", values)
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        common = {**os.environ, "OMP_NUM_THREADS": str(threads), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        sized = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        command = [sys.executable, __file__, "--job", kind, folder]
        each = [{**common, **({**sized, "RANK": str(r), "LOCAL_RANK": str(r)} if ranks > 1 else {})} for r in range(ranks)]
        processes = [subprocess.Popen(command, env=env) for env in each]
        if any([process.wait() for process in processes]):
            sys.exit("a process of the job failed.")
        return [json.loads(Path(folder, f"rank-{r}.json").read_text()) for r in range(ranks)]


def times(rounds: int = 3) -> list[dict]:
    one, many = [], []
    for _ in range(rounds):
        one.append(run("time", 1, CORES)[0]["seconds"])
        many.append(max(each["seconds"] for each in run("time", CORES, 1)))
        print(f"one process {one[-1]:.1f} s, {CORES} processes {many[-1]:.1f} s", flush=True)
    a, b = statistics.median(one), statistics.median(many)
    return [{"cores": CORES, "one process s": a, "a process for each core s": b, "ratio": b / a, "all s": [one, many]}]


def memory() -> list[dict]:
    rows = []
    for ranks in (1, 2, 4):
        said = run("memory", ranks, max(1, CORES // ranks))
        most = max(each["mib"] for each in said)
        rows.append({"ranks": ranks, "MiB of a rank": most, "predicted MiB": said[0]["predicted mib"], "seconds": said[0]["seconds"]})
        rows[-1]["share of one"] = most / rows[0]["MiB of a rank"]
        print(rows[-1], flush=True)
    return rows


class Simulated:
    """Rank 0 of many on a network that is not there. One line: a sum begins when the one before is done."""

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


def network() -> list[dict]:
    torch.set_num_threads(1)
    n, d, p = 20_480, 100, 20_480
    X, y = (torch.from_numpy(part) for part in task(n, d))
    kernel, solver, mean = Laplacian(10.0), EigenPro4(s=1000, q=100, projection="carried"), torch.zeros(10)
    rates = measure(kernel, d, "float32", "cpu")
    rows = []
    for ranks in (2, 4, 8, 16):
        plan = solver.plan(Plan("eigenpro4", n, d, 10, p, epochs=1, x_bytes=4, budget=4 << 30, ranks=ranks, rates=rates))
        for net in (Network(0.0, np.inf), Network(1e-4, 1e9), Network(1e-3, 1e9), Network(1e-4, 1e8)):
            comm, marks = Simulated(ranks, net), {}

            def note(event, comm=comm, marks=marks) -> bool:
                marks[event.kind] = event.seconds, comm.busy, comm.sums
                return False

            def fit(plan, comm, note=lambda event: False):
                source = ArraySource(X, y, mean=mean, seed=0, comm=comm)
                return drive(solver, Problem(kernel, source, X[:p][shard(comm)], comm, torch.Generator().manual_seed(0)), plan, note)

            # The step is set to almost nothing: with the others' parts missing, sums are wrong, and only their time is looked at.
            still = replace(plan, m=2048, T=5, eta=1e-12, m_Z=512, tau=1.0, keep_block=True, beta_mean=1.0)
            fit(still, comm, note)
            start, end = marks["start"], marks["end"]
            seconds, busy = end[0] - start[0], end[1] - start[1]
            if net.latency == 0:
                computing = seconds
            predicted = eigenpro4_epochs(still, replace(rates, network=net))
            rows.append(
                {
                    "ranks": ranks, "latency ms": 1e3 * net.latency, "GB/s": net.bandwidth / 1e9, "sums": end[2] - start[2],
                    "seconds": seconds,
                    "summing s": busy, "hidden": 1 - (seconds - computing) / busy if busy else None, "predicted s": predicted,
                    "predicted / measured": predicted / seconds,
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    return rows


NVLINK, INFINIBAND = Network(20e-6, 150e9), Network(20e-6, 40e9)  # what vendors promise for sums, less a fifth
JOBS = [(10**7, 10**6), (10**8, 10**7), (10**9, 10**8)]  # rows, centers


def model() -> list[dict]:
    if not torch.cuda.is_available():
        sys.exit("the model is made of a GPU's rates; --only time,memory,network runs without one.")
    kernel, d = Laplacian(10.0), 1280
    rates = measure(kernel, d, "float16", "cuda")
    X, y = teacher(500_000, 0, "cuda")
    settings = dict(kernel=kernel, n_centers=131_072, solver=EigenPro4(projection="carried"), epochs=1, random_state=0)
    for _ in range(2):  # the first compiles
        fitted = KernelClassifier(**settings).fit(X, y)
    seconds = fitted.history_[-1]["seconds"]
    rows = [{"n": 500_000, "p": 131_072, "GPUs": 1, "epoch s": eigenpro4_epochs(fitted.plan_, rates), "measured s": seconds}]
    rows[0] |= {"GiB of each": fitted.plan_.bytes / 2**30, "summing share": 0.0, "fits": True}
    for n, p in JOBS:
        for ranks in (1, 8, 64, 256, 1024):
            net = NVLINK if ranks <= 8 else INFINIBAND
            base = Plan("eigenpro4", n, d, 10, p, precision="float16", device="cuda", x_bytes=2, epochs=1, budget=120 << 30, ranks=ranks)
            plan = EigenPro4(projection="carried").plan(base)
            alone, together = (eigenpro4_epochs(plan, replace(rates, network=of)) for of in (None, net))
            fits = plan.bytes <= plan.budget
            facts = {"GiB of each": plan.bytes / 2**30, "summing share": 1 - alone / together, "fits": fits}
            rows.append({"n": n, "p": p, "GPUs": ranks, "epoch s": together, "measured s": None, **facts})
    for row in rows:
        row["rates"] = asdict(rates)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="time,memory,network")
    parser.add_argument("--job", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        return job(options.job[0], Path(options.job[1]))
    for name, work in (("time", times), ("memory", memory), ("network", network), ("model", model)):
        if name in options.only.split(","):
            rows = work()
            show([{key: value for key, value in row.items() if key != "rates"} for row in rows])
            write(f"ranks_{name}", rows)


if __name__ == "__main__":
    main()
