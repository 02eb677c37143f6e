"""Values as JSON, with arrays beside it as tensors; reading them runs no code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .. import kernels, losses, solvers, uncertainty
from ..data import Columns
from ..kernels import Features, Kernel
from ..losses import Loss
from ..planning.plan import Plan
from ..solvers import Solver
from ..types import Json
from ..uncertainty import Conformal, Posterior

WIDEST = 4096  # bytes of a text in an array whose type says how long they may be

Tensors = dict[str, Tensor]

Decoded: TypeAlias = Any  # whatever was encoded: who asks for it knows, or looks


def encode(value: object, key: str, tensors: Tensors) -> Json:
    """Plain JSON for `value`; arrays go to `tensors` under `key` and leave a reference."""
    if value is None or isinstance(value, (bool, str)):
        return value
    for kind, way in ENCODERS.items():
        if isinstance(value, kind):
            return way(value, key, tensors)
    # A function or object of the user's own: never stored, never run on loading.
    return {"$dropped": type(value).__name__}


def _encode_dict(value: dict, key: str, tensors: Tensors) -> Json:
    if all(isinstance(name, str) and not name.startswith("$") for name in value):
        return {name: encode(item, f"{key}.{name}", tensors) for name, item in value.items()}
    # Labels as keys: JSON would make them strings, and a "$" would make them ours.
    pairs = ((encode(name, key, tensors), name, item) for name, item in value.items())
    return {
        "$pairs": [[told, encode(item, f"{key}.{name}", tensors)] for told, name, item in pairs]
    }


def _encode_list(value: list | tuple, key: str, tensors: Tensors) -> Json:
    return [encode(item, f"{key}.{i}", tensors) for i, item in enumerate(value)]


def _encode_kernel(value: Kernel, key: str, tensors: Tensors) -> Json:
    if type(value) not in kernels.NAMED.values():  # a function or class of the user's own
        return {"$kernel": "custom"}
    return {"$kernel": value.name, "settings": encode(value.get_params(), key, tensors)}


def _encode_solver(value: Solver, key: str, tensors: Tensors) -> Json:
    if type(value) not in solvers.NAMED.values():
        return {"$dropped": type(value).__name__}
    return {"$solver": value.name, "settings": encode(value.get_params(), key, tensors)}


def _encode_loss(value: Loss, key: str, tensors: Tensors) -> Json:
    known = type(value) in losses.NAMED.values()
    return {"$loss": losses.plain(value)} if known else {"$dropped": type(value).__name__}


def _encode_array(value: np.ndarray, key: str, tensors: Tensors) -> Json:
    """Numbers as a tensor, texts and objects as a list; `$typed` says the type of what torch has
    no type for.
    """
    kind = value.dtype.kind
    if kind not in "biufmMUO":
        return {"$dropped": type(value).__name__}
    if kind in "UO":
        if value.ndim == 0:
            return encode(value[()], key, tensors)
        items = [encode(item, f"{key}.{i}", tensors) for i, item in enumerate(value.tolist())]
        # "str": as long as they are.
        text = value.dtype.str if value.dtype.itemsize <= WIDEST else "str"
        return {"$array": items, "dtype": "object" if kind == "O" else text}
    plain = value.astype(value.dtype.newbyteorder("="))
    if kind in "mM":
        plain = plain.view(np.int64)
    elif kind == "f" and value.dtype.itemsize > 8:  # digits that read back as the same number
        plain = np.array(
            [np.format_float_scientific(item) for item in value.ravel()], dtype=str
        ).reshape(value.shape)
    stored = (
        encode(plain, key, tensors) if plain.dtype.kind == "U" else _stored(plain, key, tensors)
    )
    return stored if plain.dtype == value.dtype else {"$typed": stored, "dtype": value.dtype.str}


def _stored(value: np.ndarray | Tensor, key: str, tensors: Tensors) -> Json:
    while key in tensors:  # names with dots in them may meet
        key += "'"
    tensors[key] = torch.as_tensor(value).detach().cpu().contiguous().clone()
    return {"$tensor": key, "numpy": isinstance(value, np.ndarray)}


def find_dropped(stored: Json) -> str | None:
    """The type of an object that was left out of what `encode` made, if one was."""
    if isinstance(stored, dict) and "$dropped" in stored:
        return stored["$dropped"]
    parts = (
        stored.values() if isinstance(stored, dict) else stored if isinstance(stored, list) else ()
    )
    return next((kind for part in parts if (kind := find_dropped(part))), None)


def decode(value: Json, tensors: Tensors) -> Decoded:
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    for tag, way in DECODERS.items():
        if tag in value:
            return way(value, tensors)
    return {name: decode(item, tensors) for name, item in value.items()}


def _decode_tensor(value: Json, tensors: Tensors) -> np.ndarray | Tensor:
    tensor = tensors[value["$tensor"]]
    return tensor.numpy() if value.get("numpy") else tensor


def _decode_array(value: Json, tensors: Tensors) -> np.ndarray:
    kind = value.get("dtype")
    dtype = None if kind == "str" else _dtype(kind, "UO")
    return np.array(decode(value["$array"], tensors), dtype=dtype)


def _decode_kernel(value: Json, tensors: Tensors) -> Kernel | None:
    known = kernels.NAMED.get(value["$kernel"])
    return None if known is None else known(**decode(value["settings"], tensors))


def _dtype(name: object, kinds: str) -> np.dtype:
    made = np.dtype(name) if isinstance(name, str) else None
    if made is None or made.kind not in kinds or made.itemsize > WIDEST:
        raise ValueError(f"{name!r} is no type of an array here")
    return made


ENCODERS: dict[type | tuple[type, ...], Callable[..., Json]] = {
    (int, np.integer): lambda value, key, tensors: int(value),
    (float, np.floating): lambda value, key, tensors: float(value),
    np.bool_: lambda value, key, tensors: bool(value),
    (np.datetime64, np.timedelta64): lambda value, key, tensors: {
        "$item": encode(np.asarray(value)[None], key, tensors)
    },
    Tensor: _stored,
    np.ndarray: _encode_array,
    dict: _encode_dict,
    (list, tuple): _encode_list,
    Kernel: _encode_kernel,
    Features: lambda value, key, tensors: {"$features": encode(value.get_params(), key, tensors)},
    Columns: lambda value, key, tensors: {"$columns": encode(value.get_params(), key, tensors)},
    Plan: lambda value, key, tensors: {"$plan": value.to_dict()},
    Loss: _encode_loss,
    Solver: _encode_solver,
    (Conformal, Posterior): lambda value, key, tensors: {
        "$uncertainty": value.name,
        "settings": encode(value.get_params(), key, tensors),
    },
}

DECODERS: dict[str, Callable[[Json, Tensors], object]] = {
    "$tensor": _decode_tensor,
    "$pairs": lambda value, tensors: {
        decode(name, tensors): decode(item, tensors) for name, item in value["$pairs"]
    },
    "$array": _decode_array,
    "$typed": lambda value, tensors: decode(value["$typed"], tensors).astype(
        _dtype(value["dtype"], "biufmM")
    ),
    "$item": lambda value, tensors: decode(value["$item"], tensors)[0],
    "$kernel": _decode_kernel,
    "$features": lambda value, tensors: Features(**decode(value["$features"], tensors)),
    "$columns": lambda value, tensors: Columns(**decode(value["$columns"], tensors)),
    "$plan": lambda value, tensors: Plan.from_dict(value["$plan"]),
    "$solver": lambda value, tensors: solvers.NAMED[value["$solver"]](
        **decode(value["settings"], tensors)
    ),
    "$uncertainty": lambda value, tensors: uncertainty.NAMED[value["$uncertainty"]](
        **decode(value["settings"], tensors)
    ),
    "$loss": lambda value, tensors: losses.resolve(value["$loss"]),
    "$dropped": lambda value, tensors: None,
}
