"""Kinds of fields: numbers, booleans, dates and texts are the same in every kind of file, in
training and in prediction.
"""

import datetime
import gzip
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import kernelmill
from kernelmill import Columns, DataFileError, KernelClassifier, KernelRegressor, kernels
from kernelmill.cli import app
from kernelmill.cli.inputs import task_of
from kernelmill.data import dates, kinds, learn, opened

g = np.random.default_rng(0)
N = 600
SETTINGS = dict(kernel=kernels.Gaussian(2.0), ridge=0.1, random_state=0)
WHEN = pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 1000, N), unit="D")
TIME = pd.Timestamp("2020-01-01") + pd.to_timedelta(g.integers(0, 10_000_000, N), unit="s")
FRAME = pd.DataFrame(
    {
        "x": g.normal(size=N),
        "whole": g.integers(0, 9, N),
        "flag": g.integers(0, 2, N).astype(bool),
        "when": WHEN,
        "time": TIME,
        "zip": g.choice(["01001", "02134", "94105"], N),
        "country": g.choice(["NA", "DE", "None", "?"], N),
        "shop": [f"s{i}" for i in g.integers(0, 40, N)],
    }
)
FRAME.loc[::50, "country"] = None
EFFECT = {"01001": 2.0, "02134": -2.0, "94105": 0.0}
FRAME["y"] = (
    FRAME["x"]
    + FRAME["zip"].map(EFFECT)
    + 2.0 * FRAME["flag"]
    + np.sin((WHEN - WHEN[0]).days.to_numpy() / 60)
)


def csv_of(path, frame=FRAME, **settings):
    frame.to_csv(path, index=False, **settings)
    return path


def written(folder, kind, frame=FRAME):
    """The same table as a file or an object."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    if kind == "frame":
        return frame
    if kind == "dict":
        return {name: frame[name].to_numpy() for name in frame}
    if kind == "objects":
        return frame.astype(object)
    if kind == "table":
        return table
    if kind in ("parquet", "parquet of small groups"):
        pq.write_table(table, folder / "t.parquet", row_group_size=77 if "small" in kind else None)
        return folder / "t.parquet"
    if kind == "arrow":
        with pa.ipc.new_file(folder / "t.arrow", table.schema) as file:
            file.write_table(table)
        return folder / "t.arrow"
    if kind == "csv.gz":
        with gzip.open(folder / "t.csv.gz", "wt") as file:
            frame.to_csv(file, index=False)
        return folder / "t.csv.gz"
    if kind == "csv shards":
        (folder / "shards").mkdir()
        for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
            csv_of(folder / "shards" / f"{i}.csv", frame.iloc[part])
        return folder / "shards"
    return csv_of(folder / "t.csv", frame)


EVERY = [
    "csv",
    "csv.gz",
    "csv shards",
    "parquet",
    "parquet of small groups",
    "arrow",
    "table",
    "dict",
    "objects",
]


@pytest.fixture(scope="module")
def from_frame():
    return KernelRegressor(**SETTINGS).fit(FRAME, "y")


@pytest.mark.parametrize("kind", EVERY)
def test_the_same_table_gives_the_same_model_and_predictions_to_the_bit(tmp_path, kind, from_frame):
    data = written(tmp_path, kind)
    model = KernelRegressor(**SETTINGS).fit(data, "y")
    assert torch.equal(model.model_.Z, from_frame.model_.Z) and torch.equal(
        model.model_.alpha, from_frame.model_.alpha
    )
    assert list(model.encoder_.kinds.values()) == [
        "number",
        "number",
        "boolean",
        "date",
        "date",
        "text",
        "text",
        "text",
    ]
    want = from_frame.predict(FRAME)
    np.testing.assert_array_equal(model.predict(FRAME), want)
    np.testing.assert_array_equal(from_frame.predict(data), want)
    assert from_frame.score(data, "y") == from_frame.score(FRAME, "y") > 0.9


def test_moments_do_not_depend_on_how_a_table_is_cut():
    values = 1e3 + g.normal(size=20_000)
    found = []
    for cuts in ([0, 20_000], [0, 7, 8192, 12_000, 20_000], [*range(0, 20_000, 77), 20_000]):
        table = opened({"a": values}, 0)
        table.cuts = cuts
        encoder = learn(Columns(), table, [], values[:, None], np.ones(20_000, bool))
        found.append((encoder.shift[0], encoder.scale[0]))
    assert found[0] == found[1] == found[2]


# ---- texts that look like numbers


NAMED = Columns(categorical=["zip"])


@pytest.mark.parametrize(
    "columns", [NAMED, Columns(categorical=["zip"], one_hot=2), Columns(one_hot=2, beyond="hash")]
)
def test_zip_codes_are_the_same_in_training_and_prediction(tmp_path, columns):
    path = csv_of(tmp_path / "t.csv", FRAME[["zip", "x"]].assign(y=FRAME["zip"].map(EFFECT)))
    model = KernelRegressor(**SETTINGS, columns=columns).fit(path, "y")
    assert model.score(path, "y") > 0.9
    if columns.beyond == "target":
        assert model.encoder_.categories[0].values == ["01001", "02134", "94105"]
    # Here they are all numbers.
    some = csv_of(tmp_path / "some.csv", FRAME[FRAME["zip"] == "94105"][["zip", "x"]])
    np.testing.assert_allclose(
        model.predict(some), model.predict(FRAME[["zip", "x"]])[FRAME["zip"] == "94105"], atol=1e-6
    )


def test_hashed_codes_are_the_same_in_a_file_that_has_only_numbers(tmp_path):
    code = g.choice(["0001", "1", "2.0", "25", "A1"], N)
    columns = Columns(one_hot=2, beyond="hash", hash_size=32)
    path = csv_of(tmp_path / "t.csv", pd.DataFrame({"code": code, "x": FRAME["x"]}))
    model = KernelRegressor(**SETTINGS, columns=columns).fit(path, FRAME["y"])
    for code in ("1", "2.0", "25"):
        frame = pd.DataFrame({"code": [code] * 3, "x": 0.5})
        text, number = model.predict(frame), model.predict(frame.assign(code=float(code)))
        np.testing.assert_array_equal(model.predict(csv_of(tmp_path / "n.csv", frame)), text)
        np.testing.assert_array_equal(number, text)


def test_stored_names_decide_where_numbers_meet_texts(tmp_path):
    frame = pd.DataFrame({"code": [1.0, 2.5, 30.0] * 50, "x": 0.0})
    y = np.array([1.0, 2.0, 3.0] * 50)
    model = KernelRegressor(**SETTINGS, columns=Columns(categorical=["code"])).fit(frame, y)
    assert model.encoder_.categories[0].values == ["1", "2.5", "30"]
    want = model.predict(frame[:3])
    for other in (["1", "2.5", "30"], ["1.0", "2.50", "3e1"], [1, 2.5, 30]):
        np.testing.assert_array_equal(model.predict({"code": other, "x": [0.0] * 3}), want)
        np.testing.assert_array_equal(
            model.predict(csv_of(tmp_path / "c.csv", pd.DataFrame({"code": other, "x": 0.0}))), want
        )
    names = kinds.Names(["1", "1.0", "007", None])
    assert names.codes(np.array(["1", "1.0", "1.00", "007", "7", None], object)).tolist() == [
        0,
        1,
        0,
        2,
        4,
        3,
    ]


def test_whole_numbers_keep_their_digits_as_names():
    code = 2**60 + np.arange(N) % 3
    for table in ({"code": code}, pa.table({"code": code})):
        encoder = learn(
            Columns(categorical=["code"]),
            opened(table, 0),
            [],
            code[:, None] % 3.0,
            np.ones(N, bool),
        )
        assert encoder.categories[0].values == [str(2**60 + i) for i in range(3)]


CASES = {
    "number": [
        "1\n2.5\n-3",
        "0.5\n0\n1e-3",
        "1\nNA\n?",
        " 1\n2 ",
        "null\n5",
        "9999999999999999999999\n1",
        "1,5\n2",
        "0,125\n0,250",
    ],
    "boolean": ["true\nfalse", "True\nFalse\n", "TRUE\nNA"],
    "date": [
        "2020-01-01\n2021-12-31",
        "2020-01-01 10:00:00\n2020-01-02",
        "2020-01-01T10:00:00Z\n2020-01-01 10:00:00+02:00\n2020-05-05",
        "2020-01-01 00:00:00.000000123",
        "3020-01-01\nNaT",
    ],
    "text": [
        "007\n1",
        "+5\n1",
        "1\nx",
        "0x10\n1",
        "-01\n2",
        "true\n1",
        "2020-01-01\n5",
        "2020-13-01",
        "NA\nDE",
        "1,500\n2",
        "1,500\n2,25",
    ],
    "empty": ["\n\n", "NA\n?\n", "\nNaN"],
}


@pytest.mark.parametrize(
    ("kind", "body"), [(kind, body) for kind, bodies in CASES.items() for body in bodies]
)
def test_a_csv_column_is_what_all_of_its_fields_are(tmp_path, kind, body):
    (tmp_path / "t.csv").write_text(
        "a;b\n" + "".join(f'"{line}";0\n' for line in body.split("\n")) if "," not in body else ""
    )
    # Where the comma is the delimiter too, one before three digits may mean thousands.
    if "," in body:
        (tmp_path / "t.csv").write_text(
            "a,b\n" + "".join(f'"{line}",0\n' for line in body.split("\n"))
        )
    for held in (0, 1 << 30):
        assert opened(tmp_path / "t.csv", held).fields["a"].kind == kind


@pytest.mark.parametrize("held", [0, 1 << 30])
@pytest.mark.parametrize(
    ("first", "later", "kind", "shown"),
    [
        ("17", "007", "text", "17"),
        ("1.50", "x", "text", "1.50"),
        ("17", "1.5", "number", 17.0),
        ("", "2020-01-01", "date", None),
        ("true", "perhaps", "text", "true"),
        ("2020-01-01", "2020-01-01T00:00:00Z", "date", np.datetime64("2020-01-01")),
        ("NA", "DE", "text", "NA"),
    ],
)
def test_a_later_block_decides_for_the_whole_file(
    tmp_path, monkeypatch, held, first, later, kind, shown
):
    monkeypatch.setattr("kernelmill.data.formats.csv.BLOCK", 1000)
    (tmp_path / "t.csv").write_text("a,b\n" + f"{first},1\n" * 900 + f"{later},1\n")
    table = opened(tmp_path / "t.csv", held)
    values = table.column("a")
    assert table.n == 901 and table.fields["a"].kind == kind and table.fields["b"].kind == "number"
    assert pd.isna(values[0]) if shown is None else values[0] == shown
    assert str(values[-1]).startswith(later[:10])


def test_fields_are_converted_to_the_kinds_of_training(tmp_path, from_frame):
    want = from_frame.predict(FRAME)
    other = FRAME.assign(
        x=[repr(v) for v in FRAME["x"]],
        whole=FRAME["whole"].astype("Int64").astype("category"),
        flag=FRAME["flag"].astype(int),
        when=FRAME["when"].dt.strftime("%Y-%m-%d"),
        time=FRAME["time"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        country=FRAME["country"].astype("category"),
        zip=[text.encode() for text in FRAME["zip"]],
    )
    np.testing.assert_array_equal(from_frame.predict(other), want)
    np.testing.assert_array_equal(from_frame.predict(FRAME.drop(columns="y").to_numpy()), want)
    for name, value, said in [
        ("x", "many", "texts in 'x', such as 'many', which had numbers"),
        ("flag", 2, "numbers in 'flag', such as '2', which had true or false"),
        ("when", 5, "numbers in 'when', such as '5', which had dates"),
        ("when", "soon", "texts in 'when', such as 'soon', which had dates"),
        ("x", pd.Timestamp("2020-01-01"), "dates in 'x', such as '2020-01-01', which had numbers"),
    ]:
        with pytest.raises(DataFileError, match=said):
            from_frame.predict(FRAME.assign(**{name: value}))
        with pytest.raises(DataFileError, match=said):
            from_frame.predict(csv_of(tmp_path / "bad.csv", FRAME.assign(**{name: value})))


def test_columns_of_several_kinds_are_names():
    mixed = np.array([1, "a", 2.5, True, None, datetime.date(2020, 1, 1)] * 20, dtype=object)
    for table in ({"m": mixed}, pd.DataFrame({"m": mixed})):
        assert opened(table, 0).column("m").tolist()[:6] == [
            "1",
            "a",
            "2.5",
            "true",
            None,
            "2020-01-01",
        ]
    for values, kind in [
        ([1, 2.5, None], "number"),
        ([True, None], "boolean"),
        ([None, None], "empty"),
        ([b"x", "y"], "text"),
        ([datetime.datetime(2020, 1, 1), None], "date"),
        ([datetime.timedelta(days=1)], "number"),
    ]:
        assert opened({"m": np.array([*values, None], dtype=object)}, 0).fields["m"].kind == kind


def test_a_name_like_na_is_a_name_in_texts_and_an_empty_field_is_none(tmp_path):
    frame = pd.DataFrame({"country": ["NA", "DE", ""] * 40, "x": [1.0, np.nan, 2.0] * 40})
    path = csv_of(tmp_path / "t.csv", frame, na_rep="NA")
    for data in (path, frame):
        table = opened(data, 1 << 30)
        assert table.column("country")[:3].tolist() == ["NA", "DE", None] and np.isnan(
            table.column("x")[1]
        )


def test_shards_have_one_kind(tmp_path):
    for i, code in enumerate(["5", "007", "", "NA"]):
        csv_of(
            tmp_path / f"{i}.csv",
            pd.DataFrame({"code": [code] * 3, "n": ["", "1", "1.5"], "big": 2**60 + i}),
        )
    table = opened(tmp_path, 1 << 30)
    assert {name: field.kind for name, field in table.fields.items()} == {
        "code": "text",
        "n": "number",
        "big": "number",
    }
    assert table.column("code")[::3].tolist() == ["5", "007", None, "NA"]
    assert table.column("big")[::3].tolist() == [2**60 + i for i in range(4)]


def test_parquet_shards_may_have_dates_of_any_type_and_codes_of_any_kind(tmp_path):
    day = datetime.date(2020, 1, 2)
    moments = [
        pa.array([day]),
        *(pa.array([day]).cast(pa.timestamp(unit)) for unit in ("s", "us", "ns")),
    ]
    moments.append(pa.array([datetime.datetime(2020, 1, 2)]).cast(pa.timestamp("us", "UTC")))
    for i, moment in enumerate(moments):
        code = pa.array([7]) if i % 2 else pa.array(["007"])
        pq.write_table(pa.table({"when": moment, "code": code}), tmp_path / f"{i}.parquet")
    table = opened(tmp_path, 1 << 30)
    assert (table.column("when") == np.datetime64("2020-01-02")).all() and table.n == 5
    assert table.column("code").tolist() == ["007", "7", "007", "7", "007"]


# ---- labels


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["007", "010"], ["007", "010"]),
        (["NA", "DE"], ["DE", "NA"]),
        (["True", "False"], [False, True]),
        (["2024-01-01", "2024-02-01"], [np.datetime64("2024-01-01"), np.datetime64("2024-02-01")]),
        (["7", "11"], [7, 11]),
    ],
)
def test_labels_are_of_one_kind_in_every_file(tmp_path, names, classes):
    label = np.where(FRAME["x"] > 0, *names)
    path = csv_of(tmp_path / "t.csv", FRAME[["x"]].assign(y=label))
    model = KernelClassifier(**SETTINGS).fit(path, "y")
    assert list(model.classes_) == classes
    first = classes if str(classes[0])[:10] == names[0] else classes[::-1]
    typed = FRAME[["x"]].assign(y=np.where(FRAME["x"] > 0, *first))
    texts = FRAME[["x"]].assign(y=label.astype(object))
    score = model.score(path, "y")
    assert score > 0.95
    for other in (typed, texts, {"x": FRAME["x"].to_numpy(), "y": label}):
        assert model.score(other, "y") == score
    again = KernelClassifier(**SETTINGS).fit(typed, "y")
    assert list(again.classes_) == classes and again.score(path, "y") == score
    model.partial_fit(texts, "y")
    strange = FRAME[["x"]].assign(y="never seen")
    assert model.score(csv_of(tmp_path / "s.csv", strange), "y") == 0


def test_a_file_of_fewer_labels_is_scored_like_the_whole(tmp_path):
    label = np.where(FRAME["x"] > 0.5, "x", np.where(FRAME["x"] > 0, "1.0", "2"))
    model = KernelClassifier(**SETTINGS).fit(
        csv_of(tmp_path / "t.csv", FRAME[["x"]].assign(y=label)), "y"
    )
    some = csv_of(tmp_path / "s.csv", FRAME[["x"]].assign(y=label)[label != "x"])
    assert model.score(some, "y") > 0.9


# ---- dates


def test_dates_are_the_same_seconds_in_every_unit_and_zone():
    moments = pd.to_datetime(
        ["1969-12-31 23:59:59.250", "2024-02-29 12:00:00.001", None, "1900-03-01"], format="ISO8601"
    )
    want = [-0.75, 1709208000.001, np.nan, -2203891200.0]
    columns = [moments.to_numpy().astype(f"datetime64[{unit}]") for unit in ("ms", "us", "ns")]
    arrow = [pa.array(moments).cast(pa.timestamp(unit)) for unit in ("ms", "us", "ns")]
    zoned = pa.array(moments.tz_localize("UTC").tz_convert("America/New_York"))
    objects = np.array([None if pd.isna(m) else m.to_pydatetime() for m in moments], dtype=object)
    for values in [*columns, objects]:
        np.testing.assert_array_equal(opened({"t": values}, 0).read(["t"], 0, 4)["t"][:, 0], want)
    for values in [*arrow, zoned, zoned.dictionary_encode()]:
        np.testing.assert_array_equal(
            opened(pa.table({"t": values}), 0).read(["t"], 0, 4)["t"][:, 0], want
        )
    days = pa.array([datetime.date(2020, 1, 2), None])
    for kind in (pa.date32(), pa.date64(), pa.timestamp("s")):
        np.testing.assert_array_equal(
            opened(pa.table({"t": days.cast(kind)}), 0).read(["t"], 0, 2)["t"][:, 0],
            [1577923200.0, np.nan],
        )
    spans = {
        "o'clock": pa.array([3_600_000], pa.time32("ms")),
        "long": pa.array([90_000_000], pa.duration("us")),
    }
    table = opened(pa.table(spans), 0)
    assert (
        table.column("o'clock") == 3600
        and table.column("long") == 90
        and table.fields["long"].kind == "number"
    )


def test_the_parts_of_a_date_are_those_of_the_calendar():
    days = np.r_[-800_000:800_000:997, -1:400, 10_956:11_030, 47_480:47_560]
    moment = days * 86_400.0 + 45_000
    day, year, *circles = dates.parts(moment)
    civil = [
        datetime.date(1, 1, 1) + datetime.timedelta(int(d) + 719_162) for d in days if d > -719_162
    ]
    inside = days > -719_162
    np.testing.assert_array_equal(year[inside], [c.year for c in civil])
    turns = [
        np.array([(c.month - 1) / 12 for c in civil]),
        np.array([c.weekday() / 7 for c in civil]),
        np.full(len(civil), 12.5 / 24),
    ]
    for turn, cos, sin in zip(turns, circles[::2], circles[1::2], strict=True):
        np.testing.assert_allclose(cos[inside], np.cos(2 * np.pi * turn), atol=1e-12)
        np.testing.assert_allclose(sin[inside], np.sin(2 * np.pi * turn), atol=1e-12)
    np.testing.assert_array_equal(day, moment / 86_400)
    assert all(np.isnan(part).all() for part in dates.parts(np.array([np.nan])))


def test_a_date_becomes_its_parts_and_constant_ones_say_nothing():
    table = opened(
        FRAME[["when", "time"]].assign(when=FRAME["when"].where(np.arange(N) % 10 > 0)), 0
    )
    encoder = learn(Columns(), table, [], FRAME["y"].to_numpy()[:, None], np.ones(N, bool))
    assert (
        encoder.names[:3] == ["when: days", "when: year", "when: month cos"]
        and encoder.names[-1] == "when is missing"
    )
    out = encoder.encode(table, 0, N)
    assert (out[:, 6:8] == 0).all() and out[
        :, 14:16
    ].std() > 0.5  # the hour of pure dates, and of times
    assert (out[::10, :8] == 0).all() and (out[:, -1] == (np.arange(N) % 10 == 0)).all()
    later = FRAME[["when", "time"]].assign(when=FRAME["when"] + pd.Timedelta("5h"))
    # The model sees to these.
    assert (encoder.encode(opened(later, 0), 0, N)[:, 6:8] != 0).any() and encoder.constant == [
        6,
        7,
        9,
    ]


def test_a_regression_on_dates_is_one_on_seconds(tmp_path):
    frame = pd.DataFrame({"x": (WHEN - WHEN[0]).days, "y": WHEN})
    model = KernelRegressor(kernel=kernels.Linear(), ridge=1e-6).fit(
        csv_of(tmp_path / "t.csv", frame), "y"
    )
    seconds = (WHEN - pd.Timestamp("1970-01-01")).total_seconds().to_numpy()
    np.testing.assert_allclose(model.predict(frame), seconds, rtol=1e-5)
    assert model.score(frame, "y") > 0.99 and model.score(tmp_path / "t.csv", "y") > 0.99
    assert (
        model.score(
            frame[["x"]].assign(z="a").drop(columns="z").assign(y=WHEN.tz_localize("Asia/Tokyo")),
            "y",
        )
        > 0.99
    )


def test_the_command_line_takes_many_dates_for_numbers_and_few_for_labels():
    assert task_of(WHEN.to_numpy(), "when", None)[0] == "regression"
    assert task_of(WHEN.to_numpy()[np.arange(N) % 3], "when", None)[0] == "classification"


def test_onnx_has_dates_names_and_constants_as_predict_has_them(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    frame = FRAME.assign(constant=7.0, one="a", code=np.arange(N) % 3 + 0.0)
    frame.loc[::9, "time"] = pd.NaT
    model = KernelRegressor(
        **SETTINGS, n_centers=100, solver="falkon", columns=Columns(categorical=["code"])
    ).fit(frame, "y")
    new = frame.assign(
        constant=np.linspace(0, 1e4, N), one="b", when=frame["when"] + pd.Timedelta("37D 3h")
    )
    want = model.predict(new)
    np.testing.assert_array_equal(want, model.predict(new.assign(constant=7.0, one="a")))
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(kernelmill.load(tmp_path / "m").predict(new), want)
    model.to_onnx(tmp_path / "m.onnx")
    inputs = {
        name: np.array(
            [
                "" if v is None else str(v)
                for v in new[name].astype(object).where(new[name].notna(), None)
            ],
            dtype=object,
        )
        for name in ("zip", "country", "shop", "one")
    }
    inputs |= {name: new[name].to_numpy(np.float64) for name in ("x", "whole", "flag", "constant")}
    inputs |= {name: dates.seconds(new[name].to_numpy()) for name in ("when", "time")}
    inputs["code"] = np.array([f"{int(v)}" for v in new["code"]], dtype=object)
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(["prediction"], inputs)[0], want, atol=1e-4)


# ---- constants, commas, weights, kept columns


@pytest.mark.parametrize(
    ("then", "later"),
    [(100_000.0, 100_050.0), (np.nan, 30.0), (0.0, 5.0), ("a", "b"), (None, "b"), (True, False)],
)
@pytest.mark.parametrize("standardise", [None, False])
def test_a_column_that_never_varied_has_no_influence(tmp_path, then, later, standardise):
    frame = FRAME[["x", "zip", "y"]].assign(k=then)
    model = KernelRegressor(**SETTINGS, columns=Columns(standardise=standardise)).fit(frame, "y")
    want = model.predict(frame)
    np.testing.assert_array_equal(model.predict(frame.assign(k=later)), want)
    csv_of(tmp_path / "later.csv", frame.assign(k=later))
    np.testing.assert_array_equal(model.predict(tmp_path / "later.csv"), want)


@pytest.mark.parametrize("how", ["delimiter", "text"])
def test_decimal_commas_are_numbers_and_said(tmp_path, how):
    frame = FRAME[["x", "whole", "y"]].round(3)
    plain, comma = (
        csv_of(tmp_path / "p.csv", frame, sep=";"),
        csv_of(tmp_path / "c.csv", frame, sep=";", decimal=","),
    )
    model = KernelRegressor(**SETTINGS).fit(plain, "y")
    want = model.predict(plain)
    if how == "text":  # enforced by kind, in a frame of texts
        np.testing.assert_array_equal(
            model.predict(frame.assign(x=[str(v).replace(".", ",") for v in frame["x"]])), want
        )
        return
    with pytest.warns(UserWarning, match="in 'x', 'y' are read as decimal commas") as caught:
        again = KernelRegressor(**SETTINGS).fit(comma, "y")
    assert [warning.filename for warning in caught] == [__file__]  # once, and the user's line
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the model knows it
        np.testing.assert_array_equal(again.predict(comma), want)
        np.testing.assert_array_equal(model.predict(comma), want)


def test_commas_that_may_mean_thousands_are_not_read_without_a_word(tmp_path):
    x = g.integers(1000, 9999, 200)
    model = KernelRegressor(**SETTINGS).fit(pd.DataFrame({"x": x, "y": x * 0.5}), "y")
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f'"{v:,}",{v}\n' for v in x))
    want = model.predict(pd.DataFrame({"x": x}))
    for rows in (pd.DataFrame({"x": [f"{v:,}" for v in x]}), tmp_path / "t.csv"):
        with pytest.warns(UserWarning, match="commas in 'x' are read as thousands marks"):
            np.testing.assert_array_equal(model.predict(rows), want)


def test_values_that_are_nearly_all_new_are_said(tmp_path):
    zips = [f"{i % 7:05d}" for i in range(200)]
    csv_of(tmp_path / "t.csv", pd.DataFrame({"zip": zips, "y": np.arange(200) % 7}))
    model = KernelRegressor(**SETTINGS, columns=Columns(categorical=["zip"])).fit(
        tmp_path / "t.csv", "y"
    )
    with pytest.warns(
        UserWarning, match="most values of 'zip', such as '1', were not in the training data"
    ):
        model.predict(pd.DataFrame({"zip": [1 + i % 6 for i in range(200)]}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(pd.DataFrame({"zip": zips}))
        model.predict(pd.DataFrame({"zip": [None] * 200}))


@pytest.mark.parametrize("classes", [False, True])
def test_a_weight_is_so_many_copies_and_none_is_absent(classes):
    w = g.integers(0, 4, N)
    copies = np.repeat(np.arange(N), w)
    copies = copies[g.permutation(len(copies))]
    frame, y = FRAME.drop(columns="y"), FRAME["y"].to_numpy()
    y = np.digitize(y, [-1, 1]) if classes else y
    estimator = KernelClassifier if classes else KernelRegressor
    weighted = estimator(**SETTINGS).fit(frame, y, w)
    copied = estimator(**SETTINGS).fit(frame.iloc[copies].reset_index(drop=True), y[copies])
    a, b = weighted.encoder_, copied.encoder_
    assert any(category.how == "target" for category in a.categories) and a.names == b.names
    np.testing.assert_allclose(a.shift, b.shift, rtol=1e-12)
    np.testing.assert_allclose(a.scale, b.scale, rtol=1e-9)
    for mine, other in zip(a.categories, b.categories, strict=True):
        assert mine.values == other.values
        np.testing.assert_allclose(mine.table, other.table, rtol=1e-5, atol=1e-6)
    if not classes:
        np.testing.assert_allclose(weighted.predict(frame), copied.predict(frame), atol=1e-4)


def test_a_lone_column_of_many_names_is_still_learned():
    """Folds that follow from the row itself would leave each name without rows."""
    effect = g.normal(size=50)
    shop = g.integers(0, 50, 3000)
    names = {"shop": np.array([f"s{i}" for i in shop], dtype=object)}
    model = KernelRegressor(**SETTINGS).fit(names, effect[shop])
    assert model.score(names, effect[shop]) > 0.9


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("out", ["p.csv", "p.parquet"])
def test_kept_columns_stand_as_they_stood(tmp_path, monkeypatch, kind, out):
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(
        {
            "id": 2**60 + np.arange(N),
            "order": pd.array([2**60 + i if i % 7 else None for i in range(N)], dtype="Int64"),
            "when": FRAME["time"],
            "flag": FRAME["flag"],
            "zip": FRAME["zip"],
            "price": [f"{v:.2f}" for v in FRAME["x"]],
            "x": FRAME["x"],
        }
    )
    KernelRegressor(**SETTINGS, columns=Columns(features=["x"])).fit(frame, FRAME["y"]).save("m")
    data = written(tmp_path, kind, frame)
    done = CliRunner().invoke(
        app, ["predict", "m", str(data), "--out", out, "--keep", "id,order,when,flag,zip,price"]
    )
    assert done.exit_code == 0, done.output
    if out == "p.csv":
        found = pd.read_csv(out, dtype=str, keep_default_na=False)
        flags = ["True", "False"] if kind == "csv" else ["true", "false"]
        assert '"' not in (tmp_path / out).read_text().split("\n", 1)[1]
        assert (found["when"].str[:19] == frame["when"].dt.strftime("%Y-%m-%d %H:%M:%S")).all()
        assert (found["flag"] == np.where(frame["flag"], *flags)).all()
        assert (found["order"] == ["" if pd.isna(v) else str(v) for v in frame["order"]]).all()
        assert (found["id"] == frame["id"].astype(str)).all() and (
            found["zip"] == frame["zip"]
        ).all()
    elif kind == "parquet":
        found = pq.read_table(out)
        assert (
            found.schema.field("order").type == pa.int64()
            and found["order"].to_pylist()
            == frame["order"].astype(object).where(frame["order"].notna(), None).to_list()
        )
        assert (
            found["when"].to_pylist() == frame["when"].to_list()
            and found["flag"].to_pylist() == frame["flag"].to_list()
        )
    found = pd.read_csv(out, dtype=str) if out == "p.csv" else pd.read_parquet(out)
    assert found["price"].tolist() == frame["price"].tolist()
