"""CSV files, also packed with gzip; the delimiter is found. They do not say what their columns
hold: guess.py does.

pyarrow.dataset does not serve here: it takes the types from the first block of a file.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DataFileError, warn
from ..arrow_tables import ArrowTable, in_memory, in_own_file
from ..files import need, spool
from ..guess import Guess
from ..prints import Files
from ..tables import Table
from .base import Format, Kinds, Peek

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.csv import CSVStreamingReader, ParseOptions, ReadOptions

    from ..tables import ArrowColumns

BLOCK = 4 << 20  # bytes that are parsed at a time
SAMPLE = 1 << 18  # bytes from which the rows are estimated
DELIMITERS = ",\t;|"
_SAID = re.compile(rf"sep=([{DELIMITERS}])\r?\n", re.IGNORECASE)
_QUOTED = re.compile(r'"[^"]*"')  # names with a delimiter in them

Guesses = dict[str, Guess]  # by column, in the file's order


class _Csv(ArrowTable):
    """A CSV file. What was guessed to be something else is read again where texts are wanted: they
    are as they are written there."""

    def __init__(
        self, table: ArrowTable, files: Files, again: Callable[[Kinds], Table], commas: bool
    ):
        vars(self).update(vars(table))
        self.files, self._again, self.decimal_commas = files, again, commas

    def _of_kinds(self, other: dict[str, str]) -> Table:
        named = [name for name, kind in other.items() if kind == "text"]
        if not self.n or all(self._declared[name] == "text" for name in named):
            return super()._of_kinds(other)
        wanted = {**self._kinds(), **other}
        return self._again(wanted).of_kinds(wanted)

    def raw(self, names: list[str]) -> ArrowColumns:
        if all(self._declared[name] == "text" for name in names):
            return super().raw(names)
        return self._again({**self._kinds(), **dict.fromkeys(names, "text")}).raw(names)

    def _kinds(self) -> dict[str, str]:
        return {name: field.kind for name, field in self.fields.items()}


def _open(path: Path, limit: int, kinds: Kinds) -> Table:
    """All fields are read as texts, and turned into what they are by now; where a later block
    changes that, the file is read once more."""
    where, files, look = repr(str(path)), Files([path]), _look(path)
    names = need("pyarrow.csv").open_csv(path, *_options(look)).schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataFileError(f"{where} has two columns called {twice!r}; rename one.")
    commas = look.delimiter != ","
    guesses = {name: Guess(kinds.get(name) == "text", commas) for name in names}
    held = path.stat().st_size <= limit and path.suffix != ".gz"
    found = _read(path, look, guesses, held, files)
    _warn_of_commas(guesses, kinds, where)
    table = found if isinstance(found, ArrowTable) else in_own_file(found, where)
    table.where = where
    files.seal()

    def again(wanted: Kinds) -> Table:
        files.unchanged()
        return _open(path, limit, wanted)

    made = _Csv(table, files, again, commas)
    made.comma_columns = frozenset(name for name, guess in guesses.items() if guess.has_commas)
    return made


@dataclass(frozen=True)
class _Look:
    """What the first bytes of a file tell."""

    delimiter: str
    encoding: str
    skip: int = 0  # lines before the names


def _options(look: _Look) -> tuple[ReadOptions, ParseOptions]:
    csv = need("pyarrow.csv")
    parse = csv.ParseOptions(delimiter=look.delimiter, newlines_in_values=True)
    return csv.ReadOptions(block_size=BLOCK, encoding=look.encoding, skip_rows=look.skip), parse


def _read(
    path: Path, look: _Look, guesses: Guesses, held: bool, files: Files
) -> ArrowTable | pa.NativeFile:
    """A table in memory, or a temporary file; read as often as it takes until no guess changes."""
    pa, csv = need("pyarrow"), need("pyarrow.csv")
    types = dict.fromkeys(guesses, pa.string())
    for _ in range(len(guesses) + 2):
        convert = csv.ConvertOptions(column_types=types, strings_can_be_null=True, null_values=[""])
        try:
            reader = csv.open_csv(path, *_options(look), convert)
            schema, found = _collect(_convert(reader, guesses), guesses, held)
        except pa.ArrowInvalid as error:
            files.check()
            column = _culprit(str(error), list(guesses))
            if column is None or types[column] != pa.string():
                raise
            types[column], guesses[column] = pa.binary(), Guess(text=True)  # not UTF-8
            continue
        taken = [pa.string() if field.type == pa.binary() else field.type for field in schema]
        if not len(schema) or taken == [guess.type for guess in guesses.values()]:
            break
    return found


def _collect(
    batches: Iterator[pa.RecordBatch], guesses: Guesses, held: bool
) -> tuple[pa.Schema, ArrowTable | pa.NativeFile]:
    """The schema of the first batch, and all batches in memory or in a temporary file."""
    pa = need("pyarrow")
    first = next(batches, None)
    if first is None:
        empty = pa.table({name: pa.nulls(0) for name in guesses})
        return pa.schema([]), in_memory(empty)
    every = itertools.chain([first], batches)
    if held:
        return first.schema, in_memory(pa.Table.from_batches(every, first.schema))
    return first.schema, spool(first.schema, every)


def _convert(reader: CSVStreamingReader, guesses: Guesses) -> Iterator[pa.RecordBatch]:
    """Batches as the guesses have it after the first. The others still narrow the guesses, but are
    not given where a type has changed."""
    pa, types = need("pyarrow"), None
    for batch in reader:
        pairs = zip(guesses.values(), batch.columns, strict=True)
        columns = [guess.take(column) for guess, column in pairs]
        found = [column.type for column in columns]
        types = types or found
        if found == types:
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _warn_of_commas(guesses: Guesses, kinds: Kinds, where: str) -> None:
    """At the first reading: a model, and a second reading, name kinds besides the texts that a user
    names."""
    commas = [name for name, guess in guesses.items() if guess.has_commas]
    if commas and set(kinds.values()) <= {"text"}:
        listed = ", ".join(map(repr, commas[:5])) + (", …" if len(commas) > 5 else "")
        warn(f"{where}: the commas in {listed} are read as decimal commas.")


def _culprit(said: str, names: list[str]) -> str | None:
    """The column that Arrow's message "In CSV column #3: …" is about."""
    if "CSV column #" not in said:
        return None
    number = said.split("CSV column #", 1)[1].split(":", 1)[0]
    return names[int(number)] if number.isdigit() and int(number) < len(names) else None


def _look(path: Path) -> _Look:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        first = file.read(SAMPLE)
    encoding = _encoding(first)
    text = first.decode(encoding, "replace").removeprefix("\ufeff")
    said = _SAID.match(text)  # as spreadsheets read it
    if said is not None:
        return _Look(said[1], encoding, 1)
    header = _QUOTED.sub("", text).split("\n", 1)[0]
    return _Look(max(DELIMITERS, key=header.count), encoding)


def _encoding(first: bytes) -> str:
    """By its mark, or UTF-8 if it is; else that of Windows, which has all bytes but five, or
    Latin-1."""
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            decoder.decode(first)  # the last character may be cut in two
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def _peek(path: Path) -> Peek:
    """Rows are lines, of a large file as many as its first ones make likely."""
    packed = path.suffix.lower() == ".gz"
    with gzip.open(path, "rb") if packed else open(path, "rb") as file:
        text = file.read(SAMPLE)
    first = text.decode(_encoding(text), "replace")
    columns = 1 + max(first.split("\n", 1)[0].count(mark) for mark in DELIMITERS)
    lines = first.count("\n")
    if len(text) < SAMPLE:
        return Peek(max(0, lines - first.endswith("\n")), columns)
    share = os.path.getsize(path) / len(text) * (4 if packed else 1)
    return Peek(round(lines * share), columns, estimated=True)


FORMAT = Format("CSV", _open, _peek, (".csv", ".tsv", ".csv.gz", ".tsv.gz"))
