"""Pipelines that train: plans of a GPT-2, published workloads, and steps of a small transformer against their plans.

``plans``: GPT-2 (12 layers, on the meta device) on 4 GPUs by each schedule: is it proven, and in which time.
``published``: training workloads of Tarnawski et al. with contiguous stages, proven against the authors' optimum. For
any ops on any device see ``python -m benchmarks.papers.dnn_partitioning --loose-only``.
``trained``: a transformer of eight blocks by each schedule on two processes, one thread each. Ops are measured on the
processor's clock just before, and so is how much two processes slow each other; what keeping values for the backward
and the backward itself take is measured on the whole model. Memory is the most that torch's allocator has handed out in
a process, plus the parameters. Three times of a step are given: by the wall clock, what the plan says, and the passes'
own processor seconds replayed in the plan's order, which is what idle cores would show.
Run as ``python -m benchmarks.families.training_pipelines plans``, and so on; the wall clock of ``trained`` needs idle
cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import rlinit
from benchmarks.record import measure_part
from rlinit.datasets.published import dnn_partitioning
from rlinit.datasets.published.location import instances_root
from rlinit.executors import training
from rlinit.executors.pipeline import pipeline_stage
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.ops import Measuring, measure_ops
from rlinit.measurement.together import measure_together
from rlinit.plan import Plan
from rlinit.stages.training.rules import schedule_named
from rlinit.stages.training.schedule import PassTimes, timed_passes

SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1))
MICROBATCHES, ROWS, LENGTH, VOCABULARY = 8, 4, 64, 500
STEPS = 4
"""Steps of a run, of which the shortest counts."""
OPTIMA_MS = {"bert24": 41.7458, "resnet50": 78.6318}


def plans() -> list[dict[str, Any]]:
    """Return rows about the plans of a GPT-2."""
    import transformers

    config = transformers.GPT2Config(use_cache=False)
    with torch.device("meta"):
        model: nn.Module = transformers.GPT2LMHeadModel(config)
        model.eval()
        graph = Graph.from_torch(model, (torch.zeros(1, 1024, dtype=torch.long),), sharing="copy")
    hardware = Hardware.preset("4xa100-40g")
    rows = []
    for unit in ("op", "layer"):
        problem = graph if unit == "op" else graph.group("layer")
        for name, chunks in SCHEDULES:
            began = time.process_time()
            plan = rlinit.schedule(
                problem,
                hardware,
                training=schedule_named(name),
                microbatches=MICROBATCHES,
                chunks=chunks,
                recompute="auto",
                gap=0.05 if chunks > 1 else 0.0,  # equal chunks, which the bottleneck alone does not ask for
                time_limit_s=20.0,
            )
            assert plan.training is not None
            held: dict[str, float] = {}
            for use, one in zip(plan.stages, plan.training.stages, strict=True):
                held[use.device] = held.get(use.device, 0.0) + one.memory_bytes
            row = {"unit": unit, "ops": graph.num_ops, "schedule": name, "status": plan.status, "value_s": plan.value}
            row |= {"gap": plan.gap, "step_s": plan.training.step_s, "bubble": plan.training.bubble(plan.value)}
            row |= {"most memory, GB": max(held.values()) / 1e9, "cpu_s": time.process_time() - began}
            rows.append(row | {"megatron": plan.to_megatron_layout(problem) if unit == "layer" else ""})
    return rows


def published() -> list[dict[str, Any]]:
    """Return rows about published workloads; each is planned once before, so that all is compiled."""
    root = instances_root()
    if root is None:
        raise SystemExit("the published instances are absent (set RLINIT_INSTANCES)")
    rows = []
    for name, optimum in OPTIMA_MS.items():
        graph, hardware = dnn_partitioning.load(root / "dnn-partitioning" / "training" / f"{name}_training.json")
        seconds = []
        for _ in range(6):
            began = time.process_time()
            plan = rlinit.schedule(graph, hardware, training="1f1b", microbatches=8, optimizer=1)
            seconds.append(time.process_time() - began)
        row = {"workload": name, "ops": graph.num_ops, "devices": len(hardware), "status": plan.status}
        rows.append(
            row | {"value_ms": 1e3 * plan.value, "authors_ms": optimum, "cpu_s": statistics.median(seconds[1:])}
        )
    return rows


# -- steps of a small transformer ----------------------------------------------------------------------------------


class Block(nn.Module):
    """Causal attention and a perceptron, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, width) to the same."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
        return x + self.mlp(x)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Eight blocks between an embedding and a head."""

    def __init__(self, width: int = 192, blocks: int = 8, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (B, T) tokens to (B, T, vocabulary) logits."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def made() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model, a batch and its targets, the same in every process."""
    torch.manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (MICROBATCHES * ROWS, LENGTH))
    return Transformer().eval(), tokens, tokens.roll(-1, 1)


def loss_of(logits: Any, targets: Any) -> Any:
    """Return the cross entropy of the next tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def passes_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
    """Return the processor seconds of the forward and the backward of a micro-batch, gradients added up."""
    seconds = []
    for _ in range(9):
        began = time.process_time()
        loss = loss_of(model(tokens), targets)
        middle = time.process_time()
        loss.backward()
        seconds.append((middle - began, time.process_time() - middle))
    model.zero_grad()
    forward_s, backward_s = zip(*seconds[2:], strict=True)
    return statistics.median(forward_s), statistics.median(backward_s)


def trained() -> list[dict[str, Any]]:
    """Return rows about steps on two processes."""
    torch.set_num_threads(1)
    model, tokens, targets = made()
    part = tokens[:ROWS]
    program = export_program(model, (part,))
    graph = from_program(program, name="transformer")
    rows = []
    for name, chunks in SCHEDULES:
        settings = Measuring(warmup=2, repeats=9, threads=1, clock="processor")
        timed = measure_ops(program, (part,), graph, devices={"stage": "cpu"}, settings=settings).apply(graph)
        forward_s, backward_s = passes_of(model, part, targets[:ROWS])
        seconds = timed.times["stage", 1]
        slower = forward_s / float(seconds.sum())  # keeping what the backward needs takes time, too
        data = timed.to_dict()
        for row, op_s in zip(data["ops"], seconds.tolist(), strict=True):
            row["backward_time_s"] = slower * op_s * backward_s / forward_s
        timed = replace(Graph.from_dict(data), times={**timed.times, ("stage", 1): slower * seconds})
        together = measure_together(program, (part,), 2, clock="processor")
        rate, crowd = (4 << 20) / together.hand_over[4 << 20], together.factors[1]
        devices = [rlinit.Device(f"p{i}", "stage", memory_bytes=4e9, slowdown=crowd) for i in range(2)]
        hardware = Hardware.mesh(devices, rate)
        plan = rlinit.schedule(
            timed.group("layer"),
            hardware,
            training=schedule_named(name),
            microbatches=MICROBATCHES,
            chunks=chunks,
            optimizer="sgd",
            time_limit_s=10.0,
        )
        assert plan.training is not None
        told = run(plan, timed.group("layer"))
        row = {
            "schedule": name,
            "status": plan.status,
            "backward/forward": backward_s / forward_s,
            "crowd": crowd,
            "step_s": plan.training.step_s,
        }
        for rank, one in enumerate(told):
            planned = sum(use.memory_bytes for use in plan.training.stages[rank :: len(told)])
            row |= {f"planned MB {rank}": planned / 1e6, f"held MB {rank}": one["held_bytes"] / 1e6}
        times = [PassTimes(*told[j % 2]["passes"][str(j)]) for j in range(plan.num_stages)]
        replayed = max(one.end_s for one in timed_passes(schedule_named(name), MICROBATCHES, times, chunks))
        row |= {"wall_s": max(one["seconds"] for one in told), "replayed_s": replayed}
        row |= {"replayed / planned": replayed / plan.training.step_s, "wall / planned": row["wall_s"] / row["step_s"]}
        rows.append(row | {"loss error": max(one["error"] for one in told)})
        print(rows[-1], flush=True)
    return rows


def run(plan: Plan, graph: Graph) -> list[dict[str, Any]]:
    """Train by a plan on two processes; return what each tells."""
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.json")
        graph.save(Path(folder) / "graph.json")
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run(
            [*launch, "-m", "benchmarks.families.training_pipelines", "process", folder],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=400,
        )
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]


def process(folder: Path) -> None:
    """Train in one of the processes, and tell what memory and processor time it took."""
    torch.set_num_threads(1)
    model, tokens, targets = made()
    plan, graph = Plan.load(folder / "plan.json"), Graph.load(folder / "graph.json")
    assert plan.training is not None
    passes: dict[tuple[int, str], list[float]] = {}
    held: list[float] = []
    run_steps: Callable[..., Any] = training._steps

    def watched(*given: Any) -> Any:
        """Run the steps under torch's memory profiler."""
        own = {id(value): value.nbytes for cut, _ in given[2].values() for value in cut.module.parameters()}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            step = run_steps(*given)
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
        held.append(float(np.cumsum(changes).max()) + sum(own.values()))
        return step

    def timed_stage(*given: Any) -> Any:
        """Return a stage that notes the processor time of each pass."""
        stage = pipeline_stage(*given)

        def noted(call: Callable[..., Any], kind: str, *args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            result = call(*args, **kwargs)
            passes.setdefault((given[1], kind), []).append(time.thread_time() - began)
            return result

        for kind, name in (("F", "forward_one_chunk"), ("B", "backward_one_chunk"), ("W", "backward_weight_one_chunk")):
            setattr(stage, name, partial(noted, getattr(stage, name), kind))
        return stage

    torch.distributed.init_process_group("gloo")
    with mock.patch.object(training, "pipeline_stage", timed_stage):
        step = training.training_step(plan, model, (tokens,), targets, loss_of, graph=graph, repeats=STEPS)
    with mock.patch.object(training, "_steps", watched):
        training.training_step(plan, model, (tokens,), targets, loss_of, graph=graph, repeats=2)
    rank = torch.distributed.get_rank()
    torch.distributed.destroy_process_group()
    with torch.no_grad():
        error = abs(step.loss - float(loss_of(model(tokens), targets))) if step.loss is not None else 0.0
    of_stage = {stage: [statistics.median(passes.get((stage, kind), [0.0])) for kind in "FBW"] for stage, _ in passes}
    told = {"seconds": step.seconds, "held_bytes": held[0], "passes": of_stage, "error": error}
    (folder / f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")


PARTS: dict[str, tuple[str, Callable[[], list[dict[str, Any]]]]] = {
    "plans": ("training plans of GPT-2 on four A100", plans),
    "published": ("training workloads with contiguous stages", published),
    "trained": ("steps of a transformer on two processes", trained),
}


def main() -> None:
    """Measure what the argument names, print and write it."""
    if sys.argv[1:2] == ["process"]:
        process(Path(sys.argv[2]))
        return
    measure_part("training_pipelines", PARTS)


if __name__ == "__main__":
    main()
