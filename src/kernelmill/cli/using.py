"""kernelmill predict, evaluate, report and export: what is done with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..errors import InputError
from .inputs import table_of, target_of
from .say import as_json, check_writable, command, escape, finite, rank, results, words
from .training import AsJson, Data, Debug, Part, Target

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that `kernelmill train` wrote.")]
ENDINGS = (".parquet", ".csv", ".npy")
INTERVAL = 1.959964  # standard deviations to either side that hold 95 %


@command
def predict(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="A .parquet, .csv or .npy file.")],
    probabilities: Annotated[bool | None, typer.Option(help="A column for each class (default: yes, but not in .npy).")] = None,
    intervals: Annotated[bool, typer.Option("--intervals", help="95 % intervals; of a model trained with --solver sgpr.")] = False,
    keep: Annotated[str | None, typer.Option(help="Columns of the data to copy beside the predictions, with commas between.")] = None,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Predict the rows of a data file."""
    if out.suffix.lower() not in ENDINGS:
        raise InputError(f"--out {str(out)!r} was given, expected a name that ends in {', '.join(ENDINGS)}.")
    bare = out.suffix.lower() == ".npy"
    if bare and (keep or intervals):
        raise InputError("an .npy file holds one array; use .csv or .parquet with --keep and --intervals.")
    if out.exists() and data.exists() and out.samefile(data):
        raise InputError(f"--out {str(out)!r} is the data itself; choose another file.")
    check_writable(out)
    estimator = _loaded(model, ranks="auto")
    table = table_of(data, part or "test", None, estimator.kinds())
    columns = _kept(table, keep.split(",") if keep else [])
    classes = getattr(estimator, "classes_", None)
    if intervals and classes is not None:
        raise InputError("--intervals is for numbers, and this model predicts classes; leave it out.")
    probabilities = not bare if probabilities is None else probabilities
    if intervals:
        found, spread = estimator.predict(table, return_std=True)
        columns |= {"prediction": found, "lower": found - INTERVAL * spread, "upper": found + INTERVAL * spread}
    elif classes is not None and probabilities:
        shares = estimator.predict_proba(table)
        columns["prediction"] = classes[shares.argmax(1)]
        columns |= {f"probability of {name}": shares[:, i] for i, name in enumerate(classes)}
    else:
        columns["prediction"] = estimator.predict(table)
    made = [name for name in columns if name == "prediction" or name.startswith("probability of ") or name in ("lower", "upper")]
    if keep and (clash := set(keep.split(",")) & set(made)):
        raise InputError(f"--keep {min(clash)!r} has the name of a prediction; rename that column first.")
    if rank() == 0:
        _write(out, columns)
    if json_:
        as_json({"out": str(out), "rows": table.n, "columns": list(columns)})
    else:
        results().print(f"{table.n:,} predictions written to {escape(str(out))}.")


@command
def evaluate(
    model: Model,
    data: Data,
    target: Target = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with pictures.")] = None,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare a model's predictions with the known targets of a data file."""
    if html:
        check_writable(html)
    estimator = _loaded(model, ranks="auto")
    found, where = _evaluated(estimator, data, target, part)
    if html and rank() == 0:
        _write_page(html, estimator, model, found, where)
    if json_:
        as_json(finite(found.to_dict()))
        return
    _show(found, where)


@command
def report(
    model: Model,
    data: Annotated[Path | None, typer.Option(help="Data with known targets: adds metrics and a confusion matrix or residuals.")] = None,
    target: Target = None,
    out: Annotated[Path | None, typer.Option(help="The HTML file. (default: the model's name + .html)")] = None,
    part: Part = None,
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write one HTML file about a model: learning curve, spectrum, timings, and how good it is on --data."""
    path = out or model.resolve().with_name(model.resolve().name + ".html")
    check_writable(path)
    estimator = _loaded(model)
    found, where = (None, "") if data is None else _evaluated(estimator, data, target, part)
    if rank() == 0:
        _write_page(path, estimator, model, found, where)
    if json_:
        as_json({"out": str(path)})
    else:
        results().print(f"Report written to {escape(str(path))}.")
        if data is None:
            words().print("With --data FILE it also shows how good the model is on rows of that file.")


@command
def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="An .onnx file.")],
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a model as ONNX, for onnxruntime and other programs."""
    from ..export import input_name

    check_writable(out)
    estimator = _loaded(model)
    if rank() == 0:
        estimator.to_onnx(out)
    inputs = [input_name(name) for name in estimator.encoder_.inputs] if estimator.encoder_ is not None else ["X"]
    if json_:
        as_json({"out": str(out), "inputs": inputs})
    else:
        results().print(f"ONNX file written to {escape(str(out))}; its inputs: {escape(', '.join(inputs))}.")


def _loaded(folder: Path, ranks: Any = 1) -> Any:
    """The model; with ranks="auto" all processes of a torchrun job share it, and predict together."""
    from .. import load

    return load(folder, ranks=ranks)


def _kept(table: Any, names: list[str]) -> dict[str, Any]:
    """Columns to copy, as they stand in the file; matrices as numbers."""
    plain = [name for name in names if table.field(name).width == 1]
    found = table.raw(plain) if plain else {}
    return {name: found[name] if name in found else table.column(name) for name in names}


def _evaluated(estimator: Any, data: Path, target: str | None, part: str | None) -> tuple[Any, str]:
    from ..estimators.scores import evaluated
    from ..estimators.tables import given

    table = table_of(data, part or "test", None, estimator.kinds())
    known = target or getattr(estimator, "_target", None)
    if known is None:
        known = target_of(table, None)
    elif known not in table.fields:
        raise InputError(f"{table.where} has no column {known!r}, the target; say --target NAME for another one.")
    _, y, _ = given(table, known, None, 0)
    return evaluated(estimator, table, y), table.where.replace("'", "")


def _show(found: Any, where: str) -> None:
    from ..report import METRICS

    console = results()
    table = Table(title=f"{found.rows:,} rows of {escape(where)}", title_justify="left", show_header=False)
    for name, value in found.metrics.items():
        table.add_row(METRICS.get(name, name), f"{value:,.4f}" if isinstance(value, float) else f"{value:,}")
    console.print(table)
    if found.confusion is not None and len(found.classes) <= 15:
        table = Table("true \\ predicted", *map(escape, found.classes), title="Confusion matrix", title_justify="left")
        for name, row in zip(found.classes, found.confusion.tolist(), strict=True):
            table.add_row(escape(name), *(f"{n:,}" if n else "·" for n in row))
        console.print(table)
    elif found.confusion is not None:
        console.print(f"{len(found.classes)} classes: --html FILE draws their confusion matrix; --json prints it.")
    if found.points is not None:
        console.print("Residuals, true − predicted:")
        console.print(histogram((found.points[:, 0] - found.points[:, 1]).tolist()))


def histogram(values: list[float], bins: int = 13, wide: int = 50) -> str:
    """Bars of text."""
    import numpy as np

    low, high = np.quantile(values, [0.005, 0.995])
    counts, edges = np.histogram(np.clip(values, low, high), bins, (low, high) if high > low else None)
    most = max(1, counts.max())
    return "\n".join(
        f"{(a + b) / 2:>11.4g}  {'█' * round(wide * n / most)}{' ' if n else ''}{n:,}"
        for n, a, b in zip(counts.tolist(), edges[:-1], edges[1:], strict=True)
    )


def _write_page(path: Path, estimator: Any, model: Path, found: Any, where: str) -> None:
    from ..checkpoint import aside
    from ..report import page

    written = page(estimator, model.resolve().name, found, where).encode()
    with aside(path) as beside:
        beside.write_bytes(written)


def _write(path: Path, columns: dict[str, Any]) -> None:
    import numpy as np

    from ..checkpoint import aside

    if path.suffix.lower() == ".npy":
        wide = [name for name in columns if name.startswith("probability of ")]
        values = columns["prediction"] if not wide else np.stack([columns[name] for name in wide], 1)
        values = values.astype(str) if values.dtype == object else values
        with aside(path) as beside, open(beside, "w+b") as file:  # into one opened with "wb" numpy writes by itself, and loses the error
            np.save(file, values, allow_pickle=False)
        return
    from ..data.files import need

    pa = need("pyarrow")
    flat: dict[str, Any] = {}
    for name, values in columns.items():
        if not isinstance(values, np.ndarray):
            flat[name] = values  # Arrow's
        elif values.ndim == 2:
            flat |= {f"{name} {i}": values[:, i] for i in range(values.shape[1])}
        else:
            flat[name] = pa.array(values.tolist() if values.dtype.kind in "UO" else values)
    made = pa.table(flat)
    with aside(path) as beside:
        if path.suffix.lower() == ".csv":
            _write_csv(made, beside)
        else:
            need("pyarrow.parquet").write_table(made, beside)


def _write_csv(table: Any, path: Path) -> None:
    """Without quotes where none are needed: a kept number is then written as it stood."""
    import pyarrow as pa
    from pyarrow import csv

    table = pa.table({name: _decoded(table[name]) for name in table.column_names})
    try:
        csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
    except pa.ArrowInvalid:
        csv.write_csv(table, path)


def _decoded(column: Any) -> Any:
    """Categories as their values, which Arrow's CSV writer wants."""
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
