"""docs/benchmarks.md and the table of the README, from the stored results alone.

    python -m benchmarks.page

benchmarks/page.md has the words, and {{ name }} where the function of that name says what to put.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, median

from .run import RESULTS
from .run import read as read_result
from .tables.data import SPLITS
from .tables.summary import CURVES, main_score

ROOT = Path(__file__).parent.parent
TEXT, BY_HAND = Path(__file__).parent / "page.md", Path(__file__).parent / "by_hand.md"
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
MARKS = "<!-- measured: written by benchmarks/page.py -->", "<!-- end of measured -->"


def read(name: str) -> dict:
    return read_result(RESULTS / f"{name}.json")


def rows_of(name: str, **wanted: object) -> list[dict]:
    """Rows of a result that have these values."""
    found = read(name)["rows"]
    return [row for row in found if all(row.get(key) == value for key, value in wanted.items())]


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    cells = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in cells)


def listed(rows: list[dict], columns: dict[str, str]) -> str:
    """A table with a line for each row: heads, and how a row is written below them."""
    lines = ([form.format(**row) for form in columns.values()] for row in rows)
    return table(list(columns), lines)


def seconds(value: float) -> str:
    if value < 1:
        return f"{value:.2g} s"
    return f"{value:.1f} s" if value < 20 else f"{value:.0f} s"


def spread(values: Iterable[float], digits: int = 1) -> str:
    """The least and the largest: "1.8 to 2.1"."""
    low, high = min(values := list(values)), max(values)
    return f"{low:.{digits}f} to {high:.{digits}f}"


# ---- what stands in the page, by name


def tabular() -> str:
    methods = list(dict.fromkeys(row["method"] for row in sorted(rows_of("tabular"), key=order)))
    lines = []
    for data in ("kin40k", "protein", "elevators", "keggdirected"):
        found = {row["method"]: row for row in rows_of("tabular", data=data)}
        best = min(row["rmse_over_deviation"] for row in found.values())
        line = []
        for method in methods:
            score = f"{found[method]['rmse_over_deviation']:.3g}"
            if found[method]["rmse_over_deviation"] == best:
                score = f"**{score}**"
            line.append(f"{score} ({seconds(found[method]['seconds'])})")
        lines.append([data, *line])
    return table(["", *methods], lines)


def boosted() -> str:
    """Our fits beside early-stopped trees and xRFM, on all rows."""
    shown = ("kernelmill", "lightgbm", "catboost", "hist", "xrfm")
    rows = [row for row in rows_of("tables", fraction=1.0) if main_score(row) is not None]
    lines = []
    for name in dict.fromkeys(row["table"] for row in rows):
        found = {row["method"]: row for row in rows if row["table"] == name}
        if "kernelmill" not in found or name in SPLITS:
            continue
        best = min(main_score(found[method]) for method in shown if method in found)
        cells = [_boosted_cell(found.get(method), best) for method in shown]
        took = seconds(found["kernelmill"]["fit_seconds"])
        lines.append([name, f"{found['kernelmill']['rows']:,}", *cells, took])
    names = ("kernelmill", "LightGBM", "CatBoost", "HistGradientBoosting", "xRFM")
    return table(["", "rows", *names, "our fit"], lines)


def tuned() -> str:
    """Our fits beside trees that were tuned, on all rows."""
    peers = ("lightgbm-tuned", "hist-tuned")
    rows = [row for row in rows_of("tables", fraction=1.0) if main_score(row) is not None]
    lines = []
    for name in dict.fromkeys(row["table"] for row in rows if row["method"] in peers):
        found = {row["method"]: row for row in rows if row["table"] == name}
        best = min(
            main_score(found[method]) for method in ("kernelmill", *peers) if method in found
        )
        cells = [_boosted_cell(found.get(method), best) for method in ("kernelmill", *peers)]
        draws = [str(found[method]["draws"]) if method in found else "–" for method in peers]
        lines.append([name, *cells, " / ".join(draws)])
    return table(["", "kernelmill", "LightGBM", "HistGradientBoosting", "draws"], lines)


def curves() -> str:
    """The score with a sixteenth of the rows, and with all of them."""
    methods = ("kernelmill", "lightgbm")
    lines = []
    for name in CURVES:
        cells = []
        for method in methods:
            for fraction in (0.0625, 1.0):
                rows = rows_of("tables", table=name, method=method, fraction=fraction)
                cells.append(_boosted_cell(rows[-1] if rows else None, 0.0))
        lines.append([name, *cells])
    heads = ["", "kernelmill, n/16", "kernelmill, n", "LightGBM, n/16", "LightGBM, n"]
    return table(heads, lines)


def cuts() -> str:
    """Other cuts of two tables."""
    rows = [row for row in rows_of("tables") if row["table"] in SPLITS and main_score(row)]
    lines = [
        [row["table"], row["method"], f"{row['rows']:,}", _boosted_cell(row, 0.0)]
        + [seconds(row["fit_seconds"])]
        for row in rows
    ]
    return table(["", "method", "rows", "score", "fit"], lines)


def _boosted_cell(row: dict | None, best: float) -> str:
    if row is None:
        return "–"
    score = main_score(row)
    text = f"{score:.4f}" if "log_loss" not in row else f"{score:.2f} / {row['log_loss']:.4f}"
    return f"**{text}**" if score == best else text


def order(row: dict) -> int:
    """This library first, then what is nearest to it."""
    methods = ("KernelRegressor", "KernelRidge", "Nystroem", "HistGradientBoosting")
    return next(i for i, name in enumerate(methods) if row["method"].startswith(name))


def fashion() -> str:
    names = {
        "auto": '`solver="auto"`',
        "exact": "EigenPro 4, exact projection",
        "O(p)": "EigenPro 4 in O(p) memory",
        "paper": "the paper's recipe",
        "direct": "direct solution",
    }
    lines = []
    for solver, name in names.items():
        for epochs in (None, 1, 3):
            found = rows_of("fashion", solver=solver, epochs=epochs)
            if found:
                lines.append([name, *fashion_cells(solver, epochs, found)])
    return table(["", "epochs", "accuracy", "an epoch costs", "fit"], lines)


def fashion_cells(solver: str, epochs: int | None, found: list[dict]) -> list[str]:
    accuracy = f"{mean(row['accuracy_percent'] for row in found):.1f} %"
    if solver == "auto":
        return ["–", accuracy, "–", f"{spread(row['fit_seconds'] for row in found)} s"]
    fit = seconds(median(row["fit_seconds"] for row in found))
    if solver == "direct":
        return ["–", accuracy, "–", fit]
    cost = median(row["epoch_over_evaluation"] for row in found)
    return [str(epochs), accuracy, f"{cost:.1f} evaluations of K(X, Z)", fit]


def fashion_auto() -> str:
    found = rows_of("fashion", solver="auto")
    held = spread(row["fit_seconds"] / row["held_evaluation_seconds"] for row in found)
    not_held = spread(row["fit_over_evaluation"] for row in found)
    fresh = spread(row["held_evaluation_seconds"] for row in found)
    tiles = median(row["evaluation_seconds"] for row in found)
    return (
        f'`solver="auto"` takes {found[0]["chosen"].capitalize()} here, and holds K(X, Z).\n'
        f"The whole fit costs {held} evaluations into fresh memory, or {not_held} tile by tile.\n"
        "Keeping K(X, Z) means writing 1.2 GB of fresh memory, which takes this machine as long as "
        f"evaluating it: {fresh} s against {tiles:.1f} s tile by tile."
    )


def heads() -> str:
    """Heads on frozen features: accuracy, and seconds of the sweep and of the fit."""
    names = {
        "laplacian": "kernel head, Laplacian",
        "gaussian": "kernel head, Gaussian",
        "logistic": "logistic regression",
    }
    data = {"features": "images", "text": "texts"}
    columns = {
        "": "{what}, {rows:,} × {features:,}, {classes} classes",
        "head": "{head}",
        "tried": "{tried}",
        "chosen": "{chosen}",
        "held out": "{held_out_percent:.1f} %",
        "test": "{accuracy_percent:.2f} %",
        "sweep": "{sweep_seconds:.1f} s",
        "fit": "{fit_seconds:.1f} s",
        "together": "{total_seconds:.0f} s",
    }
    rows = [
        {**row, "what": data[row["data"]], "head": names[row["method"]]} for row in rows_of("heads")
    ]
    return listed(rows, columns)


def processes() -> str:
    """Negative log likelihoods, seconds and coverage of Gaussian processes."""
    methods = {
        "posterior": '`uncertainty="posterior"`',
        "exact": "exact, the same kernel and noise",
        "svgp": "GPyTorch, SVGP",
        "gpytorch exact": "GPyTorch, exact, {rows_used:,} rows",
        "scikit-learn": "scikit-learn, {rows_used:,} rows",
    }
    places = {"cpu": "two cores", "cuda": "one H200"}
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows_of("processes")):
        for method, shown in methods.items():
            for row in rows_of("processes", data=name, method=method):
                lines.append(
                    [
                        f"{name}, {row['rows']:,} rows" if method == "posterior" else "",
                        shown.format(**row),
                        f"{row['nll']:.3f}",
                        f"{row['rmse']:.3g}",
                        *(f"{row[f'inside_{p}_percent']:.1f}" for p in (50, 90, 95)),
                        seconds(row["fit_seconds"]),
                        places[row["device"]],
                    ]
                )
    return table(["", "method", "NLL", "RMSE", "in 50 %", "in 90 %", "in 95 %", "fit", "on"], lines)


def coverage() -> str:
    """Rows inside 90 % intervals, and how wide these are."""
    methods = ("kernelmill", "boosting", "conformal boosting")
    lines = []
    for name in dict.fromkeys(row["data"] for row in rows_of("coverage")):
        found = {row["method"]: row for row in rows_of("coverage", data=name)}
        least = min(row["width"] for row in found.values())
        cells = []
        for method in methods:
            row = found[method]
            width = f"{row['width']:.3g}"
            shown = f"**{width}**" if row["width"] == least else width
            cells.append(f"{row['inside_percent']:.1f} %, {shown}")
        lines.append([f"{name}, {found['kernelmill']['rows']:,} rows", *cells])
    means = [
        f"{mean(row['inside_percent'] for row in rows_of('coverage', method=method)):.1f} %"
        for method in methods
    ]
    heads = ["", "kernelmill", "boosted quantiles", "boosted, conformal"]
    return table(heads, [*lines, ["mean", *means]])


def million() -> str:
    (row,) = rows_of("million", place="all test rows")
    (both,) = rows_of("million", place="mean of places")
    places = [each for each in rows_of("million") if "exact_nll" in each]
    gaps = [each["gap"] for each in places]
    return (
        f"{row['rows']:,} rows × {row['features']}, Matérn 3/2, {row['samples']} functions:"
        f" {row['fit_seconds']:.0f} s in all, {row['solver']} with {row['centers']:,} centers,"
        f" {row['peak_gib']:.1f} GiB.\n"
        f"Negative log likelihood {row['nll']:.3f}, RMSE {row['rmse']:.4f} (the noise is 0.1),"
        f" {row['inside_95_percent']:.1f} % of test rows in their 95 % intervals.\n"
        f"Around {len(places)} places it differs from that of exact processes of the 40,000 nearest"
        f" rows by {min(gaps):.3f} to {max(gaps):.3f}, by {both['gap']:.3f} on average."
    )


def covertype() -> str:
    names = {
        "kernelmill": "`KernelClassifier()`",
        "boosting": "HistGradientBoosting, defaults",
        "boosting, 1000": "HistGradientBoosting, max_iter=1000 without early stopping",
        "1-nn": "1-nearest-neighbour, columns as they are",
        "1-nn, standardised": "1-nearest-neighbour, columns standardised",
    }
    places = {"cpu": "two cores", "cuda": "one H200"}
    lines = []
    for method, name in names.items():
        for row in rows_of("covertype", method=method):
            fit = "–" if method.startswith("1-nn") else seconds(row["fit_seconds"])
            how = f"{row['solver']}, {row['centers']:,} centers" if "solver" in row else "–"
            accuracy = f"{row['accuracy_percent']:.1f} %"
            lines.append([name, places[row["device"]], accuracy, fit, how])
    return table(["", "machine", "accuracy", "fit", "took"], lines)


def auto() -> str:
    columns = {
        "n": "{n:,}",
        "p": "{p:,}",
        "auto took": "{chosen}",
        "seconds": "{seconds:.3g}",
        "predicted": "{predicted_seconds:.3g}",
        "accuracy": "{accuracy_percent:.1f} %",
        "best of all": "{best_accuracy_percent:.1f} %",
        "auto / fastest": "{auto_over_fastest:.2f}",
    }
    return listed(read("auto")["summary"]["cells"], columns)


def auto_words() -> str:
    cells = read("auto")["summary"]["cells"]
    worst = max(cell["auto_over_fastest"] for cell in cells)
    ratios = [
        row["seconds"] / row["predicted_seconds"]
        for row in rows_of("auto")
        if row["solver"] != "auto" and "seconds" in row
    ]
    near = sum(1 / 1.5 <= ratio <= 1.5 for ratio in ratios)
    good = sum(cell["as_good"] for cell in cells)
    return (
        f"It takes at most {worst:.2f} times the fastest that is as good, and is within 0.3 points "
        f"of the best in {good} of {len(cells)} cells.\n"
        f"Of {len(ratios)} predicted times {near} are within a factor 1.5 of the measured ones."
    )


def teacher() -> str:
    names = {
        "paper, 1 epoch": "the paper's recipe, 1 epoch",
        "EigenPro4, 1 epoch": "kernelmill, 1 epoch",
        "EigenPro4, 3 epochs": "kernelmill, 3 epochs",
        "O(p) memory, 1 epoch": "kernelmill in O(p) memory, 1 epoch",
        "O(p) memory, 3 epochs": "kernelmill in O(p) memory, 3 epochs",
        "direct": "direct solution",
    }
    lines = []
    for method, name in names.items():
        (row,) = rows_of("teacher", method=method)
        closed = f"{row['gap_closed_percent']:.0f} %"
        lines.append(
            [name, f"{row['accuracy_percent']:.1f} %", closed, seconds(row["fit_seconds"])]
        )
    return table(["", "accuracy", "share of the gap closed", "fit"], lines)


def epoch() -> str:
    columns = {
        "task": "{task}",
        "n": "{n:,}",
        "p": "{p:,}",
        "seconds": "{fit_seconds:.3g}",
        "accuracy": "{accuracy_percent:.1f} %",
        "GPU memory beyond X": "{peak_gib:.1f} GiB",
        "of which projections": "{projecting_seconds:.2g} s",
    }
    return listed([row for row in rows_of("epoch") if "fit_seconds" in row], columns)


def predict() -> str:
    (row,) = (row for row in rows_of("epoch") if "predict_seconds" in row)
    return (
        f"Predicting {row['n']:,} rows in host memory with {row['p']:,} centers took "
        f"{row['predict_seconds']:.1f} s and {row['peak_gib']:.1f} GiB beyond the model."
    )


def scaling() -> str:
    columns = {
        "n": "{n:,}",
        "p": "{p:,}",
        "seconds": "{fit_seconds:.1f}",
        "peak GiB beyond X": "{peak_gib:.1f}",
        "accuracy": "{accuracy_percent:.1f} %",
    }
    return listed(rows_of("scaling"), columns)


def scaling_words() -> str:
    found = read("scaling")["summary"]
    return (
        f"From 65,536 centers on seconds grow as p to the {found['seconds_exponent_in_p']:.2f}; "
        f"above a fixed cost of {found['fixed_seconds']:.1f} s to the "
        f"{found['seconds_above_fixed_exponent_in_p']:.2f}, and no doubling costs more than "
        f"2^{found['steepest_doubling_exponent_in_p']:.2f}.\n"
        f"A free fit gives {found['free_fit_fixed_seconds']:.1f} s and "
        f"{found['free_fit_exponent_in_p']:.2f}.\n"
        f"Peak memory grows as p to the {found['memory_exponent_in_p']:.2f}, seconds as n to the "
        f"{found['seconds_exponent_in_n']:.2f}."
    )


def block() -> str:
    columns = {
        "d": "{d}",
        "outputs": "{c:,}",
        "precision": "{precision}",
        "rested": "{rested_milliseconds:.2f} ms",
        "fp16 product alone": "{product_rested_milliseconds:.2f} ms",
        "busy": "{busy_milliseconds:.2f} ms",
        "product alone, busy": "{product_busy_milliseconds:.2f} ms",
        "largest error of K": "{kernel_error:.1e}",
    }
    return listed(rows_of("block"), columns)


def cpu() -> str:
    columns = {
        "d": "{d}",
        "matrix product": "{product_milliseconds:.0f} ms",
        "block, held": "{block_over_product:.2f}",
        "K @ w, not held": "{matmul_over_product:.2f}",
    }
    return listed(rows_of("cpu"), columns)


def precision() -> str:
    columns = {"bandwidth": "{bandwidth:g}", "q": "{q:,}"}
    for name in ("float16", "bfloat16", "tf32", "float32", "float64"):
        columns[name] = f"{{{name}_percent:.2f}}"
    columns["worst below float32"] = "{worst_below_float32_points:.3f}"
    return listed(rows_of("precision"), columns)


def grid() -> str:
    found = read("grid")["summary"]
    return (
        f"{found['cells']} cells: {found['cells_not_finite']} with NaN, "
        f"{found['cells_with_step_backs']} with a step back; one epoch is at least "
        f"{found['worst_difference_points']:.2f} points above the paper's recipe in each of the "
        f"{found['cells_compared']} where that converges."
    )


def data() -> str:
    unit = read("data")["summary"]["array_seconds"]
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in rows_of("data")):
        found = {row["memory"]: row["seconds"] for row in rows_of("data", kind=kind)}
        ratios = [
            f"{found[way] / unit:.2f}" if way in found else "–" for way in ("held", "streamed")
        ]
        lines.append([kind, *ratios])
    return table(["", "held in memory", "streamed"], lines)


def compare() -> str:
    columns = {
        "solver": "{solver}",
        "centers": "{p:,}",
        "epochs": "{epochs}",
        "held out": "{held_out_percent:.1f} %",
        "test": "{test_percent:.1f} %",
        "seconds": "{seconds:.1f}",
        "peak MiB beyond the data": "{peak_mib:,.0f}",
    }
    return listed(rows_of("compare", data="fashion"), columns)


def cli() -> str:
    columns = {
        "data": "{data}",
        "metric": "{metric}",
        "command line": "{command_line_score:.4g}",
        "Python": "{python_score:.4g}",
        "seconds, command line": "{command_line_seconds:.0f}",
        "seconds, Python": "{python_seconds:.0f}",
        "silent": "{first_words_seconds:.2f} s",
    }
    return listed(rows_of("cli"), columns)


def ranks_time() -> str:
    (row,) = rows_of("ranks_time")
    one, many = spread(row["one_process_all_seconds"]), spread(row["process_per_core_all_seconds"])
    return (
        f"One process with {row['cores']} threads takes {one} s, {row['cores']} processes with one "
        f"thread each {many} s: {row['processes_over_one']:.2f} times in the median."
    )


def ranks_memory() -> str:
    columns = {
        "ranks": "{ranks}",
        "measured": "{peak_mib:,.0f} MiB",
        "predicted": "{predicted_mib:,.0f} MiB",
        "share of one process": "{share_of_one:.2f}",
    }
    return listed(rows_of("ranks_memory"), columns)


def growth() -> str:
    found = rows_of("growth")
    if not found:
        return "Not measured yet."
    lines = []
    for name in dict.fromkeys(row["table"] for row in found):
        for varied in ("rows", "centers"):
            errors = {
                row["value"]: row["error"]
                for row in found
                if (row["table"], row["varied"]) == (name, varied)
            }
            lines.append(
                [name, varied, ", ".join(f"{n:,}: {errors[n]:.4f}" for n in sorted(errors))]
            )
        errors = [row["error"] for row in found if (row["table"], row["varied"]) == (name, "seed")]
        lines.append([name, f"{len(errors)} seeds", spread(errors, 4)])
    return table(["table", "varied", "error"], lines)


def runs() -> str:
    lines = []
    for path in sorted(RESULTS.glob("*.json")):
        for run in read(path.stem)["runs"]:
            threads = f"{run['threads']} thread" + "s" * (run["threads"] > 1)
            where = run["gpu"] or f"{run['cpu']}, {threads}"
            note = f" ({run['note']})" if "note" in run else ""
            lines.append(
                [path.stem, run["date"], run.get("commit", "–"), where, f"`{run['command']}`{note}"]
            )
    return table(["result", "date", "commit", "machine", "command"], lines)


def first() -> str:
    """Seconds of a fit without an argument on a CPU."""
    found = sorted(rows_of("first"), key=lambda row: (row["table"], row["busy"], row["rows"]))
    columns = {
        "table": "{table}",
        "rows": "{rows:,}",
        "the cores are": "{cores}",
        "seconds": "{seconds:.1f}",
        "solver": "{solver}",
    }
    rows = [{**row, "cores": "wanted by another" if row["busy"] else "idle"} for row in found]
    return listed(rows, columns)


def dirty() -> str:
    """Spoiled tables beside clean ones."""
    columns = {
        "what is wrong": "{way}",
        "table": "{table}",
        "loss": "{loss:.4g}",
        "clean": "{clean:.4g}",
        "worse by": "{worse:+.1%}",
        "warned": "{warned}",
    }
    found = [{**row, "warned": "yes" if row["said"] else ""} for row in rows_of("dirty")]
    return listed(found, columns)


def speed() -> str:
    """Exact solutions and predictions on a GPU."""
    columns = {
        "task": "{task}",
        "rows": "{n:,}",
        "centers": "{p:,}",
        "seconds": "{seconds:.3g}",
        "score": "{score}",
        "peak GiB": "{peak}",
        "clock, MHz": "{clock_mhz}",
        "product, TFLOP/s": "{product_tflops:.0f}",
    }

    def shown(row: dict) -> dict:
        score = f"RMSE {row['rmse']:.4f}" if "rmse" in row else "–"
        score = f"{row['error_percent']:.2f} % wrong" if "error_percent" in row else score
        peak = f"{row['peak_gib']:.1f}" if "peak_gib" in row else "–"
        return {**row, "score": score, "peak": peak}

    return listed([shown(row) for row in rows_of("speed") if "seconds" in row], columns)


def cold() -> str:
    """First fits of a process on a GPU."""
    columns = {
        "task": "{task}",
        "first": "{first_seconds:.1f} s",
        "second": "{second_seconds:.1f} s",
        "third": "{third_seconds:.1f} s",
        "first prediction": "{first_predict_seconds:.3f} s",
    }
    return listed([row for row in rows_of("speed") if "first_seconds" in row], columns)


def billion() -> str:
    """Time and memory against rows."""
    columns = {
        "rows": "{rows:,}",
        "seconds": "{seconds:.0f}",
        "of them set-up": "{setup_seconds:.0f}",
        "rows a second after it": "{rate}",
        "R²": "{r2:.4f}",
        "GPU, GiB": "{gpu_gib:.1f}",
        "host, GiB": "{host}",
    }

    def shown(row: dict) -> dict:
        rate = row["rows"] / (row["seconds"] - row["setup_seconds"])
        return {**row, "rate": f"{rate:,.0f}", "host": f"{row['host_mib'] / 1024:.1f}"}

    return listed([shown(row) for row in rows_of("billion")], columns)


def by_hand() -> str:
    return BY_HAND.read_text().strip()


PARTS: list[Callable[[], str]] = [
    tabular,
    boosted,
    tuned,
    curves,
    cuts,
    first,
    dirty,
    speed,
    cold,
    billion,
    fashion,
    fashion_auto,
    heads,
    processes,
    coverage,
    million,
    covertype,
    auto,
    auto_words,
    teacher,
    epoch,
    predict,
    scaling,
    scaling_words,
    block,
    cpu,
    precision,
    grid,
    data,
    compare,
    cli,
    ranks_time,
    ranks_memory,
    growth,
    runs,
    by_hand,
]


# ---- the page and the README


def page() -> str:
    parts = {part.__name__: part for part in PARTS}
    text = re.sub(r"\{\{ (\w+) \}\}", lambda found: parts[found[1]](), TEXT.read_text())
    return re.sub(r"\n{3,}", "\n\n", text)


def measured() -> str:
    """The table of the README: one line for each kind of task."""
    lines = []
    for name in ("kin40k", "protein"):
        found = {row["method"]: row for row in rows_of("tabular", data=name)}
        ours = found.pop("KernelRegressor()")
        best = min(found.values(), key=lambda row: row["rmse_over_deviation"])
        rival = best["method"].removesuffix(", 7 × 7")
        lines.append(
            [
                f"{name}, nothing set",
                "two cores",
                seconds(ours["seconds"]),
                f"RMSE {ours['rmse_over_deviation']:.3g}",
                f"{rival}, tuned: {best['rmse_over_deviation']:.3g}",
            ]
        )
    boosting = max(
        row["accuracy_percent"] for row in rows_of("covertype") if "boosting" in row["method"]
    )
    for device, place in (("cpu", "two cores"), ("cuda", "one H200")):
        (row,) = rows_of("covertype", method="kernelmill", device=device)
        lines.append(
            [
                "Covertype, 465,000 rows, nothing set",
                place,
                seconds(row["fit_seconds"]),
                f"{row['accuracy_percent']:.1f} %",
                f"HistGradientBoosting, 1,000 iterations: {boosting:.1f} %",
            ]
        )
    auto_rows, direct = rows_of("fashion", solver="auto"), rows_of("fashion", solver="direct")
    lines.append(
        [
            "Fashion-MNIST, 5,000 centers",
            "two cores",
            f"{spread(row['fit_seconds'] for row in auto_rows)} s",
            f"{mean(row['accuracy_percent'] for row in auto_rows):.1f} %",
            (
                f"direct solution: {mean(row['accuracy_percent'] for row in direct):.1f} % in "
                f"{seconds(median(row['fit_seconds'] for row in direct))}"
            ),
        ]
    )
    for p, few in ((131_072, "131,072"), (1_000_000, "a million")):
        (row,) = rows_of("epoch", task="teacher", n=5_000_000, p=p)
        lines.append(
            [
                f"5 M rows × 1,280 features, {few} centers, one epoch",
                "one H200",
                seconds(row["fit_seconds"]),
                f"{row['accuracy_percent']:.1f} %",
                f"{row['peak_gib']:.1f} GiB beyond X",
            ]
        )
    (row,) = rows_of("million", place="all test rows")
    (both,) = rows_of("million", place="mean of places")
    lines.append(
        [
            f"Gaussian process, {row['rows'] / 1e6:g} M rows × {row['features']}, 64 functions",
            "one H200",
            seconds(row["fit_seconds"]),
            f"NLL {row['nll']:.3f}",
            f"exact processes of 40,000 rows: {abs(both['gap']):.3f} apart",
        ]
    )
    return table(["task", "machine", "fit", "test score", "beside it"], lines)


def readme() -> str:
    """The README with the table as it is now."""
    start, end = MARKS
    text = README.read_text()
    before, rest = text.split(start)
    return f"{before}{start}\n\n{measured()}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    PAGE.write_text(page())
    README.write_text(readme())
    print("written: docs/benchmarks.md and the table of README.md")


if __name__ == "__main__":
    main()
