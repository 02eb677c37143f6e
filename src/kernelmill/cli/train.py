"""kernelmill train."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, OutputError
from .console import as_json, command, duration, escape, note, rank, results, words
from .glance import glance
from .info import ModelFacts, facts_of
from .inputs import table_of, target_of, task_of, with_target
from .launch import share_out
from .options import AsJson, Data, Debug, Device, MemoryBudget, Part, Target, Task, Weight
from .outputs import check_places

if TYPE_CHECKING:
    from .. import KernelClassifier, KernelRegressor
    from ..data import Table
    from .config import TrainSettings

    Estimator = KernelClassifier | KernelRegressor


class TrainFacts(ModelFacts):
    """The same of a model that was trained just now."""

    model: str
    task: str
    rows: int
    device: str
    seconds: float
    seconds_reading: float


@command
def train(
    data: Data,
    target: Target = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the model. (default: the data's name + -model)")
    ] = None,
    task: Task = None,
    kernel: Annotated[
        str | None,
        typer.Option(help="laplacian, gaussian, matern, … (default: chosen on a sample)"),
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="A number, or auto. (default: chosen on a sample)")
    ] = None,
    n_centers: Annotated[
        int | None, typer.Option(help="(default: as many as take about two minutes)")
    ] = None,
    centers: Annotated[
        str | None, typer.Option(help="How centers are chosen: uniform, balanced, kmeans++, …")
    ] = None,
    solver: Annotated[
        str | None, typer.Option(help="(default: the fastest that fits, see `kernelmill plan`)")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the rows. (default: the solver's)")
    ] = None,
    ridge: Annotated[float | None, typer.Option(help="(default: chosen on a sample)")] = None,
    class_weight: Annotated[
        str | None, typer.Option(help="balanced: every class counts the same.")
    ] = None,
    weight: Weight = None,
    features: Annotated[
        str | None,
        typer.Option(help="Columns to use, separated by commas. (default: all others)"),
    ] = None,
    categorical: Annotated[
        str | None, typer.Option(help="Columns of numbers that are names, such as codes.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Columns to leave out, separated by commas.")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(help="impute or refuse missing values. (default: impute)")
    ] = None,
    na_values: Annotated[
        str | None,
        typer.Option(
            help="What else means a missing value, besides blanks, -, na, unknown: such as -999,x."
        ),
    ] = None,
    decimal: Annotated[
        str | None, typer.Option(help="The mark before decimals: . or , (default: found)")
    ] = None,
    thousands: Annotated[
        str | None, typer.Option(help="The mark between thousands. (default: found)")
    ] = None,
    drop_duplicates: Annotated[
        bool | None, typer.Option("--drop-duplicates", help="Count identical rows once.")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds that the fit should take.")
    ] = None,
    validation_fraction: Annotated[
        float | None, typer.Option(help="Share of the rows held out for a validation score.")
    ] = None,
    scoring: Annotated[
        str | None,
        typer.Option(
            help="What to aim for: accuracy, log_loss, roc_auc, balanced_accuracy, f1; r2, rmse, …"
        ),
    ] = None,
    uncertainty: Annotated[
        str | None,
        typer.Option(help="conformal or posterior: how it tells how sure it is, of numbers."),
    ] = None,
    random_state: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="(default: 0)")
    ] = None,
    device: Device = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Processes or GPUs of this machine to use. (default: 1)"),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, float64, float32, tf32, float16, bfloat16 or float8.")
    ] = None,
    memory_budget: MemoryBudget = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder of the run's checkpoints. (default: the model's name + .run)"),
    ] = None,
    checkpoint_every: Annotated[
        str | None, typer.Option(help="Such as 30s, 5m or 2h; never turns them off. (default: 5m)")
    ] = None,
    resume: Annotated[
        bool | None, typer.Option("--resume", help="Resume a run that was stopped or killed.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A TOML file of settings, named as here and in Python. Flags override it."
        ),
    ] = None,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a model on a data file, and save it.

    Whether to classify or to regress is decided by the target; kernel, number
    of centers and solver are chosen for the data and the machine. Checkpoints
    are kept beside the model while it trains: --resume continues a run that was killed.
    """
    flags = dict(locals())
    started = time.perf_counter()
    say = words(quiet=json_)
    say.print(f"[bold]Training[/] on {escape(str(glance(data)))}.")
    from .config import columns_of, read_settings

    settings = read_settings(config, flags)
    share_out(settings.pop("ranks", 1))
    folder, run = _places(settings, data)
    say.print(f"The model goes to [bold]{escape(str(folder))}[/]. {_outlook(settings)}")

    from ..distributed.environment import is_restarted

    if is_restarted():
        settings["resume"] = True
    if rank() == 0:
        check_places(folder, run, settings.get("resume", False))
    part, asked = settings.pop("part", "train"), settings.pop("task", None)
    table = table_of(data, part, settings.get("memory_budget"))
    name = target_of(table, settings.pop("target", None))
    table = with_target(table, name, columns_of(settings), asked)
    kind, why = task_of(table.column(name), name, asked)
    say.print(
        f"{table.n:,} rows. This is a [bold]{kind}[/]: {escape(why)}"
        + ("." if asked else " (--task changes that).")
    )
    read, weighted = time.perf_counter() - started, "weight" in settings
    model = _fit(settings, table, name, kind, run, quiet=json_)
    _save(model, folder, run)
    facts: TrainFacts = {
        "model": str(folder),
        "task": kind,
        **facts_of(model),
        "rows": model.rows_seen_,
        "device": model.plan_.device,
        "seconds": round(time.perf_counter() - started, 2),
        "seconds_reading": round(read, 2),
    }
    if json_:
        as_json(facts)
    else:
        _print(model, facts, 0 if weighted else table.n)


def _places(settings: TrainSettings, data: Path) -> tuple[Path, Path | None]:
    """The folder of the model, and that of the run's checkpoints if there are any. Both are taken
    out of the settings."""
    out = settings.pop("out", f"{_stem(data)}-model")
    checkpoint = settings.pop("checkpoint", None)
    folder = Path(out)
    if not folder.name or folder.name == "..":
        raise InputError(f"--out {str(out)!r} was given, expected the name of a folder.")
    if settings.get("checkpoint_every") == "never":
        return folder, None
    return folder, Path(checkpoint or folder.with_name(folder.name + ".run"))


def _stem(data: Path) -> str:
    """The name of a file without its ending."""
    path = data.resolve()
    return (path.name if path.is_dir() else Path(path.name.removesuffix(".gz")).stem) or "data"


def _outlook(settings: TrainSettings) -> str:
    """What will happen and how long it takes, as far as it is known before the machine is timed."""
    known = settings.get("kernel") and settings.get("bandwidth")
    tuned = "" if known else "a kernel is chosen on a sample (seconds), then "
    if count := settings.get("n_centers"):
        trained = f"{count:,} centers are trained."
    else:
        trained = "as many centers are trained as take about two minutes; small data take seconds."
    return f"First the data are read, then {tuned}{trained}"


def _fit(
    settings: TrainSettings, table: Table, target: str, kind: str, run: Path | None, quiet: bool
) -> Estimator:
    from .. import KernelClassifier, KernelRegressor
    from .config import estimator_arguments

    if kind == "regression" and settings.pop("class_weight", "") and not quiet:
        note("--class-weight is for classes, and has no effect here.")
    weight = settings.pop("weight", None)
    arguments = estimator_arguments(settings)
    arguments["checkpoint"] = run
    arguments["verbose"] = 0 if quiet or rank() else 1
    estimator = KernelClassifier if kind == "classification" else KernelRegressor
    try:
        return estimator(**arguments).fit(table, target, weight)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_stopped_early(run)) from None


def _stopped_early(run: Path | None) -> str:
    """What to do after Ctrl-C before there is a model."""
    from ..storage.run_folder import contents

    if run is not None and contents(run)[0]:
        return "stopped before there was a model; continue with the same command and --resume."
    if run is not None and rank() == 0:
        with suppress(OSError):  # empty, if it is there
            run.rmdir()
    return "stopped before there was anything to keep; the same command begins again."


def _save(model: Estimator, folder: Path, run: Path | None) -> None:
    """Save a model and discard its run; where it was interrupted or cannot be saved, keep it."""
    from ..storage.run_folder import discard

    kept = run is not None and any(run.glob("checkpoint-*"))
    partial = folder.with_name(folder.name + ".stopped")
    if model._interrupted:
        model.save(partial)
        todo = f"continue with the same command and --resume; what was learned is in {str(run)!r}"
        raise KeyboardInterrupt(
            f"stopped after {model.n_iter_} of {model.plan_.epochs} epochs;"
            f" {todo if kept else 'no checkpoint was kept'}. The model as it is now is in"
            f" {str(partial)!r}."
        )
    try:
        model.save(folder)
    except OutputError as error:
        todo = f"The finished run is kept in {str(run)!r}: the same command with --resume writes"
        more = f" {todo} the model." if kept else ""
        raise OutputError(error.errno, f"{error}{more}") from None
    if run and rank() == 0:
        discard(run)
    if rank() == 0 and (partial / "model.json").exists():  # of an earlier part of this run
        shutil.rmtree(partial, ignore_errors=True)


def _print(model: Estimator, facts: TrainFacts, rows: int) -> None:
    from ..report import held_out_line, kernel_names

    folder, held = escape(facts["model"]), held_out_line(model)
    held = f"; {held}" if held else ""
    took = duration(facts["seconds"])
    made = f"{facts['centers']:,} centers, {kernel_names(model.model_.kernel)} kernel"
    shown = escape(f"{made}, {facts['solver']} solver{held}")
    results().print(f"Done in {took}: {shown}.\nModel: {folder}")
    if merged := _merged(model, rows):
        words().print(
            f"{merged:,} rows have the features of other rows, and were merged with them."
        )
    if not held:
        words().print("No rows were kept out: --validation-fraction 0.1 tells how good it is.")
    words().print(f"Next: [bold]kernelmill evaluate {folder} DATA[/], predict, or report.")


def _merged(model: Estimator, rows: int) -> int:
    """How many of the rows, all of the same weight, were neither kept out nor trained on by
    themselves."""
    from ..learning.rows import MERGE_ROWS

    held = model.held_out_
    out = held["rows"] if held is not None and held["how"] == "kept out" else 0
    if rows - out > MERGE_ROWS:  # a time limit may leave some of them out
        return 0
    return max(0, rows - out - model.rows_seen_)
