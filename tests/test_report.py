"""Pictures and the page they are on; in a real browser where there is one."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats
from sklearn import metrics

from kernelmill import InputError, KernelClassifier, KernelRegressor, kernels, load
from kernelmill.estimators.evaluation import evaluate
from kernelmill.estimators.intervals import bootstrap, gain_interval, mean_interval, share_interval
from kernelmill.report import charts, page, spectrum
from kernelmill.report.quality import drawn_curves
from kernelmill.report.report import _tried, templates
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
        ("density", charts.density(X[:, 0], X[:, 1], "a < b", "predicted", diagonal=True)),
        ("density", charts.density(X[:, 0], 0 * X[:, 1], "predicted", "residual")),
        ("density", charts.density(0 * X[:, 0] + 1e9, X[:, 1] * 1e-9, "predicted", "residual")),
        ("rates", charts.rates([[(0, 0), (0.5, 0.7), (1, 1)]], "x", "y & z", (0.0, 1.0))),
        ("rates", charts.rates([[(0, 0), (1, 1)] for i in range(8)], "x", "y")),
        ("reliability", charts.reliability([(0.0, 0.1, 7, 0.0, 0.0, 0.0)], "x", "y")),
        (
            "reliability",
            charts.reliability([(0.0, 0.5, 7, 0.2, 0.4, 0.1), (0.5, 1, 1, 1, 1, 0)], "x", "y"),
        ),
        ("histogram", charts.histogram([-1.0, 0.5, 2.0], [0, 0], "true − predicted")),
        ("histogram", charts.histogram([1e9, 2e9], [3], "x")),
        ("bars", charts.bars({"a<b": 0.0, "c": 3.0}, "{:.2f} s")),
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
    assert "src=" not in text and "http" not in text and "<script" not in text


def test_rows_kept_out_give_a_confusion_matrix_without_data(classifier, tmp_path):
    score = classifier.history_[-1]["validation_score"]
    assert classifier.confusion_.sum() == 300
    assert classifier.confusion_.trace() / 300 == pytest.approx(score)
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
    precisions = []
    for i, curve in enumerate(found.curves):
        own = curve.name == LABEL
        precisions.append(metrics.average_precision_score(own, P[:, i]))
        assert curve.name == classifier.classes_[i]
        assert curve.area == pytest.approx(metrics.roc_auc_score(own, P[:, i]))
        assert curve.average_precision == pytest.approx(precisions[-1])
        assert tuple(curve.roc[0]) == (0, 0) and tuple(curve.roc[-1]) == (1, 1)
        assert tuple(curve.precision[0]) == (0, 1) and curve.precision[-1, 0] == 1
        assert curve.precision[-1, 1] == pytest.approx(own.mean())
        # Curves that are drawn have fewer points, and the same area.
        assert np.trapezoid(curve.roc[:, 1], curve.roc[:, 0]) == pytest.approx(curve.area, abs=3e-3)
    assert found.metrics["average_precision"] == pytest.approx(np.mean(precisions))
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


def test_two_classes_have_one_curve_and_many_their_most_frequent():
    two = KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=1.0, random_state=0)
    two.fit(X[:300], LABEL[:300] == "e")
    found = evaluate(two, X, LABEL == "e")
    assert [curve.name for curve in found.curves] == ["True"]
    assert found.metrics["roc_auc"] == found.curves[0].area
    text = page(two, "two", found)
    assert "of True, and how many" in text and "Each class" not in text
    area = metrics.roc_auc_score(LABEL == "e", two.predict_proba(X)[:, 1])
    average = metrics.average_precision_score(LABEL == "e", two.predict_proba(X)[:, 1])
    assert f"ROC curve {area:.4f}, average precision {average:.4f}" in text
    codes = np.append(np.arange(290) % 10, np.zeros(10, int))
    codes[codes == 3] = np.arange(len(codes[codes == 3])) % 3  # the rarest
    codes[0] = 3
    many = KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=1.0).fit(X[:300], codes)
    found = evaluate(many, X[:300], codes)
    assert len(found.curves) == 10 and found.metrics["roc_auc"] == pytest.approx(
        metrics.roc_auc_score(codes, many.predict_proba(X[:300]), multi_class="ovr")
    )
    drawn = [curve.name for curve in drawn_curves(found)]
    assert len(drawn) == 8 and "3" not in drawn and drawn == sorted(drawn)
    assert "The 8 most frequent of 10 classes" in page(many, "many", found)


def test_weights_count_as_in_scikit_learn(classifier):
    w = g.random(len(X)) * (np.arange(len(X)) % 5 > 0)
    found = evaluate(classifier, X, LABEL, w)
    guess, P = classifier.predict(X), classifier.predict_proba(X)
    codes = np.searchsorted(classifier.classes_, LABEL)
    each = [
        np.mean([metric(codes == i, P[:, i], sample_weight=w) for i in range(3)])
        for metric in (metrics.roc_auc_score, metrics.average_precision_score)
    ]
    want = {
        "accuracy": metrics.accuracy_score(LABEL, guess, sample_weight=w),
        "balanced_accuracy": metrics.balanced_accuracy_score(LABEL, guess, sample_weight=w),
        "log_loss": metrics.log_loss(LABEL, P, sample_weight=w),
        "f1": metrics.f1_score(LABEL, guess, average="macro", sample_weight=w),
        "roc_auc": each[0],
        "average_precision": each[1],
    }
    assert found.metrics == pytest.approx(want)
    # Rows without weight are as good as not there.
    there = evaluate(classifier, X[w > 0], LABEL[w > 0], w[w > 0])
    assert there.metrics == pytest.approx(found.metrics)
    assert there.intervals["accuracy"] == pytest.approx(found.intervals["accuracy"])
    Y = np.stack([X[:, 0], 1e6 + 1e3 * X[:, 1]], 1)
    model = KernelRegressor(kernel=kernels.Gaussian(2.0), n_centers=20, random_state=0).fit(X, Y)
    found, guess = evaluate(model, X, Y, w), model.predict(X)
    assert found.metrics["r2"] == pytest.approx(metrics.r2_score(Y, guess, sample_weight=w))
    rmse = metrics.root_mean_squared_error(Y, guess, sample_weight=w)
    assert found.metrics["rmse"] == pytest.approx(rmse)
    mae = metrics.mean_absolute_error(Y, guess, sample_weight=w)
    assert found.metrics["mae"] == pytest.approx(mae)
    mean = np.broadcast_to(np.average(Y, axis=0, weights=w), Y.shape)
    assert found.baseline["mae"] == pytest.approx(
        metrics.mean_absolute_error(Y, mean, sample_weight=w)
    )
    assert found.baseline["r2"] == pytest.approx(0, abs=1e-9)
    with pytest.raises(InputError, match="as its smallest value"):
        evaluate(model, X, Y, -w)


def test_intervals_contain_the_score_and_shrink_with_rows(classifier):
    number = KernelRegressor(kernel=kernels.Gaussian(2.0), n_centers=50, random_state=0)
    y = X[:, 0] + g.normal(size=len(X))
    number.fit(X, y)
    noisy = np.where(g.random(len(X)) < 0.2, g.permutation(LABEL), LABEL)
    for model, target in ((classifier, noisy), (number, y)):
        few, all_of = (evaluate(model, X[:n], target[:n]) for n in (100, 1500))
        for found in (few, all_of):
            without = {"largest_error", "width_90", "nll"}
            assert found.intervals.keys() == found.metrics.keys() - without
            for name, (low, high) in found.intervals.items():
                assert low <= found.metrics[name] <= high, name
        for name, (low, high) in all_of.intervals.items():
            assert high - low < 0.6 * (few.intervals[name][1] - few.intervals[name][0]), name
        again = evaluate(model, X[:100], target[:100])
        assert again.intervals == few.intervals  # seeded


def test_intervals_are_those_of_textbooks():
    for right, rows in ((0, 5), (5, 5), (37, 40), (500, 1000)):
        want = stats.binomtest(right, rows).proportion_ci(method="wilson")
        assert share_interval(right / rows, rows) == pytest.approx((want.low, want.high))
        assert mean_interval([right / rows], [rows]) == pytest.approx((want.low, want.high))
    values = g.exponential(size=2000)
    found = bootstrap(lambda w: {"mean": w @ values / w.sum(), "one": 1.0}, np.ones(2000))
    half = 1.96 * values.std() / np.sqrt(2000)
    want = (values.mean() - half, values.mean() + half)
    assert found["mean"] == pytest.approx(want, abs=0.2 * half)
    assert "one" not in found  # all samples say the same


def test_a_guess_without_a_model_stands_beside_it(classifier):
    found = evaluate(classifier, X, LABEL)
    names, counts = np.unique(LABEL, return_counts=True)
    shares = counts / len(X)
    assert found.guess == names[counts.argmax()]
    entropy = -(shares * np.log(shares)).sum()
    want = {"accuracy": shares.max(), "balanced_accuracy": 1 / 3, "log_loss": entropy}
    want |= {"roc_auc": 0.5, "average_precision": 1 / 3}
    assert {name: found.baseline[name] for name in want} == pytest.approx(want)
    text = page(classifier, "m", found, "rows.csv", date(2024, 5, 7))
    assert "7 May 2024" in text and "rows.csv, 1,500 rows" in text and "the model is better" in text
    assert f"is right for {100 * shares.max():.2f}\N{NO-BREAK SPACE}%: the model" in text
    # Two predictions of the same rows are compared in pairs: 30 rows gained and 10 lost of 2,000.
    gains = np.repeat([1.0, -1.0, 0.0], [30, 10, 1960])
    half = 1.96 * np.sqrt(40 / 2000 - 0.01**2) / np.sqrt(2000)
    assert gain_interval(gains, np.ones(2000)) == pytest.approx(
        (0.01 - half, 0.01 + half), rel=1e-3
    )
    assert gain_interval(gains[:5], np.ones(5)) is None
    # Labels without any meaning: nobody could do better.
    noise = g.permutation(LABEL)
    assert "the model is better" not in page(classifier, "m", evaluate(classifier, X, noise))


def pictures(text):
    """All that is drawn, each well-formed, with a title, and without a number that is none."""
    found = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for picture in found:
        root = ElementTree.fromstring(picture)
        assert root.get("aria-hidden") or (root[0].tag, root[1].tag) == ("title", "desc")
        assert not re.search(r'="[^"]*\b(nan|inf)\b', picture), picture
    return found


@pytest.mark.parametrize("rows", [1, 2, 5, 30, 1500])
def test_few_rows_make_a_page_too(classifier, rows):
    found = evaluate(classifier, X[:rows], LABEL[:rows])
    text = page(classifier, "m", found)
    assert pictures(text) and ("There are only" in text) == (rows < 100)
    low, high = found.intervals["accuracy"]
    assert low <= found.metrics["accuracy"] <= high and high - low > 0.03 * (rows < 1500)
    number = KernelRegressor(kernel=kernels.Gaussian(2.0), n_centers=50, random_state=0)
    number.fit(X, X[:, 0])
    text = page(number, "m", evaluate(number, X[:rows], X[:rows, 0]))
    assert pictures(text) and "nan" not in text and ("The darker" in text) == (rows == 1500)


def test_rows_of_one_class_have_no_curves():
    two = KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=1.0, random_state=0)
    two.fit(X[:300], LABEL[:300] == "e")
    for rows in (5, 200):
        found = evaluate(two, X[:rows], np.zeros(rows, bool))
        assert found.curves == [] and "roc_auc" not in found.metrics
        text = page(two, "t", found)
        assert "All rows belong to one class" in text and "ROC and precision" not in text
        assert pictures(text)


def test_equal_predictions_and_equal_targets_make_a_page(classifier):
    one = np.repeat(X[:1], 1200, 0)
    found = evaluate(classifier, one, LABEL[:1200])
    assert found.metrics["roc_auc"] == pytest.approx(0.5) and "roc_auc" not in found.intervals
    assert pictures(page(classifier, "m", found))
    flat = KernelRegressor(kernel=kernels.Gaussian(2.0), n_centers=50, random_state=0)
    flat.fit(X, np.full(len(X), 0.5))
    for target in (np.full(len(X), 0.5), np.full(len(X), 3.0), X[:, 0]):
        found = evaluate(flat, X, target)
        assert found.metrics["r2"] == pytest.approx(metrics.r2_score(target, flat.predict(X)))
        assert pictures(page(flat, "m", found))


def test_every_output_has_its_residuals():
    Y = np.stack([X[:, 0] ** i * 10.0**i for i in range(1, 7)], 1)
    model = KernelRegressor(kernel=kernels.Gaussian(2.0), n_centers=50, random_state=0).fit(X, Y)
    found = evaluate(model, X, Y)
    want = metrics.r2_score(Y, model.predict(X), multioutput="raw_values")
    np.testing.assert_allclose([each["r2"] for each in found.outputs], want)
    text = page(model, "m", found)
    assert "6 numbers" in text and "Output 4: Residuals" in text and "Output 5:" not in text
    assert "The first 4 of 6 outputs" in text and pictures(text)


def test_a_density_has_all_rows():
    true, guess = g.normal(size=(2, 5000))
    guess[0] = 1e6  # would leave one cell for all others
    plot = charts.density(true, guess, "true", "predicted", diagonal=True)
    assert plot.beyond >= 1 and plot.x.high < 10 and len(plot.cells) > 200
    assert max(shade for *_, shade in plot.cells) == 1
    for left, top, width, height, shade in plot.cells:
        assert charts.LEFT <= left <= left + width <= charts.RIGHT + 0.2
        assert charts.TOP - 0.2 <= top <= top + height <= charts.BOTTOM + 0.2
        assert charts.LIGHTEST <= shade <= 1


def test_the_top_says_what_is_predicted_and_by_what(tmp_path):
    frame = pd.DataFrame(X[:400], columns=list("abcd")).assign(price=X[:400, 0])
    model = KernelRegressor(random_state=0).fit(frame, "price")
    model.save(tmp_path / "homes")
    text = page(load(tmp_path / "homes"), "homes")
    assert "<h1>Predicting price</h1>" in text and "price, a number" in text
    assert "400 rows of 4 columns" in text and "400 centers" in text
    assert "What was tried" in text and f"<strong>{model.plan_.chosen}</strong>" in text


def test_recipes_are_compared_within_their_round(classifier):
    tried = [("a", 0.3, 0.1), ("b", 0.1, 0.2), ("c", 0.2, 0.3), ("c", 0.4, 1.0), ("d", 0.5, 2.0)]
    shown = _tried(replace(classifier.plan_, tried=tried, chosen="c"))
    assert [one.label for one in shown] == ["c", "d", "b", "a"]
    assert [one.above for one in shown] == ["+0.0%", "+25.0%", "+0.0%", "+200.0%"]
    assert shown[0].taken and [one.fate for one in shown[:2]] == ["", ""]
    assert shown[2].fate == "dropped in round 1 of 2"
    assert _tried(replace(classifier.plan_, tried=None)) == []


def test_scores_are_shown_by_their_names():
    model = KernelRegressor(
        solver=EigenPro4(), epochs=3, n_centers=100, validation_fraction=0.2, scoring="rmse"
    ).fit(X, X[:, 0])
    score = model.history_[-1]["validation_score"]
    assert score < 0
    text = page(model, "m")
    assert "RMSE on rows kept out against" in text and "<span>RMSE</span>" in text
    assert f"{model.held_out_['rows']} rows, kept out" in text


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


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("wide", [320, 360, 1200])
def test_no_page_is_wider_than_its_window(tmp_path, wide):
    frame = pd.DataFrame(X[:300], columns=["a" * 60, "b", "c" * 40, "d"])
    many = KernelClassifier(kernel=kernels.Laplacian(2.0), ridge=1.0)
    labels = np.array([f"a class with a long name {i % 20}" for i in range(300)])
    many.fit(frame, labels)
    number = KernelRegressor(kernel=kernels.Gaussian(2.0), ridge=1.0).fit(X, 1e12 * X[:, 0])
    texts = [
        page(many, "m", evaluate(many, frame, labels), "a/long/path/" + "of" * 50),
        page(number, "r" * 80, evaluate(number, X, 1e12 * X[:, 0])),
    ]
    measure = (
        "<script>const page = document.documentElement;"
        " document.title = page.scrollWidth - page.clientWidth</script></body>"
    )
    for text in texts:  # in a frame, for windows have a least width
        inside = text.replace("</body>", measure).replace("&", "&amp;").replace('"', "&quot;")
        (tmp_path / "f.html").write_text(
            f'<iframe style="width: {wide}px; border: 0" srcdoc="{inside}"></iframe><script>'
            "onload = () => { document.title = frames[0].document.title }</script>"
        )
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/p"]
        found = subprocess.run(
            [CHROMIUM, *flags, "--dump-dom", f"file://{tmp_path}/f.html"],
            check=True,
            capture_output=True,
            timeout=120,
            text=True,
        ).stdout
        assert re.search(r"<title>(\d+)</title>", found).group(1) == "0"


@pytest.mark.parametrize("name", ["no", "yes", "Wide", "a name of twenty-four or more letters"])
def test_names_of_classes_have_room(name):
    matrix = charts.Matrix([[1, 2], [3, 4]], ["a", name])
    assert matrix.label - 8 >= 9 * min(len(name), charts.NAME)  # 9 pixels are a wide letter
    assert matrix.cell >= 14
