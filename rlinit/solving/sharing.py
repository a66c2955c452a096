"""Pipelines on devices that share a processor, a bus or a socket: one problem for each set that may be at work.

Where a plan uses u devices that share, each is slower by the factor of u (`Hardware.sharing`). With the set fixed the
factor is, so that every set is a problem of its own, without sharing, on which the other devices are forbidden. The
least value of the sets is the value. A plan of a set may leave one of its devices idle; then it belongs to a smaller
set, which is solved as well. Every plan belongs to one set, and on it no bound of that set is above its value: the
least bound of the sets is one of the whole problem.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Iterator
from itertools import combinations, product

import numpy as np

from rlinit.comparison.baselines import BEST_DEVICE
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidHardware, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import HistoryEntry, Plan, is_closed
from rlinit.solving.incumbent import Progress
from rlinit.solving.options import SolveOptions
from rlinit.solving.plans import Request, Solved, checked_plan
from rlinit.solving.stages import bound_stages, solve_stages
from rlinit.stages.lowering import lower_stages

_MOST_SETS = 64


def shares(hardware: Hardware, options: SolveOptions) -> bool:
    """Return whether devices slow each other under an objective.

    Parameters
    ----------
    hardware
        The devices.
    options
        The problem.

    Raises
    ------
    RlinitError
        They would, in a pipeline of a kind that does not count it.
    """
    if not hardware.sharing or options.objective != "pipeline":
        return False
    for said, what in (
        (options.chunks > 1, "chunks"),
        (not options.contiguous, "contiguous=False"),
        (options.training is not None, "training"),
        (options.activations, "activations"),
        (options.refine is not None, "refine"),
        (options.checkpoint is not None, "checkpoint"),
    ):
        if said:
            raise RlinitError(
                f"{what} does not count devices that share {', '.join(map(repr, hardware.sharing))}; leave sharing out "
                "of the hardware and give devices a slowdown"
            )
    return True


def schedule_shared(request: Request) -> Plan:
    """Return the best plan over all sets of devices at work.

    Parameters
    ----------
    request
        What is asked for; a plan to refine is refused.

    Raises
    ------
    InvalidHardware
        More than 64 sets.
    RlinitError
        A plan to refine.
    """
    graph, hardware, budget = request.graph, request.hardware, request.budget
    if request.plan is not None:
        raise RlinitError("a plan cannot be refined on devices that share; schedule anew")
    best: Solved | None = None
    last: Solved | None = None
    value, bounds, single, began = math.inf, [], math.inf, time.monotonic()
    cases, trusted = list(_sets(graph, hardware)), set[str]()
    for at, used in enumerate(cases):
        restricted, crowded = _restricted(graph, hardware, used)
        low = _least(restricted, crowded, used)
        bounds.append(low)
        if best is not None and low >= value:
            continue
        share, told = budget.share(budget.remaining_s / (len(cases) - at)), _told(request.progress, value, began)
        part = Request(restricted, crowded, request.options, None, share, told)
        last = solve_stages(part)
        ended = last.incumbent
        proven = math.inf if ended.infeasible else (ended.reported_bounds or (0.0,))[0]
        bounds[-1] = max(low, proven)
        trusted |= set(ended.trusted) if proven > low else set()
        single = min([single, *_single(last, hardware, crowded)])
        while best is None and ended.values is not None and not _is_set(last, hardware, crowded):
            # Its own set was not solved in time: the same devices, which are fewer, on their own terms from this plan.
            found = checked_plan(last, part)
            restricted, crowded = _restricted(graph, hardware, _at_work(last))
            prints = {"graph_fingerprint": restricted.fingerprint(), "hardware_fingerprint": crowded.fingerprint()}
            start = dataclasses.replace(found, **prints)  # type: ignore[arg-type]  # both are text
            share = budget.share(budget.remaining_s / 2)
            part = Request(restricted, crowded, request.options, start, share, told)
            last = solve_stages(part)
            ended = last.incumbent
        if ended.values is not None and _is_set(last, hardware, crowded) and ended.values[0] < value:
            best, value = last, ended.values[0]
    if best is None:
        assert last is not None  # the set of all devices was tried last; where nothing fits it, nothing does
        last.incumbent.history.clear()  # its bounds are those of this set alone
        last.incumbent.bounds, last.incumbent.bound_source = None, ""
        return checked_plan(last, request)
    found = checked_plan(best, request)
    proven = min(min(bounds), value)
    kept = {name: one for name, one in found.baselines.items() if name != BEST_DEVICE}
    return dataclasses.replace(
        found,
        bounds=(proven,),
        bound_source=found.bound_source if proven > 0.0 else "",
        provenance={key: said for key, said in found.provenance.items() if key != "trusted"}
        | ({"trusted": ", ".join(sorted(trusted))} if trusted else {}),
        status="optimal" if is_closed(found.values, (proven,)) else "feasible",
        history=tuple(dataclasses.replace(entry, bounds=None) for entry in found.history),
        baselines={BEST_DEVICE: single, **kept} if BEST_DEVICE in found.baselines and single < math.inf else kept,
    )


def _told(progress: Progress | None, value: float, began: float) -> Progress | None:
    """Return what tells of a set's improvements, with the best value so far and without bounds: they are the set's."""
    if progress is None:
        return None

    def tell(entry: HistoryEntry) -> None:
        least = min(value, entry.values[0] if entry.values else math.inf)
        values = (least,) if least < math.inf else None
        progress(dataclasses.replace(entry, time_s=time.monotonic() - began, values=values, bounds=None))

    return tell


def bound_shared(request: Request) -> tuple[float, str, tuple[str, ...]]:
    """Return the least bound over all sets of devices at work, what proved it, and the notes of all.

    Parameters
    ----------
    request
        What is asked for.

    Raises
    ------
    InvalidHardware
        More than 64 sets.
    RlinitError
        An unknown bound, or a problem that is infeasible by its data alone.
    """
    graph, hardware, budget = request.graph, request.hardware, request.budget
    cases = list(_sets(graph, hardware))
    found: list[tuple[float, str]] = []
    notes: list[str] = []
    for at, used in enumerate(cases):
        restricted, crowded = _restricted(graph, hardware, used)
        if at < len(cases) - 1 and lower_stages(restricted, crowded, "pipeline").infeasible:
            continue  # no plan belongs to this set; what does not fit all devices is refused below
        share = budget.share(budget.remaining_s / (len(cases) - at))
        incumbent = bound_stages(Request(restricted, crowded, request.options, None, share))
        low = math.inf if incumbent.infeasible else (incumbent.bounds or (0.0,))[0]
        found.append((low, incumbent.bound_source))
        notes += incumbent.notes
    return *min(found), tuple(dict.fromkeys(notes))


def _sets(graph: Graph, hardware: Hardware) -> Iterator[frozenset[str]]:
    """Yield the sets of devices that may be at work, small ones first; of devices that are alike, the first ones."""
    choices = []
    for name in hardware.sharing:
        sharers = [i for i, device in enumerate(hardware.devices) if device.shares == name]
        if len({_nature(graph, hardware, i) for i in sharers}) == 1:
            choices.append([tuple(sharers[:count]) for count in range(len(sharers) + 1)])
        else:
            choices.append([some for count in range(len(sharers) + 1) for some in combinations(sharers, count)])
    if math.prod(map(len, choices)) > _MOST_SETS:
        raise InvalidHardware(
            f"{hardware.name!r} has more than {_MOST_SETS} sets of devices that may be at work; expected fewer: give "
            "devices that are alike the same figures, or leave some out"
        )
    others = [device.name for device in hardware.devices if device.shares not in hardware.sharing]
    found = [
        frozenset([*others, *(hardware.devices[i].name for some in chosen for i in some)])
        for chosen in product(*choices)
    ]
    yield from sorted((one for one in found if one), key=lambda one: (len(one), sorted(one)))


def _nature(graph: Graph, hardware: Hardware, i: int) -> tuple[object, ...]:
    """Return all by which a stage on a device differs from one on another."""
    device = hardware.devices[i]
    others = np.arange(len(hardware)) != i
    delays = [float(row[others].max(initial=0.0)) for row in (hardware.latency_s[i], hardware.latency_s[:, i])]
    sizes = device.memory_bytes, device.cache_bytes, device.slowdown
    return op_times(graph, device).tobytes(), hardware.io_bandwidth(i), *delays, *sizes


def _restricted(graph: Graph, hardware: Hardware, used: Collection[str]) -> tuple[Graph, Hardware]:
    """Return the graph with its ops forbidden on the devices that are not at work, and the hardware as slow as it is.

    Idle devices get a kind of their own to be forbidden by: one's name may be the kind of another that is at work.
    """
    crowded, idle = hardware.crowded(used), "idle"
    if len(used) == len(crowded):
        return graph, crowded
    known = {key for device in crowded.devices for key in (device.name, device.kind)} | {key for key, _ in graph.times}
    while idle in known:
        idle += "-"
    devices = tuple(one if one.name in used else dataclasses.replace(one, kind=idle) for one in crowded.devices)
    forbidden = {**graph.forbidden, idle: np.ones(graph.num_ops, np.bool_)}
    return dataclasses.replace(graph, forbidden=forbidden), dataclasses.replace(crowded, devices=devices)


def _least(graph: Graph, hardware: Hardware, used: Collection[str]) -> float:
    """Return a bound on the bottleneck: the mean work of a stage where every op is on its fastest device."""
    seconds = np.min([op_times(graph, device) for device in hardware.devices if device.name in used], axis=0)
    return (
        float(max(seconds.sum() / len(used), seconds.max())) * (1 - 1e-12) if np.isfinite(seconds).all() else math.inf
    )


def _is_set(solved: Solved, hardware: Hardware, crowded: Hardware) -> bool:
    """Return whether what is at work in a plan makes its devices as slow as they were taken to be."""
    used = _at_work(solved)
    pairs = zip(hardware.crowded(used).devices, crowded.devices, strict=True)
    return all(mine.slowdown == taken.slowdown for mine, taken in pairs if mine.name in used)


def _at_work(solved: Solved) -> frozenset[str]:
    return frozenset(use.device for use in solved.parts["stages"] if use.num_ops)


def _single(solved: Solved, hardware: Hardware, crowded: Hardware) -> list[float]:
    """Return the value of the best single device, which alone is not slowed by those that share with it."""
    found = []
    for one in solved.baselines:
        if one.name == BEST_DEVICE and one.value is not None:
            pairs = zip(hardware.crowded([one.note]).devices, crowded.devices, strict=True)
            alone, taken = next(pair for pair in pairs if pair[0].name == one.note)
            found.append(one.value * alone.slowdown / taken.slowdown)
    return found
