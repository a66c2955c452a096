"""Dual ascent on the placement relaxation: multipliers as a flow of one unit from the start to the end.

Take a flow f of one unit from the start to the end over these arcs, each of which no placement of makespan C shortens:

==========  ====================================================  ===============================================
arc         says                                                  pays for each unit of flow
==========  ====================================================  ===============================================
head        ``start[v] >= head[v, x_v]``                          ``head[v, x_v]``
edge        ``start[w] >= end[u] + transfer(u; x_u, x_w)``         ``z[x_u] - z[x_w]``, z with z[i] - z[j] <= transfer
load        ``start[b] >= end[a] + what device i runs between``    time of the ops between a and b that are on i
tail        ``C >= end[v] + tail[v, x_v]``                         ``tail[v, x_v]``
==========  ====================================================  ===============================================

Adding the rows up with the flow on each, starts and ends cancel but for the time of each op passed. So for every
placement within the capacities, with mu >= 0::

    C >= sum_v cost(v, x_v) - mu . capacity >= sum_v min_i cost(v, i) - mu . capacity,
    cost(v, i) = time[v, i] (flow through v + flow on loads of device i around v) + heads, tails, potentials, mu_i held

whatever the flow, the potentials z and mu: a bad proposal gives a weak bound, never a false one. The flow is kept as
shares of each op's arcs, so that it is one by construction; what rounding adds to its balance and to the sums is
counted and taken off. The ascent is a game: devices answer the flow with what is cheapest (their mean over rounds is
remembered), and the flow moves to arcs that are long in that mean. Load arcs run between the ops of one chain, over
intervals of 1, 2, 4, ... neighbours, half overlapping, and over everything.

References
----------
Held, Karp: The traveling-salesman problem and minimum spanning trees II, 1971, for ascent in place of the linear
program. Demelas et al.: Predicting Lagrangian multipliers for mixed integer linear programs, ICML 2024, for learning
where to begin, without labels, by the bound itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import SAFETY, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.effort import QUOTA
from rlinit.exact.placements.analysis.reachability import reachable_sums
from rlinit.exact.placements.analysis.time_windows import ShardWindows, latest_end
from rlinit.exact.placements.bounds.flow_kernel import EDGE, HEAD, LOAD, TAIL, FlowArrays, FlowState, ascend
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit
from rlinit.placements.problem import PlacementProblem

_POINTS = 512
"""Ops of the chain at most."""


@dataclass(frozen=True, slots=True)
class FlowStart:
    """Where the ascent begins and how large its steps are: fitted by ``python -m rlinit.train.multipliers``.

    Parameters
    ----------
    critical
        How much the logarithm of an arc's share falls for each makespan by which the longest way over it is shorter.
    head, tail, load, level
        Logarithms of the shares of such arcs beside those of edges; `level` is added to `load` for each doubling.
    whole
        Of the load arcs over everything; beside them, each device's weight in the bound by loads counts.
    share_step, place_step, price_step
        Steps at first, see `flow_kernel.ascend`.
    share_rounds, place_rounds, price_rounds
        After so many rounds each is half as large.
    """

    critical: float = 38.707
    head: float = -3.484
    tail: float = -2.152
    load: float = -1.829
    level: float = -0.677
    whole: float = 3.740
    share_step: float = 6.217
    place_step: float = 0.1889
    price_step: float = 0.2695
    share_rounds: float = 58.94
    place_rounds: float = 45.43
    price_rounds: float = 116.2


class FlowBound:
    """The bound of a problem of one shard, improved by `run`.

    Parameters
    ----------
    problem
        What to bound; one shard.
    window
        Batches, heads and tails for makespans below some value.
    weight
        (d,) of the devices in the bound by loads.
    start
        Where to begin.
    """

    def __init__(
        self, problem: PlacementProblem, window: ShardWindows, weight: FloatArray, start: FlowStart = FlowStart()
    ) -> None:
        self.arrays, interval_size = flow_arrays(problem, window)
        self.bound_s = window.floor_s
        self.rounds = 0
        a, d = self.arrays, problem.num_devices
        mean = a.cost.sum(axis=(1, 2)) / max(1, d * (d - 1))
        self._mean_cost = np.minimum(mean, 10.0 * max(window.floor_s, 1e-300))
        self._steps = np.array(
            [
                *(start.share_step, start.place_step, start.price_step),
                *(start.share_rounds, start.place_rounds, start.price_rounds),
            ]
        )
        potential = np.zeros((len(a.edges), d))
        place = np.where(a.allowed, 1.0, 0.0)
        self.state = FlowState(
            _first_logits(a, weight, interval_size, start), potential, np.zeros(d), place / place.sum(axis=1)[:, None]
        )
        self.best = FlowState(*(part.copy() for part in self.state))

    def run(self, rounds: int, budget: Budget) -> float:
        """Go on for so many rounds or until the budget ends; return the best bound so far in seconds.

        Parameters
        ----------
        rounds
            At most.
        budget
            When to stop.
        """
        a = self.arrays
        work = len(a.target) * 3 + len(a.inside) * 2 * len(a.capacity) + a.time.size * 4 + a.cost.size
        chunk = max(1, QUOTA // work)
        left = rounds
        while left > 0 and not budget.expired:
            now = min(chunk, left)
            found = ascend(a, self.state, self.best, self.rounds, now, self._steps, self._mean_cost)
            self.bound_s = max(self.bound_s, float(found))
            self.rounds += now
            left -= now
        return self.bound_s


def flow_arrays(problem: PlacementProblem, window: ShardWindows) -> tuple[FlowArrays, FloatArray]:
    """Return the arrays of the ascent, and (intervals,) how many points of the chain each interval spans.

    Parameters
    ----------
    problem
        What to bound; one shard.
    window
        Batches, heads and tails.
    """
    n = problem.num_ops
    allowed = np.ascontiguousarray(window.allowed[:, :, 1])
    chain = _widest_chain(problem)
    ends, inside_ptr, inside = _intervals(problem, chain)
    arcs = _arcs(problem, chain, ends)
    by_node = np.argsort(arcs[:, 0], kind="stable")
    arcs = arcs[by_node]
    horizon = latest_end(problem, window.allowed)
    cost = problem.delay_s[None] + problem.tensor_bytes[problem.edges[:, 0], None, None] * problem.s_per_byte[None]
    arrays = FlowArrays(
        visit=problem.order,
        arc_ptr=np.searchsorted(arcs[:, 0], np.arange(n + 2)),
        target=np.ascontiguousarray(arcs[:, 1]),
        kind=arcs[:, 2].astype(np.int8),
        item=np.ascontiguousarray(arcs[:, 3]),
        time=np.where(allowed, problem.op_time_s, 0.0),
        head=np.where(allowed, window.head_s, 0.0),
        tail=np.where(allowed, window.tail_s, 0.0),
        allowed=allowed,
        group=problem.group,
        edges=problem.edges.copy(),  # some may be written to and some not, for which kernels would be compiled twice
        cost=np.minimum(cost, horizon),
        inside_ptr=inside_ptr,
        inside=inside,
        held=problem.weight_bytes + problem.shard_bytes,
        capacity=problem.capacity_bytes * CAPACITY_SLACK,
    )
    return arrays, np.array([b - a for a, b in ends], np.float64)


def _widest_chain(problem: PlacementProblem) -> IntArray:
    """Return ops of a path, most of them before or after almost all other ops.

    Of the path only those are kept that have no more ops beside them than their neighbours on it: where branches join.
    """
    ones = np.ones(problem.num_ops)
    order = problem.order
    comparable = reachable_sums(order, problem.pred_indptr, problem.pred, ones)
    comparable += reachable_sums(order[::-1].copy(), problem.succ_indptr, problem.succ, ones)
    weight = ((comparable + 1.0) / max(1, problem.num_ops)) ** 8
    path = _heaviest_path(order, problem.succ_indptr, problem.succ, weight)
    runs = np.cumsum(np.diff(comparable[path], prepend=-1.0) != 0) - 1  # of neighbours with as many ops beside them
    known = np.concatenate([[0.0], comparable[path][np.unique(runs, return_index=True)[1]], [0.0]])
    chain: IntArray = path[((known[1:-1] > known[:-2]) & (known[1:-1] > known[2:]))[runs]]
    return chain[:: -(-len(chain) // _POINTS) or 1]


@njit(cache=True, nogil=True)
def _heaviest_path(order: IntArray, succ_indptr: IntArray, succ: IntArray, weight: FloatArray) -> IntArray:
    """Return the ops of the path of the largest sum of weights, in order."""
    n = len(order)
    total = weight.copy()
    after = np.full(n, -1, np.int64)
    best = -1
    for at in range(n - 1, -1, -1):
        v = order[at]
        for e in range(succ_indptr[v], succ_indptr[v + 1]):
            if after[v] < 0 or total[succ[e]] > total[after[v]]:
                after[v] = succ[e]
        if after[v] >= 0:
            total[v] += total[after[v]]
        if best < 0 or total[v] > total[best]:
            best = v
    path = np.empty(n, np.int64)
    count = 0
    while best >= 0:
        path[count] = best
        count += 1
        best = after[best]
    return path[:count].copy()


def _intervals(problem: PlacementProblem, chain: IntArray) -> tuple[list[tuple[int, int]], IntArray, IntArray]:
    """Return the intervals of the chain that hold ops beside it, as pairs of points, and in CSR form those of each op.

    Points are 0, the start, then the ops of the chain from 1, and the end.
    """
    n, m = problem.num_ops, len(chain)
    point = np.zeros(n, np.int64)
    point[chain] = np.arange(1, m + 1)
    first, last = _points(problem.order, problem.pred_indptr, problem.pred, point, m)
    beside = np.zeros(m + 2, np.int64)
    np.add.at(beside, first[point == 0] + 1, 1)
    before = np.cumsum(beside)  # before[p]: ops beside the chain that begin before point p
    ends = [(0, m + 1)]
    length = 1
    while length < m + 1:
        ends += [(a, a + length) for a in range(0, m + 2 - length, max(1, length // 2))]
        length *= 2
    ends = [(0, m + 1), *sorted({(a, b) for a, b in ends[1:] if before[b] > before[a] and (a, b) != (0, m + 1)})]
    pairs = np.array(ends, np.int64)
    op, interval = np.nonzero((first[:, None] >= pairs[:, 0]) & (last[:, None] <= pairs[:, 1]))
    return ends, np.searchsorted(op, np.arange(n + 1)), interval


@njit(cache=True, nogil=True)
def _points(
    order: IntArray, pred_indptr: IntArray, pred: IntArray, point: IntArray, m: int
) -> tuple[IntArray, IntArray]:
    """Return (n,) the last point before each op and the first one after it, an op of the chain not being its own."""
    n = len(order)
    first, last = np.zeros(n, np.int64), np.full(n, m + 1, np.int64)
    for v in order:
        for e in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[e]
            first[v] = max(first[v], first[u], point[u])
    for at in range(n - 1, -1, -1):
        v = order[at]
        for e in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[e]
            last[u] = min(last[u], last[v], point[v] if point[v] > 0 else m + 1)
    return first, last


def _arcs(problem: PlacementProblem, chain: IntArray, ends: list[tuple[int, int]]) -> IntArray:
    """Return (arcs, 4) node, target, kind and item of each arc."""
    n, d = problem.num_ops, problem.num_devices
    ops = np.arange(n)
    node = np.concatenate([[n], chain, [n + 1]])
    pairs = np.array(ends, np.int64).reshape(-1, 2)
    load = np.column_stack([node[pairs[:, 0]], node[pairs[:, 1]], np.full(len(pairs), LOAD), np.arange(len(pairs)) * d])
    loads = np.repeat(load, d, axis=0)
    loads[:, 3] += np.tile(np.arange(d), len(pairs))
    zero = np.zeros(n, np.int64)
    edges = np.column_stack(
        [problem.edges, np.full(len(problem.edges), EDGE), np.arange(len(problem.edges), dtype=np.int64)]
    )
    heads = np.column_stack([zero + n, ops, zero + HEAD, zero])
    tails = np.column_stack([ops, zero + n + 1, zero + TAIL, zero])
    return np.concatenate([heads, edges, loads, tails])


def _first_logits(a: FlowArrays, weight: FloatArray, interval_size: FloatArray, start: FlowStart) -> FloatArray:
    """Return (arcs,) logarithms of shares: falling with the slack of the longest way over an arc, by kind of arc."""
    n, d = a.time.shape
    kind, item = a.kind, a.item
    node = np.repeat(np.arange(n + 1), np.diff(a.arc_ptr))
    count = a.allowed.sum(axis=1)
    own = a.time.sum(axis=1) / count
    logit = np.zeros(len(kind))
    load = kind == LOAD
    spans = interval_size[item[load] // d]
    whole = (node[load] == n) & (a.target[load] == n + 1)
    device = np.log(np.maximum(weight[item[load] % d] * d, 1e-3))
    logit[load] = device + np.where(whole, start.whole, start.load + start.level * np.log2(spans))
    way, longest = _ways(a, own)
    # Ops may take no time at all.
    slack = (longest - way) / max(longest, SAFETY * float(way.max(initial=0.0)), 1e-300)
    path = ~load
    logit[path] -= start.critical * slack[path]
    logit[kind == HEAD] += start.head
    logit[kind == TAIL] += start.tail
    return logit


@njit(cache=True, nogil=True)
def _ways(a: FlowArrays, own: FloatArray) -> tuple[FloatArray, float]:
    """Return (arcs,) seconds of the longest path over each arc with mean times, loads left out, and the longest."""
    n, d = a.time.shape
    before, after = np.zeros(n + 2), np.zeros(n + 2)
    for v in a.visit:
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            if a.kind[k] == EDGE:
                before[a.target[k]] = max(before[a.target[k]], before[v] + own[v])
    longest = 0.0
    for at in range(n - 1, -1, -1):
        v = a.visit[at]
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            if a.kind[k] == EDGE:
                after[v] = max(after[v], own[a.target[k]] + after[a.target[k]])
        longest = max(longest, before[v] + own[v] + after[v])
    way = np.zeros(len(a.target))
    for v in range(n + 1):
        for k in range(a.arc_ptr[v], a.arc_ptr[v + 1]):
            w = a.target[k]
            if a.kind[k] == EDGE:
                way[k] = before[v] + own[v] + own[w] + after[w]
            elif a.kind[k] == HEAD:
                way[k] = own[w] + after[w] + a.head[w].sum() / d
            elif a.kind[k] == TAIL:
                way[k] = before[v] + own[v] + a.tail[v].sum() / d
    return way, longest
