"""Classes that no straight line separates: three spirals, and how sure the model is between them.

python examples/gallery/boundaries.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgb
from sklearn.linear_model import LogisticRegression

from kernelmill import KernelClassifier

PIXELS = 260
COLORS = ["#2a6f97", "#e07a2f", "#5b9a55"]


def spirals(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label, t = rng.integers(0, 3, rows), rng.uniform(0.15, 1, rows)
    angle = 4.2 * t + 2 * np.pi * label / 3 + 0.33 * rng.normal(size=rows)
    return np.stack([t * np.cos(angle), t * np.sin(angle)], 1), label


def main() -> None:
    X, y = spirals(450, seed=0)
    X_test, y_test = spirals(3000, seed=1)
    side = np.linspace(-1.15, 1.15, PIXELS)
    grid = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    colors = np.array([to_rgb(color) for color in COLORS])

    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 4.0))
    models = {
        "Logistic regression": LogisticRegression(),
        "KernelClassifier()": KernelClassifier(random_state=0),
    }
    for axes, (name, model) in zip(panels, models.items(), strict=True):
        model.fit(X, y)
        chances = model.predict_proba(grid)
        # The color of the likeliest class, in eight steps paler as the model is less sure.
        sure = np.ceil(8 * (chances.max(1, keepdims=True) - 1 / 3) * 1.5) / 8
        shade = 1 - 0.6 * sure * (1 - colors[chances.argmax(1)])
        axes.imshow(
            shade.reshape(PIXELS, PIXELS, 3),
            extent=(-1.15, 1.15, -1.15, 1.15),
            origin="lower",
            interpolation="nearest",
        )
        axes.scatter(*X.T, c=colors[y], s=8, edgecolors="white", linewidths=0.3)
        axes.set(title=f"{name}: {model.score(X_test, y_test):.0%} right", xticks=[], yticks=[])
    figure.savefig("boundaries.png")
    print("boundaries.png")


if __name__ == "__main__":
    main()
