"""The command line. Commands read what was typed, call the library, and show what came out. Torch is imported when it is needed."""

from __future__ import annotations

import typer

from . import looking, training, using
from .say import EXIT_CODES

app = typer.Typer(
    name="kernelmill",
    help="Train kernel models with millions of centers, and use them.",
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(training.train)
app.command()(using.predict)
app.command()(using.evaluate)
app.command()(using.report)
app.command()(using.export)
app.command()(looking.info)
app.command()(looking.plan)
app.command()(looking.compare)
app.command()(looking.demo)


def _version(wanted: bool) -> None:
    if wanted:
        from .. import __version__

        typer.echo(f"kernelmill {__version__}")
        raise typer.Exit


@app.callback()
def root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version and exit.")) -> None:
    pass


def main() -> None:
    app()


__all__ = ["app", "main"]
