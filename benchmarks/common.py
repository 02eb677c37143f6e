"""What the benchmarks share: data found through KERNELMILL_DATA, and results written as JSON with commit, hardware and versions."""

from __future__ import annotations

import gzip
import json
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

RESULTS = Path(__file__).parent / "results"


def data_folder() -> Path:
    folder = os.environ.get("KERNELMILL_DATA")
    if not folder:
        sys.exit("Set KERNELMILL_DATA to the folder with the data: *.npz with X_train, y_train, X_test, y_test, and fashion-mnist/*.gz.")
    return Path(folder)


def table(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X_train, y_train, X_test, y_test of one .npz file."""
    with np.load(data_folder() / f"{name}.npz") as file:
        X, y, X_test, y_test = (file[key] for key in ("X_train", "y_train", "X_test", "y_test"))
    return X, y.reshape(len(y)), X_test, y_test.reshape(len(y_test))


def fashion_mnist() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """60,000 / 10,000 images as float32 rows in [0, 1], from the four idx .gz files (Debian package dataset-fashion-mnist)."""
    places = [data_folder() / "fashion-mnist", data_folder(), Path("/usr/share/datasets/fashion-mnist")]
    folder = next((place for place in places if (place / "train-images-idx3-ubyte.gz").exists()), None)
    if folder is None:
        sys.exit("Fashion-MNIST was not found: put its four .gz files into $KERNELMILL_DATA/fashion-mnist.")

    def read(name: str, offset: int) -> torch.Tensor:
        with gzip.open(folder / name) as file:
            return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=offset).copy())

    images = [read(f"{part}-images-idx3-ubyte.gz", 16).view(-1, 784).float() / 255 for part in ("train", "t10k")]
    labels = [read(f"{part}-labels-idx1-ubyte.gz", 8).long() for part in ("train", "t10k")]
    return images[0], labels[0], images[1], labels[1]


def teacher(n: int, seed: int, device: str = "cpu", d: int = 1280, c: int = 10, latent: int = 48, chunk: int = 100_000):
    """A generated 10-class task: d features of a 48-dimensional latent variable, float16, on `device`; labels too. Each kind of device
    draws another teacher."""
    g = torch.Generator(device=device).manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=g, device=device)  # noqa: E731
    W1, W2 = normal(latent, 256) / latent**0.5, normal(256, d) / 16
    V, U = normal(latent, 128) / latent**0.5 * 1.5, normal(128, c)
    g = torch.Generator(device=device).manual_seed(seed)
    X, y = torch.empty(n, d, dtype=torch.float16, device=device), torch.empty(n, dtype=torch.int64, device=device)
    for i in range(0, n, chunk):
        u = normal(min(chunk, n - i), latent)
        X[i : i + chunk] = torch.relu(torch.tanh(u @ W1) @ W2).half()
        y[i : i + chunk] = (torch.tanh(u @ V) @ U).argmax(1)
    return X, y


def peak_mib() -> float:
    """The most this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Peak:
    """`with Peak() as peak`: the most that is held inside, beyond what was held before, in `peak.mib`; looked at every 5 ms."""

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


def machine() -> dict:
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.processor())
    # A copy of the tree on another machine may have an old repository, or none: what is said counts first.
    commit = os.environ.get("KERNELMILL_COMMIT")
    if not commit:
        done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        changed = subprocess.run(["git", "status", "--porcelain", "src"], capture_output=True, text=True, check=False)
        commit = done.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
    return {
        "commit": commit, "time": time.strftime("%Y-%m-%d"), "cpu": cpu, "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None, "python": platform.python_version(),
        "torch": torch.__version__, "scikit-learn": sklearn.__version__, "kernelmill": kernelmill.__version__,
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
    }  # fmt: skip


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def slope(x, y) -> float:
    """The exponent: of the straight line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def line(x, y) -> float:
    """Intercept of the straight line that fits best in relative error."""
    A = np.stack([np.ones(len(x)), np.asarray(x, float)], 1) / np.asarray(y)[:, None]
    return float(np.linalg.lstsq(A, np.ones(len(x)), rcond=None)[0][0])


def write(name: str, rows: list[dict], **extra) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**machine(), **extra, "rows": rows}, indent=1) + "\n")
    print(f"written: {path.relative_to(Path(__file__).parent.parent)}")


def show(rows: list[dict]) -> None:
    """Rows of equal keys as an aligned table."""
    if not rows:
        return
    keys = list(rows[0])
    cells = [[f"{row[key]:.4g}" if isinstance(row[key], float) else str(row[key]) for key in keys] for row in rows]
    widths = [max(len(key), *(len(line[i]) for line in cells)) for i, key in enumerate(keys)]
    for line in [keys, ["-" * width for width in widths], *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
