"""Baselines of placements: the best device, a share of the inputs for each, contiguous splits, and HEFT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.comparison.baselines import BEST_DEVICE, EQUAL_LAYERS, OUT_OF_TIME, Baseline, cut_order
from rlinit.graph import Graph
from rlinit.hardware import CAPACITY_SLACK, Hardware
from rlinit.heuristics.placements.data_parallel import data_parallel
from rlinit.heuristics.placements.list_scheduling.common import placed_in_order
from rlinit.heuristics.placements.list_scheduling.heuristics import heft, single_devices
from rlinit.heuristics.placements.memory.peak_relief import in_natural_order
from rlinit.placements.live_tensors import LiveTensors
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes, makespan
from rlinit.units import format_bytes

DATA_PARALLEL = "data parallel"
"""The whole network on every device, each for its share of the inputs; only where there are several."""

PLACEMENT_BASELINES = (BEST_DEVICE, DATA_PARALLEL, EQUAL_LAYERS, "split by speed", "split by memory", "HEFT")

_TOO_LARGE = 100_000
"""Ops times devices times shards beyond which HEFT is left out: 10,000 ops on 8 devices take 0.1 s."""


def placement_baselines(
    problem: PlacementProblem, graph: Graph, hardware: Hardware, budget: Budget, live: LiveTensors | None = None
) -> Iterator[Baseline[Placement]]:
    """Yield what the rules of `PLACEMENT_BASELINES` give, each evaluated as the plan is.

    The splits cut the natural order into as many consecutive parts as there are devices, in the hardware's order;
    colocated ops follow the first of their group, and all inputs of an op stay together.

    Parameters
    ----------
    problem
        The problem.
    graph, hardware
        Where ops and devices have their names from.
    budget
        A rule is not begun once it has ended.
    live
        The problem's tensors, where their peak counts against memory.
    """
    rules = {
        BEST_DEVICE: lambda: _best_device(problem, hardware, live),
        DATA_PARALLEL: lambda: _data_parallel(problem),
        EQUAL_LAYERS: lambda: _split(problem, np.ones(problem.num_ops), np.ones(problem.num_devices), graph, hardware),
        "split by speed": lambda: _by_speed(problem, graph, hardware),
        "split by memory": lambda: _by_memory(problem, graph, hardware),
        "HEFT": lambda: _heft(problem),
    }
    for name in PLACEMENT_BASELINES:
        if name == DATA_PARALLEL and problem.num_shards == 1:
            continue
        placement, note = (None, OUT_OF_TIME) if budget.expired else rules[name]()
        if placement is not None and live is not None:
            placement, note = _within_memory(problem, live, placement, note, hardware)
        value = None if placement is None else makespan(problem, placement)
        yield Baseline(name, placement, value, note)


_Outcome = tuple[Placement | None, str]
"""A feasible placement and a remark, or None and the reason."""


def _within_memory(
    problem: PlacementProblem, live: LiveTensors, placement: Placement, note: str, hardware: Hardware
) -> _Outcome:
    """Return a placement, in the natural order where only that fits, or which device is overfull."""
    for candidate in (placement, in_natural_order(problem, placement)):
        over = live.excess(problem, candidate)
        if not over.any():
            return candidate, note
    full = int(np.argmax(over))
    need, room = problem.capacity_bytes[full] + over[full], problem.capacity_bytes[full]
    return None, f"device {hardware.devices[full].name!r} would hold {format_bytes(need)} of {format_bytes(room)}"


def _best_device(problem: PlacementProblem, hardware: Hardware, live: LiveTensors | None) -> _Outcome:
    need = np.inf
    for placement in single_devices(problem):
        i = int(placement.device[0, 0])
        if live is None or not live.excess(problem, placement).any():
            return placement, hardware.devices[i].name
        need = min(need, float((held_bytes(problem, placement.device) + live.peak_bytes(problem, placement))[i]))
    if need < np.inf:
        return None, _no_device(need, problem.capacity_bytes.max())
    able = np.isfinite(problem.op_time_s).all(axis=0)
    if not able.any():
        return None, "no device may run every op on all inputs at once"
    whole = np.full((problem.num_ops, problem.num_shards), int(np.argmax(able)), np.int64)
    return None, _no_device(held_bytes(problem, whole).max(), problem.capacity_bytes[able].max())


def _data_parallel(problem: PlacementProblem) -> _Outcome:
    placement = data_parallel(problem)
    if placement is None:
        return None, "no devices together hold and run the whole network each"
    shards = np.bincount(placement.device[0], minlength=problem.num_devices) * problem.shard_inputs
    return placement, " + ".join(str(each) for each in shards.tolist()) + " inputs"


def _no_device(need: float, room: float) -> str:
    return f"no device holds the whole model: {format_bytes(need)}, the largest memory is {format_bytes(room)}"


def _by_speed(problem: PlacementProblem, graph: Graph, hardware: Hardware) -> _Outcome:
    """Cut the work in proportion to the devices' speed on what they may run."""
    seconds = problem.op_time_s
    runs = np.isfinite(seconds)
    least = np.where(runs.any(axis=1), np.min(seconds, axis=1, where=runs, initial=np.inf), 0.0)
    least[~np.isfinite(least)] = 0.0
    own = np.where(runs, seconds, 0.0).sum(axis=0)
    best = np.where(runs, least[:, None], 0.0).sum(axis=0)
    speed = np.divide(best, own, out=np.ones_like(own), where=own > 0.0)
    speed[~runs.any(axis=0)] = 0.0
    if not speed.any():
        return None, "no device may run an op on all inputs at once"
    return _split(problem, least, speed, graph, hardware)


def _by_memory(problem: PlacementProblem, graph: Graph, hardware: Hardware) -> _Outcome:
    """Cut the bytes in proportion to the devices' memory."""
    unlimited = [device.name for device in hardware.devices if not np.isfinite(device.memory_bytes)]
    if unlimited:
        return None, f"device {unlimited[0]!r} has no limit of memory to share by"
    held = problem.weight_bytes + problem.num_shards * problem.shard_bytes
    return _split(problem, held, problem.capacity_bytes, graph, hardware)


def _heft(problem: PlacementProblem) -> _Outcome:
    if problem.num_ops * problem.num_devices * problem.num_shards > _TOO_LARGE:
        return None, f"not computed for more than {_TOO_LARGE:,} choices of device"
    placement = heft(problem)
    return placement, "" if placement is not None else "it runs out of memory or of links on the way"


def _split(
    problem: PlacementProblem, weight: FloatArray, shares: FloatArray, graph: Graph, hardware: Hardware
) -> _Outcome:
    """Cut the natural order into consecutive parts of given shares of a weight, one for each device."""
    device = cut_order(problem.order, weight, shares)[problem.group]
    mask = np.zeros((problem.num_ops, problem.num_devices), np.int64)
    mask[np.arange(problem.num_ops), device] = (1 << problem.num_shards) - 1
    placement = placed_in_order(problem, mask, problem.order)
    if placement is not None:
        return placement, ""
    return None, _reason(problem, device, graph.names, [one.name for one in hardware.devices])


def _reason(problem: PlacementProblem, device: IntArray, ops: Sequence[str], devices: Sequence[str]) -> str:
    """Return why ops may not be where they are."""
    stuck = np.flatnonzero(~np.isfinite(problem.op_time_s[np.arange(problem.num_ops), device]))
    if len(stuck):
        return f"op {ops[stuck[0]]!r} may not run on device {devices[device[stuck[0]]]!r} for all inputs at once"
    held = held_bytes(problem, np.repeat(device[:, None], problem.num_shards, axis=1))
    full = np.flatnonzero(held > problem.capacity_bytes * CAPACITY_SLACK)
    if len(full):
        room = problem.capacity_bytes[full[0]]
        return f"device {devices[full[0]]!r} would hold {format_bytes(held[full[0]])} of {format_bytes(room)}"
    for u, v in problem.edges:
        if not np.isfinite(problem.delay_s[device[u], device[v]]):
            return f"there is no link from device {devices[device[u]]!r} to {devices[device[v]]!r}"
    return "it does not fit"
