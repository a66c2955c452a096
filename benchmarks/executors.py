"""What running a plan by the local executor costs and gains.

``overhead``: one device, against the same exported program run by torch itself, with the same threads.
``gain``: two independent towers on two CPU workers against one worker, with the same number of threads in all.
Run as ``python -m benchmarks.executors``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.record import print_table, save
from rlinit.executors.local import LocalExecutor
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.plan import Batch, DeviceUse, Plan

RUNS = 15


class Residual(nn.Module):
    """A stack of small residual convolution blocks (some hundred ops)."""

    def __init__(self, blocks: int = 20, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(blocks)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, H, W) to (B, width)."""
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return x.mean((2, 3))


class Elementwise(nn.Module):
    """A long chain of elementwise ops: the time is mostly that of calling them."""

    def __init__(self, ops: int = 400) -> None:
        super().__init__()
        self.ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map any tensor to one of its shape."""
        y = x
        for at in range(self.ops // 2):
            y = torch.tanh(y) + (x if at % 2 else y)
        return y


class Towers(nn.Module):
    """Independent towers of matrix products that meet at the end."""

    def __init__(self, towers: int = 2, depth: int = 50, width: int = 384) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)))
            for _ in range(towers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, width) to (B, width)."""
        return torch.stack([tower(x) for tower in self.towers]).sum(0)


def plan_of(model: nn.Module, inputs: tuple[Any, ...], device_of: Callable[[str, str], str]) -> tuple[Plan, Graph]:
    """Return a plan that runs the ops of a model in their order, each where `device_of(node, module)` says."""
    exported = torch.export.export(model, inputs, strict=False)
    nodes = [node for node in exported.graph.nodes if node.op == "call_function"]
    reads = [(other.name, node.name) for node in nodes for other in node.all_input_nodes if other in nodes]
    graph = Graph.build([(node.name, {"node": node.name, "time_s": 1.0}) for node in nodes], reads)
    paths = {n.name: " ".join(str(path) for path, _ in (n.meta.get("nn_module_stack") or {}).values()) for n in nodes}
    where = {node.name: device_of(node.name, paths[node.name]) for node in nodes}
    names = sorted(set(where.values()))
    hardware = Hardware.mesh([Device(name) for name in names])
    batches = tuple(Batch(op, device, (0,), float(at), at + 1.0) for at, (op, device) in enumerate(where.items()))
    plan = Plan(
        objective="latency",
        status="feasible",
        values=(float(len(nodes)),),
        bounds=(0.0,),
        bound_source="",
        method="given",
        assignment=where,
        stages=(),
        history=(),
        phase_s={},
        graph=graph.name,
        graph_fingerprint=graph.fingerprint(),
        hardware=hardware.name,
        hardware_fingerprint=hardware.fingerprint(),
        batches=batches,
        devices=tuple(DeviceUse(name, sum(b.device == name for b in batches), 0.0, 0.0) for name in names),
        start_s={batch.op: batch.start_s for batch in batches},
    )
    return plan, graph


def alternating(calls: list[Callable[[], object]]) -> list[float]:
    """Return the median seconds of each call, run in turn so that other load on the machine hits all alike."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(RUNS + 2):
        for at, call in enumerate(calls):
            started = time.perf_counter()
            call()
            seconds[at].append(time.perf_counter() - started)
    return [statistics.median(times[2:]) for times in seconds]


def overhead(threads: int) -> list[dict[str, Any]]:
    """Return rows about one device."""
    rows = []
    cases: list[tuple[str, nn.Module, tuple[Any, ...]]] = [
        ("residual", Residual().eval(), (torch.randn(4, 3, 32, 32),)),
        ("elementwise 64 KiB", Elementwise().eval(), (torch.randn(128, 128),)),
        ("elementwise 1 KiB", Elementwise().eval(), (torch.randn(16, 16),)),
        ("towers", Towers().eval(), (torch.randn(64, 384),)),
    ]
    for name, model, inputs in cases:
        plan, graph = plan_of(model, inputs, lambda node, module: "d0")
        unplaced = torch.export.export(model, inputs, strict=False).module()
        with LocalExecutor(threads=threads).load(plan, model, inputs, graph=graph) as program, torch.no_grad():
            torch.set_num_threads(threads)
            mine, true = alternating([lambda p=program, x=inputs: p.run(*x), lambda m=unplaced, x=inputs: m(*x)])
        rows.append(
            {"case": name, "ops": graph.num_ops, "threads": threads, "planned_s": mine, "unplaced_s": true}
            | {"overhead": mine / true - 1.0}
        )
    return rows


def gain(threads: int) -> list[dict[str, Any]]:
    """Return rows about a wide model on two workers against one."""
    rows = []
    for width, batch in ((384, 64), (768, 64), (768, 256)):
        model, inputs = Towers(depth=20, width=width).eval(), (torch.randn(batch, width),)
        both = plan_of(model, inputs, lambda node, module: "d1" if "towers.1" in module else "d0")
        alone = plan_of(model, inputs, lambda node, module: "d0")
        executor = LocalExecutor(threads=threads)
        seconds = []
        # One after the other: an open program sets torch's threads.
        for plan, graph in (alone, both):
            with executor.load(plan, model, inputs, graph=graph) as program:
                seconds += alternating([lambda p=program, x=inputs: p.run(*x)])
        rows.append(
            {"width": width, "batch": batch, "threads": threads, "one_s": seconds[0], "two_s": seconds[1]}
            | {"speedup": seconds[0] / seconds[1]}
        )
    return rows


def main() -> None:
    """Measure, print and write both tables."""
    threads = torch.get_num_threads()
    costs, gains = overhead(threads), gain(threads)
    print_table("overhead on one device", list(costs[0]), (row.values() for row in costs))
    print_table("two towers on two workers", list(gains[0]), (row.values() for row in gains))
    save("executors", {"overhead": costs, "gain": gains}, runs=RUNS)


if __name__ == "__main__":
    main()
