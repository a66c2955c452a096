"""What passes between the batches of a problem and what is known of them: the arrays of the kernels of time windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.placements.problem import PlacementProblem


class DataFlow(NamedTuple):
    """What passes between the batches of a problem: n ops, m edges, d devices.

    ``visit`` is an order of the ops in which heads are carried forward, ``group`` as in a problem.
    """

    visit: IntArray
    succ_indptr: IntArray
    succ: IntArray
    pred_indptr: IntArray
    pred: IntArray
    group: IntArray
    tensor_bytes: FloatArray
    s_per_byte: FloatArray
    delay_s: FloatArray


def data_flow(problem: PlacementProblem) -> DataFlow:
    """Return what the kernels need of a problem, with its ops in the natural order."""
    return DataFlow(
        visit=problem.order.astype(np.int64),
        succ_indptr=problem.succ_indptr,
        succ=problem.succ,
        pred_indptr=problem.pred_indptr,
        pred=problem.pred,
        group=problem.group,
        tensor_bytes=problem.tensor_bytes,
        s_per_byte=problem.s_per_byte,
        delay_s=problem.delay_s,
    )
