"""Stage problems whose overflow counts the peak of activation memory, too (MTPP eq. 2).

The parameters of a stage and the working memory of its ops share the fast memory, and what does not fit is paid for::

    overflow_c(S) = overflow_s_per_byte[c] * max(0, param(S) + peak(S) - cache_bytes[c])

with ``peak(S)`` the least peak over all orders of the ops of S (`rlinit.stages.activation_peak`). Everything else is as
in `rlinit.stages.problem`. ``peak(S) >= 0``, so this overflow is never less than the one without activations, and every
lower bound on the problem without them is one with them; `StageActivations.relaxed` is a stronger problem without them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.graph import Graph
from rlinit.stages.activation_peak import MOST_STATES, LeastPeak, Tensors, least_peak, tensors_of
from rlinit.stages.problem import StageAssignment, StageProblem, Value, stage_cost


@dataclass(frozen=True, slots=True, eq=False)
class StageActivations:
    """A `pipeline` problem and the tensors of its ops.

    Parameters
    ----------
    problem
        The problem without activations.
    tensors
        The tensors of the graph's ops.
    node_of_op
        (n_ops,) node that each op became.
    floor_bytes
        (n,) a lower bound on the peak of every stage that holds the node.
    """

    problem: StageProblem
    tensors: Tensors
    node_of_op: IntArray
    floor_bytes: FloatArray
    _members: tuple[tuple[int, ...], ...] = field(init=False)
    _bare: StageProblem = field(init=False)
    _known: dict[tuple[int, bytes], LeastPeak] = field(default_factory=dict)

    def __post_init__(self) -> None:
        members: list[list[int]] = [[] for _ in range(self.problem.num_nodes)]
        for op in sorted(range(len(self.node_of_op)), key=lambda v: self.tensors.place[v]):
            members[int(self.node_of_op[op])].append(op)
        object.__setattr__(self, "_members", tuple(map(tuple, members)))
        free = np.zeros_like(self.problem.overflow_s_per_byte)
        object.__setattr__(self, "_bare", dataclasses.replace(self.problem, overflow_s_per_byte=free))

    @property
    def relaxed(self) -> StageProblem:
        """The problem with the cache smaller by the least peak any stage has; its bounds are bounds here."""
        least = float(self.floor_bytes.min())
        cache = np.maximum(self.problem.cache_bytes - least, 0.0)
        return dataclasses.replace(self.problem, cache_bytes=cache)

    def ops_of(self, nodes: IntArray) -> list[int]:
        """Return the ops of some nodes, node by node; a topological order where the nodes are in one."""
        return [op for node in nodes.tolist() for op in self._members[node]]

    def least_peak(self, member: NDArray[np.bool_], class_idx: int) -> LeastPeak:
        """Return the best known order of a stage and a bound on all orders; remembered.

        On a device whose cache holds everything the peak costs nothing, and a quick order does.

        Parameters
        ----------
        member
            (n,) bool, True for the nodes of the stage.
        class_idx
            The class of the stage's device.
        """
        cap = MOST_STATES if np.isfinite(self.problem.cache_bytes[class_idx]) else 0
        key = (cap, np.packbits(member).tobytes())
        if key not in self._known:
            self._known[key] = least_peak(self.tensors, self.ops_of(np.flatnonzero(member)), cap=cap)
        return self._known[key]

    def overflow(self, member: NDArray[np.bool_], class_idx: int, peak_bytes: float) -> float:
        """Return the seconds of overflow of a stage whose activations take `peak_bytes`.

        Parameters
        ----------
        member
            (n,) bool: the nodes of the stage.
        class_idx
            The class of its device.
        peak_bytes
            Most bytes of activations at once.
        """
        problem = self.problem
        over = float(problem.param_bytes[member].sum()) + peak_bytes - float(problem.cache_bytes[class_idx])
        return over * float(problem.overflow_s_per_byte[class_idx]) if over > 0 else 0.0

    def cost(self, member: NDArray[np.bool_], class_idx: int) -> float:
        """Return the seconds of a stage in the best known order of its ops; inf where it is not allowed.

        Parameters
        ----------
        member
            (n,) bool: the nodes of the stage.
        class_idx
            The class of its device.
        """
        if not member.any():
            return 0.0
        bare = stage_cost(self._bare, member, class_idx)
        if not np.isfinite(bare) or np.isinf(self.problem.cache_bytes[class_idx]):
            return bare
        return bare + self.overflow(member, class_idx, self.least_peak(member, class_idx).peak_bytes)

    def orders(self, assignment: StageAssignment) -> tuple[tuple[int, ...], ...]:
        """Return the order of the ops of each stage that the value of an assignment is for."""
        found = []
        for j in range(self.problem.num_stages):
            member = assignment.stage == j
            found.append(self.least_peak(member, int(assignment.classes[j])).order if member.any() else ())
        return tuple(found)


def with_activations(problem: StageProblem, node_of_op: IntArray, graph: Graph) -> StageActivations:
    """Add the tensors of a graph to the stage problem it was lowered to.

    Parameters
    ----------
    problem
        The problem that the graph was lowered to.
    node_of_op
        (ops,) node of each op.
    graph
        The graph, with the bytes of its tensors.
    """
    tensors = tensors_of(graph)
    floor = np.zeros(problem.num_nodes)
    for v, node in enumerate(node_of_op.tolist()):
        floor[node] = max(floor[node], tensors.alone_bytes(v))
    return StageActivations(problem, tensors, node_of_op, floor)


def activation_value(problem: StageActivations, assignment: StageAssignment) -> Value:
    """Return the bottleneck of a monotone assignment, each stage in the best known order of its ops.

    Parameters
    ----------
    problem
        The problem with its activations.
    assignment
        Stage of each node and class of each stage; no edge leads to a smaller stage.
    """
    costs = (problem.cost(assignment.stage == j, int(assignment.classes[j])) for j in range(problem.problem.num_stages))
    return (max(costs),)
