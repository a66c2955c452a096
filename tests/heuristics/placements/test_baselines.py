"""Placement baselines: examples from the papers or worked by hand, and what holds on every problem."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.heuristics.placements import PLACEMENT_HEURISTICS
from rlinit.heuristics.placements.list_scheduling.common import breadth_first, placed_when
from rlinit.heuristics.placements.mapping_search.kernel import new_mapping, search_mapping
from rlinit.heuristics.placements.mapping_search.search import _String
from rlinit.heuristics.placements.published.earliest_task_first import schedule_earliest_start
from rlinit.heuristics.placements.published.getf import assign_groups, device_speeds, getf, speed_groups
from rlinit.heuristics.placements.published.m_sct import favourite_children, m_sct
from rlinit.kernels.placements.list_scheduling import APPEND, DURATION, INSERT, list_schedule
from rlinit.placements.arrays import kernel_arrays, upward_ranks
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import makespan, obstacle, timeline
from rlinit.plan import Transfers
from tests.draws import draws
from tests.placement_cases import brute_force_placement, random_placement_problem

NAMES = sorted(PLACEMENT_HEURISTICS)
SEARCHES = ("sa", "ea")
EVALUATIONS = 60


def make_problem(
    times: list[list[float]],
    edges: Sequence[tuple[int, int]] = (),
    *,
    tensor: list[float] | None = None,
    weight: list[float] | None = None,
    capacity: list[float] | None = None,
    group: list[int] | None = None,
    transfer: float = 1.0,
) -> PlacementProblem:
    """Return a latency problem: `times` by op and device, `transfer` seconds a byte between any two devices."""
    n, d = np.shape(times)
    time_s = np.zeros((n, d, 2))
    time_s[:, :, 1] = times
    ones = np.ones(n)
    return PlacementProblem(
        objective="latency",
        transfers="parallel",
        shard_inputs=1,
        time_s=time_s,
        tensor_bytes=ones if tensor is None else np.array(tensor, float),
        weight_bytes=ones if weight is None else np.array(weight, float),
        shard_bytes=np.zeros(n),
        capacity_bytes=np.full(d, np.inf) if capacity is None else np.array(capacity, float),
        s_per_byte=transfer * (1.0 - np.eye(d)),
        delay_s=np.zeros((d, d)),
        edges=np.array(sorted(edges), np.int64).reshape(-1, 2),
        order=np.arange(n, dtype=np.int64),
        group=np.arange(n, dtype=np.int64) if group is None else np.array(group, np.int64),
    )


def make_batched(
    times: list[list[list[float]]], edges: Sequence[tuple[int, int]] = (), transfer: float = 1.0
) -> PlacementProblem:
    """Return a throughput problem: `times` by op, device and shards (0 to s)."""
    whole = make_problem([[device[-1] for device in op] for op in times], edges, transfer=transfer)
    return PlacementProblem(
        "throughput",
        "parallel",
        1,
        np.array(times, float),
        *(getattr(whole, name) for name in ("tensor_bytes", "weight_bytes", "shard_bytes", "capacity_bytes")),
        *(getattr(whole, name) for name in ("s_per_byte", "delay_s", "edges", "order", "group")),
    )


@functools.cache
def topcuoglu() -> PlacementProblem:
    """Return the ten tasks on three processors of Topcuoglu, Hariri and Wu (2002), Fig. 3.

    There each edge has its own transfer; here each op has one. So an edge becomes an op without duration, colocated
    with the producer, whose output takes that long.
    """
    work = [
        [14, 16, 9],
        [13, 19, 18],
        [11, 13, 19],
        [13, 8, 17],
        [12, 13, 10],
        [13, 16, 9],
        [7, 15, 11],
        [5, 11, 14],
        [18, 12, 20],
        [21, 7, 16],
    ]
    transfers = [
        *[(1, 2, 18), (1, 3, 12), (1, 4, 9), (1, 5, 11), (1, 6, 14), (2, 8, 19), (2, 9, 16), (3, 7, 23)],
        *[(4, 8, 27), (4, 9, 23), (5, 9, 13), (6, 8, 15), (7, 10, 17), (8, 10, 11), (9, 10, 13)],
    ]
    times: list[list[float]] = []
    tensor: list[float] = []
    group: list[int] = []
    edges: list[tuple[int, int]] = []
    index: dict[int, int] = {}
    for task in range(1, 11):
        index[task] = len(times)
        times.append([float(t) for t in work[task - 1]])
        tensor.append(0.0)
        group.append(index[task])
        for u, v, _ in transfers:
            if v == task:
                edges.append((index[u] + 1 + [e for e in transfers if e[0] == u].index((u, v, _)), index[task]))
        for u, _, seconds in transfers:
            if u == task:
                edges.append((index[task], len(times)))
                times.append([0.0, 0.0, 0.0])
                tensor.append(float(seconds))
                group.append(index[task])
    return make_problem(times, edges, tensor=tensor, group=group)


def value(name: str, problem: PlacementProblem, evaluations: int = 400) -> float:
    """Return the makespan of what a heuristic gives."""
    found = PLACEMENT_HEURISTICS[name](problem, seed=0, evaluations=evaluations)
    assert found is not None
    return makespan(problem, found)


def test_heft_reproduces_the_published_example() -> None:
    """Upward ranks and the makespan of 80 are those of the paper (Table 2, Fig. 4)."""
    problem = topcuoglu()
    tasks = np.flatnonzero(problem.op_time_s.any(axis=1))
    published = [108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert upward_ranks(problem)[tasks] == pytest.approx(published, abs=1e-3)
    assert value("heft", problem) == 80.0


def test_best_device_of_the_published_example() -> None:
    """The three processors take 127, 130 and 143 for everything."""
    problem = topcuoglu()
    assert problem.op_time_s.sum(axis=0).tolist() == [127, 130, 143]
    assert value("best-device", problem) == 127.0


def test_heft_inserts_into_an_idle_slot() -> None:
    """A short op of low rank goes into the gap before a long one that waits for its data.

    y runs on device 1, 0 to 4; its output is on device 0 at 5, where b runs 5 to 15. c, of rank 3, fits before b.
    """
    inf = np.inf
    problem = make_problem([[inf, 4.0], [10.0, inf], [3.0, inf]], [(0, 1)])
    found = PLACEMENT_HEURISTICS["heft"](problem, seed=0)
    assert found is not None
    assert found.sequence.tolist() == [4, 1, 2]
    assert timeline(problem, found).start_s[2, 0] == 0.0
    assert makespan(problem, found) == 15.0


@pytest.mark.parametrize("name", ["heft", "met"])
def test_the_first_of_a_group_goes_where_all_of_it_is_fast(name: str) -> None:
    """An op that is a little faster on a device where the op that shares its weights is slow does not go there."""
    problem = make_problem([[1, 2], [5, 5], [100, 1]], [(0, 1), (1, 2)], group=[0, 1, 0], transfer=0.1)
    found = PLACEMENT_HEURISTICS[name](problem, seed=0)
    assert found is not None
    assert found.device[:, 0].tolist()[::2] == [1, 1]


def test_what_the_others_of_a_group_lose() -> None:
    """For each op and device: the seconds beyond their best that the others need; ``inf`` where one may not run."""
    times = [[1.0, 2.0, 9.0], [4.0, 4.0, 4.0], [7.0, 5.0, np.inf]]
    lost = kernel_arrays(make_problem(times, group=[0, 1, 0])).lost[:, :, 1]
    assert lost.tolist() == [[2, 0, np.inf], [0, 0, 0], [0, 1, 8]]


def test_met_follows_the_times_alone() -> None:
    """Three independent ops, 1 s on device 0 and 1.5 s on device 1: all on device 0 by MET, else two and one."""
    problem = make_problem([[1.0, 1.5]] * 3)
    assert value("met", problem) == 3.0
    assert value("greedy", problem) == 2.0
    for name in SEARCHES:
        assert value(name, problem) == 2.0


def test_greedy_diamond() -> None:
    """A diamond a -> b, c -> d, transfers of 1 s, worked by hand.

    =======  =====================  ======================
    op       device 0               device 1
    =======  =====================  ======================
    a        0 to 2 (taken)         0 to 4
    b        2 to 5                 3 to 4.5 (taken)
    c        2 to 5 (taken)         4.5 to 8.5
    d        5.5 to 7.5 (taken)     6 to 9
    =======  =====================  ======================
    """
    problem = make_problem([[2, 4], [3, 1.5], [3, 4], [2, 3]], [(0, 1), (0, 2), (1, 3), (2, 3)])
    found = PLACEMENT_HEURISTICS["greedy"](problem, seed=0)
    assert found is not None
    assert found.device[:, 0].tolist() == [0, 1, 0, 0]
    assert makespan(problem, found) == 7.5


def test_m_topo_fills_devices_in_turn() -> None:
    """A chain of four ops of 1 byte on two devices: the share is 4 / 2 + 1 = 3 bytes, so three ops and one."""
    problem = make_problem([[1.0, 1.0]] * 4, [(0, 1), (1, 2), (2, 3)])
    found = PLACEMENT_HEURISTICS["m-topo"](problem, seed=0)
    assert found is not None
    assert found.device[:, 0].tolist() == [0, 0, 0, 1]
    assert makespan(problem, found) == 5.0


@pytest.mark.parametrize(
    ("transfer", "room", "expected"),
    [
        (2.0, 3.0, 3.0),  # p [0, 1), q [1, 2), r [2, 3) on device 0: elsewhere r could start at 3 only.
        (0.5, 3.0, 2.5),  # r starts at 1.5 on device 1, at 2 on device 0.
        (2.0, 2.0, 4.0),  # Device 0 is full after p and q: r runs [3, 4) on device 1.
    ],
)
def test_m_etf_takes_the_earliest_start(transfer: float, room: float, expected: float) -> None:
    """A fork p -> q, r of ops of 1 s and 1 byte on two devices."""
    problem = make_problem([[1.0, 1.0]] * 3, [(0, 1), (0, 2)], transfer=transfer, capacity=[room, 3.0])
    assert value("m-etf", problem) == expected


def test_m_sct_waits_for_the_favourite_child() -> None:
    """A device stays idle from 1 to 1.1 for the favourite child f of u, worked by hand.

    u (1 s) -> f, y (1 s each); x (1 s) -> f; f -> g (5 s); u's output takes 0.5 s, x's 0.1 s. In the linear program f
    starts at 1 + max(0.5 x_uf, 0.1 x_xf) with x_uf + x_xf >= 1, so x_uf = 1/6: f is the favourite of u. u and x run at
    0 on devices 0 and 1. y could start at 1 on device 0, where f is due at 1.1; y is urgent from 1.5 on. So f runs at
    1.1 and g from 2.1 to 7.1 on device 0, y on device 1; m-ETF runs y first, f at 1.5 on device 1, and ends at 7.5.
    """
    u, x, f, y, g = range(5)
    times = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [5.0, 5.0]]
    edges = [(u, f), (x, f), (u, y), (f, g)]
    problem = make_problem(times, edges, tensor=[0.5, 0.1, 0.5, 0.0, 0.0])
    favourite = favourite_children(problem)
    assert favourite is not None
    assert favourite.tolist() == [f, -1, g, -1, -1]
    assert value("m-sct", problem) == pytest.approx(7.1)
    assert value("m-etf", problem) == pytest.approx(7.5)


def test_favourite_children_are_a_matching() -> None:
    """No op has two favourite children (one entry each), and none is the favourite of two."""
    for seed in range(10):
        problem = random_placement_problem(seed, 14, 3)
        favourite = favourite_children(problem)
        assert favourite is not None
        chosen = favourite[favourite >= 0]
        assert len(np.unique(chosen)) == len(chosen)
        edges = set(map(tuple, problem.edges.tolist()))
        assert {(u, v) for u, v in enumerate(favourite.tolist()) if v >= 0} <= edges


def test_m_sct_without_time_for_its_program() -> None:
    """With no budget for the linear program the greedy matching takes over."""
    problem = random_placement_problem(3, 12, 3, forbidden_fraction=0.0)
    found = m_sct(problem, seed=0, budget=Budget(0.0))
    assert found is not None
    assert np.isfinite(makespan(problem, found))


def test_getf_groups_and_rounding() -> None:
    """Speeds 1, 1/2, 1/2, 1/2 and 1/5 of five devices are scaled by 5; halves are enough for the faster group.

    Scaled: 5, 2.5, 2.5, 2.5, 1; groups [2, 4), [4, 8) are 1 and 2; the last is left out. Group 1 has the larger sum,
    1.5. An op of which 0.6 is in group 1 may go to 1 or 2, and goes to 1; one of which 0.6 is in group 2 goes there.
    """
    speed = np.array([1.0, 0.5, 0.5, 0.5, 0.2])
    group = speed_groups(speed)
    assert group.tolist() == [2, 1, 1, 1, -1]
    share = np.array([[0.4, 0.6, 0.0, 0.0, 0.0], [0.6, 0.2, 0.1, 0.1, 0.0]])
    usable = np.repeat(group[None, :] >= 0, 2, axis=0)
    assert assign_groups(share, usable, speed, group).tolist() == [1, 2]


def test_getf_keeps_a_chain_on_the_fast_device() -> None:
    """A chain is worth the fast device's time in the linear program, so all of it goes to the fast group."""
    problem = make_problem([[1.0, 2.0, 2.0, 2.0]] * 4, [(0, 1), (1, 2), (2, 3)])
    assert device_speeds(problem).tolist() == [1.0, 0.5, 0.5, 0.5]
    assert value("getf", problem) == 4.0


def test_getf_without_time_for_its_program() -> None:
    """With no budget for the linear program each op goes to the group of its fastest device."""
    problem = make_problem([[1.0, 2.0], [3.0, 1.0]])
    found = getf(problem, seed=0, budget=Budget(0.0))
    assert found is not None
    assert makespan(problem, found) == 1.0


def test_batched_met_splits_an_op() -> None:
    """Four shards, 1 s each on device 0 and 2 s on device 1: three and one take 3 s.

    Without batches of 3 on device 0, two and two would take as long as four there, 4 s, but 6 s in all.
    """
    times = [[[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 4.0, 6.0, 8.0]]]
    for name in ("met", "greedy", "heft", *SEARCHES):
        assert value(name, make_batched(times)) == 3.0
    times[0][0][3] = np.inf
    found = PLACEMENT_HEURISTICS["met"](make_batched(times), seed=0)
    assert found is not None
    assert found.device.tolist() == [[0, 0, 0, 0]]


def test_batched_chain_keeps_its_split() -> None:
    """Two ops of two shards, 1 s a shard, two devices, transfers of 10 s: both split alike and nothing is sent."""
    times = [[[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]] * 2
    problem = make_batched(times, [(0, 1)], transfer=10.0)
    for name in ("met", "greedy", "heft"):
        assert value(name, problem) == 2.0


def test_undivided_baselines_split_what_no_device_takes_whole() -> None:
    """Where both devices take one shard at most, every method that does not keep shards together splits the op."""
    inf = np.inf
    problem = make_batched([[[0.0, 1.0, inf], [0.0, 2.0, inf]]] * 2, [(0, 1)])
    for name in NAMES:
        found = PLACEMENT_HEURISTICS[name](problem, seed=0, evaluations=EVALUATIONS)
        if name in ("best-device", "segments"):
            assert found is None
        else:
            assert found is not None
            assert sorted(found.device[0].tolist()) == [0, 1]


def test_breadth_first_order_is_by_levels() -> None:
    """A source that comes last in the natural order is still in the first level."""
    problem = make_problem([[1.0]] * 4, [(0, 1), (1, 2)])
    assert breadth_first(problem).tolist() == [0, 3, 1, 2]


def check(problem: PlacementProblem, found: Placement) -> float:
    """Fail unless a placement is complete, valid and feasible; return its makespan."""
    assert found.device.shape == (problem.num_ops, problem.num_shards)
    batches = {(v, i) for v, row in enumerate(found.device.tolist()) for i in row}
    assert sorted(found.sequence.tolist()) == sorted(v * problem.num_devices + i for v, i in batches)
    assert obstacle(problem, found) == ""
    result = timeline(problem, found).makespan_s
    assert np.isfinite(result)
    return result


def problems() -> st.SearchStrategy[PlacementProblem]:
    """Draw problems with zeros, ties, forbidden devices, tight memory, groups, missing links and extreme scales."""
    return st.builds(
        lambda seed, shards, links, **others: random_placement_problem(
            seed,
            3 if shards > 1 else 4,
            2 if shards > 1 else 1 + seed % 3,
            shards=shards,
            transfers=links[0],
            missing_links=links[1],
            **others,
        ),
        st.integers(0, 10_000),
        st.sampled_from([1, 1, 2]),
        st.sampled_from(
            [("parallel", 0.0), ("parallel", 0.4), ("exclusive", 0.0), ("exclusive", 0.4), ("blocking", 0.0)]
        ),
        density=st.sampled_from([0.0, 0.4, 1.0]),
        scale=st.sampled_from([1e-9, 1.0, 1e12]),
        transfer=st.sampled_from([0.0, 0.3, 5.0]),
        zero_fraction=st.sampled_from([0.0, 0.3, 1.0]),
        forbidden_fraction=st.sampled_from([0.0, 0.3]),
        memory_fraction=st.sampled_from([np.inf, 0.7, 0.5]),
        group_fraction=st.sampled_from([0.0, 0.5]),
        integer=st.booleans(),
        identical=st.booleans(),
    )


@settings(max_examples=draws(60), deadline=None)
@given(problem=problems())
def test_feasible_and_never_better_than_the_best(problem: PlacementProblem) -> None:
    """Every placement is complete and feasible, its makespan no less than that of brute force; none means None."""
    best = brute_force_placement(problem)
    for name in NAMES:
        found = PLACEMENT_HEURISTICS[name](problem, seed=1, evaluations=EVALUATIONS)
        if found is not None:
            assert check(problem, found) >= best * (1 - 1e-12)


@settings(max_examples=draws(30), deadline=None)
@given(seed=st.integers(0, 10_000), shards=st.sampled_from([1, 3]), groups=st.sampled_from([0.0, 0.4]))
def test_without_limits_everything_finds_a_placement(seed: int, shards: int, groups: float) -> None:
    """With all links and no limits of memory or devices no heuristic gives up, on graphs too large for brute force."""
    problem = random_placement_problem(
        seed, 40, 3, shards=shards, forbidden_fraction=0.0, group_fraction=groups, density=0.05
    )
    for name in NAMES:
        found = PLACEMENT_HEURISTICS[name](problem, seed=1, evaluations=EVALUATIONS)
        assert found is not None
        check(problem, found)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shards", [1, 3])
def test_same_seed_same_placement(name: str, shards: int) -> None:
    """Two runs with one seed agree to the last batch."""
    problem = random_placement_problem(5, 30, 3, shards=shards, density=0.1, memory_fraction=0.6)
    runs = [PLACEMENT_HEURISTICS[name](problem, seed=3, evaluations=300) for _ in range(2)]
    if runs[0] is None or runs[1] is None:
        assert runs[0] is runs[1]
    else:
        assert (runs[0].device == runs[1].device).all()
        assert (runs[0].sequence == runs[1].sequence).all()


@pytest.mark.parametrize("name", NAMES)
def test_one_device(name: str) -> None:
    """On one device everything runs there without a pause."""
    problem = random_placement_problem(2, 8, 1)
    assert value(name, problem) == pytest.approx(problem.op_time_s.sum())


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_that_nothing_solves(name: str) -> None:
    """Where an op fits no device there is no placement, and nobody gives one."""
    problem = make_problem([[1.0, 1.0]] * 2, capacity=[1.0, 0.5])
    assert PLACEMENT_HEURISTICS[name](problem, seed=0, evaluations=EVALUATIONS) is None


def test_searches_repair_a_start_beyond_the_memory() -> None:
    """Four ops of 1 byte, all fastest on device 0 that holds two: the searches move two of them."""
    problem = make_problem([[1.0, 2.0]] * 4, capacity=[2.0, 2.0])
    for name in SEARCHES:
        assert value(name, problem) == 4.0


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_find_small_optima(name: str) -> None:
    """On independent ops, where the order does not matter, the searches find the optimum by brute force."""
    for seed in range(3):
        problem = random_placement_problem(seed, 5, 2, density=0.0)
        assert value(name, problem, 2_000) == pytest.approx(brute_force_placement(problem))


def test_searches_stop_with_the_budget() -> None:
    """A budget that has run out leaves the start as it is."""
    problem = random_placement_problem(1, 12, 3, forbidden_fraction=0.0)
    for name in SEARCHES:
        found = PLACEMENT_HEURISTICS[name](problem, seed=0, budget=Budget(0.0))
        assert found is not None
        check(problem, found)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("memory", [np.inf, 0.45])
def test_searches_evaluate_truly(shards: int, memory: float) -> None:
    """What the searches take for the makespan of their best, change by change, is what the timeline says."""
    for seed in range(3):
        problem = random_placement_problem(
            seed,
            150,
            3,
            shards=shards,
            density=0.02,
            memory_fraction=memory,
            group_fraction=0.2,
            forbidden_fraction=0.0,
        )
        string = _String.of(problem)
        start = string.fastest()
        assert start is not None
        rng, states = np.random.default_rng(seed), [new_mapping(string.arrays, start) for _ in range(2)]
        search_mapping(rng, string.arrays, states[0], 2000, 0.5, 0.998, False)
        search_mapping(rng, string.arrays, states[1], 2000, 0.0, 1.0, True)
        results = [(state.best, *state.value[1]) for state in states]
        for count, excess, run in results:
            found = string.placement(count)
            assert (found is None) == (excess > 0)
            if found is not None:
                assert makespan(problem, found) == pytest.approx(run, rel=1e-12)


@settings(max_examples=draws(40), deadline=None)
@given(problem=problems(), rule=st.sampled_from([DURATION, APPEND, INSERT]))
def test_schedules_become_timelines_that_are_no_later(problem: PlacementProblem, rule: int) -> None:
    """With transfers in parallel no batch of a list schedule starts later in the timeline of its placement."""
    problem = dataclasses.replace(problem, transfers="parallel")
    shape = (problem.num_ops, problem.num_devices)
    arrays, near = kernel_arrays(problem), np.ones(shape, np.bool_)
    mask, start, end = np.zeros(shape, np.int64), np.empty(shape), np.empty(shape)
    order, nobody = breadth_first(problem), np.full(problem.num_ops, -1, np.int64)
    if list_schedule(arrays, order, rule, mask, start, end):
        found = placed_when(problem, mask, start, end)
        if found is not None:
            assert (timeline(problem, found).start_s[mask > 0] <= start[mask > 0] * (1 + 1e-12)).all()
    mask[:] = 0
    if schedule_earliest_start(arrays, problem.order, near, nobody, mask, start, end):
        found = placed_when(problem, mask, start, end)
        if found is not None:
            assert (timeline(problem, found).start_s[mask > 0] <= start[mask > 0] * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_ops(name: str) -> None:
    """A problem without ops has an empty placement."""
    none, nobody = np.zeros(0), np.zeros(0, np.int64)
    problem = dataclasses.replace(
        make_problem([[1.0, 1.0]]),
        time_s=np.zeros((0, 2, 2)),
        tensor_bytes=none,
        weight_bytes=none,
        shard_bytes=none,
        order=nobody,
        group=nobody,
    )
    found = PLACEMENT_HEURISTICS[name](problem, seed=0, evaluations=EVALUATIONS)
    assert found is not None
    assert makespan(problem, found) == 0.0


def arrivals(problem: PlacementProblem, v: int, device: dict[int, int], end: dict[int, float]) -> list[float]:
    """Return when the inputs of op v are on each device."""
    before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]].tolist()
    return [
        max([0.0, *(end[u] + problem.transfer_s(u, device[u], i) for u in before)]) for i in range(problem.num_devices)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_heft_is_its_textbook_form(seed: int) -> None:
    """On graphs with hundreds of idle slots HEFT schedules as a plain search through all slots does."""
    problem = random_placement_problem(seed, 400, 2, density=0.004, transfer=4.0, forbidden_fraction=0.0)
    order = np.lexsort((np.arange(400), -upward_ranks(problem)))
    busy: list[list[tuple[float, float]]] = [[], []]
    device: dict[int, int] = {}
    end: dict[int, float] = {}
    for v in order.tolist():
        choices = []
        for i, ready in enumerate(arrivals(problem, v, device, end)):
            length = float(problem.op_time_s[v, i])
            at = ready
            for first, last in busy[i]:
                if last > ready and at + length <= first:
                    break
                at = max(at, last)
            choices.append((at + length, length, i, at))
        finish, _, i, at = min(choices)
        device[v], end[v] = i, finish
        busy[i] = sorted([*busy[i], (at, finish)])
    arrays, shape = kernel_arrays(problem), (400, 2)
    mask, start, stop = np.zeros(shape, np.int64), np.empty(shape), np.empty(shape)
    assert list_schedule(arrays, order, INSERT, mask, start, stop)
    assert mask.argmax(axis=1).tolist() == [device[v] for v in range(400)]
    assert stop[mask > 0].tolist() == pytest.approx([end[v] for v in range(400)])


@pytest.mark.parametrize("seed", range(4))
def test_m_etf_is_its_textbook_form(seed: int) -> None:
    """With limits of memory the heaps find the pairs that a plain search through all ready ops and devices finds."""
    problem = random_placement_problem(seed, 120, 3, density=0.02, memory_fraction=0.5, forbidden_fraction=0.2)
    room, free = problem.capacity_bytes.copy(), [0.0] * 3
    device: dict[int, int] = {}
    end: dict[int, float] = {}
    need = problem.weight_bytes + problem.shard_bytes
    for _ in range(120):
        first: list[tuple[float, int]] = [(np.inf, -1)] * 3
        for v in range(120):
            before = problem.pred[problem.pred_indptr[v] : problem.pred_indptr[v + 1]].tolist()
            if v not in device and all(u in device for u in before):
                for i, ready in enumerate(arrivals(problem, v, device, end)):
                    if np.isfinite(problem.op_time_s[v, i]) and need[v] <= room[i]:
                        first[i] = min(first[i], (max(ready, free[i]), v))
        _, finish, v, i = min((at, at + float(problem.op_time_s[v, i]), v, i) for i, (at, v) in enumerate(first))
        device[v], end[v], free[i] = i, finish, finish
        room[i] -= need[v]
    found = PLACEMENT_HEURISTICS["m-etf"](problem, seed=0)
    assert found is not None
    assert found.device[:, 0].tolist() == [device[v] for v in range(120)]
    assert makespan(problem, found) == pytest.approx(max(free))


@pytest.mark.parametrize("transfers", ["exclusive", "blocking"])
@pytest.mark.parametrize("shards", [1, 2])
def test_missing_links_are_never_used(transfers: Transfers, shards: int) -> None:
    """Whatever the transfers exclude, a placement that needs a link that is not there is not given."""
    for seed in range(12):
        problem = random_placement_problem(seed, 8, 3, shards=shards, transfers=transfers, missing_links=0.5)
        for name in NAMES:
            found = PLACEMENT_HEURISTICS[name](problem, seed=seed, evaluations=EVALUATIONS)
            if found is not None:
                check(problem, found)
