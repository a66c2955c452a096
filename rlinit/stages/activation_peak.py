"""Working memory of a set of ops that run one after the other: the peak of an order, and the least of all orders.

Before the first op, the set holds every tensor it reads from outside. An op's output is there from its start. A tensor
is given back after its last reader in the set, unless it is made here and read outside, or read by nobody: then it
stays until the end, when it is sent on. Tensors that pass a stage by are not counted, as they are not in its transfers.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from rlinit.arrays import ROUNDING
from rlinit.costs.roofline import known_bytes
from rlinit.errors import InvalidGraph
from rlinit.graph import Graph

_READY = 50
"""Ops ready in a state up to which a state counts as one; where more are, fewer states are expanded."""

MOST_STATES = 2_000
"""States that the search for the least peak of a stage expands at most; a set of more ops keeps the natural order."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """Who makes and reads which tensor.

    Parameters
    ----------
    size_bytes
        Output bytes of each op.
    reads, readers
        Ops whose outputs an op reads, and ops that read its output; distinct.
    place
        Place of each op in a topological order.
    """

    size_bytes: tuple[float, ...]
    reads: tuple[tuple[int, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    place: tuple[int, ...]

    def alone_bytes(self, op: int) -> float:
        """Return what an op needs by itself: its output, and all that it reads."""
        return self.size_bytes[op] + sum(self.size_bytes[u] for u in self.reads[op])


@dataclass(frozen=True, slots=True)
class LeastPeak:
    """A good order of some ops.

    Parameters
    ----------
    order
        The ops in the order.
    peak_bytes
        Its peak.
    bound_bytes
        No order has a lower peak; equal to `peak_bytes` where the search was complete.
    """

    order: tuple[int, ...]
    peak_bytes: float
    bound_bytes: float


def tensors_of(graph: Graph) -> Tensors:
    """Return the tensors of a graph; unknown sizes count as 0 bytes.

    Raises
    ------
    InvalidGraph
        An op has several output tensors.
    """
    graph.require_main_outputs("the peak of activation memory")
    place = [0] * graph.num_ops
    for at, v in enumerate(graph.order.tolist()):
        place[v] = at
    reads: list[tuple[int, ...]] = []
    readers: list[tuple[int, ...]] = []
    for v in range(graph.num_ops):
        reads.append(tuple(graph.pred[graph.pred_indptr[v] : graph.pred_indptr[v + 1]].tolist()))
        readers.append(tuple(graph.succ[graph.succ_indptr[v] : graph.succ_indptr[v + 1]].tolist()))
    sizes = tuple(float(size) for size in known_bytes(graph.out_bytes).tolist())
    return Tensors(sizes, tuple(reads), tuple(readers), tuple(place))


def order_peak(tensors: Tensors, order: Sequence[int]) -> float:
    """Return the peak in bytes of ops that run in a topological order of theirs.

    Parameters
    ----------
    tensors
        Bytes of each tensor, and what each op reads.
    order
        Ops in a topological order of theirs.
    """
    last = {u: v for v in order for u in tensors.reads[v]}
    inside = set(order)
    held = sum(tensors.size_bytes[u] for u in last if u not in inside)
    peak = held
    for v in order:
        held += tensors.size_bytes[v]
        peak = max(peak, held)
        for u in tensors.reads[v]:
            if last[u] == v and (u not in inside or inside.issuperset(tensors.readers[u])):
                held -= tensors.size_bytes[u]
    return peak


def least_peak(tensors: Tensors, ops: Sequence[int], *, cap: int = 20_000) -> LeastPeak:
    """Return an order of some ops with the least peak: exact where few of their ideals matter, else with a bound.

    Parameters
    ----------
    tensors
        The graph's tensors.
    ops
        The set, not empty.
    cap
        States to expand at most.

    Notes
    -----
    A shortest path over the ideals of the set, where the length of a path is its peak, never below what one op alone
    or the two ends need. An op that fits under the peak so far and leaves no more than there was is taken at once: to
    run it first spoils nothing later, since it can only move the release of tensors forward. Where `cap` is reached,
    the shortest open path bounds every order from below, and the longest one is finished greedily. Sets of more than
    `MOST_STATES` ops are not searched.
    """
    if len(ops) > MOST_STATES:
        order = tuple(sorted(ops, key=lambda v: tensors.place[v]))
        peak = order_peak(tensors, order)
        return LeastPeak(order, peak, min(peak, max(map(tensors.alone_bytes, order)) / (1.0 + ROUNDING)))
    return _Search(tensors, ops).run(cap)


_State = tuple[float, int, int, float, tuple[int, ...]]
"""(peak, -ops done, bits of ops done, bytes held, ops that may run next)"""


class _Search:
    """Ops by their place in `ops`, sets of them as bits of an integer."""

    def __init__(self, tensors: Tensors, ops: Sequence[int]) -> None:
        self.tensors = tensors
        self.ops = sorted(ops, key=lambda v: tensors.place[v])
        self.index = {v: at for at, v in enumerate(self.ops)}
        self.size = [tensors.size_bytes[v] for v in self.ops]
        self.waits = [sum(1 << self.index[u] for u in tensors.reads[v] if u in self.index) for v in self.ops]
        self.next = [[self.index[w] for w in tensors.readers[v] if w in self.index] for v in self.ops]
        readers: dict[int, int] = {}
        for at, v in enumerate(self.ops):
            for u in tensors.reads[v]:
                readers[u] = readers.get(u, 0) | 1 << at
        # For each op, what it may release: (readers that must be done, bytes).
        self.release = [
            [(readers[u], tensors.size_bytes[u]) for u in tensors.reads[v] if self._is_released(u)] for v in self.ops
        ]
        self.arriving = sum(tensors.size_bytes[u] for u in readers if u not in self.index)
        self.parent: dict[int, tuple[int, int]] = {}
        self.looked = 0

    def _is_released(self, u: int) -> bool:
        return u not in self.index or all(w in self.index for w in self.tensors.readers[u])

    def floor(self) -> float:
        """Return what every order needs: the two ends, and each op with what it reads and makes."""
        kept = sum(self.size[at] for at, v in enumerate(self.ops) if not self._is_read_up(v))
        return max(self.arriving, kept, *map(self.tensors.alone_bytes, self.ops))

    def _is_read_up(self, v: int) -> bool:
        readers = self.tensors.readers[v]
        return bool(readers) and all(w in self.index for w in readers)

    def run(self, cap: int) -> LeastPeak:
        """Search; see `least_peak`."""
        full = (1 << len(self.ops)) - 1
        ready = tuple(at for at, mask in enumerate(self.waits) if not mask)
        best = {0: self.floor()}
        heap: list[_State] = [(best[0], 0, 0, self.arriving, ready)]
        expanded = 0
        while heap:
            state = heapq.heappop(heap)
            if state[0] > best[state[2]]:
                continue
            descended = self._descend(state, best)
            if descended is None:
                continue
            if descended[2] == full:
                return self._result(full, None)
            expanded += 1
            if expanded > cap or self.looked > _READY * cap:
                return self._result(self._finish(descended), descended[0])
            for at in descended[4]:
                step = self._step(descended, at)
                if step[0] < best.get(step[2], float("inf")):
                    best[step[2]] = step[0]
                    self.parent[step[2]] = (descended[2], at)
                    heapq.heappush(heap, step)
        raise InvalidGraph("the ops have no order; their graph has a cycle")

    def _outcome(self, state: _State, at: int) -> tuple[float, int, float]:
        """Return peak, bits of ops done and bytes held after an op more."""
        peak, _, done, held, _ = state
        done |= 1 << at
        held += self.size[at]
        peak = max(peak, held)
        for mask, size in self.release[at]:
            if not mask & ~done:
                held -= size
        return peak, done, held

    def _step(self, state: _State, at: int) -> _State:
        """Run an op."""
        self.looked += len(state[4])
        peak, done, held = self._outcome(state, at)
        freed = tuple(w for w in self.next[at] if not self.waits[w] & ~done)
        return peak, state[1] - 1, done, held, (*(other for other in state[4] if other != at), *freed)

    def _descend(self, state: _State, best: dict[int, float]) -> _State | None:
        """Run ops that cost nothing while there are any; None where that leads to a state that is known already."""
        while True:
            for at in state[4]:
                peak, done, held = self._outcome(state, at)
                if peak <= state[0] and held <= state[3]:
                    break
            else:
                return state
            if best.get(done, float("inf")) <= peak:
                return None
            best[done] = peak
            self.parent[done] = (state[2], at)
            state = self._step(state, at)

    def _finish(self, state: _State) -> int:
        """Run what is left, each time the op that raises the peak least, then the one that leaves least; return all."""
        while state[4]:
            ends = ((self._outcome(state, at), at) for at in state[4])
            (_, done, _), at = min(ends, key=lambda one: (one[0][0], one[0][2], one[1]))
            self.parent[done] = (state[2], at)
            state = self._step(state, at)
        return state[2]

    def _result(self, done: int, bound: float | None) -> LeastPeak:
        backwards = []
        while done:
            done, at = self.parent[done]
            backwards.append(self.ops[at])
        order = tuple(reversed(backwards))
        peak = order_peak(self.tensors, order)
        return LeastPeak(order, peak, peak if bound is None else min(peak, bound / (1.0 + ROUNDING)))
