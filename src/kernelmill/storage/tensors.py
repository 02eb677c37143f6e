"""Writes one safetensors file of tensors that ranks share."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from ..distributed.team import Communicator, count, gather, leads

PIECE = 64 << 20  # bytes of a tensor that are written at a time

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
}


class Entry(TypedDict):
    """What the header of a safetensors file says of a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


def write_tensors(
    path: Path, dealt: dict[str, Tensor], whole: dict[str, Tensor], rows: int, comm: Communicator
) -> str:
    """A safetensors file by rank 0, and its checksum.

    Of `dealt` tensors, of `rows` rows in all, no rank ever gets more than a piece.
    """
    header = _header(dealt, whole, rows)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, failed = hashlib.sha256(), None

    def pieces() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for name in header:
            if name in whole:
                yield _bytes(whole[name])
                continue
            tensor, step = (
                dealt[name],
                max(1, PIECE // (math.prod(dealt[name].shape[1:]) * dealt[name].dtype.itemsize)),
            )
            for start in range(0, rows, step):
                stop = min(start + step, rows)
                yield _bytes(
                    gather(comm, tensor[count(comm, start) : count(comm, stop)], start, stop)
                )

    if not leads(comm):
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


def _header(dealt: dict[str, Tensor], whole: dict[str, Tensor], rows: int) -> dict[str, Entry]:
    """Type, shape and place of each tensor: those of large numbers first, so that each is where it
    is aligned.
    """
    header: dict[str, Entry] = {}
    place = 0
    for name, tensor in sorted(
        {**dealt, **whole}.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])
    ):
        shape = [rows, *tensor.shape[1:]] if name in dealt else list(tensor.shape)
        size = math.prod(shape) * tensor.dtype.itemsize
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": shape,
            "data_offsets": [place, place + size],
        }
        place += size
    return header


def _bytes(tensor: Tensor) -> bytes | memoryview:
    """The numbers as they lie in memory."""
    return (
        tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        if tensor.numel()
        else b""
    )
