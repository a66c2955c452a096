"""The array form of a training pipeline: a stage problem with gradients, and the memory of stages by their place.

Stages are pairs of ideals I < J of the forward ops, S = J - I; an op's backward is in its stage. With x(I) the bytes
of tensors made in I and still needed outside it, and f micro-batches in flight (`rules.in_flight`), a stage that
recomputes the blocks R takes ::

    time(S)   = in + forward + backward + overflow + out + sum of forward over the ops of R
    memory(S) = state_factor * param(S) + f * (made(S) - saved(R)) + largest saved(b) of R
                + (m + 1) * x(I) + m * x(J) + largest width of an op of S

``made(S)`` are the output tensors of S, all of which are kept until the backward pass; ``saved(b)`` those that only ops
of block b read, and which a recomputed block does not keep. x(I) and x(J) are the buffers for the tensors and gradients
of every micro-batch that come in, those for later stages included, which the stages between relay
(torch.distributed.pipelining keeps them all); x(I) once more for the gradients on their way out. The width of an op
are the tensors alive around it in the natural order: what their gradients take during its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.stages.recomputation import cheapest_blocks
from rlinit.stages.problem import StageAssignment, StageProblem, Value
from rlinit.stages.training.rules import TrainingRules, in_flight

__all__ = ["Blocks", "Links", "StageTraining", "TrainedStage", "trained_stages", "training_value"]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """What costs a stage that is on one side of it: tensors, and gradients that flow the other way.

    Parameters
    ----------
    src
        (l,) node that sends.
    indptr, dst
        (l + 1,) nodes that receive, in CSR form, the sender not among them.
    size_bytes
        (l,) bytes.
    in_s, out_s
        (c, l) seconds on a stage of a class that receives without sending, and on one that sends to another.
    """

    src: IntArray
    indptr: IntArray
    dst: IntArray
    size_bytes: FloatArray
    in_s: FloatArray
    out_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """What may be recomputed as a whole, where all of it is on one stage.

    Parameters
    ----------
    of_node
        (n,) block of each node, -1: none.
    saved_bytes
        (b,) bytes of a micro-batch that a recomputed block does not keep, above 0.
    seconds
        (c, b) forward time on each class.
    names
        Their names.
    """

    of_node: IntArray
    saved_bytes: FloatArray
    seconds: FloatArray
    names: tuple[str, ...]

    def whole(self, member: NDArray[np.bool_]) -> IntArray:
        """Return the blocks all of whose nodes are among `member`, (n,) bool."""
        size = np.bincount(self.of_node[self.of_node >= 0], minlength=len(self.names))
        inside = np.bincount(self.of_node[member & (self.of_node >= 0)], minlength=len(self.names))
        return np.flatnonzero(inside == size)


@dataclass(frozen=True, slots=True, eq=False)
class StageTraining:
    """A training pipeline as arrays.

    Parameters
    ----------
    problem
        A relaxation that is a plain stage problem, without the memory of activations: its bounds are bounds here, and
        its nodes and their precedence are those here. Work is forward and backward; the memories are divided by
        `rules.state_factor`, so that parameters alone are held against them.
    links
        All tensors and gradients between nodes.
    rules
        Schedule, micro-batches, recomputation.
    memory_bytes
        (c,) bytes of memory of each class.
    forward_s
        (c, n) forward seconds; `problem.work_s` less these is the backward.
    made_bytes, width_bytes
        (n,) output tensors, and tensors alive around the node in the natural order.
    blocks
        What may be recomputed.
    """

    problem: StageProblem
    links: Links
    rules: TrainingRules
    memory_bytes: FloatArray
    forward_s: FloatArray
    made_bytes: FloatArray
    width_bytes: FloatArray
    blocks: Blocks
    link_of: IntArray = field(init=False)

    def __post_init__(self) -> None:
        sizes = np.diff(self.links.indptr)
        object.__setattr__(self, "link_of", np.repeat(np.arange(len(sizes), dtype=np.int64), sizes))


@dataclass(frozen=True, slots=True, eq=False)
class TrainedStage:
    """Seconds of a stage for each micro-batch, and bytes; infinite seconds where it may not be.

    Parameters
    ----------
    member
        (n,) bool: its nodes.
    in_s, forward_s, backward_s, recompute_s, overflow_s, out_s
        Parts of its time.
    in_flight
        Micro-batches whose activations it holds.
    param_bytes, out_bytes
        Parameters, and what it sends to other stages.
    state_bytes, kept_bytes, recomputed_bytes, buffer_bytes, working_bytes
        Parts of its memory: parameters, gradients and optimiser; activations of all micro-batches in flight; the
        largest recomputed block; buffers of tensors and gradients from other stages; gradients at work.
    recomputed
        Blocks that run forward twice.
    """

    member: NDArray[np.bool_]
    in_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    recompute_s: float = 0.0
    overflow_s: float = 0.0
    out_s: float = 0.0
    in_flight: int = 0
    param_bytes: float = 0.0
    out_bytes: float = 0.0
    state_bytes: float = 0.0
    kept_bytes: float = 0.0
    recomputed_bytes: float = 0.0
    buffer_bytes: float = 0.0
    working_bytes: float = 0.0
    recomputed: tuple[int, ...] = ()

    @property
    def time_s(self) -> float:
        """Seconds of the stage for one micro-batch, forward and backward."""
        return self.in_s + self.forward_s + self.backward_s + self.recompute_s + self.overflow_s + self.out_s

    @property
    def memory_bytes(self) -> float:
        """Bytes of the stage."""
        parts = self.state_bytes + self.kept_bytes + self.recomputed_bytes
        return parts + self.buffer_bytes + self.working_bytes


def training_value(training: StageTraining, assignment: StageAssignment) -> Value:
    """Return the bottleneck of a monotone assignment, each stage with the best choice of blocks to recompute.

    Parameters
    ----------
    training
        The problem.
    assignment
        Stage of each node and class of each stage; no edge leads to a smaller stage.
    """
    return (max(stage.time_s for stage in trained_stages(training, assignment)),)


def trained_stages(training: StageTraining, assignment: StageAssignment) -> list[TrainedStage]:
    """Return what each stage of a monotone assignment does; see `training_value`.

    Parameters
    ----------
    training
        The problem.
    assignment
        Stage of each node and class of each stage.
    """
    problem, k = training.problem, training.problem.num_stages
    counts = np.bincount(assignment.stage, minlength=k)
    crossing = _crossing_bytes(training, assignment.stage)
    stages = []
    for j in range(k):
        member = assignment.stage == j
        if not counts[j]:
            stages.append(TrainedStage(member))
            continue
        flying = in_flight(training.rules, problem.num_stages, int((counts[j:] > 0).sum()))
        stages.append(_stage(training, member, int(assignment.classes[j]), flying, crossing[j], crossing[j + 1]))
    return stages


def _crossing_bytes(training: StageTraining, stage: IntArray) -> FloatArray:
    """Return (k + 1,) bytes of tensors made before each stage and needed in it or later."""
    problem = training.problem
    made = stage[problem.tensor_src]
    last = np.full(problem.num_tensors, -1, np.int64)
    if problem.num_tensors:
        last = np.maximum.reduceat(stage[problem.tensor_dst], problem.tensor_indptr[:-1])
    bounds = range(problem.num_stages + 1)
    return np.array([problem.tensor_bytes[(made < j) & (last >= j)].sum() for j in bounds])


def _stage(
    training: StageTraining, member: NDArray[np.bool_], c: int, flying: int, before: float, after: float
) -> TrainedStage:
    """Return a stage that is not empty, from the bytes x(I) and x(J) around it."""
    problem, links, rules = training.problem, training.links, training.rules
    work, forward = problem.work_s[c, member].sum(), training.forward_s[c, member].sum()
    sends, lacks = member[links.src], np.zeros(len(links.src), np.bool_)
    lacks[training.link_of[~member[links.dst]]] = True
    receives = np.zeros(len(links.src), np.bool_)
    receives[training.link_of[member[links.dst]]] = True
    params = problem.param_bytes[member].sum()
    over = max(0.0, float(params - problem.cache_bytes[c]))
    m = rules.microbatches
    base = TrainedStage(
        member=member,
        in_s=float(links.in_s[c, ~sends & receives].sum()),
        forward_s=float(forward),
        backward_s=float(work - forward),
        overflow_s=over * float(problem.overflow_s_per_byte[c]) if over else 0.0,
        out_s=float(links.out_s[c, sends & lacks].sum()),
        in_flight=flying,
        param_bytes=float(params),
        out_bytes=float(links.size_bytes[sends & lacks].sum()),
        state_bytes=float(rules.state_factor * params),
        buffer_bytes=float((m + 1) * before + m * after),
        working_bytes=float(training.width_bytes[member].max()),
    )
    return _with_recomputation(training, base, c, float(training.made_bytes[member].sum()))


def _with_recomputation(training: StageTraining, base: TrainedStage, c: int, made: float) -> TrainedStage:
    """Return the stage with the blocks it recomputes; infinite where nothing fits its memory, or an op is forbidden."""
    blocks, flying = training.blocks, base.in_flight
    whole = blocks.whole(base.member)
    saved, seconds = blocks.saved_bytes[whole], blocks.seconds[c, whole]
    room = float(training.memory_bytes[c]) * CAPACITY_SLACK
    fixed = base.state_bytes + base.buffer_bytes + base.working_bytes + flying * made
    if training.rules.recompute == "all":
        chosen = whole
    elif training.rules.recompute == "none" or fixed <= room:
        chosen = whole[:0]
    else:
        order = np.argsort(seconds / saved, kind="stable")
        picked = np.zeros(len(whole), np.bool_)
        cheapest_blocks(saved[order], seconds[order], float(flying), fixed, room, np.inf, picked)
        chosen = np.sort(whole[order[picked]])
    dropped = blocks.saved_bytes[chosen]
    stage = replace(
        base,
        recompute_s=float(blocks.seconds[c, chosen].sum()),
        kept_bytes=flying * (made - float(dropped.sum())),
        recomputed_bytes=float(dropped.max(initial=0.0)),
        recomputed=tuple(chosen.tolist()),
    )
    if stage.memory_bytes > room * CAPACITY_SLACK or not np.isfinite(stage.forward_s):
        return replace(stage, forward_s=np.inf, backward_s=0.0)
    return stage
