"""Strategies are data: what runs, in what share of the time, and why can be read and explained without solving."""

from __future__ import annotations

import dataclasses

import pytest

import rlinit
from rlinit.budget import Budget
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.datasets.zoo import imagenet
from rlinit.errors import RlinitError
from rlinit.placements.lowering import lower_placement
from rlinit.solving import placement_strategies, stage_strategies
from rlinit.solving.api import explain, prove
from rlinit.solving.common.incumbent import for_placement
from rlinit.solving.common.options import SolveOptions
from rlinit.solving.phases import kind_of
from rlinit.solving.placement_phases import PlacementSearch, auto_agent
from rlinit.solving.placement_proofs import TURNS


def test_every_phase_has_a_share_and_a_reason() -> None:
    """Shares are fractions of the time left, and each phase says why it is there."""
    told = [
        (phase.share, phase.because)
        for method in stage_strategies.STAGE_METHODS
        for phase in stage_strategies.stage_strategy(method)
    ]
    told += [
        (one.share, one.because)
        for method in placement_strategies.PLACEMENT_METHODS
        for one in placement_strategies.placement_strategy(method)
    ]
    assert all(0.0 < share <= 1.0 and why for share, why in told)


def test_a_plan_followed_what_explain_says() -> None:
    """What a method would run is what it ran, unless the gap closed before."""
    graph, hardware = imagenet.load("ResNet50"), rlinit.Hardware.pipeline(6, bandwidth=1e9)
    rows = explain(graph, hardware, SolveOptions(objective="memory"))
    assert [row.name for row in rows if row.runs][:3] == ["bound simple", "coarse schedule", "few ideals"]
    assert not any(row.runs for row in rows if row.name == "bound spectral")
    plan = rlinit.schedule(graph, hardware, objective="memory")
    assert list(plan.phase_s) == ["bound: simple", "coarse", "ideals"]


def test_conditions_tell_problems_apart() -> None:
    """Small modules, tight memory and time limits change what a placement's strategy runs."""
    graph = rwnn("er", seed=0, num_modules=2, nodes_per_module=10)
    ample = rlinit.Hardware.preset("cpu-t4-a100")
    shares = {(row.name, row.share) for row in explain(graph, ample, SolveOptions(objective="latency")) if row.runs}
    assert ("local search", 0.05) in shares
    assert ("blocks", 0.7) in shares
    assert "search and bounds by turns" not in {name for name, _ in shares}
    timed = explain(graph, ample, SolveOptions(objective="latency", time_limit_s=5))
    parts = ["search and bounds by turns", *(f"search and bounds by turns: {phase.name}" for phase in TURNS)]
    assert [row.name for row in timed if row.runs][-3:] == parts
    closing = ["bounds around and joined: bound around", "bounds around and joined: bound joined"]
    untimed = explain(graph, ample, SolveOptions(objective="latency"))
    assert [row.name for row in untimed if row.name in closing] == closing
    queued = explain(graph, ample, SolveOptions(objective="latency", transfers="exclusive"))
    assert ("local search", 0.2) in {(row.name, row.share) for row in queued if row.runs}


def test_the_first_search_comes_before_programs_and_the_agent_only_where_there_is_time() -> None:
    """`auto` for latency searches before the loads are bounded, and asks no agent for a twentieth of a second."""
    names = [phase.name for phase in placement_strategies.PLACEMENT_METHODS["auto"]]
    assert names[:4] == ["coarse schedule", "learned agent", "first search", "bound load"]
    graph, hardware = imagenet.load("MobileNetV2", dtype="fp32"), rlinit.Hardware.preset("moirai-inter")
    problem = lower_placement(graph, hardware, "latency").problem
    for limit_s in (0.05, 60.0):
        incumbent = for_placement(problem, Budget(limit_s), 0.0, None)
        search = PlacementSearch.of(incumbent, SolveOptions(objective="latency", time_limit_s=limit_s), None)
        auto_agent(search)
        assert ("so short a time" in search.origin) == (limit_s < 1.0)
        assert (incumbent.values is None) == (limit_s < 1.0)


def test_explaining_refuses_what_solving_refuses() -> None:
    """Unknown methods, and methods that do not take the problem, are refused alike."""
    graph, hardware = rwnn("er", seed=0, num_modules=2, nodes_per_module=10), rlinit.Hardware.preset("cpu-t4-a100")
    with pytest.raises(RlinitError, match="unknown method 'magic'"):
        explain(graph, hardware, SolveOptions(objective="latency", method="magic"))
    graph, hardware = imagenet.load("ResNet50"), rlinit.Hardware.pipeline(2, bandwidth=1e9, flops_per_s=1e12)
    with pytest.raises(RlinitError, match="no op is split"):
        explain(graph, hardware, SolveOptions(objective="throughput", inputs=4, method="cp-sat"))


def test_a_refined_plan_needs_no_coarse_schedule() -> None:
    """With a plan at hand the coarse phase is left out, and the condition says so."""
    graph, hardware = imagenet.load("ResNet50"), rlinit.Hardware.pipeline(6, bandwidth=1e9)
    plan = rlinit.schedule(graph, hardware, objective="memory", method="natural")
    rows = explain(graph, hardware, SolveOptions(objective="memory"), plan)
    row = next(row for row in rows if row.name == "coarse schedule")
    assert not row.runs
    assert ("no plan to refine was given", False) in row.conditions


@pytest.mark.parametrize("kind", ["training", "interleaved", "activations"])
def test_training_and_activations_are_explained_and_bounded(kind: str) -> None:
    """Their phases are listed with those of the relaxation, and no bound is above the optimum of a small problem."""
    ops: list[tuple[str, dict[str, object]]] = [
        (f"op{v}", {"time_s": 1.0 + v % 3, "param_bytes": 4.0, "out_bytes": 2.0}) for v in range(6)
    ]
    graph = rlinit.Graph.build(ops, [(f"op{v}", f"op{v + 1}") for v in range(5)])
    devices = [rlinit.Device(f"d{i}", "any", memory_bytes=1e4, cache_bytes=9.0) for i in range(2)]
    hardware = rlinit.Hardware.mesh(devices, 10.0)
    options = SolveOptions(
        activations=kind == "activations",
        training=None if kind == "activations" else "interleaved" if kind == "interleaved" else "1f1b",
        microbatches=None if kind == "activations" else 4,
        chunks=2 if kind == "interleaved" else 1,
    )
    rows = explain(graph, hardware, options)
    assert all(row.because for row in rows if ": " not in row.name)
    assert any(row.name.startswith("the problem without activations: ") for row in rows)
    settings = {one.name: getattr(options, one.name) for one in dataclasses.fields(options)}
    plan = rlinit.schedule(graph, hardware, **settings)
    proven = prove(graph, hardware, options)
    assert 0.0 < proven.value <= plan.value * (1 + 1e-9)
    for name in kind_of(options).bounds():
        assert prove(graph, hardware, dataclasses.replace(options, method=name)).value <= plan.value * (1 + 1e-9)
