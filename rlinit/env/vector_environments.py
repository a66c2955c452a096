"""The environments, many episodes at a time: one call of compiled code for a step of all, and no processes."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rlinit.arrays import IntArray
from rlinit.env.environments import random_source
from rlinit.env.problem_sources import ProblemSource
from rlinit.env.spaces import action_space, observation_space
from rlinit.env.state import EpisodeRewards, Episodes, PlacementEpisodes, StageEpisodes
from rlinit.errors import RlinitError
from rlinit.placements.problem import PlacementProblem
from rlinit.stages.problem import StageProblem

P = TypeVar("P", StageProblem, PlacementProblem)
Arrays = dict[str, NDArray[Any]]


class _SchedulingVectorEnv(gym.vector.VectorEnv[Arrays, IntArray, NDArray[Any]], Generic[P]):
    """B episodes side by side: the same as Gymnasium's vector of B single environments, faster.

    A row that is over is reset by the next step, whose action for it is ignored.

    Parameters
    ----------
    num_envs
        B.
    problems
        A problem for each episode; None: random ones, as in the single environment.
    rewards
        ``dense`` or ``final``.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # type: ignore[misc]
    _source: ClassVar[str]
    _episodes: ClassVar[type[Any]]

    def __init__(
        self, num_envs: int = 1, problems: ProblemSource[P] | None = None, *, rewards: EpisodeRewards = "final"
    ) -> None:
        if num_envs < 1:
            raise RlinitError(f"num_envs is {num_envs}; expected at least 1")
        self._problems: ProblemSource[P] = random_source(self._source) if problems is None else problems
        self.num_envs = num_envs
        self.episodes: Episodes[P] = self._episodes(num_envs, self._problems.limits, rewards)
        self.single_observation_space = observation_space(self.episodes)
        self.single_action_space = action_space(self.episodes)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators: list[np.random.Generator] = []
        self._over = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Arrays, Arrays]:
        """Begin an episode in every row.

        Parameters
        ----------
        seed
            Row i draws its problems from seed + i on, like a single environment reset with that seed.
        options
            None are known.

        Raises
        ------
        RlinitError
            A problem is larger than the limits, or an option is given.
        """
        if options:
            raise RlinitError(f"unknown options {', '.join(map(repr, options))}; a vector of environments has none")
        if seed is not None or not self._generators:
            seeds = [None if seed is None else seed + row for row in range(self.num_envs)]
            self._generators = [seeding.np_random(number)[0] for number in seeds]
        for row in range(self.num_envs):
            self.episodes.load(row, self._problems(self._generators[row]))
        self._over[:] = False
        return self.episodes.observe(), self._infos()

    def step(self, actions: IntArray) -> tuple[Arrays, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Take an action in every row; see the single environment. Infos are arrays over rows."""
        chosen = np.where(self._over, -1, np.asarray(actions, np.int64))
        for row in np.flatnonzero(self._over).tolist():
            self.episodes.load(row, self._problems(self._generators[row]))
        rewards, terminated, truncated = self.episodes.step(chosen)
        self._over = terminated | truncated
        return self.episodes.observe(), rewards, terminated, truncated, self._infos()

    def _infos(self) -> dict[str, Any]:
        infos = self.episodes.infos()
        there = {f"_{name}": np.ones(self.num_envs, np.bool_) for name in infos}
        return {**infos, **there, "_value": ~np.isnan(infos["value"])}


class StageVectorEnv(_SchedulingVectorEnv[StageProblem]):
    """Many episodes of `rlinit.env.StageEnv`."""

    episodes: StageEpisodes
    _source, _episodes = "SyntheticStages", StageEpisodes


class PlacementVectorEnv(_SchedulingVectorEnv[PlacementProblem]):
    """Many episodes of `rlinit.env.PlacementEnv`."""

    episodes: PlacementEpisodes
    _source, _episodes = "RandomlyWired", PlacementEpisodes
