"""From a network's logits to a stage schedule: orders are proposed, sliced optimally, and the best is kept.

Every agent for stages is an `OrderProposer`; what makes schedules of its orders is here and the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rlinit.agent.stages.features import slice_orders
from rlinit.arrays import ROUNDING, FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageAssignment, StageProblem, Value
from rlinit.stages.slicing import slice_order


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What an agent proposes for a problem.

    Parameters
    ----------
    orders
        (s, n) topological orders, distinct or not; the greedy one first.
    entropy
        (n,) how undecided the agent was where it took each node in the greedy order: entropy of the choice over the
        logarithm of the number of ready nodes, from 0 (certain, or no choice) to 1.
    """

    orders: IntArray
    entropy: FloatArray


class OrderProposer(Protocol):
    """An agent for stage problems."""

    def propose(self, problem: StageProblem, width: int, seed: int) -> Proposal:
        """Return orders for a problem; the same for equal arguments, on every machine.

        Parameters
        ----------
        problem
            Of n nodes.
        width
            Number of orders, at least 1: the greedy one first, then draws.
        seed
            Of draws; at least 0.
        """


@dataclass(frozen=True, slots=True, eq=False)
class DecodedStages:
    """The best schedule among an agent's orders.

    Parameters
    ----------
    assignment, value
        The schedule and its value.
    order
        (n,) the order it is a slicing of.
    entropy
        (n,) as in `Proposal`.
    """

    assignment: StageAssignment
    value: Value
    order: IntArray
    entropy: FloatArray


def decode_stages(
    agent: OrderProposer, problem: StageProblem, width: int = 1, *, seed: int = 0, budget: Budget | None = None
) -> DecodedStages | None:
    """Return the best slicing of an agent's orders, None where none of them can be sliced within the capacities.

    Ends early, with what it has, when the budget does.

    Parameters
    ----------
    agent
        Who proposes orders.
    problem
        The problem.
    width
        Number of orders; see `OrderProposer`.
    seed
        Of draws; at least 0.
    budget
        Ends the slicing of further orders; None: all are sliced.
    """
    proposal = agent.propose(problem, width, seed)
    orders = proposal.orders
    if len(orders) > 1 and problem.num_classes == 1:
        orders = _most_promising(problem, orders)
    best: DecodedStages | None = None
    for order in orders:
        found = slice_order(problem, order)
        if found is not None and (best is None or found[1] < best.value):
            best = DecodedStages(found[0], found[1], order, proposal.entropy)
        if budget is not None and budget.expired:
            break
    return best


def _most_promising(problem: StageProblem, orders: IntArray) -> IntArray:
    """Return the orders that are best on the first level, found by the compiled slicing of all of them.

    For `pipeline` that is the only level, so one will do.
    """
    values = slice_orders(StageBatch.of_problem(problem), orders)[0][0]
    if problem.objective == "pipeline":
        return orders[[int(values.argmin())]]
    tied = values <= values.min() * (1.0 + ROUNDING)
    kept: IntArray = np.unique(orders[tied], axis=0)
    return kept
