"""Settings: dataclasses whose fields are their parameters, so that they nest in scikit-learn's
set_params and clone.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Self

from .errors import one_of


class Settings:
    """Gives a dataclass scikit-learn's `get_params` and `set_params` without importing
    scikit-learn.
    """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: object) -> Self:
        known = list(self.get_params())
        for name, value in params.items():
            if name not in known:
                raise one_of(f"{type(self).__name__} parameter", name, known)
            setattr(self, name, value)
        return self
