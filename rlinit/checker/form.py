"""Whether a plan is well formed: every field of its kind and range, and none that its objective has no use for.

What comes after may then count, sort and subtract without meeting a NaN, a bool or a number beyond a float's range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args

import numpy as np

from rlinit.errors import InvalidPlan
from rlinit.plan import Batch, ChunkOrder, Objective, Plan, PlannedTransfer, Resident, Status, Transfers

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
        found = ("values", entry.values, levels), ("bounds", entry.bounds, levels), ("time_s", (entry.time_s,), 1)
        for what, numbers, count in found:
            if numbers is not None and [_is_number(x) and not math.isnan(x) for x in numbers] != [True] * count:
                raise InvalidPlan(f"history[{at}].{what} is {numbers!r}; expected {count} numbers")
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
    ops, stages = list(plan.assignment or {}), list((plan.assignment or {}).values())
    _check_names(lambda _: "an op of the assignment", ops)
    if not _whole(stages):
        for op, stage in zip(ops, stages, strict=True):
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
    _check_number("training.exchange_bytes", training.exchange_bytes)
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
    _check_names(lambda at: f"batches[{at}].op", [batch.op for batch in plan.batches])
    _check_names(lambda at: f"batches[{at}].device", [batch.device for batch in plan.batches])
    _check_spans("batches", plan.batches)
    if not _whole([shard for batch in plan.batches for shard in batch.shards]):
        for at, batch in enumerate(plan.batches):
            for shard in batch.shards:
                _check_count(f"batches[{at}].shards", shard, 0)
    for at, moved in enumerate(plan.transfers):
        for what in ("op", "source", "target", "tensor"):
            _check_name(f"transfers[{at}].{what}", getattr(moved, what))
    _check_spans("transfers", plan.transfers)
    for at, use in enumerate(plan.devices):
        _check_name(f"devices[{at}].device", use.device)
        _check_count(f"devices[{at}].num_batches", use.num_batches, 0)
        _check_number(f"devices[{at}].busy_s", use.busy_s)
        _check_number(f"devices[{at}].held_bytes", use.held_bytes)
    ops, places = list(plan.assignment or {}), list((plan.assignment or {}).values())
    _check_names(lambda _: "an op of the assignment", ops)
    named = [(op, one) for op, on in zip(ops, places, strict=True) for one in (on if isinstance(on, tuple) else (on,))]
    _check_names(lambda at: f"a device of op {named[at][0]!r}", [one for _, one in named])
    begun, starts = list(plan.start_s or {}), list((plan.start_s or {}).values())
    _check_names(lambda _: "an op of start_s", begun)
    if not _finite(starts):
        for op, start in zip(begun, starts, strict=True):
            _check_number(f"start_s of op {op!r}", start)


# Plans have tens of thousands of ops: columns that are as they should be are not gone through one by one.


def _finite(column: Sequence[object]) -> bool:
    """Return whether all are floats, finite and from 0 on; where not, they may still be numbers that pass."""
    if not set(map(type, column)) <= {float}:
        return False
    numbers = np.array(column, np.float64)
    return bool(((numbers >= 0.0) & (numbers < np.inf)).all())


def _whole(column: Sequence[Any]) -> bool:
    """Return whether all are whole numbers from 0 on; where not, they may still be numbers that pass."""
    return set(map(type, column)) <= {int} and (not column or (min(column) >= 0 and max(column) <= _MAX_COUNT))


def _check_names(what: Callable[[int], str], column: Sequence[object]) -> None:
    if not set(map(type, column)) <= {str}:
        for at, value in enumerate(column):
            _check_name(what(at), value)


def _check_spans(what: str, spans: Sequence[Batch] | Sequence[PlannedTransfer]) -> None:
    starts, ends = [span.start_s for span in spans], [span.end_s for span in spans]
    if not (_finite(starts) and _finite(ends) and bool((np.array(starts) <= np.array(ends)).all())):
        for at, (start_s, end_s) in enumerate(zip(starts, ends, strict=True)):
            _check_span(f"{what}[{at}]", start_s, end_s)


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
