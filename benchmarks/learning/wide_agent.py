"""Train the stage agent on wide graphs and on unlike devices, which its own training has none of.

Three of four batches are graphs whose ops read up to four of the 4 to n before; two of five are on 3 to 6 stages of two
or three kinds of devices, where the reward is the exact slicing on these. Takes the flags of ``train/run.py``; the run
of docs/learning.md, 40 minutes, and what judges it:

``python -m benchmarks.learning.wide_agent --seed 5 --steps 20000 --minutes 40 --samples 24 --threads 1 --workers 0
--curriculum.sizes 40 80 160 --curriculum.ramp 0.3 --curriculum.newest 0.3 --curriculum.batch-nodes 2400
--reinforce.entropy-weight 0.01 --optimiser.learning-rate 1e-3 --problem.draw.least-stages 3
--problem.draw.most-stages 12 --problem.draw.memory-share 0.2 --problem.draw.draws 1 --problem.no-real-models
--validation.every 150 --validation.samples 0 --validation.small --run-dir runs/wide``

``python -m benchmarks.learning.strategy stage-agent --agent runs/wide/best.safetensors --seconds 1 --count 12 --rivals
none --families "wide graphs" "wired networks in pipelines"``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from rlinit.agent.stages.features import slice_orders
from rlinit.arrays import FloatArray, IntArray
from rlinit.datasets.random import stage_problems, synthetic
from rlinit.datasets.random.stage_problems import ProblemParams
from rlinit.datasets.random.synthetic import GraphBatch
from rlinit.stages.batch import StageBatch
from rlinit.stages.problem import StageProblem
from rlinit.stages.slicing import slice_order
from rlinit.train.run import main
from rlinit.train.tasks import stages as task

_PLAIN, _UNLIKE, _UNLIKE_NODES = 0.25, 0.4, 1_000
"""Shares of batches of the usual graphs, and of unlike devices; nodes of a batch of these at most."""

_HELD_OUT = 1 << 61
"""Seeds from here on are for validation, on equal stages."""

_batches = synthetic.batches
_drawn = stage_problems.draw_problems
_sliced = slice_orders
_valued = task._with_values


@dataclass(frozen=True, eq=False)
class _UnlikeBatch(StageBatch):
    """Problems on unlike devices: (c, n) seconds and (k,) classes of each; `load` is the mean of its stages."""

    work: tuple[FloatArray, ...] = ()
    classes: tuple[IntArray, ...] = ()

    def unlike(self, g: int) -> StageProblem:
        """Return one problem."""
        alike, c = self.problem(g), len(self.work[g])
        costs = {name: np.repeat(getattr(alike, name), c, axis=0) for name in ("in_s", "out_s")}
        free = {"memory_bytes": np.full(c, np.inf), "cache_bytes": np.full(c, np.inf)}
        kinds = {"work_s": self.work[g], "stage_class": self.classes[g], "overflow_s_per_byte": np.zeros(c)}
        return replace(alike, **costs, **free, **kinds)  # type: ignore[arg-type]


def _wide(seed: int, count: int, *, num_nodes: int = 30, statistics: Any = None) -> Iterator[GraphBatch]:
    """Yield one batch of wide graphs, or of the usual ones."""
    first = next(_batches(seed, count, num_nodes=num_nodes, statistics=statistics))
    rng = np.random.default_rng([seed, num_nodes, count, 7])
    if rng.random() < _PLAIN:
        yield first
        return
    parents = np.full((count, num_nodes, 4), -1, np.int64)
    for g in range(count):
        reach = int(np.exp(rng.uniform(np.log(4), np.log(num_nodes))))
        degree = int(rng.integers(1, 5)) if rng.random() < 0.5 else 2
        for v in range(1, num_nodes):
            low = max(0, v - reach)
            most = min(degree, v - low)
            if rng.random() < 0.03:
                continue
            own = low + rng.permutation(v - low)[: int(rng.integers(1, most + 1)) if degree > 2 else most]
            parents[g, v, : len(own)] = own
    yield GraphBatch(parents, first.param_bytes, first.out_bytes, first.flops, seed, 0)


def _on_unlike_devices(batch: StageBatch, seed: int) -> _UnlikeBatch:
    """Return the same graphs on devices of two or three kinds."""
    rng = np.random.default_rng([seed, 9])
    work, classes, load = [], [], batch.load.copy()
    for g, k in enumerate(batch.num_stages.tolist()):
        c, mine = int(rng.integers(2, 4)), slice(batch.node_ptr[g], batch.node_ptr[g + 1])
        kinds = np.concatenate([np.arange(min(c, k)), rng.integers(0, c, max(0, k - c))])
        _, kinds = np.unique(np.sort(kinds)[:k], return_inverse=True)
        c = int(kinds.max()) + 1
        speed = np.exp(rng.normal(0, 0.5, (c, 1)))
        spread = np.exp(rng.uniform(0.1, 0.8) * rng.standard_normal((c, len(load[mine]))))
        work.append(np.ascontiguousarray(batch.load[mine] * speed * spread))
        load[mine] = np.bincount(kinds, minlength=c) / k @ work[-1]
        classes.append(kinds.astype(np.int64))
    given = {one.name: getattr(batch, one.name) for one in fields(StageBatch)}
    given |= {"load": load, "cache": np.full(len(batch), np.inf), "overflow": np.zeros(len(batch))}
    return _UnlikeBatch(**given, work=tuple(work), classes=tuple(classes))


def _draw(params: ProblemParams, seed: int, size: int, count: int) -> StageBatch:
    if seed < _HELD_OUT and np.random.default_rng([seed, size, 5]).random() < _UNLIKE:
        alike = replace(params, memory_share=0.0, cache_share=0.0, draws=1, most_stages=6)
        return _on_unlike_devices(_drawn(alike, seed, size, min(count, max(4, _UNLIKE_NODES // size))), seed)
    return _drawn(params, seed, size, count)


def _slice(batch: StageBatch, orders: IntArray, guess: Any = None) -> tuple[FloatArray, IntArray]:
    if not isinstance(batch, _UnlikeBatch):
        return _sliced(batch, orders, guess)
    values, ptr = np.empty((len(batch), len(orders))), batch.node_ptr
    for g in range(len(batch)):
        problem = batch.unlike(g)
        found = [slice_order(problem, order[ptr[g] : ptr[g + 1]]) for order in orders]
        values[g] = [np.inf if one is None else one[1][0] for one in found]
    return values, np.zeros((len(orders), int(batch.num_stages.sum())), np.int64)


def _value(batch: StageBatch, **given: Any) -> task.StageProblems:
    found = _valued(batch, **given)
    if isinstance(batch, _UnlikeBatch):
        found = replace(found, reference=_slice(batch, batch.natural[None, :])[0][:, 0])
    return found


if __name__ == "__main__":
    with (
        patch.object(stage_problems, "batches", _wide),
        patch.multiple(task, draw_problems=_draw, slice_orders=_slice, _with_values=_value),
    ):
        sys.exit(main(sys.argv[1:]))
