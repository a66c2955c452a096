"""Several models as one graph: their rounds, names and rates, against every assignment and by hand."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.errors import InvalidGraph
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware

HARDWARE = Hardware.pipeline(2, bandwidth=100.0, memory=40.0, cache=12.0)


def network(rng: np.random.Generator, name: str) -> Graph:
    """Return a graph of three ops, whole numbers throughout."""
    ops = [
        (f"v{at}", {"time_s": int(t), "param_bytes": int(w), "out_bytes": int(o)})
        for at, (t, w, o) in enumerate(rng.integers(1, 9, (3, 3)))
    ]
    return Graph.build(ops, [("v0", "v1"), (f"v{rng.integers(2)}", "v2")], name=name)


def by_hand(models: dict[Graph, float], stage: dict[str, int]) -> tuple[float, float]:
    """Return a round's seconds on the busiest device and the most bytes held, rates up to 1; inf against the order."""
    busy, held = np.zeros(2), np.zeros(2)
    for graph, rate in models.items():
        at = [stage[f"{graph.name}/{op}"] for op in graph.names]
        for v in range(graph.num_ops):
            busy[at[v]] += rate * graph.times["*", 1][v]
            held[at[v]] += graph.param_bytes[v]
            readers = {at[w] for u, w in graph.edges.tolist() if u == v}
            if readers and min(readers) < at[v]:
                return np.inf, np.inf
            for other in readers - {at[v]}:
                busy[[at[v], other]] += rate * graph.out_bytes[v] / 100.0
    busy += np.maximum(held - 12.0, 0.0) / 100.0
    return float(busy.max()), float(held.max())


@pytest.mark.parametrize("seed", range(12))
def test_values_are_those_of_all_assignments(seed: int) -> None:
    """Both objectives find the best of all assignments of the ops of two models to two devices."""
    rng = np.random.default_rng(seed)
    models: dict[Graph, float] = {network(rng, "a"): 3.0, network(rng, "b"): 0.5}
    joined = Graph.union(models)
    runs = {graph: rate / 3.0 for graph, rate in models.items()}
    every = [
        by_hand(runs, dict(zip(joined.names, stages, strict=True))) for stages in itertools.product((0, 1), repeat=6)
    ]
    objectives: tuple[Literal["pipeline", "memory"], ...] = ("pipeline", "memory")
    for level, objective in enumerate(objectives):
        plan = rlinit.schedule(joined, HARDWARE, objective=objective)
        assert plan.status == "optimal"
        assert plan.value == pytest.approx(min(one[level] for one in every))
        assert plan.bound <= plan.value * (1 + 1e-9)
        assert {op.partition("/")[0] for op in plan.assignment or ()} == {"a", "b"}


def test_rates_say_how_much_of_a_model_a_round_runs() -> None:
    """Times by device, ports, bytes on edges and FLOPs go by the rate; parameters do not; labels are each model's."""
    ops: list[tuple[str, dict[str, Any]]] = [
        ("u", {"time_s": {"x": 2, "y": {"1": 3, "2": 4}}, "flops": 5, "outputs": {"p": 7}, "shared": {"w": 1},
               "param_bytes": 1, "colocate": "g"}),
        ("v", {"shared": {"w": 1}, "param_bytes": 1, "colocate": "g"}),
        ("t", {}),
    ]  # fmt: skip
    graph = Graph.build(ops, [("u", "v", "p"), ("v", "t", 11)])
    rows = Graph.union({"a": (graph, 5), "b": (graph, 10)}).to_dict()
    first = rows["ops"][0]
    assert first["name"] == "a/u"
    assert (first["time_s"], first["flops"], first["outputs"]) == ({"x": 1, "y": {1: 1.5, 2: 2}}, 2.5, {"p": 3.5})
    assert (first["shared"], first["colocate"], first["param_bytes"]) == ({"a/w": 1}, "a/g", 1)
    assert ["a/v", "a/t", 5.5] in rows["edges"]
    assert ["b/u", "b/v", "p"] in rows["edges"]


def test_fractions_are_of_the_seconds_of_a_run() -> None:
    """With hardware a tenth of a run takes a tenth of its launch and of its reads of weights; rates have no unit."""
    graph = Graph.build([("u", {"flops": 1e9, "param_bytes": 1e8})], [], name="net")
    device = Device("gpu", flops_per_s=1e12, bytes_per_s=1e10, launch_s=0.01, slowdown=3.0)
    hardware = Hardware((device,), np.zeros((1, 1)), np.zeros((1, 1)), "one")
    for scale in (1.0, 20.0):
        joined = Graph.union({"a": (graph, scale), "b": (graph, 10.0 * scale)}, hardware)
        assert rlinit.schedule(joined, hardware).value == pytest.approx(1.1 * 3.0 * (0.01 + 0.01))


def test_bad_input_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No models, equal names, rates that are none and ops of training end in one line."""
    graph = network(np.random.default_rng(0), "a")
    with pytest.raises(InvalidGraph, match="one or more"):
        Graph.union({})
    for rate in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidGraph, match="rate of model 'a'"):
            Graph.union({graph: rate})
    with pytest.raises(InvalidGraph, match="different names"):
        Graph.union({graph: 1, network(np.random.default_rng(1), "a"): 1})
    backward = Graph.build([("f", {}), ("b", {"backward_of": "f"})], [("f", "b")], name="t")
    with pytest.raises(InvalidGraph, match="'b' of model 't' has backward_of"):
        Graph.union({backward: 1})
    path = str(tmp_path / "a.json")
    graph.save(path)
    assert main(["schedule", path, path, "--rates", "1"]) == 2
    assert "1 numbers for 2 models" in capsys.readouterr().err.replace("\n", " ")


def test_two_models_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model given twice keeps two names, and the plan says by how much all rates can grow."""
    graph = network(np.random.default_rng(0), "a")
    path, hardware = str(tmp_path / "a.json"), str(tmp_path / "hw.json")
    graph.save(path)
    HARDWARE.save(hardware)
    assert main(["schedule", path, path, "--rates", "30", "10", "--hw", hardware, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["assignment"].keys() == {f"a-{at}/{op}" for at in (0, 1) for op in graph.names}
    best = rlinit.schedule(Graph.union({"a-0": (graph, 30), "a-1": (graph, 10)}), HARDWARE)
    assert any(f"factor of {1 / 30 / best.value:.4g} together" in note for note in plan["notes"])
    # Two devices, one for each model: the better of the rows that it may have alone.
    single = Hardware.pipeline(1, bandwidth=100.0, memory=40.0, cache=12.0)
    alone = rlinit.schedule(graph, single).value
    assert plan["baselines"]["each model on devices of its own"] == pytest.approx(alone)
