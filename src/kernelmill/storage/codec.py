"""Values as JSON, with arrays beside it as tensors; reading them runs no code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import kernels, losses, solvers
from ..data import Columns
from ..kernels import Kernel
from ..losses import Loss
from ..planning.plan import Plan

WIDEST = 4096  # bytes of a text in an array whose type says how long they may be


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
    if isinstance(value, Loss) and type(value) in losses.NAMED.values():
        return {"$loss": losses.plain(value)}
    if type(value) in solvers.NAMED.values():
        return {"$solver": value.name, "settings": encode(value.get_params(), key, tensors)}
    return {"$dropped": type(value).__name__}  # a function or object of the user's own: never stored, never run on loading


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
    if "$loss" in value:
        return losses.resolve(value["$loss"])
    if "$dropped" in value:
        return None
    return {name: decode(item, tensors) for name, item in value.items()}


def _dtype(name: Any, kinds: str) -> np.dtype:
    made = np.dtype(name) if isinstance(name, str) else None
    if made is None or made.kind not in kinds or made.itemsize > WIDEST:
        raise ValueError(f"{name!r} is no type of an array here")
    return made
