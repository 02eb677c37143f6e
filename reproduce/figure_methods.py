"""The three-method figure: seconds, memory and accuracy against p of EigenPro 4, EigenPro 3 and
Falkon, each until it has converged.

    python -m reproduce.figure_methods [--small | --gpu | --paper]

EigenPro runs end when three epochs have brought nothing on a tenth of the rows, which they do not
train on, or after all their epochs; Falkon at its tolerance. Every fit has a process of its own,
so that its memory is its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

from .data import load
from .record import METHODS, axes, fit, largest, save, script, write

NAME = "figure_methods"
PUBLISHED = {"s": 10_000, "q": 1000, "bandwidth": 16.0}
SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "data": "text",
        "n": 20_000,
        "p": [1024, 2048, 4096, 8192],
        "epochs": 15,
        "longest": 120.0,
    },
    "gpu": {
        "data": "generated",
        "n": 250_000,
        "p": [8192, 16_384, 32_768, 65_536],
        "epochs": 15,
        "longest": 60.0,
    },
    "paper": {
        "data": "imagenet",
        "n": 1_280_000,
        "p": [64_000, 128_000, 256_000, 512_000],
        "epochs": 100,
        "longest": 86400.0,
        **PUBLISHED,
    },
}
SHOWN = ["EigenPro 4, as published", "EigenPro 3, as published", "Falkon", "kernelmill"]


def one(given: Any, p: int, method: str) -> dict:
    size = SIZES[given.size]
    data = load(size["data"], size["n"], given.device)
    stops = {"early_stopping": True, "validation_fraction": 0.1} if "EigenPro" in method else {}
    if "bandwidth" in size:
        data = replace(data, bandwidth=size["bandwidth"])
    solver = METHODS[method]["solver"]()
    if "EigenPro" in method and "s" in size:
        solver = replace(solver, s=size["s"], q=size["q"])
    return fit(
        data,
        p,
        method,
        device=given.device,
        epochs=size["epochs"],
        longest=size["longest"],
        solver=solver,
        **stops,
    )


def run(given: Any) -> None:
    if given.one:
        print(json.dumps(one(given, int(given.one[0]), given.one[1])))
        raise SystemExit
    rows = []
    for p in SIZES[given.size]["p"]:
        for method in SHOWN:
            call = [
                sys.executable,
                "-m",
                "reproduce.figure_methods",
                f"--{given.size}",
                "--one",
                str(p),
                method,
            ]
            done = subprocess.run(call, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stderr, file=sys.stderr)
                raise SystemExit(done.returncode)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(
                {
                    key: round(value, 2) if isinstance(value, float) else value
                    for key, value in rows[-1].items()
                },
                flush=True,
            )
            write(NAME, given.size, rows)


def draw() -> None:
    result = largest(NAME)
    if result is None:
        return
    figure, panels = axes(3, height=4.0, width=4.8)
    for method in SHOWN:
        look = METHODS[method]
        of = [row for row in result["rows"] if row["method"] == method and "seconds" in row]
        for panel, key in zip(panels, ("seconds", "memory MiB", "accuracy"), strict=True):
            with_it = [row for row in of if key in row]
            panel.plot(
                [row["p"] for row in with_it],
                [row[key] for row in with_it],
                color=look["color"],
                marker=look["marker"],
                label=method,
            )
            for row in with_it:
                if "steps timed" in row:  # hollow: extrapolated
                    panel.plot(
                        row["p"],
                        row[key],
                        look["marker"],
                        color=look["color"],
                        markerfacecolor="white",
                    )
    ticks = sorted({row["p"] for row in result["rows"]})
    for panel, name in zip(
        panels,
        ("seconds until converged", "memory beyond the data, MiB", "test accuracy, %"),
        strict=True,
    ):
        panel.set(xscale="log", xlabel="centers p", title=name)
        panel.set_xticks(ticks, [f"{tick // 1024}k" for tick in ticks])
        panel.minorticks_off()
    for panel in panels[:2]:
        panel.set_yscale("log")
    panels[2].legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.tight_layout()
    save(figure, "methods")


if __name__ == "__main__":
    script(
        __doc__,
        run,
        draw,
        one={"nargs": 2, "help": "P METHOD: a single fit, its row on the last line"},
    )
