"""One epoch on a GPU, set-up included: the generated task at two sizes and Fashion-MNIST with augmented copies.

    python benchmarks/bench_epoch.py [--only teacher,host,fashion,million]

The first fit of each shape compiles Triton kernels: it is run once before the one that counts, and the difference is reported. "host"
trains the same task from rows in host memory.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from augment import augment
from common import fashion_mnist, show, teacher, write
from gpu import measured_fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="teacher,host,fashion,million")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench_epoch.py needs a CUDA GPU.")
    wanted, rows = options.only.split(","), []

    def run(task: str, X, y, X_test, y_test, warm_up: bool = True, **settings):
        cold = measured_fit(X, y, X_test, y_test, **settings)[0]["fit s"] if warm_up else None
        best, model = measured_fit(X, y, X_test, y_test, **settings)
        row = {"task": task, **best, "compiling s": max(0.0, cold - best["fit s"]) if cold else None}
        rows.append(row)
        print(row, flush=True)
        write("epoch", rows)
        return model

    if "teacher" in wanted:
        X, y = teacher(500_000, 0, "cuda")
        test = teacher(20_000, 99, "cuda")
        run("teacher", X, y, *test, n_centers=131_072, bandwidth=10.0)
        if "host" in wanted:
            host = X.cpu()
            run("teacher, X in host memory", host, y, *test, n_centers=131_072, bandwidth=10.0)
            run("teacher, again", X, y, *test, warm_up=False, n_centers=131_072, bandwidth=10.0)
            del host
        del X
    if "fashion" in wanted:
        images, labels, X_test, y_test = fashion_mnist()
        X = augment((images * 255).round().to(torch.uint8).cuda(), copies=16, seed=0)
        run("Fashion-MNIST, 15 augmented copies", X, labels.repeat(16), X_test.cuda(), y_test, n_centers=131_072, bandwidth=20.0)
        del X
    if "million" in wanted:
        X, y = teacher(5_000_000, 0, "cuda")
        test = teacher(20_000, 99, "cuda")
        run("teacher", X, y, *test, warm_up="teacher" not in wanted, n_centers=131_072, bandwidth=10.0)
        model = run("teacher", X, y, *test, warm_up=False, n_centers=1_000_000, bandwidth=10.0)
        million = X[:1_000_000].cpu()
        del X
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        with torch.no_grad():
            model.model_(million)
        torch.cuda.synchronize()
        predict = {
            "rows": 1_000_000, "centers": 1_000_000, "seconds": time.perf_counter() - start,
            "peak GiB beyond the model": (torch.cuda.max_memory_allocated() - before) / 2**30,
        }  # fmt: skip
        print("predict, rows in host memory:", predict)
        write("epoch", rows, predict=predict)
    show(rows)


if __name__ == "__main__":
    main()
