"""The latency agent that comes with the package is worth its place."""

from __future__ import annotations

import numpy as np
import pytest

import rlinit
from rlinit.agent.latency_selection import load_latency_agent
from rlinit.agent.placements.agent import LatencyAgent, decode_placement
from rlinit.agent.selection import find_checkpoint
from rlinit.datasets.random.randomly_wired import WIRINGS, rwnn
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.placements.lowering import lower_placement
from rlinit.placements.problem import PlacementProblem
from rlinit.placements.timeline import makespan


@pytest.fixture(scope="module")
def agent() -> LatencyAgent:
    """Load it."""
    path = find_checkpoint("latency")
    assert path is not None
    assert path.stat().st_size < 10_000_000
    return load_latency_agent(path)


@pytest.fixture(scope="module")
def problems() -> list[PlacementProblem]:
    """Return networks that training never saw."""
    hardware = rlinit.Hardware.preset("cpu-t4-a100")
    graphs = [rwnn(wiring, seed=seed, channels=2) for wiring in WIRINGS for seed in (20, 21)]  # type: ignore[arg-type]
    return [lower_placement(graph, hardware, "latency").problem for graph in graphs]


def test_it_is_better_than_heft_on_unseen_networks(agent: LatencyAgent, problems: list[PlacementProblem]) -> None:
    """Its placement is clearly better than HEFT's in the mean."""
    ratios = []
    for problem in problems:
        heft, found = PLACEMENT_HEURISTICS["heft"](problem, seed=0), decode_placement(agent, problem)
        assert heft is not None
        assert found is not None
        ratios.append(makespan(problem, found) / makespan(problem, heft))
    assert np.exp(np.mean(np.log(ratios))) < 0.95


def test_schedule_uses_it_and_says_so() -> None:
    """By default the search begins from the best of the quick heuristics and the agent's placement."""
    graph = rwnn("ws", seed=22, num_modules=2)
    plan = rlinit.schedule(graph, rlinit.Hardware.preset("cpu-t4-a100"), objective="latency", method="sweep")
    assert "checkpoint latency" in str(plan.provenance["start"])
    alone = rlinit.schedule(graph, rlinit.Hardware.preset("cpu-t4-a100"), objective="latency", method="agent")
    assert alone.method == "agent"
    assert plan.value <= alone.value
