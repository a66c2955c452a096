"""Computation graphs: immutable, array-backed, validated once.

======================  ====================================================================
symbol                  meaning
======================  ====================================================================
G = (V, E), n, m        the graph, its ops and data-flow edges, their counts
``param_bytes[v]``      bytes of the parameters op v reads, those that others read too (``shared``) included
``out_bytes[v]``        bytes of v's main output tensor, shared by all consumers that name no other
``flops[v]``            floating-point (or integer) operations of v
``time_s[v, d, b]``     seconds of v on device d at batch size b
k                       number of pipeline stages
stage(v)                stage of v, from 0; monotone: stage(u) <= stage(v) on every edge (u, v)
ideal                   a set of ops closed under predecessors
boundary node           an end of an edge whose ends lie in different stages
gamma                   the relaxation window's half-width in topological levels
======================  ====================================================================
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray
from rlinit.errors import InvalidGraph
from rlinit.files import read_json, write_json
from rlinit.limits import LARGEST, LARGEST_BATCH, LARGEST_EXACT, check_name, check_number, closest
from rlinit.menu import Menu, plain_menu
from rlinit.tensors import (
    FurtherTensors,
    Label,
    SharedParameter,
    Tensors,
    check_shared,
    collect_shared,
    collect_tensors,
    ports_of,
    repeated_bytes,
)
from rlinit.units import compute_type

if TYPE_CHECKING:
    import networkx as nx
    import torch

    from rlinit.hardware import Hardware
    from rlinit.importers.common.precision import Dtype

__all__ = ["ANY_DEVICE", "Graph"]

ANY_DEVICE = "*"
"""The device key of times that hold on every device."""

_COSTS = ("op", "param_bytes", "shared", "out_bytes", "flops", "time_s", "colocate", "forbidden")
"""Attributes of ops that say what they cost and where they may be."""

_TRAINING = ("backward_of", "backward_time_s")
"""Attributes of ops that only training pipelines look at; `rlinit.stages.training.lowering` says what they mean."""

_MENU = "menu"
"""Attribute of ops that may run on several devices at once, in several ways: see `rlinit.menu`."""

_NOTES = (
    "node",
    "nodes",
    "parts",
    "module",
    "scopes",
    "holds",
    "outputs",
    "tensors",
    "view",
    "precision",
    "label",
    "axes",
    "operands",
    "constant_bytes",
    "note",
)
"""Attributes that are carried along: what importers say of an op's origin, and ``note`` for whatever users like."""


def _check_attributes(op: str, names: Iterable[str]) -> None:
    for name in names:
        if name != _MENU and name not in _COSTS and name not in _TRAINING and name not in _NOTES:
            known = (*_COSTS, *_TRAINING, _MENU, *_NOTES)
            raise InvalidGraph(
                f"op {op!r} has the unknown attribute {name!r}{closest(str(name), known)} "
                f"(expected {', '.join((*_COSTS, *_TRAINING, _MENU))}; your own go under 'note')"
            )


def _number(op: str, what: str, value: object) -> float:
    return check_number(f"op {op!r}: {what}", value, InvalidGraph)


def _batch_size(key: object) -> int | None:
    """Return the batch size that a key of `time_s` stands for (text in JSON), or None where it is none."""
    if isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdecimal() and key[0] != "0":
        key = int(key)
    if isinstance(key, bool) or not isinstance(key, (int, np.integer)) or not 1 <= key <= LARGEST_BATCH:
        return None
    return int(key)


def _times_of(op: str, value: object) -> dict[tuple[str, int], float]:
    """Flatten `time_s` of one op: a number, {device: number}, or {device: {batch: number}}."""
    if not isinstance(value, Mapping):
        return {(ANY_DEVICE, 1): _number(op, "time_s", value)}
    flat: dict[tuple[str, int], float] = {}
    for device, entry in value.items():
        if isinstance(entry, Mapping):
            for batch, seconds in entry.items():
                size = _batch_size(batch)
                if size is None:
                    shown = "beyond them" if isinstance(batch, int) and abs(batch) > LARGEST_BATCH else repr(batch)[:20]
                    raise InvalidGraph(
                        f"op {op!r}: time_s on {device!r} has batch size {shown}; expected 1 to {LARGEST_BATCH}"
                    )
                if (str(device), size) in flat:
                    raise InvalidGraph(f"op {op!r}: time_s on {device!r} has two times at batch {size}")
                flat[str(device), size] = _number(op, f"time_s on {device!r} at batch {batch}", seconds)
        else:
            flat[str(device), 1] = _number(op, f"time_s on {device!r}", entry)
    return flat


def _solved_attributes(op: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return `_TRAINING` and `_MENU` among attributes in one form, so that equal ones have one fingerprint."""
    plain: dict[str, Any] = {}
    if _MENU in row:
        plain[_MENU] = plain_menu(op, row[_MENU])
    if "backward_of" in row:
        plain["backward_of"] = str(row["backward_of"])
    if "backward_time_s" in row:
        given = row["backward_time_s"]
        if isinstance(given, Mapping):
            seconds = {str(d): _number(op, f"backward_time_s on {d!r}", given[d]) for d in sorted(given, key=str)}
            plain["backward_time_s"] = seconds
        else:
            plain["backward_time_s"] = _number(op, "backward_time_s", given)
    return plain


def _csr(
    num_rows: int, rows: NDArray[np.int64], cols: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    order = np.lexsort((cols, rows))
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=indptr[1:])
    return indptr, cols[order]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A computation graph in arrays (CSR both ways); holds tens of thousands of ops without strain.

    Use `Graph.build`, `Graph.from_networkx` or `rlinit.load_graph` to make one. Arrays must not be written to.

    Parameters
    ----------
    names
        (n,) unique op names, in natural order.
    kinds
        (n,) kind of each op ("conv2d", "add", ...), may be empty strings.
    edges
        (m, 2) int64 pairs (producer, consumer), sorted, distinct.
    param_bytes, out_bytes, flops
        (n,) float64; NaN where not given.
    times
        (device name or kind or ``"*"``, batch size) -> (n,) seconds; NaN where not given.
    colocation, groups
        (n,) int64 group of ops that must share a device or stage, -1: none; and the groups' labels.
    forbidden
        device name or kind -> (n,) bool: ops that may not run there.
    name
        A name for tables and files.
    extras
        op index -> attributes carried along untouched.
    int_names
        The names were integers in the networkx graph this came from.
    further
        Output tensors beyond the main ones: ports of ops and tensors of single edges.
    edge_tensor
        (m,) int64 tensor that each edge reads: its producer for that one's main output, n + a row of `further` for
        others. Empty: all edges read main outputs.
    shared
        Parameters that several ops read; each counts in the `param_bytes` of all of them, and a device or stage that
        runs several holds it once.
    unheld_bytes
        (n,) bytes of parameters that each op reads and another op on its device holds: beside `param_bytes` in its
        time, not in memory. Empty: none.

    Raises
    ------
    InvalidGraph
        Empty graph, duplicate or empty name, one with characters that files cannot hold, an edge to an unknown op, a
        self-loop, a cycle (named), costs that are negative, infinite or above 1e30.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    edges: NDArray[np.int64]
    param_bytes: FloatArray
    out_bytes: FloatArray
    flops: FloatArray
    times: Mapping[tuple[str, int], FloatArray] = field(default_factory=dict)
    colocation: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    groups: tuple[Hashable, ...] = ()
    forbidden: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)
    name: str = "graph"
    extras: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    int_names: bool = False
    further: FurtherTensors = field(default_factory=FurtherTensors)
    edge_tensor: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    shared: tuple[SharedParameter, ...] = ()
    unheld_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))
    succ_indptr: NDArray[np.int64] = field(init=False, repr=False)
    succ: NDArray[np.int64] = field(init=False, repr=False)
    pred_indptr: NDArray[np.int64] = field(init=False, repr=False)
    pred: NDArray[np.int64] = field(init=False, repr=False)
    order: NDArray[np.int64] = field(init=False, repr=False)
    level: NDArray[np.int64] = field(init=False, repr=False)
    _index: dict[str, int] = field(init=False, repr=False)
    _menu: Menu | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        n = len(self.names)
        if n == 0:
            raise InvalidGraph("the graph has no ops; expected at least one")
        self._check_names()
        index = {name: i for i, name in enumerate(self.names)}
        if len(index) < n:
            seen: set[str] = set()
            twice = next(name for name in self.names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise InvalidGraph(f"op name {twice!r} appears more than once; names must be unique")
        if len(self.colocation) == 0:
            object.__setattr__(self, "colocation", np.full(n, -1, np.int64))
        if len(self.unheld_bytes) == 0:
            object.__setattr__(self, "unheld_bytes", np.zeros(n))
        self._check_shapes(n)
        self._check_costs()
        check_shared(self.shared, self.names, self.param_bytes)
        edges = self.edges
        if len(edges) and (edges.min() < 0 or edges.max() >= n):
            u, v = edges[((edges < 0) | (edges >= n)).any(axis=1)][0]
            raise InvalidGraph(f"edge ({u}, {v}) names an op outside 0..{n - 1}")
        loops = edges[edges[:, 0] == edges[:, 1]]
        if len(loops):
            raise InvalidGraph(f"op {self.names[loops[0, 0]]!r} has an edge to itself")
        edges = self._settle_edges()
        object.__setattr__(self, "_index", index)
        for prefix, rows, cols in (("succ", 0, 1), ("pred", 1, 0)):
            indptr, indices = _csr(n, edges[:, rows], edges[:, cols])
            object.__setattr__(self, f"{prefix}_indptr", indptr)
            object.__setattr__(self, prefix, indices)
        order, level = self._sort()
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "level", level)
        for array in (edges, self.param_bytes, self.out_bytes, self.flops, self.order, self.level):
            array.flags.writeable = False

    def _settle_edges(self) -> NDArray[np.int64]:
        """Sort the edges with the tensors they read, and keep repeated ones once."""
        edges, tensor = self.edges, self.edge_tensor
        if len(self.further) or len(tensor):
            if len(tensor) != len(edges):
                raise InvalidGraph(
                    f"edge_tensor has {len(tensor)} entries; expected one for each of {len(edges)} edges"
                )
            self.further.check(self.names, edges, tensor)
            rows = np.unique(np.column_stack([edges, tensor]), axis=0)
            edges, tensor = np.ascontiguousarray(rows[:, :2]), np.ascontiguousarray(rows[:, 2])
            twice = np.flatnonzero((edges[1:] == edges[:-1]).all(axis=1))
            if len(twice):
                u, v = edges[twice[0]].tolist()
                raise InvalidGraph(f"op {self.names[v]!r} reads two tensors of {self.names[u]!r}; expected one")
        else:
            edges = np.unique(edges, axis=0) if len(edges) else edges
            tensor = np.ascontiguousarray(edges[:, 0])
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "edge_tensor", tensor)
        return edges

    def _check_names(self) -> None:
        check_name("the graph's name", self.name, InvalidGraph, empty=True)
        for i, name in enumerate(self.names):
            check_name(f"the name of op number {i}", name, InvalidGraph)
        for name, kind in zip(self.names, self.kinds, strict=False):
            check_name(f"the kind of op {name!r}", kind, InvalidGraph, empty=True)
        for device in {device for device, _ in self.times} | set(self.forbidden):
            check_name("the name of a device in time_s or forbidden", device, InvalidGraph)

    def _check_shapes(self, n: int) -> None:
        columns = {"kinds": self.kinds, "param_bytes": self.param_bytes, "out_bytes": self.out_bytes}
        columns |= {"flops": self.flops, "colocation": self.colocation, "unheld_bytes": self.unheld_bytes}
        columns |= {f"times{key}": column for key, column in self.times.items()}
        columns |= {f"forbidden[{key!r}]": column for key, column in self.forbidden.items()}
        for what, column in columns.items():
            if len(column) != n:
                raise InvalidGraph(f"{what} has {len(column)} entries; expected one for each of the {n} ops")

    def _check_costs(self) -> None:
        columns = {"param_bytes": self.param_bytes, "out_bytes": self.out_bytes, "flops": self.flops}
        columns |= {f"time_s on {device!r} at batch {batch}": column for (device, batch), column in self.times.items()}
        for what, column in columns.items():
            wrong = np.flatnonzero((column < 0) | (column > LARGEST))
            if len(wrong):
                _number(self.names[wrong[0]], what, column[wrong[0]])

    def _sort(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the natural topological order (Kahn, smallest index first) and ASAP levels."""
        import heapq

        n = self.num_ops
        waiting = np.diff(self.pred_indptr).tolist()
        succ, indptr = self.succ.tolist(), self.succ_indptr.tolist()
        level = [0] * n
        ready = [v for v in range(n) if waiting[v] == 0]
        order = []
        while ready:
            u = heapq.heappop(ready)
            order.append(u)
            below = level[u] + 1
            for v in succ[indptr[u] : indptr[u + 1]]:
                if level[v] < below:
                    level[v] = below
                waiting[v] -= 1
                if waiting[v] == 0:
                    heapq.heappush(ready, v)
        if len(order) < n:
            raise InvalidGraph(f"the graph has a cycle: {self._cycle(waiting)}")
        return np.array(order, np.int64), np.array(level, np.int64)

    def _cycle(self, waiting: list[int]) -> str:
        """Name one cycle among the ops that never became ready."""
        v = next(i for i, count in enumerate(waiting) if count)
        trail: list[int] = []
        while v not in trail:
            trail.append(v)
            v = int(next(u for u in self.pred[self.pred_indptr[v] : self.pred_indptr[v + 1]] if waiting[u]))
        cycle = trail[trail.index(v) :][::-1]
        shown = [self.names[u] for u in [*cycle, cycle[0]]]
        return " -> ".join(shown if len(shown) <= 8 else [*shown[:4], "...", *shown[-3:]])

    # -- sizes -------------------------------------------------------------------------------------------------

    @property
    def num_ops(self) -> int:
        """Number of ops n."""
        return len(self.names)

    @property
    def num_edges(self) -> int:
        """Number of distinct data-flow edges m."""
        return len(self.edges)

    @property
    def depth(self) -> int:
        """Number of topological levels."""
        return int(self.level.max()) + 1

    @property
    def width(self) -> int:
        """Largest number of ops on one ASAP level (a lower bound on the largest antichain)."""
        return int(np.bincount(self.level).max())

    @property
    def tensors(self) -> Tensors:
        """All tensors as rows of producer, bytes and consumers; row v is the main output of op v."""
        return Tensors.of(self.names, self.out_bytes, self.further, self.edges, self.edge_tensor)

    def require_main_outputs(self, what: str) -> None:
        """Refuse what takes only graphs with one output tensor an op.

        Parameters
        ----------
        what
            What it is, as the subject of a sentence.

        Raises
        ------
        InvalidGraph
            An op has further output tensors; the message names it.
        """
        if len(self.further):
            name, port = self.names[self.further.op[0]], self.further.port[0]
            which = f"output {port!r}" if port else "an edge with bytes of its own"
            raise InvalidGraph(f"op {name!r} has {which}; {what} takes graphs with one output tensor an op")

    @property
    def total_param_bytes(self) -> float:
        """Bytes of all parameters, those that several ops read once."""
        return float(np.nansum(self.param_bytes)) - repeated_bytes(self.shared, range(self.num_ops))

    @property
    def constant_bytes(self) -> FloatArray:
        """(n,) bytes of parameters that training does not change, as importers note them: buffers, masks, tables."""
        noted = [float(self.extras.get(v, {}).get("constant_bytes", 0.0)) for v in range(self.num_ops)]
        return np.minimum(noted, np.nan_to_num(self.param_bytes))

    @property
    def edge_bytes(self) -> FloatArray:
        """(m,) bytes of the tensor that each edge reads; NaN where not given."""
        return np.concatenate([self.out_bytes, self.further.size_bytes])[self.edge_tensor]

    @property
    def made_bytes(self) -> FloatArray:
        """(n,) bytes of all output tensors of each op together; NaN where none is given."""
        if not len(self.further):
            return self.out_bytes
        made = np.bincount(self.further.op, weights=self.further.size_bytes, minlength=self.num_ops)
        alone = np.bincount(self.further.op, minlength=self.num_ops) == 0
        return np.where(np.isnan(self.out_bytes), np.where(alone, np.nan, made), self.out_bytes + made)

    @property
    def menu(self) -> Menu | None:
        """In which ways ops may run on groups of devices; None where no op says."""
        if self._menu is None:
            rows = {self.names[v]: row[_MENU] for v, row in self.extras.items() if _MENU in row}
            object.__setattr__(self, "_menu", Menu.of_plain(rows) if rows else None)
        return self._menu

    def with_menu(self, menu: Menu) -> Graph:
        """Return the graph with the variants of a menu in place of its own.

        Parameters
        ----------
        menu
            Variants of ops of the graph.

        Raises
        ------
        InvalidGraph
            It names an op that the graph lacks.
        """
        extras = {v: {key: value for key, value in row.items() if key != _MENU} for v, row in self.extras.items()}
        for op, rows in menu.to_dict()["ops"].items():
            extras.setdefault(self.index(op), {})[_MENU] = rows
        return dataclasses.replace(self, extras={v: row for v, row in extras.items() if row})

    def index(self, name: str) -> int:
        """Return the index of the op called `name`; InvalidGraph if there is none.

        Raises
        ------
        InvalidGraph
            There is no such op.
        """
        try:
            return self._index[name]
        except KeyError:
            raise InvalidGraph(f"there is no op {name!r} in graph {self.name!r}") from None

    def __len__(self) -> int:
        return self.num_ops

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, ops={self.num_ops}, edges={self.num_edges}, depth={self.depth})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.names, self.num_edges))

    def fingerprint(self) -> str:
        """Return a SHA-256 over names, edges and costs; two graphs that schedule alike share it."""
        digest = hashlib.sha256("\0".join((*self.names, *self.kinds)).encode())
        for array in (self.edges, self.param_bytes, self.out_bytes, self.flops, self.colocation):
            digest.update(np.ascontiguousarray(array).tobytes())
        for device, batch in sorted(self.times):
            digest.update(f"{device}\0{batch}".encode())
            digest.update(self.times[device, batch].tobytes())
        for device in sorted(self.forbidden):
            digest.update(device.encode())
            digest.update(self.forbidden[device].tobytes())
        if len(self.further):
            digest.update("\0".join(self.further.port).encode())
            for array in (self.further.op, self.further.size_bytes, self.edge_tensor):
                digest.update(np.ascontiguousarray(array).tobytes())
        # Devices have a rate for each type of numbers; bytes need not tell it: two of FP16 are as long as one of FP32.
        types = {v: dtype for v, row in self.extras.items() if (dtype := compute_type(row)) not in ("", "fp32")}
        if types:
            digest.update(" ".join(types.get(v, "") for v in range(self.num_ops)).encode())
        if self.unheld_bytes.any():
            digest.update(self.unheld_bytes.tobytes())
        for one in self.shared:
            if len(one.readers) > 1:
                digest.update(f"shared {one.size_bytes!r} {one.readers}".encode())
        views = sorted(v for v, row in self.extras.items() if row.get("view"))
        if views:
            digest.update(f"views {views}".encode())
        for i, row in sorted(self.extras.items()):
            for what in (*_TRAINING, _MENU):
                if what in row:
                    digest.update(f"{i}\0{what}\0{row[what]!r}".encode())
        return digest.hexdigest()

    # -- construction ------------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        ops: Iterable[tuple[str, Mapping[str, Any]]],
        edges: Iterable[tuple[str, str] | tuple[str, str, float | str]],
        *,
        name: str = "graph",
        int_names: bool = False,
    ) -> Graph:
        """Build a graph from (name, attributes) pairs and edges between names.

        Parameters
        ----------
        ops
            Attributes: `op`, `param_bytes`, `out_bytes`, `flops`, `time_s` (a number, a mapping device -> number,
            or device -> batch size -> number), `colocate` (a group label), `forbidden` (device names or kinds).
            `shared`, a mapping from parameter to bytes, names those of `param_bytes` that other ops read as well.
            `outputs`, a mapping from port to bytes, gives output tensors beside the main one of `out_bytes`. For
            training, `backward_of` names the op whose backward this one is, and `backward_time_s` (a number, or a
            mapping device -> number) says how long the backward of an op takes that no other op stands for. `menu`
            says in which ways an op may run on groups of devices (`rlinit.menu.Menu`). What
            importers note of an op's origin (`module`, `node`, ...) and `note`, whatever it is, are carried along.
        edges
            Data flow, in any order; repeated edges count once. ``(u, v)`` reads the main output of u, ``(u, v, port)``
            the output of that name, and ``(u, v, bytes)`` a tensor of its own, which nobody else reads.

        Raises
        ------
        InvalidGraph
            As for the class, and for unknown attributes and ones of a wrong type; the message names the op or edge.
        """
        names: list[str] = []
        rows: list[Mapping[str, Any]] = []
        for op_name, attributes in ops:
            names.append(op_name)
            rows.append(attributes)
        n = len(names)
        columns = {what: np.full(n, np.nan) for what in ("param_bytes", "out_bytes", "flops")}
        times: dict[tuple[str, int], FloatArray] = {}
        groups: dict[Hashable, int] = {}
        colocation = np.full(n, -1, np.int64)
        forbidden: dict[str, NDArray[np.bool_]] = {}
        extras: dict[int, dict[str, Any]] = {}
        ports: dict[int, dict[str, float]] = {}
        for i, (op_name, row) in enumerate(zip(names, rows, strict=True)):
            for what, column in columns.items():
                if row.get(what) is not None:
                    column[i] = _number(op_name, what, row[what])
            if row.get("time_s") is not None:
                for key, seconds in _times_of(op_name, row["time_s"]).items():
                    times.setdefault(key, np.full(n, np.nan))[i] = seconds
            if row.get("colocate") is not None:
                colocation[i] = groups.setdefault(row["colocate"], len(groups))
            for device in row.get("forbidden") or ():
                forbidden.setdefault(str(device), np.zeros(n, np.bool_))[i] = True
            if isinstance(row.get("outputs"), Mapping):
                ports[i] = ports_of(op_name, row["outputs"])
            rest = {
                key: value for key, value in row.items() if key not in _COSTS and not (key == "outputs" and i in ports)
            }
            _check_attributes(op_name, rest)
            rest |= _solved_attributes(op_name, rest)
            if rest:
                extras[i] = rest
        index = {op_name: i for i, op_name in enumerate(names)}
        pairs: list[tuple[int, int, Label]] = []
        for u, v, *reads in edges:
            for end in (u, v):
                if end not in index:
                    raise InvalidGraph(f"edge ({u!r}, {v!r}) names the unknown op {end!r}")
            pairs.append((index[u], index[v], _read(u, v, reads)))
        own = any(ports.values()) or any(label is not None for _, _, label in pairs)
        if own:
            joined, tensor, further = collect_tensors(names, ports, pairs, given=columns["out_bytes"])
        else:
            joined = np.array([pair[:2] for pair in pairs], np.int64).reshape(-1, 2)
            tensor, further = np.zeros(0, np.int64), FurtherTensors()
        return cls(
            names=tuple(names),
            kinds=tuple(str(row.get("op") or "") for row in rows),
            edges=joined,
            further=further,
            edge_tensor=tensor,
            shared=collect_shared(zip(names, rows, strict=True)),
            times=times,
            colocation=colocation,
            forbidden=forbidden,
            name=name,
            groups=tuple(groups),
            extras=extras,
            int_names=int_names,
            **columns,
        )

    @classmethod
    def union(
        cls,
        models: Mapping[Graph, float] | Mapping[str, tuple[Graph, float]],
        hardware: Hardware | None = None,
        *,
        name: str | None = None,
    ) -> Graph:
        """Return several models as one graph, for devices that they share.

        In a round the most frequent model runs once, and of each other one the fraction that its rate is of that one's:
        so much of its times, FLOPs and bytes of tensors counts. Ops are called ``model/op``. `pipeline` gives the
        seconds of a round on the busiest device: one over it is how often the most frequent model can run, the others
        in proportion. `memory` counts the weights of all models. Stages keep one order of the devices for all models.
        Weights off the cache, and latencies of links, count whole in every round, which is more than a rarer model
        takes; so do launches and reads of weights of ops without times, where no hardware is given.

        Parameters
        ----------
        models
            Graph -> how often it runs, any number above 0; or name -> (graph, how often), where graphs share a name.
        hardware
            Gives ops without times those of a single run on each device, from which fractions are taken.
        name
            Of the union; by default the models' names joined by "+".

        Raises
        ------
        InvalidGraph
            No models, two of one name, a rate that is not above 0, a menu or backward ops; an op that has neither times
            nor FLOPs for a device of the hardware.
        """
        from rlinit.costs.roofline import with_times

        parts = [(key.name, key, of) if isinstance(key, Graph) else (key, *of) for key, of in models.items()]  # type: ignore[misc]
        titles = [title for title, _, _ in parts]
        if not parts or len(set(titles)) < len(titles):
            raise InvalidGraph(
                f"the models to join are {titles}; expected one or more, with different names (name -> (graph, rate))"
            )
        rates = [check_number(f"the rate of model {title!r}", rate, InvalidGraph) for title, _, rate in parts]
        ops: list[tuple[str, dict[str, Any]]] = []
        edges: list[tuple[Any, ...]] = []
        for (title, graph, _), rate in zip(parts, rates, strict=True):
            if not rate > 0:
                raise InvalidGraph(f"the rate of model {title!r} is {rate}; expected a number above 0")
            whole, runs = (graph if hardware is None else with_times(graph, hardware)).to_dict(), rate / max(rates)
            ops += [(f"{title}/{row['name']}", _repeated(row, title, runs)) for row in whole["ops"]]
            for u, v, *reads in whole["edges"]:
                scaled = (_times(label, runs) for label in reads)
                edges.append((f"{title}/{u}", f"{title}/{v}", *scaled))
        return cls.build(ops, edges, name="+".join(titles) if name is None else name)

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph[Any]) -> Graph:
        """Read a networkx DiGraph: node attributes as in `build`, edges as data flow. `to_networkx` is its inverse.

        An edge's attribute ``port`` names the output of its producer that it reads; ``bytes`` gives it a tensor of its
        own.

        Raises
        ------
        InvalidGraph
            As for `build`; also for an undirected or multi graph, for other edge attributes, and for node names that
            are neither all strings nor all integers.
        """
        if not graph.is_directed() or graph.is_multigraph():
            raise InvalidGraph("expected a networkx.DiGraph; a multigraph's parallel edges are one tensor here")
        ints = all(isinstance(node, int) and not isinstance(node, bool) for node in graph.nodes)
        if not ints and not all(isinstance(node, str) for node in graph.nodes):
            odd = next(node for node in graph.nodes if not isinstance(node, str))
            raise InvalidGraph(
                f"node {odd!r} is a {type(odd).__name__}; expected all names to be strings, or all integers"
            )
        edges = [(str(u), str(v), *_edge_label(u, v, data)) for u, v, data in graph.edges(data=True)]
        ops = [(str(node), data) for node, data in graph.nodes(data=True)]
        return cls.build(ops, edges, name=str(graph.graph.get("name") or "graph"), int_names=ints and len(ops) > 0)

    @classmethod
    def from_torch(
        cls,
        module: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        batch: int | None = None,
        granularity: Literal["op", "layer", "module"] = "op",
        sharing: Literal["hold", "colocate", "copy"] = "hold",
        name: str | None = None,
        method: Literal["trace", "strict"] = "trace",
        dtype: Dtype = None,
        keep: Sequence[str] = (),
    ) -> Graph:
        """Trace a torch module and read it: see `rlinit.importers.torch.export.from_torch`."""
        from rlinit.importers.torch.export import from_torch

        return from_torch(
            module,
            args,
            kwargs,
            batch=batch,
            granularity=granularity,
            sharing=sharing,
            name=name,
            method=method,
            dtype=dtype,
            keep=keep,
        )

    def group(self, granularity: Literal["op", "layer", "module"] = "layer", *, keep: Sequence[str] = ()) -> Graph:
        """Return the graph with layers, modules or what `keep` names kept on one device or stage each, by colocation.

        Parameters
        ----------
        granularity, keep
            See `rlinit.importers.common.blocks.blocks_of`.

        Raises
        ------
        InvalidGraph
            An unknown granularity, or a pattern that fits no module.
        """
        from rlinit.importers.common.blocks import grouped

        return grouped(self, granularity, keep)

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Return the graph as a networkx DiGraph with the attributes `from_networkx` reads."""
        import networkx as nx

        graph: nx.DiGraph[Any] = nx.DiGraph()
        if self.name != "graph":
            graph.graph["name"] = self.name
        keys: Sequence[Hashable] = [int(name) for name in self.names] if self.int_names else self.names
        for i, key in enumerate(keys):
            graph.add_node(key, **self._attributes(i))
        for (u, v), label in zip(self.edges.tolist(), self._labels(), strict=True):
            graph.add_edge(keys[u], keys[v], **({} if label is None else _label_attribute(label)))
        return graph

    def _labels(self) -> list[Label]:
        """Return what each edge says that it reads: a port, bytes of its own, or None for a main output."""
        n = self.num_ops
        labels: list[Label] = []
        for row in self.edge_tensor.tolist():
            port = "" if row < n else self.further.port[row - n]
            labels.append(None if row < n else port or _plain(self.further.size_bytes[row - n]))
        return labels

    def _attributes(self, i: int) -> dict[str, Any]:
        """Return the given attributes of op i in the form `build` reads."""
        row: dict[str, Any] = {"op": self.kinds[i]} if self.kinds[i] else {}
        for what, column in (
            ("param_bytes", self.param_bytes),
            ("out_bytes", self.out_bytes),
            ("flops", self.flops),
        ):
            if not math.isnan(column[i]):
                row[what] = _plain(column[i])
        by_device: dict[str, dict[int, float]] = {}
        for (device, batch), column in sorted(self.times.items()):
            if not math.isnan(column[i]):
                by_device.setdefault(device, {})[batch] = _plain(column[i])
        if by_device:
            folded = {device: seconds[1] if list(seconds) == [1] else seconds for device, seconds in by_device.items()}
            alone = list(by_device.items()) == [(ANY_DEVICE, {1: by_device.get(ANY_DEVICE, {}).get(1)})]
            row["time_s"] = folded[ANY_DEVICE] if alone else folded
        shared = {one.name: _plain(one.size_bytes) for one in self.shared if i in one.readers}
        if shared:
            row["shared"] = shared
        if self.colocation[i] >= 0:
            row["colocate"] = self.groups[self.colocation[i]]
        banned = [device for device, mask in sorted(self.forbidden.items()) if mask[i]]
        if banned:
            row["forbidden"] = banned
        rows = np.flatnonzero(self.further.op == i).tolist() if len(self.further) else []
        outputs = {self.further.port[at]: _plain(self.further.size_bytes[at]) for at in rows if self.further.port[at]}
        return row | dict(self.extras.get(i, {})) | ({"outputs": outputs} if outputs else {})

    # -- JSON --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form (schema `rlinit/schemas/graph.schema.json`)."""
        return {
            "format": "rlinit-graph",
            "version": 1,
            "name": self.name,
            **({"int_names": True} if self.int_names else {}),
            "ops": [{"name": name, **self._attributes(i)} for i, name in enumerate(self.names)],
            "edges": [
                [self.names[u], self.names[v], *([] if label is None else [label])]
                for (u, v), label in zip(self.edges.tolist(), self._labels(), strict=True)
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Graph:
        """Read the JSON form; the caller has checked it against the schema."""
        ops = ((row["name"], {key: value for key, value in row.items() if key != "name"}) for row in data["ops"])
        return cls.build(ops, map(tuple, data["edges"]), name=data["name"], int_names=data.get("int_names", False))

    def save(self, path: str | Path) -> None:
        """Write the graph as JSON, atomically."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read a graph written by `save`.

        Raises
        ------
        InvalidGraph
            Unreadable file, truncated JSON, or JSON that breaks the schema (the message gives the schema path).
        """
        return cls.from_dict(read_json(path, "graph", InvalidGraph))


def _times(value: Any, runs: float) -> Any:
    """Return a number, or the numbers of a mapping, so many times; text as it is."""
    if isinstance(value, Mapping):
        return {key: _times(each, runs) for key, each in value.items()}
    return value if isinstance(value, str) else value * runs


def _repeated(row: Mapping[str, Any], model: str, runs: float) -> dict[str, Any]:
    """Return the attributes of an op of a model that a round runs so many times."""
    for what in (*_TRAINING, _MENU):
        if what in row:
            raise InvalidGraph(f"op {row['name']!r} of model {model!r} has {what}, which no union of models takes")
    found = {key: value for key, value in row.items() if key != "name"}
    for what in ("time_s", "flops", "out_bytes"):
        if what in row:
            found[what] = _times(row[what], runs)
    if isinstance(row.get("outputs"), Mapping):
        found["outputs"] = _times(row["outputs"], runs)
    if "shared" in row:
        found["shared"] = {f"{model}/{key}": size for key, size in row["shared"].items()}
    if "colocate" in row:
        found["colocate"] = f"{model}/{row['colocate']}"
    if "operands" in row:
        found["operands"] = [[op and f"{model}/{op}", *shape] for op, *shape in row["operands"]]
    return found


def _read(u: str, v: str, reads: Sequence[Any]) -> Label:
    """Return what an edge reads, from what follows its ends."""
    if not reads:
        return None
    if len(reads) > 1:
        raise InvalidGraph(f"edge ({u!r}, {v!r}) has {len(reads)} entries after its ends; expected a port or bytes")
    if isinstance(reads[0], str):
        return reads[0]
    return check_number(f"edge ({u!r}, {v!r}): bytes", reads[0], InvalidGraph)


def _edge_label(u: Hashable, v: Hashable, data: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what an edge of a networkx graph says that it reads, as `Graph.build` takes it."""
    for key in data:
        if key not in ("bytes", "port"):
            raise InvalidGraph(
                f"edge ({u!r}, {v!r}) has the unknown attribute {key!r}{closest(str(key), ('bytes', 'port'))} "
                "(expected bytes or port; the size of a main output belongs to its producer's out_bytes)"
            )
    if len(data) > 1:
        raise InvalidGraph(f"edge ({u!r}, {v!r}) has bytes and a port; a port's bytes belong to its op's outputs")
    if "port" in data and not isinstance(data["port"], str):
        raise InvalidGraph(f"edge ({u!r}, {v!r}): port is {data['port']!r}; expected the name of an output of {u!r}")
    if "bytes" in data:
        return (check_number(f"edge ({u!r}, {v!r}): bytes", data["bytes"], InvalidGraph),)
    return tuple(data.values())


def _label_attribute(label: str | float) -> dict[str, str | float]:
    return {"port" if isinstance(label, str) else "bytes": label}


def _plain(value: float) -> float | int:
    """Return an integer where the number is one, so that files and networkx graphs show 512 and not 512.0."""
    return int(value) if value.is_integer() and abs(value) < LARGEST_EXACT else float(value)
