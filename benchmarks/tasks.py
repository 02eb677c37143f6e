"""Data of the benchmarks: files of KERNELMILL_DATA, a generated task, augmented images."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def data_folder() -> Path:
    folder = os.environ.get("KERNELMILL_DATA")
    if not folder:
        sys.exit(
            "Set KERNELMILL_DATA to the folder with the data: *.npz with X_train, y_train, X_test,"
            " y_test, and fashion-mnist/*.gz."
        )
    return Path(folder)


def table(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X_train, y_train, X_test, y_test of one .npz file."""
    with np.load(data_folder() / f"{name}.npz") as file:
        X, y, X_test, y_test = (file[key] for key in ("X_train", "y_train", "X_test", "y_test"))
    return X, y.reshape(len(y)), X_test, y_test.reshape(len(y_test))


def fashion_mnist() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """60,000 / 10,000 images as float32 rows in [0, 1], from the four idx .gz files.

    The Debian package dataset-fashion-mnist has them.
    """
    places = [
        data_folder() / "fashion-mnist",
        data_folder(),
        Path("/usr/share/datasets/fashion-mnist"),
    ]
    folder = next(
        (place for place in places if (place / "train-images-idx3-ubyte.gz").exists()), None
    )
    if folder is None:
        sys.exit(
            "Fashion-MNIST was not found: put its .gz files into $KERNELMILL_DATA/fashion-mnist."
        )

    def read(name: str, offset: int) -> Tensor:
        with gzip.open(folder / name) as file:
            return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=offset).copy())

    images = [
        read(f"{part}-images-idx3-ubyte.gz", 16).view(-1, 784).float() / 255
        for part in ("train", "t10k")
    ]
    labels = [read(f"{part}-labels-idx1-ubyte.gz", 8).long() for part in ("train", "t10k")]
    return images[0], labels[0], images[1], labels[1]


def teacher(
    n: int,
    seed: int,
    device: str = "cpu",
    d: int = 1280,
    c: int = 10,
    latent: int = 48,
    chunk: int = 100_000,
) -> tuple[Tensor, Tensor]:
    """A generated 10-class task: d float16 features of 48 latent variables, and labels.

    Both are on `device`; each kind of device draws another teacher.
    """
    g = torch.Generator(device=device).manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=g, device=device)  # noqa: E731
    W1, W2 = normal(latent, 256) / latent**0.5, normal(256, d) / 16
    V, U = normal(latent, 128) / latent**0.5 * 1.5, normal(128, c)
    g = torch.Generator(device=device).manual_seed(seed)
    X = torch.empty(n, d, dtype=torch.float16, device=device)
    y = torch.empty(n, dtype=torch.int64, device=device)
    for i in range(0, n, chunk):
        u = normal(min(chunk, n - i), latent)
        X[i : i + chunk] = torch.relu(torch.tanh(u @ W1) @ W2).half()
        y[i : i + chunk] = (torch.tanh(u @ V) @ U).argmax(1)
    return X, y


def augment(images: Tensor, copies: int, seed: int, chunk: int = 10_000) -> Tensor:
    """Copies of 28 × 28 images with a small random rotation, scale, shift and horizontal flip.

    Images (n, 784) of uint8 on any device become (copies · n, 784) float16 in [0, 1]. The first n
    rows are the originals; labels repeat in the same order (`y.repeat(copies)`).
    """
    device = images.device
    g = torch.Generator(device=device).manual_seed(seed)
    uniform = lambda *shape: torch.rand(*shape, device=device, generator=g) - 0.5  # noqa: E731
    n, pixels = len(images), images.view(-1, 1, 28, 28).float() / 255
    out = [images.half() / 255]
    for _ in range(copies - 1):
        angle, scale = uniform(n) * 0.2, 1 + uniform(n) * 0.16
        flip = 1 - 2 * (uniform(n) < 0).float()
        theta = torch.stack(
            [
                torch.stack([angle.cos() * scale * flip, -angle.sin() * scale], 1),
                torch.stack([angle.sin() * scale * flip, angle.cos() * scale], 1),
            ],
            1,
        )
        theta = torch.cat([theta, uniform(n, 2, 1) * 0.2], 2)
        moved = [
            grid_sample(
                pixels[i : i + chunk],
                affine_grid(theta[i : i + chunk], pixels[i : i + chunk].shape, align_corners=False),
                align_corners=False,
            )
            for i in range(0, n, chunk)
        ]
        out.append(torch.cat(moved).view(n, 784).half())
    return torch.cat(out)
