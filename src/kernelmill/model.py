"""KernelModel: f(x) = K(x, Z) α + intercept. What predict uses and save writes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .data import checksum
from .distributed.team import Alone, Communicator, agree, is_alone
from .errors import InputError
from .kernels import Kernel, Points
from .ops import FEW, KernelProduct, bind, frame, in_own_modes, own_modes
from .planning.memory import GPU_TILE_BYTES, TILE_BYTES
from .processes import SampledProcess, SparseProcess

ROWS = 16_384  # predicted at a time: enough to fill a GPU, and few beside a million centers


def _facts(X: Tensor) -> dict[str, str]:
    return {
        "call": "predict",
        "rows to predict": str(tuple(X.shape)),
        "rows of X to predict": "#" + checksum(X),
    }


class KernelModel(nn.Module):
    """A trained kernel model as a torch module: `forward` takes raw rows and returns (r, c) values
    on the model's device.

    Where ranks share it, Z and alpha are this rank's rows, and all ranks call it together, with the
    same rows.

    Parameters
    ----------
    kernel : Kernel
        With its bandwidths.
    Z : Tensor
        (p, d) centers: rows of the training data as they were given.
    alpha : Tensor
        (p, c) weights, in the precision of the sums.
    intercept : Tensor
        (c,) in the precision of the values: float64 for numbers, which may be far from zero.
    tile_bytes : int, optional
        Kernel values that are held at a time. None: what suits the device.
    precision : str, optional
        What features are rounded to, in training as in prediction.
    process : SparseProcess or SampledProcess, optional
        What `std` is computed from, of a Gaussian process.
    comm : Communicator, optional
        The ranks that share it. None: this process alone.
    n_centers : int, optional
        Centers of all ranks together. None: the rows of Z.
    constants : dict, optional
        Features that never varied in training, by number, each with its value there: what they say
        later was not learned, so they are taken as they were.
    """

    Z: Tensor
    alpha: Tensor
    intercept: Tensor

    def __init__(  # noqa: PLR0913
        self,
        kernel: Kernel,
        Z: Tensor,
        alpha: Tensor,
        intercept: Tensor,
        tile_bytes: int | None = None,
        precision: str | None = None,
        process: SparseProcess | SampledProcess | None = None,
        comm: Communicator | None = None,
        n_centers: int | None = None,
        constants: dict[int, float] | None = None,
    ):
        super().__init__()
        self.comm, self.n_centers = comm or Alone(), len(Z) if n_centers is None else n_centers
        self.kernel, self.tile_bytes, self.constants = kernel, tile_bytes, constants or {}
        self.precision = precision or ("float64" if alpha.dtype == torch.float64 else "float32")
        self.register_buffer("Z", Z)
        # As a file has it: the order of a sum follows it.
        self.register_buffer("alpha", alpha.contiguous())
        self.register_buffer("intercept", intercept)
        self.process = process
        self._prepared: tuple[KernelProduct, Points] | None = None

    def __getstate__(self) -> dict:
        """Without what is derived: it holds functions, and is made again where it is needed."""
        return {**self.__dict__, "_prepared": None}

    def prepared(self) -> tuple[KernelProduct, Points]:
        """The kernel product and Z as it sees them, made once for a device: remaking them would
        cost as much as predicting a row.
        """
        device, dtype = self.alpha.device, self.alpha.dtype
        if (
            self._prepared is None
            or self._prepared[0].device != device
            or self._prepared[0].dtype != dtype
        ):
            origin, spread = frame(self.kernel, self.Z, self.comm.all_sum)
            tile = self.tile_bytes or (GPU_TILE_BYTES if device.type == "cuda" else TILE_BYTES)
            # A module may be cast: `model.float()` computes in float32 from then on.
            cast = {torch.float64: "float64", torch.float32: "float32"}.get(dtype)
            if cast is None:
                raise InputError(
                    f"the model's weights were cast to {dtype}, expected float32 or float64: use"
                    " precision='float16' to round features."
                )
            precision = cast if "float64" in (self.precision, cast) else self.precision
            use = False if self.n_centers <= FEW else None
            K = bind(self.kernel, origin, precision, device, tile, spread, use)
            self._prepared = K, K.points(self.Z)
        return self._prepared

    def forward(self, X: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            return self._expression(X)
        with own_modes():
            return self._values(X)

    def _values(self, X: Tensor) -> Tensor:
        return self._sum(X, self.alpha, self.intercept)

    def _sum(self, X: Tensor, alpha: Tensor, intercept: Tensor) -> Tensor:
        """(r, ·) K(X, Z) times weights of this rank's centers, over all ranks."""
        K, Z = self.prepared()
        # Rows that differ would add up to numbers that look right.
        agree(self.comm, lambda: _facts(X))
        # Tiles are computed in place, without gradients; the exported program has them.
        X = X.detach()
        dtype = torch.promote_types(alpha.dtype, intercept.dtype)
        out = torch.empty(len(X), alpha.shape[1], dtype=dtype, device=alpha.device)
        waiting: list[tuple[int, Callable[[], Tensor]]] = []
        # Rows stream through: neither X nor K is ever whole on the device.
        for i in range(0, len(X), ROWS):
            points = K.points(self.as_learned(X[i : i + ROWS]))
            waiting.append((i, self.comm.start_sum(K.matmul(points, Z, alpha))))
            if len(waiting) > 1:  # the sum over ranks of one piece runs while the next is computed
                j, summed = waiting.pop(0)
                torch.add(summed(), intercept, out=out[j : j + ROWS])
        for j, summed in waiting:
            torch.add(summed(), intercept, out=out[j : j + ROWS])
        return out

    def some_centers(self, count: int) -> Tensor:
        """So many of all ranks' centers, from all over: the same on every rank, and whatever their
        number.
        """
        count = min(count, self.n_centers)
        places = torch.linspace(0, self.n_centers - 1, count, dtype=torch.float64).round().long()
        if is_alone(self.comm):
            return self.Z[places.to(self.Z.device)]
        own = places % self.comm.size == self.comm.rank
        rows = torch.zeros(count, self.Z.shape[1], dtype=torch.float64, device=self.Z.device)
        rows[own] = self.Z[(places[own] // self.comm.size).to(self.Z.device)].double()
        return self.comm.all_sum(rows).to(self.Z.dtype)

    def as_learned(self, X: Tensor) -> Tensor:
        """These rows with what never varied in training as it was there."""
        if not self.constants:
            return X
        values = torch.full((X.shape[1],), torch.nan, dtype=X.dtype)
        values[list(self.constants)] = torch.tensor(list(self.constants.values()), dtype=X.dtype)
        return torch.where(values.isnan().to(X.device), X, values.to(X.device))

    def _expression(self, X: Tensor) -> Tensor:
        if self._prepared is None:
            raise InputError(
                "prepare the model before it is exported: model.prepared(), or call it once."
            )
        (K, Z), process, X = self._prepared, self.process, self.as_learned(X)
        if not isinstance(process, SampledProcess):
            return K.expression(X, Z, self.alpha) + self.intercept
        sums = K.expression(X, Z, torch.cat([self.alpha, process.draws], 1))
        c = self.alpha.shape[1]
        values = sums[:, :c] + self.intercept
        prior = process.prior(self.kernel, X)
        deviations = process.std(process.share(prior, prior - sums[:, c:]))
        return torch.cat([values, deviations.to(values.dtype)], 1)

    def exported(self) -> torch.export.ExportedProgram:
        """The model as torch.export's program, for any number of rows (2 or more) of the precision
        of its centers. K(X, Z) is held: give it some hundred rows at a time. With
        uncertainty="posterior" it gives (r, 2c): values, then their standard deviations.
        """
        model = copy.deepcopy(self).cpu().eval()
        model.prepared()
        example = torch.zeros(
            7, self.Z.shape[1], dtype=torch.promote_types(self.Z.dtype, torch.float32)
        )
        return torch.export.export(
            model, (example,), dynamic_shapes=({0: torch.export.Dim("rows")},)
        )

    @in_own_modes()
    def std(self, X: Tensor) -> Tensor:
        """(r, c) standard deviation of the targets at X, noise included.

        Only a Gaussian process knows it.
        """
        process = self.process
        if process is None:
            raise InputError(
                "this model is no Gaussian process: it was trained neither by solver='sgpr' nor"
                " with uncertainty='posterior'."
            )
        found = [process.std(self._share(part)) for part in X.split(4096)]
        return torch.cat(found) if found else process.signal.new_empty(0, len(process.signal))

    @in_own_modes()
    def std_parts(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """(r,) the function's variance, of a signal of variance 1, and (c,) that of the noise of
        one target.
        """
        assert self.process is not None
        return torch.cat([self._share(part) for part in X.split(4096)]), self.process.noise

    def _share(self, X: Tensor) -> Tensor:
        if isinstance(self.process, SampledProcess):
            return self.process.share(*self._deviations(X))
        assert self.process is not None
        K, Z = self.prepared()
        return self.process.share(K, Z, K.points(self.as_learned(X)))

    def _deviations(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """(r, S) functions of the prior, and what is left of them: in units of the signal's
        deviation.
        """
        assert isinstance(self.process, SampledProcess)
        prior = self.process.prior(self.kernel, self.as_learned(X).to(self.alpha.device))
        draws = self.process.draws
        return prior, prior - self._sum(X, draws, draws.new_zeros(()))

    @in_own_modes()
    def draw(self, X: Tensor) -> Tensor:
        """(r, c, S) functions of the posterior at rows, without noise: the same functions at every
        call. Of several outputs, each takes them in another order, so that they do not go together.
        """
        if not isinstance(self.process, SampledProcess):
            raise InputError(
                "this model has no functions to draw: fit with uncertainty='posterior'."
            )
        mean, c = self._values(X), self.alpha.shape[1]
        left = torch.cat([self._deviations(part)[1] for part in X.split(ROWS)] or [mean[:, :0]])
        turns = [j * left.shape[1] // c for j in range(c)]
        each = torch.stack([left.roll(turn, 1) for turn in turns], 1).to(mean)
        return mean[..., None] + each * self.process.signal.sqrt().to(mean)[:, None]

    def extra_repr(self) -> str:
        return (
            f"{self.kernel}, centers={self.n_centers}, features={self.Z.shape[1]},"
            f" outputs={self.alpha.shape[1]}"
        )
