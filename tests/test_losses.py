"""Solvers of other losses and other promises, against other implementations: SVC, LogisticRegression, GPyTorch."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from conftest import make_problem
from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, load, solvers
from kernelmill.solvers import NYTRO, SGPR, Falkon, Pegasos
from kernelmill.tuning import elbo


def classes(n=300, c=3, seed=0, d=4):
    problem = make_problem(n=n, d=d, c=c, noise=0.5, seed=seed)
    return problem.X.numpy(), problem.Y.argmax(1).numpy()


# ---- hinge


def symmetric(n=120):
    """Rows with their mirror images and the opposite labels: the support vector machine then has no intercept of its own."""
    X, y = classes(n, 2)
    return np.concatenate([X, -X]), np.concatenate([y, 1 - y])


def test_pegasos_is_a_support_vector_machine():
    X, y = symmetric()
    kernel, ridge = kernels.Laplacian(2.0), 0.5
    K = kernel(torch.from_numpy(X)).numpy()
    svc = SVC(kernel="precomputed", C=1 / (2 * ridge), tol=1e-6).fit(K, y)
    assert abs(svc.intercept_[0]) < 1e-6
    ours = KernelClassifier(kernel=kernel, solver=Pegasos(m=8), ridge=ridge, epochs=200, random_state=0, validation_fraction=0.0).fit(X, y)
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
    ours = KernelClassifier(kernel=kernel, solver=Pegasos(m=8), ridge=ridge, epochs=100, random_state=0, validation_fraction=0.0).fit(X, y)
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
        return -(onehot * (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))).sum() + ridge * norm

    weights = torch.zeros(40, c, dtype=torch.float64, requires_grad=True)
    P, T, b = torch.from_numpy(Phi), torch.from_numpy(onehot), torch.from_numpy(prior)
    optimizer = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe")

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
    """Equal class shares: the prior is then zero, and scikit-learn's model without intercept is the same."""
    X, y = symmetric(100)
    kernel, ridge, Z = kernels.Laplacian(2.0), 0.3, X[:30]
    model = KernelClassifier(kernel=kernel, centers=Z, ridge=ridge, solver=Falkon("logistic", tolerance=1e-7), validation_fraction=0.0).fit(
        X, y
    )
    K_XZ, K_ZZ = (kernel(torch.from_numpy(A), torch.from_numpy(Z)).numpy() for A in (X, Z))
    Phi = np.linalg.solve(np.linalg.cholesky(K_ZZ), K_XZ.T).T
    # two columns of weights ±u/2: our ridge on both is half of one on u
    sk = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-10, max_iter=2000).fit(Phi, y)
    np.testing.assert_allclose(model.decision_function(X), sk.decision_function(Phi), atol=1e-3)


def test_logistic_probabilities_are_those_of_the_model():
    X, y = classes(600, 3)
    model = KernelClassifier(kernel=kernels.Laplacian(2.0), n_centers=100, ridge=0.1, solver=Falkon("logistic"), random_state=0).fit(X, y)
    assert model.temperature_ == 1.0 and model.score(X, y) > 0.6
    with pytest.raises(InputError, match="needs a ridge above 0"):
        KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=0.0, solver=Falkon("logistic")).fit(X, y)
    with pytest.raises(InputError, match="'square', 'logistic'"):
        KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=0.1, solver=Falkon("hinge")).fit(X, y)


# ---- early stopping as regularisation


def test_nytro_stops_where_held_out_rows_are_best():
    problem = make_problem(n=600, noise=1.0)
    X, y = problem.X.numpy(), problem.Y[:, 0].numpy()
    model = KernelRegressor(kernel=kernels.Gaussian(1.0), n_centers=300, ridge=0.0, solver=NYTRO(iterations=2000), random_state=0).fit(X, y)
    scores = [row["validation_score"] for row in model.history_ if "validation_score" in row]
    assert len(scores) < 2000 and scores.index(max(scores)) == len(scores) - 1 - NYTRO.patience
    without = KernelRegressor(kernel=kernels.Gaussian(1.0), n_centers=300, ridge=0.0, solver=NYTRO(iterations=50), early_stopping=False)
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
            self.covar_module = gpytorch.kernels.InducingPointKernel(base, inducing_points=Z.clone(), likelihood=likelihood)

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = noise
    theirs = Model(likelihood).double()
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, theirs)
    theirs.train()
    with gpytorch.settings.cholesky_max_tries(5), torch.no_grad():
        value = bound(theirs(X), y).item() * len(X)
    theirs.eval()
    # Their correction puts the exact diagonal into the training covariance too, which is another model (FITC): it is added by hand here.
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.sgpr_diagonal_correction(False):
        answer = likelihood(theirs(X_new))
    kernel = kernels.Gaussian(bandwidth)
    K_new = kernel(X_new, Z)
    exact = 1 - (K_new @ torch.linalg.inv(kernel(Z)) * K_new).sum(1)
    ones = torch.ones(len(X), dtype=torch.float64)
    ours = elbo.elbo(kernel(Z), kernel(X, Z), ones, y[:, None], ones, torch.tensor(noise / signal, dtype=torch.float64), noise)
    assert ours.item() == pytest.approx(value, abs=0.02)  # theirs has a jitter of 1e-6
    model = KernelRegressor(kernel=kernel, centers=Z, ridge=noise / signal, solver=SGPR(noise=noise)).fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    torch.testing.assert_close(std, (answer.variance + signal * exact).sqrt(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(mean, answer.mean, rtol=1e-3, atol=1e-3)


def test_sgpr_with_every_row_is_the_exact_gaussian_process():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    X, y, _, X_new = gp_problem()
    y = y - y.mean()
    signal, noise = 0.8, 0.05
    theirs = GaussianProcessRegressor(ConstantKernel(signal) * RBF(1.3), alpha=noise, optimizer=None).fit(X.numpy(), y.numpy())
    mean, std = theirs.predict(X_new.numpy(), return_std=True)
    model = KernelRegressor(kernel=kernels.Gaussian(1.3), centers=X, ridge=noise / signal, solver=SGPR(noise=noise)).fit(
        X.numpy(), y.numpy()
    )
    ours, ours_std = model.predict(X_new.numpy(), return_std=True)
    np.testing.assert_allclose(ours, mean, atol=1e-5)
    np.testing.assert_allclose(ours_std, np.sqrt(std**2 + noise), rtol=1e-4)


def test_sgpr_finds_bandwidth_and_noise():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(800, 1, generator=g, dtype=torch.float64) * 10
    kernel = kernels.Gaussian(0.7)
    root = torch.linalg.cholesky(kernel(X) + 1e-8 * torch.eye(800, dtype=torch.float64))
    y = (root @ torch.randn(800, 1, generator=g, dtype=torch.float64) + 0.3 * torch.randn(800, 1, generator=g, dtype=torch.float64))[:, 0]
    model = KernelRegressor(kernel=kernels.Gaussian("auto"), n_centers=100, solver="sgpr", random_state=0).fit(X.numpy(), y.numpy())
    known = model.model_.uncertainty
    assert known.noise.item() == pytest.approx(0.09, rel=0.2)
    assert float(np.ravel(model.model_.kernel.bandwidth)[0]) == pytest.approx(0.7, rel=0.3)
    _, std = model.predict(X.numpy(), return_std=True)
    inside = np.abs(model.predict(X.numpy()) - y.numpy()) < 1.96 * std
    assert 0.92 < inside.mean() < 0.98


def test_standard_deviations_are_saved_and_only_there_for_a_gaussian_process(tmp_path):
    X, y, _, X_new = gp_problem()
    model = KernelRegressor(kernel=kernels.Gaussian(1.0), n_centers=30, solver="sgpr", random_state=0).fit(X.numpy(), y.numpy())
    model.save(tmp_path / "gp")
    again = load(tmp_path / "gp").predict(X_new.numpy(), return_std=True)
    for a, b in zip(again, model.predict(X_new.numpy(), return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(InputError, match="solver='sgpr'"):
        KernelRegressor(kernel=kernels.Gaussian(1.0), ridge=0.1).fit(X.numpy(), y.numpy()).predict(X.numpy(), return_std=True)
    with pytest.raises(InputError, match="use KernelRegressor"):
        KernelClassifier(kernel=kernels.Gaussian(1.0), solver="sgpr", ridge=0.1).fit(X.numpy(), (y > 0).numpy())
    with pytest.raises(InputError, match="expected a variance above 0"):
        KernelRegressor(kernel=kernels.Gaussian(1.0), solver=SGPR(noise=-1.0), ridge=0.1).fit(X.numpy(), y.numpy())


def test_every_named_solver_fits_from_its_name():
    X, y = classes(200, 2)
    for name in solvers.NAMED:
        if name == "sgpr":
            continue
        ridge, epochs = 0.0 if name == "eigenpro4_exact" else 0.1, 100 if name == "nytro" else 5
        estimator = KernelClassifier(kernel=kernels.Laplacian(2.0), solver=name, ridge=ridge, epochs=epochs, random_state=0)
        assert estimator.fit(X, y).score(X, y) > 0.7, name
