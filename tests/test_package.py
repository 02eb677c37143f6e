"""The project around the library: wheel and sdist import, the README's examples run, no word of a
machine in any file.
"""

import inspect
import os
import pydoc
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kernelmill import KernelClassifier, KernelRegressor, kernels, losses, solvers
from kernelmill.cli import app
from kernelmill.cli.console import EXIT_CODES
from kernelmill.estimators.evaluation import Evaluation

ROOT = Path(__file__).parent.parent


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```python" in path.read_text()
]
CONSOLE = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```console" in path.read_text()
]


def some_slow(pages: list[Path], *slow: str) -> list:
    return [
        pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in slow else ())
        for page in pages
    ]


@pytest.mark.parametrize(
    "page",
    some_slow(
        PAGES,
        "data.md",
        "embeddings.md",
        "metrics.md",
        "production.md",
        "columns.md",
        "export.md",
        "index.md",  # the README's
    ),
)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    for block in code_blocks(page):  # one after the other, as a reader would type them
        exec(compile(block, str(page), "exec"), scope)


@pytest.mark.parametrize("page", some_slow(CONSOLE, "cli.md", "metrics.md", "index.md"))
def test_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    g = np.random.default_rng(0)
    for name, n in (("homes.csv", 900), ("sold-homes.csv", 200), ("new-homes.csv", 200)):
        size, rooms, district = (
            g.normal(100, 30, n),
            g.integers(1, 6, n),
            g.choice(["north", "south", ""], n),
        )
        price = 1000 * size * (1 + 0.3 * (district == "north")) + 5000 * rooms
        rows = [
            f"{a:.1f},{b},{c},{d:.0f}"
            for a, b, c, d in zip(size, rooms, district, price, strict=True)
        ]
        Path(name).write_text("\n".join(["size,rooms,district,price", *rows]) + "\n")
    text = page.read_text()
    for number, block in enumerate(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)):
        Path(
            re.match(r"# (\S+)", block)[1] if block.startswith("# ") else f"{number}.toml"
        ).write_text(block)
    lines = [
        line[2:]
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL)
        for line in block.splitlines()
    ]
    assert lines
    for line in lines:
        words = line.split()
        assert words.pop(0) == "kernelmill"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, f"{line}: {done.output}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("from_a_file.py", "pyarrow"),
        ("head_on_embeddings.py", "torch"),
        ("autogluon_model.py", "autogluon.tabular"),  # in no extra: it pins many packages
    ],
)
def test_the_examples_run(name, needs, tmp_path):
    pytest.importorskip(needs)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout and not list(tmp_path.iterdir()), done.stderr


GALLERY = sorted((ROOT / "examples" / "gallery").glob("*.py"))


@pytest.mark.parametrize(
    "example",
    some_slow(
        GALLERY, "bands.py", "boundaries.py", "calibration.py", "dirty_csv.py", "importance.py"
    ),
)
def test_the_gallery_draws_its_pictures(example, tmp_path):
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [f"{example.stem}.png"]


def test_the_gallery_shows_every_example():
    page = (ROOT / "docs" / "gallery.md").read_text()
    assert len(GALLERY) >= 6
    for example in GALLERY:
        picture = ROOT / "docs" / "pictures" / "gallery" / f"{example.stem}.png"
        assert picture.stat().st_size < 150_000
        assert f"(pictures/gallery/{picture.name})" in page
        assert f"examples/gallery/{example.name}" in page


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "examples" / "tour.ipynb", as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert any(
        "image/png" in output.get("data", {})
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )


def test_errors_of_the_faq_are_those_of_the_library():
    source = " ".join(path.read_text() for path in (ROOT / "src" / "kernelmill").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # messages that go over several lines
    messages = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "faq.md").read_text(), re.MULTILINE)
    assert len(messages) > 8
    assert [message for message in messages if message not in source] == []


def test_exit_codes_of_the_page_are_those_of_the_command():
    page = (ROOT / "docs" / "cli.md").read_text()
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning}" in page


def test_wheel_and_sdist_are_complete(tmp_path):
    def run(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)

    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), ".")
    wheel, sdist = next(tmp_path.glob("*.whl")), next(tmp_path.glob("*.tar.gz"))
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    names = zipfile.ZipFile(wheel).namelist()
    modules = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "kernelmill").rglob("*.py")
    }
    templates = {
        f"kernelmill/report/{name}" for name in ("page.html.j2", "page.css", "charts.svg.j2")
    }
    assert modules | templates | {"kernelmill/py.typed"} <= set(names) and any(
        name.endswith("LICENSE") for name in names
    )
    assert sdist.stat().st_size > 10_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import kernelmill; print(kernelmill.__file__); kernelmill.KernelRegressor(kernel='linear',"
        " ridge=1.0).fit([[1.0], [2.0]], [1, 2])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "site") in done.stdout


def test_importing_is_quiet_and_sets_nothing_global():
    code = (
        "import torch, numpy; a = torch.get_num_threads(), torch.get_default_dtype(),"
        " torch.initial_seed();import kernelmill; assert a == (torch.get_num_threads(),"
        " torch.get_default_dtype(), torch.initial_seed())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("before", "set_by_user", "spins"),
    [("", {}, "1000"), ("", {"OMP_WAIT_POLICY": "active"}, None), ("import torch\n", {}, None)],
)
def test_waiting_threads_soon_sleep_unless_somebody_said_otherwise(before, set_by_user, spins):
    code = before + "import os, kernelmill; print(os.environ.get('GOMP_SPINCOUNT'))"
    asked = {**os.environ, **set_by_user}
    for name in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} - set(set_by_user):
        asked.pop(name, None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=asked)
    assert done.stdout.strip() == str(spins)


def test_it_runs_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import numpy, kernelmill\n"
        "from kernelmill.ops.product import fused\n"
        "assert fused is None\n"
        "X = numpy.random.default_rng(0).normal(size=(300, 3))\n"
        "model = kernelmill.KernelRegressor(solver='eigenpro4', n_centers=50).fit(X, X[:, 0])\n"
        "assert model.score(X, X[:, 0]) > 0.9\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_pages_that_are_promised_exist():
    for page in (
        "NOTATION.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE",
        "docs/algorithm.md",
        "docs/gpu.md",
        "docs/solvers.md",
        "docs/data.md",
        "docs/architecture.md",
        "docs/benchmarks.md",
        "CITATION.cff",
        "SECURITY.md",
    ):
        assert (ROOT / page).stat().st_size > 500
    notation = (ROOT / "NOTATION.md").read_text()
    for born in set(re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", notation)):
        assert (ROOT / "src" / "kernelmill" / born).exists(), born


@pytest.mark.parametrize("estimator", [KernelClassifier, KernelRegressor])
def test_every_argument_of_an_estimator_is_documented(estimator):
    parameters = estimator.__doc__.split("Parameters\n")[1].split("Attributes\n")[0]
    documented = re.findall(r"^ {4}(\w+) : ", parameters, re.MULTILINE)
    assert sorted(documented) == sorted(inspect.signature(estimator).parameters)


def listed_in_the_reference() -> list[tuple[str, object]]:
    text = (ROOT / "docs" / "api.md").read_text()
    paths = re.findall(r"^::: (\S+)", text, re.MULTILINE)
    return [(path, pydoc.locate(path)) for path in paths]


def parameters_with_a_sentence(entry: object) -> list[str]:
    section = inspect.getdoc(entry).partition("Parameters\n---")[2].split("\nAttributes\n---")[0]
    found = re.findall(r"^(\*{0,2}\w+(?:, \w+)*)(?: : .+)?\n {4}\S", section, re.MULTILINE)
    return sorted(name.strip("*") for names in found for name in names.split(", "))


@pytest.mark.parametrize(
    "entry", [pytest.param(entry, id=path) for path, entry in listed_in_the_reference()]
)
def test_every_parameter_in_the_reference_has_a_sentence(entry):
    if inspect.isclass(entry) and issubclass(entry, (Exception, Evaluation)):
        return  # nobody makes one
    assert parameters_with_a_sentence(entry) == sorted(inspect.signature(entry).parameters)


METHODS = [
    "fit",
    "partial_fit",
    "predict",
    "score",
    "explain",
    "novelty",
    "save",
    "to_onnx",
    "add_centers",
    "set_params",
    "about",
]


@pytest.mark.parametrize(
    "method",
    [
        *(getattr(KernelRegressor, name) for name in METHODS),
        *(getattr(KernelClassifier, name) for name in METHODS),
        KernelClassifier.predict_proba,
        KernelClassifier.predict_log_proba,
        KernelClassifier.decision_function,
    ],
    ids=lambda method: method.__qualname__,
)
def test_every_parameter_of_a_method_has_a_sentence(method):
    wanted = sorted(set(inspect.signature(method).parameters) - {"self"})
    assert parameters_with_a_sentence(method) == wanted


def test_the_layers_of_contributing_are_those_that_are_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    (listed,) = re.findall(r"```text\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert listed.splitlines() == [layer.replace("kernelmill.", "") for layer in layers]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "README.md"])
def test_paths_that_a_page_names_exist(page):
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:src|tests|benchmarks|docs|reproduce)/[\w./]*\w)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []
    inside = re.findall(r"`((?:\w+/)?\w+\.py)`", (ROOT / "docs/architecture.md").read_text())
    assert [path for path in inside if not (ROOT / "src" / "kernelmill" / path).exists()] == []


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("deploy", "production.md"),
        ("production", "production.md"),
        ("metric", "metrics.md"),
        ("importance", "importance.md"),
        ("AUC", "metrics.md"),
        ("GridSearchCV", "metrics.md"),
        ("categories", "columns.md"),
        ("calibrated", "sure.md"),
    ],
)
def test_what_people_search_for_is_on_a_fitting_page(word, page):
    assert word in (ROOT / "docs" / page).read_text()


def test_every_page_is_in_the_menu():
    menu = (ROOT / "mkdocs.yml").read_text()
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if f": {page}\n" not in menu] == []


def test_no_line_of_a_page_is_very_long():
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]:
        assert [line[:60] for line in page.read_text().splitlines() if len(line) >= 500] == [], (
            page.name
        )


def test_the_reference_lists_every_entry_of_the_registries():
    text = (ROOT / "docs" / "api.md").read_text()
    entries = [
        f"kernelmill.{room}.{kind.__name__}"
        for room, named in (
            ("kernels", kernels.NAMED),
            ("solvers", solvers.NAMED),
            ("losses", losses.NAMED),
        )
        for kind in named.values()
    ]
    assert [entry for entry in entries if f"::: {entry}\n" not in text] == []


def test_solvers_that_must_not_know_each_other_are_all_there():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    apart = next(c["modules"] for c in contracts["contracts"] if c["type"] == "independence")
    homes = {kind.__module__ for kind in solvers.NAMED.values()}
    assert homes == set(apart)
