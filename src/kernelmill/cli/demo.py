"""kernelmill demo."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from .console import command, escape, words
from .options import Debug
from .outputs import check_writable


@command
def demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("kernelmill-demo"),
    debug: Debug = False,
) -> None:
    """Show every step on a small data set: train, evaluate, predict and report."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"--out {str(out)!r} is there already; choose another folder, nothing was written."
        )
    check_writable(out / "x")
    say = words()
    say.print(
        "The handwritten digits that come with scikit-learn, 1,797 rows of 64 pixels, about ten"
        " seconds."
    )
    _write_digits(out)
    train, test, model = str(out / "train.csv"), str(out / "test.csv"), str(out / "digits")
    steps = [
        ["train", train, "--target", "digit", "--out", model],
        ["evaluate", model, test],
        ["predict", model, test, "--out", str(out / "predictions.csv")],
        ["report", model, "--data", test],
    ]
    program = context.find_root().command
    for step in steps:
        say.print(f"\n[bold cyan]$ kernelmill {escape(shlex.join(step))}[/]")
        code = program.main(step, prog_name="kernelmill", standalone_mode=False)
        if code:
            raise typer.Exit(code)


def _write_digits(folder: Path) -> None:
    """Write test.csv, every fourth row, and train.csv."""
    import numpy as np
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    header = ",".join([*(f"pixel_{i}" for i in range(64)), "digit"])
    rows = np.column_stack([pixels, digit])
    held = np.arange(len(digit)) % 4 == 0
    for name, chosen in (("test.csv", held), ("train.csv", ~held)):
        np.savetxt(folder / name, rows[chosen], fmt="%d", delimiter=",", header=header, comments="")
