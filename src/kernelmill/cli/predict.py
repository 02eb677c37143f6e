"""kernelmill predict."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from .console import as_json, command, escape, rank, results
from .inputs import table_of
from .options import AsJson, Data, Debug, Model, Part
from .outputs import check_writable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from .. import KernelClassifier, KernelRegressor
    from ..data import Table

    # By name: NumPy arrays, and columns of Arrow where they are copied.
    Columns = dict[str, np.ndarray | pa.Array | pa.ChunkedArray]

ENDINGS = (".parquet", ".csv", ".npy")
# How a cell begins that a spreadsheet takes for a formula (owasp.org, CSV injection), and what is a
# number and none.
FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
USUAL = 0.9  # of the targets, that lie in their intervals


@command
def predict(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="A .parquet, .csv or .npy file.")],
    probabilities: Annotated[
        bool | None, typer.Option(help="A column for each class (default: yes, but not in .npy).")
    ] = None,
    intervals: Annotated[
        bool,
        typer.Option(
            "--intervals", help="Between which values each target lies; of classes, its set."
        ),
    ] = False,
    coverage: Annotated[
        float | None,
        typer.Option(help="The share of targets that lie inside, with --intervals. (default: 0.9)"),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            help="Columns of the data to copy next to the predictions, separated by commas."
        ),
    ] = None,
    safe_csv: Annotated[
        bool,
        typer.Option(
            "--safe-csv",
            help="In .csv, put a ' before texts that a spreadsheet would take for a formula.",
        ),
    ] = False,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a data file."""
    from .. import load

    if coverage is not None and not intervals:
        raise InputError(f"--coverage {coverage:g} was given without --intervals; add it.")
    _check_out(out, data, tables_only=bool(keep or intervals))
    if safe_csv and out.suffix.lower() != ".csv":
        raise InputError(f"--safe-csv was given with --out {str(out)!r}, which is no .csv file.")
    estimator = load(model, ranks="auto").set_params(verbose=int(rank() == 0))
    table = table_of(data, part or "test", kinds=estimator.kinds())
    kept = _kept(table, keep.split(",") if keep else [])
    if probabilities is None:
        probabilities = out.suffix.lower() != ".npy"
    inside = (USUAL if coverage is None else coverage) if intervals else None
    made = _predictions(estimator, table, probabilities, inside)
    if clash := set(kept) & set(made):
        raise InputError(
            f"--keep {min(clash)!r} has the name of a prediction; rename that column first."
        )
    columns = {**kept, **made}
    if rank() == 0:
        write_predictions(out, columns, safe_csv)
    if json_:
        as_json({"out": str(out), "rows": table.n, "columns": list(columns)})
    else:
        results().print(f"{table.n:,} predictions written to {escape(str(out))}.")


def _check_out(out: Path, data: Path, tables_only: bool) -> None:
    if out.suffix.lower() not in ENDINGS:
        endings = ", ".join(ENDINGS)
        raise InputError(f"--out {str(out)!r} was given, expected a name that ends in {endings}.")
    if tables_only and out.suffix.lower() == ".npy":
        todo = "use .csv or .parquet with --keep and --intervals"
        raise InputError(f"an .npy file holds one array; {todo}.")
    if out.exists() and data.exists() and out.samefile(data):
        raise InputError(f"--out {str(out)!r} is the data itself; choose another file.")
    check_writable(out)


def _kept(table: Table, names: list[str]) -> Columns:
    """Columns to copy, as they stand in the file; matrices as numbers."""
    plain = [name for name in names if table.field(name).width == 1]
    found = table.raw(plain) if plain else {}
    return {name: found[name] if name in found else table.column(name) for name in names}


def _predictions(
    estimator: KernelClassifier | KernelRegressor,
    table: Table,
    probabilities: bool,
    coverage: float | None,
) -> Columns:
    import numpy as np

    from .. import KernelClassifier

    if not isinstance(estimator, KernelClassifier):
        made = {"prediction": estimator.predict(table)}
        if coverage is not None:
            made["lower"], made["upper"] = estimator.predict_interval(table, coverage)
        return made
    if not probabilities and coverage is None:
        return {"prediction": estimator.predict(table)}
    shares, classes = np.asarray(estimator.predict_proba(table)), estimator.classes_
    made = {"prediction": classes[estimator.decided(shares)]}
    if coverage is not None:
        holds = np.asarray(estimator.predict_set(table, coverage))
        names = np.array([str(name) for name in classes], dtype=object)
        made["set"] = np.array([" | ".join(names[row]) for row in holds], dtype=object)
    if probabilities:
        made |= {f"probability of {name}": shares[:, i] for i, name in enumerate(classes)}
    return made


def write_predictions(path: Path, columns: Columns, safe_csv: bool = False) -> None:
    """Write columns as .npy, .csv or .parquet; what was there stays whole until they are.

    safe_csv: texts that a spreadsheet would take for a formula get a ' before them, in a CSV file.
    """
    from ..storage.atomic import aside

    ending = path.suffix.lower()
    write: dict[str, Callable[[Columns, Path], None]] = {
        ".npy": _write_npy,
        ".csv": partial(_write_csv, safe=safe_csv),
        ".parquet": _write_parquet,
    }
    with aside(path) as beside:
        write[ending](columns, beside)


def _write_npy(columns: Columns, path: Path) -> None:
    """The predictions, or the probabilities where there are some."""
    import numpy as np

    wide = [values for name, values in columns.items() if name.startswith("probability of ")]
    values = np.stack(wide, 1) if wide else columns["prediction"]
    values = values.astype(str) if values.dtype == object else values
    with open(path, "w+b") as file:  # opened with "wb", numpy writes by itself and loses errors
        np.save(file, values, allow_pickle=False)


def _write_parquet(columns: Columns, path: Path) -> None:
    from ..data.files import need

    need("pyarrow.parquet").write_table(_arrow(columns), path)


def _write_csv(columns: Columns, path: Path, safe: bool = False) -> None:
    """Without quotes where none are needed: a kept number is then written as it stood."""
    table = _arrow(columns)
    import pyarrow as pa
    from pyarrow import csv

    for i, field in enumerate(table.schema):
        values = table.column(i)
        if pa.types.is_dictionary(field.type):  # which Arrow's CSV writer does not take
            values = values.cast(field.type.value_type)
        if safe and (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            values = _without_formulas(values)
        table = table.set_column(i, field.name, values)
    if safe:
        table = table.rename_columns(_without_formulas(pa.array(table.column_names)).to_pylist())
    try:
        csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
    except pa.ArrowInvalid:
        csv.write_csv(table, path)


def _without_formulas(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Texts with a ' before those that a spreadsheet would take for a formula; numbers as they
    are.
    """
    from pyarrow import compute

    marked = compute.replace_substring_regex(texts, pattern=FORMULA, replacement=r"'\0")
    return compute.if_else(compute.match_substring_regex(texts, NUMBER), texts, marked)


def _arrow(columns: Columns) -> pa.Table:
    """The columns as a table of Arrow, a matrix as a column for each of its own."""
    import numpy as np

    from ..data.files import need

    pa = need("pyarrow")
    flat: Columns = {}
    for name, values in columns.items():
        if not isinstance(values, np.ndarray):
            flat[name] = values
        elif values.ndim == 2:
            flat |= {f"{name} {i}": values[:, i] for i in range(values.shape[1])}
        else:
            flat[name] = pa.array(values.tolist() if values.dtype.kind in "UO" else values)
    return pa.table(flat)
