"""Where an environment's problems come from: one problem, or a fresh random one for each episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from rlinit.errors import RlinitError
from rlinit.placements.problem import PlacementProblem
from rlinit.stages.problem import StageProblem

P = TypeVar("P", StageProblem, PlacementProblem)
P_co = TypeVar("P_co", StageProblem, PlacementProblem, covariant=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest problem an environment can show: its observations are padded to this.

    Parameters
    ----------
    nodes, edges
        Of the graph.
    devices
        Of the hardware; 0 for stage problems.
    """

    nodes: int
    edges: int
    devices: int = 0


class ProblemSource(Protocol[P_co]):
    """Problems, one for each episode."""

    @property
    def limits(self) -> Limits:
        """The largest problem that comes."""

    def __call__(self, rng: np.random.Generator) -> P_co:
        """Return the problem of the next episode."""


@dataclass(frozen=True, slots=True, eq=False)
class OneProblem(Generic[P]):
    """The same problem in every episode."""

    problem: P

    @property
    def limits(self) -> Limits:
        """The problem's size."""
        return limits_of(self.problem)

    def __call__(self, rng: np.random.Generator) -> P:
        """Return the problem."""
        return self.problem


def limits_of(problem: StageProblem | PlacementProblem) -> Limits:
    """Return the size of a problem.

    Raises
    ------
    RlinitError
        A placement of several inputs: environments are about latency.
    """
    if isinstance(problem, StageProblem):
        return Limits(problem.num_nodes, len(problem.succ))
    if problem.num_shards != 1:
        raise RlinitError(f"the environment is about latency; the problem has {problem.num_shards} shards")
    return Limits(problem.num_ops, len(problem.succ), problem.num_devices)
