"""Megatron's layout strings, read back by its rules."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from pathlib import Path

import pytest

import rlinit
from rlinit.cli.main import main
from rlinit.errors import InvalidPlan
from rlinit.exporters import to_megatron_layout
from rlinit.graph import Graph
from rlinit.hardware import Device, Hardware
from tests.executors.plans import random_hardware, stage_plan


def parsed(layout: str) -> list[str]:
    """Return the layers of each stage: first groups are repeated, then single characters, then ``|`` splits."""
    layout = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        layout = re.sub(pattern, lambda found: found[1] * int(found[2]), layout)
    stages = layout.split("|")
    assert all(set(stage) <= set("EtL") for stage in stages)
    return stages


def transformer(layers: int) -> Graph:
    """Return the ops of a transformer: mask and embedding, layers of two ops, a norm and a head without a module."""
    ops: list[tuple[str, dict[str, object]]] = [
        ("ids", {"op": "input", "time_s": 0.0}),
        ("mask", {"time_s": 0.0}),
        ("wte", {"module": "model.wte", "time_s": 0.1, "param_bytes": 8.0}),
    ]
    for i in range(layers):
        ops.append((f"attn{i}", {"module": f"model.h.{i}.attn", "time_s": 1.0, "param_bytes": 1.0}))
        ops.append((f"mlp{i}", {"module": f"model.h.{i}.mlp.2", "time_s": 1.0, "param_bytes": 1.0}))
    ops += [("norm", {"module": "model.norm", "time_s": 0.1, "param_bytes": 1.0}), ("head", {"time_s": 1.0})]
    chain = [name for name, _ in ops if name != "mask"]
    edges = [*itertools.pairwise(chain), ("ids", "mask"), *(("mask", f"attn{i}") for i in range(layers))]
    return Graph.build([(name, {"out_bytes": 1.0, **row}) for name, row in ops], edges, name="transformer")


def test_random_cuts_between_layers_are_read_back() -> None:
    """Stages of any numbers of layers, none included, come back from the string with the layers they hold."""
    rng = random.Random(0)
    for _ in range(60):
        layers, k = rng.randint(2, 40), rng.randint(1, 12)
        graph = transformer(layers)
        cuts = sorted(rng.randint(0, layers) for _ in range(k - 1))
        of_layer = [sum(cut <= i for cut in cuts) for i in range(layers)]
        stages = [0, rng.randrange(of_layer[0] + 1), 0, *(j for j in of_layer for _ in range(2)), k - 1, k - 1]
        layout = to_megatron_layout(stage_plan(graph, random_hardware(0, k), stages), graph)
        found = parsed(layout)
        assert "".join(found) == "E" + "t" * layers + "L"
        assert [stage.count("t") for stage in found] == [of_layer.count(j) for j in range(k)]
        assert found[0][0] == "E"
        assert found[-1][-1] == "L"


def test_layouts_are_short() -> None:
    """Equal stages and layers are said once."""
    graph = transformer(13)
    stages = [0, 0, 0, 0, 0, *(1 + i // 2 for i in range(10) for _ in range(2)), *[6] * 4, 6, 6]
    assert to_megatron_layout(stage_plan(graph, random_hardware(0, 7), stages), graph) == "Et|(tt|)*5ttL"
    graph = transformer(4)
    assert to_megatron_layout(stage_plan(graph, random_hardware(0, 2), [0] * 11 + [1, 1]), graph) == "Et*4|L"


def test_training_plans_have_layouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training plan with whole layers is exported by the library and by the command line, with either way of naming
    the model; interleaved chunks are stages of their own.
    """
    graph = transformer(8).group("layer")
    hardware = Hardware.mesh([Device(f"d{i}", memory_bytes=1e6) for i in range(4)], 1e9)
    plan = rlinit.schedule(graph, hardware, training="1f1b", microbatches=8)
    found = parsed(plan.to_megatron_layout(graph))
    assert [stage.count("t") for stage in found] == [2, 2, 2, 2]
    chunks = rlinit.schedule(graph, hardware, chunks=2)
    if (chunks.assignment or {})["head"] == 7:
        assert len(parsed(chunks.to_megatron_layout(graph))) == 8
    plan.save(tmp_path / "plan.json")
    graph.save(tmp_path / "graph.json")
    path = tmp_path / "layout.txt"
    assert main(["export", str(tmp_path / "plan.json"), str(tmp_path / "graph.json"), "--megatron", str(path)]) == 0
    assert path.read_text() == plan.to_megatron_layout(graph) + "\n"


def test_what_is_no_layout_is_refused_in_a_line() -> None:
    """Cuts inside layers, an embedding or a head elsewhere, and models without one list of layers."""
    graph, hardware = transformer(3), random_hardware(0, 3)
    cases = [
        ([0] * 3 + [0, 1, 1, 1, 1, 1] + [2, 2], "inside layer 0"),
        ([0, 0, 1] + [1] * 6 + [2, 2], "'wte' of the embedding is on stage 1"),
        ([0] * 3 + [0] * 6 + [1, 2], "'norm' comes after the layers and is on stage 1"),
        ([0] * 3 + [1, 1, 0, 0, 1, 1] + [2, 2], "layer 1 is on stage 0, before layer 0 on stage 1"),
    ]
    for stages, message in cases:
        with pytest.raises(InvalidPlan, match=message) as refused:
            to_megatron_layout(stage_plan(graph, hardware, stages), graph)
        assert "\n" not in str(refused.value)
    plan = stage_plan(graph, hardware, [0] * 9 + [2, 2])
    with pytest.raises(InvalidPlan, match="any ops on any device"):
        to_megatron_layout(dataclasses.replace(plan, contiguous=False), graph)
    ops = [(f"{part}{i}", {"module": f"{part}.{i}.x", "time_s": 1.0}) for part in ("enc", "dec") for i in range(2)]
    two = Graph.build(ops, list(itertools.pairwise(name for name, _ in ops)), name="two")
    with pytest.raises(InvalidPlan, match="'two' has 'dec', 'enc'"):
        to_megatron_layout(stage_plan(two, hardware, [0] * 4), two)
