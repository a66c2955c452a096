"""What running a plan means: the Protocol of executors, what they return, and how they fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlinit.graph import Graph
from rlinit.plan import Batch, Plan


@dataclass(frozen=True, slots=True)
class Execution:
    """What one run of a plan gave.

    Parameters
    ----------
    outputs
        What the unplaced model returns for the same inputs. None on processes that do not hold the last stage.
    seconds
        Wall-clock seconds of the run, without loading. Simulated seconds for the simulator.
    batches
        Measured start and end of every batch in seconds from the start of the run, where that was asked for.
    """

    outputs: Any
    seconds: float
    batches: tuple[Batch, ...] = ()


class Executor(Protocol):
    """Runs a plan on a model."""

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
        """Run the plan once.

        Parameters
        ----------
        plan
            A plan with a schedule.
        model
            The model it was made for, or its exported program.
        inputs
            Positional inputs of the model. For `throughput` plans the first dimension of every batched tensor is the
            plan's number of inputs.
        kwargs
            Keyword inputs of the model.
        graph
            The graph that the plan was made for. Its op attribute ``node`` names each op's node in the model's exported
            program; without a graph, ops are taken to be named like nodes.
        devices
            device name of the plan -> physical device ("cpu", "cuda:0"); several names may share one.

        Raises
        ------
        InvalidPlan
            The plan is not for this model, or this executor cannot run it; the message says what differs.
        ExecutionFailure
            An op or a device failed.
        """
        ...
