"""Nodes that an optimal assignment may keep with a neighbour: merging them leaves fewer ideals and the same optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.arrays import FloatArray, IntArray
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
    """

    problem: StageProblem
    group: IntArray

    def expand(self, assignment: StageAssignment) -> StageAssignment:
        """Return the assignment of the original nodes; its value is the same."""
        return StageAssignment(np.ascontiguousarray(assignment.stage[self.group]), assignment.classes)


def merge_weightless(problem: StageProblem) -> MergedProblem:
    """Merge every weightless node at an end of the graph into its only neighbour, until there is none left.

    A node is weightless if it takes no time on any class and its parameters change neither feasibility nor
    cost. One without predecessors may move up to its only successor's stage, one without successors back to its only
    predecessor's: no stage gains a tensor by it, so some optimal assignment has them together.

    Notes
    -----
    Keeps the optimal value of both objectives. Leaves isolated nodes alone, and problems where nothing is to be done
    as they are.

    References
    ----------
    The merging of costless inputs in Tarnawski et al., NeurIPS 2020 (their published code), here with its conditions.
    """
    n = problem.num_nodes
    weightless = (problem.work_s == 0).all(axis=0) & (_params_are_free(problem) | (problem.param_bytes == 0))
    if not weightless.any():
        return MergedProblem(problem, np.arange(n, dtype=np.int64))
    succ, pred = _neighbours(problem)
    into = np.arange(n, dtype=np.int64)
    queue = np.flatnonzero(weightless).tolist()
    while queue:
        v = queue.pop()
        if into[v] != v:
            continue
        if not pred[v] and len(succ[v]) == 1:
            here, there = succ, pred
        elif not succ[v] and len(pred[v]) == 1:
            here, there = pred, succ
        else:
            continue
        (u,) = here[v]
        into[v] = u
        there[u].discard(v)
        # Only u's situation changed, and only if nothing weighs it down.
        if weightless[u]:
            queue.append(u)
    while (into != into[into]).any():
        into = into[into]
    _, group = np.unique(into, return_inverse=True)
    return merge_nodes(problem, group.astype(np.int64))


def _params_are_free(problem: StageProblem) -> bool:
    """Return whether parameters may lie anywhere: no capacity, cache or peak depends on where."""
    if problem.objective == "memory":
        return False
    total = problem.param_bytes.sum()
    cached = (problem.cache_bytes >= total) | (problem.overflow_s_per_byte == 0)
    return bool((problem.memory_bytes >= total).all() and cached.all())


def _neighbours(problem: StageProblem) -> tuple[list[set[int]], list[set[int]]]:
    def rows(indptr: IntArray, indices: IntArray) -> list[set[int]]:
        flat = indices.tolist()
        return [set(flat[a:b]) for a, b in zip(indptr[:-1].tolist(), indptr[1:].tolist(), strict=True)]

    return rows(problem.succ_indptr, problem.succ), rows(problem.pred_indptr, problem.pred)


def merge_nodes(problem: StageProblem, group: IntArray) -> MergedProblem:
    """Return the problem on groups of nodes: work and parameters add up, tensors inside a group vanish.

    Parameters
    ----------
    problem
        The problem.
    group
        (n,) group of each node, numbers without gaps; the graph of groups has no cycle.
    """
    num_groups = int(group.max()) + 1
    if num_groups == problem.num_nodes:
        return MergedProblem(problem, np.arange(num_groups, dtype=np.int64)[group])
    tensor = np.repeat(np.arange(problem.num_tensors, dtype=np.int64), np.diff(problem.tensor_indptr))
    outside = group[problem.tensor_dst] != group[problem.tensor_src[tensor]]
    pair = np.unique(tensor[outside] * num_groups + group[problem.tensor_dst[outside]])
    kept, counts = np.unique(pair // num_groups, return_counts=True)
    tensor_indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tensor_src, tensor_dst = group[problem.tensor_src[kept]], pair % num_groups
    merged = StageProblem(
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
    return MergedProblem(merged, np.ascontiguousarray(group, np.int64))


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
