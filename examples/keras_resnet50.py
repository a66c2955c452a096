"""Keras's ResNet50 over six pipelined Edge TPUs: split by INT8 size with proof, then run stage by stage.

Run as ``python -m examples.keras_resnet50 --out stages``; the weights are random, nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import rlinit
from rlinit.datasets.zoo import imagenet
from rlinit.errors import InvalidPlan
from rlinit.importers.keras.reader import from_keras, import_keras
from rlinit.units import format_bytes

__all__ = ["Run", "StageModel", "main", "run_stages", "stage_models"]


@dataclass(frozen=True, slots=True)
class StageModel:
    """One stage as a Keras model, with the layers whose outputs it takes and gives."""

    model: Any
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """What the example found: the plan, the parameters of each stage, and how far the stages' outputs are off."""

    plan: rlinit.Plan
    stage_params: tuple[int, ...]
    difference: float


def main(size: int = 224, stages: int = 6, seed: int = 0, out: Path | None = None) -> Run:
    """Split the network, run its stages one after the other, and compare with the whole network.

    Parameters
    ----------
    size
        Pixels of the square input; the split by parameters does not depend on it.
    stages
        Edge TPUs in a row.
    seed
        Of the random input.
    out
        A folder for the plan and each stage as a ``.keras`` file; the stages are run from these files then.
    """
    keras = import_keras()
    keras.backend.clear_session()  # so that layers are called what they are called in the datasets
    network = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3))
    # The dataset holds the graph at the usual size, one byte a parameter and element; other sizes are read anew.
    graph = imagenet.load("ResNet50") if size == 224 else from_keras(network, name="ResNet50", dtype="int8")
    plan = rlinit.schedule(graph, rlinit.Hardware.edge_tpus(stages), objective="memory")
    print(f"{graph.num_ops} layers on {stages} stages: {plan.status}, proven by {plan.bound_source}")
    for at, use in enumerate(plan.stages):
        print(f"  stage {at}: {use.num_ops:3} layers, {format_bytes(use.param_bytes)} of parameters")

    parts = stage_models(network, graph, plan)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        plan.save(out / "plan.json")
        parts = [saved(part, out / f"stage_{at}.keras") for at, part in enumerate(parts)]
    image = np.random.default_rng(seed).random((1, size, size, 3), dtype=np.float32)
    whole = keras.ops.convert_to_numpy(network(image, training=False))
    difference = float(np.abs(run_stages(parts, image) - whole).max())
    print(f"largest difference between the stages' output and the network's: {difference:g}")
    return Run(plan, tuple(part.model.count_params() for part in parts), difference)


def stage_models(network: Any, graph: rlinit.Graph, plan: rlinit.Plan) -> list[StageModel]:
    """Cut a Keras model, each of whose layers is called once, into a model for each stage that has layers."""
    keras = import_keras()
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}: {plan.message}")
    stage = {op: int(at) for op, at in plan.assignment.items()}
    outputs = {layer.name: layer.output for layer in network.layers}
    takes: dict[int, list[str]] = {at: [] for at in range(plan.num_stages)}
    gives: dict[int, list[str]] = {at: [] for at in range(plan.num_stages)}
    for u, v in graph.edges.tolist():
        source, target = graph.names[u], graph.names[v]
        if stage[source] != stage[target]:
            takes[stage[target]].append(source)
            gives[stage[source]].append(source)
    first, last = network.inputs[0]._keras_history.operation.name, network.outputs[0]._keras_history.operation.name
    takes[stage[first]].append(first)
    gives[stage[last]].append(last)
    parts = []
    for at in sorted(set(stage.values())):
        boundary = tuple(dict.fromkeys(takes[at])), tuple(dict.fromkeys(gives[at]))
        model = keras.Model(
            [outputs[op] for op in boundary[0]], [outputs[op] for op in boundary[1]], name=f"stage_{at}"
        )
        parts.append(StageModel(model, *boundary))
    return parts


def saved(part: StageModel, path: Path) -> StageModel:
    """Write a stage to a file, and return it as it is read back."""
    keras = import_keras()
    part.model.save(path)
    return StageModel(keras.saving.load_model(path), part.takes, part.gives)


def run_stages(parts: Sequence[StageModel], image: Any) -> Any:
    """Run stages in a row; each sends on what later ones take."""
    keras = import_keras()
    values = {parts[0].takes[0]: image}
    results: list[Any] = []
    for part in parts:
        results = part.model([values[op] for op in part.takes], training=False)
        values.update(zip(part.gives, results, strict=True))
    return keras.ops.convert_to_numpy(results[-1])


if __name__ == "__main__":
    tyro.cli(main)
