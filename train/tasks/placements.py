"""Training the one-shot agent on placements: which op next, and on which device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rlinit.agent.network.checkpoint import Card, save_checkpoint
from rlinit.agent.network.config import OneShotConfig
from rlinit.agent.network.encoder import FeatureTensors
from rlinit.agent.network.graph_features import GraphFeatures
from rlinit.agent.network.oneshot_torch import OneShot
from rlinit.agent.placements.features import (
    DEVICE_FEATURES,
    LATE_WEIGHT,
    MAX_LOG_LATE_WEIGHT,
    NODE_FEATURES,
    PAIR_FEATURES,
    late_weights,
    observe,
    under_rule,
)
from rlinit.agent.placements.log_prob import choice_lists, log_probabilities
from rlinit.arrays import FloatArray
from rlinit.datasets.random.placement_problems import (
    ProblemMix,
    layered_problem,
    random_problems,
    real_problems,
    whole_network,
)
from rlinit.kernels.batches import NUMBERED, disjoint_union
from rlinit.kernels.placements.rollout_arrays import Policy, RolloutArrays, RolloutTrace
from rlinit.kernels.placements.rollouts import play
from rlinit.placements.problem import PlacementProblem
from rlinit.train.tasks.fields import require, require_share
from rlinit.train.tasks.protocol import Choices

_UNPLACED = -1.0
"""Reward of a schedule in which some op fits nowhere."""

_STRETCH = 6
"""Ops whose choices share their credit."""

_VALIDATION_SEED = 1_000
"""Networks of validation have seeds from here on, far below those of training."""

_REAL_MODELS = ("MobileNetV2", "InceptionV3", "ResNet50", "EfficientNetB0", "DenseNet121")
"""Networks for ImageNet that validation looks at."""


@dataclass(frozen=True)
class PlacementTaskParams:
    """Parameters of the latency task."""

    hidden: int = 64
    """Width of the network."""
    layers: int = 4
    """Rounds of message passing."""
    other_devices: float = 0.15
    """Share of problems that are networks on 2 to 64 devices of random speeds."""
    layered: float = 0.1
    """Share of problems that are layered graphs with random costs, on 2 to 64 devices."""
    shared_links: float = 0.0
    """Share of problems whose transfers exclude each other or block devices."""
    horizon: int = 36
    """Ops after a choice in which its consequences are looked for; 0: the whole makespan counts for every choice."""

    def __post_init__(self) -> None:
        for name in ("hidden", "layers"):
            require(getattr(self, name) >= 1, f"problem.{name}", getattr(self, name), "at least 1")
        require(self.horizon >= 0, "problem.horizon", self.horizon, "at least 0")
        require_share("problem.other_devices", self.other_devices)
        left = 1.0 - self.other_devices
        require(0 <= self.layered <= left, "problem.layered", self.layered, f"from 0 to {left:g}, what others leave")


@dataclass(frozen=True, slots=True, eq=False)
class PlacementBatch:
    """B placement problems: themselves, and joined for rollouts and the network.

    `cost_to_go` is (P,) the longest way from the end of an op on a device to the end of all, were no device ever busy.
    """

    problems: tuple[PlacementProblem, ...]
    arrays: RolloutArrays
    features: GraphFeatures
    reference: FloatArray
    optimum: FloatArray
    bound: FloatArray
    cost_to_go: FloatArray

    @classmethod
    def of(cls, problems: Sequence[PlacementProblem]) -> PlacementBatch:
        """Join problems; references are HEFT's makespans."""
        observed = [observe(problem) for problem in problems]
        unknown = np.full(len(problems), np.nan)
        return cls(
            tuple(problems),
            disjoint_union([one.arrays for one in observed], NUMBERED),
            disjoint_union([one.features for one in observed], NUMBERED),
            np.array([one.value for one in observed]),
            unknown,
            unknown,
            np.concatenate([one.cost_to_go for one in observed]),
        )

    @property
    def num_nodes(self) -> int:
        """Ops of all problems together."""
        return len(self.arrays.tensor)

    def __len__(self) -> int:
        return len(self.problems)


@dataclass(frozen=True, slots=True, eq=False)
class PlacementPlayed:
    """Schedules that were played; (B, S) values and rewards."""

    trace: RolloutTrace
    value: FloatArray
    reward: FloatArray


class PlacementTask:
    """See `rlinit.train.tasks.protocol.Task`."""

    params_class: ClassVar[type] = PlacementTaskParams
    selection: ClassVar[tuple[str, ...]] = ("rwnn-10x32", "layered-60", "layered-110, shared links")

    def __init__(self, params: PlacementTaskParams) -> None:
        self.params = params
        self.mix = ProblemMix(params.other_devices, params.layered, params.shared_links)

    def generate(self, seed: int, size: int, count: int) -> PlacementBatch:
        """Return problems; their references are HEFT's.

        See `Task.generate`.
        """
        return PlacementBatch.of(random_problems(np.random.default_rng([seed, 0]), size, count, self.mix))

    def validation(self, *, small: bool) -> Mapping[str, PlacementBatch]:
        """Return networks of DIVIML's size, layered graphs, and real models, all unseen.

        The best checkpoint is chosen by none but those of `selection`.
        """
        kinds = [("er", 1, "strong"), ("ws", 2, "weak"), ("ba", 4, "strong"), ("er", 3, "weak"), ("ws", 1, "strong")]
        kinds += [("ba", 2, "weak"), ("er", 4, "strong"), ("ws", 3, "strong"), ("ba", 1, "strong")]
        seeds = range(1 if small else 2)
        rng = np.random.default_rng(_VALIDATION_SEED)
        networks = [
            whole_network(wiring, _VALIDATION_SEED + seed, channels, dependence)
            for seed in seeds
            for wiring, channels, dependence in (kinds[:3] if small else kinds)
        ]
        return {
            "rwnn-10x32": PlacementBatch.of(networks),
            "layered-60": PlacementBatch.of([layered_problem(rng, 60) for _ in range(4 if small else 16)]),
            "layered-110, shared links": PlacementBatch.of(
                random_problems(rng, 110, 4 if small else 16, ProblemMix(0.0, 1.0, 1.0))
            ),
            "imagenet": PlacementBatch.of(real_problems(_REAL_MODELS[: 1 if small else None])),
        }

    def network(self, seed: int) -> nn.Module:
        """Return a fresh network."""
        config = OneShotConfig(
            "latency", NODE_FEATURES, DEVICE_FEATURES, PAIR_FEATURES, self.params.hidden, self.params.layers
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return OneShot(config)

    def forward(self, network: nn.Module, batch: PlacementBatch, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return keys (N,), and (P, 2) scores and logarithms of factors on lateness weights.

        See `Task.forward`.
        """
        key, pair = network(FeatureTensors.of(batch.features, device))
        return key, pair

    def rollout(
        self,
        network: nn.Module,
        batch: PlacementBatch,
        outputs: tuple[Tensor, Tensor],
        *,
        samples: int,
        seed: int,
        greedy: bool = False,
    ) -> PlacementPlayed:
        """Return schedules.

        See `Task.rollout`.
        """
        key, pair = (x.detach().double().cpu().numpy() for x in outputs)
        rng = np.random.default_rng(seed)
        policy = Policy(key, np.ascontiguousarray(pair[:, 0]), late_weights(pair[:, 1]))
        trace = _under_rules(batch, play(batch.arrays, policy, 0.0 if greedy else 1.0, samples, rng))
        return PlacementPlayed(trace, *_rewarded(batch, trace))

    def choices(
        self, network: nn.Module, batch: PlacementBatch, outputs: tuple[Tensor, Tensor], played: PlacementPlayed
    ) -> Choices:
        """Return log-probabilities, entropies and, with a horizon, credits of the choices that were drawn.

        See `Task.choices`.
        """
        lists = choice_lists(batch.arrays, played.trace)
        pair = outputs[1].float()
        late_weight = LATE_WEIGHT * torch.exp(pair[:, 1].clamp(-MAX_LOG_LATE_WEIGHT, MAX_LOG_LATE_WEIGHT))
        log_prob, entropy, trajectory = log_probabilities(lists, outputs[0], pair[:, 0], late_weight)
        credit: Tensor | None = None
        samples = played.value.shape[1]
        if self.params.horizon and samples > 1:
            by_op = credits_of(batch, played.trace, self.params.horizon)
            credit = torch.from_numpy(by_op[trajectory.cpu().numpy() % samples, lists.op])
        return Choices(log_prob, entropy, trajectory, credit)

    def export(self, network: Any, path: Path, card: Mapping[str, Any]) -> None:
        """Write the checkpoint.

        See `Task.export`.
        """
        config = dataclasses.asdict(network.config)
        save_checkpoint(path, network.arrays(), Card("oneshot", "latency", config, card["training"], card["quality"]))


def _under_rules(batch: PlacementBatch, trace: RolloutTrace) -> RolloutTrace:
    """Return what was played with starts and makespans under each problem's rule of transfers."""
    value, start = trace.value.copy(), trace.start.copy()
    for g, problem in enumerate(batch.problems):
        mine = slice(int(batch.arrays.ptr[g]), int(batch.arrays.ptr[g + 1]))
        for s in np.flatnonzero(np.isfinite(trace.value[:, g])):
            start[s, mine], value[s, g] = under_rule(problem, trace.device[s, mine], start[s, mine], value[s, g])
    return trace._replace(value=value, start=start)


def _rewarded(batch: PlacementBatch, trace: RolloutTrace) -> tuple[FloatArray, FloatArray]:
    """Return values and rewards, (B, S) both, of what was played."""
    value = np.ascontiguousarray(trace.value.T)
    reference = batch.reference[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        reward = np.where(reference > 0, 1.0 - value / reference, 0.0)
    return value, np.where(np.isfinite(value), reward, _UNPLACED)


def credits_of(batch: PlacementBatch, trace: RolloutTrace, horizon: int) -> FloatArray:
    """Return (S, N) what choosing each op when and where it was did for the makespan in the ops after it.

    After every op the makespan is at least the latest, over ops placed so far, of an op's end and the longest way from
    there. This bound only rises, from op to op, and ends at the makespan: how much less than in the other samples of
    the problem it rises over the next `horizon` ops is a choice's credit, in typical ops. Choices are taken together in
    stretches of `_STRETCH` ops.

    Parameters
    ----------
    batch
        B problems of N ops together.
    trace
        What was played: S samples of each.
    horizon
        Ops after a choice over which its effect counts; at least 1.
    """
    arrays = batch.arrays
    credit = np.zeros(trace.device.shape)
    whole: NDArray[np.bool_] = np.asarray(np.isfinite(trace.value).all(axis=0))
    for g, problem in enumerate(batch.problems):
        if not whole[g]:
            continue
        n, mine = problem.num_ops, slice(int(arrays.ptr[g]), int(arrays.ptr[g + 1]))
        pairs = slice(int(arrays.pair_ptr[g]), int(arrays.pair_ptr[g + 1]))
        rest = problem.op_time_s + batch.cost_to_go[pairs].reshape(n, -1)
        least = trace.start[:, mine] + np.take_along_axis(rest, trace.device[:, mine].T, axis=1).T
        rising = np.empty((len(least), n + 1))
        rising[:, 0] = 0.0
        np.put_along_axis(rising[:, 1:], trace.chosen[:, mine], least, axis=1)
        rising = np.maximum.accumulate(rising, axis=1)
        rising[:, 0] = rising[:, 1].min()
        first = np.arange(0, n, _STRETCH)
        risen = (rising[:, np.minimum(first + horizon, n)] - rising[:, first]) / arrays.scale[g]
        others = (risen.sum(axis=0) - risen) / max(1, len(risen) - 1)
        credit[:, mine] = np.take_along_axis(others - risen, trace.chosen[:, mine] // _STRETCH, axis=1)
    return credit
