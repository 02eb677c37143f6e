"""Recipes: how columns become features, in which metric, and which kernel sees them.

No encoding is best everywhere: smooth sensors are best taken as they are, heavy tails clipped, and
codes and counts by the quantiles between two rows; on some tables a metric learned from the model
is worth more than either (docs/choosing.md). So they compete: all descend on a few rows, the best
go on to more, and a sum of kernels may beat every single one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import torch

from ..kernels import Features, Kernel, Laplacian, Radial, Sum, encode_columns
from ..projection import NotPositiveDefinite
from .judge import Grams, Judge, Verdict
from .metric import POWERS, Gradients
from .parallel import side_by_side
from .sample import Effort, Sample
from .search import (
    CANDIDATES,
    Candidate,
    average,
    descend,
    refine,
    scale_bandwidth,
    share_scale,
    together,
)

ENCODED = {
    "robust+quantile": ("laplacian", "gaussian"),
    "quantile": ("laplacian", "gaussian"),
    "codes": ("laplacian", "gaussian"),
}
FEWER = {
    "robust+quantile": ("laplacian", "gaussian"),
    "quantile": ("laplacian",),
    "codes": ("laplacian",),
}
ALIKE = ("matern",)  # kernels that are also tried with one bandwidth for all columns
ONE = "one bandwidth"
AS_IS, AS_SAID = "columns as they are", "columns as said"
MOST_FEATURES = 1024  # that an encoding may make
FINALISTS = 3  # recipes that are compared on all rows of the sample
FACTORS = (0.6, 1.6)  # of bandwidths, at the density of all rows of the sample
NEGLIGIBLE = 1e-7  # of a score, whose unit is the variance of the targets, or a nat
METRIC = ", gradient metric"
ROUNDS = 4  # of metrics, each of the model in the one before
ROUND_WORTH = 0.99  # of the score before that a round must reach for another to be tried
HOPE = 1.01  # of a recipe's score, what its metric may have for another factor to be tried
HOPELESS = 1.15  # of the score to be beaten: what is above that is tried with one ridge only
BEHIND = 1.03  # of the best score, what a recipe may have for another round
ENOUGH_ROWS = 200  # of a sample from which more than bandwidths is learned
POOL = 5  # recipes from which they are taken
PARTS = 4  # of a sample of classes, over which bandwidths are averaged
CHANCE = 0.5  # over √rows: how much better than another what costs more must be


@dataclass(frozen=True)
class Recipe:
    """A kernel with its verdict.

    `grams` makes its kernel matrices again, fold by fold; `label` says what it is; `worth` is the
    share of another's score that it has to reach.
    """

    label: str
    kind: str  # the same for recipes that differ by a metric or a factor only
    kernel: Kernel
    verdict: Verdict
    grams: Callable[[Judge], Grams]
    worth: float = 1.0
    folds: list[Radial] | None = None  # kernels that were learned in each fold

    @property
    def rank(self) -> float:
        """What recipes are ordered by: the score, less good by what the recipe costs."""
        return self.loss / self.worth

    @property
    def loss(self) -> float:
        """The score, with what is never worth a cost."""
        return max(0.0, self.verdict.score) + NEGLIGIBLE


Report = Callable[[str, float], None]


@dataclass(frozen=True)
class Ways:
    """What recipes may be made of: encodings and metrics that are `learned`, and sums of up to so
    many `members`.
    """

    learned: bool = True
    members: int = 3


@dataclass(frozen=True)
class Contest:
    """The rows that recipes compete on.

    `ridge` is None where it is chosen too; `seen_as` are features of a row whose
    encoding is given.
    """

    sample: Sample
    ridge: float | None
    effort: Effort
    ways: Ways = Ways()
    seen_as: Mapping[int, str] = field(default_factory=dict)


def choose_recipe(
    contest: Contest, report: Report, may_go_on: Callable[[], bool] = lambda: True
) -> list[Recipe]:
    """The recipe of the best score, then others that may be better where rows are closer together.

    `report` is told of every recipe and its score; where `may_go_on` says no, the best so far is
    taken.
    """
    sample, ridge, ways, effort = contest.sample, contest.ridge, contest.ways, contest.effort
    judge = Judge(sample, effort.final, effort.few)
    candidates: dict[str, Candidate] = {}
    first = _first(contest, judge, candidates)
    best = _ranked(first, report, may_go_on)[:FINALISTS]
    if not may_go_on():
        return best[:1]
    whole = Judge(sample, effort.judged, effort.few)
    # Of the best: descended again, and given a metric.
    starts = effort.starts + (effort.starts == 1 and len(sample.X) > effort.judged)
    # Bandwidths of classes owe much to noise, those of numbers little.
    parted = sample.frequencies is not None and ENOUGH_ROWS <= len(sample.X) <= effort.parted

    def again(place: int, label: str) -> Recipe:
        candidate = candidates[label]
        if parted:
            candidate = average(candidate, ridge, effort.part, PARTS, effort.steps // 2 + 1)
        elif len(sample.X) > effort.first and place < starts:
            candidate = refine(candidate, ridge, effort.final, effort.steps)
        return _judge(candidate, label, whole, ridge)

    work = [partial(again, place, recipe.label) for place, recipe in enumerate(best)]
    # One descent among them is quicker with all threads.
    several = parted or starts > 1
    done = side_by_side(work, sample.X.device) if several else (each() for each in work)
    found = _ranked(done, report, may_go_on)
    if len(whole.X) < ENOUGH_ROWS:
        return found[:1]
    rounds = ROUNDS if effort.thorough else 1
    stages = [lambda: _at_this_density(found[0], whole, ridge)]
    if ways.learned:
        stages += [lambda: _learn_metrics(_diverse(found)[:starts], whole, ridge, rounds)]
    stages += [lambda: _sums(found, whole, ridge, ways.members)]
    for stage in stages:
        if not may_go_on():
            break
        more = _ranked(stage(), report, may_go_on)
        found = sorted([*found, *more], key=lambda recipe: recipe.rank)
    return [found[0], *_rivals(found[0], found)]


def _first(contest: Contest, judge: Judge, candidates: dict[str, Candidate]) -> Iterator[Recipe]:
    """Every start, descended and judged; what they came to goes into `candidates`."""

    def descended(start: Start) -> list[tuple[Candidate, Recipe]]:
        # The ridge of its descent is near enough to tell the three best.
        return [
            (candidate, _judge(candidate, label, judge, candidate.found.ridge))
            for label, candidate in start()
        ]

    work = [partial(descended, start) for start in _starts(contest)]
    for found in side_by_side(work, judge.X.device):
        for candidate, recipe in found:
            candidates[recipe.label] = candidate
            yield recipe


def _rivals(best: Recipe, found: list[Recipe]) -> list[Recipe]:
    """The two best of different kinds without a metric, and the best with one: which of them is
    better depends most on how close rows are.
    """
    single = [each for each in found if not isinstance(each.kernel, Sum) and each is not best]
    plain = _diverse([each for each in single if METRIC not in each.label])[:2]
    return [*plain, *[each for each in single if METRIC in each.label][:1]]


def _ranked(
    recipes: Iterable[Recipe], report: Report, may_go_on: Callable[[], bool]
) -> list[Recipe]:
    """The best first; as many as there is time for, one at least where there is one."""
    kept: list[Recipe] = []
    try:
        for recipe in recipes:
            report(recipe.label, recipe.verdict.score)
            kept.append(recipe)
            if not may_go_on():
                break
    finally:  # work that nobody waits for is not begun, also where `report` raises
        getattr(recipes, "close", lambda: None)()
    return sorted(kept, key=lambda recipe: recipe.rank)


Start = Callable[[], Iterator[tuple[str, Candidate]]]


def _starts(contest: Contest) -> Iterator[Start]:
    """Every kernel over columns as they are, and over their encodings: descents that do not wait
    for each other.
    """
    sample, ridge, effort = contest.sample, contest.ridge, contest.effort
    plain, own, seen = sample, None, AS_IS
    if contest.seen_as:
        (plain, own), seen = _encoded(contest, "standard"), AS_SAID
    alike = replace(plain, columns=together(plain))

    def each_by_itself(name: str) -> Iterator[tuple[str, Candidate]]:
        for i, found in enumerate(descend(name, ridge, plain, effort.first, own)):
            yield f"{name}, {seen}" + ", each by its spread" * i, found

    def as_one(name: str) -> Iterator[tuple[str, Candidate]]:
        yield f"{name}, {ONE}", descend(name, ridge, alike, effort.first, own)[-1]

    yield from (partial(each_by_itself, name) for name in CANDIDATES)
    yield from (partial(as_one, name) for name in ALIKE)
    encoded = ENCODED if effort.thorough else FEWER
    learns = contest.ways.learned and len(sample.X) >= ENOUGH_ROWS
    for encoding, names in encoded.items() if learns else ():
        inside, made = _encoded(contest, encoding)
        changes_nothing = bool((made.form == 0).all()) if own is None else made.same_as(own)
        if len(made) <= MOST_FEATURES and not changes_nothing:
            yield partial(_over_encoding, contest, encoding, names, inside, made)


def _over_encoding(
    contest: Contest, encoding: str, names: tuple[str, ...], inside: Sample, made: Features
) -> Iterator[tuple[str, Candidate]]:
    """Of many rows, bandwidths of the first kernel are where those of the others start from."""
    (leading, *others), rows = names, contest.effort.first
    (first,) = descend(leading, contest.ridge, inside, rows, made)
    yield f"{leading}, {encoding}", first
    near = first if len(inside.X) > rows else None  # few rows are quick, and lead astray
    for name in others:
        (other,) = descend(name, contest.ridge, inside, rows, made, near)
        yield f"{name}, {encoding}", other


def _encoded(contest: Contest, encoding: str) -> tuple[Sample, Features]:
    """The sample as a kernel sees it, and the features that it is made of."""
    sample = contest.sample
    X = sample.X
    made = encode_columns(X, encoding, sample.w, contest.seen_as)
    weight = share_scale(sample).to(made.height)[made.column.to(made.height.device)]
    made = replace(made, height=torch.where(made.form == 0, made.height / weight, made.height))
    every = torch.arange(X.shape[1]) if sample.columns is None else sample.columns
    of = made.column.to(X.device)
    shares = None if sample.shares is None else sample.shares[of]
    inside = replace(sample, X=made.apply(X), columns=every.to(X.device)[of], shares=shares)
    return inside, made


def _judge(candidate: Candidate, label: str, judge: Judge, ridge: float | None) -> Recipe:
    kernel = candidate.kernel
    encoded = isinstance(kernel, Radial) and kernel.features is not None
    worth = _worth(judge) if encoded else 1.0
    if candidate.found.theta is not None:  # bandwidths that were fitted to the rows that judge them
        worth *= math.exp(-len(candidate.found.theta) / candidate.rows)
    return _alike(label, kernel, judge, ridge, candidate.found.ridge, worth)


def _worth(judge: Judge) -> float:
    """Of another's score, what features that have to be made or a metric must reach: they cost
    time, and more of them are right by chance.
    """
    return 1 - CHANCE / len(judge.X) ** 0.5


def _alike(
    label: str,
    kernel: Kernel,
    judge: Judge,
    ridge: float | None,
    start: float,
    worth: float,
    hopeless: float = math.inf,
) -> Recipe:
    """A kernel that is the same in all folds."""
    verdict = judge.verdict(judge.grams(kernel), ridge, start, hopeless)
    kind = label.split(" × ")[0]
    return Recipe(label, kind, kernel, verdict, partial(_grams_of, kernel), worth)


def _at_this_density(recipe: Recipe, judge: Judge, ridge: float | None) -> Iterator[Recipe]:
    """All bandwidths times a factor: which features matter, few rows tell; how narrow the kernel
    should be, more of them.
    """
    kernel = recipe.kernel
    if isinstance(kernel, Radial):
        for factor in _factors(kernel)[1:]:
            label = f"{recipe.label} × {factor:g}"
            changed = scale_bandwidth(kernel, factor)
            start, hopeless = recipe.verdict.ridge, HOPELESS * recipe.loss
            yield _alike(label, changed, judge, ridge, start, recipe.worth, hopeless)


def _learn_metrics(
    recipes: list[Recipe], judge: Judge, ridge: float | None, rounds: int
) -> Iterator[Recipe]:
    """Recipes in the metric of their own models; then in that of the models in that metric, as long
    as a round is worth it, and the recipe may still come first.
    """
    least = math.inf
    for recipe in recipes:
        last = recipe
        for _ in range(rounds):
            best = last
            for found in _with_metric(last, judge, ridge):
                yield found
                best = min(best, found, key=lambda each: each.verdict.score)
            least = min(least, best.loss)
            if best.loss > min(ROUND_WORTH * last.loss, BEHIND * least):
                break
            last = best


def _with_metric(recipe: Recipe, judge: Judge, ridge: float | None) -> Iterator[Recipe]:
    """The recipe in metrics that are learned anew from the fitted rows of each fold; the better
    one with other factors of the bandwidth too.
    """
    kernel, start = recipe.kernel, recipe.verdict.ridge
    assert isinstance(kernel, Radial)
    before = [*(recipe.folds or [kernel] * len(judge.folds)), kernel]
    worth = recipe.worth * _worth(judge) if recipe.folds is None else recipe.worth
    try:
        learned = [
            Gradients.of(each, judge.X[rows], judge.Y[rows], start / judge.w[rows])
            for each, rows in zip(before, judge.parts, strict=True)
        ]
    except NotPositiveDefinite:
        return

    def judged(power: float, factor: float) -> Recipe:
        *folds, whole = [scale_bandwidth(gradients.metric(power), factor) for gradients in learned]
        verdict = judge.verdict(judge.grams_of_each(folds), ridge, start, HOPELESS * recipe.loss)
        label = f"{recipe.label}{METRIC} {power:g}" + f" × {factor:g}" * (factor != 1)
        grams = partial(_grams_of_each, folds)
        return Recipe(label, recipe.kind, whole, verdict, grams, worth, folds)

    found = {power: judged(power, 1.0) for power in POWERS}
    yield from found.values()
    power = min(found, key=lambda each: found[each].loss)
    if found[power].loss < HOPE * recipe.loss:
        for factor in _factors(kernel)[1:]:
            yield judged(power, factor)


def _factors(kernel: Radial) -> tuple[float, ...]:
    """Of bandwidths. A wide Laplacian is 1 − r but for a factor, which is the ridge's business."""
    return (1.0,) if isinstance(kernel, Laplacian) else (1.0, *FACTORS)


def _grams_of(kernel: Kernel, judge: Judge) -> Grams:
    return judge.grams(kernel)


def _grams_of_each(folds: list[Radial], judge: Judge) -> Grams:
    return judge.grams_of_each(folds)


def _sums(recipes: list[Recipe], judge: Judge, ridge: float | None, most: int) -> Iterator[Recipe]:
    """Sums of the best kernel and others, one more at a time, as long as that is better.

    By however little: where targets are noise a sum gains less than chance does, but gains it
    again on other rows.
    """
    best = recipes[0]
    members, pool, held = [best], _diverse(recipes)[1:], best.grams(judge)
    while pool and len(members) < most:
        hopeless = HOPELESS * best.loss
        tried = [_sum(members, held, other, judge, ridge, hopeless) for other in pool]
        found = min(tried, key=lambda recipe: recipe.rank)
        if found.rank >= best.rank:
            return
        yield found
        best = found
        members.append(pool.pop(tried.index(found)))
        if len(members) < most:
            held = _added(held, members[-1].grams(judge))


def _sum(
    members: list[Recipe],
    held: Grams,
    other: Recipe,
    judge: Judge,
    ridge: float | None,
    hopeless: float,
) -> Recipe:
    """Of members, whose kernel matrices are `held`, summed up, and another one."""
    parts = [*members, other]

    def grams(judge: Judge) -> Grams:
        each = (part.grams(judge) for part in parts)
        return _mean_of(reduce(_added, each), len(parts))

    here = _mean_of(_added(held, other.grams(judge)), len(parts))
    verdict = judge.verdict(here, ridge, members[0].verdict.ridge, hopeless)
    kernel = Sum([part.kernel for part in parts])  # type: ignore[misc]
    worth = min(part.worth for part in parts)
    label = " + ".join(part.label for part in parts)
    return Recipe(label, label, kernel, verdict, grams, worth)


def _added(grams: Grams, others: Grams) -> Grams:
    return [
        tuple(K + more for K, more in zip(fold, other, strict=True))
        for fold, other in zip(grams, others, strict=True)
    ]


def _mean_of(grams: Grams, count: int) -> Grams:
    return [tuple(K / count for K in fold) for fold in grams]


def _diverse(recipes: list[Recipe]) -> list[Recipe]:
    """The best of those that differ by their metric or a factor of the bandwidth only; POOL of
    them.
    """
    kept: dict[str, Recipe] = {}
    for recipe in recipes:
        kept.setdefault(recipe.kind, recipe)
    return list(kept.values())[:POOL]
