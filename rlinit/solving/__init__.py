"""From the public call to phases: what runs when, on which share of the budget.

Modules are imported when they are first used: compiled kernels take half a second, and each kind of problem another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlinit.late import late_names

if TYPE_CHECKING:
    from rlinit.solving import activations, api, groups, phases, placement_strategies, splits, stage_strategies

__all__ = ["activations", "api", "groups", "phases", "placement_strategies", "splits", "stage_strategies"]

__getattr__, _ = late_names(__name__)
