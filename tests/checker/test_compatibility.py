"""Whether a plan fits a graph, hardware or model, and what the message names where it does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import rlinit
from rlinit.checker.compatibility import figures_of, require_graph, require_hardware
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph


def chain(num_ops: int = 4, *, scale: float = 1.0, seconds: float = 1.0) -> Graph:
    """Return a chain of ops."""
    ops = [(f"op{v}", {"time_s": seconds, "param_bytes": scale * v, "module": f"m.{v}"}) for v in range(num_ops)]
    return Graph.build(ops, [(f"op{v}", f"op{v + 1}") for v in range(num_ops - 1)], name="chain")


HARDWARE = rlinit.Hardware.pipeline(2)


def test_messages_name_what_differs() -> None:
    """Other ops, other totals and other times are told apart; the same graph passes."""
    plan = rlinit.schedule(chain(), HARDWARE)
    require_graph(plan, chain())
    for graph, message in (
        (chain(6), r"ops in this one only: 'op4', 'op5'"),
        (chain(3), r"ops in the plan only: 'op3'"),
        (chain(20), r"'op10', 'op11', 'op12' and 13 more"),
        (chain(scale=2.0), r"12 param bytes instead of 6"),
        (chain(seconds=2.0), r"the same ops in other costs"),
    ):
        with pytest.raises(InvalidPlan, match=message):
            require_graph(plan, graph)
        with pytest.raises(InvalidPlan, match=message):
            rlinit.verify(plan, graph, HARDWARE)
    with pytest.raises(InvalidPlan, match=r"devices in this one only: 'stage2'"):
        require_hardware(plan, rlinit.Hardware.pipeline(3))
    with pytest.raises(InvalidPlan, match="devices of these names, but"):
        require_hardware(plan, rlinit.Hardware.pipeline(2, bandwidth=1.0))


def test_plans_keep_totals_and_modules() -> None:
    """Totals and modules travel with the plan; wrong totals are refused by the checker."""
    plan = rlinit.schedule(chain(), HARDWARE)
    assert plan.graph_figures == figures_of(chain())
    assert plan.modules == {f"op{v}": f"m.{v}" for v in range(4)}
    assert set(plan.to_device_map()) == {"m.0", "m.1", "m.2", "m.3"}
    with pytest.raises(InvalidPlan, match="totals"):
        rlinit.verify(dataclasses.replace(plan, graph_figures={"ops": 5.0}), chain(), HARDWARE)


def test_edited_models_are_refused_without_the_graph() -> None:
    """A model with other layers or other widths is refused by what the plan keeps, and the true one runs."""
    torch = pytest.importorskip("torch")
    from rlinit.importers.torch.export import from_program

    def network(width: int, depth: int) -> object:
        layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
        return torch.nn.Sequential(*layers).eval()

    model, x = network(4, 3), torch.randn(2, 4)
    graph = from_program(torch.export.export(model, (x,)))
    timed = dataclasses.replace(graph, times={("*", 1): np.ones(graph.num_ops)})
    plan = rlinit.schedule(timed, HARDWARE)
    with torch.no_grad():
        assert torch.equal(rlinit.run(plan, model, x), model(x))  # type: ignore[operator]
    with pytest.raises(InvalidPlan, match="in the model only"):
        rlinit.run(plan, network(4, 4), x)
    with pytest.raises(InvalidPlan, match="which the model does not have"):
        rlinit.run(plan, network(4, 2), x)
    with pytest.raises(InvalidPlan, match=r"param bytes instead of .*schedule it again"):
        rlinit.run(plan, network(5, 3), torch.randn(2, 5))
