"""How far rows are from what was learned, by the kernel itself.

In the kernel's space a row is √(K(x,x) + K(z,z) − 2 K(x,z)) from a center; values over √K(x,x) and
√K(z,z), so that it depends on directions alone where K is not bounded. The unit is the distance
within which 99 of 100 centers have another one: above 1, a row is farther from everything that was
learned than nearly all rows that it was learned from were from each other.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from .model import KernelModel
from .ops import KernelProduct, in_own_modes

ROWS = 4096
SOME = 1000  # centers that tell how far they are from each other
NEARLY_ALL = 0.99
_USUAL: WeakKeyDictionary[KernelProduct, float] = WeakKeyDictionary()


@in_own_modes()
def novelty(model: KernelModel, X: Tensor) -> Tensor:
    """(r,) distances to the nearest center, over the distance that is usual among centers."""
    unit = usual_distance(model)
    return nearest(model, X) / max(unit, torch.finfo(torch.float64).tiny)


def usual_distance(model: KernelModel) -> float:
    """Within which NEARLY_ALL centers have another one; of all distances, where copies are most of
    them. Found once for a model: it costs as much as predicting SOME rows.
    """
    K, _ = model.prepared()  # made anew where the model is moved or cast
    if K not in _USUAL:
        _USUAL[K] = _usual_distance(model)
    return _USUAL[K]


def _usual_distance(model: KernelModel) -> float:
    def some() -> tuple[Tensor, Tensor]:
        count = min(SOME, len(model.Z))
        own = torch.linspace(0, len(model.Z) - 1, count).round().long()
        return model.Z[own.to(model.Z.device)].cpu(), own

    rows, own = model.comm.same(some)  # centers of the first rank, in random order as all are
    mine = own.to(model.Z.device) if model.comm.rank == 0 else None
    found = nearest(model, rows.to(model.Z.device), mine)
    unit = torch.quantile(found, NEARLY_ALL).item()
    return unit if unit > 0 else found.max().item() or 1.0


def nearest(model: KernelModel, X: Tensor, own: Tensor | None = None) -> Tensor:
    """(r,) float64 distances of rows to their nearest center; `own`: numbers of the centers that
    the rows are themselves, which do not count.
    """
    K, Z = model.prepared()
    size = K.diagonal(Z).double().clamp(min=0).sqrt()
    out = torch.zeros(len(X), dtype=torch.float64, device=size.device)
    step = max(1, min(ROWS, K.tile_bytes // (8 * max(1, len(model.Z)))))
    for i in range(0, len(X), step):
        points = K.points(model.as_learned(X[i : i + step]))
        cos = K.dense(points, Z).double() / size.clamp(min=1e-300)
        cos /= K.diagonal(points).double().clamp(min=1e-300).sqrt()[:, None]
        if own is not None:
            cos[torch.arange(len(cos), device=cos.device), own[i : i + step]] = -1.0
        out[i : i + step] = (2 - 2 * cos.amax(1)).clamp(min=0).sqrt()
    if model.comm.size > 1:  # of all ranks' centers
        every = torch.zeros(model.comm.size, len(X), dtype=torch.float64, device=out.device)
        every[model.comm.rank] = out
        out = model.comm.all_sum(every).amin(0)
    return out
