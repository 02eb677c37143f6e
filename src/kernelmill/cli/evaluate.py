"""kernelmill evaluate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..errors import InputError, no_column
from .check import columns_found
from .console import as_json, command, escape, note, results
from .inputs import table_of, target_of
from .options import AsJson, Data, Debug, Model, Part, Target, Weight
from .outputs import check_writable, write_page

if TYPE_CHECKING:
    import numpy as np

    from .. import KernelClassifier, KernelRegressor
    from ..estimators.evaluation import Evaluation

MOST_CLASSES = 15  # of which a terminal shows the confusion matrix


@command
def evaluate(
    model: Model,
    data: Data,
    target: Target = None,
    weight: Weight = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with pictures.")] = None,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare a model's predictions with the known targets of a data file."""
    from .. import load

    if html:
        check_writable(html)
    estimator = load(model, ranks="auto")
    found, where = evaluate_file(estimator, data, target, part, weight)
    if html:
        write_page(html, estimator, model, found, where)
    if json_:
        as_json(found.to_dict())
    else:
        _print(found, where)
        _notes(estimator, data, part)


def evaluate_file(
    estimator: KernelClassifier | KernelRegressor,
    data: Path,
    target: str | None,
    part: str | None,
    weight: str | None = None,
) -> tuple[Evaluation, str]:
    """How good a model is on the rows of a file, and the name of the file."""
    from ..estimators.evaluation import evaluate

    table = table_of(data, part or "test", kinds=estimator.kinds())
    known = target or estimator._target or target_of(table, None)
    if known not in table.fields:
        raise InputError(
            f"{table.where} has no column {known!r}, the target; say --target NAME for another one."
        )
    if weight is not None and weight not in table.fields:
        raise no_column("--weight", weight, table.where, list(table.fields))
    rows, y, w = estimator.given(table, known, weight)
    found = replace(evaluate(estimator, rows.table, y, w), target=known)
    return found, table.where.replace("'", "")


def _notes(estimator: KernelClassifier | KernelRegressor, data: Path, part: str | None) -> None:
    """What may make scores better, or worse, than they would be."""
    from ..estimators.origin import fingerprint_of

    table = table_of(data, part or "test", kinds=estimator.kinds())
    made = estimator.origin_["fingerprint"]
    if made and made == fingerprint_of(table):
        note("the model was trained on these data: on new rows it will do worse.")
    for odd in columns_found(estimator, table):
        if odd.much:
            note(f"{odd.column!r} {odd.what}, in {odd.share:.0%} of the rows.")


def _print(found: Evaluation, where: str) -> None:
    from ..report import METRICS

    console = results()
    title = f"{found.rows:,} rows of {escape(where)}"
    guess = f"always {escape(found.guess)}"
    table = Table("", "score", "95 % interval", guess, title=title, title_justify="left")
    for name, value in found.metrics.items():
        limits, other = found.intervals.get(name), found.baseline.get(name)
        between = "" if limits is None else f"{_score(limits[0])} to {_score(limits[1])}"
        shown = _score(value) if isinstance(value, float) else f"{value:,}"
        without = "" if other is None else _score(other)
        table.add_row(METRICS.get(name, name), shown, between, without)
    console.print(table)
    if found.confusion is not None and len(found.classes) <= MOST_CLASSES:
        console.print(_confusion(found.confusion.tolist(), [escape(c) for c in found.classes]))
    elif found.confusion is not None:
        todo = "--html FILE draws their confusion matrix; --json prints it"
        console.print(f"{len(found.classes)} classes: {todo}.")
    if found.true is not None and found.predicted is not None:
        console.print("Residuals, true − predicted, and rows; the ends hold all beyond them:")
        console.print(histogram((found.true - found.predicted).ravel()))


def _score(value: float) -> str:
    """Four decimals, of large numbers one; never -0."""
    digits = 4 if abs(value) < 100 else 1
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def _confusion(counts: list[list[int]], classes: list[str]) -> Table:
    table = Table("true \\ predicted", *classes, title="Confusion matrix", title_justify="left")
    for name, row in zip(classes, counts, strict=True):
        table.add_row(name, *(f"{count:,}" if count else "·" for count in row))
    return table


def histogram(values: np.ndarray, bins: int = 13, wide: int = 50) -> str:
    """A histogram as bars of text; values beyond the 99 % in the middle count at its ends."""
    import numpy as np

    low, high = np.quantile(values, [0.005, 0.995])
    span = (low, high) if high > low else None
    counts, edges = np.histogram(np.clip(values, low, high), bins, span)
    most = max(1, counts.max())
    return "\n".join(
        f"{(a + b) / 2:>11.4g}  {'█' * round(wide * n / most)}{' ' if n else ''}{n:,}"
        for n, a, b in zip(counts.tolist(), edges[:-1], edges[1:], strict=True)
    )
