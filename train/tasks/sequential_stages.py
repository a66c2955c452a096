"""The stage task for the pointer network, which decodes step by step.

Problems and values are those of the one-shot agent's task. The reward is that of Inc-ILP, the cosine similarity of its
stages with those of an exact solution, or the one-shot agent's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from rlinit.agent.network.checkpoint import Card, save_checkpoint
from rlinit.agent.sequential.decoding import decode, order_choices
from rlinit.agent.sequential.pointer_network import (
    EncodedNodes,
    PackedGraphs,
    PointerBatch,
    PointerNetwork,
    cosine_reward,
)
from rlinit.agent.stages.features import slice_orders
from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.datasets.random.stage_problems import ProblemParams
from rlinit.exact.effort import FEW_IDEALS
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.train.tasks.fields import require
from rlinit.train.tasks.protocol import Choices
from rlinit.train.tasks.stages import StageParams, StageProblems, StageTask, StageTrajectories


@dataclass(frozen=True)
class PointerParams:
    """Problems, reward and network of the pointer network's task."""

    draw: ProblemParams = dataclasses.field(default_factory=ProblemParams)
    reward: Literal["cosine", "value"] = "cosine"
    """cosine: similarity of stages with an exact solution's (Inc-ILP, equations 1 and 2). value: improvement on the
    sliced natural order."""
    units: int = 256
    """Width of both LSTMs."""
    real_models: bool = True
    """Validate on the ten ImageNet graphs as well."""

    def __post_init__(self) -> None:
        require(self.units >= 1, "problem.units", self.units, "at least 1")


class PointerTask(StageTask):
    """Trains `rlinit.agent.sequential.pointer_network.PointerNetwork`; see `rlinit.train.tasks.protocol.Task`."""

    params_class: ClassVar[type] = PointerParams

    def __init__(self, params: PointerParams) -> None:
        # An order that cannot be sliced within the capacities has reward -1, and no order a worse one.
        super().__init__(StageParams(params.draw, least_reward=-1.0, real_models=params.real_models))
        self.units = params.units
        self.cosine = params.reward == "cosine"

    def generate(self, seed: int, size: int, count: int) -> StageProblems:
        """Return training problems with reference values and, for the cosine reward, exact stages.

        See `Task.generate`.
        """
        return self._labelled(super().generate(seed, size, count))

    def validation(self, *, small: bool) -> Mapping[str, StageProblems]:
        """Return the one-shot agent's validation sets."""
        return {name: self._labelled(batch) for name, batch in super().validation(small=small).items()}

    def _labelled(self, batch: StageProblems) -> StageProblems:
        return dataclasses.replace(batch, label=_exact_stages(batch)) if self.cosine else batch

    def fresh_network(self) -> nn.Module:
        """Return a pointer network."""
        return PointerNetwork(self.units)

    def forward(self, network: nn.Module, batch: StageProblems, device: torch.device) -> EncodedNodes:
        """Return the encoded graphs.

        See `Task.forward`.
        """
        encoded: EncodedNodes = network(PointerBatch.of(batch.problems, device))
        return encoded.single()

    def orders(
        self, network: Any, batch: StageProblems, outputs: EncodedNodes, samples: int, seed: int | None
    ) -> IntArray:
        """Return (S, N) orders that the network points out, or (1, N) greedy ones where there is no seed.

        Parameters
        ----------
        network, batch, outputs, samples, seed
            See `Task.rollout`.
        """
        graphs = PackedGraphs(batch.problems, outputs.inputs.device)
        with torch.no_grad():
            found = decode(network.decoder, outputs, graphs, samples, seed)
        padded = found.cpu().numpy().reshape(len(batch), -1, graphs.width)
        return np.ascontiguousarray(padded.transpose(1, 0, 2)[:, _real(batch, graphs.width)])

    def rewards(self, batch: StageProblems, orders: IntArray, ends: IntArray, value: FloatArray) -> FloatArray:
        """Return (B, S) cosine similarities with the labels, 0 where an order cannot be sliced, or improvements.

        Parameters
        ----------
        batch, orders, ends, value
            See `StageTask.rewards`.
        """
        if not self.cosine:
            return super().rewards(batch, orders, ends, value)
        stage = _stages_of(batch, orders, ends).astype(np.float64)
        similar = [
            cosine_reward(stage[:, a:b], np.broadcast_to(batch.label[a:b], (len(orders), b - a)))
            for a, b in pairwise(batch.problems.node_ptr)
        ]
        return np.where(np.isfinite(value), np.stack(similar), 0.0)

    def choices(self, network: Any, batch: StageProblems, outputs: EncodedNodes, played: StageTrajectories) -> Choices:
        """Return log-probability and entropy of every choice, those among one ready node included.

        See `Task.choices`.
        """
        device = outputs.inputs.device
        graphs = PackedGraphs(batch.problems, device)
        padded = np.full((len(played.orders), len(batch), graphs.width), -1, np.int64)
        padded[:, _real(batch, graphs.width)] = played.orders
        rows = torch.from_numpy(padded.transpose(1, 0, 2).reshape(-1, graphs.width).copy()).to(device)
        return Choices(*order_choices(network.decoder, outputs, graphs, rows)[:3])

    def export(self, network: Any, path: Path, card: Mapping[str, Any]) -> None:
        """Write the product's checkpoint.

        See `Task.export`.
        """
        arrays = {name: weight.detach().cpu().numpy() for name, weight in network.state_dict().items()}
        about = Card("pointer", "stages", {"units": network.units}, card["training"], card["quality"])
        save_checkpoint(path, arrays, about)


def _exact_stages(batch: StageProblems) -> IntArray:
    """Return (N,) the stage of each node, from 1: in the sliced natural order where that is optimal, else exact."""
    problems = batch.problems
    natural = problems.natural[None, :]
    label: IntArray = _stages_of(batch, natural, slice_orders(problems, natural)[1])[0]
    for g, (first, stop) in enumerate(pairwise(problems.node_ptr)):
        enough = batch.reference[g] * (1.0 - 1e-9)
        if batch.optimum[g] >= enough:
            continue
        result = solve_ideals(problems.problem(g), FEW_IDEALS)
        if result is None or result.assignment is None or result.value is None:
            continue
        if result.value[0] < enough:
            label[first:stop] = result.assignment.stage + 1
    return label


def _real(batch: StageProblems, width: int) -> BoolArray:
    """Return (B, width) bool: which places of a padded batch hold nodes."""
    real: BoolArray = np.arange(width) < np.diff(batch.problems.node_ptr)[:, None]
    return real


def _stages_of(batch: StageProblems, orders: IntArray, ends: IntArray) -> IntArray:
    """Return (S, N) the stage of each node, from 1, from orders (S, N) and where stages end in them, (S, K)."""
    problems = batch.problems
    graph, k = problems.graph_of_node, problems.num_stages
    place = np.arange(problems.num_nodes) - problems.node_ptr[graph]
    first = (np.cumsum(k) - k)[graph]
    at_place = np.ones(orders.shape, np.int64)
    for j in range(int(k.max()) - 1):
        at_place += (j < k[graph] - 1) & (place >= ends[:, first + np.minimum(j, k[graph] - 1)])
    stage = np.empty_like(at_place)
    np.put_along_axis(stage, orders + problems.node_ptr[graph], at_place, axis=1)
    return stage
