"""A kernel head on frozen embeddings: here random features of scikit-learn's digits stand for a
network's; bandwidth and ridge by one sweep, and by a search in a pipeline.

python examples/head_on_embeddings.py
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer

from kernelmill import KernelClassifier, kernels, sweep


def main() -> None:
    pixels, y = load_digits(return_X_y=True)
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 128)
    )
    with torch.no_grad():
        embeddings = network(torch.tensor(pixels / 16, dtype=torch.float32)).numpy()
    X, X_test, y, y_test = train_test_split(embeddings, y, random_state=0)

    linear = LogisticRegression(max_iter=2000).fit(X, y)
    found = sweep(KernelClassifier(kernel="laplacian", random_state=0), X, y)
    print(found)
    head = found.estimator.fit(X, y)
    print(
        f"linear head {linear.score(X_test, y_test):.3f}, kernel head"
        f" {head.score(X_test, y_test):.3f}"
    )

    pipeline = make_pipeline(
        Normalizer(), KernelClassifier(kernel=kernels.Laplacian(1.0), n_centers=500, random_state=0)
    )
    search = GridSearchCV(
        pipeline, {"kernelclassifier__kernel__bandwidth": [0.3, 1.0, 3.0]}, cv=3
    ).fit(X, y)
    print(search.best_params_, f"{search.score(X_test, y_test):.3f}")

    in_torch = torch.nn.Sequential(network, head.model_)  # a trained head is a torch module
    print(np.bincount(in_torch(torch.tensor(pixels / 16, dtype=torch.float32)).argmax(1).numpy()))


if __name__ == "__main__":
    main()
