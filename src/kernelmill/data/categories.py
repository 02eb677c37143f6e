"""Columns of names as numbers: one-hot, in their order, by their mean targets and a random code,
or hashed.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import warn
from .kinds import Names, canonical

FOLDS = 5  # a training row's category is encoded by the targets of the other folds: never its own
CODE_WIDTH = 48  # features of a random code: two of them are 1 ± .15 apart
MANY_NEW = 50  # values never seen in training, warned about where they are most of a column


@dataclass
class Category:
    """How one column of names becomes numbers."""

    name: str
    how: str  # "one_hot", "ordered", "target", "hash", or "number": see number_names.py
    width: int
    values: list[Any] = field(default_factory=list)  # texts by code; None is a missing value
    # (values + 1, width - code_width) features of each value; the last row is of unseen ones.
    table: np.ndarray | None = None
    # (FOLDS, values + 1, outputs) the first of them without a fold's rows; not stored
    folds: np.ndarray | None = None
    features: list[str] = field(default_factory=list)  # names of them, where `how` does not say
    code_width: int = 0  # the last features: a random code of the value

    @cached_property
    def names(self) -> Names:
        return Names(self.values)

    @cached_property
    def lookup(self) -> np.ndarray:
        """(values + 1, width) features of each value, its random code among them. An unseen value
        has no code: it is equally far from all others.
        """
        assert self.table is not None
        names = ["\0" if value is None else self.called(value) for value in self.values]
        codes = random_codes(names, self.code_width)
        return np.concatenate([self.table, np.pad(codes, ((0, 1), (0, 0)))], 1)

    @property
    def labels(self) -> list[str]:
        """Names of its features, behind the column's."""
        if self.features:
            return self.features
        if self.how == "one_hot" and self.width:
            return [self.called(value) for value in self.values]
        kind = "target" if self.by_target else self.how
        return [f"{kind} {i}" for i in range(self.width)]

    def called(self, value: str | float | None) -> str:
        """The name of the feature that says whether a row has this value."""
        return "missing" if value is None else str(value)

    @property
    def summary(self) -> str:
        count = "1 value" if len(self.values) == 1 else f"{len(self.values) or 'many'} values"
        return f"{count}, {self.how.replace('_', ' ')} encoded"

    @property
    def by_target(self) -> bool:
        """Whether it is encoded by mean targets."""
        return self.how in ("target", "number")

    @property
    def parts(self) -> list[int]:
        """Of each feature, a number for those that share a bandwidth; 0 is that of the column."""
        own, k = int(self.how == "number"), self.code_width
        return [own] * (self.width - k) + [own + 1] * k

    def codes(self, given: np.ndarray) -> np.ndarray:
        """Places in `values`; their number where a value is not among them."""
        return self.names.codes(given)

    def encode(self, texts: np.ndarray, fold: np.ndarray | None) -> np.ndarray:
        """(rows, width). `fold`: of each row, whose targets do not count; -1 where all do."""
        if self.how == "hash":
            return hashed(texts, self.width)
        assert self.table is not None
        codes = self.codes(texts)
        self._warn_of_new(texts, codes)
        out = self.lookup[codes]
        if fold is not None and self.folds is not None:
            inside = fold >= 0
            out[inside, : self.folds.shape[2]] = self.folds[fold[inside], codes[inside]]
        return out

    def _warn_of_new(self, texts: np.ndarray, codes: np.ndarray) -> None:
        new = (codes == len(self.values)) & (texts != None)  # noqa: E711 (of every element)
        if self.width and new.sum() > max(MANY_NEW, len(codes) / 2):
            example = texts[new][0]
            warn(
                f"most values of {self.name!r}, such as {example!r}, were not in the training data;"
                " check that they are spelled the same way."
            )

    def validate(self) -> None:
        """ValueError where its parts do not fit each other."""
        if self.how == "hash":
            return
        fits = (
            self.how in ("one_hot", "ordered", "target", "number")
            and len(self.features) in (0, self.width)
            and self.code_width in (0, CODE_WIDTH)
            and self.table is not None
            and self.table.shape == (len(self.values) + 1, self.width - self.code_width)
            and np.isfinite(self.table).all()
        )
        if not fits:
            raise ValueError("the encoder's categories do not fit each other")


def fold_of(rows: np.ndarray) -> np.ndarray:
    """A fold for each row number, or checksum, scattered: rows often come in an order with a
    period."""
    mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return ((mixed >> np.uint64(33)) % np.uint64(FOLDS)).astype(np.int64)


def checksums(block: dict[str, np.ndarray], names: list[str]) -> np.ndarray:
    """(rows,) of what stands in each row: the same for the same row in any file."""
    out = np.zeros(len(block[names[0]]), np.uint64)
    for name in names:
        values = block[name]
        if values.ndim == 1:
            parts = _crcs(values)[None].astype(np.uint64)
        else:
            known = np.where(np.isnan(values), 0.1, values + 0.0).astype(np.float64)
            parts = known.T.copy().view(np.uint64)
        for part in parts:
            out = (out ^ part) * np.uint64(0xFF51AFD7ED558CCD)
            out ^= out >> np.uint64(33)
    return out


def hashed(texts: np.ndarray, width: int) -> np.ndarray:
    """Each value's place and sign by its checksum: the same everywhere, for unseen values too."""
    sums = _crcs(texts)
    out = np.zeros((len(texts), width), np.float32)
    out[np.arange(len(texts)), sums % width] = np.where((sums // width) % 2, 1.0, -1.0)
    return out


def random_codes(names: list[str], width: int) -> np.ndarray:
    """(names, width) of ±1/√(2 width), drawn from a checksum of each name: different names are at
    distance 1 ± .15, equal ones at 0. One-hot, in few dimensions.
    """
    size = CODE_WIDTH // 8
    encoded = (name.encode("utf-8", "surrogatepass") for name in names)
    digests = b"".join(hashlib.blake2b(each, digest_size=size).digest() for each in encoded)
    bits = np.unpackbits(np.frombuffer(digests, np.uint8).reshape(len(names), size), axis=1)
    return ((2.0 * bits[:, :width] - 1) / (2 * CODE_WIDTH) ** 0.5).astype(np.float32)


def _crcs(texts: np.ndarray) -> np.ndarray:
    given = ("\0" if text is None else text for text in texts.tolist())
    sums = [zlib.crc32(text.encode("utf-8", "surrogatepass")) for text in given]
    return np.array(sums, dtype=np.int64)


def meanings(texts: np.ndarray) -> np.ndarray:
    """What texts say: a hash has no names to compare them with, and 1.0 in one file is 1 in
    another."""
    known = {text: None if text is None else canonical(text) for text in set(texts.tolist())}
    return np.array([known[text] for text in texts.tolist()], dtype=object)
