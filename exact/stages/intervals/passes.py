"""Compiled passes over pairs of intervals of ideals: how far the first stages get, and how far they must."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray, WordArray
from rlinit.exact.stages.intervals.crossings import Crossings, has
from rlinit.kernels.compiled import njit


class Leaves(NamedTuple):
    """p intervals of ideals, sorted by `least`.

    Parameters
    ----------
    inner, outer
        (p, words) nodes of the least and of the largest ideal of each.
    least, most
        (p,) seconds of work of the two, rounded down and up.
    place, at
        (p,) the place of each interval in an order in which none holds an ideal within one of an earlier interval,
        and the interval at each place. The first holds nothing, the last everything.
    spread
        Most seconds between `least` and `most`.
    extent
        (p, 5) as `extents` gives it.
    """

    inner: WordArray
    outer: WordArray
    least: FloatArray
    most: FloatArray
    place: IntArray
    at: IntArray
    spread: float
    extent: NDArray[np.int32]


class Transfers(NamedTuple):
    """What the boundaries of each interval cost the stage behind them and the one before, and who reads each tensor."""

    entering: Crossings
    leaving: Crossings
    indptr: IntArray
    dst: IntArray


@njit(cache=True, nogil=True)
def extents(inner: WordArray, outer: WordArray, indptr: IntArray, tail: IntArray) -> NDArray[np.int32]:
    """Return (p, 5) words between which the sets of each interval differ from all nodes and from none.

    These are the first words in which `inner` and `outer` lack a node, the last ones in which they have one, and the
    first with a tail of what leaves the interval. Pairs of intervals that are far apart are told by these alone.

    Parameters
    ----------
    inner, outer
        (p, words) sets.
    indptr, tail
        What leaves each interval, as CSR.
    """
    p, words = inner.shape
    found = np.empty((p, 5), np.int32)
    for i in range(p):
        found[i, :] = 0, 0, -1, -1, words
        while found[i, 0] < words and ~inner[i, found[i, 0]] == 0:
            found[i, 0] += 1
        while found[i, 1] < words and ~outer[i, found[i, 1]] == 0:
            found[i, 1] += 1
        for x in range(words):
            if inner[i, x] != 0:
                found[i, 2] = x
            if outer[i, x] != 0:
                found[i, 3] = x
        for q in range(indptr[i], indptr[i + 1]):
            found[i, 4] = min(found[i, 4], tail[q] >> 6)
    return found


@njit(cache=True, nogil=True)
def _readers(i: int, entering: Crossings, read: WordArray) -> int:
    """Write one reader of all that crosses the boundaries of interval i into `read`; return the last word of these."""
    read[0] = 0
    last = -1
    for q in range(entering.indptr[i], entering.indptr[i + 1]):
        v = entering.head[q]
        read[0, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
        last = max(last, v >> 6)
    return last


@njit(cache=True, nogil=True)
def _in_part(i: int, j: int, leaves: Leaves, transfers: Transfers) -> float:
    """Return the seconds of what a stage between interval i and interval j takes in, where j lacks some readers."""
    inner, outer, entering = leaves.inner, leaves.outer, transfers.entering
    cost = 0.0
    for q in range(entering.indptr[i], entering.indptr[i + 1]):
        t = entering.tensor[q]
        if has(inner, j, entering.head[q]):
            cost += entering.cost[q]
        elif t >= 0:
            for r in range(transfers.indptr[t], transfers.indptr[t + 1]):
                v = transfers.dst[r]
                if has(inner, j, v) and not has(outer, i, v):
                    cost += entering.cost[q]
                    break
    return cost


@njit(cache=True, nogil=True)
def _out_part(i: int, j: int, outer: WordArray, leaving: Crossings) -> float:
    """Return the seconds of what a stage between interval i and interval j sends out, where i holds some makers."""
    cost = 0.0
    for q in range(leaving.indptr[j], leaving.indptr[j + 1]):
        if not has(outer, i, leaving.tail[q]):
            cost += leaving.cost[q]
    return cost


@njit(cache=True, nogil=True)
def _lacks(some: WordArray, i: int, sets: WordArray, j: int, first: int, last: int) -> bool:
    """Return whether set j lacks a node of set i of `some` in the words first to last."""
    missing = np.uint64(0)
    for x in range(first, last + 1):
        missing |= some[i, x] & ~sets[j, x]
    return bool(missing != 0)


@njit(cache=True, nogil=True)
def furthest(
    limit: float, first: int, quota: int, leaves: Leaves, transfers: Transfers, need: FloatArray, done: FloatArray
) -> tuple[int, int]:
    """Write the most work that the first stages of at most `limit` do, from the interval at place `first` on.

    ``done[i, s]`` is what s stages do at most where their last boundary is in interval i, -inf where it cannot be.
    Stops after an interval once more than `quota` pairs are looked at; returns the next place and the pairs.

    Parameters
    ----------
    limit
        Most seconds of a stage.
    first, quota
        Where to begin, and when to pause.
    leaves, transfers
        The intervals.
    need
        (p, k + 1) least work at a boundary in each interval after so many stages, inf where it leads nowhere.
    done
        (p, k + 1) changed in place; the first interval is done with 0 stages, all else -inf at the beginning.
    """
    least, most = leaves.least, leaves.most
    inner, outer, extent, place = leaves.inner, leaves.outer, leaves.extent, leaves.place
    in_s, out_s = transfers.entering.total, transfers.leaving.total
    p, k = done.shape[0], done.shape[1] - 1
    read = np.zeros((1, leaves.inner.shape[1]), np.uint64)
    met = 0
    for z in range(first, p):
        if met > quota:
            return z, met
        i, low, high, top = leaves.at[z], k, 0, -np.inf
        for s in range(k + 1):
            if s > 0:
                # A stage whose boundaries are both in the interval may move nothing but work.
                done[i, s] = max(done[i, s], min(done[i, s - 1] + limit, most[i]))
            if done[i, s] < need[i, s]:
                done[i, s] = -np.inf
            elif s < k:
                low, high = min(low, s), s + 1
                top = max(top, done[i, s])
        if high == 0 or z == p - 1:
            continue
        last_read = _readers(i, transfers.entering, read)
        here = done[i, low:high]
        for j in range(np.searchsorted(least, least[i] - leaves.spread), p):
            if least[j] > top + limit:
                break
            if place[j] <= z:
                continue
            met += 1
            useful, top_j = False, most[j]
            needed, there = need[j, low + 1 : high + 1], done[j, low + 1 : high + 1]
            for s in range(len(here)):
                reached = min(here[s] + limit, top_j)
                if reached >= needed[s] and reached > there[s]:
                    useful = True
                    break
            if not useful:
                continue
            if _lacks(inner, i, outer, j, extent[j, 1], extent[i, 2]):
                continue
            apart = extent[j, 4] > extent[i, 3]
            room = limit - (out_s[j] if apart else _out_part(i, j, outer, transfers.leaving))
            unread = _lacks(read, 0, inner, j, extent[j, 0], last_read)
            room -= _in_part(i, j, leaves, transfers) if unread else in_s[i]
            if room >= 0.0:
                for s in range(len(here)):
                    reached = min(here[s] + room, top_j)
                    if reached >= needed[s] and reached > there[s]:
                        there[s] = reached
    return p, met


@njit(cache=True, nogil=True)
def least_needed(
    limit: float, first: int, quota: int, leaves: Leaves, transfers: Transfers, need: FloatArray, done: FloatArray
) -> tuple[int, int]:
    """Write the least work at a boundary from which the stages left can do the rest, from the last place backwards.

    Stops after an interval once more than `quota` pairs are looked at; returns the next `first` and the pairs.

    Parameters
    ----------
    limit
        Most seconds of a stage.
    first, quota
        How many of the last places are done already, and when to pause.
    leaves, transfers
        The intervals.
    need
        (p, k + 1) with ``need[i, s]`` after s stages, changed in place: the last interval needs all work after k, all
        else inf at the beginning.
    done
        As `furthest` left it.
    """
    least = leaves.least
    inner, outer, extent, place = leaves.inner, leaves.outer, leaves.extent, leaves.place
    in_s, out_s = transfers.entering.total, transfers.leaving.total
    p, k = done.shape[0], done.shape[1] - 1
    read = np.zeros((1, leaves.inner.shape[1]), np.uint64)
    met = 0
    for back in range(first, p):
        if met > quota:
            return back, met
        z = p - 1 - back
        i, low, high, top = leaves.at[z], k, 0, -np.inf
        for s in range(k):
            if done[i, s] >= 0.0:
                low, high = min(low, s), s + 1
                top = max(top, done[i, s])
        last_read = _readers(i, transfers.entering, read) if high > 0 else -1
        for j in range(np.searchsorted(least, least[i] - leaves.spread), p):
            if high == 0 or least[j] > top + limit:
                break
            if place[j] <= z:
                continue
            met += 1
            useful = 0
            for s in range(low, high):
                rest = max(least[i], need[j, s + 1] - limit)
                useful += (rest <= done[i, s]) & (rest < need[i, s])
            if useful == 0:
                continue
            if _lacks(inner, i, outer, j, extent[j, 1], extent[i, 2]):
                continue
            apart = extent[j, 4] > extent[i, 3]
            room = limit - (out_s[j] if apart else _out_part(i, j, outer, transfers.leaving))
            unread = _lacks(read, 0, inner, j, extent[j, 0], last_read)
            room -= _in_part(i, j, leaves, transfers) if unread else in_s[i]
            if room >= 0.0:
                for s in range(low, high):
                    need[i, s] = min(need[i, s], max(least[i], need[j, s + 1] - room))
        for s in range(k, -1, -1):
            if s < k:
                need[i, s] = min(need[i, s], max(least[i], need[i, s + 1] - limit))
            if need[i, s] > done[i, s]:
                need[i, s] = np.inf
    return p, met
