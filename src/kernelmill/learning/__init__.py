"""Learning: the flow from rows to a fitted model, without scikit-learn."""

from .design import Judged, Warm
from .fitted import Fitted
from .flow import Surroundings, learn
from .request import Request
from .rows import Held, Rows, Units

__all__ = ["Fitted", "Held", "Judged", "Request", "Rows", "Surroundings", "Units", "Warm", "learn"]
