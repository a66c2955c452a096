"""Plans of Keras models run layer by layer, each call on the device that the plan gives it, on whatever backend."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.compatibility import require_totals
from rlinit.executors.protocol import Execution
from rlinit.graph import Graph
from rlinit.importers.common.precision import dtype_of
from rlinit.importers.keras.reader import LayerCall, from_keras, import_keras, layer_calls, load_model
from rlinit.plan import Plan


def names_layers(plan: Plan, model: Any) -> bool:
    """Return whether a plan's ops are layers of a model, rather than what torch.export makes of them.

    Parameters
    ----------
    plan
        A plan of any objective.
    model
        A Keras model, or a ``.keras`` file, whose plans name layers.
    """
    if isinstance(model, (str, Path)):
        return True
    return {call.name for call in layer_calls(model)[0]} == set(plan.assignment or ())


class KerasExecutor:
    """Runs plans of `load_keras` and `from_keras` on the model, one call after the other in this process.

    Layers are moved to the devices of their ops and stay there.
    """

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
        """Run a plan once; see `Executor.execute`.

        Parameters
        ----------
        plan, graph
            The plan; and the graph it was made for, with which nothing is done here.
        model
            The model, or its ``.keras`` file.
        inputs, kwargs
            Arrays or tensors by the order of the model's inputs; by name nothing is taken.
        devices
            Device name of the plan -> Keras's, such as "cpu" or "cuda:0"; others are on the CPU.

        Returns
        -------
        Execution
            Its outputs are those of the model: a tensor, or a list of them.

        Raises
        ------
        InvalidPlan
            The plan is not for this model, is of an objective that deals inputs out, or an input is missing.
        ExecutionFailure
            A layer failed; the message names it and the device.
        """
        del graph
        keras = import_keras()
        net = load_model(model) if isinstance(model, (str, Path)) else model
        calls, results = layer_calls(net)
        _require(plan, net)
        firsts = [call for call in calls if call.node.is_input]
        if kwargs or len(inputs) != len(firsts):
            raise InvalidPlan(
                f"there are {len(inputs)} inputs by order and {len(kwargs or {})} by name; the model takes by order "
                f"{', '.join(call.name for call in firsts)}"
            )
        where = {op: (devices or {}).get(str(device), "cpu") for op, device in _devices(plan).items()}
        _settle(calls, where)
        made = {call.name: [keras.ops.convert_to_tensor(x)] for call, x in zip(firsts, inputs, strict=True)}
        started = time.perf_counter()
        for call in calls:
            if call.name not in made:
                made[call.name] = _called(keras, call, made, where[call.name])
        outputs = [made[op][at] for op, at in results]
        return Execution(outputs[0] if len(outputs) == 1 else outputs, time.perf_counter() - started)


def _require(plan: Plan, model: Any) -> None:
    """Refuse plans of other models, and those that deal inputs out."""
    if plan.assignment is None:
        raise InvalidPlan(f"the plan is {plan.status}; there is no schedule to run")
    if plan.objective == "throughput":
        raise InvalidPlan(
            "throughput plans of Keras layers are not run; plan the model's ONNX export, or the module on the torch "
            "backend (Graph.from_torch)"
        )
    chosen: Any = plan.provenance.get("dtype")
    require_totals(plan, [from_keras(model, dtype=dtype_of(chosen))], "schedule it again")


def _devices(plan: Plan) -> Mapping[str, Any]:
    """Return the device of each op: a placement's, or that of its stage."""
    assignment = plan.assignment or {}
    return {op: plan.stages[int(at)].device for op, at in assignment.items()} if plan.stages else assignment


def _settle(calls: Sequence[LayerCall], where: Mapping[str, str]) -> None:
    """Move layers with weights to the devices of their ops, where one is not the CPU."""
    if set(where.values()) == {"cpu"}:
        return
    for call in calls:
        if hasattr(call.node.operation, "to"):  # a module of torch; other backends move arrays as they are used
            call.node.operation.to(where[call.name])


def _called(keras: Any, call: LayerCall, made: Mapping[str, Sequence[Any]], place: str) -> list[Any]:
    """Return the outputs of a call on what other calls made."""
    known = {id(t): made[op][at] for t, (op, at) in zip(call.node.input_tensors, call.sources, strict=True)}
    try:
        with keras.device(place):
            args, kwargs = call.node.arguments.fill_in(known)
            return list(keras.tree.flatten(call.node.operation(*args, **kwargs)))
    except Exception as problem:  # whatever a layer raises
        raise ExecutionFailure(f"op {call.name!r} failed on {place}: {problem}") from problem
