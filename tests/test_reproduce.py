"""The reproduction: loaders on small files of the right form, measured rows, counts, and a page
that is what its results say.
"""

import gzip
import importlib
import json
import math

import numpy as np
import pytest
import torch

from kernelmill.solvers.eigenpro_state import PROBE_ROWS
from reproduce import claims, data, page, record
from reproduce.networks import STAGES, EfficientNetLite0

g = torch.Generator().manual_seed(0)
rng = np.random.default_rng(0)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELMILL_DATA", str(tmp_path))
    return tmp_path


# ---- the paper's own data


def test_cifar5m_shards(place):
    (place / "cifar5m").mkdir()
    images = rng.integers(0, 256, (120, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, 120)
    for i in range(3):
        rows = slice(40 * i, 40 * i + 40)
        np.savez(place / "cifar5m" / f"cifar5m_part{i}.npz", X=images[rows], Y=labels[rows])
    found = data.load("cifar5m", 50)
    assert (found.X.shape, found.X_test.shape, found.X_valid.shape) == (
        (50, 3072),
        (12, 3072),
        (10, 3072),
    )
    assert (found.y_test.numpy() == labels[-12:]).all()
    assert found.X_test[0, :3].tolist() == pytest.approx(
        (images[-12].reshape(-1)[:3] / 255).tolist(), abs=1e-3
    )
    train = {tuple(row.tolist()) for row in (found.X.float() * 255).round()[:, :20]}
    held = {
        tuple(row.tolist())
        for row in (torch.cat([found.X_test, found.X_valid]).float() * 255).round()[:, :20]
    }
    assert len(train) == 50 and not train & held


@pytest.mark.parametrize("form", ["npy", "npz", "pt"])
@pytest.mark.parametrize("one_hot", [False, True])
def test_feature_files(place, form, one_hot):
    (place / "webvision").mkdir()
    for name, n in (("train_a", 60), ("train_b", 40), ("val", 20)):
        X, y = rng.normal(size=(n, 7)).astype(np.float32), np.arange(n) % 5
        y = np.eye(5, dtype=np.float32)[y] if one_hot else y
        path = place / "webvision" / name
        if form == "npy":
            np.save(f"{path}_x.npy", X)
            np.save(f"{path}_y.npy", y)
        elif form == "npz":
            np.savez(f"{path}.npz", X=X, y=y)
        else:
            torch.save([torch.from_numpy(X), torch.from_numpy(y)], f"{path}.pt")
    (place / "webvision" / "README").write_text("not data")
    found = data.load("webvision", 10**6)
    assert (
        len(found.X),
        len(found.X_valid),
        len(found.X_test),
        found.classes,
        found.bandwidth,
    ) == (90, 10, 20, 5, 5.0)
    assert (found.y_test == torch.arange(20) % 5).all()


def test_what_is_missing_is_said(place, capsys):
    def said(name: str) -> str:
        with pytest.raises(SystemExit) as error:
            data.load(name, 10)
        assert error.value.code == data.LEFT_OUT
        return capsys.readouterr().err

    assert "librispeech was not found: put pairs like train_x.npy" in said("librispeech")
    assert "CIFAR5M was not found: put cifar5m_part0.npz" in said("cifar5m")
    assert "reproduce.data fetch" in said("features")
    assert data.load("text", 10, "cpu", needed=False) is None
    (place / "imagenet").mkdir()
    np.save(place / "imagenet" / "train_x.npy", np.zeros((3, 2)))
    assert "has no labels beside it: expected train_y.npy" in said("imagenet")
    np.save(place / "imagenet" / "train_y.npy", np.zeros(2))
    assert "has 3 rows and 2 labels" in said("imagenet")


# ---- what stands in for it


def test_fashion_keeps_validation_rows_out_of_its_copies(place):
    for name, n in (("train", 60), ("t10k", 10)):
        # Each image is its number.
        images = np.repeat(np.arange(n, dtype=np.uint8)[:, None], 784, 1)
        for kind, body, head in (
            ("images-idx3", images, 16),
            ("labels-idx1", np.arange(n, dtype=np.uint8) % 10, 8),
        ):
            with gzip.open(place / f"{name}-{kind}-ubyte.gz", "wb") as file:
                file.write(bytes(head) + body.tobytes())
    found = data.fashion(120, valid=10)
    assert (len(found.X), len(found.X_valid), len(found.X_test)) == (120, 10, 10)
    middle = 14 * 28 + 14
    own, held = (
        {round(value * 255) for value in X[:, middle].float().tolist()}
        for X in (found.X[:50], found.X_valid)
    )
    assert len(own) == 50 and not own & held
    assert (found.y[:50] == found.y[50:100]).all()


def test_features_keep_validation_images_out_of_their_copies(place, monkeypatch):
    (place / "cifar10").mkdir()
    for i, name in enumerate([*(f"train-{k}" for k in range(1, 6)), "test"]):
        images = (
            np.full((20, 32, 32, 3), 0, np.uint8)
            + np.arange(20 * i, 20 * i + 20, dtype=np.uint8)[:, None, None, None]
        )
        np.savez(
            place / "cifar10" / f"{name}.npz",
            images=images,
            labels=np.arange(20, dtype=np.uint8) % 10,
        )
    monkeypatch.setattr(data, "_unpacked", lambda *names: None)
    monkeypatch.setattr("reproduce.networks.EfficientNetLite0", lambda *settings: None)
    monkeypatch.setattr(
        data, "embedded", lambda net, images: images[:, 16, 16, 0, None].float().expand(-1, 1280)
    )
    found = data.features(150, valid=30)
    again = data.features(150, valid=30)  # the second time from the file
    own, held, test = (
        {int(value) for value in X[:, 0]} for X in (found.X, found.X_valid, found.X_test)
    )
    assert (len(found.X), len(own), len(held), len(test)) == (150, 70, 30, 20)
    assert not own & held and not test & (own | held)
    assert (found.y[:70] == found.y[70:140]).all() and (again.X == found.X).all()


def test_moved_images_are_shifted_and_mirrored():
    images = torch.randint(0, 256, (64, 32, 32, 3), dtype=torch.uint8, generator=g)
    moved = data.moved(images, g)
    assert moved.shape == images.shape and moved.dtype == torch.uint8
    plain = mirrored = 0
    for before, after in zip(images, moved, strict=True):
        for turned in (False, True):
            whole = after.flip(1) if turned else after
            places = [
                (i, j)
                for i in range(9)
                for j in range(9)
                if (whole[8:24, 8:24] == before[4 + i : 20 + i, 4 + j : 20 + j]).all()
            ]
            plain, mirrored = (
                plain + bool(places and not turned),
                mirrored + bool(places and turned),
            )
    assert plain + mirrored == 64 and min(plain, mirrored) > 15


def test_descriptions_of_packages():
    entry = "Package: {0}\nSection: {1}\nDescription: text of {0}\nTag: a::b,\n c::d: e"
    listing = "\n\n".join(
        [entry.format(f"a{i}", "games") for i in range(5)]
        + [entry.format(f"b{i}", "contrib/net") for i in range(4)]
    )
    listing += (
        "\n\n"
        + entry.format("a0", "net")
        + "\n\n"
        + entry.format("c", "rare")
        + "\n\nPackage: broken"
    )
    found = data.descriptions(listing, least=4)
    assert found == [("games", f"text of a{i}") for i in range(5)] + [
        ("net", f"text of b{i}") for i in range(4)
    ]


@pytest.fixture
def lite0(tmp_path):
    """Random weights under the names of the published file."""
    state: dict[str, torch.Tensor] = {}

    def conv(name, norm, out, into, k):
        state[f"{name}.weight"] = torch.randn(out, into, k, k, generator=g) / (into * k * k) ** 0.5
        state[f"{norm}.weight"], state[f"{norm}.bias"] = (
            torch.rand(out, generator=g) + 0.5,
            torch.randn(out, generator=g) / 10,
        )
        state[f"{norm}.running_mean"], state[f"{norm}.running_var"] = (
            torch.randn(out, generator=g) / 10,
            torch.rand(out, generator=g) + 0.5,
        )

    conv("_conv_stem", "_bn0", 32, 3, 3)
    conv("_conv_head", "_bn1", 1280, 320, 1)
    i, into = 0, 32
    for k, _, expansion, channels, repeats in STAGES:
        for _ in range(repeats):
            wide, at = into * expansion, f"_blocks.{i}"
            if expansion > 1:
                conv(f"{at}._expand_conv", f"{at}._bn0", wide, into, 1)
            conv(f"{at}._depthwise_conv", f"{at}._bn1", wide, 1, k)
            conv(f"{at}._project_conv", f"{at}._bn2", channels, wide, 1)
            i, into = i + 1, channels
    state["_fc.weight"], state["_fc.bias"] = (
        torch.randn(1000, 1280, generator=g),
        torch.randn(1000, generator=g),
    )
    torch.save(state, tmp_path / "lite0.pth")
    return tmp_path / "lite0.pth", state


def test_the_image_network(lite0):
    path, state = lite0
    net = EfficientNetLite0(path)
    found = net(torch.rand(2, 3, 64, 64, generator=g))
    assert (
        found.shape == (2, 1280)
        and torch.isfinite(found).all()
        and found.min() >= 0
        and found.max() <= 6
    )
    # A folded convolution is the convolution and its batch norm.
    x = torch.rand(1, 3, 9, 9, generator=g)
    norm = [state[f"_bn0.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    plain = torch.nn.functional.batch_norm(
        torch.nn.functional.conv2d(x, state["_conv_stem.weight"]), *norm, eps=1e-3
    )
    weight, bias = net._convs["_conv_stem"]
    torch.testing.assert_close(
        torch.nn.functional.conv2d(x, weight, bias), plain, rtol=1e-4, atol=1e-5
    )
    assert net._conv("_conv_stem", x, 2).shape[-1] == 5  # a stride halves the size, rounded up


# ---- measuring


@pytest.fixture
def small():
    X = torch.randn(3000, 12, generator=g)
    y = (X[:, 0] * X[:, 1] > 0).long()
    return data.Data(
        "small", X[:2600], y[:2600], X[2600:2800], y[2600:2800], X[2800:], y[2800:], 3.0
    )


def test_a_measured_fit(small):
    row = record.fit(
        small,
        200,
        "EigenPro 4, as published",
        device="cpu",
        solver=record.EigenPro4.paper(s=100, q=10),
    )
    assert row["accuracy"] > 60 and row["validation"] > 60 and row["seconds"] > row["set-up s"] > 0
    assert "steps timed" not in row and row["epochs"] == 1


def test_what_takes_too_long_is_extrapolated_and_gets_no_accuracy(small):
    solver = record.EigenPro3(s=100, q=10, m=8, projection="one_pass", recipe="paper")
    row = record.fit(
        small, 100, "EigenPro 3, as published", device="cpu", solver=solver, longest=0.0
    )
    assert record.LEAST_STEPS <= row["steps timed"] < 2600 / 8
    assert "accuracy" not in row and "validation" not in row and row["seconds"] > row["set-up s"]


def test_extrapolation_leaves_the_first_steps_out():
    assert record.extrapolated([(100, 9.0), (200, 10.0), (300, 11.0)], 1000) == pytest.approx(9 + 9)
    assert record.extrapolated([(100, 2.0)], 1000) == pytest.approx(20)


def test_what_does_not_fit_says_so(small):
    row = record.fit(small, 2000, "Falkon", device="cpu", memory_budget="20MB")
    assert "0.0 may be used" in row["out of memory"] and "seconds" not in row


def test_other_errors_are_not_taken_for_memory(small):
    with pytest.raises(record.InputError, match="nowhere"):
        record.fit(small, 100, "kernelmill", device="cpu", centers="nowhere")


def test_counted_kernel_values_are_the_formulas():
    from reproduce import table1_complexity as table1

    four, three, falkon = (
        table1.counted(method, 512) for method in ("EigenPro 4", "EigenPro 3", "Falkon")
    )
    # Beside the paper's count, the probe's rows after each projection.
    cycle = table1.COUNTED["m"] * round(math.sqrt(2) * 512 / table1.COUNTED["m"])
    probe = PROBE_ROWS * 512 / cycle
    assert 0.85 < (four["values per sample"] - probe) / four["formula, values"] < 1.0
    # Half of p², and all of the rest.
    assert 0.5 < three["values per sample"] / three["formula, values"] < 0.8
    assert falkon["values per sample"] == falkon["formula, values"] == 512


# ---- the page


def test_the_page_is_what_the_results_say(tmp_path, monkeypatch):
    stored = page.PAGE.read_text()
    monkeypatch.setattr(page, "PAGE", tmp_path / "reproduction.md")
    page.main()
    assert stored == (tmp_path / "reproduction.md").read_text(), (
        "results changed: run `python -m reproduce.page`"
    )
    assert "{{" not in stored


def test_every_claim_is_judged():
    for claim in claims.CLAIMS:
        verdict, said = claims.verdict_of(claim)
        assert verdict in (claims.YES, claims.ALMOST, claims.NO), claim.text
        assert said and "nan" not in said


def cells_of(four, three, falkon):
    """Table 2 of one data with two sizes: (seconds, accuracy) of each method at each."""
    return [
        {"data": "features", "p": p, "method": method, "seconds": seconds, "accuracy": accuracy}
        for method, values in ((claims.FOUR, four), (claims.THREE, three), ("Falkon", falkon))
        for p, (seconds, accuracy) in zip((1000, 2000), values, strict=True)
    ]


@pytest.mark.parametrize(
    "judge, rows, verdict",
    [
        (
            claims.as_three,
            cells_of([(1, 80), (2, 85)], [(9, 80.3), (30, 85)], [(3, 79), (4, 84)]),
            claims.YES,
        ),
        (
            claims.as_three,
            cells_of([(1, 70), (2, 80)], [(9, 80.3), (30, 85)], [(3, 79), (4, 84)]),
            claims.NO,
        ),
        (
            claims.above_falkon,
            cells_of([(1, 80), (2, 85)], [(9, 80), (30, 85)], [(3, 79), (4, 84)]),
            claims.YES,
        ),
        (
            claims.above_falkon,
            cells_of([(1, 80), (2, 85)], [(9, 80), (30, 85)], [(3, 82), (4, 86)]),
            claims.NO,
        ),
        (
            claims.larger_is_better,
            cells_of([(1, 80), (2, 85)], [(9, 80), (30, 85)], [(3, 82), (4, 86)]),
            claims.YES,
        ),
        (
            claims.larger_is_better,
            cells_of([(1, 85), (2, 80)], [(9, 80), (30, 85)], [(3, 82), (4, 86)]),
            claims.NO,
        ),
        (
            claims.faster,
            cells_of([(9, 80), (40, 85)], [(1, 80), (2, 85)], [(3, 82), (4, 86)]),
            claims.NO,
        ),
        (
            claims.faster,
            cells_of([(1, 80), (2, 85)], [(9, 80), (40, 85)], [(3, 82), (4, 86)]),
            claims.ALMOST,
        ),
    ],
)
def test_verdicts_follow_from_the_numbers(monkeypatch, judge, rows, verdict):
    monkeypatch.setattr(
        claims, "read", lambda name, size: {"rows": rows} if size == "small" else None
    )
    monkeypatch.setattr(claims, "largest", lambda name: {"rows": rows})
    assert judge()[0] == verdict


def test_a_claim_without_results_is_not_judged(monkeypatch):
    monkeypatch.setattr(claims, "read", lambda name, size: None)
    monkeypatch.setattr(claims, "largest", lambda name: None)
    assert (
        claims.verdict_of(
            next(claim for claim in claims.CLAIMS if claim.judge is claims.first_limit)
        )[0]
        == "not judged"
    )


SCRIPTS = [
    "table1_complexity",
    "table2_comparison",
    "figure_projection",
    "figure_epochs",
    "figure_methods",
    "appendix_fixed_point",
    "nystrom_size",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_pictures_come_from_the_results(script, tmp_path, monkeypatch):
    room = importlib.import_module(f"reproduce.{script}")
    monkeypatch.setattr(record, "PICTURES", tmp_path)
    room.draw()
    (picture,) = tmp_path.iterdir()
    assert (
        page.PAGE.parent / "pictures" / picture.name
    ).exists() and f"pictures/{picture.name}" in page.PAGE.read_text()


def test_results_name_the_command_and_no_path():
    for path in record.RESULTS.glob("*.json"):
        command = json.loads(path.read_text())["command"]
        assert (
            command.startswith(f"python -m reproduce.{path.stem.rsplit('-', 1)[0]}")
            and "/" not in command
        )
