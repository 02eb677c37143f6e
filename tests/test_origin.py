"""What a model says of itself: its columns, where it comes from, how good it was on rows it did not
see."""

import json
import warnings

import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.metrics import balanced_accuracy_score, log_loss, r2_score

from kernelmill import KernelClassifier, KernelRegressor, load
from kernelmill.data.account import Account
from kernelmill.kernels import Laplacian
from kernelmill.version import __version__

g = np.random.default_rng(0)
N = 300
X = g.normal(size=(N, 2))
TARGET = np.sin(X[:, 0]) + X[:, 1] + 0.1 * g.normal(size=N)
QUICK = {"kernel": Laplacian(3.0), "ridge": 0.1, "random_state": 0, "device": "cpu"}
FRAME = pd.DataFrame(
    {
        "a": X[:, 0],
        "b": np.where(X[:, 1] > 1, np.nan, X[:, 1]),
        "kind": g.choice(["u", "v", "w"], N),
        "when": pd.date_range("2020-01-01", periods=N),
        "same": 3,
        "row": np.arange(N),
        "key": [f"k{i:05d}x" for i in range(N)],
        "again": 5 - 2 * TARGET,
        "money": [f"{1000 * abs(v):,.2f}" for v in X[:, 0]],
        "y": TARGET,
    }
)


@pytest.fixture(scope="module")
def model():
    return KernelRegressor(**QUICK).fit(FRAME, "y")


def test_columns_say_what_they_became(model, tmp_path):
    found = {column.name: column for column in model.columns_}
    assert list(found) == [name for name in FRAME if name != "y"]
    assert sum(column.features for column in found.values()) == model.encoder_.d
    assert found["b"].missing == int(FRAME["b"].isna().sum()) and found["b"].features == 2
    assert found["a"].holds == "numbers" and found["a"].notes == []
    assert found["kind"].holds == "texts" and "3 values" in found["kind"].became
    assert found["when"].became == "parts of a date"
    assert found["same"].notes == ["always the same"]
    assert found["row"].notes == found["key"].notes == ["another value in each row: an ID?"]
    assert found["again"].notes == ["almost gives the target away: known when predicting?"]
    assert found["money"].notes == ["written like 1,234.5"] and found["money"].holds == "numbers"
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").columns_ == model.columns_


def test_columns_are_a_table_for_people(model):
    lines = str(model.columns_).splitlines()
    assert lines[0].split() == ["column", "holds", "became", "features", "missing", "note"]
    assert len(lines) == len(FRAME.columns) and repr(model.columns_) == str(model.columns_)
    page = model.columns_._repr_html_()
    assert page.count("<tr>") == len(FRAME.columns) and "<td>kind</td>" in page
    odd = FRAME[["a"]].rename(columns={"a": "<b>\x1b[31m"}).assign(c=X[:, 1])
    account = KernelRegressor(**QUICK).fit(odd, TARGET).columns_
    assert "&lt;b&gt;" in account._repr_html_() and "\x1b" not in str(account)
    many = pd.DataFrame(g.normal(size=(N, 70)), columns=[f"c{i}" for i in range(70)])
    shown = str(KernelRegressor(**QUICK).fit(many, TARGET).columns_).splitlines()
    assert len(shown) == 42 and shown[-1] == "… and 30 more"
    with pytest.raises(AttributeError, match="array, which has no columns"):
        _ = KernelRegressor(**QUICK).fit(X, TARGET).columns_
    assert str(Account()).split()[0] == "column"


@pytest.mark.parametrize("labels", [np.where(TARGET > 0, "p", "n"), np.arange(N) % 3])
def test_a_column_that_tells_the_class_is_said(labels):
    rows = pd.DataFrame({"a": X[:, 0], "code": [f"z{label}" for label in labels]})
    found = {column.name: column.notes for column in KernelClassifier(**QUICK).fit(
        rows, labels
    ).columns_}  # fmt: skip
    assert found["code"] == ["almost gives the target away: known when predicting?"]
    assert found["a"] == []


def test_a_regression_ends_with_a_score_of_rows_it_did_not_see():
    fresh = g.normal(size=(4000, 2))
    truth = np.sin(fresh[:, 0]) + fresh[:, 1] + 0.1 * g.normal(size=4000)
    chosen = KernelRegressor(random_state=0, device="cpu").fit(X, TARGET)
    held = chosen.held_out_
    assert held["rows"] == N and held["how"] == "each kept out in turn"
    assert abs(held["scores"]["r2"] - r2_score(truth, chosen.predict(fresh))) < 0.03
    kept = KernelRegressor(validation_fraction=0.2, **QUICK).fit(X, TARGET).held_out_
    assert kept["rows"] == N // 5 and kept["how"] == "kept out"
    assert kept["scores"].keys() == {"r2", "rmse", "absolute_error"}
    assert kept["scores"]["r2"] > 0.8 and kept["scores"]["rmse"] > 0
    given = KernelRegressor(**QUICK).fit(X, TARGET)  # where nothing is chosen
    assert given.held_out_["rows"] == N and given.held_out_["how"] == "each kept out in turn"
    assert abs(given.held_out_["scores"]["r2"] - r2_score(truth, given.predict(fresh))) < 0.05


@pytest.mark.parametrize("classes", [2, 4])
def test_classes_end_with_a_score_of_rows_they_did_not_see(classes):
    labels = np.digitize(TARGET, np.quantile(TARGET, np.linspace(0, 1, classes + 1)[1:-1]))
    model = KernelClassifier(**QUICK).fit(X, labels)
    held = model.held_out_
    assert held["rows"] == N and held["how"] == "each kept out in turn"
    assert held["scores"].keys() == {"accuracy", "roc_auc", "log_loss"}
    assert held["scores"]["accuracy"] < model.score(X, labels)
    assert held["scores"]["log_loss"] > log_loss(labels, model.predict_proba(X))
    apart = KernelClassifier(validation_fraction=0.25, **QUICK).fit(X, labels).held_out_
    assert apart["rows"] == N // 4 and apart["how"] == "kept out"
    assert KernelClassifier(**QUICK).fit(X, np.zeros(N)).held_out_ is None


@pytest.mark.parametrize("fraction", [None, 0.5])
def test_held_out_scores_count_rows_and_not_the_weights_of_classes(fraction):
    rng = np.random.default_rng(1)
    x, fresh = rng.normal(size=(2000, 2)), rng.normal(size=(4000, 2))
    # Of the rows beyond .5 fifteen in a hundred: all of them are, by weights of classes.
    labels, truth = ((r[:, 0] > 0.5) & (rng.random(len(r)) < 0.15) for r in (x, fresh))
    settings = {**QUICK, "ridge": 10.0, "class_weight": "balanced"}
    settings["validation_fraction"] = fraction
    model = KernelClassifier(**settings).fit(x, labels)
    recall = balanced_accuracy_score(truth, model.predict(fresh))
    accuracy = model.score(fresh, truth)
    assert abs(accuracy - recall) > 0.05
    held = model.held_out_["scores"]["accuracy"]
    assert abs(held - accuracy) < 0.03
    if fraction is not None:
        assert held == pytest.approx(np.trace(model.confusion_) / model.confusion_.sum())
    weighted = KernelClassifier(**settings).fit(x, labels, 1.0 + 9 * labels)
    assert weighted.held_out_["scores"]["accuracy"] != pytest.approx(held, abs=1e-3)


def test_a_model_says_who_made_it(tmp_path):
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    model = KernelClassifier(**QUICK).fit(tmp_path / "rows.csv", "kind")
    said = model.about()
    assert said["library"] == f"kernelmill {__version__}" and said["data"] == "rows.csv"
    assert said["rows"] == N and said["target"] == "kind" and said["classes"] == ["u", "v", "w"]
    assert said["date"].endswith("Z") and said["seconds"] > 0 and "checksum" in said["fingerprint"]
    assert said["columns"]["when"] == "date" and said["columns"]["a"] == "number"
    assert 0 < said["held_out"]["accuracy"] < 1 and said["settings"]["ridge"] == "0.1"
    assert str(tmp_path) not in json.dumps(said)  # where it lay is nobody's business
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").about() == said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.to_onnx(tmp_path / "m.onnx")
    props = {p.key: p.value for p in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(props["kernelmill"]) == json.loads(json.dumps(said))
    other = KernelClassifier(**QUICK).fit(FRAME.drop(columns="kind"), FRAME["kind"])
    assert other.about()["target"] == "kind" and other.about()["data"] == "the data frame"
    (tmp_path / "rows.csv").write_text((tmp_path / "rows.csv").read_text().replace(",u,", ",v,", 1))
    again = KernelClassifier(**QUICK).fit(tmp_path / "rows.csv", "kind")
    assert again.about()["fingerprint"] != said["fingerprint"]
