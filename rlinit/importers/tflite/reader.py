"""TensorFlow Lite models as computation graphs: one op an operator of the main subgraph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinit.errors import InvalidGraph, RlinitError, first_line, imported
from rlinit.graph import Graph
from rlinit.importers.common.graph_builder import Assembly, Step, distinct_labels, order_of
from rlinit.importers.common.parameters import Sharing
from rlinit.importers.common.precision import Dtype, Precision
from rlinit.importers.common.tensors import TensorType
from rlinit.importers.tflite.flops import operator_flops

_DTYPES = (
    *("float32", "float16", "int32", "uint8", "int64", "strings", "bool", "int16", "complex64", "int8", "float64"),
    *("complex128", "uint64", "resources", "variants", "uint32", "uint16", "int4", "bfloat16", "int2", "uint4"),
)
"""TensorType of the schema, in order."""

_RELABELS = frozenset({"DEQUANTIZE", "EXPAND_DIMS", "RESHAPE", "SQUEEZE", "TRANSPOSE", "DENSIFY"})
_VIEWS = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})
"""Operators that leave the data where it is."""

_WEIGHT_READERS = frozenset(
    {"CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED", "BATCH_MATMUL", "GATHER"}
    | {"EMBEDDING_LOOKUP", "UNIDIRECTIONAL_SEQUENCE_LSTM", "LSTM", "RNN", "SVDF"}
)
_STATEFUL = ("RANDOM", "MULTINOMIAL", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "HASHTABLE")
_MAX_NESTING = 20
"""Subgraphs within subgraphs at most, as a file may name itself."""


def import_tflite() -> Any:
    """Return the tflite module, the schema of the format.

    Raises
    ------
    BackendUnavailable
        tflite is not installed.
    """
    return imported("tflite", "reading TensorFlow Lite models", "rlinit[tflite]")


def from_tflite(
    content: bytes,
    *,
    batch: int | None = None,
    sharing: Sharing = "hold",
    dtype: Dtype = None,
    name: str | None = None,
) -> Graph:
    """Return the computation graph of a TensorFlow Lite model: one op for each operator that depends on an input.

    Inputs are ops of kind "input". Tensors with data, and what is computed from them alone, are bytes of the ops
    that read them (`Holdings`); dequantized or transposed weights count as they are stored, two tensors over one
    buffer as one. State (variable tensors) counts as held too. Operators with subgraphs (IF, WHILE) are one op that
    has the operations of the larger branch, or of one iteration.

    Extras of an op: ``node`` (name of its first output), ``nodes`` (its place among the operators), ``tensors``
    (names of its outputs), ``outputs`` (a list of [type, dimension, ...]).

    Parameters
    ----------
    content
        The flatbuffer.
    batch
        Batch size where the model's first dimensions are dynamic: tensors are as many times larger than stored. None:
        as stored.
    sharing
        See `Holdings`.
    dtype
        What floating-point weights and activations are counted in; see `Precision`. Quantised models stay as they are.
    name
        The graph's name.

    Raises
    ------
    InvalidGraph
        No TensorFlow Lite model, a damaged one, an operator that reads what nothing makes, a cycle, a shape that is
        not fixed; the message names the operator.
    BackendUnavailable
        tflite is not installed.
    """
    tflite = import_tflite()
    precision = Precision.of(dtype)
    label = name or "the TensorFlow Lite model"
    if len(content) < 8 or content[4:8] != b"TFL3":
        raise InvalidGraph(f"{label} is not a TensorFlow Lite model (its identifier TFL3 is missing)")
    try:
        reader = _Reader(tflite, tflite.Model.GetRootAs(content, 0), len(content), batch)
        return reader.graph(name or "tflite", sharing, precision)
    except RlinitError:
        raise
    except Exception as problem:  # offsets that lead nowhere: struct.error, IndexError, TypeError, OverflowError, ...
        raise InvalidGraph(f"{label} is damaged: {first_line(problem)}") from problem


@dataclass(slots=True)
class _Reader:
    """Walks the tables of a model."""

    schema: Any
    model: Any
    size: int
    batch: int | None
    names: dict[int, list[str]] = field(default_factory=dict)  # subgraph -> name of each tensor
    builtins: dict[int, str] = field(init=False)

    def __post_init__(self) -> None:
        entries = vars(self.schema.BuiltinOperator).items()
        self.builtins = {value: name for name, value in entries if isinstance(value, int)}

    def count(self, length: Callable[[], int]) -> range:
        """Return the places of a vector, refusing lengths the file has no room for."""
        number = length()
        if not 0 <= number <= self.size:
            raise InvalidGraph(f"the model is damaged: a vector of {number} entries in {self.size} bytes")
        return range(number)

    def graph(self, name: str, sharing: Sharing, precision: Precision) -> Graph:
        """Return the graph of the main subgraph."""
        if self.model.SubgraphsLength() < 1:
            raise InvalidGraph(f"{name} has no subgraph")
        main = self.model.Subgraphs(0)
        types = self.types(0)
        names = self.names[0]
        inputs = [self.tensor_name(names, main.Inputs(j), "the model") for j in self.count(main.InputsLength)]
        outputs = [self.tensor_name(names, main.Outputs(j), "the model") for j in self.count(main.OutputsLength)]
        aliases = self.stored(main, names)
        stored = set(aliases) - set(inputs)
        steps = self.steps(main, names, types)
        order = order_of([(step.label, step.reads, step.makes) for step in steps], stored | set(inputs))
        read = {tensor for step in steps for tensor in step.reads} | set(outputs)
        assembly = Assembly(types, stored, read, sharing, aliases, precision)
        for tensor in inputs:
            assembly.add_input(tensor)
        for place in order:
            assembly.add(steps[place])
        return assembly.graph(name)

    def tensor_name(self, names: list[str], place: int, label: str) -> str:
        """Return the name of a tensor by its place."""
        if not 0 <= place < len(names):
            raise InvalidGraph(f"{label} refers to tensor {place}; expected 0 to {len(names) - 1}")
        return names[place]

    # -- tensors -----------------------------------------------------------------------------------------------

    def types(self, index: int) -> dict[str, TensorType]:
        """Return the types of a subgraph's tensors by their distinct names."""
        subgraph = self.model.Subgraphs(index)
        tensors = [subgraph.Tensors(j) for j in self.count(subgraph.TensorsLength)]
        wanted = [(tensor.Name() or b"").decode(errors="replace") or f"tensor_{j}" for j, tensor in enumerate(tensors)]
        self.names[index] = distinct_labels(wanted, ())
        scale = self._scale(subgraph, tensors) if index == 0 else None
        types = {}
        for name, tensor in zip(self.names[index], tensors, strict=True):
            code = tensor.Type()
            dtype = _DTYPES[code] if 0 <= code < len(_DTYPES) else f"elements of the unknown type {code}"
            shape = self._shape(name, tensor, scale)
            types[name] = TensorType(name, dtype, shape)
        return types

    def _shape(self, name: str, tensor: Any, scale: tuple[int, int] | None) -> tuple[int, ...]:
        shape = [int(tensor.Shape(j)) for j in self.count(tensor.ShapeLength)]
        if any(size < 0 for size in shape):
            raise InvalidGraph(f"tensor {name!r} has the shape {shape}; expected sizes >= 0")
        dynamic = [axis for axis in self.count(tensor.ShapeSignatureLength) if tensor.ShapeSignature(axis) < 0]
        if not dynamic or scale is None:
            return tuple(shape)
        if dynamic != [0] or not shape or shape[0] % scale[1]:
            raise InvalidGraph(
                f"tensor {name!r} of shape {shape} is dynamic in dimensions {dynamic}; a batch size can be chosen only "
                "where the first one is"
            )
        return (shape[0] // scale[1] * scale[0], *shape[1:])

    def _scale(self, subgraph: Any, tensors: list[Any]) -> tuple[int, int] | None:
        """Return (batch wanted, batch stored), None where the stored shapes are to be kept."""
        if self.batch is None:
            return None
        if self.batch < 1:
            raise InvalidGraph(f"batch is {self.batch}; expected an integer >= 1")
        places = [subgraph.Inputs(j) for j in self.count(subgraph.InputsLength)]
        inputs = [tensors[place] for place in places if 0 <= place < len(tensors)]
        firsts = {int(tensor.Shape(0)) for tensor in inputs if tensor.ShapeLength() > 0}
        is_dynamic = any(tensor.ShapeSignatureLength() > 0 and tensor.ShapeSignature(0) < 0 for tensor in inputs)
        if not is_dynamic and self.batch not in firsts:
            raise InvalidGraph(f"the model's inputs have the fixed first dimensions {sorted(firsts)}; convert it anew")
        stored = {
            int(tensor.Shape(0)) for tensor in inputs if tensor.ShapeSignatureLength() > 0 and tensor.ShapeLength()
        }
        return (self.batch, max(1, min(stored, default=1))) if is_dynamic else None

    def stored(self, subgraph: Any, names: list[str]) -> dict[str, str]:
        """Return the tensors whose values the file holds, and those that hold state -> the first of the same buffer."""
        buffers = self.count(self.model.BuffersLength)
        found: dict[str, str] = {}
        first: dict[int, str] = {}
        for j, name in enumerate(names):
            tensor = subgraph.Tensors(j)
            place = tensor.Buffer()
            if place not in buffers:
                raise InvalidGraph(f"tensor {name!r} refers to buffer {place}; expected 0 to {len(buffers) - 1}")
            buffer = self.model.Buffers(place)
            has_data = buffer is not None and (buffer.DataLength() > 0 or buffer.Size() > 1)
            is_empty = tensor.ShapeLength() > 0 and 0 in [tensor.Shape(i) for i in self.count(tensor.ShapeLength)]
            if has_data and not tensor.IsVariable():
                found[name] = first.setdefault(place, name)
            elif tensor.IsVariable() or is_empty:
                found[name] = name
        return found

    # -- operators ---------------------------------------------------------------------------------------------

    def steps(self, subgraph: Any, names: list[str], types: Mapping[str, TensorType]) -> list[Step]:
        """Return the operators of a subgraph."""
        operators = [subgraph.Operators(j) for j in self.count(subgraph.OperatorsLength)]
        if not operators:
            raise InvalidGraph("the model has no operators; expected at least one")
        kinds = [self.kind(operator) for operator in operators]
        wanted = [f"{kind}_{place}" for place, kind in enumerate(kinds)]
        labels = distinct_labels(wanted, names)
        return [
            self._step(place, label, kind, operator, names, types)
            for place, (label, kind, operator) in enumerate(zip(labels, kinds, operators, strict=True))
        ]

    def _step(
        self, place: int, label: str, kind: str, operator: Any, names: list[str], types: Mapping[str, TensorType]
    ) -> Step:
        inputs = [operator.Inputs(j) for j in self.count(operator.InputsLength)]
        reads = [self.tensor_name(names, tensor, f"operator {label!r}") for tensor in inputs if tensor != -1]
        places = [operator.Outputs(j) for j in self.count(operator.OutputsLength)]
        makes = [self.tensor_name(names, tensor, f"operator {label!r}") for tensor in places]
        is_stateful = kind.startswith(_STATEFUL) or not reads
        return Step(
            label,
            kind,
            reads,
            makes,
            constant=False if is_stateful else True if kind in ("SHAPE", "RANK") else None,
            relabels=reads[:1] if kind in _RELABELS else None,
            reads_weights=kind in _WEIGHT_READERS,
            is_view=kind in _VIEWS,
            flops=lambda: self.flops(kind, operator, names, types, 0),
            extras={"node": makes[0] if makes else label, "nodes": [place]},
        )

    def kind(self, operator: Any) -> str:
        """Return the name of an operator; custom ones by their own."""
        code = operator.OpcodeIndex()
        if not 0 <= code < self.model.OperatorCodesLength():
            raise InvalidGraph(f"an operator has code {code}; the model has {self.model.OperatorCodesLength()} codes")
        entry = self.model.OperatorCodes(code)
        number = max(entry.BuiltinCode(), entry.DeprecatedBuiltinCode())
        if number == self.schema.BuiltinOperator.CUSTOM:
            return str((entry.CustomCode() or b"CUSTOM").decode(errors="replace"))
        return self.builtins.get(number, f"BUILTIN_{number}")

    def flops(self, kind: str, operator: Any, names: list[str], types: Mapping[str, TensorType], depth: int) -> float:
        """Return the operations of an operator."""
        branches = self._branches(kind, operator)
        if branches and depth < _MAX_NESTING:
            return max(self._subgraph_flops(branch, depth + 1) for branch in branches)
        inputs, outputs = (
            [
                types[self.tensor_name(names, place, f"operator {kind}")].shape if place != -1 else None
                for place in places
            ]
            for places in (
                [operator.Inputs(j) for j in self.count(operator.InputsLength)],
                [operator.Outputs(j) for j in self.count(operator.OutputsLength)],
            )
        )
        return operator_flops(kind, inputs, outputs, is_left_transposed=self._is_left_transposed(kind, operator))

    def _options(self, kind: str, operator: Any) -> Any:
        table = operator.BuiltinOptions()
        options = getattr(self.schema, kind)() if table is not None else None
        if options is not None:
            options.Init(table.Bytes, table.Pos)
        return options

    def _is_left_transposed(self, kind: str, operator: Any) -> bool:
        options = self._options("BatchMatMulOptions", operator) if kind == "BATCH_MATMUL" else None
        return options is not None and bool(options.AdjX())

    def _branches(self, kind: str, operator: Any) -> list[int]:
        if kind == "IF" and (options := self._options("IfOptions", operator)) is not None:
            return [options.ThenSubgraphIndex(), options.ElseSubgraphIndex()]
        if kind == "WHILE" and (options := self._options("WhileOptions", operator)) is not None:
            return [options.BodySubgraphIndex()]
        return []

    def _subgraph_flops(self, index: int, depth: int) -> float:
        if not 0 <= index < self.model.SubgraphsLength():
            raise InvalidGraph(f"an operator refers to subgraph {index}; the model has {self.model.SubgraphsLength()}")
        types = self.types(index)
        subgraph = self.model.Subgraphs(index)
        operators = [subgraph.Operators(j) for j in self.count(subgraph.OperatorsLength)]
        return math.fsum(self.flops(self.kind(op), op, self.names[index], types, depth) for op in operators)
