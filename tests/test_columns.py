"""Columns of texts as features: names with an order, numbers inside texts, how often a name occurs,
and what a user may say of them; missing values of every kind.
"""

import math

import numpy as np
import onnxruntime
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kernelmill
from kernelmill import Columns, InputError, KernelClassifier, KernelRegressor
from kernelmill.data import Encoder, learn, opened
from kernelmill.data.amounts import count_forms, find_forms, take_apart
from kernelmill.data.categories import CODE_WIDTH
from kernelmill.data.columns import OF_NUMBERS
from kernelmill.data.scales import find_order, read_range
from kernelmill.kernels.features import ENCODINGS, FORMS, encode_columns

g = np.random.default_rng(0)
N = 1200
SETTINGS = dict(
    kernel=kernelmill.kernels.Laplacian(4.0),
    n_centers=200,
    solver="falkon",
    ridge=0.1,
    random_state=0,
)
YEARS, MONTHS = g.integers(40, 99, N), g.integers(0, 12, N)
PRICES, STOREYS = g.integers(100, 2_000_000, N), g.integers(0, 12, N)
SHOP = np.array([f"shop {i}" for i in (60 * g.random(N) ** 2).astype(int)], dtype=object)


def lease(years, months):
    """As people write it: one month is no plural, and none is left out."""
    rest = {0: "", 1: " 01 month"}.get(int(months), f" {months:02d} months")
    return f"{years} years{rest}"


def table():
    rows = pd.DataFrame(
        {
            "lease": [lease(*each) for each in zip(YEARS, MONTHS, strict=True)],
            "price": [f"Rs. {price:,}" for price in PRICES],
            "storey": [f"{3 * i + 1:02d} TO {3 * i + 3:02d}" for i in STOREYS],
            "size": g.choice(["small", "medium", "large"], N).astype(object),
            "shop": SHOP,
        }
    )
    rows.loc[::40, "lease"] = None
    rows.loc[7, "lease"] = "freehold"
    rows.loc[::33, "size"] = None
    rows["y"] = YEARS / 10 + MONTHS / 120 + np.log(PRICES) + STOREYS / 3
    return rows


ROWS = table()
FEATURES = ROWS.drop(columns="y")
Y = ROWS["y"].to_numpy()
STRANGE = pd.DataFrame(
    {
        "lease": ["none", "7 years 3 weeks", "100 years", None, "99 years 1 month"],
        "price": ["Rs. 1,2000", "free", "Rs. 1,200,000.55", "Rs. 7", "rs. 7"],
        "storey": ["99 TO 101", "ground", "01 TO 03", None, "04 TO 06"],
        "size": ["tiny", None, "large", "LARGE", "small"],
        "shop": ["shop 3", "shop 999", None, "", "shop 4"],
    }
)


def learned(values, columns=None, y=Y, w=None):
    """An encoder of one column of texts, or of a table."""
    rows = values if isinstance(values, pd.DataFrame) else pd.DataFrame({"a": values})
    y = np.arange(len(rows), dtype=float) if len(rows) != len(y) else y
    y = y[:, None] if y.ndim == 1 and y.dtype.kind == "f" else y
    every = np.ones(len(rows), bool)
    return learn(columns or Columns(), opened(rows, 0), [], y, every, True, w)


def encoded(encoder, rows, **how):
    rows = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame({"a": rows})
    return encoder.encode(opened(rows, 0), 0, len(rows), **how)


@pytest.fixture(scope="module")
def model():
    return KernelRegressor(**SETTINGS).fit(ROWS, "y")


# ---- orders


@pytest.mark.parametrize(
    "names",
    [
        ["01 TO 03", "04 TO 06", "13 TO 15"],
        ["<18", "18-24", "25-34", "65+"],
        ["Under 18", "18 to 24", "25 to 34 years", "65 and over"],
        ["Less than $40K", "$40K - $60K", "$60K - $80K", "$120K +"],
        ["10k-20k", "20k–30k", "100k+"],
        ["0", "1", "2", "3+"],
        ["< 1 year", "2 years", "3 years", "10+ years"],
        ["2 rooms", "3 rooms", "5 rooms"],
        ["Fair", "Good", "Very Good", "Premium", "Ideal"],
        ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
        ["low", "medium", "high"],
        ["Light_Load", "Medium_Load", "Maximum_Load"],
        ["small", "medium", "large", "XL"],
        ["never", "sometimes", "often", "always"],
        ["Strongly disagree", "Disagree", "Neutral", "Agree", "Strongly agree"],
        ["None", "Mild", "Moderate", "Severe"],
        ["F", "C-", "B+", "A", "A+"],
        ["F", "D", "C", "B", "A"],
        ["1st", "2nd", "3rd"],
        ["Q1", "Q2", "Q3", "Q4"],
        ["D", "E", "F", "G", "H"],
        ["HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate"],
    ],
    ids=lambda names: names[0],
)
def test_an_order_is_told_from_the_texts(names):
    order = find_order({name: 1 for name in reversed(names)})
    places = [order.places[name] for name in names]
    assert places == sorted(places) and len(set(map(tuple, places))) == len(names)


@pytest.mark.parametrize(
    "names",
    [
        ["red", "green", "blue"],
        ["shop 1", "shop 2", "shop 3"],
        ["001", "002", "003"],
        ["A", "B", "C"],  # too few letters to be an order
        ["A", "C", "F", "K"],
        ["3 red", "4 blue", "5 green"],
        ["City Hotel", "Resort Hotel"],
        ["low", "high"],  # one-hot says as much
        ["low", "medium", "high", "red", "green"],
        ["K1A 0B6", "M5V 2T6", "H2X 1Y4"],
        ["10-5", "7-2", "9-8"],
    ],
    ids=lambda names: names[0],
)
def test_no_order_is_seen_where_there_is_none(names):
    assert find_order({name: 1 for name in names}) is None


@pytest.mark.parametrize(
    "names", [["Jan", "Feb", "June", "December"], ["Monday", "Tuesday", "Sunday"]]
)
def test_the_calendar_is_an_order_where_it_is_told(names):
    counts = {name: 1 for name in reversed(names)}
    assert find_order(counts) is None
    assert sorted(counts, key=find_order(counts, told=True).places.get) == names


def test_values_beside_an_order_keep_their_column():
    names = ["low"] * 40 + ["medium"] * 30 + ["high"] * 30 + ["Unknown"] * 50 + [None] * 10
    encoder = learned(np.array(names, dtype=object))
    assert encoder.names == [
        f"a: {label}" for label in ("order", *sorted({*names} - {None}), "missing")
    ]
    out = encoded(encoder, np.array(["Unknown", None, "never seen", "low"], dtype=object))
    assert (out[:3, 0] == 0).all() and out[3, 0] < 0
    assert (out[:, 1:].sum(1) == [1, 1, 0, 1]).all()


def test_an_ordered_number_is_standardised_over_the_rows():
    names = np.array(["low", "medium", "high"], dtype=object)[g.integers(0, 3, 500)]
    order = encoded(learned(names), names)[:, 0]
    assert abs(order.mean()) < 1e-6 and abs(order.std() - 1) < 1e-6
    weights = g.integers(1, 4, 500).astype(float)
    heavy = encoded(learned(names, w=weights), names)[:, 0]
    repeated = np.repeat(names, weights.astype(int))
    np.testing.assert_allclose(heavy, encoded(learned(repeated), names)[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("13 TO 15", (13, 15)),
        ("<5", (-math.inf, 5)),
        ("65+", (65, math.inf)),
        ("1.5k-2k", (1500, 2000)),
    ],
)
def test_ranges_are_read(text, span):
    assert read_range(text)[:2] == span


# ---- numbers inside texts


@pytest.mark.parametrize(
    ("texts", "labels", "numbers"),
    [
        (["83 years 05 months", "94 years"], ["year", "month"], [[83, 5], [94, 0]]),
        (["3.5 kg", "350 g", "2 kg"], ["g"], [[3500], [350], [2000]]),
        (["Rs. 1,200", "Rs. 12,345,678.5", "Rs. 9"], ["number"], [[1200], [12345678.5], [9]]),
        (["€1.5M", "€300K", "€0"], ["number"], [[1.5e6], [3e5], [0]]),
        (["-5 °C", "5 °C", "12.5 °C"], ["°"], [[-5], [5], [12.5]]),
        (["12:30", "08:05", "23:59"], ["number 1", "number 2"], [[12, 30], [8, 5], [23, 59]]),
        (["3 x 4", "10 x 2", "1 x 1"], ["number 1", "number 2"], [[3, 4], [10, 2], [1, 1]]),
    ],
    ids=lambda value: str(value[0]),
)  # fmt: skip
def test_numbers_are_read_from_texts(texts, labels, numbers):
    forms = find_forms(count_forms({text: 1 for text in texts}))
    assert forms.labels == labels
    np.testing.assert_allclose(forms.read(np.array(texts, dtype=object)), numbers)


@pytest.mark.parametrize(
    "texts",
    [
        [f"shop {i}" for i in range(50)],
        [f"{i}{'ABCD'[i % 4]}" for i in range(50)],  # house numbers
        [f"{i:03d}-{7 * i % 100}" for i in range(50)],
        [f"{i} {street} street" for i in range(10) for street in ("oak", "elm", "main", "high")],
        [f"10.0.{i}.1" for i in range(50)],
        [f"user{i}@example.com" for i in range(50)],
        [f"{i} kg" for i in range(40)] + ["heavy", "light", "so so"] * 5,
    ],
    ids=lambda texts: texts[1],
)  # fmt: skip
def test_numbers_of_things_are_names(texts):
    assert find_forms(count_forms(dict.fromkeys(texts, 1)), texts=texts) is None


@pytest.mark.parametrize("letter", "KMBb")
def test_lines_of_buses_are_names(letter):
    """Also where there are few of them; where numbers are as large, or have decimals, the letter is
    a factor."""
    lines = [str(i) for i in range(1, 40)]
    buses = [*lines, f"5{letter}", f"7{letter}", f"12{letter}"]
    many = dict.fromkeys(buses, 1)
    assert find_forms(count_forms(many), texts=buses) is None
    assert find_order({text: 1 for text in buses[-6:]}) is None
    for more in ([f"1.5{letter}"], ["12000000000"], ["5k"]):
        texts = [*buses, *more]
        forms = find_forms(count_forms(dict.fromkeys(texts, 1)), texts=texts)
        assert forms is not None and forms.numbers_of("7") == [7]
    lowered = {text.replace(letter, "k"): 1 for text in buses}
    assert find_forms(count_forms(lowered), texts=lowered).numbers_of("5k") == [5000]


def test_a_text_is_taken_apart_in_one_way():
    assert take_apart("Rs. 1,200.50 (net)") == (("Rs. ", " (net)"), [1200.5])
    assert take_apart("9" * 400)[0] != ("", "")  # no number is infinite
    forms = find_forms(count_forms({"5 kg": 1, "7 kg": 1}))
    odd = ["1,2005 kg", "1,234,567,890,123,456,789 kg", "9" * 400 + " kg", " 5 kg", "5 kg ", "5kg"]
    assert np.isnan(forms.read(np.array(odd, dtype=object))).all()


def test_few_texts_with_numbers_are_numbers_and_names():
    texts = np.array([lease(60 + i % 4, i % 3) for i in range(600)], dtype=object)
    encoder = learned(texts)
    assert encoder.names[:2] == ["a: year", "a: month"] and encoder.d == 2 + len(set(texts))
    assert encoder.columns == [0] * encoder.d


def test_more_texts_than_are_counted_may_hold_numbers(monkeypatch):
    texts = np.array([f"{x:.6f} kg" for x in g.random(500)], dtype=object)
    whole = learned(texts)
    monkeypatch.setattr("kernelmill.data.summary.MOST_VALUES", 50)
    few = learned(texts)
    assert few.names == ["a: g"]
    np.testing.assert_array_equal(encoded(few, texts), encoded(whole, texts))


# ---- a table of all of them


def test_columns_become_what_their_texts_say(model):
    names = ["lease: year", "lease: month", "lease: missing", "price: number", "storey: order"]
    names += [f"storey: {name}" for name in sorted(set(ROWS["storey"]))]
    names += [f"size: {name}" for name in ("order", "large", "medium", "small", "missing")]
    made = model.encoder_.names
    assert made[: len(names) + 2] == [*names, "shop: target 0", "shop: count"]
    assert all(name.startswith("shop: code ") for name in made[len(names) + 2 :])
    places = [names.index(first) for first in ("lease: year", "price: number", "storey: order")]
    columns = model.encoder_.columns
    assert [columns[i] for i in places] == [0, 1, 2] and max(columns) == 5
    out = encoded(model.encoder_, FEATURES)
    np.testing.assert_allclose(np.corrcoef(out[:, 3], PRICES)[0, 1], 1, rtol=1e-6)
    assert (out[:, 2] == (ROWS["lease"].isna() | (ROWS["lease"] == "freehold"))).all()
    assert np.isfinite(out).all() and model.score(ROWS, "y") > 0.9


def test_what_was_never_seen_is_finite(model):
    out = encoded(model.encoder_, STRANGE)
    assert np.isfinite(out).all() and np.isfinite(model.predict(STRANGE)).all()
    assert (out[[0, 1, 3], 2] == 1).all() and (out[[0, 1, 3], :2] == 0).all()
    assert out[2, 0] > out[4, 0] > encoded(model.encoder_, FEATURES)[:, 0].max() - 0.1


def test_onnx_reads_the_same_texts(tmp_path, model):
    model.to_onnx(tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    odd = ["Rs. 1,2345", "Rs. 9" + ",999" * 5, "Rs. 9" + ",999" * 6, "Rs. 0.5", "Rs. " + "7" * 16]
    more = STRANGE.assign(price=odd)
    for rows in (FEATURES, STRANGE, more, FEATURES[:1], FEATURES[:0]):
        inputs = {name: rows[name].fillna("").to_numpy(object) for name in rows}
        (out,) = session.run(None, inputs)
        assert len(out) == len(rows)
        if len(rows):
            np.testing.assert_allclose(out, model.predict(rows), atol=1e-9)


def test_a_stored_model_has_the_same_features(tmp_path, model):
    model.save(tmp_path / "m")
    again = kernelmill.load(tmp_path / "m")
    assert again.encoder_.names == model.encoder_.names
    for rows in (FEATURES, STRANGE):
        np.testing.assert_array_equal(encoded(again.encoder_, rows), encoded(model.encoder_, rows))
        np.testing.assert_array_equal(again.predict(rows), model.predict(rows))


@pytest.mark.parametrize("change", ["words", "slots", "scale"])
def test_stored_numbers_that_do_not_fit_are_refused(model, change):
    stored = model.encoder_.to_dict()
    amounts = stored["categories"][0]
    if change == "words":
        amounts["forms"]["words"][0] = ["", "", ""]
    elif change == "slots":
        amounts["forms"]["slots"][0][0] = 9
    else:
        amounts["scale"] = np.zeros(2)
    with pytest.raises(ValueError, match="numbers in texts do not fit"):
        Encoder.from_dict(stored)


def test_files_and_frames_give_the_same_encoder(tmp_path, model):
    pq.write_table(pa.Table.from_pandas(ROWS), tmp_path / "t.parquet", row_group_size=100)
    ROWS.to_csv(tmp_path / "t.csv", index=False)
    for file in ("t.parquet", "t.csv"):
        streamed = learn(Columns(), opened(tmp_path / file, 0), ["y"], Y[:, None], np.ones(N, bool))
        assert streamed.names == model.encoder_.names
        np.testing.assert_array_equal(
            encoded(streamed, FEATURES), encoded(model.encoder_, FEATURES)
        )


def test_the_order_of_rows_does_not_matter():
    order = g.permutation(N)
    first, second = (
        learned(FEATURES),
        learned(FEATURES.iloc[order].reset_index(drop=True), y=Y[order]),
    )
    assert first.names == second.names
    np.testing.assert_allclose(encoded(first, STRANGE), encoded(second, STRANGE), atol=1e-6)


# ---- names with many values


def test_how_often_a_name_occurs_is_a_feature():
    encoder = learned(SHOP)
    assert encoder.names[:2] == ["a: target 0", "a: count"]
    count = encoded(encoder, SHOP)[:, 1]
    _, place, many = np.unique(SHOP, return_inverse=True, return_counts=True)
    log = np.log1p(many)[place]
    np.testing.assert_allclose(count, (log - log.mean()) / log.std(), atol=1e-5)
    unseen = encoded(encoder, np.array(["shop 999"], dtype=object))[0, 1]
    np.testing.assert_allclose(unseen, -log.mean() / log.std(), atol=1e-5)
    np.testing.assert_array_equal(encoded(encoder, SHOP, training=True)[:, 1], count)


def test_each_part_of_a_date_has_a_bandwidth_of_its_own():
    days = pd.to_datetime("2024-01-01") + pd.to_timedelta(np.arange(900) * 7, "h")
    encoder = learned(pd.DataFrame({"day": days.repeat(2)[:1000]}))
    parts = dict(zip(encoder.names, encoder.columns, strict=True))
    assert parts["day: hour cos"] == parts["day: hour sin"]
    assert len({parts[f"day: {part}"] for part in ("days", "year", "month cos", "hour cos")}) == 4


def test_a_name_of_many_values_has_a_random_code():
    encoder = learned(SHOP)
    at = [i for i, name in enumerate(encoder.names) if name.startswith("a: code ")]
    assert len(at) == CODE_WIDTH == len(encoder.names) - 2
    assert len({encoder.columns[i] for i in at}) == 1 and encoder.columns[at[0]] != 0
    names = np.unique(SHOP)
    codes = encoded(encoder, names)[:, at]
    apart = np.linalg.norm(codes[:, None] - codes, axis=2)[np.triu_indices(len(names), 1)]
    assert abs(apart.mean() - 1) < 0.02 and apart.min() > 0.4 and apart.std() < 0.15
    assert not encoded(encoder, np.array(["shop 999"], dtype=object))[0, at].any()
    again = learned(np.concatenate([SHOP[::-1], ["another"]]))  # of the name alone
    np.testing.assert_array_equal(encoded(again, names)[:, at], codes)


def test_a_count_that_is_the_same_everywhere_says_nothing():
    names = np.array([f"n{i % 100}" for i in range(1000)], dtype=object)
    assert learned(names).names[:2] == ["a: target 0", "a: code 0"]


def test_a_weight_counts_as_so_many_rows():
    weights = g.integers(1, 4, N)
    heavy = learned(SHOP, w=weights.astype(float))
    many = np.repeat(np.arange(N), weights)
    repeated = learned(SHOP[many], y=Y[many])
    np.testing.assert_allclose(encoded(heavy, SHOP)[:, 1], encoded(repeated, SHOP)[:, 1], atol=1e-5)


def test_a_rows_own_target_is_not_in_its_code():
    """Whatever one row's target becomes, its own code in training stays."""
    before = encoded(learned(SHOP), SHOP, training=True)
    changed = Y.copy()
    changed[5], changed[6] = changed[6], changed[5]  # mean and deviation stay
    after = encoded(learned(SHOP, y=changed), SHOP, training=True)
    same = SHOP[5] == SHOP
    assert SHOP[5] != SHOP[6] and not np.allclose(before[same, 0], after[same, 0])
    np.testing.assert_allclose(before[[5, 6], 0], after[[5, 6], 0], atol=1e-6)


def test_classes_have_a_code_each_and_one_count():
    labels = np.arange(N) % 3
    names = learned(SHOP, y=labels).names
    assert names[:4] == [*(f"a: target {i}" for i in range(3)), "a: count"]
    model = KernelClassifier(**SETTINGS).fit(pd.DataFrame({"a": SHOP}), labels)
    assert np.isfinite(model.predict_proba(pd.DataFrame({"a": ["shop 3", "shop 999"]}))).all()


# ---- what a user says


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("one_hot", ["large", "medium", "small", "missing"]),
        ("target", ["target 0", "count", *(f"code {i}" for i in range(CODE_WIDTH))]),
        ("hash", [f"hash {i}" for i in range(16)]),
        ("ordered", ["order", "large", "medium", "small", "missing"]),
        (["large", "small", "medium"], ["order", "large", "medium", "small", "missing"]),
    ],
)
def test_how_a_column_is_encoded_can_be_said(how, names):
    encoder = learned(ROWS[["size"]], Columns(how={"size": how}))
    assert encoder.names == [f"size: {name}" for name in names]
    if isinstance(how, list):
        order = encoded(encoder, pd.DataFrame({"size": how}))[:, 0]
        assert (np.diff(order) > 0).all()


def test_numbers_and_names_can_be_chosen_for_many_values():
    assert learned(SHOP, Columns(how={"a": "numbers"})).names == ["a: number"]
    lease_ = ROWS[["lease"]]
    assert learned(lease_, Columns(how={"lease": "target"})).names[0] == "lease: target 0"
    many = learned(lease_, Columns(how={"lease": "one_hot"}))
    assert many.d == lease_["lease"].nunique() + 1
    order = sorted(set(SHOP), key=lambda name: int(name.split()[1]))
    assert learned(SHOP, Columns(how={"a": order})).names == ["a: order"]


def test_codes_in_an_order_may_be_numbers():
    encoder = learned(pd.DataFrame({"a": np.arange(N) % 3}), Columns(how={"a": ["2", "0", "1"]}))
    order = encoded(encoder, pd.DataFrame({"a": [2, 0, 1]}))[:, 0]
    assert encoder.kinds == {"a": "text"} and (np.diff(order) > 0).all()


def test_what_is_said_of_columns_is_stored(tmp_path):
    how = {"size": ["small", "medium", "large"], "shop": "hash"}
    columns = Columns(features=["size", "shop"], how=how)
    KernelRegressor(**SETTINGS, columns=columns).fit(ROWS, "y").save(tmp_path / "m")
    assert kernelmill.load(tmp_path / "m").columns.how == how


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"a": "sorted"}, "how of 'a'='sorted' is not known"),
        ({"a": ["x", "x"]}, "list of two or more different texts"),
        ({"a": 3}, "how of 'a' is 3, expected one of"),
        ("ordered", "expected a dictionary from column names"),
        ({"b": "target"}, "'b'"),
        ({"a": "ordered"}, "its values, such as 'blue', 'green', 'red', show no order"),
        ({"a": ["low", "high"]}, "its values are others, such as 'blue', 'green', 'red'"),
        ({"a": "numbers"}, "expected texts that are nearly all written in a few ways"),
    ],
)
def test_what_cannot_be_said_of_columns_is_one_sentence(how, message):
    rows = pd.DataFrame({"a": ["red", "green", "blue"] * 20, "x": np.arange(60.0)})
    with pytest.raises(InputError, match=message):
        learned(rows, Columns(how=how))


def test_columns_that_are_no_features_cannot_be_encoded():
    with pytest.raises(InputError, match="how names 'shop', which is not a feature"):
        learned(FEATURES, Columns(features=["size"], how={"shop": "target"}))


def test_a_value_that_is_not_in_the_given_order_is_said():
    with pytest.warns(UserWarning, match="does not list 'medium'"):
        encoder = learned(ROWS[["size"]], Columns(how={"size": ["small", "large"]}))
    assert encoded(encoder, pd.DataFrame({"size": ["medium"]}))[0, 0] == 0


def test_texts_written_otherwise_are_said(model):
    with pytest.warns(UserWarning, match="are not written as in the training data"):
        model.predict(FEATURES.assign(lease="83 Jahre"))


# ---- missing values


MISSING = pd.DataFrame(
    {
        "flag": [True, False, None, True] * 25,
        "day": pd.to_datetime(["2024-01-05", None, "2024-06-01", "2025-03-09"] * 25),
        "name": ["x", None, "y", "x"] * 25,
        "text": [None] * 100,
        "nothing": np.full(100, np.nan),
        "whole": np.arange(100.0),
    }
)


def test_missing_values_of_every_kind_are_a_signal():
    encoder = learned(MISSING)
    assert encoder.kinds["flag"] == "boolean"
    flags = [name for name in encoder.names if "missing" in name]
    assert flags == ["flag is missing", "day is missing", "name: missing"]
    out = dict(zip(encoder.names, encoded(encoder, MISSING).T, strict=True))
    assert (out["flag is missing"] == MISSING["flag"].isna()).all()
    assert (out["day is missing"] == MISSING["day"].isna()).all()
    assert (out["flag"][2::4] == 0).all() and (out["day: days"][1::4] == 0).all()
    assert all(np.isfinite(values).all() for values in out.values())


def test_what_was_empty_or_whole_in_training_has_no_flag():
    encoder = learned(MISSING)
    model = KernelRegressor(**SETTINGS).fit(MISSING, np.arange(100.0))
    np.testing.assert_array_equal(
        model.predict(MISSING.assign(nothing=7.0, text="new")), model.predict(MISSING)
    )
    out = encoded(encoder, MISSING.assign(whole=np.nan))
    out = dict(zip(encoder.names, out.T, strict=True))
    assert "whole is missing" not in out and (out["whole"] == 0).all()


def test_a_minus_is_part_of_the_number():
    found = find_order(dict.fromkeys(["-10 C", "-5 C", "0 C", "5 C", "10 C"], 9))
    numbers = [found.places[text][0] for text in ("-10 C", "-5 C", "0 C", "5 C", "10 C")]
    assert numbers == sorted(numbers) and len(set(numbers)) == 5
    assert read_range("-5 to 5").low == -5
    assert read_range("1b") is None and read_range("$1b").low == 1e9


# ---- whole numbers that are names


def numbered(n=3000, seed=5):
    """A column of numbers that are names, beside one whose neighbours are alike."""
    h = np.random.default_rng(seed)
    effect = h.normal(size=60)
    agent, age = h.integers(0, 60, n), h.integers(0, 80, n)
    y = effect[agent] + np.sin(age / 12) + 0.1 * h.normal(size=n)
    agent = np.where(h.random(n) < 0.05, np.nan, 1000 + 7 * agent)
    return pd.DataFrame({"agent": agent, "age": age, "y": y})


def encoder_of(frame, columns=Columns(), **more):  # noqa: B008
    source = opened(frame, True)
    Y = frame["y"].to_numpy()[:, None]
    return learn(columns, source, ["y"], Y, np.ones(len(frame), bool), **more)


def test_numbers_whose_neighbours_say_nothing_are_names_too():
    (found,) = encoder_of(numbered()).categories
    assert (found.name, found.how, found.code_width) == ("agent", "number", CODE_WIDTH)
    assert found.labels[:3] == ["target 0", "count", "code 0"]
    parts = {part for name, part in encoder_of(numbered()).sources if name == "agent"}
    assert parts == {0, 1, 2}  # the number, its mean target, and its code


def test_what_is_said_of_numbers_counts():
    assert encoder_of(numbered(), Columns(how={"agent": "numbers"})).categories == []
    assert encoder_of(numbered(), Columns(beyond="hash")).categories == []
    (name,) = encoder_of(numbered(), Columns(categorical=["agent"])).categories
    assert name.how == "target"


def test_a_smooth_curve_of_whole_numbers_is_no_name():
    h = np.random.default_rng(1)
    for curve in (lambda x: x, lambda x: np.sin(x / 30), lambda x: x**2, lambda x: 0 * x):
        x = h.integers(0, 400, 4000)
        frame = pd.DataFrame({"x": x, "y": curve(x / 1.0) + 0.3 * h.normal(size=len(x))})
        assert encoder_of(frame).categories == []


def test_a_weight_of_k_is_k_copies_for_numbers_that_are_names():
    frame = numbered(1500)
    k = np.random.default_rng(0).integers(1, 4, len(frame))
    copies = frame.loc[np.repeat(frame.index, k)].reset_index(drop=True)
    (one,) = encoder_of(frame, w=k.astype(float)).categories
    (other,) = encoder_of(copies).categories
    np.testing.assert_allclose(one.table, other.table, atol=1e-6)


def test_numbers_as_names_help_and_travel(tmp_path):
    frame, new = numbered(), numbered(500, seed=6)
    new["y"] = numbered(3500).tail(500)["y"].to_numpy()
    new[["agent", "age"]] = numbered(3500).tail(500)[["agent", "age"]].to_numpy()
    X = new.drop(columns="y")
    scores = {}
    for way in (None, {"agent": "numbers"}):
        model = KernelRegressor(**SETTINGS, columns=Columns(how=way)).fit(frame, "y")
        scores[way is None] = model.score(X, new["y"])
    assert scores[True] > scores[False] + 0.1
    model = KernelRegressor(**SETTINGS).fit(frame, "y")
    strange = X.head(6).copy()
    strange["agent"] = [np.nan, 1000.5, 1e15, -1e30, 1001, 1007]
    before = model.predict(strange)
    model.save(tmp_path / "model")
    assert (kernelmill.load(tmp_path / "model").predict(strange) == before).all()
    model.to_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    given = {name: strange[name].to_numpy(np.float64) for name in strange}
    np.testing.assert_allclose(session.run(None, given)[0].reshape(-1), before, atol=1e-4)
    assert model.feature_importances_.shape == (2,)


# ---- how a kernel is to see numbers


def heavy(n=400, seed=0):
    """A column whose logarithm says the target, a code that is a name, and noise."""
    g = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            "name": g.choice(["a", "b"], n),
            "tail": np.exp(3 * g.normal(size=n)),
            "code": g.integers(0, 6, n).astype(float),
            "x": g.normal(size=n),
        }
    )
    rows["y"] = np.log(rows["tail"]) + np.array([3.0, -1, 2, 0, -4, 1])[rows["code"].astype(int)]
    return rows


def forms_of(model, name):
    """How the kernel sees a column."""
    place = model.encoder_.names.index(name)
    parts = getattr(model.model_.kernel, "parts", [model.model_.kernel])
    return [
        {FORMS[i] for i in part.features.form[part.features.column == place].tolist()}
        for part in parts
    ]


@pytest.mark.parametrize("kernel", ["auto", "laplacian"])
def test_how_a_kernel_sees_numbers_can_be_said(kernel, tmp_path):
    rows, new = heavy(), heavy(50, seed=1)
    how = {"tail": "quantile", "code": "codes", "x": "standard"}
    model = KernelRegressor(kernel=kernel, columns=Columns(how=how), random_state=0)
    model.fit(rows, "y")
    for name, forms in (("tail", {"step"}), ("code", {"as it is", "value"}), ("x", {"as it is"})):
        assert forms_of(model, name) == [forms] * len(forms_of(model, name))
    said = model.predict(new)
    model.save(tmp_path / "model")
    assert (kernelmill.load(tmp_path / "model").predict(new) == said).all()


def test_what_is_said_of_numbers_does_not_depend_on_other_columns():
    rows = heavy()
    model = KernelRegressor(columns=Columns(how={"x": "robust"}), random_state=0).fit(rows, "y")
    assert all(forms == {"smooth"} for forms in forms_of(model, "x"))
    kernel = model.model_.kernel
    assert all(part.features is not None for part in getattr(kernel, "parts", [kernel]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(kernel=kernelmill.kernels.Laplacian(2.0)), "can't do; give a kernel's name alone"),
        (dict(kernel="linear"), "can't do; give a kernel's name alone"),
        (dict(solver="sgpr"), "another solver than 'sgpr'"),
    ],
)
def test_a_kernel_that_cannot_see_numbers_so_is_refused(settings, message):
    columns = Columns(how={"tail": "quantile"})
    with pytest.raises(InputError, match=message):
        KernelRegressor(**settings, columns=columns, random_state=0).fit(heavy(), "y")


def test_names_cannot_be_seen_as_numbers():
    with pytest.raises(InputError, match="how of 'name' is 'robust', expected a column of numbers"):
        learned(heavy().drop(columns="y"), Columns(how={"name": "robust"}))


def test_what_is_said_twice_or_cannot_be_is_one_sentence():
    rows = heavy().drop(columns="y")
    with pytest.raises(InputError, match="'code' is in categorical, and its how is 'codes'"):
        learned(rows, Columns(categorical=["code"], how={"code": "codes"}))
    with pytest.raises(InputError, match="expected at most 32 values, and it has 400 or more"):
        KernelRegressor(columns=Columns(how={"x": "codes"})).fit(heavy(), "y")


def test_numbers_as_names_stay_beside_how_they_are_seen():
    names = encoder_of(numbered(), Columns(how={"agent": "quantile"})).names
    assert "agent: target 0" in names


def test_no_recipe_competes_with_its_copy():
    """Both columns of numbers are settled: no encoding can differ from what was said."""
    how = {"tail": "quantile", "code": "codes", "x": "robust"}
    model = KernelRegressor(columns=Columns(how=how), random_state=0).fit(heavy(), "y")
    labels = [label for label, _, _ in model.plan_.tried]
    assert len(labels) > 4 and all(
        "columns as said" in each or "one band" in each for each in labels
    )


def test_a_column_that_is_constant_in_the_sample_has_no_width_of_rounding():
    made = encode_columns(np.full((1000, 1), 0.3), "standard")
    assert made.width.tolist() == [1.0]


def test_every_encoding_of_a_kernel_can_be_said():
    assert OF_NUMBERS == ENCODINGS
