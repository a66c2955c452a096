"""From the latency agent's logits to a placement: greedy first, then samples; the best is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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
from rlinit.agent.placements.population import play_population
from rlinit.arrays import FloatArray, IntArray
from rlinit.errors import CheckpointError, RlinitError
from rlinit.kernels.placements.rollout_arrays import Policy
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, placement_of

_TEMPERATURE = 2.0
"""Divides the logits of draws."""

_STEPS, _RIVALS, _LATE = 16, 3, 1.0
"""Of the greedy placement: ops ahead, ready ops compared, and typical ops by which a device tried may be later."""

_SURVIVORS = 4
"""One in so many members of a population survives a cull."""

_EVERY, _MOST_CULLS = 6, 100
"""Ops from cull to cull at least, and culls at most."""


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

    Attributes
    ----------
    sampling_s
        Seconds an op that should be left before samples are drawn, three to five times what all of it takes.
    """

    sampling_s: ClassVar[float] = 5e-4

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


def decode_placement(
    agent: LatencyAgent,
    problem: PlacementProblem,
    *,
    samples: int = 0,
    seed: int = 0,
    on_greedy: Callable[[Placement], object] | None = None,
) -> DecodedPlacement | None:
    """Return the best of the agent's greedy placement and a population of sampled ones; None where none of them fits.

    The greedy placement is the better of a plain one and one that looks ahead, see `rlinit.agent.placements.lookahead`;
    the population is that of `rlinit.agent.placements.population`. Both play as if any number of transfers ran at once;
    every schedule is evaluated under the problem's own rules. The same arguments give the same placement on every
    machine.

    Parameters
    ----------
    agent
        The agent.
    problem
        A latency problem.
    samples
        Placements to sample besides the greedy one.
    seed
        Of the draws.
    on_greedy
        Called with the greedy placement before the samples are drawn, which take as long again.

    Raises
    ------
    RlinitError
        Ops of the problem are split into shards, or `samples` is negative.
    """
    if problem.num_shards != 1:
        raise RlinitError(f"the latency agent places whole ops; this problem has {problem.num_shards} shards of each")
    if samples < 0:
        raise RlinitError(f"samples is {samples}; expected at least 0")
    observed = observe(problem)
    policy = agent.logits(observed)
    rng = np.random.default_rng(seed)
    greedy = play(observed.arrays, policy, 0.0, 1, rng)
    value, device, start = play_ahead(observed.arrays, policy, observed.cost_to_go, _STEPS, _RIVALS, _LATE)
    best, best_s = _best(
        problem,
        np.append(greedy.value[:, 0], value),
        np.concatenate([greedy.device, device[None]]),
        np.concatenate([greedy.start, start[None]]),
    )
    if samples:
        if on_greedy is not None and best is not None:
            on_greedy(best)
        kept, every = max(1, samples // _SURVIVORS), max(_EVERY, problem.num_ops // _MOST_CULLS)
        drawn, drawn_s = _best(
            problem,
            *play_population(observed.arrays, policy, observed.cost_to_go, _TEMPERATURE, samples, kept, every, rng),
        )
        if drawn_s < best_s:
            best, best_s = drawn, drawn_s
    return None if best is None else DecodedPlacement(best, best_s)


def _best(
    problem: PlacementProblem, value: FloatArray, device: IntArray, start: FloatArray
) -> tuple[Placement | None, float]:
    """Return the best of (S, n) schedules and its makespan under the problem's rules; the first of equal ones."""
    samples = np.flatnonzero(np.isfinite(value))
    if problem.transfers == "parallel" and len(samples):
        samples = samples[[value[samples].argmin()]]
    best: Placement | None = None
    at_best = np.inf
    for sample in samples:
        found = placement_of(
            problem, device[sample][:, None], np.repeat(start[sample][:, None], problem.num_devices, axis=1)
        )
        makespan_s = makespan(problem, found)
        if makespan_s < at_best:
            best, at_best = found, makespan_s
    return best, at_best
