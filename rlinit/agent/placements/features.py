"""What the latency agent observes of a placement problem.

Times are in units of a typical op and squashed by log(1 + x), so that neither units nor the number of ops matter.
Besides the problem the agent observes one schedule of it, that of HEFT: which device each op
has there, how critical it is, how busy devices are around it. Nodes see their times on the fastest devices directly, so
that messages between nodes carry them; any number of further devices enters through the pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.oneshot_numpy import GRID
from rlinit.agent.placements.feature_kernel import (
    MOST,
    add_tails,
    least_paths,
    node_features,
    optimistic_costs,
    pair_features,
)
from rlinit.arrays import FloatArray, Floats, IntArray, inverse_of
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutArrays
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.arrays import mean_transfer_s, rollout_arrays
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import placement_of, run_placement, timeline_arrays

LATE_WEIGHT = 4.0
"""Lateness weight, in the logits of devices, of ending one typical op later, where the network says nothing else."""

MAX_LOG_LATE_WEIGHT = 2.5
"""The network's factor on the lateness weight, a logarithm, counts up to this much either way."""

_KEY_SCALE = 3.0
"""Logit of an op whose upward rank is longer by one mean op."""

_SLOTS = 4
"""Devices that nodes see directly, the fastest first."""

_REACH = 4.0
"""Typical ops before and after an op in which devices' business is looked at."""

_OWN = 10
"""Features of an op alone."""
PAIR_FEATURES = 10
"""Features of an op on a device."""
NODE_FEATURES = _OWN + _SLOTS * PAIR_FEATURES
DEVICE_FEATURES = 6
"""Features of a device: means over all ops."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A problem as the agent observes it, with HEFT's schedule of it.

    Parameters
    ----------
    arrays
        What rollouts need.
    features
        What the network needs.
    device, start
        (n,) HEFT's schedule.
    cost_to_go
        (n * d,) the longest way from the end of an op on a device to the end of all, were no device ever busy; 0 where
        there is none.
    value
        Its makespan in seconds, ``inf`` where the heuristic finds no place for some op.
    """

    arrays: RolloutArrays
    features: GraphFeatures
    device: IntArray
    start: FloatArray
    cost_to_go: FloatArray
    value: float


def observe(problem: PlacementProblem) -> Observation:
    """Return a problem's features.

    Parameters
    ----------
    problem
        A latency problem; ops are placed whole.

    Raises
    ------
    ValueError
        Ops are split into shards.
    """
    arrays, rank = rollout_arrays(problem)
    n, d, scale = problem.num_ops, problem.num_devices, float(arrays.scale[0])
    zeros = np.zeros(n * d)
    heft = Policy(rank, zeros, zeros + LATE_WEIGHT)
    trace = play(arrays, heft, 0.0, 1, np.random.default_rng(0))
    device, late = trace.device[0], trace.late[0].reshape(n, d)
    start, value = trace.start[0], float(trace.value[0, 0])
    if value < np.inf:
        start, value = under_rule(problem, device, start, value)
    seconds = np.where(arrays.allowed.reshape(n, d), problem.op_time_s, np.inf)
    after = optimistic_costs(arrays, problem.order, seconds)
    usable = np.where(np.isfinite(problem.op_time_s), problem.op_time_s, 0.0)
    end = start + usable[np.arange(n), device]
    sequence = np.lexsort((inverse_of(problem.order), end, start))
    pair = np.zeros((n, d, PAIR_FEATURES))
    pair_features(arrays, seconds, after, late, device, start, end, sequence, _REACH, pair)
    slack = end.max() - start - _tails(problem, usable, device, sequence)
    total = pair.sum(axis=0)
    features = GraphFeatures(
        node=_nodes(problem, arrays, start, end, slack, pair, total[:, 1]),
        pred_indptr=problem.pred_indptr,
        pred=problem.pred,
        succ_indptr=problem.succ_indptr,
        succ=problem.succ,
        ptr=arrays.ptr,
        base_key=_KEY_SCALE * rank,
        device=_devices(problem, total / max(n, 1), scale),
        device_ptr=arrays.device_ptr,
        pair=pair.reshape(n * d, PAIR_FEATURES),
    )
    return Observation(arrays, features, device, start, np.where(np.isfinite(after), after, 0.0).ravel(), value)


def under_rule(
    problem: PlacementProblem, device: IntArray, start: FloatArray, makespan_s: float
) -> tuple[FloatArray, float]:
    """Return starts and makespan of a schedule once its transfers follow the problem's rule; ops keep their order.

    Parameters
    ----------
    problem
        The problem.
    device, start
        (n,) device and start in seconds of each op, as if any number of transfers ran at once.
    makespan_s
        Of that schedule.
    """
    if problem.transfers == "parallel":
        return start, makespan_s
    apart = np.repeat(start[:, None], problem.num_devices, axis=1)
    found, _, makespan_s = run_placement(problem, placement_of(problem, device[:, None], apart))
    return found[np.arange(problem.num_ops), device], makespan_s


def late_weights(log_factor: FloatArray) -> FloatArray:
    """Return (P,) lateness weights from the logarithms (P,) of the network's factors, on a grid as all its outputs."""
    factor = np.exp(np.clip(log_factor, -MAX_LOG_LATE_WEIGHT, MAX_LOG_LATE_WEIGHT))
    y: FloatArray = np.round(LATE_WEIGHT * factor / GRID) * GRID
    return y


def _nodes(
    problem: PlacementProblem,
    arrays: RolloutArrays,
    start: FloatArray,
    end: FloatArray,
    slack: FloatArray,
    pair: FloatArray,
    slowness: FloatArray,
) -> Floats:
    """Return (n, NODE_FEATURES); nodes see the devices of least `slowness` (d,)."""
    seconds = problem.op_time_s
    least = seconds.min(axis=1)
    path = least_paths(arrays, problem.order, np.where(np.isfinite(least), least, 0.0))
    fastest = np.argsort(slowness, kind="stable")[:_SLOTS]
    node = np.zeros((problem.num_ops, NODE_FEATURES), np.float32)
    node_features(arrays, seconds, mean_transfer_s(problem), path, slack, start, end, pair, fastest, node)
    return node


def _tails(problem: PlacementProblem, usable: FloatArray, device: IntArray, sequence: IntArray) -> FloatArray:
    """Return (n,) the longest way from each op's start to the end of the schedule, as ops follow each other there."""
    n, tail, rest = problem.num_ops, np.zeros(problem.num_ops), np.zeros(problem.num_devices)
    arrays = timeline_arrays(problem)._replace(
        time=usable[:, :, None], delay=np.where(np.isfinite(problem.delay_s), problem.delay_s, 0.0)
    )
    add_tails(arrays, 0, n, sequence, device, tail, rest)
    return tail


def _devices(problem: PlacementProblem, mean: FloatArray, scale: float) -> FloatArray:
    """Return (d, DEVICE_FEATURES) from the means over ops of the features of pairs (d, PAIR_FEATURES)."""
    n, d = problem.num_ops, problem.num_devices
    bytes_moved = float(problem.tensor_bytes.mean()) if n else 0.0
    linked = ~np.eye(d, dtype=bool) & np.isfinite(problem.delay_s)
    seconds = np.where(linked, np.where(linked, problem.delay_s, 0.0) + bytes_moved * problem.s_per_byte, 0.0)
    out = seconds.sum(axis=1) / np.maximum(linked.sum(axis=1), 1)
    into = seconds.sum(axis=0) / np.maximum(linked.sum(axis=0), 1)
    need = float((problem.weight_bytes + problem.shard_bytes).sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(np.isfinite(problem.capacity_bytes), problem.capacity_bytes / max(need, 1e-300), np.inf)
    return np.stack(
        [
            *mean[:, (0, 2, 5)].T,
            *np.minimum(np.log1p(np.stack([out, into]) / scale), MOST),
            1.0 / (1.0 + np.minimum(room, 1e6)),
        ],
        axis=1,
    )
