"""Runs that lose nothing: a folder of checkpoints, written aside and renamed, of which the last two are kept.

`choices-1` and `choices-2` are copies of what was decided before the first step (kernel, ridge, centers, plan); `checkpoint-000123` is the
state of the run after so many of its reports. Each is a folder of run.json and run.safetensors, whose checksum run.json holds. A damaged
one is said, and the other is used.
"""

from __future__ import annotations

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
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from .checkpoint import decode, encode, write_file
from .errors import CheckpointError, InputError, warn
from .solvers import Event, State

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing then keeps two runs out of one folder
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("kernelmill")

FORMAT, VERSION = "kernelmill-run", 1
UNITS = {"s": 1, "m": 60, "h": 3600}
WRITING = ".writing-"
STATE = re.compile(r"checkpoint-\d{6}")
CHOICES = ("choices-1", "choices-2")


def seconds_of(every: Any) -> float:
    """Seconds, from a number or a string such as "30s", "5m" or "2h"."""
    text = str(every).strip().lower()
    unit = UNITS.get(text[-1:])
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        value = -1.0
    if isinstance(every, bool) or not 0 <= value < float("inf"):
        raise InputError(f"checkpoint_every={every!r} was given, expected seconds or a string such as '30s', '5m' or '2h'.")
    return value


def folder_of(folder: Any) -> Path:
    if isinstance(folder, bool) or not isinstance(folder, (str, os.PathLike)):
        raise InputError(f"checkpoint={folder!r} was given, expected the path of a folder.")
    return Path(folder).absolute()


class Run:
    """One training run's folder. `saved` is the state to go on from, if there is one; `choices` what was decided before."""

    def __init__(self, folder: Any, every: Any, resume: bool):
        self.folder, self._every = folder_of(folder), seconds_of(every)
        self.choices: dict[str, Any] | None = None
        self.saved: dict[str, Any] | None = None
        self.terminated = self._asked = self._writing = self._pending = self._warned = False
        self._count, self._last = 0, time.monotonic()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise InputError(f"checkpoint={str(folder)!r} cannot be written to ({error.strerror}); choose another folder.") from None
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise InputError(f"checkpoint={str(folder)!r} is in use by another run; wait for it or choose another folder.") from None
        for left in self.folder.glob(WRITING + "*"):  # of a run that was killed while it wrote
            shutil.rmtree(left, ignore_errors=True)
        chosen = sorted(self.folder.glob("choices-*"))
        states = self._states()
        if (chosen or states) and not resume:
            self.close()
            raise InputError(f"checkpoint={str(folder)!r} holds a run already; set resume=True to go on with it, or choose another folder.")
        try:
            self.choices = self._first(chosen)
            self.saved = self._first(states)
            if self.saved and not self.choices:
                raise CheckpointError(f"{str(folder)!r} has checkpoints and not the choices they belong to; choose another folder.")
        except CheckpointError:
            self.close()
            raise
        self._count = max((int(path.name.split("-")[1]) for path in states), default=0)
        self._unwritten: dict[str, Any] | None = None

    def _states(self) -> list[Path]:
        """This library's own checkpoints, the newest first; other things that are called so are left alone."""
        return sorted((path for path in self.folder.glob("checkpoint-*") if STATE.fullmatch(path.name)), reverse=True)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- reading -----------------------------------------------------------------------------------------------------------------

    def _first(self, paths: list[Path]) -> dict[str, Any] | None:
        """The first that can be read; each that cannot is said."""
        said = []
        for path in paths:
            try:
                return read(path)
            except CheckpointError as error:
                said.append(str(error))
                warn(f"{error} The one before is used.")
        if said:
            raise CheckpointError(f"nothing in {str(self.folder)!r} can be gone on from: {said[0]} Restore it, or choose another folder.")
        return None

    def check(self, identity: dict[str, Any]) -> None:
        """Raise unless the choices were made for the same data and settings."""
        before = (self.choices or {}).get("identity", {})
        changed = [name for name in identity if identity[name] != before.get(name)]
        if changed:
            name = changed[0]
            raise CheckpointError(
                f"checkpoint={str(self.folder)!r} is of a run with {name} = {_short(before.get(name))}, this one has "
                f"{_short(identity[name])}; give the same data and settings, or choose another folder."
            )

    # ---- writing -----------------------------------------------------------------------------------------------------------------

    def write_choices(self, content: dict[str, Any]) -> None:
        written = [self._write(name, content) for name in CHOICES]
        self._unwritten = None if any(written) else content
        self.choices = content

    def note(self, event: Event, watch: dict[str, Any], enough: bool) -> None:
        """Write a checkpoint where one is due: after so much time, when a signal asked for it, and at the end. `enough`: the run was
        ended because it would not get better."""
        state = event.state
        if state is None or event.kind not in ("projection", "epoch", "end"):
            return
        if event.kind == "projection" and state.position >= state.plan.n:
            return  # the report of the epoch follows
        if event.kind == "end" or self._asked or time.monotonic() - self._last >= self._every:
            self._asked = False
            self.write(replace(state, stopped=""), watch, event.kind == "end" and (enough or not state.stopped))

    def write(self, state: State, watch: dict[str, Any], finished: bool) -> None:
        if self._unwritten:  # a disk that was full has room again, perhaps; a state without its choices is worth nothing
            self.write_choices(self._unwritten)
        if self._unwritten:
            return
        values = {f.name: getattr(state, f.name) for f in fields(state) if f.name != "uncertainty"}
        self._count += 1
        if self._write(f"checkpoint-{self._count:06d}", {"state": values, "watch": watch, "finished": finished}):
            for old in self._states()[2:]:
                shutil.rmtree(old, ignore_errors=True)
        self._last = time.monotonic()

    def _write(self, name: str, content: dict[str, Any]) -> bool:
        """Aside, to the disk, renamed. A disk that is full ends no run: it is said, and what was there stays."""
        self._writing = True
        aside = None
        try:
            aside = Path(tempfile.mkdtemp(prefix=WRITING, dir=self.folder))
            tensors: dict[str, Tensor] = {}
            plain = {"format": FORMAT, "version": VERSION, **encode(content, "run", tensors)}
            data = save_tensors(tensors)
            write_file(aside / "run.safetensors", data)
            whole = json.dumps(plain | {"sha256": hashlib.sha256(data).hexdigest()})
            write_file(aside / "run.json", json.dumps({"content": whole, "sha256": _digest(whole)}).encode())
            os.replace(aside, self.folder / name)
            os.fsync(self._lock)
            return True
        except OSError as error:
            text = f"no checkpoint could be written to {str(self.folder)!r} ({error.strerror}); training goes on, the last one is kept."
            if self._warned:
                log.warning(text)
            else:
                warn(text)
            self._warned = True
            return False
        finally:
            if aside is not None:
                shutil.rmtree(aside, ignore_errors=True)
            self._writing = False
            if self._pending:
                self._pending = False
                raise KeyboardInterrupt

    # ---- signals -----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def listening(self) -> Iterator[None]:
        """SIGTERM ends the run after a checkpoint, SIGUSR1 asks for one; Ctrl-C is the solver's own. Handlers are put back afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def terminate(number: int, frame: Any) -> None:
            self.terminated = True
            if self._writing:
                self._pending = True
            else:
                raise KeyboardInterrupt

        def ask(number: int, frame: Any) -> None:
            self._asked = True

        before = {signal.SIGTERM: signal.signal(signal.SIGTERM, terminate), signal.SIGUSR1: signal.signal(signal.SIGUSR1, ask)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
            if self.terminated:
                self.close()
                os.kill(os.getpid(), signal.SIGTERM)  # as it was meant, now that nothing is lost


def read(path: Path) -> dict[str, Any]:
    """What was written there, or a CheckpointError."""
    try:
        outer = json.loads((path / "run.json").read_bytes())
        data = (path / "run.safetensors").read_bytes()
        if _digest(outer["content"]) != outer["sha256"]:
            raise ValueError("its checksum does not match")
        plain = json.loads(outer["content"])
        if plain["format"] != FORMAT or plain["version"] != VERSION:
            raise ValueError("it is of another version")
        if hashlib.sha256(data).hexdigest() != plain.pop("sha256"):
            raise ValueError("its checksum does not match")
        return decode(plain, load_tensors(data))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, SafetensorError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error) or type(error).__name__
        raise CheckpointError(f"checkpoint {str(path)!r} is damaged ({said}).") from None


def state_of(saved: dict[str, Any], device: Any) -> State:
    """The state that was saved, on a device."""
    values: dict[str, Any] = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in saved["state"].items()}
    return State(**values)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def contents(folder: Any) -> tuple[list[Path], list[Path]]:
    """What is in a run's folder: of the run, and of others."""
    found = sorted(folder_of(folder).iterdir()) if folder_of(folder).is_dir() else []
    own = [path for path in found if STATE.fullmatch(path.name) or path.name in CHOICES or path.name.startswith(WRITING)]
    return own, [path for path in found if path not in own]


def discard(folder: Any) -> None:
    """Remove a run, and its folder if nothing else is in it."""
    for path in contents(folder)[0]:
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        folder_of(folder).rmdir()


def peek(folder: Any) -> dict[str, Any]:
    """What the run that is stored there decided, if there is one: its random state, and how many rows are streamed at a time."""
    for path in sorted(folder_of(folder).glob("choices-*")):
        try:
            choices = read(path)
        except CheckpointError:
            continue
        return {
            name: choices[name] for name in ("random_state", "window_rows") if name in choices
        }  # not the centers: they are read when they are used
    return {}


def identity(values: dict[str, Any], y: Tensor, w: Tensor, X: Tensor) -> dict[str, str]:
    """What must be the same for a run to go on: settings as they are written, and checksums of the targets and of some rows."""
    found = {name: _named(value) for name, value in values.items()}
    return found | {"targets of checksum": _sum(y), "weights of checksum": _sum(w), "rows of checksum": _sum(X)}


def _named(value: Any) -> str:
    array = getattr(value, "shape", None) and hasattr(value, "__array__")
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return f"an array of checksum {_sum(torch.as_tensor(value))}" if array else repr(value)


def _sum(values: Tensor) -> str:
    return f"{zlib.crc32(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()):08x}"
