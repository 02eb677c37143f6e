"""kernelmill check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.table import Table as Shown

from .console import ODD, as_json, command, escape, results
from .inputs import table_of
from .options import AsJson, Data, Debug, Model, Part

if TYPE_CHECKING:
    from .. import KernelClassifier, KernelRegressor
    from ..data import Table
    from ..data.drift import Oddity

MOST_ROWS = 20_000  # whose distance from what was learned is looked at


@command
def check(
    model: Model, data: Data, part: Part = None, json_: AsJson = False, debug: Debug = False
) -> None:
    """Compare new data with what a model was trained on, before its predictions are believed.

    Columns that are missing or cannot be read, values that were never seen, numbers outside of
    their range, rows that are far from everything that was learned. Ends with exit code 9 where
    that is much, and more than chance among so many rows.
    """
    from .. import load
    from ..data.drift import Oddity

    estimator = load(model, ranks=1)
    table = table_of(data, part or "test", kinds=estimator.kinds())
    found = columns_found(estimator, table)
    far = None
    if not any(odd.stops for odd in found):
        far = share_of_far_rows(estimator, table)
        said, rows = "are far from everything that was learned", min(table.n, MOST_ROWS)
        found.append(Oddity("(rows)", said, far, rows=rows))
    target = {estimator._target}
    known = set(getattr(estimator, "feature_names_in_", [])) | target
    new = [] if estimator.encoder_ is None else [name for name in table.fields if name not in known]
    much = [odd for odd in found if odd.much]
    if json_:
        odd = [{"column": o.column, "what": o.what, "share": o.share} for o in found]
        counts = {"much": len(much), "unsure": sum(o.unsure for o in found)}
        as_json({"rows": table.n, "odd": odd, "new_columns": new, "far": far, **counts})
    else:
        _print(found, new, table)
    if much:
        raise typer.Exit(ODD)


def columns_found(estimator: KernelClassifier | KernelRegressor, table: Table) -> list[Oddity]:
    """What is odd about columns; of a matrix, which has none, nothing."""
    from ..data.drift import oddities

    return [] if estimator.encoder_ is None else oddities(estimator.encoder_, table)


def share_of_far_rows(estimator: KernelClassifier | KernelRegressor, table: Table) -> float:
    """Of some rows, those farther from what was learned than the rows it was learned from."""
    return estimator.share_of_far_rows(table, MOST_ROWS)


def _print(found: list[Oddity], new: list[str], table: Table) -> None:
    from ..data.drift import SHARE

    console = results()
    shown = Shown(
        "column", "what", "rows", "such as", title=f"{table.n:,} rows", title_justify="left"
    )
    for odd in found:
        if odd.share > 0:
            mark = "[bold]" if odd.much else ""
            share = f"{mark}{100 * odd.share:.2f} %"
            shown.add_row(escape(odd.column), escape(odd.what), share, escape(odd.example))
    if shown.row_count:
        console.print(shown)
    if new:
        listed = ", ".join(map(repr, new[:10])) + (", …" if len(new) > 10 else "")
        console.print(f"Not used: {escape(listed)}.")
    much, unsure = sum(odd.much for odd in found), sum(odd.unsure for odd in found)
    bound = f"{100 * SHARE:.0f} % of the rows or more"
    verdict = f"The data look like those of the training: nothing concerns {bound}."
    if much:
        verdict = f"The data have changed: {much} of these concern {bound}."
    elif unsure:
        verdict = f"{unsure} of these concern {bound}, which may be chance:"
        verdict += f" {table.n:,} rows are too few to tell."
    console.print(verdict)
