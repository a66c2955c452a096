"""Lower bounds of a graph from its blocks, and how far the blocks' schedules one after another are from the optimum.

The *span* of some ops (and shards) in a schedule is from the first start to the last end among them. It is at least the
optimum of the problem induced on them (:func:`rlinit.exact.placements.split.separators.induced`), for any kind of
transfers. Let S be a set of ops, M a part of it that no op of the rest G leads to, and M' those ops of M that lead to
G.

*Forward.* The last op of M' to end may be taken among those that lead to no other op of M'; call it x. What x leads to
in G starts after M' ended, hence ``span(S) >= span(M') + min over x of span(descendants of x in G)``.

*Backward.* By the same argument from the end, with M the last part and M' those of its ops that some op of the rest
leads to: ``span(S) >= span(M') + min over y of span(ancestors of y in the rest)``, y being led to by no other op of M'.

DIVIML (section IV-B, Remark) states both with M for M'. **That does not hold**: on two devices let a (1 s) lead to b
(10 s) and let x (10 s) stand alone; with blocks {a, x} and {b} the remark gives 10 + 10 s, the optimum is 11 s. It
holds as printed where every op of M leads to an output. The minimum may be taken over the ops x, whose descendants hold
those of each input they feed, which is no weaker than over the inputs. Transfers between M' and G only add to the right
side's slack; so ``opt(A + B) = opt(A) + opt(B)`` of thesis case (a) is, with transfers, only ``>=``.

*Shards* (thesis 3.3.2, "L - b + 1"). Sort the k shards by when each is through with M'. After the b-th, b shards of M'
are done, which took ``span_b(M')``; the other k - b + 1 (the b-th included) each have an op x of their own after
whose descendants nothing of that shard was started. The source takes one x for all of them. **Nothing makes them
agree** where there are several x: one half of the shards may end M' at x1 and the other at x2, and what x1 leads to may
have begun with the second half while the first still waits (a test has 2 shards, where this adds up to 16 s and a
schedule takes 12 s). What does hold is that
some x is shared by ``ceil((k - b + 1) / number of x)`` of them, and that all k - b + 1 have the common
descendants still before them. A batch may hold shards that are struck out, so it is b shards at the least time of any
batch of b or more (:func:`rlinit.exact.placements.split.separators.induced`), for any b from 1 to k, a supported size
or not.

References
----------
DIVIML section IV-B; thesis sections 3.3.2, 3.3.3 and Table 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.placements.split.search import (
    MAX_BLOCK_OPS,
    SearchResult,
    Target,
    search,
    search_model,
    transfer_times,
)
from rlinit.exact.placements.split.separators import descendants, induced
from rlinit.exact.placements.split.state_layers import Frontier
from rlinit.placements.problem import PlacementProblem

LowerBound = Callable[[PlacementProblem], float]
"""Returns seconds that the optimum of a problem is no less than; ``inf`` if it has no schedule."""


def quick_bound(problem: PlacementProblem) -> float:
    """Return a lower bound from the longest path of one shard, with transfers, and from the work.

    The work bound is, for multipliers y >= 0 of the devices that sum to 1, ``sum over ops of min over splits c of
    sum_i y_i time_i(c_i)``, for equal multipliers and for some that even out the devices' mean speeds.
    """
    n, s = problem.num_ops, problem.num_shards
    if n == 0:
        return 0.0
    least = problem.time_s[:, :, 1:].min(axis=2)
    one = problem.delay_s + problem.tensor_bytes[:, None, None] * problem.s_per_byte
    end = np.zeros_like(least)
    for v in problem.order:
        for u in problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]:
            end[v] = np.maximum(end[v], (end[u][:, None] + one[u]).min(axis=0))
        end[v] += least[v]
    bound = float(end.min(axis=1).max())
    for multiplier in _even_multipliers(problem):
        cost = np.zeros((n, 1))
        for i, y in enumerate(multiplier):
            part = np.where(
                np.isfinite(problem.time_s[:, i]), y * np.nan_to_num(problem.time_s[:, i], posinf=0.0), np.inf
            )
            grown = np.full((n, s + 1), np.inf)
            for c in range(s + 1):
                width = min(cost.shape[1], s + 1 - c)
                grown[:, c : c + width] = np.minimum(grown[:, c : c + width], cost[:, :width] + part[:, c : c + 1])
            cost = grown
        bound = max(bound, float(cost[:, s].sum()))
    return bound


def _even_multipliers(problem: PlacementProblem) -> list[FloatArray]:
    d = problem.num_devices
    times = problem.time_s[:, :, 1]
    scale = times[np.isfinite(times)].max(initial=0.0)
    multipliers = [np.full(d, 1.0 / d)]
    if scale > 0:
        mean = np.where(np.isfinite(times), times / scale, 1.0).mean(axis=0) + 1e-6
        multipliers.append((1.0 / mean) / (1.0 / mean).sum())
    return multipliers


def block_bound(budget: Budget, *, max_ops: int = 24, max_work: int = 200_000) -> LowerBound:
    """Return a bound that searches problems of up to `max_ops` ops and one shard, and is quick on others.

    Exact where the search ends within `max_work` partial schedules, transfers are parallel and memory fits.

    Parameters
    ----------
    budget
        Ends each search.
    max_ops, max_work
        At least 0.
    """

    def bound(problem: PlacementProblem) -> float:
        floor = quick_bound(problem)
        if problem.num_shards > 1 or not 0 < problem.num_ops <= min(max_ops, MAX_BLOCK_OPS) or budget.expired:
            return floor
        return max(floor, float(_searched(problem, budget, max_work).bound_s[0]))

    return bound


def _searched(problem: PlacementProblem, budget: Budget, max_work: int) -> SearchResult:
    """Search all of a small problem with one shard."""
    n, d = problem.num_ops, problem.num_devices
    nothing, zeros = np.zeros(0, np.int64), np.zeros((1, d))
    model = search_model(problem, transfer_times(problem), nothing, problem.order, [Target(-1, -1)])
    absent = np.full((1, n), -1, np.int8)
    start = Frontier(zeros, np.zeros((1, n)), absent, zeros, np.zeros((1, n), np.int8), np.zeros(1, np.int64))
    return search(model, start, np.array([np.inf]), budget, max_work=max_work)


def split_bound(
    problem: PlacementProblem,
    blocks: Sequence[IntArray],
    *,
    budget: Budget,
    lower_bound: LowerBound | None = None,
    max_sets: int = 4096,
) -> float:
    """Return a lower bound of the optimum in seconds from bounds of parts of single blocks.

    Parameters
    ----------
    problem
        Of either objective, with transfers of any kind.
    blocks
        Which together hold every op once, with no edge from a later one to an earlier one.
    budget
        Beyond it what is left is bounded by :func:`quick_bound`.
    lower_bound
        Of the problems induced on parts of blocks and some shards; None for :func:`block_bound`.
    max_sets
        Sets of ops spanning several blocks that are split; beyond it they too are bounded quickly.

    Returns
    -------
    The greatest of what both inequalities, applied recursively to the first and the last block, and
    :func:`quick_bound` of the whole give.

    Notes
    -----
    Where c ops connect neighbours, q blocks have some (c q)^2 sets. The sum of k bounds is rounded; its relative error
    is below k times 1e-16.
    """
    recursion = _Recursion(problem, blocks, lower_bound or block_bound(budget), budget, max_sets)
    everything = (1 << problem.num_ops) - 1
    return max(quick_bound(problem), recursion.span(everything, problem.num_shards))


class _Recursion:
    """Bounds of spans, remembered by ops (bits of an integer) and number of shards."""

    def __init__(
        self,
        problem: PlacementProblem,
        blocks: Sequence[IntArray],
        lower_bound: LowerBound,
        budget: Budget,
        max_sets: int,
    ) -> None:
        self.problem, self.lower_bound, self.budget, self.max_sets = problem, lower_bound, budget, max_sets
        self.blocks = [sum(1 << int(v) for v in block) for block in blocks]
        self.below = descendants(problem)
        self.above = [0] * problem.num_ops
        for v in map(int, problem.order):
            for w in problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]:
                self.above[w] |= self.above[v] | 1 << v
        self.spans: dict[tuple[int, int], float] = {}
        self.parts: dict[tuple[int, int], float] = {}
        self.num_sets = 0

    def part(self, ops: int, shards: int) -> float:
        """Return the given lower bound of some ops, those of one block or a part of it."""
        if ops == 0 or shards == 0:
            return 0.0
        if (ops, shards) not in self.parts:
            problem = induced(self.problem, np.array(_members(ops), np.int64), shards)
            quick = self.budget.expired or self.num_sets > self.max_sets
            self.parts[ops, shards] = quick_bound(problem) if quick else self.lower_bound(problem)
        return self.parts[ops, shards]

    def span(self, ops: int, shards: int) -> float:
        """Return a lower bound on the span of some shards of some ops."""
        if ops == 0 or shards == 0:
            return 0.0
        present = [block & ops for block in self.blocks if block & ops]
        if len(present) == 1:
            return self.part(ops, shards)
        if (ops, shards) not in self.spans:
            self.num_sets += 1
            if self.num_sets > self.max_sets or self.budget.expired:
                value = quick_bound(induced(self.problem, np.array(_members(ops), np.int64), shards))
            else:
                forward = self._split(ops, present[0], self.below, self.above, shards)
                backward = self._split(ops, present[-1], self.above, self.below, shards)
                value = max(forward, backward)
            self.spans[ops, shards] = value
        return self.spans[ops, shards]

    def _split(self, ops: int, block: int, beyond: list[int], before: list[int], shards: int) -> float:
        """Return the forward inequality's right side, or the backward one's with `beyond` and `before` exchanged."""
        rest = ops & ~block
        linked = sum(1 << v for v in _members(block) if beyond[v] & rest)
        outer = [v for v in _members(linked) if not beyond[v] & linked]
        follow = _minimal({beyond[v] & rest for v in outer})
        best = self.part(block, shards)
        if not outer:
            return max(best, self.span(rest, shards))
        common = rest
        for each in follow:
            common &= each
        for done in _batches(shards):
            later = shards - done + 1
            alike = -(-later // len(follow))
            after = min(self.span(each, alike) for each in follow)
            if common and alike < later:
                after = max(after, self.span(common, later))
            best = max(best, self.part(linked, done) + after)
        return best


def _batches(shards: int) -> list[int]:
    """Return the numbers of shards done first that are tried: all of few, else the ends and the middle."""
    return list(range(1, shards + 1)) if shards <= 4 else [1, (shards + 1) // 2, shards]


def _minimal(sets: set[int]) -> list[int]:
    """Return the sets that hold no other one: spans only grow with their sets."""
    return [a for a in sorted(sets) if not any(b != a and a & b == b for b in sets)]


def _members(bits: int) -> list[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


@dataclass(frozen=True, slots=True)
class PairGuarantee:
    """How far two neighbouring blocks A and B, scheduled one after the other, are from their optimum together.

    Parameters
    ----------
    alpha
        For each op of A' that leads to no other one of A', the optimum of its descendants in B over that of B.
    beta
        For each op of B' that no other one of B' leads to, the optimum of its ancestors in A over that of A.
    linked_a, linked_b
        The optimum of A' over that of A, and of B' over that of B; 1 where all of A leads to B, and B follows from A.
    factor
        ``opt(A) + opt(B) <= factor * opt(A + B)``.
    """

    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    linked_a: float
    linked_b: float
    factor: float


@dataclass(frozen=True, slots=True)
class GuaranteeReport:
    """Guarantee factors of each pair of neighbouring blocks, and of all.

    Parameters
    ----------
    pairs
        One for each pair of neighbours.
    total_s
        The sum of the blocks' optima (upper bounds of them where they are not known).
    bound_s
        A lower bound on the optimum of the whole.
    factor
        ``total_s / bound_s``: how far the blocks one after another, without the transfers between them, are from the
        optimum; 1 where both are zero.
    """

    pairs: tuple[PairGuarantee, ...]
    total_s: float
    bound_s: float
    factor: float


def guarantee(
    problem: PlacementProblem,
    blocks: Sequence[IntArray],
    *,
    budget: Budget,
    lower_bound: LowerBound | None = None,
    upper_bound: LowerBound | None = None,
) -> GuaranteeReport:
    """Return the guarantee factors of scheduling blocks one after another.

    With ``opt(A + B) >= opt(A') + min alpha * opt(B)``, ``opt(A') = linked_a * opt(A)`` and ``opt(A + B)`` at least
    each of opt(A) and opt(B), ``opt(A) + opt(B) <= (3 - linked_a - min alpha) * opt(A + B)``, the same with beta, and a
    factor of 2 always. Where all of A leads to B and all of B follows from A this is Table 3.1, for any number of
    channels: a channel of A to both of B makes that alpha 1, and so on.

    Parameters
    ----------
    problem
        A `latency` problem (or a `throughput` problem taken with all of its shards).
    blocks
        As for :func:`split_bound`.
    budget
        Wall-clock limit.
    lower_bound, upper_bound
        Of the optimum of a problem; equal where it is exact. None: :func:`block_bound`, and what it finds (a serial
        schedule on the best device, where it does not search or transfers exclude others).

    Returns
    -------
    The report. Transfers between the blocks are not part of the left side.

    References
    ----------
    Thesis section 3.3.3, Table 3.1.
    """
    lower = lower_bound or block_bound(budget)
    upper = upper_bound or (lambda part: _block_value(part, budget))
    shards = problem.num_shards
    recursion = _Recursion(problem, blocks, lower, budget, 1 << 30)
    tops = [upper(induced(problem, np.asarray(block))) for block in blocks]
    pairs = []
    for a, b, top_a, top_b in zip(recursion.blocks, recursion.blocks[1:], tops, tops[1:], strict=False):
        alpha, linked_a = _shares(recursion, a, b, recursion.below, top_a, top_b, shards)
        beta, linked_b = _shares(recursion, b, a, recursion.above, top_b, top_a, shards)
        factor = min(2.0, 3.0 - linked_a - min(alpha, default=0.0), 3.0 - linked_b - min(beta, default=0.0))
        pairs.append(PairGuarantee(alpha, beta, linked_a, linked_b, factor))
    total, bound = float(sum(tops)), split_bound(problem, blocks, budget=budget, lower_bound=lower)
    whole = total / bound if bound > 0 else (1.0 if total == 0 else np.inf)
    return GuaranteeReport(tuple(pairs), total, bound, float(whole))


def _shares(
    recursion: _Recursion, block: int, other: int, beyond: list[int], top: float, other_top: float, shards: int
) -> tuple[tuple[float, ...], float]:
    """Return the alphas (or betas) of a block, and how much of it is linked to the other one."""

    def over(part: float, whole: float) -> float:
        return min(1.0, part / whole) if whole > 0 else 1.0

    linked = sum(1 << v for v in _members(block) if beyond[v] & other)
    outer = [v for v in _members(linked) if not beyond[v] & linked]
    shares = tuple(over(recursion.part(beyond[v] & other, shards), other_top) for v in outer)
    return shares, over(recursion.part(linked, shards), top)


def _block_value(problem: PlacementProblem, budget: Budget) -> float:
    """Return the makespan of some schedule, the best one where the problem is small, ``inf`` if none is found."""
    serial = _serial(problem)
    searchable = problem.num_shards == 1 and problem.transfers == "parallel" and 0 < problem.num_ops <= 24
    if not searchable or budget.expired:
        return serial
    return min(serial, float(_searched(problem, budget, 200_000).value_s[0]))


def _serial(problem: PlacementProblem) -> float:
    """Return the makespan of all on one device, the best of those that can; ``inf`` if none can."""
    need = (problem.weight_bytes + problem.num_shards * problem.shard_bytes).sum()
    fits = need <= problem.capacity_bytes
    return float(np.where(fits, problem.op_time_s.sum(axis=0), np.inf).min(initial=np.inf))
