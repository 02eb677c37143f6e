"""From what was typed to what the library takes: settings of flags and of a TOML file, tables, targets and tasks."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataFileError, InputError, one_of
from .glance import npz_shapes

if TYPE_CHECKING:
    import numpy as np

    from ..data import Table

TARGETS = ("y", "target", "label", "class")  # names of columns that are taken for the target where nobody said
MOST_CLASSES = 100  # distinct whole numbers up to which a target is taken for labels, where each occurs ten times or more
FEW_CLASSES = 20  # and up to which it is however often they occur
PARTS = ("train", "test")
KINDS: dict[str, tuple[type, ...]] = {
    "n_centers": (int,),
    "epochs": (int,),
    "ranks": (int,),
    "random_state": (int,),
    "ridge": (float, int),
    "validation_fraction": (float, int),
    "bandwidth": (float, int, str),
    "kernel": (str, dict),
    "solver": (str, dict),
    "columns": (dict,),
    "features": (str, list),
    "categorical": (str, list),
    "class_weight": (str, dict),
    "resume": (bool,),
    "early_stopping": (bool, str),
    "memory_budget": (str, int),
    "checkpoint_every": (str, int, float),
}  # of settings in a TOML file; others are texts


WORDS = {int: "a whole number", float: "a number", str: "a text", dict: "a table", list: "a list", bool: "true or false"}


def configured(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Settings of a TOML file, and those of the flags that were given over them."""
    settings: dict[str, Any] = {}
    if config is not None:
        try:
            settings = tomllib.loads(config.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"--config {str(config)!r} cannot be read ({error.strerror}).") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"--config {str(config)!r} is not TOML: {error}.") from None
        for name, value in settings.items():
            if name not in flags:
                raise one_of(f"{config.name}: setting", name, sorted(flags))
            kinds = KINDS.get(name, (str,))
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                expected = " or ".join(WORDS[kind] for kind in kinds)
                raise InputError(f"{config.name}: {name} = {value!r} was given, expected {expected}.")
    return {**{name: None for name in flags}, **settings, **{name: value for name, value in flags.items() if value is not None}}


def parameters(settings: dict[str, Any]) -> dict[str, Any]:
    """The estimator's arguments. Tables of the TOML file, such as [kernel] and [columns], become the objects they name."""
    from .. import Columns, kernels, solvers

    out = {name: value for name, value in settings.items() if value is not None}
    if not 0 <= out.get("random_state", 0) < 2**32:
        raise InputError(f"random_state = {out['random_state']} was given, expected a number from 0 to {2**32 - 1}.")
    bandwidth, kernel = out.pop("bandwidth", None), out.pop("kernel", None)
    if isinstance(bandwidth, str) and bandwidth != "auto":
        try:
            bandwidth = float(bandwidth)
        except ValueError:
            raise InputError(f"--bandwidth {bandwidth!r} was given, expected a number or auto.") from None
    if isinstance(kernel, dict):
        kernel = _made("kernel", kernel, kernels)
    if bandwidth is not None:
        kernel = kernels.Laplacian() if kernel in (None, "auto") else kernels.resolve(kernel)
        if not hasattr(kernel, "bandwidth"):
            raise InputError(f"the {kernel.name} kernel has no bandwidth; leave --bandwidth out.")
        kernel.bandwidth = bandwidth
    if kernel is not None:
        out["kernel"] = kernel
    if isinstance(out.get("solver"), dict):
        out["solver"] = _made("solver", out["solver"], solvers)
    columns = dict(out.pop("columns", None) or {})
    for name in ("features", "categorical", "missing"):
        if (value := out.pop(name, None)) is not None:
            columns[name] = value.split(",") if name != "missing" and isinstance(value, str) else value
    if columns:
        try:
            out["columns"] = Columns(**columns)
        except TypeError:
            raise InputError(f"columns: {', '.join(columns)} were given, expected some of {', '.join(Columns().get_params())}.") from None
        out["columns"].check()
    return out


def _made(what: str, values: dict[str, Any], room: Any) -> Any:
    """An object from a table such as {name = "matern", bandwidth = 3.0}."""
    values = dict(values)
    name = values.pop("name", None)
    if name is None:
        raise InputError(f"[{what}] has no name; say for example name = {next(iter(room.NAMED))!r}.")
    made = room.resolve(name)
    for key in values:
        if key not in made.get_params():
            raise one_of(f"[{what}] {key}", key, list(made.get_params()))
    return made.set_params(**values)


def table_of(path: Path, part: str | None, memory_budget: Any, kinds: Mapping[str, str] | None = None) -> Table:
    """The data of a file or a folder. Of an .npz file with X_train, y_train, X_test and y_test, one part is taken, as X and y.
    kinds: of columns, whatever they look like."""
    from ..data import opened
    from ..distributed import join
    from ..planning import device_of, parse_bytes

    if part is not None and part not in PARTS:
        raise one_of("--part", part, list(PARTS))
    room = join(device_of("auto")).same(lambda: parse_bytes(memory_budget, "cpu")) // 4
    if path.suffix.lower() == ".npz" and path.is_file():
        try:
            names = [name for name, _ in npz_shapes(path)]
        except Exception:  # damaged: `opened` says how
            names = []
        split = {p: {name.removesuffix(f"_{p}"): name for name in names if name.endswith(f"_{p}")} for p in PARTS}
        if part and split["train"] and set(split["train"]) == set(split["test"]):
            import numpy as np

            from ..data.tables import readable

            with readable(repr(str(path))), np.load(path, allow_pickle=False) as file:
                arrays = {short: file[name] for short, name in split[part].items()}
            table = opened(arrays, room)
            table.where = f"{str(path)!r} ({part})"
            return table
    return opened(path, room, kinds)


def target_of(table: Table, named: str | None) -> str:
    """The name of the target's column."""
    if named is not None:
        if named not in table.fields:
            raise one_of(f"--target: column of {table.where}", named, list(table.fields))
        return named
    found = [name for name in table.fields if name.lower() in TARGETS]
    if len(found) != 1:
        raise InputError(f"which column of {table.where} is the target? Say --target NAME, one of {_listed(table)}.")
    return found[0]


def _listed(table: Table) -> str:
    names = list(table.fields)
    return ", ".join(map(repr, names[:12])) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def task_of(values: np.ndarray, name: str, asked: str | None) -> tuple[str, str]:
    """("classification" or "regression", why)."""
    import numpy as np

    if asked is not None:
        if asked not in ("classification", "regression"):
            raise one_of("--task", asked, ["classification", "regression"])
        return asked, "as asked"
    if values.ndim == 2:
        return "regression", f"{name!r} has {values.shape[1]} columns"
    if values.dtype.kind == "M" and len(np.unique(values)) > FEW_CLASSES:
        return "regression", f"{name!r} has dates, which are seconds since 1970"
    if values.dtype.kind not in "iuf":
        kinds = len({value for value in values.tolist() if value is not None})
        if kinds > max(MOST_CLASSES, len(values) // 10):
            raise DataFileError(
                f"the target {name!r} has {kinds:,} different texts in {len(values):,} rows, too many for classes; "
                "give a column of numbers or labels, or --task classification if they are."
            )
        return "classification", f"{name!r} has {kinds} labels"
    known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    distinct = len(np.unique(known))
    whole = values.dtype.kind != "f" or bool((known == np.rint(known)).all())
    if whole and (distinct <= FEW_CLASSES or (distinct <= MOST_CLASSES and distinct * 10 <= len(values))):
        return "classification", f"{name!r} has {distinct} different whole numbers"
    return "regression", f"{name!r} has {distinct:,} different numbers"
