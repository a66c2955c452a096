"""The environments, one episode at a time (Gymnasium)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlinit.env.problem_sources import ProblemSource
from rlinit.env.spaces import action_space, observation_space
from rlinit.env.state import EpisodeRewards, Episodes, PlacementEpisodes, StageEpisodes
from rlinit.errors import RlinitError
from rlinit.placements.problem import PlacementProblem
from rlinit.stages.problem import StageProblem

P = TypeVar("P", StageProblem, PlacementProblem)
Observation = dict[str, NDArray[Any]]


def random_source(name: str) -> ProblemSource[Any]:
    """Return the source of random problems of a name in `rlinit.env.random_problems`, with its defaults."""
    source: ProblemSource[Any] = getattr(import_module("rlinit.env.random_problems"), name)()
    return source


class _SchedulingEnv(gym.Env[Observation, np.int64], Generic[P]):
    """What both environments share.

    Parameters
    ----------
    problems
        A problem for each episode; None: random ones, see the class.
    rewards
        ``dense``: a part of the reward after every action; ``final``: all of it after the last.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]
    _source: ClassVar[str]
    _episodes: ClassVar[type[Any]]

    def __init__(self, problems: ProblemSource[P] | None = None, *, rewards: EpisodeRewards = "final") -> None:
        self._problems: ProblemSource[P] = random_source(self._source) if problems is None else problems
        self.episodes: Episodes[P] = self._episodes(1, self._problems.limits, rewards)
        self.observation_space = observation_space(self.episodes)  # type: ignore[assignment]
        self.action_space = action_space(self.episodes)

    @property
    def problem(self) -> P:
        """The problem of this episode."""
        return self.episodes.problem(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode.

        Parameters
        ----------
        seed
            Seed of the problems from here on.
        options
            ``{"problem": p}`` plays a given problem.

        Raises
        ------
        RlinitError
            The problem is larger than the environment's limits, or an option is unknown.
        """
        super().reset(seed=seed)
        chosen = dict(options or {})
        problem = chosen.pop("problem", None)
        if chosen:
            raise RlinitError(f"unknown options {', '.join(map(repr, chosen))}; expected 'problem'")
        self.episodes.load(0, self._problems(self.np_random) if problem is None else problem)
        return self._observation(), self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take an action.

        Returns
        -------
        tuple
            Observation, reward, whether the schedule is finished, whether too many masked actions cut the episode
            off, and a dict: ``action_mask`` (A,) int8, ``invalid_action``, ``reference``, and, once the schedule is
            finished, ``value``.

        Raises
        ------
        RlinitError
            The episode is over, or none was begun.
        """
        if not self.episodes.running[0]:
            raise RlinitError("the episode is over; call reset() before the next step()")
        rewards, terminated, truncated = self.episodes.step(np.array([action], np.int64))
        return self._observation(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def _info(self) -> dict[str, Any]:
        infos = self.episodes.infos()
        return {
            "action_mask": infos["action_mask"][0],
            **{name: infos[name][0].item() for name in ("invalid_action", "reference")},
            **({"value": infos["value"][0].item()} if not np.isnan(infos["value"][0]) else {}),
        }

    def _observation(self) -> Observation:
        return {name: array[0] for name, array in self.episodes.observe().items()}


class StageEnv(_SchedulingEnv[StageProblem]):
    """Take the ops of a graph one by one; the order is then sliced optimally into stages.

    Actions are nodes. Without `problems`, synthetic graphs of 30 nodes on 2 to 8 equal stages.
    """

    episodes: StageEpisodes
    _source, _episodes = "SyntheticStages", StageEpisodes


class PlacementEnv(_SchedulingEnv[PlacementProblem]):
    """Take the ops of a graph one by one, each with a device to which it is appended as early as its data allow.

    Actions are ``op * D + device``. Without `problems`, randomly wired networks of a module on a CPU and two GPUs.
    """

    episodes: PlacementEpisodes
    _source, _episodes = "RandomlyWired", PlacementEpisodes
