"""Compiled beam over (nodes placed, stages used of each class) along one order, where stages are of many classes.

The states that the exact program keeps for each prefix are as many as there are ways to use up some of the stages of
each class. Here a prefix keeps the few that leave the most capacity for what remains.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import CostArrays, TensorArrays
from rlinit.kernels.stages.slicing import Chain, enter_costs, leave_costs


class BeamRules(NamedTuple):
    """What the beam goes by.

    Stages of each class `class_count` (c,), how fast a class is on what remains from each position `speed` (c, n + 1),
    seconds to bring in the tensors that cross a position `cut_s` (n + 1,), and the ends kept of a start and class.
    """

    class_count: IntArray
    speed: FloatArray
    cut_s: FloatArray
    num_ends: int


class BeamLabels(NamedTuple):
    """Up to w entries of each of n + 1 prefixes: stages `used` of each class, bottleneck, score, and where from.

    `size` (n + 1,), `used` (n + 1, w, c), the others (n + 1, w); `back` is a prefix and `back_entry` its entry.
    """

    size: IntArray
    used: NDArray[np.int16]
    value: FloatArray
    score: FloatArray
    back: NDArray[np.int32]
    back_entry: NDArray[np.int32]
    back_class: NDArray[np.int16]


@njit(cache=True, nogil=True)
def _same(one: NDArray[np.int16], other: NDArray[np.int16], extra: int) -> bool:
    """Return whether `other` is `one` with one stage more of class `extra`."""
    if other[extra] != one[extra] + 1:
        return False
    for c in range(len(one)):  # noqa: SIM110 - numba knows no all()
        if c != extra and other[c] != one[c]:
            return False
    return True


@njit(cache=True, nogil=True)
def _offer(start: int, entry: int, end: int, extra: int, value: float, rules: BeamRules, labels: BeamLabels) -> None:
    """Extend an entry by a stage of class `extra` to `end`: a new entry there, or in place of the worst one."""
    used = labels.used[start, entry]
    score = 0.0
    for c in range(len(used)):
        left = rules.class_count[c] - used[c] - (1 if c == extra else 0)
        score += left * rules.speed[c, end]
    size = labels.size[end]
    worst = 0
    for w in range(size):
        if labels.score[end, w] == score and _same(used, labels.used[end, w], extra):
            if value < labels.value[end, w]:
                labels.value[end, w] = value
                labels.back[end, w] = start
                labels.back_entry[end, w] = entry
                labels.back_class[end, w] = extra
            return
        if labels.score[end, w] < labels.score[end, worst]:
            worst = w
    if size < labels.used.shape[1]:
        worst = size
        labels.size[end] += 1
    elif score <= labels.score[end, worst]:
        return
    labels.used[end, worst] = used
    labels.used[end, worst, extra] += 1
    labels.value[end, worst] = value
    labels.score[end, worst] = score
    labels.back[end, worst] = start
    labels.back_entry[end, worst] = entry
    labels.back_class[end, worst] = extra


@njit(cache=True, nogil=True)
def _keep_end(
    c: int, end: int, cost: float, merit: float, ends: IntArray, costs: FloatArray, merits: FloatArray
) -> None:
    """Keep an end of a stage of class c among those of smallest `merit`; rows of the arrays are classes."""
    worst = 0
    for e in range(ends.shape[1]):
        if merits[c, e] > merits[c, worst]:
            worst = e
    if merit < merits[c, worst]:
        ends[c, worst], costs[c, worst], merits[c, worst] = end, cost, merit


@njit(cache=True, nogil=True)
def _walk(
    threshold: float,
    start: int,
    chain: Chain,
    costs: CostArrays,
    tensors: TensorArrays,
    cut_s: FloatArray,
    stamp: IntArray,
    ends: IntArray,
    end_costs: FloatArray,
    merits: FloatArray,
) -> int:
    """Find the ends of stages of cost at most `threshold` from `start` that leave the least work and the lightest cut.

    Return the stages met. Fills `ends`, `end_costs` and `merits`, (c, number of ends); a merit of inf marks none.
    """
    num_classes, n = costs.work.shape
    busy, enter, leave = np.zeros(num_classes), np.zeros(num_classes), np.zeros(num_classes)
    merits[:] = np.inf
    held = 0.0
    for at in range(start, n):
        v = chain.order[at]
        held += costs.param[v]
        enter_costs(start, at, chain, costs, tensors, stamp, enter)
        leave_costs(start, at, chain, costs, tensors, leave)
        fits = False
        for c in range(num_classes):
            busy[c] += costs.work[c, v]
            cost = busy[c] + enter[c]
            if held > costs.cache[c]:
                cost += (held - costs.cache[c]) * costs.overflow[c]
            if held > costs.memory[c] or cost > threshold:
                continue
            fits = True
            cost += leave[c]
            if cost <= threshold:
                _keep_end(c, at + 1, cost, chain.rest[at + 1] + cut_s[at + 1], ends, end_costs, merits)
        if not fits:
            return at - start
    return int(n - start)


@njit(cache=True, nogil=True)
def beam_pass(
    threshold: float,
    first: int,
    last: int,
    chain: Chain,
    costs: CostArrays,
    tensors: TensorArrays,
    rules: BeamRules,
    labels: BeamLabels,
) -> int:
    """Extend the entries of prefixes first..last-1 by stages of cost at most `threshold`; return the stages met.

    Every entry of the last prefix is a slicing within the threshold; that there is none proves nothing.

    Parameters
    ----------
    threshold
        Most seconds of a stage.
    first, last
        Positions: the first, and the one after the last.
    chain
        The order that is cut, with the position of each node and of the last use of each tensor.
    costs
        Costs by class and node, and capacities by class.
    tensors
        Tensors: makers, consumers, and the tensors each node reads.
    rules
        Stages of each class, and what entries are ranked by.
    labels
        Entries of each prefix, changed in place.
    """
    num_classes, n = costs.work.shape
    stamp = np.full(len(tensors.src), -1, np.int64)
    ends = np.zeros((num_classes, rules.num_ends), np.int64)
    end_costs, merits = np.zeros(ends.shape), np.empty(ends.shape)
    met = 0
    for start in range(first, min(last, n)):
        if labels.size[start] == 0:
            continue
        met += _walk(threshold, start, chain, costs, tensors, rules.cut_s, stamp, ends, end_costs, merits)
        for c in range(num_classes):
            for e in range(rules.num_ends):
                if merits[c, e] == np.inf:
                    continue
                for w in range(labels.size[start]):
                    if labels.used[start, w, c] < rules.class_count[c]:
                        value = max(labels.value[start, w], end_costs[c, e])
                        _offer(start, w, ends[c, e], c, value, rules, labels)
    return met
