"""How well costs predict what ops take on this machine's CPU, before and after measuring.

For each model, with one thread a worker: the rank correlation of the ops' predicted seconds with those of a run, where
the prediction is the roofline model with round figures for a CPU (``preset``), with figures fitted to another model's
measurements (``fitted``), and the cost table measured before the run (``measured``). Then a plan for one worker and one
for two, with measured links: predicted seconds of the whole against the median and the least run.
Run as ``python -m benchmarks.components.measured_costs``; needs transformers and pytorchcv.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import rlinit
from benchmarks.record import print_table, save
from rlinit.costs.roofline import roofline
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.calibration import Calibration, calibrate, rank_correlation
from rlinit.measurement.ops import Measuring, measure_ops
from rlinit.measurement.roofline_fit import fitted_device
from rlinit.measurement.transfers import measure_transfers

SETTINGS = Measuring(warmup=3, repeats=15, threads=1)
PLACES = {"d0": "cpu", "d1": "cpu"}
IMAGES = (
    ("resnet", "resnet18"),
    ("mobilenetv2", "mobilenetv2_w1"),
    ("bninception", "bninception"),
    ("densenet", "densenet121"),
)
COLUMNS = (
    *("model", "ops", "spread", "preset", "fitted", "measured"),
    *("predicted 1", "measured 1", "least 1", "predicted 2", "measured 2", "least 2", "used 2"),
)


def models() -> Iterator[tuple[str, nn.Module, tuple[Any, ...]]]:
    """Yield models with random weights, and inputs."""
    import transformers

    for home, name in IMAGES:
        # The package's list of all models would import torchvision.
        make = getattr(importlib.import_module(f"pytorchcv.models.{home}"), name)
        yield name, make(pretrained=False).eval(), (torch.randn(1, 3, 224, 224),)
    tokens = torch.randint(3, 500, (1, 64))
    text: dict[str, Any] = {"vocab_size": 500, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    gpt2: nn.Module = transformers.GPT2Model(
        transformers.GPT2Config(n_layer=6, n_embd=384, n_head=6, use_cache=False, **text)
    )
    yield "GPT2, 6 layers", gpt2.eval(), (tokens,)
    bert: nn.Module = transformers.BertModel(
        transformers.BertConfig(num_hidden_layers=6, hidden_size=384, num_attention_heads=6, **text)
    )
    yield "BERT, 6 layers", bert.eval(), (tokens,)


def correlation(graph: Graph, device: Device, run: Calibration) -> float | None:
    """Return the rank correlation of the roofline's seconds with those of a run."""
    seconds = roofline(graph, device)
    return rank_correlation([seconds[graph.index(row.op)] for row in run.ops], [row.measured_s for row in run.ops])


def main() -> None:
    """Measure, run, print and write."""
    torch.manual_seed(0)
    before = os.getloadavg()
    links = measure_transfers(PLACES, settings=dataclasses.replace(SETTINGS, threads=2))
    preset = next(device for device in Hardware.preset("cpu-t4-a100").devices if device.kind == "cpu")
    one = Hardware.mesh([Device("d0")], 1e9)
    two = links.apply(Hardware.mesh([Device("d0"), Device("d1")], 1e9))
    fitted: Device | None = None
    rows = []
    for name, model, inputs in models():
        program = export_program(model, inputs)
        graph = from_program(program, name=name)
        table = measure_ops(program, inputs, graph, devices=PLACES, settings=SETTINGS)
        timed = table.apply(graph)
        row: dict[str, Any] = {"model": name, "ops": graph.num_ops, "spread": table.noise()[0].total_spread}
        for hardware in (one, two):
            plan = rlinit.schedule(timed, hardware, objective="latency", method="heft")
            run = calibrate(plan, program, inputs, graph=timed, settings=SETTINGS)
            count = len(hardware)
            row |= {f"predicted {count}": run.predicted_s, f"measured {count}": run.measured_s}
            row |= {f"least {count}": run.least_s, f"used {count}": len(run.device_factors())}
            row |= {f"op factors {count}": run.device_factors(), f"rank correlation {count}": run.rank_correlation}
            if count == 1:
                row |= {"preset": correlation(graph, preset, run), "measured": run.rank_correlation}
                row |= {"fitted": None if fitted is None else correlation(graph, fitted, run)}
        fitted = fitted or fitted_device(graph, table, Device("d0"))
        rows.append(row)
        print(name, row, flush=True)
    print_table("rank correlations, and seconds of the whole", list(COLUMNS), ([r[c] for c in COLUMNS] for r in rows))
    save("measured_costs", rows, links=str(links).splitlines(), load_before=before, load_after=os.getloadavg())


if __name__ == "__main__":
    main()
