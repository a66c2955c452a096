"""From the latency agent's logits to a placement: greedy, and looking ahead; the better is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlinit.agent.network.checkpoint import Checkpoint, load_checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.oneshot_numpy import OneShotWeights, infer
from rlinit.agent.placements.features import (
    DEVICE_FEATURES,
    NODE_FEATURES,
    PAIR_FEATURES,
    Observation,
    late_weights,
    observe,
)
from rlinit.agent.placements.lookahead import play_ahead
from rlinit.errors import CheckpointError, RlinitError
from rlinit.kernels.placements.rollout_arrays import Policy
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import MODES, makespan, placement_of

_STEPS, _RIVALS, _LATE = 16, 2, 1.0
"""Of the greedy placement: ops ahead, ready ops compared, and typical ops by which a device tried may be later."""

_OP_S, _PAIR_S = 2e-5, 1.2e-5
"""Seconds of the processor an op, and a pair of op and device, to observe, infer and look ahead, about."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodedPlacement:
    """The best placement among those an agent played.

    Parameters
    ----------
    placement, value
        The placement and its makespan in seconds.
    """

    placement: Placement
    value: float


def _check_features(config: OneShotConfig) -> None:
    """Raise CheckpointError where a network is for another problem, or for features that this version does not give."""
    expected = ("latency", NODE_FEATURES, DEVICE_FEATURES, PAIR_FEATURES)
    found = (config.problem, config.node_features, config.device_features, config.pair_features)
    if found != expected:
        raise CheckpointError(
            f"the checkpoint takes (problem, node, device, pair features) {found}; this version gives {expected}"
        )


class LatencyAgent:
    """A one-shot agent for latency problems, without torch.

    Parameters
    ----------
    checkpoint
        Weights and card.

    Raises
    ------
    CheckpointError
        The checkpoint is of another architecture, or was trained on other features.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        config = OneShotConfig.from_dict(dict(checkpoint.card.config))
        _check_features(config)
        self.weights = OneShotWeights(config, checkpoint.arrays)

    @classmethod
    def load(cls, path: str | Path) -> LatencyAgent:
        """Read a checkpoint.

        Raises
        ------
        CheckpointError
            It cannot be read, is damaged, or is of another kind.
        """
        return cls(load_checkpoint(path, network="oneshot", problem="latency"))

    def logits(self, observation: Observation) -> Policy:
        """Return keys (n,), scores (n * d,) and lateness weights (n * d,) of a problem."""
        key, pair = infer(self.weights, observation.features)
        return Policy(key, np.ascontiguousarray(pair[:, 0]), late_weights(pair[:, 1]))


def decoding_s(problem: PlacementProblem) -> float:
    """Return about how many seconds of the processor `decode_placement` takes for a problem."""
    return problem.num_ops * (_OP_S + _PAIR_S * problem.num_devices)


def decode_placement(agent: LatencyAgent, problem: PlacementProblem) -> DecodedPlacement | None:
    """Return the agent's greedy placement: the better of a plain one and one that looks ahead; None where none fits.

    The plain one plays as if any number of transfers ran at once, `rlinit.agent.placements.lookahead` follows the
    problem's rule, nearly; both are evaluated under the rule itself. The same problem gives the same placement on
    every machine.

    Parameters
    ----------
    agent
        The agent.
    problem
        A latency problem.

    Raises
    ------
    RlinitError
        Ops of the problem are split into shards.
    """
    if problem.num_shards != 1:
        raise RlinitError(f"the latency agent places whole ops; this problem has {problem.num_shards} shards of each")
    observed = observe(problem)
    policy = agent.logits(observed)
    greedy = play(observed.arrays, policy, 0.0, 1, np.random.default_rng(0))
    rule = MODES[problem.transfers]
    value, device, start = play_ahead(observed.arrays, policy, observed.cost_to_go, _STEPS, _RIVALS, _LATE, rule)
    best: DecodedPlacement | None = None
    played = (greedy.value[0, 0], greedy.device[0], greedy.start[0]), (value, device, start)
    for whole, at, when in played:
        if whole == np.inf:
            continue
        found = placement_of(problem, at[:, None], np.repeat(when[:, None], problem.num_devices, axis=1))
        makespan_s = makespan(problem, found)
        if makespan_s < (np.inf if best is None else best.value):
            best = DecodedPlacement(found, makespan_s)
    return best
