"""The summary: a row per table, a column per method, who is ahead, and the counts of it."""

from __future__ import annotations

from collections.abc import Iterable

from .data import SPLITS

OURS = "kernelmill"
UNTUNED = ("lightgbm", "catboost", "hist")
TUNED = ("lightgbm-tuned", "catboost-tuned", "hist-tuned")
NEAR = 0.005  # "within 0.5 %"
CURVES = ("hotel", "credit", "sgemm", "covertype", "diamonds")
SMALLEST = 0.0625

Scores = dict[str, dict[str, dict]]  # table → method → row


def by_table(rows: Iterable[dict], fraction: float = 1.0) -> Scores:
    """Rows of the 23 tables with a score. A method that ran on a GPU and a CPU is taken from the
    GPU.
    """
    found: Scores = {}
    for row in sorted(rows, key=lambda row: row["device"] != "cpu"):
        counts_here = row["fraction"] == fraction and row["table"] not in SPLITS
        if counts_here and main_score(row) is not None:
            found.setdefault(row["table"], {})[row["method"]] = row
    return found


def main_score(row: dict) -> float | None:
    """Error in %, or RMSE over the deviation; less is better."""
    return row.get("error_percent", row.get("rmse_over_deviation"))


def best(methods: dict[str, dict], names: Iterable[str], key: str | None = None) -> float | None:
    """The least score of those that are there; `key` for another score than the main one."""
    rows = [methods[name] for name in names if name in methods]
    return min((row[key] if key else main_score(row) for row in rows), default=None)


def gap(ours: float, theirs: float) -> float:
    """How far ours is behind, relative to theirs; negative where it is ahead."""
    if ours == theirs:
        return 0.0
    return ours / theirs - 1 if theirs else float("inf")


def gaps(scores: Scores, names: Iterable[str], key: str | None = None) -> dict[str, float]:
    """By table, where ours and at least one of the others is there."""
    found = {}
    for table, methods in scores.items():
        if OURS not in methods or (key and key not in methods[OURS]):
            continue
        theirs = best(methods, names, key)
        if theirs is not None:
            found[table] = gap(best(methods, [OURS], key), theirs)
    return found


def counts(rows: list[dict], before: list[dict] | None = None) -> dict:
    """What can be counted against the peers, over the tables that both were fitted on."""
    scores = by_table(rows)
    main, log = gaps(scores, UNTUNED), gaps(scores, UNTUNED, "log_loss")
    tuned = gaps(scores, TUNED)
    found = {
        "tables": len(main),
        "ahead_or_near": sum(each <= NEAR for each in main.values()),
        "behind_percent": {
            table: round(100 * each, 2) if each < float("inf") else None
            for table, each in main.items()
            if each > NEAR
        },
        "classifications": len(log),
        "log_loss_ahead": sum(each <= 0 for each in log.values()),
        "log_loss_behind": [table for table, each in log.items() if each > 0],
        "tuned_tables": len(tuned),
        "tuned_ahead": sum(each <= 0 for each in tuned.values()),
        "falls": falls(rows),
    }
    if before:
        found["worse_than_before_percent"] = worse(scores, by_table(before))
    return found


def worse(scores: Scores, before: Scores) -> dict[str, float]:
    """Tables on which ours has become worse by more than 1 %, and by how much."""
    both = [t for t in scores if OURS in scores[t] and OURS in before.get(t, {})]
    change = {
        t: gap(main_score(scores[t][OURS]), main_score(before[t][OURS]))  # type: ignore[arg-type]
        for t in both
    }
    return {table: round(100 * each, 2) for table, each in change.items() if each > 0.01}


def falls(rows: list[dict]) -> dict[str, dict[str, float]]:
    """Score with a sixteenth of the rows over the score with all: ours and LightGBM's."""
    small, whole = by_table(rows, SMALLEST), by_table(rows)
    return {
        table: {
            name: round(main_score(small[table][name]) / main_score(whole[table][name]), 3)
            for name in (OURS, "lightgbm")
            if name in small.get(table, {}) and name in whole.get(table, {})
        }
        for table in CURVES
        if table in small
    }


def page(rows: list[dict], before: list[dict]) -> str:
    """The table and the counts as text."""
    scores = by_table(rows)
    methods = list(dict.fromkeys((OURS, *UNTUNED, *TUNED, *(row["method"] for row in rows))))
    methods = [name for name in methods if any(name in each for each in scores.values())]
    heads = ["table", *methods, "ahead", "gap", "seconds"]
    lines = [heads, *(line(table, scores[table], methods) for table in scores)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(each, widths, strict=True)).rstrip()
        for each in lines
    ]
    return "\n".join([*text, "", *others(rows), *sentences(counts(rows, before), rows)])


def others(rows: list[dict]) -> list[str]:
    """A line for each fit on another cut of a table."""
    return [
        f"{row['table']}, {row['rows']} rows, {row['method']}: {cell(row)}"
        for row in sorted(rows, key=lambda row: (row["table"], row["method"]))
        if row["table"] in SPLITS and main_score(row) is not None
    ]


def line(table: str, methods: dict[str, dict], names: list[str]) -> list[str]:
    ahead = min(methods, key=lambda name: main_score(methods[name]))  # type: ignore
    cells = [cell(methods.get(name)) for name in names]
    behind = gaps({table: methods}, UNTUNED).get(table)
    seconds = methods.get(OURS, {}).get("fit_seconds")
    return [
        table,
        *cells,
        ahead,
        "–" if behind is None else said(behind, methods),
        "–" if seconds is None else f"{seconds:.1f}",
    ]


def cell(row: dict | None) -> str:
    if row is None:
        return "–"
    mark = "!" if "stopped" in row else ""
    if "error_percent" in row:
        return f"{row['error_percent']:.2f} / {row['log_loss']:.4f}{mark}"
    return f"{row['rmse_over_deviation']:.4f}{mark}"


def said(behind: float, methods: dict[str, dict]) -> str:
    """The gap in %, and for classes in test rows: of few errors, one row is many %."""
    percent = f"{100 * behind:+.1f} %"
    ours = methods[OURS]
    if "error_percent" not in ours:
        return percent
    more = ours["error_percent"] - best(methods, UNTUNED)
    return f"{percent} ({more * ours['test_rows'] / 100:+.0f} rows)"


def sentences(found: dict, rows: list[dict]) -> list[str]:
    lines = [
        f"Ahead or within 0.5 % of the best of {', '.join(UNTUNED)}: {found['ahead_or_near']} of"
        f" {found['tables']} (target 19 of 23, none more than 5 % behind);"
        f" behind, in %: {found['behind_percent']}",
        f"Log loss ahead: {found['log_loss_ahead']} of {found['classifications']} (target 11 of"
        f" 13); behind on {found['log_loss_behind']}",
        f"Ahead of the tuned: {found['tuned_ahead']} of {found['tuned_tables']} (target 14 of 23)",
        f"Score at 1/16 of the rows over score at all: {found['falls']}",
    ]
    if "worse_than_before_percent" in found:
        lines.append(f"Worse than before by more than 1 %: {found['worse_than_before_percent']}")
    if any("stopped" in row for row in rows):
        cut = [
            f"{row['table']} {row['method']} {row['fraction']:g}"
            for row in rows
            if "stopped" in row
        ]
        lines.append(f"! stopped by the time limit: {', '.join(cut)}")
    return lines
