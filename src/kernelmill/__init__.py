"""kernelmill: kernel models with millions of centers, as easily as a scikit-learn estimator."""

from . import kernels, solvers
from .data import Columns
from .errors import CheckpointError, DataFileError, InputError, InputTypeError, KernelmillError, ModelFileError
from .estimators import KernelClassifier, KernelRegressor, load
from .model import KernelModel
from .planning import Plan
from .solvers import Event, plan

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "Columns",
    "DataFileError",
    "Event",
    "InputError",
    "InputTypeError",
    "KernelClassifier",
    "KernelModel",
    "KernelRegressor",
    "KernelmillError",
    "ModelFileError",
    "Plan",
    "kernels",
    "load",
    "plan",
    "solvers",
]
