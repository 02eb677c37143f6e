"""kernelmill export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import as_json, command, escape, rank, results
from .options import AsJson, Debug, Model
from .outputs import check_writable


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
        listed = escape(", ".join(inputs))
        results().print(f"ONNX file written to {escape(str(out))}; its inputs: {listed}.")
