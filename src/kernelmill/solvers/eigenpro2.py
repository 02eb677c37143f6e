"""EigenPro 2: every row is a center (Z = X). No projection at all; an epoch is one pass of `projection.Pass` on (X, Y)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..data import Source
from ..distributed import Communicator
from ..kernels import Kernel
from ..planning import Plan, eigenpro_sizes, every_row_needed, whole
from .base import OnEvent, Solver, State
from .passes import epochs_of_passes


@dataclass(eq=False)
class EigenPro2(Solver):
    """s: subsample rows; q: eigenvectors; m: batch. An epoch evaluates n²/2 kernel values. The default five
    epochs bring the loss to within a tenth of the targets' variance of the direct solution's."""

    s: int | None = None
    q: int | None = None
    m: int | None = None
    name = "eigenpro2"
    needs_ridge = True
    every_row = True
    sharded = True
    subsamples = True

    def plan(self, base: Plan) -> Plan:
        every_row_needed(base)
        whole("m", self.m, 1)
        return eigenpro_sizes(base, s=self.s, q=self.q, projection="carried", control_variate=False)

    def solve(
        self,
        kernel: Kernel,
        source: Source,
        Z: Tensor,
        plan: Plan,
        comm: Communicator,
        generator: torch.Generator,
        on_event: OnEvent,
        state: State | None = None,
    ) -> State:
        return epochs_of_passes(kernel, source, Z, plan, comm, generator, on_event, state, self.m)
