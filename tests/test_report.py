"""Pictures and the page they are on; in a real browser where there is one."""

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image
from sklearn import metrics

from kernelmill import KernelClassifier, KernelRegressor, kernels, load
from kernelmill.estimators.evaluation import evaluate
from kernelmill.report import charts, page, score_line, spectrum
from kernelmill.report.report import templates
from kernelmill.solvers import EigenPro4

g = np.random.default_rng(0)
X = g.normal(size=(1500, 4)).astype(np.float32)
LABEL = np.array(["a <b>", "c & d", "e"])[np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.7])]
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def classifier():
    return KernelClassifier(
        n_centers=200, solver=EigenPro4(), epochs=4, validation_fraction=0.2, random_state=0
    ).fit(X, LABEL)


def test_ticks_are_round_and_inside():
    for low, high in ((0, 1), (-3.2, 17), (1e-7, 3e-7), (5, 5.001), (1e9, 3e9)):
        found = charts.ticks(low, high)
        assert (
            3 <= len(found) <= 9
            and low - 1e-9 * abs(high) <= min(found)
            and max(found) <= high * (1 + 1e-9)
        ), (low, high, found)
    assert charts.ticks(1e-6, 1, log=True) == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1])
    assert charts.ticks(0.008, 0.04, log=True) == pytest.approx([0.01, 0.015, 0.02, 0.03])


@pytest.mark.parametrize(
    "macro, chart",
    [
        ("curve", charts.curve([(1, 3.0), (2, float("nan")), (3, 0.0)], "b & c", "y", log_y=True)),
        ("curve", charts.curve([(0, 5.0)], "x", "y")),
        ("curve", charts.curve([], "x", "y", log_x=True)),
        ("scatter", charts.scatter([(0, 1.0), (2, 2.0)], "true", "predicted", diagonal=True)),
        ("scatter", charts.scatter([(1.0, 0.0), (1.0, 0.0)], "predicted", "residual")),
        ("rates", charts.rates({"a<b  0.5": [(0, 0), (0.5, 0.7), (1, 1)]}, "x", "y & z")),
        ("rates", charts.rates({str(i): [(0, 0), (1, 1)] for i in range(6)}, "x", "y")),
        ("reliability", charts.reliability([(0.0, 0.1, 7, 0.0, 0.0)], "x", "y")),
        ("reliability", charts.reliability([(0.0, 0.5, 7, 0.2, 0.4), (0.5, 1, 1, 1, 1)], "x", "y")),
        ("histogram", charts.histogram([-1.0, 0.5, 2.0], [0, 0], "true − predicted")),
        ("histogram", charts.histogram([1e9, 2e9], [3], "x")),
        ("bars", charts.bars({"a<b": 0.0, "c": 3.0}, "s")),
        ("matrix", charts.Matrix([[3, 0], [1, 5]], ["a<b", "c"])),
    ],
)
def test_pictures_are_well_formed_and_finite(macro, chart):
    picture = getattr(templates.get_template("charts.svg.j2").module, macro)(chart)
    ElementTree.fromstring(picture)
    assert "nan" not in picture and "inf" not in picture


def test_a_page_stands_alone(classifier):
    text = page(classifier, "a & b", evaluate(classifier, X, LABEL), "some <rows>")
    assert "a &amp; b" in text and "some &lt;rows&gt;" in text and "a &lt;b&gt;" in text
    assert "src=" not in text and "http" not in text and "<script" not in text
    for part in (
        "Calibration",
        "Each class against the others",
        "Confusion matrix",
        "Learning curve",
        "Spectrum",
        "Timings",
        "Which columns matter",
    ):
        assert part in text
    number = KernelRegressor(kernel=kernels.Gaussian(2.0), n_centers=50, random_state=0).fit(
        X, X[:, 0]
    )
    text = page(number, "r", evaluate(number, X, X[:, 0]))
    assert "Calibration" not in text and "ROC" not in text and "histogram of" in text
    assert "Residuals" in text and "there is no curve" in text and "Which columns matter" in text
    assert "What was tried" not in text  # the kernel was given


def test_rows_kept_out_give_a_confusion_matrix_without_data(classifier, tmp_path):
    # Of the values, before they were calibrated on the same rows.
    score = classifier.history_[-1]["validation_score"]
    assert (
        classifier.confusion_.sum() == 300
        and classifier.confusion_.trace() / 300 == pytest.approx(score, abs=0.02)
    )
    classifier.save(tmp_path / "m")
    text = page(load(tmp_path / "m"), "m")
    assert "Confusion matrix" in text and "kept out of training" in text
    # No rows were kept out.
    assert KernelClassifier(random_state=0).fit(X[:200], LABEL[:200]).confusion_ is None


def test_the_spectrum_is_that_of_the_kernel(classifier):
    Z, kernel = classifier.model_.Z.double(), classifier.model_.kernel
    want = np.linalg.eigvalsh(kernel(Z).numpy())[::-1] / len(Z)
    np.testing.assert_allclose(spectrum(classifier.model_), want, rtol=1e-6, atol=1e-9)


def test_metrics_are_those_of_scikit_learn(classifier):
    found = evaluate(classifier, X, LABEL)
    assert found.metrics["accuracy"] == pytest.approx(classifier.score(X, LABEL))
    assert found.metrics["balanced_accuracy"] == pytest.approx(
        metrics.balanced_accuracy_score(LABEL, classifier.predict(X))
    )
    np.testing.assert_array_equal(
        found.confusion, metrics.confusion_matrix(LABEL, classifier.predict(X))
    )
    strange = np.where(np.arange(len(X)) < 10, "unheard of", LABEL)
    found = evaluate(classifier, X, strange)
    assert found.metrics["rows_of_unknown_classes"] == 10 and found.confusion.sum() == len(X) - 10
    assert found.metrics["accuracy"] == pytest.approx((classifier.predict(X) == strange).mean())


def test_curves_are_those_of_scikit_learn(classifier):
    from sklearn.calibration import calibration_curve

    found = evaluate(classifier, X, LABEL)
    P = classifier.predict_proba(X)
    for i, curve in enumerate(found.roc):
        assert curve.name == classifier.classes_[i]
        assert curve.area == pytest.approx(metrics.roc_auc_score(curve.name == LABEL, P[:, i]))
        assert tuple(curve.points[0]) == (0, 0) and tuple(curve.points[-1]) == (1, 1)
    assert found.metrics["roc_auc"] == pytest.approx(
        metrics.roc_auc_score(LABEL, P, multi_class="ovr")
    )
    assert found.metrics["f1"] == pytest.approx(
        metrics.f1_score(LABEL, classifier.predict(X), average="macro")
    )
    right = classifier.classes_[P.argmax(1)] == LABEL
    share, probability = calibration_curve(right, P.max(1), n_bins=10)
    np.testing.assert_allclose([b.share for b in found.reliability], share)
    np.testing.assert_allclose([b.probability for b in found.reliability], probability)
    assert sum(b.rows for b in found.reliability) == len(X)


def test_two_classes_have_one_curve_and_many_their_mean():
    two = KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=1.0, random_state=0)
    two.fit(X[:300], LABEL[:300] == "e")
    found = evaluate(two, X, LABEL == "e")
    assert [curve.name for curve in found.roc] == ["True"]
    assert found.metrics["roc_auc"] == found.roc[0].area
    text = page(two, "two", found)
    assert "of True, and how many" in text and "Each class" not in text
    # One class alone has no curve, and the page stands without.
    alone = evaluate(two, X[:5], np.zeros(5, bool))
    assert (
        alone.roc == []
        and "roc_auc" not in alone.metrics
        and "ROC</h2>" not in page(two, "t", alone)
    )
    codes = np.arange(300) % 9
    many = KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=1.0).fit(X[:300], codes)
    found = evaluate(many, X[:300], codes)
    assert [curve.name for curve in found.roc] == ["mean of 9 classes"]
    assert np.trapezoid(found.roc[0].points[:, 1], found.roc[0].points[:, 0]) == pytest.approx(
        found.metrics["roc_auc"], abs=0.01
    )


def test_scores_are_shown_by_their_names():
    model = KernelRegressor(
        solver=EigenPro4(), epochs=3, n_centers=100, validation_fraction=0.2, scoring="rmse"
    ).fit(X, X[:, 0])
    score = model.history_[-1]["validation_score"]
    assert score < 0 and score_line(model, score) == f"RMSE {-score:.4f}"
    text = page(model, "m")
    assert "RMSE on rows kept out against" in text and "<span>RMSE on rows kept out</span>" in text


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it(classifier, tmp_path, dark):
    (tmp_path / "r.html").write_text(
        page(classifier, "report", evaluate(classifier, X, LABEL), "the rows")
    )
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=900,3600",
        f"--user-data-dir={tmp_path}/p",
    ]
    flags += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
    picture = tmp_path / "r.png"
    subprocess.run(
        [CHROMIUM, *flags, f"--screenshot={picture}", f"file://{tmp_path}/r.html"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    assert pixels.shape == (3600, 900, 3)
    paper = pixels[5, 5]
    assert (paper.sum() < 200) == dark
    used = (np.abs(pixels - paper).sum(2) > 60).any(1)
    assert np.flatnonzero(used)[-1] > 2400  # down to the timings
    inks = ((108, 176, 255), (86, 211, 155)) if dark else ((31, 111, 235), (26, 135, 84))
    blue, green = (np.abs(pixels - np.array(ink)).sum(2) < 60 for ink in inks)
    # Lines and bars, and the diagonal of the matrix.
    assert blue.sum() > 2000 and green.sum() > 2000
