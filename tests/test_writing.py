"""Files as they come: numbers, dates and missing values as people write them."""

import contextlib
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from kernelmill import Columns, InputError, KernelClassifier, KernelRegressor, load
from kernelmill.cli import app
from kernelmill.data import opened
from kernelmill.data.kinds import MISSING
from kernelmill.data.writing import MARKS, Reading, Writing, as_written, find
from kernelmill.estimators.evaluation import evaluate
from kernelmill.kernels import Laplacian

g = np.random.default_rng(0)
N = 400
MONEY = np.round(np.exp(g.normal(8, 1.5, N)), 2)
SHARE = np.round(100 * g.random(N), 1)
DAYS = g.integers(0, 4000, N)
MOMENTS = pd.Timestamp("2010-01-05") + pd.to_timedelta(DAYS, unit="D")
CITY = g.choice(["Köln", "Orléans", "Łódź", "Wien"], N)
TARGET = np.round(np.log(MONEY) * 1000 + 10 * SHARE + DAYS / 10, 2)
CLEAN = pd.DataFrame(
    {"money": MONEY, "share": SHARE, "day": MOMENTS, "city": CITY, "price": TARGET}
)
QUICK = {"kernel": Laplacian(6.0), "ridge": 1e-2, "random_state": 0, "device": "cpu"}
GONE = g.random(N) < 0.02  # 1 to 2 % of a column's fields


def german(value):
    return f"{value:,.2f}".translate(str.maketrans(",.", ".,"))


def spoiled(column, write, gone=None):
    """The table with a column of texts; where a word is given, it stands for missing values."""
    texts = CLEAN[column].map(write)
    return CLEAN.assign(**{column: texts if gone is None else texts.mask(GONE, gone)})


def lacking(column):
    return CLEAN.assign(**{column: CLEAN[column].mask(GONE)})


# What is written, what it means, how pandas writes the file, and what has to be said.
FILES = {
    "dollars": (spoiled("money", lambda v: f"${v:,.2f}"), CLEAN, {}, {}),
    "euros behind": (spoiled("money", lambda v: german(v) + " €"), CLEAN, {}, {}),
    "brackets": (
        spoiled("money", lambda v: f"({v:,.2f})"),
        CLEAN.assign(money=-CLEAN["money"]),
        {},
        {},
    ),
    "thousands": (spoiled("money", lambda v: f"{v:,.2f}"), CLEAN, {}, {}),
    "german": (spoiled("money", german), CLEAN, {}, {}),
    "swiss": (spoiled("money", lambda v: f"{v:,.2f}".replace(",", "'")), CLEAN, {}, {}),
    "french": (
        spoiled("money", lambda v: f"{v:,.2f}".replace(",", "\u202f").replace(".", ",")),
        CLEAN,
        {},
        {},
    ),
    "brackets around dollars": (
        spoiled("money", lambda v: f"(${v:,.2f})"),
        CLEAN.assign(money=-CLEAN["money"]),
        {},
        {},
    ),
    "a minus before dollars": (
        spoiled("money", lambda v: f"-${v:,.2f}"),
        CLEAN.assign(money=-CLEAN["money"]),
        {},
        {},
    ),
    "some dollars": (
        spoiled("money", lambda v: f"${v:,.2f}" if v > 2000 else f"{v:,.2f}"),
        CLEAN,
        {},
        {},
    ),
    "kilograms": (spoiled("money", lambda v: f"{v:.2f} kg"), CLEAN, {}, {}),
    "some thousands": (
        spoiled("money", lambda v: f"{v / 1000:.5f}k" if v > 2000 else f"{v:.2f}"),
        CLEAN,
        {},
        {},
    ),
    "limits": (spoiled("money", lambda v: f"<{v:.2f}" if v < 2000 else f"{v:.2f}"), CLEAN, {}, {}),
    "percent": (spoiled("share", lambda v: f"{v} %"), CLEAN, {}, {}),
    "decimal commas": (spoiled("share", lambda v: f"{v}".replace(".", ",")), CLEAN, {}, {}),
    "day first": (spoiled("day", lambda v: f"{v:%d/%m/%Y}"), CLEAN, {}, {}),
    "month first": (spoiled("day", lambda v: f"{v:%m/%d/%Y %I:%M %p}"), CLEAN, {}, {}),
    "months in words": (spoiled("day", lambda v: f"{v:%d %b %Y}"), CLEAN, {}, {}),
    "dots": (spoiled("day", lambda v: f"{v:%d.%m.%y}"), CLEAN, {}, {}),
    **{
        f"missing is {word!r}": (spoiled("share", str, word), lacking("share"), {}, {})
        for word in ("-", "na", ".", "none", "Unknown", "  ", "#N/A", "n.a.", "-999")
    },
    "a word of their own": (spoiled("share", str, "not yet"), lacking("share"), {}, {}),
    "semicolons": (CLEAN, CLEAN, {"sep": ";", "decimal": ","}, {}),
    "tabs": (CLEAN, CLEAN, {"sep": "\t"}, {}),
    "latin": (CLEAN.replace("Łódź", "Lodz"), CLEAN, {"encoding": "latin-1"}, {}),
    "utf-16": (CLEAN, CLEAN, {"encoding": "utf-16"}, {}),
    "quoted": (CLEAN, CLEAN, {"quoting": 1}, {}),
    "a target in dollars": (spoiled("price", lambda v: f"${v:,.2f}"), CLEAN, {}, {}),
    "a german target": (spoiled("price", german), CLEAN, {}, {}),
    "said": (
        spoiled("money", lambda v: f"{v * 1000:,.0f}".replace(",", ".")),
        CLEAN.assign(money=np.round(CLEAN["money"] * 1000)),
        {"sep": ";", "decimal": ","},
        {"decimal": ",", "thousands": "."},
    ),
}
FILES["missing is '-999'"] = (*FILES["missing is '-999'"][:3], {"na_values": [-999]})


@pytest.mark.parametrize("name", FILES)
def test_a_file_as_it_comes_is_the_clean_one(name, tmp_path):
    """The same predictions as of the clean table, and from a stored model, to the last digits that
    were written."""
    dirty, clean, how, said = FILES[name]
    dirty.to_csv(tmp_path / "t.csv", index=False, **how)
    columns = {"columns": Columns(**said)} if said else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = KernelRegressor(**QUICK, **columns).fit(tmp_path / "t.csv", "price")
    want = KernelRegressor(**QUICK).fit(clean, "price").predict(clean)
    model.save(tmp_path / "m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for again in (model, load(tmp_path / "m")):
            near = {"rtol": 1e-4, "atol": 1e-3 * want.std()}
            np.testing.assert_allclose(again.predict(tmp_path / "t.csv"), want, **near)
        if "encoding" not in how:
            np.testing.assert_allclose(model.predict(clean), want, **near)
        assert model.score(tmp_path / "t.csv", "price") > 0.9
    words = [str(one.message) for one in caught if "not yet" in str(one.message)]
    assert bool(words) == (name == "a word of their own")
    assert not words or f"{int(GONE.sum())} fields of 'share' are not numbers" in words[0]


@pytest.mark.parametrize("name", ["german", "day first", "missing is '-'"])
def test_frames_of_texts_are_read_as_files_are(name):
    dirty, clean, *_ = FILES[name]
    texts = dirty.astype(str)  # all of them: what pandas makes of dtype=str
    assert len(texts.columns) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = KernelRegressor(**QUICK).fit(texts, "price")
        want = KernelRegressor(**QUICK).fit(clean, "price").predict(clean)
        np.testing.assert_allclose(model.predict(texts), want, rtol=1e-4, atol=1e-3 * want.std())


def counts(*texts):
    return dict.fromkeys(texts, 1)


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        (["1,234.5", "12"], Writing("number", ".", ",")),
        (["1.234,5", "1.234.567"], Writing("number", ",", ".")),
        (["1 234,5", "7"], Writing("number", ",", " ")),
        (["0,5", "1,234"], Writing("number", ",", "")),
        (["31/12/2020", "01/02/2020"], Writing("date", order="dmy")),
        (["12/31/2020", "01/02/2020"], Writing("date", order="mdy")),
        (["2020/1/31", "2020/12/1"], Writing("date", order="ymd")),
        (["Dec 31, 2020", "Jan 1st, 2021"], Writing("date", order="mdy")),
        (["007", "008", "123"], None),
        (["A1", "B2"], None),
        (["1-2", "3-4"], None),
        (["12:30", "13:45"], None),
        (["31/31/2020", "30/30/2020"], None),
        (["1.2.10", "2.1.15"], None),
        (["12-11-10", "13-10-09"], None),
        (["12 Market 20", "3 Juniper 45"], None),
        (["612 345 678", "612 999 111"], None),
        (["12 March 2020", "3 jun. 2021"], Writing("date", order="dmy")),
        (["31.12.20", "01.02.21"], Writing("date", order="dmy")),
        (["+5", "-3", "+2.5", "7"], Writing("number")),
        (["+4930123456", "+15551234567"], None),
        (["+1 555 123 456", "+49 305 123 456"], None),
        (["192.168.100.101", "10.100.100.101"], None),
        (["2020-01-31T10:00:00+01:00", "2020-02-28 10:00:00Z"], Writing("date", order="ymd")),
        (["31/12/2020", "2020-12-31", "01/02/2020"], Writing("date", order="dmy")),
        (["1’234", "5’678’901"], Writing("number", ".", "'")),
        (["12,34,567", "1,234.5"], Writing("number", ".", ",")),
        (["0.12", "12 %"], Writing("number", percent=100)),
        (["12", "12 %"], Writing("number")),
        (["0", "12 %"], Writing("number")),
        (["2020-01", "2021-12"], Writing("date", order="ymd")),
        (["2020-01", "2021-13"], None),
        ([f"{year}-{year % 100 + 1:02d}" for year in range(2000, 2012)], None),  # seasons
        (["2000-01", "2001-02", "2001-03"], Writing("date", order="ymd")),
    ],
)
def test_how_texts_are_written(texts, want):
    found = find(counts(*texts), Reading())
    assert (found and found.writing) == want


def test_words_for_nothing_count_neither_way():
    found = find({"1.5": 40, "unknown": 500, "-": 3, "kaput": 2}, Reading())
    assert found.writing == Writing("number") and found.others == ["kaput"] and found.rows == 2
    assert find({"1.5": 40, "kaput": 3}, Reading()) is None
    assert find({"1.5": 40, "kaput": 3}, Reading(missing=("kaput",))).others == []
    assert find({word: 1 for word in MISSING if word}, Reading()) is None


def test_what_may_mean_two_things_is_said():
    assert find(counts("1,234", "5,678"), Reading()).doubtful
    assert not find(counts("1,234", "5,678"), Reading(decimal=",")).doubtful
    assert find(counts("1,234"), Reading(decimal=",")).writing.parse("1,234") == 1.234
    assert find(counts("01/02/2020"), Reading()).doubtful
    assert not find(counts("1,234.5"), Reading()).doubtful


@pytest.mark.parametrize(
    ("text", "way", "want"),
    [
        ("+5", Writing("number"), 5),
        ("($+5)", Writing("number"), -5),
        ("-+5", Writing("number"), None),
        ("300.50-", Writing("number"), -300.5),
        ("2-", Writing("number"), None),  # a grade
        ("49.-", Writing("number"), 49),  # a price
        ("49,-", Writing("number", ","), 49),
        ("1'299.—", Writing("number", ".", "'"), 1299),
        ("-49.--", Writing("number"), -49),
        ("49.50--", Writing("number"), None),
        ("1.e5-", Writing("number"), None),
        ("–5", Writing("number"), -5),
        ("￥1,200", Writing("number", ".", ","), 1200),
        ("￡12.5", Writing("number"), 12.5),
        ("2020-01-31 15:00 AM", Writing("date", order="ymd"), None),
        ("2020-01-31 12:00 AM", Writing("date", order="ymd"), 1580428800),
        ("2020-01-31 3:00 PM", Writing("date", order="ymd"), 1580482800),
        ("24D-42", Writing("number"), None),  # a code
        ("24.D-42", Writing("number"), None),
        (".5D-03", Writing("number"), 0.0005),
        ("1.5D+03", Writing("number"), 1500),
        ("12D4", Writing("number"), None),
        ("１２．５％", Writing("number"), 12.5),
        ("12,34,567.5", Writing("number", ".", ","), 1234567.5),
        ("12 %", Writing("number", percent=100), 0.12),
        ("0.12", Writing("number", percent=100), 0.12),
        ("2020-01-31T10:00:00+01:00", Writing("date", order="ymd"), 1580461200),
        ("2020-01-31T10:00:00.1234567-0130", Writing("date", order="ymd"), 1580470200.123456),
        ("31/01/2020 10:00 Z", Writing("date", order="dmy"), 1580464800),
        ("2020-01-31", Writing("date", order="mdy"), 1580428800),
        ("2020-01-31 10:00:00,5", Writing("date", order="ymd"), 1580464800.5),
    ],
)
def test_what_a_field_says(text, way, want):
    assert way.parse(text) == want


def read_of(texts, **said):
    """How a column of a frame is read: its values, and what is said."""
    frame, columns = pd.DataFrame({"x": texts}), Columns(**said)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = as_written(opened(frame, 0), columns.reading, columns.kinds)
        values = table.read(["x"], 0, table.n)["x"].ravel().tolist()
    return values, " ".join(str(one.message) for one in caught)


def test_percents_and_shares_of_a_column_are_one_scale():
    values, said = read_of(["0.12", "12 %", "0.5"])
    assert values == [0.12, 0.12, 0.5] and "such as '0.12', do not; 100 % is read as 1:" in said
    values, said = read_of(["12", "12 %", "70"])
    assert values == [12, 12, 70] and "100 % is read as 100:" in said
    assert read_of(["0", "12%", "7%", "0"]) == ([0, 12, 7, 0], "")
    # Most of them percents, too many to be names: also where they would be numbers inside texts.
    share = [f"{v} %" if v > 10 else str(v / 100) for v in SHARE]
    model = KernelRegressor(**QUICK).fit(CLEAN.assign(share=share), "price")
    want = KernelRegressor(**QUICK).fit(CLEAN, "price").predict(CLEAN)
    found = model.predict(CLEAN.assign(share=SHARE / 100))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-3 * want.std())
    plain = KernelRegressor(**QUICK).fit(CLEAN.assign(share=SHARE / 100), "price")
    with pytest.warns(UserWarning, match="'share' is written with percent signs, and was without"):
        found = plain.predict(CLEAN.assign(share=[f"{v} %" for v in SHARE]))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-3 * want.std())
    # Whatever the other new rows hold.
    whole = KernelRegressor(**QUICK).fit(CLEAN, "price")
    low = CLEAN.assign(share=np.where(np.arange(N) % 2, 0.5, 12.0))
    written = low.assign(share=["0.5" if i % 2 else "12 %" for i in range(N)])
    with pytest.warns(UserWarning, match="12 % is read as 12"):
        np.testing.assert_allclose(whole.predict(written), whole.predict(low), rtol=1e-6)
    with pytest.warns(UserWarning, match="12 % is read as 12"):
        assert np.isfinite(whole.score(written, "price"))
    with pytest.warns(UserWarning, match=r"12 % is read as 0\.12"):
        assert plain.score(CLEAN.assign(share=[f"{v} %" for v in SHARE]), "price") > 0.5


@pytest.mark.parametrize("write", ["{}{:.2f}", "{}{:.0f},50"])
def test_two_currencies_are_said(write):
    money = [write.format("$₹"[i % 2], v) for i, v in enumerate(MONEY)]
    with pytest.warns(UserWarning, match=r"'money' has amounts in different currencies \(\$, ₹\)"):
        KernelRegressor(**QUICK).fit(CLEAN.assign(money=money), "price")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*currencies")
        same = [f"{'US$' if i % 2 else '$'}{v:.2f}" for i, v in enumerate(MONEY)]
        KernelRegressor(**QUICK).fit(CLEAN.assign(money=same), "price")


def test_addresses_are_names():
    model = KernelRegressor(**QUICK).fit(
        CLEAN.assign(host=[f"{10 + i % 199}.168.{i % 156 + 100}.101" for i in range(N)]), "price"
    )
    (host,) = [column for column in model.columns_ if column.name == "host"]
    assert host.holds == "texts"


def test_zones_of_frames_are_those_of_files(tmp_path):
    moments = [f"{v:%Y-%m-%dT10:00:00}{'+01:00' if i % 2 else 'Z'}" for i, v in enumerate(MOMENTS)]
    rows = CLEAN.assign(day=moments)
    rows.to_csv(tmp_path / "t.csv", index=False)
    model = KernelRegressor(**QUICK).fit(rows, "price")
    assert model.encoder_.kinds["day"] == "date"
    want = KernelRegressor(**QUICK).fit(tmp_path / "t.csv", "price").predict(tmp_path / "t.csv")
    np.testing.assert_array_equal(model.predict(rows), want)


@pytest.mark.parametrize("gone", ["-999", "-999.0", -999, -999.0])
def test_what_is_missing_is_so_however_it_is_written(gone):
    for texts in (["-999", "5.5", "7"], ["-999.0", "$5.5", "7"], ["-999,0", "5,5", "7"]):
        values, _ = read_of(texts, na_values=[gone])
        assert math.isnan(values[0]) and values[1:] == [5.5, 7], texts
    names, _ = read_of(["-999", "a", "-999.0"], na_values=[gone])
    assert names == [None, "a", None]


def test_dates_can_be_missing_too():
    for texts in (["9999-12-31", "2020-01-31"], ["31/12/9999", "31/01/2020"]):
        values, _ = read_of(texts, na_values=["9999-12-31"])
        assert math.isnan(values[0]) and values[1] == 1580428800
    dates = pd.to_datetime(["2199-12-31", "2020-01-31"])
    assert math.isnan(read_of(dates, na_values=["2199-12-31"])[0][0])
    assert math.isnan(read_of(["0000-00-00", "2020-01-31"])[0][0])


@pytest.mark.parametrize("ending", ["csv", "frame"])
def test_marks_that_do_not_fit_are_said(ending, tmp_path):
    rows = CLEAN.astype({"money": str})
    rows.to_csv(tmp_path / "t.csv", index=False)
    data = rows if ending == "frame" else tmp_path / "t.csv"
    with pytest.warns(UserWarning, match="numbers in 'money', such as .* are not written with the"):
        model = KernelRegressor(**QUICK, columns=Columns(decimal=",", exclude=["share"]))
        with contextlib.suppress(InputError):  # the file's target does not fit either
            model.fit(data, "price")
    with pytest.raises(InputError, match="how of 'city' is 'robust', expected a column of numbers"):
        KernelRegressor(**QUICK, columns=Columns(how={"city": "robust"})).fit(CLEAN, "price")


def test_different_ways_in_one_column_are_said():
    _, said = read_of(["31/12/2020", "12/31/2020", "01/02/2020"])
    assert "the dates in 'x' are written in different ways, such as '01/02/2020' and '12/" in said
    assert "so they are not read as dates; write them in one way." in said
    for settings in ({}, {"decimal": ","}):
        _, said = read_of(["1.5", "2,5", "3.75"], **settings)
        assert "the numbers in 'x' are written in different ways" in said
    for codes in (["007", "1,5", "1.5"], ["a1", "1.5", "b2"], ["1.2.3", "1.10.0", "2.0.1"]):
        assert read_of(codes)[1] == ""


@pytest.mark.parametrize("marks", MARKS)
def test_numbers_are_read_as_they_were_written(marks):
    way = Writing("number", *marks)
    for value in (0.0, 0.25, 12.5, -7.0, 1234.5, -1234567.125, 1e-7):
        text = f"{abs(value):,.7f}".replace(",", "T").replace(".", marks[0])
        text = ("-" if value < 0 else "") + text.replace("T", marks[1])
        for around in (f" {text} ", f"{text}%", f"{text} EUR", f"$ {text}"):
            assert math.isclose(way.parse(around), value, abs_tol=1e-9), around
    for text in ("", "x", "1-2", "--5", "12abc", "1..5", "0x10", "1_000", "١٢"):
        assert way.parse(text) is None, text


def test_a_column_of_codes_stays_one():
    codes = [f"{i % 50:03d}" for i in range(N)]
    model = KernelRegressor(**QUICK).fit(CLEAN.assign(code=codes), "price")
    assert any(name.startswith("code: ") for name in model.encoder_.names)
    named = Columns(categorical=["share"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = KernelRegressor(**QUICK, columns=named).fit(
            spoiled("share", str, "not yet"), "price"
        )
    assert any(name.startswith("share: ") for name in model.encoder_.names)


def test_labels_stay_as_they_are_written():
    labels = np.where(MONEY > 3000, "10 %", "20 %")
    model = KernelClassifier(**QUICK).fit(CLEAN.assign(price=labels), "price")
    assert model.classes_.tolist() == ["10 %", "20 %"]
    assert model.score(CLEAN.assign(price=labels), "price") > 0.9


def test_columns_can_be_left_out_and_numbers_be_missing():
    rows = CLEAN.assign(share=np.where(GONE, -999, SHARE), note="x")
    model = KernelRegressor(**QUICK, columns=Columns(exclude=["note", "city"], na_values=[-999]))
    model.fit(rows, "price")
    assert list(model.feature_names_in_) == ["money", "share", "day"]
    assert "share is missing" in model.encoder_.names
    want = KernelRegressor(**QUICK, columns=Columns(exclude=["city"])).fit(
        lacking("share"), "price"
    )
    np.testing.assert_allclose(model.predict(rows), want.predict(lacking("share")), rtol=1e-6)
    with pytest.raises(InputError, match="both name 'city'"):
        columns = Columns(features=["city", "money"], exclude=["city"])
        KernelRegressor(**QUICK, columns=columns).fit(CLEAN, "price")
    with pytest.raises(InputError, match="'citty'"):
        KernelRegressor(**QUICK, columns=Columns(exclude=["citty"])).fit(CLEAN, "price")


def test_a_stored_way_to_write_is_kept(tmp_path):
    """1.234 is a thousand to a model that was trained on 1.234,5: also where a new file looks like
    plain numbers; and plain numbers stay what they are."""
    rows = CLEAN.assign(money=1000 * CLEAN["money"].round())
    rows.assign(money=rows["money"].map(lambda v: f"{v:,.1f}".translate(str.maketrans(",.", ".,")))
                ).to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",")  # fmt: skip
    model = KernelRegressor(**QUICK).fit(tmp_path / "t.csv", "price")
    some = rows[rows["money"] >= 1000][:20]
    written = some.assign(money=some["money"].map(lambda v: f"{v:,.0f}".replace(",", ".")))
    written[written["money"].str.count(r"\.") == 1].to_csv(
        tmp_path / "n.csv", index=False, sep=";", decimal=","
    )
    small = some[(written["money"].str.count(r"\.") == 1).to_numpy()]
    assert len(small) > 2
    want = model.predict(small)
    np.testing.assert_allclose(model.predict(tmp_path / "n.csv"), want, rtol=1e-5)
    some.to_csv(tmp_path / "p.csv", index=False)
    np.testing.assert_allclose(model.predict(tmp_path / "p.csv"), model.predict(some), rtol=1e-5)


def test_rows_that_are_written_in_another_way_are_said():
    rows = CLEAN.assign(money=CLEAN["money"].map(german))
    model = KernelRegressor(**QUICK).fit(rows, "price")
    want = model.predict(CLEAN)
    english = CLEAN.assign(money=CLEAN["money"].map(lambda v: f"{v:,.2f}"))
    with pytest.warns(UserWarning, match=r"not written as in the .* are read like 1,234.5\."):
        np.testing.assert_allclose(model.predict(english), want, rtol=1e-6)
    with pytest.warns(UserWarning, match="such as 'much', are not written .* count as missing"):
        gone = model.predict(CLEAN.assign(money="much"))
    np.testing.assert_array_equal(gone, model.predict(CLEAN.assign(money=np.nan)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = rows.assign(money=rows["money"].where(MONEY > 1000, "much"))
        assert len(model.predict(few)) == N


@pytest.mark.parametrize(
    "head", ["sep=;\n'a';'b'\n", "'a, in m';'b, or c, or d'\n", "\ufeffsep=;\r\na;b\r\n"]
)
def test_delimiters_are_those_between_names(head, tmp_path):
    text = head.replace("'", '"') + "1,5;2\n3,5;4\n"
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    with pytest.warns(UserWarning, match="decimal commas"):
        table = opened(tmp_path / "t.csv", 1 << 20)
    assert table.n == 2 and len(table.fields) == 2
    first = next(iter(table.fields))
    assert table.column(first).tolist() == [1.5, 3.5]


def test_dates_in_another_order_are_read_in_it():
    """Also where most days could be months."""
    model = KernelRegressor(**QUICK).fit(CLEAN.assign(day=MOMENTS.strftime("%m/%d/%Y")), "price")
    some = (MOMENTS.day <= 12) | (np.arange(N) % 4 == 0)
    assert 0.5 < (MOMENTS[some].day <= 12).mean() < 0.9
    other = CLEAN.assign(day=MOMENTS.strftime("%d/%m/%Y"))[some]
    with pytest.warns(UserWarning, match="and are read like 31/12/2024"):
        found = model.predict(other)
    np.testing.assert_allclose(found, model.predict(CLEAN[some]), rtol=1e-6)


def test_decimal_commas_inside_texts_are_said():
    heavy = CLEAN.assign(money=[f"{v:.2f} kg".replace(".", ",") for v in MONEY])
    with pytest.warns(UserWarning, match=r"'money' has texts with decimal commas, such as '\d+,\d"):
        KernelRegressor(**QUICK).fit(heavy, "price")


@pytest.mark.parametrize("other", ["A", "K"])
def test_numbers_of_houses_are_names(other):
    """Also where one of them looks like a thousand."""
    house = [f"{i % 90:02d}" if i % 30 else f"{i % 90}{other}" for i in range(N)]
    model = KernelRegressor(**QUICK).fit(CLEAN.assign(house=house), "price")
    (column,) = [c for c in model.columns_ if c.name == "house"]
    assert "target encoded" in column.became


def test_names_that_look_alike_are_noted():
    rows = CLEAN.assign(city=[f"{c} " if i % 10 == 0 else c for i, c in enumerate(CITY)])
    (city,) = [c for c in KernelRegressor(**QUICK).fit(rows, "price").columns_ if c.name == "city"]
    assert city.notes == ["different values: 'Köln' and 'Köln '"]


def test_a_second_fit_reads_as_the_first(tmp_path):
    early = MOMENTS.day <= 12
    rows = CLEAN.assign(day=MOMENTS.strftime("%m/%d/%Y"))
    model = KernelRegressor(**QUICK, warm_start=True).fit(rows, "price")
    assert model.encoder_.reading.known["day"].order == "mdy"
    before = model.predict(CLEAN[early])
    model.fit(rows[early], "price")
    assert model.encoder_.reading.known["day"].order == "mdy"
    np.testing.assert_allclose(model.predict(rows[early]), model.predict(CLEAN[early]), rtol=1e-6)
    assert np.isfinite(before).all()


def test_decimal_commas_are_stored(tmp_path):
    CLEAN.to_csv(tmp_path / "t.csv", index=False, sep=";", decimal=",")
    model = KernelRegressor(**QUICK).fit(tmp_path / "t.csv", "price")
    assert model.encoder_.reading.known["share"] == Writing("number", ",")
    texts = CLEAN.assign(share=CLEAN["share"].map(lambda v: f"{v:.3f}".replace(".", ",")))
    np.testing.assert_allclose(model.predict(texts), model.predict(CLEAN), rtol=1e-5)


def test_copies_of_rows_are_taken_once():
    twice = pd.concat([CLEAN, CLEAN[:150]])
    once = KernelRegressor(**QUICK, columns=Columns(drop_duplicates=True)).fit(twice, "price")
    want = KernelRegressor(**QUICK).fit(CLEAN, "price").predict(CLEAN)
    np.testing.assert_allclose(once.predict(CLEAN), want, rtol=1e-5)
    weights = np.r_[np.zeros(150), np.ones(N - 150), np.ones(150)]  # the first copies count nothing
    last = KernelRegressor(**QUICK, columns=Columns(drop_duplicates=True))
    np.testing.assert_allclose(last.fit(twice, "price", weights).predict(CLEAN), want, rtol=1e-5)
    other = KernelRegressor(**QUICK).fit(twice, "price").predict(CLEAN)
    assert np.abs(other - want).max() > 1e-3 * want.std()


@pytest.mark.parametrize("kind", ["frame", "rows"])
def test_copies_within_a_chunk_are_taken_once(kind):
    def chunks(drop, second):
        model = KernelRegressor(**QUICK, columns=Columns(drop_duplicates=drop))
        model.partial_fit(CLEAN[:300], "price")
        if kind == "frame":
            model.partial_fit(second, "price")
        else:
            model.partial_fit(second.drop(columns="price").to_numpy().tolist(), second["price"])
        return model.predict(CLEAN)

    twice = pd.concat([CLEAN[300:], CLEAN[300:], CLEAN[300:]])
    want = chunks(False, CLEAN[300:])
    np.testing.assert_allclose(chunks(True, twice), want, rtol=1e-5)
    assert np.abs(chunks(False, twice) - want).max() > 1e-3 * want.std()


@pytest.mark.parametrize("as_file", [True, False])
def test_copies_of_a_matrix_s_rows_are_taken_once(as_file, tmp_path):
    X = np.c_[MONEY, SHARE].astype(np.float32)
    np.save(tmp_path / "a.npy", X[:300])
    np.save(tmp_path / "b.npy", np.r_[X[300:], X[300:]])
    model = KernelRegressor(**QUICK, columns=Columns(drop_duplicates=True))
    model.partial_fit(tmp_path / "a.npy", TARGET[:300])
    second = tmp_path / "b.npy" if as_file else np.load(tmp_path / "b.npy")
    model.partial_fit(second, np.r_[TARGET[300:], TARGET[300:]])
    assert model.rows_seen_ == N


DOLLARS = [f"${v:,.2f}" for v in TARGET]


@pytest.mark.parametrize(
    "y", [DOLLARS, tuple(DOLLARS), np.array(DOLLARS), pd.Series(DOLLARS), np.c_[DOLLARS]]
)
@pytest.mark.parametrize("X", [CLEAN.drop(columns="price"), CLEAN[["money", "share"]].to_numpy()])
def test_targets_of_texts_are_read_as_a_column_is(X, y):
    model = KernelRegressor(**QUICK).fit(X, y)
    want = KernelRegressor(**QUICK).fit(X, TARGET)
    np.testing.assert_allclose(model.predict(X), want.predict(X), rtol=1e-10)
    assert model.score(X, y) == pytest.approx(want.score(X, TARGET))
    assert model.partial_fit(X, y).rows_seen_ == 2 * N


def test_targets_of_texts_are_read_with_the_marks_that_were_set():
    X, y = CLEAN.drop(columns="price"), [f"{v:.3f}".replace(".", ",") for v in TARGET]
    model = KernelRegressor(**QUICK, columns=Columns(decimal=",")).fit(X, y)
    want = KernelRegressor(**QUICK).fit(X, TARGET).predict(X)
    np.testing.assert_allclose(model.predict(X), want, rtol=1e-10)
    both = KernelRegressor(**QUICK).fit(X, list(zip(y, DOLLARS, strict=True)))
    assert both.predict(X).shape == (N, 2)


@pytest.mark.parametrize("columns", [None, Columns(decimal=",")])
@pytest.mark.parametrize("by", ["array", "name", "matrix"])
def test_targets_of_texts_are_scored_as_they_were_fitted(columns, by, tmp_path):
    """Also where the texts to score could be something else, and by a model that was stored."""
    X = CLEAN[["share"]].assign(x=np.log(MONEY))
    X, columns = (X.to_numpy(), None) if by == "matrix" else (X, columns)
    y = np.round(np.log(MONEY), 3)
    # Commas before three digits are those of thousands, but for "0,5".
    texts = np.array([f"{v:.3f}".replace(".", ",") for v in y])
    y[0], texts[0] = 0.5, "0,5"
    model, want = (KernelRegressor(**QUICK, columns=each) for each in (columns, None))
    want.fit(X, y)
    if by == "name":
        model.fit(X.assign(y=texts), "y")
    else:
        model.fit(X, texts)
    some = X[1:]
    model.save(tmp_path / "m")
    for each in (model, load(tmp_path / "m")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert each.score(some, texts[1:]) == pytest.approx(want.score(some, y[1:]))
            assert each.score(X, y) == pytest.approx(want.score(X, y))
            if by != "matrix":
                found = each.score(some.assign(y=texts[1:]), "y")
                assert found == pytest.approx(want.score(some, y[1:]))
            found = evaluate(each, some, texts[1:])
        assert found.metrics["r2"] == pytest.approx(want.score(some, y[1:]))
    assert model.partial_fit(some, texts[1:]).score(X, y) > 0.5


@pytest.mark.parametrize(
    "y", [["a", "b"] * 200, pd.Series(["1.5", "b"] * 200), [*DOLLARS[1:], "x"]]
)
@pytest.mark.parametrize("X", [CLEAN.drop(columns="price"), CLEAN[["money", "share"]].to_numpy()])
def test_targets_that_say_no_numbers_are_refused_in_a_sentence(X, y):
    with pytest.raises(InputError, match=r"y holds texts, such as .* use KernelClassifier for lab"):
        KernelRegressor(**QUICK).fit(X, y)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"decimal": ";"}, "decimal=';'"),
        ({"thousands": "x"}, "thousands='x'"),
        ({"thousands": ".", "decimal": "."}, "have to differ"),
        ({"na_values": "x"}, "na_values='x'"),
        ({"exclude": "x"}, "exclude='x'"),
    ],
)
def test_what_cannot_be_meant_is_said(settings, said):
    with pytest.raises(InputError, match=said):
        KernelRegressor(**QUICK, columns=Columns(**settings)).fit(CLEAN, "price")


# ---- the command


def typed(*words, code=0):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == code, result.output
    return result.output


DIRTY = CLEAN.assign(
    money=[german(v) for v in MONEY],
    share=pd.Series(SHARE).map(german).mask(GONE, "n.k."),
    note="x",
    zip=[f"{i % 40:05d}" for i in range(N)],
)


@pytest.mark.parametrize("by", ["flags", "toml"])
def test_the_command_takes_what_python_does(by, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    DIRTY.to_csv("d.csv", index=False, sep=";", decimal=",")
    pd.concat([DIRTY, DIRTY[:100]]).to_csv("twice.csv", index=False, sep=";", decimal=",")
    said = {"na_values": "n.k.", "decimal": ",", "thousands": ".", "exclude": "note"}
    quick = ["--kernel", "laplacian", "--bandwidth", "6", "--ridge", "0.01", "--device", "cpu"]
    if by == "flags":
        more = [part for name, v in said.items() for part in (f"--{name.replace('_', '-')}", v)]
        more += ["--drop-duplicates", "--categorical", "zip"]
    else:
        settings = {**{name: f'"{v}"' for name, v in said.items()}, "drop_duplicates": "true"}
        lines = [f"{name} = {value}" for name, value in settings.items()]
        (tmp_path / "c.toml").write_text("\n".join([*lines, 'categorical = ["zip"]']))
        more = ["--config", "c.toml"]
    typed("train", "twice.csv", "--target", "price", "--out", "m", *quick, *more)
    columns = Columns(
        na_values=["n.k."], decimal=",", thousands=".", exclude=["note"], categorical=["zip"]
    )
    want = KernelRegressor(**QUICK, columns=columns).fit("d.csv", "price")
    model = load("m")
    assert "note" not in model.feature_names_in_ and model.encoder_.names == want.encoder_.names
    np.testing.assert_allclose(model.predict("d.csv"), want.predict("d.csv"), rtol=1e-4)
    assert "share is missing" in model.encoder_.names


def test_a_target_that_is_written_is_a_regression(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FILES["a target in dollars"][0].to_csv("d.csv", index=False)
    said = typed("train", "d.csv", "--target", "price", "--out", "m", "--kernel", "laplacian",
                 "--bandwidth", "6", "--device", "cpu")  # fmt: skip
    assert "This is a regression" in said and "R²" in said and "each kept out in turn" in said
    assert "R²" in typed("evaluate", "m", "d.csv")
