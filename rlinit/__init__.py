"""rlinit: schedules neural networks on hardware, and proves how good the schedule is.

>>> import rlinit
>>> graph = rlinit.Graph.build([("a", {"time_s": 2.0}), ("b", {"time_s": 1.0})], [("a", "b")])
>>> plan = rlinit.schedule(graph, rlinit.Hardware.pipeline(2), objective="pipeline")
>>> plan.status, plan.value, plan.assignment
('optimal', 2.0, {'a': 0, 'b': 1})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlinit.checker import verify
    from rlinit.executors import run
    from rlinit.graph import Graph
    from rlinit.hardware import Device, Hardware
    from rlinit.importers import load_graph
    from rlinit.plan import Plan
    from rlinit.solving.api import ProvenBound, bound, schedule
    from rlinit.sweeping.runs import sweep

__all__ = [
    "Device",
    "Graph",
    "Hardware",
    "Plan",
    "ProvenBound",
    "bound",
    "load_graph",
    "run",
    "schedule",
    "sweep",
    "verify",
]

__version__ = "0.1.0"

_HOME = {
    "Device": "hardware",
    "Graph": "graph",
    "Hardware": "hardware",
    "Plan": "plan",
    "ProvenBound": "solving.api",
    "bound": "solving.api",
    "load_graph": "importers",
    "run": "executors",
    "schedule": "solving.api",
    "sweep": "sweeping.runs",
    "verify": "checker",
}


def __getattr__(name: str) -> object:
    """Import public names when they are first used, so that ``import rlinit`` itself costs next to nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'rlinit' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"rlinit.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
