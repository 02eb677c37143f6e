"""What a user may say of how columns become features."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InputError, one_of
from ..params import Settings
from .tables import Table


@dataclass(eq=False)
class Columns(Settings):
    """features: columns to use, None for all but the target; categorical: columns of numbers that
    are names (codes, zip codes), which a CSV file has as they are written there; missing: "impute"
    (the mean, and a column that says so) or "refuse"; one_hot: the most distinct values that get a
    column each; beyond: "target" (the mean target of the category, never the row's own) or "hash",
    for columns with more; hash_size: columns of a hash; standardise: None for named columns but not
    for a matrix."""

    features: list[str] | None = None
    categorical: list[str] | None = None
    missing: str = "impute"
    one_hot: int = 32
    beyond: str = "target"
    hash_size: int = 16
    standardise: bool | None = None

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
        for name in ("features", "categorical"):
            value = getattr(self, name)
            listed = value is None or isinstance(value, (list, tuple))
            if not listed or not all(isinstance(item, str) for item in value or []):
                raise InputError(
                    f"columns: {name}={value!r} was given, expected a list of column names."
                )

    @property
    def kinds(self) -> dict[str, str]:
        """Of the columns of which something was said."""
        return dict.fromkeys(self.categorical or [], "text")

    def named(self, table: Table) -> Table:
        """The table with numbers that are names as texts."""
        return table.of_kinds(self.kinds)
