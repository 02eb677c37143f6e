"""Models elsewhere: ONNX files in onnxruntime, torch.export."""

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch

from kernelmill import Columns, InputError, KernelClassifier, KernelRegressor, kernels, load
from kernelmill.export import input_name

g = np.random.default_rng(0)
X = g.normal(size=(1500, 6)).astype(np.float32)
Y = np.sin(X[:, 0]) + X[:, 1]
KERNELS = [
    kernels.Laplacian(3.0),
    kernels.Laplacian(np.diag(np.linspace(1, 4, 6)) + 0.1),
    kernels.Gaussian(np.linspace(1, 3, 6)),
    kernels.Matern(2.0),
    kernels.GeneralisedExponential(2.0),
    kernels.RationalQuadratic(2.0),
    kernels.Linear(),
    kernels.Polynomial(),
    kernels.ReluNTK(),
    kernels.ArcCosine(),
    kernels.ArcCosine(order=2),
    kernels.Custom(lambda A, B: torch.exp(-(A[:, None] - B[None]).abs().sum(-1))),
]


def ran(path, inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


FEW = ("laplacian", "relu_ntk", "custom")  # the others in test-all: each takes a second or two


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(k, id=k.name, marks=[] if k.name in FEW else pytest.mark.slow) for k in KERNELS],
)
def test_every_kernel_is_the_same_in_onnx_and_torch_export(tmp_path, kernel):
    model = KernelRegressor(
        kernel=kernel, n_centers=100, solver="falkon", ridge=0.1, random_state=0
    ).fit(X, Y)
    want = model.predict(X[:300])
    model.to_onnx(tmp_path / "m.onnx")
    for rows in (1, 300):
        np.testing.assert_allclose(
            ran(tmp_path / "m.onnx", {"X": X[:rows]})["prediction"], want[:rows], atol=1e-4
        )
    program = model.model_.exported()
    np.testing.assert_allclose(
        program.module()(torch.tensor(X[:300]))[:, 0].numpy(), want, atol=1e-5
    )


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_several_outputs_keep_their_columns_and_precision(tmp_path, dtype):
    model = KernelRegressor(kernel="gaussian", n_centers=50, random_state=0)
    model.fit(X.astype(dtype), np.stack([Y, -Y], 1))
    model.to_onnx(tmp_path / "m.onnx")
    np.testing.assert_allclose(
        ran(tmp_path / "m.onnx", {"X": X.astype(dtype)})["prediction"],
        model.predict(X.astype(dtype)),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "labels",
    [["no", "yes", "perhaps"], [3, 1, 7], [1.0, 2.0, 4.0]],
    ids=["texts", "whole", "floats"],
)
def test_a_classifier_gives_labels_and_probabilities(tmp_path, labels):
    y = np.array(labels)[np.digitize(Y, [-0.5, 0.5])]
    model = KernelClassifier(kernel=kernels.Laplacian(3.0), n_centers=200, random_state=0).fit(X, y)
    model.save(tmp_path / "m")
    load(tmp_path / "m").to_onnx(tmp_path / "m.onnx")
    out = ran(tmp_path / "m.onnx", {"X": X})
    assert (out["label"] == model.predict(X)).all()
    np.testing.assert_allclose(out["probabilities"], model.predict_proba(X), atol=1e-6)


def frame(rows):
    shop = np.array([f"shop {i}" for i in g.integers(0, 50, rows)], dtype=object)
    colour = g.choice(["red", "green", None], rows)
    size = np.where(g.random(rows) < 0.1, np.nan, g.normal(1e6, 10, rows))
    found = pd.DataFrame(
        {
            "size": size,
            "colour": colour,
            "shop": shop,
            "code": g.integers(0, 4, rows),
            "weight": g.normal(size=rows),
        }
    )
    found["price"] = np.nan_to_num(size - 1e6) / 10 + (colour == "red") + found["code"] % 2
    return found


def as_inputs(rows, texts=("colour", "shop", "code")):
    names = {
        name: np.array(["" if v is None or v != v else str(v) for v in rows[name]], dtype=object)
        for name in texts
    }
    return {**names, **{name: rows[name].to_numpy(np.float64) for name in ("size", "weight")}}


def test_a_regressor_takes_its_raw_columns(tmp_path):
    rows = frame(3000)
    columns = Columns(categorical=["code"])
    model = KernelRegressor(kernel="matern", n_centers=300, random_state=0, columns=columns).fit(
        rows, "price"
    )
    assert {category.how for category in model.encoder_.categories} == {
        "one_hot",
        "target",
    } and len(model.encoder_.flagged)
    new = frame(500)
    new.loc[3, "shop"] = "one that was never seen"
    model.to_onnx(tmp_path / "m.onnx")
    np.testing.assert_allclose(
        ran(tmp_path / "m.onnx", as_inputs(new))["prediction"], model.predict(new), atol=1e-4
    )


def test_columns_may_be_called_anything(tmp_path):
    names = ["X", "values", "prediction", "label", "exp", "kernelmill_1", "val_0"]
    rows = pd.DataFrame(g.normal(size=(400, 7)), columns=names)
    rows["probabilities"] = g.choice(["a", "b"], 400)
    rows["y"] = rows["X"] + (rows["probabilities"] == "a")
    model = KernelRegressor(n_centers=60, random_state=0).fit(rows, "y")
    model.to_onnx(tmp_path / "m.onnx")
    inputs = {
        input_name(name): rows[name].to_numpy(object if name == "probabilities" else np.float64)
        for name in [*names, "probabilities"]
    }
    np.testing.assert_allclose(
        ran(tmp_path / "m.onnx", inputs)["prediction"], model.predict(rows), atol=1e-4
    )


@pytest.mark.parametrize(
    "kernel", [kernels.ReluNTK(), kernels.ArcCosine()], ids=lambda kernel: kernel.name
)
def test_rows_of_zeros_are_numbers(tmp_path, kernel):
    rows = X.astype(np.float64)
    model = KernelRegressor(kernel=kernel, n_centers=60, ridge=0.1, random_state=0).fit(rows, Y)
    model.to_onnx(tmp_path / "m.onnx")
    zeros = np.concatenate([np.zeros((1, 6)), rows[:3]])
    np.testing.assert_allclose(
        ran(tmp_path / "m.onnx", {"X": zeros})["prediction"], model.predict(zeros), atol=1e-4
    )


def test_an_exported_program_has_gradients():
    model = KernelRegressor(
        kernel=kernels.Gaussian(2.0), n_centers=60, ridge=0.1, random_state=0
    ).fit(X, Y)
    rows = torch.tensor(X[:3], requires_grad=True)
    model.model_.exported().module()(rows).sum().backward()
    assert rows.grad.abs().sum() > 0


@pytest.mark.slow
def test_what_onnx_cannot_express_is_said(tmp_path):
    model = KernelRegressor(
        kernel="laplacian", n_centers=50, random_state=0, columns=Columns(beyond="hash")
    ).fit(frame(500), "price")
    with pytest.raises(InputError, match="'shop' is hashed, which ONNX cannot express"):
        model.to_onnx(tmp_path / "m.onnx")
    model = KernelRegressor(kernel="laplacian", n_centers=50, random_state=0).fit(X, Y)
    with pytest.raises(FileNotFoundError):
        model.to_onnx(tmp_path / "nowhere" / "m.onnx")

    def by_numpy(A, B):
        return torch.as_tensor(np.exp(-np.abs(A.numpy()[:, None] - B.numpy()[None]).sum(-1)))

    odd = KernelRegressor(kernel=kernels.Custom(by_numpy), n_centers=50, ridge=0.1).fit(X, Y)
    with pytest.raises(InputError, match="the custom kernel cannot be written as ONNX"):
        odd.to_onnx(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_fifty_thousand_centers(tmp_path):
    rows = g.normal(size=(60_000, 30)).astype(np.float32)
    label = (np.tanh(rows @ g.normal(size=(30, 40))) @ g.normal(size=(40, 10))).argmax(1)
    model = KernelClassifier(
        kernel=kernels.Laplacian(6.0),
        n_centers=50_000,
        epochs=1,
        solver="eigenpro4",
        random_state=0,
    ).fit(rows, label)
    model.to_onnx(tmp_path / "m.onnx")
    out = ran(tmp_path / "m.onnx", {"X": rows[:500]})
    np.testing.assert_allclose(out["probabilities"], model.predict_proba(rows[:500]), atol=1e-4)
    assert (out["label"] == model.predict(rows[:500])).mean() > 0.995
