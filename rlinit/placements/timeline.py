"""From a placement to its timeline: compiled list scheduling, and what a placement may not break."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.orders import kahn
from rlinit.kernels.placements.timeline import (
    BLOCKING,
    EXCLUSIVE,
    PARALLEL,
    TimelineArrays,
    Transfers,
    no_transfers,
    run_batches,
)
from rlinit.placements.problem import Placement, PlacementProblem

MODES = {"parallel": PARALLEL, "exclusive": EXCLUSIVE, "blocking": BLOCKING}
"""What the kernels call the ways of transferring."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One transfer of an op's output between two devices (indices), in seconds from the start."""

    op: int
    source: int
    target: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """When the batches of a placement run.

    Parameters
    ----------
    start_s, end_s
        (n, d) start and end of batch (v, i); NaN where there is none.
    makespan_s
        When the last one ends.
    transfers
        Transfers that share links or devices with others, by start; empty for ``parallel``, where each starts when
        its producer ends.
    """

    start_s: FloatArray
    end_s: FloatArray
    makespan_s: float
    transfers: tuple[Transfer, ...]


def shard_masks(device: IntArray, num_devices: int) -> IntArray:
    """Return (n, d) shards of each batch as the bits of an integer, from the (n, s) device of each shard.

    Parameters
    ----------
    device
        (n, s) device index of each shard of each op, in 0 .. d - 1.
    num_devices
        d.
    """
    n, s = device.shape
    masks = np.zeros((n, num_devices), np.int64)
    for shard in range(s):
        masks[np.arange(n), device[:, shard]] |= 1 << shard
    return masks


def _batch_sizes(device: IntArray, num_devices: int) -> IntArray:
    """Return (n, d) number of shards of each batch."""
    sizes = np.zeros((len(device), num_devices), np.int64)
    for shard in range(device.shape[1]):
        sizes[np.arange(len(device)), device[:, shard]] += 1
    return sizes


def timeline_arrays(problem: PlacementProblem) -> TimelineArrays:
    """Return what the kernels need of a problem to run batches."""
    return TimelineArrays(
        problem.time_s,
        problem.tensor_bytes,
        problem.s_per_byte,
        problem.delay_s,
        problem.pred_indptr,
        problem.pred,
        problem.succ_indptr,
        problem.succ,
        problem.num_ops - problem.num_ports,
    )


def timeline(problem: PlacementProblem, placement: Placement) -> Timeline:
    """Start every batch as early as its data and the batch before it on its device allow.

    Transfers that exclude each other are made first come, first served (`exclusive`), or when the receiver gets to
    the first batch that needs them (`blocking`). The makespan is ``inf`` where a batch may not run or a link is
    missing, and NaN if the sequence does not respect a dependency.

    Parameters
    ----------
    problem
        The problem.
    placement
        Devices of its shards, and the sequence in which batches are appended.
    """
    start, moved, makespan_s = run_placement(problem, placement)
    op, row, target = np.nonzero(~np.isnan(moved.sent))
    source = row if moved.sent.shape[1] == problem.num_devices else placement.device[op, row]
    sent, arrival = moved.sent[op, row, target], moved.arrival[op, row, target]
    in_time = np.lexsort((target, source, op, sent))
    columns = (each[in_time].tolist() for each in (op, source, target, sent, arrival))
    return Timeline(start, end_times(problem, placement, start), makespan_s, tuple(map(Transfer, *columns)))


def end_times(problem: PlacementProblem, placement: Placement, start_s: FloatArray) -> FloatArray:
    """Return the (n, d) ends of batches.

    Parameters
    ----------
    problem, placement
        The problem, and what runs.
    start_s
        (n, d) starts in seconds; NaN where there is no batch.
    """
    sizes = _batch_sizes(placement.device, problem.num_devices)
    end: FloatArray = start_s + np.take_along_axis(problem.time_s, sizes[:, :, None], axis=2)[:, :, 0]
    return end


def run_placement(problem: PlacementProblem, placement: Placement) -> tuple[FloatArray, Transfers, float]:
    """Return the (n, d) starts of batches, the transfers and the makespan, as `timeline` says.

    Parameters
    ----------
    problem, placement
        As for `timeline`.
    """
    n, d = problem.num_ops, problem.num_devices
    masks = shard_masks(placement.device, d)
    start = np.empty((n, d))
    mode = MODES[problem.transfers]
    moved = no_transfers(mode, n, problem.num_shards, d)
    makespan_s = run_batches(timeline_arrays(problem), mode, placement.sequence, masks, start, moved)
    return start, moved, float(makespan_s)


def held_bytes(problem: PlacementProblem, device: IntArray) -> FloatArray:
    """Return (d,) bytes each device holds when shard c of op v is on ``device[v, c]`` (DIVIML condition 6).

    Parameters
    ----------
    problem
        The problem.
    device
        (n, s) device index of each shard of each op, in 0 .. d - 1.
    """
    op, at, count = _batches(device, problem.num_devices)
    amount = problem.weight_bytes[op] + problem.shard_bytes[op] * count
    return np.asarray(np.bincount(at, amount, problem.num_devices), np.float64)


def _batches(device: IntArray, num_devices: int) -> tuple[IntArray, IntArray, IntArray]:
    """Return the op, device and number of shards of each batch, by op and device."""
    if device.shape[1] == 1:
        return np.arange(len(device)), device[:, 0], np.ones(len(device), np.int64)
    sizes = _batch_sizes(device, num_devices)
    op, at = np.nonzero(sizes)
    return op, at, sizes[op, at]


def obstacle(problem: PlacementProblem, placement: Placement) -> str:
    """Return what is wrong with the devices of a placement, whatever its sequence; "" if nothing is.

    Parameters
    ----------
    problem
        The problem.
    placement
        Any placement of its shape.
    """
    device = placement.device
    op, at, count = _batches(device, problem.num_devices)
    banned = np.flatnonzero(~np.isfinite(problem.time_s[op, at, count]))
    if len(banned):
        first = banned[0]
        return f"op {op[first]} may not run {count[first]} shards on device {at[first]}"
    apart = np.flatnonzero((device != device[problem.group]).any(axis=1))
    if len(apart):
        return f"op {apart[0]} is not where op {problem.group[apart[0]]} of its group is"
    held = held_bytes(problem, device)
    full = np.flatnonzero(held > problem.capacity_bytes * CAPACITY_SLACK)
    if len(full):
        return f"device {full[0]} holds {held[full[0]]:,.0f} bytes of {problem.capacity_bytes[full[0]]:,.0f}"
    return ""


def makespan(problem: PlacementProblem, placement: Placement) -> float:
    """Return the makespan in seconds of a placement; ``inf`` if it breaks a constraint or needs a missing link.

    Parameters
    ----------
    problem
        The problem.
    placement
        Any placement of its shape.
    """
    if obstacle(problem, placement):
        return float("inf")
    _, _, value = run_placement(problem, placement)
    return float("inf") if np.isnan(value) else value


def placement_of(problem: PlacementProblem, device: IntArray, start_s: FloatArray) -> Placement:
    """Return the placement that runs batches in the order of given starts.

    Parameters
    ----------
    device
        (n, s) device of each shard.
    start_s
        (n, d) start of each batch that exists; others are ignored. Of equal starts the one that ends first goes first;
        further ties, and starts that contradict a dependency, go to the topological order, so that the result is always
        a valid sequence.
    """
    sizes = _batch_sizes(device, problem.num_devices)
    seconds = np.take_along_axis(problem.time_s, sizes[:, :, None], axis=2)[:, :, 0]
    return _sorted(problem, device, start_s, start_s + seconds)


def placement_from_priority(problem: PlacementProblem, device: IntArray, priority: FloatArray | IntArray) -> Placement:
    """Return the placement that runs, among batches whose producers ran, that of smallest `priority` ((n,)) first.

    Parameters
    ----------
    problem
        The problem.
    device
        (n, s) device index of each shard of each op, in 0 .. d - 1.
    priority
        (n,) of each op, in any unit; ties go to the smaller index.
    """
    key = np.repeat(priority[:, None].astype(np.float64), problem.num_devices, axis=1)
    return _sorted(problem, device, key, key)


def _sorted(problem: PlacementProblem, device: IntArray, key: FloatArray, next_key: FloatArray) -> Placement:
    """Sort batches by keys under their dependencies (Kahn with a heap); ties go to the topological order."""
    d = problem.num_devices
    sizes = _batch_sizes(device, d)
    rank = inverse_of(problem.order)
    batches = np.flatnonzero(sizes.ravel())
    by_key = batches[np.lexsort((batches, rank[batches // d], next_key.ravel()[batches], key.ravel()[batches]))]
    place, count = np.empty(problem.num_ops * d, np.int64), len(by_key)
    place[by_key] = np.arange(count)
    first, second = place[_pairs(problem, device)].T
    if (first < second).all():
        return Placement(device, by_key)
    pairs = np.unique(first * count + second)
    succ_indptr = np.searchsorted(pairs, np.arange(count + 1) * count)
    pred_indptr = np.append(0, np.cumsum(np.bincount(pairs % count, minlength=count)))
    order = kahn(-np.arange(count, dtype=np.float64), succ_indptr, pairs % count, pred_indptr)
    return Placement(device, by_key[order])


def _pairs(problem: PlacementProblem, device: IntArray) -> IntArray:
    """Return the (producer batch, consumer batch) pairs of each shard."""
    batch = np.arange(problem.num_ops)[:, None] * problem.num_devices + device
    return batch[problem.edges].transpose(0, 2, 1).reshape(-1, 2)


def respects_dependencies(problem: PlacementProblem, device: IntArray, sequence: IntArray) -> bool:
    """Return whether every batch of a sequence comes after those it depends on; `device` is (n, s).

    Parameters
    ----------
    problem
        The problem.
    device
        (n, s) device index of each shard of each op, in 0 .. d - 1.
    sequence
        Batches in the order they start, each as ``op * d + device``.
    """
    place = np.empty(problem.num_ops * problem.num_devices, np.int64)
    place[sequence] = np.arange(len(sequence))
    pairs = _pairs(problem, device)
    return bool((place[pairs[:, 0]] < place[pairs[:, 1]]).all())
