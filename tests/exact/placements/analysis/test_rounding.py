"""The step between makespans: schedules of every rule end on it, and bounds rise to it."""

from __future__ import annotations

import numpy as np
import pytest

import rlinit
from rlinit.exact.placements.analysis.rounding import makespan_quantum
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.timeline import makespan
from rlinit.plan import Transfers
from tests.placement_cases import random_placement, random_placement_problem


def task_graph(seed: int, step: float) -> Graph:
    """Return eight ops whose times and edges' bytes are whole multiples of a step."""
    rng = np.random.default_rng(seed)
    ops = [(f"op{v}", {"time_s": step * float(rng.integers(1, 9))}) for v in range(8)]
    edges = [
        (f"op{u}", f"op{v}", step * float(rng.integers(0, 9)))
        for u in range(8)
        for v in range(u + 1, 8)
        if rng.random() < 0.3
    ]
    return Graph.build(ops, edges)


PAIR = Hardware.mesh([Device("p0", "p"), Device("p1", "p")], 1.0)


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_every_schedule_ends_on_the_step(transfers: Transfers) -> None:
    """Makespans of random schedules are whole multiples, whatever queues."""
    for seed in range(10):
        problem = lower_placement(task_graph(seed, 0.375), PAIR, "latency", transfers=transfers).problem
        step = makespan_quantum(problem)
        assert step in (0.375, 0.75)
        rng = np.random.default_rng(seed)
        for _ in range(10):
            assert (makespan(problem, random_placement(problem, rng)) / step).is_integer()


def test_none_is_claimed_without_a_common_step() -> None:
    """Random reals, tenths and ops in several batches have none."""
    assert makespan_quantum(random_placement_problem(1)) == 0.0
    assert makespan_quantum(lower_placement(task_graph(0, 0.1), PAIR, "latency").problem) == 0.0
    assert makespan_quantum(random_placement_problem(1, shards=2, integer=True)) == 0.0


def test_a_bound_rises_to_the_next_makespan() -> None:
    """Three ops of one second on two devices: half of the work is 1.5 s, so no schedule ends before 2 s."""
    graph = Graph.build([(name, {"time_s": 1.0}) for name in "abc"], [])
    plan = rlinit.schedule(graph, PAIR, objective="latency", method="heft", time_limit_s=1)
    assert plan.status == "optimal"
    assert plan.bound == 2.0
