"""Neighbouring stages of an assignment as a stage problem of their own, with all that they pay to the outside."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.stages.problem import StageAssignment, StageProblem


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The ops of stages `first` to `last`, to be assigned anew to the devices of these stages.

    Two nodes stand for what lies before and behind. Each has a device of its own, on which nothing else may run and
    nothing costs anything, so that tensors to and from the outside cost what they cost in the whole problem.

    Parameters
    ----------
    problem
        Node 0 is what lies before, the last node what lies behind; nodes between are `nodes`.
    whole, assignment
        The problem and the assignment it is cut out of.
    nodes
        Nodes of the whole problem.
    first, last
        Stages of the whole problem.
    """

    problem: StageProblem
    whole: StageProblem
    assignment: StageAssignment
    nodes: IntArray
    first: int
    last: int

    def inserted(self, found: StageAssignment) -> StageAssignment:
        """Return the whole assignment with the segment's stages as in `found`, an assignment of its problem."""
        num_classes = self.whole.num_classes
        real = np.flatnonzero(found.classes < num_classes)
        position = np.full(len(found.classes), -1, np.int64)
        position[real] = self.first + np.arange(len(real))
        stage, classes = self.assignment.stage.copy(), self.assignment.classes.copy()
        stage[self.nodes] = position[found.stage[1:-1]]
        classes[self.first : self.last + 1] = found.classes[real]
        return StageAssignment(stage, classes)


def segment(problem: StageProblem, assignment: StageAssignment, first: int, last: int) -> Segment:
    """Cut stages out of an assignment.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    assignment
        A monotone assignment.
    first, last
        First and last stage of the segment.
    """
    stage = assignment.stage
    inside = (stage >= first) & (stage <= last)
    nodes = problem.order[inside[problem.order]]
    n, c = len(nodes) + 2, problem.num_classes
    number = np.where(stage < first, 0, n - 1)
    number[nodes] = np.arange(1, n - 1)
    source = number[problem.tensor_src]
    tensor_of = np.repeat(np.arange(problem.num_tensors, dtype=np.int64), np.diff(problem.tensor_indptr))
    target = number[problem.tensor_dst]
    # What comes from before and goes on behind is no matter of the segment's stages.
    counts = (target != source[tensor_of]) & ~((source[tensor_of] == 0) & (target == n - 1))
    pair = np.unique(tensor_of[counts] * n + target[counts])
    kept, consumers = np.unique(pair // n, return_counts=True)
    has_pred, has_succ = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    has_pred[pair % n] = True
    has_succ[source[pair // n]] = True
    between = np.arange(1, n - 1)
    opens, closes = between[~has_pred[1:-1]], between[~has_succ[1:-1]]
    src = np.concatenate([source[kept], np.zeros(min(len(opens), 1), np.int64), closes])
    dst = np.concatenate([pair % n, opens, np.full(len(closes), n - 1)])
    sizes = np.concatenate([consumers, [len(opens)] if len(opens) else [], np.ones(len(closes))]).astype(np.int64)
    free = np.zeros(len(src) - len(kept))
    work = np.full((c + 2, n), np.inf)
    work[:c, 1:-1] = problem.work_s[:, nodes]
    work[c, 0] = work[c + 1, -1] = 0.0
    cut = replace(
        problem,
        work_s=work,
        param_bytes=np.concatenate([[0.0], problem.param_bytes[nodes], [0.0]]),
        tensor_src=src,
        tensor_indptr=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        tensor_dst=dst,
        tensor_bytes=np.concatenate([problem.tensor_bytes[kept], free]),
        in_s=_outside(problem.in_s[:, kept], len(free)),
        out_s=_outside(problem.out_s[:, kept], len(free)),
        stage_class=np.concatenate([assignment.classes[first : last + 1], [c, c + 1]]),
        memory_bytes=np.concatenate([problem.memory_bytes, [np.inf, np.inf]]),
        cache_bytes=np.concatenate([problem.cache_bytes, [np.inf, np.inf]]),
        overflow_s_per_byte=np.concatenate([problem.overflow_s_per_byte, [0.0, 0.0]]),
        order=np.arange(n, dtype=np.int64),
    )
    return Segment(cut, problem, assignment, nodes, first, last)


def _outside(seconds: FloatArray, num_free: int) -> FloatArray:
    """Return (c + 2, m + free) seconds of tensors with those that only keep the order, and devices that pay nothing."""
    return np.pad(seconds, ((0, 2), (0, num_free)))
