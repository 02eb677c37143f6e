"""Losses, and solvers of other losses and other promises, against other implementations: finite
differences, L-BFGS, SVC, LogisticRegression, GPyTorch.
"""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from conftest import Problem, make_problem
from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, load, losses, solvers
from kernelmill.cli.config import estimator_arguments
from kernelmill.data import ArraySource
from kernelmill.distributed.threads import run_threads
from kernelmill.planning.plan import Plan
from kernelmill.solvers import (
    NYTRO,
    SGPR,
    EigenPro1,
    EigenPro2,
    EigenPro3,
    EigenPro4,
    Falkon,
    Pegasos,
)
from kernelmill.tuning import elbo
from kernelmill.tuning.sample import Sample


def classes(n=300, c=3, seed=0, d=4):
    problem = make_problem(n=n, d=d, c=c, noise=0.5, seed=seed)
    return problem.X.numpy(), problem.Y.argmax(1).numpy()


# ---- every entry of the registry


def drawn(
    loss: losses.Loss, m: int = 400, c: int = 3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values, targets of the loss's kind, and directions, in float64; of classes some rows are
    shares, as merged rows are.
    """
    g = torch.Generator().manual_seed(0)
    f, y, v = (torch.randn(m, c, generator=g, dtype=torch.float64) for _ in range(3))
    if not loss.for_numbers:
        y = torch.where(
            torch.arange(m)[:, None] % 2 == 0,
            torch.softmax(y, 1),
            torch.eye(c, dtype=torch.float64)[y.argmax(1)],
        )
    return f, y, v


@pytest.mark.parametrize("name", losses.NAMED)
def test_gradient_and_curvature_are_half_the_derivatives(name):
    loss = losses.NAMED[name]()
    f, y, v = drawn(loss)
    step = 1e-6
    slope = (loss.value(f + step * v, y) - loss.value(f - step * v, y)) / (2 * step)
    torch.testing.assert_close((loss.gradient(f, y) * v).sum(1), slope / 2, rtol=1e-6, atol=1e-7)
    change = (loss.gradient(f + step * v, y) - loss.gradient(f - step * v, y)) / (2 * step)
    torch.testing.assert_close(loss.curvature(f, y, v), change, rtol=1e-5, atol=1e-7)
    assert loss.value(f, y).shape == (400,) and loss.gradient(f, y).shape == f.shape


@pytest.mark.parametrize("name", losses.NAMED)
def test_no_curvature_is_above_the_largest_and_some_reach_it(name):
    loss = losses.NAMED[name]()
    f, y, v = drawn(loss)
    bends = loss.curvature(f, y, v).norm(dim=1) / v.norm(dim=1)
    assert (bends <= loss.largest_curvature * (1 + 1e-12)).all()
    if loss.is_smooth:  # where values meet targets, and where two classes are equally likely
        f[:] = y if loss.for_numbers else torch.tensor([0.0, 0.0, -40.0])
        v[:] = torch.tensor([1.0, -1.0, 0.0])
        reached = loss.curvature(f, y, v).norm(dim=1) / v.norm(dim=1)
        torch.testing.assert_close(reached, torch.full_like(reached, loss.largest_curvature))


@pytest.mark.parametrize("name", losses.NAMED)
def test_a_loss_becomes_plain_data_and_comes_back(name):
    loss = losses.NAMED[name]()
    assert (
        losses.resolve(losses.plain(loss)) == loss == losses.resolve(name) == losses.resolve(loss)
    )
    assert loss.for_numbers or loss.for_classes


def test_losses_have_the_values_of_others():
    f, y, _ = drawn(losses.Huber())
    theirs = torch.nn.functional.huber_loss(f, y, reduction="none", delta=0.7).sum(1)
    torch.testing.assert_close(losses.Huber(0.7).value(f, y), 2 * theirs)
    torch.testing.assert_close(losses.Huber(1e9).value(f, y), losses.Square().value(f, y))
    _, classes, _ = drawn(losses.Logistic())
    theirs = torch.nn.functional.cross_entropy(f, classes, reduction="none")
    torch.testing.assert_close(losses.Logistic().value(f, classes), theirs)
    # the pinball loss, averaged over errors of ±width
    errors = torch.linspace(-0.3, 0.3, 6001, dtype=torch.float64)
    u = (y - f)[..., None] + errors
    pinball = torch.maximum(0.8 * u, -0.2 * u).mean(-1).sum(1)
    torch.testing.assert_close(
        losses.Quantile(0.8, width=0.3).value(f, y), pinball, rtol=1e-4, atol=1e-5
    )


def test_what_cannot_be_a_loss_is_said():
    for given, words in (
        ("hubber", "Did you mean 'huber'"),
        (3.0, "expected a name, or an object such as"),
        ({"delta": 1.0}, "expected a name, or an object such as"),
        (
            {"name": "huber", "width": 1.0},
            "huber setting='width' is not known: expected one of 'delta'",
        ),
    ):
        with pytest.raises(InputError, match=words):
            losses.resolve(given)
    with pytest.raises(InputError, match="delta=0 was given, expected a number above 0"):
        losses.Huber(0)
    with pytest.raises(InputError, match=r"width=-1\.0 was given"):
        losses.Quantile(width=-1.0)
    with pytest.raises(
        InputError, match="quantile=90 was given, expected a number between 0 and 1"
    ):
        losses.Quantile(90)


@pytest.mark.parametrize(
    "loss",
    [losses.Square(), losses.Huber(30.0), losses.Quantile(0.9, width=5.0), losses.Logistic()],
    ids=repr,
)
def test_within_a_source_a_loss_is_that_of_the_users_units(loss):
    """The square of the scale falls out of the loss, as it does of the ridge."""
    f, y, _ = drawn(loss)
    if loss.for_numbers:
        y = 37 * y + 1000
        mean, scale = y.mean(0), y.std(0)
    else:
        mean, scale = y.mean(0), torch.ones(3, dtype=torch.float64)
    source = ArraySource(torch.zeros(400, 1), y, mean=mean, scale=scale)
    near = loss.within(source, f)
    Y, _ = source.targets(torch.arange(400))
    value = torch.stack(
        [
            loss.value(*((f * scale + loss.intercept(mean, source))[:, [j]], y[:, [j]]))
            for j in range(3)
        ],
        1,
    )
    unit = scale if loss.name == "quantile" else scale**2
    value = (value / unit).sum(1) if loss.for_numbers else loss.value(f + loss.intercept(mean), y)
    torch.testing.assert_close(near.value(f, Y), value)
    assert near.total_of_nothing(Y, torch.ones(400, 1)) == pytest.approx(
        near.value(torch.zeros_like(f), Y).sum().item()
    )


# ---- solvers of any smooth loss

SMOOTH = [losses.Square(), losses.Logistic(), losses.Huber(0.3), losses.Quantile(0.9, width=0.3)]


def smooth_problem(loss, **sizes):
    problem = make_problem(**{"n": 200, "p": 200, "noise": 0.5, "weights": True, **sizes})
    if not loss.for_numbers:
        problem.Y = torch.nn.functional.one_hot(problem.Y.argmax(1), 3).double()
    return problem


def least_by_lbfgs(problem, value_of, ridge) -> torch.Tensor:
    """(n, c) values of the minimiser, from the loss's values and automatic differentiation alone:
    f = Φβ, ‖f‖² = ‖β‖².
    """
    L = torch.linalg.cholesky(problem.kernel(problem.Z))
    Phi = torch.linalg.solve_triangular(L, problem.kernel(problem.Z, problem.X), upper=False).T
    beta = torch.zeros(Phi.shape[1], problem.Y.shape[1], dtype=torch.float64, requires_grad=True)
    search = dict(
        max_iter=2000, max_eval=4000, tolerance_grad=1e-9, tolerance_change=0, history_size=50
    )
    optimizer = torch.optim.LBFGS([beta], **search, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        value = (problem.w * value_of(Phi @ beta, problem.Y)).sum() + ridge * (beta * beta).sum()
        value.backward()
        return value

    optimizer.step(closure)
    assert beta.grad.norm() < 1e-5
    return (Phi @ beta).detach()


@pytest.mark.parametrize("loss", SMOOTH, ids=repr)
def test_every_solver_of_smooth_losses_reaches_the_least(loss):
    problem, ridge = smooth_problem(loss), 1.0
    truth, K = (
        least_by_lbfgs(problem, loss.within(problem.source, problem.X).value, ridge),
        problem.kernel(problem.X),
    )
    for solver, epochs, near in (
        (EigenPro4(s=60, q=15, loss=loss), 60, 1e-3),
        (EigenPro4(s=60, q=15, loss=loss, projection="carried", m=20, T=3), 60, 1e-3),
        (EigenPro3(s=60, q=15, m=20, loss=loss), 40, 5e-2),
        (EigenPro2(s=60, q=15, loss=loss), 100, 1e-3),
        (EigenPro1(q=15, loss=loss), 100, 1e-3),
        (Falkon(loss=loss, tolerance=1e-8), 40, 1e-6),
    ):
        done = problem.drive(solver, epochs=epochs, ridge=ridge, regression=loss.for_numbers)
        assert done.ended is solvers.Ended.DONE and done.state.step_scale == 1, solver
        distance = ((K @ done.state.alpha - truth).norm() / truth.norm()).item()
        assert distance < near, (solver, distance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bandwidth", [0.3, 3.0, 30.0])
@pytest.mark.parametrize("loss", SMOOTH[1:], ids=repr)
def test_no_smooth_loss_diverges(loss, bandwidth, dtype):
    problem = smooth_problem(loss, n=400, p=80, kernel=kernels.Laplacian(bandwidth))
    for solver in (
        EigenPro4(s=20, q=5, loss=loss),
        EigenPro4(s=80, q=70, loss=loss),
        EigenPro3(s=20, q=5, loss=loss),
    ):
        done = problem.drive(solver, epochs=2, dtype=dtype, regression=loss.for_numbers)
        assert done.ended is solvers.Ended.DONE and done.state.step_scale == 1
        near, f = (
            loss.within(problem.source, problem.X),
            problem.kernel(problem.X, problem.Z) @ done.state.alpha.double(),
        )
        assert (problem.w * near.value(f, problem.Y)).sum() < near.total_of_nothing(
            problem.Y, problem.w[:, None]
        )


@pytest.mark.parametrize("loss", SMOOTH[1:], ids=repr)
def test_ranks_train_any_smooth_loss_alike(loss):
    settings = dict(epochs=2, ridge=0.1, regression=loss.for_numbers)
    for solver in (
        EigenPro4(s=60, q=15, loss=loss, m=20, T=2),
        EigenPro3(s=60, q=15, m=20, loss=loss),
        EigenPro2(s=60, q=15, loss=loss),
    ):
        problem = smooth_problem(loss, p=200 if solver.every_row else 60)
        alone = problem.solve(solver, **settings).alpha
        parts = run_threads(
            3,
            lambda comm, solver=solver, problem=problem: (
                problem.solve(solver, comm=comm, **settings).alpha
            ),
        )
        together = torch.empty_like(alone)
        for rank, part in enumerate(parts):
            together[rank::3] = part
        torch.testing.assert_close(together, alone, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("loss", [losses.Huber(20.0), losses.Quantile(0.9, width=8.0)], ids=repr)
def test_a_regression_is_that_of_the_users_units_and_weights(loss):
    """Targets of mean 1000 and deviation 40.

    The intercept is the best constant; the quantile loss counts in deviations.
    """
    g = np.random.default_rng(0)
    X, w = g.normal(size=(150, 3)), g.integers(1, 5, 150).astype(float)
    y = 1000 + 37 * (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * g.normal(size=150))
    model = KernelRegressor(
        kernel=kernels.Laplacian(2.0),
        ridge=3.0,
        solver=Falkon(loss, tolerance=1e-9, iterations=100),
    ).fit(X, y, w)

    weights, targets = torch.from_numpy(w), torch.from_numpy(y)[:, None]
    total = lambda b: (weights * loss.value(torch.full_like(targets, b), targets)).sum().item()  # noqa: E731
    best = minimize_scalar(total, bounds=(900, 1200), method="bounded", options={"xatol": 1e-9}).x
    assert model.model_.intercept.item() == pytest.approx(best, rel=1e-7)
    deviation = np.sqrt(np.average((y - np.average(y, weights=w)) ** 2, weights=w))
    unit = deviation if loss.name == "quantile" else 1.0
    problem = Problem(
        torch.from_numpy(X), targets - best, torch.from_numpy(X), kernels.Laplacian(2.0), weights
    )
    truth = least_by_lbfgs(problem, lambda f, u: unit * loss.value(f, u), 3.0)[:, 0].numpy()
    np.testing.assert_allclose(model.predict(X) - best, truth, atol=1e-4 * np.abs(truth).max())


def test_falkon_and_eigenpro4_have_one_logistic_loss():
    X, y = classes(300, 3)
    kernel, weight = kernels.Laplacian(2.0), np.where(y == 1, 2.0, 1.0)
    settings = dict(
        kernel=kernel, centers=X[:60], ridge=0.5, validation_fraction=0.0, random_state=0
    )
    falkon = KernelClassifier(
        solver=Falkon("logistic", tolerance=1e-8, iterations=30), **settings
    ).fit(X, y, weight)
    eigenpro4 = KernelClassifier(solver=EigenPro4(loss="logistic"), epochs=60, **settings).fit(
        X, y, weight
    )
    np.testing.assert_allclose(eigenpro4.predict_proba(X), falkon.predict_proba(X), atol=2e-3)
    assert eigenpro4.slope_ == 1.0 and eigenpro4.plan_.solver == "eigenpro4"
    torch.testing.assert_close(eigenpro4.model_.intercept, falkon.model_.intercept)


def with_noise(n, g, scale=0.5):
    X = g.normal(size=(n, 4))
    truth = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    return X, truth, truth + scale * g.normal(size=n)


@pytest.mark.parametrize("solver", [EigenPro4, EigenPro2, Falkon])
@pytest.mark.parametrize("loss", ["huber", losses.Huber(delta=1.0)], ids=repr)
def test_outliers_do_not_move_a_huber_fit(solver, loss):
    g = np.random.default_rng(0)
    X, _, y = with_noise(1500, g)
    T, truth, _ = with_noise(1000, g)
    bad = g.random(1500) < 0.1
    y[bad] += 50 * np.abs(g.normal(size=bad.sum()))
    errors = []
    for given in ("square", loss):
        centers = None if solver is EigenPro2 else 300
        model = KernelRegressor(
            kernel=kernels.Laplacian(4.0),
            n_centers=centers,
            solver=solver(loss=given),
            ridge=1.0,
            random_state=0,
        )
        errors.append(np.mean((model.fit(X, y).predict(T) - truth) ** 2))
    assert errors[1] < 0.25 * truth.var() < 4 * truth.var() < errors[0]


@pytest.mark.parametrize("solver", [EigenPro4, Falkon])
@pytest.mark.parametrize("quantile", [0.9, 0.25])
def test_a_quantile_covers_its_share_of_fresh_rows(solver, quantile):
    g = np.random.default_rng(0)
    X, _, y = with_noise(4000, g)
    T, _, fresh = with_noise(4000, g)
    model = KernelRegressor(
        kernel=kernels.Laplacian(4.0),
        n_centers=300,
        solver=solver(loss=losses.Quantile(quantile)),
        ridge=1.0,
        random_state=0,
    )
    above = 1e6 * model.fit(X, 1e-6 * y).predict(T)  # in any unit
    assert np.mean(fresh < above) == pytest.approx(quantile, abs=0.03)
    assert np.corrcoef(above, fresh)[0, 1] > 0.7  # and it is no constant


def test_newton_steps_that_run_out_are_said():
    """Narrow, with next to no ridge: thirty steps of Falkon are few."""
    g = np.random.default_rng(0)
    X, _, y = with_noise(1500, g)
    narrow = Falkon(losses.Quantile(0.9, width=0.005))
    model = KernelRegressor(
        kernel=kernels.Laplacian(4.0), n_centers=300, solver=narrow, ridge=1e-3, random_state=0
    )
    said = "the loss still falls: use more iterations, or a larger ridge"
    with pytest.warns(ConvergenceWarning, match=said):
        model.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.set_params(solver=Falkon(losses.Quantile(0.9)), ridge=1.0).fit(X, y)


def test_rows_of_the_same_x_are_not_averaged_where_that_is_another_loss():
    """Two places with a hundred different targets each: their quantiles, not the quantile of two
    means.
    """
    g = np.random.default_rng(0)
    X, y = (
        np.repeat([[0.0], [5.0]], 200, axis=0),
        np.concatenate([g.normal(size=200), 10 + 3 * g.normal(size=200)]),
    )
    for loss, want in (
        (losses.Quantile(0.9, width=0.02), lambda part: np.quantile(part, 0.9)),
        ("huber", np.median),
    ):
        solver = Falkon(loss=loss, tolerance=1e-6, iterations=100)
        model = KernelRegressor(
            kernel=kernels.Gaussian(1.0),
            centers=np.array([[0.0], [5.0]]),
            ridge=1e-3,
            solver=solver,
        ).fit(X, y)
        np.testing.assert_allclose(
            model.predict([[0.0], [5.0]]), [want(y[:200]), want(y[200:])], atol=0.35
        )
        twice = KernelRegressor(
            kernel=kernels.Gaussian(1.0),
            centers=np.array([[0.0], [5.0]]),
            ridge=2e-3,
            solver=solver,
        )
        same = twice.fit(np.concatenate([X, X]), np.concatenate([y, y])).predict([[0.0], [5.0]])
        np.testing.assert_allclose(same, model.predict([[0.0], [5.0]]), rtol=1e-6)


# ---- who takes which


def test_the_page_of_solvers_says_who_takes_which_loss():
    page = (Path(__file__).parent.parent / "docs" / "solvers.md").read_text(encoding="utf-8")
    table = page[page.index("| loss |") :].split("\n\n")[0].splitlines()[2:]
    said = {
        row.split("|")[1].strip(' `"'): set(re.findall(r"`(\w+)`", row.split("|")[3]))
        for row in table
    }
    takes = {
        name: {
            type(s).__name__
            for s in (known() for known in solvers.NAMED.values())
            if s.takes(loss())
        }
        for name, loss in losses.NAMED.items()
    }
    assert said == takes


@pytest.mark.parametrize("name", losses.NAMED)
def test_a_loss_that_a_solver_does_not_take_is_said_in_a_sentence(name):
    X, y = classes(100, 2)
    loss = losses.NAMED[name]()
    estimator, target = (
        (KernelRegressor, y.astype(float)) if loss.for_numbers else (KernelClassifier, y)
    )
    for kind in (EigenPro4, EigenPro3, EigenPro2, EigenPro1, Falkon):
        model = estimator(
            kernel=kernels.Laplacian(2.0),
            solver=kind(loss=loss),
            ridge=0.1,
            epochs=1,
            random_state=0,
        )
        if kind().takes(loss):
            model.fit(X, target)
            continue
        with pytest.raises(
            InputError,
            match=re.escape(
                f"loss={loss!r} was given, but solver={kind.name!r} as set takes 'square', 'log"
            ),
        ):
            model.fit(X, target)
    if name != "square":
        for solver in (EigenPro4(recipe="paper", loss=name), EigenPro3(recipe="paper", loss=name)):
            with pytest.raises(InputError, match="as set takes 'square'; use one"):
                estimator(kernel=kernels.Laplacian(2.0), solver=solver).fit(X, target)


def test_losses_of_numbers_refuse_classes():
    X, y = classes()
    for loss in ("huber", losses.Quantile(0.9)):
        assert not EigenPro4(loss=loss).for_classes
        with pytest.raises(
            InputError, match="is one of numbers; use KernelRegressor, or loss='logistic'"
        ):
            KernelClassifier(solver=EigenPro4(loss=loss), kernel=kernels.Laplacian(2.0)).fit(X, y)
    assert (
        EigenPro4(loss="logistic").for_classes
        and Pegasos().for_classes
        and not EigenPro4().for_classes
    )


# ---- stored, and from a file of settings


@pytest.mark.parametrize(
    "solver",
    [EigenPro4(s=40, q=8, loss=losses.Huber(delta=0.7)), Falkon(loss=losses.Quantile(0.9))],
    ids=repr,
)
def test_a_loss_survives_saving_and_a_stored_plan(tmp_path, solver):
    g = np.random.default_rng(0)
    X, _, y = with_noise(300, g)
    settings = dict(kernel=kernels.Laplacian(3.0), n_centers=60)
    model = KernelRegressor(**settings, solver=solver, ridge=0.5, epochs=3, random_state=0).fit(
        X, y
    )
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.solver.loss == solver.loss and repr(again.solver) == repr(solver)
    assert (
        solvers.loss_of(again.plan_) == solver.loss
        and Plan.from_dict(again.plan_.to_dict()) == model.plan_
    )
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    repeated = KernelRegressor(**settings, solver=again.plan_, random_state=0).fit(X, y)
    np.testing.assert_array_equal(repeated.predict(X), model.predict(X))
    with pytest.raises(InputError, match="partial_fit needs the square loss"):
        again.partial_fit(X, y)


@pytest.mark.parametrize("kind", [EigenPro4, EigenPro3, EigenPro2, Falkon])
def test_a_run_with_another_loss_resumes_to_the_same_bits(tmp_path, kind):
    g = np.random.default_rng(0)
    X, _, y = with_noise(300, g)
    settings = dict(
        kernel=kernels.Laplacian(3.0),
        ridge=0.5,
        epochs=4,
        random_state=0,
        n_centers=None if kind is EigenPro2 else 60,
    )
    solver = kind(loss=losses.Huber(delta=0.7), **({"tolerance": 0} if kind is Falkon else {}))
    whole = KernelRegressor(**settings, solver=solver).fit(X, y)
    run = dict(checkpoint=tmp_path / "run", checkpoint_every=0, resume=True)
    KernelRegressor(
        **settings,
        **run,
        solver=solver,
        callbacks=lambda event: event.kind == "epoch" and event.epoch == 2,
    ).fit(X, y)
    resumed = KernelRegressor(**settings, **run, solver=solver).fit(X, y)
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))
    with pytest.raises(ValueError, match="holds a run with solver"):
        KernelRegressor(**settings, **run, solver=kind(loss="huber")).fit(X, y)


def test_a_file_of_settings_may_name_a_loss():
    made = estimator_arguments({"solver": {"name": "eigenpro4", "loss": "huber"}})["solver"]
    assert solvers.loss_of(made) == losses.Huber()
    made = estimator_arguments(
        {"solver": {"name": "falkon", "loss": {"name": "quantile", "quantile": 0.9}}}
    )["solver"]
    assert solvers.loss_of(made) == losses.Quantile(0.9)
    with pytest.raises(InputError, match="loss = 3 was given, expected"):
        estimator_arguments({"solver": {"name": "eigenpro4", "loss": 3}})


# ---- hinge


def symmetric(n=120):
    """Rows with their mirror images and the opposite labels: the support vector machine then has
    no intercept of its own.
    """
    X, y = classes(n, 2)
    return np.concatenate([X, -X]), np.concatenate([y, 1 - y])


def test_pegasos_is_a_support_vector_machine():
    X, y = symmetric()
    kernel, ridge = kernels.Laplacian(2.0), 0.5
    K = kernel(torch.from_numpy(X)).numpy()
    svc = SVC(kernel="precomputed", C=1 / (2 * ridge), tol=1e-6).fit(K, y)
    assert abs(svc.intercept_[0]) < 1e-6
    ours = KernelClassifier(
        kernel=kernel,
        solver=Pegasos(m=8),
        ridge=ridge,
        epochs=200,
        random_state=0,
        validation_fraction=0.0,
    ).fit(X, y)
    f, g = ours.model_(torch.from_numpy(X))[:, 1].numpy(), svc.decision_function(K)
    assert np.linalg.norm(f - g) / np.linalg.norm(g) < 0.02

    def objective(alpha, f):
        return np.clip(1 - (2 * y - 1) * f, 0, None).sum() + ridge * alpha @ K @ alpha

    dual = np.zeros(len(X))
    dual[svc.support_] = svc.dual_coef_[0]
    # the model's rows are sorted by the estimator: its weights are read through its own centers
    alpha = ours.model_.alpha[:, 1].numpy()
    norm = alpha @ kernel(ours.model_.Z).numpy() @ alpha
    assert np.clip(1 - (2 * y - 1) * f, 0, None).sum() + ridge * norm < 1.002 * objective(dual, g)


def test_pegasos_learns_several_classes_each_against_the_rest():
    X, y = classes(240, 3)
    kernel, ridge = kernels.Laplacian(2.0), 0.5
    ours = KernelClassifier(
        kernel=kernel,
        solver=Pegasos(m=8),
        ridge=ridge,
        epochs=100,
        random_state=0,
        validation_fraction=0.0,
    ).fit(X, y)
    K = kernel(torch.from_numpy(X)).numpy()
    values = ours.model_(torch.from_numpy(X)).numpy()
    for code in range(3):  # an intercept of its own moves every value alike
        svc = SVC(kernel="precomputed", C=1 / (2 * ridge), tol=1e-6).fit(K, y == code)
        assert np.corrcoef(values[:, code], svc.decision_function(K))[0, 1] > 0.99
    assert ours.score(X, y) > 0.75


def test_losses_of_classes_refuse_numbers():
    X, y = classes()
    for solver in (Falkon(loss="logistic"), Pegasos()):
        with pytest.raises(InputError, match="use KernelClassifier"):
            KernelRegressor(solver=solver, kernel=kernels.Laplacian(2.0)).fit(X, y.astype(float))
    with pytest.raises(InputError, match="needs a ridge above 0"):
        KernelClassifier(solver="pegasos", kernel=kernels.Laplacian(2.0), ridge=0.0).fit(X, y)


# ---- logistic


@pytest.mark.parametrize("c", [2, 3])
@pytest.mark.parametrize("keep", [True, False])
def test_logistic_falkon_is_logistic_regression_on_nystrom_features(c, keep):
    X, y = classes(300, c)
    kernel, ridge, Z = kernels.Laplacian(2.0), 0.3, X[:40]
    model = KernelClassifier(
        kernel=kernel,
        centers=Z,
        ridge=ridge,
        solver=Falkon(loss="logistic", iterations=50, tolerance=1e-7, keep=keep),
        validation_fraction=0.0,
    ).fit(X, y)
    K_XZ, K_ZZ = (kernel(torch.from_numpy(A), torch.from_numpy(Z)).numpy() for A in (X, Z))
    L = np.linalg.cholesky(K_ZZ)
    Phi = np.linalg.solve(L, K_XZ.T).T
    onehot, prior = np.eye(c)[y], model.model_.intercept.numpy()

    def objective(f, norm):
        logits = f + prior
        return (
            -(onehot * (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))).sum()
            + ridge * norm
        )

    weights = torch.zeros(40, c, dtype=torch.float64, requires_grad=True)
    P, T, b = torch.from_numpy(Phi), torch.from_numpy(onehot), torch.from_numpy(prior)
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=500,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimizer.zero_grad()
        value = -(T * torch.log_softmax(P @ weights + b, 1)).sum() + ridge * (weights**2).sum()
        value.backward()
        return value

    optimizer.step(closure)
    least = closure().item()
    alpha = model.model_.alpha.numpy()
    ours = objective(K_XZ @ alpha, np.trace(alpha.T @ K_ZZ @ alpha))
    assert ours < least + 1e-5 * abs(least)
    np.testing.assert_allclose(K_XZ @ alpha, (Phi @ weights.detach().numpy()), atol=2e-3)


def test_logistic_falkon_agrees_with_scikit_learn():
    """Equal class shares: the prior is then zero, and scikit-learn's model without intercept is
    the same.
    """
    X, y = symmetric(100)
    kernel, ridge, Z = kernels.Laplacian(2.0), 0.3, X[:30]
    model = KernelClassifier(
        kernel=kernel,
        centers=Z,
        ridge=ridge,
        solver=Falkon("logistic", tolerance=1e-7),
        validation_fraction=0.0,
    ).fit(X, y)
    K_XZ, K_ZZ = (kernel(torch.from_numpy(A), torch.from_numpy(Z)).numpy() for A in (X, Z))
    Phi = np.linalg.solve(np.linalg.cholesky(K_ZZ), K_XZ.T).T
    # two columns of weights ±u/2: our ridge on both is half of one on u
    sk = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-10, max_iter=2000).fit(Phi, y)
    np.testing.assert_allclose(model.decision_function(X), sk.decision_function(Phi), atol=1e-3)


def test_logistic_probabilities_are_those_of_the_model():
    X, y = classes(600, 3)
    model = KernelClassifier(
        kernel=kernels.Laplacian(2.0),
        n_centers=100,
        ridge=0.1,
        solver=Falkon("logistic"),
        random_state=0,
    ).fit(X, y)
    assert model.slope_ == 1.0 and model.score(X, y) > 0.6
    with pytest.raises(InputError, match="needs a ridge above 0"):
        KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=0.0, solver=Falkon("logistic")).fit(
            X, y
        )
    with pytest.raises(InputError, match="'square', 'logistic'"):
        KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=0.1, solver=Falkon("hinge")).fit(X, y)


# ---- early stopping as regularisation


def test_nytro_stops_where_held_out_rows_are_best():
    problem = make_problem(n=600, noise=1.0)
    X, y = problem.X.numpy(), problem.Y[:, 0].numpy()
    model = KernelRegressor(
        kernel=kernels.Gaussian(1.0),
        n_centers=300,
        ridge=0.0,
        solver=NYTRO(iterations=2000),
        random_state=0,
    ).fit(X, y)
    scores = [row["validation_score"] for row in model.history_ if "validation_score" in row]
    assert len(scores) < 2000 and scores.index(max(scores)) == len(scores) - 1 - NYTRO.patience
    without = KernelRegressor(
        kernel=kernels.Gaussian(1.0),
        n_centers=300,
        ridge=0.0,
        solver=NYTRO(iterations=50),
        early_stopping=False,
    )
    assert "validation_score" not in without.fit(X, y).history_[0] and without.n_iter_ == 50


# ---- Gaussian process


def gp_problem():
    problem = make_problem(n=200, d=2, c=1, noise=0.2)
    return problem.X, problem.Y[:, 0], problem.X[:25], problem.X[100:140] + 0.05


def test_sgpr_is_gpytorchs():
    gpytorch = pytest.importorskip("gpytorch")
    X, y, Z, X_new = gp_problem()
    y = y - y.mean()  # the estimator takes the mean off, GPyTorch's model here does not
    bandwidth, signal, noise = 1.3, 0.8, 0.05

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            base.base_kernel.lengthscale, base.outputscale = bandwidth, signal
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                base, inducing_points=Z.clone(), likelihood=likelihood
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = noise
    theirs = Model(likelihood).double()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, theirs)
    theirs.train()
    with gpytorch.settings.cholesky_max_tries(5), torch.no_grad():
        value = bound(theirs(X), y).item() * len(X)
    theirs.eval()
    # Their correction puts the exact diagonal into the training covariance too, which is another
    # model (FITC): it is added by hand here.
    with (
        torch.no_grad(),
        gpytorch.settings.fast_computations(False, False, False),
        gpytorch.settings.sgpr_diagonal_correction(False),
    ):
        answer = likelihood(theirs(X_new))
    kernel = kernels.Gaussian(bandwidth)
    K_new = kernel(X_new, Z)
    exact = 1 - (K_new @ torch.linalg.inv(kernel(Z)) * K_new).sum(1)
    ones = torch.ones(len(X), dtype=torch.float64)
    ours = elbo.elbo(
        kernel(Z),
        kernel(X, Z),
        ones,
        Sample(X, y[:, None], ones, 1.0),
        torch.tensor(noise / signal, dtype=torch.float64),
        noise,
    )
    assert ours.item() == pytest.approx(value, abs=0.02)  # theirs has a jitter of 1e-6
    model = KernelRegressor(
        kernel=kernel, centers=Z, ridge=noise / signal, solver=SGPR(noise=noise)
    ).fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    torch.testing.assert_close(std, (answer.variance + signal * exact).sqrt(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(mean, answer.mean, rtol=1e-3, atol=1e-3)


def test_sgpr_with_every_row_is_the_exact_gaussian_process():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    X, y, _, X_new = gp_problem()
    y = y - y.mean()
    signal, noise = 0.8, 0.05
    theirs = GaussianProcessRegressor(
        ConstantKernel(signal) * RBF(1.3), alpha=noise, optimizer=None
    ).fit(X.numpy(), y.numpy())
    mean, std = theirs.predict(X_new.numpy(), return_std=True)
    model = KernelRegressor(
        kernel=kernels.Gaussian(1.3), centers=X, ridge=noise / signal, solver=SGPR(noise=noise)
    ).fit(X.numpy(), y.numpy())
    ours, ours_std = model.predict(X_new.numpy(), return_std=True)
    np.testing.assert_allclose(ours, mean, atol=1e-5)
    np.testing.assert_allclose(ours_std, np.sqrt(std**2 + noise), rtol=1e-4)


def test_sgpr_finds_bandwidth_and_noise():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(800, 1, generator=g, dtype=torch.float64) * 10
    kernel = kernels.Gaussian(0.7)
    root = torch.linalg.cholesky(kernel(X) + 1e-8 * torch.eye(800, dtype=torch.float64))
    y = (
        root @ torch.randn(800, 1, generator=g, dtype=torch.float64)
        + 0.3 * torch.randn(800, 1, generator=g, dtype=torch.float64)
    )[:, 0]
    model = KernelRegressor(
        kernel=kernels.Gaussian("auto"), n_centers=100, solver="sgpr", random_state=0
    ).fit(X.numpy(), y.numpy())
    known = model.model_.process
    assert known.noise.item() == pytest.approx(0.09, rel=0.2)
    assert float(np.ravel(model.model_.kernel.bandwidth)[0]) == pytest.approx(0.7, rel=0.3)
    _, std = model.predict(X.numpy(), return_std=True)
    inside = np.abs(model.predict(X.numpy()) - y.numpy()) < 1.96 * std
    assert 0.92 < inside.mean() < 0.98


def test_a_sparse_process_is_saved_and_refused_where_it_makes_no_sense(tmp_path):
    X, y, _, X_new = gp_problem()
    model = KernelRegressor(
        kernel=kernels.Gaussian(1.0), n_centers=30, solver="sgpr", random_state=0
    ).fit(X.numpy(), y.numpy())
    model.save(tmp_path / "gp")
    again = load(tmp_path / "gp").predict(X_new.numpy(), return_std=True)
    for a, b in zip(again, model.predict(X_new.numpy(), return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(InputError, match="neither by solver='sgpr' nor"):
        other = KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=0.1).fit(X.numpy(), y.numpy())
        other.model_.std(X)
    with pytest.raises(InputError, match="use KernelRegressor"):
        KernelClassifier(kernel=kernels.Gaussian(1.0), solver="sgpr", ridge=0.1).fit(
            X.numpy(), (y > 0).numpy()
        )
    with pytest.raises(InputError, match="expected a variance above 0"):
        KernelRegressor(kernel=kernels.Gaussian(1.0), solver=SGPR(noise=-1.0), ridge=0.1).fit(
            X.numpy(), y.numpy()
        )


def test_every_named_solver_fits_from_its_name():
    X, y = classes(200, 2)
    for name in solvers.NAMED:
        if name == "sgpr":
            continue
        ridge, epochs = 0.0 if name == "eigenpro4_exact" else 0.1, 100 if name == "nytro" else 5
        estimator = KernelClassifier(
            kernel=kernels.Laplacian(2.0), solver=name, ridge=ridge, epochs=epochs, random_state=0
        )
        assert estimator.fit(X, y).score(X, y) > 0.7, name
