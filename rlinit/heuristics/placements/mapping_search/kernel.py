"""Compiled search over mappings of ops to devices in a fixed order: annealing, and evolution at temperature 0.

Ops are numbered by their place in the order. A *gene* is a group of colocated ops (most often one op), and its value
the shards each device runs, ``count[gene, device]``; device 0 has the first shards, device 1 the next, and so on.
Mappings are compared by the bytes beyond the memory first, then by the makespan of running the batches in order, with
transfers in parallel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.annealing import accepted_loss
from rlinit.kernels.placements.slots import append_start, batch_ready_time, bit_count

_DRAWS = 8
"""Values of a gene that are drawn at most until one is allowed."""


class SearchArrays(NamedTuple):
    """A placement problem as the search takes it; n ops in order, d devices, s shards, m genes.

    `member` lists the ops of each gene. `allowed` (m, d, s + 1), `weight` and `shard` (m,) are those of whole genes.
    `delay` is finite: a missing link takes longer than everything else together. `movable` lists the genes that have a
    choice.
    """

    time: FloatArray
    tensor: FloatArray
    s_per_byte: FloatArray
    delay: FloatArray
    pred_indptr: IntArray
    pred: IntArray
    member_indptr: IntArray
    member: IntArray
    allowed: NDArray[np.bool_]
    weight: FloatArray
    shard: FloatArray
    capacity: FloatArray
    movable: IntArray


class MappingState(NamedTuple):
    """A search's mapping and the best so far; n ops, d devices, m genes.

    `mapping` (m, d) is how many shards of each gene each device runs, `best` the best of those before. `mask` (n, d)
    and `held` (d,) bytes follow from it, `end` (n, d) is scratch. `value` (2, 2) holds bytes too many and makespan, of
    the mapping and of the best.
    """

    mapping: IntArray
    best: IntArray
    mask: IntArray
    held: FloatArray
    end: FloatArray
    value: FloatArray


@njit(cache=True, nogil=True)
def _run(p: SearchArrays, mask: IntArray, end: FloatArray, limit: float) -> float:
    """Return the makespan of a mapping, ``inf`` where it is more than `limit`."""
    n, d = mask.shape
    free = np.zeros(d)
    for v in range(n):
        for i in range(d):
            if mask[v, i]:
                at = append_start(batch_ready_time(p, v, i, mask[v, i], mask, end), free[i])
                end[v, i] = free[i] = at + p.time[v, i, bit_count(mask[v, i])]
                if free[i] > limit:
                    return np.inf
    return float(free.max())


@njit(cache=True, nogil=True)
def _held(p: SearchArrays, g: int, count: int) -> float:
    return float(p.weight[g] + count * p.shard[g]) if count > 0 else 0.0


@njit(cache=True, nogil=True)
def _excess(p: SearchArrays, held: FloatArray) -> float:
    """Return the bytes beyond the memory of all devices."""
    total = 0.0
    for i in range(len(held)):
        total += max(0.0, held[i] - p.capacity[i])
    return total


@njit(cache=True, nogil=True)
def _set(p: SearchArrays, s: MappingState, g: int, new: IntArray) -> None:
    """Give gene g the value `new` (d,)."""
    low = 0
    for i in range(len(new)):
        s.held[i] += _held(p, g, new[i]) - _held(p, g, s.mapping[g, i])
        s.mapping[g, i] = new[i]
        for k in range(p.member_indptr[g], p.member_indptr[g + 1]):
            s.mask[p.member[k], i] = ((1 << new[i]) - 1) << low
        low += new[i]


@njit(cache=True, nogil=True)
def _propose(rng: np.random.Generator, p: SearchArrays, g: int, old: IntArray, new: IntArray) -> bool:
    """Draw another value for gene g: all shards to another device, or, half the time, some from one to another."""
    d, s = len(p.capacity), p.allowed.shape[2] - 1
    for _ in range(_DRAWS):
        to = int(rng.integers(0, d))
        if s == 1 or rng.random() < 0.5:
            if old[to] < s and p.allowed[g, to, s]:
                new[:] = 0
                new[to] = s
                return True
        else:
            origin = int(rng.integers(0, d))
            if origin != to and old[origin] > 0:
                moved = 1 + int(rng.integers(0, old[origin]))
                if p.allowed[g, origin, old[origin] - moved] and p.allowed[g, to, old[to] + moved]:
                    new[:] = old
                    new[origin] -= moved
                    new[to] += moved
                    return True
    return False


@njit(cache=True, nogil=True)
def new_mapping(p: SearchArrays, count: IntArray) -> MappingState:
    """Return the state of a search that begins at a mapping.

    Parameters
    ----------
    p
        The problem.
    count
        (m, d) shards of each gene on each device.
    """
    n, d = len(p.tensor), len(p.capacity)
    s = MappingState(
        np.zeros_like(count), count.copy(), np.zeros((n, d), np.int64), np.zeros(d), np.zeros((n, d)), np.empty((2, 2))
    )
    for g in range(len(count)):
        _set(p, s, g, count[g])
    s.value[:, 0], s.value[:, 1] = _excess(p, s.held), _run(p, s.mask, s.end, np.inf)
    return s


@njit(cache=True, nogil=True)
def search_mapping(
    rng: np.random.Generator,
    p: SearchArrays,
    s: MappingState,
    moves: int,
    temperature: float,
    cooling: float,
    several: bool,
) -> float:
    """Change genes again and again; return the temperature after the last. Calls that follow each other are as one.

    What holds fewer bytes too many is accepted, and what holds as many where its makespan is accepted (Metropolis).

    Parameters
    ----------
    rng
        Source of randomness.
    p
        The problem.
    s
        The mapping, replaced by the last, and the best.
    moves
        Changes to try.
    temperature, cooling
        Seconds before the first change, and what each multiplies them by.
    several
        Whether each of the genes that have a choice is redrawn with a probability of 1 over their number, at least one;
        otherwise one is.
    """
    d, genes = len(p.capacity), len(p.movable)
    new, changed, old = np.zeros(d, np.int64), np.zeros(genes, np.int64), np.zeros((genes, d), np.int64)
    logarithm = np.log1p(-1.0 / genes) if genes > 1 else -1.0
    for _ in range(moves):
        temperature *= cooling
        size, at = 0, genes
        if several and genes > 1:
            at = int(np.log(1.0 - rng.random()) / logarithm)
        if at >= genes:
            at = int(rng.integers(0, genes))
        limit = s.value[0, 1] + accepted_loss(rng, temperature)
        while at < genes:
            g = p.movable[at]
            if _propose(rng, p, g, s.mapping[g], new):
                changed[size], old[size] = g, s.mapping[g]
                size += 1
                _set(p, s, g, new)
            at += 1 + int(np.log(1.0 - rng.random()) / logarithm) if several and genes > 1 else genes
        if size == 0:
            continue
        excess, run = _excess(p, s.held), np.inf
        if excess <= s.value[0, 0]:
            run = _run(p, s.mask, s.end, np.inf if excess < s.value[0, 0] else limit)
        if run == np.inf:
            for k in range(size - 1, -1, -1):
                _set(p, s, changed[k], old[k])
            continue
        s.value[0, 0], s.value[0, 1] = excess, run
        if excess < s.value[1, 0] or (excess == s.value[1, 0] and run < s.value[1, 1]):
            s.best[:] = s.mapping
            s.value[1] = s.value[0]
    return temperature
