"""m-SCT: earliest time first with favourite children from a linear program."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from scipy.optimize import linprog

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.errors import SolverFailure
from rlinit.heuristics.placements.published.baechi import earliest_start
from rlinit.placements.arrays import mean_transfer_s, mean_work_s
from rlinit.placements.problem import Placement, PlacementProblem

_LARGEST = 20_000
"""Most ops and edges of a linear program where nobody gives a budget or iterations."""

_HALF = 0.5 - 1e-6
"""Where values are rounded: two that sum to at least 1 but for the solver's tolerance are not both below it."""


def m_sct(
    problem: PlacementProblem, *, seed: int = 0, evaluations: int | None = None, budget: Budget | None = None
) -> Placement | None:
    """Schedule earliest time first, but let devices wait for the favourite child of the op they ran last.

    The favourite children come from the linear program of small communication times over mean times and mean transfers.
    Where that does not end within the budget (or `evaluations` iterations; with neither, it is left out beyond
    20,000 ops and edges), they are matched greedily instead, the longest transfer first: without the guarantee that the
    program gives for small communication times.

    For the parameters see `PlacementHeuristic.__call__`.

    References
    ----------
    Jeon et al.: Baechi. SoCC 2020, section 3.1.3; Hanen and Munier: An approximation algorithm for scheduling
    dependent tasks on m processors with small communication delays. ETFA 1995, section 3 and 4.
    """
    favourite = favourite_children(problem, evaluations=evaluations, budget=budget)
    if favourite is None:
        favourite = _matched(problem)
    return earliest_start(problem, np.ones((problem.num_ops, problem.num_devices), np.bool_), favourite)


def favourite_children(
    problem: PlacementProblem, *, evaluations: int | None = None, budget: Budget | None = None
) -> IntArray | None:
    """Return (n,) favourite children by the linear program, -1 for none; None where it does not end in time.

    With starts s, makespan w, and x = 0 on the edge to a favourite child (then no transfer is paid)::

        min w   s_u + p_u + c_u x_uv <= s_v   for edges u -> v
                s_v + p_v <= w                for ops v
                sum over v of x_uv >= (number of successors of u) - 1
                sum over u of x_uv >= (number of predecessors of v) - 1
                0 <= x <= 1

    and x is rounded: below 1/2 means favourite. No op then has two favourite children, nor is one of two ops.

    Parameters
    ----------
    problem
        The problem.
    evaluations
        Most iterations of the linear program; None: any, but without a time limit none beyond 20,000 ops and edges.
    budget
        When to stop; None: never.
    """
    n, m = problem.num_ops, len(problem.edges)
    favourite = np.full(n, -1, np.int64)
    if m == 0:
        return favourite
    work, transfer = mean_work_s(problem), mean_transfer_s(problem)
    unit = max(float(work.max(initial=0.0)), float(transfer.max(initial=0.0)))
    if unit > 0:
        work, transfer = work / unit, transfer / unit
    tail, head = problem.edges[:, 0], problem.edges[:, 1]
    edge, op = np.arange(m), np.arange(n)
    out_degree, in_degree = np.bincount(tail, minlength=n), np.bincount(head, minlength=n)
    # Columns: x (m), s (n), w. Rows: edges, ops, favourite child of each op, favourite parent of each op.
    rows = np.concatenate([edge, edge, edge, m + op, m + op, m + n + tail, m + 2 * n + head])
    columns = np.concatenate([edge, m + tail, m + head, m + op, np.full(n, m + n), edge, edge])
    values = np.concatenate([transfer[tail], np.ones(m), -np.ones(m), np.ones(n), -np.ones(n), -np.ones(2 * m)])
    matrix = scipy.sparse.csr_matrix((values, (rows, columns)), shape=(m + 3 * n, m + n + 1))
    limit = np.concatenate([-work[tail], -work, 1.0 - out_degree, 1.0 - in_degree])
    upper = np.concatenate([np.ones(m), np.full(n + 1, np.inf)])
    point = run_linear_program(matrix, limit, upper, n + m, evaluations=evaluations, budget=budget)
    if point is None:
        return None
    chosen = point[:m] < _HALF
    favourite[tail[chosen]] = head[chosen]
    return favourite


def run_linear_program(
    matrix: Any,
    limit: FloatArray,
    upper: FloatArray,
    size: int,
    *,
    evaluations: int | None,
    budget: Budget | None,
) -> FloatArray | None:
    """Minimise the last variable subject to ``matrix x <= limit`` and ``0 <= x <= upper``; None if it takes too long.

    Parameters
    ----------
    matrix, limit, upper
        (r, c) sparse, (r,), (c,) of a feasible program.
    size
        Ops and edges behind it: with neither iterations nor a time limit, none beyond 20,000 is tried.
    evaluations
        Most iterations.
    budget
        When to stop.

    Raises
    ------
    SolverFailure
        If HiGHS fails, or takes the program for infeasible or unbounded.
    """
    remaining = np.inf if budget is None else budget.remaining_s
    if remaining <= 0 or (evaluations is None and remaining == np.inf and size > _LARGEST):
        return None
    cost = np.zeros(len(upper))
    cost[-1] = 1.0
    box = [(0.0, high) for high in upper.tolist()]
    # What is left of the time is for the schedule.
    limits: Any = {"maxiter": evaluations or None, "time_limit": min(remaining / 2, 1e9)}
    result = linprog(cost, A_ub=matrix, b_ub=limit, bounds=box, options=limits)
    if result.status == 1:
        return None
    if result.status != 0:
        raise SolverFailure(f"HiGHS failed on a linear program of {len(limit)} rows: {result.message}")
    return np.asarray(result.x, np.float64)


def _matched(problem: PlacementProblem) -> IntArray:
    """Return (n,) favourite children by a greedy matching of ops to children, the longest transfer first."""
    favourite, taken = np.full(problem.num_ops, -1, np.int64), np.zeros(problem.num_ops, np.bool_)
    transfer = mean_transfer_s(problem)
    for u, v in problem.edges[np.argsort(-transfer[problem.edges[:, 0]], kind="stable")].tolist():
        if favourite[u] < 0 and not taken[v]:
            favourite[u] = v
            taken[v] = True
    return favourite
