"""Layouts of a language model that serve most tokens a second on devices of the cost model, and rate against latency.

Devices pass more with larger batches, which take longer, and a cache that is full of sequences under way passes less
the longer a token takes: rates are made for passes of several lengths, a layout is found for each, the best is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from rlinit.budget import Budget
from rlinit.errors import InvalidConfig
from rlinit.hardware import Hardware
from rlinit.llm.device_costs import DeviceCosts, PoolCosts
from rlinit.llm.lowering import Settings
from rlinit.llm.model import LanguageModel
from rlinit.llm.serving.bounds import ServingBound, best_bound
from rlinit.llm.serving.fleets import Fleet
from rlinit.llm.serving.layouts import (
    Layout,
    Route,
    ServingPlan,
    Spans,
    largest_flow,
    nothing_found,
    paths_of,
    search,
)
from rlinit.plan import OPTIMALITY_TOLERANCE

__all__ = ["frontier", "plan_serving"]

_PASSES = 10
"""Lengths of a pass that layouts are found for, each by the same factor longer than the one before."""

_LONGEST = 64.0
"""Times the shortest pass, beyond which caches hold passes back rather than batches; hops come on top."""


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


def _rate(plan: ServingPlan) -> float:
    return plan.tokens_per_s


def _best(costs: DeviceCosts, max_latency_s: float | None, time_limit_s: float, seed: int) -> ServingPlan:
    """Return the best layout for passes of any length, with the bound on all of them."""
    latest = math.inf if max_latency_s is None else max_latency_s
    if not latest > 0:
        raise InvalidConfig(f"max_latency_s is {max_latency_s!r}; expected seconds above 0")
    found = [*_layouts(costs, latest, time_limit_s, seed)]
    limits = costs.limits(latest)
    if not found:
        said = "" if latest == math.inf else f" with passes of at most {latest:g} s"
        return nothing_found(limits, said)
    proof = best_bound(limits, limits.kinds())[0]
    best = max(found, key=_rate)
    rules: dict[str, float] = {}
    for plan in found:
        for name, value in plan.baselines.items():
            rules[name] = max(value, rules.get(name, 0.0))
    closed = best.tokens_per_s >= proof.tokens_per_s * (1 - OPTIMALITY_TOLERANCE)
    return replace(best, proof=proof, status="optimal" if closed else "feasible", baselines=rules, fleet=limits)


def frontier(
    model: LanguageModel, hardware: Hardware | str, *, time_limit_s: float = 4.0, seed: int = 0
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
    layouts = _layouts(DeviceCosts(model, devices, Settings(runtime="vllm")), math.inf, time_limit_s, seed)
    for plan in sorted(layouts, key=lambda one: (one.latency_s, -one.tokens_per_s)):
        if not front or plan.tokens_per_s > front[-1].tokens_per_s:
            front.append(plan)
    return tuple(front)


def _layouts(costs: DeviceCosts, max_latency_s: float, time_limit_s: float, seed: int) -> Iterator[ServingPlan]:
    """Yield the best layout for passes of each length, that of the best rule where it serves more."""
    shortest = costs.shortest_pass
    longest = _LONGEST * shortest + 2 * len(costs.devices) * costs.hops.max()
    lengths = np.geomspace(shortest, longest, _PASSES)
    lengths = np.unique(np.minimum(lengths, max_latency_s))
    nothing = Layout({}, 0.0, {})
    lengths, budget = lengths[lengths >= shortest * (1 - 1e-12)], Budget(time_limit_s)
    for done, pass_s in enumerate(lengths.tolist()):
        fleet = costs.fleet(pass_s)
        if not fleet.devices:
            continue
        limit_s = budget.remaining_s / (len(lengths) - done)
        if isinstance(costs, PoolCosts):
            parts, flow_of = costs.traffic.narrowed(fleet), partial(costs.traffic.join, fleet)
            tries = [search(part, limit_s / len(parts), seed, fine=False, flow_of=flow_of) for part in parts]
            found, bound = max(tries, key=lambda one: one[0].value, default=(nothing, ServingBound(0.0)))
            if found.value > 0:
                paths, pools = costs.traffic.paths(fleet, found.spans), costs.layers
                yield ServingPlan(
                    "feasible", found.value, bound, found.spans, found.flow, paths=paths, prompt_layers=pools
                )
            continue
        found, bound = search(fleet, limit_s, seed, fine=False)
        rules = {name: Layout(spans, *largest_flow(fleet, spans)) for name, spans in _rules(costs, fleet).items()}
        best = max(found, *rules.values(), key=lambda layout: layout.value)
        if best.value > 0:
            said, paths = {name: rule.value for name, rule in rules.items()}, _paths(fleet, best.spans, best.flow)
            yield ServingPlan("feasible", best.value, bound, best.spans, best.flow, paths=paths, baselines=said)


def _paths(
    fleet: Fleet, spans: Mapping[str, tuple[int, int]], flow: Mapping[tuple[str, str], float]
) -> tuple[Route, ...]:
    """Return the paths that a flow is made of, largest first, each with the seconds that a token takes along it."""
    assert fleet.seconds is not None
    index = {name: at for at, name in enumerate(fleet.devices)}
    found = []
    for names, rate in paths_of(flow):
        seconds = math.fsum(fleet.delays.get(pair, 0.0) for pair in pairwise(names))
        for name in names:
            start, end = spans[name]
            seconds += float(fleet.seconds[index[name], start, end - start])
        found.append(Route(tuple(names), rate, seconds))
    return tuple(sorted(found, key=lambda path: -path.tokens_per_s))


def _rules(costs: DeviceCosts, fleet: Fleet) -> dict[str, Spans]:
    """Return the spans of rules that people and tools split by.

    All devices in the hardware's order, layers in proportion to memory (exo), bandwidth, or speed (Petals: what a
    device passes of one layer); the best machine alone; and as many replicas as serve most of a whole pipeline, in
    proportion to memory, with devices dealt to them by memory.
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
