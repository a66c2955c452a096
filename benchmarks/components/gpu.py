"""What plans say of a GPU against what it does: one card beside the processor of this machine.

``tests``: the tests marked ``gpu``. ``executors``: plans over the processor and two logical devices of a card: outputs
against the model's own, a plan of one device against torch itself, two independent towers on two logical devices
against one, and the peak of memory against the plan. ``costs``: every op measured, then the roofline (`rlinit doctor`)
and the table against a run. ``llm``: prefill and decode of a Llama-like model in FP16, predicted from its configuration
and measured rates, against transformers. ``training``: graphs a second.
Run as ``make gpu``, or ``python -m benchmarks.components.gpu [--parts costs llm]``; it ends with an error where torch
sees no GPU. ``--dry`` takes small sizes on the processor and writes nothing, to see that everything runs.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import tyro
from torch import nn

import rlinit
import rlinit.executors
from benchmarks.record import median_seconds, save, timed
from rlinit import llm
from rlinit.costs.roofline import op_times
from rlinit.executors.local import LocalExecutor
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.calibration import calibrate, rank_correlation
from rlinit.measurement.machine import measure_machine
from rlinit.measurement.ops import Measuring, measure_ops, placed_plan
from rlinit.measurement.transfers import measure_transfers
from rlinit.simulation.memory_profile import memory_profile

LIMIT_S = 540.0
"""Nine minutes for everything; a part that would begin later is left out, and said to be."""


@dataclass(frozen=True)
class Options:
    """Run plans on the GPU of this machine and compare what they said."""

    parts: Annotated[tuple[str, ...], tyro.conf.arg(metavar="PART ...")] = (
        "tests",
        "executors",
        "costs",
        "llm",
        "training",
    )
    """Which parts."""
    dry: bool = False
    """On the processor, with small sizes, without results."""


class Transformer(nn.Module):
    """Encoder layers of one width."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, batch_first=True) for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, T, width) to the same."""
        for layer in self.layers:
            x = layer(x)
        return x


class Towers(nn.Module):
    """Two stacks of matrix products that read the same input, and their sum."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.left = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.right = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, width) to the same."""
        total: torch.Tensor = self.left(x) + self.right(x)
        return total


@dataclass(frozen=True)
class Scale:
    """Sizes of the models, and where they run."""

    place: str
    layers: int
    width: int
    tokens: int
    repeats: int


def models(scale: Scale) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Yield models in eval mode and their inputs."""
    torch.manual_seed(0)
    yield "transformer", Transformer(scale.layers, scale.width).eval(), torch.randn(4, scale.tokens, scale.width)
    yield "towers", Towers(scale.layers, scale.width).eval(), torch.randn(32, scale.width)


def synchronize(place: str) -> None:
    """Wait for what was launched on a GPU."""
    if place.startswith("cuda"):
        torch.cuda.synchronize(place)


def run_tests(scale: Scale) -> list[dict[str, Any]]:
    """Run the tests marked ``gpu``; a failure ends the benchmark."""
    if not scale.place.startswith("cuda"):
        return [{"tests": "left out: no GPU in a dry run"}]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/executors"]
    done, seconds = timed(subprocess.run, command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"tests failed:\n{done.stdout[-4000:]}{done.stderr[-1000:]}")
    return [{"tests": done.stdout.strip().splitlines()[-1], "seconds": seconds}]


def run_executors(scale: Scale) -> list[dict[str, Any]]:
    """Compare plans over the processor and two logical devices with the models themselves."""
    rows = []
    for name, model, x in models(scale):
        program = export_program(model, (x,))
        graph = from_program(program, name=name)
        row: dict[str, Any] = {"model": name, "ops": graph.num_ops}
        with torch.no_grad():
            expected = model(x)
        three = {"d0": "cpu", "d1": scale.place, "d2": scale.place}  # every plan below uses all three
        third = [f"d{min(2, 3 * at // graph.num_ops)}" for at in range(graph.num_ops)]
        for label, where in (("thirds", third), ("scattered", [f"d{at % 3}" for at in range(graph.num_ops)])):
            plan = placed_plan(graph, dict(zip(graph.names, where, strict=True)))
            out = rlinit.executors.run(plan, program, x, graph=graph, devices=three)
            row[f"{label}: largest difference"] = float((out - expected).abs().max() / expected.abs().max())
        one = placed_plan(graph, dict.fromkeys(graph.names, "d1"))
        branch = placed_plan(graph, {op: "d2" if "right" in _path(graph, op) else "d1" for op in graph.names})
        row |= _seconds(program, graph, one, branch, model, x, scale)
        row |= _memory(program, graph, x, scale)
        rows.append(row)
    return rows


def _path(graph: Graph, op: str) -> str:
    return str(graph.extras.get(graph.index(op), {}).get("module", ""))


def _seconds(
    program: Any, graph: Graph, one: Any, branch: Any, model: nn.Module, x: torch.Tensor, scale: Scale
) -> dict[str, float]:
    """Return the seconds of torch itself, of a plan of one device, and of two logical devices side by side."""
    moved = model.to(scale.place)

    def itself() -> None:
        with torch.no_grad():
            moved(x.to(scale.place)).cpu()
        synchronize(scale.place)

    found = {"torch itself, s": median_seconds(itself, scale.repeats)}
    model.to("cpu")
    for label, plan in (("one device, s", one), ("two logical devices, s", branch)):
        places = {use.device: scale.place for use in plan.devices}
        with LocalExecutor().load(plan, program, (x,), graph=graph, devices=places) as loaded:
            found[label] = median_seconds(lambda loaded=loaded: loaded.run(x), scale.repeats)  # type: ignore[misc]
    return found


def _memory(program: Any, graph: Graph, x: torch.Tensor, scale: Scale) -> dict[str, float]:
    """Return the peak of memory that a plan of one device says, and that of torch's allocator."""
    hardware = Hardware.mesh([Device("d1", flops_per_s=1e13, bytes_per_s=1e12)], 1e9)
    plan = rlinit.schedule(graph, hardware, objective="latency", method="best-device")
    said = memory_profile(plan, graph, hardware)["d1"].peak_bytes
    if not scale.place.startswith("cuda"):
        return {"peak said, bytes": said}
    before = torch.cuda.memory_allocated(scale.place)
    torch.cuda.reset_peak_memory_stats(scale.place)
    rlinit.executors.run(plan, program, x, graph=graph, devices={"d1": scale.place})
    return {
        "peak said, bytes": said,
        "peak seen, bytes": float(torch.cuda.max_memory_allocated(scale.place) - before),
    }


def _measured(place: str) -> Device:
    """Return a device with rates; where runs differ too much to say some, after longer ones."""
    for seconds in (0.05, 0.2, 1.0, 5.0):
        here = next(device for device in measure_machine(seconds).devices if device.name == place)
        if here.rate("fp32") and here.bytes_per_s:
            return here
    raise SystemExit(f"{place} is too busy to be measured")


def run_costs(scale: Scale) -> list[dict[str, Any]]:
    """Compare roofline and measured table with runs on the device."""
    here = _measured(scale.place)
    settings = Measuring(warmup=3, repeats=max(2, scale.repeats))
    links = measure_transfers({"d0": "cpu", "d1": scale.place}, settings=settings)
    device = Device("d1", here.kind, here.memory_bytes, flops_per_s=here.flops_per_s, bytes_per_s=here.bytes_per_s)
    one = Hardware.mesh([device], 1e9)
    rows: list[dict[str, Any]] = [{"links": str(links).splitlines()}]
    for name, model, x in models(scale):
        program = export_program(model, (x,))
        graph = from_program(program, name=name)
        table = measure_ops(program, (x,), graph, devices={"d1": scale.place}, settings=settings)
        measured = table.apply(graph)
        plan = rlinit.schedule(measured, one, objective="latency", method="best-device")
        found = calibrate(plan, program, (x,), graph=measured, devices={"d1": scale.place}, settings=settings)
        roofline = op_times(graph, here)
        took = {row.op: row.measured_s for row in found.ops}
        ops = [op for op in graph.names if op in took]
        rows.append(
            {
                "model": name,
                "ops": graph.num_ops,
                "spread": table.noise()[0].total_spread,
                "rank correlation, roofline": rank_correlation(
                    [float(roofline[graph.index(op)]) for op in ops], [took[op] for op in ops]
                ),
                "rank correlation, measured": found.rank_correlation,
                "roofline, s": float(roofline.sum()),
                "predicted, s": found.predicted_s,
                "measured, s": found.measured_s,
                "predicted over measured": found.predicted_s / found.measured_s,
            }
        )
    return rows


def run_llm(scale: Scale) -> list[dict[str, Any]]:
    """Compare prefill and decode of a Llama-like model with what its configuration says on measured rates."""
    import transformers

    prompt, output = 8 * scale.tokens, 16
    config = transformers.LlamaConfig(
        hidden_size=scale.width,
        intermediate_size=4 * scale.width,
        num_hidden_layers=scale.layers,
        num_attention_heads=max(1, scale.width // 64),
        num_key_value_heads=max(1, scale.width // 256),
        vocab_size=8192,
        max_position_embeddings=prompt + output,
    )
    here = _measured(scale.place)
    dtype = "fp16" if scale.place.startswith("cuda") else "fp32"
    described = llm.load(config.to_dict(), context=prompt + output, prompt=prompt, output=output, dtype=dtype)
    said = {
        phase: sum(described.seconds(part, here, phase) for part in described.architecture.parts)
        for phase in ("prefill", "decode")
    }
    kind = torch.float16 if dtype == "fp16" else torch.float32
    model: Any = transformers.LlamaForCausalLM(config)
    model = model.to(dtype=kind, device=scale.place).eval()
    tokens = torch.randint(0, 8192, (1, prompt), device=scale.place)

    name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"  # before 5.24

    def prefill() -> Any:
        cache = {name: transformers.DynamicCache()}
        with torch.no_grad():
            model(tokens, use_cache=True, logits_to_keep=1, **cache)
        synchronize(scale.place)
        return cache

    def decode() -> None:
        cache = prefill()
        token = tokens[:, -1:]
        started = time.perf_counter()
        with torch.no_grad():
            for _ in range(output - 1):
                token = model(token, use_cache=True, **cache).logits[:, -1:].argmax(-1)
        synchronize(scale.place)
        steps.append((time.perf_counter() - started) / (output - 1))

    steps: list[float] = []
    took = {"prefill": median_seconds(prefill, scale.repeats)}
    for _ in range(max(2, scale.repeats // 2)):
        decode()
    took["decode"] = sorted(steps)[len(steps) // 2]
    return [
        {"phase": phase, "dtype": dtype, "predicted, s": said[phase], "measured, s": took[phase]}
        | {"predicted over measured": said[phase] / took[phase]}
        for phase in ("prefill", "decode")
    ]


def run_training(scale: Scale) -> list[dict[str, Any]]:
    """Measure the throughput of training on the device; its rows are a file of their own."""
    if not scale.place.startswith("cuda"):
        return [{"training": "left out: see benchmarks.components.training_throughput for the processor"}]
    settings = ["--device", "cuda", "--sizes", "30", "100", "--samples", "8", "--steps", "20"]
    command = [sys.executable, "-m", "benchmarks.components.training_throughput", *settings]
    done, seconds = timed(subprocess.run, command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"training failed:\n{done.stderr[-4000:]}")
    return [{"training": "results/training_throughput_stages_cuda.json", "seconds": seconds}]


PARTS: dict[str, Callable[[Scale], list[dict[str, Any]]]] = {
    "tests": run_tests,
    "executors": run_executors,
    "costs": run_costs,
    "llm": run_llm,
    "training": run_training,
}


def measure(parts: Sequence[str], scale: Scale) -> dict[str, Any]:
    """Return the rows of each part, and the seconds it took; parts beyond the limit are named instead."""
    began = time.perf_counter()
    found: dict[str, Any] = {}
    for part in parts:
        if time.perf_counter() - began > LIMIT_S:
            found[part] = [{"left out": f"after {LIMIT_S:.0f} s"}]
            continue
        found[part], seconds = timed(PARTS[part], scale)
        print(f"{part}: {seconds:.1f} s", flush=True)
        for row in found[part]:
            print(f"  {row}", flush=True)
    return found


def main() -> int:
    """Measure on the GPU, print and write; return 1 where there is none."""
    options = tyro.cli(Options)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]!r}; expected some of {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if options.dry:
        measure(options.parts, Scale("cpu", layers=2, width=64, tokens=8, repeats=2))
        return 0
    if not torch.cuda.is_available():
        print("torch sees no GPU; nothing was measured (--dry tries it on the processor)", file=sys.stderr)
        return 1
    found = measure(options.parts, Scale("cuda:0", layers=16, width=2048, tokens=128, repeats=10))
    card = torch.cuda.get_device_properties(0)
    gpu = {"name": card.name, "memory_bytes": card.total_memory, "cuda": torch.version.cuda, "load": os.getloadavg()[0]}
    save("gpu", found, gpu=gpu)
    return 0


if __name__ == "__main__":
    sys.exit(main())
