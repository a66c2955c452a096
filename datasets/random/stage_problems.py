"""Training problems for stage agents: synthetic networks on equal stages, drawn from seeds, as joined arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlinit.agent.stages.features import slice_orders
from rlinit.arrays import BoolArray, FloatArray, IntArray
from rlinit.datasets.random.graph_statistics import IMAGENET
from rlinit.datasets.random.synthetic import GraphBatch, batches
from rlinit.errors import InvalidConfig
from rlinit.hardware import Hardware
from rlinit.kernels.stages.rollouts import sample_orders
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem

_TPU = Hardware.edge_tpus(1).devices[0]
_PEAK_FLOPS, _BYTES_PER_S = np.array([_TPU.flops_per_s, _TPU.bytes_per_s], np.float64)
"""Its rates, for the roofline model."""

_TRIAL_ORDERS = 4
"""Orders drawn to see whether the order matters."""


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
    wide_share
        Fraction of batches whose graphs are not like real networks but wider: parents lie farther back and merges are
        more frequent, by how much is drawn for each batch. Their orders matter more.
    shuffled_share
        Fraction of problems whose given order, the one to improve on, is drawn evenly instead of the natural one: an
        agent that has seen these can also improve on its own orders.
    draws
        Problems drawn for each that is kept; see `draw_problems`.

    Raises
    ------
    InvalidConfig
        A number outside the range given with its field.
    """

    least_stages: int = 2
    most_stages: int = 8
    memory_share: float = 0.4
    least_transfer: float = 0.05
    most_transfer: float = 2.0
    cache_share: float = 0.3
    least_power: float = 0.25
    wide_share: float = 0.5
    shuffled_share: float = 0.5
    draws: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.least_stages <= self.most_stages:
            raise InvalidConfig(
                f"least_stages is {self.least_stages}, most_stages {self.most_stages}; expected 1 <= least <= most"
            )
        if self.draws < 1:
            raise InvalidConfig(f"draws is {self.draws}; expected at least 1")
        if not 0 < self.least_power <= 1:
            raise InvalidConfig(f"least_power is {self.least_power}; expected 0 < least_power <= 1")
        if not 0 < self.least_transfer <= self.most_transfer:
            raise InvalidConfig(
                f"least_transfer is {self.least_transfer}, most_transfer {self.most_transfer}; expected 0 < least"
                " <= most"
            )
        for name in ("memory_share", "cache_share", "wide_share", "shuffled_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidConfig(f"{name} is {getattr(self, name)}; expected a fraction")


@dataclass(frozen=True, slots=True, eq=False)
class _Drawn:
    """Graphs and what was drawn for each of them, (B,) or (3, B): exponents of output bytes, parameters and work."""

    graphs: GraphBatch
    stages: IntArray
    memory: BoolArray
    transfer: FloatArray
    overflows: BoolArray
    tightness: FloatArray
    power: FloatArray

    def take(self, keep: IntArray) -> _Drawn:
        """Return some of them."""
        graphs, stages, transfer = self.graphs.take(keep), self.stages[keep], self.transfer[keep]
        overflows, tightness = self.overflows[keep], self.tightness[keep]
        return _Drawn(graphs, stages, self.memory[keep], transfer, overflows, tightness, self.power[:, keep])


def draw_problems(params: ProblemParams, seed: int, num_nodes: int, count: int) -> StageBatch:
    """Return `count` problems on graphs of `num_nodes` nodes, the same for the same arguments.

    Where there are more draws than problems, those are kept whose value depends on the order: of some orders drawn
    evenly not all are as good as the natural one. What is missing then are the first of the others.

    Parameters
    ----------
    params
        What the problems are like.
    seed
        Of the draws.
    num_nodes
        Nodes of each graph.
    count
        How many, at least 1.
    """
    drawn = _draw(params, seed, num_nodes, count * params.draws)
    batch = _with_given_orders(params, _on_equal_stages(drawn), seed)
    if params.draws == 1:
        return batch
    orders = np.empty((_TRIAL_ORDERS + 1, batch.num_nodes), np.int64)
    even = np.zeros(batch.num_nodes)
    sample_orders(even, batch.node_ptr, batch.succ_indptr, batch.succ, batch.pred_indptr, _TRIAL_ORDERS, seed, orders)
    orders[-1] = batch.natural
    values, _ = slice_orders(batch, orders)
    matters = values.max(axis=1) > values.min(axis=1) * (1.0 + 1e-6)
    keep = np.argsort(~matters, kind="stable")[:count]
    given = batch.natural.reshape(-1, num_nodes)[keep]
    return replace(_on_equal_stages(drawn.take(keep)), natural=given.ravel())


def _with_given_orders(params: ProblemParams, batch: StageBatch, seed: int) -> StageBatch:
    """Return the batch with a drawn order in place of the natural one of some problems."""
    rng = np.random.default_rng([seed, 1])
    drawn = np.empty((1, batch.num_nodes), np.int64)
    even = np.zeros(batch.num_nodes)
    sample_orders(even, batch.node_ptr, batch.succ_indptr, batch.succ, batch.pred_indptr, 1, seed, drawn)
    shuffled = (rng.random(len(batch)) < params.shuffled_share)[batch.graph_of_node]
    return replace(batch, natural=np.where(shuffled, drawn[0], batch.natural))


def _draw(params: ProblemParams, seed: int, num_nodes: int, count: int) -> _Drawn:
    rng = np.random.default_rng([seed, num_nodes, count])
    memory = rng.random(count) < params.memory_share
    low, high = np.log(params.least_transfer), np.log(params.most_transfer)
    statistics = IMAGENET
    if rng.random() < params.wide_share:
        statistics = replace(
            IMAGENET,
            merge_rate=rng.uniform(0.05, 0.5),
            previous_rate=rng.uniform(0.1, 0.9),
            skip_mean=rng.uniform(2.0, 10.0),
        )
    return _Drawn(
        graphs=next(batches(seed, count, num_nodes=num_nodes, statistics=statistics)),
        stages=rng.integers(params.least_stages, params.most_stages + 1, count),
        memory=memory,
        transfer=np.exp(rng.uniform(low, high, count)),
        overflows=(rng.random(count) < params.cache_share) & ~memory,
        tightness=rng.uniform(0.3, 1.2, count),
        power=rng.uniform(params.least_power, 1.0, (3, count)),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Edges of the disjoint union of graphs, (E,) by producer; (M,) the `makers` of tensors and their first edges."""

    src: IntArray
    dst: IntArray
    makers: IntArray
    first: IntArray

    @classmethod
    def of(cls, parents: IntArray) -> _Edges:
        """Return the edges from (B, n, p) parents of each node, negative where there is none."""
        n = parents.shape[1]
        graph, node, slot = np.nonzero(parents >= 0)
        src, dst = parents[graph, node, slot] + graph * n, node + graph * n
        order = np.lexsort((dst, src))
        makers, first = np.unique(src[order], return_index=True)
        return cls(src[order], dst[order], makers, first)


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """Seconds of work, parameter and output bytes of each node, and (B,) seconds that a byte takes between stages."""

    work: FloatArray
    param: FloatArray
    out: FloatArray
    move_s: FloatArray

    @classmethod
    def of(cls, drawn: _Drawn, edges: _Edges) -> _Sizes:
        """Return what the draws make of the graphs."""
        graphs, power = drawn.graphs, drawn.power
        count, n, _ = graphs.parents.shape
        of_node = np.repeat(np.arange(count), n)
        out = graphs.out_bytes.reshape(-1) ** power[0][of_node]
        param = graphs.param_bytes.reshape(-1) ** power[1][of_node]
        moved = out + param + np.bincount(edges.dst, weights=out[edges.src], minlength=count * n)
        work = np.maximum(graphs.flops.reshape(-1) / _PEAK_FLOPS, moved / _BYTES_PER_S) ** power[2][of_node]
        total_work = work.reshape(count, n).sum(axis=1)
        total_bytes = np.bincount(edges.makers // n, weights=out[edges.makers], minlength=count)
        move_s = np.where(drawn.memory, 0.0, drawn.transfer * total_work / np.maximum(total_bytes, 1.0))
        return cls(work, param, out, move_s)


def _union(edges: _Edges, sizes: _Sizes, of_tensor: IntArray) -> StageProblem:
    """Return one problem on the disjoint union of graphs; `of_tensor` (M,) is the graph of each tensor."""
    size = sizes.out[edges.makers]
    seconds = (size * sizes.move_s[of_tensor])[None, :]
    return StageProblem(
        objective="pipeline",
        work_s=sizes.work[None, :],
        param_bytes=sizes.param,
        tensor_src=edges.makers.astype(np.int64),
        tensor_indptr=np.append(edges.first, len(edges.src)).astype(np.int64),
        tensor_dst=edges.dst.astype(np.int64),
        tensor_bytes=size,
        in_s=seconds,
        out_s=seconds.copy(),
        stage_class=np.zeros(1, np.int64),
        memory_bytes=np.array([np.inf]),
        cache_bytes=np.array([np.inf]),
        overflow_s_per_byte=np.zeros(1),
        order=np.arange(len(sizes.work), dtype=np.int64),
    )


def _on_equal_stages(drawn: _Drawn) -> StageBatch:
    """Return the problems; built as one problem on the disjoint union of graphs, whose arrays are then shared out."""
    memory, stages = drawn.memory, drawn.stages
    count, n, _ = drawn.graphs.parents.shape
    edges = _Edges.of(drawn.graphs.parents)
    sizes = _Sizes.of(drawn, edges)
    of_tensor, of_node = edges.makers // n, np.repeat(np.arange(count), n)
    union = _union(edges, sizes, of_tensor)
    node_ptr = np.arange(0, count * n + 1, n, dtype=np.int64)
    tensor_ptr = np.concatenate([[0], np.cumsum(np.bincount(of_tensor, minlength=count))]).astype(np.int64)
    total_param = sizes.param.reshape(count, n).sum(axis=1)
    return StageBatch(
        node_ptr=node_ptr,
        tensor_ptr=tensor_ptr,
        memory=memory,
        num_stages=stages.astype(np.int64),
        load=np.where(memory[of_node], sizes.param, sizes.work),
        param=sizes.param,
        in_s=union.in_s[0],
        out_s=union.out_s[0],
        tensor_bytes=union.tensor_bytes,
        capacity=np.full(count, np.inf),
        cache=np.where(memory | drawn.overflows, drawn.tightness * total_param / stages, np.inf),
        overflow=np.where(drawn.overflows, sizes.move_s, 0.0),
        natural=np.arange(count * n, dtype=np.int64) % n,
        level=union.level,
        tensor_src=union.tensor_src - node_ptr[of_tensor],
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
