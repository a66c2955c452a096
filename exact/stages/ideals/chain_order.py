"""The weighted load of unlike devices in any order along a path that holds other ops near their places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from rlinit.arrays import NOTABLE, SAFETY, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.effort import ROUNDS
from rlinit.kernels.compiled import njit
from rlinit.stages.problem import StageProblem, whole_cost
from rlinit.stages.states import LABEL_CAP, StageStates, num_counted


class _Chains(NamedTuple):
    """Paths without common ops that hold all ops, one after the other, and what they are held to by m positions.

    Parameters
    ----------
    op, first
        (n,) ops of the paths, (p + 1,) where each path begins.
    up, down
        (n,) the last position that leads to the op, -1 where none does, and the first one that it leads to, m where
        there is none; both in the order of `op`, and a position itself is both of its own.
    enter, leave
        (c, m + 1) seconds that it takes at least to bring in the tensor of the path of positions that is cut before a
        position, and to send it out; 0 at both ends.
    """

    op: IntArray
    first: IntArray
    up: IntArray
    down: IntArray
    enter: FloatArray
    leave: FloatArray


@njit(cache=True, nogil=True)
def _cover(
    order: IntArray, pred_indptr: IntArray, pred: IntArray, fanout: IntArray, after: IntArray
) -> tuple[IntArray, IntArray]:
    """Extend the path in `after` ((n,) the next op or -1) to paths that hold all ops; return (op, first).

    An op continues the path of the predecessor that has the fewest consumers left to be continued by.
    """
    n = len(order)
    before, left = np.full(n, -1, np.int64), fanout.copy()
    for v in range(n):
        if after[v] >= 0:
            before[after[v]] = v
    for v in order:
        best = -1
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            u = pred[q]
            left[u] -= 1
            if after[u] == -1 and (best == -1 or left[u] < left[best]):
                best = u
        if best >= 0 and before[v] == -1:
            after[best], before[v] = v, best
    op, first, size = np.empty(n, np.int64), [0], 0
    for v in order:
        if before[v] == -1:
            u = v
            while u != -1:
                op[size] = u
                size += 1
                u = after[u]
            first.append(size)
    return op, np.array(first)


@njit(cache=True, nogil=True)
def _last_position(order: IntArray, pred_indptr: IntArray, pred: IntArray, position: IntArray, far: int) -> IntArray:
    """Return (n,) the largest `position` of an op or of one that leads to it; `far` (below all) where there is none."""
    last = np.where(position >= 0, position, far)
    for v in order:
        for q in range(pred_indptr[v], pred_indptr[v + 1]):
            last[v] = max(last[v], last[pred[q]])
    return last


@njit(cache=True, nogil=True)
def _boundaries(chains: _Chains, work: FloatArray, weight: FloatArray) -> FloatArray:
    """Return (c, c, m + 1) the least of what is done before boundaries, weighted for the first, less for the second.

    A boundary at position a cuts every path somewhere between the first op that leads to a or beyond and the first one
    that a leads to. `work` (c, n) is in the order of the paths.
    """
    num_classes, m = len(work), chains.enter.shape[1] - 1
    least = np.zeros((num_classes, num_classes, m + 1))
    n = work.shape[1]
    total, queue = np.zeros(n + 1), np.empty(n + 1, np.int64)
    for c in range(num_classes):
        for d in range(num_classes):
            if c == d:
                continue
            beyond = np.zeros(m + 2)
            for p in range(len(chains.first) - 1):
                begin, end = chains.first[p], chains.first[p + 1]
                total[0] = 0.0
                for i in range(begin, end):
                    total[i + 1 - begin] = total[i - begin] + weight[c] * work[c, i] - weight[d] * work[d, i]
                low, high, head, tail = 0, -1, 0, 0
                for a in range(chains.up[begin] + 1, chains.down[end - 1] + 1):
                    while low < end - begin and chains.down[begin + low] < a:
                        low += 1
                    while high < end - begin and (high < 0 or chains.up[begin + high] < a):
                        high += 1
                        while tail > head and total[queue[tail - 1]] >= total[high]:
                            tail -= 1
                        queue[tail] = high
                        tail += 1
                    while queue[head] < low:
                        head += 1
                    least[c, d, a] += total[queue[head]]
                beyond[chains.down[end - 1] + 1] += total[end - begin]
            done = 0.0
            for a in range(m + 1):
                done += beyond[a]
                least[c, d, a] += done
    return least


@njit(cache=True, nogil=True)
def _rests(
    chains: _Chains, step: IntArray, boundary: FloatArray, whole: FloatArray, weight: FloatArray
) -> tuple[FloatArray, IntArray, IntArray]:
    """Return what stages cost at least from one of a class on that begins at a position, less what is before it.

    Three arrays (S, c, m + 1) for the state with that stage, its class and the position: the weighted seconds, where
    the stage ends, and at each position the class of the stage that begins there, -1 at the end. `step` is that of
    `StageStates`; `whole` (c,) is the weighted work of all ops.
    """
    num_states, num_classes = step.shape
    m = boundary.shape[2] - 1
    rest = np.full((num_states, num_classes, m + 1), np.inf)
    end = np.full((num_states, num_classes, m + 1), -1)
    following = np.full((num_states, num_classes, m + 1), -1)
    cost = np.empty(m + 1)
    for s in range(num_states - 1, 0, -1):
        for c in range(num_classes):
            cost[:] = np.inf
            cost[m] = whole[c]
            for d in range(num_classes):
                t = step[s, d]
                if t >= 0:
                    for a in range(m + 1):
                        more = boundary[c, d, a] + rest[t, d, a]
                        if more < cost[a]:
                            cost[a] = more
                            following[s, c, a] = d
            best, at = np.inf, -1
            for a in range(m, -1, -1):
                rest[s, c, a], end[s, c, a] = cost[a], a
                if best + weight[c] * chains.enter[c, a] < cost[a]:
                    rest[s, c, a], end[s, c, a] = best + weight[c] * chains.enter[c, a], at
                if cost[a] + weight[c] * chains.leave[c, a] < best:
                    best, at = cost[a] + weight[c] * chains.leave[c, a], a
    return rest, end, following


@njit(cache=True, nogil=True)
def _least_order(
    rest: FloatArray, end: IntArray, following: IntArray, step: IntArray
) -> tuple[float, IntArray, IntArray]:
    """Return the least weighted load of all devices, the classes of its stages, and where they begin."""
    classes, positions = np.empty(len(step), np.int64), np.empty(len(step), np.int64)
    best, c, s, a, size = np.inf, -1, 0, 0, 0
    for d in range(step.shape[1]):
        if step[0, d] >= 0 and rest[step[0, d], d, 0] < best:
            best, c = rest[step[0, d], d, 0], d
    while c >= 0:
        s = step[s, c]
        classes[size], positions[size] = c, a
        size += 1
        a = end[s, c, a]
        c = following[s, c, a]
    return best, classes[:size].copy(), positions[:size].copy()


@njit(cache=True, nogil=True)
def _mark(
    rest: FloatArray, step: IntArray, room: FloatArray, done: FloatArray, position: IntArray, label: FloatArray
) -> None:
    """Make labels (S, p) of ideals negative where the stages left of a state have no `room` (S,) for what is not done.

    `done` (c, p) is the weighted work of each ideal, `position` (p,) the positions it holds.
    """
    for i in range(label.shape[1] - 1):
        for s in range(len(step)):
            least = np.inf
            for c in range(step.shape[1]):
                if step[s, c] >= 0:
                    least = min(least, rest[step[s, c], c, position[i]] - done[c, i])
            if least > room[s]:
                label[s, i] = -1.0


@njit(cache=True, nogil=True)
def _loads(chains: _Chains, work: FloatArray, weight: FloatArray, classes: IntArray, positions: IntArray) -> FloatArray:
    """Return (c,) the seconds of all stages of each class where these stages begin at these positions."""
    load, m = np.zeros(len(work)), chains.enter.shape[1] - 1
    for c in range(len(work)):
        if classes[-1] == c:
            load[c] += work[c].sum()
    for j in range(len(classes)):
        c, a = classes[j], positions[j]
        last = positions[j + 1] if j + 1 < len(classes) else m
        if a < last:
            load[c] += chains.enter[c, a] + chains.leave[c, last]
        if j == 0:
            continue
        b = classes[j - 1]
        for p in range(len(chains.first) - 1):
            before, after, least, best_before, best_after = 0.0, 0.0, np.inf, 0.0, 0.0
            for i in range(chains.first[p], chains.first[p + 1] + 1):
                inside = i < chains.first[p + 1]
                if not inside or chains.down[i] >= a:
                    if weight[b] * before - weight[c] * after < least:
                        least = weight[b] * before - weight[c] * after
                        best_before, best_after = before, after
                    if not inside or chains.up[i] >= a:
                        break
                before += work[b, i]
                after += work[c, i]
            load[b] += best_before
            load[c] -= best_after
    return load


def _longest_path(problem: StageProblem) -> IntArray:
    """Return the ops of a path with as many ops as any."""
    v = int(np.argmax(problem.level))
    path = [v]
    while problem.level[v] > 0:
        before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]]
        v = int(before[np.argmax(problem.level[before])])
        path.append(v)
    return np.array(path[::-1], np.int64)


def _chains_of(problem: StageProblem, num_states: int) -> _Chains | None:
    """Return paths and positions, None where too few positions would be affordable."""
    n, num_classes, path = problem.num_nodes, problem.num_classes, _longest_path(problem)
    after = np.full(n, -1, np.int64)
    after[path[:-1]] = path[1:]
    order = np.ascontiguousarray(problem.order)
    op, first = _cover(order, problem.pred_indptr, problem.pred, np.diff(problem.succ_indptr), after)
    each = num_classes**2 * (num_states + len(first))
    m = int(min(len(path), (LABEL_CAP - num_classes**2 * n) // each))
    if m < min(problem.num_stages, len(path)):
        return None
    chosen = np.unique(np.linspace(0, len(path) - 1, m).astype(np.int64))
    m = len(chosen)
    position = np.full(n, -1, np.int64)
    position[path[chosen]] = np.arange(m)
    up = _last_position(order, problem.pred_indptr, problem.pred, position, -1)
    mirrored = np.where(position >= 0, m - 1 - position, -1)
    down = m - 1 - _last_position(order[::-1].copy(), problem.succ_indptr, problem.succ, mirrored, -1)
    enter, leave = np.zeros((num_classes, m + 1)), np.zeros((num_classes, m + 1))
    tensor_of = np.repeat(np.arange(problem.num_tensors), np.diff(problem.tensor_indptr))
    on_path = after[problem.tensor_src[tensor_of]] == problem.tensor_dst
    place = np.full(n, -1, np.int64)
    place[path] = np.arange(len(path))
    on_path &= place[problem.tensor_dst] > 0
    tensor, edge = tensor_of[on_path], place[problem.tensor_dst[on_path]] - 1
    for c in range(num_classes):
        for cost, least in ((problem.in_s[c], enter[c]), (problem.out_s[c], leave[c])):
            paid = np.bincount(edge, weights=cost[tensor], minlength=len(path) - 1)
            if m > 1:
                least[1:m] = np.minimum.reduceat(paid, chosen[:-1])
    return _Chains(op, first, up[op], down[op], enter, leave)


@dataclass(slots=True)
class ChainOrder:
    """The least weighted mean of the loads of all devices, over their orders along a longest path of one problem.

    In an assignment of bottleneck T every device costs at most T, so the mean of their costs by any weights, none
    below 0, is at most T, and T is at least the least such mean of all assignments. A longest path is cut once between
    two stages that follow each other; of all other ops, those that lead to a position before the cut are before the
    boundary, those that a position behind the cut leads to are behind it. On each of disjoint paths that hold all ops
    the boundary is somewhere between, wherever it costs least: a relaxation, whose least is found by a dynamic program
    over the devices used, the last one and the position. Tensors are counted where they cross the longest path.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    states
        Which devices are used.
    chains
        Paths and positions.
    work
        (c, n) seconds in the order of the paths; what no assignment of interest has may cost anything.
    weight
        (c,) the best weights so far, those of all devices add up to 1.
    """

    problem: StageProblem
    states: StageStates
    chains: _Chains
    work: FloatArray
    weight: FloatArray

    @staticmethod
    def of(problem: StageProblem, upper: float) -> ChainOrder | None:
        """Return it with first weights, for assignments below `upper`; None where it says nothing or is too large.

        Parameters
        ----------
        problem
            A `pipeline` problem.
        upper
            A bottleneck in seconds, inf where none is known.
        """
        count, most = problem.class_count, min(problem.num_stages, problem.num_nodes)
        num_states = num_counted(count, most)
        if (count > 0).sum() < 2 or num_states * problem.num_classes > LABEL_CAP:
            return None
        chains, ceiling = _chains_of(problem, num_states), min(upper, whole_cost(problem))
        if chains is None or not ceiling > 0.0:
            return None
        priced = np.where(problem.work_s > ceiling, problem.num_stages * ceiling, problem.work_s)
        work = np.ascontiguousarray(priced[:, chains.op])
        if not work.any():
            return None
        weight = np.where(count > 0, 1.0 / np.maximum(work.sum(axis=1), 1e-9 * work.sum()), 0.0)
        return ChainOrder(problem, StageStates.counted(count, most), chains, work, weight / (count @ weight))

    def raised(self, proven: float, upper: float, budget: Budget) -> float:
        """Return the larger of `proven` and the best bound that weights of some rounds give; keep these weights.

        They come from a linear program over the loads that were found for the weights before.

        Parameters
        ----------
        proven
            What is known, in seconds.
        upper
            Where it ends.
        budget
            When to stop.
        """
        weight, best = self.weight, -np.inf
        found: list[FloatArray] = []
        for _ in range(ROUNDS):
            if budget.expired or best >= upper:
                break
            rest, end, following = self._rests(weight)
            value, classes, positions = _least_order(rest, end, following, self.states.step)
            value -= self._rounding(weight)
            if value > best:
                best, self.weight = value, weight
            found.append(_loads(self.chains, self.work, weight, classes, positions))
            dual, most = _weights(np.array(found), self.problem.class_count)
            if dual is None or most <= best * (1.0 + NOTABLE):
                break
            weight = self.weight + dual  # half way, so that they do not jump to and fro
            weight /= self.problem.class_count @ weight
        return max(proven, min(best, upper))

    def mark(self, limit: float, position_of: Callable[[FloatArray], FloatArray], label: FloatArray) -> None:
        """Make labels negative from which the rest cannot be done with a bottleneck of `limit` or less.

        Parameters
        ----------
        limit
            Seconds.
        position_of
            Returns (p,) the sum over the ops of each ideal of a number (n,).
        label
            (S, p) of states and ideals; the last ideal is left as it is.
        """
        rest, _, _ = self._rests(self.weight)
        spread = np.empty_like(self.work)
        spread[:, self.chains.op] = self.work * self.weight[:, None]
        done = np.stack([position_of(row) for row in spread])
        chosen = np.zeros(self.problem.num_nodes)
        chosen[self.chains.op] = self.chains.up == self.chains.down
        position = np.rint(position_of(chosen)).astype(np.int64)
        room = (self.states.left @ self.weight) * limit + 2.0 * self._rounding(self.weight)
        _mark(rest, self.states.step, room, done, position, label)

    def _rests(self, weight: FloatArray) -> tuple[FloatArray, IntArray, IntArray]:
        boundary = _boundaries(self.chains, self.work, weight)
        return _rests(self.chains, self.states.step, boundary, weight * self.work.sum(axis=1), weight)

    def _rounding(self, weight: FloatArray) -> float:
        return SAFETY * float(weight @ self.work.sum(axis=1))


def _weights(found: FloatArray, count: IntArray) -> tuple[NDArray[np.float64] | None, float]:
    """Return (c,) weights at which the least weighted sum of the loads that were found is largest, and that sum."""
    unit = max(float(np.abs(found).max()), np.finfo(np.float64).tiny)
    rows = np.concatenate([-found / unit, np.ones((len(found), 1))], axis=1)
    objective = np.append(np.zeros(len(count)), -1.0)
    once = np.append(count, 0.0)[None, :]
    bounds = [(0.0, None)] * len(count) + [(None, None)]
    result = linprog(objective, A_ub=rows, b_ub=np.zeros(len(found)), A_eq=once, b_eq=[1.0], bounds=bounds)
    if result.x is None:
        return None, np.inf
    weight = np.maximum(np.asarray(result.x[:-1], np.float64), 0.0)
    return np.where(count > 0, weight, 0.0), float((found @ weight).min())
