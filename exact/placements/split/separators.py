"""Where a graph falls into blocks that talk through few ops, and the sub-problem on some of the ops.

A *separator* is an op through which every path from a source to a sink passes: in any topological order no edge jumps
over it (a graph with several sources or sinks has a virtual one before or after them). It is the articulation point,
or the end of a bridge, of DIVIML that also cuts the directed graph; an undirected articulation point where a side
branch hangs on does not order what lies on its two sides, and no chain of blocks follows from it. The dummy node with
a zero-cost edge is implicit: a separator ends one block and is, at no cost and on the same device, what the next one
starts from.

With more channels a cut is a place in a topological order over which few tensors pass.

References
----------
DIVIML section IV-B; Tarjan, "A note on finding the bridges of a graph" (1974), for the undirected notion.
"""

from __future__ import annotations

import itertools

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_from_priority

_SIDE_OPS = 0.05
"""Part of all ops that may lead to other outputs alone and be put aside; each of them is tried on every device."""


def separators(problem: PlacementProblem) -> IntArray:
    """Return the ops through which every path passes and which no group reaches across, in topological order.

    Every other op is an ancestor of such an op v and ends before v starts, or a descendant and starts after v ended. No
    edge and no group joins an op before v to one after it, so that the two sides share v's device alone.

    Parameters
    ----------
    problem
        n ops and m edges.

    Returns
    -------
    (k,) ops.

    Notes
    -----
    O(n + m). A virtual source before all sources and a virtual sink after all sinks leave only separators of all ops.
    """
    n = problem.num_ops
    position = inverse_of(problem.order)
    first, last = np.full(n, -1, np.int64), np.full(n, n, np.int64)
    sources, sinks = np.diff(problem.pred_indptr) == 0, np.diff(problem.succ_indptr) == 0
    spans = [
        position[problem.edges],
        np.column_stack([first[sources], position[sources]]),
        np.column_stack([position[sinks], last[sinks]]),
        _group_spans(problem.group, position),
    ]
    found: IntArray = problem.order[_open_spans(np.concatenate(spans), n) == 0]
    return found


def without_side_outputs(problem: PlacementProblem) -> IntArray:
    """Return the ops that lead to the output at the end of the longest path; all ops where too many others are left.

    Outputs beside the main one keep ops before them from being separators. The problem without what leads to them alone
    is a relaxation (`induced`), close where that is little.

    Parameters
    ----------
    problem
        n ops.

    Returns
    -------
    (k,) ops, ascending.
    """
    outputs = np.flatnonzero(np.diff(problem.succ_indptr) == 0)
    if len(outputs) < 2:
        return np.arange(problem.num_ops)
    depth, leads = np.zeros(problem.num_ops, np.int64), np.zeros(problem.num_ops, np.bool_)
    producers = [problem.pred[a:b] for a, b in itertools.pairwise(problem.pred_indptr.tolist())]
    for v in problem.order.tolist():
        depth[v] = 1 + depth[producers[v]].max(initial=0)
    leads[outputs[depth[outputs].argmax()]] = True
    for v in problem.order[::-1].tolist():
        leads[producers[v]] |= leads[v]
    return np.flatnonzero(leads) if leads.sum() >= (1.0 - _SIDE_OPS) * problem.num_ops else np.arange(problem.num_ops)


def with_side_outputs(problem: PlacementProblem, kept: IntArray, found: Placement, budget: Budget) -> Placement:
    """Return a placement of the ops of `without_side_outputs` with the others where they delay it least, in turn.

    Parameters
    ----------
    problem
        The whole problem.
    kept
        From `without_side_outputs`.
    found
        Of the problem of one shard on these ops.
    budget
        Once it has ended each of the others goes to its quickest device.
    """
    n = problem.num_ops
    device, place = np.zeros((n, 1), np.int64), np.full(n, float(n))
    device[kept] = found.device
    place[kept[found.sequence // problem.num_devices]] = np.arange(len(kept))
    done = np.zeros(n, np.bool_)
    done[kept] = True
    for v in problem.order[~done[problem.order]].tolist():
        done[v] = True
        ops = np.flatnonzero(done)
        part = induced(problem, ops)
        producers = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
        mates = ops[problem.group[ops] == problem.group[v]]
        quick = np.argsort(problem.op_time_s[v], kind="stable").tolist()
        where = quick if len(mates) < 2 else [int(device[mates[mates != v][0], 0])]
        ways = [(i, p) for i in where for p in (place[producers].max(initial=-1.0), float(n))]

        def value(way: tuple[int, float], v: int = v, ops: IntArray = ops, part: PlacementProblem = part) -> float:
            device[v], place[v] = way
            return makespan(part, placement_from_priority(part, device[ops], place[ops]))

        device[v], place[v] = min(ways[:1] if budget.expired else ways, key=value)
    return placement_from_priority(problem, device, place)


def channel_counts(problem: PlacementProblem, order: IntArray) -> IntArray:
    """Return (n,) how many tensors made by the ops up to each place of a topological order are used after it.

    Parameters
    ----------
    problem
        Of n ops.
    order
        (n,) ops.
    """
    n = problem.num_ops
    position = inverse_of(order)
    last_use = position.copy()
    np.maximum.at(last_use, problem.edges[:, 0], position[problem.edges[:, 1]])
    change = np.bincount(position, minlength=n + 1) - np.bincount(last_use, minlength=n + 1)
    return np.cumsum(change)[:n]


def channel_cuts(problem: PlacementProblem, channels: int, min_ops: int = 1) -> list[IntArray]:
    """Return blocks that talk through at most `channels` tensors, in topological order.

    Parameters
    ----------
    problem
        n ops.
    channels
        1: a block ends with each separator (one with nothing after it ends the last), and each block knows only the
        separator before it. More: a block ends where at most so many tensors pass, of the two topological orders
        (natural and depth first) in the one with more such places.
    min_ops
        Least number of ops of a block (but of the only one): places are passed over, of those within one more
        `min_ops` the one with the fewest tensors is taken, and a short rest joins the last block.

    Returns
    -------
    Arrays of ops, each in topological order, which together hold every op once. No edge leads from a later block to an
    earlier one.

    Raises
    ------
    ValueError
        If `channels` or `min_ops` is below 1.
    """
    if channels < 1 or min_ops < 1:
        raise ValueError(f"expected channels and min_ops of at least 1, got {channels} and {min_ops}")
    order = problem.order
    if channels == 1:
        position = inverse_of(order)
        ends = position[separators(problem)] + 1
        counts = np.zeros(problem.num_ops, np.int64)
    else:
        orders = [problem.order, _depth_first_order(problem)]
        all_counts = [channel_counts(problem, each) for each in orders]
        best = int(np.argmax([np.count_nonzero(each[:-1] <= channels) for each in all_counts]))
        order, counts = orders[best], all_counts[best]
        ends = np.flatnonzero(counts <= channels) + 1
    chosen = _spread(ends[ends < problem.num_ops], counts, problem.num_ops, min_ops)
    return [np.asarray(part, np.int64) for part in np.split(order, chosen) if len(part)]


def _spread(ends: IntArray, counts: IntArray, num_ops: int, min_ops: int) -> list[int]:
    """Return those of `ends` at which to cut so that no part has fewer than `min_ops`."""
    chosen: list[int] = []
    begin, i = 0, 0
    while i < len(ends):
        if ends[i] - begin < min_ops:
            i += 1
            continue
        window = [j for j in range(i, min(i + min_ops, len(ends))) if ends[j] < begin + 2 * min_ops] or [i]
        best = min(window, key=lambda j: (counts[ends[j] - 1], j))
        if num_ops - ends[best] < min_ops:
            break
        begin = int(ends[best])
        chosen.append(begin)
        i = best + 1
    return chosen


def _open_spans(spans: IntArray, n: int) -> IntArray:
    """Return (n,) how many spans (first, last) have each of 0 to n-1 strictly between their ends."""
    change = np.zeros(n + 2, np.int64)
    np.add.at(change, spans[:, 0] + 1, 1)
    np.add.at(change, np.maximum(spans[:, 1], spans[:, 0] + 1), -1)
    return np.cumsum(change)[:n]


def _group_spans(group: IntArray, position: IntArray) -> IntArray:
    first, last = position.copy(), position.copy()
    np.minimum.at(first, group, position)
    np.maximum.at(last, group, position)
    wide = first < last
    return np.column_stack([first[wide], last[wide]])


def _depth_first_order(problem: PlacementProblem) -> IntArray:
    """Return the topological order that goes on with what was made last, which keeps branches together."""
    missing = np.diff(problem.pred_indptr)
    stack = [int(v) for v in problem.order[::-1] if missing[v] == 0]
    order = []
    while stack:
        v = stack.pop()
        order.append(v)
        for w in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]][::-1]:
            missing[w] -= 1
            if missing[w] == 0:
                stack.append(int(w))
    return np.array(order, np.int64)


def descendants(problem: PlacementProblem) -> list[int]:
    """Return for each op the set of its descendants without itself as the bits of an integer."""
    reach = [0] * problem.num_ops
    for v in problem.order[::-1]:
        for w in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]:
            reach[v] |= reach[w] | (1 << int(w))
    return reach


def induced(problem: PlacementProblem, ops: IntArray, num_shards: int | None = None) -> PlacementProblem:
    """Return the problem on some ops, and on some shards of them: a relaxation of `problem`.

    From any schedule of `problem` strike out the other ops and shards: what is left is a schedule of the sub-problem
    that ends no later. Fewer shards make no transfer longer and no device hold more; groups and capacities bind those
    that are left. A batch of which c shards are left took the time of a batch of some c' >= c shards, hence the times
    of fewer shards than there are are those of the cheapest size of at least c.

    Parameters
    ----------
    problem
        n ops, s shards.
    ops
        (k,) distinct ops; op i of the result is ``ops[i]``.
    num_shards
        How many shards, 1 to s; None for s.

    Returns
    -------
    The sub-problem, with the same devices.
    """
    k = len(ops)
    local = np.full(problem.num_ops, -1, np.int64)
    local[ops] = np.arange(k)
    edges = local[problem.edges]
    edges = edges[(edges >= 0).all(axis=1)]
    order = local[problem.order]
    group = np.full(problem.num_ops, k, np.int64)
    np.minimum.at(group, problem.group[ops], np.arange(k))
    return PlacementProblem(
        objective=problem.objective,
        transfers=problem.transfers,
        shard_inputs=problem.shard_inputs,
        time_s=_times(problem.time_s[ops], num_shards),
        tensor_bytes=problem.tensor_bytes[ops],
        weight_bytes=problem.weight_bytes[ops],
        shard_bytes=problem.shard_bytes[ops],
        capacity_bytes=problem.capacity_bytes,
        s_per_byte=problem.s_per_byte,
        delay_s=problem.delay_s,
        edges=edges[np.lexsort((edges[:, 1], edges[:, 0]))],
        order=order[order >= 0],
        group=group[problem.group[ops]],
    )


def _times(time_s: FloatArray, num_shards: int | None) -> FloatArray:
    total = time_s.shape[2] - 1
    if num_shards is None or num_shards == total:
        return time_s
    cheapest = np.minimum.accumulate(time_s[:, :, :0:-1], axis=2)[:, :, ::-1]
    return np.ascontiguousarray(np.concatenate([time_s[:, :, :1], cheapest[:, :, :num_shards]], axis=2))
