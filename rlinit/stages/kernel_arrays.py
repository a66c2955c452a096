"""A stage problem as the bundle of arrays that compiled code takes."""

from __future__ import annotations

import numpy as np

from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.stages.arrays import StageArrays
from rlinit.stages.problem import StageProblem


def kernel_arrays(problem: StageProblem) -> StageArrays:
    """Return the arrays of a problem; for `memory` a stage costs its parameter bytes, which is the first level."""
    costs = problem.cost_arrays
    if problem.objective == "memory":
        forbidden = np.where(np.isfinite(problem.work_s), problem.param_bytes[None, :], np.inf)
        free = np.zeros_like(problem.in_s)
        costs = costs._replace(work=forbidden, in_s=free, out_s=free, overflow=np.zeros(problem.num_classes))
    costs = costs._replace(memory=problem.memory_bytes * CAPACITY_SLACK)
    return StageArrays(*costs, *problem.tensor_arrays, *problem.precedence)
