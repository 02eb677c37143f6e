"""The benchmark on tables: which rows, which codes, which scores, and lines that are not lost."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import bench_tables
from benchmarks.tables import data, summary
from benchmarks.tables.data import Rows, Table, hold_out
from benchmarks.tables.encode import Codes, OneHot, texts
from benchmarks.tables.scores import scores

WORDS = pa.table({"size": [1.0, None, 3.0], "colour": ["red", None, "blue"]})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder with one table of two classes."""
    g = np.random.default_rng(0)
    (tmp_path / "tables").mkdir()
    for part, n in (("train", 320), ("test", 100)):
        x, name = g.normal(size=n), g.choice(["a", "b"], n)
        frame = pa.table({"x": x, "name": name, "target": ((x > 0) ^ (name == "a")).astype(int)})
        pq.write_table(frame, tmp_path / "tables" / f"ring.{part}.parquet")
    monkeypatch.setenv("KERNELMILL_DATA", str(tmp_path))
    return tmp_path


def test_rows_of_a_smaller_share_are_among_those_of_a_larger(folder):
    table = data.TABLES["ring"]
    shares = [set(table.train(share).X["x"].to_pylist()) for share in (1 / 16, 1 / 4, 1)]
    assert [len(share) for share in shares] == [20, 80, 320]
    assert shares[0] < shares[1] < shares[2]


def test_other_cuts_of_a_table_have_rows_to_train_on_and_others_to_test(monkeypatch):
    X = np.zeros((1000, 14))
    X[np.arange(1000), 10 + np.arange(1000) % 4] = 1
    X[:, 0] = np.arange(1000)
    parts = X[:700], np.arange(700), X[700:], np.arange(700, 1000)
    monkeypatch.setattr(data, "table", lambda name: parts)
    published, area = data.SPLITS["protein-64"], data.SPLITS["covertype-area-2"]
    train, test = published.train(), published.test(None)
    assert (len(train), len(test)) == (640, 200)
    assert not set(train.X[:, 0]) & set(test.X[:, 0])
    assert (test.X[:, 0] == test.y).all()
    train, test = area.train(), area.test(None)
    assert set(test.X[:, 0] % 4) == {2} and set(train.X[:, 0] % 4) == {0, 1, 3}


def test_a_tenth_of_each_class_is_held_out_and_none_of_a_rare_one():
    y = np.repeat([0, 1, 2], [200, 50, 3])
    train, held = hold_out(Rows(np.arange(253.0)[:, None], y, np.arange(3)))
    assert np.bincount(held.y, minlength=3).tolist() == [20, 5, 0]
    assert sorted([*train.X[:, 0], *held.X[:, 0]]) == list(range(253))


def test_a_class_that_was_not_in_training_has_the_number_minus_one(folder):
    assert set(Table("ring", True, "target").test(np.array([1, 5])).y) == {-1, 0}


def test_codes_are_of_training_names_and_nan_where_missing_or_new():
    new = pa.table({"size": [2.0, 4.0], "colour": ["blue", "green"]})
    np.testing.assert_array_equal(
        Codes.learn(WORDS).matrix(WORDS), [[1, 0], [np.nan, np.nan], [3, 1]]
    )
    np.testing.assert_array_equal(Codes.learn(WORDS).matrix(new), [[2, 1], [4, np.nan]])


def test_one_hot_has_standardised_numbers_a_flag_for_gaps_and_zeros_for_no_name():
    numbers, colours = OneHot.learn(WORDS).blocks(WORDS)
    np.testing.assert_array_equal(numbers, [[-1, 0], [0, 1], [1, 0]])
    np.testing.assert_array_equal(colours, [[1, 0], [0, 0], [0, 1]])


def test_texts_are_bytes_beside_float32():
    numbers, words = texts(WORDS)
    np.testing.assert_array_equal(numbers, np.float32([[1], [np.nan], [3]]))
    assert words[:, 0].tolist() == [b"red", b"", b"blue"]


def test_scores_of_classes_and_of_numbers():
    P = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    found = scores(Rows(P, np.array([0, 1, 1, -1]), np.array([3, 4])), P)
    assert found["error_percent"] == 50 and found["unknown_class_rows"] == 1
    assert found["log_loss"] == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())
    assert found["auc"] == 1
    y = np.array([0.0, 2.0])
    assert scores(Rows(P, y, None), np.ones(2)) == {"rmse_over_deviation": 1.0}


def line(table, method, score, fraction=1.0, **more):
    return {
        "table": table,
        "method": method,
        "fraction": fraction,
        "device": "cpu",
        "test_rows": 1000,
        **score,
        **more,
    }


def test_counts_against_the_best_of_the_peers():
    rows = [
        line("a", "kernelmill", {"error_percent": 2.0, "log_loss": 0.10}),
        line("a", "lightgbm", {"error_percent": 3.0, "log_loss": 0.09}),
        line("a", "hist", {"error_percent": 2.5, "log_loss": 0.20}),
        line("b", "kernelmill", {"rmse_over_deviation": 0.1004}),
        line("b", "catboost", {"rmse_over_deviation": 0.1}),
        line("c", "kernelmill", {"rmse_over_deviation": 0.33}),
        line("c", "catboost", {"rmse_over_deviation": 0.3}, stopped="limit"),
        line("c", "catboost-tuned", {"rmse_over_deviation": 0.4}),
        line("d", "catboost", {"rmse_over_deviation": 0.3}),
        line("hotel", "kernelmill", {"error_percent": 3.0, "log_loss": 0.1}),
        line("hotel", "kernelmill", {"error_percent": 6.0, "log_loss": 0.1}, 0.0625),
    ]
    found = summary.counts(rows, [line("b", "kernelmill", {"rmse_over_deviation": 0.09})])
    assert (found["tables"], found["ahead_or_near"]) == (3, 2)
    assert found["behind_percent"] == {"c": 10.0}
    assert (found["classifications"], found["log_loss_behind"]) == (1, ["a"])
    assert (found["tuned_tables"], found["tuned_ahead"]) == (1, 1)
    assert found["falls"] == {"hotel": {"kernelmill": 2.0}}
    assert found["worse_than_before_percent"] == {"b": 11.56}
    text = summary.page(rows, [])
    assert "-20.0 % (-5 rows)" in text and "0.3000!" in text and "c catboost 1" in text


def test_a_finished_fit_is_a_line_and_is_not_fitted_again(folder, tmp_path, capsys, monkeypatch):
    out, words = tmp_path / "lines.jsonl", ["--tables", "ring", "--methods", "hist", "--threads=1"]
    bench_tables.main([*words, "--fractions", "1", "0.25", "--out", str(out)])
    first = out.read_text()
    rows = [json.loads(each) for each in first.splitlines()]
    assert [row["rows"] for row in rows] == [320, 80] and rows[0]["error_percent"] < 20
    assert rows[0]["machine"]["torch"] and "method=hist" in capsys.readouterr().out
    bench_tables.main([*words, "--fractions", "1", "0.25", "--out", str(out)])
    assert out.read_text() == first
    monkeypatch.setattr(bench_tables, "STORED", tmp_path / "tables.json")
    bench_tables.main(["--table", str(out), "--store"])
    stored = json.loads((tmp_path / "tables.json").read_text())
    assert len(stored["runs"]) == 1 and [row["run"] for row in stored["rows"]] == [0, 0]


def test_a_fit_that_takes_too_long_has_a_line_without_a_score(folder):
    means = bench_tables.Means("cpu", 1, 1e-9, 3000)
    (row,) = bench_tables.measure(["ring"], ["hist-tuned"], [1.0], means, done=())
    assert row["stopped"] == "no model in time" and "error_percent" not in row
