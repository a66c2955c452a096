"""How well plans predict what models take on this machine's CPU, before and after measuring.

For each model, on one worker of one thread: the seconds that its plan says

* ``doctor``: on this machine as `rlinit doctor` finds it, a roofline with efficiencies fitted to a probe; the model
  itself was never run;
* ``measured``: on the cost table that `measure_ops` gave;
* ``calibrated``: on that table with what a first run of the plan measured put in;

against the run of that plan. All seconds are medians of those that the worker was at work (``clock="processor"``): on a
machine in use the wall shows mostly what others do. Rank correlations are of the ops' seconds.
Run as ``python -m benchmarks.components.measured_costs``; needs transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import rlinit
from benchmarks.record import print_table, save, take_no_options
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.calibration import Calibration, calibrate
from rlinit.measurement.machine import measure_machine
from rlinit.measurement.ops import Measuring, measure_ops

SETTINGS = Measuring(warmup=3, repeats=15, threads=1, clock="processor")
COLUMNS = (*("model", "ops", "doctor error", "doctor rank", "measured error", "calibrated error", "seconds", "spread"),)


class UNet(nn.Module):
    """Convolutions down to half the size and back up, with what was before halving beside."""

    def __init__(self, width: int = 24, depth: int = 3) -> None:
        super().__init__()
        widths = [width << at for at in range(depth + 1)]
        self.first = self._block(3, width)
        self.down = nn.ModuleList(self._block(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(self._block(2 * a, a) for a in widths[:-1])
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _block(i: int, o: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU()),
            *(nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU()),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, 3, H, W) to (B, 2, H, W), H and W multiples of 8."""
        kept = [self.first(x)]
        for block in self.down:
            kept.append(block(nn.functional.max_pool2d(kept[-1], 2)))
        x = kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat([up(x), kept.pop()], dim=1))
        out: torch.Tensor = self.last(x)
        return out


def models() -> Iterator[tuple[str, nn.Module, tuple[Any, ...]]]:
    """Yield models with random weights, and inputs."""
    import transformers

    image, tokens = torch.randn(1, 3, 224, 224), torch.randint(3, 500, (1, 96))
    text: dict[str, Any] = {"vocab_size": 500, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8}
    wide = sizes | text | {"intermediate_size": 768, "num_key_value_heads": 4, "use_cache": False}
    makes: dict[str, tuple[str, Any, torch.Tensor]] = {
        "ViT": ("ViT", sizes | {"intermediate_size": 1024, "image_size": 224}, image),
        "BERT": ("Bert", sizes | text | {"intermediate_size": 1024}, tokens),
        "GPT-2": ("GPT2", {"n_layer": 6, "n_embd": 256, "n_head": 8, "use_cache": False} | text, tokens),
        "Llama-like": ("Llama", wide, tokens),
        "Mixtral-like": ("Mixtral", wide | {"num_local_experts": 4}, tokens),
        "ResNet": (
            "ResNet",
            {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"},
            image,
        ),
    }
    for name, (kind, settings, x) in makes.items():
        model: nn.Module = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**settings))
        yield name, model.eval(), (x,)
    yield "UNet", UNet().eval(), (torch.randn(1, 3, 128, 128),)


def error(run: Calibration) -> float:
    """Return how much longer a run takes than its plan says; negative: shorter."""
    return run.factor - 1.0


def main() -> None:
    """Measure, run, print and write."""
    take_no_options(__doc__)
    torch.manual_seed(0)
    rows = []
    for name, model, inputs in models():
        # Anew for each model: what else runs on the machine changes by the minute.
        device = dataclasses.replace(measure_machine(threads=1).devices[0], name="d0")
        one = Hardware.mesh([device], 1e9)
        program = export_program(model, inputs)
        graph = from_program(program, name=name)
        rows.append({"model": name, "ops": graph.num_ops} | _row(program, graph, inputs, one))
        print(name, rows[-1], flush=True)
    print_table("what runs take beyond their plans", list(COLUMNS), ([r[c] for c in COLUMNS] for r in rows))
    save("measured_costs", rows, device=one.to_dict()["device"][0])


def _row(program: Any, graph: Graph, inputs: tuple[Any, ...], one: Hardware) -> dict[str, Any]:
    """Return what plans on each kind of costs say of a model, and what their runs take."""

    def run_of(timed: Graph) -> Calibration:
        plan = rlinit.schedule(timed, one, objective="latency", method="heft")
        return calibrate(plan, program, inputs, graph=timed, settings=SETTINGS)

    modelled = run_of(graph)
    table = measure_ops(program, inputs, graph, devices={"d0": "cpu"}, settings=SETTINGS)
    measured = run_of(table.apply(graph))
    table = table.updated(measured.table())
    calibrated = run_of(table.apply(graph))
    return {
        "seconds": calibrated.measured_s,
        "doctor error": error(modelled),
        "doctor rank": modelled.rank_correlation,
        "measured error": error(measured),
        "calibrated error": error(calibrated),
        "measured rank": measured.rank_correlation,
        "spread": calibrated.spread_s / calibrated.measured_s,
    }


if __name__ == "__main__":
    main()
