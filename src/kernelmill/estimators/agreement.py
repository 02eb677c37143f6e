"""What must be the same: between the ranks of a job, and between a run and its resumption."""

from __future__ import annotations

from numbers import Integral

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from ..data import Account, Stream, checksum
from ..distributed.team import Communicator, agree, is_alone
from ..storage.identity import describe
from ..version import __version__

# May differ between ranks.
OWN = (
    "callbacks",
    "verbose",
    "device",
    "memory_budget",
    "checkpoint",
    "checkpoint_every",
    "random_state",
)

Prints = dict[str, "str | Account"]


def agree_on_settings(estimator: BaseEstimator, comm: Communicator, table: bool) -> None:
    """Raise on every rank unless all fit with the same settings, of the same versions; the data
    follows when it is read.
    """
    if is_alone(comm):
        return
    params = estimator.get_params(deep=False)
    settings = {name: describe(value) for name, value in params.items() if name not in OWN}
    agree(
        comm,
        {
            "call": f"{type(estimator).__name__}.fit",
            "kernelmill": __version__,
            "torch": torch.__version__,
            "data": "a table" if table else "an array",
            **settings,
            "random_state": fixed_seed(params["random_state"]).get("random_state", "rank 0's"),
            "checkpoint": "none" if params["checkpoint"] is None else "a folder",
        },
    )


def agree_on_data(comm: Communicator, shape: tuple[int, ...], prints: Prints) -> None:
    """The same for what was read. Times of files may differ: each machine may have a copy."""
    contents = {
        name: "#" + (value if isinstance(value, str) else " ".join(file for file, *_ in value))
        for name, value in prints.items()
    }
    agree(comm, {"call": "training", "X of shape": str(shape), **contents})


def prints(X: Tensor | Stream, y: Tensor, w: Tensor, held: tuple[Tensor, ...] | None) -> Prints:
    """Fingerprints of all rows, targets and weights. `held`: rows that are not in X."""
    rows = X.account() if isinstance(X, Stream) else checksum(X)
    found: Prints = {"rows of X": rows, "targets": checksum(y), "sample weights": checksum(w)}
    return found if held is None else {**found, "rows held out": checksum(*held)}


def fixed_seed(seed: object) -> dict[str, str]:
    """A random_state that can be compared; of a generator a run keeps what it drew."""
    if isinstance(seed, Integral) and not isinstance(seed, bool):
        return {"random_state": str(int(seed))}
    return {}
