"""Plans that `verify` took for true, or stumbled over, though something in them is wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.hardware import Device, Hardware
from rlinit.plan import HistoryEntry, Objective, Plan
from tests.certificates import attack

NAN, HUGE = math.nan, 10**400


def chain(*seconds: float) -> rlinit.Graph:
    """Return ops in a row with these times."""
    ops = [
        (f"op{i}", {"time_s": {"*": {1: s, 2: 1.5 * s}}, "param_bytes": 3.5, "out_bytes": 2.0})
        for i, s in enumerate(seconds)
    ]
    return rlinit.Graph.build(ops, [(f"op{i}", f"op{i + 1}") for i in range(len(seconds) - 1)])


GRAPH = chain(1.0, 2.0, 3.0)
STAGES = Hardware.pipeline(2, bandwidth=10.0)
MESH = Hardware.mesh([Device("a"), Device("b")], 10.0)


def solved(objective: Objective) -> Plan:
    """Return an optimal plan of the chain."""
    if objective in ("pipeline", "memory"):
        return rlinit.schedule(GRAPH, STAGES, objective=objective)
    inputs = 2 if objective == "throughput" else None
    return rlinit.schedule(GRAPH, MESH, objective=objective, inputs=inputs, transfers="exclusive", time_limit_s=5.0)


def refused(plan: Plan, message: str | None = None) -> None:
    """Check that a plan is refused by the error that is meant for it."""
    hardware = STAGES if plan.objective in ("pipeline", "memory") else MESH
    with pytest.raises(InvalidPlan, match=message):
        rlinit.verify(plan, GRAPH, hardware)


def test_inputs_of_a_pipeline_are_one() -> None:
    """`inputs` of a pipeline plan multiplies its inputs a second, and was not looked at."""
    for objective in ("pipeline", "memory"):
        refused(dataclasses.replace(solved(objective), inputs=1000), "inputs")
    refused(dataclasses.replace(solved("pipeline"), shard_inputs=2), "shard_inputs")
    refused(dataclasses.replace(solved("latency"), inputs=7, shard_inputs=7), "inputs is 7; expected 1 for latency")


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency", "throughput"])
@pytest.mark.parametrize("number", [NAN, math.inf, HUGE, -1.0, "1", True, None], ids=lambda n: repr(n)[:5])
def test_numbers_are_numbers(objective: Objective, number: Any) -> None:
    """NaN compares false with everything, an integer beyond floats overflows: neither is a value, bound or figure."""
    plan = solved(objective)
    assert plan.values is not None
    refused(dataclasses.replace(plan, values=(number, *plan.values[1:])))
    refused(dataclasses.replace(plan, values=(*plan.values[:-1], number)))
    if number != -1.0:
        refused(dataclasses.replace(plan, bounds=(number, *plan.values[1:])))
    if number not in (math.inf, -1.0):
        refused(dataclasses.replace(plan, history=(HistoryEntry(number, None, None, ""),)))
    if plan.stages:
        for figure in ("work_s", "param_bytes", "off_cache_bytes", "activation_bytes", "num_ops"):
            wrong = dataclasses.replace(plan.stages[0], **{figure: number})
            refused(dataclasses.replace(plan, stages=(wrong, *plan.stages[1:])))
    for what in ("start_s", "end_s"):
        if plan.batches:
            late = dataclasses.replace(plan.batches[0], **{what: number})
            refused(dataclasses.replace(plan, batches=(late, *plan.batches[1:])))
    if plan.devices:
        wrong_use = dataclasses.replace(plan.devices[0], busy_s=number)
        refused(dataclasses.replace(plan, devices=(wrong_use, *plan.devices[1:])))


def test_slack_does_not_grow_with_the_makespan() -> None:
    """A batch that starts at 1e12 s gave others a thousand seconds in which they could overlap or come early."""
    graph = rlinit.Graph.build([(name, {"time_s": 1.0}) for name in "abc"], [])
    one = Hardware.mesh([Device("d")])
    plan = rlinit.schedule(graph, one, objective="latency")
    starts = {"a": 0.0, "b": 0.5, "c": 1e12}
    batches = tuple(
        dataclasses.replace(batch, start_s=starts[batch.op], end_s=starts[batch.op] + 1.0)
        for batch in sorted(plan.batches, key=lambda batch: starts[batch.op])
    )
    value = 1e12 + 1.0
    wrong = dataclasses.replace(
        plan, batches=batches, start_s=starts, values=(value,), bounds=(3.0,), status="feasible", history=()
    )
    with pytest.raises(InvalidPlan, match="two batches at once"):
        rlinit.verify(wrong, graph, one)
    far = tuple(
        dataclasses.replace(batch, start_s=1e12 + at / 1e3, end_s=1e12 + at / 1e3 + 1.0)
        for at, batch in enumerate(plan.batches)
    )
    late = dataclasses.replace(
        wrong, batches=far, start_s={b.op: b.start_s for b in far}, values=(max(b.end_s for b in far),)
    )
    with pytest.raises(InvalidPlan, match="two batches at once"):
        rlinit.verify(late, graph, one)


def test_unknown_ops_are_refused_wherever_they_stand() -> None:
    """An op that the graph does not have stood in `start_s`, and raised InvalidGraph elsewhere."""
    plan = solved("latency")
    refused(dataclasses.replace(plan, start_s={**(plan.start_s or {}), "zz": 0.0}), "'zz'")
    refused(dataclasses.replace(plan, assignment={**(plan.assignment or {}), "zz": "a"}), "'zz'")
    refused(dataclasses.replace(plan, batches=(*plan.batches, dataclasses.replace(plan.batches[0], op="zz"))), "'zz'")
    refused(dataclasses.replace(plan, modules={"zz": "m"}), "'zz'")
    staged = solved("pipeline")
    refused(dataclasses.replace(staged, assignment={**(staged.assignment or {}), "zz": 0}), "'zz'")


@pytest.mark.parametrize("objective", ["pipeline", "memory", "latency"])
def test_a_plan_without_a_schedule_says_why(objective: Objective) -> None:
    """Infeasible needs a reason and has no bound; a bound without a schedule needs a history that proved it."""
    plan = solved(objective)
    empty = dataclasses.replace(
        plan, values=None, assignment=None, stages=(), batches=(), transfers=(), devices=(), start_s=None
    )
    refused(dataclasses.replace(empty, status="infeasible", bounds=None, message=" "), "without a reason")
    refused(dataclasses.replace(empty, status="infeasible", message="no room"), "infeasible but bounds")
    refused(dataclasses.replace(empty, status="no_solution"), "its history has one")
    refused(dataclasses.replace(empty, status="no_solution", history=()), "nothing in its history proved")
    refused(dataclasses.replace(plan, status="no_solution", values=None, assignment=None, history=()))
    told = dataclasses.replace(empty, status="infeasible", bounds=None, message="no room")
    rlinit.verify(told, GRAPH, STAGES if objective != "latency" else MESH)


def test_malformed_plans_are_invalid_plans() -> None:
    """Tuples of other lengths raised from zip, integers beyond floats OverflowError, odd types TypeError."""
    plan = solved("pipeline")
    uses = plan.stages
    lies: list[dict[str, Any]] = [
        {"stages": ()},
        {"stages": uses[:1]},
        {"values": ()},
        {"values": (1.0, 2.0)},
        {"bounds": (1.0, 2.0)},
        {"assignment": {**(plan.assignment or {}), "op0": HUGE}},
        {"assignment": {**(plan.assignment or {}), "op0": False}},
        {"assignment": {**(plan.assignment or {}), "op0": "stage0"}},
        {"assignment": {**(plan.assignment or {}), 7: 0}},
        {"stage_orders": ((1, 2), ())},
        {"objective": "speed"},
        {"status": "perfect"},
        {"transfer_rule": "magic"},
    ]
    for lie in lies:
        refused(dataclasses.replace(plan, **lie))
    placed = solved("throughput")
    batch = placed.batches[0]
    lies = [
        {"devices": placed.devices[:1]},
        {"devices": placed.devices[::-1]},
        {"batches": ()},
        {"batches": (dataclasses.replace(batch, shards=(HUGE,)), *placed.batches[1:])},
        {"batches": (dataclasses.replace(batch, shards=()), *placed.batches[1:])},
        {"batches": (dataclasses.replace(batch, device=3), *placed.batches[1:])},  # type: ignore[arg-type]
        {"inputs": HUGE},
        {"inputs": 0},
        {"shard_inputs": 0},
        {"start_s": None},
    ]
    for lie in lies:
        refused(dataclasses.replace(placed, **lie))


def test_the_size_of_a_shard_is_not_the_plans_to_say() -> None:
    """A plan of larger shards than the definition's was verified with its bound, though half the time is possible."""
    graph = rlinit.Graph.build([(name, {"time_s": {"*": {1: 1.0, 2: 10.0}}}) for name in "ab"], [])
    honest, other = (Hardware.mesh([Device(name, batch_sizes=sizes) for name in "xy"], 1.0) for sizes in ((1, 2), (2,)))
    assert rlinit.schedule(graph, honest, objective="throughput", inputs=2).value == 2.0
    plan = rlinit.schedule(graph, other, objective="throughput", inputs=2)
    assert (plan.shard_inputs, plan.value, plan.bound) == (2, 10.0, 10.0)
    rlinit.verify(plan, graph, other)
    lie = dataclasses.replace(plan, hardware_fingerprint=honest.fingerprint())
    certificate = {
        "graph_fingerprint": plan.graph_fingerprint,
        "hardware_fingerprint": honest.fingerprint(),
        "levels": [{"kind": "load", "multipliers": ["1/2", "1/2"]}],
        "trusted": [],
    }
    for hardware, accepted in ((other, True), (honest, False)):
        mark = {"hardware_fingerprint": hardware.fingerprint()}
        written = zip(
            attack.FILES, (plan.to_dict() | mark, graph.to_dict(), hardware.to_dict(), certificate | mark), strict=True
        )
        assert bool(attack.verdict(json.loads(json.dumps(dict(written))))) == accepted
    with pytest.raises(InvalidPlan, match="2 inputs make shards of 1 here"):
        rlinit.verify(lie, graph, honest)


def test_every_whole_block_is_recomputed_where_all_are() -> None:
    """A plan that recomputes nothing passed as one that recomputes all, with a value that none of those has."""
    names = [f"layer{i}.{part}" for i in range(4) for part in "ab"]
    ops = [(name, {"time_s": 1.0, "out_bytes": 1.0, "module": f"layers.{name[5]}"}) for name in names]
    graph = rlinit.Graph.build(ops, list(itertools.pairwise(names)))
    asked: dict[str, Any] = {"training": "1f1b", "microbatches": 4, "optimizer": 2.0}
    every, none = (rlinit.schedule(graph, STAGES, recompute=which, **asked) for which in ("all", "none"))
    assert every.value > none.value
    assert none.training is not None
    lie = dataclasses.replace(none, training=dataclasses.replace(none.training, recompute="all"))
    with pytest.raises(InvalidPlan, match=r"does not recompute 'layers.0', though recompute is 'all'"):
        rlinit.verify(lie, graph, STAGES)


def test_stages_without_a_path_between_them_are_refused() -> None:
    """A device that no path links with another divided by its rate of 0."""
    plan = rlinit.schedule(GRAPH, MESH, objective="pipeline")
    apart = dataclasses.replace(MESH, bandwidth=np.zeros((len(MESH), len(MESH))))
    with pytest.raises(InvalidPlan, match="no path links device"):
        rlinit.verify(dataclasses.replace(plan, hardware_fingerprint=apart.fingerprint()), GRAPH, apart)
