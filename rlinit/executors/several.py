"""Running a plan of several models that share devices: each model's ops where the plan has them, all side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from rlinit.errors import InvalidPlan
from rlinit.executors.protocol import Execution
from rlinit.plan import Plan

Run = Callable[[Plan, str], Execution]


def part_of(plan: Plan, model: str) -> Plan:
    """Return what a plan of several models says of one: where its ops are, by their names in the model.

    Parameters
    ----------
    plan
        Of a graph that `Graph.union` made, with a schedule.
    model
        The model's name in the union.

    Raises
    ------
    InvalidPlan
        The plan has no op of such a model.
    """
    head = f"{model}/"
    mine = {op.removeprefix(head): place for op, place in (plan.assignment or {}).items() if op.startswith(head)}
    if not mine:
        known = sorted({op.partition("/")[0] for op in plan.assignment or {}})
        raise InvalidPlan(f"the plan has no ops of a model {model!r}; it has {', '.join(known)}")
    start_s = None if plan.start_s is None else {op: plan.start_s[head + op] for op in mine}
    return replace(
        plan,
        status="feasible",
        assignment=mine,
        start_s=start_s,
        batches=tuple(replace(one, op=one.op.removeprefix(head)) for one in plan.batches if one.op.startswith(head)),
        stage_orders=tuple(
            tuple(op.removeprefix(head) for op in order if op.startswith(head)) for order in plan.stage_orders
        ),
        transfers=(),
        bounds=None,
        graph=model,
        graph_fingerprint="",
        graph_figures={},
    )


def run_side_by_side(
    plan: Plan, models: Mapping[str, Any], inputs: Sequence[Any], kwargs: Mapping[str, Any] | None, run: Run
) -> Execution:
    """Run all models of a plan at the same time, and return their outputs by name.

    Parameters
    ----------
    plan
        Of a graph that `Graph.union` made.
    models
        Name in the union -> model; those of the plan, all of them.
    inputs, kwargs
        One mapping, or none: name -> positional inputs; and name -> inputs by keyword.
    run
        Runs the part of a plan that is for the model of a name, given its inputs.

    Raises
    ------
    InvalidPlan
        Models or inputs that are not those of the plan.
    """
    if len(inputs) > 1 or not all(isinstance(given, Mapping) for given in (*inputs, kwargs or {})):
        raise InvalidPlan("inputs of several models go by the models' names: run(plan, models, {name: (x, ...), ...})")
    parts = {name: part_of(plan, name) for name in models}
    for name in sorted({*(inputs[0] if inputs else ()), *(kwargs or ())} - set(models)):
        raise InvalidPlan(f"there are inputs for a model {name!r}, which is not among {', '.join(models)}")
    planned = sum(len(part.assignment or ()) for part in parts.values())
    if planned < len(plan.assignment or ()):
        rest = next(op for op in plan.assignment or {} if op.partition("/")[0] not in models)
        raise InvalidPlan(f"op {rest!r} is of a model that is not among {', '.join(models)}")
    began = time.perf_counter()
    with ThreadPoolExecutor(len(parts)) as pool:
        running = {name: pool.submit(run, part, name) for name, part in parts.items()}
        outputs = {name: future.result().outputs for name, future in running.items()}
    return Execution(outputs, time.perf_counter() - began)
