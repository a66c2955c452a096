"""Coarsening: what fuses, what may never fuse, and the way back."""

from __future__ import annotations

import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.coarsening.contraction import (
    Coarsened,
    coarsen,
    contract_problem,
    expand_placement,
)
from rlinit.coarsening.rules import FusionRules, InvalidRules
from rlinit.costs.roofline import moved_bytes
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from rlinit.placements.lowering import lower_placement
from rlinit.placements.problem import Placement, PlacementProblem
from rlinit.placements.timeline import held_bytes, makespan
from tests.draws import draws
from tests.placement_cases import random_placement, random_placement_problem

KINDS = ("conv", "bn", "add", "relu", "matmul", "concat", "")
NO_RULES = FusionRules(())
TABLE_I = FusionRules((("conv", "bn"), ("conv", "bn", "relu"), ("conv", "bn", "add", "relu")))


def random_graph(
    seed: int, num_ops: int = 9, *, density: float = 0.25, scale: float = 1.0, constraints: bool = True
) -> Graph:
    """Return a random graph of fusable kinds with missing costs, colocation and exclusions; times on two devices."""
    rng = np.random.default_rng(seed)
    ops: list[tuple[str, dict[str, Any]]] = []
    for v in range(num_ops):
        row: dict[str, Any] = {"op": KINDS[rng.integers(len(KINDS))]}
        for what in ("param_bytes", "out_bytes", "flops"):
            if rng.random() < 0.8:
                row[what] = float(rng.integers(0, 5)) * scale
        row["time_s"] = {"*": {1: float(rng.integers(0, 4)) * scale, 2: rng.random() * scale}}
        if constraints:
            if rng.random() < 0.1:
                row["time_s"]["gpu"] = rng.random() * scale
            if rng.random() < 0.15:
                row["colocate"] = int(rng.integers(2))
            if rng.random() < 0.2:
                row["forbidden"] = [("cpu", "gpu")[rng.integers(2)]]
        ops.append((f"v{v}", row))
    edges = [
        (f"v{u}", f"v{v}")
        for u, v in itertools.combinations(range(num_ops), 2)
        if rng.random() < density or (v == u + 1 and rng.random() < 0.5)
    ]
    return Graph.build(ops, edges)


def layers(kinds: str, edges: str) -> Graph:
    """Return a graph from ``"a:conv b:bn"`` and ``"a>b b>c"``."""
    ops = [(name, {"op": kind, "time_s": 1.0}) for name, kind in (item.split(":") for item in kinds.split())]
    return Graph.build(ops, [tuple(edge.split(">")) for edge in edges.split()])  # type: ignore[misc]


def groups(coarsened: Coarsened) -> list[str]:
    """Return the members' names of every group, as ``"abc"``."""
    return sorted("".join(coarsened.original.names[v] for v in path) for path in coarsened.members)


def spells_rule(graph: Graph, path: tuple[int, ...], rules: FusionRules) -> bool:
    """Tell whether the kinds of a path are a rule, from the rules' own list."""
    return tuple(rules.class_of(graph.kinds[v]) for v in path) in rules.sequences()


# -- what fuses ----------------------------------------------------------------------------------------------------


def test_table_i_fuses_along_a_line() -> None:
    """conv-bn-relu is one group and conv-bn another: the longest rule is completed before a shorter one."""
    graph = layers("a:conv b:bn c:relu d:conv e:bn", "a>b b>c c>d d>e")
    assert groups(coarsen(graph, TABLE_I)) == ["abc", "de"]


def test_figure_7() -> None:
    """The paper's example: the first add and relu stay apart (multi-output), the last add and relu join conv2-bn."""
    graph = layers(
        "a:add r:relu s:add t:relu c:conv b:bn d:conv n:bn x:add y:relu",
        "a>r a>c r>s s>t t>x c>b b>d d>n n>x x>y",
    )
    # s and t are bound (part of rule 3) and released; x is reached from t and from n, and goes with n.
    assert groups(coarsen(graph, TABLE_I)) == ["a", "cb", "dnxy", "r", "s", "t"]


def test_a_part_of_a_rule_is_released() -> None:
    """conv-bn-add without a relu: conv and bn stay fused, add is released."""
    assert groups(coarsen(layers("a:conv b:bn x:add", "a>b b>x"), TABLE_I)) == ["ab", "x"]


def test_an_op_with_two_consumers_fuses_with_neither() -> None:
    """A group has one output tensor, also when both consumers would end in the same group."""
    graph = layers("a:conv b:bn c:relu", "a>b a>c b>c")
    assert groups(coarsen(graph, FusionRules((("conv", "bn"), ("conv", "relu"))))) == ["a", "b", "c"]


def test_of_two_producers_the_one_with_the_larger_tensor_is_taken() -> None:
    """Both producers of an addition would fuse: the larger tensor stays inside."""
    for first, second in ((1.0, 2.0), (2.0, 1.0)):
        ops: list[tuple[str, dict[str, Any]]] = [
            ("a", {"op": "conv", "out_bytes": first}),
            ("b", {"op": "conv", "out_bytes": second}),
            ("x", {"op": "add"}),
        ]
        graph = Graph.build(ops, [("a", "x"), ("b", "x")])
        assert groups(coarsen(graph)) == (["a", "bx"] if second > first else ["ax", "b"])


def test_colocation_groups_do_not_mix_even_by_way_of_a_free_op() -> None:
    """Conv of group 0, bn of none and relu of group 1: bn goes with one of them, never with both."""
    ops: list[tuple[str, dict[str, Any]]] = [
        ("a", {"op": "conv", "colocate": 0}),
        ("b", {"op": "bn"}),
        ("c", {"op": "relu", "colocate": 1}),
    ]
    coarse = coarsen(Graph.build(ops, [("a", "b"), ("b", "c")])).graph
    assert coarse.num_ops == 2
    assert sorted(coarse.colocation.tolist()) == [0, 1]


def test_exclusions_that_leave_no_device_keep_ops_apart() -> None:
    """One op may not run on the CPU, the next not on the GPU: fused they could run nowhere."""
    ops: list[tuple[str, dict[str, Any]]] = [
        ("a", {"op": "conv", "forbidden": ["cpu"]}),
        ("b", {"op": "bn", "forbidden": ["gpu"]}),
    ]
    assert coarsen(Graph.build(ops, [("a", "b")]), chains=True).graph.num_ops == 2
    ops[1][1]["forbidden"] = []
    coarse = coarsen(Graph.build(ops, [("a", "b")])).graph
    assert coarse.forbidden["cpu"].tolist() == [True]


def test_times_for_other_devices_keep_ops_apart() -> None:
    """A sum of times given for different devices would be no time of anything, unless nobody reads it."""
    ops: list[tuple[str, dict[str, Any]]] = [
        ("a", {"op": "conv", "time_s": {"*": 1.0, "gpu": 0.5}}),
        ("b", {"op": "bn", "time_s": 1.0}),
    ]
    assert coarsen(Graph.build(ops, [("a", "b")])).graph.num_ops == 2
    ops[0][1]["forbidden"] = ["gpu"]
    coarse = coarsen(Graph.build(ops, [("a", "b")])).graph
    assert coarse.times["*", 1].tolist() == [2.0]
    assert coarse.forbidden["gpu"].tolist() == [True]


def test_bytes_of_a_group_are_limited() -> None:
    """With a limit, no group holds more, and a single op above it is left alone."""
    graph = random_graph(4, 30, constraints=False)
    for limit in (0.0, 5.0, 12.0):
        coarsened = coarsen(graph, chains=True, max_bytes=limit)
        held = moved_bytes(graph)
        assert all(len(path) == 1 or held[list(path)].sum() <= limit for path in coarsened.members)


def test_chains_of_unknown_kinds_are_contracted() -> None:
    """A line is one op, a diamond stays; no rule is needed."""
    line = layers("a:x b:y c:z", "a>b b>c")
    assert groups(coarsen(line, NO_RULES, chains=True)) == ["abc"]
    diamond = layers("s:x a:x b:x t:x", "s>a s>b a>t b>t")
    assert groups(coarsen(diamond, NO_RULES, chains=True)) == ["a", "b", "s", "t"]


def test_chains_join_what_rules_have_fused() -> None:
    """Producer and two consumers that fused with each other make a chain of groups."""
    graph = layers("s:x a:conv b:bn t:x", "s>a s>b a>b b>t")
    assert groups(coarsen(graph, TABLE_I, chains=True)) == ["sabt"]


@pytest.mark.parametrize(
    "kinds",
    [("Conv2D", "BatchNormalization", "ReLU"), ("aten.conv2d.default", "aten::batch_norm", "aten.relu_.default")],
)
def test_kinds_of_several_frameworks_are_understood(kinds: tuple[str, ...]) -> None:
    """Keras and ATen names of one computation fuse alike."""
    ops = [(f"v{i}", {"op": kind}) for i, kind in enumerate(kinds)]
    coarse = coarsen(Graph.build(ops, [("v0", "v1"), ("v1", "v2")])).graph
    assert coarse.names == ("v2",)
    assert coarse.kinds == ("+".join(kinds),)


# -- properties ----------------------------------------------------------------------------------------------------


@settings(max_examples=draws(200), deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14), st.sampled_from([0.05, 0.15, 0.4]), st.booleans())
def test_groups_are_sound(seed: int, num_ops: int, density: float, chains: bool) -> None:
    """Groups partition the ops, run in order, leave by one tensor, respect every limit, and make an acyclic graph."""
    graph = random_graph(seed, num_ops, density=density)
    rules = FusionRules.default()
    coarsened = coarsen(graph, rules, chains=chains)
    coarse = coarsened.graph
    assert sorted(v for path in coarsened.members for v in path) == list(range(num_ops))
    for group, path in enumerate(coarsened.members):
        assert (coarsened.group_of_op[list(path)] == group).all()
        assert {int(graph.colocation[v]) for v in path} <= {-1, int(coarse.colocation[group])}
        assert chains or len(path) == 1 or spells_rule(graph, path, rules)
        for device in graph.forbidden:
            assert coarse.forbidden[device][group] == graph.forbidden[device][list(path)].any()
    between = {(coarsened.group_of_op[u], coarsened.group_of_op[v]) for u, v in graph.edges}
    assert {tuple(edge) for edge in coarse.edges.tolist()} == {(a, b) for a, b in between if a != b}
    for u, v in graph.edges.tolist():
        if coarsened.group_of_op[u] != coarsened.group_of_op[v]:
            assert coarsened.members[coarsened.group_of_op[u]][-1] == u  # Only the last op's tensor leaves.
        else:
            path = coarsened.members[coarsened.group_of_op[u]]
            assert path.index(u) < path.index(v)


@settings(max_examples=draws(40), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-9, 1.0, 1e12]))
def test_costs_add(seed: int, scale: float) -> None:
    """Flops and times are the members' sums, parameters those known, the output is the last member's."""
    graph = random_graph(seed, 10, scale=scale)
    coarsened = coarsen(graph, chains=True)
    for group, path in enumerate(coarsened.members):
        members = list(path)
        assert coarsened.graph.flops[group] == pytest.approx(graph.flops[members].sum(), nan_ok=True)
        assert np.array_equal(coarsened.graph.out_bytes[group], graph.out_bytes[members[-1]], equal_nan=True)
        assert np.nansum(coarsened.graph.param_bytes[group]) == pytest.approx(np.nansum(graph.param_bytes[members]))
        assert coarsened.graph.names[group] == graph.names[members[-1]]
        for key, column in graph.times.items():
            assert coarsened.graph.times[key][group] == pytest.approx(column[members].sum(), nan_ok=True)


@settings(max_examples=draws(150), deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 9), st.booleans())
def test_no_cut_by_the_rules_has_fewer_groups(seed: int, num_ops: int, constraints: bool) -> None:
    """Brute force over which single-consumer edges are fused finds no fewer groups."""
    graph = random_graph(seed, num_ops, density=0.12, constraints=constraints)
    rules = FusionRules.default()
    outs = np.bincount(graph.edges[:, 0], minlength=num_ops)
    edges = [(u, v) for u, v in graph.edges.tolist() if outs[u] == 1]
    fewest = num_ops
    for chosen in itertools.product((False, True), repeat=len(edges)):
        following = {u: v for (u, v), fused in zip(edges, chosen, strict=True) if fused}
        if len(set(following.values())) < len(following):
            continue
        paths = []
        for v in set(range(num_ops)) - set(following.values()):
            path = [v]
            while path[-1] in following:
                path.append(following[path[-1]])
            paths.append(path)
        if all(len(path) == 1 or _may_fuse(graph, path, rules) for path in paths):
            fewest = min(fewest, len(paths))
    assert coarsen(graph, rules).graph.num_ops == fewest


def _may_fuse(graph: Graph, path: list[int], rules: FusionRules) -> bool:
    """Tell whether a path is a rule and breaks none of the limits, read off their description."""
    if not spells_rule(graph, tuple(path), rules):
        return False
    labels = {int(graph.colocation[v]) for v in path} - {-1}
    if len(labels) > 1:
        return False

    def banned(v: int) -> frozenset[str]:
        same = np.flatnonzero(graph.colocation == graph.colocation[v]) if graph.colocation[v] >= 0 else [v]
        return frozenset(device for device, mask in graph.forbidden.items() if mask[same].any())

    for at in range(1, len(path)):
        before = frozenset[str]().union(*map(banned, path[:at]))
        after = banned(path[at])
        tied = [graph.colocation[v] >= 0 for v in path[:at]]
        if any(tied) != (graph.colocation[path[at]] >= 0):
            limit = before if any(tied) else after
            if (before | after) != limit:
                return False
        elif not (before <= after or after <= before):
            return False
        for (device, _), column in graph.times.items():
            given = {not np.isnan(column[v]) for v in path[: at + 1]}
            if len(given) > 1 and device not in (before | after):
                return False
    return True


@settings(max_examples=draws(30), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_coarsening_leaves_no_group_without_a_device(seed: int, chains: bool) -> None:
    """If every colocation group and op has a device, so has everything of the coarse graph."""

    def stuck(graph: Graph) -> bool:
        nowhere = []
        for v in range(graph.num_ops):
            tied = (
                graph.colocation == graph.colocation[v] if graph.colocation[v] >= 0 else np.arange(graph.num_ops) == v
            )
            nowhere.append(
                all(bool(mask[tied].any()) for mask in graph.forbidden.values()) and len(graph.forbidden) == 2
            )
        return any(nowhere)

    graph = random_graph(seed, 12)
    coarse = coarsen(graph, chains=chains).graph
    assert stuck(coarse) == stuck(graph)


# -- the way back --------------------------------------------------------------------------------------------------


def with_kinds(problem: PlacementProblem, seed: int) -> Graph:
    """Return a graph of a problem's shape with random kinds and its colocation groups."""
    rng = np.random.default_rng(seed)
    ops = [
        (f"v{v}", {"op": KINDS[rng.integers(len(KINDS))], "colocate": int(problem.group[v])})
        if (problem.group == problem.group[v]).sum() > 1
        else (f"v{v}", {"op": KINDS[rng.integers(len(KINDS))]})
        for v in range(problem.num_ops)
    ]
    return Graph.build(ops, [(f"v{u}", f"v{v}") for u, v in problem.edges.tolist()])


@settings(max_examples=draws(60), deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1e-9, 1.0, 1e12]),
    st.booleans(),
)
def test_expanded_placements_are_never_later(
    seed: int, num_devices: int, shards: int, scale: float, integer: bool
) -> None:
    """An expanded placement keeps devices, memory and groups, and its makespan is at most the coarse one."""
    problem = random_placement_problem(
        seed, 9, num_devices, shards=shards, density=0.2, scale=scale, forbidden_fraction=0.0,
        group_fraction=0.2, integer=integer,
    )  # fmt: skip
    coarsened = coarsen(with_kinds(problem, seed), chains=bool(seed % 2))
    coarse = contract_problem(coarsened, problem)
    placement = random_placement(coarse, np.random.default_rng(seed))
    fine = expand_placement(coarsened, problem, placement)
    value = makespan(coarse, placement)
    assert makespan(problem, fine) <= value * (1 + 1e-12)
    assert held_bytes(problem, fine.device) == pytest.approx(held_bytes(coarse, placement.device))


@pytest.mark.filterwarnings("ignore:.*give no out_bytes")
def test_a_lowered_coarse_graph_and_a_contracted_problem_agree_where_times_are_given() -> None:
    """Times, weights, tensors and groups are the same by both ways; only the tensors inside groups are not held."""
    graph = random_graph(7, 14)
    hardware = Hardware.mesh([Device("cpu"), Device("gpu"), Device("any")], 2.0)
    coarsened = coarsen(graph)
    contracted = contract_problem(coarsened, lower_placement(graph, hardware, "latency").problem)
    lowered = lower_placement(coarsened.graph, hardware, "latency").problem
    for what in ("time_s", "weight_bytes", "tensor_bytes", "s_per_byte", "delay_s", "edges", "order", "group"):
        assert np.allclose(getattr(contracted, what), getattr(lowered, what)), what
    assert (contracted.shard_bytes >= lowered.shard_bytes).all()


def test_another_problem_is_refused() -> None:
    """A problem of another size than the original graph is an error that gives both sizes."""
    coarsened = coarsen(layers("a:conv b:bn", "a>b"))
    problem = random_placement_problem(0, 5, 2)
    with pytest.raises(InvalidPlan, match=r"5 ops.*2"):
        contract_problem(coarsened, problem)
    with pytest.raises(InvalidPlan, match="5 ops"):
        expand_placement(coarsened, problem, Placement(np.zeros((1, 1), np.int64), np.zeros(1, np.int64)))


# -- rules ---------------------------------------------------------------------------------------------------------


def test_optional_ops_make_variants() -> None:
    """A question mark leaves an op out; sequences of one op and repetitions vanish."""
    rules = FusionRules((("a?", "b", "c?"), ("a", "b")))
    assert set(rules.sequences()) == {("a", "b"), ("b", "c"), ("a", "b", "c")}


def test_rules_of_ones_own() -> None:
    """A rule beside the default ones may use their classes, and add kinds to a class."""
    given = FusionRules.default()
    kinds = {**given.kinds, "act": (*given.kinds["act"], "my_act")}
    rules = FusionRules((*given.rules, ("softmax", "act")), kinds)
    graph = layers("a:Softmax b:MyAct c:conv d:my-act", "a>b b>c c>d")
    assert groups(coarsen(graph, rules)) == ["ab", "cd"]


@pytest.mark.parametrize(
    ("rules", "kinds", "message"),
    [
        (("conv", "bn"), {}, "is not a sequence"),
        ((), {"a": ("x",), "b": ("X",)}, "'a' and 'b'"),
        ((tuple(f"x{i}?" for i in range(20)),), {}, "variants"),
    ],
)
def test_malformed_rules_are_refused(rules: Any, kinds: dict[str, tuple[str, ...]], message: str) -> None:
    """Malformed rules are an error that says what is wrong."""
    with pytest.raises(InvalidRules, match=message):
        FusionRules(rules, kinds)


# -- size ----------------------------------------------------------------------------------------------------------


def test_large_graphs_take_little_time() -> None:
    """50,000 ops in residual blocks, and 20,000 producers of one op, take no time that grows by the square."""
    kinds = ("conv", "bn", "relu", "conv", "bn", "add", "relu")
    n = 50_000
    ops = [(f"v{v}", {"op": kinds[v % 7], "time_s": 1.0}) for v in range(n)]
    edges = [(f"v{v}", f"v{v + 1}") for v in range(n - 1)]
    edges += [(f"v{v - 6}", f"v{v}") for v in range(12, n, 7)]
    graph = Graph.build(ops, edges)
    began = time.process_time()
    coarse = coarsen(graph).graph
    seconds = time.process_time() - began
    assert coarse.num_ops == pytest.approx(2 * n / 7, abs=8)
    assert seconds < 40.0
    fan = Graph.build(
        [(f"v{v}", {"op": "conv"}) for v in range(20_000)] + [("end", {"op": "add"})],
        [(f"v{v}", "end") for v in range(20_000)],
    )
    began = time.process_time()
    assert coarsen(fan, chains=True).graph.num_ops == 20_000
    assert time.process_time() - began < 40.0


def test_coarsening_twice_gives_the_same() -> None:
    """Nothing is left to chance."""
    graph = random_graph(3, 200, density=0.01)
    assert coarsen(graph).members == coarsen(random_graph(3, 200, density=0.01)).members
