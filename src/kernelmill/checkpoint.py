"""Model folders: model.json and weights.safetensors. Loading reads numbers and names, and never runs code.

model.json has a format number, the kernel, and whatever the estimator adds; arrays stand in weights.safetensors, whose checksum it
holds. `encoder` is what turns a raw table into features; version 1 has none.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from . import kernels, solvers
from .data import Columns, Encoder
from .errors import InputError, ModelFileError
from .kernels import Kernel
from .model import UNCERTAINTY, KernelModel
from .ops import PRECISIONS
from .planning import Plan
from .solvers import Uncertainty

FORMAT, VERSION = "kernelmill-model", 2
JSON_NAME, WEIGHTS_NAME = "model.json", "weights.safetensors"


def refuse_others(folder: Path) -> None:
    """Raise where a folder holds something that is not a model."""
    if folder.exists() and (not folder.is_dir() or (not (folder / JSON_NAME).exists() and any(folder.iterdir()))):
        raise InputError(f"{str(folder)!r} holds something that is not a kernelmill model; choose another folder, nothing was written.")


def save_model(folder: str | os.PathLike, model: KernelModel, extra: dict[str, Any], encoder: Encoder | None = None) -> None:
    """Write aside, then rename: what was there stays whole until the new model is whole."""
    folder = Path(os.path.realpath(folder))  # a link stays a link
    refuse_others(folder)
    names = ("Z", "alpha", "intercept", *(UNCERTAINTY if model.ridge is not None else ()))
    tensors = {name: getattr(model, name).detach().cpu().contiguous() for name in names}
    content = {
        "format": FORMAT,
        "version": 1 if encoder is None else VERSION,  # older versions of this library read what they can
        "encoder": None if encoder is None else encode(encoder.to_dict(), "encoder", tensors),
        "kernel": encode(model.kernel, "kernel", tensors),
        "precision": model.precision,
        "uncertainty": model.ridge,
        "extra": encode(extra, "extra", tensors),
    }
    weights = save_tensors(tensors)
    content["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        write_file(aside / WEIGHTS_NAME, weights)
        write_file(aside / JSON_NAME, json.dumps(content, indent=1).encode())
        os.chmod(aside, 0o755)
        if folder.exists():
            old = aside.with_name(aside.name + ".old")
            os.replace(folder, old)
            try:
                os.replace(aside, folder)
            except OSError:
                os.replace(old, folder)
                raise
            for other in old.iterdir():  # what the user put there stays
                if other.name not in (WEIGHTS_NAME, JSON_NAME):
                    os.replace(other, folder / other.name)
            shutil.rmtree(old)
        else:
            os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def aside(path: str | os.PathLike) -> Iterator[Path]:
    """A name beside a file: what is written there takes its place when it is whole. A device or a pipe is written to as it is, a link stays
    one, and a file keeps its mode."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, mode)
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_file(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def load_model(folder: str | os.PathLike, kernel: Any = None) -> tuple[KernelModel, dict[str, Any], Encoder | None]:
    """The model, the estimator's part and the encoder of raw tables. `kernel` is needed where it was a function of the user's own."""
    folder = Path(folder)
    path = folder / JSON_NAME
    if not path.is_file():
        raise ModelFileError(f"{str(folder)!r} is not a kernelmill model: it has no {JSON_NAME}; give the folder that save() wrote.")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise ModelFileError(f"{str(path)!r} is damaged ({error}); restore it from a copy or train again.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ModelFileError(f"{str(path)!r} was not written by kernelmill: its format is not {FORMAT!r}.")
    if not isinstance(content.get("version"), int) or not 1 <= content["version"] <= VERSION:
        found = content.get("version")
        raise ModelFileError(f"{str(folder)!r} has format version {found!r}, this kernelmill reads 1 to {VERSION}; upgrade kernelmill.")
    try:
        weights = (folder / WEIGHTS_NAME).read_bytes()
    except OSError:
        raise ModelFileError(f"{str(folder)!r} has no readable {WEIGHTS_NAME}; restore it from a copy or train again.") from None
    if hashlib.sha256(weights).hexdigest() != content.get("weights_sha256"):
        raise ModelFileError(f"{str(folder / WEIGHTS_NAME)!r} does not match its checksum: the file is damaged or was changed.")
    try:
        tensors = load_tensors(weights)
        spec = content["kernel"]
        if isinstance(spec, dict) and spec.get("$kernel") == "custom":
            if kernel is None:
                raise InputError(f"{str(folder)!r} has a kernel function of its user's, never stored; call load(path, kernel=function).")
            fitted: Any = kernels.resolve(kernel)
        elif kernel is not None:
            raise InputError(f"{str(folder)!r} has its kernel stored; call load(path) without kernel.")
        else:
            fitted = decode(spec, tensors)
        if not isinstance(fitted, Kernel):
            raise ModelFileError(f"{str(path)!r} names no kernel.")
        fitted.validate(tensors["Z"].shape[1])
        if tensors["Z"].ndim != 2 or tensors["alpha"].shape != (len(tensors["Z"]), len(tensors["intercept"])):
            raise ModelFileError(f"{str(folder)!r} has weights whose shapes do not fit each other.")
        precision = content.get("precision")  # files of before there was a choice have none
        if precision is not None and precision not in PRECISIONS:
            raise ModelFileError(f"{str(path)!r} has precision {precision!r}, this kernelmill knows {', '.join(PRECISIONS)}; upgrade it.")
        known = None
        if content.get("uncertainty") is not None:
            known = Uncertainty(tensors["L"], tensors["R"], tensors["signal"], tensors["noise"], float(content["uncertainty"]))
            square = (len(tensors["Z"]),) * 2
            if known.L.shape != square or known.R.shape != square or known.signal.shape != tensors["intercept"].shape:
                raise ModelFileError(f"{str(folder)!r} has weights whose shapes do not fit each other.")
        model = KernelModel(fitted, tensors["Z"], tensors["alpha"], tensors["intercept"], precision=precision, uncertainty=known)
        encoder = None if content.get("encoder") is None else Encoder.from_dict(decode(content["encoder"], tensors))
        if encoder is not None and encoder.d != model.Z.shape[1]:
            raise ModelFileError(f"{str(folder)!r} has an encoder of {encoder.d} features and centers of {model.Z.shape[1]}.")
        return model, decode(content["extra"], tensors), encoder
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, (ModelFileError, InputError)):
            raise
        kind = type(error).__name__
        raise ModelFileError(f"{str(folder)!r} is damaged ({kind}: {error}); restore it from a copy or train again.") from None


def encode(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Plain JSON for `value`; arrays go to `tensors` under `key` and leave a reference."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "fiub"):
        tensors[key] = torch.as_tensor(value).detach().cpu().contiguous().clone()
        return {"$tensor": key, "numpy": isinstance(value, np.ndarray)}
    if isinstance(value, np.ndarray):
        return {"$array": [encode(item, key, tensors) for item in value.tolist()], "dtype": "object" if value.dtype == object else "str"}
    if isinstance(value, dict) and not all(isinstance(name, str) for name in value):  # labels as keys: JSON would make them strings
        return {"$pairs": [[encode(name, key, tensors), encode(item, f"{key}.{name}", tensors)] for name, item in value.items()]}
    if isinstance(value, dict):
        return {name: encode(item, f"{key}.{name}", tensors) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item, f"{key}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, Kernel) and type(value) not in kernels.NAMED.values():  # a function or class of the user's own
        return {"$kernel": "custom"}
    if isinstance(value, Kernel):
        return {"$kernel": value.name, "settings": encode(value.get_params(), key, tensors)}
    if isinstance(value, Columns):
        return {"$columns": encode(value.get_params(), key, tensors)}
    if isinstance(value, Plan):
        return {"$plan": value.to_dict()}
    if type(value) in solvers.NAMED.values():
        return {"$solver": value.name, "settings": encode(value.get_params(), key, tensors)}
    return {"$dropped": type(value).__name__}  # a function or object of the user's own: never stored, never run on loading


def decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        tensor = tensors[value["$tensor"]]
        return tensor.numpy() if value.get("numpy") else tensor
    if "$pairs" in value:
        return {decode(name, tensors): decode(item, tensors) for name, item in value["$pairs"]}
    if "$array" in value:
        return np.array(decode(value["$array"], tensors), dtype=object if value.get("dtype") == "object" else None)
    if "$kernel" in value:
        if value["$kernel"] not in kernels.NAMED:
            return None
        return kernels.NAMED[value["$kernel"]](**decode(value["settings"], tensors))
    if "$columns" in value:
        return Columns(**decode(value["$columns"], tensors))
    if "$plan" in value:
        return Plan.from_dict(value["$plan"])
    if "$solver" in value:
        return solvers.NAMED[value["$solver"]](**decode(value["settings"], tensors))
    if "$dropped" in value:
        return None
    return {name: decode(item, tensors) for name, item in value.items()}
