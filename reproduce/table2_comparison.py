"""Figure 1 and Table 2: seconds of an epoch, memory and accuracy of EigenPro 4, EigenPro 3, Falkon
and this library's default against p.

python -m reproduce.table2_comparison [--small | --gpu | --paper] [--data fashion features]
[--longest 120] [--repeat 3]

Every method has the same kernel, the same rows and the same number of centers. A fit that would
take more than --longest seconds is timed for at least 20 steps and extrapolated; it gets no
accuracy. Out of memory is reported as such. `--paper` is the paper's own table: CIFAR5M (features
and pixels), Librispeech and Webvision, whole; see docs/reproduction.md for where the files go.
"""

from __future__ import annotations

from dataclasses import replace

from .data import load
from .record import METHODS, axes, fit, largest, read, save, script, write

NAME = "table2_comparison"
K = 1024
SIZES = {
    "small": {
        "data": {"fashion": 55_000, "features": 10_000, "text": 40_000},
        "p": [K, 2 * K, 4 * K, 8 * K],
        "longest": 60.0,
    },
    "gpu": {
        "data": {"fashion": 1_100_000, "features": 1_125_000},
        "p": [64 * K, 128 * K, 256 * K, 512 * K, 1024 * K],
        "longest": 140.0,
    },
    "paper": {
        "data": {
            "cifar5m_features": 5_000_000,
            "cifar5m": 6_000_000,
            "librispeech": 10_000_000,
            "webvision": 5_200_000,
        },
        "p": [64_000, 128_000, 256_000, 512_000, 1_000_000],
        "longest": 3600.0,
    },
}


def run(given) -> None:
    size = SIZES[given.size]
    longest = given.longest or size["longest"]
    stored = read(NAME, given.size)
    # A part is measured again, the rest stays.
    rows = stored["rows"] if stored and (given.data or given.p or given.methods) else []
    for name in given.data or size["data"]:
        data = load(name, size["data"][name], given.device, needed=False)
        if data is None:
            continue
        print(f"{name}: {len(data.X):,} rows × {data.X.shape[1]} features", flush=True)
        some = replace(data, X=data.X[: len(data.X) // 10], y=data.y[: len(data.X) // 10])
        # Whatever is made once, kernels that are compiled above all, is made here.
        for method in given.methods or METHODS:
            fit(some, min(size["p"]) // 4, method, device=given.device, longest=1.0)
        for p in (p for p in given.p or size["p"] if p < len(data.X)):
            turns: dict[str, list[dict]] = {}
            # By turns, so that a ratio does not depend on when it was taken.
            for _ in range(given.repeat):
                for method in given.methods or METHODS:
                    turns.setdefault(method, []).append(
                        fit(data, p, method, device=given.device, longest=longest)
                    )
            for each in turns.values():
                row = sorted(each, key=lambda row: row.get("seconds", 0.0))[len(each) // 2]
                row["all seconds"] = [one["seconds"] for one in each if "seconds" in one]
                rows = [
                    old
                    for old in rows
                    if any(old[key] != row[key] for key in ("data", "p", "method"))
                ] + [row]
            write(NAME, given.size, rows, longest=longest)
        del data


def draw() -> None:
    result = largest(NAME)
    if result is None:
        return
    names = list(dict.fromkeys(row["data"] for row in result["rows"]))
    titles = {
        "fashion": "raw pixels (Fashion-MNIST, augmented)",
        "features": "image features (CIFAR-10, augmented)",
        "text": "text embeddings",
    }
    figure, panels = axes(len(names), height=5.0, width=6.4)
    for panel, name in zip(panels, names, strict=True):
        for method, look in METHODS.items():
            rows = [
                row
                for row in result["rows"]
                if row["data"] == name and row["method"] == method and "seconds" in row
            ]
            rows.sort(key=lambda row: row["p"])
            if not rows:
                continue
            p, seconds = [row["p"] for row in rows], [row["seconds"] for row in rows]
            panel.plot(p, seconds, color=look["color"], linewidth=1.6, label=method)
            for row in rows:
                filled = "accuracy" in row
                panel.plot(
                    row["p"],
                    row["seconds"],
                    look["marker"],
                    color=look["color"],
                    fillstyle="full" if filled else "none",
                    markersize=7,
                )
                if filled and method in (
                    "EigenPro 4, as published",
                    "kernelmill, one epoch",
                    "Falkon",
                ):
                    below = method == "kernelmill, one epoch"
                    panel.annotate(
                        f"{row['accuracy']:.1f}",
                        (row["p"], row["seconds"]),
                        xytext=(0, -14 if below else 8),
                        textcoords="offset points",
                        ha="center",
                        fontsize=8,
                        color=look["color"],
                    )
        ticks = sorted({row["p"] for row in result["rows"]})
        panel.set(
            xscale="log",
            yscale="log",
            xlabel="centers p",
            title=(
                f"{titles.get(name, name)}, n ="
                f" {max(row['n'] for row in result['rows'] if row['data'] == name):,}"
            ),
        )
        panel.set_xticks(ticks, [f"{tick // 1024}k" if tick < 10**6 else "1M" for tick in ticks])
        panel.minorticks_off()
    panels[0].set_ylabel("seconds of the fit")
    panels[-1].legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        title="numbers: test accuracy, %\nhollow: extrapolated",
        alignment="left",
    )
    save(figure, "table2")


if __name__ == "__main__":
    several = {"nargs": "+"}
    more = {"longest": {"type": float}, "repeat": {"type": int, "default": 1}}
    script(__doc__, run, draw, data=several, methods=several, p={**several, "type": int}, **more)
