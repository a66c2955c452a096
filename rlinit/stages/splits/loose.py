"""Devices that hold any ops: what a plan with stages in the order of the data becomes there.

The problem is a `StageProblem` whose assignments need not be monotone: stage j is the set of ops of device j, it costs
what a stage costs, and tensors may go to and fro. Its classes are those of the devices, in the hardware's order.
"""

from __future__ import annotations

import numpy as np

from rlinit.arrays import IntArray
from rlinit.stages.lowering import LoweredStages
from rlinit.stages.problem import StageAssignment


def loosened(assignment: StageAssignment, contiguous: LoweredStages, loose: LoweredStages) -> StageAssignment:
    """Return a contiguous assignment as one that need not be.

    Parameters
    ----------
    assignment
        An assignment of the contiguous problem, whose nodes hold what lies between colocated ops as well.
    contiguous, loose
        Both problems, of one graph on one hardware.
    """
    ops: IntArray = assignment.stage[contiguous.node_of_op]
    stage = np.empty(loose.problem.num_nodes, np.int64)
    stage[loose.node_of_op] = ops
    return StageAssignment(stage, assignment.classes)
