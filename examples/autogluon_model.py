"""kernelmill among AutoGluon's models: for `TabularPredictor`, and for TabArena, whose models have
the same form.

pip install autogluon.tabular
python examples/autogluon_model.py

    from autogluon_model import KernelMillModel
    TabularPredictor(label="price").fit(frame, hyperparameters={KernelMillModel: {}, "GBM": {}})
"""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pandas as pd
from autogluon.common.utils.pandas_utils import get_approximate_df_mem_usage
from autogluon.common.utils.resource_utils import ResourceManager
from autogluon.core.constants import BINARY, MULTICLASS, REGRESSION
from autogluon.core.models import AbstractModel

from kernelmill import Columns, KernelClassifier, KernelRegressor

# What kernels are chosen by, for the metrics that kernelmill knows; for others by its default.
SCORES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced_accuracy",
    "f1": "f1",
    "log_loss": "log_loss",
    "roc_auc": "roc_auc",
    "r2": "r2",
    "root_mean_squared_error": "rmse",
    "mean_squared_error": "squared_error",
    "mean_absolute_error": "absolute_error",
}

PROCESS_BYTES = 1 << 30  # of Python and torch
MOST_EXACT_ROWS = 30_000  # beyond them, the centers are fewer than the rows


def fit_bytes(rows: int) -> int:
    """What a fit may take beyond its rows: enough for an exact solution of not too many."""
    return (1 << 30) + 10 * min(rows, MOST_EXACT_ROWS) ** 2


class KernelMillModel(AbstractModel):
    """KernelClassifier or KernelRegressor; hyperparameters are their arguments.

    Kernels, ridge and probabilities are chosen by folds and leave-one-out predictions of the
    training rows, so that the validation rows are left for AutoGluon.
    """

    ag_key = "KERNELMILL"
    ag_name = "KernelMill"
    seed_name = "random_state"
    default_num_gpus = 1  # where there is one
    _supported_problem_types = [BINARY, MULTICLASS, REGRESSION]

    def _set_default_params(self) -> None:
        for name, value in {
            "time_limit": None,
            "scoring": SCORES.get(self.eval_metric.name),
        }.items():
            self._set_default_param_value(name, value)

    def _get_default_auxiliary_params(self) -> dict:
        """Columns of texts that AutoGluon did not turn into numbers or categories stay out."""
        found = super()._get_default_auxiliary_params()
        found.update(valid_raw_types=["int", "float", "category", "bool"])
        return found

    def _fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        time_limit: float | None = None,
        sample_weight: pd.Series | None = None,
        num_cpus: int = 1,
        num_gpus: float = 0,
        **kwargs: Any,
    ) -> None:
        import torch  # after kernelmill, which tells its threads not to spin

        torch.set_num_threads(num_cpus)
        X = self.preprocess(X, y=y, is_train=True)
        settings = self._get_model_params()
        if settings["time_limit"] is None and time_limit is not None:
            settings["time_limit"] = 0.9 * time_limit  # the rest is for reading and saving
        settings.setdefault("device", "cuda" if num_gpus else "cpu")
        settings.setdefault("memory_budget", self._memory(len(X)))
        named = list(X.columns[X.dtypes == "category"])
        settings.setdefault("columns", Columns(categorical=named))
        kind = KernelRegressor if self.problem_type == REGRESSION else KernelClassifier
        weight = None if sample_weight is None else np.asarray(sample_weight)
        self.model = kind(**settings).fit(X, np.asarray(y), weight)

    def _memory(self, rows: int) -> int:
        """What was estimated, as far as it is there: several folds may be fitted at once."""
        ratio = self.params_aux.get("max_memory_usage_ratio") or 1.0
        free = ratio * ResourceManager.get_available_virtual_mem()
        return int(min(fit_bytes(rows), 0.9 * free))

    @classmethod
    def _estimate_memory_usage_static(cls, *, X: pd.DataFrame, **kwargs: Any) -> int:
        return PROCESS_BYTES + int(8 * get_approximate_df_mem_usage(X).sum()) + fit_bytes(len(X))

    @classmethod
    def _class_tags(cls) -> dict:
        return {"can_estimate_memory_usage_static": True, "reset_torch_threads": True}

    def _more_tags(self) -> dict:
        return {"can_refit_full": True}  # nothing is learned from validation rows


def rows(n: int, seed: int) -> pd.DataFrame:
    """Homes, with districts that matter and missing sizes."""
    g = np.random.default_rng(seed)
    size, rooms = g.normal(100, 30, n), g.integers(1, 6, n)
    district = g.choice(["north", "south", "west"], n)
    price = 10 * size * (1 + 0.5 * (district == "north")) + 50 * rooms + g.normal(0, 40, n)
    size[g.random(n) < 0.05] = np.nan
    return pd.DataFrame({"size": size, "rooms": rooms, "district": district, "price": price})


def main() -> None:
    from autogluon.tabular import TabularPredictor

    train, test = rows(1_000, 0), rows(500, 1)
    limits = np.quantile(train["price"], [0.33, 0.67])
    for kind in (REGRESSION, BINARY, MULTICLASS):
        edges = {BINARY: limits[:1], MULTICLASS: limits}.get(kind)
        parts = []
        for part in (train, test):
            labels = part["price"] if edges is None else np.searchsorted(edges, part["price"])
            parts.append(part.drop(columns="price").assign(label=labels))
        with tempfile.TemporaryDirectory() as folder:
            predictor = TabularPredictor("label", kind, path=folder, verbosity=0)
            predictor.fit(
                parts[0], hyperparameters={KernelMillModel: {}, "DUMMY": {}}, time_limit=60
            )
            board = predictor.leaderboard(parts[1])
        scores = {row.model: f"{row.score_test:.3f}" for row in board.itertuples()}
        print(f"{kind}, {predictor.eval_metric.name}: {scores}")


if __name__ == "__main__":
    main()
