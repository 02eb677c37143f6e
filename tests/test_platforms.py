"""Other systems than this one: what only POSIX has is not needed, and the recipe, the workflows and
the image install what pyproject.toml asks for.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from kernelmill.version import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))

# A Windows of its own: modules, functions and a signal that are not there, and folders that
# cannot be opened.
WITHOUT_POSIX = """
import os, signal, sys, warnings
import numpy, sklearn.pipeline, torch
import pyarrow.csv, pyarrow.parquet
sys.modules["fcntl"] = sys.modules["resource"] = None
for name in ("fork", "pread", "preadv", "sysconf", "mkfifo", "getuid"):
    delattr(os, name)
del signal.SIGUSR1
opened = os.open
def open_files(path, *rest, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return opened(path, *rest, **named)
os.open = open_files

import kernelmill
from kernelmill.data.formats import npy
npy.LARGE_MAP = 0
X = numpy.random.default_rng(0).normal(size=(2000, 3))
numpy.save("X.npy", X)
numpy.save("y.npy", X[:, 0])
settings = dict(kernel=kernelmill.kernels.Laplacian(3.0), n_centers=100, solver="eigenpro4",
                epochs=2, random_state=0, memory_budget="1GB", checkpoint="run", resume=True)
model = kernelmill.KernelRegressor(**settings).fit("X.npy", "y.npy")
again = kernelmill.KernelRegressor(**settings).fit("X.npy", "y.npy")
again.save("model")
again.save("model")
loaded = kernelmill.load("model")
assert numpy.allclose(model.predict(X), loaded.predict(X), atol=1e-4)
assert loaded.score(X, X[:, 0]) > 0.9
"""


def test_what_only_posix_has_is_not_needed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_conda_recipe_has_the_dependencies_of_the_project():
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    python, *run = recipe["requirements"]["run"]
    wanted = [re.sub(r"^torch>", "pytorch>", each) for each in PROJECT["dependencies"]]
    assert [each.replace(" ", "") for each in run] == wanted
    assert python.replace("${{ python_min }}", recipe["context"]["python_min"]) == (
        f"python {PROJECT['requires-python']}"
    )
    assert recipe["context"]["version"] == __version__
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {home}" for name, home in PROJECT["scripts"].items()
    ]
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]


def load_workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_the_workflow_runs_every_python_that_is_named_on_every_system():
    matrix = load_workflow("tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS and len(PYTHONS) == 4
    assert [system.split("-")[0] for system in matrix["os"]] == ["ubuntu", "macos", "windows"]


def test_the_workflow_does_what_make_test_does():
    jobs = load_workflow("tests.yml")["jobs"].values()
    steps = {step.get("run") for job in jobs for step in job["steps"]}
    recipes = re.findall(
        r"^(?:test|lint|docs): .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    wanted = re.findall(r"\$\(BIN\)/(.+)", "".join(recipes))
    assert len(wanted) == 5 and set(wanted) <= steps


def test_the_image_is_made_of_files_that_it_is_given():
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    given = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    names = " ".join(copied).split()
    assert sorted(names) == sorted(given) and all((ROOT / name).exists() for name in names)
    assert {PROJECT["readme"], *PROJECT["license-files"], "constraints.txt"} <= set(names)
