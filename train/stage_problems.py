"""Training problems for stage agents: synthetic networks on equal stages, drawn from seeds, as joined arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlinit.agent.stage_batch import StageBatch
from rlinit.datasets.synthetic import GraphBatch, batches
from rlinit.errors import RlinitError
from rlinit.stages import FloatArray, IntArray, StageProblem

__all__ = ["ProblemParams", "draw_problems"]

_PEAK_FLOPS, _BYTES_PER_S = 4e12, 32e9
"""Rates of an Edge TPU, for the roofline model; see `Hardware.edge_tpus`."""


@dataclass(frozen=True, slots=True)
class ProblemParams:
    """Which problems are drawn.

    Parameters
    ----------
    least_stages, most_stages
        k is drawn evenly from here to there.
    memory_share
        Fraction of `memory` problems; the rest are `pipeline` problems.
    least_transfer, most_transfer
        Seconds to move every tensor once over the seconds of all work, drawn evenly on a logarithmic scale.
    cache_share
        Fraction of `pipeline` problems whose parameters overflow the stages' caches.
    least_power
        Costs are raised to a power drawn evenly from here to 1, which makes them more even than a few large
        operators leave them: a graph whose largest operator is the bottleneck teaches nothing.
    """

    least_stages: int = 2
    most_stages: int = 8
    memory_share: float = 0.3
    least_transfer: float = 0.05
    most_transfer: float = 2.0
    cache_share: float = 0.3
    least_power: float = 0.25

    def __post_init__(self) -> None:
        if not 1 <= self.least_stages <= self.most_stages:
            raise RlinitError(f"stages go from {self.least_stages} to {self.most_stages}; expected 1 <= least <= most")
        if not 0 < self.least_power <= 1:
            raise RlinitError(f"least_power is {self.least_power}; expected 0 < least_power <= 1")
        if not 0 < self.least_transfer <= self.most_transfer:
            raise RlinitError(
                f"transfers go from {self.least_transfer} to {self.most_transfer}; expected 0 < least <= most"
            )
        for name in ("memory_share", "cache_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise RlinitError(f"{name} is {getattr(self, name)}; expected a fraction")


def draw_problems(params: ProblemParams, seed: int, num_nodes: int, count: int) -> StageBatch:
    """Return `count` problems on graphs of `num_nodes` nodes, the same for the same arguments."""
    graphs = next(batches(seed, count, num_nodes=num_nodes))
    rng = np.random.default_rng([seed, num_nodes, count])
    stages = rng.integers(params.least_stages, params.most_stages + 1, count)
    memory = rng.random(count) < params.memory_share
    transfer = np.exp(rng.uniform(np.log(params.least_transfer), np.log(params.most_transfer), count))
    overflows = (rng.random(count) < params.cache_share) & ~memory
    tightness = rng.uniform(0.3, 1.2, count)
    overflow_weight = np.exp(rng.uniform(np.log(0.05), np.log(1.0), count))
    power = rng.uniform(params.least_power, 1.0, (3, count))
    return _on_equal_stages(graphs, stages, memory, transfer, overflows, tightness, overflow_weight, power)


def _on_equal_stages(
    graphs: GraphBatch,
    stages: IntArray,
    memory: np.ndarray[tuple[int], np.dtype[np.bool_]],
    transfer: FloatArray,
    overflows: np.ndarray[tuple[int], np.dtype[np.bool_]],
    tightness: FloatArray,
    overflow_weight: FloatArray,
    power: FloatArray,
) -> StageBatch:
    """Return the graphs as problems; built as one problem on their disjoint union, whose arrays are then shared out."""
    count, n, _ = graphs.parents.shape
    graph, node, slot = np.nonzero(graphs.parents >= 0)
    src = graphs.parents[graph, node, slot] + graph * n
    dst = node + graph * n
    order = np.lexsort((dst, src))
    src, dst = src[order], dst[order]
    makers, first = np.unique(src, return_index=True)
    of_node = np.repeat(np.arange(count), n)
    out = graphs.out_bytes.reshape(-1) ** power[0][of_node]
    param = graphs.param_bytes.reshape(-1) ** power[1][of_node]
    moved = out + param + np.bincount(dst, weights=out[src], minlength=count * n)
    work = np.maximum(graphs.flops.reshape(-1) / _PEAK_FLOPS, moved / _BYTES_PER_S) ** power[2][of_node]
    total_work = work.reshape(count, n).sum(axis=1)
    of_tensor = makers // n
    size = out[makers]
    total_bytes = np.bincount(of_tensor, weights=size, minlength=count)
    move_s = np.where(memory, 0.0, transfer * total_work / np.maximum(total_bytes, 1.0))
    total_param = param.reshape(count, n).sum(axis=1)
    union = StageProblem(
        objective="pipeline",
        work_s=work[None, :],
        param_bytes=param,
        tensor_src=makers.astype(np.int64),
        tensor_indptr=np.append(first, len(src)).astype(np.int64),
        tensor_dst=dst.astype(np.int64),
        tensor_bytes=size,
        in_s=(size * move_s[of_tensor])[None, :],
        out_s=(size * move_s[of_tensor])[None, :],
        stage_class=np.zeros(1, np.int64),
        memory_bytes=np.array([np.inf]),
        cache_bytes=np.array([np.inf]),
        overflow_s_per_byte=np.zeros(1),
        order=np.arange(count * n, dtype=np.int64),
    )
    node_ptr = np.arange(0, count * n + 1, n, dtype=np.int64)
    tensor_ptr = np.concatenate([[0], np.cumsum(np.bincount(of_tensor, minlength=count))]).astype(np.int64)
    cache = np.where(memory | overflows, tightness * total_param / stages, np.inf)
    overflow = np.where(overflows, overflow_weight * total_work / np.maximum(total_param, 1.0), 0.0)
    shift_tensor = node_ptr[of_tensor]
    return StageBatch(
        node_ptr=node_ptr,
        tensor_ptr=tensor_ptr,
        memory=memory,
        num_stages=stages.astype(np.int64),
        load=np.where(memory[of_node], param, work),
        param=param,
        in_s=union.in_s[0],
        out_s=union.out_s[0],
        tensor_bytes=size,
        capacity=np.full(count, np.inf),
        cache=cache,
        overflow=overflow,
        natural=np.arange(count * n, dtype=np.int64) % n,
        level=union.level,
        tensor_src=union.tensor_src - shift_tensor,
        tensor_indptr=union.tensor_indptr,
        tensor_dst=union.tensor_dst % n,
        succ_indptr=union.succ_indptr,
        succ=union.succ % n,
        pred_indptr=union.pred_indptr,
        pred=union.pred % n,
        out_indptr=union.out_indptr,
        out_tensor=union.out_tensor - tensor_ptr[of_tensor[union.out_tensor]],
        in_indptr=union.in_indptr,
        in_tensor=union.in_tensor - tensor_ptr[of_tensor[union.in_tensor]],
    )
