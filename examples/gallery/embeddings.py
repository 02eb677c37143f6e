"""A head on frozen features: linear and kernel heads on the same embeddings of digits, by how many
of them have a label.

python examples/gallery/embeddings.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from kernelmill import KernelClassifier, kernels

LABELS = [50, 100, 200, 400, 800]


def embed(pixels: np.ndarray) -> np.ndarray:
    """Stands for a frozen network: random weights, 96 features."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 96)
    )
    with torch.no_grad():
        return network(torch.tensor(pixels / 16, dtype=torch.float32)).numpy()


def main() -> None:
    pixels, y = load_digits(return_X_y=True)
    rows = np.arange(len(y))
    train, test = train_test_split(rows, test_size=900, random_state=0, stratify=y)
    X = embed(pixels)
    heads = {
        "kernel head": lambda: KernelClassifier(
            kernel=kernels.Gaussian(1.0), ridge=1e-3, random_state=0
        ),
        "linear head": lambda: LogisticRegression(C=100, max_iter=5000),
    }
    scores = {
        name: [make().fit(X[train[:n]], y[train[:n]]).score(X[test], y[test]) for n in LABELS]
        for name, make in heads.items()
    }
    best = heads["kernel head"]().fit(X[train], y[train])
    chances = best.predict_proba(X[test])
    doubtful = np.argsort(chances.max(1))[:12]

    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure = plt.figure(figsize=(7.6, 3.9))
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1])
    axes = left.subplots()
    for name, values in scores.items():
        axes.plot(LABELS, 100 * np.array(values), marker="o", label=name)
    axes.set(xscale="log", xlabel="labelled rows", ylabel="test accuracy, %")
    axes.set_xticks(LABELS, map(str, LABELS))
    axes.minorticks_off()
    axes.set_title("Heads on the same embeddings")
    axes.legend(loc="lower right")
    right.suptitle("Where the kernel head is least sure", fontsize=11, fontweight="bold")
    for axes, i in zip(right.subplots(3, 4).flat, doubtful, strict=True):
        axes.imshow(pixels[test[i]].reshape(8, 8), cmap="gray_r")
        first, second = np.argsort(chances[i])[::-1][:2]
        words = f"{first}: {chances[i, first]:.0%}  {second}: {chances[i, second]:.0%}"
        axes.set_title(words, fontsize=7, fontweight="normal", loc="center", pad=2)
        axes.axis("off")
    figure.savefig("embeddings.png")
    print("embeddings.png")


if __name__ == "__main__":
    main()
