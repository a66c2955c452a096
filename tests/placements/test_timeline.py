"""Timelines against a slow evaluator written from the definitions."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, obstacle, placement_from_priority, placement_of, timeline
from rlinit.plan import Transfers
from tests.draws import draws
from tests.placement_cases import random_placement, random_placement_problem

SEEDS = st.integers(0, 100_000)
MODES = st.sampled_from(["parallel", "exclusive", "blocking"])


def a_problem(seed: int, shards: int, transfers: Transfers) -> PlacementProblem:
    """Return a random problem of eight ops."""
    return random_placement_problem(seed, 8, 3, shards=shards, transfers=transfers, forbidden_fraction=0.0)


def check(problem: PlacementProblem, placement: Placement) -> None:
    """Check every rule of the problem on the timeline of a placement, and that nothing could start earlier."""
    run = timeline(problem, placement)
    n, d, s = problem.num_ops, problem.num_devices, problem.num_shards
    shards = {(v, i): set(np.flatnonzero(placement.device[v] == i)) for v in range(n) for i in range(d)}
    busy: dict[int, list[tuple[float, float]]] = {i: [] for i in range(d)}
    links: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for (v, i), held in shards.items():
        assert np.isnan(run.start_s[v, i]) == (not held)
        if held:
            assert run.end_s[v, i] == run.start_s[v, i] + problem.time_s[v, i, len(held)]
            busy[i].append((run.start_s[v, i], run.end_s[v, i]))
    arrives = {(t.op, t.source, t.target): t.end_s for t in run.transfers}
    for t in run.transfers:
        needed = set().union(*(shards[w, t.target] for w in problem.succ_of(t.op))) & shards[t.op, t.source]
        assert t.start_s >= run.end_s[t.op, t.source]
        assert t.end_s == pytest.approx(t.start_s + problem.transfer_s(t.op, t.source, t.target, len(needed)))
        links.setdefault((t.source, t.target), []).append((t.start_s, t.end_s))
        if problem.transfers == "blocking":
            busy[t.target].append((t.start_s, t.end_s))
    for spans in [*busy.values(), *(links.values() if problem.transfers == "exclusive" else ())]:
        spans.sort()
        assert all(b[0] >= a[1] for a, b in itertools.pairwise(spans))
    for u, v in problem.edges.tolist():
        for i in range(d):
            for j in range(d):
                shared = shards[u, i] & shards[v, j]
                if not shared:
                    continue
                ready = run.end_s[u, i]
                if i != j and problem.transfers == "parallel":
                    ready += problem.transfer_s(u, i, j, len(shared))
                elif i != j:
                    ready = arrives[u, i, j]
                assert run.start_s[v, j] >= ready * (1 - 1e-12)
    assert run.makespan_s == np.nanmax(run.end_s)
    assert s == placement.device.shape[1]


@given(seed=SEEDS, shards=st.sampled_from([1, 3]), transfers=MODES)
@settings(max_examples=draws(120), deadline=None)
def test_rules_hold(seed: int, shards: int, transfers: Transfers) -> None:
    """Every timeline keeps all rules of its problem."""
    problem = a_problem(seed, shards, transfers)
    check(problem, random_placement(problem, np.random.default_rng(seed)))


@given(seed=SEEDS, shards=st.sampled_from([1, 3]), transfers=MODES)
@settings(max_examples=draws(60), deadline=None)
def test_sorting_by_start_is_no_worse(seed: int, shards: int, transfers: Transfers) -> None:
    """A placement sorted by its own start times ends no later, and sorts to itself again."""
    problem = a_problem(seed, shards, transfers)
    placement = random_placement(problem, np.random.default_rng(seed))
    first = timeline(problem, placement)
    again = placement_of(problem, placement.device, first.start_s)
    if transfers == "parallel":
        assert timeline(problem, again).makespan_s <= first.makespan_s
    assert np.array_equal(np.sort(again.sequence), np.sort(placement.sequence))


def test_hand_worked_modes() -> None:
    """Two tensors of 2 s over one link: side by side they end at 3 s, queued at 5 s, and blocking at 5 s."""
    problem = PlacementProblem(
        objective="latency",
        transfers="parallel",
        shard_inputs=1,
        time_s=np.array([[[0.0, 1.0], [0.0, 9.0]], [[0.0, 0.0], [0.0, 9.0]], [[0.0, 9.0], [0.0, 1.0]]]),
        tensor_bytes=np.array([2.0, 2.0, 0.0]),
        weight_bytes=np.zeros(3),
        shard_bytes=np.zeros(3),
        capacity_bytes=np.full(2, np.inf),
        s_per_byte=np.array([[0.0, 1.0], [1.0, 0.0]]),
        delay_s=np.zeros((2, 2)),
        edges=np.array([[0, 2], [1, 2]]),
        order=np.arange(3),
        group=np.arange(3),
    )
    placement = placement_from_priority(problem, np.array([[0], [0], [1]]), np.arange(3.0))
    values = {
        mode: timeline(dataclasses.replace(problem, transfers=mode), placement).makespan_s
        for mode in ("parallel", "exclusive", "blocking")
    }
    assert values == {"parallel": 4.0, "exclusive": 6.0, "blocking": 6.0}


def test_obstacles_are_named() -> None:
    """A forbidden device, a split group, an overfull memory and a missing link cost infinitely much."""
    problem = random_placement_problem(3, 4, 2, forbidden_fraction=0.0, density=1.0)
    device = np.array([[0], [1], [0], [1]])
    placement = placement_from_priority(problem, device, np.arange(4.0))
    assert np.isfinite(makespan(problem, placement))
    time_s = problem.time_s.copy()
    time_s[1, 1, 1] = np.inf
    for broken, what in (
        (dataclasses.replace(problem, time_s=time_s), "op 1 may not run"),
        (dataclasses.replace(problem, group=np.array([0, 0, 2, 3])), "op 1 is not where op 0"),
        (dataclasses.replace(problem, capacity_bytes=np.full(2, 1e-6)), "device 0 holds"),
    ):
        assert what in obstacle(broken, placement)
        assert makespan(broken, placement) == np.inf
    apart = dataclasses.replace(problem, delay_s=np.array([[0.0, np.inf], [0.0, 0.0]]))
    assert makespan(apart, placement) == np.inf


@pytest.mark.parametrize("transfers", ["parallel", "exclusive", "blocking"])
def test_an_op_before_its_producer_has_no_makespan(transfers: Transfers) -> None:
    """A consumer on another device that comes first in the sequence never gets its data, however they are moved."""
    problem = random_placement_problem(1, 2, 2, transfers=transfers, density=1.0, forbidden_fraction=0.0)
    backwards = Placement(np.array([[0], [1]]), np.array([3, 0]))
    assert np.isnan(timeline(problem, backwards).makespan_s)
    assert makespan(problem, backwards) == np.inf
