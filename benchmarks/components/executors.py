"""What running a plan by the executors costs and gains.

``overhead``: one device, against the same exported program run by torch itself, with the same threads.
``gain``: two independent towers on two CPU workers against one worker, with the same number of threads in all.
``pipeline``: a chain of layers over 2 and 4 processes, against what the plan promises on costs, hand-overs and factors
of so many processes at once (`measure_together`) that were measured in the minute before.
``models``: models of transformers and pytorchcv (where they are installed) on random placements over three devices,
one thread each, against the models themselves.
Both sides run in turn; times are the least and the median of 25 runs. The least is nearer to what an idle machine
shows.
Run as ``python -m benchmarks.components.executors overhead``, and so on: each part takes a minute or two.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import rlinit
import rlinit.executors
from benchmarks.components.pytorchcv_models import image_network
from benchmarks.record import measure_part
from rlinit.errors import RlinitError
from rlinit.executors.local import LocalExecutor
from rlinit.graph import Graph
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.ops import placed_plan
from rlinit.plan import Plan

RUNS = 25
ROUNDS = 5


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


def overhead() -> list[dict[str, Any]]:
    """Return rows about one device, with one thread and with as many as torch takes."""
    return [row for threads in sorted({1, torch.get_num_threads()}) for row in overhead_with(threads)]


def overhead_with(threads: int) -> list[dict[str, Any]]:
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


def gain() -> list[dict[str, Any]]:
    """Return rows about a wide model on two workers against one, with as many threads in all."""
    rows = []
    threads = max(2, torch.get_num_threads())
    for width, batch in ((128, 8), (384, 64), (768, 64), (768, 256)):
        model, inputs = Towers(depth=20, width=width).eval(), (torch.randn(batch, width),)
        both = plan_of(model, inputs, lambda node, module: "d1" if "towers.1" in module else "d0")
        alone = plan_of(model, inputs, lambda node, module: "d0")
        executor = LocalExecutor(threads=threads)
        seconds: list[list[float]] = [[], []]
        # In turn, so that other load hits both alike; not at once, since an open program sets torch's threads.
        for _ in range(ROUNDS):
            for times, (plan, graph) in zip(seconds, (alone, both), strict=True):
                torch.set_num_threads(threads)
                with executor.load(plan, model, inputs, graph=graph) as program:
                    program.run(*inputs)
                    times += [program.run(*inputs).seconds for _ in range(RUNS // ROUNDS)]
        one, two = ((min(times), statistics.median(times)) for times in seconds)
        rows.append(
            {"width": width, "batch": batch, "threads": threads, "one_s": one[0], "two_s": two[0]}
            | {"speedup": one[0] / two[0], "speedup of medians": one[1] / two[1]}
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
    if importlib.util.find_spec("pytorchcv") is None:
        print("pytorchcv is not installed: its models are left out")
        return
    for name in IMAGES:
        yield name, *image_network(name)


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


class Layers(nn.Module):
    """A chain of matrix products."""

    def __init__(self, depth: int = 16, width: int = 768) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, width) to (B, width)."""
        return self.layers(x)  # type: ignore[no-any-return]


PARTS, ROWS, PIPELINE_RUNS = 16, 64, 5
"""Micro-batches of the pipeline, rows of each, and runs, of which the shortest counts."""


def chain() -> tuple[nn.Module, torch.Tensor]:
    """Return the pipeline's model and its batch, the same in every process."""
    torch.manual_seed(0)
    return Layers().eval(), torch.randn(PARTS * ROWS, 768)


def pipeline() -> list[dict[str, Any]]:
    """Return rows about pipelines of 2 and 4 processes, one thread each, against what their plans promise."""
    from rlinit.measurement.ops import Measuring, measure_ops
    from rlinit.measurement.together import measure_together

    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    model, batch = chain()
    program = export_program(model, (batch[:ROWS],))
    graph = from_program(program, name="layers")
    rows = []
    for k in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            # The costs are those of the minute in which the pipeline runs.
            settings = Measuring(threads=1, repeats=RUNS)
            table = measure_ops(program, (batch[:ROWS],), graph, devices={"stage": "cpu"}, settings=settings)
            timed = table.apply(graph)
            together = measure_together(program, (batch[:ROWS],), k)
            plan = rlinit.schedule(timed, together.apply(rlinit.Hardware.pipeline(k)), objective="pipeline")
            plan.save(Path(folder) / "plan.json")
            timed.save(Path(folder) / "graph.json")
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(k)]
            subprocess.run(
                [*launch, "-m", "benchmarks.components.executors", "stage", folder],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                check=True,
                timeout=170,
            )
            told = json.loads((Path(folder) / "told.json").read_text())
        used = sum(use.num_ops > 0 for use in plan.stages)
        promised_s = (PARTS + used - 1) * plan.value  # the stages fill up and run empty
        rows.append({"stages": k, "used": used, "cores": cores, "factor": together.factors[used - 1]} | told)
        rows[-1] |= {
            "hand-over of 192 KiB, s": float(
                np.interp(192 << 10, list(together.hand_over), list(together.hand_over.values()))
            )
        }
        rows[-1] |= {"promised_s": promised_s, "measured / promised": told["measured_s"] / promised_s}
    return rows


def stage(folder: Path) -> None:
    """Run one stage of a pipeline; the last process tells the seconds and the largest difference from the model."""
    from rlinit.executors.pipeline import PipelineExecutor

    torch.set_num_threads(1)
    model, batch = chain()
    plan, graph = Plan.load(folder / "plan.json"), Graph.load(folder / "graph.json")
    executor = PipelineExecutor(microbatches=PARTS, repeats=PIPELINE_RUNS, check=False)
    torch.distributed.init_process_group("gloo")
    result = executor.execute(plan, model, (batch,), graph=graph)
    torch.distributed.destroy_process_group()
    if result.outputs is not None:
        with torch.no_grad():
            difference = float((result.outputs - model(batch)).abs().max())
        told = {"measured_s": result.seconds, "difference": difference}
        (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")


def main() -> None:
    """Measure what the argument names, print and write it."""
    if sys.argv[1:2] == ["stage"]:
        stage(Path(sys.argv[2]))
        return
    part, rows = measure_part("executors", PARTS_OF_IT, runs=RUNS)
    if part == "models":
        print(f"{sum(row['equal'] for row in rows)} of {len(rows)} models give bit for bit what they give unplaced")


PARTS_OF_IT: dict[str, tuple[str, Callable[[], list[dict[str, Any]]]]] = {
    "overhead": ("overhead on one device", overhead),
    "gain": ("two towers on two workers", gain),
    "pipeline": ("pipelines of processes", pipeline),
    "models": ("models on three devices", equality),
}


if __name__ == "__main__":
    main()
