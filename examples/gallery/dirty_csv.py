"""A CSV file as people send it: currencies, percent signs, units, dates and words for missing
values, trained on as it is.

python examples/gallery/dirty_csv.py
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from kernelmill import Columns, KernelRegressor

HEADER = ["id", "area", "energy", "sold", "tax", "condition", "price"]


def write(path: Path, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    area, energy = rng.gamma(9, 11, rows), rng.integers(0, 5, rows)
    tax, condition = rng.uniform(0.5, 3, rows), rng.integers(0, 4, rows)
    year = rng.integers(2010, 2024, rows)
    price = 2500 * area * (1 + 0.04 * (year - 2010)) + 30_000 * condition - 9_000 * energy
    price *= rng.lognormal(0, 0.06, rows) * (1.1 - 0.05 * tax)
    scale = ["poor", "fair", "good", "excellent"]
    with open(path, "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(HEADER)
        for i in range(rows):
            day = f"{rng.integers(1, 29)}/{rng.integers(1, 13)}/{year[i]}"
            told = f"{tax[i]:.2f} %" if rng.random() > 0.1 else "n/a"
            size, grade = f"{area[i]:.0f} m²", "ABCDE"[energy[i]]
            paid = f"€{price[i]:,.2f}"
            out.writerow([f"N{i:04}", size, grade, day, told, scale[condition[i]], paid])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, new = Path(folder) / "homes.csv", Path(folder) / "new-homes.csv"
        write(path, 600, seed=0)
        write(new, 300, seed=1)
        lines = path.read_text(encoding="utf-8").splitlines()[:11]
        columns = Columns(exclude=["id"])
        model = KernelRegressor(columns=columns, random_state=0).fit(path, "price")
        predicted, score = model.predict(new), model.score(new, "price")
        with open(new, encoding="utf-8") as file:
            prices = [row["price"] for row in csv.DictReader(file)]
    true = np.array([float(price.strip("€").replace(",", "")) for price in prices])

    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure = plt.figure(figsize=(7.6, 4.6))
    grid = figure.add_gridspec(2, 2, width_ratios=[1.3, 1], height_ratios=[1.6, 0.85])
    write_out(figure.add_subplot(grid[0, 0]), "homes.csv, as it came", "\n".join([*lines, "…"]))
    write_out(figure.add_subplot(grid[1, :]), "What the columns became", str(model.columns_))
    axes = figure.add_subplot(grid[0, 1])
    ends = [0, 1.05 * max(true.max(), predicted.max()) / 1000]
    axes.plot(ends, ends, "--", color="#888888", linewidth=1)
    axes.plot(true / 1000, predicted / 1000, "o", markersize=3, alpha=0.6)
    axes.set(title=f"300 new rows, R² {score:.3f}", xlabel="price, €1,000", ylabel="predicted")
    axes.set(xlim=ends, ylim=ends)
    figure.savefig("dirty_csv.png")
    print("dirty_csv.png")


def write_out(axes: plt.Axes, title: str, text: str) -> None:
    axes.set_title(title)
    axes.axis("off")
    axes.text(0, 0.98, text, va="top", family="monospace", fontsize=8, linespacing=1.5)


if __name__ == "__main__":
    main()
