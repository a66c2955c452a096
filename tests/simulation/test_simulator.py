"""The simulator against the plans it replays."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.checker import verify
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.simulation.simulator import simulate
from tests.draws import draws
from tests.executors.plans import random_case, random_graph, random_hardware, random_plan, stage_plan
from tests.placement_cases import placement_plan

SEEDS = st.integers(0, 100_000)
RULES = st.sampled_from(["parallel", "exclusive", "blocking"])


@given(seed=SEEDS, inputs=st.sampled_from([1, 3]), rule=RULES, scale=st.sampled_from([1e-9, 1.0, 1e12]))
@settings(max_examples=draws(150), deadline=None)
def test_by_its_own_rule_it_is_the_plan(seed: int, inputs: int, rule: str, scale: float) -> None:
    """By the rule of the plan every batch and transfer starts and ends exactly when the plan says."""
    plan, graph, hardware = random_case(seed, inputs=inputs, transfers=rule, scale=scale)  # type: ignore[arg-type]
    verify(plan, graph, hardware)
    run = simulate(plan, graph, hardware)
    assert {(b.op, b.device): b for b in run.batches} == {(b.op, b.device): b for b in plan.batches}
    assert run.makespan_s == plan.value
    if rule != "parallel":
        mine = {(t.op, t.source, t.target): (t.start_s, t.end_s) for t in run.transfers}
        assert mine == {(t.op, t.source, t.target): (t.start_s, t.end_s) for t in plan.transfers}
    assert run.busy_s == pytest.approx({use.device: use.busy_s for use in plan.devices if use.num_batches})


@given(seed=SEEDS, inputs=st.sampled_from([1, 3]))
@settings(max_examples=draws(60), deadline=None)
def test_contention_costs_time(seed: int, inputs: int) -> None:
    """Sharing links is never faster than transferring in parallel where each op is whole."""
    plan, graph, hardware = random_case(seed, inputs=1)
    alone = simulate(plan, graph, hardware).makespan_s
    run = simulate(plan, graph, hardware, contention="shared")
    assert run.makespan_s >= alone * (1 - 1e-12)


@given(seed=SEEDS)
@settings(max_examples=draws(40), deadline=None)
def test_shared_links_move_as_much_as_exclusive_ones(seed: int) -> None:
    """On one link without latency, all that is sent at one time arrives when the sum of the transfers is over."""
    rng = np.random.default_rng(seed)
    sizes = rng.random(4)
    ops = [(f"s{i}", {"time_s": 0.0, "out_bytes": float(size)}) for i, size in enumerate(sizes)]
    graph = Graph.build([*ops, ("t", {"time_s": 0.0})], [(f"s{i}", "t") for i in range(4)])
    hardware = random_hardware(0, 2, free=True)
    hardware = dataclasses.replace(hardware, bandwidth=np.ones((2, 2)))
    plan, problem_inputs = _by_hand(graph, hardware, [0, 0, 0, 0, 1]), 1
    run = simulate(plan, graph, hardware, contention="shared")
    assert problem_inputs == 1
    assert run.makespan_s == pytest.approx(sizes.sum())
    ends = sorted(movement.end_s for movement in run.transfers)
    ordered = np.sort(sizes)
    # Equal shares: the i-th smallest ends when i-1 smaller ones are through and the others moved as much as it.
    expected = [ordered[:i].sum() + ordered[i] * (4 - i) for i in range(4)]
    assert ends == pytest.approx(expected)


def _by_hand(graph: Graph, hardware: Hardware, device: list[int]):  # type: ignore[no-untyped-def]
    from rlinit.placements.lowering import lower_placement
    from rlinit.placements.timeline import placement_from_priority

    problem = lower_placement(graph, hardware, "latency").problem
    placement = placement_from_priority(problem, np.array(device)[:, None], np.arange(float(graph.num_ops)))
    return placement_plan(problem, placement, graph, hardware, method="given")


def test_refusals() -> None:
    """Plans for other graphs or hardware, of stages or with a circle of transfers are refused."""
    plan, graph, hardware = random_case(3, transfers="exclusive")
    with pytest.raises(InvalidPlan, match="another graph"):
        simulate(plan, random_graph(4), hardware)
    with pytest.raises(InvalidPlan, match="other hardware"):
        simulate(plan, graph, random_hardware(4))
    with pytest.raises(InvalidPlan, match="no batches"):
        simulate(stage_plan(graph, hardware, [0] * 8, objective="memory"), graph, hardware)
    with pytest.raises(InvalidPlan, match="no schedule"):
        simulate(dataclasses.replace(plan, assignment=None, status="no_solution"), graph, hardware)
    missing = dataclasses.replace(plan, batches=plan.batches[1:])
    with pytest.raises(InvalidPlan, match="does not run"):
        simulate(missing, graph, hardware)


def test_thousands_of_ops() -> None:
    """A plan of 3,000 ops on 4 devices is replayed exactly."""
    graph = random_graph(5, 3000, density=0.001)
    hardware = random_hardware(5, 4)
    plan = random_plan(graph, hardware, 5, transfers="exclusive")
    assert simulate(plan, graph, hardware).makespan_s == plan.value
    with pytest.raises(InvalidPlan, match="contention is 'none'"):
        simulate(plan, graph, hardware, contention="none")  # type: ignore[arg-type]
