"""A GoogLeNet written in torch on a CPU and two accelerators: planned with proof, run by the plan, compared.

The accelerators are logical: they share the GPU if there is one, else the CPU, so that the plan runs anywhere.
Run as ``python -m examples.torch_googlenet --out googlenet``; the weights are random.

References
----------
C. Szegedy et al.: Going Deeper with Convolutions, Table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import nn

import rlinit
from rlinit.executors import execute
from rlinit.executors.lowering.torch_program import export_model
from rlinit.exporters import to_report, to_trace
from rlinit.importers.torch.export import from_program
from rlinit.measurement.ops import Measuring, measure_ops
from rlinit.measurement.transfers import measure_transfers
from rlinit.units import format_seconds

__all__ = ["BLOCKS", "GoogLeNet", "Inception", "Result", "main"]

BLOCKS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)
"""Channels of the inception blocks 3a to 5b: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; pooled."""

_POOLED = (2, 7)
"""Blocks before which the picture is halved."""


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch norm and ReLU that keeps the picture's size but for its stride."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Inception(nn.Module):
    """Four branches over one input, concatenated."""

    def __init__(self, inputs: int, channels: Sequence[int]) -> None:
        super().__init__()
        one, three_in, three, five_in, five, pooled = channels
        self.one = convolution(inputs, one, 1)
        self.three = nn.Sequential(convolution(inputs, three_in, 1), convolution(three_in, three, 3))
        self.five = nn.Sequential(convolution(inputs, five_in, 1), convolution(five_in, five, 5))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), convolution(inputs, pooled, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, inputs, H, W) to (B, channels, H, W)."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class GoogLeNet(nn.Module):
    """The network without its auxiliary classifiers.

    Parameters
    ----------
    blocks
        Number of inception blocks, of the nine.
    divisor
        Divides all numbers of channels.
    classes
        Number of classes.
    """

    def __init__(self, blocks: int = 9, divisor: int = 1, classes: int = 1000) -> None:
        super().__init__()
        width = 64 // divisor
        self.stem = nn.Sequential(
            convolution(3, width, 7, 2),
            nn.MaxPool2d(3, 2, 1),
            convolution(width, width, 1),
            convolution(width, 3 * width, 3),
            nn.MaxPool2d(3, 2, 1),
        )
        body: list[nn.Module] = []
        inputs = 3 * width
        for at, channels in enumerate(BLOCKS[:blocks]):
            if at in _POOLED:
                body.append(nn.MaxPool2d(3, 2, 1))
            scaled = [max(1, count // divisor) for count in channels]
            body.append(Inception(inputs, scaled))
            inputs = scaled[0] + scaled[2] + scaled[4] + scaled[5]
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, H, W) pictures to (B, classes)."""
        result: torch.Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return result


@dataclass(frozen=True, slots=True)
class Result:
    """What the example found: the plan, the devices it uses, and how far its outputs are off."""

    plan: rlinit.Plan
    used: tuple[str, ...]
    difference: float


def main(
    objective: Literal["latency", "throughput"] = "latency",
    size: int = 224,
    blocks: int = 9,
    divisor: int = 1,
    inputs: int = 4,
    measured: bool = False,
    method: str = "auto",
    time_limit_s: float | None = 10.0,
    seed: int = 0,
    out: Path | None = None,
) -> Result:
    """Plan the network for a CPU and two accelerators, run the plan, and compare with the network itself.

    Parameters
    ----------
    objective
        ``latency`` of one picture, or ``throughput`` of several, which may be split over devices.
    size, blocks, divisor
        Pixels of the square pictures; see `GoogLeNet`.
    inputs
        Pictures for ``throughput``.
    measured
        Measure every op and transfer where it will run, so that what is expected can be compared with what happens;
        else ops are timed by the roofline model of a T4 and an A100, which need not be there.
    method, time_limit_s
        How to plan, and for how many seconds; see `rlinit.schedule`.
    seed
        Of weights, pictures and the search.
    out
        A folder for the plan, a trace and a report.
    """
    torch.manual_seed(seed)
    network = GoogLeNet(blocks, divisor).eval()
    pictures = (torch.randn(inputs if objective == "throughput" else 1, 3, size, size),)
    program = export_model(network, pictures, dynamic_batch=inputs if objective == "throughput" else None)
    graph = from_program(program, name="GoogLeNet")
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    accelerator = "cuda:0" if torch.cuda.is_available() else "cpu"
    devices = {"cpu": "cpu", "t4": accelerator, "a100": accelerator}
    if measured:
        # Workers on the CPU share its threads.
        share = max(1, torch.get_num_threads() // list(devices.values()).count("cpu"))
        batches = range(1, inputs + 1) if objective == "throughput" else None
        table = measure_ops(
            program, pictures, graph, devices=devices, batches=batches, settings=Measuring(threads=share)
        )
        graph = table.apply(graph)
        hardware = measure_transfers(devices).apply(hardware)
    count = inputs if objective == "throughput" else None
    plan = rlinit.schedule(
        graph, hardware, objective=objective, inputs=count, method=method, time_limit_s=time_limit_s, seed=seed
    )
    used = tuple(use.device for use in plan.devices if use.num_batches)
    print(f"{graph.num_ops} ops on {', '.join(used)}: {plan.status}, {format_seconds(plan.value)} expected,")
    print(f"at least {format_seconds(plan.bound)} by {plan.bound_source} (gap {plan.gap:.1%})")

    execution = execute(plan, program, *pictures, graph=graph, devices=devices)
    with torch.no_grad():
        difference = float((execution.outputs - network(*pictures)).abs().max())
    print(f"run on cpu and {accelerator}: {format_seconds(execution.seconds)} here, largest difference {difference:g}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        plan.save(out / "plan.json")
        to_trace(plan, out / "trace.json")
        to_report(plan, graph, hardware, out / "report.html")
    return Result(plan, used, difference)


if __name__ == "__main__":
    tyro.cli(main)
