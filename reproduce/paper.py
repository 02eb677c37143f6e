"""The paper's own numbers, as printed: Table 2, minutes of one epoch and accuracy, or its own words
where it prints days.
"""

from __future__ import annotations

P = [64_000, 128_000, 256_000, 512_000, 1_000_000]
OOM = None

# minutes, accuracy; accuracy None where none was given, the pair None where it ran out of memory
TABLE_2: dict[str, dict[str, list[tuple[float | str, float | None] | None]]] = {
    "CIFAR5M*": {
        "EigenPro 4": [(5, 88.0), (5, 88.25), (7, 88.61), (12, 88.58), (21, 88.7)],
        "EigenPro 3": [(23, 88.3), (50, 88.42), (128, 88.61), (531, 88.56), ("> 4 days", None)],
        "Falkon": [(3, 86.1), (9, 86.55), (38, 86.73), (240, 86.71), OOM],
    },
    "CIFAR5M": {
        "EigenPro 4": [(3, 69.0), (4, 70.9), (6, 71.8), (10, 72.9), (17, 73.8)],
        "EigenPro 3": [
            (45, 68.8),
            (105, 70.3),
            (785, 70.53),
            ("> 2 days", None),
            ("> 6 days", None),
        ],
        "Falkon": [(5, 57.7), (11, 59.4), OOM, OOM, OOM],
    },
    "Librispeech": {
        "EigenPro 4": [(16, 86.8), (19, 87.8), (24, 88.33), (36, 88.89), (70, 89.5)],
        "EigenPro 3": [
            (145, 85.4),
            (341, 84.75),
            ("≈ 2 days", None),
            ("> 5 days", None),
            ("> 20 days", None),
        ],
        "Falkon": [(9, 81.0), (21, 82.3), OOM, OOM, OOM],
    },
    "Webvision*": {
        "EigenPro 4": [(2, 24.3), (4, 24.9), (5, 26.0), (11, 27.3), (21, 29.3)],
        "EigenPro 3": [
            (91, 24.0),
            (199, 24.5),
            (531, 25.52),
            ("2 days", None),
            ("> 10 days", None),
        ],
        "Falkon": [(4, 21.7), (13, 22.4), OOM, OOM, OOM],
    },
}

# Speed-ups of EigenPro 4 over EigenPro 3, as printed, ">" included.
SPEED_UPS = {
    "CIFAR5M*": ["4.6", "10", "18.3", "44.25", ">274"],
    "CIFAR5M": ["15", "26.25", "130.8", ">288", ">508"],
    "Librispeech": ["9.1", "17.95", "120", ">200", ">411"],
    "Webvision*": ["45.5", "49.75", "106.2", "240", ">686"],
}
# What stands in for which of its data.
PLACES = {
    "features": "CIFAR5M*",
    "fashion": "CIFAR5M",
    "cifar5m_features": "CIFAR5M*",
    "cifar5m": "CIFAR5M",
    "librispeech": "Librispeech",
    "webvision": "Webvision*",
}
