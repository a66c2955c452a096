"""Ideals of a problem, the merging before them, and the exact dynamic programs over them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.budget import Budget
from rlinit.datasets.published import dnn_partitioning, location
from rlinit.datasets.zoo import imagenet
from rlinit.exact.stages.ideals.enumeration import _grow, count_ideals, enumerate_ideals
from rlinit.exact.stages.ideals.memory import solve_memory_ideals
from rlinit.exact.stages.ideals.node_merging import merge_weightless
from rlinit.exact.stages.ideals.pipeline import solve_pipeline_ideals
from rlinit.hardware import Hardware
from rlinit.stages.lowering import lower_stages
from rlinit.stages.problem import StageAssignment, StageProblem, StageResult, Value, evaluate, memory_value, stage_cost
from tests.draws import draws
from tests.exact.stages.cases import any_problem, at_most
from tests.stage_cases import brute_force_memory, brute_force_pipeline, monotone_assignments, random_problem

Objective = Literal["pipeline", "memory"]
SEEDS = st.integers(0, 10**6)


def pipeline(problem: StageProblem, upper: float | None = None) -> StageResult[StageAssignment]:
    ideals = enumerate_ideals(problem, 10**6)
    assert ideals is not None
    result = solve_pipeline_ideals(problem, ideals, budget=Budget(), upper=upper)
    assert result is not None
    return result


def memory(problem: StageProblem, upper: tuple[float, float, float] | None = None) -> StageResult[StageAssignment]:
    ideals = enumerate_ideals(problem, 10**6)
    assert ideals is not None
    result = solve_memory_ideals(problem, ideals, budget=Budget(), upper=upper)
    assert result is not None
    return result


def bottleneck(problem: StageProblem, upper: float | None = None) -> float:
    value = pipeline(problem, upper).value
    assert value is not None
    return value[0]


def from_edges(
    n: int, edges: list[tuple[int, int]], work: np.ndarray, k: int, cost: float, objective: Objective = "pipeline"
) -> StageProblem:
    """Return a one-class problem with one tensor a producer, each costing `cost` to move."""
    src = sorted({u for u, _ in edges})
    rows = [[v for u, v in edges if u == s] for s in src]
    return StageProblem(
        objective=objective,
        work_s=work[None, :].astype(float) if objective == "pipeline" else np.zeros((1, n)),
        param_bytes=np.zeros(n) if objective == "pipeline" else work.astype(float),
        tensor_src=np.array(src, np.int64),
        tensor_indptr=np.cumsum([0] + [len(r) for r in rows]).astype(np.int64),
        tensor_dst=np.array([v for r in rows for v in sorted(r)], np.int64),
        tensor_bytes=np.full(len(src), cost),
        in_s=np.full((1, len(src)), cost),
        out_s=np.full((1, len(src)), cost),
        stage_class=np.zeros(k, np.int64),
        memory_bytes=np.array([np.inf]),
        cache_bytes=np.array([np.inf]),
        overflow_s_per_byte=np.zeros(1),
        order=np.arange(n, dtype=np.int64),
    )


def ideals_by_definition(problem: StageProblem) -> set[frozenset[int]]:
    """Return every set of nodes closed under predecessors, grown one node at a time."""
    before = [set(problem.pred[a:b].tolist()) for a, b in itertools.pairwise(problem.pred_indptr.tolist())]
    seen = {frozenset[int]()}
    queue = [frozenset[int]()]
    for ideal in queue:
        for v in range(problem.num_nodes):
            larger = ideal | {v}
            if v not in ideal and before[v] <= ideal and larger not in seen:
                seen.add(larger)
                queue.append(larger)
    return seen


def optimum_by_definition(problem: StageProblem) -> float:
    """Return the bottleneck by a plain dynamic program over pairs of ideals (one class)."""
    ideals = sorted(ideals_by_definition(problem), key=len)
    member = np.array([[v in ideal for v in range(problem.num_nodes)] for ideal in ideals])
    best = np.full((problem.num_stages + 1, len(ideals)), np.inf)
    best[0, 0] = 0.0
    for j, i in itertools.product(range(len(ideals)), repeat=2):
        if ideals[i] < ideals[j]:
            cost = stage_cost(problem, member[j] & ~member[i], 0)
            best[1:, j] = np.minimum(best[1:, j], np.maximum(best[:-1, i], cost))
    return float(best[:, -1].min())


def branches(
    num_modules: int, width: int, length: int, seed: int, k: int, cost: float, objective: Objective = "pipeline"
) -> StageProblem:
    """Return modules in series, each of parallel chains between a fork and a join."""
    edges, last, n = [], 0, 1
    for _ in range(num_modules):
        ends = []
        for _ in range(width):
            at = last
            for _ in range(length):
                edges.append((at, n))
                at, n = n, n + 1
            ends.append(at)
        edges += [(end, n) for end in ends]
        last, n = n, n + 1
    work = np.random.default_rng(seed).integers(1, 100, n) / 64
    return from_edges(n, edges, work, k, cost, objective)


class TestIdeals:
    """Counting and enumerating."""

    @given(seed=SEEDS)
    @settings(max_examples=draws(60), deadline=None)
    def test_count_is_that_of_the_definition(self, seed: int) -> None:
        """Every set closed under predecessors is counted once."""
        problem = any_problem(seed, "pipeline", 8)
        assert count_ideals(problem, 10**6) == len(ideals_by_definition(problem))

    @given(seed=SEEDS)
    @settings(max_examples=draws(40), deadline=None)
    def test_parents_spell_out_distinct_ideals(self, seed: int) -> None:
        """Following the parents gives every ideal of the merged problem exactly once, smaller ones first."""
        ideals = enumerate_ideals(any_problem(seed, "pipeline", 8), 10**6)
        assert ideals is not None
        sets = [frozenset[int]()]
        for parent, node in zip(ideals.parent[1:].tolist(), ideals.node[1:].tolist(), strict=True):
            sets.append(sets[parent] | {node})
        assert set(sets) == ideals_by_definition(ideals.merged.problem)
        assert len(set(sets)) == len(sets) == ideals.num_ideals
        assert [len(s) for s in sets] == sorted(len(s) for s in sets)

    @pytest.mark.compiled
    def test_cap_stops_both(self) -> None:
        """20 independent nodes have 2^20 ideals: one below the cap is too few, and a small cap answers at once."""
        problem = from_edges(20, [], np.ones(20), 2, 0.0)
        assert count_ideals(problem, 2**20) == 2**20
        assert count_ideals(problem, 2**20 - 1) == 2**20
        assert count_ideals(problem, 1000) == 1001
        assert enumerate_ideals(problem, 1000) is None

    def test_more_nodes_than_bits_in_a_word(self) -> None:
        """Two chains of 100 nodes have 101^2 ideals, and three of 33 between a fork and a join 34^3 + 2."""
        two = [(i, i + 1) for i in range(199) if i != 99]
        assert count_ideals(from_edges(200, two, np.ones(200), 2, 0.0), 10**5) == 101**2
        assert count_ideals(branches(1, 3, 33, 0, 2, 0.0), 10**5) == 34**3 + 2

    def test_colliding_keys_change_nothing(self) -> None:
        """Ideals are told apart by their bits: with one key for all nodes every look-up collides, and all are found."""
        problem = from_edges(10, [(0, 4), (1, 5), (5, 9)], np.ones(10), 2, 0.0)
        arrays = (problem.succ_indptr, problem.succ, problem.pred_indptr, problem.pred)
        assert _grow(*arrays, np.zeros(10, np.uint64), 10**5, 10)[0] == len(ideals_by_definition(problem))

    @pytest.mark.parametrize(("name", "expected"), [("ResNet50", 242), ("ResNet152", 582), ("InceptionV3", 35683)])
    def test_known_networks(self, name: str, expected: int) -> None:
        """Real networks have few ideals."""
        problem = lower_stages(imagenet.load(name), Hardware.edge_tpus(4), "pipeline").problem
        assert count_ideals(problem, 10**6) == expected


def mostly_weightless(seed: int, objective: Objective, cache: float = np.inf) -> StageProblem:
    """Return a random problem of six nodes, most of which take no time, and of one or two kinds of devices."""
    return random_problem(
        seed,
        6,
        3,
        objective=objective,
        num_classes=1 + seed % 2,
        density=(0.2, 0.35, 0.5)[seed % 3],
        zero_fraction=0.7,
        cache_fraction=cache,
        integer=True,
        tensors_per_node=1 + seed // 2 % 2,
    )


class TestMerging:
    """Weightless nodes join neighbours."""

    @given(seed=SEEDS, objective=st.sampled_from(["pipeline", "memory"]), cache=st.sampled_from([np.inf, 0.5]))
    @settings(max_examples=draws(120), deadline=None)
    def test_keeps_the_optimum(self, seed: int, objective: Objective, cache: float) -> None:
        """Merging leaves the optimal value of either objective as it was."""
        problem = mostly_weightless(seed, objective, cache)
        merged = merge_weightless(problem).problem
        if objective == "memory":
            assert brute_force_memory(merged) == brute_force_memory(problem)
        else:
            assert brute_force_pipeline(merged) == pytest.approx(brute_force_pipeline(problem), rel=1e-12)

    @given(seed=SEEDS, objective=st.sampled_from(["pipeline", "memory"]))
    @settings(max_examples=draws(40), deadline=None)
    def test_following_the_roots_costs_no_more(self, seed: int, objective: Objective) -> None:
        """Whatever the assignment: with each group where its root is, no level gets worse, and none is infeasible."""
        problem = mostly_weightless(seed, objective)
        merged = merge_weightless(problem)
        for stage in monotone_assignments(problem):
            before = StageAssignment(stage, problem.stage_class)
            after = merged.contract(before)
            value = evaluate(problem, merged.expand(after))
            pairs = zip(value, evaluate(problem, before), strict=True)
            assert all(new <= old * (1 + 1e-12) for new, old in pairs)
            assert evaluate(merged.problem, after) == pytest.approx(value, rel=1e-12)

    def test_views_follow_what_they_view(self) -> None:
        """Views join the op before them, slices of one tensor together; what makes more of it joins the op after."""
        edges = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4)]
        view = from_edges(5, edges, np.array([1.0, 0.0, 1.0, 1.0, 1.0]), 2, 1.0)
        assert merge_weightless(view).group.tolist() == [0, 0, 1, 2, 3]
        slices = from_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)], np.array([1.0, 0.0, 0.0, 1.0]), 2, 0.0)
        assert merge_weightless(slices).group.tolist() == [0, 0, 0, 1]
        larger = from_edges(3, [(0, 1), (1, 2)], np.array([1.0, 0.0, 1.0]), 2, 1.0)
        larger = dataclasses.replace(larger, in_s=np.array([[1.0, 2.0]]), out_s=np.array([[1.0, 2.0]]))
        assert merge_weightless(larger).group.tolist() == [0, 1, 1]
        read_twice = from_edges(4, [(0, 1), (0, 3), (1, 2), (1, 3)], np.array([1.0, 0.0, 1.0, 1.0]), 2, 1.0)
        assert merge_weightless(read_twice).problem.num_nodes == 4

    def test_a_node_with_work_stays(self) -> None:
        """Only what weighs nothing is merged: a source with time, or one that a class may not run, is left alone."""
        problem = from_edges(3, [(0, 2), (1, 2)], np.array([0.0, 1.0, 1.0]), 2, 1.0)
        assert merge_weightless(problem).group.tolist() == [1, 0, 1]
        ruled_out = dataclasses.replace(problem, work_s=np.array([[np.inf, 1.0, 1.0]]))
        assert merge_weightless(ruled_out).problem.num_nodes == 3

    def test_parameters_keep_nodes_apart_where_they_count(self) -> None:
        """A source with parameters is merged only where no capacity and no cache cares where they are."""
        problem = from_edges(2, [(0, 1)], np.array([0.0, 1.0]), 2, 1.0)
        heavy = dataclasses.replace(problem, param_bytes=np.array([5.0, 5.0]))
        assert merge_weightless(heavy).problem.num_nodes == 1
        for memory_bytes, cache in ((9.0, np.inf), (np.inf, 9.0)):
            limited = dataclasses.replace(
                heavy,
                overflow_s_per_byte=np.ones(1),
                memory_bytes=np.array([memory_bytes]),
                cache_bytes=np.array([cache]),
            )
            assert merge_weightless(limited).problem.num_nodes == 2

    def test_groups_share_tensors_once(self) -> None:
        """A tensor with two consumers in one group has one consumer afterwards."""
        problem = from_edges(4, [(0, 1), (0, 2), (1, 3), (2, 3)], np.array([1.0, 1.0, 1.0, 0.0]), 2, 1.0)
        assert merge_weightless(problem).problem.num_nodes == 4
        sink = from_edges(3, [(0, 1), (1, 2)], np.array([1.0, 1.0, 0.0]), 2, 1.0)
        merged = merge_weightless(sink)
        assert (merged.problem.num_nodes, merged.problem.num_tensors) == (2, 1)


class TestPipeline:
    """The bottleneck."""

    @given(seed=SEEDS)
    @settings(max_examples=draws(250), deadline=None)
    def test_equals_enumeration(self, seed: int) -> None:
        """Value, assignment and bound agree with brute force over assignments and orders of classes."""
        problem = any_problem(seed, "pipeline")
        best = brute_force_pipeline(problem)
        result = pipeline(problem)
        if np.isinf(best):
            assert (result.status, result.assignment, result.bound) == ("infeasible", None, (np.inf,))
            return
        assert result.assignment is not None
        assert result.status == "optimal"
        assert result.value == evaluate(problem, result.assignment)
        assert result.value[0] == pytest.approx(best, rel=1e-12)
        assert at_most(result.bound, (best,))
        assert sorted(result.assignment.classes.tolist()) == sorted(problem.stage_class.tolist())

    @given(seed=SEEDS)
    @settings(max_examples=draws(100), deadline=None)
    def test_cutoff(self, seed: int) -> None:
        """Nothing is better than the optimum, which proves it; just above it the optimum is found."""
        problem = any_problem(seed, "pipeline")
        best = brute_force_pipeline(problem)
        if np.isinf(best):
            return
        at = pipeline(problem, upper=best)
        assert (at.status, at.assignment, at.bound) == ("infeasible", None, (best,))
        if best > 0:
            assert bottleneck(problem, upper=best * (1 + 1e-6)) == pytest.approx(best, rel=1e-12)

    @given(seed=SEEDS, lower=st.sampled_from([0.0, 0.5, 0.999, 1.0]))
    @settings(max_examples=draws(60), deadline=None)
    def test_bounds_on_the_way_hold(self, seed: int, lower: float) -> None:
        """Every bound told is below the optimum, and they rise; a lower bound given changes no value."""
        problem = any_problem(seed, "pipeline")
        best = brute_force_pipeline(problem)
        told: list[Value] = []
        ideals = enumerate_ideals(problem, 10**6)
        assert ideals is not None
        result = solve_pipeline_ideals(
            problem,
            ideals,
            budget=Budget(),
            lower=lower * best if np.isfinite(best) else 0.0,
            on_bound=told.append,
        )
        assert result is not None
        assert told == sorted(told)
        assert all(at_most(bound, (best,)) for bound in told)
        assert result.value is None or result.value[0] == pytest.approx(best, rel=1e-12)

    @pytest.mark.parametrize("seed", range(3))
    def test_equals_a_plain_program_on_larger_graphs(self, seed: int) -> None:
        """Beyond 64 nodes, where bits span words, a plain dynamic program gives the same optimum."""
        problem = branches(6, 2, 5, seed, 4 + seed, 0.1 * seed)
        assert problem.num_nodes > 64
        assert bottleneck(problem) == pytest.approx(optimum_by_definition(problem), rel=1e-12)

    def test_long_lived_tensors_are_counted_where_they_are_used(self) -> None:
        """A tensor that skips stages costs its producer and its consumers once each, and nobody between."""
        edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
        problem = from_edges(4, edges, np.array([1.0, 10.0, 10.0, 1.0]), 4, 3.0)
        assert bottleneck(problem) == optimum_by_definition(problem)

    def test_costs_of_very_different_size(self) -> None:
        """Costs of 1e12 beside costs of 1e-9 neither hide them nor break the bound."""
        for seed in range(20):
            problem = random_problem(seed, 6, 4, num_classes=2, tensors_per_node=2)
            rng = np.random.default_rng(seed)
            scale = 10.0 ** rng.integers(-9, 13, problem.num_tensors)
            mixed = dataclasses.replace(
                problem,
                in_s=problem.in_s * scale,
                out_s=problem.out_s * scale,
                work_s=problem.work_s * 10.0 ** rng.integers(-9, 13, problem.work_s.shape),
            )
            assert bottleneck(mixed) == pytest.approx(brute_force_pipeline(mixed), rel=1e-9)

    def test_a_class_that_pays_for_no_transfer_and_one_that_is_slow(self) -> None:
        """Accelerators and a slow processor without transfers, in every order, against brute force."""
        for seed in range(25):
            problem = random_problem(seed, 7, 3, num_classes=2, integer=bool(seed % 2))
            mixed = dataclasses.replace(
                problem,
                work_s=np.stack([problem.work_s[0], 10.0 * problem.work_s[0]]),
                in_s=problem.in_s * [[1.0], [0.0]],
                out_s=problem.out_s * [[1.0], [0.0]],
                memory_bytes=np.array([0.6 * problem.param_bytes.sum(), np.inf]),
            )
            assert bottleneck(mixed) == pytest.approx(brute_force_pipeline(mixed), rel=1e-12)

    def test_scaling_changes_nothing_but_the_value(self) -> None:
        """Costs times a power of two give the same work and the value times it."""
        problem = branches(4, 3, 3, 1, 5, 0.2)
        factor = 2.0**-60
        scaled = dataclasses.replace(
            problem, work_s=problem.work_s * factor, in_s=problem.in_s * factor, out_s=problem.out_s * factor
        )
        one, two = pipeline(problem), pipeline(scaled)
        assert one.value is not None
        assert two.value is not None
        assert two.value[0] == one.value[0] * factor
        assert two.work == one.work

    def test_growth_under_a_time_limit_gives_the_same_ideals_or_gives_up_in_time(self) -> None:
        """Caps that grow by a factor end at the same ideals; where they would take too long, at None soon after."""
        problem = branches(1, 3, 33, 0, 2, 0.0)
        once, often = enumerate_ideals(problem, 10**5), enumerate_ideals(problem, 10**5, Budget(60.0))
        assert once is not None
        assert often is not None
        assert (once.parent == often.parent).all()
        assert (once.node == often.node).all()
        problem, began_s = random_problem(0, 200, 3, density=0.0, zero_fraction=0.0), time.process_time()
        assert enumerate_ideals(problem, 10**8, Budget(0.3)) is None
        assert time.process_time() - began_s < 10.0

    def test_too_many_states_are_refused(self) -> None:
        """64 different stages would take 2^64 states: the answer is None, not an attempt."""
        problem = random_problem(0, 5, 64, num_classes=64)
        ideals = enumerate_ideals(problem, 1000)
        assert ideals is not None
        assert solve_pipeline_ideals(problem, ideals, budget=Budget()) is None

    def test_nothing_to_run_a_node_on(self) -> None:
        """A node that no class may run makes it infeasible, and so does one that no memory holds."""
        problem = random_problem(3, 5, 3)
        work = problem.work_s.copy()
        work[:, 2] = np.inf
        assert pipeline(dataclasses.replace(problem, work_s=work)).bound == (np.inf,)
        heavy = dataclasses.replace(problem, memory_bytes=np.array([problem.param_bytes.max() * 0.9]))
        assert pipeline(heavy).status == "infeasible"

    def test_a_spent_budget_keeps_what_was_proven(self) -> None:
        """Out of time there is no assignment, and the bound is one."""
        problem = branches(3, 4, 5, 2, 6, 0.3)
        ideals = enumerate_ideals(problem, 10**6)
        assert ideals is not None
        result = solve_pipeline_ideals(problem, ideals, budget=Budget(0.0))
        best = pipeline(problem).value
        assert result is not None
        assert best is not None
        assert result.status == "no_solution"
        assert 0 < result.bound[0] <= best[0]

    @pytest.mark.compiled
    def test_cancelling_is_heard_soon(self) -> None:
        """Another thread's cancel ends a long search long before its end."""
        problem = branches(1, 6, 8, 3, 12, 0.05)
        ideals = enumerate_ideals(problem, 10**6)
        assert ideals is not None
        solve_pipeline_ideals(problem, ideals, budget=Budget(0.0))
        budget = Budget()
        timer = threading.Timer(0.5, budget.cancel)
        timer.start()
        started = time.monotonic()
        result = solve_pipeline_ideals(problem, ideals, budget=budget)
        timer.cancel()
        assert result is not None
        assert result.status == "no_solution"
        assert time.monotonic() - started < 20.0

    @pytest.mark.compiled
    @pytest.mark.parametrize(
        ("name", "optimum_ms"),
        [
            ("layer-bert24", 17.7899),
            ("layer-gnmt", 32.9107),
            ("layer-resnet50", 33.7747),
            ("layer-inceptionv3", 51.5519),
            ("op-bert_l-3", 27.9186),
            ("op-bert_l-6", 29.5795),
        ],
    )
    def test_published_workloads(self, name: str, optimum_ms: float) -> None:
        """The optima of Tarnawski et al.'s contiguous splits, and that of the one their program has no memory for."""
        root = location.instances_root()
        if root is None:
            pytest.skip("published instances are absent")
        graph, hardware = dnn_partitioning.load(root / "dnn-partitioning" / "throughput" / f"{name}_inference.json")
        result = pipeline(lower_stages(graph, hardware, "pipeline").problem)
        assert result.status == "optimal"
        assert result.value is not None
        assert result.value[0] == pytest.approx(optimum_ms * 1e-3, rel=1e-5)


class TestMemory:
    """(peak, off-cache, traffic)."""

    @given(seed=SEEDS)
    @settings(max_examples=draws(250), deadline=None)
    def test_equals_enumeration(self, seed: int) -> None:
        """All three levels agree with brute force exactly."""
        problem = any_problem(seed, "memory")
        best = brute_force_memory(problem)
        result = memory(problem)
        if np.isinf(best[0]):
            assert (result.status, result.assignment, result.bound) == ("infeasible", None, (np.inf,) * 3)
            return
        assert result.assignment is not None
        assert (result.status, result.value, result.bound) == ("optimal", best, best)
        assert memory_value(problem, result.assignment.stage) == best

    @given(seed=SEEDS)
    @settings(max_examples=draws(100), deadline=None)
    def test_cutoff(self, seed: int) -> None:
        """Nothing is better than the optimum; from a value worse on the last level it is found."""
        problem = any_problem(seed, "memory")
        best = brute_force_memory(problem)
        if np.isinf(best[0]):
            return
        at = memory(problem, best)
        assert (at.status, at.assignment, at.bound) == ("infeasible", None, best)
        assert memory(problem, (best[0], best[1], best[2] + 1e13)).value == best

    @given(seed=SEEDS)
    @settings(max_examples=draws(100), deadline=None)
    def test_stages_that_differ(self, seed: int) -> None:
        """Positions with their own caches, capacities and forbidden nodes bind in their order."""
        rng = np.random.default_rng(seed)
        problem = random_problem(seed, 6, 3, objective="memory", num_classes=3, integer=True, tensors_per_node=2)
        total = problem.param_bytes.sum()
        mixed = dataclasses.replace(
            problem,
            stage_class=rng.permutation(3).astype(np.int64),
            cache_bytes=np.floor(rng.random(3) * total / 2),
            memory_bytes=np.array([np.inf, np.inf, np.floor(0.4 * total)]),
            work_s=np.where(rng.random((3, 6)) < 0.1, np.inf, 0.0),
        )
        best = brute_force_memory(mixed)
        assert memory(mixed).value == (best if np.isfinite(best[0]) else None)

    def test_bytes_that_are_not_whole(self) -> None:
        """Fractions of bytes agree up to the rounding of their sums."""
        for seed in range(30):
            problem = random_problem(seed, 6, 3, objective="memory", cache_fraction=0.7)
            assert memory(problem).value == pytest.approx(brute_force_memory(problem), rel=1e-9)

    def test_spent_budget_keeps_the_peak(self) -> None:
        """A budget that ends after the first step leaves a schedule with the best peak, proven, and a bound."""
        problem = branches(4, 3, 4, 1, 3, 1.0, "memory")
        ideals = enumerate_ideals(problem, 10**6)
        assert ideals is not None
        budget = Budget()
        best = memory(problem).value
        assert best is not None
        told: list[Value] = []

        def stop(bound: Value) -> None:
            told.append(bound)
            if bound[0] == best[0]:
                budget.cancel()

        result = solve_memory_ideals(problem, ideals, budget=budget, on_bound=stop)
        assert result is not None
        assert all(at_most(bound, best) for bound in told)
        assert at_most(result.bound, best)
        assert result.status == "feasible"
        assert result.value is not None
        assert result.value[0] == best[0] == result.bound[0]

    @pytest.mark.parametrize(
        ("name", "k", "value"),
        [
            ("Xception", 4, (5965744.0, 0.0, 525616.0)),
            ("ResNet152", 5, (12224640.0, 18476904.0, 250880.0)),
            ("InceptionResNetV2", 6, (9528352.0, 5542088.0, 425408.0)),
        ],
    )
    def test_known_networks(self, name: str, k: int, value: Value) -> None:
        """Recorded optima of real networks on Edge TPUs."""
        problem = lower_stages(imagenet.load(name), Hardware.edge_tpus(k), "memory").problem
        assert memory(problem).value == value
