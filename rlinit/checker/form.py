"""Whether a plan is well formed: every field of its kind and range, and none that its objective has no use for.

What comes after may then count, sort and subtract without meeting a NaN, a bool or a number beyond a float's range.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import get_args

from rlinit.errors import InvalidPlan
from rlinit.plan import ChunkOrder, Objective, Plan, Resident, Status, Transfers

__all__ = ["check_form"]

_MAX_COUNT = 2**53
"""Counts up to here are exact as floats."""

_STAGE_FIGURES = (
    "work_s",
    "in_s",
    "out_s",
    "overflow_s",
    "param_bytes",
    "off_cache_bytes",
    "out_bytes",
    "activation_bytes",
)

_TRAINING_FIGURES = (
    "forward_s",
    "backward_s",
    "recompute_s",
    "state_bytes",
    "kept_bytes",
    "recomputed_bytes",
    "buffer_bytes",
    "working_bytes",
)


def check_form(plan: Plan) -> None:
    """Check the kinds and ranges of a plan's fields, and that it has those of its objective and no others.

    Raises
    ------
    InvalidPlan
        An unknown objective, status or rule; a number that is NaN, infinite, negative or no number; a count that is no
        whole number; as many values or bounds as the objective has not; fields of another objective.
    """
    for what, value, known in (
        ("objective", plan.objective, get_args(Objective)),
        ("status", plan.status, get_args(Status)),
        ("transfer_rule", plan.transfer_rule, get_args(Transfers)),
        ("resident", plan.resident, get_args(Resident)),
        ("chunk_order", plan.chunk_order, get_args(ChunkOrder)),
    ):
        if value not in known:
            raise InvalidPlan(f"the plan's {what} is {value!r}; expected one of {', '.join(known)}")
    levels = 3 if plan.objective == "memory" else 1
    _check_levels("values", plan.values, levels, least=0.0)
    _check_levels("bounds", plan.bounds, levels, least=-math.inf)
    for at, entry in enumerate(plan.history):
        for what, numbers in (("values", entry.values), ("bounds", entry.bounds), ("time_s", (entry.time_s,))):
            if numbers is not None and any(not _is_number(number) or math.isnan(number) for number in numbers):
                raise InvalidPlan(f"history[{at}].{what} is {numbers!r}; expected numbers")
    for phase, seconds in plan.phase_s.items():
        _check_number(f"phase_s[{phase!r}]", seconds)
    for name, compared in plan.baselines.items():
        if compared is not None:
            _check_number(f"baselines[{name!r}]", compared)
    _check_split(plan)
    _check_count("inputs", plan.inputs, 1)
    _check_count("shard_inputs", plan.shard_inputs, 1)
    if plan.objective in ("pipeline", "memory"):
        _check_stage_fields(plan)
    else:
        _check_placement_fields(plan)


def _check_split(plan: Plan) -> None:
    """Check how stages and devices belong together; only a pipeline has chunks or loose ops, and not both."""
    _check_count("chunks", plan.chunks, 1)
    if not isinstance(plan.contiguous, bool):
        raise InvalidPlan(f"the plan's contiguous is {_shown(plan.contiguous)}; expected true or false")
    usual = plan.chunks == 1 and plan.contiguous and plan.chunk_order == "interleaved"
    if plan.objective != "pipeline" and not usual:
        raise InvalidPlan(f"a {plan.objective} plan has no chunks and no loose ops")
    if not plan.contiguous and (plan.chunks > 1 or plan.stage_orders):
        raise InvalidPlan("a plan that is not contiguous has one stage a device and no orders")


def _check_stage_fields(plan: Plan) -> None:
    given = {
        "start_s": plan.start_s,
        "batches": plan.batches,
        "transfers": plan.transfers,
        "devices": plan.devices,
        "transfer_rule": None if plan.transfer_rule == "parallel" else plan.transfer_rule,
        "resident": None if plan.resident == "tensors" else plan.resident,
        "inputs": None if plan.inputs == 1 else plan.inputs,
        "shard_inputs": None if plan.shard_inputs == 1 else plan.shard_inputs,
    }
    for what, value in given.items():
        if value:
            raise InvalidPlan(f"a {plan.objective} plan has no {what}, but gives {_shown(value)}")
    for j, use in enumerate(plan.stages):
        _check_name(f"stages[{j}].device", use.device)
        _check_count(f"stages[{j}].num_ops", use.num_ops, 0)
        for figure in _STAGE_FIGURES:
            _check_number(f"stages[{j}].{figure}", getattr(use, figure))
    for j, order in enumerate(plan.stage_orders):
        for op in order:
            _check_name(f"stage_orders[{j}]", op)
    if plan.training is not None:
        _check_training_fields(plan)
    for op, stage in (plan.assignment or {}).items():
        _check_name("an op of the assignment", op)
        _check_count(f"the stage of op {op!r}", stage, 0)


def _check_training_fields(plan: Plan) -> None:
    training = plan.training
    if training is None or plan.objective != "pipeline" or plan.stage_orders:
        raise InvalidPlan("training is for pipeline plans without orders of stages")
    _check_name("training.schedule", training.schedule)
    _check_name("training.recompute", training.recompute)
    _check_count("training.microbatches", training.microbatches, 1)
    _check_number("training.state_factor", training.state_factor, 1.0)
    _check_number("training.step_s", training.step_s)
    if len(training.stages) != len(plan.stages):
        raise InvalidPlan(f"training has {len(training.stages)} stages; the plan has {len(plan.stages)}")
    for j, use in enumerate(training.stages):
        for figure in _TRAINING_FIGURES:
            _check_number(f"training.stages[{j}].{figure}", getattr(use, figure))
        _check_count(f"training.stages[{j}].in_flight", use.in_flight, 0)
        for block in use.recomputed:
            _check_name(f"training.stages[{j}].recomputed", block)


def _check_placement_fields(plan: Plan) -> None:
    for what, value in (("stages", plan.stages), ("stage_orders", plan.stage_orders), ("training", plan.training)):
        if value:
            raise InvalidPlan(f"a {plan.objective} plan has no {what}, but gives {_shown(value)}")
    if plan.objective == "latency" and (plan.inputs, plan.shard_inputs) != (1, 1):
        raise InvalidPlan(f"a latency plan is for 1 input, but gives {plan.inputs} in shards of {plan.shard_inputs}")
    for at, batch in enumerate(plan.batches):
        _check_name(f"batches[{at}].op", batch.op)
        _check_name(f"batches[{at}].device", batch.device)
        _check_span(f"batches[{at}]", batch.start_s, batch.end_s)
        for shard in batch.shards:
            _check_count(f"batches[{at}].shards", shard, 0)
    for at, moved in enumerate(plan.transfers):
        for what in ("op", "source", "target", "tensor"):
            _check_name(f"transfers[{at}].{what}", getattr(moved, what))
        _check_span(f"transfers[{at}]", moved.start_s, moved.end_s)
    for at, use in enumerate(plan.devices):
        _check_name(f"devices[{at}].device", use.device)
        _check_count(f"devices[{at}].num_batches", use.num_batches, 0)
        _check_number(f"devices[{at}].busy_s", use.busy_s)
        _check_number(f"devices[{at}].held_bytes", use.held_bytes)
    for op, device in (plan.assignment or {}).items():
        _check_name("an op of the assignment", op)
        _check_name(f"the device of op {op!r}", device)
    for op, start in (plan.start_s or {}).items():
        _check_name("an op of start_s", op)
        _check_number(f"start_s of op {op!r}", start)


def _check_levels(what: str, numbers: tuple[float, ...] | None, levels: int, *, least: float) -> None:
    if numbers is None:
        return
    if len(numbers) != levels:
        raise InvalidPlan(f"the plan has {len(numbers)} {what}; expected {levels}")
    for level, number in enumerate(numbers):
        _check_number(f"{what}[{level}]", number, least)


def _check_span(what: str, start_s: float, end_s: float) -> None:
    _check_number(f"{what}.start_s", start_s)
    _check_number(f"{what}.end_s", end_s)
    if end_s < start_s:
        raise InvalidPlan(f"{what} ends at {end_s} s, before it starts at {start_s} s")


def _check_number(what: str, value: object, least: float = 0.0) -> None:
    if not _is_number(value) or not math.isfinite(value) or value < least:  # type: ignore[arg-type, operator]
        wanted = "a finite number" if least == -math.inf else f"a finite number >= {least:g}"
        raise InvalidPlan(f"the plan's {what} is {_shown(value)}; expected {wanted}")


def _check_count(what: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_COUNT:
        raise InvalidPlan(f"the plan's {what} is {_shown(value)}; expected a whole number >= {least}")


def _check_name(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidPlan(f"the plan's {what} is {_shown(value)}; expected a name")


def _is_number(value: object) -> bool:
    """Return whether a value is a float, or an int in a float's range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) <= _MAX_COUNT


def _shown(value: object) -> str:
    """Return a value as text that is short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"some ({type(value).__name__})"
    return repr(value)[:80]
