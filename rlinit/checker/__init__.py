"""The independent checker: recomputes feasibility and value of a plan from the raw graph and hardware."""

from rlinit.checker.stages import stage_uses, verify

__all__ = ["stage_uses", "verify"]
