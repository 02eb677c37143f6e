"""Callbacks that log elsewhere, against the real packages, offline."""

import numpy as np
import pytest

from kernelmill import KernelRegressor, kernels
from kernelmill.callbacks.loggers import MLflow, TensorBoard, WandB
from kernelmill.solvers import EigenPro4

g = np.random.default_rng(0)
X = g.normal(size=(3000, 4)).astype(np.float32)


def fitted(callback):
    model = KernelRegressor(
        kernel=kernels.Laplacian(3.0),
        n_centers=200,
        solver=EigenPro4(),
        epochs=3,
        random_state=0,
        callbacks=callback,
    )
    model.fit(X, np.sin(X[:, 0]))
    return [row["loss"] for row in model.history_ if row["kind"] == "epoch"]


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = fitted(TensorBoard(tmp_path))
    found = EventAccumulator(str(tmp_path)).Reload()
    logged = [event.value for event in found.Scalars("epoch_loss")]
    assert {"loss", "epoch_loss", "epoch", "rows_per_second"} <= set(found.Tags()["scalars"])
    assert logged == pytest.approx(losses, rel=1e-5) and found.Scalars("loss")[-1].step == 9000


def test_mlflow(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    losses = fitted(MLflow("a run", "an experiment"))
    assert mlflow.active_run() is None
    client = mlflow.MlflowClient()
    runs = client.search_runs([client.get_experiment_by_name("an experiment").experiment_id])
    assert runs[0].info.run_name == "a run" and runs[0].info.status == "FINISHED"
    assert runs[0].data.metrics["epoch_loss"] == pytest.approx(losses[-1])
    with mlflow.start_run() as own:  # the user's own run is logged to, and left open
        fitted(MLflow())
        assert mlflow.active_run() is not None
    assert client.get_run(own.info.run_id).data.metrics["epoch"] == 3


def test_wandb(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    losses = fitted(WandB("kernelmill", dir=str(tmp_path)))
    assert wandb.run is None and list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    with wandb.init(project="mine", dir=str(tmp_path)) as run:
        fitted(WandB())
        assert (
            run.summary["epoch_loss"] == pytest.approx(losses[-1]) and run.summary["rows"] == 9000
        )
        assert wandb.run is run
