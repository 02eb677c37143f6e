"""One HTML file that says what a model is and how it came to be. `page.html.j2` is what it looks
like; here are the facts that fill it."""

from __future__ import annotations

import jinja2
import numpy as np
import torch

from .. import solvers
from ..callbacks.progress import plan_line
from ..estimators import KernelClassifier, KernelRegressor
from ..estimators.evaluation import Evaluation, validation_score
from ..kernels import Features, Kernel, Radial, Sum
from ..model import KernelModel
from ..ops import bind
from ..planning.memory import TILE_BYTES
from ..planning.plan import Plan
from ..scoring import ERRORS
from . import charts

MOST_CLASSES = 40  # of which a confusion matrix is drawn
MOST_FEATURES = 15  # columns whose importance is drawn
MOST_TRIED = 12  # recipes that are listed
SPECTRUM = 1000  # centers whose kernel matrix is decomposed for the picture
METRICS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "roc_auc": "area under ROC",
    "f1": "F1",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "mean absolute error",
    "absolute_error": "mean absolute error",
    "squared_error": "mean squared error",
    "largest_error": "largest error",
    "rows_of_unknown_classes": "rows of unknown classes",
}
RESIDUAL_BINS = 41
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
        importances=_importances(estimator),
        columns=estimator.n_features_in_,
        tried=_tried(plan),
        tried_in_all=len({label for label, *_ in plan.tried or []}),
        eigenvalues=len(eigenvalues),
        spectrum=charts.curve(seen, "number", "eigenvalue", log_x=True, log_y=True),
        timings=_timings(estimator),
    )


def spectrum(model: KernelModel) -> list[float]:
    """Eigenvalues of K(Z_s, Z_s)/s for some centers Z_s, the largest first: what the
    preconditioner is made of."""
    Z, cpu = model.Z[:SPECTRUM].cpu(), torch.device("cpu")
    K = bind(model.kernel, Z.mean(0, dtype=torch.float64), "float64", cpu, TILE_BYTES)
    points = K.points(Z)
    values = torch.linalg.eigvalsh(K.dense(points, points)).flip(0) / len(Z)
    return values.clamp(min=0).tolist()


def kernel_line(kernel: Kernel) -> str:
    """The kernel in few words: a bandwidth for each feature is a range."""
    if isinstance(kernel, Sum):
        parts = zip(kernel.shares, kernel.parts, strict=True)
        return " + ".join(f"{share:.2g} × {kernel_line(part)}" for share, part in parts)
    seen = _seen(kernel.features) if isinstance(kernel, Radial) else ""
    width = getattr(kernel, "bandwidth", None)
    dimensions = getattr(width, "ndim", 0)
    if dimensions == 0:
        return f"{kernel.name}{seen}, bandwidth {width:.3g}" if seen else repr(kernel)
    if dimensions == 2:
        return f"{kernel.name}{seen}, a matrix of bandwidths"
    low, high = (value.item() for value in torch.as_tensor(width).aminmax())
    return f"{kernel.name}{seen}, a bandwidth for each feature, from {low:.3g} to {high:.3g}"


def _seen(features: Features | None) -> str:
    """How a kernel sees columns, where not as they are."""
    if features is None:
        return ""
    made = f" of {len(features.column)} features"
    return made if features.map is None else f"{made} in a learned metric of rank {len(features)}"


def _cards(estimator: Estimator, evaluation: Evaluation | None) -> dict[str, str]:
    """The numbers at the top of the page."""
    model, held = estimator.model_, validation_score(estimator)
    cards = {}
    if evaluation is not None:
        first, wanted = next(iter(evaluation.metrics)), estimator.score_name
        name = wanted if wanted in evaluation.metrics else first
        cards[METRICS.get(name, name)] = charts.short(round(evaluation.metrics[name], 4))
    elif held is not None:
        name, value = _shown_score(estimator, held)
        cards[f"{name} on rows kept out"] = charts.short(round(value, 4))
    cards["centers"] = f"{model.n_centers:,}"
    cards["features"] = f"{model.Z.shape[1]:,}"
    cards["rows seen"] = f"{estimator.rows_seen_:,}"
    if seconds := sum(getattr(estimator, "timings_", {}).values()):
        cards["seconds of training"] = charts.short(round(seconds, 1) or round(seconds, 3))
    return cards


def held_out_line(estimator: Estimator) -> str:
    """How good the model was on rows that it did not see, in few words; empty where that is not
    known.
    """
    held = estimator.held_out_
    if held is None:
        return ""
    known = ((METRICS.get(name, name), value) for name, value in held["scores"].items())
    scores = ", ".join(f"{name} {value:.4g}" for name, value in known)
    return f"{scores} on {held['rows']:,} rows, {held['how']}"


def score_line(estimator: Estimator, score: float) -> str:
    """A score of held-out rows in few words."""
    name, value = _shown_score(estimator, score)
    return f"{name} {value:.4f}"


def _shown_score(estimator: Estimator, score: float) -> tuple[str, float]:
    """The name of the estimator's score, and its value as people write it: errors are positive."""
    name = estimator.score_name
    return METRICS[name], -score if name in ERRORS else score


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
            facts[f"column {category.name!r}"] = category.summary
    return facts


def _first(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def _quality(evaluation: Evaluation | None, where: str) -> dict[str, object]:
    """Metrics; of classes what probabilities are worth, of numbers the predicted against the true
    ones.
    """
    if evaluation is None:
        return {"metrics": None, "predicted": None, "reliability": None, "roc": None}
    found: dict[str, object] = {
        "where": where,
        "rows": evaluation.rows,
        "metrics": {
            METRICS.get(name, name): charts.short(round(value, 5))
            for name, value in evaluation.metrics.items()
        },
        "predicted": None,
        **_probabilities(evaluation),
    }
    if evaluation.points is not None:
        both = [(true, guess) for true, guess in evaluation.points.tolist()]
        left = [(guess, true - guess) for true, guess in both]
        found["predicted"] = charts.scatter(both, "true", "predicted", diagonal=True)
        found["residuals"] = charts.scatter(left, "predicted", "true − predicted")
        found["spread"] = _histogram([residual for _, residual in left], "true − predicted")
    return found


def _histogram(values: list[float], name: str) -> charts.Histogram:
    """Values beyond the 99 % in the middle count at its ends."""
    low, high = np.quantile(values, [0.005, 0.995])
    if not low < high:
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.clip(values, low, high), RESIDUAL_BINS, (low, high))
    return charts.histogram(edges.tolist(), counts.tolist(), name)


def _probabilities(evaluation: Evaluation) -> dict[str, object]:
    """Of classes: the calibration curve, and ROC curves."""
    classes = evaluation.classes
    found: dict[str, object] = {"reliability": None, "roc": None, "classes": len(classes)}
    if evaluation.reliability:
        bins = [(b.low, b.high, b.rows, b.probability, b.share) for b in evaluation.reliability]
        found["second"] = classes[1]
        found["reliability"] = charts.reliability(bins, "probability", "share of rows")
    if evaluation.roc:
        lines = {f"{c.name[:22]}  {c.area:.4f}": c.points.tolist() for c in evaluation.roc}
        found["roc"] = charts.rates(lines, "false positive rate", "true positive rate")
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
        shown = [(epoch, _shown_score(estimator, score)[1]) for epoch, score in held]
        what = f"{METRICS[estimator.score_name]} on rows kept out"
        curves["scores"] = charts.curve(shown, name, what)
    return curves


def _importances(estimator: Estimator) -> list[charts.Bar]:
    """Columns by how much the model's values depend on them."""
    values = estimator.feature_importances_.tolist()
    names = [f"column {i}" for i in range(len(values))]
    names = list(getattr(estimator, "feature_names_in_", names))
    top = sorted(zip(names, values, strict=True), key=lambda pair: -pair[1])[:MOST_FEATURES]
    return charts.bars({str(name)[:26]: round(value, 3) for name, value in top})


def _tried(plan: Plan) -> list[tuple[str, str, str, bool]]:
    """Recipes from the best on, with their scores, how much worse than the best each is, and
    whether it was taken.
    """
    scores: dict[str, float] = {}
    for label, score, _ in plan.tried or []:
        scores[label] = score  # the last is of the most rows
    ordered = sorted(scores, key=scores.__getitem__)
    shown = list(dict.fromkeys([plan.chosen, *ordered[:MOST_TRIED]]))
    least = min(scores.values(), default=0.0)
    return [
        (
            label,
            f"{scores[label]:.4g}",
            f"{_above(scores[label], least):+.1%}",
            label == plan.chosen,
        )
        for label in shown
        if label in scores
    ]


def _above(score: float, least: float) -> float:
    return score / least - 1 if least > 0 else 0.0


def _timings(estimator: Estimator) -> list[charts.Bar]:
    times = {name: s for name, s in getattr(estimator, "timings_", {}).items() if s > 0}
    if estimator.plan_.seconds:
        times["solving, as predicted"] = estimator.plan_.seconds
    return charts.bars(times, "s")
