"""schedule and bound: the four phases joined, on problems small enough to know the truth."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.errors import InvalidGraph, RlinitError
from rlinit.solving.stage_bounds import BOUNDS
from rlinit.stages.lowering import lower_stages
from tests.draws import draws
from tests.stage_cases import brute_force_memory, brute_force_pipeline
from tests.stages.test_slicing import check_same

OBJECTIVES = ("pipeline", "memory")


def random_graph(seed: int, num_ops: int = 7, *, scale: float = 1.0, integer: bool = False) -> rlinit.Graph:
    """Return a random attributed DAG; some costs are zero, ties are common with `integer`."""
    rng = np.random.default_rng(seed)

    def draw() -> float:
        if rng.random() < 0.15:
            return 0.0
        return scale * float(rng.integers(1, 5) if integer else rng.random())

    ops = [(f"n{i}", {"time_s": draw(), "param_bytes": draw(), "out_bytes": draw()}) for i in range(num_ops)]
    edges = [(f"n{i}", f"n{j}") for i, j in itertools.combinations(range(num_ops), 2) if rng.random() < 0.35]
    return rlinit.Graph.build(ops, edges, name=f"random-{seed}")


def truth(graph: rlinit.Graph, hardware: rlinit.Hardware, objective: Any) -> tuple[float, ...]:
    """Return the optimum by brute force."""
    problem = lower_stages(graph, hardware, objective).problem
    return brute_force_memory(problem) if objective == "memory" else (brute_force_pipeline(problem),)


@settings(max_examples=draws(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(OBJECTIVES),
    method=st.sampled_from(["auto", "warm", "milp", "ideals"]),
    k=st.integers(1, 4),
    scale=st.sampled_from([1e-9, 1.0, 1e12]),
)
def test_every_exact_method_finds_and_proves_the_optimum(
    seed: int, objective: Any, method: str, k: int, scale: float
) -> None:
    """Value = brute force, status optimal, for every exact method at every magnitude."""
    graph = random_graph(seed, 6, scale=scale, integer=seed % 2 == 0)
    hardware = rlinit.Hardware.pipeline(k, bandwidth=2.0, cache=scale if seed % 3 else float("inf"))
    plan = rlinit.schedule(graph, hardware, objective=objective, method=method, window=None)
    assert plan.status == "optimal"
    assert plan.values is not None
    check_same(plan.values, truth(graph, hardware, objective))


@settings(max_examples=draws(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10_000), objective=st.sampled_from(OBJECTIVES), k=st.integers(1, 4))
def test_every_bound_is_one(seed: int, objective: Any, k: int) -> None:
    """No named bound exceeds the brute-force optimum."""
    graph = random_graph(seed, 6)
    hardware = rlinit.Hardware.pipeline(k, bandwidth=2.0)
    optimum = truth(graph, hardware, objective)
    for method in [*BOUNDS, "ideals", "auto"] if objective == "pipeline" else ["simple", "ideals", "auto"]:
        proven = rlinit.bound(graph, hardware, objective, method=method)
        assert proven.bounds <= tuple(value * (1 + 1e-9) for value in optimum), method


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("method", ["auto", "warm", "ideals", "anneal", "brkga"])
def test_same_seed_same_plan(objective: Any, method: str) -> None:
    """Two runs without a time limit give the same assignment."""
    graph = random_graph(3, 14)
    hardware = rlinit.Hardware.pipeline(3, bandwidth=2.0)
    plans = [rlinit.schedule(graph, hardware, objective=objective, method=method, seed=5) for _ in range(2)]
    assert plans[0].assignment == plans[1].assignment


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_relabelling_changes_no_value(objective: Any) -> None:
    """Ops in another order under other names: the same optimum."""
    graph = random_graph(11, 9)
    data = graph.to_dict()
    rename = {row["name"]: f"x{i}" for i, row in enumerate(data["ops"])}
    ops = [(rename[row["name"]], {key: row[key] for key in row if key != "name"}) for row in reversed(data["ops"])]
    other = rlinit.Graph.build(ops, [(rename[u], rename[v]) for u, v in data["edges"]])
    hardware = rlinit.Hardware.pipeline(3, bandwidth=2.0)
    values = [rlinit.schedule(g, hardware, objective=objective).values for g in (graph, other)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_edges_of_the_domain_work(objective: Any) -> None:
    """One op; more stages than ops; no edges at all; all costs zero."""
    lone = rlinit.Graph.build([("a", {"time_s": 2.0, "param_bytes": 3, "out_bytes": 1})], [])
    assert rlinit.schedule(lone, rlinit.Hardware.pipeline(1), objective=objective).status == "optimal"
    plan = rlinit.schedule(lone, rlinit.Hardware.pipeline(5, bandwidth=1.0), objective=objective)
    assert (plan.status, len(plan.stages)) == ("optimal", 5)
    apart = rlinit.Graph.build([(c, {"time_s": 1.0, "param_bytes": 1, "out_bytes": 1}) for c in "abcd"], [])
    assert rlinit.schedule(apart, rlinit.Hardware.pipeline(2), objective=objective).value == 2.0
    zero = rlinit.Graph.build([(c, {"time_s": 0, "param_bytes": 0, "out_bytes": 0}) for c in "abc"], [("a", "b")])
    plan = rlinit.schedule(zero, rlinit.Hardware.pipeline(2, bandwidth=1.0), objective=objective)
    assert (plan.status, plan.value, plan.gap) == ("optimal", 0.0, 0.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_infeasible_says_which(objective: Any) -> None:
    """An op larger than every memory, a model larger than all, an op allowed nowhere: infeasible with the reason."""
    big = rlinit.Graph.build([("a", {"time_s": 1, "param_bytes": 3}), ("big", {"time_s": 1, "param_bytes": 99})], [])
    plan = rlinit.schedule(big, rlinit.Hardware.pipeline(2, memory=10.0), objective=objective)
    assert plan.status == "infeasible"
    assert "'big'" in plan.message
    assert plan.assignment is None
    many = rlinit.Graph.build([(c, {"time_s": 1, "param_bytes": 8}) for c in "abc"], [])
    plan = rlinit.schedule(many, rlinit.Hardware.pipeline(2, memory=10.0), objective=objective)
    assert (plan.status, "24" in plan.message) == ("infeasible", True)
    nowhere = rlinit.Graph.build([("a", {"time_s": 1, "forbidden": ["stage"]})], [])
    plan = rlinit.schedule(nowhere, rlinit.Hardware.pipeline(2), objective=objective)
    assert (plan.status, "'a'" in plan.message) == ("infeasible", True)
    packed = rlinit.Graph.build([(c, {"time_s": 1, "param_bytes": 6}) for c in "abc"], [])
    plan = rlinit.schedule(packed, rlinit.Hardware.pipeline(2, memory=10.0), objective=objective)
    assert plan.status == "infeasible"


def test_bad_arguments_are_errors() -> None:
    """Unknown names are listed with the known ones; numbers out of range are refused."""
    graph, hardware = random_graph(0), rlinit.Hardware.pipeline(2, bandwidth=1.0)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "magic"}, "auto, warm, milp, ideals"),
        ({"agent": "magic"}, "unknown agent"),
        ({"gap": -0.1}, "gap"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"window": -1}, "window"),
        ({"jobs": 0}, "jobs"),
        ({"objective": "beauty"}, "objective"),
    ]
    for arguments, message in cases:
        with pytest.raises(RlinitError, match=message):
            rlinit.schedule(graph, hardware, **arguments)
    with pytest.raises(RlinitError, match="expected auto, simple"):
        rlinit.bound(graph, hardware, method="magic")
    with pytest.raises(RlinitError, match="stages is 0"):
        rlinit.schedule(graph, hardware, stages=0)
    timeless = rlinit.Graph.build([("a", {}), ("b", {"time_s": 1})], [])
    with pytest.raises(InvalidGraph, match="'a' has no time on device 'stage0'"):
        rlinit.schedule(timeless, hardware)


def test_a_plan_can_be_refined() -> None:
    """A plan handed in as agent is the start: the result is never worse."""
    graph, hardware = random_graph(21, 12), rlinit.Hardware.pipeline(3, bandwidth=2.0)
    coarse = rlinit.schedule(graph, hardware, method="natural")
    better = rlinit.schedule(graph, hardware, agent=coarse, method="warm", window=1)
    assert better.value <= coarse.value


def test_gap_stops_early_and_is_honoured() -> None:
    """With a generous gap the plan is feasible or optimal, and within it."""
    plan = rlinit.schedule(random_graph(5, 30), rlinit.Hardware.pipeline(4, bandwidth=2.0), gap=0.5)
    assert plan.status in ("feasible", "optimal")
    assert plan.gap <= 0.5


def test_unequal_stages_share_work_by_speed() -> None:
    """A slow device gets less; the order of devices is free for a pipeline; the checker agrees."""
    ops = [(c, {"time_s": {"fast": 1.0, "slow": 4.0}, "out_bytes": 0}) for c in "abcde"]
    graph = rlinit.Graph.build(ops, list(itertools.pairwise("abcde")))
    devices = [rlinit.Device("s", "slow"), rlinit.Device("f", "fast")]
    plan = rlinit.schedule(graph, rlinit.Hardware.mesh(devices, 1.0))
    assert (plan.status, plan.value) == ("optimal", 4.0)
    assert {use.device: use.num_ops for use in plan.stages} == {"f": 4, "s": 1}


def test_interrupting_returns_the_incumbent() -> None:
    """Ctrl-C during a long run gives a feasible plan that says it was interrupted."""
    import _thread

    graph = random_graph(1, 120)
    timer = threading.Timer(2.0, _thread.interrupt_main)
    timer.start()
    started = time.monotonic()
    plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(8, bandwidth=2.0), method="milp", time_limit_s=60.0)
    timer.cancel()
    assert time.monotonic() - started < 30.0
    if plan.status != "optimal":
        assert plan.provenance["interrupted"]
        assert plan.status in ("feasible", "no_solution")


def test_history_improves_and_ends_at_the_plan() -> None:
    """Values fall, bounds rise, and the last entry is what the plan says."""
    plan = rlinit.schedule(random_graph(8, 25), rlinit.Hardware.pipeline(3, bandwidth=2.0))
    values = [entry.values for entry in plan.history if entry.values is not None]
    bounds = [entry.bounds for entry in plan.history if entry.bounds is not None]
    assert [value[0] for value in values] == sorted((value[0] for value in values), reverse=True)
    assert bounds == sorted(bounds)
    assert (plan.history[-1].values, plan.history[-1].bounds) == (plan.values, plan.bounds)
