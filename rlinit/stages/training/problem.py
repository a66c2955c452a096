"""The array form of a training pipeline: a stage problem with gradients, and the memory of stages by their place.

Stages are pairs of ideals I < J of the forward ops, S = J - I; an op's backward is in its stage. With x(I) the bytes
of tensors made in I and still needed outside it, f micro-batches in flight (`rules.in_flight`), and g of them that
recomputing drops (`rules.droppable`), a stage that recomputes the blocks R takes ::

    time(S)   = in + forward + backward + overflow + out + sum of forward over the ops of R
    memory(S) = state_factor * param(S) + f * made(S) - g * saved(R) + largest saved(b) of R
                + (m + 1) * x(I) + m * x(J) + largest width of an op of S

``made(S)`` are the output tensors of S, all of which are kept until the backward pass; ``saved(b)`` those that only ops
of block b read, and which a recomputed block does not keep. x(I) and x(J) are the buffers for the tensors and gradients
of every micro-batch that come in, those for later stages included, which the stages between relay
(torch.distributed.pipelining keeps them all); x(I) once more for the gradients on their way out. The width of an op
are the tensors alive around it in the natural order: what their gradients take during its backward pass.

With chunks, stage j of K = k v is on the device of stage j mod k. Time and memory of a device are the sums over its
stages, with its parameters against the cache together, and f the most micro-batches that a stage holds at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.hardware import CAPACITY_SLACK
from rlinit.kernels.stages.recomputation import cheapest_blocks
from rlinit.stages.problem import StageAssignment, StageProblem, Value
from rlinit.stages.training.rules import TrainingRules, droppable, in_flight
from rlinit.stages.training.schedule import held_microbatches


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
    indptr, node
        (b + 1,) nodes that hold ops of each block, in CSR form; a node may hold others beside them.
    saved_bytes
        (b,) bytes of a micro-batch that a recomputed block does not keep, above 0.
    seconds
        (c, b) forward time on each class.
    names
        Their names.
    """

    indptr: IntArray
    node: IntArray
    saved_bytes: FloatArray
    seconds: FloatArray
    names: tuple[str, ...]

    def whole(self, member: NDArray[np.bool_]) -> IntArray:
        """Return the blocks all of whose nodes are among `member`, (n,) bool."""
        return np.flatnonzero(np.logical_and.reduceat(member[self.node], self.indptr[:-1]))


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

    @property
    def num_stages(self) -> int:
        """Number of stages K: those of each device, times the devices."""
        return self.problem.num_stages * self.rules.chunks

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
    in_flight, droppable
        Micro-batches whose activations it holds; those of them for which a recomputed block holds nothing inside.
    param_bytes, off_cache_bytes, out_bytes
        Parameters, its share of those of its device beyond the cache, and what it sends to other stages.
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
    droppable: int = 0
    param_bytes: float = 0.0
    off_cache_bytes: float = 0.0
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
    """Return the bottleneck of a monotone assignment, each device with the best choice of blocks to recompute.

    With chunks the choice is a greedy one where not all fits.

    Parameters
    ----------
    training
        The problem.
    assignment
        Stage of each node and class of each device; no edge leads to a smaller stage.
    """
    stages, k = trained_stages(training, assignment), training.problem.num_stages
    return (max(sum(stage.time_s for stage in stages[s::k]) for s in range(k)),)


def training_shortfall(training: StageTraining, assignment: StageAssignment) -> tuple[float, float]:
    """Return the bytes that all devices lack together for a monotone assignment, and its bottleneck.

    Parameters
    ----------
    training
        The problem.
    assignment
        As for `training_value`.
    """
    stages, k = trained_stages(training, assignment), training.problem.num_stages
    room = training.memory_bytes[assignment.classes] * CAPACITY_SLACK
    lacks = sum(max(0.0, sum(one.memory_bytes for one in stages[s::k]) - float(room[s])) for s in range(k))
    return lacks, max(sum(stage.time_s for stage in stages[s::k]) for s in range(k))


def trained_stages(training: StageTraining, assignment: StageAssignment) -> list[TrainedStage]:
    """Return what each stage of a monotone assignment does; see `training_value`.

    Parameters
    ----------
    training
        The problem.
    assignment
        Stage of each node and class of each device.
    """
    k, rules, count = training.problem.num_stages, training.rules, training.num_stages
    counts = np.bincount(assignment.stage, minlength=count)
    crossing = _crossing_bytes(training, assignment.stage)
    if rules.chunks > 1:
        flying = held_microbatches(rules.schedule, k, rules.microbatches, rules.chunks)
    else:
        flying = [in_flight(rules, k, int((counts[j:] > 0).sum())) for j in range(k)]
    drops = [droppable(rules, flying[j], int((counts[j:] > 0).sum())) for j in range(count)]
    stages = [TrainedStage(assignment.stage == j) for j in range(count)]
    for s in range(k):
        own = [j for j in range(s, count, k) if counts[j]]
        if not own:
            continue
        c = int(assignment.classes[s])
        held = sum(float(training.problem.param_bytes[stages[j].member].sum()) for j in own)
        found = [
            replace(_stage(training, stages[j].member, c, flying[j], crossing[j : j + 2], held), droppable=drops[j])
            for j in own
        ]
        for j, stage in zip(own, _with_recomputation(training, found, c), strict=True):
            stages[j] = stage
    return stages


def _crossing_bytes(training: StageTraining, stage: IntArray) -> FloatArray:
    """Return (K + 1,) bytes of tensors made before each stage and needed in it or later."""
    problem = training.problem
    made = stage[problem.tensor_src]
    last = np.full(problem.num_tensors, -1, np.int64)
    if problem.num_tensors:
        last = np.maximum.reduceat(stage[problem.tensor_dst], problem.tensor_indptr[:-1])
    bounds = range(training.num_stages + 1)
    return np.array([problem.tensor_bytes[(made < j) & (last >= j)].sum() for j in bounds])


def _stage(
    training: StageTraining, member: NDArray[np.bool_], c: int, flying: int, crossing: FloatArray, held: float
) -> TrainedStage:
    """Return a stage that is not empty, from the bytes x(I) and x(J) around it and the parameters of its device."""
    problem, links, rules = training.problem, training.links, training.rules
    work, forward = problem.work_s[c, member].sum(), training.forward_s[c, member].sum()
    sends, lacks = member[links.src], np.zeros(len(links.src), np.bool_)
    lacks[training.link_of[~member[links.dst]]] = True
    receives = np.zeros(len(links.src), np.bool_)
    receives[training.link_of[member[links.dst]]] = True
    params = float(problem.param_bytes[member].sum())
    over = max(0.0, held - float(problem.cache_bytes[c]))
    over *= params / held if held > params else 1.0
    m = rules.microbatches
    return TrainedStage(
        member=member,
        in_s=float(links.in_s[c, ~sends & receives].sum()),
        forward_s=float(forward),
        backward_s=float(work - forward),
        overflow_s=over * float(problem.overflow_s_per_byte[c]) if over else 0.0,
        out_s=float(links.out_s[c, sends & lacks].sum()),
        in_flight=flying,
        param_bytes=params,
        off_cache_bytes=over,
        out_bytes=float(links.size_bytes[sends & lacks].sum()),
        state_bytes=float(rules.state_factor * params),
        kept_bytes=flying * float(training.made_bytes[member].sum()),
        buffer_bytes=float((m + 1) * crossing[0] + m * crossing[1]),
        working_bytes=float(training.width_bytes[member].max()),
    )


def _with_recomputation(training: StageTraining, stages: list[TrainedStage], c: int) -> list[TrainedStage]:
    """Return the stages of a device of class `c` with the blocks they recompute.

    Infinite where nothing fits its memory, or an op is forbidden.
    """
    blocks, mode = training.blocks, training.rules.recompute
    room = float(training.memory_bytes[c]) * CAPACITY_SLACK
    whole = [blocks.whole(stage.member) for stage in stages]
    fixed = sum(stage.memory_bytes for stage in stages)
    if mode == "none" or (mode == "auto" and fixed <= room):
        found = stages
    elif mode == "auto":
        choose = _cheapest if len(stages) == 1 else _greedy
        found = choose(training, stages, whole, c, fixed, room)
    else:
        found = [_recomputing(training, *pair, c) for pair in zip(stages, whole, strict=True)]
    fits = sum(stage.memory_bytes for stage in found) <= room * CAPACITY_SLACK
    if fits and all(np.isfinite(stage.forward_s) for stage in found):
        return found
    return [replace(stage, forward_s=np.inf, backward_s=0.0) for stage in found]


def _recomputing(training: StageTraining, stage: TrainedStage, chosen: IntArray, c: int) -> TrainedStage:
    """Return a stage that recomputes blocks, from one that recomputes none."""
    dropped = training.blocks.saved_bytes[chosen]
    return replace(
        stage,
        recompute_s=float(training.blocks.seconds[c, chosen].sum()),
        kept_bytes=stage.kept_bytes - stage.droppable * float(dropped.sum()),
        recomputed_bytes=float(dropped.max(initial=0.0)),
        recomputed=tuple(chosen.tolist()),
    )


def _cheapest(
    training: StageTraining, stages: list[TrainedStage], whole: list[IntArray], c: int, fixed: float, room: float
) -> list[TrainedStage]:
    """Return a device's one stage with the cheapest blocks that make it fit."""
    saved, seconds = training.blocks.saved_bytes[whole[0]], training.blocks.seconds[c, whole[0]]
    order = np.argsort(seconds / saved, kind="stable")
    picked = np.zeros(len(order), np.bool_)
    cheapest_blocks(saved[order], seconds[order], float(stages[0].droppable), fixed, room, np.inf, picked)
    return [_recomputing(training, stages[0], np.sort(whole[0][order[picked]]), c)]


def _greedy(
    training: StageTraining, stages: list[TrainedStage], whole: list[IntArray], c: int, _: float, room: float
) -> list[TrainedStage]:
    """Return the stages of a device with blocks added, the cheapest for each byte first, and needless ones left out."""
    blocks = training.blocks
    pairs = [(float(blocks.seconds[c, b]), i, b) for i, own in enumerate(whole) for b in own.tolist()]
    pairs.sort(key=lambda pair: pair[0] / (stages[pair[1]].droppable * blocks.saved_bytes[pair[2]]))

    def having(chosen: list[tuple[float, int, int]]) -> list[TrainedStage]:
        own = [np.array(sorted(b for _, at, b in chosen if at == i), np.int64) for i in range(len(stages))]
        return [_recomputing(training, stage, some, c) for stage, some in zip(stages, own, strict=True)]

    def fits(chosen: list[tuple[float, int, int]]) -> bool:
        return sum(stage.memory_bytes for stage in having(chosen)) <= room

    count = next((n for n in range(1, len(pairs) + 1) if fits(pairs[:n])), len(pairs))
    chosen = pairs[:count]
    for pair in sorted(chosen, reverse=True):
        fewer = [one for one in chosen if one is not pair]
        chosen = fewer if fits(fewer) else chosen
    return having(chosen)
