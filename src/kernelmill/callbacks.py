"""What listens to a run. A callback is any callable that takes an Event; returning True asks the run to stop."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .errors import needed
from .planning import Plan
from .solvers import Event
from .words import aside


class ProgressBar:
    """A live bar on the terminal: epoch, rows per second, loss, time left."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[rate]} rows/s  loss {task.fields[loss]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(file=aside()),
            )
            self._bar.start()
            self._task = self._bar.add_task("fit", total=max(1, event.rows_total), epoch=1, rate="-", loss="-")
        if self._bar is None:
            return
        rate = f"{event.rows / event.seconds:,.0f}" if event.seconds > 0 and event.rows else "-"
        fields: dict[str, Any] = {"epoch": event.epoch + (event.kind == "projection"), "rate": rate}
        if event.loss is not None:
            fields["loss"] = f"{event.loss:.4g}"
        self._bar.update(self._task, completed=event.rows, **fields)
        if event.note:
            self._bar.console.print(event.note)
        if event.kind == "end":
            self._bar.stop()
            self._bar = None


class _Logger:
    """Sends losses and rows per second somewhere. A run begins at its "start" event and is closed at its "end"."""

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self._open()
        values: dict[str, float] = {}
        if event.loss is not None:
            values["epoch_loss" if event.kind == "epoch" else "loss"] = float(event.loss)
        if event.rows and event.seconds > 0:
            values["rows_per_second"] = event.rows / event.seconds
        if event.kind in ("projection", "epoch") and values:
            self._log({**values, "epoch": float(event.epoch)}, event.rows)
        if event.note:
            self._say(event.note, event.rows)
        if event.kind == "end":
            self._close()

    def _open(self) -> None: ...

    def _log(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def _say(self, note: str, step: int) -> None: ...

    def _close(self) -> None: ...


class TensorBoard(_Logger):
    """Writes event files that `tensorboard --logdir FOLDER` shows. Needs kernelmill[tensorboard]."""

    def __init__(self, log_dir: str):
        self._log_dir = str(log_dir)
        self._writer: Any = None
        needed("tensorboard", "tensorboard")

    def _open(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(self._log_dir)

    def _log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def _say(self, note: str, step: int) -> None:
        self._writer.add_text("note", note, step)

    def _close(self) -> None:
        self._writer.close()


class MLflow(_Logger):
    """Logs to the MLflow run that is active, or to a new one of this name. Needs kernelmill[mlflow]."""

    def __init__(self, run_name: str | None = None, experiment: str | None = None):
        self._name, self._experiment, self._own = run_name, experiment, False
        self._mlflow = needed("mlflow", "mlflow")

    def _open(self) -> None:
        self._own = self._mlflow.active_run() is None
        if self._own:
            if self._experiment:
                self._mlflow.set_experiment(self._experiment)
            self._mlflow.start_run(run_name=self._name)

    def _log(self, values: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(values, step=step)

    def _say(self, note: str, step: int) -> None:
        self._mlflow.set_tag(f"note at {step} rows", note)

    def _close(self) -> None:
        if self._own:
            self._mlflow.end_run()


class WandB(_Logger):
    """Logs to the Weights & Biases run that is active, or to a new one of this project. Needs kernelmill[wandb]."""

    def __init__(self, project: str | None = None, **settings: Any):
        self._wandb, self._settings, self._own = needed("wandb", "wandb"), {"project": project, **settings}, False

    def _open(self) -> None:
        self._own = self._wandb.run is None
        if self._own:
            self._wandb.init(**self._settings)

    def _log(self, values: dict[str, float], step: int) -> None:
        self._wandb.log({**values, "rows": step})

    def _say(self, note: str, step: int) -> None:
        self._wandb.log({"note": note, "rows": step})

    def _close(self) -> None:
        if self._own:
            self._wandb.finish()


def announce(plan: Plan) -> None:
    """Say on the terminal what is about to happen."""
    Console(file=aside()).print(plan_line(plan), highlight=False, soft_wrap=True)


def plan_line(plan: Plan) -> str:
    """One line that says what is about to happen."""
    parts = [f"{plan.solver}: {plan.n:,} rows × {plan.d} features, {plan.p:,} centers, {plan.c} outputs, {plan.precision} on {plan.device}"]
    if plan.s is not None:
        parts.append(f"s={plan.s}, q={plan.q}, {plan.projection} projection, {plan.epochs} epochs")
    elif plan.epochs > 1:
        parts.append(f"up to {plan.epochs} iterations{', K(X,Z) kept' if plan.keep_all else ''}")
    time = "" if plan.seconds is None else f" and {plan.seconds:.2g} s to solve"
    parts.append(f"about {plan.bytes / 2**30:.2g} GiB{time}")
    return "; ".join(parts)
