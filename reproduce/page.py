"""docs/reproduction.md, from the stored results alone.

python -m reproduce.page
"""

from __future__ import annotations

from pathlib import Path

from .claims import ALMOST, BEST, CLAIMS, FOUR, NO, THREE, YES, cell, cells, verdict_of
from .paper import PLACES, SPEED_UPS, TABLE_2
from .paper import P as PAPER_P
from .record import read
from .table1_complexity import exponents

ONE = "kernelmill, one epoch"
PAGE = Path(__file__).parent.parent / "docs" / "reproduction.md"
TEXT = Path(__file__).parent / "page.md"
ROWS = [FOUR, THREE, BEST, "Falkon", ONE, "kernelmill"]
NAMES = {
    "features": "image features (CIFAR-10 with augmented copies, EfficientNet-Lite0)",
    "fashion": "raw pixels (Fashion-MNIST with augmented copies)",
    "text": "text embeddings (one-line descriptions of Debian's packages, MiniLM)",
}


def duration(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 100
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def shown(row: dict, three: dict) -> str:
    """Seconds, speed-up over EigenPro 3 as published, accuracy."""
    if "out of memory" in row:
        return "out of memory"
    if "seconds" not in row:
        return "–"
    mark = "~" if "steps timed" in row else ""
    ratio = f"{three['seconds'] / row['seconds']:.3g}×" if "seconds" in three else ""
    score = f"{row['accuracy']:.2f} %" if "accuracy" in row else "no accuracy"
    return f"{mark}{duration(row['seconds'])} ({ratio}, {score})"


def size_of(p: int) -> str:
    return "1M" if p >= 10**6 else f"{p // 1024}k" if p % 1024 == 0 else f"{p // 1000}k"


def table2(size: str) -> str:
    result = read("table2_comparison", size)
    if result is None:
        return "Not measured.\n"
    found = {(row["data"], row["p"], row["method"]): row for row in result["rows"]}
    parts = []
    for data in dict.fromkeys(row["data"] for row in result["rows"]):
        sizes = sorted({p for d, p, _ in found if d == data})
        n, d = next((row["n"], row["d"]) for row in result["rows"] if row["data"] == data)
        lines = [
            f"**{NAMES.get(data, data)}**, n = {n:,}, d = {d:,}:",
            "",
            "| | " + " | ".join(f"p = {size_of(p)}" for p in sizes) + " |",
        ]
        lines.append("| --- |" + " --- |" * len(sizes))
        for method in ROWS:
            line = [
                shown(found.get((data, p, method), {}), found.get((data, p, THREE), {}))
                for p in sizes
            ]
            lines.append(f"| {method} | " + " | ".join(line) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def papers_table() -> str:
    lines = [
        "| | | "
        + " | ".join(f"p = {p // 1000}k" if p < 10**6 else "p = 1M" for p in PAPER_P)
        + " |",
        "| --- | --- |" + " --- |" * len(PAPER_P),
    ]
    for data, methods in TABLE_2.items():
        for method, values in methods.items():
            line = []
            for i, value in enumerate(values):
                if value is None:
                    line.append("out of memory")
                    continue
                time, score = value
                time = time if isinstance(time, str) else f"{time:g} min"
                ratio = f"{SPEED_UPS[data][i]}×, " if method == "EigenPro 4" else ""
                line.append(f"{time} ({ratio}{score:g} %)" if score else time)
            lines.append(f"| {data} | {method} | " + " | ".join(line) + " |")
    return "\n".join(lines) + "\n"


def default_against_paper() -> str:
    """Where this library stands against EigenPro 4 as published, cell by cell: one epoch, and its
    default.
    """
    heads = [
        "",
        "p",
        "seconds: published",
        "one epoch",
        "default",
        "accuracy: published",
        "one epoch",
        "default",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for data, p in cells():
        rows = [cell(data, p, method) for method in (FOUR, ONE, "kernelmill")]
        if all("accuracy" in row for row in rows):
            seconds, scores = (
                [f"{row[key]:.2f}" for row in rows] for key in ("seconds", "accuracy")
            )
            lines.append("| " + " | ".join([data, size_of(p), *seconds, *scores]) + " |")
    return "\n".join(lines) + "\n"


def standing() -> str:
    """In how many cells it is as accurate, and in less time."""
    parts = []
    for method, name in (
        (ONE, "With one epoch, as the table has it, this library"),
        ("kernelmill", "With its default number of epochs it"),
    ):
        pairs = [(cell(d, p, method), cell(d, p, FOUR), d, p) for d, p in cells()]
        pairs = [each for each in pairs if "accuracy" in each[0] and "accuracy" in each[1]]
        better = sum(ours["accuracy"] >= theirs["accuracy"] for ours, theirs, *_ in pairs)
        slower = [
            (d, p, ours["seconds"] / theirs["seconds"])
            for ours, theirs, d, p in pairs
            if ours["seconds"] >= theirs["seconds"]
        ]
        said = (
            f"{name} is at least as accurate in {better} of {len(pairs)} cells, and takes less time"
            f" in {len(pairs) - len(slower)}"
        )
        if slower and method == ONE:
            said += "; in the others " + " and ".join(
                f"{ratio:.2f} times as much ({d}, {size_of(p)})" for d, p, ratio in slower
            )
        elif slower:
            said += f"; up to {max(ratio for *_, ratio in slower):.1f} times as much elsewhere"
        parts.append(said + ".")
    return "\n".join(parts) + "\n"


def claims() -> str:
    judged = [(claim, *verdict_of(claim)) for claim in CLAIMS]
    counts = {
        verdict: sum(found == verdict for _, found, _ in judged) for verdict in (YES, ALMOST, NO)
    }
    lines = [
        (
            f"{counts[YES]} confirmed, {counts[ALMOST]} confirmed with a difference, {counts[NO]}"
            " not confirmed."
        ),
        "",
    ]
    lines += ["| the paper says | | what says so |", "| --- | --- | --- |"]
    lines += [
        f"| {claim.text} ({claim.where}) | **{verdict}** | {said.replace('|', '∣')} |"
        for claim, verdict, said in judged
    ]
    return "\n".join(lines) + "\n"


def growth() -> str:
    """Exponents of seconds and memory on the GPU."""
    lines = [
        "| | | seconds | last doubling | memory | last doubling |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in exponents(read("table2_comparison", "gpu")):
        values = [
            row[key]
            for key in ("seconds", "seconds, last doubling", "memory", "memory, last doubling")
        ]
        lines.append(
            f"| {row['data']} | {row['method']} | "
            + " | ".join(f"{value:.2f}" for value in values)
            + " |"
        )
    return "\n".join(lines) + "\n"


def machines() -> str:
    lines = ["| result | machine | commit | command |", "| --- | --- | --- | --- |"]
    for path in sorted((Path(__file__).parent / "results").glob("*.json")):
        result = read(*path.stem.rsplit("-", 1))
        assert result is not None
        where = result["gpu"] or f"{result['cpu']}, {result['cores']} cores"
        lines.append(f"| {path.stem} | {where} | {result['commit']} | `{result['command']}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parts = {
        "claims": claims(),
        "table2-gpu": table2("gpu"),
        "table2-small": table2("small"),
        "table2-paper": papers_table(),
        "default": default_against_paper(),
        "standing": standing(),
        "machines": machines(),
        "growth": growth(),
        "places": ", ".join(f"{data} for {PLACES[data]}" for data in ("features", "fashion")),
        "table2-own": table2("paper"),
    }
    text = TEXT.read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{{ {name} }}}}", part.rstrip("\n"))
    PAGE.write_text(text)
    print(f"written: docs/{PAGE.name}")


if __name__ == "__main__":
    main()
