"""Compiled passes of the dynamic program over pairs of ideals.

A pass extends the labels of one ideal after the other to every ideal that may end its next stage. Labels are kept for
each *state*, which says which stages are filled: ``step[s, c]`` is the state after one more stage of class c, or -1.

Ideals are sorted by weight (`IdealTable`), so the possible ends are a range: not so heavy that the stage costs more
than the limit (``reach``), and heavy enough for the stages still left to hold the rest (``floor``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray, NodeArray, WordArray
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit


class Crossings(NamedTuple):
    """The nodes of each of the p ideals, and the tensors that leave them.

    Parameters
    ----------
    bits
        (p, w) members.
    first_open
        (p,) first word that is not full.
    cross_indptr, cross
        Tensors that leave each ideal, in CSR form.
    source_bit, consumer_indptr, consumer_bit
        Bits of each tensor's producer and consumers.
    """

    bits: WordArray
    first_open: IntArray
    cross_indptr: IntArray
    cross: NodeArray
    source_bit: IntArray
    consumer_indptr: IntArray
    consumer_bit: IntArray


class Fillings(NamedTuple):
    """Which stages may be filled after which, and how much a stage and those after it can hold.

    Parameters
    ----------
    reach, floor
        (c,) most weight of a stage, and (S,) least weight that is done in each state.
    step, fewer
        (S, c) state after one more stage of a class, and with one less; -1 where there is none.
    """

    reach: IntArray
    floor: IntArray
    step: IntArray
    fewer: IntArray


class Sums(NamedTuple):
    """Sums over the nodes of each ideal, and over its tensors.

    Parameters
    ----------
    weight
        (p,) weight of each ideal, ascending.
    work, held
        (c, p) seconds and parameter bytes of the nodes that fit under the limit.
    forbidden
        (c, p) number of the others.
    all_in, all_out
        (c, p) what the tensors that leave the ideal cost to bring in or send.
    """

    weight: IntArray
    work: FloatArray
    held: FloatArray
    forbidden: IntArray
    all_in: FloatArray
    all_out: FloatArray


class StageRates(NamedTuple):
    """What the c classes of devices hold and what beyond it costs.

    Parameters
    ----------
    memory, cache, overflow
        (c,) bytes of a device, bytes on its chip, and seconds for each byte beyond these.
    in_s, out_s
        (c, m) seconds to bring in or send each tensor.
    """

    memory: FloatArray
    cache: FloatArray
    overflow: FloatArray
    in_s: FloatArray
    out_s: FloatArray


@njit(cache=True, nogil=True)
def closed_under_readers(
    i: int,
    bits: WordArray,
    cross_indptr: IntArray,
    cross: NodeArray,
    consumer_indptr: IntArray,
    consumer_bit: IntArray,
    closed: WordArray,
) -> int:
    """Write ideal i with all consumers of the tensors that leave it into `closed`; return the last word in use.

    Parameters
    ----------
    i
        The ideal.
    bits, cross_indptr, cross, consumer_indptr, consumer_bit
        See `Crossings`.
    closed
        (w,) where the members are written.
    """
    words = bits.shape[1]
    for w in range(words):
        closed[w] = bits[i, w]
    for q in range(cross_indptr[i], cross_indptr[i + 1]):
        t = cross[q]
        for r in range(consumer_indptr[t], consumer_indptr[t + 1]):
            u = consumer_bit[r]
            closed[u >> 6] |= np.uint64(1) << np.uint64(u & 63)
    last: int = words - 1
    while last >= 0 and closed[last] == 0:
        last -= 1
    return last


@njit(cache=True, nogil=True)
def inclusion(i: int, j: int, bits: WordArray, first_open: IntArray, closed: WordArray, last_word: int) -> int:
    """Return 2 if ideal j holds all of `closed`, 1 if at least ideal i, else 0.

    Parameters
    ----------
    i, j
        The ideals.
    bits, first_open
        Members of all ideals, and their first words that are not full.
    closed, last_word
        As `closed_under_readers` has them of ideal i.
    """
    answer = 2
    for w in range(first_open[j], last_word + 1):
        missing = closed[w] & ~bits[j, w]
        if missing != 0:
            if missing & bits[i, w] != 0:
                return 0
            answer = 1
    return answer


@njit(cache=True, nogil=True)
def entering(
    i: int,
    j: int,
    c: int,
    bits: WordArray,
    cross_indptr: IntArray,
    cross: NodeArray,
    consumer_indptr: IntArray,
    consumer_bit: IntArray,
    in_s: FloatArray,
) -> float:
    """Return the cost of the tensors made in ideal i that the stage between i and j uses.

    Parameters
    ----------
    i, j, c
        The ideals, and the class of the stage.
    bits, cross_indptr, cross, consumer_indptr, consumer_bit
        See `Crossings`.
    in_s
        (c, m) cost of each tensor.
    """
    one = np.uint64(1)
    cost = 0.0
    for q in range(cross_indptr[i], cross_indptr[i + 1]):
        t = cross[q]
        for r in range(consumer_indptr[t], consumer_indptr[t + 1]):
            u = consumer_bit[r]
            if ((bits[j, u >> 6] & ~bits[i, u >> 6]) >> np.uint64(u & 63)) & one != 0:
                cost += in_s[c, t]
                break
    return cost


@njit(cache=True, nogil=True)
def leaving(
    i: int,
    j: int,
    c: int,
    bits: WordArray,
    cross_indptr: IntArray,
    cross: NodeArray,
    source_bit: IntArray,
    out_s: FloatArray,
) -> float:
    """Return the cost of the tensors that leave ideal j and were not made in ideal i.

    Parameters
    ----------
    i, j, c
        The ideals, and the class of the stage.
    bits, cross_indptr, cross, source_bit
        See `Crossings`.
    out_s
        (c, m) cost of each tensor.
    """
    one = np.uint64(1)
    cost = 0.0
    for q in range(cross_indptr[j], cross_indptr[j + 1]):
        t = cross[q]
        u = source_bit[t]
        if (bits[i, u >> 6] >> np.uint64(u & 63)) & one == 0:
            cost += out_s[c, t]
    return cost


@njit(cache=True, nogil=True)
def _alive(
    i: int,
    ordered: bool,
    done: int,
    floor: IntArray,
    fewer: IntArray,
    best: FloatArray,
    starts: IntArray,
    label: FloatArray,
    back: NDArray[np.int32],
    back_class: NDArray[np.int8],
) -> int:
    """Write the states from which ideal i, of weight `done`, is worth extending into `starts`; return their number."""
    num_states, num_classes = len(label), fewer.shape[1]
    num_alive = 0
    for s in range(num_states):
        value = label[s, i]
        best[s] = value
        if value < 0.0:
            best[s] = np.inf
            continue
        if ordered:
            if s > 0 and label[s - 1, i] < value:
                value = label[s - 1, i]
                label[s, i] = value
                back[s, i] = i
                back_class[s, i] = -1
        else:
            for c in range(num_classes):
                if fewer[s, c] >= 0 and best[fewer[s, c]] <= best[s]:
                    best[s] = best[fewer[s, c]]
                    value = np.inf
        if value < np.inf and done >= floor[s]:
            starts[num_alive] = s
            num_alive += 1
    return num_alive


@njit(cache=True, nogil=True)
def bottleneck_pass(
    limit: float,
    first: int,
    quota: int,
    ordered: bool,
    fillings: Fillings,
    sums: Sums,
    rates: StageRates,
    crossings: Crossings,
    label: FloatArray,
    back: NDArray[np.int32],
    back_class: NDArray[np.int8],
) -> tuple[int, int]:
    """Extend the labels of ideals from `first` on by every stage of cost at most `limit`.

    Stops after an ideal once more than `quota` steps are done; returns the next ideal and the pairs looked at.

    ``label[s, i]`` is the smallest bottleneck with which state s reaches ideal i, inf where none is within the limit,
    negative where it is known that nothing within the limit can follow.
    If `ordered`, states follow each other and a stage may stay empty (back_class -1); else a state is passed
    over where one that used no more stages (``fewer[s, c]``: one of class c less, or -1) is no worse.

    Parameters
    ----------
    limit
        Most seconds of a stage.
    first
        The first ideal.
    quota
        Steps after which no further ideal is begun.
    ordered
        Whether stages come in one order.
    fillings
        The states.
    sums
        Of the p ideals.
    rates
        Of the c classes.
    crossings
        Members and tensors of the ideals.
    label, back, back_class
        (S, p) the labels, and the ideal and the class that each came by; changed in place.
    """
    reach, floor, step, fewer = fillings
    weight, work, held, forbidden, all_in, all_out = sums
    memory, cache, overflow, in_s, out_s = rates
    bits, first_open, cross_indptr, cross, source_bit, consumer_indptr, consumer_bit = crossings
    num_states, p = label.shape
    closed = np.zeros(bits.shape[1], np.uint64)
    best = np.empty(num_states)
    starts, ends = np.empty(num_states, np.int64), np.empty(num_states, np.int64)
    met = 0
    for i in range(first, p):
        if met + (i - first) * num_states > quota:
            return i, met
        num_alive = _alive(i, ordered, weight[i], floor, fewer, best, starts, label, back, back_class)
        if num_alive == 0 or i == p - 1:
            continue
        last_word = closed_under_readers(i, bits, cross_indptr, cross, consumer_indptr, consumer_bit, closed)
        for c in range(len(reach)):
            # States that may take a stage of class c, and the lightest ideal at which it may end.
            num_ends = 0
            heaviest = weight[i] + reach[c]
            lightest = heaviest + 1
            for a in range(num_alive):
                s = step[starts[a], c]
                if s >= 0:
                    ends[num_ends] = starts[a]
                    num_ends += 1
                    if floor[s] < lightest:
                        lightest = floor[s]
            if num_ends == 0:
                continue
            j = i + 1
            if lightest > weight[i]:
                j = max(j, int(np.searchsorted(weight, lightest)))
            base = work[c, i]
            while j < p and weight[j] <= heaviest:
                at = j
                j += 1
                met += 1
                useful = False
                for a in range(num_ends):
                    s = step[ends[a], c]
                    if label[s, at] > label[ends[a], i] and weight[at] >= floor[s]:
                        useful = True
                        break
                if not useful or forbidden[c, at] != forbidden[c, i]:
                    continue
                cost = work[c, at] - base
                params = held[c, at] - held[c, i]
                if params > memory[c] * CAPACITY_SLACK:
                    continue
                if params > cache[c]:
                    cost += (params - cache[c]) * overflow[c]
                if cost > limit:
                    continue
                within = inclusion(i, at, bits, first_open, closed, last_word)
                if within == 0:
                    continue
                if within == 2:
                    cost += all_in[c, i] + all_out[c, at]
                else:
                    cost += entering(i, at, c, bits, cross_indptr, cross, consumer_indptr, consumer_bit, in_s)
                    if cost > limit:
                        continue
                    cost += leaving(i, at, c, bits, cross_indptr, cross, source_bit, out_s)
                if cost > limit:
                    continue
                for a in range(num_ends):
                    s = step[ends[a], c]
                    reached = max(cost, label[ends[a], i])
                    if reached < label[s, at] and weight[at] >= floor[s]:
                        label[s, at] = reached
                        back[s, at] = i
                        back_class[s, at] = c
    return p, met


@njit(cache=True, nogil=True)
def spill_pass(
    peak: float,
    tie: float,
    first: int,
    quota: int,
    slot_class: IntArray,
    fillings: Fillings,
    sums: Sums,
    rates: StageRates,
    crossings: Crossings,
    off_cache: FloatArray,
    traffic: FloatArray,
    back: NDArray[np.int32],
) -> tuple[int, int]:
    """Extend (off-cache bytes, traffic) labels from ideal `first` on by every stage of at most `peak` bytes.

    Stops after an ideal once more than `quota` steps are done; returns the next ideal and the pairs looked at.

    State j: the first j stages are filled. Labels are compared lexicographically, and off-cache sums that differ by at
    most `tie` are equal. A prefix of an optimal schedule may be taken to have the smallest sum, and the smallest
    traffic among those: the rest adds to the sum and takes the maximum with the traffic. Tensors cost their bytes.

    Parameters
    ----------
    peak
        Most bytes of a stage.
    tie
        Bytes by which equal sums may differ.
    first
        The first ideal.
    quota
        Steps after which no further ideal is begun.
    slot_class
        (k,) class of the device at each stage.
    fillings
        Most weight of a stage of each class, least weight done in each state; nothing else is looked at.
    sums
        Of the p ideals; seconds are not looked at.
    rates
        Capacities, and in ``out_s`` (1, m) the bytes of each tensor.
    crossings
        Members and tensors of the ideals.
    off_cache, traffic, back
        (k + 1, p) the labels, and the ideal that each came by; changed in place.
    """
    reach, floor = fillings.reach, fillings.floor
    weight, held, forbidden, all_out = sums.weight, sums.held, sums.forbidden, sums.all_out
    memory, cache, out_bytes = rates.memory, rates.cache, rates.out_s
    bits, first_open, cross_indptr, cross, source_bit, consumer_indptr, consumer_bit = crossings
    num_states, p = off_cache.shape
    closed = np.zeros(bits.shape[1], np.uint64)
    met = 0
    for i in range(first, p):
        if met + (i - first) * num_states > quota:
            return i, met
        alive = False
        for s in range(num_states):
            if s > 0 and (
                off_cache[s - 1, i] < off_cache[s, i] - tie
                or (off_cache[s - 1, i] <= off_cache[s, i] + tie and traffic[s - 1, i] < traffic[s, i])
            ):
                off_cache[s, i] = off_cache[s - 1, i]
                traffic[s, i] = traffic[s - 1, i]
                back[s, i] = i
            alive = alive or (off_cache[s, i] < np.inf and weight[i] >= floor[s])
        if not alive or i == p - 1:
            continue
        last_word = closed_under_readers(i, bits, cross_indptr, cross, consumer_indptr, consumer_bit, closed)
        for s in range(num_states - 1):
            before, sent_before = off_cache[s, i], traffic[s, i]
            if before == np.inf or weight[i] < floor[s]:
                continue
            c = slot_class[s]
            heaviest = weight[i] + reach[c]
            j = i + 1
            if floor[s + 1] > weight[i]:
                j = max(j, int(np.searchsorted(weight, floor[s + 1])))
            while j < p and weight[j] <= heaviest:
                at = j
                j += 1
                met += 1
                params = held[c, at] - held[c, i]
                if forbidden[c, at] != forbidden[c, i] or params > peak or params > memory[c] * CAPACITY_SLACK:
                    continue
                off = before + max(0.0, params - cache[c])
                known = off_cache[s + 1, at]
                if off > known + tie or (off >= known - tie and sent_before >= traffic[s + 1, at]):
                    continue
                within = inclusion(i, at, bits, first_open, closed, last_word)
                if within == 0:
                    continue
                if within == 2:
                    sent = all_out[0, at]
                else:
                    sent = leaving(i, at, 0, bits, cross_indptr, cross, source_bit, out_bytes)
                sent = max(sent, sent_before)
                if off < known - tie or sent < traffic[s + 1, at]:
                    off_cache[s + 1, at] = off
                    traffic[s + 1, at] = sent
                    back[s + 1, at] = i
    return p, met
