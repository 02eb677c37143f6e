"""Probabilities that mean what they say, beside those of two other models.

python examples/gallery/calibration.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.calibration import calibration_curve
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB

from kernelmill import KernelClassifier


def main() -> None:
    X, y = make_classification(
        12_000, 10, n_informative=6, n_redundant=3, class_sep=0.7, flip_y=0.1, random_state=3
    )
    train, test = slice(0, 1000), slice(1000, None)
    models = {
        "KernelClassifier": KernelClassifier(random_state=0),
        "random forest": RandomForestClassifier(random_state=0),
        "naive Bayes": GaussianNB(),
    }

    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(6.4, 5.2), height_ratios=[3, 1], sharex=True
    )
    upper.plot([0, 1], [0, 1], "--", color="#888888", linewidth=1)
    for name, model in models.items():
        chance = model.fit(X[train], y[train]).predict_proba(X[test])[:, 1]
        true, said = calibration_curve(y[test], chance, n_bins=12)
        loss = log_loss(y[test], chance)
        upper.plot(said, true, marker="o", markersize=4, label=f"{name}, log loss {loss:.3f}")
        lower.hist(chance, bins=np.linspace(0, 1, 31), histtype="step", linewidth=1.4)
    upper.set(title="Calibration, 11,000 test rows", ylabel="share that is of the class")
    upper.legend(loc="upper left")
    lower.set(xlabel="probability that the model gives", ylabel="rows", xlim=(0, 1))
    figure.savefig("calibration.png")
    print("calibration.png")


if __name__ == "__main__":
    main()
