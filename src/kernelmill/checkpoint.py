"""Model folders: model.json and weights.safetensors. Loading reads numbers and names, and never runs code.

model.json has a format number, the kernel, and whatever the estimator adds; arrays stand in weights.safetensors, whose checksum it
holds. `encoder` is what turns a raw table into features; version 1 has none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from . import kernels, solvers
from .data import Columns, Encoder
from .distributed import Alone, Communicator, count, gather, shard
from .errors import InputError, ModelFileError
from .kernels import Kernel
from .model import UNCERTAINTY, KernelModel
from .ops import PRECISIONS
from .planning import Plan
from .solvers import Uncertainty

FORMAT, VERSION = "kernelmill-model", 2
PIECE = 64 << 20  # bytes of a tensor that are written at a time
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.uint16: "U16", torch.uint32: "U32",
    torch.uint64: "U64",
}  # fmt: skip
JSON_NAME, WEIGHTS_NAME = "model.json", "weights.safetensors"
WIDEST = 4096  # bytes of a text in an array whose type says how long they may be


def refuse_others(folder: Path) -> None:
    """Raise where a folder holds something that is not a model."""
    if folder.exists() and (not folder.is_dir() or (not (folder / JSON_NAME).exists() and any(folder.iterdir()))):
        raise InputError(f"{str(folder)!r} holds something that is not a kernelmill model; choose another folder, nothing was written.")


def save_model(folder: str | os.PathLike, model: KernelModel, extra: dict[str, Any], encoder: Encoder | None = None) -> None:
    """Write aside, then rename: what was there stays whole until the new model is whole. Of a model that ranks share, which all call this
    together, rank 0 writes the one file: rows come to it piece by piece."""
    folder, comm = Path(os.path.realpath(folder)), model.comm  # a link stays a link
    tensors: dict[str, Tensor] = {"intercept": model.intercept}
    if model.ridge is not None:
        tensors |= {name: getattr(model, name) for name in UNCERTAINTY}
    content = {
        "format": FORMAT,
        "version": 1 if encoder is None else VERSION,  # older versions of this library read what they can
        "encoder": None if encoder is None else encode(encoder.to_dict(), "encoder", tensors),
        "kernel": encode(model.kernel, "kernel", tensors),
        "precision": model.precision,
        "uncertainty": model.ridge,
        "extra": encode(extra, "extra", tensors),
    }
    place = comm.same(lambda: _beside(folder))
    try:
        content["weights_sha256"] = write_tensors(
            place / WEIGHTS_NAME, {"Z": model.Z, "alpha": model.alpha}, tensors, model.n_centers, comm
        )
        comm.same(lambda: _put(place, folder, content))
    finally:
        if comm.rank == 0:
            shutil.rmtree(place, ignore_errors=True)


def _beside(folder: Path) -> Path:
    """An empty folder beside this one."""
    refuse_others(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))


def _put(aside: Path, folder: Path, content: dict[str, Any]) -> None:
    """Complete the model in `aside`, and put it in its place."""
    write_file(aside / JSON_NAME, json.dumps(content, indent=1).encode())
    os.chmod(aside, 0o755)
    if not folder.exists():
        os.replace(aside, folder)
        return
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


def write_tensors(path: Path, dealt: dict[str, Tensor], whole: dict[str, Tensor], rows: int, comm: Communicator) -> str:
    """A safetensors file by rank 0, and its checksum. Of `dealt` tensors, of `rows` rows in all, no rank ever gets more than a piece."""
    header: dict[str, Any] = {}
    place = 0
    for name, tensor in sorted({**dealt, **whole}.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):  # each where it is aligned
        shape = [rows, *tensor.shape[1:]] if name in dealt else list(tensor.shape)
        size = math.prod(shape) * tensor.dtype.itemsize
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, failed = hashlib.sha256(), None

    def pieces() -> Iterator[Any]:
        yield len(text).to_bytes(8, "little") + text
        for name in header:
            if name in whole:
                yield _bytes(whole[name])
                continue
            tensor, step = dealt[name], max(1, PIECE // (math.prod(dealt[name].shape[1:]) * dealt[name].dtype.itemsize))
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                yield _bytes(gather(comm, tensor[count(comm, start) : count(comm, stop)], start, stop))

    if comm.rank > 0:
        for _ in pieces():
            pass
        return comm.same(lambda: "")
    sent = pieces()
    try:
        with open(path, "wb") as file:
            for piece in sent:
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # the others are still sending: it is said when they are done
        failed = error
        for _ in sent:
            pass

    def done() -> str:
        if failed is not None:
            raise failed
        return digest.hexdigest()

    return comm.same(done)


def _bytes(tensor: Tensor) -> Any:
    """The numbers as they lie in memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""


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


def load_model(
    folder: str | os.PathLike, kernel: Any = None, comm: Communicator | None = None
) -> tuple[KernelModel, dict[str, Any], Encoder | None]:
    """The model, the estimator's part and the encoder of raw tables. `kernel` is needed where it was a function of the user's own; ranks
    that will share the model each keep their own rows of it."""
    comm = comm or Alone()
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
    weights = folder / WEIGHTS_NAME
    try:
        if checksum(weights) != content.get("weights_sha256"):
            raise ModelFileError(f"{str(weights)!r} does not match its checksum: the file is damaged or was changed.")
    except OSError:
        raise ModelFileError(f"{str(folder)!r} has no readable {WEIGHTS_NAME}; restore it from a copy or train again.") from None
    try:
        with safe_open(weights, "pt") as file:
            shared = {"Z", "alpha"} if comm.size > 1 and content.get("uncertainty") is None else set()  # of these only own rows are read
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            tensors = {name: tensor if name in shared else tensor.clone() for name, tensor in tensors.items()}
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
        if known is not None:
            comm = Alone()
        mine, p = shard(comm), len(tensors["Z"])
        Z, alpha = (tensors[name] if comm.size == 1 else tensors[name][mine].clone() for name in ("Z", "alpha"))
        model = KernelModel(fitted, Z, alpha, tensors["intercept"], None, precision, known, comm, p)
        encoder = None if content.get("encoder") is None else Encoder.from_dict(decode(content["encoder"], tensors))
        if encoder is not None and encoder.d != model.Z.shape[1]:
            raise ModelFileError(f"{str(folder)!r} has an encoder of {encoder.d} features and centers of {model.Z.shape[1]}.")
        return model, decode(content["extra"], tensors), encoder
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        if isinstance(error, (ModelFileError, InputError)):
            raise
        kind = type(error).__name__
        raise ModelFileError(f"{str(folder)!r} is damaged ({kind}: {error}); restore it from a copy or train again.") from None


def checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def encode(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Plain JSON for `value`; arrays go to `tensors` under `key` and leave a reference."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return {"$item": encode(np.asarray(value)[None], key, tensors)}
    if isinstance(value, Tensor):
        return _stored(value, key, tensors)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufmMUO":
        return _encode_array(value, key, tensors)
    if isinstance(value, dict) and not all(isinstance(name, str) and not name.startswith("$") for name in value):
        # Labels as keys: JSON would make them strings, and a "$" would make them ours.
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
        kind = value.get("dtype")
        return np.array(decode(value["$array"], tensors), dtype=None if kind == "str" else _dtype(kind, "UO"))
    if "$typed" in value:
        return decode(value["$typed"], tensors).astype(_dtype(value["dtype"], "biufmM"))
    if "$item" in value:
        return decode(value["$item"], tensors)[0]
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
def _encode_array(value: np.ndarray, key: str, tensors: dict[str, Tensor]) -> Any:
    """Numbers as a tensor, texts and objects as a list; `$typed` says the type of what torch has no type for."""
    kind = value.dtype.kind
    if kind in "UO":
        if value.ndim == 0:
            return encode(value[()], key, tensors)
        items = [encode(item, f"{key}.{i}", tensors) for i, item in enumerate(value.tolist())]
        text = value.dtype.str if value.dtype.itemsize <= WIDEST else "str"  # "str": as long as they are
        return {"$array": items, "dtype": "object" if kind == "O" else text}
    plain = value.astype(value.dtype.newbyteorder("="))
    if kind in "mM":
        plain = plain.view(np.int64)
    elif kind == "f" and value.dtype.itemsize > 8:  # digits that read back as the same number
        plain = np.array([np.format_float_scientific(item) for item in value.ravel()], dtype=str).reshape(value.shape)
    stored = encode(plain, key, tensors) if plain.dtype.kind == "U" else _stored(plain, key, tensors)
    return stored if plain.dtype == value.dtype else {"$typed": stored, "dtype": value.dtype.str}


def _stored(value: np.ndarray | Tensor, key: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    while key in tensors:  # names with dots in them may meet
        key += "'"
    tensors[key] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    return {"$tensor": key, "numpy": isinstance(value, np.ndarray)}


def _dropped(stored: Any) -> str | None:
    """The type of an object that was left out of what `encode` made, if one was."""
    if isinstance(stored, dict) and "$dropped" in stored:
        return stored["$dropped"]
    parts = stored.values() if isinstance(stored, dict) else stored if isinstance(stored, list) else ()
    return next((kind for part in parts if (kind := _dropped(part))), None)




def _dtype(name: Any, kinds: str) -> np.dtype:
    made = np.dtype(name) if isinstance(name, str) else None
    if made is None or made.kind not in kinds or made.itemsize > WIDEST:
        raise ValueError(f"{name!r} is no type of an array here")
    return made
