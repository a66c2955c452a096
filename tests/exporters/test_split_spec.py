"""Split specifications against torch's own pipelining."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlinit.errors import InvalidPlan
from rlinit.exporters.split_spec import split_points, to_split_spec
from rlinit.graph import Graph
from rlinit.plan import Plan
from tests.executors.plans import random_case, random_hardware, stage_plan

PATHS = ["stem", "body.0.conv", "body.0.act", "body.1.conv", "body.1.act", "", "head", "head"]


def modules_graph(paths: list[str]) -> Graph:
    """Return a chain of ops in modules, after an input."""
    ops = [("x", {"op": "input", "time_s": 0.0})]
    ops += [(f"op{at}", {"op": "call", "time_s": 1.0, "module": path}) for at, path in enumerate(paths)]
    return Graph.build(ops, itertools.pairwise(name for name, _ in ops))


def staged(stages: list[int], paths: list[str] = PATHS) -> tuple[Plan, Graph]:
    """Return a plan for a chain of ops in modules, its input on the last stage."""
    graph = modules_graph(paths)
    k = max(stages) + 1
    return stage_plan(graph, random_hardware(0, k), [k - 1, *stages]), graph


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([0] * 8, {}),
        ([0, 1, 1, 1, 1, 1, 1, 1], {"body": "beginning"}),
        ([0, 0, 0, 1, 1, 1, 1, 1], {"body.1": "beginning"}),
        ([0, 0, 1, 2, 2, 2, 3, 3], {"body.0.act": "beginning", "body.1": "beginning", "head": "beginning"}),
        ([0, 0, 0, 0, 0, 1, 1, 1], {"body": "end"}),
        ([2, 2, 2, 0, 0, 3, 1, 1], {"body.1": "beginning", "body": "end", "head": "beginning"}),
        ([0, 1, 1, 1, 1, 2, 3, 3], {"body.0": "beginning", "body": "end", "head": "beginning"}),
    ],
)
def test_modules_are_as_large_as_possible(stages: list[int], expected: dict[str, str]) -> None:
    """Stages begin before or after the largest modules there, no module is named twice, numbers may be in any order."""
    assert split_points(*staged(stages)) == expected


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 1], "inside module 'head', between op 'op6' on stage 0 and op 'op7' on stage 1"),
        ([0, 1, 1, 0, 0, 0, 0, 0], "stage 0 runs op 'op0' before, and op 'op3' after op 'op2' of stage 1"),
    ],
)
def test_other_cuts_are_refused(stages: list[int], message: str) -> None:
    """Cuts inside a module, and stages in several pieces, are refused by name."""
    with pytest.raises(InvalidPlan, match=message):
        split_points(*staged(stages))


def test_modules_called_twice_are_no_cuts() -> None:
    """Torch would cut at every call of such a module; other modules around it will do."""
    shared = ["a.conv", "act", "b.conv", "act", "c"]
    with pytest.raises(InvalidPlan, match="inside module ''"):
        split_points(*staged([0, 0, 1, 1, 1], ["a.conv", "act", "", "act", "c"]))
    assert split_points(*staged([0, 1, 1, 1, 1], shared)) == {"a": "end"}
    names = ["lin", "lin/call1", "c"]
    ops = [(name, {"op": "Linear", "time_s": 1.0, "module": name.split("/")[0]}) for name in names]
    graph = Graph.build(ops, itertools.pairwise(names))
    assert split_points(stage_plan(graph, random_hardware(0, 2), [0, 0, 1]), graph) == {"c": "beginning"}
    with pytest.raises(InvalidPlan, match="inside module 'lin'"):
        split_points(stage_plan(graph, random_hardware(0, 2), [0, 1, 1]), graph)


def test_plans_without_stages_or_modules_are_refused() -> None:
    """Placements, other graphs and graphs without modules have no split specification."""
    placed, graph, hardware = random_case(1)
    with pytest.raises(InvalidPlan, match="devices, not stages"):
        split_points(placed, graph)
    with pytest.raises(InvalidPlan, match="which module"):
        split_points(stage_plan(graph, hardware, [0] * 8), graph)
    plan, _ = staged([0] * 8)
    with pytest.raises(InvalidPlan, match="another graph"):
        split_points(plan, graph)
    with pytest.raises(InvalidPlan, match="no schedule"):
        split_points(dataclasses.replace(plan, assignment=None, status="infeasible"), modules_graph(PATHS))


class Cutting:
    """Torch's cuts of small models by random plans that can be said by modules."""

    @staticmethod
    def models() -> list[Any]:
        """Return models with blocks, and their inputs."""
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y: torch.Tensor = self.second(torch.relu(self.first(x)))
                return x + y

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.stem = nn.Sequential(nn.Linear(4, 4), nn.GELU())
                self.blocks = nn.ModuleList(Block() for _ in range(3))
                self.act = nn.Tanh()
                self.head = nn.Linear(4, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = self.stem(x)
                for block in self.blocks:
                    x = self.act(block(x)) * 2.0
                result: torch.Tensor = self.head(x)
                return result

        return [nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(Block(), Block()), nn.Linear(4, 3)), Net()]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_torch_cuts_as_the_plan_does(which: int, seed: int) -> None:
    """Torch's pipeline has the plan's stages, each with the plan's ops, and gives what the model gives."""
    torch = pytest.importorskip("torch")
    from torch.distributed.pipelining import pipeline

    from rlinit.importers.torch.export import from_torch

    torch.manual_seed(seed)
    model, inputs = Cutting.models()[which].eval(), (torch.randn(2, 4),)
    with torch.no_grad():
        expected = model(*inputs)
    graph = from_torch(model, inputs)
    rng = np.random.default_rng(seed)
    spec: dict[str, Any] = {}
    while not spec:  # random cuts until one set of them can be said by modules
        cuts = sorted(rng.choice(np.arange(2, graph.num_ops), size=2, replace=False).tolist())
        stages = [sum(at >= cut for cut in cuts) for at in range(graph.num_ops)]
        timed = dataclasses.replace(graph, times={("*", 1): np.ones(graph.num_ops)})
        plan = stage_plan(timed, random_hardware(0, 3), stages)
        with contextlib.suppress(InvalidPlan):
            spec = to_split_spec(plan, timed)
    cut = pipeline(model, inputs, split_spec=spec)
    assert cut.num_stages == 3
    with torch.no_grad():
        torch.testing.assert_close(cut(*inputs)[0], expected)
    for stage in range(3):
        module = cut.get_stage_module(stage)
        graphs: list[Any] = [part.graph for part in module.modules() if hasattr(part, "graph")]
        called = [str(node.target) for one in graphs for node in one.nodes if node.op == "call_function"]
        names = [name.removeprefix("aten.").removesuffix(".default") for name in called if name.startswith("aten.")]
        kinds = [graph.kinds[at] for at in range(1, graph.num_ops) if stages[at] == stage]
        assert Counter(names) == Counter(kinds)


def test_modules_that_run_are_named() -> None:
    """A list of modules is never called: the layers in it are named, and torch makes as many stages as there are."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from rlinit.exporters.split_spec import check_stages
    from rlinit.importers.torch.export import from_torch
    from tests.executors.test_throughput import whisper

    model, inputs, kwargs = whisper()
    graph = from_torch(model, inputs, kwargs)
    paths = [graph.extras[at].get("module", "") for at in range(graph.num_ops)]
    first = [
        next(at for at, path in enumerate(paths) if path.startswith(f"{side}.layers.0"))
        for side in ("encoder", "decoder")
    ]
    cuts = sorted(first)
    stages = [sum(at >= cut for cut in cuts) for at in range(graph.num_ops)]
    stages = [0 if kind == "input" else stage for stage, kind in zip(stages, graph.kinds, strict=True)]
    timed = dataclasses.replace(graph, times={("*", 1): np.ones(graph.num_ops)})
    plan = stage_plan(timed, random_hardware(0, 3), stages)
    spec = to_split_spec(plan, timed, model=model, inputs=inputs, kwargs=kwargs)
    called = dict(model.named_modules())
    assert len(spec) == 2
    assert all(type(called[path]).__name__ != "ModuleList" for path in spec)
    with pytest.raises(InvalidPlan, match="torch makes 2 stages of the model where the plan has 3"):
        check_stages({"encoder.layers": "beginning", "decoder": "beginning"}, model, inputs, kwargs)
