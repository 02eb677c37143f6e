"""Plans: the sizes of a run, and the machine, memory and precision they are decided by."""

from .machine import Network, Rates
from .plan import Plan

__all__ = ["Network", "Plan", "Rates"]
