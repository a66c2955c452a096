"""Several models that share devices run side by side, with the outputs that each has alone."""

from __future__ import annotations

from typing import Any

import pytest

import rlinit
from rlinit.errors import InvalidPlan
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from tests.late import late_imports

with late_imports():
    import torch


def modules() -> tuple[dict[str, Any], dict[str, Any]]:
    torch.manual_seed(0)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    models = {
        "camera": torch.nn.Sequential(linear(8, 16), relu(), linear(16, 4)).eval(),
        "voice": torch.nn.Sequential(linear(6, 12), relu(), linear(12, 12), relu(), linear(12, 2)).eval(),
    }
    return models, {"camera": (torch.randn(3, 8),), "voice": (torch.randn(5, 6),)}


@pytest.mark.parametrize("objective", ["pipeline", "latency"])
def test_models_run_side_by_side(objective: Any) -> None:
    models, inputs = modules()
    graphs = {name: (Graph.from_torch(model, inputs[name], name=name), 1.0) for name, model in models.items()}

    machine = Hardware.preset("2xt4")
    plan = rlinit.schedule(Graph.union(graphs, machine), machine, objective=objective, time_limit_s=5.0)
    outputs = rlinit.run(plan, models, inputs)
    for name, model in models.items():
        torch.testing.assert_close(outputs[name], model(*inputs[name]))
    by_name = {name: {"input": given[0]} for name, given in inputs.items()}
    assert set(rlinit.run(plan, models, kwargs=by_name)) == set(models)
    for wrong, problem in (
        ((models | {"radio": models["voice"]}, inputs), "no ops of a model 'radio'"),
        (({"voice": models["voice"]}, {"voice": inputs["voice"]}), "is of a model that is not among voice"),
        ((models, inputs | {"radio": ()}), "inputs for a model 'radio'"),
        ((models, inputs["voice"][0]), "go by the models' names"),
    ):
        with pytest.raises(InvalidPlan, match=problem):
            rlinit.run(plan, *wrong)
