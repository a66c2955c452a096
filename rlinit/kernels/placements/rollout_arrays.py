"""Arrays that rollouts of placements take and give: problems, the policy's outputs for them, and schedules."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray


class RolloutArrays(NamedTuple):
    """Placement problems with whole ops (one shard), joined; G graphs, N ops, D devices, P pairs, L links.

    Parameters
    ----------
    ptr, device_ptr, pair_ptr, link_ptr
        (G + 1,) where each graph's ops, devices, pairs (op, device) and links (device, device) begin; pairs and links
        row by row.
    pred_indptr, pred, succ_indptr, succ
        Neighbours, numbered within the batch.
    time
        (P,) seconds.
    allowed
        (P,) whether every op of the op's group may run there.
    tensor
        (N,) bytes of an op's output.
    need
        (N,) bytes of a whole group, at its member of smallest index.
    group
        (N,) that member.
    capacity
        (D,) bytes.
    s_per_byte, delay
        (L,) of transfers.
    place
        (N,) place of each op in the heuristic's order: decides between equal keys.
    scale
        (G,) seconds, typical of an op.
    """

    ptr: IntArray
    device_ptr: IntArray
    pair_ptr: IntArray
    link_ptr: IntArray
    pred_indptr: IntArray
    pred: IntArray
    succ_indptr: IntArray
    succ: IntArray
    time: FloatArray
    allowed: NDArray[np.bool_]
    tensor: FloatArray
    need: FloatArray
    group: IntArray
    capacity: FloatArray
    s_per_byte: FloatArray
    delay: FloatArray
    place: IntArray
    scale: FloatArray


class Policy(NamedTuple):
    """What a network says of placement problems with N ops and P pairs (op, device) in all.

    Parameters
    ----------
    key
        (N,) logits of ops among those that are ready.
    score
        (P,) logits of devices, before lateness counts.
    late_weight
        (P,) at least 0: what a logit loses for each typical op by which the op ends later there than on the best
        device.
    """

    key: FloatArray
    score: FloatArray
    late_weight: FloatArray


class RolloutTrace(NamedTuple):
    """Schedules that were played, S samples of each graph, and what their log-probability depends on.

    Parameters
    ----------
    value
        (S, G) makespan in seconds; ``inf`` where an op fits nowhere (the rest of that sample is then meaningless).
    device
        (S, N) device of each op, numbered within its graph.
    start
        (S, N) when each op starts.
    chosen, ready
        (S, N) step at which each op was chosen, and the first step at which it could have been.
    late
        (S, P) at the time of an op's choice, how much later than the earliest finish it would end on each device, over
        the graph's scale; ``inf`` where it may not run.
    """

    value: FloatArray
    device: IntArray
    start: FloatArray
    chosen: IntArray
    ready: IntArray
    late: FloatArray
