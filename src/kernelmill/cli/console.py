"""Consoles, notes and exit codes: words for people on stderr, results on stdout."""

from __future__ import annotations

import errno
import functools
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec

import typer
from rich import markup
from rich.console import Console

from .. import errors
from ..words import Terminal, aside, visible

BUG, USAGE, DATA, MODEL, CHECKPOINT, WRITING, MEMORY, LOST, ODD = range(1, 10)
INTERRUPTED = 130
EXIT_CODES = {
    0: "done",
    BUG: "an error of kernelmill itself",
    USAGE: "a flag, a value or a column that cannot be used",
    DATA: "data that cannot be read",
    MODEL: "a model that cannot be read",
    CHECKPOINT: "a checkpoint that cannot be resumed",
    WRITING: "an output that cannot be written",
    MEMORY: "not enough memory",
    LOST: "another process of the same job was lost",
    ODD: "`check` found data unlike the training data",
    INTERRUPTED: "stopped by Ctrl-C",
    143: "ended by SIGTERM, after a checkpoint",
}
CODE_OF: dict[type[BaseException], int] = {  # the first that fits
    KeyboardInterrupt: INTERRUPTED,
    errors.OutputError: WRITING,
    errors.DataFileError: DATA,
    errors.ModelFileError: MODEL,
    errors.CheckpointError: CHECKPOINT,
    errors.RankError: LOST,
    errors.OutOfMemory: MEMORY,
    errors.KernelmillError: USAGE,
}
P = ParamSpec("P")


def escape(name: str) -> str:
    """A name out of a file, for rich: no markup, no control characters, one line."""
    return markup.escape(visible(name).replace("\n", "\\n").replace("\t", "\\t"))


def rank() -> int:
    """This process's number in a torchrun job, else 0. The first process prints for all."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isdigit() and "WORLD_SIZE" in os.environ else 0


def words(quiet: bool = False) -> Console:
    """The console for people, on stderr."""
    return Terminal(file=aside(), highlight=False, quiet=quiet or rank() > 0, soft_wrap=True)


def results() -> Console:
    """The console for tables that may be piped on, on stdout."""
    return Terminal(highlight=False, soft_wrap=not sys.stdout.isatty(), quiet=rank() > 0)


def note(text: str) -> None:
    """Print a warning for people."""
    words().print(f"[yellow]note:[/] {markup.escape(text)}")


def as_json(value: object) -> None:
    """Print one JSON object on stdout; NaN and infinity, which JSON has not, become null."""
    if rank() == 0:
        print(json.dumps(_finite(value), default=_plain, allow_nan=False), flush=True)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def _plain(value: object) -> object:
    """What is no JSON, as JSON: arrays and NumPy's numbers as lists and numbers, others as text."""
    return _finite(value.tolist()) if hasattr(value, "tolist") else str(value)


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are one sentence and an exit code; --debug shows the traceback."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _library_as_notes():
                function(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, SystemExit):
            raise
        except BrokenPipeError:  # the reader of the output has enough of it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except BaseException as error:
            code = _print_error(error, bool(kwargs.get("debug")), bool(kwargs.get("json_")))
            raise typer.Exit(code) from None

    return run


def _print_error(error: BaseException, debug: bool, in_json: bool) -> int:
    """Print what went wrong, and return its exit code. Every rank does."""
    code, text = explain(error)
    console = Terminal(file=aside(), highlight=False, soft_wrap=True)
    if debug:
        console.print_exception()
    who = f"rank {rank()}: " if rank() else ""
    console.print(f"{who}[bold red]error:[/] {markup.escape(text)}")
    if in_json:
        with suppress(OSError):
            as_json({"error": text, "exit_code": code})
    return code


class _Notes(logging.Handler):
    """A log handler that prints notes."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def _library_as_notes() -> Iterator[None]:
    """Print the library's warnings and log as notes, for as long as a command runs."""
    log, notes = logging.getLogger("kernelmill"), _Notes(logging.WARNING)
    before = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: note(str(message))
    log.addHandler(notes)
    try:
        yield
    finally:
        warnings.showwarning = before
        log.removeHandler(notes)


def explain(error: BaseException) -> tuple[int, str]:
    """The exit code and the sentence of an error."""
    for kind, code in CODE_OF.items():
        if isinstance(error, kind):
            return code, str(error) or "stopped."
    if isinstance(error, (ValueError, TypeError)) and _of_scikit_learn(error):
        return USAGE, str(error)
    if errors.is_out_of_memory(error):
        todo = "use fewer centers (--n-centers) or a smaller --memory-budget"
        return MEMORY, f"there is not enough memory; {todo}."
    if isinstance(error, OSError):
        if error.filename is None or error.errno in (*errors.NO_SPACE, errno.EROFS, errno.EACCES):
            return WRITING, str(errors.unwritable(error))
        why = error.strerror or error
        return DATA, f"{str(error.filename)!r} cannot be used ({why}); check the path."
    todo = "This is an error of kernelmill; please report it with what --debug shows."
    return BUG, f"{type(error).__name__}: {error}. {todo}"


def _of_scikit_learn(error: BaseException) -> bool:
    """Whether scikit-learn's validation of the user's data raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "sklearn" in trace.tb_frame.f_code.co_filename


def duration(seconds: float) -> str:
    """Seconds as people write them."""
    if seconds < 1:
        return "less than a second"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
