"""kernelmill info, plan, compare and demo: what a model is, what a fit would take, which solver is best here."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..errors import InputError, KernelmillError
from .inputs import table_of, target_of, task_of
from .say import as_json, check_writable, command, duration, escape, finite, results, words
from .training import AsJson, Data, Debug, Part, Target
from .using import Model, _loaded

COMPARED = ("auto", "eigenpro4", "eigenpro3", "eigenpro2", "falkon", "askotch", "nytro", "sgpr", "pegasos", "direct")


@command
def info(model: Model, json_: AsJson = False, debug: Debug = False) -> None:
    """Say what a model is."""
    from ..estimators.scores import validation_score
    from ..report import kernel_line

    found = _loaded(model)
    kernel_model, encoder, classes = found.model_, found.encoder_, getattr(found, "classes_", None)
    facts = {
        "model": type(found).__name__,
        "target": getattr(found, "_target", None),
        "kernel": kernel_line(kernel_model.kernel),
        "centers": kernel_model.n_centers,
        "features": kernel_model.Z.shape[1],
        "outputs": kernel_model.alpha.shape[1],
        "classes": None if classes is None else [str(name) for name in classes],
        "columns": None if encoder is None else encoder.inputs,
        "rows_seen": found.rows_seen_,
        "solver": found.plan_.solver,
        "epochs": found.n_iter_,
        "ridge": found.ridge_,
        "precision": kernel_model.precision,
        "validation_score": validation_score(found),
        "bytes": sum(path.stat().st_size for path in model.iterdir() if path.is_file()),
    }
    if json_:
        as_json(finite(facts))
        return
    table = Table(title=escape(str(model)), title_justify="left", show_header=False)
    for name, value in facts.items():
        if value is not None:
            shown = ", ".join(map(str, value[:20])) + (" …" if len(value) > 20 else "") if isinstance(value, list) else value
            shown = f"{shown:,}" if isinstance(shown, int) else f"{shown:.4g}" if isinstance(shown, float) else str(shown)
            table.add_row(name.replace("_", " "), escape(shown[:400]))
    results().print(table)


@command
def plan(
    data: Annotated[Path | None, typer.Argument(metavar="DATA", help="A data file; or say --rows and --features.")] = None,
    target: Target = None,
    rows: Annotated[int | None, typer.Option(help="How many rows there would be.")] = None,
    features: Annotated[int | None, typer.Option(help="How many features.")] = None,
    outputs: Annotated[int, typer.Option(help="How many classes, or columns of targets.")] = 1,
    n_centers: Annotated[int | None, typer.Option(help="(default: as many as take about two minutes)")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    memory_budget: Annotated[str | None, typer.Option(help="Such as 8GB. (default: what is free)")] = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say what a fit would take, solver by solver, before anything is trained."""
    from .. import plan as planned

    regression = outputs == 1
    if data is not None:
        table = table_of(data, "train", memory_budget)
        name = target_of(table, target)
        values = table.column(name)
        task, _ = task_of(values, name, None)
        regression = task == "regression"
        labels = {value for value in values.ravel().tolist() if value is not None and value == value}
        outputs = len(labels) if not regression else 1 if values.ndim == 1 else values.shape[1]
        rows = rows or table.n
        features = features or sum(field.width for field in table.fields.values() if field.name != name)
    if rows is None or features is None:
        raise InputError("plan needs a data file, or --rows and --features.")
    found = planned(
        n=rows,
        d=features,
        n_centers=n_centers,
        n_outputs=outputs,
        device=device or "auto",
        memory_budget=memory_budget,
        regression=regression,
    )
    if json_:
        solvers = [
            {"solver": c.label, "seconds": c.plan and c.plan.seconds, "bytes": c.plan and c.plan.bytes, "reason": c.reason}
            for c in found.candidates
        ]
        as_json(finite({"rows": rows, "features": features, "centers": found.p, "chosen": found.plan.solver, "solvers": solvers}))
    else:
        results().print(str(found), markup=False)


@command
def compare(
    data: Data,
    target: Target = None,
    task: Annotated[str | None, typer.Option(help="classification or regression. (default: told from the target)")] = None,
    rows: Annotated[int, typer.Option(min=20, help="At most so many rows, of which a fifth are for the score.")] = 20_000,
    n_centers: Annotated[int, typer.Option(help="Centers of the solvers that have fewer than rows.")] = 2000,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train the same data with every solver, and show score and seconds on rows kept out."""
    import numpy as np

    from .. import KernelClassifier, KernelRegressor, solvers
    from ..estimators.scores import evaluated

    table = table_of(data, part or "train", None)
    name = target_of(table, target)
    kind, why = task_of(table.column(name), name, task)
    order = np.random.default_rng(0).permutation(table.n)[:rows]
    held, learned = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
    words(quiet=json_).print(f"{len(learned):,} rows to learn from, {len(held):,} for the score. This is a {kind}: {escape(why)}.")
    train, test = _rows(table, learned), _rows(table, held)
    y = test.pop(name)
    shown, kernel = [], None
    for solver in COMPARED:
        settings: dict[str, Any] = {"solver": solver, "random_state": 0, "kernel": kernel or "auto"}
        if solver == "auto" or not solvers.NAMED[solver].every_row:
            settings["n_centers"] = min(n_centers, len(learned))
        row: dict[str, Any] = {"solver": solver}
        if kind == "regression" and solver != "auto" and solvers.NAMED[solver]().for_classes:
            continue
        start = time.perf_counter()
        try:
            model: Any = (KernelClassifier if kind == "classification" else KernelRegressor)(**settings).fit(train, name)
            row |= {"seconds": time.perf_counter() - start, "centers": model.model_.n_centers, "chosen": model.plan_.solver}
            row |= evaluated(model, test, y).metrics
            kernel = kernel or model.model_.kernel  # chosen once: solvers are compared, not the tuning
        except (KernelmillError, MemoryError) as error:
            row["error"] = str(error)
        shown.append(row)
        words(quiet=json_).print(f"{solver}: {escape(row['error']) if 'error' in row else duration(row['seconds'])}")
    if all("error" in row for row in shown):
        raise InputError(shown[0]["error"])
    if json_:
        as_json(finite({"task": kind, "rows": len(learned), "solvers": shown}))
        return
    measures = [m for m in ("accuracy", "log_loss", "r2", "rmse") if any(m in row for row in shown)]
    out = Table("solver", "centers", "seconds", *measures, title=f"{len(learned):,} rows of {escape(str(data))}", title_justify="left")
    for row in sorted(shown, key=lambda r: -r.get(measures[0], -1e9) if measures else 0):
        label = f"auto ({row['chosen']})" if row["solver"] == "auto" and "chosen" in row else row["solver"]
        if "error" in row:
            out.add_row(label, "–", "–", *["–"] * len(measures))
        else:
            out.add_row(label, f"{row['centers']:,}", f"{row['seconds']:.1f}", *(f"{row[m]:.4f}" for m in measures))
    results().print(out)


def _rows(table: Any, numbers: Any) -> dict[str, Any]:
    """Some rows of a table, its columns by name: read block by block, so that only they are held."""
    import numpy as np

    parts: dict[str, list[Any]] = {name: [] for name in table.fields}
    for start, stop in itertools.pairwise(table.cuts):
        wanted = numbers[(numbers >= start) & (numbers < stop)] - start
        if len(wanted):
            for name, values in table.read(list(parts), start, stop).items():
                parts[name].append(table.natural(name, values)[wanted])
    return {name: np.concatenate(values) for name, values in parts.items()}


@command
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("kernelmill-demo"),
    debug: Debug = False,
) -> None:
    """Show the whole way on a small data set: a CSV file, a model, its evaluation, predictions and a report."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {str(out)!r} is there already; choose another folder, nothing was written.")
    check_writable(out / "x")
    say = words()
    say.print("The handwritten digits that come with scikit-learn, 1,797 rows of 64 pixels, about ten seconds.")
    import numpy as np
    from sklearn.datasets import load_digits

    from .training import train
    from .using import evaluate, predict, report

    pixels, digit = load_digits(return_X_y=True)
    header = ",".join([*(f"pixel_{i}" for i in range(64)), "digit"])
    held = np.arange(len(digit)) % 4 == 0
    for name, rows in (("test.csv", held), ("train.csv", ~held)):
        np.savetxt(out / name, np.column_stack([pixels, digit])[rows], fmt="%d", delimiter=",", header=header, comments="")
    model, test, predictions = out / "digits", out / "test.csv", out / "predictions.csv"
    steps: list[tuple[str, Any]] = [
        (f"train {out / 'train.csv'} --target digit --out {model}", lambda: train(out / "train.csv", target="digit", out=model)),
        (f"evaluate {model} {test}", lambda: evaluate(model, test)),
        (f"predict {model} {test} --out {predictions}", lambda: predict(model, test, predictions)),
        (f"report {model} --data {test}", lambda: report(model, data=test)),
    ]
    for line, step in steps:
        say.print(f"\n[bold cyan]$ kernelmill {escape(line)}[/]")
        step()
