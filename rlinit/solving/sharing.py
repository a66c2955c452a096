"""The plan of a problem, and what is settled in cases: devices that share something, and ops that share parameters.

Pipelines on devices that share a processor, a bus or a socket: where a plan uses u devices that share, each is slower
by the factor of u (`Hardware.sharing`). With the set fixed the factor is, so that every set is a problem of its own,
without sharing, on which the other devices are forbidden. The least value of the sets is the value. A plan of a set may
leave one of its devices idle; then it belongs to a smaller set, which is solved as well. Every plan belongs to one set,
and on it no bound of that set is above its value: the least bound of the sets is one of the whole problem.

Shared parameters: in a case some readers are together, colocated with one copy, and what is not has copies of its own
(`rlinit.coarsening.tied_parameters`). A plan holds as much in the case of its own readers, and in no case less; so the
least value of all cases is the value, and the least bound one of the problem. Where all copies fit everywhere, the case
without any together is the problem itself. With many readers there are too many cases, and an op of several inputs may
run on several devices. Then the bound is that of a relaxation: each of m readers holds a part b / m of a parameter of b
bytes, and no set of ops holds less.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product

import numpy as np

from rlinit.arrays import ROUNDING
from rlinit.budget import SIDE_SHARE, Budget
from rlinit.checker import verify
from rlinit.checker.compatibility import figures_of
from rlinit.coarsening.tied_parameters import Together, arranged, cases_of, has_tied, joined, relaxed
from rlinit.comparison.baselines import BEST_DEVICE
from rlinit.costs.roofline import held_tensors, known_bytes, op_times
from rlinit.errors import InvalidHardware, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import DeviceUse, HistoryEntry, Plan, Status, is_closed
from rlinit.solving.common.incumbent import Progress
from rlinit.solving.common.options import places_ops, shares
from rlinit.solving.phases import bound, solve
from rlinit.solving.plans import Request, Solved, checked_plan, resumed
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import Value
from rlinit.tensors import repeated_bytes
from rlinit.units import format_bytes, format_seconds

_MOST_SETS = 64
"""Sets of devices at work: each is a problem of its own and has a part of the time."""


def plan_of_cases(request: Request) -> Plan | None:
    """Return the best plan of a problem's cases, checked; None where the problem is to be solved as it stands.

    Parameters
    ----------
    request
        What is asked for.

    Raises
    ------
    InvalidHardware
        Devices that share, in more than 64 sets.
    RlinitError
        The options do not fit the problem, or the checkpoint is of another one.
    """
    if has_tied(request.graph):
        return _schedule_tied(request)
    if shares(request.hardware, request.options):
        return _schedule_shared(request)
    return None if request.options.refine is None else _refined(resumed(request))


def _refined(request: Request) -> Plan:
    """Solve with layers or modules whole, then from there without; the first plan is one of the second problem too."""
    graph, options, budget = request.graph, request.options, request.budget
    share = budget.share(SIDE_SHARE * budget.remaining_s)
    whole = dataclasses.replace(request, graph=graph.group(options.refine or "layer"), budget=share)
    first = checked_plan(solve(whole), whole)
    spent = budget.elapsed_s
    start = None if first.assignment is None else dataclasses.replace(first, graph_fingerprint=graph.fingerprint())
    request = dataclasses.replace(request, plan=start)
    solved = solve(request)
    show = format_bytes if options.objective == "memory" else format_seconds
    found = "" if first.values is None else f", {show(first.values[0])} before going on inside them"
    solved.incumbent.notes.append(f"with {options.refine}s whole: {first.status}{found}")
    solved.incumbent.phase_s[f"{options.refine}s whole"] = spent
    origin = solved.origin if start is None else f"the plan with {options.refine}s whole"
    return checked_plan(solved._replace(origin=origin), request)


def bound_of(request: Request) -> tuple[Value | None, str, Sequence[str]]:
    """Return what a bound proves of a problem, or of the least of its cases, what proved it, and notes.

    Parameters
    ----------
    request
        What is asked for; its method is the name of a bound, or ``auto``.

    Raises
    ------
    InvalidHardware
        Devices that share, in more than 64 sets.
    RlinitError
        An unknown bound, or a problem that is infeasible by its data alone.
    """
    if has_tied(request.graph):
        graph = relaxed(request.graph) if _may_fill(request) else arranged(request.graph, ())
        request = dataclasses.replace(request, graph=graph)
    if shares(request.hardware, request.options):
        return _bound_shared(request)
    known = bound(request)
    return known.bounds, known.bound_source, known.notes


def largest_case(request: Request) -> Request:
    """Return a problem without cases whose strategy is that of the largest: copies of all, and all devices at work.

    Parameters
    ----------
    request
        What is asked for.
    """
    hardware, graph, plan = request.hardware, request.graph, request.plan
    if shares(hardware, request.options):
        hardware = hardware.crowded([device.name for device in hardware.devices])
    if has_tied(graph):
        graph = arranged(graph, ())
        plan = None if plan is None else dataclasses.replace(plan, graph_fingerprint=graph.fingerprint())
    return dataclasses.replace(request, hardware=hardware, graph=graph, plan=plan)


# -- devices that share --------------------------------------------------------------------------------------------


def _schedule_shared(request: Request) -> Plan:
    """Return the best plan over all sets of devices at work; a plan to refine is refused."""
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
        last = solve(part)
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
            last = solve(part)
            ended = last.incumbent
        if ended.values is not None and _is_set(last, hardware, crowded) and ended.values[0] < value:
            best, value = last, ended.values[0]
    if best is None:
        assert last is not None  # the set of all devices was tried last; where nothing fits it, nothing does
        nothing = checked_plan(last, request)  # its bounds are those of this set alone
        return dataclasses.replace(nothing, history=(), bounds=None, bound_source="")
    found = checked_plan(best, request)
    proven = min(min(bounds), value)
    kept = {name: one for name, one in found.baselines.items() if name != BEST_DEVICE}
    if BEST_DEVICE in found.baselines and single < math.inf:
        kept = {BEST_DEVICE: single, **kept}
    source = found.bound_source if proven > 0.0 else ""
    return _proven(found, (proven,), source, trusted, kept, budget)


def _proven(
    found: Plan,
    bounds: Value,
    source: str,
    trusted: Collection[str],
    baselines: Mapping[str, float | None],
    budget: Budget,
) -> Plan:
    """Return the best plan of all cases with what they prove together, which its history has at the end alone."""
    history = [dataclasses.replace(entry, bounds=None) for entry in found.history]
    said = {key: one for key, one in found.provenance.items() if key != "trusted"}
    return dataclasses.replace(
        found,
        bounds=bounds,
        bound_source=source,
        status="optimal" if is_closed(found.values, bounds) else "feasible",
        provenance=said | ({"trusted": ", ".join(sorted(trusted))} if trusted else {}),
        history=(*history, HistoryEntry(budget.elapsed_s, found.values, bounds, found.method)),
        baselines=baselines,
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


def _bound_shared(request: Request) -> tuple[Value, str, tuple[str, ...]]:
    """Return the least bound over all sets of devices at work, what proved it, and the notes of all."""
    graph, hardware, budget = request.graph, request.hardware, request.budget
    cases = list(_sets(graph, hardware))
    found: list[tuple[float, str]] = []
    notes: list[str] = []
    for at, used in enumerate(cases):
        restricted, crowded = _restricted(graph, hardware, used)
        if at < len(cases) - 1 and lower_stages(restricted, crowded, "pipeline").infeasible:
            continue  # no plan belongs to this set; what does not fit all devices is refused below
        share = budget.share(budget.remaining_s / (len(cases) - at))
        part = Request(restricted, crowded, request.options, None, share)
        incumbent = bound(part)
        low = math.inf if incumbent.infeasible else (incumbent.bounds or (0.0,))[0]
        found.append((low, incumbent.bound_source))
        notes += incumbent.notes
    low, source = min(found)
    return (low,), source, tuple(dict.fromkeys(notes))


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
    if not np.isfinite(seconds).all():
        return math.inf
    return float(max(seconds.sum() / len(used), seconds.max())) * (1.0 - ROUNDING)


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


# -- shared parameters ---------------------------------------------------------------------------------------------


def _schedule_tied(request: Request) -> Plan:
    """Return the best plan over the cases of readers that are together; checkpoints are refused."""
    graph, options, given = request.graph, request.options, request.plan
    if options.checkpoint is not None:
        raise RlinitError(
            "a checkpoint keeps the plan of one problem, and parameters that several ops read are settled in several; "
            "leave it out, or import with sharing='copy' or 'colocate' (--checkpoint)"
        )
    if not _may_fill(request):
        plan = _planned_case(request, arranged(graph, ()), given, 1)
        return _renamed(_truly(plan, (), request), request)
    own = None if given is None or given.assignment is None else _together(given, graph)
    cases = cases_of(graph)
    complete = cases is not None and (options.inputs or 1) == 1
    tried = cases if cases is not None else [(), joined(frozenset(one.readers) for one in graph.shared)]
    tried += [] if own is None or own in tried else [own]
    plans: list[tuple[Plan, Together | None]] = []
    if not complete:
        plans.append((_planned_case(request, relaxed(graph), None, len(tried) + 1), None))
    for at, together in enumerate(tried):
        start = given if own == together else None
        plan = _planned_case(request, arranged(graph, together), start, len(tried) - at)
        plans.append((plan, together))
    bounding = [plan for plan, together in plans if complete or together is None]
    told = [_truly(plan, together, request) for plan, together in plans if plan.assignment is not None]
    found = min((plan for plan in told if plan.values), key=lambda plan: plan.values or (), default=None)
    return _renamed(
        _nothing(bounding) if found is None else _joint(found, bounding, [one for one, _ in plans], request.budget),
        request,
    )


def _planned_case(request: Request, graph: Graph, start: Plan | None, left: int) -> Plan:
    """Return the plan of a case, which has a part of the time left, of `left` cases to come."""
    options, budget = request.options, request.budget
    if left > 1:
        budget = budget.share(budget.remaining_s / left)
    if start is None:
        options = dataclasses.replace(options, agent="auto" if options.agent == "plan" else options.agent)
    else:
        start = dataclasses.replace(start, graph_fingerprint=graph.fingerprint())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*go to one stage")  # in this case alone
        case = dataclasses.replace(request, graph=graph, options=options, plan=start, budget=budget)
        plan = plan_of_cases(case)
        if plan is None:
            case = resumed(case)
            plan = checked_plan(solve(case), case)
        return plan


def _truly(plan: Plan, together: Together | None, request: Request) -> Plan:
    """Return a plan of a case with the figures of the problem, in which readers are together wherever they are.

    Parameters
    ----------
    plan
        Of the case; returned as it is where it has no schedule.
    together
        The case; None: the relaxation, whose plans may hold too much, and then come back without values.
    request
        The problem.
    """
    graph = request.graph
    if plan.assignment is None:
        return plan
    if places_ops(plan.objective):
        case = relaxed(graph) if together is None else arranged(graph, together)
        devices = tuple(
            dataclasses.replace(use, held_bytes=use.held_bytes + _difference(graph, case, plan, use))
            for use in plan.devices
        )
        room = {device.name: device.memory_bytes - device.reserve_bytes for device in request.hardware.devices}
        fits = together is not None or all(use.held_bytes <= room[use.device] for use in devices)
        return dataclasses.replace(plan, devices=devices, values=plan.values if fits else None)
    while plan.values is not None:
        mine = _together(plan, graph)
        if mine == together:
            break
        plan, together = _valued(plan, arranged(graph, mine, colocated=False), request), mine
    return plan


def _difference(graph: Graph, case: Graph, plan: Plan, use: DeviceUse) -> float:
    """Return the bytes of parameters that a device holds beyond those of a case."""
    ops = sorted({graph.index(batch.op) for batch in plan.batches if batch.device == use.device})
    true = math.fsum(known_bytes(graph.param_bytes[ops])) - repeated_bytes(graph.shared, ops)
    return true - math.fsum(known_bytes(case.param_bytes[ops]))


def _valued(plan: Plan, graph: Graph, request: Request) -> Plan:
    """Return a plan of stages as it is on another graph of the same ops, or without values where it does not fit."""
    hardware = request.hardware
    if hardware.sharing:
        hardware = hardware.crowded({use.device for use in plan.stages if use.num_ops})
    method = "milp" if request.options.training is None else "auto"
    options = dataclasses.replace(request.options, agent="plan", method=method, refine=None)
    start, budget = dataclasses.replace(plan, graph_fingerprint=graph.fingerprint()), Budget()
    budget.cancel()  # nothing is searched
    part = Request(graph, hardware, options, start, budget)
    solved = solve(part)
    return dataclasses.replace(plan, values=solved.incumbent.values, **solved.parts)


def _together(plan: Plan, graph: Graph) -> Together:
    """Return the readers of shared parameters that a plan has on one stage or device."""
    places: dict[tuple[int, object], set[int]] = {}
    for at, one in enumerate(graph.shared):
        for v in one.readers:
            places.setdefault((at, (plan.assignment or {})[graph.names[v]]), set()).add(v)
    return joined(map(frozenset, places.values()))


def _may_fill(request: Request) -> bool:
    """Return whether some device may not have room for copies of all parameters beside all else that it may hold."""
    graph, options, hardware = request.graph, request.options, request.hardware
    if options.objective == "memory":
        return True
    params, made = float(known_bytes(graph.param_bytes).sum()), float(known_bytes(graph.made_bytes).sum())
    if places_ops(options.objective):
        tensors = (options.inputs or 1) * (made + float(held_tensors(graph).sum()))
        needed = params + (0.0 if options.resident == "weights" else tensors)
    elif (rules := options.training_rules) is not None:  # as `rlinit.stages.training.problem` counts, for all ops
        needed = rules.state_factor * params + (2 + 2 * rules.chunks) * (rules.microbatches + 1) * made
    else:
        needed = params
    cached = params + (made if options.activations else 0.0)
    return any(
        needed > device.memory_bytes - device.reserve_bytes
        or (not places_ops(options.objective) and cached > device.cache_bytes)
        for device in hardware.devices
    )


# -- what the cases prove together ---------------------------------------------------------------------------------


def _joint(found: Plan, bounding: Sequence[Plan], plans: Sequence[Plan], budget: Budget) -> Plan:
    """Return the best plan with what the cases prove of the problem, and the best of their baselines."""
    assert found.values is not None
    bounds = _least_bounds(found.values, bounding)
    single: dict[str, float | None] = {}
    for plan in plans:
        for name, value in plan.baselines.items():
            known = single.get(name)
            single[name] = known if value is None else value if known is None else min(known, value)
    source = found.bound_source or next((one.bound_source for one in bounding if one.bound_source), "")
    return _proven(found, bounds, source, {name for plan in bounding for name in plan.trusted}, single, budget)


def _least_bounds(values: tuple[float, ...], bounding: Sequence[Plan]) -> tuple[float, ...]:
    """Return what holds on each level for schedules of any case that are optimal on the levels before.

    A case whose bound is above the value on a level, those before proven, has no schedule that is.
    """
    bounds: list[float] = []
    left = [plan.bounds or (0.0,) * len(values) for plan in bounding if plan.status != "infeasible"]
    for level, value in enumerate(values):
        bounds.append(min(min((one[level] for one in left), default=value), value))
        if is_closed(values[: level + 1], tuple(bounds)):
            left = [one for one in left if one[level] <= value * (1.0 + 1e-9)]
    return tuple(bounds)


def _nothing(bounding: Sequence[Plan]) -> Plan:
    """Return what is known where no case has a plan: infeasible if all are, else that none was found."""
    last = next((plan for plan in bounding if plan.status != "infeasible"), bounding[0])
    if last.status == "infeasible":
        if len(bounding) == 1:
            return last
        apart, together = bounding[0].message, bounding[-1].message
        message = f"however ops share parameters: with copies, {apart}; with all their readers together, {together}"
        return dataclasses.replace(last, message=message)
    why = last.message if last.assignment is None else "the budget ended before a schedule was found"
    return dataclasses.replace(
        last,
        status="no_solution",
        message=why,
        values=None,
        bounds=None,
        bound_source="",
        assignment=None,
        start_s=None,
        training=last.training and dataclasses.replace(last.training, step_s=0.0, stages=(), exchange_bytes=0.0),
        history=(),
        stages=(),
        stage_orders=(),
        batches=(),
        transfers=(),
        devices=(),
    )


def _renamed(plan: Plan, request: Request) -> Plan:
    """Return a plan of a case as one of the problem, checked.

    Raises
    ------
    InvalidPlan
        It is none.
    """
    graph, training = request.graph, plan.training
    if training is not None and plan.assignment is not None:
        device_of = [plan.stages[int(plan.assignment[name])].device for name in graph.names]
        holders = [len({device_of[v] for v in one.readers}) for one in graph.shared]
        sent = [2.0 * (count - 1) * one.size_bytes for count, one in zip(holders, graph.shared, strict=True)]
        training = dataclasses.replace(training, exchange_bytes=math.fsum(sent))
    if plan.values is not None and plan.bounds is not None:
        bounds = tuple(map(min, plan.bounds, plan.values))
        status: Status = "optimal" if is_closed(plan.values, bounds) else "feasible"
        plan = dataclasses.replace(plan, bounds=bounds, status=status)
    plan = dataclasses.replace(
        plan,
        graph_fingerprint=graph.fingerprint(),
        graph_figures=figures_of(graph),
        provenance={**plan.provenance, "agent": request.options.agent},
        training=training,
    )
    verify(plan, graph, request.hardware)
    return plan
