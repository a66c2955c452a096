"""The least bottleneck of stages of several devices: passes over ideals under thresholds that close in on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rlinit.arrays import SAFETY, FloatArray, IntArray, inverse_of
from rlinit.budget import Budget, reserve
from rlinit.exact.effort import CLOSE, FEW_IDEALS, QUOTA
from rlinit.exact.stages.groups.arrays import GroupData, GroupLimits, GroupSums, Lattice, VariantArrays
from rlinit.exact.stages.groups.passes import group_pass
from rlinit.exact.stages.groups.variants import choose_rows, gather, in_flight, largest_share, moved_seconds, new_rows
from rlinit.exact.stages.ideals.enumeration import Ideals, enumerate_ideals
from rlinit.exact.stages.ideals.node_merging import MergedProblem
from rlinit.exact.stages.ideals.table import IdealTable, quantized
from rlinit.hardware import CAPACITY_SLACK
from rlinit.stages.groups.problem import (
    GroupedStages,
    GroupProblem,
    group_uses,
    group_value,
    least_of_rows,
    worth_of_kinds,
)
from rlinit.stages.passes import FIRST_EXCESS, HALVINGS
from rlinit.stages.problem import StageResult

_ANY_SECONDS = 1e300
"""Seconds that no stage exceeds; a threshold that can still be multiplied by numbers of micro-batches."""

_FLYING = {"one": 0, "behind": 1, "batch": 2}


def area_bound(problem: GroupProblem) -> float:
    """Return seconds that some device is busy in every plan: those of all ops in their best form, shared by all.

    Seconds and devices of a kind count as much as the kind is worth.

    Parameters
    ----------
    problem
        The problem.
    """
    return float(_device_seconds(problem).sum()) / float(problem.counts @ worth_of_kinds(problem))


def _device_seconds(problem: GroupProblem) -> FloatArray:
    """Return (n,) least seconds of devices, by their worth, that each node takes."""
    time, there = least_of_rows(problem, problem.time_s)
    return np.asarray(np.where(there, time * _worth(problem)[:, None], np.inf).min(axis=0))


def _worth(problem: GroupProblem) -> IntArray:
    """Return (c,) the worth of a replica of each form."""
    return np.asarray(problem.degrees * worth_of_kinds(problem)[problem.kind])


def ideals_of(problem: GroupProblem, budget: Budget, cap: int = FEW_IDEALS) -> Ideals | None:
    """Return all ideals; None where there are more than `cap`.

    Parameters
    ----------
    problem
        The problem.
    budget
        When to stop.
    cap
        Ideals at most.
    """
    return enumerate_ideals(problem.structure, cap, budget, merge=False)


def prefixes_of(problem: GroupProblem, order: IntArray | None = None) -> Ideals:
    """Return the prefixes of an order, between which stages are runs of it.

    Parameters
    ----------
    problem
        The problem.
    order
        (n,) its nodes, none before a predecessor; None for the natural one.
    """
    order = problem.structure.order if order is None else order
    whole = MergedProblem.whole(problem.structure)
    return Ideals(whole, np.arange(-1, len(order), dtype=np.int64), np.append(np.int64(-1), order))


def depth_first(problem: GroupProblem) -> IntArray:
    """Return (n,) nodes, each after its predecessors, and as soon as it can be after the one that it waited for last.

    Parameters
    ----------
    problem
        The problem.
    """
    structure = problem.structure
    waits_for = np.diff(structure.pred_indptr)
    ready, order = np.flatnonzero(waits_for == 0).tolist(), list[int]()
    while ready:
        v = ready.pop()
        order.append(v)
        after = structure.succ[structure.succ_indptr[v] : structure.succ_indptr[v + 1]]
        waits_for[after] -= 1
        ready += after[waits_for[after] == 0].tolist()
    return np.array(order, np.int64)


def _sums(problem: GroupProblem, table: IdealTable, busy: FloatArray) -> GroupSums:
    """Return sums over ideals, given what devices each node takes at least."""

    def summed(values: FloatArray) -> FloatArray:
        return np.stack([table.sums(row) for row in values], axis=1)

    (time, there), (gradient, _), (held, _), (fixed, _), (shared, _), (whole, _) = (
        least_of_rows(problem, column)
        for column in (*problem.columns, problem.held_bytes + problem.fixed_bytes + problem.shared_bytes)
    )
    filling = np.where(there, _worth(problem)[:, None] * whole, np.inf).min(axis=0)
    terms = 4.0 * np.finfo(np.float64).eps * problem.num_nodes
    return GroupSums(
        summed(time), summed(gradient), summed(held), summed(fixed), summed(shared),
        summed((~there).astype(np.float64)).astype(np.int64), table.sums(busy), table.sums(filling),
        summed(problem.most_param_bytes), terms * (time + gradient).sum(axis=1),
        terms * (held + fixed + shared).sum(axis=1),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupPass:
    """What a pass under a threshold found: a plan or None, and whether None means that there is none."""

    plan: GroupedStages | None
    exact: bool
    ended: bool
    steps: int


class GroupSearch:
    """Passes over some ideals of a problem.

    Parameters
    ----------
    problem
        The problem.
    ideals
        All of them, or the prefixes of an order.
    """

    def __init__(self, problem: GroupProblem, ideals: Ideals) -> None:
        structure = problem.structure
        self.problem = problem
        busy = _device_seconds(problem)
        weight, _ = quantized(busy)
        self.table = IdealTable.build(ideals, weight)
        bit_of = inverse_of(structure.order)
        self.sums = _sums(problem, self.table, busy)
        self.lattice = Lattice(self.table.crossings, problem.transfer_s)
        self.variants = VariantArrays(
            problem.row_indptr, *problem.columns, problem.sync_indptr, problem.sync_s, structure.pred_indptr,
            structure.pred, structure.succ_indptr, structure.succ, structure.order, bit_of,
        )  # fmt: skip
        n, worth = problem.microbatches, worth_of_kinds(problem)
        sizes = problem.counts[1:] + 1
        stride = np.append(0, np.cumprod(np.append(1, sizes))[:-1])[: len(problem.counts)]
        used = np.arange(int(sizes.prod()))[:, None] // np.maximum(stride, 1) % np.append(1, sizes)
        order = np.lexsort(problem.mixes.T)  # by the last kind first
        mixes = problem.mixes[order]
        begins = np.append(True, (mixes[1:, 1:] != mixes[:-1, 1:]).any(axis=1))[: len(mixes)]
        taken = -(-n // problem.replicas)
        share = np.ascontiguousarray(problem.gradient_share * (n / taken / problem.replicas))
        degrees, place = np.unique(problem.degrees, return_inverse=True)
        form_of = np.full((len(degrees), len(problem.counts)), -1)
        form_of[place, problem.kind] = np.arange(len(place))
        self._limits = GroupLimits(
            problem.degrees, problem.kind, _worth(problem), problem.counts, stride, worth,
            int(problem.counts @ worth), used, used @ worth, problem.replicas, share,
            problem.most_replicas, problem.memory_bytes, n,
            _FLYING[problem.in_flight], taken, n / taken, taken / n, mixes,
            np.append(np.flatnonzero(begins), len(mixes)), mixes.sum(axis=1), mixes @ worth,
            np.ascontiguousarray(problem.mix_s[:, order]), problem.most_param_bytes, form_of,
        )  # fmt: skip
        cells = max(2 * len(used), 64)
        whole = [0, 0, -1, -1, -1, -1, 0]
        self.labels = np.zeros((cells * (problem.most_replicas + 2), len(whole)), np.int64)
        self.labels[0] = whole

    def run(self, limit: float, budget: Budget, more_bytes: float | FloatArray = 0.0) -> GroupPass:
        """Look for a plan of stages within a threshold.

        Parameters
        ----------
        limit
            Most seconds of a stage.
        budget
            When to stop.
        more_bytes
            Of each device, beside the problem's, or (c,) by form.
        """
        limits = self._limits._replace(memory=(self.problem.memory_bytes + more_bytes) * CAPACITY_SLACK)
        p = self.table.num_ideals
        ends, least = np.zeros(p + 1, np.int64), np.zeros(p, np.int64)
        ends[p - 1] = 1
        data = GroupData(self.sums, self.variants, limits, self.lattice)
        at, steps, unknown = p - 2, 0, 0
        while at >= 0:
            if budget.expired:
                return GroupPass(None, False, True, steps)
            before = at
            at, met, _, missed = group_pass(limit, at, QUOTA, data, ends, self.labels, least)
            steps, unknown = steps + met, unknown + missed
            if at == before:
                reserve(16 * self.labels.nbytes, f"{2 * len(self.labels):,} labels")
                self.labels = np.concatenate([self.labels, np.zeros_like(self.labels)])
        if ends[0] == ends[1]:
            return GroupPass(None, unknown == 0, False, steps)
        return GroupPass(self._plan(int(ends[1]), limit, limits), unknown == 0, False, steps)

    def _plan(self, label: int, limit: float, limits: GroupLimits) -> GroupedStages:
        """Return the plan that a label of the empty ideal stands for."""
        problem, bits, num_kinds = self.problem, self.table.crossings.bits, len(self.problem.counts)
        n = problem.microbatches
        rows = new_rows(problem.num_nodes, len(problem.time_s))
        data = GroupData(self.sums, self.variants, limits, self.lattice)
        stage, row = np.zeros(problem.num_nodes, np.int64), np.zeros((num_kinds, problem.num_nodes), np.int64)
        degree, replicas, taken, i = list[int](), list[IntArray](), list[IntArray](), 0
        while self.labels[label, 2] >= 0:
            _, behind, j, following, c, at, _ = self.labels[label].tolist()
            mine, shares = np.zeros(num_kinds, np.int64), np.zeros(num_kinds, np.int64)
            x = at - len(problem.replicas)
            if x < 0:
                mine[problem.kind[c]], shares[problem.kind[c]] = problem.replicas[at], limits.taken[at]
            else:
                mine = limits.mixes[x]
            for k in np.flatnonzero(mine).tolist():
                form = problem.forms[int(problem.degrees[c]), k]
                count = gather(i, j, form, bits, self.variants, rows)
                if x < 0:
                    seconds = limit * limits.speed[at] - moved_seconds(i, j, form, self.lattice)
                    y = in_flight(behind, int(limits.taken[at]), 0, limits)
                    share, part = limits.share[form, at], limits.part[at]
                    choose_rows(count, seconds, share, y, part, limits.memory[form], self.variants, rows)
                else:
                    shares[k], _ = largest_share(i, j, form, x, behind, limit, n, data, rows)
                inside = rows.node[:count]
                stage[inside], row[k, inside] = len(degree), rows.row[rows.choice[:count]]
            degree.append(int(problem.degrees[c]))
            replicas.append(mine)
            taken.append(shares)
            i, label = j, following
        found = GroupedStages(stage, np.array(degree), np.array(replicas), np.array(taken), row)
        return _with_least_shares(problem, found) if len(problem.mixes) else found


def _with_least_shares(problem: GroupProblem, plan: GroupedStages) -> GroupedStages:
    """Return a plan with smaller shares of the slowest kind of each stage, as long as they make up a batch."""
    taken = plan.taken.copy()
    for j, own in enumerate(group_uses(problem, plan)):
        once = {k: (use.time_s - use.gradient_s) / taken[j, k] for k, use in own.items()}
        while len(own) > 1:
            k = max(own, key=lambda k: once[k] * taken[j, k])
            if taken[j] @ plan.replicas[j] - plan.replicas[j, k] < problem.microbatches or taken[j, k] == 1:
                break
            taken[j, k] -= 1
    return replace(plan, taken=taken)


def solve_groups(
    problem: GroupProblem,
    ideals: Ideals,
    *,
    lower: float,
    upper: float,
    budget: Budget,
    on_solution: Callable[[GroupedStages], object] | None = None,
    on_bound: Callable[[float], object] | None = None,
) -> StageResult[GroupedStages]:
    """Return the plan of the least bottleneck over some ideals.

    Parameters
    ----------
    problem, ideals
        The problem, and the ideals between which stages lie.
    lower, upper
        A bound, and the value of a plan at hand: only better ones are looked for.
    budget
        When to stop.
    on_solution, on_bound
        Who hears of every plan and bound.

    Returns
    -------
    StageResult
        ``optimal`` within `CLOSE`; ``infeasible``: nothing is better than `upper`; ``feasible`` or ``no_solution``: the
        budget ended, or a choice of variants was too hard. Bounds are of the ideals given.
    """
    search = GroupSearch(problem, ideals)
    best: GroupedStages | None = None
    reached: tuple[float, ...] = ()
    value, bound, steps, improved = upper, lower, 0, False
    on_one_device = area_bound(problem) * float(problem.counts.sum())
    excess = FIRST_EXCESS * lower if lower > 0 else 0.0
    order = problem.structure.order
    complete, wide = True, ideals.num_ideals > problem.num_nodes + 1
    while value > bound * (1.0 + CLOSE):
        ceiling = value * (1.0 - SAFETY)
        if value < np.inf:  # a plan is mostly the best: only below one that was found under its threshold are halves
            limit = min(ceiling, max(0.5 * (bound + value), bound * (1.0 + CLOSE))) if improved else ceiling
        else:
            limit = bound + excess if 0.0 < excess <= on_one_device else _ANY_SECONDS
        found = search.run(limit, budget)
        steps += found.steps
        if found.ended:
            complete = False
            break
        if found.plan is not None:
            best, reached = found.plan, group_value(problem, found.plan)
            value = min(reached[0], limit)
            if on_solution is not None:
                on_solution(best)
            if wide:
                runs = prefixes_of(problem, order[np.argsort(best.stage[order], kind="stable")])
                better = solve_groups(problem, runs, lower=bound, upper=value, budget=budget, on_solution=on_solution)
                if better.assignment is not None and better.value is not None:
                    best, reached = better.assignment, better.value
                    value = reached[0]
            improved = True
            continue
        if not found.exact:
            complete = False
            break
        if limit >= min(_ANY_SECONDS, ceiling):
            bound = value
            break
        bound = limit
        excess *= 2.0
        improved = False
        if on_bound is not None:
            on_bound(bound)
    if best is None:
        return StageResult(None, None, (min(bound, value),), "infeasible" if complete else "no_solution", steps)
    return StageResult(best, reached, (min(bound, value),), "optimal" if complete else "feasible", steps)


def missing_bytes(problem: GroupProblem, ideals: Ideals, budget: Budget, kind: int | None = None) -> float | None:
    """Return by how many bytes each device's memory is too small for any plan; None where that is not known.

    Parameters
    ----------
    problem, ideals
        A problem that has no plan, and all its ideals.
    budget
        When to stop.
    kind
        Only devices of this kind are too small; None where it is all.
    """
    search = GroupSearch(problem, ideals)
    where = np.where(problem.kind == kind, 1.0, 0.0) if kind is not None else np.ones(len(problem.degrees))
    if kind is not None and search.run(_ANY_SECONDS, budget, np.where(where > 0.0, np.inf, 0.0)).plan is None:
        return None
    low, high = 0.0, float(problem.memory_bytes[where > 0.0].max())
    while True:
        found = search.run(_ANY_SECONDS, budget, high * where)
        if found.ended or not np.isfinite(high):
            return None
        if found.plan is not None:
            break
        low, high = high, 2.0 * high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        found = search.run(_ANY_SECONDS, budget, middle * where)
        if found.ended:
            return None
        low, high = (low, middle) if found.plan is not None else (middle, high)
    return high


def restricted(problem: GroupProblem, degree: int, replicas: int) -> GroupProblem:
    """Return the problem in which every stage has one degree and one number of replicas.

    Parameters
    ----------
    problem
        The problem.
    degree, replicas
        The numbers.
    """
    n, (begin, end) = problem.num_nodes, np.searchsorted(problem.degrees, [degree, degree + 1])
    of_forms = ("degrees", "kind", "transfer_s", "memory_bytes", "most_param_bytes")
    return replace(
        problem,
        row_indptr=problem.row_indptr[begin * n : end * n + 1],
        gradient_share=problem.gradient_share[begin:end, problem.replicas == replicas],
        replicas=np.array([replicas], np.int64),
        mixes=problem.mixes[:0],
        mix_s=problem.mix_s[begin:end, :0],
        **{name: getattr(problem, name)[begin:end] for name in of_forms},
    )
