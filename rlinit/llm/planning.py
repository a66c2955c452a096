"""Plans of language models: proven best splits, and the longest context or largest batch that fits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, overload

import numpy as np

import rlinit
from rlinit.arrays import SAFETY
from rlinit.costs.tables import by_kind
from rlinit.devices.runtimes import RuntimeName
from rlinit.errors import InvalidConfig, SolverFailure
from rlinit.hardware import Hardware
from rlinit.limits import LARGEST_BATCH
from rlinit.llm.lowering import Granularity, Objective, Settings, device_sets, lower_chain, lower_places
from rlinit.llm.menus import to_graph
from rlinit.llm.model import LanguageModel
from rlinit.llm.result import LlmPlan
from rlinit.llm.search.contiguous import ChainProblem, ChainSolution, Places, solve_chain
from rlinit.llm.serving.layouts import ServingPlan
from rlinit.llm.simple_splits import compare_splits
from rlinit.llm.throughput import plan_serving
from rlinit.llm.verification import evaluate, levels_of, memory_of, sureness, value_of, verify
from rlinit.plan import OPTIMALITY_TOLERANCE, Plan
from rlinit.stages.training.rules import Recompute
from rlinit.units import format_bytes

Degree = int | Literal["auto"]
Replicas = Degree | Literal["mixed"]
"""A number for every stage, or each stage its own."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The largest context or batch that fits, and the plan for it; 0 and an infeasible plan where none fits.

    Parameters
    ----------
    largest
        Tokens of a sequence, or sequences.
    plan
        The best split at that size.
    by_model
        Whether the model's positions end there rather than the memory.
    """

    largest: int
    plan: LlmPlan
    by_model: bool = False


@overload
def plan(
    model: LanguageModel,
    hardware: Hardware | str,
    *,
    objective: Objective = "decode",
    granularity: Granularity = "layer",
    reserve_bytes: float | None = None,
    first: Sequence[str] = (),
    contiguous: bool = True,
    stream: bool = False,
    runtime: RuntimeName = "llama.cpp",
    micro_batch: int | None = None,
    flash_attention: bool = True,
    costs: Any = None,
) -> LlmPlan: ...


@overload
def plan(
    model: LanguageModel,
    hardware: Hardware | str,
    *,
    objective: Objective = "decode",
    granularity: Granularity = "layer",
    flash_attention: bool = True,
    costs: Any = None,
    replicas: Replicas | None = None,
    tensor_parallel: Degree | None = None,
    training: Literal["1f1b", "gpipe"] | None = None,
    microbatches: int | None = None,
    recompute: Recompute = "none",
    uniform: bool = False,
    zero: int = 0,
    optimizer: str | float = "adam-bf16",
) -> Plan: ...


@overload
def plan(
    model: LanguageModel,
    hardware: Hardware | str,
    *,
    objective: Literal["throughput", "requests"],
    reserve_bytes: float | None = None,
    costs: Any = None,
    max_latency_s: float | None = None,
    requests: Sequence[tuple[int, int, float]] = (),
    time_limit_s: float | None = None,
) -> ServingPlan: ...


def plan(
    model: LanguageModel,
    hardware: Hardware | str,
    *,
    objective: Objective | Literal["throughput", "requests"] = "decode",
    granularity: Granularity = "layer",
    reserve_bytes: float | None = None,
    first: Sequence[str] = (),
    contiguous: bool = True,
    stream: bool = False,
    runtime: RuntimeName = "llama.cpp",
    micro_batch: int | None = None,
    flash_attention: bool = True,
    costs: Any = None,
    replicas: Replicas | None = None,
    tensor_parallel: Degree | None = None,
    training: Literal["1f1b", "gpipe"] | None = None,
    microbatches: int | None = None,
    recompute: Recompute = "none",
    uniform: bool = False,
    zero: int = 0,
    optimizer: str | float = "adam-bf16",
    max_latency_s: float | None = None,
    requests: Sequence[tuple[int, int, float]] = (),
    time_limit_s: float | None = None,
) -> LlmPlan | Plan | ServingPlan:
    """Return the best split of a model over devices, proven, with the splits that it is compared with.

    Devices are used in any order, each for one span of units, or not at all; with ``contiguous=False`` each unit is on
    any device, and with ``stream=True`` its weights may be read from a host's memory or a disk in every pass.

    Where replicas, a tensor group or training is asked for, the plan is one of `rlinit.schedule` for the graph of
    `rlinit.llm.to_graph`: stages of several devices that are alike, and the value is the seconds of a micro-batch in
    training, or of a pass (``objective="decode"``, the same as ``"pipeline"``, or ``"prefill"``) on the slowest stage.

    Parameters
    ----------
    model
        From `load`.
    hardware
        Devices with rates and links, or the name of a preset, whose rates are then those of the activations' dtype.
    objective, granularity, reserve_bytes, first, contiguous, stream, runtime, micro_batch, flash_attention
        See `Settings`.
    costs
        Measured tables (`rlinit.costs.tables`), their folder, several of either, or a mapping from kinds of devices.
    replicas, tensor_parallel, uniform
        As for `rlinit.schedule`; None: 1, or ``auto`` where both are None and `training` is not.
    training, microbatches, recompute
        Likewise; a micro-batch is `batch` sequences of `context` tokens, and those of `microbatches` are a batch. Where
        the model answers, `microbatches` batches are under way at once, by default as many as devices.
    zero, optimizer
        As for `rlinit.llm.to_graph`.
    max_latency_s
        For ``objective="throughput"`` and ``"requests"``, which take it, `time_limit_s` and `reserve_bytes` alone: most
        seconds of a pass.
    requests
        For ``objective="requests"``: (tokens of the prompt, of the answer, share) of each sort; none: the model's.
    time_limit_s
        For ``objective="throughput"`` and ``"requests"``: seconds of the search; None: 10.

    Raises
    ------
    InvalidCostTable
        Tables that cannot be read.
    RlinitError
        What `rlinit.schedule` refuses.
    InvalidHardware
        An unknown preset, devices without rates, or too many unlike ones.
    InvalidConfig
        An unknown objective or granularity, or a choice that does not go with another.
    """
    devices = Hardware.preset(hardware) if isinstance(hardware, str) else hardware
    timed = model if costs is None else replace(model, costs=by_kind(costs))
    limits = _given(max_latency_s=max_latency_s, time_limit_s=time_limit_s)
    if objective == "throughput" or objective == "requests":
        other = first or stream or not contiguous or granularity != "layer" or (requests and objective == "throughput")
        if other or replicas or tensor_parallel or training:
            raise InvalidConfig(f"objective={objective!r} takes limits and reserve_bytes alone; leave out more")
        mix = None if objective == "throughput" else requests
        return plan_serving(timed, devices, mix=mix, reserve_bytes=reserve_bytes, **limits)
    if requests or limits:
        what = next(iter(limits), "requests")
        raise InvalidConfig(f"{what}: for objective='throughput' or 'requests', not {objective!r}")
    settings = Settings(
        objective, granularity, reserve_bytes, tuple(first), contiguous, stream, runtime, micro_batch, flash_attention
    )
    if replicas is None and tensor_parallel is None and training is None:
        given = {"microbatches": microbatches, "uniform": uniform, "zero": zero, "recompute": recompute != "none"}
        _refuse_alone(given)
        return _planned(timed, devices, settings)
    _check_groups(settings, training)
    alone = replicas == tensor_parallel == 1  # a pipeline by menus all the same
    usual: Degree = "auto" if replicas is None and tensor_parallel is None else 1
    degree: Degree | None = "auto" if alone else tensor_parallel
    graph = to_graph(
        timed, devices, training=training, microbatches=microbatches, recompute=recompute != "none",
        phase="prefill" if objective == "prefill" else "decode", granularity=granularity, zero=zero,
        optimizer=optimizer, flash_attention=flash_attention, degrees=(1,) if alone else None,
    )  # fmt: skip
    found = rlinit.schedule(
        graph, devices, replicas=usual if replicas is None else replicas,
        tensor_parallel=usual if degree is None else degree, training=training, microbatches=microbatches,
        recompute=recompute, uniform=uniform,
    )  # fmt: skip
    return _with_rate(found, graph.extras[0]["note"]["tokens"])


def _with_rate(found: Plan, tokens: float) -> Plan:
    rate = [f"{tokens / found.value:,.1f} tokens a second"] if found.values and found.value > 0 else []
    return replace(found, notes=(*found.notes, *rate))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse_alone(given: Mapping[str, object]) -> None:
    """Refuse what only stages of several devices have.

    Raises
    ------
    InvalidConfig
        Some of it is set.
    """
    if lone := [name for name, value in given.items() if value]:
        raise InvalidConfig(f"{lone[0]} is for stages of several devices; ask for replicas='auto' (--replicas auto)")


def _check_groups(settings: Settings, training: str | None) -> None:
    """Refuse what stages of several devices do not have.

    Raises
    ------
    InvalidConfig
        Such a setting.
    """
    usual = Settings(objective=settings.objective)
    for name in ("reserve_bytes", "first", "contiguous", "stream", "runtime", "micro_batch"):
        if getattr(settings, name) != getattr(usual, name):
            flag = f"--{name.removesuffix('_bytes').replace('_', '-')}"
            raise InvalidConfig(
                f"{name} is not for stages of several devices (replicas, tensor_parallel); leave {flag} out"
            )
    if settings.objective == "request" or (training and settings.objective == "prefill"):
        expected = "decode or prefill" if not training else "nothing else in training"
        raise InvalidConfig(f"objective is {settings.objective!r}; expected {expected} for stages of several devices")


def _planned(model: LanguageModel, devices: Hardware, settings: Settings) -> LlmPlan:
    """Return the best split, verified, with what was proven about it."""
    started = time.perf_counter()
    problem, solution, proven, source = _solve(model, devices, settings)
    solved = time.perf_counter() - started
    if not solution.spans:
        said = _what_is_missing(problem)
        return LlmPlan(model, devices.name, settings, "infeasible", np.inf, np.inf, (), (), said, {}, solved, source)
    spans = evaluate(model, devices, settings, solution.spans)
    value = value_of(spans, settings)
    memory, baselines = memory_of(model, devices, settings, spans), compare_splits(model, devices, settings, problem)
    bound = min(proven, value)
    status: Literal["optimal", "feasible"] = "optimal" if bound >= value * (1 - OPTIMALITY_TOLERANCE) else "feasible"
    levels = levels_of(spans, memory, (solution.headroom_bytes, solution.squared_units))
    sure = sureness(model, devices, settings, spans)
    shares = {name: seconds / value for name, seconds in sure.source_s.items() if seconds > 0}
    made = LlmPlan(
        model, devices.name, settings, status, value, bound, spans, memory, "", baselines, solved, source, levels,
        (sure.least_s, sure.most_s), shares,
    )  # fmt: skip
    verify(made, devices)
    if solution.cost > value * (1 + 1e-9) or solution.cost < value * (1 - 1e-9):
        raise SolverFailure(f"the cost that was minimised is {solution.cost}, not that of the spans, {value}")
    return made


def _solve(
    model: LanguageModel, hardware: Hardware, settings: Settings
) -> tuple[ChainProblem, ChainSolution, float, str]:
    """Return the problem of all devices, its best spans, what was proven that none are below, and what proved it.

    Buffers go by the devices that are used: every plan is one of some set of them with the same buffers, and the best
    of all sets is the best plan. A pipeline of k devices has k batches under way: the best for each k with the caches
    of k batches is at most k devices long, and the best of all k is the best pipeline.
    """
    whole, pipeline = lower_chain(model, hardware, settings), settings.objective == "pipeline"
    found: list[ChainSolution] = []
    bound, source = np.inf, "dynamic program over sets of devices"
    for ids, most, far_head in device_sets(hardware, settings):
        most = min(most, whole.num_units)
        problems = [
            lower_chain(model, hardware, settings, k if pipeline else 1, k, ids, far_head)
            for k in (range(1, most + 1) if pipeline else (most,))
        ]
        if settings.contiguous or (most == 1 and not settings.stream):
            solution = solve_chain(problems)
            proven = solution.least_cost
        else:
            places, experts = lower_places(model, hardware, settings, problems[0]), _experts_apart(model, settings)
            solution, proven, source = _on_any_device(problems[0], places, experts)
        named = tuple((ids[at] if at < len(ids) else at, start, end) for at, start, end in solution.spans)
        found.append(replace(solution, spans=named))
        bound = min(bound, proven)
    best = _best_of(found)
    if not settings.contiguous:  # what is proven of one device says nothing of plans that come back to some
        best = replace(best, headroom_bytes=np.inf, squared_units=0.0)
    if not best.spans and bound < np.inf:
        raise SolverFailure(
            "the program ended without a placement, and no contiguous split fits; try granularity='part'"
        )
    return whole, best, bound, source


def _best_of(found: Sequence[ChainSolution]) -> ChainSolution:
    """Return the best spans of several problems, with what is proven of all: costs, then headroom, then evenness."""
    least = min(one.cost for one in found)
    near = [one for one in found if one.cost <= least * (1.0 + SAFETY)]
    best = max(near, key=lambda one: (one.headroom_bytes, -one.squared_units))
    return replace(best, least_cost=min(one.least_cost for one in near))


def _experts_apart(model: LanguageModel, settings: Settings) -> list[int]:
    """Return the units that are experts by themselves."""
    units = model.units(settings.granularity)
    return [at for at, (_, parts) in enumerate(units) if settings.granularity == "part" and parts[0].kind == "experts"]


def _first_experts_apart(places: Places, walk: Sequence[int], experts: Sequence[int]) -> Sequence[int]:
    """Return a walk with the experts that are apart from their attention in the first layers, where that costs nothing.

    One flag of llama.cpp says the number of such layers; they have to be on one place, and fit it.
    """
    apart = [unit for unit in experts if walk[unit] != walk[unit - 1]]
    if len({walk[unit] for unit in apart}) != 1:
        return walk
    other, moved = list(walk), walk[apart[0]]
    for count, unit in enumerate(experts):
        other[unit] = moved if count < len(apart) else walk[unit - 1]
    worth = all(unit > 0 for unit in experts) and places.fits(np.array(other))
    return other if worth and places.cost(np.array(other)) <= places.cost(np.array(walk)) * (1 + 1e-12) else walk


def _on_any_device(problem: ChainProblem, places: Places, experts: Sequence[int]) -> tuple[ChainSolution, float, str]:
    """Return the best spans where devices may come back, their bound, and what proved it.

    Contiguous spans stand in where the search found nothing better.
    """
    # Compiled, and so for those alone who ask for it.
    from rlinit.llm.search.count_search import MOST_WORK, prove_walk

    source, streams = "branch and bound over counts", len(places.seconds) > len(problem.seconds)
    found = prove_walk(Places.of_chain(problem), work=MOST_WORK)
    if streams:  # from the best walk without them, which is often the best
        found = prove_walk(places, [found.places] if found.places else [], max(MOST_WORK / 2, MOST_WORK - found.work))
    if not found.places and found.bound == np.inf:
        return ChainSolution(np.inf, ()), np.inf, source
    solution = ChainSolution(np.inf, ())
    if found.places:
        walk, n = _first_experts_apart(places, found.places, experts), problem.num_units
        starts = [0, *(u for u in range(1, n) if walk[u] != walk[u - 1])]
        spans = tuple((walk[start], start, end) for start, end in zip(starts, [*starts[1:], n], strict=True))
        units = [places.seconds[place, unit] for unit, place in enumerate(walk)]
        cuts = [places.transfer_s[one, other] for (one, _, _), (other, _, _) in pairwise(spans)]
        solution = ChainSolution(math.fsum([*units, *cuts]), spans)
    if found.bound < solution.cost * (1 - OPTIMALITY_TOLERANCE):
        whole = solve_chain([problem])
        solution = min(solution, ChainSolution(whole.cost, whole.spans), key=lambda one: one.cost)
    return solution, found.bound, source


def _what_is_missing(problem: ChainProblem) -> str:
    """Return why nothing fits: the devices together are too small, or whole units do not fill them."""
    need, room = float(problem.held_bytes.sum()), problem.room_bytes
    if len(room) == 1:
        need -= problem.shared_bytes
    if need > room.sum():
        return (
            f"weights, cache and logits are {format_bytes(need)}, all devices together have room for "
            f"{format_bytes(float(room.sum()))} beside reserves and buffers: "
            f"{format_bytes(need - float(room.sum()))} are missing"
        )
    largest = float(problem.held_bytes.max())
    if largest > room.max():
        return (
            f"a unit of {format_bytes(largest)} fits no device; beside reserve and buffers the largest has room for "
            f"{format_bytes(room.max())}: {format_bytes(largest - room.max())} are missing on it"
        )
    return (
        f"weights, cache and logits of {format_bytes(need)} would fit into {format_bytes(float(room.sum()))}, but no "
        "split into whole units over linked devices does; smaller units (granularity='part') may"
    )


def max_context(
    model: LanguageModel,
    hardware: Hardware | str,
    *,
    objective: Objective = "decode",
    granularity: Granularity = "layer",
    reserve_bytes: float | None = None,
    first: Sequence[str] = (),
    contiguous: bool = True,
    stream: bool = False,
    runtime: RuntimeName = "llama.cpp",
    micro_batch: int | None = None,
    flash_attention: bool = True,
) -> Limit:
    """Return the longest context that fits, with the plan for it: bisection on the exact method.

    Prompt and output stay as they are, so that at least they have to fit; the model's positions are the limit where
    the memory is not.

    Parameters
    ----------
    model, hardware, objective, granularity, reserve_bytes, first, contiguous, stream
        As for `plan`.
    runtime, micro_batch, flash_attention
        Likewise.

    Raises
    ------
    InvalidHardware, InvalidConfig
        As for `plan`.
    """
    least = model.workload.prompt + model.workload.output
    most = max(least, model.architecture.max_context or LARGEST_BATCH)
    return _largest(
        lambda size: model.with_workload(context=size), least, most, hardware,
        Settings(
            objective, granularity, reserve_bytes, tuple(first), contiguous, stream, runtime, micro_batch,
            flash_attention,
        ),
    )  # fmt: skip


def max_batch(
    model: LanguageModel,
    hardware: Hardware | str,
    *,
    objective: Objective = "decode",
    granularity: Granularity = "layer",
    reserve_bytes: float | None = None,
    first: Sequence[str] = (),
    contiguous: bool = True,
    stream: bool = False,
    runtime: RuntimeName = "llama.cpp",
    micro_batch: int | None = None,
    flash_attention: bool = True,
) -> Limit:
    """Return the largest batch that fits at the model's context, with the plan for it.

    Parameters
    ----------
    model, hardware, objective, granularity, reserve_bytes, first, contiguous, stream
        As for `plan`.
    runtime, micro_batch, flash_attention
        Likewise.

    Raises
    ------
    InvalidHardware, InvalidConfig
        As for `plan`.
    """
    return _largest(
        lambda size: model.with_workload(batch=size), 1, LARGEST_BATCH, hardware,
        Settings(
            objective, granularity, reserve_bytes, tuple(first), contiguous, stream, runtime, micro_batch,
            flash_attention,
        ),
    )  # fmt: skip


def _largest(
    resized: Callable[[int], LanguageModel], least: int, most: int, hardware: Hardware | str, settings: Settings
) -> Limit:
    """Bisect for the largest size that fits; memory grows with the size."""
    devices = Hardware.preset(hardware) if isinstance(hardware, str) else hardware

    def planned(size: int) -> LlmPlan:
        return _planned(resized(size), devices, settings)

    def fits(size: int) -> bool:
        model = resized(size)
        if not settings.contiguous and not settings.stream:
            chain = lower_chain(model, devices, settings)
            if solve_chain([chain]).spans:  # which is quicker to say, and enough
                return True
        return bool(_solve(model, devices, settings)[1].spans)

    if not fits(least):
        return Limit(0, planned(least))
    low, high = least, most
    if fits(most):
        return Limit(most, planned(most), by_model=True)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Limit(low, planned(low))
