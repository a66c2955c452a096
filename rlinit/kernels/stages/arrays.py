"""Arrays of a stage problem that kernels take together; names and shapes are those of `StageProblem`."""

from __future__ import annotations

from typing import NamedTuple

from rlinit.arrays import FloatArray, IntArray


class TensorArrays(NamedTuple):
    """What each node makes and reads, and the producer and consumers of each of m tensors."""

    out_indptr: IntArray
    out_tensor: IntArray
    in_indptr: IntArray
    in_tensor: IntArray
    src: IntArray
    indptr: IntArray
    dst: IntArray


class CostArrays(NamedTuple):
    """What a stage of each of c classes costs: (c, n) work, (n,) param, (c, m) in_s and out_s, the others (c,)."""

    work: FloatArray
    param: FloatArray
    cache: FloatArray
    memory: FloatArray
    overflow: FloatArray
    in_s: FloatArray
    out_s: FloatArray


class Precedence(NamedTuple):
    """Successors and predecessors of each node."""

    succ_indptr: IntArray
    succ: IntArray
    pred_indptr: IntArray
    pred: IntArray


class StageArrays(NamedTuple):
    """All of the above in one, for kernels that build stages op by op.

    For the `memory` objective `work` is the parameter bytes (inf where forbidden) and tensors cost nothing.
    """

    work: FloatArray
    param: FloatArray
    cache: FloatArray
    memory: FloatArray
    overflow: FloatArray
    in_s: FloatArray
    out_s: FloatArray
    out_indptr: IntArray
    out_tensor: IntArray
    in_indptr: IntArray
    in_tensor: IntArray
    tensor_src: IntArray
    tensor_indptr: IntArray
    tensor_dst: IntArray
    succ_indptr: IntArray
    succ: IntArray
    pred_indptr: IntArray
    pred: IntArray
