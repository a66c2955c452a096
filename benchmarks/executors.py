"""What running a plan by the local executor costs and gains.

``overhead``: one device, against the same exported program run by torch itself, with the same threads.
``gain``: two independent towers on two CPU workers against one worker, with the same number of threads in all.
``equality``: models of transformers and pytorchcv (where they are installed) on random placements over three devices,
one thread each, against the models themselves.
Times are the least and the median of 25 runs, in turn; the least is nearer to what an idle machine shows.
Run as ``python -m benchmarks.executors times`` or ``models``.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import rlinit.executors
from benchmarks.record import print_table, save
from rlinit.errors import RlinitError
from rlinit.executors.local import LocalExecutor
from rlinit.graph import Graph
from rlinit.importers.torch_export import export_program, from_program
from rlinit.measuring import placed_plan
from rlinit.plan import Plan

RUNS = 25


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
    return placed_plan(graph, where), graph


def alternating(calls: list[Callable[[], object]]) -> list[tuple[float, float]]:
    """Return the least and the median seconds of each call, run in turn so that other load hits all alike."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(RUNS + 2):
        for at, call in enumerate(calls):
            started = time.perf_counter()
            call()
            seconds[at].append(time.perf_counter() - started)
    return [(min(times[2:]), statistics.median(times[2:])) for times in seconds]


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
        torch.set_num_threads(threads)
        with LocalExecutor(threads=threads).load(plan, model, inputs, graph=graph) as program, torch.no_grad():
            mine, true = alternating([functools.partial(program.run, *inputs), functools.partial(unplaced, *inputs)])
        rows.append(
            {"case": name, "ops": graph.num_ops, "threads": threads, "planned_s": mine[0], "unplaced_s": true[0]}
            | {"overhead": mine[0] / true[0] - 1.0, "overhead of medians": mine[1] / true[1] - 1.0}
        )
    return rows


def gain(threads: int) -> list[dict[str, Any]]:
    """Return rows about a wide model on two workers against one."""
    rows = []
    torch.set_num_threads(threads)
    for width, batch in ((128, 8), (384, 64), (768, 64), (768, 256)):
        model, inputs = Towers(depth=20, width=width).eval(), (torch.randn(batch, width),)
        both = plan_of(model, inputs, lambda node, module: "d1" if "towers.1" in module else "d0")
        alone = plan_of(model, inputs, lambda node, module: "d0")
        executor = LocalExecutor(threads=threads)
        seconds = []
        # One after the other: an open program sets torch's threads.
        for plan, graph in (alone, both):
            with executor.load(plan, model, inputs, graph=graph) as program:
                seconds += alternating([functools.partial(program.run, *inputs)])
        rows.append(
            {"width": width, "batch": batch, "threads": threads, "one_s": seconds[0][0], "two_s": seconds[1][0]}
            | {"speedup": seconds[0][0] / seconds[1][0], "speedup of medians": seconds[0][1] / seconds[1][1]}
        )
    return rows


IMAGES = (
    *("resnet18", "resnet50", "preresnet18", "seresnet18", "resnext14_16x4d", "vgg11", "bn_vgg11", "densenet121"),
    *(
        "squeezenet_v1_0",
        "shufflenetv2_w1",
        "menet108_8x1_g3",
        "mobilenet_w1",
        "mobilenetv2_w1",
        "mobilenetv3_small_w1",
    ),
    *("mnasnet_b1", "efficientnet_b0", "ghostnet", "dla46c", "inceptionv3", "xception", "nasnet_4a1056", "hardnet39ds"),
)
LAYERS = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
WIDTHS: dict[str, Any] = {"hidden_sizes": [16, 32, 64, 128]}
PICTURES: dict[str, dict[str, Any]] = {
    "Swin": {"image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4]}
    | {"window_size": 4},
    "ViT": {"image_size": 64, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4},
    "DeiT": LAYERS | {"image_size": 64, "patch_size": 8},
    "Beit": LAYERS | {"image_size": 64, "patch_size": 8},
    "Dinov2": {"image_size": 64, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4},
    "ConvNext": WIDTHS | {"depths": [1, 1, 2, 1]},
    "ConvNextV2": WIDTHS | {"depths": [1, 1, 2, 1]},
    "ResNet": WIDTHS | {"depths": [2, 2, 2, 2], "embedding_size": 16},
    "RegNet": WIDTHS | {"depths": [1, 1, 2, 1], "embedding_size": 16, "groups_width": 8},
    "Segformer": WIDTHS,
    "MobileNetV1": {},
    "MobileNetV2": {},
    "MobileViT": {"image_size": 64},
    "PoolFormer": {},
}
TEXT: dict[str, dict[str, Any]] = {
    "Electra": LAYERS | {"embedding_size": 64},
    "Albert": LAYERS | {"embedding_size": 64},
    "MPNet": LAYERS,
    "GPTNeoX": LAYERS,
    "Qwen2": LAYERS | {"num_key_value_heads": 2},
    "Gemma": LAYERS | {"num_key_value_heads": 2, "head_dim": 16},
    "GPT2": {"n_layer": 4, "n_head": 4, "n_embd": 64},
    "Bert": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128},
    "DistilBert": {"n_layers": 4, "n_heads": 4, "dim": 64, "hidden_dim": 128},
    "Roberta": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128},
    "Llama": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128},
    "Mistral": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    | {"num_key_value_heads": 2},
    "OPT": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "ffn_dim": 128}
    | {"word_embed_proj_dim": 64},
}


def zoo() -> Iterator[tuple[str, nn.Module, tuple[Any, ...]]]:
    """Yield models with random weights, and inputs, from the packages that are installed."""
    try:
        import transformers
    except ImportError:
        print("transformers is not installed: its models are left out")
    else:
        for name, settings in (TEXT | PICTURES).items():
            images = name in PICTURES
            common: dict[str, Any] = (
                {} if images else {"vocab_size": 500, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
            )
            config = getattr(transformers, f"{name}Config")(**settings, **common)
            config.use_cache = False
            x = torch.randn(1, 3, 64, 64) if images else torch.randint(3, 500, (1, 24))
            yield name, getattr(transformers, f"{name}Model")(config).eval(), (x,)
    try:
        from pytorchcv.model_provider import get_model  # type: ignore[import-untyped]
    except ImportError:
        print("pytorchcv is not installed: its models are left out")
        return
    for name in IMAGES:
        side = 299 if name in ("inceptionv3", "xception") else 224
        yield name, get_model(name, pretrained=False).eval(), (torch.randn(1, 3, side, side),)


def equality() -> list[dict[str, Any]]:
    """Return rows about models run by random placements."""
    import torch.utils._pytree as pytree

    rng = np.random.default_rng(0)
    rows = []
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, model, inputs in zoo():
        row: dict[str, Any] = {"model": name}
        try:
            program = export_program(model, inputs)
            graph = from_program(program)
            plan = scattered(graph, [f"d{i}" for i in range(3)], rng)
            outputs = rlinit.executors.execute(plan, program, *inputs, graph=graph).outputs
            with torch.no_grad():
                expected = model(*inputs)
            pairs = list(zip(pytree.tree_leaves(outputs), pytree.tree_leaves(expected), strict=True))
            worst = max(float((mine - true).abs().max()) for mine, true in pairs)
            row |= {"ops": graph.num_ops, "equal": all(torch.equal(*pair) for pair in pairs), "difference": worst}
        except RlinitError as problem:
            row |= {"ops": None, "equal": False, "difference": None, "why": str(problem)}
        rows.append(row)
    return rows


def scattered(graph: Graph, names: list[str], rng: np.random.Generator) -> Plan:
    """Return a plan that runs each op on a random device, in a topological order."""
    order = [graph.names[v] for v in graph.order.tolist()]
    where = dict(zip(order, rng.choice(names, len(order)).tolist(), strict=True))
    return placed_plan(graph, where)


def main() -> None:
    """Measure what the argument names, print and write it."""
    before = os.getloadavg()
    if sys.argv[1:] == ["models"]:
        models = equality()
        header = ["model", "ops", "equal", "difference"]
        print_table("models on three devices", header, ([row[column] for column in header] for row in models))
        print(f"{sum(row['equal'] for row in models)} of {len(models)} models give bit for bit what they give unplaced")
        save("executors_models", models)
        return
    threads = torch.get_num_threads()
    costs = [row for count in sorted({1, threads}) for row in overhead(count)]
    gains = gain(threads)
    print_table("overhead on one device", list(costs[0]), (row.values() for row in costs))
    print_table("two towers on two workers", list(gains[0]), (row.values() for row in gains))
    load = {"load_before": before, "load_after": os.getloadavg()}
    save("executors", {"overhead": costs, "gain": gains}, runs=RUNS, **load)


if __name__ == "__main__":
    main()
