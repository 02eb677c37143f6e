"""One HTML file that says what a model is and how it came to be. `page.html.j2` is what it looks
like; here are the facts that fill it."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

import jinja2
import torch

from .. import solvers
from ..callbacks.progress import plan_line
from ..estimators import KernelClassifier, KernelRegressor
from ..estimators.evaluation import Evaluation
from ..kernels import Kernel, Sum, kernel_line
from ..model import KernelModel
from ..ops import bind
from ..planning.memory import TILE_BYTES
from ..planning.plan import Plan
from ..scoring import ERRORS
from . import charts, quality
from .quality import METRICS, between, written

MOST_CLASSES = 40  # of which a confusion matrix is drawn
MOST_COLUMNS = 200  # whose fate is told
MOST_FEATURES = 15  # columns whose importance is drawn
MOST_TRIED = 12  # recipes that are listed
SPECTRUM = 1000  # centers whose kernel matrix is decomposed for the picture
SHORTEST = 0.005  # seconds that are shown
Estimator = KernelClassifier | KernelRegressor

templates = jinja2.Environment(
    loader=jinja2.PackageLoader(__package__, "."),
    autoescape=True,  # names of columns and classes are written by others
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(
    estimator: Estimator,
    title: str,
    evaluation: Evaluation | None = None,
    where: str = "",
    today: date | None = None,
) -> str:
    """The report of a fitted estimator; with an evaluation, how good it is on those data, which
    are called `where`.
    """
    plan, eigenvalues = estimator.plan_, spectrum(estimator.model_)
    seen = [(i + 1, value) for i, value in enumerate(eigenvalues) if value > 1e-12]
    return templates.get_template("page.html.j2").render(
        title=title,
        target=_target(estimator, evaluation),
        plan_line=plan_line(plan),
        plan=plan,
        about=_about(estimator, title, evaluation, where, today or date.today()),
        cards=_cards(estimator, evaluation),
        facts=_facts(estimator),
        quality=_quality(evaluation),
        confusion=_confusion(estimator, evaluation),
        **_learning(estimator),
        importances=_importances(estimator),
        columns=estimator.n_features_in_,
        account=_account(estimator),
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


def _target(estimator: Estimator, evaluation: Evaluation | None) -> str | None:
    """The name of what is predicted."""
    named = None if evaluation is None else evaluation.target
    return named or estimator._target


def _about(
    estimator: Estimator, title: str, evaluation: Evaluation | None, where: str, today: date
) -> dict[str, str]:
    """What the report is about, by the questions that come first."""
    model, origin = estimator.model_, estimator.origin_
    named = _target(estimator, evaluation)
    what = _kind(estimator)
    about = {"Predicted": f"{named}, {what}" if named else what}
    if evaluation is not None:
        about["Checked on"] = f"{where or 'the data'}, {evaluation.rows:,} rows"
    about["Model"] = (
        f"{title}: {kernel_names(model.kernel)} kernel, {model.n_centers:,} centers, solver"
        f" {estimator.plan_.solver}"
    )
    about["Trained on"] = (
        f"{estimator.rows_seen_:,} rows of {estimator.n_features_in_:,} columns of"
        f" {origin['data']}, {origin['date'][:10]}"
    )
    about["Report of"] = f"{today.day} {today:%B %Y}"
    return about


def kernel_names(kernel: Kernel) -> str:
    """The kernel's name, or those of its parts."""
    if isinstance(kernel, Sum):
        return " + ".join(dict.fromkeys(kernel_names(part) for part in kernel.parts))
    return kernel.name


def _kind(estimator: Estimator) -> str:
    """What a prediction is."""
    if isinstance(estimator, KernelClassifier):
        names = list(map(str, estimator.classes_))
        return f"one of {len(names):,} classes: {_first(names, 10)} (classification)"
    outputs = estimator.plan_.c
    return "a number (regression)" if outputs == 1 else f"{outputs:,} numbers (regression)"


def _cards(estimator: Estimator, evaluation: Evaluation | None) -> list[tuple[str, str, str]]:
    """The numbers at the top of the page: what they are of, they themselves, and more."""
    model, held = estimator.model_, estimator.held_out_
    cards = []
    if evaluation is not None:
        cards.append(_score_card(estimator, evaluation))
    elif held is not None:
        known = held["scores"]
        name = estimator.score_name if estimator.score_name in known else next(iter(known))
        more = f"{held['rows']:,} rows, {held['how']}"
        cards.append((METRICS[name], charts.short(round(known[name], 4)), more))
    cards.append(("rows trained on", f"{estimator.rows_seen_:,}", ""))
    cards.append(("centers", f"{model.n_centers:,}", ""))
    cards.append(("features", f"{model.Z.shape[1]:,}", ""))
    if seconds := sum(estimator.timings_.values()):
        shown = charts.short(round(seconds, 1) or round(seconds, 3))
        cards.append(("seconds of training", shown, ""))
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


def _score_card(estimator: Estimator, evaluation: Evaluation) -> tuple[str, str, str]:
    """The score that the model was chosen by, where the evaluation has it; else its first."""
    wanted = {"absolute_error": "mae"}.get(estimator.score_name, estimator.score_name)
    name = wanted if wanted in evaluation.metrics else next(iter(evaluation.metrics))
    interval = evaluation.intervals.get(name)
    more = "" if interval is None else f"95 %: {between(name, interval)}"
    return METRICS[name], written(name, evaluation.metrics[name], interval), more


def _facts(estimator: Estimator) -> dict[str, str]:
    classes = getattr(estimator, "classes_", None)
    facts = {
        "model": type(estimator).__name__,
        "kernel": kernel_line(estimator.model_.kernel),
        "ridge": f"{estimator.ridge_:.3g}",
    }
    if classes is not None:
        facts["classes"] = _first(list(map(str, classes)), 20)
    return facts


def _account(estimator: Estimator) -> list[tuple[str, ...]]:
    """What each column became."""
    account = [] if estimator.encoder_ is None else estimator.encoder_.account
    return [column.cells for column in account[:MOST_COLUMNS]]


def _first(names: list[str], most: int) -> str:
    return ", ".join(names[:most]) + (" …" if len(names) > most else "")


def _quality(found: Evaluation | None) -> dict[str, object] | None:
    """How good the model is, for the page to draw."""
    if found is None:
        return None
    return {
        "said": quality.headline(found),
        "scores": quality.scores(found),
        "guess": found.guess,
        "rows": found.rows,
        "classes": found.classes,
        "lines": quality.class_lines(found) if len(found.classes) <= MOST_CLASSES else [],
        "curves": quality.drawn_curves(found),
        **quality.curves(found),
        "outputs": quality.outputs(found),
        "per_output": quality.per_output(found),
        "coverage": quality.coverage(found),
    }


def _confusion(estimator: Estimator, evaluation: Evaluation | None) -> charts.Matrix | None:
    """Of the evaluation; without one, of the rows that were kept out of training."""
    counts = getattr(estimator, "confusion_", None) if evaluation is None else evaluation.confusion
    if counts is None or len(counts) > MOST_CLASSES:
        return None
    return charts.Matrix(counts.tolist(), list(map(str, getattr(estimator, "classes_", []))))


def _learning(estimator: Estimator) -> dict[str, charts.Plot | None]:
    """Loss and validation score as they went, where there is more than one value of them."""
    history, plan = estimator.history_, estimator.plan_
    name = getattr(solvers.NAMED.get(plan.solver), "rounds_are", solvers.Solver.rounds_are)
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
        sign = -1 if estimator.score_name in ERRORS else 1  # errors are shown above 0
        shown = [(epoch, sign * score) for epoch, score in held]
        what = f"{METRICS[estimator.score_name]} on rows kept out"
        curves["scores"] = charts.curve(shown, name, what)
    return curves


def _importances(estimator: Estimator) -> list[charts.Bar]:
    """Columns by how much the model's values depend on them."""
    values = estimator.feature_importances_.tolist()
    names = [f"column {i}" for i in range(len(values))]
    names = list(getattr(estimator, "feature_names_in_", names))
    top = sorted(zip(names, values, strict=True), key=lambda pair: -pair[1])[:MOST_FEATURES]
    return charts.bars({str(name): 100 * value for name, value in top}, "{:.1f} %")


class Tried(NamedTuple):
    """A recipe that competed, as it is written: its score, how much worse than the best of its
    round it is, when that was known, and what became of it.
    """

    label: str
    score: str
    above: str
    after: str
    taken: bool
    fate: str


def _tried(plan: Plan) -> list[Tried]:
    """Recipes by their last round, from the best on; the one that was taken is the first."""
    rounds = _rounds(plan.tried or [])
    last = {label: i for i, each in enumerate(rounds) for label in each}
    ordered = sorted(last, key=lambda label: (-last[label], rounds[last[label]][label][0]))
    shown = []
    for label in dict.fromkeys([plan.chosen, *ordered[:MOST_TRIED]]):
        if label not in last:
            continue
        score, seconds = rounds[last[label]][label]
        least = min(other for other, _ in rounds[last[label]].values())
        dropped = last[label] < len(rounds) - 1 and label != plan.chosen
        shown.append(
            Tried(
                label,
                f"{score:.4g}",
                f"{_above(score, least):+.1%}",
                f"{seconds:.1f} s",
                label == plan.chosen,
                f"dropped in round {last[label] + 1} of {len(rounds)}" if dropped else "",
            )
        )
    return shown


def _rounds(tried: list[tuple[str, float, float]]) -> list[dict[str, tuple[float, float]]]:
    """Score and seconds of each recipe, by rounds: one that comes again is compared on more rows,
    whose scores say nothing of those before.
    """
    rounds: list[dict[str, tuple[float, float]]] = [{}]
    for label, score, seconds in tried:
        if label in rounds[-1]:
            rounds.append({})
        rounds[-1][label] = (score, seconds)
    return rounds


def _above(score: float, least: float) -> float:
    return score / least - 1 if least > 0 else 0.0


def _timings(estimator: Estimator) -> list[charts.Bar]:
    times = {name: s for name, s in estimator.timings_.items() if s >= SHORTEST}
    if estimator.plan_.seconds:
        times["solving, as predicted"] = estimator.plan_.seconds
    return charts.bars(times, "{:,.2f} s")
