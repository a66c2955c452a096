"""Compiled passes over the stages of several components: which ideals each may end with, and which are worth keeping.

An ideal a *dominates* an ideal I within it if whatever completes I within a limit completes a: take the nodes of a
away from every stage. That costs no stage anything where no tensor leaves a, or only tensors of one node v that all
others of a lead to. Let K be what of a is done before the stage of v. The stage had to bring in all that leaves K and
to do the rest of a; now it brings in what leaves a. So a dominates I where, for every class of devices and all K from
I to a, in(a) <= in(K) + work(a) - work(K). Which ideals may be K is relaxed to those that come no earlier than I.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray, WordArray
from rlinit.exact.stages.ideals.passes import (
    Crossings,
    StageRates,
    Sums,
    closed_under_readers,
    entering,
    inclusion,
    leaving,
)
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.compiled import njit

BLOCK = 32
"""Ends of stages that are passed over together where none is within the limit."""


class Dominators(NamedTuple):
    """Ideals that may dominate others of their component.

    Parameters
    ----------
    ideal, indptr
        (A,) the ideals, and (m + 1,) where those of each component begin.
    column
        (p,) place among them, or -1.
    over
        (p, A) whether each dominates an ideal.
    """

    ideal: IntArray
    indptr: IntArray
    column: IntArray
    over: NDArray[np.bool_]


class Tables(NamedTuple):
    """What passes know of all ideals and classes."""

    sums: Sums
    rates: StageRates
    crossings: Crossings
    dominators: Dominators


class Ends(NamedTuple):
    """Where stages of one class that begin at an ideal of a component may end, in the component.

    Parameters
    ----------
    start, stop
        (m, p) where those of a component from an ideal are.
    ideal, seconds, held
        The ends, the largest `Goal.weight` first, and seconds without overflow and parameter bytes of the stage.
    least, worst
        The least seconds of each `BLOCK` of ends, and the least with all bytes beyond the cache.
    """

    start: IntArray
    stop: IntArray
    ideal: IntArray
    seconds: FloatArray
    held: FloatArray
    least: FloatArray
    worst: FloatArray


class Goal(NamedTuple):
    """What a row of ideals has to have done by the end of a stage, and how much of it the stage can do.

    Parameters
    ----------
    weight
        (p,) seconds that the nodes of an ideal take at least, with `theta` times those of all their bytes.
    into
        (p,) seconds to bring in what leaves an ideal, at least.
    most
        (m + 1,) the weight of all nodes of the components from one on.
    least, room
        The least that the weights of a row, less what its ideals take to bring in, add up to, and the most that they
        grow by in the stage.
    """

    weight: FloatArray
    into: FloatArray
    most: FloatArray
    least: float
    room: float


@njit(cache=True, nogil=True)
def single_sources(crossings: Crossings, costly: NDArray[np.bool_], ancestors: IntArray, size: FloatArray) -> IntArray:
    """Return the ideals that may dominate: all costly tensors that leave them are of one node, all others lead to it.

    Parameters
    ----------
    crossings
        Members and tensors of the ideals.
    costly
        (m,) whether a tensor costs anything to bring in.
    ancestors
        (n,) nodes that lead to the node of each bit.
    size
        (p,) nodes of each ideal.
    """
    found, count = np.empty(len(size), np.int64), 0
    for i in range(1, len(size)):
        v = -1
        for q in range(crossings.cross_indptr[i], crossings.cross_indptr[i + 1]):
            t = crossings.cross[q]
            if costly[t] and crossings.source_bit[t] != v:
                v = crossings.source_bit[t] if v == -1 else -2
                if v == -2:
                    break
        if v == -1 or (v >= 0 and ancestors[v] + 1 == size[i]):
            found[count] = i
            count += 1
    return found[:count].copy()


@njit(cache=True, nogil=True)
def _holds(larger: WordArray, smaller: WordArray) -> bool:
    missing = 0
    for w in range(len(larger)):
        missing += smaller[w] & ~larger[w] != 0
    return missing == 0


@njit(cache=True, nogil=True)
def dominated(bits: WordArray, part: IntArray, ideal: IntArray, base: FloatArray) -> NDArray[np.bool_]:
    """Return (p, A) whether each of these ideals dominates one; `base` (c, p) is in(I) - work(I).

    Parameters
    ----------
    bits, part
        Members and component of all ideals; ideal 0 is of all.
    ideal
        (A,) those that may dominate.
    base
        (c, p) seconds to bring in what leaves an ideal, less the work in it.
    """
    over = np.zeros((len(bits), len(ideal)), np.bool_)
    for at in range(len(ideal)):
        a, least = ideal[at], np.full(len(base), np.inf)
        for i in range(a - 1, -1, -1):
            if (i == 0 or part[i] == part[a]) and _holds(bits[a], bits[i]):
                least = np.minimum(least, base[:, i])
                if (base[:, a] > least).any():
                    break
                over[i, at] = True
    return over


@njit(cache=True, nogil=True)
def write_ends(
    i: int, c: int, d: int, members: IntArray, limit: float, tables: Tables, size: int, ends: Ends, worst: FloatArray
) -> int:
    """Write where stages that begin at an ideal may end, the heaviest first, behind `size` others; return the new size.

    An end is left out where one that dominates it costs no more, whatever else is on the device.

    Parameters
    ----------
    i, c, d
        The ideal, the class of the stage, and the component.
    members
        The ideals of the component, ascending.
    limit
        Most seconds of a stage.
    tables
        Of all ideals.
    size, ends
        Ends that are there, and arrays with room for more.
    worst
        (p,) scratch.
    """
    sums, rates, crossings, dominators = tables
    bits, first_open, cross_indptr, cross, source_bit, consumer_indptr, consumer_bit = crossings
    closed = np.zeros(bits.shape[1], np.uint64)
    last_word = closed_under_readers(i, bits, cross_indptr, cross, consumer_indptr, consumer_bit, closed)
    worst[:] = np.inf  # seconds should all bytes be beyond the cache
    count = size
    for j in members[::-1]:
        if j <= i:
            break
        cost, params = sums.work[c, j] - sums.work[c, i], sums.held[c, j] - sums.held[c, i]
        beyond = max(0.0, params - rates.cache[c]) * rates.overflow[c]
        fits = sums.forbidden[c, j] == sums.forbidden[c, i] and params <= rates.memory[c] * CAPACITY_SLACK
        within = inclusion(i, j, bits, first_open, closed, last_word) if fits and cost + beyond <= limit else 0
        if within == 0:
            continue
        if within == 2:
            cost += sums.all_in[c, i] + sums.all_out[c, j]
        else:
            cost += entering(i, j, c, bits, cross_indptr, cross, consumer_indptr, consumer_bit, rates.in_s)
            cost += leaving(i, j, c, bits, cross_indptr, cross, source_bit, rates.out_s)
        if cost + beyond <= limit:
            ends.ideal[count], ends.seconds[count], ends.held[count] = j, cost, params
            worst[j] = cost + params * rates.overflow[c]
            count += 1
    ends.ideal[count], ends.seconds[count], ends.held[count], worst[i] = i, 0.0, 0.0, 0.0
    for q in range(size, count + 1):
        j, keep = ends.ideal[q], True
        for at in range(dominators.indptr[d], dominators.indptr[d + 1]):
            a = dominators.ideal[at]
            if worst[a] <= worst[j] and dominators.over[j, at]:
                keep = keep and rates.memory[c] < np.inf and sums.held[c, a] > sums.held[c, j]
                if not keep:
                    break
        if keep:
            ends.ideal[size], ends.seconds[size], ends.held[size] = j, ends.seconds[q], ends.held[q]
            size += 1
    return size


@njit(cache=True, nogil=True)
def _first_within(ideal: IntArray, start: int, stop: int, weight: FloatArray, most: float) -> int:
    """Return the first place from `start` on whose ideal weighs at most `most`; weights descend."""
    while start < stop:
        middle = (start + stop) // 2
        if weight[ideal[middle]] > most:
            start = middle + 1
        else:
            stop = middle
    return start


@njit(cache=True, nogil=True)
def extend_rows(
    rows: IntArray, c: int, limit: float, quota: int, tables: Tables, ends: Ends, goal: Goal
) -> tuple[IntArray, IntArray, int]:
    """Extend rows of ideals, one a component, by every stage of a class of cost at most `limit`.

    Returns (r, m) the new rows, (r,) what each came from, and the ends looked at; not all rows, if more than `quota`.
    Of new rows that differ in the last component alone, those found dominated are left out.

    Parameters
    ----------
    rows
        (R, m) ideals.
    c, limit, quota, tables
        The class, most seconds, ends to look at, and what is known of all ideals and classes.
    ends, goal
        Where stages may end, and what they have to reach.
    """
    m = rows.shape[1]
    rates, over, column = tables.rates, tables.dominators.over, tables.dominators.column
    memory, cache, overflow = rates.memory[c] * CAPACITY_SLACK, rates.cache[c], rates.overflow[c]
    weight, into, most, least, room = goal
    found, source = np.empty((1024, m), np.int64), np.empty(1024, np.int64)
    at, current = np.zeros(m, np.int64), np.zeros(m, np.int64)
    spent, held, grown, done = np.zeros(m + 1), np.zeros(m + 1), np.zeros(m + 1), np.zeros(m + 1)
    accepted = np.empty(over.shape[1], np.int64)
    size, met, num_accepted = 0, 0, 0
    for x in range(len(rows)):
        d, at[0] = 0, -1
        while d >= 0 and met <= quota:
            i = rows[x, d]
            if at[d] < 0:
                at[d] = _first_within(
                    ends.ideal, ends.start[d, i], ends.stop[d, i], weight, weight[i] + room - grown[d]
                )
                num_accepted = 0
            q = at[d]
            at[d] += 1
            met += 1
            if q == ends.stop[d, i] or done[d] + weight[ends.ideal[q]] + most[d + 1] < least:
                d -= 1
                continue
            if q % BLOCK == 0 and q + BLOCK <= ends.stop[d, i]:
                beyond = spent[d] + ((held[d] - cache) * overflow if overflow > 0.0 else 0.0)
                if max(spent[d] + ends.least[q // BLOCK], beyond + ends.worst[q // BLOCK]) > limit:
                    at[d] += BLOCK - 1
                    continue
            j = ends.ideal[q]
            seconds, params = spent[d] + ends.seconds[q], held[d] + ends.held[q]
            ahead = done[d] + weight[j] - into[j]
            if params > memory or seconds + max(0.0, params - cache) * overflow > limit or ahead + most[d + 1] < least:
                continue
            current[d] = j
            if d < m - 1:
                d += 1
                spent[d], held[d], done[d], at[d] = seconds, params, ahead, -1
                grown[d] = grown[d - 1] + weight[j] - weight[i]
                continue
            keep = True
            for e in range(num_accepted):
                keep = keep and not over[j, accepted[e]]
            if not keep:
                continue
            if column[j] >= 0:
                accepted[num_accepted] = column[j]
                num_accepted += 1
            if size == len(found):
                found = np.concatenate((found, np.empty_like(found)))
                source = np.concatenate((source, np.empty_like(source)))
            found[size], source[size] = current, x
            size += 1
    return found[:size].copy(), source[:size].copy(), met


@njit(cache=True, nogil=True)
def drop_dominated(rows: IntArray, order: IntArray, d: int, dominators: Dominators, keep: NDArray[np.bool_]) -> None:
    """Set `keep` (R,) to False for rows that another one dominates in component d and equals in all others.

    Parameters
    ----------
    rows
        (R, m) ideals.
    order
        (R,) the rows, those that differ in component d alone next to each other.
    d
        The component.
    dominators
        See `Dominators`.
    keep
        Changed in place.
    """
    begin = 0
    for end in range(1, len(order) + 1):
        same = end < len(order)
        for e in range(rows.shape[1]):
            same = same and (e == d or rows[order[end], e] == rows[order[begin], e])
        if same:
            continue
        for a in range(begin, end):
            column = dominators.column[rows[order[a], d]]
            for b in range(begin, end if column >= 0 else begin):
                keep[order[b]] = keep[order[b]] and not dominators.over[rows[order[b], d], column]
        begin = end
