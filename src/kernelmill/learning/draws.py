"""Functions of a Gaussian process's prior as further targets: learned like the others, they tell
what the posterior is (see processes.SampledProcess).

Each row's targets are the functions' values there, and noise of variance λ/w: the same whenever
the row is read, on any rank, in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data import Batch, Source
from ..kernels import Kernel
from ..kernels.waves import Waves, draw_waves
from ..model import KernelModel
from ..processes import SampledProcess
from ..uncertainty import Posterior
from .rows import Held

# splitmix64, as signed numbers.
ODD, FIRST, SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
UNIT = 2.0**-53


class NoDraws:
    """Targets as they are."""

    def beside(self, source: Source) -> Source:
        return source


@dataclass(frozen=True)
class Draws(NoDraws):
    """S functions of the prior of variance 1; the variances of the signal, (c,), and of noise over
    it, `ridge` of a row of mean weight and `noise` of one target.
    """

    waves: Waves
    ridge: float
    noise: float
    signal: Tensor
    seed: int

    @classmethod
    def of(
        cls,
        settings: Posterior,
        kernel: Kernel,
        source: Source,
        ridge: float,
        targets: float,
        signal: Tensor,
        seed: int,
        dtype: torch.dtype,
    ) -> Draws:
        """Depends on the seed, the kernel and some rows alone."""
        generator = torch.Generator().manual_seed(seed)
        origin = source.some(1000).X.double().mean(0).cpu()
        waves = draw_waves(kernel, origin, settings.features // 2, settings.samples, generator)
        frequencies, weights = (part.to(dtype) for part in (waves.frequencies, waves.weights))
        waves = Waves(kernel, origin, frequencies, weights).to(source.device)
        return cls(waves, ridge, ridge * targets, signal, seed)

    def beside(self, source: Source) -> Source:
        return WithDraws(source, self)

    def at(self, batch: Batch) -> Tensor:
        """(m, S) targets of a batch."""
        values = self.waves(batch.X)
        noise = normal(batch.rows.to(values.device), values.shape[1], self.seed).to(values)
        return values + noise * (self.ridge / batch.w.to(values)).sqrt()[:, None]

    def process(self, draws: Tensor, scale: Tensor) -> SampledProcess:
        """Of weights that were learned, in the units of the targets."""
        signal = self.signal.to(scale) * scale**2
        waves = self.waves.to(draws.device)
        return SampledProcess(draws.contiguous(), waves, signal, self.noise * signal)


class WithDraws:
    """A source whose rows have drawn functions beside their targets."""

    def __init__(self, source: Source, draws: Draws):
        self._source, self._draws = source, draws
        samples = draws.waves.weights.shape[1]
        self.n, self.d, self.c, self.device = source.n, source.d, source.c + samples, source.device
        self.mean = torch.cat([source.mean, source.mean.new_zeros(samples)])
        self.scale = torch.cat([source.scale, source.scale.new_ones(samples)])

    def _beside(self, batch: Batch) -> Batch:
        drawn = self._draws.at(batch)
        return replace(batch, Y=torch.cat([batch.Y, drawn.to(batch.Y)], 1))

    def take(self, rows: Tensor) -> Batch:
        return self._beside(self._source.take(rows))

    def targets(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Which reads X: functions are of it."""
        parts = [self.take(part) for part in rows.split(65_536)]
        return torch.cat([part.Y for part in parts]), torch.cat([part.w for part in parts])

    def some(self, count: int) -> Batch:
        return self._beside(self._source.some(count))

    def batches(self, m: int, epoch: int, position: int = 0) -> Iterator[Batch]:
        return map(self._beside, self._source.batches(m, epoch, position))

    def sweep(self, m: int) -> Iterator[Batch]:
        return map(self._beside, self._source.sweep(m))


FEWEST = 200  # held-out rows that tell how large deviations should have been


def rescale(model: KernelModel, held: Held | None, target: float) -> None:
    """Make variances of signal and noise those under which rows that were kept out are likeliest,
    where there are enough of them: what the kernel, few centers or few steps do not tell is then
    in them too. `target` is the weight of one target.
    """
    process = model.process
    if not isinstance(process, SampledProcess) or held is None or len(held.y) < FEWEST:
        return
    with torch.no_grad():
        errors = (held.y.to(model.alpha.device).double() - model(held.X).double()) ** 2
        share, noise = model.std_parts(held.X)
    w = held.w.to(errors)[:, None] / target
    expected = share.double()[:, None] * process.signal.double() + noise.double() / w
    factor = (errors / expected).mean(0).clamp(min=1e-12).to(process.signal)
    process.signal *= factor
    process.noise *= factor


def normal(rows: Tensor, count: int, seed: int) -> Tensor:
    """(m, count) normal numbers that depend on the numbers of the rows and the seed alone."""
    place = rows[:, None] * count + torch.arange(count, device=rows.device)
    first, second = (_uniform(2 * place + i, seed) for i in (0, 1))
    return (-2 * first.clamp(min=UNIT).log()).sqrt() * torch.cos(2 * math.pi * second)


def _uniform(number: Tensor, seed: int) -> Tensor:
    """Between 0 and 1, of whole numbers: splitmix64."""
    mixed = (number + (seed + 1) * 0x9E3779B1) * ODD
    for shift, factor in ((30, FIRST), (27, SECOND)):
        mixed = (mixed ^ _right(mixed, shift)) * factor
    mixed = mixed ^ _right(mixed, 31)
    return _right(mixed, 11).double() * UNIT


def _right(bits: Tensor, count: int) -> Tensor:
    """A shift to the right that brings zeros."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
