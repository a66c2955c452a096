"""Training of language models on clusters of A100s: the best plan of several devices a stage, and rules beside it.

    python -m benchmarks.families.clusters

Llama 3 70B and Mixtral 8x22B on 64 and 512 A100s of 80 GB in nodes of eight, micro-batches of one sequence of 4,096
tokens, ZeRO-1. Seconds are those of the processor for a whole `rlinit.llm.plan`, the median of three after one that is
not counted.

A table has replicas of one stage on unlike devices beside stages of one kind each: PipeDream's VGG16 and ResNet50, on
8 A100 and 4 L4, which take longer by the ratio of their peaks in 16 bits, under its planner's model. Another table has
the language models traced, by the menus of what is traced beside those of the config, without ZeRO.

The last table holds the model of costs against measurements: models of GPT's form, as Korthikanti et al. trained them
on A100s (table 5, sequence parallelism and selective recomputation), on the same tensor degree and as many stages.
The seconds of a step here are those of all micro-batches on the slowest stage, and of one more for every further stage.

References
----------
Korthikanti, Casper, Lym, McAfee, Andersch, Shoeybi, Catanzaro: Reducing activation recomputation in large transformer
models, MLSys 2023.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from itertools import pairwise, product
from typing import Any

import rlinit
from benchmarks.components.pipedream_profiles import RESNET50, VGG16
from benchmarks.record import count_processor_time, median_seconds, print_table, save, take_no_options, timed
from rlinit import llm
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.plan import Plan

MODELS = {
    "Llama 3 70B": {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    },
    "Mixtral 8x22B": {
        "model_type": "mixtral", "hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56,
        "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 32768, "max_position_embeddings": 65536,
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
}  # fmt: skip

TOKENS = 4096
CLUSTERS = {"8x8xa100-80g": 512, "64x8xa100-80g": 1024}
"""Name -> sequences of a batch: about 2 and 4 million tokens."""

UNLIKE = {"2x8xa100-80g+2x8xl4": 64, "4x8xh100+4x8xa100-80g": 256, "2x8xh100+2x8xa100-80g+2x8xl4": 128}
"""Name of a cluster of several kinds of nodes -> micro-batches."""

TRACED = {"8x8xa100-80g": 512, "2x8xa100-80g+2x8xl4": 64}
"""Clusters for traced models -> micro-batches."""

MEASURED = {
    "22B": (6144, 48, 64, 8, 1, 4, 4, 1.10),
    "175B": (12288, 96, 96, 64, 8, 64, 1, 13.75),
    "530B": (20480, 105, 128, 280, 35, 280, 1, 37.83),
    "1T": (25600, 128, 160, 512, 64, 512, 1, 71.49),
}
"""Name -> width, layers, heads, GPUs, stages, sequences of a batch and of a micro-batch, seconds of a step."""

PEAK = 312e12
"""Operations a second of an A100 in 16 bits."""


def plans() -> list[dict[str, Any]]:
    """Plan every model on every cluster."""
    rows = []
    for name, config in MODELS.items():
        model = llm.load(config, context=TOKENS)
        for cluster, batch in CLUSTERS.items():
            asked: dict[str, Any] = {
                "training": "1f1b", "microbatches": batch, "replicas": "auto", "tensor_parallel": "auto",
                "recompute": "auto", "zero": 1,
            }  # fmt: skip
            plan, seconds = _planned(model, cluster, asked)
            gpus = sum(len(use.devices) for use in plan.stages)
            row = {"model": name, "cluster": cluster, "micro-batches": batch, "status": plan.status}
            row |= {"value": plan.value, "bound": plan.bound, "seconds": seconds}
            row |= {"tokens/s/GPU": TOKENS / plan.value / gpus if gpus else 0.0}
            row["stages"] = ", ".join(f"{use.replicas}x{use.tensor_parallel}" for use in plan.stages)
            rows.append(row | {rule: value or plan.baseline_notes[rule] for rule, value in plan.baselines.items()})
    return rows


def traced() -> list[dict[str, Any]]:
    """Plan models of transformers by the menus of what is traced, layers whole, and of their configs."""
    import torch

    transformers: Any = importlib.import_module("transformers")
    rows = []
    for name, config in MODELS.items():
        model = llm.load(config, context=TOKENS)
        with torch.device("meta"):
            module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
            tokens = torch.zeros(1, TOKENS, dtype=torch.long)
        began = time.perf_counter()
        graph = Graph.from_torch(module, (tokens,), granularity="layer", dtype="bf16", name=name)
        tracing_s = time.perf_counter() - began
        for cluster, batch in TRACED.items():
            hardware = Hardware.preset(cluster)
            asked: dict[str, Any] = {
                "training": "1f1b", "microbatches": batch, "replicas": "auto", "tensor_parallel": "auto",
                "recompute": "auto", "optimizer": "adam-bf16",
            }  # fmt: skip
            plan = rlinit.schedule(graph, hardware, **asked)
            seconds = median_seconds(lambda: rlinit.schedule(graph, hardware, **asked), 3)  # noqa: B023
            other = llm.plan(model, cluster, **asked)
            row = {"model": name, "cluster": cluster, "ops": graph.num_ops, "tracing_s": tracing_s}
            row |= {"status": plan.status, "seconds": seconds, "the config's": other.status}
            if plan.values and other.values:
                row |= {"value": plan.value, "bound": plan.bound}
                row |= {"of the config": other.value, "ratio": plan.value / other.value}
            row["stages"] = ", ".join(f"{use.replicas}x{use.tensor_parallel}" for use in plan.stages)
            rows.append(row)
    return rows


def unlike() -> list[dict[str, Any]]:
    """Plan every model on clusters of several kinds of nodes, in training and for answers."""
    rows = []
    for (name, config), (cluster, batch), training in product(MODELS.items(), UNLIKE.items(), ("1f1b", None)):
        model = llm.load(config, context=TOKENS)
        asked: dict[str, Any] = {"microbatches": batch, "replicas": "auto", "tensor_parallel": "auto"}
        asked |= {"training": training, "recompute": "auto", "zero": 1} if training else {"objective": "decode"}
        plan, seconds = _planned(model, cluster, asked)
        row: dict[str, Any] = {
            "model": name,
            "cluster": cluster,
            "for": "training" if training else "answers",
            "status": plan.status,
        }
        row |= {"value": plan.values and plan.value, "bound": plan.bounds and plan.bound, "seconds": seconds}
        alone = [value for rule, value in plan.baselines.items() if rule.endswith(" alone") and value is not None]
        row |= {"best kind alone": min(alone, default=None), "uniform": plan.baselines.get("uniform")}
        used = ((one.device.rpartition("-")[0], one.replicas, one.tensor_parallel) for one in plan.stages)
        rows.append(row | {"stages": ", ".join(f"{kind} {d}x{t}" for kind, d, t in used)})
    return rows


def _fp16(device: Device) -> float:
    """Return the operations a second of a device in 16 bits."""
    rates = device.flops_per_s
    return rates["fp16"] if isinstance(rates, Mapping) else float(rates or 0.0)


def mixed() -> list[dict[str, Any]]:
    """Plan with replicas of a stage on unlike devices, and on one kind each."""
    cases: list[tuple[str, str, Graph, Hardware]] = []
    asked: dict[str, Any] = {"training": "1f1b", "microbatches": 240}
    for name, profile in {"VGG16": VGG16, "ResNet50": RESNET50}.items():
        for gigabits in (10, 100):
            hardware = Hardware.preset("1x8xa100-80g+1x4xl4")
            slower = _fp16(hardware.devices[0]) / _fp16(hardware.devices[-1])
            rows = [
                (op, {"out_bytes": made, "menu": {1: [
                    {"time_s": {"a100": ms / 1e3, "l4": slower * ms / 1e3}, "param_bytes": held}
                ]}})
                for op, ms, made, held in profile
            ]  # fmt: skip
            rows[0][1]["note"] = {"exchange": "server"}
            graph = Graph.build(rows, [(u[0], v[0]) for u, v in pairwise(profile)])
            slow = Hardware.mesh(hardware.devices, gigabits * 1e9 / 8)
            cases.append((name, f"8 A100 + 4 L4 at {gigabits} Gb/s", graph, slow))
    found = []
    for name, where, graph, hardware in cases:
        apart = rlinit.schedule(graph, hardware, replicas="auto", **asked)
        rlinit.schedule(graph, hardware, replicas="mixed", **asked)
        plan, seconds = timed(rlinit.schedule, graph, hardware, replicas="mixed", **asked)
        row: dict[str, Any] = {"model": name, "cluster": where, "status": plan.status, "value": plan.value}
        row |= {"bound": plan.bound, "seconds": seconds, "one kind a stage": apart.values and apart.value}
        row |= {"gain": apart.value / plan.value if apart.values else None}
        kind_of = {device.name: device.kind for device in hardware.devices}
        row["stages"] = ", ".join(
            " + ".join(
                f"{share.kind} {share.replicas}x{use.tensor_parallel} of {share.microbatches}" for share in use.shares
            )
            or f"{kind_of[use.device]} {use.replicas}x{use.tensor_parallel}"
            for use in plan.stages
        )
        found.append(row)
    return found


def _planned(model: llm.LanguageModel, cluster: str, asked: dict[str, Any]) -> tuple[Plan, float]:
    """Return a plan, and the median seconds of making it again."""
    found: Plan = llm.plan(model, cluster, **asked)
    return found, median_seconds(lambda: llm.plan(model, cluster, **asked), 3)


def measurements() -> list[dict[str, Any]]:
    """Predict steps that were measured."""
    rows = []
    for name, (width, layers, heads, gpus, stages, batch, together, measured_s) in MEASURED.items():
        config = {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": 51200}
        model = llm.load(config | {"n_positions": 2048}, context=2048, batch=together)
        plan = llm.plan(
            model, f"{gpus // 8}x8xa100-80g", replicas=1, tensor_parallel=8, training="1f1b",
            microbatches=batch // together, recompute="auto",
        )  # fmt: skip
        step_s = plan.value * (batch // together + len(plan.stages) - 1)
        tokens, attention = batch * 2048, 2048 / (6 * width) + 51200 / (12 * layers * width)
        flops = 72 * tokens * layers * width**2 * (1 + attention)  # the paper's appendix A, forward and backward
        row = {"model": name, "GPUs": gpus, "stages": len(plan.stages), "their stages": stages}
        row |= {"seconds": step_s, "measured": measured_s, "of it": step_s / measured_s}
        rows.append(
            row
            | {f"{what} FLOPs used": flops / (gpus * PEAK * s) for what, s in (("", step_s), ("measured", measured_s))}
        )
    return rows


def main() -> None:
    """Measure, print and store."""
    take_no_options(__doc__)
    count_processor_time()
    rows, kinds, shared, models, checked = plans(), unlike(), mixed(), traced(), measurements()
    titles = {"plans": rows, "unlike nodes": kinds, "replicas on unlike devices": shared, "traced models": models}
    titles |= {"steps that were measured": checked}
    for title, table in titles.items():
        print_table(title, list(table[0]), (row.values() for row in table))
    save(
        "clusters", rows, unlike_nodes=kinds, replicas_on_unlike_devices=shared, traced_models=models,
        steps_that_were_measured=checked,
    )  # fmt: skip


if __name__ == "__main__":
    main()
