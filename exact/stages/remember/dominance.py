"""Which states of a level of branch, bound and remember are kept.

A state is a set of ops placed from one end, closed under what must come before them there, and the devices used for
them. Of two states with the same devices the one that has placed a superset is as good, where the ops that it has more
pay for themselves: then whoever completes the other takes them out of the stages they are in there, and no stage gets
dearer. A stage that loses op v loses its work. It may have to bring in a tensor that v makes, where it reads that (from
the back: send out one that v reads, where it makes that), and nothing else is added; so v pays for itself on a class
where its work is at least all these costs together, and anywhere if all that must come after it is placed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.stages.arrays import StageArrays
from rlinit.kernels.stages.states import States

_COMPARED = 1_500
"""Kept states of the same devices that a state is compared with, those that have placed most."""


@njit(cache=True, nogil=True)
def pays_for_itself(a: StageArrays, forward: bool, class_count: IntArray) -> NDArray[np.bool_]:
    """Return (n,) whether each op pays for itself on every class that has stages.

    Parameters
    ----------
    a
        The problem.
    forward
        From the front, else from the back.
    class_count
        (c,) stages of each class.
    """
    num_classes, n = a.work.shape
    pays = np.ones(n, np.bool_)
    for v in range(n):
        for c in range(num_classes):
            cost = 0.0
            if forward:
                for e in range(a.out_indptr[v], a.out_indptr[v + 1]):
                    cost += a.in_s[c, a.out_tensor[e]]
            else:
                for e in range(a.in_indptr[v], a.in_indptr[v + 1]):
                    cost += a.out_s[c, a.in_tensor[e]]
            # What is summed in another order must not come out dearer.
            if class_count[c] > 0 and cost > 0.0 and cost * (1.0 + 1e-9) > a.work[c, v]:
                pays[v] = False
    return pays


@njit(cache=True, nogil=True)
def _covers(
    a: StageArrays, pays: NDArray[np.bool_], forward: bool, more: NDArray[np.uint64], less: NDArray[np.uint64]
) -> bool:
    """Return whether one set of placed ops holds another, and what it has more pays for itself."""
    for w in range(len(more)):
        if less[w] & ~more[w]:
            return False
    for w in range(len(more)):
        extra = more[w] & ~less[w]
        b = 0
        while extra:
            if extra & np.uint64(1):
                v = 64 * w + b
                if not pays[v] and not _is_over(a, forward, more, v):
                    return False
            extra >>= np.uint64(1)
            b += 1
    return True


@njit(cache=True, nogil=True)
def _is_over(a: StageArrays, forward: bool, bits: NDArray[np.uint64], v: int) -> bool:
    """Return whether all that must come after op v is placed."""
    indptr, after = (a.succ_indptr, a.succ) if forward else (a.pred_indptr, a.pred)
    for e in range(indptr[v], indptr[v + 1]):
        u = after[e]
        if not (bits[u >> 6] >> np.uint64(u & 63)) & np.uint64(1):
            return False
    return True


@njit(cache=True, nogil=True)
def keep_undominated(
    a: StageArrays, pays: NDArray[np.bool_], forward: bool, states: States, order: IntArray, all_pay: bool
) -> IntArray:
    """Return which states are kept, as indices.

    Parameters
    ----------
    a
        The problem.
    pays
        (n,) as `pays_for_itself` returns it.
    forward
        From the front.
    states
        The level.
    order
        States with the same devices one after another, those first that have placed most.
    all_pay
        Every op pays for itself.
    """
    kept = np.empty(len(order), np.int64)
    count, begin = 0, 0
    words = states.bits.shape[1]
    for i in order:
        if count > begin:
            for c in range(states.used.shape[1]):
                if states.used[i, c] != states.used[kept[begin], c]:
                    begin = count
                    break
        dominated = False
        for q in range(begin, min(count, begin + _COMPARED)):
            j = kept[q]
            if all_pay:
                dominated = True
                for w in range(words):
                    if states.bits[i, w] & ~states.bits[j, w]:
                        dominated = False
                        break
            else:
                dominated = _covers(a, pays, forward, states.bits[j], states.bits[i])
            if dominated:
                break
        if not dominated:
            kept[count] = i
            count += 1
    return kept[:count]
