"""Experiment trackers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import require_package
from ..solvers import Event

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class _Logger:
    """Sends losses and rows per second somewhere.

    A run begins at its "start" event and is closed at its "end".
    """

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
    """Writes event files that `tensorboard --logdir FOLDER` shows. Needs kernelmill[tensorboard].

    Parameters
    ----------
    log_dir : str
        The folder.
    """

    _writer: SummaryWriter  # from "start" to "end"

    def __init__(self, log_dir: str):
        self._log_dir = str(log_dir)
        require_package("tensorboard", "tensorboard")

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
    """Logs to the active MLflow run, or to a new one. Needs kernelmill[mlflow].

    Parameters
    ----------
    run_name : str, optional
        Name of a new run.
    experiment : str, optional
        Experiment that a new run belongs to.
    """

    def __init__(self, run_name: str | None = None, experiment: str | None = None):
        self._name, self._experiment, self._own = run_name, experiment, False
        self._mlflow = require_package("mlflow", "mlflow")

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
    """Logs to the active Weights & Biases run, or to a new one. Needs kernelmill[wandb].

    Parameters
    ----------
    project : str, optional
        Project of a new run.
    **settings
        Passed on to `wandb.init`.
    """

    def __init__(self, project: str | None = None, **settings: object):
        self._wandb, self._settings, self._own = (
            require_package("wandb", "wandb"),
            {"project": project, **settings},
            False,
        )

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
