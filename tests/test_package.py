"""The project around the library: wheel and sdist import, the README's examples run, no word of a machine in any file."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/data.md"])
def test_examples_of_the_readme_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = code_blocks(ROOT / page)
    assert blocks
    scope: dict = {}
    for block in blocks:  # one after the other, as a reader would type them
        exec(compile(block, page, "exec"), scope)


def test_wheel_and_sdist_are_complete(tmp_path):
    run = lambda *command: subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)  # noqa: E731
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), ".")
    wheel, sdist = next(tmp_path.glob("*.whl")), next(tmp_path.glob("*.tar.gz"))
    names = zipfile.ZipFile(wheel).namelist()
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "kernelmill").rglob("*.py")}
    assert modules <= set(names) and "kernelmill/py.typed" in names and any(name.endswith("LICENSE") for name in names)
    assert sdist.stat().st_size > 10_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import kernelmill; print(kernelmill.__file__); kernelmill.KernelRegressor(kernel='linear', ridge=1.0).fit([[1.0], [2.0]], [1, 2])"
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
        "import torch, numpy; a = torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed();"
        "import kernelmill; assert a == (torch.get_num_threads(), torch.get_default_dtype(), torch.initial_seed())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
    ):
        assert (ROOT / page).stat().st_size > 500
    notation = (ROOT / "NOTATION.md").read_text()
    for born in set(re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", notation)):
        assert (ROOT / "src" / "kernelmill" / born).exists(), born
