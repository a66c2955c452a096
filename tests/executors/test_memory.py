"""Memory over time of plans, against what torch's allocator sees while the local executor runs them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import rlinit
from rlinit.executors import execute
from rlinit.executors.local import LocalProgram
from rlinit.hardware import Device, Hardware
from rlinit.simulation.memory_profile import memory_profile

ROWS, WIDTH = 512, 64
HARDWARE = Hardware.mesh([Device("one", "cpu", flops_per_s=1e10, bytes_per_s=1e10)], 1e9)


class Wired(torch.nn.Module):
    """Layers, sums and elementwise ops wired at random, with tensors that live long and short."""

    def __init__(self, seed: int, num_ops: int = 14) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        kinds = ["linear", "tanh", "add", "relu", "view"]
        self.steps = [(str(rng.choice(kinds)), *rng.integers(0, at + 1, 2)) for at in range(num_ops)]
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, width) to the sum of the values that nothing else reads, and the last one."""
        values, read = [x], set()
        for kind, a, b in self.steps:
            u, v = values[a], values[b]
            read |= {a, b} if kind == "add" else {a}
            if kind == "view":
                values.append(u.view(WIDTH, ROWS).view(ROWS, WIDTH))
                continue
            values.append(self.layer(u) if kind == "linear" else u + v if kind == "add" else getattr(torch, kind)(u))
        total = values[-1]
        for at in range(1, len(values) - 1):
            if at not in read:
                total = total + values[at]
        return total


@pytest.mark.parametrize("seed", range(6))
def test_the_peak_is_what_the_allocator_sees(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors take as much at their peak as the profile says, but for the input, which the caller holds."""
    model, x = Wired(seed).eval(), torch.randn(ROWS, WIDTH)
    graph = rlinit.Graph.from_torch(model, (x,))
    plan = rlinit.schedule(graph, HARDWARE, objective="latency", method="heft")
    profile = memory_profile(plan, graph, HARDWARE)["one"]
    seen: list[float] = []
    serve = LocalProgram._serve

    def watched(self: LocalProgram, lane: int, run: object) -> None:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            serve(self, lane, run)  # type: ignore[arg-type]
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        seen.append(float(np.cumsum(changes).max()))

    monkeypatch.setattr(LocalProgram, "_serve", watched)
    execute(plan, model, x, graph=graph, devices={"one": "cpu"})
    tensors = profile.peak_bytes - profile.param_bytes
    assert tensors - x.nbytes <= max(seen) <= tensors
