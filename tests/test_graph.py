"""Graphs: what is accepted, what is refused and how, and exact round trips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlinit.errors import InvalidGraph
from rlinit.graph import Graph


@st.composite
def networkx_graphs(draw: st.DrawFn) -> nx.DiGraph[Any]:
    """Random attributed DAGs with string or integer names."""
    n = draw(st.integers(1, 8))
    ints = draw(st.booleans())
    cost = st.one_of(st.integers(0, 10**9), st.floats(0, 1e12, allow_nan=False))
    graph: nx.DiGraph[Any] = nx.DiGraph()
    for v in range(n):
        attributes: dict[str, Any] = {}
        for key in ("param_bytes", "out_bytes", "flops", "time_s"):
            if draw(st.booleans()):
                attributes[key] = draw(cost)
        if draw(st.booleans()):
            attributes["time_s"] = {"cpu": draw(cost), "gpu": {2: draw(cost), 4: draw(cost)}}
        if draw(st.booleans()):
            attributes["colocate"] = draw(st.sampled_from(["x", "y", 7]))
        if draw(st.booleans()):
            attributes["forbidden"] = ["gpu"]
        if draw(st.booleans()):
            attributes["note"] = "kept"
        graph.add_node(v if ints else f"op{v}", op="conv" if v % 2 else "relu", **attributes)
    names = list(graph.nodes)
    for u in range(n):
        ports = draw(st.dictionaries(st.sampled_from(["hidden", "cell"]), cost, max_size=2))
        if ports:
            graph.nodes[names[u]]["outputs"] = ports
        reads: list[dict[str, Any]] = [{"port": port} for port in ports]
        reads += [{}] if not ports or "out_bytes" in graph.nodes[names[u]] else []
        for v in range(u + 1, n):
            if draw(st.booleans()):
                graph.add_edge(names[u], names[v], **draw(st.sampled_from([*reads, {"bytes": draw(cost)}])))
    return graph


@given(networkx_graphs())
def test_networkx_round_trip_is_exact(graph: nx.DiGraph[Any]) -> None:
    """from_networkx and to_networkx are inverses, attributes and names included."""
    once = Graph.from_networkx(graph)
    back = once.to_networkx()
    assert nx.utils.graphs_equal(graph, back)
    assert Graph.from_networkx(back) == once


@given(networkx_graphs())
def test_json_round_trip_is_exact(graph: nx.DiGraph[Any]) -> None:
    """The JSON form reads back to an equal graph with the same fingerprint."""
    once = Graph.from_networkx(graph)
    again = Graph.from_dict(json.loads(json.dumps(once.to_dict())))
    assert again == once
    assert again.fingerprint() == once.fingerprint()


@given(networkx_graphs())
def test_order_is_topological_and_levels_are_asap(graph: nx.DiGraph[Any]) -> None:
    """The natural order respects every edge, and a level is one past the deepest producer's."""
    built = Graph.from_networkx(graph)
    position = np.empty(built.num_ops, int)
    position[built.order] = np.arange(built.num_ops)
    for v in range(built.num_ops):
        before = built.pred[built.pred_indptr[v] : built.pred_indptr[v + 1]]
        assert (position[before] < position[v]).all()
        assert built.level[v] == (built.level[before].max() + 1 if len(before) else 0)


@pytest.mark.parametrize(
    ("ops", "edges", "message"),
    [
        ([], [], "no ops"),
        ([("a", {}), ("a", {})], [], "'a' appears more than once"),
        ([("a", {}), ("b", {})], [("a", "b"), ("b", "a")], "cycle: (a -> b -> a|b -> a -> b)"),
        ([("a", {})], [("a", "a")], "'a' has an edge to itself"),
        ([("a", {})], [("a", "zz")], "edge \\('a', 'zz'\\) names the unknown op 'zz'"),
        ([("a", {"param_bytes": -1})], [], "'a': param_bytes is negative"),
        ([("a", {"out_bytes": float("nan")})], [], "'a': out_bytes is NaN"),
        ([("a", {"flops": float("inf")})], [], "'a': flops is infinite"),
        ([("a", {"time_s": {"cpu": {"x": 1}}})], [], "batch size 'x'"),
        ([("a", {"time_s": {"cpu": {"²": 1}}})], [], "batch size '²'"),
        ([("a", {"time_s": "fast"})], [], "time_s must be a number"),
        ([("a", {"time_s": {"cpu": -1.0}})], [], "time_s on 'cpu' is negative"),
    ],
)
def test_bad_graphs_are_refused_by_name(ops: list[Any], edges: list[Any], message: str) -> None:
    """What is wrong is said with the op or edge it is about."""
    with pytest.raises(InvalidGraph, match=message):
        Graph.build(ops, edges)


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (lambda d: d.pop("ops"), "ops"),
        (lambda d: d["ops"][0].update(param_bytes="many"), r"ops\[0\].param_bytes"),
        (lambda d: d.update(extra=1), "extra"),
        (lambda d: d["edges"].append(["a"]), r"edges\[1\]"),
    ],
)
def test_wrong_json_names_the_schema_path(tmp_path: Path, mutate: Any, message: str) -> None:
    """JSON that breaks the schema is refused with the path of the breach."""
    data = Graph.build([("a", {}), ("b", {})], [("a", "b")]).to_dict()
    mutate(data)
    (tmp_path / "g.json").write_text(json.dumps(data))
    with pytest.raises(InvalidGraph, match=message):
        Graph.load(tmp_path / "g.json")


def test_truncated_and_missing_files_are_refused(tmp_path: Path) -> None:
    """A truncated file, a file that is not text, a file that is not there, and NaN in JSON: clear errors."""
    Graph.build([("a", {})], []).save(tmp_path / "g.json")
    text = (tmp_path / "g.json").read_text()
    (tmp_path / "half.json").write_text(text[: len(text) // 2])
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "nan.json").write_text(text.replace('"name": "a"', '"name": "a", "flops": NaN'))
    for name in ("half.json", "bytes.json", "missing.json", "nan.json"):
        with pytest.raises(InvalidGraph, match=name):
            Graph.load(tmp_path / name)


def test_fifty_thousand_ops_fit() -> None:
    """A graph of 50,000 ops builds, and its arrays are what CSR promises."""
    n = 50_000
    ops = ((f"n{i}", {"param_bytes": i, "out_bytes": 1}) for i in range(n))
    graph = Graph.build(ops, ((f"n{i}", f"n{j}") for i in range(n) for j in (i + 1, i + 7) if j < n))
    assert graph.num_edges == len(graph.succ) == len(graph.pred) == 2 * n - 8
    assert graph.depth == n


ROW = {"time_s": 1.0}


@pytest.mark.parametrize(
    ("outputs", "edge", "message"),
    [
        ({"hidden": 4}, ("a", "b", "hiden"), r"'a', 'b'.*'hiden'.*did you mean 'hidden'"),
        ({"hidden": 4}, ("a", "b"), r"'a', 'b'.*hidden.*no out_bytes"),
        ({"hidden": -4}, ("a", "b", "hidden"), "op 'a': bytes of output 'hidden'"),
        ({"-> b": 4}, ("a", "b", "-> b"), "may not begin"),
        ({}, ("a", "b", -1.0), r"'a', 'b'.*bytes"),
        ({}, ("a", "b", float("nan")), r"'a', 'b'.*bytes"),
        ({}, ("a", "b", 1.0, 2.0), "2 entries"),
        ({}, ("a", "b", "x"), "out_bytes alone"),
    ],
)
def test_wrong_tensors_are_refused_by_op_and_edge(outputs: Any, edge: Any, message: str) -> None:
    """Unknown ports, sizes that are none, and edges that leave open what they read."""
    with pytest.raises(InvalidGraph, match=message):
        Graph.build([("a", ROW | {"outputs": outputs}), ("b", ROW)], [edge])


def test_an_edge_reads_one_tensor() -> None:
    """Two tensors of one producer are refused; the same edge twice counts once."""
    ops = [("a", ROW), ("b", ROW)]
    with pytest.raises(InvalidGraph, match="'b' reads two tensors of 'a'"):
        Graph.build(ops, [("a", "b", 1.0), ("a", "b", 2.0)])
    assert Graph.build(ops, [("a", "b", 1.0), ("a", "b", 1.0)]).num_edges == 1


def test_edge_attributes_of_networkx_are_checked() -> None:
    """Only bytes or a port, not both, and no text for a number."""
    for data in ({"weight": 1}, {"bytes": 1, "port": "x"}, {"bytes": "x"}, {"port": 1}):
        graph: nx.DiGraph[Any] = nx.DiGraph()
        graph.add_edge("a", "b", **data)
        with pytest.raises(InvalidGraph, match="'a', 'b'"):
            Graph.from_networkx(graph)


def test_fingerprints_tell_tensors_apart() -> None:
    """One output each leaves file and fingerprint as they were; sizes and ports of others count."""
    ops = [("a", ROW | {"out_bytes": 2.0}), ("b", ROW), ("c", ROW)]
    plain = Graph.build(ops, [("a", "b"), ("a", "c")])
    assert plain.fingerprint() == "6d58e09ab5ca8c4da686dacb6fc09b8a995b2e9e5a4c4c5f4a94500ddd91451c"
    assert plain.tensors.indptr.tolist() == [0, 2, 2, 2]
    others = [Graph.build(ops, [("a", "b"), ("a", "c", size)]) for size in (2.0, 3.0)]
    assert len({graph.fingerprint() for graph in (plain, *others)}) == 3
