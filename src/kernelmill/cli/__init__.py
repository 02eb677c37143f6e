"""The command line: one file for each command, which reads what was typed, calls the library and
prints what came out. Torch is imported when it is needed: it takes seconds, `--help` none."""

from __future__ import annotations

from typing import Annotated

import typer

from . import check, compare, demo, evaluate, export, info, plan, predict, report, train, warmup
from .console import EXIT_CODES

codes = "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items())
app = typer.Typer(
    name="kernelmill",
    help="Train kernel models with millions of centers, and use them.",
    epilog=f"Exit codes: {codes}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(train.train)
app.command()(predict.predict)
app.command()(evaluate.evaluate)
app.command()(report.report)
app.command()(check.check)
app.command()(export.export)
app.command()(info.info)
app.command()(plan.plan)
app.command()(compare.compare)
app.command()(demo.demo)
app.command()(warmup.warmup)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

        typer.echo(f"kernelmill {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    app()


__all__ = ["app", "main"]
