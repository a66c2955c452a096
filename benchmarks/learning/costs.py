"""Costs of models, or on devices, that were never run: plans made with a learned cost model and with the roofline.

Each model is measured once on one worker of one thread (`collect`). A plan is then made with predicted seconds, for
pipelines of 2, 4 and 8 equal stages, and is judged by the measured ones: its *regret* is its bottleneck over that of
the plan made with the measured seconds. The learned model is fitted to all *other* models' measurements; with
``--devices`` to those on all other devices, too.

What this machine's processor is as a device depends on how it is used (`DEVICES`): its data sheet, which has rates of
products and of a copy, and what ops take beside them, are others for other numbers and with other instructions.
Run as ``python -m benchmarks.learning.costs [--devices]``; needs transformers.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.components.measured_costs import models as measured_models
from benchmarks.learning.cost_model import fit_cost_model
from benchmarks.learning.protocol import Comparison, compare, print_comparisons
from benchmarks.record import save
from rlinit.arrays import FloatArray
from rlinit.costs.roofline import roofline
from rlinit.costs.table import CostRow, CostTable
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.heuristics.stages.annealing import anneal
from rlinit.importers.torch.export import export_program, from_program
from rlinit.measurement.machine import measure_machine
from rlinit.measurement.ops import Measuring, measure_ops
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment, StageProblem, evaluate

__all__ = ["collect"]

STAGES = (2, 4, 8)
_BANDWIDTH = 10e9
"""Bytes a second between stages."""

SETTINGS = Measuring(warmup=2, repeats=9, threads=1, clock="processor", time_limit_s=6.0)
FOLDER = Path(tempfile.gettempdir()) / "rlinit-learning-costs"

_SHEET, _DONE = "hardware.json", "done"
_FOLDS = 4
"""Folds of models where a device is left out, too: no model is judged by a fit that saw it anywhere."""

NARROW = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}
DEVICES: dict[str, tuple[torch.dtype, dict[str, str]]] = {
    "fp32": (torch.float32, {}),
    "fp64": (torch.float64, {}),
    "bf16": (torch.bfloat16, {}),
    "narrow": (torch.float32, NARROW),
}
"""Type of numbers and environment of each device; the last has no wider instructions than SSE."""


def more_models() -> Iterator[tuple[str, nn.Module, tuple[Any, ...]]]:
    """Yield further models of transformers with random weights, and inputs."""
    import transformers

    image, tokens = torch.randn(1, 3, 224, 224), torch.randint(3, 500, (1, 96))
    words: dict[str, Any] = {"vocab_size": 500, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    small: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8}
    makes: dict[str, tuple[dict[str, Any], torch.Tensor]] = {
        "ConvNext": ({"depths": [2, 2, 4, 2], "hidden_sizes": [48, 96, 192, 384]}, image),
        "Swin": ({"depths": [2, 2, 2], "embed_dim": 48, "num_heads": [3, 6, 12]}, image),
        "MobileNetV1": ({}, image),
        "MobileNetV2": ({}, image),
        "RegNet": ({"depths": [2, 3, 5, 2], "hidden_sizes": [32, 64, 160, 384]}, image),
        "EfficientNet": ({"image_size": 224, "depth_coefficient": 1.0, "width_coefficient": 1.0}, image),
        "PoolFormer": ({"depths": [2, 2, 4, 2], "hidden_sizes": [32, 64, 160, 256]}, image),
        "Segformer": ({}, image),
        "PvtV2": ({"image_size": 224, "depths": [2, 2, 2, 2]}, image),
        "Beit": (small | {"intermediate_size": 768, "image_size": 224}, image),
        "DistilBert": ({"dim": 256, "n_layers": 4, "n_heads": 8, "hidden_dim": 1024, "vocab_size": 500}, tokens),
        "Albert": (small | {"intermediate_size": 1024, "embedding_size": 64} | words, tokens),
        "Electra": (small | {"intermediate_size": 512, "embedding_size": 128} | words, tokens),
        "OPT": (small | {"ffn_dim": 1024, "word_embed_proj_dim": 256, "use_cache": False} | words, tokens),
        "Bloom": ({"hidden_size": 256, "n_layer": 4, "n_head": 8, "use_cache": False} | words, tokens),
        "Qwen2": (small | {"intermediate_size": 768, "num_key_value_heads": 2, "use_cache": False} | words, tokens),
        "GPTNeoX": (small | {"intermediate_size": 1024, "use_cache": False} | words, tokens),
    }
    for name, (settings, x) in makes.items():
        model: nn.Module = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**settings))
        yield name, model.eval(), (x,)


def measure(used_as: str) -> None:
    """Measure every model, and the device as `rlinit doctor` finds it, and keep them in a folder.

    Parameters
    ----------
    used_as
        Of `DEVICES`; the environment is this process's.
    """
    folder, dtype = FOLDER / used_as, DEVICES[used_as][0]
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    if not (folder / _SHEET).exists():
        device = dataclasses.replace(measure_machine(threads=1).devices[0], name="d0")
        Hardware.mesh([device]).save(folder / _SHEET)
    for name, model, inputs in (*measured_models(), *more_models()):
        if (folder / f"{name}.json").exists():
            continue
        try:
            typed = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
            program = export_program(model.to(dtype), typed)
            graph = from_program(program, name=name)
            table = measure_ops(program, typed, graph, devices={"d0": "cpu"}, settings=SETTINGS)
        except Exception as problem:  # whatever torch cannot export is left out, and said
            print(f"{name} is left out: {problem!r:.200}", flush=True)
            continue
        table.save(folder / f"{name}.csv")
        graph.save(folder / f"{name}.json")
        print(name, graph.num_ops, flush=True)
    (folder / _DONE).touch()


def collect(used_as: str = "fp32") -> list[tuple[Graph, Device, FloatArray]]:
    """Return graph, device and (n,) measured seconds of each model; measured by a process of its own where not yet.

    Parameters
    ----------
    used_as
        Of `DEVICES`.
    """
    folder = FOLDER / used_as
    if not (folder / _DONE).exists():
        command = [sys.executable, "-m", "benchmarks.learning.costs", "--measure", used_as]
        subprocess.run(command, env={**os.environ, **DEVICES[used_as][1]}, check=True)
    device = Hardware.load(folder / _SHEET).devices[0]
    names = sorted(path.stem for path in folder.glob("*.csv"))
    graphs = [Graph.load(folder / f"{name}.json") for name in names]
    tables = [CostTable.load(folder / f"{name}.csv") for name in names]
    return [(g, device, measured_seconds(g, table)) for g, table in zip(graphs, tables, strict=True)]


def measured_seconds(graph: Graph, table: CostTable) -> FloatArray:
    """Return (n,) the measured seconds of each op."""
    seconds = np.zeros(graph.num_ops)
    for row in table.rows:
        seconds[graph.index(row.op)] = row.seconds
    return seconds


def problem_of(graph: Graph, seconds: FloatArray, stages: int) -> StageProblem:
    """Return the pipeline of equal stages on which ops take so long."""
    rows = tuple(CostRow(op, "*", 1, float(s)) for op, s in zip(graph.names, seconds, strict=True))
    timed = CostTable(rows).apply(graph)
    return lower_stages(timed, Hardware.pipeline(stages, bandwidth=_BANDWIDTH), "pipeline").problem


def planned(problem: StageProblem) -> StageAssignment:
    """Return the best slicing of the orders that random search finds in a fixed number of them, or the optimum."""
    found = solve_ideals(problem, 50_000)
    if found is not None and found.assignment is not None:
        return found.assignment
    sliced = anneal(problem, seed=0, evaluations=200_000)
    assert sliced is not None
    return sliced[0]


def regrets(graph: Graph, truth: FloatArray, guesses: dict[str, FloatArray]) -> dict[str, float]:
    """Return for each guess of the seconds the geometric mean over numbers of stages of the regret of its plans."""
    logs: dict[str, list[float]] = {name: [] for name in guesses}
    for stages in STAGES:
        real = problem_of(graph, truth, stages)
        best = evaluate(real, planned(real))[0]
        for name, seconds in guesses.items():
            plan = planned(problem_of(graph, seconds, stages))
            logs[name].append(max(0.0, math.log(evaluate(real, plan)[0] / best)))
    return {name: float(np.mean(row)) for name, row in logs.items()}


def judge_models() -> tuple[list[dict[str, Any]], list[Comparison]]:
    """Return what plans lose on each model, and the comparisons, where costs are learned from all other models."""
    samples = collect()
    rows = []
    for at, (graph, device, truth) in enumerate(samples):
        model = fit_cost_model([one for i, one in enumerate(samples) if i != at])
        guesses = {
            "learned": model.seconds(graph, device),
            "roofline with efficiencies": roofline(graph, device),
            "roofline": roofline(graph, dataclasses.replace(device, efficiency={})),
        }
        rows.append(_row(graph, truth, guesses, "fp32"))
    return rows, _compared(rows)


def judge_devices() -> tuple[list[dict[str, Any]], list[Comparison]]:
    """Return the same for each device, where costs are learned from all other devices, and other models in folds.

    The efficiencies of the device itself need a probe that runs on it; those of another one can be had without.
    """
    samples = {name: collect(name) for name in DEVICES}
    rows = []
    for name, own in samples.items():
        lent = samples["narrow" if name == "fp32" else "fp32"][0][1].efficiency
        for fold in range(_FOLDS):
            seen = {graph.name for at, (graph, _, _) in enumerate(own) if at % _FOLDS != fold}
            others = [one for other, told in samples.items() if other != name for one in told if one[0].name in seen]
            model = fit_cost_model(others)
            for graph, device, truth in own[fold::_FOLDS]:
                guesses = {
                    "learned": model.seconds(graph, device),
                    "roofline with another device's efficiencies": roofline(
                        graph, dataclasses.replace(device, efficiency=lent)
                    ),
                    "roofline with efficiencies": roofline(graph, device),
                    "roofline": roofline(graph, dataclasses.replace(device, efficiency={})),
                }
                rows.append(_row(graph, truth, guesses, name))
    found = [one for name in DEVICES for one in _compared([row for row in rows if row["device"] == name], name + ": ")]
    return rows, [*found, *_compared(rows)]


def _row(graph: Graph, truth: FloatArray, guesses: dict[str, FloatArray], device: str) -> dict[str, Any]:
    guesses = {name: np.nan_to_num(seconds) for name, seconds in guesses.items()}
    row: dict[str, Any] = {"device": device, "model": graph.name, "ops": graph.num_ops}
    for name, value in regrets(graph, truth, guesses).items():
        used = (truth > 0) & (guesses[name] > 0)
        errors = np.abs(np.log(guesses[name][used] / truth[used]))
        row |= {f"{name} regret": value, f"{name} error": float(np.median(errors))}
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    return row


def _compared(rows: list[dict[str, Any]], title: str = "") -> list[Comparison]:
    names = [key.removesuffix(" regret") for key in rows[0] if key.endswith(" regret")]
    regret = {name: [math.exp(row[f"{name} regret"]) for row in rows] for name in names}
    print(title, {name: float(np.mean(regret[name]) - 1.0) for name in names})
    return [
        compare(f"{title}{ours} over {theirs}", "value over optimum", regret[ours], regret[theirs])
        for ours, theirs in combinations(names, 2)
    ]


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", action="store_true", help="leave out the device as well as the model")
    parser.add_argument("--measure", choices=DEVICES, help="only measure on this device, as the environment makes it")
    chosen = parser.parse_args()
    if chosen.measure:
        measure(chosen.measure)
        return
    rows, found = judge_devices() if chosen.devices else judge_models()
    print_comparisons("regret of pipelines of 2, 4 and 8 stages", found)
    name = "learning_costs_devices" if chosen.devices else "learning_costs"
    save(name, rows, stages=STAGES, comparisons=[dataclasses.asdict(one) for one in found])


if __name__ == "__main__":
    main()
