"""What the compiled annealing searches over placements share: temperatures, acceptance, and moves of batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.compiled import njit
from rlinit.kernels.placements.timeline import TimelineArrays

HOT = 0.3
"""First temperature, relative to what an op mostly takes."""

CHAIN_SHARE = 0.15
"""Of the moves, those that change the device of several connected ops."""

DEVICE_SHARE = 0.55
"""Of the other moves, those that take an op or shards of it to another device; the rest change a position."""

ONLY_DEVICE_SHARE = 0.35
"""Of the moves of whole ops, those that draw no position."""

RUN_SHARE = 0.6
"""Of the moves of shards, those that take a run of them, not all that a device has."""


class DeviceMemory(NamedTuple):
    """What limits the devices of ops; n ops, d devices.

    `weight` and `shard` (n,) are the bytes a device holds for an op it runs at all, and for each shard of it;
    `capacity` (d,) its memory; `mate` (n,) is the next op that has to be on the same device, round and round: an op
    that may change device on its own is its own mate.
    """

    weight: FloatArray
    shard: FloatArray
    capacity: FloatArray
    mate: IntArray


class PassPlan(NamedTuple):
    """How a pass anneals window after window of a sequence.

    `forwards`: from the first position to the last, or back. `width` and `stride`: positions of a window, and from one
    window to the next. `moves` in each window. `hot` and `cold`: first and last temperature there, in seconds.
    """

    forwards: bool
    width: int
    stride: int
    moves: int
    hot: float
    cold: float


@njit(cache=True, nogil=True)
def cooling_factor(hot: float, cold: float, moves: int) -> float:
    """Return what a temperature is multiplied by before each of `moves` moves to fall from `hot` to `cold` seconds.

    Parameters
    ----------
    hot, cold
        First and last temperature in seconds; `cold` is above 0.
    moves
        Number of moves.
    """
    factor: float = (cold / hot) ** (1.0 / max(moves, 1)) if hot > 0.0 else 1.0
    return factor


@njit(cache=True, nogil=True, inline="always")
def accepts(rng: np.random.Generator, tried: float, cost: float, temperature: float) -> bool:
    """Return whether to go on from `tried` instead of `cost` (Metropolis); never, if ``inf`` is tried and worse.

    Draws only where `tried` is worse and the temperature positive.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands.
    tried
        Value of the neighbour, in the unit of the temperature.
    cost
        Value of the current solution.
    temperature
        At least 0; at 0 only what is no worse is accepted.
    """
    if tried <= cost:
        return True
    return bool(temperature > 0.0 and rng.random() < np.exp((cost - tried) / temperature))


@njit(cache=True, nogil=True, inline="always")
def accepted_loss(rng: np.random.Generator, temperature: float) -> float:
    """Return how much worse a neighbour may be to be accepted: what `accepts` decides, drawn before it is evaluated.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands. Nothing is drawn at temperature 0.
    temperature
        At least 0, in the unit of the values.
    """
    return -temperature * np.log(1.0 - rng.random()) if temperature > 0.0 else 0.0


@njit(cache=True, nogil=True, inline="always")
def draw_other_device(rng: np.random.Generator, i: int, d: int) -> int:
    """Return one of the d devices other than i, each as likely; d is at least 2.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands.
    i
        The device to leave, in 0 .. d - 1.
    d
        Number of devices, at least 2.
    """
    j = int(rng.random() * (d - 1))
    return j + 1 if j >= i else j


@njit(cache=True, nogil=True, inline="always")
def add_member(members: IntArray, count: int, x: int) -> int:
    """Write x after the first `count` members unless it is one of them; return how many there are then.

    Parameters
    ----------
    members
        Room for all, changed in place.
    count
        Members so far.
    x
        The new one.
    """
    for k in range(count):
        if members[k] == x:
            return count
    members[count] = x
    return count + 1


@njit(cache=True, nogil=True, inline="always")
def draw_run(rng: np.random.Generator, num_shards: int) -> int:
    """Return 1, 2, 4, ... shards in a row as bits, fewer than all, each length as often; the one there is, if only one.

    Single shards alone would have to move one after another, each move worse than the one before, where there are many.

    Parameters
    ----------
    rng
        Seeded; the draws continue where it stands.
    num_shards
        Shards of an op, at least 1.
    """
    lengths = 1
    while 2 << lengths <= num_shards:
        lengths += 1
    length = 1 << int(rng.random() * lengths)
    first = length * int(rng.random() * ((num_shards + length - 1) // length))
    return int(((np.int64(1) << np.int64(length)) - np.int64(1)) << np.int64(first))


@njit(cache=True, nogil=True, inline="always")
def batch_span(a: TimelineArrays, mask: IntArray, place: IntArray, code: int, lo: int, hi: int) -> tuple[int, int]:
    """Return the first and last position in lo..hi-1 a batch may take, given the batches it shares shards with.

    Parameters
    ----------
    a
        The problem.
    mask
        (n, d) shards of each batch as bits.
    place
        (n * d,) position of each batch.
    code
        The batch op * d + device.
    lo, hi
        Positions to choose from.
    """
    d = mask.shape[1]
    v, held = code // d, mask[code // d, code % d]
    left, right = lo, hi - 1
    for q in range(a.pred_indptr[v], a.pred_indptr[v + 1]):
        for j in range(d):
            if mask[a.pred[q], j] & held and place[a.pred[q] * d + j] + 1 > left:
                left = place[a.pred[q] * d + j] + 1
    for q in range(a.succ_indptr[v], a.succ_indptr[v + 1]):
        for j in range(d):
            if mask[a.succ[q], j] & held and place[a.succ[q] * d + j] - 1 < right:
                right = place[a.succ[q] * d + j] - 1
    return left, right
