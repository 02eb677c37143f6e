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
    """How the columns of a table become features; what is left out is decided from the rows.

    Parameters
    ----------
    features : list of str, optional
        Columns to use. None: all but the target.
    categorical : list of str, optional
        Columns of numbers that are names, such as zip codes. A CSV file's are read as they are
        written there.
    missing : str
        "impute": the mean, and a feature that says where; "refuse": an error.
    one_hot : int
        The most distinct values that get a feature each.
    beyond : str
        For columns with more: "target", the mean target of the category, never the row's own; or
        "hash".
    hash_size : int
        Features of a hash.
    standardise : bool, optional
        Subtract the mean and divide by the deviation. None: named columns, but not a matrix.
    how : dict, optional
        What becomes of a column, by its name. Of texts: "one_hot", "ordered", "target", "hash",
        "numbers" (those inside its texts), or a list of its values in their order, lowest first. Of
        numbers, how a kernel that is chosen sees them: "standard", "robust", "quantile",
        "robust+quantile" or "codes".
    exclude : list of str, optional
        Columns not to use.
    na_values : list of str or numbers, optional
        What stands for a missing value, besides blanks, -, na, none, unknown and the like.
    decimal : str, optional
        The mark before decimals, "." or ",". None: found column by column.
    thousands : str, optional
        The mark between thousands: ",", ".", " " or "'". None: found column by column.
    drop_duplicates : bool
        Rows that are the same in all features and the target count once; in `partial_fit`, those
        of one call.
    """

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
        """Raise InputError where a setting cannot be used."""
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
                    f"columns: {name!r} is in categorical, and its how is {way!r}, which is for"
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
