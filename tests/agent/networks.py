"""Untrained networks with weights that are not zero, and problems for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np
import torch

from rlinit.agent.network.checkpoint import Card, Checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.oneshot_numpy import OneShotWeights, infer
from rlinit.agent.network.oneshot_torch import OneShot
from rlinit.agent.stages.agent import OneShotStageAgent
from rlinit.arrays import FloatArray
from rlinit.kernels.batches import disjoint_union
from rlinit.kernels.stages.features import NUM_STAGE_FEATURES
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from tests.stage_cases import random_problem

__all__ = ["inferred", "random_agent", "random_network", "some_problems"]


def random_network(seed: int, *, spread: float = 0.2) -> OneShot:
    """Return a small stage network all of whose weights are drawn."""
    network = OneShot(OneShotConfig("stages", NUM_STAGE_FEATURES, hidden=16, layers=2))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(spread * torch.randn(weight.shape, generator=generator))
    return network


def random_agent(seed: int, *, spread: float = 0.2) -> OneShotStageAgent:
    """Return the agent of `random_network`."""
    return agent_of(random_network(seed, spread=spread))


def agent_of(network: OneShot) -> OneShotStageAgent:
    """Return the agent of a network."""
    return OneShotStageAgent(Checkpoint(network.arrays(), Card("oneshot", "stages", asdict(network.config))))


def some_problems(count: int, objective: Literal["pipeline", "memory"] = "pipeline") -> list[StageProblem]:
    """Return small problems of several sizes, one of them with a single node."""
    return [random_problem(i, 1 if i == 0 else 4 + i, 2 + i % 3, objective=objective) for i in range(count)]


def joined(problems: list[StageProblem]) -> StageBatch:
    """Return problems as one batch."""
    return disjoint_union([StageBatch.of_problem(problem) for problem in problems])


def inferred(network: OneShot, graphs: Sequence[GraphFeatures]) -> tuple[FloatArray, FloatArray]:
    """Return keys and scores of graphs without torch, one graph after the other."""
    weights = OneShotWeights(network.config, network.arrays())
    keys, scores = zip(*(infer(weights, features) for features in graphs), strict=True)
    return np.concatenate(keys), np.concatenate(scores)
