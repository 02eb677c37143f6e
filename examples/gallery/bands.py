"""A number with its uncertainty: a sparse Gaussian process, and where it has seen no rows.

python examples/gallery/bands.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from kernelmill import KernelRegressor


def main() -> None:
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(0, 4.2, 110), rng.uniform(6.2, 10, 90)])
    y = np.sin(1.3 * x) * np.exp(-x / 9) + 0.12 * rng.normal(size=200)

    model = KernelRegressor(solver="sgpr", n_centers=60, random_state=0).fit(x[:, None], y)
    grid = np.linspace(-0.5, 10.5, 400)
    mean, deviation = model.predict(grid[:, None], return_std=True)

    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, axes = plt.subplots()
    for width, shade in ((1.96, 0.15), (1.0, 0.25)):
        low, high = mean - width * deviation, mean + width * deviation
        axes.fill_between(grid, low, high, color="C0", alpha=shade, linewidth=0)
    axes.plot(grid, mean, color="C0", linewidth=2, label="prediction")
    axes.plot(grid, np.sin(1.3 * grid) * np.exp(-grid / 9), "k--", linewidth=1, label="truth")
    axes.plot(x, y, ".", color="C1", markersize=4, label="200 training rows")
    axes.annotate("no rows here:\nthe band widens", (5.2, -0.95), ha="center", color="#555555")
    axes.set(
        title="Prediction with bands of 68 and 95 %", xlabel="x", ylabel="y", xlim=(-0.5, 10.5)
    )
    axes.legend(loc="lower left", ncols=3)
    axes.set_ylim(-1.6, None)
    figure.savefig("bands.png")
    print("bands.png")


if __name__ == "__main__":
    main()
