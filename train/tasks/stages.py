"""The stage task: one-shot agents learn orders whose optimal slicing has a small bottleneck or peak.

The reference is the sliced natural order, which the untrained agent equals when it is greedy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rlinit.agent.network.checkpoint import Card, save_checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.encoder import FeatureTensors
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.oneshot_torch import OneShot
from rlinit.agent.stages.features import featurise, slice_orders
from rlinit.agent.stages.log_prob import draw_orders, order_terms
from rlinit.arrays import FloatArray, IntArray
from rlinit.datasets.random.stage_problems import ProblemParams, draw_problems
from rlinit.datasets.random.synthetic import SEED_BITS
from rlinit.datasets.zoo import imagenet
from rlinit.exact.effort import FEW_IDEALS
from rlinit.exact.stages.ideals.solve import solve_ideals
from rlinit.hardware import Hardware
from rlinit.kernels.batches import disjoint_union
from rlinit.kernels.orders import kahn
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.stages.batch import StageBatch
from rlinit.stages.lowering import lower_stages
from rlinit.train.tasks.fields import require
from rlinit.train.tasks.protocol import Choices, excess

_VALIDATION_SEED = 1 << SEED_BITS
"""Validation problems are of this seed and the next ones; training seeds are smaller."""


@dataclass(frozen=True)
class StageParams:
    """Problems and network of the stage task."""

    draw: ProblemParams = field(default_factory=lambda: ProblemParams(draws=3))
    hidden: int = 64
    """Width of the network's node states."""
    layers: int = 6
    """Rounds of message passing."""
    least_reward: float = -0.3
    """Rewards below this count as this: of orders that are bad, how bad they are teaches little and drowns the rest.
    Orders that cannot be sliced within the capacities have it, too."""
    real_models: bool = True
    """Validate on the ten ImageNet graphs as well (they are never trained on, nor chosen by)."""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers"):
            require(getattr(self, name) >= 1, f"problem.{name}", getattr(self, name), "at least 1")
        require(self.least_reward < 0, "problem.least_reward", self.least_reward, "less than 0")


@dataclass(frozen=True, slots=True, eq=False)
class StageProblems:
    """A batch of B stage problems: arrays, features, and values (B,) known of each; NaN where unknown.

    `label` (N,) is the stage of each node in an exact solution, from 1; (0,) where nothing asks for it.
    """

    problems: StageBatch
    features: GraphFeatures
    reference: FloatArray
    optimum: FloatArray
    bound: FloatArray
    label: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def num_nodes(self) -> int:
        """Nodes of all problems together."""
        return self.problems.num_nodes

    def __len__(self) -> int:
        """Return B."""
        return len(self.problems)


@dataclass(frozen=True, slots=True, eq=False)
class StageTrajectories:
    """S orders of each of B problems: `orders` (S, N), `value` and `reward` (B, S)."""

    orders: IntArray
    value: FloatArray
    reward: FloatArray


def greedy_orders(keys: FloatArray, batch: StageBatch) -> IntArray:
    """Return (1, N) the order of each graph that always takes the ready node of greatest key (N,), smallest first.

    Parameters
    ----------
    keys
        (N,) finite numbers.
    batch
        Problems of N nodes together.
    """
    orders = np.empty((1, batch.num_nodes), np.int64)
    for first, stop in zip(batch.node_ptr[:-1], batch.node_ptr[1:], strict=True):
        indptr = slice(first, stop + 1)
        orders[0, first:stop] = kahn(
            np.ascontiguousarray(keys[first:stop]), batch.succ_indptr[indptr], batch.succ, batch.pred_indptr[indptr]
        )
    return orders


def optimal_values(batch: StageBatch) -> FloatArray:
    """Return (B,) optimal values on the first level by dynamic programming over ideals; NaN beyond the cap."""
    found = np.full(len(batch), np.nan)
    for g in range(len(batch)):
        result = solve_ideals(batch.problem(g), FEW_IDEALS)
        if result is not None and result.value is not None:
            found[g] = result.value[0]
    return found


class StageTask:
    """See `rlinit.train.tasks.protocol.Task`."""

    params_class: ClassVar[type] = StageParams
    selection: ClassVar[tuple[str, ...]] = ("pipeline-30", "memory-60", "mixed-150", "wide-60")

    def __init__(self, params: StageParams) -> None:
        self.params = params

    def generate(self, seed: int, size: int, count: int) -> StageProblems:
        """Return training problems with features and reference values.

        See `Task.generate`.
        """
        return _with_values(draw_problems(self.params.draw, seed, size, count), exact=False)

    def validation(self, *, small: bool) -> Mapping[str, StageProblems]:
        """Return 30-op `pipeline`, 60-op `memory`, 150-op mixed, 60-op wide problems, and ImageNet at k = 4, 5, 6."""
        share = 8 if small else 1
        draw = dataclasses.replace
        params = draw(self.params.draw, draws=1, wide_share=0.0, shuffled_share=0.0)
        sets = {}
        recipes = (
            ("pipeline-30", draw(params, memory_share=0.0, cache_share=0.0, least_power=1.0), 30, 400),
            ("memory-60", draw(params, memory_share=1.0), 60, 160),
            ("mixed-150", params, 150, 64),
            ("wide-60", draw(params, wide_share=1.0), 60, 160),
        )
        for i, (name, drawn, size, count) in enumerate(recipes):
            batch = draw_problems(drawn, _VALIDATION_SEED + i, size, count // share)
            sets[name] = _with_values(batch, exact=name in ("pipeline-30", "memory-60"))
        if self.params.real_models:
            sets["imagenet-memory"] = _imagenet(2 if small else 10, (4,) if small else (4, 5, 6))
        return sets

    def network(self, seed: int) -> nn.Module:
        """Return a fresh network."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.fresh_network()

    def fresh_network(self) -> nn.Module:
        """Return a network, its weights drawn from torch's generator."""
        hidden, layers = self.params.hidden, self.params.layers
        return OneShot(OneShotConfig("stages", node_features=NUM_STAGE_FEATURES, hidden=hidden, layers=layers))

    def forward(self, network: nn.Module, batch: StageProblems, device: torch.device) -> Any:
        """Return the keys (N,).

        See `Task.forward`.
        """
        keys: Tensor = network(FeatureTensors.of(batch.features, device))[0]
        return keys.float()

    def rollout(
        self, network: nn.Module, batch: StageProblems, outputs: Any, *, samples: int, seed: int, greedy: bool = False
    ) -> StageTrajectories:
        """Return sliced orders that the network draws.

        See `Task.rollout`.
        """
        orders = self.orders(network, batch, outputs, samples, None if greedy else seed)
        value, ends = slice_orders(batch.problems, orders, batch.reference * (1.0 + 1e-9))
        return StageTrajectories(orders, value, self.rewards(batch, orders, ends, value))

    def orders(
        self, network: nn.Module, batch: StageProblems, outputs: Any, samples: int, seed: int | None
    ) -> IntArray:
        """Return (S, N) orders drawn by the keys, or (1, N) greedy ones where there is no seed.

        Parameters
        ----------
        network, batch, outputs, samples, seed
            See `Task.rollout`.
        """
        if seed is None:
            return greedy_orders(outputs.detach().cpu().numpy().astype(np.float64), batch.problems)
        return draw_orders(outputs, batch.problems, samples, seed)

    def rewards(self, batch: StageProblems, orders: IntArray, ends: IntArray, value: FloatArray) -> FloatArray:
        """Return (B, S) improvements on the reference.

        Parameters
        ----------
        batch
            B problems of N nodes together.
        orders, ends
            (S, N) orders, and (S, K) where their stages end.
        value
            (B, S) bottleneck or peak of each.
        """
        return np.maximum(-excess(value, batch.reference[:, None]), self.params.least_reward)

    def choices(self, network: nn.Module, batch: StageProblems, outputs: Any, played: StageTrajectories) -> Choices:
        """Return log-probability and entropy of every choice among two or more ready nodes.

        See `Task.choices`.
        """
        log_prob, entropy, num_ready = order_terms(outputs, batch.problems, played.orders)
        samples = len(played.orders)
        graph = torch.from_numpy(batch.problems.graph_of_node).to(outputs.device)
        trajectory = graph[None, :] * samples + torch.arange(samples, device=outputs.device)[:, None]
        free = num_ready > 1
        return Choices(log_prob[free], entropy[free], trajectory[free])

    def export(self, network: Any, path: Path, card: Mapping[str, Any]) -> None:
        """Write the product's checkpoint.

        See `Task.export`.
        """
        config = dataclasses.asdict(network.config)
        save_checkpoint(path, network.arrays(), Card("oneshot", "stages", config, card["training"], card["quality"]))


def _with_values(batch: StageBatch, *, exact: bool) -> StageProblems:
    """Return problems with features and what is known of their values."""
    features, reference = featurise(batch)
    total = np.bincount(batch.graph_of_node, weights=batch.load, minlength=len(batch))
    bound = np.maximum(total / batch.num_stages, np.maximum.reduceat(batch.load, batch.node_ptr[:-1]))
    optimum = optimal_values(batch) if exact else np.full(len(batch), np.nan)
    bound = np.where(np.isfinite(optimum), optimum, bound)
    return StageProblems(batch, features, reference, optimum, bound)


def _imagenet(count: int, stages: tuple[int, ...]) -> StageProblems:
    """Return the first ImageNet graphs of Inc-ILP's Table II as `memory` problems."""
    problems = []
    for k in stages:
        for name in imagenet.TABLE_II[:count]:
            lowered = lower_stages(imagenet.load(name), Hardware.edge_tpus(k), "memory")
            problems.append(StageBatch.of_problem(lowered.problem))
    return _with_values(disjoint_union(problems), exact=True)
