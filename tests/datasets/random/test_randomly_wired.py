"""Randomly wired networks: their structure, their sizes, and the totals they are fitted to."""

from __future__ import annotations

import itertools
from typing import Literal

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinit.costs.roofline import op_times
from rlinit.datasets.random.randomly_wired import rwnn
from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from tests.draws import draws

Wiring = Literal["er", "ws", "ba"]
Dependence = Literal["strong", "weak"]
WIRING = st.sampled_from(["er", "ws", "ba"])


def _modules(graph: Graph) -> np.ndarray:
    return np.array([int(name[1:].split(".")[0]) for name in graph.names])


@settings(max_examples=draws(30), deadline=None)
@given(
    wiring=WIRING,
    seed=st.integers(0, 10**6),
    num_modules=st.integers(1, 4),
    size=st.integers(6, 33),
    channels=st.integers(1, 4),
    dependence=st.sampled_from(["strong", "weak"]),
)
def test_modules_are_joined_by_their_channels_only(
    wiring: Wiring, seed: int, num_modules: int, size: int, channels: int, dependence: Dependence
) -> None:
    """Between modules run c edges, output c to input c of the next; each op has a path from and to a channel."""
    graph = rwnn(
        wiring,
        seed=seed,
        num_modules=num_modules,
        nodes_per_module=size,
        channels=channels,
        dependence=dependence,
    )
    module = _modules(graph)
    crossing = graph.edges[module[graph.edges[:, 0]] != module[graph.edges[:, 1]]]
    expected = {(f"m{t}.out{c}", f"m{t + 1}.in{c}") for t in range(num_modules - 1) for c in range(channels)}
    assert {(graph.names[u], graph.names[v]) for u, v in crossing} == expected
    for v in range(graph.num_ops):
        if graph.pred_indptr[v] == graph.pred_indptr[v + 1]:
            assert graph.names[v].startswith("m0.in")
        if graph.succ_indptr[v] == graph.succ_indptr[v + 1]:
            assert graph.names[v].startswith(f"m{num_modules - 1}.out")
    assert graph.num_ops == num_modules * (size + channels * 2)
    assert (graph.order == np.arange(graph.num_ops)).all()


@pytest.mark.parametrize(("wiring", "channels"), list(itertools.product(["er", "ws", "ba"], [2, 4])))
def test_strong_modules_hang_on_one_input_and_one_output(wiring: Wiring, channels: int) -> None:
    """In a strong module one input reaches every node and every node reaches one output; a weak one need not."""
    spread = 0
    choices: tuple[Dependence, ...] = ("strong", "weak")
    for seed, dependence in itertools.product(range(5), choices):
        graph = rwnn(wiring, seed=seed, num_modules=1, channels=channels, dependence=dependence).to_networkx()
        nodes = {name for name in graph if ".n" in name}
        full_inputs = [c for c in range(channels) if nodes <= nx.descendants(graph, f"m0.in{c}")]
        full_outputs = [c for c in range(channels) if nodes <= nx.ancestors(graph, f"m0.out{c}")]
        if dependence == "strong":
            assert full_inputs
            assert full_outputs
        else:
            spread += not full_inputs
    assert spread or wiring == "ba"  # whose first node is the only source


def test_one_channel_makes_bridges_and_one_graph_of_both_dependences() -> None:
    """With one channel the modules are joined by bridges, and strong and weak networks are the same."""
    graph = rwnn("er", seed=3, num_modules=4)
    bridges = set(map(frozenset, nx.bridges(graph.to_networkx().to_undirected())))
    assert {frozenset({f"m{t}.out0", f"m{t + 1}.in0"}) for t in range(3)} <= bridges
    weak = rwnn("er", seed=3, num_modules=4, dependence="weak")
    assert (weak.edges == graph.edges).all()


def test_networks_are_a_function_of_their_arguments() -> None:
    """A seed gives one graph; channels and batch sizes leave the wiring within the modules as it was."""
    graph = rwnn("ws", seed=1, num_modules=3)
    assert rwnn("ws", seed=1, num_modules=3).fingerprint() == graph.fingerprint()
    assert rwnn("ws", seed=2, num_modules=3).fingerprint() != graph.fingerprint()
    wired = [{(g.names[u], g.names[v]) for u, v in g.edges.tolist() if ".n" in g.names[u] and ".n" in g.names[v]}
             for g in (graph, rwnn("ws", seed=1, num_modules=3, channels=3, batch_sizes=(2, 4)))]  # fmt: skip
    assert wired[0] == wired[1]


def test_shapes_are_those_of_the_small_regime() -> None:
    """Channels start at 78, double where the resolution halves, and parameters follow from them."""
    graph = rwnn("er", seed=0, num_modules=4)
    for module, (pixels, width) in enumerate([(56, 78), (28, 156), (14, 312), (7, 624)]):
        out = graph.index(f"m{module}.out0")
        assert graph.out_bytes[out] == 4 * pixels**2 * width
        assert graph.param_bytes[out] == 0
        into = graph.index(f"m{module}.in0")
        assert graph.param_bytes[into] == 4 * (9 * width // 2 + width * width // 2 + 4 * width)
        assert graph.out_bytes[into] == graph.out_bytes[out]
    node = next(v for v in range(graph.num_ops) if graph.names[v].startswith("m0.n") and
                graph.pred_indptr[v + 1] - graph.pred_indptr[v] == 1)  # fmt: skip
    tensor = 56**2 * 78
    assert graph.flops[node] == tensor * (1 + 18 + 2 * 79)


def test_totals_are_those_of_the_paper() -> None:
    """Mean totals are as 7.10 : 1.26 : 1 within 2%, and 10 modules of 32 nodes take 233 ms on the A100 within 3%."""
    totals = np.zeros(3)
    for wiring, size, num_modules in itertools.product(("er", "ws", "ba"), (10, 32), (1, 10)):
        for seed in range(4):
            graph = rwnn(wiring, seed=seed, num_modules=num_modules, nodes_per_module=size)  # type: ignore[arg-type]
            totals += [graph.times[kind, 1].sum() for kind in ("cpu", "t4", "a100")]
    assert totals[0] / totals[2] == pytest.approx(7.10, rel=0.02)
    assert totals[1] / totals[2] == pytest.approx(1.26, rel=0.02)
    rows = [(1, "strong"), (2, "strong"), (3, "strong"), (4, "strong"), (2, "weak"), (3, "weak"), (4, "weak")]
    best = [
        rwnn("er", seed=seed, channels=c, dependence=d).times["a100", 1].sum()  # type: ignore[arg-type]
        for c, d in rows
        for seed in range(4)
    ]
    assert np.mean(best) == pytest.approx(0.233, rel=0.03)


def test_batches_pay_on_gpus_and_hardly_on_the_cpu() -> None:
    """Time grows with the batch, less than in proportion; a batch of 16 costs a GPU 1.3 to 2 times one input."""
    graph = rwnn("ba", seed=0, num_modules=1, batch_sizes=(1, 2, 16))
    for kind in ("cpu", "t4", "a100"):
        one, two, many = (graph.times[kind, batch] for batch in (1, 2, 16))
        assert ((one < two) & (two < many) & (many <= 16 * one)).all()
        growth = many.sum() / one.sum()
        assert (15 < growth <= 16) if kind == "cpu" else (1.3 < growth < 2)
    for device in Hardware.preset("cpu-t4-a100").devices:
        assert np.isfinite(op_times(graph, device)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wiring": "mesh"}, "wiring is 'mesh'"),
        ({"seed": -1}, "seed is -1"),
        ({"num_modules": 0}, "num_modules is 0"),
        ({"nodes_per_module": 5}, "nodes_per_module is 5"),
        ({"channels": 0}, "channels is 0"),
        ({"dependence": "none"}, "dependence is 'none'"),
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"batch_sizes": (2, 2)}, "distinct"),
        ({"batch_sizes": (0,)}, "batch_sizes"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    """Unknown names and numbers out of range are named."""
    with pytest.raises(InvalidGraph, match=message):
        rwnn(**({"wiring": "er", "seed": 0} | arguments))  # type: ignore[arg-type]
