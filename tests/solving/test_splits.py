"""Pipelines with several chunks a device, and with devices that hold any ops."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import rlinit
from rlinit.errors import InvalidPlan, RlinitError
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.plan import Plan

SPLITS: list[dict[str, Any]] = [{"chunks": 2}, {"chunks": 2, "chunk_order": "free"}, {"contiguous": False}]


def chain(seconds: list[float], size: float = 1.0) -> Graph:
    """Return ops in a row, with tensors of one size."""
    ops = [(f"op{i}", {"time_s": s, "out_bytes": size, "param_bytes": 1.0}) for i, s in enumerate(seconds)]
    return Graph.build(ops, [(f"op{i}", f"op{i + 1}") for i in range(len(seconds) - 1)])


@pytest.mark.parametrize("split", SPLITS)
def test_finer_splits_balance_what_one_stage_a_device_cannot(split: dict[str, Any]) -> None:
    """Twelve seconds of work on two devices take 7 in two pieces, and 6 and a few transfers in more."""
    graph, hardware = chain([3.0, 1.0, 3.0, 1.0, 1.0, 3.0], 2**-6), Hardware.pipeline(2, bandwidth=1.0)
    assert rlinit.schedule(graph, hardware).value == 7.0 + 2**-6
    plan = rlinit.schedule(graph, hardware, **split)
    assert (plan.status, plan.baselines["contiguous"]) == ("optimal", 7.0 + 2**-6)
    assert plan.value < 6.1
    assert plan.value == max(plan.device_times_s.values())
    rlinit.verify(plan, graph, hardware)


@pytest.mark.parametrize("split", SPLITS)
def test_plans_of_finer_splits_are_kept_and_refined(split: dict[str, Any], tmp_path: Path) -> None:
    """A saved plan is read back equal, and refined it is no worse."""
    graph, hardware = chain([3.0, 1.0, 2.0, 5.0, 1.0], 0.5), Hardware.pipeline(2, bandwidth=4.0)
    plan = rlinit.schedule(graph, hardware, **split)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert rlinit.schedule(graph, hardware, agent=again, method="milp", **split).value <= plan.value
    one_stage_a_device = rlinit.schedule(graph, hardware)
    assert rlinit.schedule(graph, hardware, agent=one_stage_a_device, **split).value <= one_stage_a_device.value


@pytest.mark.parametrize("split", SPLITS)
def test_a_plan_of_another_split_is_refused_as_a_start(split: dict[str, Any]) -> None:
    """A contiguous problem takes no plan with chunks or loose ops."""
    graph, hardware = chain([3.0, 1.0, 2.0]), Hardware.pipeline(2, bandwidth=4.0)
    with pytest.raises(InvalidPlan, match="the plan to refine has"):
        rlinit.schedule(graph, hardware, agent=rlinit.schedule(graph, hardware, **split))


def test_memory_counts_all_chunks_of_a_device() -> None:
    """Two devices that hold two ops each take four ops, and refuse five."""
    hardware = Hardware(
        tuple(Device(name, memory_bytes=2.0, io_bandwidth=1e9) for name in "ab"), *_mesh(2), name="small"
    )
    plan = rlinit.schedule(chain([4.0, 1.0, 1.0, 4.0]), hardware, chunks=2)
    assert plan.status == "optimal"
    assert max(sum(use.param_bytes for use in plan.stages if use.device == name) for name in "ab") == 2.0
    assert rlinit.schedule(chain([1.0] * 5), hardware, chunks=2).status == "infeasible"


def test_overflow_counts_all_chunks_of_a_device() -> None:
    """Each stage shows its share, by bytes, of what its device's cache does not hold."""
    hardware = Hardware((Device("a", cache_bytes=1.0, io_bandwidth=2.0),), *_mesh(1), name="one")
    graph = chain([1.0, 1.0], 0.0)
    plan = rlinit.schedule(graph, hardware, chunks=2)
    assert plan.value == 2.0 + 0.5
    assert sum(use.off_cache_bytes for use in plan.stages) == 1.0


def test_colocated_ops_need_not_hold_what_lies_between() -> None:
    """With loose ops, the ends of a chain share a device and the middle is on the other."""
    graph = Graph.build(
        [
            ("first", {"time_s": 1.0, "out_bytes": 0.0, "colocate": 1}),
            ("middle", {"time_s": 2.0, "out_bytes": 0.0}),
            ("last", {"time_s": 1.0, "colocate": 1}),
        ],
        [("first", "middle"), ("middle", "last")],
    )
    hardware = Hardware.pipeline(2, bandwidth=1.0)
    plan = rlinit.schedule(graph, hardware, contiguous=False)
    assert (plan.value, plan.status) == (2.0, "optimal")
    assert rlinit.schedule(graph, hardware).value == 4.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": 2, "contiguous": False}, "chunks is 2 with contiguous=False"),
        ({"chunks": 0}, "chunks is 0; expected a whole number of at least 1"),
        ({"chunk_order": "random"}, "expected one of interleaved, free"),
        ({"chunks": 2, "objective": "memory"}, "chunks is for pipeline, not for memory"),
        ({"contiguous": False, "objective": "latency"}, "contiguous is for pipeline, not for latency"),
        ({"chunks": 2, "activations": True}, "activations counts one stage a device"),
        ({"chunks": 2, "method": "ideals"}, "ideals"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    """Wrong values and combinations are refused by the names of the options."""
    with pytest.raises(RlinitError, match=message) as refused:
        rlinit.schedule(chain([1.0, 1.0]), Hardware.pipeline(2, bandwidth=1.0), **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunks": 1}, "a device serves two stages"),
        ({"chunks": 4}, "has not 4 stages"),
        ({"contiguous": False}, "one stage a device"),
        ({"chunk_order": "sideways"}, "chunk_order"),
        ({"contiguous": 1}, "expected true or false"),
        ({"objective": "memory", "values": (1.0, 1.0, 1.0), "bounds": None, "history": ()}, "expected 1 for memory"),
    ],
)
def test_false_claims_about_chunks_are_refused(change: dict[str, Any], message: str) -> None:
    """A plan whose stages and devices are not what it says is refused."""
    graph, hardware = chain([3.0, 1.0, 3.0, 1.0]), Hardware.pipeline(2, bandwidth=64.0)
    plan = rlinit.schedule(graph, hardware, chunks=2)
    with pytest.raises(InvalidPlan, match=message):
        rlinit.verify(dataclasses.replace(plan, **change), graph, hardware)


def test_interleaved_chunks_on_other_devices_are_refused() -> None:
    """Stages 0 to 3 on devices a b b a are a free order, not an interleaved one."""
    graph, hardware = chain([3.0, 1.0, 3.0, 1.0]), Hardware.pipeline(2, bandwidth=64.0)
    plan = rlinit.schedule(graph, hardware, chunks=2)
    swapped = dataclasses.replace(plan, stages=(*plan.stages[:2], plan.stages[3], plan.stages[2]))
    with pytest.raises(InvalidPlan, match="not interleaved"):
        rlinit.verify(swapped, graph, hardware)


def test_data_may_not_run_backwards_unless_the_plan_says_so() -> None:
    """A plan with loose ops that claims to be contiguous is refused."""
    graph, hardware = chain([3.0, 3.0, 1.0, 1.0, 3.0, 3.0], 0.0), Hardware.pipeline(2, bandwidth=1.0)
    plan = rlinit.schedule(chain([1.0, 2.0, 1.0], 0.0), hardware, contiguous=False)
    assert (plan.value, plan.status) == (2.0, "optimal")
    with pytest.raises(InvalidPlan, match="runs backwards"):
        rlinit.verify(dataclasses.replace(plan, contiguous=True), chain([1.0, 2.0, 1.0], 0.0), hardware)
    assert rlinit.schedule(graph, hardware, contiguous=False).value == 7.0


def test_explained_phases_and_bounds_are_those_of_the_split() -> None:
    """`explain` and `bound` speak of the problem with chunks, not of one stage a device."""
    from rlinit.solving.api import explain
    from rlinit.solving.common.options import SolveOptions

    graph, hardware = chain([3.0, 1.0, 3.0]), Hardware.pipeline(2, bandwidth=64.0)
    names = [row.name for row in explain(graph, hardware, SolveOptions(chunks=2))]
    assert "contiguous stages" in names
    assert rlinit.bound(graph, hardware, chunks=2).value <= rlinit.schedule(graph, hardware, chunks=2).value
    with pytest.raises(RlinitError, match="expected auto, simple"):
        rlinit.bound(graph, hardware, contiguous=False, method="guess")


def _mesh(k: int) -> tuple[Any, Any]:
    import numpy as np

    return np.full((k, k), np.inf), np.zeros((k, k))
