"""scikit-learn estimators: the only room that imports scikit-learn."""

from __future__ import annotations

import os
from typing import Literal

from ..distributed.team import Alone
from ..distributed.torch_team import join
from ..errors import ModelFileError
from ..ops import in_own_modes
from ..planning.device import device_of
from ..storage.model_folder import load_model
from .base import KernelEstimator
from .classifier import KernelClassifier
from .regressor import KernelRegressor

ESTIMATORS: dict[str, type[KernelClassifier] | type[KernelRegressor]] = {
    estimator.__name__: estimator for estimator in (KernelClassifier, KernelRegressor)
}


@in_own_modes()
def load(
    folder: str | os.PathLike, kernel: object = None, ranks: int | Literal["auto"] = "auto"
) -> KernelClassifier | KernelRegressor:
    """The estimator that `save` wrote. Runs no code from the folder.

    Parameters
    ----------
    folder : path
        What `save` or `kernelmill train` wrote.
    kernel : callable, optional
        The kernel function, where the model was trained with one of your own.
    ranks : int or "auto"
        "auto": in a torchrun job all ranks share the centers, and predict together; 1: each has all
        of them.
    """
    comm = Alone() if ranks == 1 else join(device_of("auto"))
    model, extra, encoder = load_model(folder, kernel, comm)
    try:
        estimator = ESTIMATORS[extra["estimator"]].restored(model, extra, encoder)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError(
            f"{str(folder)!r} is damaged ({type(error).__name__}: {error}); restore it from a copy"
            " or train again."
        ) from None
    return estimator if kernel is None else estimator.set_params(kernel=kernel)


__all__ = ["KernelClassifier", "KernelEstimator", "KernelRegressor", "load"]
