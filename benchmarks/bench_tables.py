"""KernelClassifier() and KernelRegressor() without an argument beside boosted trees, on 23 tables.

    KERNELMILL_DATA=folder python -m benchmarks.bench_tables [--tables hotel] [--methods lightgbm]
    python -m benchmarks.bench_tables --table [FILE ...]    # fit nothing: the summary
    python -m benchmarks.bench_tables --table FILE ... --store    # and results/tables.json

Each finished fit is one more line of --out, with the machine it ran on; what is there already is
not fitted again. So several machines may do parts, each with its own file. Methods whose package
is missing are skipped: the peers are installed by hand (`pip install lightgbm catboost xrfm`).
`python -m benchmarks tables` fits the same and stores its rows as every benchmark does.

Everything is chosen on training rows; the test rows are read once per fit, after it. Scores: error
in % and log loss, or RMSE over the deviation of the test targets. Beside the 23 tables there are
other cuts of two of them (`--tables covertype-64`): the shares that others published results on,
and whole wilderness areas held out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from .measure import machine
from .tables.data import SPLITS, TABLES, Table
from .tables.methods import METHODS, Means, OutOfTime
from .tables.scores import scores
from .tables.summary import counts, page

STORED = Path(__file__).parent / "results" / "tables.json"
KEY = ("table", "method", "fraction", "device")
FRACTIONS = (1.0, 0.25, 0.0625)
EVERY: dict[str, Table] = {**TABLES, **SPLITS}


def cases(
    tables: tuple[str, ...] = tuple(TABLES),
    methods: tuple[str, ...] = tuple(METHODS),
    fractions: tuple[float, ...] = FRACTIONS,
    device: str = "auto",
    limit: float = 600.0,
    threads: int = os.cpu_count() or 1,
    trees: int = 3000,
) -> Iterator[dict]:
    """One row per table, fraction and method; by the runner, each is fitted again."""
    means = Means(resolve(device), threads, limit, trees)
    return measure(tables, methods, fractions, means, done=())


def resolve(device: str) -> str:
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def measure(
    tables: Sequence[str],
    methods: Sequence[str],
    fractions: Sequence[float],
    means: Means,
    done: Collection[tuple],
) -> Iterator[dict]:
    """Rows of the fits that are not done yet; a fit that fails is said, and the others go on."""
    for name in methods:
        if not METHODS[name].is_there:
            print(f"{name}: skipped, the package {METHODS[name].package} is missing.", flush=True)
    for table in tables:
        for fraction in fractions:
            for name in methods:
                device = means.device if METHODS[name].on_device else "cpu"
                key = (table, name, fraction, device)
                if key in done or not METHODS[name].is_there:
                    continue
                try:
                    yield dict(zip(KEY, key, strict=True)) | row_of(
                        EVERY[table], name, fraction, means
                    )
                except Exception:
                    print(f"{table}, {name}, {fraction:g} of the rows failed:", file=sys.stderr)
                    traceback.print_exc()


def row_of(table: Table, name: str, fraction: float, means: Means) -> dict:
    """Fit, then read the test rows and score them."""
    rows = table.train(fraction)
    row = {"rows": len(rows), "columns": rows.columns, "classes": rows.classes}
    row |= {"trees_at_most": means.trees, "limit_seconds": means.seconds}
    begun = time.perf_counter()
    try:
        with alarm(1.5 * means.seconds):  # boosted trees stop themselves at the limit
            model = METHODS[name].fit(rows, means)
    except OutOfTime:
        return {**row, "stopped": "no model in time"}
    row["fit_seconds"] = time.perf_counter() - begun
    test = table.test(rows.labels)
    begun = time.perf_counter()
    predicted = model.predict(test.X)
    row["predict_seconds"] = time.perf_counter() - begun
    return {**row, "test_rows": len(test), **scores(test, predicted), **model.notes}


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """OutOfTime inside, after so many seconds."""

    def ring(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def read_lines(paths: Sequence[Path]) -> list[dict]:
    """The rows of the files; of those with the same key, the last."""
    rows = {}
    for path in paths:
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[tuple(row[name] for name in KEY)] = row
    return list(rows.values())


def store(path: Path, rows: list[dict]) -> None:
    """The lines as a result file: each machine once, and in each row its number."""
    runs: list[dict] = []
    kept = []
    for row in rows:
        where = row["machine"]
        if where not in runs:
            runs.append(where)
        rest = {key: value for key, value in row.items() if key != "machine"}
        kept.append({**rest, "run": runs.index(where)})
    result = {"runs": runs, "rows": kept, "summary": counts(kept)}
    path.write_text(json.dumps(result, indent=1) + "\n")


def summary(rows: list[dict]) -> dict:
    return counts(rows)


def say(row: dict) -> str:
    """One line about a fit: its scores, seconds, and what was chosen."""
    shown = {key: value for key, value in row.items() if not isinstance(value, dict)}
    return "  ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in shown.items()
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.bench_tables",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tables", nargs="+", choices=EVERY, default=list(TABLES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--fractions", nargs="+", type=float, default=FRACTIONS)
    parser.add_argument("--device", default="auto", help="of kernelmill and xrfm")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of the peers")
    parser.add_argument("--trees", type=int, default=3000, help="of the peers, at most")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one fit")
    parser.add_argument("--out", type=Path, default=Path("tables.jsonl"))
    parser.add_argument("--again", action="store_true", help="fit what is there already, too")
    parser.add_argument("--table", nargs="*", type=Path, metavar="FILE", help="the summary alone")
    parser.add_argument("--before", type=Path, help="lines of an earlier kernelmill, to compare")
    parser.add_argument("--store", action="store_true", help=f"write {STORED.name} from the lines")
    given = parser.parse_args(words)
    if given.table is None:
        fit_and_append(given)
    rows = read_lines(given.table or [given.out])
    before = [] if given.before is None else read_lines([given.before])
    print(page(rows, before))
    if given.store:
        store(STORED, rows)


def fit_and_append(given: argparse.Namespace) -> None:
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.touch()
    stored = [] if given.again else read_lines([given.out])
    done = {tuple(row[name] for name in KEY) for row in stored}
    means = Means(resolve(given.device), given.threads, given.limit, given.trees)
    where = machine()
    for row in measure(given.tables, given.methods, given.fractions, means, done):
        print(say(row), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps({**row, "machine": where}) + "\n")


if __name__ == "__main__":
    main()
