"""kernelmill info."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from rich.table import Table

from .console import as_json, command, escape, results
from .options import AsJson, Debug, Model

if TYPE_CHECKING:
    from .. import KernelClassifier, KernelRegressor


class ModelFacts(TypedDict):
    """What there is to know of any fitted model."""

    target: str | None
    kernel: str
    centers: int
    features: int
    solver: str
    ridge: float
    validation_score: float | None


@command
def info(model: Model, json_: AsJson = False, debug: Debug = False) -> None:
    """Show what a model is, and what its columns became."""
    from .. import load
    from ..report import held_out_line

    found = load(model, ranks=1)
    facts = {
        **found.about(),
        **facts_of(found),
        "outputs": found.model_.alpha.shape[1],
        "rows_seen": found.rows_seen_,
        "epochs": found.n_iter_,
        "bytes": sum(path.stat().st_size for path in model.iterdir() if path.is_file()),
    }
    if json_:
        as_json(facts)
        return
    if found.held_out_ is not None:
        facts["held_out"] = held_out_line(found)
    if found.encoder_ is not None:
        del facts["columns"]  # a table of their own is below
    table = Table(title=escape(str(model)), title_justify="left", show_header=False)
    for name, value in facts.items():
        if value is not None and value not in ("", {}):
            table.add_row(name.replace("_", " "), escape(_shown(value)[:400]))
    results().print(table)
    if found.encoder_ is not None:
        results().print(str(found.columns_), markup=False, highlight=False, soft_wrap=True)


def facts_of(estimator: KernelClassifier | KernelRegressor) -> ModelFacts:
    from ..estimators.evaluation import validation_score
    from ..report import kernel_line

    model = estimator.model_
    return {
        "target": estimator._target,
        "kernel": kernel_line(model.kernel),
        "centers": model.n_centers,
        "features": model.Z.shape[1],
        "solver": estimator.plan_.solver,
        "ridge": estimator.ridge_,
        "validation_score": validation_score(estimator),
    }


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value[:20])) + (" …" if len(value) > 20 else "")
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
