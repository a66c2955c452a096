"""Putting a graph together from steps that read and make named tensors, constants folded away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.importers.common.parameters import Holdings, Sharing
from rlinit.importers.common.precision import Precision
from rlinit.importers.common.tensors import TensorType


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a model file.

    Parameters
    ----------
    label, kind
        Distinct name, and kind of op.
    reads, makes
        Names of the tensors it reads and makes; those absent left out.
    constant
        True: its outputs are known whatever the inputs are (the shape of a tensor). False: never a constant (random
        numbers, state). None: a constant if all it reads is one.
    relabels
        Tensors it reads whose stored form a reader of its output holds, should it be a constant (a transposed or
        dequantized weight); None: the reader holds the output.
    reads_weights
        Whether constant matrices it reads are parameters in the sense of `Holdings`.
    is_view
        Whether what it makes is what it reads, seen otherwise (another shape), so that nothing is computed or moved.
    flops
        Gives its operations; called only for ops.
    extras
        Attributes carried along.
    axes
        What there is to note of dimensions of its first output and of the first ``operands`` that it reads; see
        `rlinit.importers.common.axes`.
    operands
        Which tensors those are of.
    """

    label: str
    kind: str
    reads: Sequence[str]
    makes: Sequence[str]
    constant: bool | None = None
    relabels: Sequence[str] | None = None
    reads_weights: bool = False
    is_view: bool = False
    flops: Callable[[], float] = float
    extras: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)
    operands: Sequence[str] = ()


def distinct_labels(wanted: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Return the wanted names with a number appended where one is taken.

    Parameters
    ----------
    wanted
        Names in the order in which they are given out.
    taken
        Names that stand already.
    """
    used = set(taken)
    calls: dict[str, int] = {}
    labels = []
    for name in wanted:
        label = name
        while label in used:
            calls[name] = calls.get(name, 1) + 1
            label = f"{name}#{calls[name]}"
        used.add(label)
        labels.append(label)
    return labels


def order_of(steps: Sequence[tuple[str, Sequence[str], Sequence[str]]], given: Collection[str]) -> list[int]:
    """Return the places of steps in an order in which tensors are made before they are read; theirs if it is one.

    Parameters
    ----------
    steps
        (label, tensors read, tensors made) of each.
    given
        Tensors no step has to make.

    Raises
    ------
    InvalidGraph
        A tensor that is read and never made, or made twice; a cycle, by its labels.
    """
    maker: dict[str, int] = {}
    for place, (label, _, makes) in enumerate(steps):
        for name in makes:
            if name in maker:
                raise InvalidGraph(f"nodes {steps[maker[name]][0]!r} and {label!r} both make the tensor {name!r}")
            maker[name] = place
    edges, is_ordered = [], True
    for place, (label, reads, _) in enumerate(steps):
        for name in reads:
            if name in maker:
                edges.append((steps[maker[name]][0], label))
                is_ordered &= maker[name] < place
            elif name not in given:
                raise InvalidGraph(f"node {label!r} reads the tensor {name!r}, which nothing makes")
    if is_ordered:
        return list(range(len(steps)))
    order: list[int] = Graph.build([(label, {}) for label, _, _ in steps], edges).order.tolist()
    return order


@dataclass(slots=True)
class Assembly:
    """Turns steps, in order, into ops.

    Parameters
    ----------
    types
        Types of all tensors.
    stored
        Names of tensors whose values the file holds.
    read
        Names of tensors that a step or the caller reads.
    sharing
        See `Holdings`.
    aliases
        Stored tensor -> the one it shares its storage with.
    precision
        What numbers are kept in.
    """

    types: Mapping[str, TensorType]
    stored: Collection[str]
    read: Collection[str]
    sharing: Sharing
    aliases: Mapping[str, str] = field(default_factory=dict)
    precision: Precision = field(default_factory=Precision)
    _rows: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    _edges: list[tuple[str, str]] = field(default_factory=list)
    _maker: dict[str, str] = field(default_factory=dict)  # tensor -> op
    _held: dict[str, list[str]] = field(default_factory=dict)  # constant -> the tensors that are held for it
    _holdings: Holdings = field(init=False)

    def __post_init__(self) -> None:
        self._holdings = Holdings(self.sharing)
        self._held = {name: [self.aliases.get(name, name)] for name in self.stored}

    def add_input(self, name: str) -> None:
        """Make an op of an input of the model, if it is read."""
        if name not in self.read or name in self._held:
            return
        tensor = self._type(name, name)
        size = tensor.bytes_in(self.precision, is_weight=False)
        row = {"op": "input", "out_bytes": size, "flops": 0.0, "node": name, "tensors": [name]}
        self._rows.append((name, row | {"outputs": [tensor.described]} | self.precision.noted()))
        self._maker[name] = name

    def add(self, step: Step) -> None:
        """Make an op of a step, or fold it."""
        constant = step.constant
        if constant is None:
            constant = all(name in self._held for name in step.reads)
        if not constant:
            self._open(step)
        elif step.relabels is None:
            self._held.update((name, [name]) for name in step.makes)
        else:
            held = [source for name in step.relabels for source in self._held.get(name, ())]
            self._held.update((name, held) for name in step.makes)

    def _open(self, step: Step) -> None:
        for name in step.reads:
            if name in self._maker:
                self._edges.append((self._maker[name], step.label))
            for held in self._held.get(name, ()):
                tensor = self._type(held, step.label)
                is_parameter = step.reads_weights and held in self.stored and len(tensor.shape or ()) >= 2
                size = tensor.bytes_in(self.precision, is_weight=held in self.stored)
                is_trained = held in self.stored and tensor.is_float
                self._holdings.add(step.label, held, size, is_parameter=is_parameter, is_trained=is_trained)
        used = [name for name in step.makes if name in self.read] or list(step.makes)
        outputs = [self._type(name, step.label) for name in used]
        row = {
            "op": step.kind,
            "out_bytes": sum(tensor.bytes_in(self.precision, is_weight=False) for tensor in outputs),
            "flops": step.flops(),
            "tensors": list(step.makes),
            "outputs": [tensor.described for tensor in outputs],
        }
        view = {"view": True} if step.is_view else {}
        if step.axes:
            read = [[self._maker.get(name, ""), *(self._type(name, step.label).shape or ())] for name in step.operands]
            row |= {"axes": step.axes, "operands": read}
        self._rows.append((step.label, row | dict(step.extras) | view | self.precision.noted()))
        self._maker.update((name, step.label) for name in step.makes)

    def _type(self, tensor: str, label: str) -> TensorType:
        found = self.types.get(tensor)
        if found is None or found.shape is None:
            raise InvalidGraph(
                f"node {label!r}: the shape of tensor {tensor!r} is unknown or depends on data; it must be known"
            )
        return found

    def graph(self, name: str) -> Graph:
        """Return the graph of what was added.

        Raises
        ------
        InvalidGraph
            Nothing of the model depends on an input's values.
        """
        if all(row["op"] == "input" for _, row in self._rows):
            raise InvalidGraph("no node of the model depends on an input's values; there is nothing to plan")
        held = self._holdings.attributes()
        rows = [(label, row | {"param_bytes": 0} | held.get(label, {})) for label, row in self._rows]
        return Graph.build(rows, self._edges, name=name)
