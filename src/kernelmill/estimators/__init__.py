"""scikit-learn estimators: the only room that imports scikit-learn."""

from __future__ import annotations

import os
from typing import Any

from ..distributed.team import Alone
from ..distributed.torch_team import join
from ..errors import ModelFileError
from ..ops import in_own_modes
from ..planning.device import device_of
from ..planning.plan import Plan
from ..storage.model_folder import load_model
from .base import KernelEstimator
from .classifier import KernelClassifier
from .regressor import KernelRegressor

ESTIMATORS: dict[str, Any] = {estimator.__name__: estimator for estimator in (KernelClassifier, KernelRegressor)}


@in_own_modes()
def load(folder: str | os.PathLike, kernel: Any = None, ranks: int | str = "auto") -> KernelClassifier | KernelRegressor:
    """The estimator that `save` wrote. Runs no code from the folder; a kernel function of the user's own is passed as `kernel`.

    In a torchrun job its centers are shared by all ranks, which then predict together; with ranks=1 each has all of them."""
    comm = Alone() if ranks == 1 else join(device_of("auto"))
    model, extra, encoder = load_model(folder, kernel, comm)
    try:
        estimator = ESTIMATORS[extra["estimator"]](**extra["params"])
        for name, value in extra["fitted"].items():
            if name not in KernelEstimator._saved:
                raise KeyError(name)
            setattr(estimator, name, value)
        estimator.encoder_ = encoder
        estimator.model_, estimator.plan_, estimator.history_ = model, Plan.from_dict(extra["plan"]), extra["history"]
        for name, value in (("_stands", model.n_centers), ("_weight_seen", float(getattr(estimator, "rows_seen_", model.n_centers)))):
            if not hasattr(estimator, name):  # a file from before there was partial_fit
                setattr(estimator, name, value)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError(f"{str(folder)!r} is damaged or from another version ({type(error).__name__}: {error}).") from None
    if kernel is not None:
        estimator.kernel = kernel
    return estimator


__all__ = ["KernelClassifier", "KernelEstimator", "KernelRegressor", "load"]
