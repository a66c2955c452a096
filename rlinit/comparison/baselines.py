"""A baseline: a schedule made by a simple rule, or why the rule gives none, and cuts of an order in given shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from rlinit.arrays import FloatArray, IntArray
from rlinit.plan import Plan
from rlinit.units import format_bytes, format_seconds

BEST_DEVICE = "best single device"
"""Everything on the one device that is done first."""

EQUAL_LAYERS = "equal layers"
"""As many ops for each device, in the natural order, devices in the hardware's order."""

OUT_OF_TIME = "not computed: the time limit had passed"
"""Why a rule that was not tried has no schedule."""

ScheduleT = TypeVar("ScheduleT")


@dataclass(frozen=True, slots=True, eq=False)
class Baseline(Generic[ScheduleT]):
    """What a simple rule gives.

    Parameters
    ----------
    name
        The rule.
    schedule
        A schedule that is feasible, or None.
    value
        Its value on the first level: seconds, or bytes for `memory`; None without a schedule.
    note
        Which device it is, for the best single one; without a schedule, the reason.
    """

    name: str
    schedule: ScheduleT | None
    value: float | None
    note: str = ""


def baseline_lines(plan: Plan) -> list[str]:
    """Return a line for each baseline of a plan, such as ``1.00x of the best single device (gpu0: 12 ms)``."""
    show = format_bytes if plan.objective == "memory" else format_seconds
    lines = []
    for name, value in plan.baselines.items():
        note = plan.baseline_notes.get(name, "")
        ratio = plan.ratio_to(name)
        if value is None or ratio is None:
            lines.append(f"{name}: {'none; ' + note if value is None else show(value)}")
        else:
            article = "the " if name == BEST_DEVICE else ""
            lines.append(f"{ratio:.2f}x of {article}{name} ({note + ': ' if note else ''}{show(value)})")
    return lines


def cut_in_shares(weight: FloatArray, shares: Sequence[float] | FloatArray) -> IntArray:
    """Return the part that each element of a row goes to, consecutive parts in given proportions.

    An element goes where its middle lies, so that a part differs from its share by at most half of an element at either
    end. Where nothing weighs anything, elements count alike.

    Parameters
    ----------
    weight
        (n,) weights >= 0 in the row's order.
    shares
        (k,) proportions >= 0 of the parts, not all zero.

    Returns
    -------
    IntArray
        (n,) part of each element, from 0, not decreasing.
    """
    if not weight.sum() > 0.0:
        weight = np.ones(len(weight))
    portion = np.asarray(shares, np.float64)
    ends = np.cumsum(portion / portion.sum())
    middle = (np.cumsum(weight) - 0.5 * weight) / weight.sum()
    part = np.searchsorted(ends, middle, side="right")
    last = int(np.flatnonzero(portion)[-1])  # sums of shares may end just below one
    kept: IntArray = np.minimum(part, last).astype(np.int64)
    return kept


def cut_order(order: IntArray, weight: FloatArray, shares: Sequence[float] | FloatArray) -> IntArray:
    """Return (n,) the part that each op or node goes to where an order of them is cut; see `cut_in_shares`.

    Parameters
    ----------
    order
        (n,) all ops or nodes.
    weight
        (n,) weight >= 0 of each.
    shares
        (k,) proportions >= 0 of the parts, not all zero.
    """
    part = np.empty(len(order), np.int64)
    part[order] = cut_in_shares(weight[order], shares)
    return part
