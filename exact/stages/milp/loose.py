"""The exact program of a pipeline whose devices may hold any ops.

The formulation is the one of Tarnawski et al. without its contiguity constraints: x[v, d] is 1 iff node v is on device
d, and a tensor costs each device that it enters, and the one that it leaves, once. Equal devices are told apart by the
first of their nodes in one order.

References
----------
Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino: Efficient algorithms for device placement of DNN graph
operators, NeurIPS 2020, section 4.2 and figure 6 (maximum load, non-contiguous).
"""

from __future__ import annotations

import itertools

import numpy as np

from rlinit.arrays import FloatArray, IntArray, inverse_of
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, power_of_two_unit
from rlinit.exact.stages.milp.program import StageProgram
from rlinit.exact.stages.milp.scaled_costs import ScaledCosts
from rlinit.stages.problem import StageAssignment, whole_cost
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages, chunk_value, from_contiguous

_ORDERED = 3
"""Nodes for each device by which equal devices are told apart; each adds a row as long as its place."""


class LooseModel:
    """The program over x[v, d].

    Parameters
    ----------
    chunked
        A `pipeline` problem with one stage a device; nodes may read each other in circles.
    costs
        Costs in the program's unit; exact for assignments of at most `upper`.
    lower, upper
        Known bounds on the bottleneck in seconds.
    budget
        Writing the program raises `OutOfTime` once this has ended.
    """

    def __init__(
        self, chunked: ChunkedStages, costs: ScaledCosts, *, lower: float, upper: float, budget: Budget | None = None
    ) -> None:
        self.chunked, self.costs, self.unit = chunked, costs, costs.unit
        self.problem = problem = chunked.problem
        self.linear = LinearModel(budget=budget)
        work = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0).max(axis=0)
        self.sequence: IntArray = np.argsort(-work, kind="stable")
        self.x: dict[tuple[int, int], int] = {}
        self._one_device()
        self._order_equal_devices()
        self._memory()
        loads = [self._load(d) for d in range(problem.num_stages)]
        ceiling = max(upper, lower) / self.unit
        self.linear.objective = self.linear.max_of(lower / self.unit, ceiling, loads)

    def _one_device(self) -> None:
        """Sum over d of x[v, d] = 1, over the devices on which v alone costs at most the ceiling."""
        problem = self.problem
        alone = problem.work_s <= self.costs.ceiling
        for v in range(problem.num_nodes):
            for d, c in enumerate(problem.stage_class.tolist()):
                if alone[c, v] and np.isfinite(problem.work_s[c, v]):
                    self.x[v, d] = self.linear.binary()
            self.linear.equal(Affine({self.x[v, d]: 1.0 for d in self._devices(v)}), 1.0)

    def _devices(self, v: int) -> list[int]:
        return [d for d in range(self.problem.num_stages) if (v, d) in self.x]

    def _at(self, v: int, d: int) -> Affine:
        return Affine({self.x[v, d]: 1.0}) if (v, d) in self.x else Affine()

    def _order_equal_devices(self) -> None:
        """x[v, d] <= sum of x[u, d'] over nodes u before v, for neighbours d' < d of one class.

        Equal devices are numbered by the first of their nodes, empty ones last, which every assignment can be.
        """
        first = self.sequence[: _ORDERED * self.problem.num_stages].tolist()
        for members in self._classes():
            for before, d in itertools.pairwise(members):
                for i, v in enumerate(first):
                    row = self._at(v, d)
                    for u in first[:i]:
                        row.add(self._at(u, before), -1.0)
                    self.linear.at_most(row, 0.0)

    def _classes(self) -> list[list[int]]:
        stage_class = self.problem.stage_class
        return [np.flatnonzero(stage_class == c).tolist() for c in range(self.problem.num_classes)]

    def _memory(self) -> None:
        """Sum over v of param(v) x[v, d] <= memory(d)."""
        problem = self.problem
        for d, c in enumerate(problem.stage_class.tolist()):
            capacity = float(problem.memory_bytes[c])
            if np.isfinite(capacity):
                scale = power_of_two_unit(capacity)
                # A node that alone is too much is so at twice the capacity.
                held = np.minimum(problem.param_bytes, 2.0 * capacity)
                self.linear.at_most(self._sum(held / scale, d), capacity / scale)

    def _sum(self, weight: FloatArray, d: int) -> Affine:
        """Return the sum over v of weight[v] x[v, d]."""
        total = Affine()
        for v in np.flatnonzero((weight > 0) & (weight < np.inf)).tolist():
            total.add(self._at(v, d), float(weight[v]))
        return total

    def _load(self, d: int) -> Affine:
        """Return work + tensors in + tensors out + overflow of device d, in the program's unit.

        in[t, d] >= x[w, d] - x[u, d] and out[t, d] >= x[u, d] - x[w, d], for the producer u and each consumer w of t;
        o[d] >= sum over v of param(v) x[v, d] - cache(d), at the class's seconds per byte.
        """
        problem, costs, linear = self.problem, self.costs, self.linear
        c = int(problem.stage_class[d])
        load = self._sum(costs.work[c], d)
        for t in range(problem.num_tensors):
            made = self._at(int(problem.tensor_src[t]), d)
            used = problem.tensor_dst[problem.tensor_indptr[t] : problem.tensor_indptr[t + 1]].tolist()
            if costs.into[c, t] > 0:
                enters = linear.max_of(0.0, 1.0, [self._at(w, d).minus(made) for w in used])
                load.add(Affine({enters: 1.0}), float(costs.into[c, t]))
            if costs.out_of[c, t] > 0:
                leaves = linear.max_of(0.0, 1.0, [made.minus(self._at(w, d)) for w in used])
                load.add(Affine({leaves: 1.0}), float(costs.out_of[c, t]))
        overflow = costs.overflow[c]
        if overflow.any():
            over = self._sum(overflow, d).add(Affine(constant=-float(costs.hidden[c])))
            load.add(Affine({linear.max_of(0.0, float(overflow.sum()), [over]): 1.0}))
        return load

    def encode(self, assignment: ChunkAssignment) -> FloatArray:
        """Return the point (num_variables,) of an assignment, its equal devices numbered as the rows say."""
        place = inverse_of(self.sequence)
        device = np.empty(self.problem.num_stages, np.int64)
        for c, members in enumerate(self._classes()):
            stages = np.flatnonzero(assignment.stages.classes == c).tolist()
            stages.sort(key=lambda j: int(place[assignment.stage == j].min(initial=self.problem.num_nodes)))
            device[stages] = members
        point = np.zeros(self.linear.num_variables)
        for (v, d), handle in self.x.items():
            point[handle] = device[assignment.stage[v]] == d
        return self.linear.complete(point)

    def decode(self, point: FloatArray) -> ChunkAssignment:
        """Return the assignment of a point that satisfies the program up to SCIP's tolerance."""
        stage = np.zeros(self.problem.num_nodes, np.int64)
        for (v, d), handle in self.x.items():
            if point[handle] > 0.5:
                stage[v] = d
        return from_contiguous(self.chunked, StageAssignment(stage, self.problem.stage_class))


def loose_program(chunked: ChunkedStages) -> StageProgram[ChunkAssignment]:
    """Return the program over all assignments of nodes to devices of a `pipeline` problem with one stage a device."""
    problem = chunked.problem

    def write(lower: float, upper: float, budget: Budget) -> LooseModel:
        return LooseModel(chunked, ScaledCosts.of(problem, upper), lower=lower, upper=upper, budget=budget)

    return StageProgram(write, lambda assignment: chunk_value(chunked, assignment)[0], whole_cost(problem))
