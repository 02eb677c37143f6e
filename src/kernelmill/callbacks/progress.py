"""A live bar on the terminal, and the line before it."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence

from rich.control import Control
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import ControlType

from ..data.account import Account
from ..planning.plan import Plan
from ..solvers import Event
from ..words import Terminal, aside, visible

EVERY = 10.0  # seconds between two lines where there is no terminal


class ProgressBar:
    """A live bar on the terminal: epoch, rows per second, loss, time left."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "start":
            self._bar = Progress(
                TextColumn("epoch {task.fields[epoch]}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%"),
                TextColumn("{task.fields[rate]} rows/s{task.fields[loss]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Terminal(file=aside()),
            )
            self._bar.start()
            self._interrupted, self._last = False, time.monotonic()
            self._first = event.rows, event.seconds  # those before a resume are not of this run
            self._task = self._bar.add_task(
                "fit", total=max(1, event.rows_total), epoch=1, rate="-", loss=""
            )
        if self._bar is None:
            return
        rows, seconds = event.rows - self._first[0], event.seconds - self._first[1]
        rate = f"{rows / seconds:,.0f}" if seconds > 0 and rows > 0 else "-"
        epoch = event.epoch + (event.kind == "projection")
        if event.loss is not None:
            self._bar.update(self._task, loss=f"  loss {event.loss:.4g}")
        self._bar.update(self._task, completed=event.rows, epoch=epoch, rate=rate)
        self._say(event, rate)
        self._interrupted = self._interrupted or event.kind == "interrupted"
        if event.note:
            self._bar.console.print(event.note, markup=False)
        if event.kind == "end":
            if not self._interrupted:  # also where fewer rows were enough
                self._bar.update(self._task, completed=max(1, event.rows_total))
            self._bar.stop()
            self._bar = None

    def _say(self, event: Event, rate: str) -> None:
        """A line every EVERY seconds, where nobody sees a bar."""
        assert self._bar is not None
        if self._bar.console.is_terminal or time.monotonic() - self._last < EVERY:
            return
        self._last = time.monotonic()
        share = f"{event.rows / max(1, event.rows_total):.0%}"
        loss = "" if event.loss is None else f", loss {event.loss:.4g}"
        text = f"epoch {event.epoch + 1}, {share} of the rows, {rate} a second{loss}"
        self._bar.console.print(text, highlight=False, soft_wrap=True)


Piece = tuple[int, int]


def watch(pieces: Sequence[Piece], show: bool) -> Generator[Piece]:
    """Ranges of rows, one after another; where there are several and `show`, with a bar on a
    terminal, and elsewhere a line every EVERY seconds.
    """
    if not show or len(pieces) < 2:
        yield from pieces
        return
    console, total = Terminal(file=aside()), pieces[-1][1]
    last = start = time.monotonic()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("rows", total=total)
        for piece in pieces:
            yield piece
            bar.update(task, completed=piece[1], description=_rate(piece[1], start))
            if not console.is_terminal and time.monotonic() - last >= EVERY:
                last = time.monotonic()
                text = f"{_rate(piece[1], start)}, {piece[1] / total:.0%}"
                console.print(text, highlight=False, soft_wrap=True)


def _rate(rows: int, start: float) -> str:
    return f"{rows:,} rows, {rows / max(1e-9, time.monotonic() - start):,.0f} a second"


class ChoosingLine:
    """What is tried while a kernel is chosen: a line that is written over on a terminal, and
    elsewhere a line every EVERY seconds.
    """

    def __init__(self) -> None:
        self._console = Terminal(file=aside())
        self._last = time.monotonic()

    def __call__(self, label: str, score: float, best: float, left: float) -> None:
        until = f", {max(0.0, left):.0f} s left" if math.isfinite(left) else ""
        text = f"choosing: best (lowest) score {best:.4g}{until}; {label}: {score:.4g}"
        if self._console.is_terminal:
            width = self._console.width - 1
            line = visible(text)[:width].ljust(width)
            self._console.print(line, end="", highlight=False, markup=False)
            self._console.control(Control(ControlType.CARRIAGE_RETURN))
        elif time.monotonic() - self._last >= EVERY:
            self._last = time.monotonic()
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def show_columns(account: Account) -> None:
    """Say on the terminal what the columns of a table became."""
    console = Terminal(file=aside())
    console.print(str(account), highlight=False, soft_wrap=True, markup=False, emoji=False)


def announce(plan: Plan) -> None:
    """Say on the terminal what is about to happen."""
    Terminal(file=aside()).print(plan_line(plan), highlight=False, soft_wrap=True)


def plan_line(plan: Plan) -> str:
    """One line that says what is about to happen."""
    parts = [
        f"{plan.solver}: {plan.n:,} rows × {plan.d} features, {plan.p:,} centers,"
        f" {_outputs(plan.c)}, {plan.precision} on {plan.device}"
    ]
    if plan.s is not None:
        parts.append(f"s={plan.s}, q={plan.q}, {plan.projection} projection, {plan.epochs} epochs")
    elif plan.epochs > 1:
        parts.append(f"up to {plan.epochs} iterations{', K(X,Z) kept' if plan.keep_all else ''}")
    time = "" if plan.seconds is None else f" and {plan.seconds:.2g} s to solve"
    parts.append(f"about {plan.bytes / 2**30:.2g} GiB{time}")
    return "; ".join(parts)


def _outputs(count: int) -> str:
    return "1 output" if count == 1 else f"{count} outputs"
