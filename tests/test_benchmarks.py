"""The benchmarks: one runner, results with units in their keys, a page that is what they say."""

import inspect
import json
import re
from importlib import import_module

import pytest
import torch

from benchmarks import page, run
from benchmarks.run import BENCHMARKS, RESULTS

SMALL = {
    "agop": "--rows 60 --centers 200 --features 5 --checked-rows 30 --device cpu",
    "auto": "--rows 600 --centers 50 --features 8",
    "cpu": "--rows 64 --centers 128 --features 4 --rounds 2",
    "data": "--rows 4000 --features 4 --centers 50 --epochs 1 --repeats 1",
    "pcg": "--sizes 600x5 --repeat 1 --ridges 1",
    "ranks_memory": "--rows 600 --features 4 --ranks 1 2",
    "ranks_network": "--rows 600 --features 4 --ranks 2",
    "ranks_time": "--rows 600 --features 4 --rounds 1",
    "teacher": "--rows 600 --centers 50 --test-rows 500 --seeds 1 --device cpu",
}
SLOW = ("data", "ranks_memory", "ranks_time")  # several processes, or many fits
STORED = sorted(RESULTS.glob("*.json"))


def keys(value: object) -> set[str]:
    """Every key of nested dictionaries and lists."""
    if isinstance(value, list):
        return set().union(*map(keys, value)) if value else set()
    return set(value) | keys(list(value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_entry_of_the_table_runs_without_options(name):
    module, function = BENCHMARKS[name].cases.split(":")
    cases = getattr(import_module(f"benchmarks.{module}"), function)
    assert all(
        each.default is not inspect.Parameter.empty
        for each in inspect.signature(cases).parameters.values()
    )


def test_what_needs_neither_data_nor_a_gpu_is_run_here():
    assert set(SMALL) == {
        name for name, each in BENCHMARKS.items() if not each.needs_data and not each.needs_gpu
    }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in SMALL]
)
def test_a_small_run_stores_its_rows(name, tmp_path, capsys):
    threads = torch.get_num_threads()
    run.main([name, "--results", str(tmp_path), *SMALL[name].split()])
    torch.set_num_threads(threads)  # the simulated network takes one
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert len(result["runs"]) == 1 and result["runs"][0]["command"].startswith(
        f"python -m benchmarks {name}"
    )
    assert result["rows"] and {row["run"] for row in result["rows"]} == {0}
    stored = json.loads((RESULTS / f"{name}.json").read_text())
    assert keys(result) <= keys(stored) | {"iterations", "note", "rates"}


def test_a_row_that_is_measured_again_replaces_the_old_one(tmp_path):
    path = tmp_path / "some.json"
    for machine, row in (
        ("a", {"d": 1, "seconds": 3.0}),
        ("a", {"d": 2, "seconds": 4.0}),
        ("b", {"d": 1, "seconds": 5.0}),
    ):
        run.store(path, ("d",), {"cpu": machine}, row)
    assert run.read(path)["rows"] == [
        {"d": 2, "seconds": 4.0, "run": 0},
        {"d": 1, "seconds": 5.0, "run": 1},
    ]
    run.store(path, ("d",), {"cpu": "b"}, {"d": 2, "seconds": 6.0})
    assert run.read(path)["runs"] == [{"cpu": "b"}]


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_results_have_machines_and_keys_in_snake_case(path):
    result = json.loads(
        path.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON")
    )
    assert {row["run"] for row in result["rows"]} == set(range(len(result["runs"])))
    assert all({"date", "cpu", "gpu", "torch", "command"} <= set(each) for each in result["runs"])
    assert [key for key in keys(result) if not re.fullmatch(r"[a-z][a-z0-9_]*", key)] == []
    key = BENCHMARKS[path.stem].key
    identities = [tuple(row.get(name) for name in key) for row in result["rows"]]
    assert len(set(identities)) == len(identities)


def test_the_page_and_the_readme_are_what_the_results_say():
    hint = "results changed: run `python -m benchmarks.page`"
    assert page.PAGE.read_text() == page.page(), hint
    assert page.README.read_text() == page.readme(), hint
    assert set(re.findall(r"\{\{ (\w+) \}\}", page.TEXT.read_text())) == {
        part.__name__ for part in page.PARTS
    }
