"""What is measured, and on what: peak memory, growth exponents, machine, commit and versions."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import sklearn
import torch

import kernelmill


def peak_mib() -> float:
    """The most this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Peak:
    """`with Peak() as peak`: the most memory held inside, beyond what was held before.

    `peak.mib` has it afterwards; memory is looked at every 5 ms.
    """

    def __enter__(self) -> Peak:
        self._done, self._before, self._most = threading.Event(), self._held(), 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self._most = max(self._most, self._held())

    @staticmethod
    def _held() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    @property
    def mib(self) -> float:
        return max(0, self._most - self._before) / 2**20


def machine(command: str | None = None) -> dict:
    """What a row was measured on: commit, date, hardware, versions and the command."""
    # A copy elsewhere may have no repository.
    return {
        "commit": (os.environ.get("KERNELMILL_COMMIT") or _commit()),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit_learn": sklearn.__version__,
        "kernelmill": kernelmill.__version__,
        "command": command or " ".join([Path(sys.executable).name, *_words()]),
    }


def _words() -> list[str]:
    """The command's words; of files outside this folder only their names."""
    outside = (Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:])
    return [Path(sys.argv[0]).name, *outside]


def _commit() -> str:
    """The short hash of the commit, with "-dirty" where the library differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + (
        "-dirty" if git("status", "--porcelain", "src") else ""
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def slope(x, y) -> float:
    """The exponent: of the straight line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def line(x, y) -> float:
    """Intercept of the straight line that fits best in relative error."""
    A = np.stack([np.ones(len(x)), np.asarray(x, float)], 1) / np.asarray(y)[:, None]
    return float(np.linalg.lstsq(A, np.ones(len(x)), rcond=None)[0][0])
