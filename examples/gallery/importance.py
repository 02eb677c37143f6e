"""Which columns matter, to the model and to the prediction of one row.

python examples/gallery/importance.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from kernelmill import KernelRegressor

NAMES = {"s1": "cholesterol", "s2": "LDL", "s3": "HDL", "s4": "chol. / HDL", "s5": "triglycerides"}
NAMES |= {"s6": "blood sugar", "bp": "blood pressure", "bmi": "body mass index"}


def main() -> None:
    patients = load_diabetes(as_frame=True, scaled=False).frame.rename(columns=NAMES)
    model = KernelRegressor(random_state=0).fit(patients, "target")
    names = np.array(model.feature_names_in_)
    shares = model.feature_importances_
    order = np.argsort(shares)
    row = patients.iloc[[int(np.argmax(model.predict(patients)))]]
    adds = model.explain(row)[0]

    plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.9), sharey=True)
    places = np.arange(len(names))
    left.barh(places, 100 * shares[order], color="C0")
    left.set_yticks(places, names[order])
    left.set(title="To the model", xlabel="feature_importances_, %")
    right.barh(places, adds[order], color=np.where(adds[order] > 0, "C1", "C2"))
    right.axvline(0, color="#888888", linewidth=0.8)
    right.set(title=f"To one patient, predicted {model.predict(row)[0]:.0f}")
    right.set_xlabel("explain(row), in units of the target")
    right.spines["left"].set_visible(False)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
    figure.savefig("importance.png")
    print("importance.png")


if __name__ == "__main__":
    main()
