"""Stage problems of equal stages, one or many joined, as the arrays that kernels of the agents take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlinit.arrays import FloatArray, IntArray
from rlinit.kernels.stages.arrays import TensorArrays
from rlinit.kernels.stages.rollouts import SliceBatch
from rlinit.stages.problem import StageProblem


@dataclass(frozen=True, slots=True, eq=False)
class StageBatch:
    """G stage problems with N nodes and M tensors in all; each has equal stages.

    Node v of graph g sits at ``node_ptr[g] + v``. Numbers of nodes and tensors are those within the graph; pointers
    into `succ` and the like count through the whole batch.

    Parameters
    ----------
    memory
        (G,) bool: the objective is `memory`, not `pipeline`.
    num_stages
        (G,) k.
    load
        (N,) what stages are balanced by: seconds for `pipeline`, parameter bytes for `memory`.
    in_s, out_s
        (M,) seconds of each tensor; zeros for `memory`.
    capacity, cache, overflow
        (G,) memory bytes, cache bytes and seconds per byte of overflow of a stage.
    natural
        (N,) the natural order of each graph.

    The other fields are those of `StageProblem`, joined.
    """

    node_ptr: IntArray
    tensor_ptr: IntArray
    memory: NDArray[np.bool_]
    num_stages: IntArray
    load: FloatArray
    param: FloatArray
    in_s: FloatArray
    out_s: FloatArray
    tensor_bytes: FloatArray
    capacity: FloatArray
    cache: FloatArray
    overflow: FloatArray
    natural: IntArray
    level: IntArray
    tensor_src: IntArray
    tensor_indptr: IntArray
    tensor_dst: IntArray
    succ_indptr: IntArray
    succ: IntArray
    pred_indptr: IntArray
    pred: IntArray
    out_indptr: IntArray
    out_tensor: IntArray
    in_indptr: IntArray
    in_tensor: IntArray

    def __len__(self) -> int:
        """Return the number of graphs G."""
        return len(self.node_ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all graphs, N."""
        return len(self.load)

    @property
    def graph_of_node(self) -> IntArray:
        """(N,) the graph each node is of."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.node_ptr))

    @property
    def graph_of_tensor(self) -> IntArray:
        """(M,) the graph each tensor is of."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.tensor_ptr))

    @property
    def slice_arrays(self) -> SliceBatch:
        """The problems as the kernel that slices orders takes them."""
        return SliceBatch(
            self.node_ptr,
            self.tensor_ptr,
            self.num_stages,
            self.memory,
            self.load,
            self.param,
            self.cache,
            self.capacity,
            self.overflow,
            self.in_s,
            self.out_s,
            TensorArrays(
                self.out_indptr,
                self.out_tensor,
                self.in_indptr,
                self.in_tensor,
                self.tensor_src,
                self.tensor_indptr,
                self.tensor_dst,
            ),
        )

    @classmethod
    def of_problem(cls, problem: StageProblem) -> StageBatch:
        """Return one problem; classes of stages are averaged, weighted by how many stages each has."""
        share = problem.class_count / problem.num_stages
        memory = problem.objective == "memory"
        finite = np.where(np.isfinite(problem.work_s), problem.work_s, 0.0)

        def mean(values: FloatArray) -> FloatArray:
            return np.array([float(values[share > 0] @ share[share > 0])])

        return cls(
            node_ptr=np.array([0, problem.num_nodes], np.int64),
            tensor_ptr=np.array([0, problem.num_tensors], np.int64),
            memory=np.array([memory]),
            num_stages=np.array([problem.num_stages], np.int64),
            load=problem.param_bytes if memory else np.ascontiguousarray(share @ finite),
            param=problem.param_bytes,
            in_s=np.zeros(problem.num_tensors) if memory else np.ascontiguousarray(share @ problem.in_s),
            out_s=np.zeros(problem.num_tensors) if memory else np.ascontiguousarray(share @ problem.out_s),
            tensor_bytes=problem.tensor_bytes,
            capacity=mean(problem.memory_bytes),
            cache=mean(problem.cache_bytes),
            overflow=np.zeros(1) if memory else mean(problem.overflow_s_per_byte),
            natural=problem.order,
            level=problem.level,
            tensor_src=problem.tensor_src,
            tensor_indptr=problem.tensor_indptr,
            tensor_dst=problem.tensor_dst,
            succ_indptr=problem.succ_indptr,
            succ=problem.succ,
            pred_indptr=problem.pred_indptr,
            pred=problem.pred,
            out_indptr=problem.out_indptr,
            out_tensor=problem.out_tensor,
            in_indptr=problem.in_indptr,
            in_tensor=problem.in_tensor,
        )

    @property
    def precedence(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Where graphs begin, pointers and nodes of successors, and pointers of predecessors."""
        return self.node_ptr, self.succ_indptr, self.succ, self.pred_indptr

    def problem(self, g: int) -> StageProblem:
        """Return graph g as a stage problem."""
        nodes = slice(self.node_ptr[g], self.node_ptr[g + 1])
        tensors = slice(self.tensor_ptr[g], self.tensor_ptr[g + 1])
        indptr = self.tensor_indptr[tensors.start : tensors.stop + 1]
        memory = bool(self.memory[g])
        load = np.zeros_like(self.load[nodes]) if memory else self.load[nodes]
        return StageProblem(
            objective="memory" if memory else "pipeline",
            work_s=load[None, :].copy(),
            param_bytes=self.param[nodes].copy(),
            tensor_src=self.tensor_src[tensors].copy(),
            tensor_indptr=indptr - indptr[0],
            tensor_dst=self.tensor_dst[indptr[0] : indptr[-1]].copy(),
            tensor_bytes=self.tensor_bytes[tensors].copy(),
            in_s=self.in_s[None, tensors].copy(),
            out_s=self.out_s[None, tensors].copy(),
            stage_class=np.zeros(self.num_stages[g], np.int64),
            memory_bytes=self.capacity[g : g + 1].copy(),
            cache_bytes=self.cache[g : g + 1].copy(),
            overflow_s_per_byte=self.overflow[g : g + 1].copy(),
            order=self.natural[nodes].copy(),
        )
