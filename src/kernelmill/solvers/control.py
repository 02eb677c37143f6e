"""The control variate of EigenPro 4 and its ridge, and what stands in their place where there is
none of them.

A step on g − g_last plus the mean of K(·,x) g_last has the same mean as a step on g, and its noise
vanishes as residuals settle; so the run tends to the direct solution without a vanishing step. The
first epoch only remembers residuals, and the mean gradient that they make.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..preconditioner import OVERSTEP
from .eigenpro_state import EigenPro4State
from .shards import Blocks, Shards


class NoControl:
    """Steps on the residuals themselves."""

    limit, anchored = OVERSTEP, False

    def recall(self, rows: Tensor) -> Tensor | None:
        """The residuals that these rows had when last seen, on the rank that keeps them, and zeros
        elsewhere.
        """
        return None

    def change(self, g: Tensor, last: Tensor) -> Tensor:
        """What a step is made of."""
        return g

    def down(self, K_mZ: Blocks, step: Tensor, g: Tensor) -> Tensor:
        """K(Z, X_m) step."""
        return K_mZ.transposed(step)

    def move(self, size: float, running: Tensor) -> None:
        """Add what the steps leave out, to the weights and to those of the cycle."""

    def note(self, g: Tensor, last: Tensor) -> None:
        """These are the batch's residuals."""

    def keep(self) -> None:
        """The cycle was good: its residuals are the last ones."""


class Memory(NoControl):
    """Remembers each row's residual, and their mean gradient for the next epoch."""

    def __init__(self, state: EigenPro4State, centers: Shards):
        self._state, self._centers, self._n = state, centers, state.plan.n
        # After the last epoch nobody asks for it.
        self._D_next = None if state.epoch + 1 == state.plan.epochs else state.D_next
        self._seen: list[tuple[Tensor, Tensor]] = []

    def recall(self, rows: Tensor) -> Tensor:
        g_last = self._state.g_last
        assert g_last is not None
        own, at = self._centers.has(rows.to(g_last.device))
        self._own, self._at = own, at.clamp(max=max(0, len(g_last) - 1))
        return (
            g_last[self._at] * own if len(g_last) else g_last.new_zeros(len(rows), g_last.shape[1])
        )

    def down(self, K_mZ: Blocks, step: Tensor, g: Tensor) -> Tensor:
        if self._D_next is None:
            return K_mZ.transposed(step)
        # One pass over the block for both: this batch's h, and its part of the mean gradient for
        # the next epoch.
        both, c = K_mZ.transposed(torch.cat([step, g / self._n], 1)), g.shape[1]
        self._D_next += both[:, c:]
        return both[:, :c]

    def note(self, g: Tensor, last: Tensor) -> None:
        self._seen.append((self._at, (g - last) * self._own))

    def keep(self) -> None:
        state, g_last = self._state, self._state.g_last
        assert g_last is not None
        state.replaced.clear()
        for rows, change in self._seen:
            if self._centers.alone:
                state.replaced.append((state.seen, rows, g_last[rows]))
            g_last.index_add_(0, rows, change)
        self._seen = []


class Anchor(Memory):
    """From the second epoch on: steps on how residuals changed, and the mean gradient of the last
    epoch.
    """

    limit, anchored = 1.0, True

    def __init__(self, state: EigenPro4State, centers: Shards):
        """K(Z,Z) ψ = D, less the preconditioner's part on the subsample."""
        super().__init__(state, centers)
        D, F, s = state.D, centers.F, centers.s
        assert D is not None
        # As far as it was projected, and what was not.
        self._psi, self._r = centers.setup.project(D)
        u = centers.sum(F.T @ D[:s])
        self._f_s = (D - self._r)[
            :s
        ] - centers.KF @ u  # values of the projected part on the subsample
        self._psi[:s] -= F @ u

    def change(self, g: Tensor, last: Tensor) -> Tensor:
        return g - last

    def move(self, size: float, running: Tensor) -> None:
        self._state.alpha -= size * self._psi
        running -= size * self._psi
        self._state.r -= size * self._r
        if self._state.f_s is not None:
            self._state.f_s -= size * self._f_s


def control_of(state: EigenPro4State, centers: Shards) -> NoControl:
    if state.g_last is None:
        return NoControl()
    return Memory(state, centers) if state.D is None else Anchor(state, centers)


class NoRidge:
    """λ = 0: a step sees the rows alone."""

    def seen(self, down: Tensor, eta: float, m: int) -> Tensor:
        """What the step does to the values on the subsample."""
        return down

    def shrink(self, moved: list[Tensor], v: Tensor, down: Tensor) -> None:
        """f ← (1 − ρ) f, with what the cycle has `moved`, and f_s follows the step."""

    def project(self, done: Tensor) -> None:
        """A projection changed the values on the centers by so much."""


class Ridge(NoRidge):
    """f ← f − ρ P f beside the step, with ρ = ηλm/n: all of it is known already, as the values f_s
    on the subsample are carried along.
    """

    def __init__(self, state: EigenPro4State, centers: Shards):
        assert state.f_s is not None
        self._state, self._f_s, self._centers, self._rho = state, state.f_s, centers, 0.0

    def seen(self, down: Tensor, eta: float, m: int) -> Tensor:
        plan = self._state.plan
        self._rho = eta * plan.ridge * m / plan.n
        return down + self._rho * self._f_s

    def shrink(self, moved: list[Tensor], v: Tensor, down: Tensor) -> None:
        for part in (self._state.alpha, self._state.r, self._f_s, *moved):
            part *= 1 - self._rho
        self._f_s += self._centers.KF @ v - down

    def project(self, done: Tensor) -> None:
        self._f_s += done[: self._centers.s]


def ridge_of(state: EigenPro4State, centers: Shards) -> NoRidge:
    return NoRidge() if state.f_s is None else Ridge(state, centers)
