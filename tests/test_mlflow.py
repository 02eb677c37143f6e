"""Models in MLflow, against the real package: a store of files, and models of every kind."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kernelmill.mlflow as flavour
from kernelmill import InputError, KernelClassifier, KernelRegressor, ModelFileError, kernels, load

mlflow = pytest.importorskip("mlflow")

g = np.random.default_rng(0)
X = g.normal(size=(300, 3))
FRAME = pd.DataFrame(
    {
        "size": g.normal(100, 30, 300),
        "district": g.choice(["north", "south", "west"], 300),
        "built": pd.to_datetime("2020-01-01") + pd.to_timedelta(g.integers(0, 900, 300), "D"),
    }
)
FRAME.loc[::10, "size"] = np.nan
FRAME.loc[::7, "district"] = None
PRICE = FRAME["size"].fillna(100) * (1 + (FRAME["district"] == "north"))


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    mlflow.set_registry_uri((tmp_path / "runs").as_uri())
    mlflow.set_experiment("models")  # not that of another test's store
    yield
    while mlflow.active_run():
        mlflow.end_run()


@pytest.fixture(scope="module")
def prices():
    return KernelRegressor(kernel=kernels.Laplacian(3.0), ridge=0.1).fit(FRAME, PRICE)


@pytest.fixture(scope="module")
def signs():
    labels = np.where(X[:, 0] > 0, "up", "down")
    return KernelClassifier(kernel=kernels.Laplacian(3.0), ridge=0.1).fit(X, labels)


def test_a_model_of_a_table_with_texts_comes_back_and_is_served(prices, tmp_path):
    flavour.save_model(prices, tmp_path / "homes", input_example=FRAME[:5])
    again = flavour.load_model(tmp_path / "homes")
    np.testing.assert_array_equal(again.predict(FRAME), prices.predict(FRAME))
    served = mlflow.pyfunc.load_model(str(tmp_path / "homes"))
    np.testing.assert_array_equal(served.predict(FRAME), prices.predict(FRAME))
    assert served.metadata.get_input_schema().input_names() == ["size", "district", "built"]
    new = FRAME[:3].assign(district=["east", None, "north"])  # a district that is new
    np.testing.assert_array_equal(served.predict(new), prices.predict(new))


def test_a_model_is_logged_registered_and_loaded_by_its_name(signs):
    with mlflow.start_run():
        info = flavour.log_model(signs, name="signs", registered_model_name="signs")
    for uri in (info.model_uri, "models:/signs/1"):
        assert (flavour.load_model(uri).predict(X) == signs.predict(X)).all()
        served = mlflow.pyfunc.load_model(uri)
        assert (served.predict(X) == signs.predict(X)).all()
        frame = pd.DataFrame(X, columns=["a", "b", "c"])  # as a server makes one of JSON
        assert (served.predict(frame) == signs.predict(X)).all()
    assert isinstance(served.get_raw_model(), KernelClassifier)


def test_probabilities_are_served_where_they_are_asked_for(signs, tmp_path):
    flavour.save_model(signs, tmp_path / "a", pyfunc_predict_fn="predict_proba")
    found = mlflow.pyfunc.load_model(str(tmp_path / "a")).predict(X)
    np.testing.assert_array_equal(found, signs.predict_proba(X))
    later = mlflow.pyfunc.load_model(
        str(tmp_path / "a"), model_config={"pyfunc_predict_fn": "decision_function"}
    )
    np.testing.assert_array_equal(later.predict(X), signs.decision_function(X))
    with pytest.raises(InputError, match="Did you mean 'predict_proba'"):
        flavour.save_model(signs, tmp_path / "b", pyfunc_predict_fn="predict_probas")
    assert not (tmp_path / "b").exists()


def test_intervals_are_asked_for_by_params(tmp_path):
    model = KernelRegressor(kernel=kernels.Gaussian(2.0), solver="sgpr", n_centers=50)
    model.fit(X, np.sin(X[:, 0]))
    mean, spread = flavour.Served(model, "predict").predict(X, {"return_std": True})
    assert mean.shape == spread.shape == (300,)
    with pytest.raises(InputError, match="KernelRegressor does not have"):
        flavour.save_model(model, tmp_path / "a", pyfunc_predict_fn="predict_proba")


def test_what_is_written_holds_a_model_folder_and_no_pickle(signs, tmp_path):
    flavour.save_model(signs, tmp_path / "a", extra_pip_requirements=["pyarrow"])
    files = {str(p.relative_to(tmp_path / "a")) for p in (tmp_path / "a").rglob("*") if p.is_file()}
    assert files == {
        "MLmodel",
        "conda.yaml",
        "python_env.yaml",
        "requirements.txt",
        "data/model/model.json",
        "data/model/weights.safetensors",
    }
    wanted = (tmp_path / "a" / "requirements.txt").read_text().splitlines()
    names = [re.split("[=<>]", line)[0] for line in wanted]
    assert {"kernelmill", "torch", "scikit-learn", "pandas", "pyarrow"} <= set(names)
    assert (load(tmp_path / "a" / "data" / "model").predict(X) == signs.predict(X)).all()


def test_a_model_of_others_is_refused(tmp_path):
    mlflow.models.Model(flavors={"python_function": {}}).save(tmp_path / "MLmodel")
    with pytest.raises(ModelFileError, match="not a kernelmill model: it has 'python_function'"):
        flavour.load_model(tmp_path)


def test_the_flavour_is_not_taken_for_mlflow():
    assert Path(flavour.__file__).parent.name == "kernelmill"
    assert Path(mlflow.__file__).parent.name == "mlflow"
