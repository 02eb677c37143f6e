"""The data that a command is given: its table, its target, and the task that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DataFileError, InputError, no_column, one_of
from .glance import npz_shapes

if TYPE_CHECKING:
    import numpy as np

    from ..data import Columns, Table

TARGETS = ("y", "target", "label", "class")  # names of columns that are the target by default
TASKS = ["classification", "regression"]
PARTS = ["train", "test"]
MOST_CLASSES = 100  # distinct whole numbers that are labels where each occurs ten times or more
FEW_CLASSES = 20  # distinct whole numbers that are labels however often they occur


def table_of(
    path: Path,
    part: str | None,
    memory_budget: str | int | None = None,
    kinds: Mapping[str, str] | None = None,
) -> Table:
    """The data of a file or a folder. Of an .npz file with X_train, y_train, X_test and y_test it
    is one part, as X and y. kinds: of columns, whatever they look like."""
    from ..data import opened
    from ..distributed.torch_team import join
    from ..planning.device import device_of
    from ..planning.memory import parse_bytes

    if part is not None and part not in PARTS:
        raise one_of("--part", part, PARTS)
    room = join(device_of("auto")).same(lambda: parse_bytes(memory_budget, "cpu")) // 4
    names = _names_of_part(path, part)
    if not names:
        return opened(path, room, kinds)
    table = opened(_arrays(path, names), room)
    table.where = f"{str(path)!r} ({part})"
    return table


def _names_of_part(path: Path, part: str | None) -> dict[str, str]:
    """{"X": "X_train", …} of an .npz file whose arrays all have a training and a test part."""
    if part is None or path.suffix.lower() != ".npz" or not path.is_file():
        return {}
    try:
        names = [name for name, _ in npz_shapes(path)]
    except Exception:  # a damaged file: the error comes when it is opened
        return {}
    train, test = (
        {name.removesuffix(f"_{p}"): name for name in names if name.endswith(f"_{p}")}
        for p in PARTS
    )
    if set(train) != set(test):
        return {}
    return train if part == "train" else test


def _arrays(path: Path, names: dict[str, str]) -> dict[str, np.ndarray]:
    import numpy as np

    from ..data.tables import readable

    with readable(repr(str(path))), np.load(path, allow_pickle=False) as file:
        return {short: file[name] for short, name in names.items()}


def target_of(table: Table, named: str | None) -> str:
    """The name of the target's column."""
    if named is not None:
        if named not in table.fields:
            raise no_column("--target", named, table.where, list(table.fields))
        return named
    found = [name for name in table.fields if name.lower() in TARGETS]
    if len(found) != 1:
        known = _listed(list(table.fields))
        raise InputError(
            f"which column of {table.where} is the target? Say --target NAME, one of {known}."
        )
    return found[0]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(map(repr, names[:12])) + more


def with_target(table: Table, name: str, columns: Columns | None, asked: str | None) -> Table:
    """The table with columns that are read as they are written: a target too, unless its texts are
    labels."""
    from ..data import Columns
    from ..data.writing import as_written

    said = columns or Columns()
    labels = said.kinds.get(name) == "text" or asked == "classification"
    if not labels and asked is None and table.fields[name].kind == "text":
        labels = len(set(table.column(name).tolist())) <= FEW_CLASSES
    return as_written(table, said.reading, said.kinds, [name], [name] if labels else [])


def task_of(values: np.ndarray, name: str, asked: str | None) -> tuple[str, str]:
    """("classification" or "regression", why)."""
    if asked is not None:
        if asked not in TASKS:
            raise one_of("--task", asked, TASKS)
        return asked, "as asked"
    if values.ndim == 2:
        return "regression", f"{name!r} has {values.shape[1]} columns"
    if values.dtype.kind in "iuf":
        return _task_of_numbers(values, name)
    return _task_of_others(values, name)


def _task_of_numbers(values: np.ndarray, name: str) -> tuple[str, str]:
    import numpy as np

    known = values[np.isfinite(values)]
    distinct = len(np.unique(known))
    whole = bool((known == np.rint(known)).all())
    often = distinct <= MOST_CLASSES and distinct * 10 <= len(values)
    if whole and (distinct <= FEW_CLASSES or often):
        return "classification", f"{name!r} has {distinct} different whole numbers"
    return "regression", f"{name!r} has {distinct:,} different numbers"


def _task_of_others(values: np.ndarray, name: str) -> tuple[str, str]:
    """Of dates, texts and truth values."""
    import numpy as np

    if values.dtype.kind == "M" and len(np.unique(values)) > FEW_CLASSES:
        return "regression", f"{name!r} has dates, which are seconds since 1970"
    distinct = len({value for value in values.tolist() if value is not None})
    if distinct > max(MOST_CLASSES, len(values) // 10):
        raise DataFileError(
            f"the target {name!r} has {distinct:,} different texts in {len(values):,} rows, "
            "too many for classes; give a column of numbers or labels, "
            "or --task classification if they are."
        )
    return "classification", f"{name!r} has {distinct} labels"
