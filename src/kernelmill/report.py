"""One HTML file that says what a model is and how it came to be; it needs no network and no script."""

from __future__ import annotations

from html import escape
from importlib import resources
from typing import Any

import torch

from . import charts
from .callbacks import plan_line
from .estimators.scores import validation_score
from .ops import KernelProduct
from .planning import TILE_BYTES

MOST_SHOWN = 40  # classes of which a confusion matrix is drawn
SPECTRUM = 1000  # centers whose kernel matrix is decomposed for the picture
NAMES = {
    "accuracy": "accuracy", "balanced_accuracy": "balanced accuracy", "log_loss": "log loss", "roc_auc": "area under ROC", "r2": "R²",
    "rmse": "RMSE", "mae": "mean absolute error", "largest_error": "largest error", "rows_of_unknown_classes": "rows of unknown classes",
}  # fmt: skip


def spectrum(model: Any) -> list[float]:
    """Eigenvalues of K(Z_s, Z_s)/s for some centers Z_s: what the preconditioner is made of, the largest first."""
    Z = model.Z[: min(len(model.Z), SPECTRUM)].cpu()
    K = KernelProduct(model.kernel, Z.mean(0, dtype=torch.float64), "float64", torch.device("cpu"), TILE_BYTES)
    points = K.points(Z)
    return (torch.linalg.eigvalsh(K.dense(points, points)).flip(0) / len(Z)).clamp(min=0).tolist()


def page(estimator: Any, title: str, evaluation: Any = None, where: str = "") -> str:
    """The report of a fitted estimator; with an evaluation, how good it is on the data it was made from."""
    model, plan, style = estimator.model_, estimator.plan_, (resources.files(__package__) / "report.css").read_text()
    sections = [_cards(estimator, evaluation), _facts(estimator)]
    if evaluation is not None:
        sections.append(_quality(evaluation, where))
    elif (counts := getattr(estimator, "confusion_", None)) is not None and len(counts) <= MOST_SHOWN:
        sections.append(_confusion(counts.tolist(), [str(name) for name in estimator.classes_], "Rows that were kept out of training."))
    sections += [_learning(estimator.history_, plan), _relevance(estimator), _spectrum(model, plan), _timings(estimator)]
    body = "\n".join(section for section in sections if section)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f'<p class="soft">{escape(plan_line(plan))}</p>\n{body}\n</body></html>\n'
    )


def _cards(estimator: Any, evaluation: Any) -> str:
    model = estimator.model_
    cards = {"centers": f"{model.n_centers:,}", "features": f"{model.Z.shape[1]:,}", "rows seen": f"{estimator.rows_seen_:,}"}
    held = validation_score(estimator)
    if evaluation is not None:
        name = next(iter(evaluation.metrics))
        cards = {NAMES.get(name, name): charts.shown(round(evaluation.metrics[name], 4)), **cards}
    elif held is not None:
        cards = {"score on rows kept out": charts.shown(round(held, 4)), **cards}
    seconds = sum(getattr(estimator, "timings_", {}).values())
    if seconds:
        cards["seconds of training"] = charts.shown(round(seconds, 1) or round(seconds, 3))
    return '<div class="cards">' + "".join(f'<div class="card"><b>{v}</b><span>{k}</span></div>' for k, v in cards.items()) + "</div>"


def _table(rows: dict[str, Any]) -> str:
    return "<table>" + "".join(f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in rows.items()) + "</table>"


def kernel_line(kernel: Any) -> str:
    """The kernel in few words: a bandwidth for each feature is a range."""
    width: Any = getattr(kernel, "bandwidth", None)
    if getattr(width, "ndim", 0) == 1:
        return f"{kernel.name}, a bandwidth for each feature, from {float(width.min()):.3g} to {float(width.max()):.3g}"
    return repr(kernel) if getattr(width, "ndim", 0) == 0 else f"{kernel.name}, a matrix of bandwidths"


def _relevance(estimator: Any) -> str:
    """Which features the kernel looks at: their spread among the centers, in bandwidths."""
    model, encoder = estimator.model_, getattr(estimator, "encoder_", None)
    width = getattr(model.kernel, "bandwidth", None)
    if getattr(width, "ndim", 0) != 1:
        return ""
    spread = (model.Z.double().std(0).cpu() / torch.as_tensor(width).double().cpu()).tolist()
    named = getattr(estimator, "feature_names_in_", None)
    names = encoder.names if encoder is not None else list(named) if named is not None else [f"feature {i}" for i in range(len(spread))]
    top = sorted(zip(names, spread, strict=True), key=lambda pair: -pair[1])[:15]
    return (
        "<h2>What the kernel looks at</h2><p class='soft'>The spread of a feature over its bandwidth: the larger, the more it tells rows "
        f"apart.{' The first 15 of ' + str(len(spread)) + '.' if len(spread) > 15 else ''}</p>"
        f"<figure>{charts.bars({str(name)[:26]: round(value, 3) for name, value in top}, '')}</figure>"
    )


def _facts(estimator: Any) -> str:
    model, encoder = estimator.model_, getattr(estimator, "encoder_", None)
    classes = getattr(estimator, "classes_", None)
    rows: dict[str, Any] = {"model": type(estimator).__name__, "kernel": kernel_line(model.kernel), "ridge": f"{estimator.ridge_:.3g}"}
    if classes is not None:
        rows["classes"] = ", ".join(map(str, classes[:20])) + (" …" if len(classes) > 20 else "")
    if encoder is not None:
        rows["columns"] = ", ".join(encoder.inputs[:40]) + (" …" if len(encoder.inputs) > 40 else "")
        for category in encoder.categories:
            rows[f"column {category.name!r}"] = f"{len(category.values) or 'many'} values, {category.how.replace('_', ' ')} encoded"
    return f"<h2>The model</h2>{_table(rows)}"


def _quality(evaluation: Any, where: str) -> str:
    rows = {NAMES.get(name, name): charts.shown(round(value, 5)) for name, value in evaluation.metrics.items()}
    parts = [f"<h2>On {escape(where or 'the data')}</h2>", f'<p class="soft">{evaluation.rows:,} rows.</p>', _table(rows)]
    if evaluation.confusion is not None and len(evaluation.classes) <= MOST_SHOWN:
        parts.append(_confusion(evaluation.confusion.tolist(), evaluation.classes))
    if evaluation.points is not None:
        true, guess = evaluation.points[:, 0].tolist(), evaluation.points[:, 1].tolist()
        both = list(zip(true, guess, strict=True))
        left = [(b, a - b) for a, b in both]
        parts.append(f"<h2>Predicted against true</h2><figure>{charts.scatter(both, 'true', 'predicted', diagonal=True)}</figure>")
        parts.append(f"<h2>Residuals</h2><figure>{charts.scatter(left, 'predicted', 'true − predicted')}</figure>")
    return "\n".join(parts)


def _confusion(counts: list[list[int]], classes: list[str], of: str = "") -> str:
    return (
        f"<h2>Confusion matrix</h2><p class='soft'>{of} True classes in rows, predicted in columns; shades are shares of a row.</p>"
        f"<figure>{charts.matrix(counts, classes)}</figure>"
    )


def _learning(history: list[dict[str, Any]], plan: Any) -> str:
    loss = [(row["rows"] / max(1, plan.n), row["loss"]) for row in history if row.get("loss") is not None and row["rows"]]
    held = [(row["epoch"], row["validation_score"]) for row in history if "validation_score" in row]
    if not loss and len(held) < 2:
        return "<h2>Learning curve</h2><p class='soft'>The solver goes to its solution in one step: there is no curve.</p>"
    name = "epochs" if plan.solver.startswith(("eigenpro", "pegasos", "nytro")) else "iterations"
    parts = ["<h2>Learning curve</h2>"]
    if loss:
        parts.append(f"<figure>{charts.lines({'loss': loss}, name, 'mean squared residual', log_y=True)}</figure>")
    if len(held) > 1:
        parts.append(f"<figure>{charts.lines({'validation': held}, name, 'score on rows kept out')}</figure>")
    return "\n".join(parts)


def _spectrum(model: Any, plan: Any) -> str:
    values = spectrum(model)
    points = [(i + 1, value) for i, value in enumerate(values) if value > 1e-12]
    cut = f" The solver's preconditioner takes the first q = {plan.q:,} of s = {plan.s:,}." if plan.q else ""
    return (
        f"<h2>Spectrum of the kernel</h2><p class='soft'>Eigenvalues of K(Z,Z)/s for s = {len(values):,} centers: how many directions the "
        f"kernel sees.{cut}</p><figure>{charts.lines({'eigenvalues': points}, 'number', 'eigenvalue', log_x=True, log_y=True)}</figure>"
    )


def _timings(estimator: Any) -> str:
    times = {name: seconds for name, seconds in getattr(estimator, "timings_", {}).items() if seconds > 0}
    if estimator.plan_.seconds:
        times["solving, as predicted"] = estimator.plan_.seconds
    return f"<h2>Timings</h2><figure>{charts.bars(times, 's')}</figure>" if times else ""
