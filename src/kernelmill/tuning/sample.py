"""The rows that a kernel is chosen on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

# Rows the gradient sees, for every candidate and for the best one: a step costs about r³.
FIRST_ROWS, FINAL_ROWS = (500, 1000)
CHECK_ROWS = 2500  # rows on which finalists are compared when every row is a center

SAMPLE_ROWS = 12_000  # rows on which they are compared when not


MATRICES = 12 * 8  # bytes for each pair of rows: kernel matrices, their folds and factors


@dataclass(frozen=True)
class Effort:
    """Rows on which every candidate descends, on which the best descend again, and on which they
    are compared.
    """

    first: int
    final: int
    judged: int
    thorough: bool  # more kernels over encodings, and metrics in several rounds
    starts: int  # recipes that are descended again, and whose metrics are learned
    steps: int  # of the second descent
    few: int  # rows that are cut into more folds
    part: int  # rows of each part of a sample of classes, whose bandwidths are averaged
    parted: int  # rows of such a sample, at most
    each: int  # rows of classes, at most, of which each is left out once at the end
    beyond: int  # centers, from which the ridge is chosen by nearest rows: see Nearby
    rivalled: int  # centers, from which the last recipes are compared by them too
    sifted: int  # rows on which recipes are compared that meet again there

    @classmethod
    def on(cls, device: torch.device, budget: int) -> Effort:
        """3 to 20 s on an H200, 2 to 10 s on two cores; less where there is little memory."""
        most = int((budget / MATRICES) ** 0.5)
        if device.type == "cuda":
            each = min(30_000, most)
            judged = min(24_000, most)
            dense, sifted = 2 * each, min(8000, most)
            return cls(
                3000, 6000, judged, True, 3, 15, 8000, 6000, 24_000, each, dense, dense, sifted
            )
        judged, each = min(2500, most), min(3900, most)
        return cls(500, 1000, judged, False, 1, 8, 600, 500, 2000, each, 10_000, 25_000, judged)

    def seconds(self, n: int, p: int, products: float) -> float:
        """About what choosing among everything takes, of n rows and p centers, on a machine of so
        many float64 operations a second: descents on few rows, folds of more, and the density of
        the run.
        """
        first, final, folds = min(n, self.first), min(n, self.final), min(n, self.judged) * 2 / 3
        descents = DESCENTS * 3 * first**3 + (n > self.first) * AGAIN * 3 * final**3
        judged = FACTORS * folds**3 / 3
        denser = FACTORS_OF_THE_RUN * LARGE**3 / 3 if p > 1.5 * LARGE else 0.0
        return BESIDE * (descents + judged + denser) / products


# Evaluations of leave-one-out errors and factors of folds in one choice, as counted on diamonds and
# credit; and what kernel values and the rest take beside them.
DESCENTS, AGAIN, FACTORS, FACTORS_OF_THE_RUN, LARGE, BESIDE = 180, 25, 190, 14, 4000, 1.3

# The share of the sample that each class gets, and rows of a class too small to count for it.
RARE, FEW = (0.1, 50)


def scale_of(X: Tensor) -> Tensor:
    """A typical spread of each feature; 1 for a constant one, so that nothing is divided by
    zero.
    """
    spread = X.std(0, correction=0)
    tiny = 1e-12 * X.abs().amax(0).clamp(min=1e-300)
    return torch.where(spread > tiny, spread, torch.ones_like(spread))


def draw(
    n: int, codes: Tensor | None, generator: torch.Generator, most: int = SAMPLE_ROWS
) -> tuple[Tensor, Tensor]:
    """Numbers of the rows to tune on, `most` of them, in random order, and how many rows each
    stands for, 1 on average.

    A rare class is drawn more often than it occurs, and weighs less for it: among 500 rows of
    which one in a hundred is of it, five would decide everything.
    """
    order = torch.randperm(n, generator=generator)
    counts = torch.zeros(1) if codes is None else torch.bincount(codes.cpu()).double()
    there = counts > 0
    wanted = min(RARE, 0.5 / max(1, int(there.sum())))
    if codes is None or not bool((counts[there] < wanted * n).any()):
        rows = order[:most]
        return rows, torch.ones(len(rows), dtype=torch.float64)
    share = torch.where(there, (counts / n).clamp(min=wanted), 0.0)
    share = share / share.sum()
    # Of a class with fewer rows all are taken, and it does not decide how many of the others.
    enough = counts >= FEW
    there_are = (counts[enough] / share[enough]).min().item() if bool(enough.any()) else n
    size = min(n, max(FINAL_ROWS, min(most, there_are)))
    take = torch.minimum(counts, (share * size).ceil())
    sorted_codes, places = torch.sort(codes.cpu()[order], stable=True)
    rank = torch.arange(n) - (counts.cumsum(0) - counts).long()[sorted_codes]
    chosen = places[rank < take[sorted_codes]]
    rows = order[chosen[torch.randperm(len(chosen), generator=generator)]]
    weight = (counts / take.clamp(min=1))[codes.cpu()[rows]]
    return rows, weight / weight.mean()


@dataclass(frozen=True)
class Sample:
    """Rows to tune on, float64, in random order: the first ones are fitted, later ones validate.

    `ratio` is p/n of the real run.

    A Gaussian process also asks how many targets a row stands for: `weight` is the mean weight,
    by which w was divided, and `scatter` (c,) what their mean lost of Σ w y², for a row of w =
    1.
    """

    X: Tensor
    Y: Tensor
    w: Tensor
    ratio: float
    weight: float = 1.0
    scatter: Tensor | None = None
    columns: Tensor | None = None  # (D,) features that share a bandwidth; None: each has its own
    shares: Tensor | None = None  # (D,) so many features weigh as one; None: each weighs as one
    frequencies: Tensor | None = None  # (c,) of classes, which Y is measured from
    scoring: str | None = None  # what recipes are compared by; see scoring.score

    def some(self, rows: Tensor) -> Sample:
        """Of these rows."""
        return replace(self, X=self.X[rows], Y=self.Y[rows], w=self.w[rows])
