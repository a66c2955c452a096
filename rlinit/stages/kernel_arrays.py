"""A stage problem as the bundle of arrays that compiled code takes."""

from __future__ import annotations

from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.stages.arrays import StageArrays
from rlinit.stages.problem import StageProblem, byte_costs


def kernel_arrays(problem: StageProblem) -> StageArrays:
    """Return the arrays of a problem; for `memory` a stage costs its parameter bytes, which is the first level."""
    costs = byte_costs(problem) if problem.objective == "memory" else problem.cost_arrays
    costs = costs._replace(memory=problem.memory_bytes * CAPACITY_SLACK)
    return StageArrays(*costs, *problem.tensor_arrays, *problem.precedence)
