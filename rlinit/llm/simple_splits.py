"""The splits that tools make by rule, under the same cost model: what a plan is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinit.hardware import Hardware
from rlinit.llm.contiguous import ChainProblem
from rlinit.llm.lowering import Settings
from rlinit.llm.model import LanguageModel
from rlinit.llm.verification import evaluate, memory_of, overfull, value_of

Spans = tuple[tuple[int, int, int], ...]


def compare_splits(
    model: LanguageModel, hardware: Hardware, settings: Settings, problem: ChainProblem
) -> dict[str, float | str]:
    """Return the value of each simple split, or why it has none.

    ``best single device``; ``equal layers``, ``in proportion to memory`` (exo) and ``in proportion to bandwidth`` over
    all devices but disks in the hardware's order, those that have to come first before the others; ``greedy``:
    devices in the order of their bandwidth, each filled with whole layers before the next is begun (llama.cpp's fit).

    Parameters
    ----------
    model, hardware, settings
        The problem.
    problem
        The same in arrays.
    """
    n, computing = (
        problem.num_units,
        [at for at, device in enumerate(hardware.devices) if device.flops_per_s is not None],
    )
    memory = [min(device.memory_bytes, 2.0**50) for device in hardware.devices]
    bandwidth = [float(device.bytes_per_s or 0.0) for device in hardware.devices]
    shares = {
        "equal layers": [1.0] * len(memory),
        "in proportion to memory": memory,
        "in proportion to bandwidth": bandwidth,
    }
    found: dict[str, float | str] = {}
    singles = {at: _judge(model, hardware, settings, ((at, 0, n),)) for at in computing}
    fitting = [value for value in singles.values() if isinstance(value, float)]
    found["best single device"] = min(fitting) if fitting else "no device holds the model"
    order = sorted(computing, key=lambda at: hardware.devices[at].name not in settings.first)
    for name, weights in shares.items():
        spans = split_in_proportion(n, [weights[at] for at in order])
        found[name] = _judge(model, hardware, settings, tuple((order[at], start, end) for at, start, end in spans))
    found["greedy"] = _judge(model, hardware, settings, _greedy(problem, bandwidth, computing))
    return found


def split_in_proportion(num_units: int, weights: Sequence[float]) -> Spans:
    """Return spans of devices in order, each as long as its share, rounded where it ends.

    >>> split_in_proportion(10, [1.0, 3.0])
    ((0, 0, 2), (1, 2, 10))

    Parameters
    ----------
    num_units
        Units to share out.
    weights
        (d,) positive.
    """
    ends = np.rint(np.cumsum(weights) / np.sum(weights) * num_units).astype(int).tolist()
    return tuple((at, start, end) for at, (start, end) in enumerate(zip([0, *ends], ends, strict=False)) if end > start)


def _greedy(problem: ChainProblem, bandwidth: Sequence[float], computing: Sequence[int]) -> Spans:
    """Fill devices one after the other, the fastest memory first; the last one takes what is left."""
    order = sorted(computing, key=lambda at: (-bandwidth[at], at))
    spans, start, n = [], 0, problem.num_units
    for at in order:
        costs = problem.span_costs(at)[start]
        fitting = np.flatnonzero(np.isfinite(costs))
        end = n if at == order[-1] else int(fitting[-1]) if len(fitting) else start
        if end > start:
            spans.append((at, start, end))
        start = end
    return tuple(spans)


def _judge(model: LanguageModel, hardware: Hardware, settings: Settings, places: Spans) -> float | str:
    spans = evaluate(model, hardware, settings, places)
    problem = overfull(memory_of(model, hardware, settings, spans))
    if problem:
        return problem
    if any(span.device in settings.first for span in spans[1:]):
        return "a device that may only come first does not"
    value = value_of(spans, settings)
    return value if value < float("inf") else "devices without a link between them"
