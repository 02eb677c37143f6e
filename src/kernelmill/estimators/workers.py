"""Several processes of this machine for one fit: started here, each a rank, as torchrun would start them."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .. import kernels, solvers
from ..distributed.environment import launched
from ..distributed.team import Alone
from ..errors import InputError, RankError, warn
from ..planning.arguments import is_auto, whole
from ..planning.device import device_of
from ..planning.machine import Network
from ..planning.plan import Plan
from .tables import given, to_open

if TYPE_CHECKING:
    from .base import KernelEstimator

WORTH_SECONDS = 30.0  # that several GPUs must save, by prediction: starting their processes takes some of it
NVLINK = Network(latency=20e-6, bandwidth=150e9)  # between the GPUs of one machine


class NotStarted(RankError):
    """Processes ended before they had begun."""


def by_processes(estimator: KernelEstimator, X: Any, y: Any, sample_weight: Any) -> bool:
    """Whether several processes have done this fit."""
    if (count := workers(estimator, X, y)) == 1:
        return False
    try:
        fit_by(count, estimator, X, y, sample_weight)
    except NotStarted as error:
        if not is_auto(estimator.ranks):
            raise
        warn(f"{error} This fit goes on in one process.")
        return False
    return True


def workers(estimator: KernelEstimator, X: Any, y: Any) -> int:
    """How many processes this fit is to be given; 1: it goes on in this one, which may be a rank itself."""
    wanted = estimator.ranks
    if not is_auto(wanted):
        whole("ranks", wanted, 1)
    if launched() or wanted == 1:
        return 1
    if not is_auto(wanted):
        return int(wanted)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() and estimator.device in ("auto", "cuda", None) else 1
    ready = gpus > 1 and not (isinstance(X, Tensor) and X.is_cuda) and not (estimator.warm_start and hasattr(estimator, "model_"))
    return gpus if ready and _pays(estimator, X, y, gpus) else 1


def _pays(estimator: KernelEstimator, X: Any, y: Any, gpus: int) -> bool:
    """Whether all GPUs of this machine are predicted to save more than their processes take to start."""
    own = estimator.solver
    if isinstance(own, Plan) or not (is_auto(own) or solvers.resolve(own).sharded) or not _travels(estimator, X, y):
        return False
    if to_open(X, y, estimator.columns):
        table = given(X, y, None, estimator._host_bytes(Alone()) // 4)[0]
        n, d = table.table.n, max(1, len(table.table.fields) - len(table.skip))
    else:
        n, d = np.shape(X)[:2] if np.ndim(X) == 2 else (1, 1)
    settings: dict[str, Any] = dict(
        n=n, d=d, n_centers=estimator.n_centers, n_outputs=10, epochs=estimator.epochs, memory_budget=estimator.memory_budget
    )
    one = solvers.plan(**settings, kernel=estimator.kernel).plan
    assert one.rates is not None
    shared = replace(one, ranks=gpus, rates=replace(one.rates, network=NVLINK))
    alone, together = (solvers.seconds(solvers.NAMED[one.solver](), plan) or 0.0 for plan in (one, shared))
    return alone - together > WORTH_SECONDS


def _travels(estimator: KernelEstimator, *data: Any) -> bool:
    """Whether all of it can be handed to another process."""
    with suppress(Exception):
        pickle.dumps([part for part in data if not isinstance(part, (np.ndarray, Tensor))])
        pickle.dumps({name: value for name, value in estimator.get_params(deep=False).items() if name != "callbacks"})
        return True
    return False


@dataclass
class Mapped:
    """An array that every process reads from one file, without a copy of its own."""

    path: str

    @classmethod
    def of(cls, value: Any, folder: str, name: str) -> Any:
        """Numbers as a file in the folder; anything else, such as a path or a frame, as it is."""
        if isinstance(value, Tensor):
            value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            return value
        path = os.path.join(folder, f"{name}.npy")
        np.save(path, value)
        return cls(path)

    @staticmethod
    def opened(value: Any) -> Any:
        # A plain array over the mapping: a memmap would be read as a table, into memory.
        return np.load(value.path, mmap_mode="c").view(np.ndarray) if isinstance(value, Mapped) else value


class Relay:
    """A callback that lives in another process: events go there, without their tensors, and its answer comes back."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def __call__(self, event: solvers.Event) -> bool:
        self._connection.send(replace(event, alpha=None, state=None))
        return bool(self._connection.recv())


def fit_by(count: int, estimator: KernelEstimator, X: Any, y: Any, sample_weight: Any) -> None:
    """Fit with `count` processes; the estimator is fitted afterwards as if it had been done in this one."""
    from . import load  # which knows the estimators

    if estimator.warm_start and hasattr(estimator, "model_"):
        raise InputError(f"ranks={count} was given with warm_start=True, which goes on in one process; set ranks=1.")
    given_callbacks = estimator.callbacks
    callbacks = list(given_callbacks) if isinstance(given_callbacks, (list, tuple)) else [given_callbacks] if given_callbacks else []
    with tempfile.TemporaryDirectory(prefix="kernelmill-") as folder:
        data = [Mapped.of(value, folder, name) for value, name in ((X, "X"), (y, "y"), (sample_weight, "w"))]
        params = {**estimator.get_params(deep=False), "callbacks": None, "ranks": "auto"}
        _run(count, (type(estimator), params, data, folder), callbacks)
        custom = not is_auto(estimator.kernel) and type(kernels.resolve(estimator.kernel)) not in kernels.NAMED.values()
        fitted = load(Path(folder) / "model", kernel=estimator.kernel if custom else None, ranks=1)
        interrupted = (Path(folder) / "interrupted").exists()
    device = device_of(estimator.device)
    if device.startswith("cuda") and sum(part.nbytes for part in fitted.model_.buffers()) < torch.cuda.mem_get_info(device)[0] // 2:
        fitted.model_.to(device)
    names = set(vars(fitted)) - set(params)
    for name in names:
        setattr(estimator, name, getattr(fitted, name))
    estimator._equations, estimator._comm = None, Alone()
    estimator._fitted_with = {name: repr(getattr(estimator, name)) for name in ("kernel", "n_centers", "centers")}
    estimator._interrupted = interrupted


def _run(count: int, job: tuple[Any, ...], callbacks: list[Any]) -> None:
    """Start the processes, answer their events, and raise what went wrong in them."""
    context = torch.multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = max(1, torch.get_num_threads() // count)
    ends = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=_work, args=(rank, count, port, threads, ends[rank][1], job), daemon=True) for rank in range(count)]
    errors: list[BaseException] = []
    seen: list[str] = []  # kinds of events
    terminated = False

    def tell(number: int, frame: Any = None) -> None:
        nonlocal terminated
        terminated = terminated or number == signal.SIGTERM
        for process in processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, tell) for number in ((signal.SIGTERM, signal.SIGUSR1) if main else ())}
    try:
        for process in processes:
            process.start()
        for _, theirs in ends:
            theirs.close()
        waiting = {ours: rank for rank, (ours, _) in enumerate(ends)}
        while waiting:
            try:
                for ours in wait(list(waiting)):
                    _answer(ours, waiting, callbacks, errors, seen)  # type: ignore[arg-type]
            except KeyboardInterrupt:  # they stop together, and what they have is kept
                tell(signal.SIGINT)
        for rank, process in enumerate(processes):
            process.join()
            if process.exitcode and not errors:
                errors.append(
                    (RankError if seen else NotStarted)(
                        f"rank {rank} of {count} ended with exit code {process.exitcode}; see what it said, and if it is about starting "
                        "processes, put the work of your script under `if __name__ == '__main__':`."
                    )
                )
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if terminated:
            os.kill(os.getpid(), signal.SIGTERM)
    if errors:
        raise next((error for error in errors if not isinstance(error, RankError)), errors[0])


def _answer(ours: Connection, waiting: dict[Connection, int], callbacks: list[Any], errors: list[BaseException], seen: list[str]) -> None:
    try:
        said = ours.recv()
    except (EOFError, ConnectionResetError):
        del waiting[ours]
        return
    if not isinstance(said, solvers.Event):
        errors.append(said)
        return
    seen.append(said.kind)
    stop = True
    try:
        stop = any([bool(callback(said)) for callback in callbacks])
    finally:  # it waits for an answer, whatever happens here
        with suppress(OSError):
            ours.send(stop)


def _work(rank: int, count: int, port: int, threads: int, parent: Connection, job: tuple[Any, ...]) -> None:
    """What one of the processes does."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine, whatever its name resolves to
    torch.set_num_threads(threads)
    os.setpgrp()  # Ctrl-C of the terminal comes to the parent alone, which passes it on
    kind, params, data, folder = job
    try:
        estimator = kind(**params)
        if rank == 0:
            estimator.callbacks = [Relay(parent)]
        else:
            estimator.verbose = 0
        estimator.fit(*(Mapped.opened(value) for value in data))
        estimator.save(Path(folder) / "model")
        if rank == 0 and estimator._interrupted:
            (Path(folder) / "interrupted").touch()
    except BaseException as error:
        with suppress(OSError):
            parent.send(error)
        raise SystemExit(1) from None
