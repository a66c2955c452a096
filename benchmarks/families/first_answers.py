"""First answers: what `schedule` says with default settings, against what people do without it, on every preset.

The models that people have (a ViT, BERT, GPT-2, Llama 7B, eight layers of Mixtral, a UNet, ResNet-50, all in FP16) on
machines that they have. Nothing of the library's comparisons is used: everything on each device by itself, and the
natural order cut into equal layers, in proportion to memory, and to the devices' speed, are put together here, timed by
the simulator (`latency`) or the checker's formulas (`pipeline`), and left out where they do not fit.

Run as ``python -m benchmarks.families.first_answers``; needs transformers. ``--time-limit-s 5`` gives the first answer
less time than the default, counted in processor time with ``--processor-time``; ``--models``, ``--presets`` and
``--objectives`` take parts.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import rlinit
from benchmarks.record import count_processor_time, geometric_mean, print_table, save, timed
from rlinit.checker.stages import check_stage_rules, stage_uses
from rlinit.costs.roofline import op_times
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.measurement.ops import placed_plan
from rlinit.plan import Plan
from rlinit.simulation.memory_profile import memory_profile
from rlinit.simulation.simulator import simulate

MODELS = ("vit", "bert", "gpt2", "llama", "mixtral", "unet", "resnet")
PRESETS = (
    *("cpu-t4-a100", "moirai-inter", "moirai-intra", "gpt3-nodes"),
    *(
        "2xrtx3090+cpu",
        "4xa100-80g+nvlink",
        "m3-max/rtx4090+cpu/10gbe",
        "2xh100+cpu",
        "h200+mi300x+cpu",
        "2xl4+l40s+cpu",
    ),
    *("2xp100+v100+cpu", "jetson-orin/rpi5/1gbe", "edge-tpu-4"),
)
"""Every named whole, and every kind of device joined to others."""

OBJECTIVES = ("latency", "pipeline")


def unet(width: int = 64) -> Any:
    """Return a UNet of five levels (Ronneberger et al. 2015), with padding."""
    import torch
    from torch import nn

    def double(before: int, after: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [width * 2**level for level in range(5)]
            self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths], widths, strict=False))
            self.lift = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[-2::-1])
            self.up = nn.ModuleList(double(2 * w, w) for w in widths[-2::-1])
            self.head = nn.Conv2d(width, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Map (B, 3, H, W) to (B, 2, H, W)."""
            kept = []
            for level, block in enumerate(self.down):
                x = block(x if level == 0 else nn.functional.max_pool2d(x, 2))
                kept.append(x)
            for lift, up, skipped in zip(self.lift, self.up, kept[-2::-1], strict=True):
                x = up(torch.cat([skipped, lift(x)], 1))
            return torch.as_tensor(self.head(x))

    return UNet()


def load(name: str) -> Graph:
    """Return the graph of a model, kept in a folder under the system's temporary one."""
    folder = Path(tempfile.gettempdir()) / "rlinit-first-answers"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    if not path.exists():
        import torch
        import transformers

        words = torch.zeros(1, 128, dtype=torch.long, device="meta")
        image = torch.zeros(1, 3, 224, 224, device="meta")
        makers: dict[str, Callable[[], tuple[Any, Any]]] = {
            "vit": lambda: (transformers.ViTForImageClassification(transformers.ViTConfig()), image),
            "bert": lambda: (transformers.BertForSequenceClassification(transformers.BertConfig()), words),
            "gpt2": lambda: (transformers.GPT2LMHeadModel(transformers.GPT2Config()), words),
            "llama": lambda: (transformers.LlamaForCausalLM(transformers.LlamaConfig()), words),
            "mixtral": lambda: (
                transformers.MixtralForCausalLM(transformers.MixtralConfig(num_hidden_layers=8)), words
            ),
            "unet": lambda: (unet(), torch.zeros(1, 3, 256, 256, device="meta")),
            "resnet": lambda: (transformers.ResNetForImageClassification(transformers.ResNetConfig()), image),
        }  # fmt: skip
        with torch.device("meta"):
            model, argument = makers[name]()
        Graph.from_torch(model.eval(), (argument,), dtype="fp16", name=name).save(path)
    return rlinit.load_graph(path)


def cut(graph: Graph, weight: NDArray[np.float64], shares: NDArray[np.float64]) -> list[int]:
    """Return the part of each op: consecutive ones of the natural order by shares, groups with their first op."""
    order = graph.order
    heavy = weight[order] if weight.sum() > 0 else np.ones(graph.num_ops)
    middle = (np.cumsum(heavy) - heavy / 2) / heavy.sum()
    last = int(np.flatnonzero(shares)[-1])
    part = np.empty(graph.num_ops, np.int64)
    part[order] = np.minimum(np.searchsorted(np.cumsum(shares) / shares.sum(), middle, side="right"), last)
    leaders: dict[int, int] = {}
    for v in order.tolist():
        if graph.colocation[v] >= 0:
            part[v] = part[leaders.setdefault(int(graph.colocation[v]), v)]
    return [int(p) for p in part]


def naive_splits(graph: Graph, hardware: Hardware) -> Iterator[tuple[str, list[int]]]:
    """Yield names and devices of ops: each device alone, then the splits."""
    for at, device in enumerate(hardware.devices):
        yield f"all on {device.name}", [at] * graph.num_ops
    seconds = [np.nan_to_num(op_times(graph, device), posinf=0.0) for device in hardware.devices]
    least = np.min(seconds, axis=0)
    weights = {
        "equal layers": (np.ones(graph.num_ops), np.ones(hardware.num_devices)),
        "by speed": (least, np.array([1.0 / max(float(own.sum()), 1e-12) for own in seconds])),
    }
    memory = np.array([device.memory_bytes for device in hardware.devices])
    if np.isfinite(memory).all():
        weights["by memory"] = (np.nan_to_num(graph.param_bytes), memory)
    for name, (weight, shares) in weights.items():
        yield name, cut(graph, weight, shares)


def seconds_of(plan: Plan, graph: Graph, hardware: Hardware, contention: Any) -> float:
    """Return the simulator's seconds of a placement; inf for one of `placed` that does not fit or lacks a link."""
    device = {one.name: at for at, one in enumerate(hardware.devices)}
    where = [device[str((plan.assignment or {})[op])] for op in graph.names]
    if any(hardware.bandwidth[where[u], where[v]] == 0.0 for u, v in graph.edges.tolist()):
        return math.inf
    run = simulate(plan, graph, hardware, contention=contention)
    if plan.method == "given":  # the checker has not seen it
        held = memory_profile(dataclasses.replace(plan, batches=run.batches), graph, hardware)
        for one in hardware.devices:
            if held[one.name].peak_bytes + one.reserve_bytes > one.memory_bytes:
                return math.inf
    return run.makespan_s


def placed(graph: Graph, hardware: Hardware, parts: Sequence[int]) -> Plan:
    """Return a placement of ops on devices by their numbers."""
    names = {op: hardware.devices[part].name for op, part in zip(graph.names, parts, strict=True)}
    plan = placed_plan(graph, names)
    return dataclasses.replace(plan, hardware=hardware.name, hardware_fingerprint=hardware.fingerprint())


def stage_clock(graph: Graph, hardware: Hardware, stage: Sequence[int], devices: Sequence[str]) -> float:
    """Return the bottleneck of stages by the checker's formulas, inf where they are not allowed or do not fit."""
    assignment = dict(zip(graph.names, stage, strict=True))
    try:
        check_stage_rules(assignment, graph, hardware, list(devices), ordered=graph.edges.tolist())
        return max(use.time_s for use in stage_uses(assignment, graph, hardware, list(devices), "pipeline"))
    except InvalidPlan:
        return math.inf


def measure(graph: Graph, hardware: Hardware, objective: Any, time_limit_s: float | None) -> dict[str, Any]:
    """Return the first answer beside the best of what people do, under the same clock."""
    plan, seconds = timed(rlinit.schedule, graph, hardware, objective=objective, time_limit_s=time_limit_s)
    names = [device.name for device in hardware.devices]
    others: dict[str, float] = {}
    row = {"model": graph.name, "hardware": hardware.name, "objective": objective, "status": plan.status}
    if objective == "pipeline":
        for name, parts in naive_splits(graph, hardware):
            others[name] = stage_clock(graph, hardware, parts, names)
        stage = [int((plan.assignment or {}).get(op, 0)) for op in graph.names]
        value = stage_clock(graph, hardware, stage, [use.device for use in plan.stages]) if plan.stages else math.inf
    else:
        congested: dict[str, float] = {}
        for name, parts in naive_splits(graph, hardware):
            other = placed(graph, hardware, parts)
            others[name], congested[name] = (seconds_of(other, graph, hardware, how) for how in ("plan", "shared"))
        value = seconds_of(plan, graph, hardware, "plan") if plan.batches else math.inf
        if plan.batches and min(congested.values()) < math.inf:
            row["shared_links"] = seconds_of(plan, graph, hardware, "shared") / min(congested.values())
    best = min(others, key=lambda name: others[name])
    fits = others[best] < math.inf
    return row | {
        "value": value if value < math.inf else None,
        "bound": plan.bound,
        "best": best if fits else "none fits",
        "its_value": others[best] if fits else None,
        "ratio": value / others[best] if fits else None,
        "worse": bool(value > others[best] * (1 + 1e-9)),
        "seconds": seconds,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--objectives", nargs="+", default=OBJECTIVES)
    parser.add_argument("--time-limit-s", type=float)
    parser.add_argument("--name", default="first_answers")
    parser.add_argument("--processor-time", action="store_true", help="count limits in processor time")
    chosen = parser.parse_args()
    if chosen.processor_time:
        count_processor_time()
    rows = []
    for model in chosen.models:
        graph = load(model)
        for preset in chosen.presets:
            for objective in chosen.objectives:
                rows.append(measure(graph, Hardware.preset(preset), objective, chosen.time_limit_s))
                print({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in rows[-1].items()}, flush=True)
    header = [
        "model",
        "hardware",
        "objective",
        "status",
        "value",
        "best",
        "its_value",
        "ratio",
        "shared_links",
        "seconds",
    ]
    print_table("first answers", header, ([row.get(key, "") for key in header] for row in rows))
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    print(
        f"{sum(row['worse'] for row in rows)} of {len(rows)} worse than the best of the others; "
        f"{sum(row['ratio'] is None and row['value'] is not None for row in rows)} where none of them fits; "
        f"geometric mean {geometric_mean(ratios):.3f}; under shared links "
        f"{sum(row.get('shared_links', 0.0) > 1 + 1e-9 for row in rows)} worse"
    )
    save(chosen.name, rows, time_limit_s=chosen.time_limit_s, processor_time=chosen.processor_time)


if __name__ == "__main__":
    main()
