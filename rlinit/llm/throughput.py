"""Layouts of a language model that serve most tokens a second on devices of the cost model, and rate against latency.

Devices pass more with larger batches, which take longer, and a cache that is full of sequences under way passes less
the longer a token takes: rates are made for passes of several lengths, a layout is found for each, the best is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from rlinit.errors import InvalidConfig
from rlinit.hardware import Hardware
from rlinit.llm.device_costs import DeviceCosts
from rlinit.llm.lowering import Settings
from rlinit.llm.model import LanguageModel
from rlinit.llm.serving.bounds import best_bound
from rlinit.llm.serving.fleets import SINK, SOURCE, Fleet
from rlinit.llm.serving.layouts import Route, ServingPlan, Spans, largest_flow, nothing_found, serve
from rlinit.plan import OPTIMALITY_TOLERANCE

__all__ = ["frontier", "plan_throughput"]

_PASSES = 10
"""Lengths of a pass that layouts are found for, each by the same factor longer than the one before."""

_LONGEST = 64.0
"""Times the shortest pass, beyond which caches hold passes back rather than batches."""


def plan_throughput(
    model: LanguageModel,
    hardware: Hardware,
    *,
    max_latency_s: float | None = None,
    reserve_bytes: float | None = None,
    time_limit_s: float = 10.0,
    seed: int = 0,
) -> ServingPlan:
    """Return the layout found that makes most tokens a second, never below the rules that it is compared with.

    Parameters
    ----------
    model, hardware
        What is served on what.
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
        A latency that is no number of seconds above 0.
    """
    latest = math.inf if max_latency_s is None else max_latency_s
    if not latest > 0:
        raise InvalidConfig(f"max_latency_s is {max_latency_s!r}; expected seconds above 0")
    costs = DeviceCosts(model, hardware, Settings(reserve_bytes=reserve_bytes, runtime="vllm"))
    found = [*_layouts(costs, latest, time_limit_s, seed)]
    limits = costs.limits(latest)
    if not found:
        said = "" if latest == math.inf else f" with passes of at most {latest:g} s"
        return nothing_found(limits, said)
    proof = best_bound(limits, limits.kinds())[0]
    best = max(found, key=lambda plan: plan.tokens_per_s)
    rules: dict[str, float] = {}
    for plan in found:
        for name, value in plan.baselines.items():
            rules[name] = max(value, rules.get(name, 0.0))
    closed = best.tokens_per_s >= proof.tokens_per_s * (1 - OPTIMALITY_TOLERANCE)
    return replace(best, proof=proof, status="optimal" if closed else "feasible", baselines=rules, fleet=limits)


def frontier(
    model: LanguageModel, hardware: Hardware | str, *, time_limit_s: float = 5.0, seed: int = 0
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
    lengths = shortest * np.geomspace(1.0, _LONGEST, _PASSES)
    lengths = np.unique(np.minimum(lengths, max_latency_s))
    for pass_s in lengths[lengths >= shortest * (1 - 1e-12)].tolist():
        fleet = costs.fleet(pass_s)
        if not fleet.devices:
            continue
        rules = {name: (spans, *largest_flow(fleet, spans)) for name, spans in _rules(costs, fleet).items()}
        plan = serve(fleet, time_limit_s=time_limit_s / _PASSES, seed=seed)
        spans, value, flow = max(rules.values(), key=lambda rule: rule[1])
        if value > plan.tokens_per_s:
            plan = replace(plan, status="feasible", tokens_per_s=value, spans=spans, flow=flow)
        if plan.tokens_per_s > 0:
            said = {name: rule[1] for name, rule in rules.items()}
            yield replace(plan, paths=_paths(fleet, plan.spans, plan.flow), baselines=said)


def _paths(
    fleet: Fleet, spans: Mapping[str, tuple[int, int]], flow: Mapping[tuple[str, str], float]
) -> tuple[Route, ...]:
    """Return the paths that a flow is made of, largest first, each with the seconds that a token takes along it."""
    assert fleet.seconds is not None
    index = {name: at for at, name in enumerate(fleet.devices)}
    left = dict(flow)
    found: list[Route] = []
    least = 1e-9 * sum(rate for (start, _), rate in flow.items() if start == SOURCE)
    while True:
        at, names, rate, seconds = SOURCE, [], math.inf, 0.0
        while at != SINK:
            after, most = max(
                ((b, r) for (a, b), r in left.items() if a == at), key=lambda one: one[1], default=("", 0.0)
            )
            if most <= least:
                return tuple(sorted(found, key=lambda path: -path.tokens_per_s))
            rate = min(rate, most)
            seconds += fleet.delays.get((at, after), 0.0)
            at = after
            if at != SINK:
                names.append(at)
                start, end = spans[at]
                seconds += float(fleet.seconds[index[at], start, end - start])
        for pair in zip([SOURCE, *names], [*names, SINK], strict=True):
            left[pair] -= rate
        found.append(Route(tuple(names), rate, seconds))


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
