"""A number with its uncertainty: a Gaussian process with functions of its posterior, and conformal
intervals where the noise grows.

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
    y = truth(x) + 0.12 * rng.normal(size=200)
    process = KernelRegressor(kernel="matern", uncertainty="posterior", random_state=0)
    process.fit(x[:, None], y)

    u = rng.uniform(0, 10, 1000)
    v = truth(u) + (0.03 + 0.04 * u) * rng.normal(size=1000)
    conformal = KernelRegressor(random_state=0).fit(u[:, None], v)

    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), sharey=True)
    grid = np.linspace(-0.5, 10.5, 400)
    mean, deviation = process.predict(grid[:, None], return_std=True)
    for width, shade in ((1.96, 0.15), (1.0, 0.25)):
        low, high = mean - width * deviation, mean + width * deviation
        left.fill_between(grid, low, high, color="C0", alpha=shade, linewidth=0)
    drawn = process.sample(grid[:, None], 5, noise=False)
    left.plot(grid, drawn, color="C0", linewidth=0.7, alpha=0.7)
    left.plot(x, y, ".", color="C1", markersize=4, label="200 training rows")
    left.annotate("no rows here:\nthe band widens", (5.2, -1.45), ha="center", color="#555555")
    left.set(title='uncertainty="posterior": 68 and 95 %, five functions')

    inner = np.linspace(0, 10, 400)
    low, high = conformal.predict_interval(inner[:, None], coverage=0.9)
    right.fill_between(inner, low, high, color="C0", alpha=0.2, linewidth=0)
    right.plot(u, v, ".", color="C1", markersize=2, label="1,000 training rows")
    right.set(title="conformal: 90 % of new rows lie inside")
    for axes, at, model in ((left, grid, process), (right, inner, conformal)):
        axes.plot(at, model.predict(at[:, None]), color="C0", linewidth=2, label="prediction")
        axes.plot(at, truth(at), "k--", linewidth=1, label="truth")
        axes.set(xlabel="x", xlim=(at[0], at[-1]), ylim=(-1.9, 1.9))
        axes.legend(loc="upper right", fontsize="small")
    left.set(ylabel="y")
    figure.savefig("bands.png")
    print("bands.png")


def truth(x: np.ndarray) -> np.ndarray:
    return np.sin(1.3 * x) * np.exp(-x / 9)


if __name__ == "__main__":
    main()
