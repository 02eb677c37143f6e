"""The runner of the benchmarks: a table of what can be measured, and one loop that stores it.

    python -m benchmarks                         # the table
    python -m benchmarks cpu [--option VALUE]    # measure, and store each row in results/cpu.json
    python -m benchmarks scaling --again         # measure nothing: summarise the stored rows

A benchmark is a generator of rows; its keyword arguments are the options of the command line.
A row replaces the stored row with the same key, the others stay: parts can be measured again, and
several processes may measure parts of one benchmark at the same time.
"""

from __future__ import annotations

import argparse
import fcntl
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from .measure import machine

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Benchmark:
    """An entry of the table: what is measured, the generator of its rows, and their key."""

    about: str
    cases: str  # module:function
    key: tuple[str, ...]
    needs_data: bool = False  # the files of KERNELMILL_DATA
    needs_gpu: bool = False

    def __str__(self) -> str:
        needs = ["KERNELMILL_DATA"] * self.needs_data + ["a GPU"] * self.needs_gpu
        return self.about + (f" (needs {' and '.join(needs)})" if needs else "")


BENCHMARKS = {
    "agop": Benchmark(
        "one average gradient outer product",
        "agop:cases",
        ("rows", "centers", "features", "outputs", "device"),
    ),
    "auto": Benchmark(
        "solver='auto' beside each of its candidates", "auto:cases", ("n", "p", "solver")
    ),
    "block": Benchmark(
        "a kernel block on a GPU", "block:cases", ("d", "c", "precision"), needs_gpu=True
    ),
    "billion": Benchmark(
        "rows on disk, up to a billion", "billion:cases", ("rows",), needs_gpu=True
    ),
    "choosing": Benchmark(
        "score against centers, kernel, epochs",
        "choosing:cases",
        ("varied", "data", "centers", "kernel", "epochs"),
        needs_data=True,
    ),
    "cli": Benchmark("the command line beside Python", "cli:cases", ("data",), needs_data=True),
    "compare": Benchmark(
        "all solvers on one dataset", "compare:cases", ("data", "solver"), needs_data=True
    ),
    "covertype": Benchmark(
        "Covertype without an argument", "covertype:cases", ("method", "device"), needs_data=True
    ),
    "coverage": Benchmark(
        "90 % intervals beside boosted quantiles",
        "coverage:cases",
        ("data", "method"),
        needs_data=True,
    ),
    "cpu": Benchmark("a kernel block on a CPU", "cpu:cases", ("d",)),
    "data": Benchmark("training from files", "data:cases", ("kind", "memory")),
    "dirty": Benchmark("raw tables, spoiled", "dirty:cases", ("way", "rows"), needs_data=True),
    "epoch": Benchmark(
        "one epoch on a GPU", "epoch:cases", ("task", "n", "p"), needs_data=True, needs_gpu=True
    ),
    "fashion": Benchmark(
        "Fashion-MNIST", "fashion:cases", ("solver", "epochs", "seed"), needs_data=True
    ),
    "first": Benchmark(
        "a fit without an argument on a CPU",
        "first:cases",
        ("table", "rows", "busy"),
        needs_data=True,
    ),
    "grid": Benchmark(
        "kernels, bandwidths, sizes and precisions",
        "grid:cases",
        ("kernel", "bandwidth_over_median", "s", "q", "precision"),
        needs_data=True,
    ),
    "growth": Benchmark(
        "more rows, centers and seeds",
        "growth:cases",
        ("table", "varied", "value"),
        needs_data=True,
    ),
    "heads": Benchmark(
        "heads on frozen features, with their sweeps",
        "heads:cases",
        ("data", "method"),
        needs_data=True,
    ),
    "large": Benchmark(
        "large tables without an argument",
        "large:cases",
        ("data", "part", "method", "centers", "device"),
        needs_data=True,
    ),
    "million": Benchmark(
        "a Gaussian process of two million rows",
        "million:cases",
        ("rows", "place", "device"),
        needs_gpu=True,
    ),
    "pcg": Benchmark(
        "kernel ridge with every row a center",
        "pcg:cases",
        ("rows", "features", "kernel", "ridge", "device"),
    ),
    "precision": Benchmark(
        "every precision on a GPU", "precision:cases", ("bandwidth", "q"), needs_gpu=True
    ),
    "processes": Benchmark(
        "Gaussian processes on tables, beside exact ones and others' libraries",
        "processes:cases",
        ("data", "method", "rows", "device"),
        needs_data=True,
    ),
    "ranks_memory": Benchmark("memory of each process", "ranks:memory", ("ranks",)),
    "ranks_model": Benchmark(
        "the cost model of many GPUs", "ranks:model", ("n", "p", "gpus"), needs_gpu=True
    ),
    "ranks_network": Benchmark(
        "simulated networks",
        "ranks:network",
        ("ranks", "latency_milliseconds", "gigabytes_per_second"),
    ),
    "ranks_time": Benchmark("one process against one for each core", "ranks:times", ("cores",)),
    "scaling": Benchmark(
        "time and memory against centers and rows", "scaling:cases", ("n", "p"), needs_gpu=True
    ),
    "speed": Benchmark(
        "exact solutions, first fits and predictions on a GPU",
        "speed:cases",
        ("task",),
        needs_gpu=True,
    ),
    "tables": Benchmark(
        "23 tables beside boosted trees",
        "bench_tables:cases",
        ("table", "method", "fraction", "device"),
        needs_data=True,
    ),
    "tabular": Benchmark(
        "four regression tables", "tabular:cases", ("data", "method"), needs_data=True
    ),
    "teacher": Benchmark("the generated task", "teacher:cases", ("method",)),
}


def main(words: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else list(words)
    if not words or words[0] not in BENCHMARKS:
        print(__doc__, *(f"{key:15}{each}" for key, each in BENCHMARKS.items()), sep="\n")
        sys.exit(2 if words and not words[0].startswith("-") else 0)
    name, benchmark = words[0], BENCHMARKS[words[0]]
    where, function = benchmark.cases.split(":")
    module = import_module(f".{where}", __package__)
    cases = getattr(module, function)
    options = parse(f"python -m benchmarks {name}", module.__doc__, cases, words[1:])
    folder, again = options.pop("results"), options.pop("again")
    path = folder / f"{name}.json"
    if not again:
        if benchmark.needs_gpu and not torch.cuda.is_available():
            sys.exit(f"The benchmark {name} needs a CUDA GPU.")
        run = machine(" ".join(["python -m benchmarks", *words]))
        for row in cases(**options):
            print(row, flush=True)
            store(path, benchmark.key, run, row)
    result = read(path)
    if hasattr(module, "summary"):
        result = {**result, "summary": module.summary(result["rows"])}
        path.write_text(json.dumps(result, indent=1) + "\n")
    if hasattr(module, "draw") and folder == RESULTS:
        module.draw(result["rows"])
    show(result["rows"])
    if "summary" in result:
        print(json.dumps(result["summary"], indent=1))


def parse(prog: str, doc: str | None, cases: Callable, words: list[str]) -> dict:
    """The keyword arguments of `cases`, read from the command line by the types of defaults."""
    parser = argparse.ArgumentParser(
        prog, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of NAME.json")
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure nothing: summary and pictures of the stored rows",
    )
    for name, parameter in inspect.signature(cases).parameters.items():
        flag, default = "--" + name.replace("_", "-"), parameter.default
        if isinstance(default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, tuple):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return vars(parser.parse_args(words))


def read(path: Path) -> dict:
    """A result file: `runs` has machines and commands, each of `rows` the number of its run."""
    return json.loads(path.read_text()) if path.exists() else {"runs": [], "rows": []}


def store(path: Path, key: tuple[str, ...], run: dict, row: dict) -> None:
    """Put a row into its file in place of the one with the same key; runs without rows go."""
    with locked(path.parent):
        result = read(path)
        same = [row.get(name) for name in key]
        kept = [old for old in result["rows"] if [old.get(name) for name in key] != same]
        pairs = [(result["runs"][old["run"]], old) for old in kept] + [(run, row)]
        runs = [
            each
            for i, (each, _) in enumerate(pairs)
            if each not in [before for before, _ in pairs[:i]]
        ]
        rows = [{**old, "run": runs.index(each)} for each, old in pairs]
        path.write_text(json.dumps({"runs": runs, "rows": rows}, indent=1) + "\n")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time reads and writes a folder of results."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def show(rows: list[dict]) -> None:
    """Rows as an aligned table; lists and the number of the run are left out."""
    keys = list(
        dict.fromkeys(
            key for row in rows for key, value in row.items() if not isinstance(value, list | dict)
        )
    )
    keys = [key for key in keys if key != "run"]
    lines = [keys, *([cell(row.get(key)) for key in keys] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(keys))]
    for line in lines:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )


def cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
