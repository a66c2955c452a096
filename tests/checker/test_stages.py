"""The checker catches every way a plan can be untrue."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.plan import Plan


def model() -> rlinit.Graph:
    """Return a small graph with a skip connection, a colocated pair and an exclusion."""
    sizes = {"a": 4, "b": 2, "c": 8, "d": 1, "e": 2, "f": 4}
    ops = [
        (name, {"time_s": 1.0 + i, "param_bytes": size, "out_bytes": size})
        for i, (name, size) in enumerate(sizes.items())
    ]
    ops[1][1]["colocate"] = ops[2][1]["colocate"] = 1
    ops[5][1]["forbidden"] = ["stage0"]  # type: ignore[assignment]
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("d", "e"), ("e", "f")]
    return rlinit.Graph.build(ops, edges)


HARDWARE = rlinit.Hardware.pipeline(3, bandwidth=10.0, memory=16.0, cache=8.0)


def solved(objective: Any) -> Plan:
    """Return the optimal plan for the model."""
    plan = rlinit.schedule(model(), HARDWARE, objective=objective)
    assert plan.status == "optimal"
    return plan


def moved(plan: Plan, op: str, stage: int) -> Plan:
    """Return the plan with one op moved and nothing else changed."""
    assert plan.assignment is not None
    return dataclasses.replace(plan, assignment={**plan.assignment, op: stage})


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_true_plans_pass(objective: str) -> None:
    """What schedule returns is accepted."""
    rlinit.verify(solved(objective), model(), HARDWARE)


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_any_single_move_is_caught(objective: str) -> None:
    """Moving any op to any other stage, figures unchanged, is refused."""
    plan = solved(objective)
    assert plan.assignment is not None
    for op, at in plan.assignment.items():
        for stage in {0, 1, 2} - {at}:
            with pytest.raises(InvalidPlan):
                rlinit.verify(moved(plan, op, stage), model(), HARDWARE)


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_swapped_stages_are_caught(objective: str) -> None:
    """Exchanging two stages turns edges round or falsifies their figures."""
    plan = solved(objective)
    assert plan.assignment is not None
    for one, two in ((0, 1), (1, 2), (0, 2)):
        swap = {one: two, two: one}
        other = {op: swap.get(int(at), at) for op, at in plan.assignment.items()}
        if other != plan.assignment:
            with pytest.raises(InvalidPlan):
                rlinit.verify(dataclasses.replace(plan, assignment=other), model(), HARDWARE)


@pytest.mark.parametrize("objective", ["pipeline", "memory"])
def test_false_claims_are_caught(objective: str) -> None:
    """A changed value, bound, status, stage figure, device or fingerprint is refused."""
    plan = solved(objective)
    assert plan.values is not None
    better = (plan.values[0] * (1 - 1e-6), *plan.values[1:])
    too_high = (plan.values[0] * 1.1, *plan.values[1:])
    use = plan.stages[1]
    lies: list[dict[str, Any]] = [
        {"values": better},
        {"values": better, "bounds": better},
        {"bounds": too_high},
        {"bounds": (plan.values[0] * 0.9, *plan.values[1:])},
        {"status": "feasible"},
        {"status": "no_solution"},
        {"status": "infeasible"},
        {"stages": (plan.stages[0], dataclasses.replace(use, param_bytes=use.param_bytes + 1), plan.stages[2])},
        {"stages": (plan.stages[0], dataclasses.replace(use, num_ops=9), plan.stages[2])},
        {"stages": (plan.stages[0], plan.stages[0], plan.stages[2])},
        {"stages": (plan.stages[0], dataclasses.replace(use, device="tpu"), plan.stages[2])},
        {"graph_fingerprint": "0"},
        {"hardware_fingerprint": "0"},
        {"assignment": None},
        {"history": (*plan.history, dataclasses.replace(plan.history[-1], bounds=()))},
    ]
    for lie in lies:
        with pytest.raises(InvalidPlan):
            rlinit.verify(dataclasses.replace(plan, **lie), model(), HARDWARE)


def test_constraints_are_checked_by_name() -> None:
    """Backward edges, colocation, exclusions, memory, unknown and missing ops are each named."""
    plan = solved("pipeline")
    assert plan.assignment is not None
    base = dict.fromkeys("abcdef", 1)
    cases: list[tuple[dict[str, int], str]] = [
        ({**base, "a": 2}, "edge .* runs backwards"),
        ({**base, "a": 0, "b": 0, "f": 2}, "colocated ops"),
        (dict.fromkeys("abcdef", 0), "forbidden"),
        ({**base, "f": 2}, "memory has 16"),
        ({op: 1 for op in "abcde"}, "'f' is not assigned"),
        ({**base, "f": 3}, "stage 3; expected 0..2"),
    ]
    for assignment, message in cases:
        uses = tuple(dataclasses.replace(use, device=f"stage{j}") for j, use in enumerate(plan.stages))
        if "memory" in message:
            uses = rlinit.checker.stages.stage_uses(assignment, model(), HARDWARE, [u.device for u in uses], "pipeline")
        with pytest.raises(InvalidPlan, match=message):
            rlinit.verify(dataclasses.replace(plan, assignment=assignment, stages=uses), model(), HARDWARE)
    with pytest.raises(InvalidPlan, match="'zz'"):
        rlinit.verify(dataclasses.replace(plan, assignment={**plan.assignment, "zz": 0}), model(), HARDWARE)


def test_hand_worked_costs() -> None:
    """Two stages of a worked example cost what the definitions say, each tensor once.

    a (out 4) -> b, c -> d; stage 0 = {a, b}, stage 1 = {c, d}; B = 2 bytes/s.
    stage 0: work 1 + 2, sends a (4) and b (2): 3 s.  stage 1: receives both: 3 s, work 3 + 4.
    """
    ops = [
        (name, {"time_s": i + 1.0, "out_bytes": size})
        for i, (name, size) in enumerate(zip("abcd", (4, 2, 6, 8), strict=True))
    ]
    graph = rlinit.Graph.build(ops, [("a", "b"), ("a", "c"), ("a", "d"), ("b", "d"), ("c", "d")])
    hardware = rlinit.Hardware.pipeline(2, bandwidth=2.0)
    uses = rlinit.checker.stages.stage_uses(
        {"a": 0, "b": 0, "c": 1, "d": 1}, graph, hardware, ["stage0", "stage1"], "pipeline"
    )
    assert [(use.in_s, use.work_s, use.out_s) for use in uses] == [(0.0, 3.0, 3.0), (3.0, 7.0, 0.0)]
