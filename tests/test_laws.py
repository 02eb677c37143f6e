"""Laws: change data in a way whose effect is known, and predictions follow. docs/reliability.md
lists them by the names of these tests.

Few examples, the same in every run; tests marked slow try many, others in every run. Tables have
laws of their own: test_laws_tables.py.
"""

import ast
import itertools
import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from kernelmill import KernelClassifier, KernelRegressor, kernels, load, losses, solvers
from kernelmill.calibration import calibrate
from kernelmill.estimators import classifier, regressor
from kernelmill.tuning.sample import Sample
from kernelmill.tuning.search import tune

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.nested_given]
FEW = settings(
    max_examples=2, derandomize=True, deadline=None, database=None, suppress_health_check=CHECKS
)
MANY = settings(FEW, max_examples=25, derandomize=False)
BUDGETS = pytest.mark.parametrize(
    "budget", [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.slow)]
)

# The first example takes the first of each list.
UNITS = st.sampled_from([1e3, 1e-6, 0.3048, 86_400.0, 1024.0, 2.0**-20, 1.0])
OFFSETS = st.sampled_from([1e6, -5.0, 273.15, -1e6, 0.0])


# ---- a problem, and the estimators it is given to


@dataclass(frozen=True)
class Case:
    """Rows to train on and to predict, and what a user with a kernel of his own says in their
    units.
    """

    X: np.ndarray
    y: np.ndarray  # numbers, or labels
    T: np.ndarray
    bandwidth: np.ndarray  # of each column
    centers: str = "every"  # row is a center, "given" ones are, or "drawn" ones
    Z: np.ndarray | None = None
    w: np.ndarray | None = None
    ridge: float = 0.1

    @property
    def d(self) -> int:
        return self.X.shape[1]

    def rows(self, places: np.ndarray, w: np.ndarray | None = None) -> "Case":
        return replace(self, X=self.X[places], y=self.y[places], w=w)

    def columns(self, change: Callable[[np.ndarray], np.ndarray], bandwidth: np.ndarray) -> "Case":
        return replace(
            self,
            X=change(self.X),
            T=change(self.T),
            Z=None if self.Z is None else change(self.Z),
            bandwidth=bandwidth,
        )


@dataclass(frozen=True)
class Fit:
    """An estimator with a solver, or with nothing said at all.

    `tolerance`: of predictions, relative to the largest, where each step is the same but for
    rounding. `steps` and `near`: settings that bring it near its limit, and how near; for laws
    that change which rows a step sees.
    """

    solver: Any
    options: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-8
    steps: dict[str, Any] = field(default_factory=dict)
    near: float = 1e-7
    classes: tuple[bool, ...] = (False, True)
    chosen: bool = False

    def model(self, case: Case, classes: bool, far: bool = False) -> Any:
        estimator = KernelClassifier if classes else KernelRegressor
        if self.chosen:
            return estimator(random_state=0)
        centers = {
            "every": {"n_centers": None},
            "given": {"centers": case.Z},
            "drawn": {"n_centers": 30},
        }[case.centers]
        ridge = 0.0 if self.solver.name == "eigenpro4_exact" else case.ridge
        options = {"ridge": ridge, **self.options, **centers, **(self.steps if far else {})}
        return estimator(
            kernel=kernels.Laplacian(case.bandwidth), solver=self.solver, random_state=0, **options
        )


FITS = {
    "direct": Fit(solvers.Direct()),
    "eigenpro4": Fit(solvers.EigenPro4(s=30, q=8), {"epochs": 2}, steps={"epochs": 30}, near=0.1),
    "eigenpro3": Fit(
        solvers.EigenPro3(s=30, q=8, m=20), {"epochs": 2}, steps={"epochs": 30}, near=0.1
    ),
    "eigenpro2": Fit(solvers.EigenPro2(s=30, q=8), {"epochs": 2}, steps={"epochs": 60}, near=0.05),
    "eigenpro1": Fit(solvers.EigenPro1(q=8), {"epochs": 2}, steps={"epochs": 60}, near=0.01),
    "eigenpro4_exact": Fit(solvers.EigenPro4Exact(), {"epochs": 2}, tolerance=1e-7, near=1e-7),
    "falkon": Fit(solvers.Falkon(tolerance=1e-10), tolerance=1e-6, near=1e-6),
    "logistic": Fit(
        solvers.Falkon("logistic", tolerance=1e-9), tolerance=1e-5, near=1e-5, classes=(True,)
    ),
    "huber": Fit(
        solvers.EigenPro4(s=30, q=8, loss="huber"),
        {"epochs": 2},
        steps={"epochs": 30},
        near=0.1,
        classes=(False,),
    ),
    "quantile": Fit(
        solvers.Falkon(losses.Quantile(0.9), tolerance=1e-9),
        tolerance=1e-5,
        near=1e-5,
        classes=(False,),
    ),
    "pcg": Fit(solvers.PCG(tolerance=1e-10), tolerance=1e-6, near=1e-6),
    "askotch": Fit(solvers.ASkotch(m=30, rank=20), {"epochs": 2}, steps={"epochs": 30}, near=1e-3),
    "nytro": Fit(solvers.NYTRO(iterations=50), {"early_stopping": False}),
    "pegasos": Fit(
        solvers.Pegasos(m=20), {"epochs": 2}, steps={"epochs": 60}, near=0.1, classes=(True,)
    ),
    "sgpr": Fit(solvers.SGPR(), classes=(False,)),
    "nothing said": Fit(None, tolerance=0.05, near=0.05, chosen=True),
}
ROWS = [
    (fit, classes, f"{name}-{'classes' if classes else 'numbers'}")
    for name, fit in FITS.items()
    for classes in fit.classes
]
EVERY = pytest.mark.parametrize(
    ("fit", "classes"), [pytest.param(fit, classes, id=name) for fit, classes, name in ROWS]
)
NUMBERS = pytest.mark.parametrize(
    "fit", [pytest.param(fit, id=name) for fit, classes, name in ROWS if not classes]
)
CLASSES = pytest.mark.parametrize(
    "fit", [pytest.param(fit, id=name) for fit, classes, name in ROWS if classes]
)


@st.composite
def cases(draw, fit: Fit, classes: bool) -> tuple[Case, np.random.Generator]:
    """A smooth function of a few columns with noise.

    Some columns are of few whole numbers, so that rows may coincide.
    """
    g = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, d = (
        draw(st.integers(120, 150) if fit.chosen else st.integers(60, 100)),
        draw(st.integers(3, 4)),
    )
    X, T, Z = (g.normal(size=(rows, d)) for rows in (n, 30, 30))
    if draw(st.booleans()):
        X[:, -1], T[:, -1], Z[:, -1] = (np.round(2 * part[:, -1]) for part in (X, T, Z))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, -1] + 0.2 * g.normal(size=n)
    every_row = fit.chosen or fit.solver.every_row
    centers = "every" if every_row else draw(st.sampled_from(["given", "every", "drawn"]))
    y = np.digitize(y, np.quantile(y, [0.3, 0.6])) if classes else y
    return Case(X, y, T, g.uniform(1.0, 3.0, size=d), centers, Z), g


def examples(budget: settings, long: bool) -> settings:
    """Half as many where a fit takes long: everything is chosen, or there are many steps."""
    return settings(budget, max_examples=budget.max_examples // 2) if long else budget


def answers(fit: Fit, case: Case, classes: bool, far: bool = False) -> np.ndarray:
    """What the model says of the rows T: predictions, with their deviations where it has them; or
    values and probabilities.
    """
    with warnings.catch_warnings():
        # Of steps that end before their limit: two runs are compared, not judged.
        warnings.simplefilter("ignore")
        return said(fit.model(case, classes, far).fit(case.X, case.y, case.w), case.T)


def said(model: Any, T: Any) -> np.ndarray:
    if hasattr(model, "classes_"):
        return np.column_stack([model._values(T).numpy(), model.predict_proba(T)])
    return np.column_stack(
        model.predict(T, return_std=True)
        if model.model_.process is not None
        else [model.predict(T)]
    )


def same(a: np.ndarray, b: np.ndarray, tolerance: float) -> None:
    """Column by column, relative to its largest value."""
    np.testing.assert_array_less(np.abs(a - b).max(0), tolerance * np.abs(a).max(0) + 1e-300)


def follow(
    budget: settings,
    fit: Fit,
    classes: bool,
    law: Callable[[Any, Case, np.random.Generator], Case],
    far: bool = False,
) -> None:
    """A case, and what the law makes of it, are answered alike."""

    @examples(budget, fit.chosen or (far and bool(fit.steps)))
    @given(cases(fit, classes), st.data())
    def check(made, data):
        case, g = made
        other = law(data.draw, case, g)
        a, b = answers(fit, case, classes, far), answers(fit, other, classes, far)
        # Its probabilities follow from the rows that it learned,.
        if far and fit.solver is not None and fit.solver.loss_name == "hinge":
            a, b = (
                a[:, :3],
                b[:, :3],
                # Where values of ±1 are as sure as can be: a little more or less is another
                # probability.
            )
        same(a, b, fit.near if far else fit.tolerance)

    check()


# ---- laws of every solver, and of an estimator without any argument
# --------------------------------------------------------------------


@EVERY
@BUDGETS
def test_the_unit_of_a_column_does_not_matter(budget, fit, classes):
    def law(draw, case, g):
        units = np.array([draw(UNITS) for _ in range(case.d)])
        return case.columns(lambda rows: rows * units, case.bandwidth * units)

    follow(budget, fit, classes, law)


@EVERY
@BUDGETS
def test_the_offset_of_a_column_does_not_matter(budget, fit, classes):
    """1,000,000 ± 1 has ten digits after the point in float64."""

    def law(draw, case, g):
        offsets = np.array([draw(OFFSETS) for _ in range(case.d)])
        return case.columns(lambda rows: rows + offsets, case.bandwidth)

    follow(budget, replace(fit, tolerance=max(fit.tolerance, 1e-6)), classes, law)


@NUMBERS
@BUDGETS
def test_the_unit_and_offset_of_the_target_are_those_of_predictions(budget, fit):
    @examples(budget, fit.chosen)
    @given(cases(fit, False), UNITS, OFFSETS)
    def check(made, unit, offset):
        case, _ = made
        offset *= min(unit, 1.0)  # so that float64 has the digits
        moved = answers(fit, replace(case, y=case.y * unit + offset), False)
        moved[:, 0] -= offset  # a deviation has a unit, and no offset
        same(answers(fit, case, False), moved / unit, max(fit.tolerance, 1e-6))

    check()


@EVERY
@BUDGETS
def test_the_order_of_rows_does_not_matter(budget, fit, classes):
    follow(budget, fit, classes, lambda draw, case, g: case.rows(g.permutation(len(case.X))))


@EVERY
@BUDGETS
def test_the_order_of_columns_does_not_matter(budget, fit, classes):
    """Rows are taken in the order of what stands in their columns: solvers that go by steps see
    others first, and tend to the same.
    """

    def law(draw, case, g):
        order = g.permutation(case.d)
        return case.columns(lambda rows: rows[:, order], case.bandwidth[order])

    # Other rows first, and so other centers: only their kind is the same.
    def drawn_from_all(draw, case, g):
        return law(draw, case, g) if case.centers != "drawn" else case

    follow(budget, fit, classes, drawn_from_all, far=True)


@CLASSES
@BUDGETS
def test_the_names_of_classes_do_not_matter(budget, fit):
    @examples(budget, fit.chosen)
    @given(cases(fit, True), st.permutations(["zebra", "a", "b"]), st.permutations([3, -1, 10**12]))
    def check(made, texts, numbers):
        case, _ = made
        want = answers(fit, case, True)
        for names in (texts, numbers):
            found = answers(fit, replace(case, y=np.array(names)[case.y]), True)
            places = np.searchsorted(sorted(names), names)  # classes_ are sorted
            same(want, found[:, [*places, *(3 + places)]], max(fit.tolerance, 1e-6))

    check()


@EVERY
@BUDGETS
def test_a_weight_of_k_is_k_copies(budget, fit, classes):
    @examples(budget, fit.chosen)
    @given(cases(fit, classes))
    def check(made):
        case, g = made
        w = g.integers(1, 4, len(case.X))
        copies = g.permutation(np.repeat(np.arange(len(case.X)), w))
        weighted, copied = (
            answers(fit, other, classes)
            for other in (case.rows(np.arange(len(w)), w.astype(float)), case.rows(copies))
        )
        same(weighted, copied, fit.tolerance)

    check()


@EVERY
@BUDGETS
def test_a_row_of_weight_0_is_not_there(budget, fit, classes):
    def law(draw, case, g):
        X, y = (
            np.concatenate([case.X, 100 * case.T]),
            np.concatenate([case.y, g.permutation(case.y)[: len(case.T)]]),
        )
        order, w = g.permutation(len(X)), np.repeat([1.0, 0.0], [len(case.X), len(case.T)])
        return replace(case, X=X, y=y).rows(order, w[order])

    follow(budget, fit, classes, law)


@EVERY
@BUDGETS
def test_weights_and_ridge_have_one_unit(budget, fit, classes):
    if getattr(fit.solver, "name", "") == "sgpr":
        pytest.skip(
            "a weight of k is k targets of a Gaussian process: its deviations follow the number of"
            " them"
        )

    def law(draw, case, g):
        unit = draw(UNITS)
        return replace(case, w=np.full(len(case.X), unit), ridge=case.ridge * unit)

    follow(budget, replace(fit, tolerance=max(fit.tolerance, 1e-7)), classes, law)


@EVERY
@BUDGETS
def test_a_constant_column_says_nothing_even_where_it_varies_later(budget, fit, classes):
    def law(draw, case, g):
        value, place = draw(st.sampled_from([3.0, 0.0, 0.1, 1e6])), draw(st.integers(0, case.d))
        wide = case.columns(
            lambda rows: np.insert(rows, place, value, axis=1),
            np.insert(case.bandwidth, place, 1.0),
        )
        wide.T[:, place] += g.normal(size=len(wide.T)) * draw(st.sampled_from([1.0, 1e3, 0.0]))
        return wide

    follow(budget, fit, classes, law)


# ---- laws of a fitted model


@EVERY
def test_rows_are_predicted_alike_alone_and_together(fit, classes):
    case, _ = example(fit, classes)
    model = fitted(fit, case, classes)
    alone = np.concatenate([said(model, case.T[i : i + 1]) for i in range(len(case.T))])
    same(said(model, case.T), alone, 1e-10)


@EVERY
def test_saved_pickled_and_fitted_again_it_says_the_same_to_the_bit(tmp_path, fit, classes):
    case, _ = example(fit, classes)
    model = fitted(fit, case, classes)
    want = said(model, case.T)
    model.save(tmp_path / "m")
    for again in (
        load(tmp_path / "m"),
        pickle.loads(pickle.dumps(model)),
        fitted(fit, case, classes),
        clone(model),
    ):
        if not hasattr(again, "model_"):
            again.fit(case.X, case.y)
        np.testing.assert_array_equal(said(again, case.T), want)


@pytest.mark.parametrize("classes", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_onnx_file_says_the_same(tmp_path, classes):
    fit = FITS["nothing said"]
    case, _ = example(fit, classes)
    model = fitted(fit, case, classes)
    model.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"X": case.T}), strict=True))
    if classes:
        np.testing.assert_array_equal(found["label"], model.predict(case.T))
    same(
        *(
            (model.predict_proba(case.T), found["probabilities"])
            if classes
            else (model.predict(case.T), found["prediction"])
        ),
        1e-6,
    )


def example(fit: Fit, classes: bool) -> tuple[Case, np.random.Generator]:
    """One case of the strategy, the same in every run."""
    kept: list[Any] = []

    @settings(FEW, max_examples=1)
    @given(cases(fit, classes))
    def draw(case):
        kept.append(case)

    draw()
    return kept[0]


def fitted(fit: Fit, case: Case, classes: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit.model(case, classes).fit(case.X, case.y)


# ---- units by powers of two, and more rows than are merged


@pytest.mark.parametrize("classes", [False, True])
@BUDGETS
def test_units_that_are_powers_of_two_give_the_same_bits(budget, classes):
    """Everything is chosen in the data's own units, so nothing is rounded otherwise."""
    fit = FITS["nothing said"]

    @examples(budget, fit.chosen)
    @given(cases(fit, classes), st.integers(1, 30))
    def check(made, power):
        case, g = made
        units, unit = 2.0 ** g.integers(-30, 31, case.d), 1.0 if classes else 2.0**-power
        other = replace(
            case.columns(lambda rows: rows * units, case.bandwidth),
            y=case.y if classes else case.y * unit,
        )
        np.testing.assert_array_equal(
            answers(fit, other, classes) / unit, answers(fit, case, classes)
        )

    check()


@pytest.mark.parametrize(
    "name", ["direct", "falkon", "nytro", pytest.param("eigenpro4", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("classes", [False, True])
@BUDGETS
def test_above_ten_thousand_rows_order_and_copies_do_not_matter_either(
    monkeypatch, budget, classes, name
):
    """Rows that coincide are merged up to there, and no longer above: with centers that are given
    it is the same problem.
    """
    monkeypatch.setattr(regressor, "MERGE_ROWS", 0)
    monkeypatch.setattr(classifier, "MERGE_ROWS", 0)
    fit = FITS[name]
    fit = replace(fit, steps={"epochs": 100}) if fit.steps else fit

    @examples(budget, bool(fit.steps))
    @given(cases(fit, classes))
    def check(made):
        case, g = replace(made[0], centers="given"), made[1]
        w = g.integers(0, 4, len(case.X))
        copies = g.permutation(np.repeat(np.arange(len(case.X)), w))
        a, b = (
            answers(fit, other, classes, far=True)
            for other in (case.rows(np.arange(len(w)), w.astype(float)), case.rows(copies))
        )
        # Probabilities follow from rows left out one by one: of copies, the others stay.
        values = 3 if classes else 1
        same(a[:, :values], b[:, :values], fit.near)

    check()


def test_probabilities_do_not_depend_on_the_order_of_rows_or_classes():
    for seed in range(20):
        g = np.random.default_rng(seed)
        values, codes, w = (
            torch.from_numpy(g.normal(0.3, 0.4, size=(100, 3))),
            g.integers(0, 3, 100),
            torch.ones(100, dtype=torch.float64),
        )
        targets, rows, classes = (
            torch.eye(3, dtype=torch.float64)[codes],
            g.permutation(100),
            g.permutation(3),
        )
        values += 0.5 * targets
        a = calibrate(values, targets, w, targets.sum(0))
        b = calibrate(
            values[rows][:, classes], targets[rows][:, classes], w, targets.sum(0)[classes]
        )
        torch.testing.assert_close(
            a.logits(values)[rows][:, classes],
            b.logits(values[rows][:, classes]),
            rtol=1e-4,
            atol=1e-4,
        )


def test_a_constant_column_does_not_change_the_bandwidths_of_others():
    g = np.random.default_rng(0)
    X, w = torch.from_numpy(g.normal(size=(150, 3))), torch.ones(150, dtype=torch.float64)
    Y = (
        torch.sin(2 * X[:, :1])
        + X[:, 1:2] * X[:, 2:]
        + 0.2 * torch.from_numpy(g.normal(size=(150, 1)))
    )
    wide = torch.cat([X, torch.full((150, 1), 0.1, dtype=torch.float64)], 1)
    alone, beside = (
        tune("laplacian", None, Sample(rows, Y, w, 1.0)).kernel.bandwidth[:3] for rows in (X, wide)
    )
    torch.testing.assert_close(alone, beside, rtol=1e-3, atol=0)


# ---- whatever the data

UGLY = {
    "one value": lambda g, n: np.full(n, 3.0),
    "nearly all alike": lambda g, n: np.where(np.arange(n) == 1, 5.0, 0.0),
    "huge": lambda g, n: 1e12 * g.normal(size=n),
    "tiny": lambda g, n: 1e-12 * g.normal(size=n),
    "heavy tails": lambda g, n: g.standard_cauchy(n),
    "noise": lambda g, n: g.normal(size=n),
}


def ugly_rows(g: np.random.Generator, n: int, kind: str) -> np.ndarray:
    X = g.normal(size=(n, 3))
    X[:, 1] = UGLY[kind](g, n)
    X[n // 2 :] = X[: n - n // 2]  # each twice
    return X


@BUDGETS
@pytest.mark.parametrize("kind", UGLY)
def test_error_bars_are_positive_and_intervals_nest(budget, kind):
    @settings(budget)
    @given(st.sampled_from([30, 60, 120]), st.sampled_from([*UGLY]), st.integers(0, 9))
    def law(n, column, seed):
        g = np.random.default_rng(seed)
        X, y = ugly_rows(g, n, column), UGLY[kind](g, n)
        T = np.concatenate([X[:3], ugly_rows(g, 10, "noise"), [[1e6, -1e6, 0.0]]])
        for how in ("conformal", "posterior"):
            model = KernelRegressor(kernel=kernels.Gaussian(2.0), uncertainty=how, random_state=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(X, y)
                mean, *limits = (model.predict(T), *map(model.predict_interval, [T] * 3, SHARES))
                deviation = model.predict(T, return_std=True)[1]
            assert np.isfinite(mean).all() and np.isfinite(deviation).all()
            assert (deviation > 0).all()
            for (low, high), (lower, higher) in itertools.pairwise(limits):
                assert (lower <= low).all() and (low <= high).all() and (high <= higher).all()

    law()


SHARES = (0.3, 0.5, 0.8)


@BUDGETS
@pytest.mark.parametrize("column", UGLY)
def test_probabilities_are_positive_and_sum_to_one(budget, column):
    @settings(budget)
    @given(st.sampled_from([30, 12, 120]), st.sampled_from([2, 3, 5]), st.integers(0, 9))
    def law(n, c, seed):
        g = np.random.default_rng(seed)
        X, labels = ugly_rows(g, n, column), np.arange(n) % c
        labels[2 * c :] = np.minimum(labels[2 * c :], 1)  # two rows of the others
        T = np.concatenate([X[:3], [[1e6, -1e6, 0.0]]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = KernelClassifier(kernel=kernels.Gaussian(2.0), random_state=0).fit(X, labels)
        shares = model.predict_proba(T)
        assert (shares >= 0).all() and shares.sum(1) == pytest.approx(1, abs=1e-6)
        assert list(model.classes_[shares.argmax(1)]) == list(model.predict(T))

    law()


# ---- the page


def test_every_solver_has_its_laws():
    assert {fit.solver.name for fit in FITS.values() if fit.solver} == set(solvers.NAMED)


def test_every_test_that_the_page_names_exists():
    here = Path(__file__).parent
    named = set(
        re.findall(
            r"`(test_\w+)`", (here.parent / "docs" / "reliability.md").read_text(encoding="utf-8")
        )
    )
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in here.glob("test_*.py")]
    there = {
        node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }
    assert len(named) > 20 and not named - there
    laws = {name for name in there if name.startswith("test_")} & {
        node.name
        for path in here.glob("test_laws*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    assert (
        not laws
        - named
        - {"test_every_test_that_the_page_names_exists", "test_every_solver_has_its_laws"}
    )
