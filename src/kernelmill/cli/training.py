"""kernelmill train."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError, OutputError
from .glance import glance
from .inputs import configured, parameters, table_of, target_of, task_of
from .say import as_json, check_writable, command, duration, escape, finite, rank, results, words

if TYPE_CHECKING:
    from ..data import Table

Data = Annotated[Path, typer.Argument(metavar="DATA", help="A .csv, .parquet, .arrow, .npy, .npz or .h5 file, or a folder of them.")]
Target = Annotated[str | None, typer.Option(help="The column to predict. Not needed where one is called y, target, label or class.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words and tables.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]
Part = Annotated[str | None, typer.Option(help="Of an .npz file with X_train … y_test: train or test.")]


@command
def train(
    data: Data,
    target: Target = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the model. (default: the data's name + -model)")] = None,
    task: Annotated[str | None, typer.Option(help="classification or regression. (default: told from the target)")] = None,
    kernel: Annotated[str | None, typer.Option(help="laplacian, gaussian, matern, … (default: chosen on a sample)")] = None,
    bandwidth: Annotated[str | None, typer.Option(help="A number, or auto. (default: chosen on a sample)")] = None,
    n_centers: Annotated[int | None, typer.Option(help="(default: as many as take about two minutes)")] = None,
    centers: Annotated[str | None, typer.Option(help="How centers are chosen: uniform, balanced, kmeans++, …")] = None,
    solver: Annotated[str | None, typer.Option(help="(default: the fastest that fits, see `kernelmill plan`)")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the rows. (default: the solver's)")] = None,
    ridge: Annotated[float | None, typer.Option(help="(default: chosen on a sample)")] = None,
    class_weight: Annotated[str | None, typer.Option(help="balanced: every class counts alike.")] = None,
    weight: Annotated[str | None, typer.Option(help="The column of sample weights.")] = None,
    features: Annotated[str | None, typer.Option(help="Columns to use, with commas between them. (default: all others)")] = None,
    categorical: Annotated[str | None, typer.Option(help="Columns of numbers that are names, such as codes.")] = None,
    missing: Annotated[str | None, typer.Option(help="impute or refuse missing values. (default: impute)")] = None,
    validation_fraction: Annotated[float | None, typer.Option(help="Part of the rows kept out for a validation score.")] = None,
    random_state: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="(default: 0)")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Processes or GPUs of this machine to share it. (default: as many as pay)")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="auto, float64, float32, tf32, float16 or bfloat16.")] = None,
    memory_budget: Annotated[str | None, typer.Option(help="Such as 8GB. (default: what is free)")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder of the run's checkpoints. (default: the model's name + .run)")] = None,
    checkpoint_every: Annotated[str | None, typer.Option(help="Such as 30s, 5m or 2h; never turns them off. (default: 5m)")] = None,
    resume: Annotated[bool | None, typer.Option("--resume", help="Go on with a run that was stopped or killed.")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings, named as here and in Python. Flags go before it.")] = None,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a model on a data file, and save it.

    Whether to classify or to regress is told from the target; kernel, number of centers and solver are chosen for the data and the
    machine. Checkpoints are kept beside the model while it trains: a run that was killed goes on with --resume.
    """
    started = time.perf_counter()
    say = words(quiet=json_)
    say.print(f"[bold]Training[/] on {escape(str(glance(data)))}.")
    flags = {name: value for name, value in locals().items() if name not in ("started", "say", "data", "config", "json_", "debug")}
    settings = configured(config, {**flags, "columns": None, "early_stopping": None})
    target, task, weight, part = (settings.pop(name) for name in ("target", "task", "weight", "part"))
    out, every, checkpoint = (settings.pop(name) for name in ("out", "checkpoint_every", "checkpoint"))
    folder = Path(out if out is not None else f"{_stem(data)}-model")
    if not folder.name or folder.name == "..":
        raise InputError(f"--out {str(out)!r} was given, expected the name of a folder.")
    run = None if every == "never" else Path(checkpoint) if checkpoint else folder.with_name(folder.name + ".run")
    say.print(f"The model goes to [bold]{escape(str(folder))}[/]. {_outlook(settings)}")

    from .. import KernelClassifier, KernelRegressor
    from ..distributed import restarted
    from ..estimators.scores import validation_score
    from ..estimators.workers import workers
    from ..report import kernel_line
    from ..runs import discard

    if restarted():
        settings["resume"] = True
    if rank() == 0:
        _check_places(folder, run, bool(settings.get("resume")))
    table = table_of(data, part or "train", settings.get("memory_budget"))
    name = target_of(table, target)
    kind, why = task_of(table.column(name), name, task)
    say.print(f"{table.n:,} rows. This is a [bold]{kind}[/]: {escape(why)}" + ("." if task else " (--task says otherwise)."))
    chosen = parameters({"random_state": 0, **{key: value for key, value in settings.items() if value is not None}})
    if kind == "regression" and chosen.pop("class_weight", None):
        say.print("[yellow]note:[/] --class-weight is for classes, and has no effect here.")
    read = time.perf_counter() - started
    chosen |= {"checkpoint": run, "checkpoint_every": "5m" if every is None else every, "verbose": 0 if json_ or rank() else 1}
    model: Any = (KernelClassifier if kind == "classification" else KernelRegressor)(**chosen)
    model.fit(table if workers(model, table, name) == 1 else _for_all(table, data), name, weight)
    if model._interrupted:
        kept = f"go on with the same command and --resume; what was learned is in {str(run)!r}" if _written(run) else "nothing was kept"
        raise KeyboardInterrupt(f"stopped after {model.n_iter_} of {model.plan_.epochs} epochs; {kept}.")
    try:
        model.save(folder)
    except OutputError as error:
        kept = f" The finished run is kept in {str(run)!r}: the same command with --resume writes the model." if _written(run) else ""
        raise OutputError(error.errno, f"{error}{kept}") from None
    if run and rank() == 0:
        discard(run)
    seconds = time.perf_counter() - started
    facts = {
        "model": str(folder),
        "task": kind,
        "target": name,
        "rows": model.rows_seen_,
        "features": model.model_.Z.shape[1],
        "centers": model.model_.n_centers,
        "kernel": kernel_line(model.model_.kernel),
        "ridge": model.ridge_,
        "solver": model.plan_.solver,
        "device": model.plan_.device,
        "validation_score": validation_score(model),
        "seconds": round(seconds, 2),
        "seconds_reading": round(read, 2),
    }
    if json_:
        as_json(finite(facts))
        return
    score = facts["validation_score"]
    held = "" if score is None else f", {'accuracy' if kind == 'classification' else 'R²'} {score:.4f} on rows kept out"
    shown = f"{facts['centers']:,} centers, {model.model_.kernel.name} kernel, {facts['solver']} solver{held}"
    results().print(f"Done in {duration(seconds)}: {escape(shown)}.\nModel: {escape(str(folder))}")
    say.print(f"Next: [bold]kernelmill evaluate {escape(str(folder))} DATA[/], predict, or report.")


def _for_all(table: Table, data: Path) -> Any:
    """What each of several processes is given: the file, to open by itself, or the arrays of the part that was taken of it."""
    if data.suffix.lower() == ".npz" and data.is_file():
        return {name: table.column(name) for name in table.fields}
    return data


def _outlook(settings: dict[str, Any]) -> str:
    """What will happen, and how long it takes, as far as it is known before the machine was timed."""
    tuned = "" if settings.get("kernel") and settings.get("bandwidth") else "a kernel is chosen on a sample (seconds), then "
    if settings.get("n_centers"):
        return f"First the data are read, then {tuned}{settings['n_centers']:,} centers are trained; the plan says how long."
    return f"First the data are read, then {tuned}as many centers are trained as take about two minutes; small data take seconds."


def _stem(data: Path) -> str:
    """The name of a file without its ending."""
    path = data.resolve()
    return (path.name if path.is_dir() else Path(path.name.removesuffix(".gz")).stem) or "data"


def _written(run: Path | None) -> bool:
    return run is not None and any(run.glob("checkpoint-*"))


def _check_places(folder: Path, run: Path | None, resume: bool) -> None:
    """What would fail at the end fails here."""
    from ..checkpoint import refuse_others
    from ..runs import contents

    check_writable(folder)
    refuse_others(folder)
    if run is None:
        return
    check_writable(run)
    if run.exists() and not run.is_dir():
        raise InputError(f"--checkpoint {str(run)!r} is no folder; choose another one.")
    if run.resolve() == folder.resolve() or run.resolve() in folder.resolve().parents:
        raise InputError(f"--checkpoint {str(run)!r} would hold the model too; choose a folder of its own.")
    own, others = contents(run)
    if others:
        raise InputError(f"--checkpoint {str(run)!r} holds {others[0].name!r}, which is of no run; choose a folder of its own.")
    if own and not resume:
        raise InputError(f"{str(run)!r} holds a run that did not end; go on with it by --resume, or delete that folder to begin anew.")
    if resume and not own:
        words().print(f"[yellow]note:[/] there is no run in {escape(str(run))} to go on with; this one begins anew.")
