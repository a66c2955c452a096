"""The stage task for the pointer network, which decodes step by step.

Problems, values and labels are those of the one-shot agent's task. The reward is that of Inc-ILP, the cosine similarity
of its stages with those of an exact solution, or the one-shot agent's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from rlinit.agent.stages.features import slice_orders
from rlinit.arrays import FloatArray, IntArray
from rlinit.datasets.random.stage_problems import ProblemParams
from rlinit.plan import Plan
from rlinit.train.tasks.fields import require
from rlinit.train.tasks.protocol import Choices, Labels, unpadded
from rlinit.train.tasks.stages import StageParams, StageProblems, StageTask, StageTrajectories

if TYPE_CHECKING:
    import torch

    from rlinit.agent.sequential.pointer_network import EncodedNodes, PointerNetwork

_IDEAL_CAP = 50_000
"""Problems of more ideals than this are labelled by the natural order."""

_WORST_REWARD = -1.0
"""Reward of an order that cannot be sliced within the capacities, and the least improvement on the reference."""


@dataclass(frozen=True)
class PointerParams:
    """Problems, reward and network of the pointer network's task."""

    draw: ProblemParams = field(default_factory=ProblemParams)
    reward: Literal["cosine", "value"] = "cosine"
    """cosine: similarity of stages with an exact solution's (Inc-ILP, equations 1 and 2). value: improvement on the
    sliced natural order."""
    units: int = 256
    """Width of both LSTMs."""
    real_models: bool = True
    """Validate on the ten ImageNet graphs as well."""

    def __post_init__(self) -> None:
        require(self.units >= 1, "problem.units", self.units, "at least 1")


@dataclass(frozen=True, slots=True, eq=False)
class LabelledProblems(StageProblems):
    """Stage problems with exact labels: (N,) the stage of each node, from 1; (0,) where nothing asks for them."""

    label: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))


class PointerTask:
    """Trains `rlinit.agent.sequential.pointer_network.PointerNetwork`; see `rlinit.train.tasks.protocol.Task`."""

    params_class: ClassVar[type] = PointerParams
    selection: ClassVar[tuple[str, ...]] = StageTask.selection

    def __init__(self, params: PointerParams) -> None:
        self.params = params
        self.stages = StageTask(StageParams(params.draw, real_models=params.real_models))
        self.cosine = params.reward == "cosine"

    def generate(self, seed: int, size: int, count: int) -> LabelledProblems:
        """Return training problems with reference values and, for the cosine reward, exact stages.

        See `Task.generate`.
        """
        return self._labelled(self.stages.generate(seed, size, count))

    def validation(self, *, small: bool) -> Mapping[str, LabelledProblems]:
        """Return the one-shot agent's validation sets."""
        return {name: self._labelled(batch) for name, batch in self.stages.validation(small=small).items()}

    def _labelled(self, batch: StageProblems) -> LabelledProblems:
        known = (batch.problems, batch.features, batch.reference, batch.optimum, batch.bound, batch.names)
        return LabelledProblems(*known, _exact_stages(batch)) if self.cosine else LabelledProblems(*known)

    def label(self, batch: StageProblems) -> Labels:
        """Return the orders that the one-shot agent imitates."""
        return self.stages.label(batch)

    def rival(self, batch: LabelledProblems, seconds: float) -> FloatArray:
        """Return what the one-shot agent is held against.

        See `Task.rival`.
        """
        return self.stages.rival(batch, seconds)

    def network(self, seed: int) -> torch.nn.Module:
        """Return a fresh pointer network."""
        import torch

        from rlinit.agent.sequential.pointer_network import PointerNetwork

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return PointerNetwork(self.params.units)

    def forward(self, network: torch.nn.Module, batch: StageProblems, device: torch.device) -> EncodedNodes:
        """Return the encoded graphs.

        See `Task.forward`.
        """
        from rlinit.agent.sequential.pointer_network import PointerBatch

        encoded: EncodedNodes = network(PointerBatch.of(batch.problems, device))
        return encoded.single()

    def rollout(
        self,
        network: torch.nn.Module,
        batch: LabelledProblems,
        outputs: EncodedNodes,
        *,
        samples: int,
        seed: int,
        greedy: bool = False,
    ) -> StageTrajectories:
        """Return sliced orders that the network points out.

        See `Task.rollout`.
        """
        import torch

        from rlinit.agent.sequential import decoding as sequential
        from rlinit.agent.sequential.pointer_network import OrderDecoding, packed
        from rlinit.agent.sequential.rollouts import OrderRollouts

        with torch.no_grad():
            graphs = packed(batch.problems, outputs.inputs.device)
            decoding = OrderDecoding(_bare(network).decoder, outputs, OrderRollouts(graphs, 1 if greedy else samples))
            if greedy:
                sequential.greedy(decoding)
            else:
                sequential.sample(decoding, torch.Generator().manual_seed(seed))
        padded = decoding.rollouts.orders.cpu().numpy().reshape(len(batch), -1, graphs.width)
        orders = np.ascontiguousarray(padded.transpose(1, 0, 2)[:, _real(batch, graphs.width)])
        return self._rewarded(batch, orders)

    def _rewarded(self, batch: LabelledProblems, orders: IntArray) -> StageTrajectories:
        """Return orders (S, N), sliced, with their rewards."""
        from rlinit.train.tasks.common import excess

        value, ends = slice_orders(batch.problems, orders, batch.reference * (1.0 + 1e-9))
        if self.cosine:
            reward = self._similarity(batch, orders, ends, value)
        else:
            reward = np.maximum(-excess(value, batch.reference[:, None]), _WORST_REWARD)
        return StageTrajectories(orders, ends, value, reward)

    def _similarity(self, batch: LabelledProblems, orders: IntArray, ends: IntArray, value: FloatArray) -> FloatArray:
        """Return (B, S) cosine similarities with the labels; 0 where an order cannot be sliced."""
        from rlinit.agent.sequential.pointer_network import cosine_reward

        stage = _stages_of(batch, orders, ends)
        ptr = batch.problems.node_ptr
        similar = [
            cosine_reward(stage[:, a:b].astype(np.float64), np.broadcast_to(batch.label[a:b], (len(orders), b - a)))
            for a, b in pairwise(ptr)
        ]
        return np.where(np.isfinite(value), np.stack(similar), 0.0)

    def choices(
        self, network: torch.nn.Module, batch: StageProblems, outputs: EncodedNodes, played: StageTrajectories
    ) -> Choices:
        """Return log-probability and entropy of every choice, those among one ready node included.

        See `Task.choices`.
        """
        return Choices(*self._replay(network, batch, outputs, played.orders))

    def _replay(
        self, network: torch.nn.Module, batch: StageProblems, outputs: EncodedNodes, orders: IntArray
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        from rlinit.agent.sequential.pointer_network import order_choices, packed

        device = outputs.inputs.device
        graphs = packed(batch.problems, device)
        padded = np.full((len(orders), len(batch), graphs.width), -1, np.int64)
        padded[:, _real(batch, graphs.width)] = orders
        rows = torch.from_numpy(padded.transpose(1, 0, 2).reshape(-1, graphs.width).copy()).to(device)
        return order_choices(_bare(network).decoder, outputs, graphs, rows)

    def imitation_loss(
        self, network: torch.nn.Module, batch: StageProblems, outputs: EncodedNodes, labels: Labels
    ) -> torch.Tensor:
        """Return the mean negative log-probability of the labelled orders.

        See `Task.imitation_loss`.
        """
        orders = unpadded(labels["order"], batch.problems.node_ptr)[None, :]
        return -self._replay(network, batch, outputs, orders)[0].sum() / len(batch)

    def plan(self, batch: StageProblems, played: StageTrajectories, problem: int, sample: int) -> Plan:
        """Return one schedule as a Plan on a pipeline of equal stages.

        See `Task.plan`.
        """
        return self.stages.plan(batch, played, problem, sample)

    def embeddings(self, batch: StageProblems, outputs: EncodedNodes) -> tuple[FloatArray, list[str]] | None:
        """Return what the decoder points at, for each node.

        See `Task.embeddings`.
        """
        latent = outputs.latent.detach().cpu().numpy()
        return latent[_real(batch, latent.shape[1])], [str(v) for v in range(batch.num_nodes)]

    def export(self, network: torch.nn.Module, path: Path, card: Mapping[str, Any]) -> None:
        """Write the product's checkpoint.

        See `Task.export`.
        """
        from rlinit.agent.network.checkpoint import Card, save_checkpoint

        arrays = {name: weight.detach().cpu().numpy() for name, weight in network.state_dict().items()}
        about = Card("pointer", "stages", {"units": _bare(network).units}, card["training"], card["quality"])
        save_checkpoint(path, arrays, about)


def _exact_stages(batch: StageProblems) -> IntArray:
    """Return (N,) the stage of each node, from 1: in the sliced natural order where that is optimal, else exact."""
    from rlinit.exact.stages.ideals.solve import solve_ideals

    problems = batch.problems
    natural = problems.natural[None, :]
    label: IntArray = _stages_of(batch, natural, slice_orders(problems, natural)[1])[0]
    for g, (first, stop) in enumerate(pairwise(problems.node_ptr)):
        enough = batch.reference[g] * (1.0 - 1e-9)
        if batch.optimum[g] >= enough:
            continue
        result = solve_ideals(problems.problem(g), _IDEAL_CAP)
        if result is None or result.assignment is None or result.value is None:
            continue
        if result.value[0] < enough:
            label[first:stop] = result.assignment.stage + 1
    return label


def _bare(network: torch.nn.Module) -> PointerNetwork:
    """Return the network itself where it is wrapped for several processes."""
    from rlinit.agent.sequential.pointer_network import PointerNetwork
    from rlinit.train.tasks.common import unwrap

    bare = unwrap(network)
    if not isinstance(bare, PointerNetwork):
        raise TypeError(f"expected a pointer network, got {type(bare).__name__}")
    return bare


def _real(batch: StageProblems, width: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return (B, width) bool: which places of a padded batch hold nodes."""
    real: np.ndarray[tuple[int, int], np.dtype[np.bool_]] = np.arange(width) < np.diff(batch.problems.node_ptr)[:, None]
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
