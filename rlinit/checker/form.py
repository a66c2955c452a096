"""Whether a plan is well formed: every field of its kind and range, and none that its objective has no use for.

What comes after may then count, sort and subtract without meeting a NaN, a bool or a number beyond a float's range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, get_args

import numpy as np

from rlinit.arrays import BoolArray, FloatArray
from rlinit.errors import InvalidPlan
from rlinit.limits import LARGEST_EXACT
from rlinit.plan import Batch, ChunkOrder, Objective, Plan, PlannedTransfer, Resident, Status, Transfers

_PLACED = ("start_s", "batches", "transfers", "devices", "transfer_rule", "resident")
_STAGED = ("stages", "stage_orders", "training", "groups", "chunks", "chunk_order", "contiguous")
_MANY = ("inputs", "shard_inputs")
_OTHERS = {
    "pipeline": (*_PLACED, *_MANY),
    "memory": (*_PLACED, *_MANY, "training", "groups", "chunks", "chunk_order", "contiguous"),
    "latency": (*_STAGED, *_MANY),
    "throughput": _STAGED,
}
"""Objective -> fields of a plan that it has no use for, which have to be as they are by default."""


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
    for what, least in (("chunks", 1), ("inputs", 1), ("shard_inputs", 1)):
        _check_count(what, getattr(plan, what), least)
    if not isinstance(plan.contiguous, bool):
        raise InvalidPlan(f"the plan's contiguous is {_shown(plan.contiguous)}; expected true or false")
    usual = {one.name: () if one.default is MISSING else one.default for one in fields(Plan)}
    for what in _OTHERS[plan.objective]:
        value = getattr(plan, what)
        if value != usual[what] and (value or value is False):
            expected = usual[what] or "none"
            raise InvalidPlan(f"the plan's {what} is {_shown(value)}; expected {expected} for {plan.objective}")
    if not plan.contiguous and (plan.chunks > 1 or plan.stage_orders):
        raise InvalidPlan("a plan that is not contiguous has one stage a device and no orders")
    _check_rows("stages[{}]", plan.stages)
    _check_rows("batches[{}]", plan.batches)
    _check_rows("transfers[{}]", plan.transfers)
    _check_rows("devices[{}]", plan.devices)
    _check_spans("batches", plan.batches)
    _check_spans("transfers", plan.transfers)
    _check_training(plan)
    ops, places = list(plan.assignment or {}), list((plan.assignment or {}).values())
    listed = [op for order in plan.stage_orders for op in order]
    _check_column("str", lambda _: "an op", [*ops, *listed, *(plan.start_s or {})])
    _check_column("float", lambda _: "a start in start_s", list((plan.start_s or {}).values()))
    if plan.objective in ("pipeline", "memory"):
        _check_column("int", lambda at: f"the stage of op {ops[at]!r}", places)
    else:
        named = [(op, one) for op, on in zip(ops, places, strict=True) for one in (on if type(on) is tuple else (on,))]
        _check_column("str", lambda at: f"a device of op {named[at][0]!r}", [one for _, one in named])


def _check_training(plan: Plan) -> None:
    training = plan.training
    if training is None:
        return
    if plan.stage_orders:
        raise InvalidPlan("training is for pipeline plans without orders of stages")
    _check_rows("training", [training])
    _check_rows("training.stages[{}]", training.stages)
    _check_count("training.microbatches", training.microbatches, 1)
    _check_number("training.state_factor", training.state_factor, 1.0)
    if len(training.stages) != len(plan.stages):
        raise InvalidPlan(f"training has {len(training.stages)} stages; the plan has {len(plan.stages)}")


def _check_rows(what: str, rows: Sequence[Any]) -> None:
    """Check the fields of dataclasses by their annotations: numbers, whole numbers and names, also in tuples."""
    for one in fields(rows[0]) if rows else ():
        column, kind = [getattr(row, one.name) for row in rows], str(one.type)
        at_of = list(range(len(rows)))
        if kind.startswith("tuple["):
            kind = kind.removeprefix("tuple[").removesuffix(", ...]")
            at_of = [at for at, values in enumerate(column) for _ in values]
            column = [value for values in column for value in values]
        if kind in _CHECKS:
            _check_column(kind, partial(_named, f"{what}.{one.name}", at_of), column)


def _named(what: str, at_of: Sequence[int], at: int) -> str:
    return what.format(at_of[at])


# Plans have tens of thousands of ops: columns that are as they should be are not gone through one by one.


def _check_column(kind: str, what: Callable[[int], str], column: Sequence[Any]) -> None:
    """Check values of a kind; `what` names the one at a place."""
    if kind == "str":
        passes = set(map(type, column)) <= {str}
    elif kind == "int":
        passes = set(map(type, column)) <= {int} and (not column or (min(column) >= 0 and max(column) <= LARGEST_EXACT))
    else:
        passes = set(map(type, column)) <= {float} and bool(np.all(_is_finite(np.array(column, np.float64))))
    for at, value in enumerate(() if passes else column):
        _CHECKS[kind](what(at), value)


def _is_finite(numbers: FloatArray) -> BoolArray:
    return np.asarray((numbers >= 0.0) & (numbers < np.inf))


def _check_spans(what: str, spans: Iterable[Batch | PlannedTransfer]) -> None:
    for at, span in enumerate(spans):
        if span.end_s < span.start_s:
            raise InvalidPlan(f"{what}[{at}] ends at {span.end_s} s, before it starts at {span.start_s} s")


def _check_levels(what: str, numbers: tuple[float, ...] | None, levels: int, *, least: float) -> None:
    if numbers is None:
        return
    if len(numbers) != levels:
        raise InvalidPlan(f"the plan has {len(numbers)} {what}; expected {levels}")
    for level, number in enumerate(numbers):
        _check_number(f"{what}[{level}]", number, least)


def _check_number(what: str, value: object, least: float = 0.0) -> None:
    if not _is_number(value) or not math.isfinite(value) or value < least:  # type: ignore[arg-type, operator]
        wanted = "a finite number" if least == -math.inf else f"a finite number >= {least:g}"
        raise InvalidPlan(f"the plan's {what} is {_shown(value)}; expected {wanted}")


def _check_count(what: str, value: object, least: int = 0) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_EXACT:
        raise InvalidPlan(f"the plan's {what} is {_shown(value)}; expected a whole number >= {least}")


def _check_name(what: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidPlan(f"the plan's {what} is {_shown(value)}; expected a name")


_CHECKS: dict[str, Callable[[str, object], None]] = {"float": _check_number, "int": _check_count, "str": _check_name}
"""Annotation of a field -> what its values have to be."""


def _is_number(value: object) -> bool:
    """Return whether a value is a float, or an int in a float's range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) <= LARGEST_EXACT


def _shown(value: object) -> str:
    """Return a value as text that is short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return f"some ({type(value).__name__})"
    return repr(value)[:80]
