"""Modules that torch.export cannot take: traced by torch.fx, run by plans, refused with reasons."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlinit.executors
from rlinit import Graph
from rlinit.errors import InvalidGraph, InvalidPlan
from rlinit.executors import ExecutionFailure
from rlinit.executors.lowering.torch_program import export_model
from rlinit.importers import load_graph
from rlinit.importers.torch.export import export_program, from_program, tracer_of
from tests.executors.plans import random_hardware, random_plan, stage_plan
from tests.late import late_imports

with late_imports():
    import torch
    from torch import nn

    from tests.executors.models import Inception, RandomNet, TinyTransformer
    from tests.executors.test_local import check_same
    from tests.importers.torch.models import Block, Choice, Sorting


pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be traced by torch.export")


def quantised() -> nn.Module:
    """Return a network with packed weights."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: nn.Module = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call]
    return made


def compiled() -> nn.Module:
    """Return a network with a compiled part."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.Linear(4, 4), torch.jit.script(Choice()), nn.Linear(4, 4)).eval()


def timed(graph: Graph) -> Graph:
    """Return the graph with a second for each op."""
    return dataclasses.replace(graph, times={("*", 1): np.ones(graph.num_ops)})


@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (Block, {"Choice"}),
        (lambda: nn.Sequential(nn.Linear(4, 4), Sorting(), nn.Tanh()), {"Sorting"}),
        (quantised, {"Linear"}),
        (compiled, {"Choice"}),
    ],
)
def test_what_export_cannot_take_is_imported_and_run(make: Callable[[], nn.Module], kinds: set[str]) -> None:
    """Calls that need values are ops of their own, the warning says why, and plans give what the module gives."""
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(3, 4)
    with pytest.warns(UserWarning, match=r"cannot be traced by torch\.export.*torch\.fx traced it instead"):
        program = export_program(model, (x,))
    assert tracer_of(program) == "torch.fx"
    graph = timed(from_program(program, name=type(model).__name__))
    assert kinds <= set(graph.kinds)
    assert {graph.extras[v]["tracer"] for v in range(graph.num_ops)} == {"torch.fx"}
    assert timed(Graph.from_torch(model, (x,))) == graph
    assert timed(Graph.from_torch(model, (x,), method="fx")).names == graph.names
    plan = random_plan(graph, random_hardware(1, 3), 1)
    for runnable in (program, model):
        check_same(model, (x,), rlinit.executors.execute(plan, runnable, x, graph=graph).outputs)
    # The other branch is taken where the data say so.
    check_same(model, (-x,), rlinit.executors.execute(plan, program, -x, graph=graph).outputs)
    plan = stage_plan(graph, random_hardware(0, 2), [int(2 * v >= graph.num_ops) for v in range(graph.num_ops)])
    check_same(model, (x,), rlinit.executors.execute(plan, program, x).outputs)


def test_ops_know_their_modules_and_costs() -> None:
    """Parameters of an opaque module are shared by its calls, and its operations are those of the call."""
    model, x = Block().eval(), torch.randn(3, 4)
    graph = Graph.from_torch(model, (x, torch.randn(4)))
    first, second = (v for v, kind in enumerate(graph.kinds) if kind == "Choice")
    assert graph.extras[first]["module"] == graph.extras[second]["module"] == "choice"
    assert graph.extras[graph.names.index("linear")]["module"] == "inner.0"
    assert graph.param_bytes[[first, second]].tolist() == [2 * 80] * 2
    assert {one.readers for one in graph.shared} == {(first, second)}
    assert sum(one.size_bytes for one in graph.shared) == 2 * 80
    assert graph.flops[[first, second]].tolist() == [2 * 3 * 16] * 2
    assert graph.out_bytes[first] == 3 * 4 * 4
    coarse = Graph.from_torch(model, (x, torch.randn(4)), granularity="module")
    assert {"choice", "choice/call1", "inner.0", "inner.1", "norm"} <= set(coarse.names)
    packed = Graph.from_torch(quantised(), (x,))
    assert packed.param_bytes.sum() >= 4 * 8 * 2 + 4 * 12  # a byte a weight, four a bias
    assert packed.param_bytes.sum() < 4 * (4 * 8 * 2)


def test_the_module_is_left_as_it_was() -> None:
    """Tracing changes neither buffers, nor weights, nor inputs, nor the random state."""
    model = nn.Sequential(nn.BatchNorm1d(4), Choice()).train()
    x = torch.randn(3, 4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x_before, state = x.clone(), torch.random.get_rng_state()
    export_program(model, (x,), method="fx")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert torch.equal(x, x_before)
    assert torch.equal(state, torch.random.get_rng_state())
    assert isinstance(model[1], Choice)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_random_networks(seed: int) -> None:
    """Both tracers see the same costs in random networks, and plans of the fx graph give what the network gives."""
    model, x = RandomNet(seed).eval(), torch.randn(3, 4)
    program = export_program(model, (x,), method="fx")
    graph, other = timed(from_program(program)), Graph.from_torch(model, (x,), method="trace")
    assert graph.kinds == other.kinds
    assert graph.param_bytes.tolist() == other.param_bytes.tolist()
    assert graph.flops.tolist() == other.flops.tolist()
    assert graph.edges.tolist() == other.edges.tolist()
    plan = random_plan(graph, random_hardware(seed, 3), seed)
    check_same(model, (x,), rlinit.executors.execute(plan, program, x, graph=graph).outputs)


def test_batches_stay_dynamic() -> None:
    """A traced network without opaque calls runs its inputs in batches; one with them has a fixed batch."""
    model, x = Inception().eval(), torch.randn(2, 3, 8, 8)
    fixed = Graph.from_torch(model, (x,), method="fx", batch=4)
    assert fixed.kinds == Graph.from_torch(model, (x,), batch=4).kinds
    with pytest.raises(InvalidPlan, match="variable batch size"):
        export_model(Block().eval(), (torch.randn(3, 4),), dynamic_batch=3)


def test_models_on_the_meta_device() -> None:
    """What works without values is traced without them; what does not says so."""
    with torch.device("meta"):
        model, tokens = TinyTransformer().eval(), torch.zeros(2, 7, dtype=torch.long)
        branching = Block().eval()
    with pytest.raises(InvalidGraph, match=r"torch\.fx"):
        export_program(branching, (torch.randn(3, 4, device="meta"),))
    graph, other = (Graph.from_torch(model, (tokens,), method=method) for method in ("fx", "trace"))
    assert graph.param_bytes.sum() == other.param_bytes.sum()
    assert graph.flops.sum() == other.flops.sum()


def module_of(function: Callable[..., Any]) -> nn.Module:
    """Return a module with one submodule whose forward is a function."""

    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return function(x)

    return nn.Sequential(nn.Linear(4, 4), Inner()).eval()


def test_what_nobody_can_trace_names_both_reasons() -> None:
    """The error has the line of the model for each tracer, and the alternatives; so has one tracer that was asked."""

    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    where = r"by torch\.export at \S+test_fx_fallback\.py:\d+ \(return x if.*nor by torch\.fx at \S+:\d+ \(return x if"
    with pytest.raises(InvalidGraph, match=where + r".*torch\.cond.*method='strict'"):
        Graph.from_torch(Branch(), (torch.ones(4),))
    with pytest.raises(InvalidGraph, match=r"by torch\.fx at .*method='trace' or 'strict'"):
        Graph.from_torch(Branch(), (torch.ones(4),), method="fx")
    with pytest.raises(InvalidGraph, match="expected one of 'auto'"):
        Graph.from_torch(Branch(), (torch.ones(4),), method="jit")  # type: ignore[arg-type]

    def writes(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) if x.sum() > -1e9 else x

    for function, message in (
        (writes, r"module '1' cannot be traced, and writes"),
        (lambda x: x.detach().numpy(), r"method 'numpy' in module '1' cannot be traced, and gives a ndarray"),
        (lambda x: x * 2 if isinstance(x, torch.Tensor) else x, "does not give what the module gives"),
    ):
        with pytest.raises(InvalidGraph, match=message):
            Graph.from_torch(module_of(function), (torch.ones(2, 4),), method="fx")


def test_calls_that_turn_out_otherwise_are_errors() -> None:
    """A size, number or write that was different when the module was traced ends the run, by op and module."""

    def positive(x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] if x.sum() < 100 else x[:0]

    model = module_of(positive)
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(4))  # type: ignore[index]
        model[0].bias.zero_()  # type: ignore[index]
    x = torch.tensor([[1.0, -1.0, 2.0, -2.0]])
    program = export_program(model, (x,))
    graph = timed(from_program(program))
    plan = random_plan(graph, random_hardware(0, 2), 0)
    check_same(model, (x,), rlinit.executors.execute(plan, program, x, graph=graph).outputs)
    message = r"op 'opaque' failed on device 'd\d' \(cpu\): module '1' gives .* of shape \(4,\); .* it gave .*\(2,\)"
    with pytest.raises(ExecutionFailure, match=message):
        rlinit.executors.execute(plan, program, x.abs(), graph=graph)


def test_files_hold_no_opaque_calls(tmp_path: Any) -> None:
    """A saved program that calls modules of another process is refused."""
    torch.export.save(export_program(Block().eval(), (torch.randn(3, 4),)), tmp_path / "net.pt2")
    with pytest.raises(InvalidGraph, match="cannot hold such calls"):
        load_graph(tmp_path / "net.pt2")
