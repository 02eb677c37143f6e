"""One HTML file that says what a model is and how it came to be. `page.html.j2` is what it looks
like; here are the facts that fill it."""

from __future__ import annotations

import jinja2
import torch

from .. import solvers
from ..callbacks.progress import plan_line
from ..estimators import KernelClassifier, KernelRegressor
from ..estimators.evaluation import Evaluation, validation_score
from ..kernels import Kernel
from ..model import KernelModel
from ..ops import KernelProduct
from ..planning.memory import TILE_BYTES
from . import charts

MOST_CLASSES = 40  # of which a confusion matrix is drawn
MOST_FEATURES = 15  # whose relevance is drawn
SPECTRUM = 1000  # centers whose kernel matrix is decomposed for the picture
METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "roc_auc": "area under ROC",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "largest_error": "largest error",
    "rows_of_unknown_classes": "rows of unknown classes",
}
Estimator = KernelClassifier | KernelRegressor

templates = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, "."),
    autoescape=True,  # names of columns and classes are written by others
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters["short"] = charts.short


def page(
    estimator: Estimator, title: str, evaluation: Evaluation | None = None, where: str = ""
) -> str:
    """The report of a fitted estimator; with an evaluation, how good it is on those data."""
    plan, eigenvalues = estimator.plan_, spectrum(estimator.model_)
    seen = [(i + 1, value) for i, value in enumerate(eigenvalues) if value > 1e-12]
    return templates.get_template("page.html.j2").render(
        title=title,
        plan_line=plan_line(plan),
        plan=plan,
        cards=_cards(estimator, evaluation),
        facts=_facts(estimator),
        **_quality(evaluation, where),
        confusion=_confusion(estimator, evaluation),
        **_learning(estimator),
        relevance=_relevance(estimator),
        features=estimator.model_.Z.shape[1],
        eigenvalues=len(eigenvalues),
        spectrum=charts.curve(seen, "number", "eigenvalue", log_x=True, log_y=True),
        timings=_timings(estimator),
    )


def spectrum(model: KernelModel) -> list[float]:
    """Eigenvalues of K(Z_s, Z_s)/s for some centers Z_s, the largest first: what the
    preconditioner is made of."""
    Z, cpu = model.Z[:SPECTRUM].cpu(), torch.device("cpu")
    K = KernelProduct(model.kernel, Z.mean(0, dtype=torch.float64), "float64", cpu, TILE_BYTES)
    points = K.points(Z)
    values = torch.linalg.eigvalsh(K.dense(points, points)).flip(0) / len(Z)
    return values.clamp(min=0).tolist()


def kernel_line(kernel: Kernel) -> str:
    """The kernel in few words: a bandwidth for each feature is a range."""
    width = getattr(kernel, "bandwidth", None)
    dimensions = getattr(width, "ndim", 0)
    if dimensions == 0:
        return repr(kernel)
    if dimensions == 2:
        return f"{kernel.name}, a matrix of bandwidths"
    low, high = (value.item() for value in torch.as_tensor(width).aminmax())
    return f"{kernel.name}, a bandwidth for each feature, from {low:.3g} to {high:.3g}"


def _cards(estimator: Estimator, evaluation: Evaluation | None) -> dict[str, str]:
    """The numbers at the top of the page."""
    model, held = estimator.model_, validation_score(estimator)
    cards = {}
    if evaluation is not None:
        name, value = next(iter(evaluation.metrics.items()))
        cards[METRICS.get(name, name)] = charts.short(round(value, 4))
    elif held is not None:
        cards["score on rows kept out"] = charts.short(round(held, 4))
    cards["centers"] = f"{model.n_centers:,}"
    cards["features"] = f"{model.Z.shape[1]:,}"
    cards["rows seen"] = f"{estimator.rows_seen_:,}"
    if seconds := sum(getattr(estimator, "timings_", {}).values()):
        cards["seconds of training"] = charts.short(round(seconds, 1) or round(seconds, 3))
    return cards


def _facts(estimator: Estimator) -> dict[str, str]:
    encoder, classes = estimator.encoder_, getattr(estimator, "classes_", None)
    facts = {
        "model": type(estimator).__name__,
        "kernel": kernel_line(estimator.model_.kernel),
        "ridge": f"{estimator.ridge_:.3g}",
    }
    if classes is not None:
        facts["classes"] = _first(list(map(str, classes)), 20)
    if encoder is not None:
        facts["columns"] = _first(encoder.inputs, 40)
        for category in encoder.categories:
            count, how = len(category.values) or "many", category.how.replace("_", " ")
            facts[f"column {category.name!r}"] = f"{count} values, {how} encoded"
    return facts


def _first(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def _quality(evaluation: Evaluation | None, where: str) -> dict[str, object]:
    """Metrics, and of numbers the predicted against the true ones."""
    if evaluation is None:
        return {"metrics": None, "predicted": None}
    found: dict[str, object] = {
        "where": where,
        "rows": evaluation.rows,
        "metrics": {
            METRICS.get(name, name): charts.short(round(value, 5))
            for name, value in evaluation.metrics.items()
        },
        "predicted": None,
    }
    if evaluation.points is not None:
        both = [(true, guess) for true, guess in evaluation.points.tolist()]
        left = [(guess, true - guess) for true, guess in both]
        found["predicted"] = charts.scatter(both, "true", "predicted", diagonal=True)
        found["residuals"] = charts.scatter(left, "predicted", "true − predicted")
    return found


def _confusion(estimator: Estimator, evaluation: Evaluation | None) -> charts.Matrix | None:
    """Of the evaluation; without one, of the rows that were kept out of training."""
    counts = getattr(estimator, "confusion_", None) if evaluation is None else evaluation.confusion
    if counts is None or len(counts) > MOST_CLASSES:
        return None
    return charts.Matrix(counts.tolist(), list(map(str, getattr(estimator, "classes_", []))))


def _learning(estimator: Estimator) -> dict[str, charts.Plot | None]:
    """Loss and validation score as they went, where there is more than one value of them."""
    history, plan = estimator.history_, estimator.plan_
    name = solvers.NAMED[plan.solver].rounds_are
    loss = [
        (row["rows"] / max(1, plan.n), value)
        for row in history
        if (value := row.get("loss")) is not None and row["rows"]
    ]
    held = [(row["epoch"], row["validation_score"]) for row in history if "validation_score" in row]
    curves: dict[str, charts.Plot | None] = {"loss": None, "scores": None}
    if loss:
        squares = solvers.loss_of(plan).name == "square"
        what = "mean squared residual" if squares else "mean loss"
        curves["loss"] = charts.curve(loss, name, what, log_y=True)
    if len(held) > 1:
        curves["scores"] = charts.curve(held, name, "score on rows kept out")
    return curves


def _relevance(estimator: Estimator) -> list[charts.Bar]:
    """Features by their spread among the centers, in bandwidths: what the kernel looks at."""
    model, encoder = estimator.model_, estimator.encoder_
    width = getattr(model.kernel, "bandwidth", None)
    if getattr(width, "ndim", 0) != 1:
        return []
    spread = (model.Z.double().std(0).cpu() / torch.as_tensor(width).double().cpu()).tolist()
    names = [f"feature {i}" for i in range(len(spread))]
    names = list(getattr(estimator, "feature_names_in_", names))
    if encoder is not None:
        names = encoder.names
    top = sorted(zip(names, spread, strict=True), key=lambda pair: -pair[1])[:MOST_FEATURES]
    return charts.bars({str(name)[:26]: round(value, 3) for name, value in top})


def _timings(estimator: Estimator) -> list[charts.Bar]:
    times = {name: s for name, s in getattr(estimator, "timings_", {}).items() if s > 0}
    if estimator.plan_.seconds:
        times["solving, as predicted"] = estimator.plan_.seconds
    return charts.bars(times, "s")
