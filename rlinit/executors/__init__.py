"""Running plans: on the devices of this process, or as a pipeline of processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinit.errors import ExecutionFailure, InvalidPlan
from rlinit.executors.protocol import Execution, Executor
from rlinit.graph import Graph
from rlinit.plan import Plan

__all__ = ["Execution", "ExecutionFailure", "Executor", "execute", "named_executor", "run"]


def run(
    plan: Plan,
    model: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    graph: Graph | None = None,
    executor: str | Executor = "local",
    devices: Mapping[str, str] | None = None,
    **named: Any,
) -> Any:
    """Run a plan once on a model and return its outputs, which equal those of the unplaced model.

    For many runs, load the plan once: ``LocalExecutor().load(plan, model, inputs)``.

    Parameters
    ----------
    plan, model, inputs, kwargs, graph, executor, devices, named
        As for `execute`, which also tells the times.

    Raises
    ------
    InvalidPlan, ExecutionFailure
        As for `execute`.
    """
    return execute(
        plan, model, *inputs, kwargs=kwargs, graph=graph, executor=executor, devices=devices, **named
    ).outputs


def execute(
    plan: Plan,
    model: Any,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    graph: Graph | None = None,
    executor: str | Executor = "local",
    devices: Mapping[str, str] | None = None,
    **named: Any,
) -> Execution:
    """Run a plan once on a model and return outputs and times.

    Parameters
    ----------
    plan
        A plan with a schedule.
    model
        The ``torch.nn.Module`` it was made for, or its ``torch.export.ExportedProgram``; or an ``.onnx`` file, which
        onnxruntime runs part by part (see `rlinit.executors.onnx.OnnxExecutor`): inputs are arrays then, and outputs
        arrays by name; or a Keras model or ``.keras`` file, whose layers run one by one where the plan names layers
        (see `rlinit.executors.keras_layers.KerasExecutor`). For a plan of `Graph.union`: name -> model, which run side
        by side; then inputs are one mapping from names to tuples, and outputs go by name.
    inputs
        The model's positional inputs.
    kwargs
        Its keyword inputs. Models of transformers run without their cache, unless ``use_cache`` is among these.
    graph
        The graph of the plan. With it, the model is checked to have the same ops and data flow; without it, the model
        is imported again and must have the ops and totals that the plan keeps of its graph, at op granularity.
    executor
        ``"local"`` (one process, see `LocalExecutor`), ``"pipeline"`` (a process a stage, under torchrun, see
        `PipelineExecutor`), or an executor itself, such as ``PipelineExecutor(microbatches=4)``.
    devices
        device name of the plan -> physical device such as ``"cuda:0"``; several names may share one. Devices that are
        not named are physical devices of that name, or the CPU; devices that run nothing in the plan may be named.
    named
        Nothing; inputs of the model by keyword belong into `kwargs`, so that they never mean something else here.

    Raises
    ------
    InvalidPlan
        The plan is not for this model, cannot be run by this executor, or names a device that is not there; or inputs
        are given by name.
    ExecutionFailure
        An op or a device failed; the message names both.
    """
    if named:
        (first, *_), given = named, ", ".join(f"{name!r}: ..." for name in named)
        raise InvalidPlan(f"{first!r} is given by name; inputs of the model by name go into kwargs={{{given}}}")
    if isinstance(model, Mapping):
        from rlinit.executors.several import run_side_by_side

        def run_one(part: Plan, name: str) -> Execution:
            given, by_name = inputs[0] if inputs else {}, kwargs or {}
            return execute(
                part, model[name], *given.get(name, ()), kwargs=by_name.get(name), executor=executor, devices=devices
            )

        return run_side_by_side(plan, model, inputs, kwargs, run_one)
    if executor == "local":
        chosen = _executor_for(plan, model)
    else:
        chosen = named_executor(executor) if isinstance(executor, str) else executor
    return chosen.execute(plan, model, inputs, kwargs=kwargs, graph=graph, devices=devices)


def _executor_for(plan: Plan, model: Any) -> Executor:
    """Return the executor that takes a model in this process."""
    if isinstance(model, (str, Path)):
        suffix = Path(model).suffix.lower()
        if suffix == ".onnx":
            from rlinit.executors.onnx import OnnxExecutor

            return OnnxExecutor()
        if suffix != ".keras":
            raise InvalidPlan(f"cannot run {model}: expected a module, an exported program, an .onnx or .keras file")
    elif not (hasattr(model, "_nodes_by_depth") or hasattr(model, "_functional")):
        return named_executor("local")
    from rlinit.executors.keras_layers import KerasExecutor, names_layers

    return KerasExecutor() if names_layers(plan, model) else named_executor("local")


def named_executor(name: str) -> Executor:
    """Return an executor with its default settings by name: ``local`` or ``pipeline``.

    Raises
    ------
    InvalidPlan
        An unknown name.
    """
    if name == "local":
        from rlinit.executors.local import LocalExecutor

        return LocalExecutor()
    if name == "pipeline":
        from rlinit.executors.pipeline import PipelineExecutor

        return PipelineExecutor()
    raise InvalidPlan(f"executor is {name!r}; expected 'local' or 'pipeline'")
