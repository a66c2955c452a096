"""Layouts of a language model that serve most tokens a second on devices of the cost model, and rate against latency.

Devices pass more with larger batches, which take longer, and a cache that is full of sequences under way passes less
the longer a token takes: rates are made for passes of several lengths, with shares of the pass for each layer and
without, a layout is found for each, and for its spans the shortest pass. The best is kept.

Fast devices that pass tokens on to slow ones wait for them with their caches full. Layouts are therefore found for
devices of neighbouring speeds by themselves as well, with passes of their own, and those that serve most side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise
from operator import attrgetter

import numpy as np

from rlinit.budget import Budget
from rlinit.errors import InvalidConfig
from rlinit.hardware import Hardware
from rlinit.llm.device_costs import DeviceCosts, PoolCosts
from rlinit.llm.lowering import Settings
from rlinit.llm.model import LanguageModel
from rlinit.llm.serving.bounds import ServingBound, best_bound, coverage_bound
from rlinit.llm.serving.coverage import LONGEST
from rlinit.llm.serving.fleets import Fleet
from rlinit.llm.serving.layouts import Route, ServingPlan, Spans, largest_flow, nothing_found, paths_of, search
from rlinit.plan import OPTIMALITY_TOLERANCE

__all__ = ["frontier", "plan_serving"]

_PASSES = 6
"""Lengths of a pass that layouts are found for, each by the same factor longer than the one before."""

_AROUND = (1.0, 1.6, 1.05, 0.8, 1.05)
"""Times the pass of the best layout so far: lengths without shares."""

_SPEEDS = 4
"""Groups of devices by speed, of which neighbours may serve by themselves."""

_SHARE = 0.3
"""Of the time: for all such parts, before those that serve most side by side and all devices as one; for the bound."""

_FREE_WEIGHT = 4
"""Of the time of a search without shares, where it is 1 with shares: these mostly find what serves most."""

_NOTHING = ServingPlan("no_solution", 0.0, ServingBound(math.inf), {}, {})

_rate = attrgetter("tokens_per_s")

_SETTLINGS, _SETTLED = 12, 1.0002
"""Bisections of the logarithm of a pass at most, and how close its limits are at the end."""


def plan_serving(
    model: LanguageModel,
    hardware: Hardware,
    *,
    mix: Sequence[tuple[int, int, float]] | None = None,
    max_latency_s: float | None = None,
    reserve_bytes: float | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> ServingPlan:
    """Return the layout found that makes most tokens a second, never below the rules that it is compared with.

    With a mix of requests it is the one that answers most of them a second: two pools of devices, or one where that is
    better.

    Parameters
    ----------
    model, hardware
        What is served on what.
    mix
        (tokens of the prompt, of the answer, share) of requests; empty: all are the model's; None: tokens count.
    max_latency_s
        Most seconds of a pass, which makes a token of each sequence; None: no limit.
    reserve_bytes
        See `Settings`.
    time_limit_s, seed
        Of the search.

    Raises
    ------
    InvalidHardware
        No device that computes.
    InvalidConfig
        A latency that is no number of seconds above 0, or requests that make no sense.
    """
    settings = Settings(reserve_bytes=reserve_bytes, runtime="vllm")
    if mix is None:
        return _best(DeviceCosts(model, hardware, settings), max_latency_s, time_limit_s, seed)
    rows = tuple(mix)
    forms = {
        "two pools": PoolCosts(model, hardware, settings, mix=rows),
        "one pool for both": DeviceCosts(model, hardware, settings, mix=rows, prompts=True),
    }
    plans = {name: _best(costs, max_latency_s, time_limit_s / len(forms), seed) for name, costs in forms.items()}
    best, bounds = max(plans.values(), key=_rate), {name: plan.bound for name, plan in plans.items()}
    rules = {name: plan.tokens_per_s for name, plan in plans.items()} | dict(plans["one pool for both"].baselines)
    closed = best.status == "optimal" and best.tokens_per_s >= max(bounds.values()) * (1 - OPTIMALITY_TOLERANCE)
    status = "optimal" if closed else "feasible" if best.spans else best.status
    passes = forms["two pools"].passes
    return replace(best, status=status, baselines=rules, bounds=bounds, passes=passes)


def _best(costs: DeviceCosts, max_latency_s: float | None, time_limit_s: float, seed: int) -> ServingPlan:
    """Return the best layout for passes of any length, with the bound on all of them."""
    latest = math.inf if max_latency_s is None else max_latency_s
    if not latest > 0:
        raise InvalidConfig(f"max_latency_s is {max_latency_s!r}; expected seconds above 0")
    found = _side_by_side(_found(costs, latest, time_limit_s, seed), (math.inf,))
    limits = costs.limits(latest)
    if not found:
        said = "" if latest == math.inf else f" with passes of at most {latest:g} s"
        return nothing_found(limits, said)
    proof = best_bound(limits, limits.kinds(), passes_s=_SHARE * time_limit_s)[0]
    best = max(found, key=_rate)
    names = {name: None for plan in found for name in plan.baselines}
    rules = {name: max(plan.baselines.get(name, 0.0) for plan in found) for name in names}
    closed = best.tokens_per_s >= proof.tokens_per_s * (1 - OPTIMALITY_TOLERANCE)
    return replace(best, proof=proof, status="optimal" if closed else "feasible", baselines=rules, fleet=limits)


def frontier(
    model: LanguageModel, hardware: Hardware | str, *, time_limit_s: float = 3.0, seed: int = 0
) -> tuple[ServingPlan, ...]:
    """Return layouts of which none makes more tokens a second and has shorter passes than another, shortest first.

    Parameters
    ----------
    model, hardware
        What is served on what; hardware may be the name of a preset.
    time_limit_s, seed
        Of the search.

    Raises
    ------
    InvalidHardware
        An unknown preset, or no device that computes.
    """
    devices = Hardware.preset(hardware) if isinstance(hardware, str) else hardware
    front: list[ServingPlan] = []
    costs = DeviceCosts(model, devices, Settings(runtime="vllm"))
    parts = _found(costs, math.inf, time_limit_s, seed, front=True)
    layouts = _side_by_side(parts, {plan.latency_s for found in parts.values() for plan in found})
    for plan in sorted(layouts, key=lambda one: (one.latency_s, -one.tokens_per_s)):
        if not front or plan.tokens_per_s > front[-1].tokens_per_s:
            front.append(replace(plan, proof=coverage_bound(costs.limits(plan.latency_s))))
    return tuple(front)


def _found(
    costs: DeviceCosts, max_latency_s: float, time_limit_s: float, seed: int, *, front: bool = False
) -> dict[tuple[int, int], list[ServingPlan]]:
    """Return layouts of devices of neighbouring speeds: (first group of speeds, the one after the last) -> layouts."""
    groups = costs.by_speed(1 if isinstance(costs, PoolCosts) else _SPEEDS)
    spans = [*combinations(range(len(groups) + 1), 2)]
    parts = {
        (start, end): costs if end - start == len(groups) else costs.part([*chain.from_iterable(groups[start:end])])
        for start, end in spans
    }
    found: dict[tuple[int, int], list[ServingPlan]] = {span: [] for span in spans}
    for share in (1.0,) if front or len(groups) == 1 else (_SHARE, 1.0 - _SHARE):
        total = sum(end - start for start, end in spans)
        for start, end in spans:
            limit_s = share * time_limit_s * (end - start) / total
            found[start, end] += _layouts(parts[start, end], max_latency_s, limit_s, seed, front)
        spans = sorted({*_most(found, math.inf)[0], (0, len(groups))})
    return found


def _side_by_side(
    parts: Mapping[tuple[int, int], Sequence[ServingPlan]], latencies: Iterable[float]
) -> list[ServingPlan]:
    """Return all layouts of all devices, and for each latency the most that parts serve side by side within it."""
    found = list(parts[0, max(end for _, end in parts)])
    joined = (_most(parts, latency_s)[1] for latency_s in latencies)
    return found + [_joined(plans) for plans in joined if plans]


def _most(
    parts: Mapping[tuple[int, int], Sequence[ServingPlan]], latency_s: float
) -> tuple[list[tuple[int, int]], list[ServingPlan]]:
    """Return parts that serve most side by side in passes of at most so long, and their layouts."""
    best: list[tuple[float, list[tuple[int, int]], list[ServingPlan]]] = [(0.0, [], [])]
    for end in range(1, 1 + max(end for _, end in parts)):
        tries = [best[end - 1]]
        for start in range(end):
            within = [plan for plan in parts[start, end] if plan.latency_s <= latency_s]
            if within:
                rate, spans, plans = best[start]
                plan = max(within, key=_rate)
                tries.append((rate + plan.tokens_per_s, [*spans, (start, end)], [*plans, plan]))
        best.append(max(tries, key=lambda one: one[0]))
    return best[-1][1], best[-1][2]


def _joined(plans: Sequence[ServingPlan]) -> ServingPlan:
    """Return layouts of different devices as one."""
    spans = {name: span for plan in plans for name, span in plan.spans.items()}
    flow = {pair: rate for plan in plans for pair, rate in plan.flow.items()}
    paths = sorted((path for plan in plans for path in plan.paths), key=lambda path: -path.tokens_per_s)
    rate = math.fsum(map(_rate, plans))
    return replace(plans[0], tokens_per_s=rate, spans=spans, flow=flow, paths=tuple(paths), baselines={})


def _layouts(
    costs: DeviceCosts, max_latency_s: float, time_limit_s: float, seed: int, front: bool
) -> Iterator[ServingPlan]:
    """Yield layouts for passes of each length, or those that may serve most; layouts of rules are among them."""
    longest = LONGEST * costs.shortest_pass + 2 * len(costs.devices) * costs.hops.max()
    latest, budget = min(longest, max_latency_s), Budget(time_limit_s)
    lengths = np.unique(np.minimum(np.geomspace(costs.shortest_pass, longest, _PASSES), latest))
    settled: dict[object, ServingPlan] = {}
    best = _NOTHING

    def settle(spans: Spans) -> ServingPlan:
        nonlocal best
        key = frozenset(spans.items())
        if key not in settled:
            settled[key] = _settled(costs, spans, latest)
            best = max(best, settled[key], key=_rate)
        return settled[key]

    rounds = [(float(length), True) for length in lengths if length >= costs.shortest_s * (1 - 1e-12)]
    rounds += [] if isinstance(costs, PoolCosts) else [(factor, False) for factor in _AROUND]
    weight = 1 if front else _FREE_WEIGHT
    left = sum(1 if shared else weight for _, shared in rounds)
    for length, shared in rounds:
        pass_s = length if shared else min(latest, length * best.latency_s)
        limit_s = budget.remaining_s * (1 if shared else weight) / left
        left -= 1 if shared else weight
        fleet = costs.fleet(pass_s, shared=shared)
        if not (fleet.devices and pass_s > 0):
            continue
        plans, said = list[ServingPlan](), dict[str, float]()
        if not isinstance(costs, PoolCosts):
            rules = {name: settle(spans) for name, spans in _rules(costs, fleet).items()}
            plans, said = [*rules.values()], {name: plan.tokens_per_s for name, plan in rules.items()}
        if (not front or pass_s >= best.latency_s) and coverage_bound(fleet).tokens_per_s <= best.tokens_per_s:
            pass  # nothing better is in passes of this length
        elif isinstance(costs, PoolCosts):
            plans += _pooled(costs, fleet, limit_s, seed)
            best = max([best, *plans], key=_rate)
        else:
            layout, bound = search(fleet, limit_s, seed, fine=False)
            plans.append(settle(layout.spans))
            if shared and layout.flow:
                paths = _paths(fleet.delays, fleet.seconds_of(layout.spans), layout.flow)
                plans.append(ServingPlan("feasible", layout.value, bound, layout.spans, layout.flow, paths=paths))
        yield from (replace(plan, baselines=said) for plan in plans if plan.tokens_per_s > 0)


def _pooled(costs: PoolCosts, fleet: Fleet, time_limit_s: float, seed: int) -> Iterator[ServingPlan]:
    """Yield the best layout of two pools at rates that are kept to."""
    parts, flow_of = costs.traffic.narrowed(fleet), partial(costs.traffic.join, fleet)
    tries = [search(part, time_limit_s / len(parts), seed, fine=False, flow_of=flow_of) for part in parts]
    for found, bound in sorted(tries, key=lambda one: one[0].value)[-1:]:
        if found.value > 0:
            paths = costs.traffic.paths(fleet, found.spans)
            plan = ServingPlan("feasible", found.value, bound, found.spans, found.flow, paths=paths)
            yield replace(plan, prompt_layers=costs.layers)


def _settled(costs: DeviceCosts, spans: Spans, longest_s: float) -> ServingPlan:
    """Return what spans serve, those that have no path in common with passes of their own; nothing where none is."""
    best, groups = _in_one_pass(costs, spans, longest_s), list[set[str]]()
    for path in best.paths:
        met = [group for group in groups if group.intersection(path.devices)]
        groups = [group for group in groups if group not in met] + [set(path.devices).union(*met)]
    if len(groups) > 1:
        parts = [_in_one_pass(costs, {name: spans[name] for name in group}, longest_s) for group in groups]
        best = max(best, _joined(parts), key=_rate)
    return best


def _in_one_pass(costs: DeviceCosts, spans: Spans, longest_s: float) -> ServingPlan:
    """Return what spans serve in the shortest pass that their caches and batches allow; nothing where none is.

    The shorter a pass, the more of them the caches take; the more a device passes, the larger its batches, and the
    longer its share of the pass. The length at which both agree is bisected. It is at least what a longer pass takes.
    """
    best = _NOTHING
    low, high = costs.shortest_s, longest_s
    pass_s = high
    for _ in range(_SETTLINGS if spans else 0):
        value, flow = largest_flow(costs.network, spans, costs.held(spans, pass_s)[0])
        passed: dict[str, float] = {}
        for (_, name), rate in flow.items():
            passed[name] = passed.get(name, 0.0) + rate
        paths = _paths(costs.delays, costs.held(spans, pass_s, passed)[1], flow)
        slowest = max((path.seconds for path in paths), default=math.inf)
        inside = low < slowest < high
        if slowest <= pass_s:
            high, low = pass_s, max(low, slowest)
            if value > best.tokens_per_s:
                best = replace(best, status="feasible", tokens_per_s=value, spans=spans, flow=flow, paths=paths)
        elif pass_s == high:
            break
        else:
            low = pass_s
        if high <= low * _SETTLED:
            break
        pass_s = slowest if inside else math.sqrt(low * high)
    return best


def _paths(
    delays: Mapping[tuple[str, str], float], seconds: Mapping[str, float], flow: Mapping[tuple[str, str], float]
) -> tuple[Route, ...]:
    """Return the paths that a flow is made of, largest first, each with the seconds that a token takes along it."""
    found = []
    for names, rate in paths_of(flow):
        hops = [delays.get(pair, 0.0) for pair in pairwise(names)]
        found.append(Route(tuple(names), rate, math.fsum([*hops, *(seconds[name] for name in names)])))
    return tuple(sorted(found, key=lambda path: -path.tokens_per_s))


def _rules(costs: DeviceCosts, fleet: Fleet) -> dict[str, Spans]:
    """Return the spans of rules that people and tools split by.

    All devices in the hardware's order, layers in proportion to memory (exo), bandwidth, or speed (Petals: what a
    device passes of one layer); the best machine alone; and as many replicas as serve most of a whole pipeline, in
    proportion to memory, with devices shared out to them by memory.
    """
    at = {device.name: device for device in costs.hardware.devices}
    memory = [at[name].memory_bytes for name in fleet.devices]
    everyone = list(range(len(fleet.devices)))
    rules = {
        "in proportion to memory": _chain(fleet, everyone, memory),
        "in proportion to bandwidth": _chain(
            fleet, everyone, [float(at[name].bytes_per_s or 0.0) for name in fleet.devices]
        ),
        "in proportion to speed": _chain(fleet, everyone, [fleet.rate(one, 0, 1) for one in everyone]),
    }
    alone = max(everyone, key=lambda one: fleet.rate(one, 0, fleet.layers))
    rules["best single machine"] = _chain(fleet, [alone], memory)
    by_memory = sorted(everyone, key=lambda one: -memory[one])
    replicas = [
        [_chain(fleet, by_memory[replica::count], memory) for replica in range(count)]
        for count in range(1, len(everyone) + 1)
    ]
    best = max(replicas, key=lambda chains: sum(_slowest(fleet, chain) for chain in chains))
    rules["replicas of whole pipelines"] = {name: span for chain in best for name, span in chain.items()}
    return rules


def _slowest(fleet: Fleet, chain: Spans) -> float:
    """Return the tokens a second of the slowest device of a chain."""
    return min((fleet.rate(fleet.devices.index(name), *span) for name, span in chain.items()), default=0.0)


def _chain(fleet: Fleet, devices: list[int], weights: list[float]) -> Spans:
    """Return one span a device, in order, in proportion to weights; none where one holds more than it can."""
    weights = [min(weights[at], 2.0**60) for at in devices]
    ends = np.round(np.cumsum([0.0, *weights]) / max(sum(weights), 1e-300) * fleet.layers).astype(int)
    spans = {
        fleet.devices[at]: (int(a), int(b)) for at, a, b in zip(devices, ends[:-1], ends[1:], strict=True) if b > a
    }
    held = all(fleet.rate(fleet.devices.index(name), *span) > 0 for name, span in spans.items())
    return spans if held and ends[-1] == fleet.layers else {}
