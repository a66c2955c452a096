"""A spectral lower bound on the pipeline bottleneck: average load plus the communication that no partition avoids.

Let x_b (n,) be the indicator of stage b and Y = sum_b x_b x_b^T, so that Y[u, v] = 1 iff u and v share a stage. If
the optimum is at most T, every stage has work at most T, so with D = diag(work) the matrix D^1/2 Y D^1/2 has trace W
and eigenvalues in [0, T]. Communication is bounded by an affine function of Y, and by Fan's theorem ::

    communication >= constant + <Q, Y> >= constant + T * (sum of the W / T smallest eigenvalues of D^-1/2 Q D^-1/2)

where Q and the constant come from one price a tensor and from multipliers on what is known of Y: its diagonal is 1,
it is nonnegative, and it is 0 where two nodes cannot share a stage of cost T. If W plus that exceeds k T, the optimum
exceeds T. Every choice of prices and multipliers proves a bound; a subgradient ascent looks for good ones.

References
----------
Donath, Hoffman, Lower bounds for the partitioning of graphs, 1973 (equal sizes and a diagonal, for edge cuts).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, eigvalsh
from threadpoolctl import threadpool_limits

from rlinit.arrays import SAFETY, FloatArray
from rlinit.budget import Budget, reserve
from rlinit.exact.stages.bounds.simple import allowed_classes, load_balance, simple_bound
from rlinit.stages.problem import StageProblem

_WORK = 1e10
"""Steps times the cube of the number of nodes: what limits the steps on large problems."""

_FEWEST_STEPS = 30
"""Steps of the ascent however large the problem is."""
_FLOOR = 1e-3
"""Work below this fraction of the mean is raised to it, which keeps D^-1/2 well conditioned."""


@dataclass(slots=True)
class _Multipliers:
    """`price` (m,) of the tensors, `diagonal` (n,), and `pairs` (n, n) symmetric with zero diagonal."""

    price: FloatArray
    diagonal: FloatArray
    pairs: FloatArray

    def moved(self, step: float, direction: _Multipliers, apart: NDArray[np.bool_]) -> _Multipliers:
        """Return self + step * direction, projected: prices nonnegative, pairs at most 0 unless `apart`."""
        pairs = self.pairs + step * direction.pairs
        return _Multipliers(
            np.maximum(self.price + step * direction.price, 0.0),
            self.diagonal + step * direction.diagonal,
            np.where(apart, pairs, np.minimum(pairs, 0.0)),
        )


class Communication:
    """Affine lower bounds on the priced communication of the shared stages Y, given a bottleneck T.

    A tensor of p pins (producer and consumers) in r parts costs receive * (r - 1) + send * [r >= 2]. If the parts have
    sizes g, <1 1^T, Y_pins> = sum g^2, at least that of r balanced parts; so for every price >= 0, communication is at
    least ``min_r (cost(r) + price * balanced(r)) - price * <1 1^T, Y_pins>``.

    Parameters
    ----------
    problem
        The problem, of m > 0 tensors.
    price
        (c,) weight of a stage of each class; a tensor costs what it costs where that is least.
    work
        (n,) seconds of each node on its fastest class.
    """

    def __init__(self, problem: StageProblem, price: FloatArray, work: FloatArray) -> None:
        used = problem.class_count > 0
        self.receive = (price[used, None] * problem.in_s[used]).min(axis=0)
        self.send = (price[used, None] * problem.out_s[used]).min(axis=0)
        n, m = problem.num_nodes, problem.num_tensors
        self.pins = np.zeros((m, n))
        self.pins[np.repeat(np.arange(m), np.diff(problem.tensor_indptr)), problem.tensor_dst] = 1.0
        self.pins[np.arange(m), problem.tensor_src] = 1.0
        self.num_pins = self.pins.sum(axis=1)
        self.work = self.pins @ work
        parts = np.arange(1, int(min(self.num_pins.max(), problem.num_stages)) + 1)
        small = np.floor(self.num_pins[:, None] / parts)
        larger = self.num_pins[:, None] - small * parts
        self.balanced = (parts - larger) * small**2 + larger * (small + 1) ** 2
        cost = self.receive[:, None] * (parts - 1) + self.send[:, None] * (parts > 1)
        self.any_cost = np.where(parts <= self.num_pins[:, None], cost, np.inf)
        self.cost = self.any_cost
        self.parts = parts

    def restrict(self, bottleneck: float) -> None:
        """Leave out numbers of parts that could not hold the pins' work at a positive bottleneck."""
        most = np.minimum(self.num_pins, self.parts[-1])
        least = np.minimum(np.ceil(self.work / bottleneck * (1 - SAFETY)), most)
        self.cost = np.where(self.parts >= least[:, None], self.any_cost, np.inf)

    def constants(self, price: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return each tensor's (m,) constant and the sum of squares where it is attained (a supergradient)."""
        total = self.cost + price[:, None] * self.balanced
        at = total.argmin(axis=1)
        row = np.arange(len(at))
        return total[row, at], self.balanced[row, at]

    def start(self) -> FloatArray:
        """Return the prices at which one part and two parts are equally binding: a clique of each tensor."""
        if len(self.parts) < 2:
            return np.zeros(len(self.num_pins))
        return np.asarray((self.receive + self.send) / (self.num_pins**2 - self.balanced[:, 1]))


def spectral_bound(
    problem: StageProblem,
    *,
    upper: float = np.inf,
    budget: Budget | None = None,
    iterations: int = 300,
    max_nodes: int = 1200,
    contiguous: bool = True,
) -> float:
    """Return the spectral bound.

    Parameters
    ----------
    problem
        A `pipeline` problem.
    upper
        Seconds, the value of a known assignment; it makes the bound stronger, which then does not exceed it.
    budget
        When it ends, the best bound so far is returned.
    iterations
        Subgradient steps; fewer above some 300 nodes.
    max_nodes
        Above this many nodes only the simple bound is computed: a step costs O(n^3).
    contiguous
        Whether stages are convex, so that two nodes bring along all that lies between them.

    Returns
    -------
    bound
        Seconds; at least the simple bound, ``inf`` if some node fits no stage.

    Notes
    -----
    With several classes, stages are weighted by the prices of the fractional load balance, and tensors cost what they
    cost in the class where that is least.
    """
    balance, best = load_balance(problem, budget), simple_bound(problem, budget)[0]
    if not 0 < balance.bound < np.inf or problem.num_tensors == 0 or problem.num_nodes > max_nodes:
        return best
    # One thread: matrices this small lose more to threads than they gain, badly so on a busy machine.
    with threadpool_limits(1, "blas"):
        dual = _SpectralDual(problem, balance.price, balance.bound, contiguous=contiguous)
        multipliers = dual.start()
        left = min(iterations, max(_FEWEST_STEPS, int(_WORK // problem.num_nodes**3)))
        ceiling, phase = min(upper, best * 1.5), -(-left // 3)
        while left > 0 and best < upper and not (budget is not None and budget.expired):
            dual.assume(ceiling)
            multipliers, steps = dual.ascend(multipliers, min(phase, left), budget)
            left -= steps
            best = max(best, dual.threshold(multipliers, best))
            ceiling = min(upper, best * (1.5 if best >= ceiling else 1.01))
        return best


def reachability(problem: StageProblem) -> FloatArray:
    """Return (n, n) 0/1: whether node v is u or a descendant of u."""
    reserve(9.0 * problem.num_nodes**2, f"which of {problem.num_nodes:,} ops lead to which")
    reach = np.zeros((problem.num_nodes, problem.num_nodes), np.bool_)
    for v in problem.order[::-1]:
        after = problem.succ[problem.succ_indptr[v] : problem.succ_indptr[v + 1]]
        reach[v] = reach[after].any(axis=0)
        reach[v, v] = True
    return reach.astype(np.float64)


class _SpectralDual:
    """The dual function at an assumed bottleneck, its ascent, and the bound that multipliers prove."""

    def __init__(self, problem: StageProblem, price: FloatArray, average: float, *, contiguous: bool) -> None:
        work = np.where(allowed_classes(problem), problem.work_s, np.inf).min(axis=0)
        self.metric = np.maximum(work, _FLOOR * work.mean()) if work.any() else np.ones(len(work))
        self.excess = float((self.metric - work).sum())
        self.scale = 1.0 / np.sqrt(self.metric)
        self.stages = float(problem.class_count @ price)
        self.average = average
        self.communication = Communication(problem, price, work)
        reach = reachability(problem) if contiguous else np.eye(problem.num_nodes)
        hull = (reach * work) @ reach
        self.together = np.maximum(np.maximum(hull, hull.T), work[:, None] + work[None, :])
        self.bottleneck = np.inf
        self.apart = np.zeros(hull.shape, np.bool_)

    def start(self) -> _Multipliers:
        """Return prices that make each tensor a clique, balanced on the diagonal, and nothing else."""
        price = self.communication.start()
        diagonal = self.communication.pins.T @ (price * self.communication.num_pins)
        return _Multipliers(price, diagonal, np.zeros_like(self.together))

    def assume(self, bottleneck: float) -> None:
        """Take the optimum to be at most `bottleneck`."""
        self.bottleneck = bottleneck
        self.apart = self.together > bottleneck * (1 + SAFETY)
        np.fill_diagonal(self.apart, False)
        self.communication.restrict(bottleneck)

    def _matrix(self, at: _Multipliers) -> FloatArray:
        pins = self.communication.pins
        matrix = at.pairs - np.asarray((pins.T * at.price) @ pins)
        matrix[np.diag_indices_from(matrix)] += at.diagonal
        scaled: FloatArray = matrix * self.scale[:, None] * self.scale[None, :]
        return scaled

    def _filling(self, bottleneck: float) -> tuple[float, FloatArray]:
        """Return the largest eigenvalue of D^1/2 Y D^1/2 and the multiples (n,) of it that add up to the trace."""
        room = bottleneck + self.excess
        full = self.metric.sum() / room
        return room, np.clip(full - np.arange(len(self.metric)), 0.0, 1.0)

    def ascend(self, at: _Multipliers, iterations: int, budget: Budget | None) -> tuple[_Multipliers, int]:
        """Improve the multipliers by Polyak's subgradient steps towards a proof that the bottleneck is impossible.

        Returns the best multipliers and the number of steps taken, at least 1.
        """
        at, steps = at.moved(0.0, at, self.apart), 0
        room, filling = self._filling(self.bottleneck)
        filling = filling[filling > 0]
        target = self.stages * (self.bottleneck - self.average)
        pins, size = self.communication.pins, self.communication.num_pins
        best, best_value, pace, stalled = at, -np.inf, 1.0, 0
        while steps < iterations:
            steps += 1
            if budget is not None and budget.expired:
                break
            values, vectors = eigh(self._matrix(at), subset_by_index=[0, len(filling) - 1])
            constant, squares = self.communication.constants(at.price)
            value = float(room * (filling @ values) + constant.sum() - at.diagonal.sum())
            if value > best_value:
                stalled = 0 if value > best_value + 1e-4 * target else stalled + 1
                best, best_value = at, value
            else:
                stalled += 1
            if value > target:
                break
            if stalled > 8:
                at, pace, stalled = best, 0.6 * pace, 0
            shared = room * ((vectors * filling) @ vectors.T) * self.scale[:, None] * self.scale[None, :]
            held = ((pins @ shared) * pins).sum(axis=1)
            slope = _Multipliers(
                (squares - held),
                np.diag(shared) - 1.0,
                np.where(self.apart | (shared < 0) | (at.pairs < 0), shared, 0.0),
            )
            np.fill_diagonal(slope.pairs, 0.0)
            direction = _Multipliers(slope.price / size**2, slope.diagonal, slope.pairs)
            gain = (slope.price @ direction.price) + (slope.diagonal**2).sum() + (slope.pairs**2).sum()
            if gain <= 0:
                break
            at = at.moved(pace * (target - value) / gain, direction, self.apart)
        return best, steps

    def threshold(self, at: _Multipliers, low: float) -> float:
        """Return the largest T up to the assumed bottleneck that the multipliers prove impossible, at least `low`."""
        matrix = self._matrix(at)
        values = eigvalsh(matrix) - 1e-15 * len(matrix) * np.linalg.norm(matrix)
        constant = float(self.communication.constants(at.price)[0].sum() - at.diagonal.sum())
        rounding = 1e-13 * float(self.communication.constants(at.price)[0].sum() + np.abs(at.diagonal).sum())

        def impossible(bottleneck: float) -> bool:
            room, filling = self._filling(bottleneck)
            load = self.stages * self.average + room * float(filling @ values) + constant - rounding
            return load > self.stages * bottleneck * (1 + SAFETY)

        if impossible(self.bottleneck):
            return self.bottleneck
        high = self.bottleneck
        if not low < high or not impossible(low):
            return low
        for _ in range(50):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if impossible(middle) else (low, middle)
        return low
