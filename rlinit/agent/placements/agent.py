"""From the latency agent's logits to a placement: greedy, and looking ahead; the better is kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.agent.network.checkpoint import Checkpoint
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
from rlinit.errors import RlinitError
from rlinit.kernels.placements.rollout_arrays import Policy
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import MODES, makespan, placement_of

_LATE = 1.0
"""Typical ops by which an op may be later on a device that is tried than on the likeliest one."""


class Lookahead(NamedTuple):
    """How far the greedy placement looks ahead.

    Parameters
    ----------
    steps, rivals
        Ops ahead, and ready ops compared.
    op_s, pair_s
        Seconds of the processor an op, and a pair of op and device, to observe, infer and look ahead, about.
    left_s
        Seconds that have to be left for it to pay.
    """

    steps: int
    rivals: int
    op_s: float
    pair_s: float
    left_s: float

    def seconds(self, problem: PlacementProblem) -> float:
        """Return about how many seconds of the processor `decode_placement` takes for a problem."""
        return problem.num_ops * (self.op_s + self.pair_s * problem.num_devices)


FAR, NEAR = Lookahead(16, 2, 2e-5, 1.2e-5, 0.2), Lookahead(4, 1, 1.2e-5, 3e-6, 0.07)
"""Near is 3% longer than far in a third of the time: what pays in a tenth of a second."""


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
        self.weights = OneShotWeights.of(checkpoint, "latency", NODE_FEATURES, DEVICE_FEATURES, PAIR_FEATURES)

    def logits(self, observation: Observation) -> Policy:
        """Return keys (n,), scores (n * d,) and lateness weights (n * d,) of a problem."""
        key, pair = infer(self.weights, observation.features)
        return Policy(key, np.ascontiguousarray(pair[:, 0]), late_weights(pair[:, 1]))


def decode_placement(agent: LatencyAgent, problem: PlacementProblem, ahead: Lookahead = FAR) -> Placement | None:
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
    ahead
        How far to look ahead.

    Raises
    ------
    RlinitError
        Ops of the problem are split into shards.
    """
    if problem.num_shards != 1:
        raise RlinitError(f"the latency agent places whole ops; this problem has {problem.num_shards} shards of each")
    observed = observe(problem)
    policy = agent.logits(observed)
    arrays, costs, rule = observed.arrays, observed.cost_to_go, MODES[problem.transfers]
    greedy = play(arrays, policy, 0.0, 1, np.random.default_rng(0))
    value, device, start = play_ahead(arrays, policy, costs, ahead.steps, ahead.rivals, _LATE, rule)
    played = (greedy.value[0, 0], greedy.device[0], greedy.start[0]), (value, device, start)
    found = [
        placement_of(problem, at[:, None], np.repeat(when[:, None], problem.num_devices, axis=1))
        for whole, at, when in played
        if whole < np.inf
    ]
    valued = [(makespan(problem, one), k) for k, one in enumerate(found)]
    value, k = min(valued, default=(np.inf, -1))
    return found[k] if value < np.inf else None
