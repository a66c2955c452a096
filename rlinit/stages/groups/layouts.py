"""How the ops of a traced model lie on a tensor group: whose work is shared out, and what the group exchanges for it.

Importers note of an op which dimensions of what it reads and makes belong together (`rlinit.importers.common.axes`).
From these, op by op in the order of the data:

- A product of parameters whose input every device has is split by its outputs, or else by its inputs: by columns, as
  Megatron-LM calls it; a table by its rows, experts in one array by the expert. What it makes lies in pieces.
- Pieces pass through every op that needs no more of its operands than the same piece: heads through attention,
  channels through normalisation by channel. Operands that every device has are cut to it.
- A product over the dimension that lies in pieces gives partial sums, which an all-reduce adds up.
- Elsewhere the pieces are gathered, and every device does all of the op.

With sequence parallelism partial sums are scattered in place of the all-reduce: each device adds up its tokens alone,
and norms, residuals and dropouts pass them on in pieces. The next product gathers them; backward it is the other way
round. What a product reads so is held in pieces, and gathered again for its gradients while others are computed.

A dimension may lie in several runs, each cut in t pieces: queries, keys and values of one product. What is not known
of an op costs a gather, never a wrong answer.

References
----------
Shoeybi et al.: Megatron-LM, 2019. Xu et al.: GSPMD, 2021. Korthikanti et al.: Reducing activation recomputation in
large transformer models, MLSys 2023, section 4.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from rlinit.arrays import FloatArray
from rlinit.costs.roofline import known_bytes
from rlinit.devices.efficiency import op_class
from rlinit.graph import Graph

_ALL = -1
"""Label of a dimension of which an op needs all."""


@dataclass(slots=True)
class Runs:
    """The lengths of the runs that a dimension lies in; of a product's columns open until an op asks for them.

    Parameters
    ----------
    lengths
        None: one run, whatever the size.
    settled
        Whether an op relies on them.
    taken
        (start, length) of runs that a slice has taken.
    tokens
        Whether it is of tokens, any of which may lie anywhere.
    """

    lengths: tuple[int, ...] | None = None
    settled: bool = True
    taken: list[tuple[int, int]] = field(default_factory=list)
    tokens: bool = False

    def of(self, size: int) -> tuple[int, ...]:
        """Return the runs of a dimension of a size, as many parts of it as of the one they were found for.

        Parameters
        ----------
        size
            Of the dimension.
        """
        whole = sum(self.lengths or (1,))
        return tuple(length * size // whole for length in self.lengths or (1,))

    def fit(self, size: int, degree: int) -> bool:
        """Return whether a dimension of a size can be cut so, in equal pieces of every run.

        Parameters
        ----------
        size
            Of the dimension.
        degree
            Pieces of each run.
        """
        whole = sum(self.lengths or (1,))
        return all(length * size % (whole * degree) == 0 for length in self.lengths or (1,))

    def agree(self, other: Runs) -> bool:
        """Return whether two dimensions lie alike, and let them stay so."""
        if self is other:
            return True
        for one, two in ((self, other), (other, self)):
            if not one.settled and one.lengths is None:
                one.lengths = two.lengths
        alike = [tuple(length / sum(runs.lengths or (1,)) for length in runs.lengths or (1,)) for runs in (self, other)]
        if alike[0] == alike[1]:
            self.settled = other.settled = True
        return alike[0] == alike[1]

    def take(self, start: int, length: int, size: int, degree: int) -> bool:
        """Return whether one slice of the dimension is a run, which an open dimension makes of it.

        Parameters
        ----------
        start, length
            Of the slice.
        size, degree
            As for `fit`.
        """
        at = 0
        for i, run in enumerate(runs := self.of(size)):
            if (start, length) == (at, run):
                self.taken.append((start, length))
                return True
            if at <= start and start + length <= at + run and not self.settled and (at, run) not in self.taken:
                pieces = [part for part in (start - at, length, at + run - start - length) if part]
                if any(part % degree for part in pieces):
                    return False
                self.lengths = (*runs[:i], *pieces, *runs[i + 1 :])
                self.taken.append((start, length))
                return True
            at += run
        return False


class Pieces(NamedTuple):
    """A dimension of a tensor that lies in pieces."""

    dim: int
    runs: Runs


class Operand(NamedTuple):
    """What an op reads: the op it is from, -1 for a constant, its shape, and its pieces there, if any."""

    op: int
    shape: tuple[int, ...]
    pieces: Pieces | None


@dataclass(slots=True, eq=False)
class Layout:
    """What n ops do on each of t devices.

    Parameters
    ----------
    degree
        t.
    pieces
        (n,) the dimension of an op's outputs that lies in pieces; None where every device has all of them.
    read
        (n,) of each operand the pieces that a device reads; None for all of it.
    work, params
        (n,) the share of an op's operations and of its parameters that a device has.
    partial
        (n,) whether outputs are sums that the group adds up; of an op with pieces each device its piece of them.
    exchanged_bytes
        all-reduces and gathers of the forward pass, all-reduces and gathers of gradients -> (n,) bytes; scatters of
        sums are among gathers, which take as long.
    gathered
        Pairs of ops (u, v) where v reads all that u makes, which lies in pieces.
    needed
        Pairs of ops (u, v) where v needs all that u makes, and no gather inside v brings it.
    """

    degree: int
    pieces: list[Pieces | None]
    read: list[list[Pieces | None]]
    work: FloatArray
    params: FloatArray
    partial: list[bool]
    exchanged_bytes: dict[str, FloatArray]
    gathered: set[tuple[int, int]] = field(default_factory=set)
    needed: set[tuple[int, int]] = field(default_factory=set)

    @property
    def made(self) -> FloatArray:
        """(n,) the share of an op's outputs that a device has."""
        return np.array([1.0 if piece is None else 1.0 / self.degree for piece in self.pieces])

    @property
    def scatters(self) -> bool:
        """Whether some partial sums are scattered."""
        return any(sums and piece is not None for sums, piece in zip(self.partial, self.pieces, strict=True))


def layouts_of(graph: Graph, degree: int) -> list[Layout]:
    """Return how a graph's ops lie on a group of devices, and how with sequence parallelism, where sums are scattered.

    Columns that a view takes apart into several dimensions lie by heads, or where it is (2, width) or (3, width) by the
    last one, which its sizes do not tell from few heads: both are tried, and that of fewer operations and bytes kept.

    Parameters
    ----------
    graph
        From an importer that notes axes; ops without are done as a whole by every device.
    degree
        Devices t of the group.
    """
    read, flops = _Read.of(graph), np.nan_to_num(graph.flops)
    found = {last: _layout(read, degree, last=last) for last in ((False, True) if degree > 1 else (False,))}
    last, layout = min(
        found.items(),
        key=lambda one: (float((flops * one[1].work).sum()), sum(map(np.sum, one[1].exchanged_bytes.values()))),
    )
    scattered = _layout(read, degree, last=last, sequence=True)
    return [layout, scattered] if scattered.scatters else [layout]


def _layout(read: _Read, degree: int, *, last: bool, sequence: bool = False) -> Layout:
    graph, n = read.graph, read.graph.num_ops
    exchanged = {what: np.zeros(n) for what in ("all_reduce", "all_gather", "all_reduce_back", "all_gather_back")}
    layout = Layout(degree, [None] * n, [[] for _ in range(n)], np.ones(n), np.ones(n), [False] * n, exchanged)
    if degree > 1:
        placing = _Placing(read, layout, last=last, sequence=sequence)
        for v in graph.order.tolist():
            placing.place(v)
        for v in np.flatnonzero(np.diff(graph.succ_indptr) == 0).tolist():
            if layout.pieces[v] is not None:
                layout.exchanged_bytes["all_gather"][v] += read.bytes_of[v]
    return layout


class _Read(NamedTuple):
    """What is read of a graph for every layout of it.

    `operands` has of each op those that it reads, as places and shapes; None where what is noted of it is not what the
    graph says.
    """

    graph: Graph
    bytes_of: FloatArray
    edge_bytes: Mapping[tuple[int, int], float]
    trained: Sequence[bool]
    operands: Sequence[Sequence[tuple[int, tuple[int, ...]]] | None]

    @classmethod
    def of(cls, graph: Graph) -> _Read:
        edge_bytes = dict(zip(map(tuple, graph.edges.tolist()), known_bytes(graph.edge_bytes).tolist(), strict=True))
        operands = [cls.operands_of(graph, v) for v in range(graph.num_ops)]
        return cls(graph, known_bytes(graph.made_bytes), edge_bytes, _trained(graph), operands)

    @staticmethod
    def operands_of(graph: Graph, v: int) -> list[tuple[int, tuple[int, ...]]] | None:
        before = {graph.names[u]: u for u in graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()}
        noted = graph.extras.get(v, {}).get("operands", ())
        if not noted or {str(name) for name, *_ in noted} - {""} != set(before):
            return None
        return [(before.get(name, -1), tuple(shape)) for name, *shape in noted]


class _Labelled(NamedTuple):
    """An op whose dimensions have labels.

    `operands` are what it reads, each with a label of every dimension, `out` those of its output; `units` says of a
    label into how many equal parts it falls at most.
    """

    kind: str
    operands: Sequence[tuple[Operand, Sequence[int]]]
    out: Sequence[int]
    units: Mapping[str, int]

    @property
    def held(self) -> set[int]:
        """Labels of parameters and constants."""
        return {label for one, row in self.operands if one.op < 0 for label in row} - {_ALL}

    def beginnings(self) -> Iterator[int]:
        """Yield the labels that a product of parameters may be split by, the best first."""
        read = {label for one, row in self.operands if one.op >= 0 for label in row}
        for one, row in self.operands:
            if one.op >= 0 or len(row) < 2:
                continue
            sized = zip(row, one.shape, strict=True)
            summed = [label for label, size in sized if label not in (*self.out, _ALL) and size > 1]
            if not summed:
                continue
            made = [label for label in row if label in self.out and label != _ALL]
            alike, columns = [x for x in made if x in read], [x for x in made if x not in read]
            yield from alike
            yield from [*summed, *columns] if op_class(self.kind) == "lookup" else [*columns, *summed]


class _Placing:
    """Lays ops out one after another."""

    def __init__(self, read: _Read, layout: Layout, *, last: bool, sequence: bool) -> None:
        self.graph, self.bytes_of, self.edge_bytes, self.trained, self.operands = read
        self.layout, self.t, self.last, self.sequence = layout, layout.degree, last, sequence
        self.done: set[tuple[int, str]] = set()

    def place(self, v: int) -> None:
        """Lay out an op whose operands are laid out."""
        row, noted = self.graph.extras.get(v, {}), self.operands[v]
        axes = row.get("axes")
        before = self.graph.pred[self.graph.pred_indptr[v] : self.graph.pred_indptr[v + 1]].tolist()
        if axes is None or noted is None:
            self._gather(v, before)
            return
        operands = [Operand(u, shape, self.layout.pieces[u] if u >= 0 else None) for u, shape in noted]
        self.layout.read[v] = [None] * len(operands)
        if "labels" in axes:
            *rows, out = axes["labels"]
            pairs = list(zip(operands, rows, strict=True))
            self._by_labels(v, _Labelled(self.graph.kinds[v], pairs, out, axes.get("units", {})))
            return
        first, made = operands[0], _shapes(row)
        pieces = self._passed(axes, first, made)
        if pieces is None or len({len(shape) for shape in made}) > 1:
            self._gather(v, before)
            return
        self.layout.read[v][0], self.layout.pieces[v] = first.pieces, pieces
        self.layout.work[v] = 1.0 / self.t

    def _gather(self, v: int, sources: Iterable[int]) -> None:
        """Let an op have all of what others make."""
        for u in sources:
            if self.layout.pieces[u] is not None:
                self.layout.gathered.add((u, v))
            if self.layout.pieces[u] is not None and self._once(u, "all_gather"):
                self.layout.exchanged_bytes["all_gather"][v] += self.bytes_of[u]
            else:
                self.layout.needed.add((u, v))

    def _once(self, u: int, what: str) -> bool:
        """Return whether something is done with what an op makes for the first time."""
        new = (u, what) not in self.done
        self.done.add((u, what))
        return new

    def _by_labels(self, v: int, op: _Labelled) -> None:
        split = self._split_of(op)
        if split is None:
            self._gather(v, [one.op for one, _ in op.operands if one.op >= 0])
            return
        (label, runs), layout, sizes, held = split, self.layout, 0.0, 0.0
        for i, (one, row) in enumerate(op.operands):
            cut = label in row and runs.fit(one.shape[row.index(label)], self.t)
            if cut:
                layout.read[v][i] = Pieces(row.index(label), runs)
            if one.op < 0:
                size = float(math.prod(one.shape))
                sizes, held = sizes + size, held + size / (self.t if cut else 1)
                continue
            if one.pieces is not None and not (cut and one.pieces.dim == row.index(label)):
                self._gather(v, [one.op])
            elif one.pieces is None and not cut:
                layout.needed.add((one.op, v))
            if self.trained[one.op] and (one.pieces is None or not cut):
                what = "all_gather_back" if cut or one.pieces is not None else "all_reduce_back"
                if self._once(one.op, what):
                    layout.exchanged_bytes[what][v] += self.edge_bytes[one.op, v]
        layout.work[v] = 1.0 / self.t
        layout.params[v] = held / sizes if sizes else 1.0
        if label in op.out:
            layout.pieces[v] = Pieces(op.out.index(label), runs)
            return
        layout.partial[v] = True
        dim = self._tokens(op, _shapes(self.graph.extras[v])) if self.sequence else None
        if dim is None:
            layout.exchanged_bytes["all_reduce"][v] += self.bytes_of[v]
            return
        layout.pieces[v] = Pieces(dim, Runs(settled=False, tokens=True))
        layout.exchanged_bytes["all_gather"][v] += self.bytes_of[v]
        layout.exchanged_bytes["all_gather_back"][v] += self.bytes_of[v] * self.trained[v]

    def _tokens(self, op: _Labelled, shapes: Sequence[tuple[int, ...]]) -> int | None:
        """Return the longest dimension of partial sums that no parameter has, to scatter them by; None without one."""
        if len(shapes) != 1:
            return None
        fixed = {*op.held, _ALL}
        free = [d for d, label in enumerate(op.out) if label not in fixed and Runs().fit(shapes[0][d], self.t)]
        return max(free, key=lambda d: shapes[0][d], default=None)

    def _split_of(self, op: _Labelled) -> tuple[int, Runs] | None:
        """Return the label that an op is split by, and its runs; None for none."""
        lying = [(one, row[one.pieces.dim]) for one, row in op.operands if one.pieces is not None]
        if not lying or (self.sequence and op.held.isdisjoint(label for _, label in lying)):
            begun = self._begun(op)
            if begun is not None or not lying:
                return begun
        for one, label in sorted(lying, key=lambda pair: -math.prod(pair[0].shape)):
            assert one.pieces is not None
            if label != _ALL and self._fits(op, label, one.pieces.runs):
                return label, one.pieces.runs
        return None

    def _begun(self, op: _Labelled) -> tuple[int, Runs] | None:
        """Return the label that a product of parameters is split by where its input is whole; None for none."""
        for label in op.beginnings():
            runs = Runs(settled=False)
            if self._fits(op, label, runs):
                return label, runs
        return None

    def _fits(self, op: _Labelled, label: int, runs: Runs) -> bool:
        """Return whether an op can be split by a label: constants are cut by it, and what lies so has these runs."""
        count = op.units.get(str(label))
        if count is not None and (count % self.t or len(runs.lengths or (1,)) > 1):
            return False
        for one, row in op.operands:
            if label in row:
                at = row.index(label)
                lies = one.pieces if one.pieces is not None and one.pieces.dim == at else None
                if lies is not None and not lies.runs.agree(runs):
                    return False
                if (lies is not None or one.op < 0) and not runs.fit(one.shape[at], self.t):
                    return False
        runs.settled = runs.settled or count is not None
        return True

    def _passed(self, axes: dict[str, Any], one: Operand, made: Sequence[tuple[int, ...]]) -> Pieces | None:
        """Return how pieces lie after a view or a cut; None where they do not, or there are none."""
        if one.pieces is None:
            return None
        dim, runs = one.pieces
        if axes.get("view"):
            return seen(one.shape, one.pieces, made[0], self.t, last=self.last) if made else None
        along, *begin = axes["slice"] if "slice" in axes else [axes["parts"]]
        if dim != along:
            return one.pieces
        if begin:
            taken = runs.take(int(begin[0]), made[0][dim], one.shape[dim], self.t)
            return Pieces(dim, Runs()) if taken else None
        parts = tuple(shape[dim] for shape in made)
        if sum(parts) != one.shape[dim]:
            return None
        agree = runs.agree(Runs(parts)) and runs.fit(one.shape[dim], self.t)
        return Pieces(dim, Runs()) if agree else None


def seen(
    shape: tuple[int, ...], pieces: Pieces, made: tuple[int, ...], degree: int, *, last: bool = False
) -> Pieces | None:
    """Return where a dimension in pieces lies when the elements take another shape; None where it is in no one.

    Parameters
    ----------
    shape, pieces
        Of the tensor.
    made
        The other shape.
    degree
        Devices t.
    last
        Whether the last of several dimensions may be it, where nothing says which.
    """
    dim, runs = pieces
    before, after = next(
        ((a, b) for a, b in reshaped_dims(shape, made) if a[0] <= dim < a[1]), ((dim, dim + 1), (0, 0))
    )
    outer, inner = math.prod(shape[before[0] : dim]), math.prod(shape[dim + 1 : before[1]])
    if not outer * inner:
        return None
    large = [j for j in range(*after) if made[j] > 1]
    if outer == inner == 1 and len(large) == 1:
        return Pieces(large[0], runs)
    for j in large:
        left, right = math.prod(made[after[0] : j]), math.prod(made[j + 1 : after[1]])
        if not runs.settled and runs.lengths is None and outer == 1:
            each, width = made[j] * right, j == large[-1] != large[0] and not (last or runs.tokens)
            if each % inner or made[j] % degree or each // inner % degree or width:
                continue
            runs.lengths, runs.settled = (each // inner,) * left, True
            return Pieces(j, Runs())
        flat = [length * inner for length in runs.of(shape[dim])] * outer
        if len(flat) % left:
            continue
        one = flat[: len(flat) // left]
        if flat == one * left and sum(one) == made[j] * right and not any(x % (right * degree) for x in one):
            runs.settled = True
            return Pieces(j, Runs(tuple(x // right for x in one)))
    return None


def reshaped_dims(shape: Sequence[int], made: Sequence[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return the fewest dimensions (from, to) of two shapes of as many elements that hold the same ones.

    Parameters
    ----------
    shape, made
        Sizes of the dimensions.

    Examples
    --------
    >>> reshaped_dims((2, 12, 64), (2, 3, 4, 64))
    [((0, 1), (0, 1)), ((1, 2), (1, 3)), ((2, 3), (3, 4))]
    """
    found: list[tuple[tuple[int, int], tuple[int, int]]] = []
    i = j = 0
    while i < len(shape):
        start, a, b = (i, j), shape[i], 1
        i += 1
        while a != b:
            if a < b and i < len(shape):
                a, i = a * shape[i], i + 1
            elif j < len(made):
                b, j = b * made[j], j + 1
            else:
                return found
        found.append(((start[0], i), (start[1], j)))
    return found


def local_graph(graph: Graph, layout: Layout) -> Graph:
    """Return the graph of what one device of a group does, for the cost model: what it does not exchange.

    Parameters
    ----------
    graph, layout
        The ops, and how they lie.
    """
    t, made = layout.degree, layout.made
    if t == 1:
        return graph
    extras = {v: _local(row, layout.pieces[v], t) for v, row in graph.extras.items()}
    before = np.where(layout.partial, (1.0 - made) * known_bytes(graph.made_bytes), 0.0)  # sums are scattered
    more = graph.unheld_bytes * layout.params + before
    for (u, v), size in zip(graph.edges.tolist(), known_bytes(graph.edge_bytes).tolist(), strict=True):
        if (u, v) in layout.gathered:
            more[v] += (1.0 - 1.0 / t) * size
    return replace(
        graph,
        flops=graph.flops * layout.work,
        param_bytes=graph.param_bytes * layout.params,
        out_bytes=graph.out_bytes * made,
        further=replace(graph.further, size_bytes=graph.further.size_bytes * made[graph.further.op]),
        unheld_bytes=more,
        extras=extras,
        shared=(),
    )


def _local(row: Mapping[str, Any], pieces: Pieces | None, degree: int) -> Mapping[str, Any]:
    """Return what is noted of an op with the shapes that a device has."""
    if pieces is None or "outputs" not in row:
        return row
    return dict(row) | {
        "outputs": [
            [dtype, *[size // degree if d == pieces.dim else size for d, size in enumerate(shape)]]
            for dtype, *shape in row["outputs"]
        ]
    }


def _shapes(row: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return the shapes of an op's outputs."""
    return [tuple(shape) for _, *shape in row.get("outputs", ())]


def _trained(graph: Graph) -> list[bool]:
    """Return (n,) whether gradients flow into what an op makes."""
    found: list[bool] = (known_bytes(graph.param_bytes) > graph.constant_bytes).tolist()
    for v in graph.order.tolist():
        before = graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()
        kinds = [str(one[0]) for one in graph.extras.get(v, {}).get("outputs", ()) if one]
        found[v] = (found[v] or any(found[u] for u in before)) and not all(
            k.startswith(("int", "bool", "uint")) for k in kinds or ["float"]
        )
    return found
