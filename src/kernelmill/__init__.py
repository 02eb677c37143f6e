"""kernelmill: kernel models with millions of centers, as easy to use as scikit-learn's."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .version import __version__ as __version__

if TYPE_CHECKING:
    from . import callbacks, kernels, losses, solvers, uncertainty
    from .data import Columns
    from .errors import (
        CheckpointError,
        DataFileError,
        InputError,
        KernelmillError,
        ModelFileError,
        RankError,
    )
    from .estimators import KernelClassifier, KernelRegressor, load
    from .estimators.sweep import Sweep, sweep
    from .model import KernelModel
    from .planning.plan import Plan
    from .solvers import Event, plan


# Threads that wait for work spin, by default for milliseconds: where another process wants the
# cores, a fit then takes twenty times as long. Read when torch is loaded.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# Where each public name lives. They are imported when they are first used: torch takes seconds,
# and `kernelmill --help` needs none of it.
_HOMES = {
    "CheckpointError": "errors",
    "Columns": "data",
    "DataFileError": "errors",
    "Event": "solvers",
    "InputError": "errors",
    "KernelClassifier": "estimators",
    "KernelModel": "model",
    "KernelRegressor": "estimators",
    "KernelmillError": "errors",
    "ModelFileError": "errors",
    "RankError": "errors",
    "Plan": "planning",
    "Sweep": "estimators.sweep",
    "load": "estimators",
    "plan": "solvers",
    "sweep": "estimators.sweep",
}
_ROOMS = ("callbacks", "kernels", "losses", "solvers", "uncertainty")

__all__ = [
    "CheckpointError",
    "Columns",
    "DataFileError",
    "Event",
    "InputError",
    "KernelClassifier",
    "KernelModel",
    "KernelRegressor",
    "KernelmillError",
    "ModelFileError",
    "RankError",
    "Plan",
    "Sweep",
    "callbacks",
    "kernels",
    "load",
    "losses",
    "plan",
    "solvers",
    "uncertainty",
    "sweep",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in _ROOMS:
        value = import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
