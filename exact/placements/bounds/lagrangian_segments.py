"""The segments of a chain with multipliers on memory: the cheapest devices of what lies between two end devices.

A *segment* is what :func:`~rlinit.exact.placements.analysis.chains.segment_problem` cuts out. An *arc* of it fixes the
devices of both ends, and may forbid more. For multipliers mu of the devices' memory, the *cost* of an arc is the least
length of its ops, plus mu times what they hold, over all choices of devices. A choice that was cheapest once is kept as
a *column*: its cost under other multipliers takes one product.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.exact.placements.analysis.chains import segment_problem
from rlinit.exact.placements.analysis.time_windows import ShardWindows
from rlinit.exact.placements.bounds.segment_kernel import cheapest_devices
from rlinit.placements.problem import PlacementProblem


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A choice of devices: its length in seconds, (d,) what each device holds, and (n,) the device of each op."""

    length_s: float
    held: FloatArray
    device: IntArray


@dataclass(slots=True, eq=False)
class Arc:
    """A segment with devices of its ends.

    Parameters
    ----------
    source, target
        Devices of the first and the last op.
    time_s
        (n, d) seconds, ``inf`` where forbidden.
    columns
        Choices of devices known to be allowed.
    """

    source: int
    target: int
    time_s: FloatArray
    columns: list[Column] = field(default_factory=list)

    def least(self, multiplier: FloatArray) -> float:
        """Return the least cost of a column, ``inf`` without one."""
        return min((column.length_s + float(multiplier @ column.held) for column in self.columns), default=np.inf)

    def halves(self, op: int, device: int) -> list[Arc]:
        """Return the arcs with an op on a device, and with it elsewhere; none that leaves it nowhere.

        Parameters
        ----------
        op
            From 0 to n - 1, in the segment.
        device
            One that the op may have.
        """
        here = np.full(self.time_s.shape[1], np.inf)
        here[device] = self.time_s[op, device]
        away = self.time_s[op].copy()
        away[device] = np.inf
        arcs = []
        for row in (here, away):
            if np.isfinite(row).any():
                time_s = self.time_s.copy()
                time_s[op] = row
                known = [column for column in self.columns if np.isfinite(row[column.device[op]])]
                arcs.append(dataclasses.replace(self, time_s=time_s, columns=known))
        return arcs


class LagrangianSegment:
    """The ops from one op of a chain to the next, in topological order; -1 stands for the start and for the end.

    Parameters
    ----------
    problem, window
        The whole problem of one shard, and what is left of its batches.
    reach
        (n, n) whether a path leads from row to column.
    before, after
        Ops, or -1. The last op takes no time and holds nothing: it is the first of the next segment.
    held
        (n,) what each op of the whole problem holds.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        window: ShardWindows,
        reach: NDArray[np.bool_],
        before: int,
        after: int,
        held: FloatArray,
    ) -> None:
        segment, ops = segment_problem(problem, window, reach, before, after)
        order, d = segment.order, problem.num_devices
        first, last = int(before < 0), int(after < 0)
        n = len(order) + first + last
        self.ops = np.concatenate([np.full(first, -1), ops[order], np.full(last, -1)])
        edges = (inverse_of(order) + first)[segment.edges].reshape(-1, 2)
        inner = np.arange(first, n - last)
        if before < 0:
            sources = np.setdiff1d(inner, edges[:, 1])
            edges = np.concatenate([edges, np.column_stack([np.zeros_like(sources), sources])])
        sinks = np.setdiff1d(inner, edges[:, 0]) if after < 0 else inner[:0]
        edges = np.concatenate([edges, np.column_stack([sinks, np.full(len(sinks), n - 1)])])
        self.time_s = np.zeros((n, d))
        self.time_s[inner] = segment.time_s[order, :, 1]
        for end in [0] * first + [n - 1] * last:
            self.time_s[end, 1:] = np.inf
        self.comm_s = np.zeros((n, d, d))
        self.comm_s[inner] = segment.delay_s + segment.tensor_bytes[order, None, None] * segment.s_per_byte
        self.comm_s[sinks] = 0.0
        self.held = np.zeros(n)
        self.held[inner] = held[self.ops[inner]]
        self.held[n - 1] = 0.0
        by_source = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
        by_target = edges[np.lexsort((edges[:, 0], edges[:, 1]))]
        self.succ_indptr = np.searchsorted(by_source[:, 0], np.arange(n + 1)).astype(np.int64)
        self.succ = np.ascontiguousarray(by_source[:, 1], np.int64)
        self.pred_indptr = np.searchsorted(by_target[:, 1], np.arange(n + 1)).astype(np.int64)
        self.pred = np.ascontiguousarray(by_target[:, 0], np.int64)
        self.leader = np.arange(n)
        seen: dict[int, int] = {}
        for v in inner.tolist():
            self.leader[v] = seen.setdefault(int(problem.group[self.ops[v]]), v)

    def arcs(self) -> list[Arc]:
        """Return an arc for each pair of devices that both ends may have."""
        result = []
        for i in np.flatnonzero(np.isfinite(self.time_s[0])).tolist():
            for j in np.flatnonzero(np.isfinite(self.time_s[-1])).tolist():
                time_s = self.time_s.copy()
                time_s[0], time_s[-1] = np.inf, np.inf
                time_s[0, i], time_s[-1, j] = self.time_s[0, i], self.time_s[-1, j]
                result.append(Arc(i, j, time_s))
        return result

    def cost(self, arc: Arc, multiplier: FloatArray, node_limit: int) -> tuple[float, int]:
        """Return a lower bound on the cost of an arc, its cost if the limit allows, and the ops placed for it.

        The cheapest choice joins the columns of the arc.

        Parameters
        ----------
        arc
            Devices that ops of the segment may have.
        multiplier
            (d,) seconds a byte of each device.
        node_limit
            Ops placed at most.
        """
        device = np.empty(len(self.ops), np.int64)
        cutoff = arc.least(multiplier)
        bound, value, length, nodes = cheapest_devices(
            arc.time_s,
            self.comm_s,
            self.held[:, None] * multiplier,
            self.pred_indptr,
            self.pred,
            self.succ_indptr,
            self.succ,
            self.leader,
            cutoff,
            node_limit,
            device,
        )
        if value < cutoff:
            held = np.bincount(device, weights=self.held, minlength=len(multiplier)).astype(np.float64)
            arc.columns.append(Column(length, held, device))
        return bound, nodes
