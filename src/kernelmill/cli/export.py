"""kernelmill export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import as_json, command, escape, rank, results
from .options import AsJson, Debug, Model
from .outputs import check_writable

TYPES = {  # of inputs, as they are told; "" where a model, of a matrix, has none
    "number": "numbers, float64",
    "boolean": "booleans, float64 of 0 and 1",
    "date": "dates, float64 seconds since 1970 in UTC",
    "text": "texts, strings",
    "": "as in training",
}


@command
def export(
    model: Model,
    out: Annotated[Path, typer.Option(help="An .onnx file.")],
    json_: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a model as ONNX, for onnxruntime and other programs."""
    from .. import load
    from ..export import input_name

    check_writable(out)
    estimator = load(model, ranks=1)
    if rank() == 0:
        estimator.to_onnx(out)
    encoder = estimator.encoder_
    inputs = ["X"] if encoder is None else [input_name(name) for name in encoder.inputs]
    if json_:
        as_json({"out": str(out), "inputs": inputs})
    else:
        results().print(f"ONNX file written to {escape(str(out))}; its inputs:")
        kinds = [""] if encoder is None else list(encoder.kinds.values())
        for kind, said in TYPES.items():
            own = [each for each, of in zip(inputs, kinds, strict=True) if of == kind]
            if own:
                results().print(f"  {said}: {escape(', '.join(own))}")
