"""Taking a model elsewhere: an ONNX file that turns raw columns into predictions, for onnxruntime
and whatever else reads ONNX.

torch.onnx writes the kernel sum; around it go the nodes that turn columns into features, and values
into labels and probabilities.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from .calibration import Calibration
from .data import Encoder, dates
from .data import amounts as amounts_in_texts
from .data.amounts import Amounts
from .data.categories import Category
from .data.number_names import EXACT, NumberNames
from .errors import InputError, require_package, writing
from .model import KernelModel
from .processes import SampledProcess
from .storage.atomic import aside, keep_mode

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

PREFIX = "kernelmill_"  # of the nodes around the sum, so that no name occurs twice
OUTPUTS = ("prediction", "deviation", "label", "probabilities")
# Bytes of a file: above, protobuf ends, and tensors go to a file of their own.
LARGEST = 1_800_000_000
OPSET = 20  # the first that takes texts apart; other models do with what torch writes
# ONNX's own codes.
NUMBERS = {np.dtype("float32"): 1, np.dtype("float64"): 11, np.dtype("int64"): 7}


def write_onnx(
    path: str | os.PathLike,
    model: KernelModel,
    encoder: Encoder,
    classes: ArrayLike | None,
    calibration: Calibration | None,
    decision_bias: np.ndarray | None,
    flat: bool,
    about: Mapping[str, object],
) -> None:
    """classes: labels of a classifier, None of a regression; flat: one number per row instead of a
    matrix of one column.
    """
    onnx = require_package("onnx", "onnx")
    require_package("onnxscript", "onnx")
    taken_apart = any(isinstance(category, Amounts) for category in encoder.categories)
    core = _core(model, OPSET if taken_apart else None)
    _renamed(core.graph)
    graph = _Around(onnx, model)
    features = core.graph.input[0].name
    if encoder.plain:
        graph.matrix(encoder, core.graph.input[0])
    else:
        graph.columns(encoder, features)
    if classes is None or calibration is None or decision_bias is None:
        graph.numbers(core.graph.output[0].name, flat)
    else:
        values = core.graph.output[0].name
        graph.labels(values, np.asarray(classes), calibration, decision_bias)
    made = graph.model(core)
    said = {"kernelmill": json.dumps(about, default=str)}
    onnx.helper.set_model_props(made, said)  # what the model says of itself
    with writing(path):
        if made.ByteSize() > LARGEST:
            _write_in_two(onnx, made, Path(os.path.realpath(path)))
            return
        onnx.checker.check_model(made)
        with aside(path) as file:
            file.write_bytes(made.SerializeToString())


def _write_in_two(onnx: ModuleType, made: ModelProto, target: Path) -> None:
    """Tensors in a file beside, under one of two names in turn: the file that is replaced keeps its
    own until the new one is whole.
    """
    names = [f"{target.name}.data", f"{target.name}.2.data"]
    used = _data_of(onnx, target) if target.is_file() else set()
    name = next((name for name in names if name not in used), names[0])
    with tempfile.TemporaryDirectory(prefix=".kernelmill-", dir=target.parent) as folder:
        file = Path(folder) / "model.onnx"
        onnx.save_model(made, str(file), save_as_external_data=True, location=name)
        onnx.checker.check_model(str(file))
        keep_mode(file, target)
        os.replace(Path(folder) / name, target.with_name(name))
        os.replace(file, target)
    for old in {*names} & used - {name}:
        target.with_name(old).unlink(missing_ok=True)


def _data_of(onnx: ModuleType, path: Path) -> set[str]:
    """Names of the files with an ONNX file's tensors."""
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except Exception:  # it is no ONNX file, and has none
        return set()
    return {
        entry.value
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }


def _core(model: KernelModel, opset: int | None) -> ModelProto:
    """X → values, as torch.onnx writes it.

    From torch.export's program: torch.onnx itself would try other ways, which take what a function
    outside torch returns for a constant.
    """
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        quiet.setLevel(logging.ERROR)
        try:
            found = torch.onnx.export(
                model.exported(),
                dynamo=True,
                input_names=["X"],
                output_names=["values"],
                opset_version=opset,
                verbose=False,
            )
        except Exception as error:
            # Of many kinds; a kernel function of the user's own may do anything.
            reason = str(error).strip().split("\n")[0]
            raise InputError(
                f"the {model.kernel.name} kernel cannot be written as ONNX ({type(error).__name__}:"
                f" {reason})."
            ) from error
        finally:
            quiet.setLevel(level)
    return found.model_proto  # type: ignore[union-attr]


def _renamed(graph: GraphProto) -> None:
    """Every name of the sum's own gets a prefix: columns may be called anything."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [f"{PREFIX}sum_{name}" if name else name for name in names]
    for entry in (*graph.initializer, *graph.input, *graph.output):
        entry.name = f"{PREFIX}sum_{entry.name}"


def input_name(column: str) -> str:
    """The input of a column: its own name, unless that is an output's or one of ours."""
    return (
        f"{column}_in" if column in OUTPUTS or column.startswith(PREFIX) or not column else column
    )


class _Number:
    """A value of the graph that can be computed with: each operation is a node."""

    def __init__(self, graph: _Around, name: str):
        self._graph, self.name = graph, name

    def op(self, kind: str, *others: _Number | float) -> _Number:
        inputs = [
            other.name if isinstance(other, _Number) else self._graph._constant(np.float64(other))
            for other in others
        ]
        return _Number(self._graph, self._graph._op(kind, self.name, *inputs))

    def __add__(self, other: _Number | float) -> _Number:
        return self.op("Add", other)

    def __sub__(self, other: _Number | float) -> _Number:
        return self.op("Sub", other)

    def __mul__(self, other: _Number | float) -> _Number:
        return self.op("Mul", other)

    def __truediv__(self, other: _Number | float) -> _Number:
        return self.op("Div", other)


class _Around:
    """Nodes before and after the kernel sum."""

    def __init__(self, onnx: ModuleType, model: KernelModel):
        self._onnx, self._model, self._count = onnx, model, 0
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self.before: list[NodeProto] = []
        self.after: list[NodeProto] = []
        self._nodes = self.before
        self._constants: list[TensorProto] = []

    def _op(
        self,
        kind: str,
        *inputs: str,
        name: str | None = None,
        domain: str = "",
        outputs: int = 1,
        **attributes: int | str | list[int] | list[str],
    ) -> str:
        """A node; the name of the first of its outputs."""
        self._count += 1
        out = name or f"{PREFIX}{self._count}"
        outs = [out, *(f"{out}_{i}" for i in range(1, outputs))]
        made = self._onnx.helper.make_node(kind, list(inputs), outs, domain=domain, **attributes)
        self._nodes.append(made)
        return out

    def _constant(self, value: ArrayLike) -> str:
        self._count += 1
        tensor = self._onnx.numpy_helper.from_array(np.asarray(value), f"{PREFIX}{self._count}")
        self._constants.append(tensor)
        return tensor.name

    def _clipped(self, values: str, bounds: np.ndarray | None) -> str:
        if bounds is None:
            return values
        low, high = (self._constant(bound) for bound in bounds)
        return self._op("Min", self._op("Max", values, low), high)

    def _typed(self, name: str, code: int, *shape: str | int) -> ValueInfoProto:
        return self._onnx.helper.make_tensor_value_info(name, code, list(shape))

    def matrix(self, encoder: Encoder, features: ValueInfoProto) -> None:
        """One input of rows, which are the features but for fill values."""
        kind, bounds = features.type.tensor_type.elem_type, encoder.bounds
        self.inputs.append(self._typed("X", kind, "rows", encoder.d))
        if bounds is not None and kind == NUMBERS[np.dtype("float32")]:
            bounds = bounds.astype(np.float32)
        self._op("Identity", self._clipped("X", bounds), name=features.name)

    def columns(self, encoder: Encoder, features: str) -> None:
        """One input per column: numbers as float64 (NaN where missing), dates as seconds since
        1970, texts as strings ("" for none).
        """
        text, double = self._onnx.TensorProto.STRING, self._onnx.TensorProto.DOUBLE
        parts, axis = [], self._constant(np.array([1], np.int64))
        for column, width in zip(encoder.numbers, encoder.widths, strict=True):
            name = input_name(column)
            wide = width > 1 and column not in encoder.dates
            self.inputs.append(
                self._typed(name, double, "rows", width)
                if wide
                else self._typed(name, double, "rows")
            )
            own = name if wide else self._op("Unsqueeze", name, axis)
            parts += self._date(own) if column in encoder.dates else [own]
        made = []
        if parts:
            values = parts[0] if len(parts) == 1 else self._op("Concat", *parts, axis=1)
            lost = self._op("IsNaN", values)
            scaled = self._op(
                "Div",
                self._op(
                    "Sub", self._clipped(values, encoder.bounds), self._constant(encoder.shift)
                ),
                self._constant(encoder.scale),
            )
            made.append(self._op("Where", lost, self._constant(np.float64(0)), scaled))
            if len(encoder.flagged):
                made.append(
                    self._op(
                        "Gather",
                        self._op("Cast", lost, to=double),
                        self._constant(encoder.flagged.astype(np.int64)),
                        axis=1,
                    )
                )
        for category in encoder.categories:
            if isinstance(category, NumberNames):
                made.append(self._number_names(category))
                continue
            self.inputs.append(self._typed(input_name(category.name), text, "rows"))
            if category.width:
                made.append(self._texts(category))
        joined = made[0] if len(made) == 1 else self._op("Concat", *made, axis=1)
        kind = NUMBERS[np.dtype("float32" if encoder.kind == "float16" else encoder.kind)]
        narrow = self._op("Cast", joined, to=kind)
        wanted = NUMBERS[np.dtype("float64" if self._model.Z.dtype == torch.float64 else "float32")]
        self._op("Cast", narrow, to=wanted, name=features)

    def _texts(self, category: Category | Amounts) -> str:
        """(rows, width) of a column of texts."""
        if isinstance(category, Amounts):
            return self._amounts(category)
        if category.how == "hash" or category.table is None:
            raise InputError(
                f"the column {category.name!r} is hashed, which ONNX cannot express; train with"
                " columns=Columns(beyond='target')."
            )
        keys = {
            "" if value is None else value: code
            for code, value in reversed(list(enumerate(category.values)))
        }
        keys = {**category.names.aliases(), **keys}
        codes = self._op(
            "LabelEncoder",
            input_name(category.name),
            domain="ai.onnx.ml",
            keys_strings=list(keys),
            values_int64s=list(keys.values()),
            default_int64=len(category.values),
        )
        return self._op("Gather", self._constant(category.lookup.astype(np.float64)), codes, axis=0)

    def _number_names(self, category: NumberNames) -> str:
        """(rows, width) of numbers as names. Others than whole ones are known to none."""
        given, unknown = input_name(category.name), 2 * int(EXACT)
        whole = self._op("Equal", given, self._op("Floor", given))
        others = self._op(
            "Where",
            self._op("IsNaN", given),
            self._constant(np.float64(-unknown)),
            self._constant(np.float64(unknown)),
        )
        numbers = self._op("Where", whole, given, others)
        keys = [int(value) for value in category.values[:-1]] + [-unknown]
        codes = self._op(
            "LabelEncoder",
            self._op("Cast", numbers, to=self._onnx.TensorProto.INT64),
            domain="ai.onnx.ml",
            keys_int64s=keys,
            values_int64s=list(range(len(keys))),
            default_int64=len(keys),
        )
        assert category.table is not None
        return self._op("Gather", self._constant(category.lookup.astype(np.float64)), codes, axis=0)

    def _amounts(self, amounts: Amounts) -> str:
        """The numbers inside texts: of each form that a text is written in, those it has."""
        texts, axis = input_name(amounts.name), self._constant(np.array([1], np.int64))
        double, forms = self._onnx.TensorProto.DOUBLE, amounts.forms
        values = self._constant(np.full((1, len(forms.labels)), np.nan))
        for words, slots, factors in zip(forms.words, forms.slots, forms.factors, strict=True):
            pattern = amounts_in_texts.NUMBER.join(re.escape(part) for part in words)
            is_one = self._op("RegexFullMatch", texts, pattern=pattern)
            numbers = [self._op("Unsqueeze", n, axis) for n in self._split(texts, is_one, words)]
            beside = self._op("Concat", *numbers, axis=1) if len(numbers) > 1 else numbers[0]
            spread = np.zeros((len(slots), len(forms.labels)))
            spread[np.arange(len(slots)), slots] = factors
            own = self._op("MatMul", beside, self._constant(spread))
            values = self._op("Where", self._op("Unsqueeze", is_one, axis), own, values)
        lost = self._op("IsNaN", values)
        within = self._clipped(values, amounts.bounds)
        centered = self._op("Sub", within, self._constant(amounts.shift))
        scaled = self._op("Div", centered, self._constant(amounts.scale))
        made = self._op("Where", lost, self._constant(np.float64(0)), scaled)
        if not amounts.flagged:
            return made
        first = self._constant(np.array([0], np.int64))
        flag = self._op("Gather", self._op("Cast", lost, to=double), first, axis=1)
        return self._op("Concat", made, flag, axis=1)

    def _split(self, texts: str, is_one: str, words: list[str]) -> list[str]:
        """(rows,) each: the numbers of texts of one form, 0 where a text is none of it."""
        widest = "0" + ",000" * amounts_in_texts.GROUPS
        other = self._constant(np.array([amounts_in_texts.example(words)], dtype=object))
        last = self._constant(np.array([amounts_in_texts.example(words, widest)], dtype=object))
        # A row more, so that there are as many parts whatever the rows hold.
        rest = self._op("Concat", self._op("Where", is_one, texts, other), last, axis=0)
        if words[0]:
            _, rest = self._cut(rest, words[0])
        found = []
        for behind in words[1:]:
            number = rest
            if behind:
                number, rest = self._cut(rest, behind)
            digits, *groups = self._parts(number, ",", amounts_in_texts.GROUPS + 1)
            for group in groups:
                digits = self._op("StringConcat", digits, group)
            value = self._op("Cast", digits, to=self._onnx.TensorProto.DOUBLE)
            ends = (self._constant(np.array([end], np.int64)) for end in (0, -1))
            found.append(self._op("Slice", value, *ends))
        return found

    def _cut(self, texts: str, word: str) -> tuple[str, str]:
        """What stands before a word, and behind it."""
        before, behind = self._parts(texts, word, 2)
        return before, behind

    def _parts(self, texts: str, word: str, count: int) -> list[str]:
        """Texts as what stands between a word, that often at most."""
        parts = self._op("StringSplit", texts, outputs=2, delimiter=word, maxsplit=count - 1)
        places = (self._constant(np.int64(i)) for i in range(count))
        return [self._op("Gather", parts, place, axis=1) for place in places]

    def _date(self, second: str) -> list[str]:
        """The parts of a date, from its seconds since 1970."""
        found = dates.parts_by(
            _Number(self, second), lambda x: x.op("Floor"), lambda x: x.op("Sin")
        )
        return [part.name for part in found]

    def numbers(self, values: str, flat: bool) -> None:
        self._nodes = self.after
        wide = (
            torch.promote_types(self._model.alpha.dtype, self._model.intercept.dtype)
            == torch.float64
        )
        kind = NUMBERS[np.dtype("float64" if wide else "float32")]
        c = self._model.alpha.shape[1]
        found = {"prediction": values}
        if isinstance(self._model.process, SampledProcess):
            places = {"prediction": np.arange(c), "deviation": np.arange(c, 2 * c)}
            found = {
                name: self._op("Gather", values, self._constant(place), axis=1)
                for name, place in places.items()
            }
        for name, part in found.items():
            if flat:
                self._op("Squeeze", part, self._constant(np.array([1], np.int64)), name=name)
            else:
                self._op("Identity", part, name=name)
            shape = ("rows",) if flat else ("rows", c)
            self.outputs.append(self._typed(name, kind, *shape))

    def labels(
        self,
        values: str,
        classes: np.ndarray,
        calibration: Calibration,
        decision_bias: np.ndarray,
    ) -> None:
        """The label that is decided for, and calibrated probabilities."""
        self._nodes = self.after
        double = self._onnx.TensorProto.DOUBLE
        if classes.dtype.kind in "iub":
            labels, kind = classes.astype(np.int64), self._onnx.TensorProto.INT64
        elif classes.dtype.kind == "f":
            labels, kind = classes.astype(np.float64), double
        else:
            labels, kind = (
                np.array([str(c) for c in classes], dtype=object),
                self._onnx.TensorProto.STRING,
            )
        f = _Number(self, self._op("Cast", values, to=double))
        logs = f.op("Max", calibration.floor).op("Log")
        bias = _Number(self, self._constant(calibration.bias.numpy()))
        logits = f * calibration.slope + logs * calibration.log_slope + bias
        sums = logits + _Number(self, self._constant(decision_bias))
        place = self._op("ArgMax", sums.name, axis=1, keepdims=0)
        self._op("Gather", self._constant(labels), place, axis=0, name="label")
        self._op("Softmax", logits.name, axis=1, name="probabilities")
        self.outputs += [
            self._typed("label", kind, "rows"),
            self._typed("probabilities", double, "rows", len(classes)),
        ]

    def _known(self, node: NodeProto) -> None:
        """A node as it is, but for acos, which onnxruntime has in float32 only.

        Of the half angle, tan² = (1 − cos) / (1 + cos), float32 has digits enough.
        """
        if node.op_type != "Acos" or self._model.alpha.dtype != torch.float64:
            self._nodes.append(node)
            return
        one, single, double = (
            self._constant(np.float64(1)),
            self._onnx.TensorProto.FLOAT,
            self._onnx.TensorProto.DOUBLE,
        )
        tangent = self._op(
            "Sqrt",
            self._op(
                "Div", self._op("Sub", one, node.input[0]), self._op("Add", one, node.input[0])
            ),
        )
        half = self._op("Cast", self._op("Atan", self._op("Cast", tangent, to=single)), to=double)
        self._op("Add", half, half, name=node.output[0])

    def model(self, core: ModelProto) -> ModelProto:
        helper, graph = self._onnx.helper, core.graph
        self._nodes = self.before
        for node in graph.node:
            self._known(node)
        made = helper.make_graph(
            [*self.before, *self.after],
            "kernelmill",
            self.inputs,
            self.outputs,
            [*graph.initializer, *self._constants],
        )
        opsets = [*core.opset_import]
        if not any(o.domain == "ai.onnx.ml" for o in opsets):
            opsets.append(helper.make_opsetid("ai.onnx.ml", 3))
        out = helper.make_model(made, opset_imports=opsets, producer_name="kernelmill")
        out.ir_version = core.ir_version
        out.functions.extend(core.functions)
        return out
