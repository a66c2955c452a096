"""The exact program of a pipeline whose devices run several stages each.

MTPP's "completed by" variables over all K = k v stages (`StageVariables`), with the costs of the stages of one device
added up. A *kind* says what a stage may run on: where chunks are interleaved, the class of the device of its slot, and
p[j, c] is one variable for all stages of the slot; where their order is free, the device itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.budget import Budget
from rlinit.exact.solvers.linear_model import Affine, LinearModel, power_of_two_unit
from rlinit.exact.stages.domains import cover_edges
from rlinit.exact.stages.scaled_costs import ScaledCosts
from rlinit.exact.stages.split_run import SplitProgram
from rlinit.exact.stages.variables import StageVariables
from rlinit.stages.problem import whole_cost
from rlinit.stages.splits.chunks import ChunkAssignment, ChunkedStages, chunk_value


class ChunkModel:
    """The program over y[v, j], p[j, i] (stage j is of kind i) and x[v, j, i] (node v is in stage j, of kind i).

    Parameters
    ----------
    chunked
        The problem.
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
        problem = chunked.problem
        self.chunked, self.problem, self.costs, self.unit = chunked, problem, costs, costs.unit
        self.linear = LinearModel(budget=budget)
        self.free = chunked.order == "free"
        self.class_of_kind: list[int] = (
            problem.stage_class.tolist() if self.free else np.flatnonzero(problem.class_count).tolist()
        )
        n, num_stages = problem.num_nodes, chunked.num_stages
        last = np.full(n, num_stages - 1, np.int64)
        self.nodes = StageVariables(problem, self.linear, np.zeros(n, np.int64), last, num_stages, cover_edges(problem))
        self.p: dict[tuple[int, int], int] = {}
        self.x: dict[tuple[int, int, int], int] = {}
        if len(self.class_of_kind) > 1:
            self._kind_of_stage()
            self._shares()
        loads = self._loads()
        self.linear.objective = self.linear.max_of(lower / self.unit, max(upper, lower) / self.unit, loads)

    def _kind_of_stage(self) -> None:
        """Each stage is of one kind; each device has v stages (free), each class as many slots as devices."""
        chunked, linear, kinds = self.chunked, self.linear, range(len(self.class_of_kind))
        own = range(chunked.num_stages) if self.free else range(chunked.num_slots)
        p = {(j, i): linear.binary(priority=1) for j in own for i in kinds}
        for j in own:
            linear.equal(Affine({p[j, i]: 1.0 for i in kinds}), 1.0)
        for i in kinds:
            count = chunked.chunks if self.free else int(self.problem.class_count[self.class_of_kind[i]])
            linear.equal(Affine({p[j, i]: 1.0 for j in own}), float(count))
        self.p = {(j, i): p[j % len(own), i] for j in range(chunked.num_stages) for i in kinds}

    def _shares(self) -> None:
        """x[v, j, i] <= p[j, i], and the sum over i of x[v, j, i] is x[v, j]; none where v may not run."""
        for v in range(self.problem.num_nodes):
            for j in range(self.chunked.num_stages):
                total = self.nodes.at(v, j)
                for i, c in enumerate(self.class_of_kind):
                    if np.isfinite(self.problem.work_s[c, v]):
                        share = self.x[v, j, i] = self.linear.continuous(0.0, 1.0)
                        self.linear.at_most(Affine({share: 1.0, self.p[j, i]: -1.0}), 0.0)
                        total.add(Affine({share: -1.0}))
                self.linear.equal(total, 0.0)

    def _share(self, v: int, j: int, i: int) -> Affine:
        if len(self.class_of_kind) == 1:
            return self.nodes.at(v, j)
        return Affine({self.x[v, j, i]: 1.0}) if (v, j, i) in self.x else Affine()

    def _sum(self, weight: FloatArray, stages: list[int], i: int) -> Affine:
        """Return the sum over v and j of weight[v] x[v, j, i]."""
        total = Affine()
        for v in np.flatnonzero((weight > 0) & (weight < np.inf)).tolist():
            for j in stages:
                total.add(self._share(v, j, i), float(weight[v]))
        return total

    def _loads(self) -> list[Affine]:
        """Return the cost of each slot: the sum over its stages, or over all stages as far as they are on a device."""
        chunked = self.chunked
        everything = list(range(chunked.num_stages))
        loads = []
        for s in range(chunked.num_slots):
            kinds = [s] if self.free and len(self.class_of_kind) > 1 else list(range(len(self.class_of_kind)))
            stages = everything if self.free else everything[s :: chunked.num_slots]
            load = Affine()
            for i in kinds:
                load.add(self._cost(stages, i))
            loads.append(load)
        return loads

    def _cost(self, stages: list[int], i: int) -> Affine:
        """Return work + tensors in + tensors out + overflow of stages that are of kind i, and keep its memory."""
        problem, costs, c = self.problem, self.costs, self.class_of_kind[i]
        several = len(self.class_of_kind) > 1
        cost = self._sum(costs.work[c], stages, i)
        share = partial(self._share, i=i) if several else None
        for j in stages:
            for t in range(problem.num_tensors):
                if costs.into[c, t] > 0:
                    cost.add(self.nodes.entering(t, j, share), float(costs.into[c, t]))
                if costs.out_of[c, t] > 0:
                    cost.add(self.nodes.leaving(t, j, share), float(costs.out_of[c, t]))
        if costs.overflow[c].any():
            here = Affine({self.p[stages[0], i]: 1.0}) if several and not self.free else Affine(constant=1.0)
            over = self._sum(costs.overflow[c], stages, i).add(here, -float(costs.hidden[c]))
            cost.add(Affine({self.linear.max_of(0.0, float(costs.overflow[c].sum()), [over]): 1.0}))
        capacity = float(problem.memory_bytes[c])
        if np.isfinite(capacity):
            scale = power_of_two_unit(capacity)
            # A node that alone is too much is so at twice the capacity.
            held = np.minimum(problem.param_bytes, 2.0 * capacity)
            self.linear.at_most(self._sum(held / scale, stages, i), capacity / scale)
        return cost

    def _kinds(self, assignment: ChunkAssignment) -> IntArray:
        """Return (K,) the kind of each stage: its class, or its device, numbered within its class as slots come."""
        classes, slots = assignment.classes, assignment.slot
        if not self.free:
            return np.searchsorted(self.class_of_kind, classes)[slots]
        device = np.empty(len(classes), np.int64)
        for c in range(self.problem.num_classes):
            device[classes == c] = np.flatnonzero(self.problem.stage_class == c)
        return device[slots]

    def encode(self, assignment: ChunkAssignment) -> FloatArray:
        """Return the point (num_variables,) of an assignment."""
        kinds = self._kinds(assignment)
        point = np.zeros(self.linear.num_variables)
        self.nodes.encode(assignment.stage, point)
        for (j, i), handle in self.p.items():
            point[handle] = kinds[j] == i
        for (v, j, i), handle in self.x.items():
            point[handle] = assignment.stage[v] == j and kinds[j] == i
        return self.linear.complete(point)

    def decode(self, point: FloatArray) -> ChunkAssignment:
        """Return the assignment of a point that satisfies the program up to SCIP's tolerance."""
        chunked, stage_class = self.chunked, self.problem.stage_class
        stage, slot = self.nodes.decode(point), chunked.interleaved_slots
        if not self.p:
            return ChunkAssignment(stage, slot, stage_class)
        kinds = np.zeros(chunked.num_stages, np.int64)
        for (j, i), handle in self.p.items():
            if point[handle] > 0.5:
                kinds[j] = i
        if self.free:
            return ChunkAssignment(stage, kinds, stage_class)
        return ChunkAssignment(stage, slot, np.array(self.class_of_kind)[kinds[: chunked.num_slots]])


def chunk_program(chunked: ChunkedStages) -> SplitProgram[ChunkAssignment]:
    """Return the program over all monotone assignments of nodes to chunks, and of chunks to devices."""

    def write(lower: float, upper: float, budget: Budget) -> ChunkModel:
        return ChunkModel(chunked, ScaledCosts.of(chunked.problem, upper), lower=lower, upper=upper, budget=budget)

    most = chunked.chunks * whole_cost(chunked.problem)
    return SplitProgram(write, lambda assignment: chunk_value(chunked, assignment)[0], most)
