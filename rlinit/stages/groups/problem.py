r"""Stages of several devices as arrays: replicas, tensor groups, and a variant for every op.

A plan is a row of stages, each a set of ops with a tensor degree t, a number of replicas d and a variant for every
op (`rlinit.menu`); no edge leads to an earlier stage, and the devices of all stages, t d each, are at most those there
are. With N micro-batches a batch, d divides N, and all d together are at most N. For stage i with ops S, in training::

    seconds of a micro-batch  = (sum of time_s + 2 moves(S) + 2 syncs(S) + e(t, d) sum of param_bytes) / d
    micro-batches in flight   y = ceil(sum of d_j over j >= i / d_i)
    bytes of a device         = sum of held_bytes y + fixed_bytes + shared_bytes / d
                             <= memory - reserve - workspace(t)

moves(S) are the seconds of the tensors that enter or leave S, each once on either side; syncs(S) those of the bytes
that the group gathers or reduces on edges that lead into or out of S, at the bandwidth inside a node. Without training
there is no backward pass: 1 in place of the twos, e = 0, and y = 1. The value is the largest number of seconds of a
stage. How groups and replicas exchange is one of

=============  ======================  ===================================================================
``exchange``   e(t, d)                 of
=============  ======================  ===================================================================
``ring``       2 (d - 1) / (N B)       an all-reduce of gradients a batch, as with ZeRO-1
``zero2``      (d - 1) (1/d + 1/N)/B   gradients scattered after each micro-batch, parameters gathered a batch
``zero3``      3 (d - 1) / (d B)       parameters gathered before both passes as well
``server``     4 (d - 1) / (N B)       a parameter server (Piper; PipeDream's planner), B of the slowest link
=============  ======================  ===================================================================

With ``server`` a tensor takes latency and bytes over the slowest link; else it goes in t parts at once. B is the rate
of a ring: b devices of the stage stand in one node, where b is the largest *block* that divides t d. With b = t d it is
the bandwidth inside a node; else a ring leaves a node by as many links as it has members there, and B is the least of
that bandwidth and of b / t times that between nodes. Blocks are 1, ... of which each divides the next, the size of
every node, and the larger ones of the degrees (`blocks_of`), so that stages placed by falling blocks fill nodes without
a gap. Where devices name no nodes, or one, all links are alike.

Devices may be of several kinds: each stage lies on devices of one of them, and the devices of all stages on a kind are
at most those there are. Then nodes, blocks, B and the bandwidth inside a node are those of the kind by itself, and
tensors between stages go at the slowest link of all. A degree on a kind is a *form* of a stage.

With *mixed* replicas a stage of one degree may have d_k replicas on devices of each kind k, D in all, of which each
takes n_k whole micro-batches of a batch, where sum of d_k n_k >= N; n_k = N / d is the case above. Every kind has its
own variants of the stage's ops, and of kind k::

    seconds of a micro-batch  = (sum of time_s + 2 moves(S) + 2 syncs(S)) n_k / N + e(t, D) (sum of param_bytes) / D
    micro-batches in flight   y = ceil(Y n_k / N), and where a stage has several kinds min(n_k, that + 1)
    bytes of a device         = sum of held_bytes y + fixed_bytes + shared_bytes max(n_k / N, 1 / D)

The stage takes the seconds of its slowest kind. Y counts the replicas of all kinds from the stage on: as many
micro-batches are under way there when each replica works on one. Shares can be spread so that of the first m
micro-batches every replica has m n_k / N, give or take less than one (Tijdeman 1980), and so of any Y in a row no more
than one above the rounded share; a replica begins no forward pass beyond y. With several kinds the parameters that
are exchanged are the most that a variant of the op has at this degree, for all have to send the same; B is the least
of the bandwidths inside nodes of these kinds and of b / t times that between all nodes, where b is the least of the
kinds' blocks for t d_k devices, and with one node the slowest link. On one kind d need not divide N: n = ceil(N / d).

References
----------
Tarnawski et al.: Piper, NeurIPS 2021, section 3. Narayanan et al.: PipeDream, SOSP 2019. Rajbhandari et al.: ZeRO, SC
2020, section 7, whose volumes these are. Tijdeman: The chairman assignment problem, Discrete Mathematics 32, 1980.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.hardware import CAPACITY_SLACK
from rlinit.stages.problem import StageProblem, crossings


@dataclass(frozen=True, slots=True, eq=False)
class GroupProblem:
    """Stages of several devices. n nodes (ops), m tensors, c forms (tensor degrees on kinds), r variants.

    Parameters
    ----------
    structure
        Tensors and precedence; no costs.
    degrees
        (c,) tensor degrees, ascending.
    kind
        (c,) the kind of devices of each form.
    kinds, counts
        Names of the kinds, and (k,) how many devices of each there are.
    row_indptr
        (c * n + 1,) variants of node v in form a: from ``row_indptr[a * n + v]`` to before the next entry.
    time_s, held_bytes, fixed_bytes, shared_bytes
        (r,) seconds of a micro-batch, bytes in flight, once, and once by all replicas together.
    gradient_s, gradient_share
        (r,) and (c, q): e(t, d) sum of param_bytes is the product of the two; the share is at least d - 1, and 0 for
        one replica.
    sync_indptr, sync_s
        (r + 1,), seconds of each variant's gathers, both passes: by predecessors of its node, then by successors, in
        the order of `structure`.
    transfer_s
        (c, m) seconds of a tensor on one side of a border of a stage of each degree, both passes.
    replicas
        (q,) numbers of replicas that a stage may have, ascending.
    microbatches
        N.
    memory_bytes
        (c,) of a device for the ops of a stage of each degree.
    mixes
        (x, k) replicas of each kind that a stage on several kinds may have.
    mix_s, most_param_bytes
        (c, x) seconds of a micro-batch for each byte that such a stage exchanges, (c, n) which bytes they are.
    in_flight
        ``"behind"``: y counts the replicas from the stage on (1F1B); ``"batch"``: all N / d (GPipe); ``"one"``.
    """

    structure: StageProblem
    degrees: IntArray
    kind: IntArray
    kinds: tuple[str, ...]
    counts: IntArray
    row_indptr: IntArray
    time_s: FloatArray
    gradient_s: FloatArray
    gradient_share: FloatArray
    held_bytes: FloatArray
    fixed_bytes: FloatArray
    shared_bytes: FloatArray
    sync_indptr: IntArray
    sync_s: FloatArray
    transfer_s: FloatArray
    replicas: IntArray
    microbatches: int
    memory_bytes: FloatArray
    mixes: IntArray
    mix_s: FloatArray
    most_param_bytes: FloatArray
    in_flight: str = "behind"

    @property
    def num_nodes(self) -> int:
        """Number of ops."""
        return self.structure.num_nodes

    @property
    def columns(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """What variants take, (r,) each: seconds, gradients, bytes in flight, once, and shared."""
        return self.time_s, self.gradient_s, self.held_bytes, self.fixed_bytes, self.shared_bytes

    @property
    def num_devices(self) -> int:
        """Devices of all kinds."""
        return int(self.counts.sum())

    @property
    def most_replicas(self) -> int:
        """Replicas of all stages together, at most."""
        return min(self.num_devices, self.microbatches)

    @property
    def forms(self) -> dict[tuple[int, int], int]:
        """The form of each degree on each kind."""
        return {pair: c for c, pair in enumerate(zip(self.degrees.tolist(), self.kind.tolist(), strict=True))}

    def flying(self, taken: int, behind: int, *, mixed: bool = False) -> int:
        """Return y of a stage.

        Parameters
        ----------
        taken, behind
            Micro-batches of a batch that a replica takes, and the replicas of all stages from it on.
        mixed
            Whether the stage lies on several kinds.
        """
        if self.in_flight == "one":
            return 1
        return min(taken, -(-behind * taken // self.microbatches) + mixed) if self.in_flight == "behind" else taken


@dataclass(frozen=True, slots=True, eq=False)
class GroupedStages:
    """A row of s stages.

    Parameters
    ----------
    stage
        (n,) of each node.
    degree
        (s,) tensor degrees.
    replicas, taken
        (s, k) replicas of each kind, and micro-batches of a batch that each of them takes.
    row
        (k, n) variant of each node on a kind that its stage has; what others say means nothing.
    """

    stage: IntArray
    degree: IntArray
    replicas: IntArray
    taken: IntArray
    row: IntArray


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What replicas of one kind do for each micro-batch, all of them together, and what one of their devices holds.

    Seconds are those between two micro-batches: work, tensors that enter and leave, gathers at borders, gradients.
    """

    work_s: float
    in_s: float
    out_s: float
    sync_s: float
    gradient_s: float
    in_flight: int
    memory_bytes: float

    @property
    def time_s(self) -> float:
        """Seconds of the stage."""
        return self.work_s + self.in_s + self.out_s + self.sync_s + self.gradient_s


def group_uses(problem: GroupProblem, plan: GroupedStages) -> list[dict[int, GroupUse]]:
    """Return what each stage does on each of its kinds.

    Parameters
    ----------
    problem
        The problem.
    plan
        Stages, none of them empty.
    """
    d, several = plan.replicas.sum(axis=1), (plan.replicas > 0).sum(axis=1) > 1
    behind, forms, uses = np.cumsum(d[::-1])[::-1].tolist(), problem.forms, [dict[int, GroupUse]() for _ in d]
    borders = _borders(problem.structure, plan.stage, len(d))
    for k in range(len(problem.counts)):
        stages, form = np.flatnonzero(plan.replicas[:, k]), np.full(len(d), -1)
        form[stages] = [forms[t, k] for t in plan.degree[stages].tolist()]
        work, enter, leave, sync, gradient, exchanged, held, fixed, shared = _sums(
            problem, plan.stage, form, plan.row[k], borders
        )
        for j in stages.tolist():
            part = int(plan.taken[j, k]) / problem.microbatches
            if several[j]:
                mix = int(np.flatnonzero((problem.mixes == plan.replicas[j]).all(axis=1))[0])
                sent = problem.mix_s[form[j], mix] * exchanged[j]
            else:
                sent = gradient[j] * problem.gradient_share[form[j], np.searchsorted(problem.replicas, d[j])] / d[j]
            y = problem.flying(int(plan.taken[j, k]), behind[j], mixed=bool(several[j]))
            size = held[j] * y + fixed[j] + shared[j] * max(part, 1.0 / d[j])
            moved = float(enter[j]) * part, float(leave[j]) * part, float(sync[j]) * part
            uses[j][k] = GroupUse(float(work[j]) * part, *moved, float(sent), y, float(size))
    return uses


class _Borders(NamedTuple):
    """What crosses the borders of stages, a column each.

    Parameters
    ----------
    enters, leaves
        (2, ...) a stage, and a tensor that enters or leaves it.
    far
        (2, ...) a node, and the place of a node of another stage among its neighbours: predecessors, then successors.
    """

    enters: IntArray
    leaves: IntArray
    far: IntArray


def _borders(structure: StageProblem, stage: IntArray, k: int) -> _Borders:
    made, enters, leaves = crossings(structure, stage, k)
    left = np.flatnonzero(leaves)
    nodes, before, after = np.arange(len(stage)), np.diff(structure.pred_indptr), np.diff(structure.succ_indptr)
    node = np.concatenate([np.repeat(nodes, before), np.repeat(nodes, after)])
    first_succ = len(structure.pred) + structure.succ_indptr[:-1] - before
    first = np.concatenate([np.repeat(structure.pred_indptr[:-1], before), np.repeat(first_succ, after)])
    places = np.stack([node, np.arange(len(node)) - first])
    far = places[:, stage[node] != stage[np.concatenate([structure.pred, structure.succ])]]
    return _Borders(np.stack([enters % k, enters // k]), np.stack([made[left], left]), far)


def _sums(problem: GroupProblem, stage: IntArray, form: IntArray, row: IntArray, borders: _Borders) -> FloatArray:
    """Return (9, s) sums over each stage on a kind of devices, of which it has a form, -1 where it is on others.

    Seconds of work, tensors that enter and leave, and gathers; of gradients, the bytes that several kinds exchange;
    bytes in flight, once, and shared.
    """
    nodes = np.flatnonzero(form[stage] >= 0)
    far = borders.far[:, form[stage[borders.far[0]]] >= 0]

    def summed(where: IntArray, values: FloatArray) -> FloatArray:
        return np.bincount(where, values, len(form)).astype(np.float64, copy=False)

    work, gradient, *sizes = (summed(stage[nodes], values[row[nodes]]) for values in problem.columns)
    moved = [summed(at, problem.transfer_s[form[at], tensor]) for at, tensor in (borders.enters, borders.leaves)]
    syncs = summed(stage[far[0]], problem.sync_s[problem.sync_indptr[row[far[0]]] + far[1]])
    exchanged = summed(stage[nodes], problem.most_param_bytes[form[stage[nodes]], nodes])
    return np.stack([work, *moved, syncs, gradient, exchanged, *sizes])


def group_value(problem: GroupProblem, plan: GroupedStages) -> tuple[float]:
    """Return the largest seconds of a stage; inf where the plan breaks a limit.

    Parameters
    ----------
    problem
        The problem.
    plan
        Stages, none of them empty, in an order that no edge goes against.
    """
    n, uses, forms = problem.microbatches, group_uses(problem, plan), problem.forms
    within = (plan.degree @ plan.replicas <= problem.counts).all() and plan.replicas.sum() <= n
    fits = all(
        use.memory_bytes <= problem.memory_bytes[forms[t, k]] * CAPACITY_SLACK
        for t, own in zip(plan.degree.tolist(), uses, strict=True)
        for k, use in own.items()
    )
    if not within or not fits or ((plan.replicas * plan.taken).sum(axis=1) < n).any():
        return (float("inf"),)
    return (max(use.time_s for own in uses for use in own.values()),)


def least_of_rows(problem: GroupProblem, values: FloatArray) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return (c, n) the least of a number of each variant, 0 where there is none, and where there is one.

    Parameters
    ----------
    problem
        The problem.
    values
        (r,) one number a variant.
    """
    count = np.diff(problem.row_indptr)
    least = np.zeros(len(count))
    some = count > 0
    if some.any():
        least[some] = np.minimum.reduceat(values, problem.row_indptr[:-1][some])
    shape = (len(problem.degrees), problem.num_nodes)
    return least.reshape(shape), some.reshape(shape)


_FINEST = 60
"""Worth of the devices of the fastest kind: a number with many divisors, as all are divided by what they share."""


def worth_of_kinds(problem: GroupProblem) -> IntArray:
    """Return (k,) whole numbers, about as the speeds of kinds; with any, sums of work over those of devices are bounds.

    Parameters
    ----------
    problem
        The problem.
    """
    time, there = least_of_rows(problem, problem.time_s)
    each = np.where(there, time * problem.degrees[:, None], np.inf)
    own = np.stack([each[problem.kind == k].min(axis=0, initial=np.inf) for k in range(len(problem.counts))])
    best = own.min(axis=0)
    speed = np.divide(best, own, out=np.ones_like(own), where=own > 0.0)
    worth = np.maximum(1, np.rint(_FINEST * speed.mean(axis=1))).astype(np.int64)
    return np.asarray(worth // np.gcd.reduce(worth))
