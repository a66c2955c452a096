"""Value and memory of spans, recomputed part by part; shares nothing with the dynamic program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rlinit.checker.tolerances import ROUNDING
from rlinit.errors import InvalidPlan
from rlinit.hardware import CAPACITY_SLACK, Hardware
from rlinit.llm.lowering import (
    Settings,
    buffer_bytes,
    layer_bytes,
    logit_bytes,
    passes_of,
    reserve_bytes,
    streamed_seconds,
    streams_of,
)  # fmt: skip
from rlinit.llm.model import LanguageModel, Timed
from rlinit.llm.result import DeviceMemory, Level, LlmPlan, Span
from rlinit.plan import OPTIMALITY_TOLERANCE
from rlinit.units import format_bytes


def evaluate(
    model: LanguageModel, hardware: Hardware, settings: Settings, spans: Sequence[tuple[int, int, int]]
) -> tuple[Span, ...]:
    """Return what devices do, by (device, first unit, end).

    Parameters
    ----------
    model, hardware, settings
        The problem.
    spans
        In the order of the chain; under ``pipeline`` each device has a cache for as many batches as there are spans.
        Numbers behind the devices are pairs of `rlinit.llm.lowering.streams_of`.
    """
    units = model.units(settings.granularity)
    batches = len(spans) if settings.objective == "pipeline" else 1
    pairs = [*((d, d) for d in range(hardware.num_devices)), *streams_of(hardware, settings)]
    found = []
    for at, (number, start, end) in enumerate(spans):
        device, home = pairs[number]
        parts = [part for _, some in units[start:end] for part in some]
        weights = sum(model.weight_bytes(part) for part in parts)
        if end == len(units) and home == pairs[spans[0][0]][1]:
            weights -= model.tied_bytes  # embedding and head are one matrix there
        place = hardware.devices[device]
        seconds, transfer = [], 0.0
        for phase, count in passes_of(model, settings.objective):
            if home == device:
                seconds += [count * model.seconds(part, place, phase) for part in parts]
            else:
                seconds += [
                    count * streamed_seconds(model, hardware, unit, device, home, phase) for _, unit in units[start:end]
                ]
            source = pairs[spans[at - 1][0]][0]
            if at and count and source != device:
                rate, delay = float(hardware.bandwidth[source, device]), float(hardware.latency_s[source, device])
                transfer += count * (delay + model.cut_bytes(phase) / rate) if rate > 0 else math.inf
        names = tuple(name for name, _ in units[start:end])
        cache = float(batches * sum(model.kv_bytes(part) for part in parts))
        streamed = (hardware.devices[home].name, buffer_bytes(model, settings)) if home != device else ("", 0.0)
        found.append(Span(place.name, names, float(weights), cache, math.fsum(seconds), transfer, *streamed))
    return tuple(found)


def value_of(spans: Sequence[Span], settings: Settings) -> float:
    """Return the objective of spans: the sum of all times, or the largest of them.

    Parameters
    ----------
    spans, settings
        As of a plan.
    """
    times = [time for span in spans for time in (span.seconds, span.transfer_s)]
    return max(times) if settings.objective == "pipeline" else math.fsum(times)


def sureness(model: LanguageModel, hardware: Hardware, settings: Settings, spans: Sequence[Span]) -> Timed:
    """Return the objective of spans with the errors and the sources of its seconds; transfers count as modelled.

    Parameters
    ----------
    model, hardware, settings
        The problem.
    spans
        From `evaluate`. Of a pipeline the slowest stage or link counts.
    """
    parts = {name: parts for name, parts in model.units(settings.granularity)}
    devices = {device.name: device for device in hardware.devices}
    found: list[Timed] = []
    for span in spans:
        found += [Timed(span.transfer_s, span.transfer_s, span.transfer_s, {"modelled": span.transfer_s})]
        rows = [
            (count, model.timed(part, devices[span.device], phase))
            for phase, count in passes_of(model, settings.objective)
            for name in span.units
            for part in parts[name]
        ]
        own = Timed.total([(float(count), one) for count, one in rows])
        found += [
            own._replace(seconds=span.seconds) if not span.weights_on else found[-1]._replace(seconds=span.seconds)
        ]
    if settings.objective == "pipeline":
        return max(found, key=lambda one: one.seconds)
    return Timed.total([(1.0, one) for one in found])


def memory_of(
    model: LanguageModel, hardware: Hardware, settings: Settings, spans: Sequence[Span]
) -> tuple[DeviceMemory, ...]:
    """Return what is in the memory of each device that computes or has weights that are read from it.

    Parameters
    ----------
    model, hardware, settings
        The problem.
    spans
        From `evaluate`.
    """
    used = [at for at, device in enumerate(hardware.devices) if any(span.device == device.name for span in spans)]
    far_head = any(device.kind == "cpu" and device.name == spans[-1].device for device in hardware.devices)
    layers, logits = (of(model, hardware, settings, used, far_head) for of in (layer_bytes, logit_bytes))
    found = []
    for device in hardware.devices:
        here = [span for span in spans if span.device == device.name]
        weights = [span.weight_bytes for span in spans if (span.weights_on or span.device) == device.name]
        if not here and not weights:
            continue
        buffers = [layers] if device.flops_per_s is not None else []
        buffers += [logits for span in here if span is spans[-1]]
        buffers += {span.weights_on: span.buffer_bytes for span in here}.values()
        found.append(
            DeviceMemory(
                device.name, device.memory_bytes, math.fsum(weights), math.fsum(span.cache_bytes for span in here),
                math.fsum(buffers), reserve_bytes(device, settings),
            )
        )  # fmt: skip
    return tuple(found)


def overfull(memory: Sequence[DeviceMemory]) -> str:
    """Return how much more a device holds than it has; "" where all fits.

    Parameters
    ----------
    memory
        From `memory_of`.
    """
    for one in memory:
        room = max(0.0, one.memory_bytes - one.reserve_bytes)
        need = math.fsum((one.weight_bytes, one.cache_bytes, one.buffer_bytes))
        if need > room * CAPACITY_SLACK:
            return (
                f"{one.device!r} would hold {format_bytes(need)} ({format_bytes(one.buffer_bytes)} of it buffers) and "
                f"has {format_bytes(room)} beside its reserve"
            )
    return ""


def levels_of(spans: Sequence[Span], memory: Sequence[DeviceMemory], bounds: tuple[float, float]) -> tuple[Level, ...]:
    """Return what spans are chosen by among those of equal value.

    Parameters
    ----------
    spans
        Of a plan.
    memory
        From `memory_of`.
    bounds
        What was proven that no headroom is above, and no sum of squares below.
    """
    headroom = min(one.free_bytes for one in memory)
    units = Counter([span.device for span in spans for _ in span.units][1:-1])
    squares = float(sum(count * count for count in units.values()))
    return (
        Level("headroom_bytes", headroom, max(bounds[0], headroom)),
        Level("squared_units", squares, min(bounds[1], squares)),
    )


def verify(plan: LlmPlan, hardware: Hardware) -> None:
    """Check that a plan covers the model in order, fits, costs what it says, and is as good as its bound proves.

    Parameters
    ----------
    plan
        With a split, or infeasible without one.
    hardware
        What it was made for.

    Raises
    ------
    InvalidPlan
        It does not.
    """
    if plan.status == "infeasible":
        if plan.spans or plan.levels or not plan.value == plan.bound == math.inf:
            raise InvalidPlan(f"the plan says that nothing fits, but gives {len(plan.spans)} spans and {plan.value} s")
        return
    index = {device.name: at for at, device in enumerate(hardware.devices)}
    units = [name for name, _ in plan.model.units(plan.settings.granularity)]
    if [name for span in plan.spans for name in span.units] != units:
        raise InvalidPlan("the spans do not cover the model's units, each once and in order")
    names = [span.device for span in plan.spans]
    if not set(names) <= set(index) or (plan.settings.contiguous and len(set(names)) != len(names)):
        raise InvalidPlan(f"devices {', '.join(names)}: expected devices of {hardware.name!r}, each at most once")
    for name in names[1:]:
        if name in plan.settings.first:
            raise InvalidPlan(f"device {name!r} may only come first")
    ends = [0]
    for span in plan.spans:
        ends.append(ends[-1] + len(span.units))
    pairs = [*((d, d) for d in range(hardware.num_devices)), *streams_of(hardware, plan.settings)]
    used = [(index[span.device], index.get(span.weights_on or span.device, -1)) for span in plan.spans]
    if not set(used) <= set(pairs):
        raise InvalidPlan("a device reads its weights from where it cannot")
    places = [(pairs.index(pair), start, end) for pair, start, end in zip(used, ends[:-1], ends[1:], strict=True)]
    found = evaluate(plan.model, hardware, plan.settings, places)
    for ours, span in zip(found, plan.spans, strict=True):
        if ours != span:
            raise InvalidPlan(f"device {span.device!r}: the plan says {span}, recomputed {ours}")
    memory = memory_of(plan.model, hardware, plan.settings, found)
    if memory != plan.memory:
        raise InvalidPlan(f"the plan says that devices hold {plan.memory}, recomputed {memory}")
    problem = overfull(memory)
    if problem:
        raise InvalidPlan(problem)
    value = value_of(found, plan.settings)
    if not (math.isclose(value, plan.value, rel_tol=ROUNDING) and plan.bound <= plan.value * (1 + ROUNDING)):
        raise InvalidPlan(f"the plan says {plan.value} s, at least {plan.bound} s; recomputed {value} s")
    levels = levels_of(found, memory, (math.inf, -math.inf))
    if [(level.name, level.value) for level in plan.levels] != [(level.name, level.value) for level in levels] or not (
        plan.levels[0].bound >= levels[0].value and plan.levels[1].bound <= levels[1].value
    ):
        raise InvalidPlan(f"the plan says {plan.levels} of plans of equal value; recomputed {levels}")
    proven = "optimal" if plan.bound >= plan.value * (1 - OPTIMALITY_TOLERANCE) else "feasible"
    if plan.status != proven:
        raise InvalidPlan(
            f"the plan is {plan.status!r} with {plan.value} s, at least {plan.bound} s; expected {proven!r}"
        )
