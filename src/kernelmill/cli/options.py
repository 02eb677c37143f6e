"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="A .csv, .parquet, .arrow, .npy, .npz or .h5 file, or a folder of them.",
    ),
]
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The folder that `kernelmill train` wrote.")
]
Target = Annotated[
    str | None,
    typer.Option(
        help="The column to predict. Not needed where one is called y, target, label or class."
    ),
]
Weight = Annotated[str | None, typer.Option(help="The column of sample weights.")]
Task = Annotated[
    str | None, typer.Option(help="classification or regression. (default: decided by the target)")
]
Part = Annotated[
    str | None,
    typer.Option(help="Which part of an .npz file with X_train … y_test to use: train or test."),
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
MemoryBudget = Annotated[str | None, typer.Option(help="Such as 8GB. (default: what is free)")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of words and tables.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")]
