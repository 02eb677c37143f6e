"""What a user may say of how columns become features."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError, one_of
from ..params import Settings
from .tables import Table
from .writing import Reading, check_marks

OF_NAMES = ("one_hot", "ordered", "target", "hash", "numbers")
# How a kernel sees a column of numbers: kernels.ENCODINGS.
OF_NUMBERS = ("standard", "robust", "quantile", "robust+quantile", "codes")
WAYS = (*OF_NAMES, *OF_NUMBERS)


@dataclass(eq=False)
class Columns(Settings):
    """features: columns to use, None for all but the target; exclude: columns not to use;
    categorical: columns of numbers that
    are names (codes, zip codes), which a CSV file has as they are written there; missing: "impute"
    (the mean, and a column that says so) or "refuse"; one_hot: the most distinct values that get a
    column each; beyond: "target" (the mean target of the category, never the row's own) or "hash",
    for columns with more; hash_size: columns of a hash; standardise: None for named columns but not
    for a matrix; how: what becomes of a column of names or texts, by its name: "one_hot",
    "ordered", "target", "hash" or "numbers" (those inside its texts), or a list of its values in
    their order, lowest first; and how a kernel that is chosen sees a column of numbers: "standard",
    "robust", "quantile", "robust+quantile" or "codes"; na_values: what stands for a missing value,
    beside blanks, -, na, none, unknown and the like: texts, or numbers such as -999; decimal and
    thousands: the marks that numbers are written with, where they should not be found;
    drop_duplicates: rows that are the same in all features and the target are taken once."""

    features: list[str] | None = None
    categorical: list[str] | None = None
    missing: str = "impute"
    one_hot: int = 32
    beyond: str = "target"
    hash_size: int = 16
    standardise: bool | None = None
    how: dict[str, str | list[str]] | None = None
    exclude: list[str] | None = None
    na_values: list[str | int | float] | None = None
    decimal: str | None = None
    thousands: str | None = None
    drop_duplicates: bool = False

    def check(self) -> None:
        for name, value, allowed in (
            ("missing", self.missing, ["impute", "refuse"]),
            ("beyond", self.beyond, ["target", "hash"]),
        ):
            if value not in allowed:
                raise one_of(f"columns: {name}", value, allowed)
        for name in ("one_hot", "hash_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(
                    f"columns: {name}={value!r} was given, expected a whole number of 1 or more."
                )
        for name in ("features", "categorical", "exclude"):
            value = getattr(self, name)
            listed = value is None or isinstance(value, (list, tuple))
            if not listed or not all(isinstance(item, str) for item in value or []):
                raise InputError(
                    f"columns: {name}={value!r} was given, expected a list of column names."
                )
        values = self.na_values
        if values is not None and (
            not isinstance(values, (list, tuple))
            or not all(isinstance(value, (str, int, float)) for value in values)
        ):
            raise InputError(
                f"columns: na_values={values!r} was given, expected a list of texts or numbers."
            )
        check_marks(self.decimal, self.thousands)
        self._check_how()

    @property
    def reading(self) -> Reading:
        """What was said of how fields are written."""
        missing = tuple(str(value) for value in self.na_values or [])
        return Reading(missing, self.decimal or "", self.thousands or "")

    def _check_how(self) -> None:
        if self.how is not None and not isinstance(self.how, dict):
            raise InputError(
                f"columns: how={self.how!r} was given, expected a dictionary from column names to"
                f" one of {', '.join(WAYS)}, or a list of values in order."
            )
        for name, way in (self.how or {}).items():
            if isinstance(way, str) and way in OF_NUMBERS and name in (self.categorical or []):
                raise InputError(
                    f"columns: categorical names {name!r}, and how of it is {way!r}, which is for"
                    " numbers; leave one of them out."
                )
            if isinstance(way, str):
                if way not in WAYS:
                    raise one_of(f"columns: how of {name!r}", way, list(WAYS))
                continue
            listed = isinstance(way, (list, tuple)) and all(isinstance(v, str) for v in way)
            if not listed or len(set(way)) != len(way) or len(way) < 2:
                raise InputError(
                    f"columns: how of {name!r} is {way!r}, expected one of {', '.join(WAYS)}, or a"
                    " list of two or more different texts, lowest first."
                )

    @property
    def ways(self) -> dict[str, str | list[str]]:
        """What was said of how columns become features."""
        return self.how or {}

    @property
    def kinds(self) -> dict[str, str]:
        """Of the columns of which something was said."""
        plain = ("numbers", *OF_NUMBERS)
        named = [name for name, way in self.ways.items() if way not in plain]
        return dict.fromkeys([*(self.categorical or []), *named], "text")

    def named(self, table: Table) -> Table:
        """The table with numbers that are names as texts."""
        return table.of_kinds(self.kinds)
