"""New data beside those of the training: `kernelmill check`, and how far rows are from them."""

import json
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from kernelmill import Columns, InputError, KernelClassifier, KernelRegressor, load
from kernelmill.cli import app
from kernelmill.data import opened
from kernelmill.data.drift import Oddity, oddities
from kernelmill.data.tables import spread
from kernelmill.distributed.threads import run_threads
from kernelmill.kernels import ArcCosine, Gaussian, Laplacian, Sum
from kernelmill.novelty import nearest, novelty

g = np.random.default_rng(0)
N = 300
FRAME = pd.DataFrame(
    {
        "size": g.normal(50, 10, N),
        "gaps": np.where(g.random(N) < 0.1, np.nan, g.normal(size=N)),
        "kind": g.choice(["u", "v", "w"], N),
        "when": pd.date_range("2020-01-01", periods=N),
    }
)
TARGET = FRAME["size"] / 10 + (FRAME["kind"] == "u")
QUICK = {"kernel": Laplacian(3.0), "ridge": 0.1, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def model():
    return KernelRegressor(**QUICK).fit(FRAME, TARGET)


def odd(model, frame):
    return {(o.column, o.what): o for o in oddities(model.encoder_, opened(frame, 0))}


def test_the_training_rows_are_not_odd(model):
    assert not any(o.share > 0 for o in odd(model, FRAME).values())


def test_what_is_odd_is_told_with_its_share(model):
    rows = FRAME.copy()
    rows.loc[:29, "size"] = 1e4
    rows.loc[:59, "kind"] = "other"
    rows.loc[:89, "gaps"] = np.nan
    found = odd(model, rows.drop(columns="when"))
    assert found["when", "is not there"].share == 1
    assert found["kind", "was never seen in training"].share == 0.2
    assert found["kind", "was never seen in training"].example == "other"
    (outside,) = [o for (name, what), o in found.items() if "outside" in what]
    assert (outside.column, outside.share, outside.example) == ("size", 0.1, "10000")
    missing = found["gaps", "is missing more often than in training"].share
    assert missing == pytest.approx(rows["gaps"].isna().mean() - FRAME["gaps"].isna().mean())
    unreadable = odd(model, FRAME.assign(size="big"))
    assert any("cannot be read" in what for _, what in unreadable)


@pytest.mark.parametrize("gone", [0.0, 0.03])
def test_texts_whose_numbers_cannot_be_read_are_odd(gone, tmp_path, monkeypatch):
    """Up to 5 % of them were so in training too; predict says it of few rows too."""
    monkeypatch.chdir(tmp_path)
    area = pd.Series([f"{v:.2f} m²" for v in FRAME["size"]])
    area[: int(gone * N)] = "large"
    rows = FRAME.assign(size=area)
    model = KernelRegressor(**QUICK).fit(rows, TARGET)
    assert not any(o.share > 0 for o in odd(model, rows).values())
    other = rows.assign(size=area.str.replace("m²", "sqm"))
    found = odd(model, other)["size", "is not written as in the training"]
    assert (found.share, found.much) == (pytest.approx(1 - gone), True)
    assert found.example in ("large", other["size"][0])
    model.save("m")
    other.to_csv("other.csv", index=False)
    assert "is not written as in the training" in typed("check", "m", "other.csv", code=9)
    for few in (other.iloc[20:21], pd.concat([other.iloc[20:24], rows.iloc[20:24]])):
        with pytest.warns(UserWarning, match=r"sqm', are not written as in the training data"):
            model.predict(few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(pd.concat([other.iloc[20:24], rows.iloc[20:25]]))


@pytest.mark.parametrize(
    "kernel", [Laplacian(2.0), Gaussian(2.0), ArcCosine(1.0), Sum([Laplacian(2.0), Gaussian(1.0)])]
)
def test_novelty_is_the_distance_in_the_kernel_s_space(kernel):
    X = g.normal(size=(60, 3))
    model = KernelRegressor(**{**QUICK, "kernel": kernel}).fit(X, X[:, 0])
    new = np.concatenate([X[:5], g.normal(size=(5, 3)), 40 + g.normal(size=(5, 3))])
    Z, A = model.model_.Z.double(), torch.from_numpy(new)
    K, own, diagonal = kernel(A, Z), kernel(Z), kernel(A).diagonal()
    size = own.diagonal().sqrt()
    cos = K / size / diagonal.sqrt()[:, None]
    want = (2 - 2 * cos.max(1).values).clamp(min=0).sqrt()
    np.testing.assert_allclose(nearest(model.model_, A).numpy(), want, atol=2e-4)
    found = model.novelty(new)
    assert found[:5].max() < 0.05 and found.shape == (15,)
    if kernel.translation_invariant:
        assert found[10:].min() > 1.0 > np.median(model.novelty(X + 1e-3))


def test_rows_like_those_of_the_training_are_seldom_far():
    X, new = g.normal(size=(2000, 4)), g.normal(size=(2000, 4))
    model = KernelClassifier(**QUICK).fit(X, X[:, 0] > 0)
    assert 0.001 < (model.novelty(new) > 1).mean() < 0.05
    assert (model.novelty(new * 10) > 1).mean() > 0.8


def test_ranks_find_the_same():
    X = g.normal(size=(400, 3)).astype(np.float32)
    new = g.normal(size=(20, 3)).astype(np.float32)
    settings = dict(solver="eigenpro4", n_centers=101, epochs=1, random_state=0, device="cpu")

    def work(comm):
        model = KernelRegressor(kernel=Laplacian(3.0), **settings)
        model._join = lambda X: comm
        model.fit(X, X[:, 0])
        features = torch.from_numpy(new)
        found = nearest(model.model_, features), novelty(model.model_, features)
        return [part.numpy() for part in found]

    alone, usual = run_threads(1, work)[0]
    for distance, far in run_threads(2, work):
        np.testing.assert_allclose(distance, alone, atol=1e-5)
        np.testing.assert_allclose(far, usual, rtol=0.2)  # by half of the centers


def typed(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if "--json" in words else result.output


def test_the_usual_distance_is_found_once(monkeypatch):
    module = sys.modules["kernelmill.novelty"]
    X = g.normal(size=(100, 3))
    model = KernelRegressor(**QUICK).fit(X, X[:, 0])
    found, looked_at = model.novelty(X), []
    inner = module.nearest

    def nearest(model, X, own=None):
        looked_at.append(own)
        return inner(model, X, own)

    monkeypatch.setattr(module, "nearest", nearest)
    np.testing.assert_array_equal(model.novelty(X), found)
    assert looked_at == [None]  # the rows alone, no centers
    other = KernelRegressor(**QUICK).fit(10 * X, X[:, 0])
    other.novelty(X)
    assert len(looked_at) == 3


def test_the_command(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("m")
    FRAME.assign(more=1).to_csv("same.csv", index=False)
    FRAME.assign(kind="z", size=FRAME["size"] * 100).to_csv("other.csv", index=False)
    FRAME.drop(columns="size").to_csv("short.csv", index=False)
    said = typed("check", "m", "same.csv")
    assert "The data look like those of the training" in said and "Not used: 'more'" in said
    said = typed("check", "m", "other.csv", code=9)
    assert "never seen" in said and "outside" in said and "far from" in said
    assert "The data have changed: 3 of these concern 5 % of the rows or more." in said
    found = typed("check", "m", "short.csv", "--json", code=9)
    assert {"column": "size", "what": "is not there", "share": 1.0} in found["odd"]
    assert found["far"] is None and found["rows"] == N
    assert typed("check", "m", "other.csv", "--json", code=9)["far"] > 0.9
    again = load("m")
    np.testing.assert_array_equal(again.novelty("same.csv"), model.novelty(FRAME))


@pytest.mark.parametrize(
    ("rows", "odd", "much", "unsure"),
    [
        (1, 1, False, True),
        (2, 1, False, True),
        (2, 2, True, False),
        (10, 3, False, True),
        (10, 4, True, False),
        (100, 4, False, False),
        (100, 11, False, True),
        (100, 12, True, False),
        (20_000, 1000, False, True),
        (20_000, 1200, True, False),
    ],
)
def test_a_handful_of_rows_may_be_chance(rows, odd, much, unsure):
    from scipy.stats import binom

    found = Oddity("c", "was never seen in training", odd / rows, rows=rows)
    assert (found.much, found.unsure) == (much, unsure)
    assert found.chance == pytest.approx(binom.sf(odd - 1, rows, 0.05))
    missing = Oddity("c", "is missing", odd / rows - 0.01, rows=rows, usual=0.01)
    assert missing.chance == pytest.approx(binom.sf(odd - 1, rows, 0.06))
    assert not Oddity("c", "is missing", 0.05, rows=rows, usual=0.95).much
    assert Oddity("c", "is not there", 1.0, stops=True).much


def test_the_command_says_where_rows_are_too_few(tmp_path, model, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("m")
    few = FRAME[:5].copy()
    few.loc[0, "kind"] = "other"
    few.to_csv("few.csv", index=False)
    said = typed("check", "m", "few.csv")
    assert "may be chance: 5 rows are too few to tell" in " ".join(said.split())
    found = typed("check", "m", "few.csv", "--json")
    assert (found["much"], found["unsure"]) == (0, 1)
    FRAME[:5].assign(kind="other").to_csv("few.csv", index=False)
    assert "have changed" in typed("check", "m", "few.csv", code=9)


def test_a_matrix_has_no_columns_but_rows(tmp_path):
    X = g.normal(size=(200, 3)).astype(np.float32)
    model = KernelRegressor(**QUICK).fit(X, X[:, 0])
    model.save(tmp_path / "m")
    np.save(tmp_path / "x.npy", X + 50)
    found = typed("check", tmp_path / "m", tmp_path / "x.npy", "--json", code=9)
    assert found["far"] == 1.0 and [o["column"] for o in found["odd"]] == ["(rows)"]
    assert (novelty(model.model_, torch.from_numpy(X)) < 1e-2).all()


def test_a_model_of_means_and_hashes_holds_no_training_row(tmp_path):
    """Centers are means of five rows or more, names are hashed: neither a row nor a name of the
    training data is in the folder."""
    rows = FRAME.assign(person=[f"Person{i:04d}Surname" for i in range(N)]).drop(columns="when")
    private = Columns(beyond="hash", one_hot=1)
    settings = {**QUICK, "columns": private, "centers": "kmeans", "n_centers": 30}
    model = KernelRegressor(**settings).fit(rows, TARGET)
    assert model.score(rows, TARGET) > 0.5
    features = model._through(rows, lambda X: X).double()
    Z = model.model_.Z.double()
    assert len(Z) == 30 and torch.cdist(Z, features).min() > 1e-3
    model.save(tmp_path / "m")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "m").iterdir())
    assert b"Person00" not in stored and b"Surname" not in stored
    plain = KernelRegressor(**QUICK).fit(rows, TARGET)
    plain.save(tmp_path / "p")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "p").iterdir())
    assert b"Person0001Surname" in stored  # which is what it avoids
    features = plain._through(rows, lambda X: X).double()
    assert torch.cdist(plain.model_.Z.double(), features).min() < 1e-3
    with pytest.raises(InputError, match="300 centers for 300 rows"):
        KernelRegressor(**QUICK, centers="kmeans").fit(rows, TARGET)


def test_means_are_where_the_rows_are():
    X = np.concatenate([g.normal(c, 0.1, size=(100, 2)) for c in (0.0, 5.0, 10.0)])
    model = KernelRegressor(**{**QUICK, "kernel": Gaussian(1.0)}, centers="kmeans", n_centers=3)
    found = np.sort(model.fit(X, X[:, 0]).model_.Z[:, 0].numpy())
    np.testing.assert_allclose(found, [0, 5, 10], atol=0.1)


def test_serving(tmp_path, model, monkeypatch):
    testing = pytest.importorskip("fastapi.testclient")
    monkeypatch.setenv("KERNELMILL_MODEL", str(tmp_path / "m"))
    monkeypatch.setenv("KERNELMILL_THREADS", str(torch.get_num_threads()))
    model.save(tmp_path / "m")
    from examples.serve import app as served

    with testing.TestClient(served) as client:
        assert client.get("/about").json()["model"] == "KernelRegressor"
        rows = json.loads(FRAME[:3].to_json(orient="records", date_format="iso"))
        answer = client.post("/predict", json={"rows": rows}).json()
        np.testing.assert_allclose(answer["predictions"], model.predict(FRAME[:3]), rtol=1e-6)
        assert max(answer["novelty"]) < 0.1
        far = client.post("/predict", json={"rows": [{"size": 1e5}]}).json()
        assert far["novelty"][0] > 1 and answer["not_used"] == []
        typo = client.post("/predict", json={"rows": [{"sise": 5, "kind": "u"}]}).json()
        assert typo["not_used"] == ["sise"]
        bad = client.post("/predict", json={"rows": [{**rows[0], "size": "huge"}]})
        assert bad.status_code == 422 and "size" in bad.json()["detail"]


def test_rows_are_looked_at_all_over_a_table():
    assert spread(10, 20) == [(0, 10)] and spread(0, 5) == []
    runs = spread(1000, 100)
    assert len(runs) == 20 and runs[0] == (0, 5) and runs[-1] == (995, 1000)
    X = g.normal(size=(30_000, 2))
    model = KernelRegressor(**QUICK, n_centers=200, solver="falkon").fit(
        pd.DataFrame(X[:2000], columns=["a", "b"]), X[:2000, 0]
    )
    later = pd.DataFrame(X, columns=["a", "b"])
    later.loc[15_000:, "a"] += 50
    assert abs(model.share_of_far_rows(later, 2000) - (model.novelty(later) > 1).mean()) < 0.06


def test_frames_for_models_of_arrays():
    X = g.normal(size=(100, 3))
    model = KernelRegressor(**QUICK).fit(X, X[:, 0])
    frame = pd.DataFrame(X, columns=list("abc"))
    np.testing.assert_array_equal(model.predict(frame), model.predict(X))
    model.partial_fit(frame, X[:, 0])
    assert model.rows_seen_ == 200 and model.held_out_ is None and model.origin_["rows"] == 200


def test_settings_of_a_run_are_nobody_s_business(tmp_path):
    X = g.normal(size=(200, 2))
    model = KernelRegressor(**QUICK, checkpoint=tmp_path / "run", centers=X[:9]).fit(X, X[:, 0])
    said = json.dumps(model.about())
    assert str(tmp_path) not in said and "array of shape (9, 2)" in said


def test_a_file_without_rows_is_a_sentence(tmp_path, model):
    model.save(tmp_path / "m")
    FRAME[:0].to_csv(tmp_path / "none.csv", index=False)
    assert "RecursionError" not in typed("predict", tmp_path / "m", tmp_path / "none.csv",
                                         "--out", tmp_path / "p.csv")  # fmt: skip
