"""The tensors of a graph: an op's main output, its further outputs by port, and tensors of single edges.

====================  ======================================================================
tensor                rows of `Tensors`
====================  ======================================================================
main output           row v for op v: ``out_bytes[v]``, read by all edges that name no other
further output        ``outputs={port: bytes}`` of an op, read by the edges that name the port
of an edge            ``(u, v, bytes)``: its one edge reads it
====================  ======================================================================

A tensor is moved once to each device or stage that reads it, whoever reads it there.

Parameters that several ops read, such as the matrix of an embedding and of the head that is tied to it, count in the
`Graph.param_bytes` of each. A device, or a stage, that runs several readers of a parameter holds it once; devices that
run one each hold it each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import InvalidGraph
from rlinit.limits import check_name, check_number, closest

EDGE_MARK = "-> "
"""What the name of an edge's own tensor begins with; no port's name may."""


@dataclass(frozen=True, slots=True, eq=False)
class FurtherTensors:
    """The tensors of a graph beyond each op's main output. x of them.

    Parameters
    ----------
    op
        (x,) int64 producer of each, ascending.
    size_bytes
        (x,) float64, all known.
    port
        (x,) name of the port it leaves the op by; ``""`` where it belongs to one edge.
    """

    op: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    size_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))
    port: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.op)

    def check(self, names: Sequence[str], edges: IntArray, edge_tensor: IntArray) -> None:
        """Check that every tensor is of a known op and size, and that edges read tensors of their producers.

        Parameters
        ----------
        names
            (n,) op names.
        edges, edge_tensor
            (m, 2) pairs, and (m,) the tensor that each reads: its producer, or n + a row here.

        Raises
        ------
        InvalidGraph
            One of this is not so; the message names the op or edge.
        """
        n = len(names)
        if not len(self.op) == len(self.size_bytes) == len(self.port):
            raise InvalidGraph(
                f"further tensors: {len(self.op)} ops, {len(self.size_bytes)} sizes, {len(self.port)} ports"
            )
        for v, size, port in zip(self.op.tolist(), self.size_bytes.tolist(), self.port, strict=True):
            if not 0 <= v < n:
                raise InvalidGraph(f"a further tensor is of op {v}; expected 0..{n - 1}")
            check_number(f"op {names[v]!r}: bytes of output {port!r}", size, InvalidGraph)
        named = [(v, port) for v, port in zip(self.op.tolist(), self.port, strict=True) if port]
        if len(set(named)) < len(named):
            raise InvalidGraph("an op has two outputs of one name")
        producer = np.concatenate([np.arange(n), self.op])
        wrong = np.flatnonzero((edge_tensor < 0) | (edge_tensor >= len(producer)))
        if not len(wrong):
            wrong = np.flatnonzero(producer[edge_tensor] != edges[:, 0])
        if len(wrong):
            u, v = edges[wrong[0]].tolist()
            raise InvalidGraph(f"edge ({names[u]!r}, {names[v]!r}) reads a tensor that {names[u]!r} does not make")
        readers = np.bincount(edge_tensor, minlength=len(producer))[n:]
        for v, port, count in zip(self.op.tolist(), self.port, readers.tolist(), strict=True):
            if not port and count != 1:
                raise InvalidGraph(f"op {names[v]!r} has an edge's own tensor that {count} edges read; expected one")


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """All tensors of a graph as rows, main outputs first: row v is that of op v.

    Parameters
    ----------
    op
        (T,) producer of each.
    size_bytes
        (T,) NaN where not given.
    name
        (T,) unique among those of one op: ``""`` for the main output, the port's name, or ``"-> consumer"``.
    indptr, consumers
        CSR: the ops that read each.
    """

    op: IntArray
    size_bytes: FloatArray
    name: tuple[str, ...]
    indptr: IntArray
    consumers: IntArray

    def __len__(self) -> int:
        return len(self.op)

    def readers(self, row: int) -> list[int]:
        """Return the ops that read a tensor."""
        found: list[int] = self.consumers[self.indptr[row] : self.indptr[row + 1]].tolist()
        return found

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        out_bytes: FloatArray,
        further: FurtherTensors,
        edges: IntArray,
        edge_tensor: IntArray,
    ) -> Tensors:
        """Return the rows of a graph from its arrays.

        Parameters
        ----------
        names
            (n,) names of ops.
        out_bytes
            (n,) bytes of main outputs, NaN where not given.
        further
            The tensors beyond them.
        edges, edge_tensor
            (m, 2) pairs of ops, and (m,) the tensor that each reads: its producer, or n + a row of `further`.
        """
        n, count = len(names), len(names) + len(further)
        by_row = np.lexsort((edges[:, 1], edge_tensor))
        indptr = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(edge_tensor, minlength=count), out=indptr[1:])
        consumers = edges[by_row, 1]
        name = [""] * n
        for row, port in enumerate(further.port, n):
            name.append(port or EDGE_MARK + names[consumers[indptr[row]]])
        return cls(
            np.concatenate([np.arange(n, dtype=np.int64), further.op]),
            np.concatenate([out_bytes, further.size_bytes]),
            tuple(name),
            indptr,
            consumers,
        )


def ports_of(op: str, outputs: object) -> dict[str, float]:
    """Return the further outputs that an op's attribute ``outputs`` gives, by name.

    Parameters
    ----------
    op
        Name of the op, for messages.
    outputs
        A mapping from names to bytes, or None.

    Raises
    ------
    InvalidGraph
        A name that is none, or a size that is no number from 0.
    """
    ports: dict[str, float] = {}
    if not isinstance(outputs, Mapping):
        return ports
    for port, size in outputs.items():
        check_name(f"the name of an output of op {op!r}", port, InvalidGraph)
        if port.startswith(EDGE_MARK):
            raise InvalidGraph(f"op {op!r} has an output called {port!r}; names may not begin with {EDGE_MARK!r}")
        ports[port] = check_number(f"op {op!r}: bytes of output {port!r}", size, InvalidGraph)
    return ports


Label = str | float | None
"""What an edge reads: a port, bytes of its own, or its producer's main output."""


def collect_tensors(
    names: Sequence[str],
    ports: Mapping[int, Mapping[str, float]],
    edges: Iterable[tuple[int, int, Label]],
    *,
    given: FloatArray,
) -> tuple[IntArray, IntArray, FurtherTensors]:
    """Return a graph's edges (m, 2), the tensor that each reads (m,), and its tensors beyond the main ones.

    Parameters
    ----------
    names
        (n,) op names.
    ports
        op -> its further outputs.
    edges
        Producer, consumer and what is read, in any order.
    given
        (n,) bytes of the main outputs, NaN where not given.

    Raises
    ------
    InvalidGraph
        An edge names a port that its producer does not have, reads two tensors, or names none where its producer has
        ports and no `out_bytes`.
    """
    n = len(names)
    reads: dict[tuple[int, int], Label] = {}
    for u, v, label in edges:
        if isinstance(label, str) and label not in ports.get(u, {}):
            known = sorted(ports.get(u, {}))
            raise InvalidGraph(
                f"edge ({names[u]!r}, {names[v]!r}) reads output {label!r}, which {names[u]!r} does not have"
                f"{closest(label, known)} (its outputs: {', '.join(known) or 'out_bytes alone'})"
            )
        if label is None and ports.get(u) and np.isnan(given[u]):
            raise InvalidGraph(
                f"edge ({names[u]!r}, {names[v]!r}) names none of the outputs {', '.join(sorted(ports[u]))} of "
                f"{names[u]!r}, which gives no out_bytes; name one as the edge's port"
            )
        if reads.setdefault((u, v), label) != label:
            raise InvalidGraph(
                f"op {names[v]!r} reads two tensors of {names[u]!r}; give them as one output with the bytes of both"
            )
    row_of: dict[tuple[int, str | int], int] = {}
    rows: list[tuple[int, float, str]] = []
    own: dict[int, list[tuple[int, float]]] = {}
    for (u, v), label in sorted(reads.items(), key=lambda item: item[0]):
        if label is not None and not isinstance(label, str):
            own.setdefault(u, []).append((v, label))
    for u in sorted({*own, *(u for u, named in ports.items() if named)}):
        for port, size in sorted(ports.get(u, {}).items()):
            row_of[u, port] = n + len(rows)
            rows.append((u, size, port))
        for v, size in own.get(u, ()):
            row_of[u, v] = n + len(rows)
            rows.append((u, size, ""))
    pairs = sorted(reads)
    tensor = [
        u if (label := reads[u, v]) is None else row_of[u, label if isinstance(label, str) else v] for u, v in pairs
    ]
    further = FurtherTensors(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.float64),
        tuple(row[2] for row in rows),
    )
    return np.array(pairs, np.int64).reshape(-1, 2), np.array(tensor, np.int64), further


# -- parameters that several ops read ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter that several ops read.

    Parameters
    ----------
    name
        Unique in a graph.
    size_bytes
        Its bytes, a part of the `param_bytes` of each reader.
    readers
        Indices of the ops that read it, ascending.
    """

    name: str
    size_bytes: float
    readers: tuple[int, ...]


def repeated_bytes(shared: Iterable[SharedParameter], ops: Iterable[int]) -> float:
    """Return what the `param_bytes` of ops count more than once, were they on one device.

    Parameters
    ----------
    shared
        The parameters that several ops read.
    ops
        Indices of ops.
    """
    inside = set(ops)
    return sum(one.size_bytes * max(0, len(inside.intersection(one.readers)) - 1) for one in shared)


def collect_shared(rows: Iterable[tuple[str, Mapping[str, object]]]) -> tuple[SharedParameter, ...]:
    """Return the parameters that ops name in their attribute ``shared``, by name -> bytes.

    Parameters
    ----------
    rows
        Name and attributes of each op.

    Raises
    ------
    InvalidGraph
        An attribute that is no mapping from names to bytes, or two sizes of one parameter.
    """
    size: dict[str, float] = {}
    readers: dict[str, list[int]] = {}
    for i, (op, row) in enumerate(rows):
        given = row.get("shared")
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise InvalidGraph(f"op {op!r}: shared is {given!r:.60}; expected a mapping from parameters to bytes")
        for name, value in given.items():
            check_name(f"op {op!r}: the name of a shared parameter", name, InvalidGraph)
            number = check_number(f"op {op!r}: bytes of the shared parameter {name!r}", value, InvalidGraph)
            if size.setdefault(name, number) != number:
                raise InvalidGraph(
                    f"the shared parameter {name!r} has {size[name]:,.0f} bytes, and {number:,.0f} at {op!r}"
                )
            readers.setdefault(name, []).append(i)
    return tuple(SharedParameter(name, size[name], tuple(ops)) for name, ops in readers.items())


def check_shared(shared: Sequence[SharedParameter], names: Sequence[str], param_bytes: FloatArray) -> None:
    """Check that every op counts the shared parameters that it reads.

    Parameters
    ----------
    shared
        The parameters.
    names, param_bytes
        (n,) of the ops.

    Raises
    ------
    InvalidGraph
        A reader that is no op, or one with fewer bytes of parameters than it shares; the message names it.
    """
    parts: dict[int, float] = {}
    for one in shared:
        if list(one.readers) != sorted(set(one.readers)) or not all(0 <= v < len(names) for v in one.readers):
            raise InvalidGraph(
                f"the shared parameter {one.name!r} has the readers {one.readers}; expected ops, ascending"
            )
        for v in one.readers:
            parts[v] = parts.get(v, 0.0) + one.size_bytes
    for v, part in parts.items():
        if not part <= param_bytes[v] * (1.0 + 1e-9):
            raise InvalidGraph(
                f"op {names[v]!r} shares {part:,.0f} bytes of parameters and has param_bytes {param_bytes[v]:,.0f}; "
                "expected as many or more, for they count in them"
            )


def contracted_shared(shared: Iterable[SharedParameter], group_of_op: Sequence[int]) -> tuple[SharedParameter, ...]:
    """Return the parameters as groups of ops read them.

    Parameters
    ----------
    shared
        Of the ops.
    group_of_op
        (n,) group of each op.
    """
    return tuple(
        SharedParameter(one.name, one.size_bytes, tuple(sorted({int(group_of_op[v]) for v in one.readers})))
        for one in shared
    )
