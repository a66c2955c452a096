"""Costs of models that were never run: plans made with a learned cost model against plans made with the roofline.

Each model is measured once on one worker of one thread (`collect`). A plan is then made with predicted seconds, for
pipelines of 2, 4 and 8 equal stages, and is judged by the measured ones: its *regret* is its bottleneck over that of
the plan made with the measured seconds. The learned model is fitted to all *other* models' measurements.
Run as ``python -m benchmarks.learning.costs``; needs transformers.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
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
from benchmarks.learning.protocol import compare, print_comparisons
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


def collect() -> list[tuple[Graph, CostTable, Device]]:
    """Return graph, measured table and the device as `rlinit doctor` finds it, of each model; kept in a folder."""
    FOLDER.mkdir(exist_ok=True)
    found = []
    torch.manual_seed(0)
    if not (FOLDER / "hardware.json").exists():
        device = dataclasses.replace(measure_machine(threads=1).devices[0], name="d0")
        Hardware.mesh([device]).save(FOLDER / "hardware.json")
    device = Hardware.load(FOLDER / "hardware.json").devices[0]
    for name, model, inputs in (*measured_models(), *more_models()):
        path = FOLDER / f"{name}.json"
        if not path.exists():
            try:
                program = export_program(model, inputs)
                graph = from_program(program, name=name)
                table = measure_ops(program, inputs, graph, devices={"d0": "cpu"}, settings=SETTINGS)
            except Exception as problem:  # whatever torch cannot export is left out, and said
                print(f"{name} is left out: {problem!r:.200}", flush=True)
                continue
            table.save(FOLDER / f"{name}.csv")
            graph.save(path)
            print(name, graph.num_ops, flush=True)
        found.append((Graph.load(path), CostTable.load(FOLDER / f"{name}.csv"), device))
    return found


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


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    samples = [(graph, device, measured_seconds(graph, table)) for graph, table, device in collect()]
    rows = []
    for at, (graph, device, truth) in enumerate(samples):
        model = fit_cost_model([(g, d, s) for i, (g, d, s) in enumerate(samples) if i != at])
        plain = dataclasses.replace(device, efficiency={})
        guesses = {
            "learned": model.seconds(graph, device),
            "roofline with efficiencies": roofline(graph, device),
            "roofline": roofline(graph, plain),
        }
        guesses = {name: np.nan_to_num(seconds) for name, seconds in guesses.items()}
        row: dict[str, Any] = {"model": graph.name, "ops": graph.num_ops}
        for name, value in regrets(graph, truth, guesses).items():
            used = (truth > 0) & (guesses[name] > 0)
            errors = np.abs(np.log(guesses[name][used] / truth[used]))
            row |= {f"{name} regret": value, f"{name} error": float(np.median(errors))}
        rows.append(row)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    names = ("learned", "roofline with efficiencies", "roofline")
    regret = {name: [math.exp(row[f"{name} regret"]) for row in rows] for name in names}
    found = [
        compare(f"{ours} over {theirs}", "value over optimum", regret[ours], regret[theirs])
        for ours, theirs in combinations(names, 2)
    ]
    print_comparisons("regret of pipelines of 2, 4 and 8 stages", found)
    save("learning_costs", rows, stages=STAGES, comparisons=[dataclasses.asdict(one) for one in found])


if __name__ == "__main__":
    main()
