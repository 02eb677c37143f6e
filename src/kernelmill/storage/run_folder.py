"""Runs that lose nothing: a folder of checkpoints, written aside and renamed, of which the last
two are kept.

`choices-1` and `choices-2` are copies of what was decided before the first step (kernel, ridge,
centers, plan); `checkpoint-000123` is the state of the run after so many of its reports. Each
is a folder of run.json and run.safetensors, whose checksum run.json holds. A damaged one is
said, and the other is used. Where ranks share the run, each writes a part of it: such a folder,
with its rows of whatever is dealt out among them. Any number of ranks can go on from it, in a
folder that all of them see.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import NotRequired, TypedDict, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from ..data.prints import Account, warn_of_copy
from ..distributed.team import Alone, Communicator, every_rank, has_ranks, is_alone, leads, own_rows
from ..errors import CheckpointError, InputError, KernelmillError, warn
from ..kernels import Kernel
from ..planning.plan import Plan
from ..solvers import NAMED, Ended, Event, HistoryRow, Solver, State
from ..types import Json
from .atomic import write_file
from .codec import decode, encode
from .identity import shorten

log = logging.getLogger("kernelmill")

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing then keeps two runs out of one folder
    fcntl = None  # type: ignore[assignment]

FORMAT, VERSION = "kernelmill-run", 1

UNITS = {"s": 1, "m": 60, "h": 3600}

WRITING = ".writing-"

PART = "part-{:05d}-of-{:05d}"

STATE = re.compile(r"checkpoint-\d{6}")

CHOICES = ("choices-1", "choices-2")


class Dealt(TypedDict):
    """What is shared out among the ranks of a run before its first step."""

    Z: Tensor


class Peeked(TypedDict, total=False):
    """What a run has to know before its data are read again; empty where there is none."""

    random_state: int  # that was drawn for it
    window_rows: int  # that are streamed at a time; 0 where all were in memory
    each_row: bool  # whether each row was left out once, and so none kept out


class Choices(Peeked):
    """What was decided before the first step."""

    kernel: Kernel | None  # None: a function of the user's own
    ridge: float
    plan: Plan
    dealt: Dealt
    order: Tensor | None
    every_row: bool
    generator: Tensor
    constants: dict[int, float]
    expected: float | None  # the squared error that choosing promised
    judged: dict[str, Tensor] | None  # see Judged
    signal: Tensor | None  # of a Gaussian process
    identity: NotRequired[dict[str, str]]
    data: NotRequired[dict[str, str | Account]]  # fingerprints


class Watch(TypedDict):
    """What listeners have to know where a run is resumed."""

    history: list[HistoryRow]
    best: Tensor | None
    best_score: float
    waited: int


class Saved(TypedDict):
    """A checkpoint: the fields of a state but for its tensors, which are dealt out, and the
    listeners'.
    """

    state: dict[str, object]
    watch: Watch
    dealt: dict[str, Tensor | None]
    finished: bool


def seconds_of(every: object) -> float:
    """Seconds, from a number or a string such as "30s", "5m" or "2h"."""
    text = str(every).strip().lower()
    unit = UNITS.get(text[-1:])
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = -1.0
    if isinstance(every, bool) or not 0 <= value < float("inf"):
        raise InputError(
            f"checkpoint_every={every!r} was given, expected seconds or a string such as '30s',"
            " '5m' or '2h'."
        )
    return value


def folder_of(folder: object) -> Path:
    if isinstance(folder, bool) or not isinstance(folder, (str, os.PathLike)):
        raise InputError(f"checkpoint={folder!r} was given, expected the path of a folder.")
    return Path(folder).absolute()


class NoRun:
    """A fit without a folder: nothing is written, and there is nothing to go on from."""

    choices: Choices | None = None
    saved: Saved | None = None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """To signals."""
        yield

    def identify(self, identity: Callable[[], dict[str, str]]) -> None:
        """Note what makes the run the same, and raise where its choices were made for other
        data or settings.
        """

    def write_choices(self, content: Choices, team: Communicator, comm: Communicator) -> None:
        """Keep what was decided before the first step.

        `team` are the ranks of `comm` that share the centers.
        """

    def due(self, event: Event) -> bool:
        """Whether a checkpoint is to be written now."""
        return False

    def note(self, event: Event, kept: Watch, enough: bool) -> None:
        """Write a checkpoint. `enough`: the run was ended because it would not get better."""

    def close(self) -> None:
        """Let others use the folder."""


class Run(NoRun):
    """One training run's folder.

    `saved` is the state to go on from, if there is one; `choices` what was decided before.
    `team` are the ranks that share its centers: all of them, or this one alone where the solver
    is not shared out.
    """

    def __init__(
        self,
        folder: object,
        every: object,
        resume: bool,
        comm: Communicator | None = None,
        solver: Solver | None = None,
    ):
        """`solver`: the one that was given, which may be the user's own."""
        self.folder, self._every, self.team = (
            folder_of(folder),
            seconds_of(every),
            comm or Alone(),
        )
        self.choices: Choices | None = None
        self._identity: dict[str, str] = {}
        self.random_state = 0  # that was drawn for this run
        # Fingerprints of what is trained on, which it must be the same as.
        self.data: dict[str, str | Account] = {}
        self.saved: Saved | None = None
        self.terminated = self._asked = self._writing = self._pending = self._warned = False
        self._last, self._lock = time.monotonic(), -1
        self._unwritten: Choices | None = None
        everybody = self.team
        chosen, states = everybody.same(lambda: self._open(folder, resume))
        self._count = max((int(path.name.split("-")[1]) for path in states), default=0)
        try:
            if (
                not is_alone(everybody)
                and (name := _solver_of(chosen))
                and not (solver or NAMED[name]).sharded
            ):
                self.team = Alone()
            self.choices = cast("Choices | None", self._first(chosen, everybody))
            self.saved = cast("Saved | None", self._first(states, everybody))
            if self.saved and not self.choices:
                raise CheckpointError(
                    f"{str(folder)!r} has checkpoints, but not the choices they belong to; choose"
                    " another folder."
                )
        except KernelmillError:
            self.close()
            raise

    def _open(self, folder: object, resume: bool) -> tuple[list[Path], list[Path]]:
        """Make the folder, keep others out of it, and list what is in it: the choices, and the
        states.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise InputError(
                f"checkpoint={str(folder)!r} cannot be written to ({error.strerror}); choose"
                " another folder."
            ) from None
        try:
            if fcntl is not None:
                self._lock = os.open(self.folder, os.O_RDONLY)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise InputError(
                f"checkpoint={str(folder)!r} is in use by another run; wait for it or choose"
                " another folder."
            ) from None
        for left in self.folder.glob(WRITING + "*"):  # of a run that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        chosen, states = sorted(self.folder.glob("choices-*")), self._states()
        if (chosen or states) and not resume:
            self.close()
            raise InputError(
                f"checkpoint={str(folder)!r} holds a run already; set resume=True to resume"
                " it, or choose another folder."
            )
        return chosen, states

    def _states(self) -> list[Path]:
        """This library's own checkpoints, the newest first; other things that are called so are
        left alone.
        """
        return sorted(
            (path for path in self.folder.glob("checkpoint-*") if STATE.fullmatch(path.name)),
            reverse=True,
        )

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- reading

    def _first(self, paths: list[Path], everybody: Communicator) -> dict[str, Json] | None:
        """The first that can be read, by every rank; each that cannot is said."""
        said = []
        for path in paths:
            found, error = None, f"checkpoint {str(path)!r} cannot be read by another rank."
            try:
                found = read(path, self.team)
            except CheckpointError as damaged:
                error = str(damaged)
            if every_rank(everybody, found is not None):
                return found
            said.append(error)
            if leads(everybody) or found is None:
                warn(f"{error} The one before is used.")
        if said:
            raise CheckpointError(
                f"nothing in {str(self.folder)!r} can be resumed: {said[0]} Restore it, or"
                " choose another folder."
            )
        return None

    def identify(self, identity: Callable[[], dict[str, str]]) -> None:
        self._identity = identity()
        if self.choices:
            self._check(self.choices, self._identity)

    def _check(self, choices: Choices, identity: dict[str, str]) -> None:
        before = choices["identity"]
        changed = [name for name in identity if identity[name] != before.get(name)]
        if changed:
            name = changed[0]
            raise CheckpointError(
                f"checkpoint={str(self.folder)!r} holds a run with {name} ="
                f" {shorten(before.get(name))}, this one has {shorten(identity[name])}; give the"
                " same data and settings, or choose another folder."
            )
        self._check_data(choices)

    def _check_data(self, choices: Choices) -> None:
        """The same of all rows, targets and weights."""
        before = {**choices["data"], "random_state": str(choices["random_state"])}
        where = f"since the run in checkpoint={str(self.folder)!r} began"
        for name, now in self.data.items():
            was = before.get(name)
            if isinstance(now, list) and isinstance(was, list) and len(now) == len(was):
                for (held, then, _), (holds, time_now, path) in zip(was, now, strict=True):
                    if held != holds:
                        raise CheckpointError(
                            f"the file {path!r} changed {where}; give the same data, or choose"
                            " another folder."
                        )
                    if then != time_now:
                        warn_of_copy(path)
            elif now != was and name == "random_state":
                raise CheckpointError(
                    f"random_state={now} was given, and the run in"
                    f" checkpoint={str(self.folder)!r} began with {was}; give the same, or choose"
                    " another folder."
                )
            elif now != was:
                raise CheckpointError(
                    f"the {name} changed {where}; give the same data, or choose another folder."
                )

    # ---- writing

    def write_choices(self, content: Choices, team: Communicator, comm: Communicator) -> None:
        data = {name: value for name, value in self.data.items() if name != "random_state"}
        self.team = team
        if team is comm or leads(comm):
            self._write_choices(
                {
                    **content,
                    "identity": self._identity,
                    "data": data,
                    "random_state": self.random_state,
                }
            )

    def _write_choices(self, content: Choices) -> None:
        written = [self._write(name, content) for name in CHOICES]
        self._unwritten = None if any(written) else content
        self.choices = content

    def due(self, event: Event) -> bool:
        """Whether a checkpoint is to be written: after so much time, when a signal asked for
        it, and at the end.
        """
        state = event.state
        if state is None or event.kind not in ("projection", "epoch", "end"):
            return False
        if event.kind == "projection" and state.position >= state.plan.n:
            return False  # the report of the epoch follows
        return event.kind == "end" or self._asked or time.monotonic() - self._last >= self._every

    def note(self, event: Event, kept: Watch, enough: bool) -> None:
        assert event.state is not None
        self._asked = False
        self.write(event.state, kept, event.kind == "end" and (enough or event.ended is Ended.DONE))

    def write(self, state: State, watch: Watch, finished: bool) -> None:
        # A disk that was full may have room again; a state without its choices is worth nothing.
        if self._unwritten:
            self._write_choices(self._unwritten)
        if self._unwritten:
            return
        values = {
            f.name: getattr(state, f.name) for f in fields(state) if f.name not in state.PASSING
        }
        dealt = {
            name: values.pop(name) for name in list(values) if isinstance(values[name], Tensor)
        }
        dealt["best"] = watch.get("best")
        content: Saved = {
            "state": values,
            "watch": {**watch, "best": None},
            "dealt": dealt,
            "finished": finished,
        }
        self._count += 1
        if self._write(f"checkpoint-{self._count:06d}", content) and leads(self.team):
            for old in self._states()[2:]:
                shutil.rmtree(old, ignore_errors=True)
        self._last = time.monotonic()

    def _write(self, name: str, content: Choices | Saved) -> bool:
        """Aside, by every rank its part, to the disk, renamed.

        A disk that is full ends no run: it is said, and what was there stays.
        """
        self._writing = True
        aside, failed = None, None
        try:
            aside = self.team.same(self._aside)
            try:
                if aside is None:
                    raise OSError(errno.EIO, "no folder could be made in it")
                self._write_part(
                    (
                        aside
                        if is_alone(self.team)
                        else aside / PART.format(self.team.rank, self.team.size)
                    ),
                    content,
                )
            except OSError as error:
                failed = error.strerror
            if self.team.all_sum(torch.tensor(float(failed is not None))).item() == 0:
                try:
                    self.team.same(lambda: self._rename(aside, name))
                    return True
                except OSError as error:
                    failed = error.strerror
            why = failed or "by another rank"
            text = (
                f"no checkpoint could be written to {str(self.folder)!r} ({why}); training"
                " continues, the last one is kept."
            )
            if self._warned:
                log.warning(text)
            else:
                warn(text)
            self._warned = True
            return False
        finally:
            if aside is not None and leads(self.team):
                shutil.rmtree(aside, ignore_errors=True)
            self._writing = False
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt

    def _aside(self) -> Path | None:
        try:
            return Path(tempfile.mkdtemp(prefix=WRITING, dir=self.folder))
        except OSError:
            return None

    def _write_part(self, part: Path, content: Choices | Saved) -> None:
        part.mkdir(exist_ok=True)
        tensors: dict[str, Tensor] = {}
        plain = {"format": FORMAT, "version": VERSION, **encode(content, "run", tensors)}
        data = save_tensors(tensors)
        write_file(part / "run.safetensors", data)
        whole = json.dumps(plain | {"sha256": hashlib.sha256(data).hexdigest()})
        write_file(
            part / "run.json", json.dumps({"content": whole, "sha256": _digest(whole)}).encode()
        )

    def _rename(self, aside: Path | None, name: str) -> None:
        assert aside is not None
        os.replace(aside, self.folder / name)
        if self._lock >= 0:
            os.fsync(self._lock)

    # ---- signals

    @contextmanager
    def listening(self) -> Iterator[None]:
        """SIGTERM ends the run after a checkpoint, SIGUSR1 asks for one; Ctrl-C is the solver's
        own. Handlers are put back afterwards.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def terminate(number: int, frame: FrameType | None) -> None:
            self.terminated = True
            if self._writing:
                self._pending = True
            else:
                raise KeyboardInterrupt

        def ask(number: int, frame: FrameType | None) -> None:
            self._asked = True

        handlers = {signal.SIGTERM: terminate}
        if hasattr(signal, "SIGUSR1"):  # not on Windows
            handlers[signal.SIGUSR1] = ask
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            if self.terminated:
                self.close()
                # As it was meant, now that nothing is lost.
                os.kill(os.getpid(), signal.SIGTERM)


def plain_of(path: Path) -> dict[str, Json]:
    """A checkpoint without its tensors, as it is written."""
    return _read_checked(lambda: _plain(_parts(path)[0]), path)


def _solver_of(chosen: list[Path]) -> str | None:
    """The solver that a run chose."""
    for path in chosen:
        with suppress(CheckpointError):
            return plain_of(path)["plan"]["$plan"]["solver"]
    return None


def read(path: Path, comm: Communicator | None = None) -> dict[str, Json]:
    """What was written there, with this rank's rows of what is dealt out, or a CheckpointError."""
    return _read_checked(lambda: _read(_parts(path), comm or Alone()), path)


def _parts(path: Path) -> list[Path]:
    """The folders of the ranks that wrote it, in their order."""
    found = sorted(path.glob("part-*"))
    if found and [part.name for part in found] != [
        PART.format(rank, len(found)) for rank in range(len(found))
    ]:
        raise ValueError("a part of it is missing")
    return found or [path]


def _plain(part: Path) -> dict[str, Json]:
    outer = json.loads((part / "run.json").read_bytes())
    if _digest(outer["content"]) != outer["sha256"]:
        raise ValueError("its checksum does not match")
    plain = json.loads(outer["content"])
    if plain["format"] != FORMAT or plain["version"] != VERSION:
        raise ValueError("it was written by another version")
    return plain


def _read(parts: list[Path], comm: Communicator) -> dict[str, Json]:
    """As many ranks as before read a part each; others look for their rows in all of them."""
    as_before = has_ranks(comm, len(parts))
    wanted = [comm.rank] if as_before else range(len(parts))
    found: dict[str, Json] = {}
    dealt: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for k in wanted:
        plain = _plain(parts[k])
        data = (parts[k] / "run.safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != plain.pop("sha256"):
            raise ValueError("its checksum does not match")
        content = decode(plain, load_tensors(data))
        found = found or content
        for name, tensor in content["dealt"].items():
            if tensor is None or as_before:
                continue
            number = torch.arange(len(tensor)) * len(parts) + k  # of each row, among all
            mine, place = own_rows(comm, number)
            dealt.setdefault(name, []).append((place[mine], tensor[mine]))
    for name, pieces in dealt.items():
        at = torch.cat([place for place, _ in pieces])
        found["dealt"][name] = torch.cat([rows for _, rows in pieces])[torch.argsort(at)]
    return found


def _read_checked(reading: Callable[[], dict[str, Json]], path: Path) -> dict[str, Json]:
    try:
        return reading()
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        SafetensorError,
    ) as error:
        said = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
        raise CheckpointError(f"checkpoint {str(path)!r} is damaged ({said}).") from None


def state_of(saved: Saved, solver: Solver, device: str | torch.device) -> State:
    """The solver's state that was saved, on a device."""
    rows = {name: rows for name, rows in saved["dealt"].items() if name != "best"}
    values: dict[str, Json] = {
        name: v.to(device) if isinstance(v, Tensor) else v
        for name, v in {**saved["state"], **rows}.items()
    }
    return solver.state(**values)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def contents(folder: object) -> tuple[list[Path], list[Path]]:
    """What is in a run's folder: of the run, and of others."""
    found = sorted(folder_of(folder).iterdir()) if folder_of(folder).is_dir() else []
    own = [
        path
        for path in found
        if STATE.fullmatch(path.name) or path.name in CHOICES or path.name.startswith(WRITING)
    ]
    return own, [path for path in found if path not in own]


def discard(folder: object) -> None:
    """Remove a run, and its folder if nothing else is in it."""
    for path in contents(folder)[0]:
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        folder_of(folder).rmdir()


def peek(folder: object) -> Peeked:
    """What the run that is stored there decided, if there is one: its random state, and how
    many rows are streamed at a time.
    """
    for path in sorted(folder_of(folder).glob("choices-*")):
        try:
            choices = plain_of(path)
        except CheckpointError:
            continue
        names = Peeked.__annotations__
        return cast(Peeked, {name: choices[name] for name in names if name in choices})
    return {}
