"""Nodes that an optimal assignment may keep with a neighbour: merging them leaves fewer ideals and the same optimum."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.stages.problem import StageAssignment, StageProblem


@dataclass(frozen=True, slots=True, eq=False)
class MergedProblem:
    """A stage problem whose nodes are groups of another's.

    Parameters
    ----------
    problem
        The smaller problem.
    group
        (n,) node of the smaller problem that holds each node.
    root
        (p,) a node of each group, which the others of it can follow to its stage.
    """

    problem: StageProblem
    group: IntArray
    root: IntArray

    @classmethod
    def whole(cls, problem: StageProblem) -> MergedProblem:
        """Return a problem as it is: each node is a group of its own."""
        nodes = np.arange(problem.num_nodes, dtype=np.int64)
        return cls(problem, nodes, nodes)

    def expand(self, assignment: StageAssignment) -> StageAssignment:
        """Return the assignment of the original nodes; its value is the same."""
        return StageAssignment(np.ascontiguousarray(assignment.stage[self.group]), assignment.classes)

    def contract(self, assignment: StageAssignment) -> StageAssignment:
        """Return an assignment of the original nodes with each where the root of its group is; it costs no more."""
        return StageAssignment(np.ascontiguousarray(assignment.stage[self.root]), assignment.classes)


def merge_weightless(problem: StageProblem) -> MergedProblem:
    """Merge weightless nodes into neighbours that some optimal assignment has them with, until none is left.

    A node is weightless if it takes no time on any class and its parameters change neither feasibility nor cost. It may
    move back to the stage of its only predecessor, alone or with all that read the same tensors, where what is made of
    these costs no more to move than they do; and up to the stage of its only successor, where what it reads costs no
    more to move than what it makes. Costs are compared in and out, on every class.

    Notes
    -----
    Keeps the optimal value of both objectives. Leaves isolated nodes alone, and problems where nothing is to be done
    as they are. Traced models have a view for every second op: six of transformers have 3 to 500 times fewer ideals.

    References
    ----------
    The merging of costless inputs in Tarnawski et al., NeurIPS 2020 (their published code), here with its conditions,
    and for nodes inside a graph.
    """
    n = problem.num_nodes
    weightless = (problem.work_s == 0).all(axis=0) & (_params_are_free(problem) | (problem.param_bytes == 0))
    if not weightless.any():
        return MergedProblem.whole(problem)
    wires = _Wires(problem)
    into = np.arange(n, dtype=np.int64)
    queue = np.flatnonzero(weightless).tolist()
    while queue:
        v = queue.pop()
        if into[v] != v:
            continue
        members, target = wires.neighbour(v, weightless)
        for member in members:
            into[member] = target
            wires.join(member, target)
        if members:
            queue += [u for u in (target, *wires.beside(target)) if weightless[u]]
    while (into != into[into]).any():
        into = into[into]
    root, place = np.unique(into, return_inverse=True)
    if len(root) == n:
        return MergedProblem.whole(problem)
    group = place.astype(np.int64)
    return MergedProblem(_joined(problem, group), group, root)


class _Wires:
    """Who makes and who reads each tensor, as nodes are joined."""

    def __init__(self, problem: StageProblem) -> None:
        self.source = problem.tensor_src.tolist()
        self.readers = _rows(problem.tensor_indptr, problem.tensor_dst)
        self.made = _rows(problem.out_indptr, problem.out_tensor)
        self.read = _rows(problem.in_indptr, problem.in_tensor)
        rows = (*problem.in_s.tolist(), *problem.out_s.tolist(), problem.tensor_bytes.tolist())
        self.cost = list(zip(*rows, strict=True))

    def neighbour(self, v: int, weightless: BoolArray) -> tuple[set[int], int]:
        """Return the nodes that may be joined to a neighbour of `v` together, and that neighbour, -1 for none."""
        read, made = self.read[v], self.made[v]
        before = {self.source[t] for t in read}
        after = {w for t in made for w in self.readers[t]}
        if len(before) == 1:
            together = {w for t in read for w in self.readers[t]}
            alike = all(weightless[w] and self.read[w] <= read for w in together)
            if alike and self._is_less({t for w in together for t in self.made[w]}, read):
                return together, before.pop()
            if self._is_less(made, {t for t in read if self.readers[t] == {v}}):
                return {v}, before.pop()
        if len(after) == 1 and self._is_less(read, made):
            return {v}, after.pop()
        return set(), -1

    def _is_less(self, some: set[int], others: set[int]) -> bool:
        """Return whether no class pays more for some tensors than for others, in and out."""
        if not some or not others:
            return not some
        sums = (map(sum, zip(*(self.cost[t] for t in sorted(tensors)), strict=True)) for tensors in (some, others))
        return all(new <= old for new, old in zip(*sums, strict=True))

    def join(self, v: int, target: int) -> None:
        """Make `v` a part of a neighbour."""
        for t in self.read[v]:
            self.readers[t].discard(v)
            if self.source[t] != target:
                self.readers[t].add(target)
                self.read[target].add(t)
            elif not self.readers[t]:
                self.made[target].discard(t)
        for t in self.made[v]:
            self.source[t] = target
            self.readers[t].discard(target)
            self.read[target].discard(t)
            if self.readers[t]:
                self.made[target].add(t)

    def beside(self, v: int) -> set[int]:
        """Return the nodes that make what a node reads, or read what it makes."""
        return {self.source[t] for t in self.read[v]} | {w for t in self.made[v] for w in self.readers[t]}


def _params_are_free(problem: StageProblem) -> bool:
    """Return whether parameters may lie anywhere: no capacity, cache or peak depends on where."""
    if problem.objective == "memory":
        return False
    total = problem.param_bytes.sum()
    cached = (problem.cache_bytes >= total) | (problem.overflow_s_per_byte == 0)
    return bool((problem.memory_bytes >= total).all() and cached.all())


def _rows(indptr: IntArray, indices: IntArray) -> list[set[int]]:
    flat = indices.tolist()
    return [set(flat[a:b]) for a, b in pairwise(indptr.tolist())]


def _joined(problem: StageProblem, group: IntArray) -> StageProblem:
    """Return the problem on groups of nodes: work and parameters add up, tensors inside a group vanish."""
    num_groups = int(group.max()) + 1
    tensor = np.repeat(np.arange(problem.num_tensors, dtype=np.int64), np.diff(problem.tensor_indptr))
    outside = group[problem.tensor_dst] != group[problem.tensor_src[tensor]]
    pair = np.unique(tensor[outside] * num_groups + group[problem.tensor_dst[outside]])
    kept, counts = np.unique(pair // num_groups, return_counts=True)
    tensor_indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tensor_src, tensor_dst = group[problem.tensor_src[kept]], pair % num_groups
    return StageProblem(
        objective=problem.objective,
        work_s=np.stack([_grouped(row, group) for row in problem.work_s]),
        param_bytes=_grouped(problem.param_bytes, group),
        tensor_src=np.ascontiguousarray(tensor_src),
        tensor_indptr=tensor_indptr,
        tensor_dst=np.ascontiguousarray(tensor_dst),
        tensor_bytes=problem.tensor_bytes[kept],
        in_s=np.ascontiguousarray(problem.in_s[:, kept]),
        out_s=np.ascontiguousarray(problem.out_s[:, kept]),
        stage_class=problem.stage_class,
        memory_bytes=problem.memory_bytes,
        cache_bytes=problem.cache_bytes,
        overflow_s_per_byte=problem.overflow_s_per_byte,
        order=_topological(num_groups, np.repeat(tensor_src, counts), tensor_dst),
    )


def _grouped(weight: FloatArray, group: IntArray) -> FloatArray:
    return np.asarray(np.bincount(group, weights=weight), np.float64)


def _topological(num_nodes: int, tail: IntArray, head: IntArray) -> IntArray:
    """Return a topological order of the nodes, first come first served."""
    waiting = np.bincount(head, minlength=num_nodes).tolist()
    after: list[list[int]] = [[] for _ in range(num_nodes)]
    for u, v in zip(tail.tolist(), head.tolist(), strict=True):
        after[u].append(v)
    order = [v for v in range(num_nodes) if not waiting[v]]
    for u in order:
        for v in after[u]:
            waiting[v] -= 1
            if not waiting[v]:
                order.append(v)
    return np.array(order, np.int64)
