"""An MLflow flavour: fitted models are saved, logged, registered and served as MLflow's own are.

    import kernelmill.mlflow

    info = kernelmill.mlflow.log_model(model, name="homes", input_example=frame[:5])
    again = kernelmill.mlflow.load_model(info.model_uri)       # the estimator
    served = mlflow.pyfunc.load_model(info.model_uri)          # what takes a data frame anywhere

An MLflow model holds the folder that `save` writes, and nothing that is pickled: loading it runs no
code of the model's. Needs kernelmill[mlflow].
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InputError, ModelFileError, one_of, require_package
from .estimators import KernelClassifier, KernelEstimator, KernelRegressor, load
from .types import DataLike
from .version import __version__

if TYPE_CHECKING:
    from mlflow.models import Model, ModelSignature
    from mlflow.models.model import ModelInfo

FLAVOR_NAME = "kernelmill"

FOLDER = "model"  # of the model within the data of the MLflow model

METHODS = ("predict", "predict_proba", "decision_function", "explain")  # that can be served

SETTING = "pyfunc_predict_fn"  # says which, under the name that MLflow's own flavours have for it


def get_default_pip_requirements() -> list[str]:
    """What a served model needs, in the versions that are installed here."""
    others = [f"{name}=={version(name)}" for name in ("torch", "scikit-learn", "pandas")]
    return [f"kernelmill=={__version__}", *others]


def save_model(
    model: KernelEstimator,
    path: str | os.PathLike,
    mlflow_model: Model | None = None,
    signature: ModelSignature | None = None,
    input_example: DataLike = None,
    pyfunc_predict_fn: str = "predict",
    **settings: Any,  # noqa: ANN401
) -> None:
    """Write a fitted estimator as an MLflow model.

    Parameters
    ----------
    model : KernelClassifier or KernelRegressor
        A fitted model.
    path : path
        A folder that is new or empty.
    mlflow_model : Model, optional
        MLflow's description of the model, to add to.
    signature : ModelSignature, optional
        Of inputs and outputs. None: from `input_example`, where there is one.
    input_example : array or table, optional
        Some rows, as `predict` takes them.
    pyfunc_predict_fn : str
        The method that a served model calls, such as "predict_proba".
    **settings
        Others of `mlflow.pyfunc.save_model`, such as `pip_requirements`, `code_paths`, `metadata`.
    """
    pyfunc, models = (require_package(f"mlflow.{each}", "mlflow") for each in ("pyfunc", "models"))
    served = Served(model, pyfunc_predict_fn)
    if signature is None and input_example is not None:
        signature = models.infer_signature(input_example, served.predict(input_example))
    if settings.get("conda_env") is None and settings.get("pip_requirements") is None:
        # Said here, MLflow need not load the model in another process to find them out.
        extra = settings.pop("extra_pip_requirements", None) or []
        settings["pip_requirements"] = [*get_default_pip_requirements(), *extra]
    described = models.Model() if mlflow_model is None else mlflow_model
    described.add_flavor(
        FLAVOR_NAME,
        estimator=type(model).__name__,
        data=f"data/{FOLDER}",
        kernelmill_version=__version__,
    )
    with tempfile.TemporaryDirectory() as name:
        model.save(Path(name) / FOLDER)
        pyfunc.save_model(
            os.fspath(path),
            loader_module=__name__,
            data_path=os.fspath(Path(name) / FOLDER),
            mlflow_model=described,
            signature=signature,
            input_example=input_example,
            model_config={SETTING: pyfunc_predict_fn},
            **settings,
        )


def log_model(model: KernelEstimator, name: str = "model", **settings: Any) -> ModelInfo:  # noqa: ANN401
    """Log a fitted estimator to the active MLflow run, or to a new one.

    Parameters
    ----------
    model : KernelClassifier or KernelRegressor
        A fitted model.
    name : str
        Its name in the run.
    **settings
        `registered_model_name` registers it; others are those of `save_model`, and of MLflow's
        `log_model` of any flavour.
    """
    models = require_package("mlflow.models", "mlflow")
    return models.Model.log(
        artifact_path=None, name=name, flavor=sys.modules[__name__], model=model, **settings
    )


def load_model(
    model_uri: str, dst_path: str | None = None, kernel: object = None
) -> KernelClassifier | KernelRegressor:
    """The estimator of an MLflow model.

    Parameters
    ----------
    model_uri : str
        A path, `models:/…`, `runs:/…` or another of MLflow's addresses.
    dst_path : str, optional
        Where to download it to. None: a temporary folder.
    kernel : callable, optional
        The kernel function, where the model was trained with one of your own.
    """
    artifacts, models = (
        require_package(f"mlflow.{each}", "mlflow") for each in ("artifacts", "models")
    )
    folder = artifacts.download_artifacts(artifact_uri=os.fspath(model_uri), dst_path=dst_path)
    flavors = models.Model.load(folder).flavors
    if FLAVOR_NAME not in flavors:
        raise ModelFileError(
            f"{str(model_uri)!r} is not a kernelmill model: it has {', '.join(map(repr, flavors))};"
            " load it as one of these."
        )
    return load(Path(folder) / flavors[FLAVOR_NAME]["data"], kernel, ranks=1)


class Served:
    """A model as `mlflow.pyfunc` wants it."""

    def __init__(self, model: KernelEstimator, method: str):
        if method not in METHODS:
            raise one_of(SETTING, method, list(METHODS))
        if not hasattr(model, method):
            raise InputError(
                f"{SETTING}={method!r} was given, which a {type(model).__name__} does not"
                " have; use 'predict'."
            )
        self._model, self._method = model, method

    def predict(self, data: DataLike, params: dict[str, Any] | None = None) -> Any:  # noqa: ANN401
        """What the method says of some rows; `params` are its other arguments."""
        if hasattr(data, "to_numpy") and not hasattr(self._model, "feature_names_in_"):
            data = data.to_numpy()  # a server makes frames of everything
        return getattr(self._model, self._method)(data, **(params or {}))

    def get_raw_model(self) -> KernelEstimator:
        """The estimator, which `unwrap_python_model` and such ask for."""
        return self._model


def _load_pyfunc(path: str, model_config: dict[str, str] | None = None) -> Served:
    """Called by `mlflow.pyfunc.load_model`."""
    return Served(load(path, ranks=1), (model_config or {}).get(SETTING, "predict"))
