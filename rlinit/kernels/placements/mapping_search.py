"""Compiled searches over mappings of ops to devices in a fixed order: annealing and evolution.

Ops are numbered by their place in the order. A *gene* is a group of colocated ops (most often one op), and its value
the shards each device runs, ``count[gene, device]``; device 0 has the first shards, device 1 the next, and so on.
Mappings are compared by the bytes beyond the memory first, then by the makespan of running the batches in order, with
transfers in parallel. A change is evaluated from the block of ops on where it begins, and only as far as it can still
be accepted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.slots import append_start, batch_ready_time, bit_count

_BLOCK = 64
"""Ops between two places from which a run can go on."""

_TRIES = 8
"""Changes of a split that are drawn at most until one is allowed."""


class SearchArrays(NamedTuple):
    """A placement problem as the searches take it; n ops in order, d devices, s shards, m genes.

    `tail` (n,) is a lower bound on the time from the end of any batch of an op to the end of all. `member` lists the
    ops of each gene. `allowed` (m, d, s + 1), `weight` and `shard` (m,) are those of whole genes. `delay` is finite: a
    missing link takes longer than everything else together. `movable` lists the genes that have a choice.
    """

    time: FloatArray
    tensor: FloatArray
    tail: FloatArray
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
    """A search's mapping, its run, and the best so far; n ops, d devices, m genes.

    `mapping` (m, d) is how many shards of each gene each device runs, `best` the best of those before. `device` (n,),
    `mask` (n, d) and `held` (d,) bytes follow from it. `end` and `free` are its run, `trial_end` and `trial_free` the
    same but for what is being tried. `value` (2, 2) holds bytes too many and makespan, of the mapping and of the best.
    """

    mapping: IntArray
    best: IntArray
    device: IntArray
    mask: IntArray
    held: FloatArray
    end: FloatArray
    free: FloatArray
    trial_end: FloatArray
    trial_free: FloatArray
    value: FloatArray


@njit(cache=True, nogil=True)
def _run_whole(
    p: SearchArrays, device: IntArray, end: FloatArray, free: FloatArray, block: int, limit: float
) -> tuple[float, int]:
    """Run ops of one shard from a block on; see `_run`.

    Not by `ready_time`: that adds delay and bytes first and then the end, which rounds in another way, and it branches
    on every edge.
    """
    n, d = len(p.tensor), len(p.capacity)
    now = free[block].copy()
    s_per_byte, delay = p.s_per_byte, p.delay
    for v in range(block * _BLOCK, n):
        if v % _BLOCK == 0:
            free[v // _BLOCK] = now
        i = device[v]
        at = now[i]
        for e in range(p.pred_indptr[v], p.pred_indptr[v + 1]):
            u = p.pred[e]
            j = device[u]
            there = end[u, 0] + delay[j, i] + p.tensor[u] * s_per_byte[j, i]
            if there > at:
                at = there
        at += p.time[v, i, 1]
        end[v, 0] = at
        now[i] = at
        if at + p.tail[v] > limit:
            return np.inf, v + 1
    latest = 0.0
    for i in range(d):
        latest = max(latest, now[i])
    return latest, n


@njit(cache=True, nogil=True)
def _run_split(
    p: SearchArrays, mask: IntArray, end: FloatArray, free: FloatArray, block: int, limit: float
) -> tuple[float, int]:
    """Run batches from a block of ops on; see `_run`."""
    n, d = len(p.tensor), len(p.capacity)
    now = free[block].copy()
    for v in range(block * _BLOCK, n):
        if v % _BLOCK == 0:
            free[v // _BLOCK] = now
        for i in range(d):
            wanted = mask[v, i]
            if wanted == 0:
                continue
            at = append_start(batch_ready_time(p, v, i, wanted, mask, end), now[i])
            at += p.time[v, i, bit_count(wanted)]
            end[v, i] = at
            now[i] = at
            if at + p.tail[v] > limit:
                return np.inf, v + 1
    latest = 0.0
    for i in range(d):
        latest = max(latest, now[i])
    return latest, n


@njit(cache=True, nogil=True)
def _run(
    p: SearchArrays, device: IntArray, mask: IntArray, end: FloatArray, free: FloatArray, block: int, limit: float
) -> tuple[float, int]:
    """Return the makespan (``inf`` once it must exceed `limit`) and after which op the run stopped.

    Ends of ops before `block` and ``free[block]``, when each device is free there, are taken as they are.
    """
    if p.time.shape[2] == 2:
        return _run_whole(p, device, end, free, block, limit)
    return _run_split(p, mask, end, free, block, limit)


@njit(cache=True, nogil=True)
def _copy(source: FloatArray, free_s: FloatArray, to: FloatArray, free_t: FloatArray, block: int, stop: int) -> None:
    """Copy the ends of ops from a block to `stop`, and when devices are free, from one run to another."""
    to[block * _BLOCK : stop] = source[block * _BLOCK : stop]
    last = (stop - 1) // _BLOCK + 1
    free_t[block:last] = free_s[block:last]


@njit(cache=True, nogil=True)
def _held(p: SearchArrays, g: int, i: int, count: int) -> float:
    return float(p.weight[g] + count * p.shard[g]) if count > 0 else 0.0


@njit(cache=True, nogil=True)
def _excess(p: SearchArrays, held: FloatArray) -> float:
    """Return the bytes beyond the memory of all devices."""
    total = 0.0
    for i in range(len(held)):
        if held[i] > p.capacity[i]:
            total += held[i] - p.capacity[i]
    return total


@njit(cache=True, nogil=True)
def _set(
    p: SearchArrays, g: int, new: IntArray, count: IntArray, device: IntArray, mask: IntArray, held: FloatArray
) -> None:
    """Give gene g the value `new` (d,)."""
    low = 0
    for i in range(len(new)):
        if new[i] != count[g, i]:
            held[i] += _held(p, g, i, new[i]) - _held(p, g, i, count[g, i])
            count[g, i] = new[i]
    for i in range(len(new)):
        bits = ((1 << new[i]) - 1) << low
        low += new[i]
        for k in range(p.member_indptr[g], p.member_indptr[g + 1]):
            mask[p.member[k], i] = bits
            if bits:
                device[p.member[k]] = i


@njit(cache=True, nogil=True)
def _restart(p: SearchArrays, count: IntArray, device: IntArray, mask: IntArray, held: FloatArray) -> None:
    """Derive everything that follows from `count`."""
    held[:] = 0.0
    row = np.zeros(count.shape[1], np.int64)
    for g in range(len(count)):
        row[:] = count[g]
        count[g] = 0
        _set(p, g, row, count, device, mask, held)


@njit(cache=True, nogil=True)
def _propose(rng: np.random.Generator, p: SearchArrays, g: int, old: IntArray, new: IntArray) -> bool:
    """Draw another value for gene g: all shards to another device, or, half the time, some from one to another."""
    d, s = len(p.capacity), p.allowed.shape[2] - 1
    for _ in range(_TRIES):
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
    """Return the state of a search that begins at a mapping (m, d), which it changes in place.

    Parameters
    ----------
    p
        The problem.
    count
        (m, d) shards of each group on each device, changed in place by the search.
    """
    n, d = len(p.tensor), len(p.capacity)
    width = 1 if p.time.shape[2] == 2 else d
    device, mask, held = np.zeros(n, np.int64), np.zeros((n, d), np.int64), np.zeros(d)
    _restart(p, count, device, mask, held)
    end, free = np.zeros((n, width)), np.zeros((n // _BLOCK + 1, d))
    makespan, _ = _run(p, device, mask, end, free, 0, np.inf)
    value = np.empty((2, 2))
    value[:, 0], value[:, 1] = _excess(p, held), makespan
    return MappingState(count, count.copy(), device, mask, held, end, free, end.copy(), free.copy(), value)


@njit(cache=True, nogil=True)
def _keep_better(value: FloatArray, excess: float, makespan: float, count: IntArray, best: IntArray) -> None:
    """Note what the mapping is worth now, and the mapping if it is the best."""
    value[0, 0], value[0, 1] = excess, makespan
    if excess < value[1, 0] or (excess == value[1, 0] and makespan < value[1, 1]):
        best[:] = count
        value[1, 0], value[1, 1] = excess, makespan


@njit(cache=True, nogil=True)
def anneal_mapping(
    rng: np.random.Generator, p: SearchArrays, state: MappingState, moves: int, temperature: float, cooling: float
) -> float:
    """Anneal single-gene changes; return the temperature after the last. Calls that follow each other are as one.

    Parameters
    ----------
    rng
        Source of randomness.
    p
        The problem.
    state
        The mapping, replaced by the last, and the best.
    moves
        Changes to try.
    temperature, cooling
        Seconds before the first change, and what each multiplies them by.
    """
    count, best, device, mask, held, end, free, trial_end, trial_free, values = state
    n, d = len(p.tensor), len(p.capacity)
    excess, makespan = values[0, 0], values[0, 1]
    new, old = np.zeros(d, np.int64), np.zeros(d, np.int64)
    for _ in range(moves):
        temperature *= cooling
        g = p.movable[rng.integers(0, len(p.movable))]
        old[:] = count[g]
        limit = makespan - temperature * np.log(1.0 - rng.random())
        if not _propose(rng, p, g, old, new):
            continue
        _set(p, g, new, count, device, mask, held)
        after = _excess(p, held)
        if after > excess:
            _set(p, g, old, count, device, mask, held)
            continue
        block = p.member[p.member_indptr[g]] // _BLOCK
        value, stop = _run(p, device, mask, trial_end, trial_free, block, np.inf if after < excess else limit)
        if value == np.inf:
            _set(p, g, old, count, device, mask, held)
            _copy(end, free, trial_end, trial_free, block, stop)
            continue
        _copy(trial_end, trial_free, end, free, block, n)
        excess, makespan = after, value
        _keep_better(values, excess, makespan, count, best)
    return temperature


@njit(cache=True, nogil=True)
def evolve_mapping(rng: np.random.Generator, p: SearchArrays, state: MappingState, moves: int) -> None:
    """Run the (1 + 1) evolutionary algorithm; the mapping is the best. Calls that follow each other are as one.

    Each gene is redrawn with probability 1/m, at least one; a mutant that is no worse replaces its parent.

    Parameters
    ----------
    rng
        Source of randomness.
    p
        The problem.
    state
        The parent, replaced by the last.
    moves
        Mutants to try.
    """
    count, best, device, mask, held, end, free, trial_end, trial_free, values = state
    n, d, genes = len(p.tensor), len(p.capacity), len(p.movable)
    excess, makespan = values[0, 0], values[0, 1]
    new = np.zeros(d, np.int64)
    changed, old = np.zeros(genes, np.int64), np.zeros((genes, d), np.int64)
    logarithm = np.log1p(-1.0 / genes) if genes > 1 else -1.0
    for _ in range(moves):
        size, first = 0, n
        at = int(np.log(1.0 - rng.random()) / logarithm) if genes > 1 else 0
        if at >= genes:
            at = int(rng.integers(0, genes))
        while at < genes:
            g = p.movable[at]
            if _propose(rng, p, g, count[g], new):
                changed[size] = g
                old[size] = count[g]
                size += 1
                first = min(first, p.member[p.member_indptr[g]])
                _set(p, g, new, count, device, mask, held)
            at += 1 + (int(np.log(1.0 - rng.random()) / logarithm) if genes > 1 else 0)
        if size == 0:
            continue
        after, block = _excess(p, held), first // _BLOCK
        value, stop = np.inf, 0
        if after <= excess:
            value, stop = _run(p, device, mask, trial_end, trial_free, block, np.inf if after < excess else makespan)
        if value == np.inf:
            for k in range(size):
                _set(p, changed[k], old[k], count, device, mask, held)
            if stop > 0:
                _copy(end, free, trial_end, trial_free, block, stop)
        else:
            _copy(trial_end, trial_free, end, free, block, n)
            excess, makespan = after, value
    best[:] = count
    values[:, 0], values[:, 1] = excess, makespan
