"""Stages of several devices: the dynamic program against every plan there is, and the paper's table."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit
from rlinit.budget import Budget
from rlinit.datasets import piper
from rlinit.datasets.published.location import instances_root
from rlinit.errors import InvalidGraph, InvalidHardware, InvalidPlan, RlinitError
from rlinit.exact.stages.groups.search import area_bound, ideals_of, solve_groups
from rlinit.exact.stages.groups.variants import choose
from rlinit.hardware import Device, Hardware
from rlinit.menu import Menu
from rlinit.plan import Exchange, GroupRules
from rlinit.stages.groups.lowering import lower_groups
from rlinit.stages.groups.problem import GroupProblem, group_value
from tests.draws import draws

AUTO: dict[str, Any] = {"replicas": "auto", "tensor_parallel": "auto"}


def drawn(
    seed: int, n: int, scale: float = 1.0, exchange: str = "ring", spread: int = 0, kinds: int = 1
) -> rlinit.Graph:
    """Return a random graph with one or two variants at degrees 1, 2 and, some, 3; `spread`: decades of seconds."""
    draw = np.random.default_rng(seed)
    edges = [(f"o{u}", f"o{v}", float(draw.integers(0, 5))) for v in range(n) for u in range(v) if draw.random() < 0.5]
    around: dict[str, list[str]] = {f"o{v}": [] for v in range(n)}
    for a, b, _ in edges:
        around[a].append(b)
        around[b].append(a)

    def variant(name: str, t: int, op: str) -> dict[str, Any]:
        sizes = {
            key: float(draw.integers(0, 6)) for key in ("param_bytes", "held_bytes", "fixed_bytes", "shared_bytes")
        }
        sync = {other: float(draw.integers(0, 3)) for other in around[op] if t > 1}
        seconds = scale * float(draw.integers(0, 12)) * 10.0 ** draw.integers(-spread, spread + 1) / t
        by_kind = {f"k{i}": seconds * float(draw.integers(0 if i else 1, 4)) for i in range(kinds)}
        if kinds > 1 and draw.random() < 0.2:
            del by_kind["k1"]
        return {"name": name, "time_s": by_kind if kinds > 1 else seconds, **sizes, "sync_bytes": sync}

    ops = []
    for op in around:
        degrees = [1, 2, *([3] if draw.random() < 0.3 else [])]
        names = ["plain", "recomputed"][: int(draw.integers(1, 3))]
        note = {"exchange": exchange, "workspace_bytes": {"1": float(draw.integers(0, 4)), "2": 1.0}}
        ops.append((op, {"menu": {t: [variant(name, t, op) for name in names] for t in degrees}, "note": note}))
    return rlinit.Graph.build(ops, edges)


def cluster(devices: int, nodes: int, memory: float, scale: float, kinds: int = 1) -> Hardware:
    """Return devices in nodes, between which links are slower; those of further kinds have other memory."""
    rows = [
        Device(
            f"d{i}", kind=f"k{i % kinds}", memory_bytes=memory * (1 + i % kinds), reserve_bytes=0.5,
            node=f"n{i % kinds}-{i // kinds % nodes}",
        )
        for i in range(devices)
    ]  # fmt: skip
    rates = np.array([[10.0 if a.node == b.node else 2.0 for a in rows] for b in rows]) / scale
    return Hardware(tuple(rows), rates, np.full_like(rates, 0.01 * scale))


def least_value(problem: GroupProblem, *, uniform: bool = False) -> float:
    """Return the least value of all plans, by the definition; inf where none fits.

    Every row of sets of ops, each with every degree, replicas on every kind and shares of a batch, and every variant.
    """
    kinds, best = range(len(problem.counts)), math.inf
    shapes = [
        (t, mix)
        for t in np.unique(problem.degrees).tolist()
        for mix in itertools.product(*(range(count // t + 1) for count in problem.counts.tolist()))
        if sum(mix)
        and all(t in problem.degrees[problem.kind == k] for k in kinds if mix[k])
        and (max(mix) < sum(mix) or sum(mix) in problem.replicas)
        and (max(mix) == sum(mix) or mix in list(map(tuple, problem.mixes.tolist())))
    ]
    seconds = cache(lambda ops, t, mix, behind: stage_seconds(problem, ops, t, mix, behind))
    by_length: dict[int, list[tuple[tuple[int, tuple[int, ...]], ...]]] = {0: [()]}
    for length in range(1, problem.num_nodes + 1):
        by_length[length] = [
            (*shorter, shape)
            for shorter in by_length[length - 1]
            for shape in shapes
            if (np.sum([t * np.array(mix) for t, mix in (*shorter, shape)], axis=0) <= problem.counts).all()
            and sum(sum(mix) for _, mix in (*shorter, shape)) <= problem.microbatches
            and (not uniform or len({(t, sum(mix)) for t, mix in (*shorter, shape)}) == 1)
        ]
    for row in rows_of_sets(problem):
        for chosen in by_length[len(row)]:
            value, behind = 0.0, 0
            for ops, (t, mix) in zip(row[::-1], chosen[::-1], strict=True):
                behind += sum(mix)
                value = max(value, seconds(ops, t, mix, behind) if value < best else math.inf)
            best = min(best, value)
    return best


def rows_of_sets(problem: GroupProblem) -> list[tuple[frozenset[int], ...]]:
    """Return the rows of sets of ops, none of them empty, in which no edge leads to an earlier set."""
    n, structure, found = problem.num_nodes, problem.structure, []
    source = np.repeat(np.arange(n), np.diff(structure.succ_indptr))
    for stages in range(1, min(n, problem.num_devices) + 1):
        for stage in itertools.product(range(stages), repeat=n):
            backwards = any(stage[u] > stage[v] for u, v in zip(source, structure.succ, strict=True))
            if len(set(stage)) == stages and not backwards:
                found.append(tuple(frozenset(v for v in range(n) if stage[v] == j) for j in range(stages)))
    return found


def stage_seconds(problem: GroupProblem, ops: frozenset[int], t: int, mix: tuple[int, ...], behind: int) -> float:
    """Return the least seconds of a stage of some ops; inf where it fits in no way."""
    kinds, n, total = [k for k, d in enumerate(mix) if d], problem.microbatches, sum(mix)
    ways = [share_seconds(problem, ops, problem.forms[t, k], mix, behind) for k in kinds]
    if len(kinds) == 1:
        return ways[0][-(-n // total)]
    best = math.inf
    for shares in itertools.product(range(1, n + 1), repeat=len(kinds)):
        if sum(mix[k] * share for k, share in zip(kinds, shares, strict=True)) >= n:
            best = min(best, max(way[share] for way, share in zip(ways, shares, strict=True)))
    return best


def rows_of(problem: GroupProblem, c: int, v: int) -> range:
    """Return the variants of a node in a form."""
    at = c * problem.num_nodes + v
    return range(int(problem.row_indptr[at]), int(problem.row_indptr[at + 1]))


def share_seconds(
    problem: GroupProblem, ops: frozenset[int], c: int, mix: tuple[int, ...], behind: int
) -> dict[int, float]:
    """Return micro-batches of a batch -> the least seconds of a stage on one of its kinds whose replicas take them."""
    structure, n, total, mixed = problem.structure, problem.microbatches, sum(mix), max(mix) < sum(mix)
    moves, best = 0.0, dict.fromkeys(range(1, n + 1), math.inf)
    for x in range(structure.num_tensors):
        inner = slice(structure.tensor_indptr[x], structure.tensor_indptr[x + 1])
        readers = set(structure.tensor_dst[inner].tolist())
        if (int(structure.tensor_src[x]) in ops and readers - ops) or (
            int(structure.tensor_src[x]) not in ops and readers & ops
        ):
            moves += problem.transfer_s[c, x]
    around = {}
    for v in ops:
        near = [
            *structure.pred[structure.pred_indptr[v] : structure.pred_indptr[v + 1]].tolist(),
            *structure.succ[structure.succ_indptr[v] : structure.succ_indptr[v + 1]].tolist(),
        ]
        for r in rows_of(problem, c, v):
            syncs = problem.sync_s[problem.sync_indptr[r] : problem.sync_indptr[r + 1]].tolist()
            around[r] = sum(s for u, s in zip(near, syncs, strict=True) if u not in ops)
    for rows in itertools.product(*(rows_of(problem, c, v) for v in sorted(ops))):
        work, picked = moves + sum(problem.time_s[r] + around[r] for r in rows), list(rows)
        for share in best:
            y = {"one": 1, "batch": share, "behind": min(share, math.ceil(behind * share / n) + mixed)}[
                problem.in_flight
            ]
            held = problem.held_bytes[picked].sum() * y + problem.fixed_bytes[picked].sum()
            held += problem.shared_bytes[picked].sum() * max(share / n, 1 / total)
            if mixed:
                at = problem.mixes.tolist().index(list(mix))
                gradient = problem.mix_s[c, at] * problem.most_param_bytes[c, sorted(ops)].sum()
            else:
                gradient = problem.gradient_s[picked].sum() / total
                gradient *= problem.gradient_share[c, problem.replicas.tolist().index(total)]
            if held <= problem.memory_bytes[c] * (1 + 1e-12):
                best[share] = min(best[share], work * share / n + gradient)
    return best


@settings(max_examples=draws(60), deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 5), st.sampled_from([1, 2, 4, 6]),
    st.sampled_from(["", "1f1b", "gpipe"]), st.sampled_from([6.0, 15.0, 40.0, math.inf]),
    st.sampled_from([1e-9, 1.0, 1e12]), st.sampled_from(get_args(Exchange)), st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([0, 6]), st.sampled_from([1, 2, 2, 3]), st.booleans(),
)  # fmt: skip
def test_the_search_is_exact(
    seed: int, n: int, devices: int, microbatches: int, training: str, memory: float, scale: float,
    exchange: Exchange, nodes: int, spread: int, kinds: int, mixed: bool,
) -> None:  # fmt: skip
    """Value, or infeasibility, is that of all plans; the bound is one; the checker finds the same value."""
    graph = drawn(seed, n, scale, exchange, spread, kinds)
    hardware = cluster(devices, nodes, memory, scale, kinds)
    taken = graph.extras[0]["note"]["workspace_bytes"]
    rules = GroupRules(training, microbatches, exchange=exchange, workspace_bytes=taken, mixed=mixed)
    try:
        problem = lower_groups(graph, hardware, rules).problem
    except RlinitError:  # no degree divides the devices for some op
        return
    known = least_value(problem)
    ideals = ideals_of(problem, Budget())
    assert ideals is not None
    assert area_bound(problem) <= known * (1 + 1e-9)
    found = solve_groups(problem, ideals, lower=area_bound(problem), upper=math.inf, budget=Budget())
    if known == math.inf:
        assert found.status == "infeasible"
        return
    assert found.value is not None
    assert found.assignment is not None
    assert group_value(problem, found.assignment) == found.value
    assert found.value[0] == pytest.approx(known, rel=2e-7)
    assert found.bound[0] <= known * (1 + 1e-12)
    assert found.bound[0] >= known * (1 - 2e-7)
    asked: dict[str, Any] = {"training": training or None, "microbatches": microbatches, "recompute": "auto"}
    asked |= {"replicas": "mixed" if mixed else "auto", "tensor_parallel": "auto"}
    plan = rlinit.schedule(graph, hardware, **asked)
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(known, rel=2e-7)
    assert all(value is None or value >= known * (1 - 1e-9) for value in plan.baselines.values())


@pytest.mark.parametrize("seed", range(6))
def test_each_kind_alone_is_a_baseline(seed: int) -> None:
    """On a chain it is what a cluster of that kind alone gives, whichever kind is first."""
    draw = np.random.default_rng(seed)
    ops = []
    for v in range(6):
        slow = {f"k{i}": float(draw.integers(1, 9)) for i in range(2)}
        ops.append((f"o{v}", {"menu": {1: [{"time_s": slow, "fixed_bytes": float(draw.integers(0, 4))}]}}))
    graph = rlinit.Graph.build(ops, [(f"o{v}", f"o{v + 1}", 1.0) for v in range(5)])
    whole = cluster(6, 2, 8.0, 1.0, 2)
    plan = rlinit.schedule(graph, whole, **AUTO, microbatches=4)
    for k in range(2):
        row = [i for i, device in enumerate(whole.devices) if device.kind == f"k{k}"]
        rates = np.full((3, 3), whole.bandwidth.min())  # tensors go at the slowest link of all
        alone = Hardware(tuple(whole.devices[i] for i in row), rates, whole.latency_s[np.ix_(row, row)])
        found = rlinit.schedule(graph, alone, **AUTO, microbatches=4)
        assert plan.baselines[f"k{k} alone"] == (pytest.approx(found.value) if found.values else None)


@settings(max_examples=draws(200), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.0, 30.0), st.floats(0.0, 30.0))
def test_variants_are_chosen_exactly(seed: int, k: int, most_cost: float, most_size: float) -> None:
    """A choice within both limits is found where there is one."""
    draw = np.random.default_rng(seed)
    first = np.concatenate([[0], np.cumsum(draw.integers(1, 4, k))]).astype(np.int64)
    cost, size = draw.integers(0, 8, first[-1]).astype(float), draw.integers(0, 8, first[-1]).astype(float)
    choice = np.zeros(k, np.int64)
    answer = choose(first, cost, size, most_cost, most_size, choice)
    fits = any(
        cost[list(rows)].sum() <= most_cost and size[list(rows)].sum() <= most_size
        for rows in itertools.product(*(range(first[x], first[x + 1]) for x in range(k)))
    )
    assert answer == fits
    if answer:
        assert all(first[x] <= choice[x] < first[x + 1] for x in range(k))
        assert cost[choice].sum() <= most_cost
        assert size[choice].sum() <= most_size


@pytest.mark.skipif(instances_root() is None, reason="the published instances are not at hand")
@pytest.mark.parametrize(
    ("devices", "gib", "value"),
    [(8, 4, None), (8, 8, 0.165856), (32, 2, 0.0665495), (32, 8, 0.0415155), (128, 4, 0.0117231), (512, 8, 0.00256113)],
)
def test_values_of_piper(devices: int, gib: int, value: float | None) -> None:
    """Values of the authors' program, proven; infeasible where it finds nothing."""
    root = instances_root()
    assert root is not None
    graph, hardware = piper.load(
        root / "piper" / "bert32a100.json",
        devices=devices, memory_bytes=gib * 2.0**30, bandwidth=25 * 2.0**30, microbatches=1920,
    )  # fmt: skip
    plan = rlinit.schedule(graph, hardware, **AUTO)
    if value is None:
        assert plan.status == "infeasible"
        assert "iB more would do" in plan.message
        return
    assert plan.status == "optimal"
    assert plan.value <= value * (1 + 4e-6)  # six digits
    same = rlinit.schedule(graph, hardware, **AUTO, training="1f1b", microbatches=1920, recompute="auto")
    assert same.value == plan.value


def chain(n: int = 4, **extra: Any) -> rlinit.Graph:
    """Return a chain of equal ops with degrees 1 and 2."""
    rows = [{"name": "plain", "time_s": 4.0, "param_bytes": 1.0, "held_bytes": 2.0}]
    half = [{"name": "halved", "time_s": 2.5, "param_bytes": 0.5, "held_bytes": 1.0}]
    ops = [(f"o{v}", {"menu": {1: rows, 2: half}, **extra}) for v in range(n)]
    return rlinit.Graph.build(ops, [(f"o{v}", f"o{v + 1}", 1.0) for v in range(n - 1)])


def test_plans_say_which_devices_and_variants(tmp_path: Any) -> None:
    """Stages have distinct devices, their variants; a plan goes through a file, and the checker refuses a wrong one."""
    graph, hardware = chain(), Hardware.mesh([Device(f"d{i}") for i in range(6)], 100.0)
    plan = rlinit.schedule(graph, hardware, **AUTO, training="1f1b", microbatches=12)
    assert plan.status == "optimal"
    names = [name for use in plan.stages for name in use.devices]
    assert len(set(names)) == len(names) <= 6
    assert all(len(use.devices) == use.replicas * use.tensor_parallel for use in plan.stages)
    assert {op for use in plan.stages for op in use.variants} == set(graph.names)
    plan.save(tmp_path / "plan.json")
    again = rlinit.Plan.load(tmp_path / "plan.json")
    assert again == plan
    rlinit.verify(again, graph, hardware)
    assert "replicas" in str(plan)
    first = plan.stages[0]
    for wrong in (
        replace(first, replicas=first.replicas + 1),
        replace(first, work_s=0.5 * first.work_s),
        replace(first, variants={op: "other" for op in first.variants}),
        replace(first, held_bytes=first.held_bytes + 1.0),
        replace(first, devices=("nobody", *first.devices[1:])),
    ):
        with pytest.raises(InvalidPlan):
            rlinit.verify(replace(plan, stages=(wrong, *plan.stages[1:])), graph, hardware)


def unlike(n: int = 4, **extra: Any) -> tuple[rlinit.Graph, Hardware]:
    """Return a chain of ops that take 2.5 times as long on three of seven devices, which have less memory as well."""
    ways = [
        {"name": "plain", "time_s": {"fast": 4.0, "slow": 10.0}, "param_bytes": 1.0, "held_bytes": 2.0},
        {"name": "recomputed", "time_s": {"fast": 5.0, "slow": 12.5}, "param_bytes": 1.0, "held_bytes": 0.5},
    ]
    ops = [(f"o{v}", {"menu": {1: ways}, **extra}) for v in range(n)]
    graph = rlinit.Graph.build(ops, [(f"o{v}", f"o{v + 1}", 1.0) for v in range(n - 1)])
    devices = [Device(f"d{i}", "fast" if i < 4 else "slow", (40.0, 14.0)[i > 3], node=f"n{i > 3}") for i in range(7)]
    return graph, Hardware.mesh(devices, 100.0)


MIXED: dict[str, Any] = {"replicas": "mixed", "training": "1f1b", "microbatches": 26, "recompute": "auto"}


def test_mixed_replicas_share_a_batch_as_they_are_fast(tmp_path: Any) -> None:
    """Devices as fast as 5.2 fast ones take about a 5.2th of the work; the checker refuses every other share."""
    graph, hardware = unlike()
    plan = rlinit.schedule(graph, hardware, **MIXED)
    assert plan.status == "optimal"
    assert 16.0 / 5.2 <= plan.value < 1.07 * 16.0 / 5.2
    apart = plan.baselines["one kind a stage"]
    assert apart is not None
    assert apart > 1.1 * plan.value
    (stage,) = plan.stages
    of = {share.kind: share for share in stage.shares}
    assert {kind: (share.replicas, share.microbatches) for kind, share in of.items()} == {
        "fast": (4, 5), "slow": (3, 2)
    }  # fmt: skip
    assert of["fast"].in_flight == 3  # two of seven in flight, and one more
    assert set(of["slow"].variants.values()) == {"plain", "recomputed"}  # all plain would hold 16 bytes of 14
    assert plan.value == pytest.approx(max(share.time_s for share in stage.shares))
    assert "4 + 3" in str(plan) or "3 + 4" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert rlinit.Plan.load(tmp_path / "plan.json") == plan
    rlinit.verify(plan, graph, hardware)
    first, second = stage.shares
    wrong: list[dict[str, Any]] = [
        {"shares": (replace(first, **edit), second)}
        for edit in (
            {"microbatches": first.microbatches + 1}, {"microbatches": first.microbatches - 1}, {"replicas": 2},
            {"time_s": 0.9 * first.time_s}, {"in_flight": 1}, {"held_bytes": 0.0}, {"kind": second.kind},
            {"variants": dict.fromkeys(first.variants, "other")},
        )
    ]  # fmt: skip
    wrong += [{"shares": (second, first)}, {"shares": (first,)}, {"shares": ()}, {"devices": stage.devices[::-1]}]
    for edit in wrong:
        with pytest.raises(InvalidPlan):
            rlinit.verify(replace(plan, stages=(replace(stage, **edit),)), graph, hardware)
    assert plan.groups is not None
    with pytest.raises(InvalidPlan):
        rlinit.verify(replace(plan, groups=replace(plan.groups, mixed=False)), graph, hardware)


def test_mixed_replicas_of_one_kind_need_not_divide_a_batch() -> None:
    """Seven replicas of alike devices take two of 13 micro-batches at most; with auto there are 1 or 13."""
    graph, hardware = chain(), Hardware.mesh([Device(f"d{i}") for i in range(7)], 1e9)
    asked: dict[str, Any] = {"tensor_parallel": 1, "training": "1f1b", "microbatches": 13}
    plan = rlinit.schedule(graph, hardware, replicas="mixed", **asked)
    assert plan.value == pytest.approx(16.0 * 2 / 13)
    assert rlinit.schedule(graph, hardware, replicas="auto", **asked).value == pytest.approx(4.0)
    with pytest.raises(RlinitError, match="uniform"):
        rlinit.schedule(graph, hardware, replicas="mixed", uniform=True, **asked)
    with pytest.raises(RlinitError, match="tensor_parallel"):
        rlinit.schedule(graph, hardware, replicas=1, tensor_parallel="mixed", microbatches=4)  # type: ignore[arg-type]
    many = [Device(f"d{i}", f"k{i % 2}") for i in range(500)]
    with pytest.raises(InvalidHardware, match="too many for mixed"):
        rlinit.schedule(graph, Hardware.mesh(many, 1.0), replicas="mixed", microbatches=500)


def test_what_is_asked_for_is_kept() -> None:
    """Numbers hold for every stage, uniform plans have one of each, and nodes hold tensor groups."""
    graph, hardware = chain(), Hardware.mesh([Device(f"d{i}") for i in range(8)], 100.0)
    asked = rlinit.schedule(graph, hardware, replicas=2, tensor_parallel=2, training="1f1b", microbatches=4)
    assert {(use.replicas, use.tensor_parallel) for use in asked.stages} == {(2, 2)}
    free = rlinit.schedule(graph, hardware, **AUTO, training="1f1b", microbatches=12)
    uniform = rlinit.schedule(graph, hardware, **AUTO, uniform=True, training="1f1b", microbatches=12)
    assert len({(use.replicas, use.tensor_parallel) for use in uniform.stages}) == 1
    assert free.value <= uniform.value
    assert uniform.status == "optimal"
    best = min(
        rlinit.schedule(
            graph, hardware, replicas=d, tensor_parallel=t, uniform=True, training="1f1b", microbatches=12
        ).value
        for d in (1, 2, 3, 4, 6)
        for t in (1, 2)
    )
    assert uniform.value == pytest.approx(best, rel=2e-7)
    nodes = [Device(f"d{i}", node=f"n{i // 2}") for i in range(8)]
    apart = rlinit.schedule(graph, Hardware.mesh(nodes, 100.0), replicas=1, tensor_parallel=2)
    assert all(int(a[1:]) // 2 == int(b[1:]) // 2 for a, b in (use.devices for use in apart.stages))


def test_uniform_plans_are_compared_with_uniform_ones() -> None:
    """A kind alone, with unequal replicas, is neither the plan nor a baseline where uniform ones were asked for."""
    ops = [(op, {"menu": {1: [{"time_s": {"fast": s, "slow": 100 * s}}]}}) for op, s in (("a", 8.0), ("b", 4.0))]
    graph = rlinit.Graph.build(ops, [("a", "b", 0.0)])
    hardware = Hardware.mesh([Device(f"d{i}", "fast" if i < 3 else "slow") for i in range(4)], 100.0)
    plan = rlinit.schedule(graph, hardware, **AUTO, microbatches=4, uniform=True)
    assert plan.status == "optimal"
    assert plan.value == pytest.approx(6.0)
    assert "fast alone" not in plan.baselines
    free = rlinit.schedule(graph, hardware, **AUTO, microbatches=4)
    assert free.value == pytest.approx(4.0)
    assert free.baselines["fast alone"] == pytest.approx(4.0)


def test_rules_that_do_not_fit_say_what_they_lack() -> None:
    """With the bytes that a rule's note names it has a plan, with a few less it has none."""

    def planned(memory: float) -> rlinit.Plan:
        devices = [Device(f"d{i}", memory_bytes=memory, node=f"n{i // 4}") for i in range(8)]
        return rlinit.schedule(chain(6), Hardware.mesh(devices, 10.0), **AUTO, training="1f1b", microbatches=8)

    plan = planned(6.0)
    assert plan.baselines["data parallel"] is None
    note = plan.baseline_notes["data parallel"]
    lacks = float(note.partition("does not fit: ")[2].split()[0])
    assert note == f"tensor degree 1, it does not fit: {lacks:g} B a device are missing"
    assert lacks == pytest.approx(6 * 2.0 - 6.0, rel=1e-2)
    assert planned(6.0 + 1.01 * lacks).baselines["data parallel"] is not None
    none = rlinit.schedule(
        chain(), Hardware.mesh([Device(f"d{i}") for i in range(4)], 1.0), replicas=2, training="1f1b", microbatches=4
    )
    assert none.baseline_notes["pipeline"] == "no stage may be so"


def test_bad_input_is_named() -> None:
    """One line says which field, and the way on."""
    graph, hardware = chain(), Hardware.mesh([Device(f"d{i}") for i in range(4)], 100.0)
    with pytest.raises(InvalidGraph, match="degree that no op has"):
        rlinit.schedule(graph, hardware, tensor_parallel=5)
    with pytest.raises(RlinitError, match="divisor of the 4 micro-batches"):
        rlinit.schedule(graph, hardware, replicas=3, training="1f1b", microbatches=4)
    with pytest.raises(RlinitError, match="does not divide a node of 3"):
        rlinit.schedule(graph, Hardware.mesh([Device(f"d{i}") for i in range(3)], 1.0), tensor_parallel=2)
    with pytest.raises(InvalidHardware, match="differ"):
        rlinit.schedule(graph, Hardware.mesh([Device("a"), Device("b", memory_bytes=9.0)], 1.0), replicas=2)
    with pytest.raises(RlinitError, match="microbatches"):
        rlinit.schedule(graph, hardware, **AUTO, training="1f1b")
    with pytest.raises(RlinitError, match="1f1b or gpipe"):
        rlinit.schedule(graph, hardware, **AUTO, training="zero-bubble", microbatches=4)
    menu = {"menu": {1: [{"time_s": 1.0}]}}
    with pytest.raises(InvalidGraph, match="'b' has no menu"):
        rlinit.schedule(rlinit.Graph.build([("a", menu), ("b", {"time_s": 1.0})], []), hardware, **AUTO)
    for ways, said in (
        ({}, "expected tensor degree"),
        ({0: [{"time_s": 1.0}]}, "degree '0'"),
        ({1: []}, "one variant or more"),
        ({1: [{"time_s": -1.0}]}, "time_s"),
        ({1: [{"time_s": 1.0, "bytes": 1.0}]}, "unknown field 'bytes'"),
        ({1: [{"time_s": 1.0}, {"time_s": 2.0}]}, "two variants of one name"),
        ({1: [{"time_s": 1.0, "sync_bytes": {"x": 1.0}}]}, "no neighbour"),
    ):
        with pytest.raises(InvalidGraph, match=said):
            rlinit.schedule(rlinit.Graph.build([("a", {"menu": ways})], []), hardware, **AUTO)


def test_menus_go_through_files(tmp_path: Any) -> None:
    """A menu, and a graph with one, are the same after writing and reading; a menu replaces that of a graph."""
    graph = chain()
    menu = graph.menu
    assert menu is not None
    menu.save(tmp_path / "menu.json")
    assert Menu.load(tmp_path / "menu.json") == menu
    graph.save(tmp_path / "graph.json")
    assert rlinit.Graph.load(tmp_path / "graph.json") == graph
    bare = rlinit.Graph.build([(name, {}) for name in graph.names], [(f"o{v}", f"o{v + 1}", 1.0) for v in range(3)])
    assert bare.menu is None
    assert bare.with_menu(menu) == graph
    assert bare.with_menu(menu).fingerprint() != bare.fingerprint()
    assert menu.degrees == (1, 2)


def test_many_sets_of_ops_have_a_plan_and_a_bound() -> None:
    """Where there are too many ideals for the exact method, runs of an order give a plan, the area a bound."""
    ops = [(f"o{v}", {"menu": {1: [{"time_s": 1.0 + v % 3}]}}) for v in range(40)]
    plan = rlinit.schedule(rlinit.Graph.build(ops, []), Hardware.mesh([Device(f"d{i}") for i in range(4)], 1.0), **AUTO)
    assert plan.status in ("feasible", "optimal")
    assert plan.bound > 0
    assert plan.gap < 0.2


def test_rules_that_had_no_time_say_so() -> None:
    """A rule that was not tried is not said to be impossible, and runs of an order wait for too many ideals."""
    hardware = Hardware.mesh([Device(f"d{i}") for i in range(4)], 1.0)
    many = rlinit.Graph.build([(f"o{v}", {"menu": {1: [{"time_s": 1.0 + v % 7}]}}) for v in range(40)], [])
    assert "runs of an order" in rlinit.schedule(many, hardware, **AUTO | {"replicas": 1}).phase_s
    late = rlinit.schedule(chain(), hardware, **AUTO, time_limit_s=1e-9)
    assert set(late.baseline_notes.values()) == {"not computed: the time limit had passed"}
    assert "runs of an order" not in rlinit.schedule(chain(), hardware, **AUTO).phase_s
