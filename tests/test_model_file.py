"""Model folders: round trips, versions, damage, foreign folders, and no code ever run."""

import contextlib
import copy
import json
import shutil

import numpy as np
import pytest
import torch

from kernelmill import InputError, KernelClassifier, KernelRegressor, ModelFileError, kernels, load
from kernelmill.solvers import EigenPro4

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
y = X[:, 0] ** 2
MATRIX = np.eye(3) + 0.2


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.Laplacian(2.0),
        kernels.Gaussian(np.array([1.0, 2.0, 3.0])),
        kernels.Matern(torch.as_tensor(MATRIX), nu=2.5),
        kernels.ReluNTK(depth=3),
        "auto",
    ],
    ids=repr,
)
def test_round_trip(kernel, tmp_path):
    model = KernelRegressor(kernel=kernel, ridge=0.1, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    copy = load(tmp_path / "model")
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    assert (
        copy.plan_ == model.plan_ and copy.history_ == model.history_ and copy.n_features_in_ == 3
    )
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "model.json",
        "weights.safetensors",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]  # nothing left aside
    copy.fit(X, y)  # its parameters came back too


LABELS = [
    ["a", "b", "c"],
    [3, 7, 9],
    [1.0, 2.0, 3.0],
    np.array(["x", "y", "z"], dtype=object),
    np.array([1, 2, 3], dtype=np.uint32),
]


@pytest.mark.parametrize("labels", [np.asarray(labels) for labels in LABELS])
def test_classifier_labels_come_back(labels, tmp_path):
    target = labels[np.arange(60) % 3]
    weights = {label: 1.0 + i for i, label in enumerate(labels.tolist())}
    model = KernelClassifier(
        kernel=kernels.Laplacian(1.0), solver=EigenPro4(q=5), class_weight=weights, random_state=0
    ).fit(X, target)
    model.save(tmp_path / "m")
    copy = load(tmp_path / "m")
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert (
        copy.classes_.dtype.kind == model.classes_.dtype.kind
        and copy.solver.q == 5
        and copy.class_weight == weights
    )
    copy.fit(X, target)


def test_a_kernel_function_is_passed_again(tmp_path):
    def mine(A, B):
        return (A @ B.T + 1) ** 2

    model = KernelRegressor(kernel=mine, ridge=0.1).fit(X, y)
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match="kernel=function"):
        load(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m", kernel=mine).predict(X), model.predict(X))


class Steeper(kernels.Laplacian):
    def profile(self, sq_dist):
        return super().profile(2 * sq_dist)


def test_a_kernel_class_of_ones_own_is_not_taken_for_its_parent(tmp_path):
    model = KernelRegressor(kernel=Steeper(1.0), ridge=0.1).fit(X, y)
    model.save(tmp_path / "m")
    with pytest.raises(InputError, match="kernel=function"):
        load(tmp_path / "m")
    np.testing.assert_array_equal(
        load(tmp_path / "m", kernel=Steeper(1.0)).predict(X), model.predict(X)
    )
    KernelRegressor(kernel=kernels.Laplacian(1.0), ridge=0.1).fit(X, y).save(tmp_path / "stored")
    with pytest.raises(InputError, match="kernel stored"):
        load(tmp_path / "stored", kernel=Steeper(1.0))


def test_saving_again_replaces_but_never_overwrites_something_else(tmp_path):
    model = KernelRegressor(kernel=kernels.Laplacian(1.0), ridge=0.1).fit(X, y)
    model.save(tmp_path / "m")
    model.save(tmp_path / "m")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for place in ("thesis", "file"):
        with pytest.raises(InputError, match="not a kernelmill model"):
            model.save(tmp_path / place)
    assert (tmp_path / "thesis" / "chapter1.txt").read_text() == "years of work"


@pytest.fixture
def folder(tmp_path):
    KernelRegressor(kernel=kernels.Laplacian(1.0), ridge=0.1).fit(X, y).save(tmp_path / "m")
    return tmp_path / "m"


def edit(folder, change):
    content = json.loads((folder / "model.json").read_text())
    change(content)
    (folder / "model.json").write_text(json.dumps(content))


def test_missing_and_foreign_folders(tmp_path, folder):
    with pytest.raises(ModelFileError, match=r"it has no model\.json"):
        load(tmp_path / "nowhere")
    (folder / "model.json").write_text("{}")
    with pytest.raises(ModelFileError, match="not written by kernelmill"):
        load(folder)
    (folder / "model.json").write_text("{ half")
    with pytest.raises(ModelFileError, match="damaged"):
        load(folder)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused(folder, version):
    edit(folder, lambda content: content.update(version=version))
    with pytest.raises(ModelFileError, match=rf"format version {version!r}.*reads 1; upgrade"):
        load(folder)


def test_damaged_weights(folder):
    path = folder / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match="checksum"):
        load(folder)
    path.unlink()
    with pytest.raises(ModelFileError, match="no readable weights"):
        load(folder)


def test_missing_parts(folder):
    whole = json.loads((folder / "model.json").read_text())
    for key in whole:
        rest = {name: value for name, value in whole.items() if name != key}
        (folder / "model.json").write_text(json.dumps(rest))
        with pytest.raises(ModelFileError):
            load(folder)
    for key in whole["extra"]["fitted"]:
        rest = copy.deepcopy(whole)
        del rest["extra"]["fitted"][key]
        (folder / "model.json").write_text(json.dumps(rest))
        with pytest.raises(ModelFileError, match="damaged"):
            load(folder)


def test_mutated_descriptions_end_in_one_error(folder):
    """Whatever stands in model.json: a model or a ModelFileError, never another exception."""
    original = (folder / "model.json").read_bytes()
    g = np.random.default_rng(1)
    for _ in range(300):
        data = bytearray(original)
        for _ in range(g.integers(1, 6)):
            data[g.integers(len(data))] = g.integers(32, 127)
        (folder / "model.json").write_bytes(data)
        with contextlib.suppress(ModelFileError, InputError):
            load(folder)


def test_loading_runs_no_code(folder, tmp_path):
    """Names in the file are looked up in tables; anything else is an error, not an import."""
    for spec in (
        {"$kernel": "os.system", "settings": {}},
        {"$kernel": "laplacian", "settings": {"__class__": "x"}},
        "laplacian",
        None,
    ):
        edit(folder, lambda content, spec=spec: content.update(kernel=spec))
        with pytest.raises(ModelFileError):
            load(folder)
    edit(
        folder,
        lambda content: content.update(
            kernel={"$kernel": "laplacian", "settings": {"bandwidth": 1.0}}
        ),
    )
    edit(folder, lambda content: content["extra"].update(estimator="Popen"))
    with pytest.raises(ModelFileError):
        load(folder)
    shutil.rmtree(folder)
