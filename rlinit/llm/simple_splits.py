"""The splits that people run and tools make by rule, under the same cost model: what a plan is compared with.

llama.cpp's own rules, of ``common/fit.cpp`` and ``docs/multi-gpu.md`` of its repository (``--fit``, pull request
16653): the token embedding stays on the host; all layers and the output go to the GPUs in their order, in proportion to
their free memory; where that does not fit, GPUs are filled with whole layers from the last one and the output
backwards, and the first layers stay on the host; of a mixture experts stay there instead, but for the layers that fit
whole (its last step, which also moves layers between GPUs and cuts one of each, is left out).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from rlinit.hardware import CAPACITY_SLACK, Hardware
from rlinit.llm.lowering import Settings
from rlinit.llm.model import LanguageModel
from rlinit.llm.search.contiguous import ChainProblem
from rlinit.llm.verification import evaluate, memory_of, overfull, value_of

Walk = list[int]
"""The device of each unit."""


def compare_splits(
    model: LanguageModel, hardware: Hardware, settings: Settings, problem: ChainProblem
) -> dict[str, float | str]:
    """Return the value of each rule's split, or why it has none.

    ``best single device``; ``in proportion to memory`` (exo) and ``in proportion to bandwidth`` over all devices but
    disks in the hardware's order, those that have to come first before the others; ``equal layers on the GPUs``
    (vLLM's default); ``llama.cpp``: what it does by itself; ``most layers on the GPUs``: the most (``-ngl``) that fit,
    in proportion to memory, and the rest on the processor; for mixtures whose experts may be apart the ``fewest experts
    on the processor`` (``--n-cpu-moe``); ``fastest memory filled first``, whole layers, whatever the device is.

    Parameters
    ----------
    model, hardware, settings
        The problem.
    problem
        The same in arrays.
    """
    rules = _Rules(model, hardware, settings, problem)
    room, bandwidth = problem.room_bytes, [float(device.bytes_per_s or 0.0) for device in hardware.devices]
    everywhere = sorted(rules.computing, key=lambda at: hardware.devices[at].name not in settings.first)
    walks = {
        "in proportion to memory": rules.shared(everywhere, [min(room[at], 2.0**50) for at in everywhere]),
        "in proportion to bandwidth": rules.shared(everywhere, [bandwidth[at] for at in everywhere]),
        "equal layers on the GPUs": rules.shared(rules.gpus, [1.0] * len(rules.gpus)),
        "llama.cpp": rules.fitted(),
        "most layers on the GPUs": rules.most_layers(),
        "fewest experts on the processor": rules.fewest_experts(),
        "fastest memory filled first": rules.filled(sorted(rules.computing, key=lambda at: (-bandwidth[at], at))),
    }
    found: dict[str, float | str] = {"best single device": rules.single()}
    return found | {name: rules.judge(walk) for name, walk in walks.items() if walk is not None}


@dataclass(frozen=True, slots=True)
class _Rules:
    """Walks of rules; None where a rule is for other hardware or models."""

    model: LanguageModel
    hardware: Hardware
    settings: Settings
    problem: ChainProblem

    @property
    def computing(self) -> list[int]:
        return [at for at, device in enumerate(self.hardware.devices) if device.flops_per_s is not None]

    @property
    def gpus(self) -> list[int]:
        return [at for at in self.computing if self.hardware.devices[at].kind != "cpu"]

    @property
    def host(self) -> int | None:
        return next((at for at in self.computing if self.hardware.devices[at].kind == "cpu"), None)

    def starts(self) -> list[int]:
        """Return where each layer starts, where the output does, and the end."""
        n, layers = self.problem.num_units, self.model.architecture.num_layers
        return [1 + (n - 2) // layers * at for at in range(layers + 1)] + [n]

    def holds(self, device: int, walk: Walk) -> bool:
        """Return whether a device holds what a walk gives it."""
        here = np.array(walk) == device
        need = self.problem.held_bytes[here].sum()
        need -= self.problem.shared_bytes if walk[0] == walk[-1] == device else 0.0
        return bool(need <= self.problem.room_bytes[device] * CAPACITY_SLACK)

    def shared(self, devices: Sequence[int], weights: Sequence[float], kept: int = 0) -> Walk | None:
        """Return layers and output in proportion to weights; the embedding and `kept` layers are on the host.

        A layer is on the first device whose share, with those before it, ends behind it: llama.cpp's rounding.
        """
        if not devices or sum(weights) <= 0:
            return None
        starts, count = self.starts(), self.model.architecture.num_layers + 1 - kept
        ends = [math.ceil(round(total / sum(weights) * count, 9)) for total in accumulate(weights)]
        host = self.host if kept or self.host not in devices else None
        walk = [devices[0] if host is None else host] * starts[kept]
        for device, (start, end) in zip(devices, pairwise([0, *ends]), strict=True):
            walk += [device] * (starts[kept + end] - starts[kept + start])
        return walk

    def fitted(self) -> Walk | None:
        """Return llama.cpp's own split."""
        walk = self.most_layers(0)
        if walk is None or all(self.holds(at, walk) for at in self.gpus):
            return walk
        if self.apart():
            return self.whole_layers_where_they_fit(walk)
        return self.filled(self.gpus[::-1], backwards=True)

    def most_layers(self, most_kept: int | None = None) -> Walk | None:
        """Return the split in proportion to memory with the fewest layers on the host with which GPUs fit."""
        weights = [float(min(self.problem.room_bytes[at], 2.0**50)) for at in self.gpus]
        last = self.model.architecture.num_layers + 1 if self.host is not None else 0
        walk = None
        for kept in range((last if most_kept is None else most_kept) + 1):
            walk = self.shared(self.gpus, weights, kept)
            if walk is None or all(self.holds(at, walk) for at in self.gpus):
                break
        return walk

    def apart(self) -> list[int]:
        """Return the units of experts that may be apart from the attention of their layer."""
        if self.settings.contiguous or self.host is None:
            return []
        units = self.model.units(self.settings.granularity)
        return [at for at, (name, parts) in enumerate(units) if parts[0].kind == "experts" and "." in name]

    def fewest_experts(self) -> Walk | None:
        """Return all layers on the GPUs but the experts of the first ones, as few as fit."""
        walk, experts, host = self.most_layers(0), self.apart(), self.host
        if walk is None or host is None or not experts:
            return None
        for at in experts:
            if all(self.holds(gpu, walk) for gpu in self.gpus):
                break
            walk[at] = host
        return walk

    def whole_layers_where_they_fit(self, split: Walk) -> Walk:
        """Return a split with all experts on the host, but for the first layers of each GPU that fit whole."""
        walk, host = list(split), self.host
        for at in self.apart():
            walk[at] = walk[0] if host is None else host
        for at in self.apart():
            tried = [*walk[:at], split[at], *walk[at + 1 :]]
            walk = tried if self.holds(split[at], tried) else walk
        return walk

    def filled(self, devices: Sequence[int], backwards: bool = False) -> Walk:
        """Return devices filled with whole units one after the other; the host, or the last one, takes the rest.

        Backwards the embedding is left to the host, and units are taken from the output on.
        """
        host, n = self.host, self.problem.num_units
        rest = devices[-1] if host is None or not backwards else host
        walk, left = [rest] * n, list(range(n))[::-1] if backwards else list(range(n))
        left = left[:-1] if backwards and host is not None else left
        for device in devices:
            while left:
                walk[left[0]] = device
                if not self.holds(device, walk) and device != rest:
                    walk[left[0]] = rest
                    break
                left.pop(0)
        return walk

    def single(self) -> float | str:
        """Return the value of the best device alone, or what the one with most room lacks."""
        values = {at: self.judge([at] * self.problem.num_units) for at in self.computing}
        fitting = [value for value in values.values() if isinstance(value, float)]
        return min(fitting) if fitting else values[max(values, key=lambda at: float(self.problem.room_bytes[at]))]

    def judge(self, walk: Walk) -> float | str:
        """Return the value of a walk, or why it is none."""
        n = len(walk)
        starts = [0, *(at for at in range(1, n) if walk[at] != walk[at - 1])]
        places = tuple((walk[a], a, b) for a, b in zip(starts, [*starts[1:], n], strict=True))
        spans = evaluate(self.model, self.hardware, self.settings, places)
        problem = overfull(memory_of(self.model, self.hardware, self.settings, spans))
        if problem:
            return problem
        late = [span.device for span in spans[1:] if span.device in self.settings.first]
        if late:
            return f"{late[0]!r} has to come first, and does not"
        value = value_of(spans, self.settings)
        return value if value < float("inf") else "devices without a link between them"
