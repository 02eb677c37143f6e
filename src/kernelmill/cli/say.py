"""What the command line says, and how it ends: words for people on stderr, results on stdout, an exit code that means something."""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import typer
from rich import markup
from rich.console import Console
from rich.segment import Segment

from .. import errors
from ..words import aside

USAGE, DATA, MODEL, CHECKPOINT, WRITING, MEMORY, LOST, BUG, INTERRUPTED = 2, 3, 4, 5, 6, 7, 8, 1, 130
EXIT_CODES = {
    0: "done",
    BUG: "an error of kernelmill itself",
    USAGE: "a flag, a value or a column that cannot be used",
    DATA: "data that cannot be read",
    MODEL: "a model that cannot be read",
    CHECKPOINT: "a checkpoint that cannot be gone on from",
    WRITING: "an output that cannot be written",
    MEMORY: "not enough memory",
    LOST: "another process of the same job was lost",
    INTERRUPTED: "stopped by Ctrl-C",
    143: "ended by SIGTERM, after a checkpoint",
}
Command = TypeVar("Command", bound=Callable[..., Any])


# What a terminal would obey instead of showing it: control characters, overrides of the direction of writing; and half characters.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """The text with control characters written out, as \\x1b; lines and tabs stay."""
    return CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def escape(name: str) -> str:
    """A name out of a file, for rich: no markup, no control characters, one line."""
    return markup.escape(visible(name).replace("\n", "\\n").replace("\t", "\\t"))


class Terminal(Console):
    """A console that shows control characters and never obeys them: names in data and models are written by others."""

    def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else Segment(visible(part.text), part.style)


class Notes(logging.Handler):
    """What the library logs, as words for people."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def rank() -> int:
    """This process's number in a torchrun job: the first one speaks and writes for all."""
    return int(os.environ["RANK"]) if os.environ.get("RANK", "").isdigit() and "WORLD_SIZE" in os.environ else 0


def words(quiet: bool = False) -> Console:
    """Where words for people go."""
    return Terminal(file=aside(), highlight=False, quiet=quiet or rank() > 0, soft_wrap=True)


def results() -> Console:
    """Where tables go that may be piped on."""
    return Terminal(highlight=False, soft_wrap=not sys.stdout.isatty(), quiet=rank() > 0)


def as_json(value: Any) -> None:
    """One JSON object on stdout."""
    if rank() == 0:
        print(json.dumps(value, default=_plain, allow_nan=False), flush=True)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value)


def finite(value: Any) -> Any:
    """The same without NaN and infinity, which JSON has not."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def command(function: Command) -> Command:
    """A command whose errors are one sentence, and whose exit code says what kind they were. `--debug` shows the whole traceback."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            with _as_words():
                function(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, SystemExit):
            raise
        except BrokenPipeError:  # whoever read the output has enough of it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except BaseException as error:
            code, text = _meaning(error)
            aloud = Terminal(file=aside(), highlight=False, soft_wrap=True)
            if kwargs.get("debug"):
                aloud.print_exception()
            aloud.print(f"{f'rank {rank()}: ' if rank() else ''}[bold red]error:[/] {markup.escape(text)}")
            if kwargs.get("json_"):
                with suppress(OSError):
                    as_json({"error": text, "exit_code": code})
            raise typer.Exit(code) from None

    return run  # type: ignore[return-value]


@contextmanager
def _as_words() -> Iterator[None]:
    """What the library warns of and logs is said to people, for as long as a command runs."""
    log, shown, notes = logging.getLogger("kernelmill"), warnings.showwarning, Notes(logging.WARNING)
    warnings.showwarning = _warned
    log.addHandler(notes)
    try:
        yield
    finally:
        warnings.showwarning = shown
        log.removeHandler(notes)


def _meaning(error: BaseException) -> tuple[int, str]:
    """(exit code, sentence) of what went wrong."""
    kinds: list[tuple[type, int]] = [
        (KeyboardInterrupt, INTERRUPTED),
        (errors.OutputError, WRITING),
        (errors.DataFileError, DATA),
        (errors.ModelFileError, MODEL),
        (errors.CheckpointError, CHECKPOINT),
        (errors.RankError, LOST),
        (errors.KernelmillError, USAGE),
    ]
    for kind, code in kinds:
        if isinstance(error, kind):
            return code, str(error) or "stopped."
    if isinstance(error, (ValueError, TypeError)) and _of_scikit_learn(error):
        return USAGE, str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error):
        return MEMORY, "there is not enough memory; use fewer centers (--n-centers) or a smaller --memory-budget."
    if isinstance(error, OSError):
        if error.filename is None or error.errno in (*errors.NO_SPACE, errno.EROFS, errno.EACCES):
            return WRITING, str(errors.unwritable(error))
        return DATA, f"{str(error.filename)!r} cannot be used ({error.strerror or error}); check the path."
    return BUG, f"{type(error).__name__}: {error}. This is an error of kernelmill; please report it with what --debug shows."


def _of_scikit_learn(error: BaseException) -> bool:
    """Whether its validation of the user's data said it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "sklearn" in trace.tb_frame.f_code.co_filename


def _warned(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    note(str(message))


def note(text: str) -> None:
    words().print(f"[yellow]note:[/] {markup.escape(text)}")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 1:
        return "less than a second"
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def check_writable(path: os.PathLike | str) -> None:
    """Raise where nothing could be written to this folder, or beside this path, before anything takes time."""
    parent = os.path.abspath(path)
    parent = parent if os.path.isdir(parent) else os.path.dirname(parent)
    with errors.writing(parent):
        os.makedirs(parent, exist_ok=True)
        tempfile.TemporaryFile(dir=parent).close()
