"""The methods that are compared: a function each, from training rows to a model.

kernelmill gets the table as it is and no argument but device and seed. The peers hold out every
tenth row, stratified; the tuned ones take the best of twenty settings by the loss of these rows,
the first of which is the setting of the untuned one.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import numpy as np
import torch

import kernelmill
from kernelmill import KernelClassifier, KernelRegressor

from .boosting import Boosting, CatBoost, Effort, Hist, LightGBM, Model
from .data import Frame, Rows, hold_out
from .encode import OneHot
from .scores import loss

DRAWS = 20


class OutOfTime(Exception):
    """A fit took longer than it was given."""


@dataclass(frozen=True)
class Means:
    """What a fit is given: device, threads of the peers, trees at most, and seconds.

    The seconds are for all draws of a tuned method together.
    """

    device: str
    threads: int
    seconds: float
    trees: int

    def start(self) -> Effort:
        return Effort(self.trees, self.threads, time.perf_counter() + self.seconds)


def fit_kernelmill(rows: Rows, means: Means) -> Model:
    kind = KernelClassifier if rows.classes else KernelRegressor
    model = kind(device=means.device, random_state=0).fit(rows.X, rows.y)
    plan = model.plan_
    notes = {
        "solver": plan.solver,
        "kernel": type(model.model_.kernel).__name__,
        "recipe": plan.chosen,
        "centers": plan.p,
        "version": kernelmill.__version__,
    }
    return Model(model.predict_proba if rows.classes else model.predict, notes)


def fit_boosting(library: Boosting, rows: Rows, means: Means) -> Model:
    return library.fit(*hold_out(rows), library.usual, means.start())


def tune_boosting(library: Boosting, rows: Rows, means: Means) -> Model:
    """The best of the draws that the time allows, as it was fitted."""
    effort, g = means.start(), np.random.default_rng(0)
    train, held = hold_out(rows)
    best, least, tried = None, np.inf, 0
    with contextlib.suppress(OutOfTime):
        for settings in (library.usual, *(library.draw(g) for _ in range(DRAWS - 1))):
            if effort.is_over:
                break
            model = library.fit(train, held, settings, effort)
            now = loss(held, model.predict(held.X))
            tried += 1
            if now < least:
                best, least = Model(model.predict, {**model.notes, "settings": settings}), now
    if best is None:
        raise OutOfTime
    ended = {"stopped": "limit"} if tried < DRAWS else {}
    return Model(best.predict, {**best.notes, "draws": tried, **ended})


def fit_xrfm(rows: Rows, means: Means) -> Model:
    """xRFM by default. Columns of names are told to it, targets are in units of their deviation."""
    import xrfm

    train, held = hold_out(rows)
    encoder = OneHot.learn(train.X)
    sizes = [block.shape[1] for block in encoder.blocks(train.X)]
    ends = np.cumsum(sizes)
    categories = {
        "numerical_indices": torch.arange(sizes[0]),
        "categorical_indices": [
            torch.arange(end - size, end) for size, end in zip(sizes[1:], ends[1:], strict=True)
        ],
        "categorical_vectors": [torch.eye(size) for size in sizes[1:]],
    }
    mean, deviation = (0, 1) if rows.classes else (train.y.mean(), train.y.std())

    def targets(some: Rows) -> torch.Tensor:
        if rows.classes:
            return torch.as_tensor(some.y)
        return torch.as_tensor((some.y - mean) / deviation, dtype=torch.float32)

    def features(X: Frame) -> np.ndarray:
        return np.hstack(encoder.blocks(X))

    model = xrfm.xRFM(
        device=torch.device(means.device),
        categorical_info=categories if sizes[1:] else None,
        random_state=0,
        time_limit_s=means.seconds,
        verbose=False,
    )
    with contextlib.redirect_stdout(io.StringIO()):
        model.fit(features(train.X), targets(train), features(held.X), targets(held))

    def predict(X: Frame) -> np.ndarray:
        if rows.classes:
            return model.predict_proba(features(X))
        return model.predict(features(X)).reshape(-1) * deviation + mean

    return Model(predict, {"version": xrfm.__version__})


@dataclass(frozen=True)
class Method:
    """A function from rows to a model, the package it needs, and whether it uses a GPU."""

    fit: Callable[[Rows, Means], Model]
    package: str
    on_device: bool = False

    @property
    def is_there(self) -> bool:
        return find_spec(self.package) is not None


METHODS = {
    "kernelmill": Method(fit_kernelmill, "kernelmill", on_device=True),
    "lightgbm": Method(partial(fit_boosting, LightGBM()), "lightgbm"),
    "catboost": Method(partial(fit_boosting, CatBoost()), "catboost"),
    "hist": Method(partial(fit_boosting, Hist()), "sklearn"),
    "xrfm": Method(fit_xrfm, "xrfm", on_device=True),
    "lightgbm-tuned": Method(partial(tune_boosting, LightGBM()), "lightgbm"),
    "catboost-tuned": Method(partial(tune_boosting, CatBoost()), "catboost"),
    "hist-tuned": Method(partial(tune_boosting, Hist()), "sklearn"),
}
