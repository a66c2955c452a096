"""Compiled passes over pairs of intervals of ideals: how far the first stages get, and how far they must."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
    """

    inner: WordArray
    outer: WordArray
    least: FloatArray
    most: FloatArray
    place: IntArray
    at: IntArray
    spread: float


class Transfers(NamedTuple):
    """What the boundaries of each interval cost the stage behind them and the one before, and who reads each tensor."""

    entering: Crossings
    leaving: Crossings
    indptr: IntArray
    dst: IntArray


@njit(cache=True, nogil=True)
def _readers(i: int, leaves: Leaves, entering: Crossings, read: WordArray) -> None:
    """Write one reader of all that crosses the boundaries of interval i into `read`."""
    for x in range(len(read)):
        read[x] = 0
    for q in range(entering.indptr[i], entering.indptr[i + 1]):
        v = entering.head[q]
        read[v >> 6] |= np.uint64(1) << np.uint64(v & 63)


@njit(cache=True, nogil=True)
def _transfer_s(i: int, j: int, leaves: Leaves, transfers: Transfers, read: WordArray) -> float:
    """Return the least seconds of tensors of a stage between interval i and interval j; inf where there is none."""
    inner, outer, entering, leaving = leaves.inner, leaves.outer, transfers.entering, transfers.leaving
    all_read = True
    for x in range(inner.shape[1]):
        if inner[i, x] & ~outer[j, x] != 0:
            return np.inf
        if read[x] & ~inner[j, x] != 0:
            all_read = False
    cost = 0.0
    if all_read:
        cost = entering.total[i]
    else:
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
    for q in range(leaving.indptr[j], leaving.indptr[j + 1]):
        if not has(outer, i, leaving.tail[q]):
            cost += leaving.cost[q]
    return cost


@njit(cache=True, nogil=True)
def furthest(
    limit: float, first: int, quota: int, leaves: Leaves, transfers: Transfers, need: FloatArray, done: FloatArray
) -> tuple[int, int]:
    """Write the most work that the first stages of at most `limit` do, from the interval at place `first` on.

    ``done[s, i]`` is what s stages do at most where their last boundary is in interval i, -1 where it cannot be.
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
        (k + 1, p) least work at a boundary in each interval with so many stages left, inf where it leads nowhere.
    done
        (k + 1, p) changed in place; the first interval is done with 0 stages, all else -1 at the beginning.
    """
    least, most = leaves.least, leaves.most
    k, p = len(done) - 1, len(least)
    read = np.zeros(leaves.inner.shape[1], np.uint64)
    stages = np.empty(k + 1, np.int64)
    met = 0
    for z in range(first, p):
        if met > quota:
            return z, met
        i, count, top = leaves.at[z], 0, -1.0
        for s in range(k + 1):
            if s > 0 and done[s - 1, i] >= 0.0:
                # A stage whose boundaries are both in the interval may move nothing but work.
                done[s, i] = max(done[s, i], min(done[s - 1, i] + limit, most[i]))
            if done[s, i] < need[k - s, i]:
                done[s, i] = -1.0
            elif s < k:
                stages[count] = s
                count += 1
                top = max(top, done[s, i])
        if count == 0 or z == p - 1:
            continue
        _readers(i, leaves, transfers.entering, read)
        for j in range(np.searchsorted(least, least[i] - leaves.spread), p):
            if least[j] > top + limit:
                break
            met += 1
            useful = False
            for a in range(count):
                s = stages[a]
                reached = min(done[s, i] + limit, most[j])
                if reached >= need[k - s - 1, j] and reached > done[s + 1, j] and done[s, i] + limit >= least[j]:
                    useful = True
                    break
            if not useful or leaves.place[j] <= z:
                continue
            room = limit - _transfer_s(i, j, leaves, transfers, read)
            if room < 0.0:
                continue
            for a in range(count):
                s = stages[a]
                reached = min(done[s, i] + room, most[j])
                if reached >= need[k - s - 1, j] and reached > done[s + 1, j] and done[s, i] + room >= least[j]:
                    done[s + 1, j] = reached
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
        (k + 1, p) with ``need[r, i]`` for r stages left, changed in place: the last interval needs all work with none
        left, all else inf at the beginning.
    done
        As `furthest` left it.
    """
    least = leaves.least
    k, p = len(done) - 1, len(least)
    read = np.zeros(leaves.inner.shape[1], np.uint64)
    met = 0
    for back in range(first, p):
        if met > quota:
            return back, met
        z = p - 1 - back
        i, top = leaves.at[z], -1.0
        for s in range(k + 1):
            top = max(top, done[s, i])
        if top < 0.0:
            continue
        _readers(i, leaves, transfers.entering, read)
        for j in range(np.searchsorted(least, least[i] - leaves.spread), p):
            if least[j] > top + limit:
                break
            met += 1
            useful = False
            for r in range(1, k + 1):
                rest = need[r - 1, j] - limit
                if rest <= done[k - r, i] and max(least[i], rest) < need[r, i]:
                    useful = True
                    break
            if not useful or leaves.place[j] <= z:
                continue
            room = limit - _transfer_s(i, j, leaves, transfers, read)
            if room >= 0.0:
                for r in range(1, k + 1):
                    need[r, i] = min(need[r, i], max(least[i], need[r - 1, j] - room))
        for r in range(k + 1):
            if r > 0:
                need[r, i] = min(need[r, i], max(least[i], need[r - 1, i] - limit))
            if need[r, i] > done[k - r, i]:
                need[r, i] = np.inf
    return p, met
