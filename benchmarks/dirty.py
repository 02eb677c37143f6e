"""Raw tables, spoiled as files are in practice: does a fit without an argument notice?

    KERNELMILL_DATA=folder python -m benchmarks dirty [--only dollars] [--rows 1500]

Each way writes the same rows as a CSV file with something wrong with it; the model is trained by
that file and judged on other rows, spoiled alike. `loss` is RMSE of numbers and log loss of
classes, `clean` that of the same rows as they were, and `worse` how much the one is above the
other. `said` are the warnings.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import log_loss

from kernelmill import Columns, KernelClassifier, KernelRegressor

from .tasks import data_folder

Spoil = Callable[[pd.DataFrame], pd.DataFrame]
HELD = 3000


def mapped(column: str, write: Callable[[float], str]) -> Spoil:
    return lambda frame: frame.assign(**{column: frame[column].map(write)})


def gone(column: str, word: str, share: float = 0.01) -> Spoil:
    """Some of a column's fields hold a word instead: the same ones as in the clean table."""

    def spoil(frame: pd.DataFrame) -> pd.DataFrame:
        lost = lost_rows(frame, share)
        return frame.assign(**{column: frame[column].astype(str).mask(lost, word)})

    return spoil


def lost_rows(frame: pd.DataFrame, share: float) -> np.ndarray:
    return np.random.default_rng(1).random(len(frame)) < share


def german(value: float) -> str:
    return f"{value:,.3f}".translate(str.maketrans(",.", ".,"))


def dated(frame: pd.DataFrame) -> pd.DataFrame:
    """A year, a month and a day in one column."""
    days = pd.to_datetime(dict(year=frame["arrival_date_year"], month=1, day=1)) + pd.to_timedelta(
        7 * frame["arrival_date_week_number"], unit="D"
    )
    return frame.drop(columns=["arrival_date_year", "arrival_date_week_number"]).assign(day=days)


# Of each way: the table, its target, what is spoiled, how the file is written, what is said.
WAYS: dict[str, tuple[str, str, Spoil, dict, dict]] = {
    "dollars": ("diamonds", "price", mapped("carat", lambda v: f"${1e4 * v:,.2f}"), {}, {}),
    "percent": ("diamonds", "price", mapped("depth", lambda v: f"{v} %"), {}, {}),
    "thousands": ("diamonds", "price", mapped("carat", lambda v: f"{1e4 * v:,.1f}"), {}, {}),
    "german numbers": ("diamonds", "price", mapped("x", german), {}, {}),
    "decimal commas": ("diamonds", "price", lambda f: f, {"sep": ";", "decimal": ","}, {}),
    "swiss numbers": (
        "diamonds", "price", mapped("carat", lambda v: f"{1e4 * v:,.2f}".replace(",", "'")), {}, {},
    ),
    "a target in dollars": ("diamonds", "price", mapped("price", lambda v: f"${v:,.0f}"), {}, {}),
    "units": ("diamonds", "price", mapped("carat", lambda v: f"{v} ct"), {}, {}),
    "missing: -": ("diamonds", "price", gone("carat", "-"), {}, {}),
    "missing: na": ("diamonds", "price", gone("carat", "na"), {}, {}),
    "missing: .": ("diamonds", "price", gone("x", "."), {}, {}),
    "missing: none": ("credit", "SeriousDlqin2yrs", gone("age", "none"), {}, {}),
    "missing: unknown": ("credit", "SeriousDlqin2yrs", gone("age", "unknown", 0.05), {}, {}),
    "missing: blank": ("credit", "SeriousDlqin2yrs", gone("age", "   "), {}, {}),
    "missing: a word": ("diamonds", "price", gone("carat", "see note"), {}, {}),
    "missing: -999": ("diamonds", "price", gone("x", "-999"), {}, {"na_values": [-999]}),
    "day first": ("hotel", "is_canceled", lambda f: spelled(f, "%d/%m/%Y"), {}, {}),
    "month first": ("hotel", "is_canceled", lambda f: spelled(f, "%m/%d/%Y"), {}, {}),
    "months in words": ("hotel", "is_canceled", lambda f: spelled(f, "%d-%b-%y"), {}, {}),
    "tabs": ("satimage", "target", lambda f: f, {"sep": "\t"}, {}),
    "utf-16": ("shoppers", "Revenue", lambda f: f, {"encoding": "utf-16"}, {}),
    "latin": (
        "diamonds", "price", lambda f: f.replace({"cut": {"Premium": "Première"}}),
        {"encoding": "latin-1"}, {},
    ),
    "all quoted": ("diamonds", "price", lambda f: f, {"quoting": 1}, {}),
    "copies": (
        "diamonds", "price", lambda f: pd.concat([f, f[: len(f) // 2]]), {},
        {"drop_duplicates": True},
    ),
}  # fmt: skip
DATED = ("day first", "month first", "months in words")


def spelled(frame: pd.DataFrame, form: str) -> pd.DataFrame:
    return frame.assign(day=frame["day"].dt.strftime(form))


def cases(only: tuple[str, ...] = tuple(WAYS), rows: int = 1500) -> Iterator[dict]:
    known: dict[tuple, float] = {}
    for name in only:
        table, target, spoil, how, said = WAYS[name]
        parts = frames(table, rows, dates=name in DATED)
        clean = tuple(as_meant(name, spoil, part) for part in parts)
        key = (table, rows, name in DATED, name if name.startswith("missing") else "")
        if key not in known:
            known[key] = fitted(clean, target, {}, {})[0]
        dirty = (spoil(parts[0]), spoil(parts[1]) if name != "copies" else parts[1])
        loss, heard = fitted(dirty, target, how, said)
        yield {
            "way": name,
            "table": table,
            "rows": rows,
            "loss": loss,
            "clean": known[key],
            "worse": loss / known[key] - 1,
            "said": heard,
        }


def frames(table: str, rows: int, dates: bool) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to train on, and others of the training file to judge by."""
    frame = pd.read_parquet(data_folder() / "tables" / f"{table}.train.parquet")
    frame = frame.sample(frac=1, random_state=0, ignore_index=True)
    frame = dated(frame) if dates else frame
    return frame[:rows], frame[rows : rows + HELD].reset_index(drop=True)


def as_meant(name: str, spoil: Spoil, frame: pd.DataFrame) -> pd.DataFrame:
    """What a spoiled table means: where fields are lost, they are missing."""
    if not name.startswith("missing"):
        return frame
    dirty = spoil(frame)
    column = next(each for each in frame if not dirty[each].equals(frame[each]))
    share = 0.05 if name == "missing: unknown" else 0.01
    return frame.assign(**{column: frame[column].mask(lost_rows(frame, share))})


def fitted(
    parts: tuple[pd.DataFrame, ...], target: str, how: dict, said: dict
) -> tuple[float, list[str]]:
    train, held = parts
    truth = held[target]
    classes = not pd.api.types.is_float_dtype(truth) and truth.nunique() <= 20
    kind = KernelClassifier if classes else KernelRegressor
    columns = {"columns": Columns(**said)} if said else {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        train.to_csv(Path(folder) / "train.csv", index=False, **how)
        held.to_csv(Path(folder) / "held.csv", index=False, **how)
        model = kind(random_state=0, device="cpu", **columns).fit(
            Path(folder) / "train.csv", target
        )
        if classes:
            said_of = model.predict_proba(Path(folder) / "held.csv")
            loss = log_loss(truth.astype(str), said_of, labels=[str(c) for c in model.classes_])
        else:
            y = pd.to_numeric(truth.astype(str).str.replace(r"[$,]", "", regex=True))
            said_of = model.predict(Path(folder) / "held.csv")
            loss = float(np.sqrt(np.mean((said_of - y) ** 2)))
    return loss, sorted({str(one.message)[:200].replace(folder, "") for one in heard})
