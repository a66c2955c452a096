"""The simulator as an executor: the model's outputs, with the times of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlinit.errors import BackendUnavailable, InvalidPlan
from rlinit.executors.protocol import Execution
from rlinit.graph import Graph
from rlinit.hardware import Hardware
from rlinit.plan import Plan
from rlinit.simulation.simulator import Perturbation, simulate


@dataclass(frozen=True, slots=True)
class SimulatorExecutor:
    """Simulates a plan; the outputs come from the unplaced model.

    Parameters
    ----------
    hardware
        What the plan was made for.
    perturbation
        Contention and slow-downs.
    rng
        Source of the random factors; needed where a sigma is positive.
    inputs
        Inputs that stream through a `pipeline` plan; see `simulate`.
    """

    hardware: Hardware
    perturbation: Perturbation = field(default_factory=Perturbation)
    rng: np.random.Generator | None = None
    inputs: int | None = None

    def execute(
        self,
        plan: Plan,
        model: Any,
        inputs: Sequence[Any],
        *,
        kwargs: Mapping[str, Any] | None = None,
        graph: Graph | None = None,
        devices: Mapping[str, str] | None = None,
    ) -> Execution:
        """Simulate the plan once; see `Executor.execute`. `graph` is needed, `devices` must not be given.

        Raises
        ------
        InvalidPlan
            No graph, physical devices, or a plan that cannot be simulated.
        """
        if graph is None or devices:
            raise InvalidPlan("the simulator needs the plan's graph, and no physical devices")
        run = simulate(plan, graph, self.hardware, perturbation=self.perturbation, rng=self.rng, inputs=self.inputs)
        return Execution(_outputs(model, inputs, kwargs or {}), run.makespan_s, run.batches)


def _outputs(model: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if model is None:
        return None
    try:
        import torch
    except ImportError:
        raise BackendUnavailable("running models needs torch; pip install rlinit[torch]") from None
    with torch.no_grad():
        called = model.module() if isinstance(model, torch.export.ExportedProgram) else model
        return called(*inputs, **kwargs)
