"""Settings of `kernelmill train`: from a TOML file and from flags, to the estimator's arguments.

pydantic checks each value of the file against the annotation it is meant for, here or in the class
of a kernel, a solver or `Columns`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, cast, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from ..errors import InputError, one_of
from ..params import Settings

if TYPE_CHECKING:
    from ..data import Columns

# Settings that are those of `Columns`, and those of them that are lists: with commas in a flag.
LISTED = ("features", "categorical", "exclude", "na_values")
OF_COLUMNS = (*LISTED, "missing", "decimal", "thousands", "drop_duplicates")

TomlTable = dict[str, object]
Made = TypeVar("Made", bound=Settings)


class TrainSettings(TypedDict, total=False):
    """What a TOML file may set. Flags have the same names; `columns`, `early_stopping`,
    `feature_learning` and `ensemble` have no flag, and tables and lists can only be written in a
    file."""

    target: str
    task: str
    part: str
    weight: str
    out: str
    checkpoint: str
    checkpoint_every: str | int | float
    resume: bool
    kernel: str | TomlTable
    bandwidth: float | str
    n_centers: int
    centers: str
    solver: str | TomlTable
    epochs: int
    ridge: float
    class_weight: str | TomlTable
    columns: TomlTable
    features: str | list[str]
    categorical: str | list[str]
    missing: str
    exclude: str | list[str]
    na_values: str | list[str | int | float]
    decimal: str
    thousands: str
    drop_duplicates: bool
    validation_fraction: float
    early_stopping: bool | str
    feature_learning: bool | str
    ensemble: bool | int | str
    time_limit: float
    scoring: str
    uncertainty: str | TomlTable
    random_state: Annotated[int, Field(ge=0, lt=2**32)]
    device: str
    ranks: int
    precision: str
    memory_budget: str | int


def read_settings(config: Path | None, flags: Mapping[str, object]) -> TrainSettings:
    """The settings of a TOML file, and over them the flags that were given."""
    hints = get_type_hints(TrainSettings, include_extras=True)
    settings: TomlTable = {}
    if config is not None:
        settings = _read_toml(config)
        _check(f"{config.name}: setting", settings, hints)
    given = {name: flags[name] for name in hints if flags.get(name) is not None}
    given |= {name: str(given[name]) for name in ("out", "checkpoint") if name in given}
    return cast(TrainSettings, {**settings, **given})


def _read_toml(path: Path) -> TomlTable:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {str(path)!r} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {str(path)!r} is not TOML: {error}.") from None


def _check(where: str, values: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Raise where a name is not known, or its value is not of the annotated type."""
    for name, value in values.items():
        if name not in hints:
            raise one_of(where, name, sorted(hints))
        try:
            TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            found = (detail["msg"].removeprefix("Input should be ") for detail in error.errors())
            expected = " or ".join(dict.fromkeys(found))
            given = f"{where} {name} = {value!r} was given"
            raise InputError(f"{given}, expected {expected}.") from None


def estimator_arguments(settings: TrainSettings) -> dict[str, Any]:
    """The arguments of the estimator, in which tables such as [kernel] are the objects they name.
    Settings that are no arguments, such as the target, have to be taken out before."""
    from .. import solvers, uncertainty

    made: dict[str, Any] = {"random_state": 0, **settings}
    if (kernel := _kernel(made.pop("kernel", None), made.pop("bandwidth", None))) is not None:
        made["kernel"] = kernel
    if isinstance(solver := made.get("solver"), dict):
        made["solver"] = _named("solver", solver, solvers)
    if isinstance(sure := made.get("uncertainty"), dict):
        made["uncertainty"] = _named("uncertainty", sure, uncertainty)
    columns = columns_of(settings)
    for name in (*OF_COLUMNS, "columns"):
        made.pop(name, None)
    if columns is not None:
        made["columns"] = columns
    return made


def columns_of(settings: TrainSettings) -> Columns | None:
    """What was said of columns, by themselves or in a table [columns]."""
    from .. import Columns

    said: TomlTable = dict(settings.get("columns", {}))
    for name in OF_COLUMNS:
        if (value := settings.get(name)) is not None:
            split = name in LISTED and isinstance(value, str)
            said[name] = str(value).split(",") if split else value
    if not said:
        return None
    chosen = _set("columns", Columns(), said)
    chosen.check()
    return chosen


def _kernel(kernel: object, bandwidth: object) -> object:
    """The kernel: a name, an object where there is more to say, or None where nothing was said."""
    from .. import kernels

    if isinstance(kernel, dict):
        kernel = _named("kernel", kernel, kernels)
    if bandwidth is None:
        return kernel
    made = kernels.Laplacian() if kernel in (None, "auto") else kernels.resolve(kernel)
    if not hasattr(made, "bandwidth"):
        raise InputError(f"the {made.name} kernel has no bandwidth; leave --bandwidth out.")
    try:
        made.bandwidth = "auto" if bandwidth == "auto" else float(cast(float | str, bandwidth))
    except ValueError:
        raise InputError(
            f"--bandwidth {bandwidth!r} was given, expected a number or auto."
        ) from None
    return made


def _named(what: str, table: TomlTable, room: ModuleType) -> object:
    """The object of a table such as {name = "matern", nu = 2.5}."""
    if "name" not in table:
        example = next(iter(room.NAMED))
        raise InputError(f"[{what}] has no name; say for example name = {example!r}.")
    values = {name: value for name, value in table.items() if name != "name"}
    return _set(what, room.resolve(table["name"]), values)


def _set(what: str, made: Made, values: TomlTable) -> Made:
    """The same kernel, solver or columns with the values of a table of the TOML file."""
    hints = get_type_hints(type(made))
    _check(f"[{what}] setting", values, {name: hints[name] for name in made.get_params()})
    return made.set_params(**values)
