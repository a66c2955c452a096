"""Random problems for environments that are not given any: those the agents train on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.datasets.random.stage_problems import ProblemParams, draw_problems
from rlinit.env.problem_sources import Limits
from rlinit.errors import RlinitError
from rlinit.hardware import Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.problem import PlacementProblem
from rlinit.stages.problem import StageProblem

_MOST_PARENTS = 6
"""Of `rlinit.datasets.random.synthetic.batches`."""


@dataclass(frozen=True, slots=True)
class SyntheticStages:
    """Synthetic graphs of a size on equal stages; see `rlinit.datasets.random.stage_problems`.

    Parameters
    ----------
    num_nodes
        At least 1.
    params
        Which problems are drawn.
    """

    num_nodes: int = 30
    params: ProblemParams = field(default_factory=ProblemParams)

    @property
    def limits(self) -> Limits:
        """The size of the largest problem."""
        return Limits(self.num_nodes, _MOST_PARENTS * self.num_nodes)

    def __call__(self, rng: np.random.Generator) -> StageProblem:
        """Return a fresh problem."""
        return draw_problems(self.params, int(rng.integers(1 << 62)), self.num_nodes, 1).problem(0)


@dataclass(frozen=True, slots=True)
class RandomlyWired:
    """Randomly wired networks for latency; see `rlinit.datasets.random.randomly_wired`.

    Parameters
    ----------
    num_modules, nodes_per_module
        Size.
    hardware
        Preset whose devices have the kinds ``cpu``, ``t4`` or ``a100``.

    Raises
    ------
    RlinitError
        Fewer than one module, or than six nodes a module.
    """

    num_modules: int = 1
    nodes_per_module: int = 16
    hardware: Literal["cpu-t4-a100"] = "cpu-t4-a100"

    def __post_init__(self) -> None:
        if self.num_modules < 1 or self.nodes_per_module < 6:
            raise RlinitError(
                f"{self.num_modules} modules of {self.nodes_per_module} nodes; expected at least 1 of at least 6"
            )

    @property
    def limits(self) -> Limits:
        """The size of the largest problem."""
        ops = self.nodes_per_module + 2
        most_edges = self.num_modules * (ops * (ops - 1) // 2 + 1)
        return Limits(self.num_modules * ops, most_edges, Hardware.preset(self.hardware).num_devices)

    def __call__(self, rng: np.random.Generator) -> PlacementProblem:
        """Return a fresh problem."""
        wiring = WIRINGS[int(rng.integers(len(WIRINGS)))]
        graph = rwnn(
            wiring,  # type: ignore[arg-type]
            seed=int(rng.integers(1 << 31)),
            num_modules=self.num_modules,
            nodes_per_module=self.nodes_per_module,
        )
        return lower_placement(graph, Hardware.preset(self.hardware), "latency", resident="weights").problem
