"""Model folders: model.json and weights.safetensors.

Loading reads numbers and names, and never runs code.

model.json has a format number, the kernel, and whatever the estimator adds; arrays stand in
weights.safetensors, whose checksum it holds. `encoder` is what turns a raw table into features.
Saving is all or nothing (see Saver); what is read is checked, for others may have written it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, get_args, get_origin, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .. import kernels
from ..data import Encoder
from ..data.bounds import check_bounds
from ..distributed.team import Alone, Communicator, is_alone, shard
from ..errors import InputError, ModelFileError, writing
from ..kernels import Kernel
from ..kernels.waves import Waves, has_waves
from ..model import KernelModel
from ..ops import PRECISIONS
from ..planning.plan import Plan
from ..processes import SampledProcess, SparseProcess
from ..solvers import HistoryRow, Sparse
from ..types import Json
from .atomic import WRITING, keep_mode, new_file, write_file
from .codec import decode, encode, find_dropped
from .tensors import write_tensors

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing then makes two savers wait for each other
    fcntl = None  # type: ignore[assignment]

FORMAT, VERSION = "kernelmill-model", 1

JSON_NAME, WEIGHTS_NAME = "model.json", "weights.safetensors"

WAITING, WAITING_NAME = "weights-{}.safetensors", re.compile(r"weights-[0-9a-f]{64}\.safetensors")

REPLACED_SECONDS = 0.1  # that a folder may be gone while another one is put in its place

DEEPEST = 50  # lists and tables within each other in model.json

FITTED: dict[str, type | UnionType] = {
    "n_iter_": int,
    "ridge_": float,
    "n_features_in_": int,
    "classes_": np.ndarray,
    "slope_": float,
    "log_slope_": float,
    "bias_": np.ndarray,
    "floor_": float,
    "decision_bias_": np.ndarray,
    "n_outputs_": int,
    "y_ndim_": int,
    "rows_seen_": int,
    "_matrix": str | None,
    "_bounds": np.ndarray | None,
    "_stands": int,
    "_weight_seen": float,
    "_kept": list | None,
    "_target": str | None,
    "timings_": dict,
    "confusion_": np.ndarray | None,
    "held_out_": dict | None,
    "origin_": dict,
    "intervals_": dict | None,
    "sets_": dict | None,
}  # types of what an estimator learned, by name

# Tensors of Gaussian processes, by name; "draws" are dealt out like the weights.
SPARSE = ("L", "R", "signal", "noise")
SAMPLED = ("origin", "frequencies", "heights", "signal", "noise")

NOTED = {"kind": str, "note": str}  # and of a row of its history; others are numbers


class Extra(TypedDict):
    """The estimator's part of a model folder: its name, its settings, what it learned, by name,
    and the record of its training.
    """

    estimator: str
    params: dict[str, Any]
    fitted: dict[str, Any]
    plan: dict[str, Json]
    history: list[HistoryRow]


def refuse_others(folder: Path) -> None:
    """Raise where a folder holds something that is not a model."""
    if not folder.exists():
        return
    if not folder.is_dir() or (
        not (folder / JSON_NAME).exists()
        and any(not _of_no_user(path.name) for path in folder.iterdir())
    ):
        raise InputError(
            f"{str(folder)!r} holds something that is not a kernelmill model; choose another"
            " folder, nothing was written."
        )


def _of_no_user(name: str) -> bool:
    """Whether a killed saver left it, or the file system put it there."""
    return (
        name.startswith(WRITING) or WAITING_NAME.fullmatch(name) is not None or name == "lost+found"
    )


def save_model(
    folder: str | os.PathLike,
    model: KernelModel,
    extra: Extra,
    encoder: Encoder | None = None,
) -> None:
    """Write a model folder, or a new model into one: see Saver.

    Of a model that ranks share, which all call this together, rank 0 writes the one file: rows
    come to it piece by piece.
    """
    folder, comm = Path(os.path.realpath(folder)), model.comm  # a link stays a link
    tensors: dict[str, Tensor] = {"intercept": model.intercept}
    dealt = {"Z": model.Z, "alpha": model.alpha}
    process, sparse = model.process, isinstance(model.process, SparseProcess)
    if process is not None:
        tensors |= {name: getattr(process, name) for name in (SPARSE if sparse else SAMPLED)}
    if isinstance(process, SampledProcess):
        dealt["draws"] = process.draws
    strange = [name for name, tensor in {**dealt, **tensors}.items() if not _is_finite(tensor)]
    if comm.all_sum(torch.tensor(float(len(strange)))).item():
        raise InputError(
            f"the model's {strange[0] if strange else 'weights'} holds NaN or infinity; train it"
            " again, nothing was written."
        )
    content: dict[str, Json] = {
        "format": FORMAT,
        "version": VERSION,
        "encoder": None if encoder is None else encode(encoder.to_dict(), "encoder", tensors),
        "kernel": encode(model.kernel, "kernel", tensors),
        "precision": model.precision,
        "uncertainty": process.ridge if isinstance(process, SparseProcess) else None,
        "sampled": isinstance(process, SampledProcess),
        "constants": [[i, value] for i, value in model.constants.items()],
        "extra": encode(extra, "extra", tensors),
    }
    # What the user gave may be dropped, what was learned may not.
    for name, stored in content["extra"]["fitted"].items():
        if kind := find_dropped(stored):
            raise InputError(
                f"{name} holds a {kind}, which no model file can hold; use labels that are texts,"
                " numbers or numpy dates."
            )
    saver = Saver(folder)
    try:
        with writing(folder):
            place = comm.same(saver.begin)
            content["weights_sha256"] = write_tensors(place, dealt, tensors, model.n_centers, comm)
            comm.same(lambda: saver.commit(content))
    finally:
        saver.close()


class Saver:
    """Puts a model into its folder so that a reader, or a kill at any moment, meets the old or
    the new model and never a mixture.

    Weights are written under a name of their own, `weights-CHECKSUM.safetensors`. Then
    model.json is replaced, by a rename: from here on it is the new model, for a reader looks for
    the weights of its checksum first. At last they get their usual name. The folder itself is
    never moved, so it keeps its mode, may be a mount point, and holds whatever else its user put
    there. It is locked meanwhile: other savers of this machine wait, and what lies there
    unfinished is of a dead one.
    """

    def __init__(self, folder: Path):
        self._folder, self._lock, self._made, self._done = folder, -1, False, False
        self._written: list[Path] = []

    def begin(self) -> Path:
        """An empty file for the weights."""
        refuse_others(self._folder)
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        if self._wait_for_others():
            self._clear()
        return self._new(WEIGHTS_NAME)

    def commit(self, content: dict[str, Json]) -> None:
        weights, description = self._written[0], self._new(JSON_NAME)
        write_file(description, json.dumps(content, indent=1).encode())
        for path, name in ((weights, WEIGHTS_NAME), (description, JSON_NAME)):
            keep_mode(path, self._folder / name)
        waiting = self._folder / WAITING.format(content["weights_sha256"])
        self._rename(weights, waiting)
        self._rename(description, self._folder / JSON_NAME)
        self._rename(waiting, self._folder / WEIGHTS_NAME)
        self._done = True

    def close(self) -> None:
        """Leave nothing that is not whole, and let others in."""
        with suppress(OSError):
            for path in self._written:
                path.unlink(missing_ok=True)
            if self._lock >= 0 and not self._done:
                self._clear()
            if self._made and not (self._folder / JSON_NAME).exists():
                self._folder.rmdir()
        if self._lock >= 0:
            if fcntl is not None:
                # Also where a process was forked meanwhile.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = -1

    def _new(self, name: str) -> Path:
        self._written.append(new_file(self._folder / name))
        return self._written[-1]

    def _wait_for_others(self) -> bool:
        """Make the folder and lock it; False where the system cannot lock."""
        while True:
            with suppress(FileExistsError):
                self._folder.mkdir()
                self._made = True
            if fcntl is None:
                return False
            try:
                self._lock = os.open(self._folder, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(self._lock), os.stat(self._folder)):
                    return True
            except FileNotFoundError:  # the one before failed, and took its empty folder with it
                pass
            except OSError:
                return False
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _clear(self) -> None:
        """End what failed or killed savers began: weights of the model that is there get their
        name, all others go.
        """
        current = None
        with suppress(FileNotFoundError, ModelFileError):
            current = _description(
                self._folder / JSON_NAME, (self._folder / JSON_NAME).read_bytes()
            ).get("weights_sha256")
        for path in self._folder.iterdir():
            if path.name == WAITING.format(current):
                self._rename(path, self._folder / WEIGHTS_NAME)
            elif path.name.startswith(WRITING) or WAITING_NAME.fullmatch(path.name):
                path.unlink()

    def _rename(self, path: Path, target: Path) -> None:
        os.replace(path, target)
        if self._lock >= 0:
            os.fsync(self._lock)


def load_model(
    folder: str | os.PathLike, kernel: object = None, comm: Communicator | None = None
) -> tuple[KernelModel, Extra, Encoder | None]:
    """The model, the estimator's part and the encoder of raw tables.

    `kernel` is needed where it was a function of the user's own; ranks that will share the model
    each keep their own rows of it.
    """
    comm = comm or Alone()
    folder = Path(folder)
    content, tensors = _pair(folder, comm)
    own: Kernel | None = None
    if isinstance(content.get("kernel"), dict) and content["kernel"].get("$kernel") == "custom":
        if kernel is None:
            raise InputError(
                f"{str(folder)!r} was trained with a kernel function, which is never stored; call"
                " load(path, kernel=function)."
            )
        own = kernels.resolve(kernel)
    elif kernel is not None:
        raise InputError(f"{str(folder)!r} has its kernel stored; call load(path) without kernel.")
    try:
        return _model(folder, content, tensors, own, comm)
    except ModelFileError:
        raise
    except (
        SafetensorError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        IndexError,
        OverflowError,
        RecursionError,
    ) as error:
        # The function that was given, not the file.
        if isinstance(error, InputError) and kernel is not None:
            raise
        kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
        raise ModelFileError(
            f"{str(folder)!r} is damaged ({kind}{error}); restore it from a copy or train again."
        ) from None


def _pair(folder: Path, comm: Communicator) -> tuple[dict[str, Json], dict[str, Tensor]]:
    """model.json and the weights that were written with it.

    Where they do not fit because a saver came between, both are read again.
    """
    path = folder / JSON_NAME
    while True:
        # Open until the end: no other model.json can have its inode meanwhile.
        with _opened(path) as file:
            try:
                content = _description(path, file.read())
                tensors = _weights(folder, content, comm)
                break
            except ModelFileError:
                with suppress(OSError):
                    if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                        raise
    mine = content["weights_sha256"]
    if comm.all_sum(torch.tensor(float(comm.same(lambda: mine) != mine))).item():
        raise ModelFileError(
            f"{str(folder)!r} was saved again while the ranks were reading it; load it again."
        )
    return content, tensors


def _opened(path: Path) -> BufferedReader:
    """The file, also where its folder is gone for a moment: somebody puts another one in its
    place.
    """
    for wait in (*[REPLACED_SECONDS / 10] * 10, None):
        try:
            return open(path, "rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if wait is None:
                break
            time.sleep(wait)
        except OSError as error:
            raise ModelFileError(
                f"{str(path)!r} cannot be read ({error.strerror}); check its permissions."
            ) from None
    raise ModelFileError(
        f"{str(path.parent)!r} is not a kernelmill model: it has no {JSON_NAME}; give the folder"
        " that save() wrote."
    )


def _description(path: Path, text: bytes) -> dict[str, Json]:
    """What model.json says, as far as it can be trusted without the weights."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{str(path)!r} is damaged ({error}); restore it from a copy or train again."
        ) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelFileError(
            f"{str(path)!r} was not written by kernelmill: its format is not {FORMAT!r}."
        )
    if _deeper(content, DEEPEST):
        raise ModelFileError(
            f"{str(path)!r} was not written by kernelmill: it has more than {DEEPEST} nested lists."
        )
    found = content.get("version")
    if found != VERSION:
        raise ModelFileError(
            f"{str(path)!r} has format version {found!r}, this kernelmill reads {VERSION}; upgrade"
            " kernelmill."
        )
    return content


def _deeper(value: Json, most: int) -> bool:
    """Whether lists and tables stand in each other more than so many times."""
    level = [value]
    for _ in range(most):
        level = [
            item
            for part in level
            if isinstance(part, (dict, list))
            for item in (part.values() if isinstance(part, dict) else part)
        ]
    return any(isinstance(part, (dict, list)) for part in level)


def _weights(folder: Path, content: dict[str, Json], comm: Communicator) -> dict[str, Tensor]:
    """The tensors that belong to a description: of a save that was killed, or goes on, they
    still have their first name.
    """
    waiting = WAITING.format(content.get("weights_sha256"))
    if not WAITING_NAME.fullmatch(waiting):
        raise ModelFileError(
            f"{str(folder)!r} is damaged: its {JSON_NAME} has no checksum; restore it from a copy"
            " or train again."
        )
    try:
        with _open_first(folder / waiting, folder / WEIGHTS_NAME) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != content["weights_sha256"]:
                raise ModelFileError(
                    f"{file.name!r} does not match its checksum: the file is damaged or was"
                    " changed."
                )
            held = f"/dev/fd/{file.fileno()}"  # this very file, whatever its name means by now
            with safe_open(held if os.path.exists(held) else file.name, "pt") as stored:
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except OSError:
        raise ModelFileError(
            f"{str(folder)!r} has no readable {WEIGHTS_NAME}; restore it from a copy or train"
            " again."
        ) from None
    except SafetensorError as error:
        raise ModelFileError(
            f"{str(folder)!r} is damaged ({error}); restore it from a copy or train again."
        ) from None
    # Of these only own rows are read.
    dealt = not is_alone(comm) and content.get("uncertainty") is None
    shared = {"Z", "alpha", "draws"} if dealt else set()
    return {name: tensor if name in shared else tensor.clone() for name, tensor in tensors.items()}


def _open_first(path: Path, other: Path) -> BufferedReader:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        return open(other, "rb")


def _model(
    folder: Path,
    content: dict[str, Json],
    tensors: dict[str, Tensor],
    kernel: Kernel | None,
    comm: Communicator,
) -> tuple[KernelModel, Extra, Encoder | None]:
    """What a description and its weights say, checked."""
    fitted: object = decode(content["kernel"], tensors) if kernel is None else kernel
    if not isinstance(fitted, Kernel):
        raise ModelFileError(f"{str(folder)!r} names no kernel.")
    fitted.validate(tensors["Z"].shape[1])
    p, outputs = len(tensors["Z"]), len(tensors["intercept"])
    if tensors["Z"].ndim != 2 or tensors["alpha"].shape != (p, outputs):
        raise ModelFileError(f"{str(folder)!r} has weights whose shapes do not fit each other.")
    precision = content["precision"]
    if precision not in PRECISIONS:
        raise ModelFileError(
            f"{str(folder)!r} has precision {precision!r}, this kernelmill knows"
            f" {', '.join(PRECISIONS)}; upgrade it."
        )
    if content["uncertainty"] is not None:
        comm = Alone()
    process = _process(folder, content, tensors, fitted, comm)
    named = () if process is None else dict(process.named_buffers())
    for name in ("Z", "alpha", "intercept", *named):
        if not _is_finite(tensors[name]):
            raise ModelFileError(
                f"{str(folder)!r} has NaN or infinity in {name}: it was not written by save();"
                " train again."
            )
    Z, alpha = (_own_rows(tensors[name], comm) for name in ("Z", "alpha"))
    constants = {int(i): float(value) for i, value in content["constants"]}
    if not all(0 <= i < Z.shape[1] and math.isfinite(value) for i, value in constants.items()):
        raise ModelFileError(
            f"{str(folder)!r} is damaged: its constant features are {constants!r}; train again."
        )
    model = KernelModel(
        fitted, Z, alpha, tensors["intercept"], None, precision, process, comm, p, constants
    )
    encoder = (
        None
        if content["encoder"] is None
        else Encoder.from_dict(decode(content["encoder"], tensors))
    )
    if encoder is not None and encoder.d != Z.shape[1]:
        raise ModelFileError(
            f"{str(folder)!r} has an encoder of {encoder.d} features and centers of {Z.shape[1]}."
        )
    extra = decode(content["extra"], tensors)
    _check_extra(folder, extra, Z.shape[1] if encoder is None else None, outputs)
    return model, extra, encoder


def _own_rows(tensor: Tensor, comm: Communicator) -> Tensor:
    """Those of this rank."""
    return tensor if is_alone(comm) else tensor[shard(comm)].clone()


def _process(
    folder: Path,
    content: dict[str, Json],
    tensors: dict[str, Tensor],
    kernel: Kernel,
    comm: Communicator,
) -> SparseProcess | SampledProcess | None:
    """What a Gaussian process knows beside its mean, if the model is one."""
    (p, d), outputs = tensors["Z"].shape, tensors["intercept"].shape
    if content["uncertainty"] is not None:
        L, R, signal, noise = (tensors[name] for name in SPARSE)
        known = Sparse(L, R, signal, noise, float(content["uncertainty"]))
        fits = known.L.shape == known.R.shape == (p, p) and math.isfinite(known.ridge)
        process: SparseProcess | SampledProcess = SparseProcess(known)
    elif content["sampled"]:
        origin, frequencies, heights, signal, noise = (tensors[name] for name in SAMPLED)
        samples = heights.shape[1]
        fits = origin.shape == (d,) and has_waves(kernel)
        fits = fits and frequencies.shape == (kernel.width(d), len(heights) // 2)
        fits = fits and tensors["draws"].shape == (p, samples) and len(heights) % 2 == 0
        waves = Waves(kernel, origin, frequencies, heights)
        process = SampledProcess(_own_rows(tensors["draws"], comm), waves, signal, noise)
    else:
        return None
    if not fits or process.signal.shape != outputs or process.noise.shape != outputs:
        raise ModelFileError(f"{str(folder)!r} has weights that do not fit each other.")
    return process


def _is_finite(tensor: Tensor) -> bool:
    # Without a mask as large as it.
    return tensor.numel() == 0 or all(
        bool(torch.isfinite(end)) for end in torch.aminmax(tensor.detach())
    )


def _check_extra(folder: Path, extra: Extra, d: int | None, outputs: int) -> None:
    """What is shown and computed with later is of the kind that `save` writes: a value that was
    tampered with is said here.
    """
    fitted, plan = extra["fitted"], get_type_hints(Plan)
    values = [(name, value, FITTED[name]) for name, value in fitted.items() if name in FITTED]
    values += [
        (f"the plan's {name}", value, plan[name])
        for name, value in extra["plan"].items()
        if name in plan and name != "rates"
    ]
    values += [
        (f"the history's {name}", value, NOTED.get(name, float | None))
        for row in extra["history"]
        for name, value in row.items()
    ]
    values += [
        (f"the timing of {name!r}", value, float)
        for name, value in fitted.get("timings_", {}).items()
    ]
    wrong = [(name, value) for name, value, kind in values if not _is_of(value, kind)]
    if "classes_" in fitted and fitted["classes_"].shape != (outputs,):
        wrong.append(("classes_", fitted["classes_"].shape))
    if (counts := fitted.get("confusion_")) is not None and counts.shape != (outputs, outputs):
        wrong.append(("confusion_", counts.shape))
    for name in ("bias_", "decision_bias_"):
        bias = fitted.get(name, np.zeros(outputs))
        if not wrong and (bias.shape != (outputs,) or not np.isfinite(bias).all()):
            wrong.append((name, bias))
    for name in ("slope_", "log_slope_"):
        if not wrong and not 0 <= fitted.get(name, 1.0) < math.inf:
            wrong.append((name, fitted[name]))
    if not wrong and not 0 < fitted.get("floor_", 0.5) < 1:
        wrong.append(("floor_", fitted["floor_"]))
    if not wrong and (bounds := fitted.get("_bounds")) is not None and d is not None:
        check_bounds(bounds, d)
    if d is not None and fitted["n_features_in_"] != d:
        wrong.append(("n_features_in_", fitted["n_features_in_"]))
    if wrong:
        name, value = wrong[0]
        raise ModelFileError(
            f"{str(folder)!r} is damaged: {name} is {str(value)[:60]!r}, which save() never"
            " writes; train again."
        )


def _is_of(value: object, kind: type | UnionType) -> bool:
    """Whether a value is of a type, as annotations write it; whole numbers are numbers too, and
    True is none.
    """
    kinds = [
        get_origin(k) or k for k in (get_args(kind) if isinstance(kind, UnionType) else (kind,))
    ]
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, tuple(kinds)) or (float in kinds and isinstance(value, int))
