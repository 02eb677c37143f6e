"""LightGBM, CatBoost and HistGradientBoosting: stopped early by held-out rows, and tuned.

Each takes the names of a table as names, its whole numbers as numbers. Their packages are imported
when they are used; none of them is needed by kernelmill.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .data import Frame, Rows
from .encode import Codes, names, texts

PATIENCE = 100  # trees without a better validation loss

Generator = np.random.Generator
Settings = dict[str, float | int]


@dataclass(frozen=True)
class Effort:
    """What a fit may take: trees, threads, and the time at which it has to end."""

    trees: int
    threads: int
    deadline: float

    @property
    def is_over(self) -> bool:
        return time.perf_counter() > self.deadline


@dataclass
class Clock:
    """The end of the time of one fit, for libraries that ask after each tree."""

    effort: Effort
    rang: bool = False

    def rings(self) -> bool:
        self.rang = self.effort.is_over
        return self.rang

    def notes(self) -> dict:
        return {"stopped": "limit"} if self.rang else {}


@dataclass(frozen=True)
class Model:
    """A fitted method: its predictions (probabilities or values), and notes for the row."""

    predict: Callable[[Frame], np.ndarray]
    notes: dict


class Boosting(ABC):
    """A library of boosted trees: its own settings, random ones, and one fit."""

    usual: Settings = {}  # where they differ from the library's own

    @abstractmethod
    def draw(self, g: Generator) -> Settings:
        """Settings from the usual ranges."""

    @abstractmethod
    def fit(self, train: Rows, held: Rows, settings: Settings, effort: Effort) -> Model:
        """Trees until the loss of the held-out rows no longer falls; the best number is kept."""


def log_uniform(g: Generator, least: float, most: float) -> float:
    return float(np.exp(g.uniform(np.log(least), np.log(most))))


def both_sides(P: np.ndarray) -> np.ndarray:
    """(n, 2) from the probabilities of the second class."""
    return np.stack([1 - P, P], axis=1) if P.ndim == 1 else P


class LightGBM(Boosting):
    usual = {"learning_rate": 0.05}

    def draw(self, g: Generator) -> Settings:
        return {
            "learning_rate": log_uniform(g, 0.01, 0.2),
            "num_leaves": round(log_uniform(g, 8, 256)),
            "min_data_in_leaf": round(log_uniform(g, 2, 100)),
            "feature_fraction": g.uniform(0.4, 1),
            "bagging_fraction": g.uniform(0.5, 1),
            "bagging_freq": 1,
            "lambda_l2": log_uniform(g, 1e-3, 10),
        }

    def fit(self, train: Rows, held: Rows, settings: Settings, effort: Effort) -> Model:
        import lightgbm

        clock = Clock(effort)

        def watch(step: lightgbm.callback.CallbackEnv) -> None:
            if clock.rings():
                raise lightgbm.callback.EarlyStopException(
                    step.iteration, step.evaluation_result_list
                )

        codes = Codes.learn(train.X)
        own = {"num_threads": effort.threads, "verbosity": -1}
        data = lightgbm.Dataset(
            codes.matrix(train.X), train.y, categorical_feature=names(train.X), params=own
        )
        model = lightgbm.train(
            {**self._task(train.classes), **own, "seed": 0, **settings},
            data,
            effort.trees,
            valid_sets=[data.create_valid(codes.matrix(held.X), held.y)],
            callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False), watch],
        )

        def predict(X: Frame) -> np.ndarray:
            values = model.predict(codes.matrix(X), num_threads=effort.threads)
            return both_sides(values) if train.classes else values

        notes = {"trees": model.best_iteration, "version": lightgbm.__version__}
        return Model(predict, {**notes, **clock.notes()})

    @staticmethod
    def _task(classes: int) -> dict:
        if classes == 0:
            return {"objective": "regression"}
        if classes == 2:
            return {"objective": "binary"}
        return {"objective": "multiclass", "num_class": classes}


class CatBoost(Boosting):
    """CatBoost sets its own learning rate, by rows and trees."""

    def draw(self, g: Generator) -> Settings:
        return {
            "learning_rate": log_uniform(g, 0.01, 0.2),
            "depth": int(g.integers(4, 9)),
            "l2_leaf_reg": log_uniform(g, 0.5, 20),
            "random_strength": log_uniform(g, 0.1, 10),
            "bagging_temperature": g.uniform(0, 1),
            "one_hot_max_size": int(g.integers(2, 26)),
        }

    def fit(self, train: Rows, held: Rows, settings: Settings, effort: Effort) -> Model:
        import catboost

        clock = Clock(effort)

        class Watch:
            def after_iteration(self, step: object) -> bool:
                return not clock.rings()

        def pool(X: Frame, y: np.ndarray | None = None) -> catboost.Pool:
            numbers, words = texts(X)
            if not words.shape[1]:
                return catboost.Pool(numbers, y)
            return catboost.Pool(catboost.FeaturesData(numbers, words), y)

        model = catboost.CatBoost(
            {
                "loss_function": {0: "RMSE", 2: "Logloss"}.get(train.classes, "MultiClass"),
                "iterations": effort.trees,
                "early_stopping_rounds": PATIENCE,
                "thread_count": effort.threads,
                "random_seed": 0,
                "allow_writing_files": False,
                "verbose": False,
                **settings,
            }
        )
        model.fit(pool(train.X, train.y), eval_set=pool(held.X, held.y), callbacks=[Watch()])
        kind = "Probability" if train.classes else "RawFormulaVal"

        def predict(X: Frame) -> np.ndarray:
            return model.predict(pool(X), prediction_type=kind, thread_count=effort.threads)

        notes = {"trees": model.tree_count_, "version": catboost.__version__}
        return Model(predict, {**notes, **clock.notes()})


class Hist(Boosting):
    """scikit-learn's, with scikit-learn's own patience of ten trees, and 2,000 of them at most."""

    def draw(self, g: Generator) -> Settings:
        return {
            "learning_rate": log_uniform(g, 0.01, 0.3),
            "max_leaf_nodes": round(log_uniform(g, 8, 256)),
            "min_samples_leaf": round(log_uniform(g, 2, 100)),
            "l2_regularization": log_uniform(g, 1e-3, 10),
            "max_features": g.uniform(0.4, 1),
        }

    def fit(self, train: Rows, held: Rows, settings: Settings, effort: Effort) -> Model:
        import sklearn
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        codes = Codes.learn(train.X)
        kind = HistGradientBoostingClassifier if train.classes else HistGradientBoostingRegressor
        model = kind(
            max_iter=min(2000, effort.trees),
            early_stopping=True,
            categorical_features=names(train.X) or None,
            random_state=0,
            **settings,
        )
        with threadpool_limits(effort.threads, "openmp"):
            model.fit(codes.matrix(train.X), train.y, X_val=codes.matrix(held.X), y_val=held.y)

        def predict(X: Frame) -> np.ndarray:
            matrix = codes.matrix(X)
            return model.predict_proba(matrix) if train.classes else model.predict(matrix)

        return Model(predict, {"trees": model.n_iter_, "version": sklearn.__version__})
