"""Options are checked once: a wrong one is refused by its keyword and its flag, and a plan can keep every right one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlinit
from rlinit.errors import InvalidHardware, RlinitError
from rlinit.solving.common.options import SolveOptions


@pytest.fixture
def graph() -> rlinit.Graph:
    """Return three ops in a row."""
    ops = [(name, {"time_s": 1.0, "out_bytes": 1.0}) for name in "abc"]
    return rlinit.Graph.build(ops, [("a", "b"), ("b", "c")])


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"objective": "speed"}, ("objective is 'speed'", "pipeline, memory", "--objective")),
        ({"resident": "foo"}, ("resident is 'foo'", "peak, tensors, weights", "--resident")),
        ({"transfers": "foo"}, ("transfers is 'foo'", "parallel, exclusive", "--transfers")),
        ({"window": "x"}, ("window is 'x'", "auto, or full", "--window")),
        ({"window": -1}, ("window is -1", "--window")),
        ({"window": 2.5}, ("window is 2.5", "--window")),
        ({"inputs": 2.5}, ("inputs is 2.5", "whole number", "--inputs")),
        ({"inputs": 0}, ("inputs is 0", "--inputs")),
        ({"objective": "throughput"}, ("inputs is None", "--inputs")),
        ({"objective": "latency", "inputs": 4}, ("inputs is 4", "throughput")),
        ({"seed": -1}, ("seed is -1", "--seed")),
        ({"seed": "one"}, ("seed is 'one'", "--seed")),
        ({"seed": True}, ("seed is True", "--seed")),
        ({"jobs": 0}, ("jobs is 0", "--jobs")),
        ({"stages": 0}, ("stages is 0", "--stages")),
        ({"gap": 1.0}, ("gap is 1.0", "--gap")),
        ({"gap": math.nan}, ("gap is nan", "--gap")),
        ({"time_limit_s": -1}, ("time_limit_s is -1", "--time-limit-s")),
        ({"time_limit_s": math.nan}, ("time_limit_s is nan", "--time-limit-s")),
        ({"time_limit_s": "1"}, ("time_limit_s is '1'", "--time-limit-s")),
        (
            {"objective": "memory", "transfers": "blocking"},
            ("transfers is for", "not for memory (--transfers)"),
        ),
        ({"objective": "memory", "activations": True}, ("activations is", "not for memory (--activations)")),
        ({"method": 3}, ("method is 3", "--method")),
    ],
)
def test_wrong_options_are_refused_by_name(wrong: dict[str, Any], names: tuple[str, ...]) -> None:
    """The message names the keyword, what was expected, and the flag."""
    with pytest.raises(RlinitError) as caught:
        SolveOptions(**({"objective": "throughput", "inputs": 4} | wrong if "inputs" in wrong else wrong))
    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"transfers": "foo"}, {"resident": "foo"}, {"inputs": 2.5}, {"time_limit_s": -1}, {"objective": "x"}]
)
def test_bounds_refuse_the_same(graph: rlinit.Graph, wrong: dict[str, Any]) -> None:
    """`bound` checks its arguments as `schedule` does."""
    arguments: dict[str, Any] = {"objective": "latency"} | wrong
    hardware = rlinit.Hardware.mesh([rlinit.Device("one"), rlinit.Device("two")], 1.0)
    for call in (rlinit.schedule, rlinit.bound):
        with pytest.raises(RlinitError, match=f"{next(iter(wrong))} is"):
            call(graph, hardware, **arguments)


def test_a_plan_made_with_numbers_of_numpy_can_be_saved(graph: rlinit.Graph, tmp_path: Path) -> None:
    """Seeds and limits of NumPy become plain numbers, an infinite limit none, and ``full`` a window of None."""
    settings: dict[str, Any] = {
        "seed": np.int64(3),
        "jobs": np.int32(1),
        "gap": np.float32(0),
        "time_limit_s": math.inf,
        "window": "full",
    }
    plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(2), **settings)
    plan.save(tmp_path / "plan.json")
    loaded = rlinit.Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    kept = {name: loaded.provenance[name] for name in ("seed", "time_limit_s", "window")}
    assert kept == {"seed": 3, "time_limit_s": None, "window": None}


def test_a_large_seed_is_a_seed(graph: rlinit.Graph) -> None:
    """Every seed that is accepted works."""
    plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(2), method="anneal", seed=2**31)
    assert plan.values == (2.0,)


def test_bounds_take_graph_and_hardware_alone() -> None:
    """What is no hardware yet is told in a line by `bound` as by `schedule`, and so is a list in place of a count."""
    graph = rlinit.Graph.build([("a", {"time_s": 1.0})], [])
    solvers: Any = (rlinit.schedule, rlinit.bound)
    for solve in solvers:
        with pytest.raises(InvalidHardware, match="expected Hardware, got 'edge-tpu-4'"):
            solve(graph, "edge-tpu-4")
    with pytest.raises(InvalidHardware, match=r"stages is \[Device"):
        rlinit.Hardware.pipeline([rlinit.Device("a")])  # type: ignore[arg-type]
    with pytest.raises(InvalidHardware, match="stages is 0"):
        rlinit.Hardware.pipeline(1).with_stages(0)
